# SPDX-License-Identifier: GPL-2.0-only
"""`python -m numalab`: the same command line as lab.py's, in the environment of this Python."""

import sys
import traceback

from numalab.core.errors import Exit

try:
    from numalab.cli.main import main
except Exception:  # Python would leave with 1, and that says "does not hold"
    traceback.print_exc()
    sys.exit(Exit.LAB_ERROR)

if __name__ == "__main__":
    main()
