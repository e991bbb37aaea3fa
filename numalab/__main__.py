# SPDX-License-Identifier: GPL-2.0-only
"""`python -m numalab`: the same command line as lab.py's, in the environment of this Python."""

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
