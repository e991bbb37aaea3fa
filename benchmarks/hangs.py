#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""How often a boot hangs under emulation, on the host's clock, and how.

    .venv/bin/python benchmarks/hangs.py [--boots 100] [--minutes M] [OPTIONS OF lab.py up]

Boots guests one after the other, `-t 4socket --vcpus 8 --memory 2GiB --kernel 6.1` unless other options are
given, ends each, and counts the boots that lab.py began again, by where their CPUs stood and by the last line
of their consoles (time stamps and numbers left out). The rate is hangs of all boots, those begun again
included, with its exact 95 % interval (Clopper and Pearson). A boot that fails otherwise ends the count.
The record of each hang, with the CPUs' registers, stays in the state directory: logs/hung-…-hangs-PID-….log.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scipy import stats  # noqa: E402

from numalab.core.process import Deadline  # noqa: E402
from numalab.host import accelerator  # noqa: E402

OPTIONS = ("-t", "4socket", "--vcpus", "8", "--memory", "2GiB", "--kernel", "6.1")
ALWAYS = ("--accel", "tcg", "--clock", "host", "--timeout", "1800")
HUNG = re.compile(
    r"hung in its boot under emulation, nothing new on its console for -?\d+ s;"
    r" (?P<cpus>[^;]*); last: (?P<last>.*?)(?:; begun again|$)",
    re.MULTILINE,
)
BROKEN = re.compile(
    r"QEMU ended itself: (.*?)(?:; begun again|$)|(QEMU ran an old translation)", re.MULTILINE
)


def kinds(said: str) -> list[str]:
    """The hangs that lab.py up told of, each as its kind and place."""
    hung = [f"{one['cpus']}: {_place(one['last'])}" for one in HUNG.finditer(said)]
    return [*hung, *(_place(one[1] or one[2]) for one in BROKEN.finditer(said))]


def _place(line: str) -> str:
    """A line of a console without what differs from boot to boot."""
    return re.sub(r"0x[0-9a-f]+|\d+", "N", re.sub(r"^\[[^]]*\]\s*", "", line)).strip()[:70]


def interval(hangs: int, boots: int) -> tuple[float, float]:
    """The exact 95 % interval of a rate, in percent."""
    low = stats.beta.ppf(0.025, hangs, boots - hangs + 1) if hangs else 0.0
    high = stats.beta.ppf(0.975, hangs + 1, boots - hangs) if hangs < boots else 1.0
    return 100 * float(low), 100 * float(high)


def boot(name: str, options: Sequence[str]) -> tuple[bool, list[str]]:
    """Boot a guest and end it: whether it came up, and the hangs on the way. Prints any other error."""
    lab = [sys.executable, str(ROOT / "lab.py")]
    words = [*lab, "up", "--name", name, *options, *ALWAYS]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    hung = kinds(done.stdout)
    if done.returncode == 0:
        subprocess.run([*lab, "down", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
    elif not (hung and ": hung in its boot" in done.stdout.strip().splitlines()[-1]):
        print(f"no boot: exit status {done.returncode}\n{done.stdout}", file=sys.stderr, flush=True)
    return done.returncode == 0, hung


def line(up: int, hung: Sequence[str]) -> str:
    """The counts so far."""
    boots = up + len(hung)
    low, high = interval(len(hung), boots) if boots else (0.0, 100.0)
    return f"{boots} boots, {len(hung)} hung ({low:.1f} to {high:.1f} %)"


def main() -> int:
    """Boot, and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--boots", type=int, default=100, help="how many are to come up or hang (100)")
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="begin none after so long")
    asked, options = parser.parse_known_args()
    options = options or list(OPTIONS)
    qemu, load = accelerator.qemu_version(Deadline.after(60)), os.getloadavg()[0]
    print(f"{datetime.date.today()}, {os.cpu_count()} CPUs, QEMU {qemu}, host's clock; {' '.join(options)}")
    print(f"load {load:.1f} at the start", flush=True)
    until, up = time.monotonic() + 60 * asked.minutes, 0
    hung: list[str] = []
    while up + len(hung) < asked.boots and time.monotonic() < until:
        came_up, here = boot(f"hangs-{os.getpid()}", options)
        up += came_up
        hung += here
        if not came_up and not here:
            return 2
        print(line(up, hung), flush=True)
    for kind, count in collections.Counter(hung).most_common():
        print(f"{count:5}  {kind}")
    print(f"load {os.getloadavg()[0]:.1f} at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
