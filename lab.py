#!/usr/bin/env python3
"""The lab's command line, as it stands in the checkout: finds its own environment and calls numalab.cli."""

import os
import signal
import sys
import traceback
from pathlib import Path

LAB_ERROR = 2
"""numalab.errors.Exit.LAB_ERROR, before numalab can be imported. Python's own status for an error is 1: "does not hold"."""
ENVIRONMENT = Path(__file__).resolve().parent / ".venv"

if Path(sys.prefix) != ENVIRONMENT:
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        print(f"lab.py: error: {ENVIRONMENT} is not set up: make -C {ENVIRONMENT.parent} setup", file=sys.stderr)
        sys.exit(LAB_ERROR)
    os.execv(python, [str(python), __file__, *sys.argv[1:]])

# Nothing is begun before the command line is there: Ctrl-C just ends it, without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

try:
    from numalab.cli import main
except Exception:
    traceback.print_exc()
    print("lab.py: error: the lab's own modules do not load (see above): make setup", file=sys.stderr)
    sys.exit(LAB_ERROR)

main()
