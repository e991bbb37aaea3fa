#!/usr/bin/env -S python3 -IS
# SPDX-License-Identifier: GPL-2.0-only
"""The lab's command line, as it stands in the checkout: finds its own environment and calls
numalab.cli.main."""

import signal

# Signals wait until the command line can take them (terminal.handle_signals). Python's own answer, while it
# loads, is an exit status of 1, which says "does not hold". exec keeps the mask; -IS above keeps the time
# before it short.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})

import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

LAB_ERROR = 2
"""numalab.core.errors.Exit.LAB_ERROR, before numalab can be imported. Python's own status for an error is 1:
"does not hold"."""
ENVIRONMENT = Path(__file__).resolve().parent / ".venv"


def fail(message: str) -> NoReturn:
    """Leave with LAB_ERROR, even if the message cannot be written."""
    try:
        print(message, file=sys.stderr, flush=True)
    finally:
        os._exit(LAB_ERROR)


if Path(sys.prefix) != ENVIRONMENT:
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        fail(f"lab.py: error: {ENVIRONMENT} is not set up: make -C {ENVIRONMENT.parent} setup")
    os.execv(python, [str(python), __file__, *sys.argv[1:]])

try:
    from numalab.cli.main import main
except Exception:
    fail(
        f"{traceback.format_exc()}lab.py: error: the lab's modules do not load (see above): make clean setup"
    )

main()
