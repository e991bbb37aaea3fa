# SPDX-License-Identifier: GPL-2.0-only
"""Run a command that leaves daemons behind, and reap what they leave: `python subreaper.py COMMAND...`

Orphans go to the first process of the machine or container, and one that is no init reaps them late or never.
libvirt waits until an ended QEMU has been reaped: 1.0 to 1.8 s of each `down` where the first process looks
every two seconds. Under a subreaper (prctl(2)) QEMU is reaped at once.

Ends with the command's exit status; the subreaper stays until it has no descendant left. Run as a file,
without the package, so that it holds nothing but the standard library.
"""

import ctypes
import os
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main(command: list[str]) -> int:
    """Start the subreaper, and the command in it. Returns the command's exit status; 1 if it did not run."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, "rb") as status:
            return int(status.read() or 1)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    os.chdir("/")
    ended = subprocess.run(command, check=False).returncode
    os.setsid()  # only now: a caller that gives up ends its children, and the command with them
    # The caller waits until nobody can write to its pipes.
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.write(writer, str(ended % 256).encode())
    os.close(writer)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
