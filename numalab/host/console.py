# SPDX-License-Identifier: GPL-2.0-only
"""The serial console as evidence: the log on disk, and which of its lines mean that the kernel is broken.

In the lab's guests only the kernel writes to ttyS0, so everything here comes from it, or through its log
(/dev/kmsg) from the lab's init. Not here: the interactive console (lab.py console uses hvc0).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from numalab.core.errors import BootHung, KernelOops
from numalab.core.process import Deadline
from numalab.host.remote import HERE

TAIL_LINES = 60
TAIL_BYTES = 64 << 10
"""The part of a log, at its end, from which TAIL_LINES are taken."""
CHUNK = 1 << 20
"""Bytes of a log that are read at once: a guest can print without end."""

# A soft lockup or an RCU stall is no oops: under emulation a vCPU that waits for a host core looks the same
# from inside (seen with 16 vCPUs on 2 cores). So it is kept as a warning and does not end the run.
OOPS = re.compile(
    r"Kernel panic - not syncing|Oops(: |\[)|general protection fault[:,]|kernel BUG at |"
    r"BUG: (?!soft lockup|workqueue lockup)|invalid opcode: |int3: \d{4} \[|stack segment: |double fault: |"
    r"VFS: Unable to mount root|Attempted to kill init"
)
"""Lines after which no counter can be trusted (arch/x86/kernel/dumpstack.c, mm/fault.c, kernel/panic.c)."""
INT3 = re.compile(r"int3: \d{4} \[.*?Code: [^<\n]*\b(?P<trapped>[0-9a-f]{2}) <[0-9a-f]{2}>", re.DOTALL)
"""An oops on a breakpoint, and the byte before RIP in memory: the trap leaves RIP behind the breakpoint."""
BREAKPOINT = "cc"
FINDING = re.compile(
    r"WARNING: (CPU|at |\S+:\d+ at )|INFO: task .* blocked for more than|"
    r"[Oo]ut of memory: Kill(ed)? process|invoked oom-killer|oom-kill:"
)
"""Lines that make a run evidence instead of a data point, as kernels from 3.2 on print them."""
STUCK = re.compile(r"INFO: (task \S+) blocked for more than (\d+) seconds")
STUCK_SECONDS = 360
"""A task that waits so long hangs. The kernel prints longer and longer waits; on a slow host some end."""
SLOW = re.compile(r"BUG: soft lockup|BUG: workqueue lockup|INFO: rcu_\w+ (self-)?detected")
"""The first lines of the kernel's reports of a lockup or stall."""
LISTENS = "numalab: sshd listens"
"""The last line of the lab's init: whatever a guest needs is there."""
BUSY_SECONDS = 2.0
"""Processor time of a boot that made progress: one that halts at once used less than 1 s in its limit of 60
s. A lean kernel needs some 10 s under TCG until sshd answers, and a few under KVM."""
REPORT_SECONDS = 10.0
"""How long one such report may take, with registers and traces of each processor."""


def findings(text: str) -> list[str]:
    """Lines that make a run an error: warnings, hung tasks, OOM kills."""
    return [line for line in text.splitlines() if FINDING.search(line)]


def warnings(text: str) -> list[str]:
    """All lines that are kept as a run's evidence, whether they make it an error or not."""
    return [line for line in text.splitlines() if FINDING.search(line) or SLOW.search(line)]


def check_stuck(log: Path) -> None:
    """Raise BootHung where the guest's kernel says that a task of its waits for STUCK_SECONDS or more.

    An emulated guest can lose a completion of its disk (seen once, on QEMU 10.0.2), and never answer again.
    """
    text = log.read_text(errors="replace") if log.exists() else ""
    for task, seconds in STUCK.findall(text):
        if int(seconds) >= STUCK_SECONDS:
            raise BootHung(f"the guest hung under emulation: its {task} waits for more than {seconds} s")


