#!/usr/bin/env python3
"""The lab's command line, as it stands in the checkout: finds its own environment and calls numalab.cli."""

import os
import sys
from pathlib import Path

ENVIRONMENT = Path(__file__).resolve().parent / ".venv"

if Path(sys.prefix) != ENVIRONMENT:
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        sys.exit(f"lab.py: error: {ENVIRONMENT} is not set up: make -C {ENVIRONMENT.parent} setup")
    os.execv(python, [str(python), __file__, *sys.argv[1:]])

from numalab.cli import main  # noqa: E402

main()
