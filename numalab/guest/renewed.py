# SPDX-License-Identifier: GPL-2.0-only
"""Runs in a guest, alone, right after it was restored from a ready state: gives it what a guest has of its
own. Arguments: its name, its machine-id, and random bytes in hexadecimal.

The clock is set before this (launch). What cannot be changed: boot_id where it has been read, uptime, the
kernel's addresses, its command line, DMI's UUID.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import sys
from pathlib import Path

RNDADDENTROPY, RNDRESEEDCRNG = 0x40085203, 0x5207
"""linux/random.h. ready.py has no guests of kernels in which the second does nothing."""
SEED_FILE = Path("/var/lib/systemd/random-seed")


def main() -> None:
    """Name, machine-id, random numbers, and a new login on hvc0."""
    name, machine_id, entropy = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3])
    with Path("/dev/urandom").open("wb") as device:
        fcntl.ioctl(device, RNDADDENTROPY, struct.pack("ii", 8 * len(entropy), len(entropy)) + entropy)
        fcntl.ioctl(device, RNDRESEEDCRNG)
    if SEED_FILE.exists():
        SEED_FILE.write_bytes(os.urandom(SEED_FILE.stat().st_size))
    socket.sethostname(name)
    Path("/etc/machine-id").write_text(f"{machine_id}\n")
    # The login on the console knows the old name. Its init starts another one.
    for status in Path("/proc").glob("[0-9]*/fd/0"):
        try:
            if status.readlink() == Path("/dev/hvc0"):
                os.kill(int(status.parts[2]), signal.SIGHUP)
        except OSError:
            continue


if __name__ == "__main__":
    main()
