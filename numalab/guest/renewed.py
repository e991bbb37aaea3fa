# SPDX-License-Identifier: GPL-2.0-only
"""Runs in a guest, alone, right after it was restored from a ready state: gives it what a guest has of its
own. Arguments: its name, its machine-id, and random bytes in hexadecimal.

An emulator that has just started translates every instruction anew, and importing pathlib, socket, signal
and site took it longer than the work.

The clock is set before this (launch). What cannot be changed: boot_id where it has been read, uptime, the
kernel's addresses, its command line, DMI's UUID.
"""

from __future__ import annotations

import fcntl
import os
import sys

RNDADDENTROPY, RNDRESEEDCRNG = 0x40085203, 0x5207
"""linux/random.h. ready.py has no guests of kernels in which the second does nothing."""
SIGHUP = 1
SEED_FILE = "/var/lib/systemd/random-seed"


def main() -> None:
    """Name, machine-id, random numbers, and a new login on hvc0."""
    name, machine_id, entropy = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3])
    bits, size = (number.to_bytes(4, sys.byteorder) for number in (8 * len(entropy), len(entropy)))
    with open("/dev/urandom", "wb") as device:
        fcntl.ioctl(device, RNDADDENTROPY, bits + size + entropy)
        fcntl.ioctl(device, RNDRESEEDCRNG)
    if os.path.exists(SEED_FILE):
        _write(SEED_FILE, os.urandom(os.path.getsize(SEED_FILE)))
    _write("/proc/sys/kernel/hostname", name.encode())
    _write("/etc/machine-id", f"{machine_id}\n".encode())
    # The login on the console knows the old name. Its init starts another one.
    for process in os.listdir("/proc"):
        try:
            if process.isdigit() and os.readlink(f"/proc/{process}/fd/0") == "/dev/hvc0":
                os.kill(int(process), SIGHUP)
        except OSError:
            continue


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


if __name__ == "__main__":
    main()
