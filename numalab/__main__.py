# SPDX-License-Identifier: GPL-2.0-only
"""`numalab`, and `python -m numalab`: lab.py's command line, in the environment of this Python."""

import signal

# As in lab.py: signals wait until the command line can take them.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})

import sys
import traceback

from numalab.core.errors import Exit

try:
    from numalab.cli.main import main
except Exception:  # Python would exit with 1, which means "does not hold"
    traceback.print_exc()
    sys.exit(Exit.LAB_ERROR)

if __name__ == "__main__":
    main()
