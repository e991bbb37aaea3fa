# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's console: lines that end a run, lines that are only evidence, nothing missed between reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.core import paths
from numalab.core.errors import KernelOops
from numalab.core.process import Deadline
from numalab.host import console, domain
from numalab.host.console import CHUNK, OOPS, Watch
from numalab.host.remote import HERE

OOPSES = [
    "[   12.345678] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)",
    "[    1.234567] VFS: Unable to mount root fs on unknown-block(254,1)",
    "[   99.000000] Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b",
    "[    2.000000] BUG: kernel NULL pointer dereference, address: 0000000000000008",
    "[    2.000001] BUG: unable to handle page fault for address: ffffdead00000000",
    "[    2.000002] Oops: 0000 [#1] PREEMPT SMP NOPTI",
    (
        "[    2.000003] general protection fault, probably for non-canonical address 0xdead000000000108: 0000"
        " [#1] PREEMPT SMP"
    ),
    "[    2.000004] general protection fault: 0000 [#1] SMP",
    "[    2.000005] kernel BUG at mm/huge_memory.c:1353!",
    "[    2.000006] invalid opcode: 0000 [#1] PREEMPT SMP NOPTI",
    "[    1.495056] int3: 0000 [#1] PREEMPT SMP",
    "[    2.000007] BUG: Bad page state in process xfs_repair  pfn:12345",
    "[    2.000008] BUG: Bad rss-counter state mm:00000000 type:MM_ANONPAGES val:1",
    "[    2.000009] BUG: KASAN: use-after-free in do_numa_page+0x1/0x2",
    "[    2.000010] stack segment: 0000 [#1] SMP",
    "[    2.000011] PANIC: double fault: 0000 [#1] SMP",
]
WARNINGS = [
    "[   60.000000] watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [xfs_repair:1234]",
    "[   60.000001] BUG: workqueue lockup - pool cpus=3 node=1 flags=0x0 nice=0 stuck for 33s!",
    "[   60.000002] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
    "[   60.000003] rcu: INFO: rcu_sched self-detected stall on CPU",
    "[   60.000003] INFO: rcu_sched detected stalls on CPUs/tasks: { 1} (detected by 0, t=15002 jiffies)",
    "[   60.000004] WARNING: CPU: 1 PID: 99 at kernel/sched/fair.c:1609 task_numa_fault+0x1/0x2",
    "[   60.000005] INFO: task xfs_repair:1234 blocked for more than 120 seconds.",
    "[   60.000006] Out of memory: Killed process 1234 (xfs_repair) total-vm:1kB",
    "[   60.000007] xfs_repair invoked oom-killer: gfp_mask=0x0",
    "[   60.000008] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null)",
    "[   60.000009] Out of memory: Kill process 1234 (dd) score 800 or sacrifice child",  # until 5.0
    "[   60.000010] Memory cgroup out of memory: Kill process 1234 (dd) score 800 or sacrifice child",
    "[   60.000011] WARNING: at mm/page_alloc.c:2345 __alloc_pages_nodemask+0x1/0x2()",  # until 3.10
]
PLAIN = [
    "[    0.000000] Linux version 6.1.0-56-amd64 (debian-kernel@lists.debian.org)",
    "[    0.000001] Command line: root=PARTUUID=1 oops=panic panic=-1",
    "[    5.000000] EXT4-fs (vda2): mounted filesystem with ordered data mode.",
    "[    5.000001] systemd[1]: Started Debugging.",
    "[    6.000000] XFS (vdb): Mounting V5 Filesystem",
    # A user program's fault, not the kernel's: arch/x86/kernel/traps.c, show_signal().
    (
        "[    7.000000] traps: stress-ng[1234] general protection fault ip:7f0000001234 sp:7ffe00000000"
        " error:0 in libc.so.6[7f0000000000+155000]"
    ),
    "[    7.000001] traps: stress-ng[1234] trap invalid opcode ip:55d5 sp:7ffe error:0",
    "[    7.000002] xfs_repair[1234]: segfault at 8 ip 000055d5 sp 00007ffe error 4 in xfs_repair[55d5+1000]",
]


@pytest.mark.parametrize("line", OOPSES)
def test_oopses(line: str) -> None:
    assert OOPS.search(line)


@pytest.mark.parametrize("line", WARNINGS)
def test_warnings(line: str) -> None:
    assert not OOPS.search(line)
    # A vCPU that waits for a host core looks like a lockup: a warning, but no end of a run.
    spoils = WARNINGS.index(line) >= 5
    assert console.findings(line) == ([line] if spoils else [])
    assert console.warnings(f"{PLAIN[0]}\n{line}\n{PLAIN[1]}\n") == [line]


@pytest.mark.parametrize("line", PLAIN)
def test_plain_lines(line: str) -> None:
    assert not OOPS.search(line)
    assert not console.warnings(line)


