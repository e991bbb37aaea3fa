"""The serial console as evidence: the whole log on disk, and what in it means that the kernel is broken.

ttyS0 is the kernel's alone in the lab's guests, so what stands here is the kernel's word. Not here: a
person's interactive console (lab.py console uses hvc0).
"""

from __future__ import annotations

import re
from pathlib import Path

from numalab.errors import KernelOops

TAIL_LINES = 60

# A soft lockup or an RCU stall is no oops: under emulation a vCPU that waits for a host core looks just
# the same from inside (seen with 16 vCPUs on 2 cores), so it is a warning that is kept, not an end.
OOPS = re.compile(
    r"Kernel panic - not syncing|Oops(: |\[)|general protection fault|kernel BUG at |"
    r"BUG: (?!soft lockup|workqueue lockup)|invalid opcode: |stack segment: |double fault: |"
    r"VFS: Unable to mount root|Attempted to kill init"
)
"""Lines after which nothing that the guest counts means anything (kernel: arch/x86/kernel/dumpstack.c, kernel/panic.c, mm/fault.c)."""
WARNING = re.compile(
    r"WARNING: CPU|BUG: soft lockup|BUG: workqueue lockup|rcu: INFO: rcu_\w+ (self-)?detected|"
    r"INFO: task .* blocked for more than|Out of memory: Killed process|oom-kill:"
)


def read(path: Path) -> str:
    """The console log so far, '' when there is none yet."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The end of the log, for an error's evidence."""
    return "\n".join(read(path).splitlines()[-lines:])


def warnings(text: str) -> list[str]:
    """Lines that do not end a run but belong to its evidence."""
    return [line for line in text.splitlines() if WARNING.search(line)]


class Watch:
    """Looks at what a console log has grown by since the last look; raises KernelOops on an oops."""

    def __init__(self, path: Path, guest: str) -> None:
        self.path, self.guest, self._seen = path, guest, 0

    def __call__(self) -> None:
        """Look once."""
        try:
            with self.path.open("rb") as log:
                log.seek(self._seen)
                fresh = log.read().decode(errors="replace")
        except FileNotFoundError:
            return
        # Only whole lines count as seen: half of one may be the beginning of the word.
        whole = fresh[: fresh.rfind("\n") + 1]
        if match := OOPS.search(fresh):
            line = next(line for line in fresh[max(0, match.start() - 200):].splitlines() if OOPS.search(line))
            raise KernelOops(f"guest {self.guest}: its kernel says: {line.strip()} (all of it: {self.path})", evidence=tail(self.path))
        self._seen += len(whole.encode(errors="replace"))
