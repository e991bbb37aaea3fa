# SPDX-License-Identifier: GPL-2.0-only
"""Runs in a guest, alone, while it is saved as a ready state, and gives each guest that is restored from it
what a guest has of its own: it waits for REQUEST, one line with the time, a name, a machine-id, and random
bytes in hexadecimal, and writes DONE or an error's text into ANSWER.

It waits in the saved memory, since an emulator that has just started translates every instruction anew:
starting Python there took longer than the work.

What cannot be changed: boot_id where it has been read, uptime, the kernel's addresses, its command line,
DMI's UUID.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time

REQUEST, ANSWER = "/run/numalab-renew", "/run/numalab-renewed"
"""FIFOs."""
DONE = "done"
RNDADDENTROPY, RNDRESEEDCRNG = 0x40085203, 0x5207
"""linux/random.h. ready.py has no guests of kernels in which the second does nothing."""
SIGHUP = 1
SEED_FILE = "/var/lib/systemd/random-seed"


def main() -> None:
    """Return when a process in the background, which has all that it needs, waits for its request."""
    for fifo in (REQUEST, ANSWER):
        os.mkfifo(fifo, 0o600)
    if os.fork():
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # else SSH would wait for them
        os.dup2(nothing, stream)
    with open(REQUEST) as request:
        words = request.read().split()
    try:
        renew(*words)
        answer = DONE
    except (OSError, TypeError, ValueError) as error:
        answer = str(error)
    with open(ANSWER, "w") as file:
        file.write(f"{answer}\n")
    for fifo in (REQUEST, ANSWER):
        os.unlink(fifo)


def renew(now: str, name: str, machine_id: str, entropy: str) -> None:
    """Clock (seconds since 1970), name, machine-id, random numbers, and a new login on hvc0."""
    time.clock_settime(time.CLOCK_REALTIME, float(now))
    added = bytes.fromhex(entropy)
    bits, size = (number.to_bytes(4, sys.byteorder) for number in (8 * len(added), len(added)))
    with open("/dev/urandom", "wb") as device:
        fcntl.ioctl(device, RNDADDENTROPY, bits + size + added)
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