def stale_breakpoint(text: str) -> bool:
    """Whether a kernel oopsed on a breakpoint that is not in its memory: the emulator ran an old translation.

    Seen with 6.12 under QEMU 7.2's TCG, at `sched_clock: Marking stable`: `Oops: int3` in sched_clock_cpu(),
    memory 66 90.
    """
    match = INT3.search(text)
    return match is not None and match["trapped"] != BREAKPOINT


def silence(guest: str, cpu_seconds: float) -> str:
    """The message for a guest whose kernel printed nothing until the time limit, by its processor time."""
    if cpu_seconds > BUSY_SECONDS:
        return (
            f"guest {guest}: its kernel printed nothing and used {cpu_seconds:.0f} s of processor time: it"
            " runs, or loops, without a console: has it CONFIG_SERIAL_8250_CONSOLE? earlyprintk=ttyS0,115200"
            " on its command line may tell more"
        )
    return (
        f"guest {guest}: its kernel printed nothing and used only {cpu_seconds:.1f} s of processor time: it"
        " hangs before its first line. A tree older than 4.1 that today's assembler built does so: it needs"
        " flags: [-Wa,-mshared] in its era (kernels/eras/)"
    )


def whole_lines(raw: bytes) -> bytes:
    """A piece of a log without its incomplete last line; a line of CHUNK bytes is split."""
    return raw[: raw.rfind(b"\n") + 1] or (raw if len(raw) >= CHUNK else b"")


def last_lines(raw: bytes) -> str:
    """The last lines of a log, for an error's evidence."""
    return "\n".join(raw.decode(errors="replace").splitlines()[-TAIL_LINES:])


def pieces(more: Callable[[int], bytes], offset: int = 0) -> Iterator[str]:
    """A log from an offset on, in pieces of whole lines. `more` is as for Watch."""
    while raw := more(offset):
        # Less than CHUNK is the end of the log: keep an incomplete last line.
        raw = whole_lines(raw) if len(raw) >= CHUNK else raw
        offset += len(raw)
        yield raw.decode(errors="replace")


class Watch:
    """Searches what was added to a console log since the last call; raises KernelOops on an oops.

    `listens` says whether LISTENS was seen. `grew` is when a call last saw new output (time.monotonic), at
    first when the watch began. Reports of a
    lockup do not count as new output: a hung guest may print them until its time limit (seen: a processor
    that waited for the others in text_poke_bp_batch()).
    """

    def __init__(self, path: Path, guest: str, more: Callable[[int], bytes] | None = None) -> None:
        """`more(offset)` reads up to CHUNK bytes of the log from an offset on; by default from `path`."""
        self.path, self.guest, self.seen, self.listens = path, guest, 0, False
        self.grew = time.monotonic()
        self._reported = -math.inf
        self._more = more or (lambda offset: HERE.read(path, offset, Deadline.after(60), CHUNK))

    def __call__(self, *, last: bool = False) -> None:
        """Search all new output. `last`: no more will come, so an incomplete last line counts too."""
        while self._look(last=last):
            pass

    def _look(self, *, last: bool) -> bool:
        """Search the next piece; returns whether there may be more."""
        raw = self._more(self.seen)
        full = len(raw) >= CHUNK
        raw = raw if last and not full else whole_lines(raw)
        fresh = raw.decode(errors="replace")
        if match := OOPS.search(fresh):
            line = next(
                line for line in fresh[max(0, match.start() - 200) :].splitlines() if OOPS.search(line)
            )
            evidence = last_lines(self._more(max(0, self.seen + len(raw) - TAIL_BYTES)))
            raise KernelOops(
                f"guest {self.guest}: its kernel says: {line.strip()} (all of it: {self.path})",
                evidence=evidence,
            )
        self.seen += len(raw)
        self.listens = self.listens or LISTENS in fresh
        now = time.monotonic()
        if SLOW.search(fresh):
            self._reported = now
        elif raw and now - self._reported > REPORT_SECONDS:
            self.grew = now
        return full