class Log:
    """A growing console log and its watch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.watch = Watch(path, "g")

    def grows(self, text: str | bytes) -> None:
        with self.path.open("ab") as handle:
            handle.write(text if isinstance(text, bytes) else text.encode())
        self.watch()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "console.log")


def test_watch_sees_growth(log: Log) -> None:
    log.watch()  # no log yet
    for line in [*PLAIN[:5], *WARNINGS]:
        log.grows(f"{line}\r\n")
    with pytest.raises(KernelOops, match=r"guest g: its kernel says: .*kernel BUG at mm") as caught:
        log.grows(f"{PLAIN[2]}\r\n[ 2.0] kernel BUG at mm/memory.c:1!\r\n{PLAIN[3]}\r\n")
    assert str(log.path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "kernel BUG at" in caught.value.evidence
    assert PLAIN[3] in caught.value.evidence


def test_reports_of_a_lockup_are_nothing_new(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("numalab.host.console.time.monotonic", lambda: clock[0])
    log.watch.grew = 0.0
    for clock[0], text, grew in [
        (1.0, PLAIN[0], 1.0),
        (23.0, "watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [kworker/0:1:9]", 1.0),
        (23.5, "RIP: 0010:smp_call_function_many_cond+0x1f1/0x2c0", 1.0),
        (49.0, "watchdog: BUG: soft lockup - CPU#0 stuck for 48s! [kworker/0:1:9]", 1.0),
        (52.0, "rcu: INFO: rcu_sched self-detected stall on CPU", 1.0),
        (61.0, "Call Trace:", 1.0),
        (63.0, PLAIN[1], 63.0),
    ]:
        log.grows(f"{text}\n")
        assert log.watch.grew == grew, text


def test_watch_reads_on_from_the_last_whole_line(tmp_path: Path) -> None:
    texts = iter([b"", b"one\n", b"one\ntw", b"one\ntwo\nthree\n", b"one\ntwo\nthree\n"])
    offsets: list[int] = []

    def more(offset: int) -> bytes:
        offsets.append(offset)
        return next(texts)[offset:]

    watch = Watch(tmp_path, "g", more)
    for _ in range(5):
        watch()
    assert offsets == [0, 0, 4, 4, 14]


def bounded(path: Path) -> Callable[[int], bytes]:
    """A reader of at most CHUNK bytes, as a guest's."""
    return lambda offset: HERE.read(path, offset, Deadline.after(60), CHUNK)


@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_an_oops_behind_much(size: int, tmp_path: Path) -> None:
    """One call searches all of it, CHUNK bytes at a time; the evidence is what surrounds the oops."""
    path = tmp_path / "console.log"
    line = "[   10.000000] noise noise noise\r\n"
    path.write_text((line * (size // len(line) + 1))[:size] + f"\n{OOPSES[5]}\n{PLAIN[0]}\n")
    offsets: list[int] = []

    def more(offset: int) -> bytes:
        offsets.append(offset)
        return bounded(path)(offset)

    with pytest.raises(KernelOops) as caught:
        Watch(path, "g", more)()
    assert OOPSES[5] in caught.value.evidence
    assert len(caught.value.evidence) < console.TAIL_BYTES
    assert len(offsets) <= size // CHUNK + 3, "each piece is read once, and then the evidence"


def test_a_line_without_an_end_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "console.log"
    path.write_bytes(b"x" * 2 * CHUNK + b"y")
    watch = Watch(path, "g", bounded(path))
    watch()
    assert watch.seen == 2 * CHUNK
    watch(last=True)
    assert watch.seen == 2 * CHUNK + 1


@pytest.mark.parametrize("size", [0, 7, CHUNK, 3 * CHUNK + 7])
def test_pieces(size: int, tmp_path: Path) -> None:
    path = tmp_path / "console.log"
    text = (f"{PLAIN[0]}\n" * (size // len(PLAIN[0]) + 1))[:size]
    path.write_text(text)
    seen = list(console.pieces(bounded(path)))
    assert "".join(seen) == text
    assert all(len(piece) <= CHUNK for piece in seen)
    assert all(piece.endswith("\n") for piece in seen[:-1]), "no line is cut in two"
    assert "".join(console.pieces(bounded(path), 5)) == text[5:]


@pytest.mark.parametrize("line", [OOPSES[3], OOPSES[5], OOPSES[7]])
def test_an_oops_in_two_halves(line: str, tmp_path: Path) -> None:
    for cut in range(len(line) + 1):
        log = Log(tmp_path / f"{cut}.log")
        oopses = 0
        for half in (line[:cut], f"{line[cut:]}\n"):  # in one look or the other
            try:
                log.grows(half)
            except KernelOops:
                oopses += 1
        assert oopses, line[:cut]


def test_a_warning_in_two_halves(tmp_path: Path) -> None:
    """'BUG: ' may be the first half of 'BUG: soft lockup', which is no oops."""
    for cut in range(len(WARNINGS[0])):
        log = Log(tmp_path / f"{cut}.log")
        for half in (WARNINGS[0][:cut], f"{WARNINGS[0][cut:]}\n"):
            log.grows(half)


def test_noise_on_the_line_hides_nothing(log: Log) -> None:
    """Invalid UTF-8, whole or cut in two, must not shift the watch's offset."""
    log.grows(b"\xff\xfe\x80" * 50 + b"\n")
    log.grows(b"\xe2\x82")
    log.grows(b"\xac\n")
    with pytest.raises(KernelOops):
        log.grows(f"{OOPSES[3]}\n")


def test_the_line_of_the_init(tmp_path: Path) -> None:
    """Whole, and seen once for all."""
    path = tmp_path / "console.log"
    watch = Watch(path, "g")
    path.write_text("[    1.0] Run /usr/local/sbin/lab-init as init process\n[    2.1] numalab: sshd lis")
    watch()
    assert not watch.listens
    with path.open("a") as log:
        log.write("tens\n")
    watch()
    assert watch.listens
    with path.open("a") as log:
        log.write("[    3.0] more\n")
    watch()
    assert watch.listens
    init = (paths.ROOT / f"playbooks/roles/guest/files/root{domain.INIT}").read_text()
    assert f"echo '{console.LISTENS}'" in init
