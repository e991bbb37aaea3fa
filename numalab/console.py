"""The serial console as evidence: the whole log on disk, and what in it means that the kernel is broken.

ttyS0 is the kernel's alone in the lab's guests, so what stands here is the kernel's word. Not here: a
person's interactive console (lab.py console uses hvc0).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from pathlib import Path

from numalab.errors import KernelOops
from numalab.proc import Deadline
from numalab.where import HERE

TAIL_LINES = 60

# A soft lockup or an RCU stall is no oops: under emulation a vCPU that waits for a host core looks just
# the same from inside (seen with 16 vCPUs on 2 cores), so it is a warning that is kept, not an end.
OOPS = re.compile(
    r"Kernel panic - not syncing|Oops(: |\[)|general protection fault[:,]|kernel BUG at |"
    r"BUG: (?!soft lockup|workqueue lockup)|invalid opcode: |int3: \d{4} \[|stack segment: |double fault: |"
    r"VFS: Unable to mount root|Attempted to kill init"
)
"""Lines after which nothing that the guest counts means anything (kernel: arch/x86/kernel/dumpstack.c, kernel/panic.c, mm/fault.c)."""
INT3 = re.compile(r"int3: \d{4} \[.*?Code: [^<\n]*\b(?P<trapped>[0-9a-f]{2}) <[0-9a-f]{2}>", re.DOTALL)
"""An oops on a breakpoint, and the instruction bytes that the kernel then reads from memory: the trap leaves RIP behind its own."""
BREAKPOINT = "cc"
FINDING = re.compile(r"WARNING: (CPU|\S+:\d+ at )|INFO: task .* blocked for more than|Out of memory: Killed process|oom-kill:")
"""Lines after which what was counted is evidence and no data point."""
SLOW = re.compile(r"BUG: soft lockup|BUG: workqueue lockup|rcu: INFO: rcu_\w+ (self-)?detected")
"""The first lines of the kernel's reports of a lockup or stall."""
BUSY_SECONDS = 30.0
"""Processor time of a boot that did something: one that halts at once was seen to use less than 1 s until the limit
of 60 s, 5.10 under TCG 81 s until sshd answered."""
REPORT_SECONDS = 10.0
"""How long one such report may go on: registers and traces of each processor."""


def findings(text: str) -> list[str]:
    """Lines that make a run an error: warnings, hung tasks, OOM kills."""
    return [line for line in text.splitlines() if FINDING.search(line)]


def warnings(text: str) -> list[str]:
    """All lines that belong to a run's evidence, whether they spoil it or not."""
    return [line for line in text.splitlines() if FINDING.search(line) or SLOW.search(line)]


def stale_breakpoint(text: str) -> bool:
    """Whether a kernel oopsed on a breakpoint that its memory does not have: the emulator ran an old translation.

    Seen of 6.12 under QEMU 7.2's TCG, at `sched_clock: Marking stable`: `Oops: int3` in sched_clock_cpu(), memory 66 90.
    """
    found = INT3.search(text)
    return found is not None and found["trapped"] != BREAKPOINT


def silence(guest: str, cpu_seconds: float) -> str:
    """What to tell of a guest whose kernel has printed nothing until the time limit, by the processor time that it used."""
    if cpu_seconds > BUSY_SECONDS:
        return (f"guest {guest}: its kernel printed nothing and used {cpu_seconds:.0f} s of processor time: it runs, or loops, "
                "without a console: has it CONFIG_SERIAL_8250_CONSOLE? --append earlyprintk=ttyS0,115200 may tell more")
    return (f"guest {guest}: its kernel printed nothing and used only {cpu_seconds:.1f} s of processor time: it hangs before its first line. A tree "
            "older than 4.1 that today's assembler built does so: it needs flags: [-Wa,-mshared] in its era (kernels/eras/)")


class Watch:
    """Looks at what a console log has grown by since the last look; raises KernelOops on an oops.

    `grew` is when a look last found something new (time.monotonic), at first when the watch began. The kernel's reports
    of a lockup are nothing new: a guest that hangs may print them until its time limit (seen: a processor that waited
    for the others in text_poke_bp_batch()).
    """

    def __init__(self, path: Path, guest: str, more: Callable[[int], bytes] | None = None) -> None:
        """`more(offset)` reads the log from an offset on; by default from `path`."""
        self.path, self.guest, self._seen = path, guest, 0
        self.grew = time.monotonic()
        self._reported = -math.inf
        self._more = more or (lambda offset: HERE.read(path, offset, Deadline.after(60)))

    def __call__(self, *, last: bool = False) -> None:
        """Look once. `last`: nothing more will come, so half a line counts too; else it may yet become a harmless one."""
        raw = self._more(self._seen)
        raw = raw if last else raw[: raw.rfind(b"\n") + 1]
        fresh = raw.decode(errors="replace")
        if match := OOPS.search(fresh):
            line = next(line for line in fresh[max(0, match.start() - 200):].splitlines() if OOPS.search(line))
            evidence = "\n".join(self._more(0).decode(errors="replace").splitlines()[-TAIL_LINES:])
            raise KernelOops(f"guest {self.guest}: its kernel says: {line.strip()} (all of it: {self.path})", evidence=evidence)
        self._seen += len(raw)
        now = time.monotonic()
        if SLOW.search(fresh):
            self._reported = now
        elif raw and now - self._reported > REPORT_SECONDS:
            self.grew = now
