# SPDX-License-Identifier: GPL-2.0-only
"""The serial console as evidence: the whole log on disk, and what in it means that the kernel is broken.

ttyS0 is the kernel's alone in the lab's guests, so what stands here is the kernel's word. Not here: a
person's interactive console (lab.py console uses hvc0).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from numalab.core.errors import KernelOops
from numalab.core.process import Deadline
from numalab.host.remote import HERE

TAIL_LINES = 60
TAIL_BYTES = 64 << 10
"""Where TAIL_LINES are looked for: the end of a log."""
CHUNK = 1 << 20
"""Bytes of a log that are held at once: a guest can print without end."""

# A soft lockup or an RCU stall is no oops: under emulation a vCPU that waits for a host core looks just
# the same from inside (seen with 16 vCPUs on 2 cores), so it is a warning that is kept, not an end.
OOPS = re.compile(
    r"Kernel panic - not syncing|Oops(: |\[)|general protection fault[:,]|kernel BUG at |"
    r"BUG: (?!soft lockup|workqueue lockup)|invalid opcode: |int3: \d{4} \[|stack segment: |double fault: |"
    r"VFS: Unable to mount root|Attempted to kill init"
)
"""Lines after which nothing that the guest counts means anything (kernel: arch/x86/kernel/dumpstack.c,
kernel/panic.c, mm/fault.c)."""
INT3 = re.compile(r"int3: \d{4} \[.*?Code: [^<\n]*\b(?P<trapped>[0-9a-f]{2}) <[0-9a-f]{2}>", re.DOTALL)
"""An oops on a breakpoint, and the instruction bytes that the kernel then reads from memory: the trap leaves
RIP behind its own."""
BREAKPOINT = "cc"
FINDING = re.compile(
    r"WARNING: (CPU|\S+:\d+ at )|INFO: task .* blocked for more than|Out of memory: Killed process|oom-kill:"
)
"""Lines after which what was counted is evidence and no data point."""
SLOW = re.compile(r"BUG: soft lockup|BUG: workqueue lockup|rcu: INFO: rcu_\w+ (self-)?detected")
"""The first lines of the kernel's reports of a lockup or stall."""
BUSY_SECONDS = 30.0
"""Processor time of a boot that did something: one that halts at once was seen to use less than 1 s until the
limit of 60 s, 5.10 under TCG 81 s until sshd answered."""
REPORT_SECONDS = 10.0
"""How long one such report may go on: registers and traces of each processor."""


def findings(text: str) -> list[str]:
    """Lines that make a run an error: warnings, hung tasks, OOM kills."""
    return [line for line in text.splitlines() if FINDING.search(line)]


def warnings(text: str) -> list[str]:
    """All lines that belong to a run's evidence, whether they spoil it or not."""
    return [line for line in text.splitlines() if FINDING.search(line) or SLOW.search(line)]


def stale_breakpoint(text: str) -> bool:
    """Whether a kernel oopsed on a breakpoint that its memory does not have: the emulator ran an old
    translation.

    Seen of 6.12 under QEMU 7.2's TCG, at `sched_clock: Marking stable`: `Oops: int3` in sched_clock_cpu(),
    memory 66 90.
    """
    found = INT3.search(text)
    return found is not None and found["trapped"] != BREAKPOINT


def silence(guest: str, cpu_seconds: float) -> str:
    """What to tell of a guest whose kernel has printed nothing until the time limit, by the processor time
    that it used."""
    if cpu_seconds > BUSY_SECONDS:
        return (
            f"guest {guest}: its kernel printed nothing and used {cpu_seconds:.0f} s of processor time: it runs, or loops, "
            "without a console: has it CONFIG_SERIAL_8250_CONSOLE? earlyprintk=ttyS0,115200 on its command line may tell more"
        )
    return (
        f"guest {guest}: its kernel printed nothing and used only {cpu_seconds:.1f} s of processor time: it hangs before its first line. A tree "
        "older than 4.1 that today's assembler built does so: it needs flags: [-Wa,-mshared] in its era (kernels/eras/)"
    )


def whole_lines(raw: bytes) -> bytes:
    """A piece of a log without the line that it ends in the middle of; a line of CHUNK bytes is cut."""
    return raw[: raw.rfind(b"\n") + 1] or (raw if len(raw) >= CHUNK else b"")


def last_lines(raw: bytes) -> str:
    """The end of a log, for an error's evidence."""
    return "\n".join(raw.decode(errors="replace").splitlines()[-TAIL_LINES:])


def pieces(more: Callable[[int], bytes], offset: int = 0) -> Iterator[str]:
    """A log from an offset on, whole lines at a time. `more` is as for Watch."""
    while raw := more(offset):
        # Less than CHUNK is the log's end, half a line too.
        raw = whole_lines(raw) if len(raw) >= CHUNK else raw
        offset += len(raw)
        yield raw.decode(errors="replace")


class Watch:
    """Looks at what a console log has grown by since the last look; raises KernelOops on an oops.

    `grew` is when a look last found something new (time.monotonic), at first when the watch began. The
    kernel's reports of a lockup are nothing new: a guest that hangs may print them until its time limit
    (seen: a processor that waited for the others in text_poke_bp_batch()).
    """

    def __init__(self, path: Path, guest: str, more: Callable[[int], bytes] | None = None) -> None:
        """`more(offset)` reads the log from an offset on, CHUNK bytes at most; by default from `path`."""
        self.path, self.guest, self.seen = path, guest, 0
        self.grew = time.monotonic()
        self._reported = -math.inf
        self._more = more or (lambda offset: HERE.read(path, offset, Deadline.after(60), CHUNK))

    def __call__(self, *, last: bool = False) -> None:
        """Look at all that is new. `last`: nothing more will come, so half a line counts too; else it may yet
        become a harmless one."""
        while self._look(last=last):
            pass

    def _look(self, *, last: bool) -> bool:
        """Look at the next piece; whether there may be another one."""
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
        now = time.monotonic()
        if SLOW.search(fresh):
            self._reported = now
        elif raw and now - self._reported > REPORT_SECONDS:
            self.grew = now
        return full
