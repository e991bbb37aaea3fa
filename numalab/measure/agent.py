"""Runs inside the guest, alone: one phase of a workload between two snapshots of the kernel's counters.

Reads a JSON object on standard input: {"command": shell command, "files": [globs], "limit": seconds}, and
optionally "trace": [system:event] to be counted, "sample": seconds between samples, "profile": samples a
second of a call-graph profile, "marked": whether QEMU is told of the command's edges. Prints one: {"before": {path: text}, "after": …, "status", "elapsed", "user",
"system", "stdout", "stderr", "timed_out", "load", "event": what a profile samples by, "profile"}. Each sample goes to standard error as it is
taken: {"t": seconds, "vmstat": {name: value}, "node0.vmstat": …, "node0.DMA32": {name: value}, "trace": {event:
count}}. Standard library only; nothing of numalab is in the guest. The snapshots are taken right at the command's edges, so that neither SSH
nor this interpreter's start is counted.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import glob
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any

KEEP = 256 * 1024  # bytes of each stream that come back: its end
KEEP_STACKS = 4 << 20  # characters of a profile that come back: the most frequent stacks
SAMPLED = ("/proc/vmstat", "/sys/devices/system/node/node*/vmstat")
MOVING = ("numa_", "pgmigrate_", "pgfault", "pgmajfault", "pgscan_", "pgsteal_", "nr_")  # what a sample keeps of them
ZONES = "/proc/zoneinfo"
OF_A_ZONE = (  # what a sample keeps of each zone: since 4.8 nr_zone_*, before that the zone's own lists and pages
    "present", "nr_free_pages", "nr_alloc_batch", "nr_zone_inactive_file", "nr_zone_active_file",
    "nr_zone_write_pending", "nr_inactive_file", "nr_active_file", "nr_dirty", "nr_writeback",
)
MOST = 240  # samples of a phase; a longer one is sampled more rarely
CYCLES = "/sys/bus/event_source/devices/cpu"
MARK = 0x6E6C6200  # as in host/instructions.c
OTHER_FILES = 64  # that this process may have open beside the counters of tracepoints
PERF_EVENT_OPEN = 298  # the call's number on x86-64
STACKS = "/root/numalab-perf.data"  # /run is small, and a profile is not


class Tracepoints:
    """Counts events: one counter of perf_event_open(2) for each event and CPU, which ends with this process.

    A tracing instance for each event counts too, but has thousands of files of its own, which took memory that the small node
    of a small guest had no more; and with names recorded it probes the task switch.
    """

    def __init__(self, events: list[str]) -> None:
        roots = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
        if events and not os.path.exists(f"{roots[0]}/events"):  # noqa: PTH110
            subprocess.run(["mount", "-t", "tracefs", "none", roots[0]], stderr=subprocess.DEVNULL, check=False)
        root = next((path for path in roots if os.path.exists(f"{path}/events")), "")  # noqa: PTH110
        self.counters: dict[str, list[int]] = {}
        cpus = online()
        allow_files(len(events) * len(cpus))
        for event in events:
            try:
                number = int(read(f"{root}/events/{event.replace(':', '/')}/id"))
                self.counters[event] = [counter(number, cpu) for cpu in cpus]
            except OSError as error:  # a kernel without the event, or without perf, has no count of it
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise

    def counts(self) -> dict[str, int]:
        """How often each event was hit on any CPU since this began to count it."""
        return {
            event: sum(int.from_bytes(os.read(each, 8), sys.byteorder) for each in each_cpu)
            for event, each_cpu in self.counters.items()
        }

    def text(self) -> str:
        """`system:event COUNT` lines."""
        return "".join(f"{event} {count}\n" for event, count in self.counts().items())


def allow_files(number: int) -> None:
    """Raise the limit of open files, where it is too low for so many more. What the command inherits is else the usual one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if number + OTHER_FILES > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number + OTHER_FILES, hard), hard))


def online() -> list[int]:
    """The numbers of the CPUs that run."""
    spans = [span.partition("-") for span in read("/sys/devices/system/cpu/online").strip().split(",")]
    return [cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)]


def counter(tracepoint: int, cpu: int) -> int:
    """A file descriptor from which the tracepoint's hits on that CPU can be read. OSError where perf has none."""
    import ctypes  # here, since other phases need not wait for it

    # struct perf_event_attr of 2.6.31: type PERF_TYPE_TRACEPOINT, size, config, and zeroes: count, do not sample.
    attr = struct.pack("=IIQ48x", 2, 64, tracepoint)
    libc = ctypes.CDLL(None, use_errno=True)
    opened = int(libc.syscall(PERF_EVENT_OPEN, attr, -1, cpu, -1, 0))
    if opened < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"perf_event_open of tracepoint {tracepoint}")
    os.set_inheritable(opened, False)
    return opened


def read(path: str) -> str:
    """A small file's text."""
    with open(path) as handle:  # noqa: PTH123
        return handle.read()


def kswapd() -> list[str]:
    """/proc/PID/stat of kswapd's threads, one a node: children of kthreadd. Found once, it takes long."""
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):  # noqa: PTH207
        with contextlib.suppress(OSError):
            if re.search(r"\(kswapd\d+\) \S 2 ", read(path)):
                found.append(path)
    return found


def cpu_time(stats: list[str]) -> str:
    """`thread MILLISECONDS` lines of /proc/PID/stat files: utime and stime since the thread began."""
    lines = []
    for path in stats:
        with contextlib.suppress(OSError):
            name, _, rest = read(path).partition("(")[2].rpartition(")")
            ticks = sum(int(word) for word in rest.split()[11:13])
            lines.append(f"{name} {ticks * 1000 // os.sysconf('SC_CLK_TCK')}\n")
    return "".join(sorted(lines))


def snapshot(patterns: list[str], trace: Tracepoints | None = None, threads: list[str] | None = None) -> dict[str, str]:
    """The text of every file that the patterns match; one that vanishes meanwhile is left out.

    And counts of tracepoints, and CPU time of kswapd's threads, as texts of the same form.
    """
    found = {}
    for path in sorted(name for pattern in patterns for name in glob.glob(pattern)):  # noqa: PTH207
        with contextlib.suppress(OSError):
            found[path] = read(path)
    if trace and trace.counters:
        found["trace"] = trace.text()
    if threads:
        found["kswapd"] = cpu_time(threads)
    return found


def sample(start: float, trace: Tracepoints | None = None) -> dict[str, object]:
    """What moves, now: counters of the machine and of each node, and tracepoints."""
    found: dict[str, object] = {"t": round(time.monotonic() - start, 2)}
    for path, text in snapshot(list(SAMPLED)).items():
        pairs = (line.split() for line in text.splitlines())
        name = path.rpartition("/")[2] if path.startswith("/proc") else path.split("/")[-2] + ".vmstat"
        found[name] = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0].startswith(MOVING)}
    with contextlib.suppress(OSError):
        found.update(zones(read(ZONES)))
    if trace and trace.counters:
        found["trace"] = trace.counts()
    return found


def zones(text: str) -> dict[str, dict[str, int]]:
    """/proc/zoneinfo -> what OF_A_ZONE names of each zone that has memory: {"node0.DMA32": {name: pages}}."""
    found: dict[str, dict[str, int]] = {}
    zone: dict[str, int] = {}
    own = False
    for line in text.splitlines():
        words = line.split()
        if line.startswith("Node"):  # Node 0, zone    DMA32
            zone, own = found.setdefault(f"node{words[1].rstrip(',')}.{words[3]}", {}), False
        elif words[:2] == ["pages", "free"]:  # what stands before, in a node's first zone, is the node's
            own = True
        elif own and len(words) == 2 and words[0] in OF_A_ZONE:
            zone[words[0]] = int(words[1])
    return {name: counts for name, counts in found.items() if counts.get("present")}


def sampling(every: float, start: float, done: threading.Event, trace: Tracepoints | None = None) -> None:
    """Samples on standard error until `done`; twice as far apart after each MOST."""
    taken = 0
    while not done.wait(every):
        sys.stderr.write(json.dumps(sample(start, trace)) + "\n")
        sys.stderr.flush()
        taken += 1
        if taken % MOST == 0:
            every *= 2


def folded() -> str:
    """The profile as `outermost;…;innermost COUNT` lines. perf comes with the guest's image, not with its kernel."""
    told = subprocess.run(["perf", "script", "-i", STACKS, "-F", "comm,ip,sym"], capture_output=True, text=True, errors="replace", check=False)
    counts: collections.Counter[str] = collections.Counter()
    for block in told.stdout.split("\n\n"):
        lines = [line for line in block.splitlines() if line.strip()]
        if lines:
            frames = [line.split(None, 1)[-1].replace(";", ":") for line in reversed(lines[1:])]
            counts[";".join([lines[0].strip().replace(";", ":"), *frames])] += 1
    os.unlink(STACKS)  # noqa: PTH108
    return shortened(counts)


def shortened(counts: collections.Counter[str]) -> str:
    """Stacks as lines, sorted; the least frequent of too many are one line, [not-kept]."""
    lines: list[str] = []
    room, rest = KEEP_STACKS, 0
    for stack, count in counts.most_common():
        line = f"{stack} {count}\n"
        room -= len(line)
        if room >= 0:
            lines.append(line)
        else:
            rest += count
    return "".join(sorted(lines)) + (f"[not-kept] {rest}\n" if rest else "")


class Marks:
    """No-operations that QEMU's plugin knows (host/instructions.c): NOPL MARK+n(%rax,%rax)."""

    def __init__(self) -> None:
        import ctypes  # here, since other phases need not wait for it
        import mmap

        # Kept, or its memory would go.
        self.page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code = b"".join(b"\x0f\x1f\x84\x00" + (MARK + which).to_bytes(4, "little") + b"\xc3" for which in (1, 2))
        self.page.write(code)
        place = ctypes.addressof(ctypes.c_char.from_buffer(self.page))
        self.begin, self.end = (ctypes.CFUNCTYPE(None)(place + at) for at in (0, len(code) // 2))


def measured(about: dict[str, Any], trace: Tracepoints) -> dict[str, object]:
    """The command between two snapshots, ended with all that it started when its limit passes."""
    words, done = ["/bin/sh", "-c", about["command"]], threading.Event()
    # An emulated guest has no cycle counter to sample by, nor has one under KVM without a virtual PMU.
    event = "cycles" if os.path.exists(CYCLES) else "cpu-clock"  # noqa: PTH110
    if about.get("profile"):
        words = ["perf", "record", "-q", "-a", "-g", "-e", event, "-F", str(about["profile"]), "-o", STACKS, "--", *words]
    marks = Marks() if about.get("marked") else None
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        threads = kswapd()
        before = snapshot(about["files"], trace, threads)
        if marks:
            marks.begin()
        start = time.monotonic()
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        timed_out = False

        def end(_signal: int, _frame: object) -> None:
            nonlocal timed_out
            with contextlib.suppress(ProcessLookupError):  # it ended in this very moment
                os.killpg(child.pid, signal.SIGKILL)
                timed_out = True

        signal.signal(signal.SIGALRM, end)
        signal.signal(signal.SIGTERM, end)  # of the timeout(1) around us: the whole run's limit
        signal.setitimer(signal.ITIMER_REAL, about["limit"])
        sampler = threading.Thread(target=sampling, args=(about.get("sample"), start, done, trace))
        if about.get("sample"):
            sampler.start()
        # wait4 counts what the command and all children that it waited for used.
        _, status, usage = os.wait4(child.pid, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        elapsed = time.monotonic() - start
        if marks:
            marks.end()
        after = snapshot(about["files"], trace, threads)
        done.set()
        if about.get("sample"):
            sampler.join()
        return {
            "before": before, "after": after, "status": os.waitstatus_to_exitcode(status), "elapsed": elapsed,
            "user": usage.ru_utime, "system": usage.ru_stime, "stdout": tail(out), "stderr": tail(err),
            "timed_out": timed_out, "load": os.getloadavg()[0], "event": event,
        }


def tail(stream: IO[bytes]) -> str:
    """The end of what was written there; if that is not all, it says so first."""
    cut = max(0, stream.seek(0, os.SEEK_END) - KEEP)
    stream.seek(cut)
    return (f"[{cut} bytes before this are not kept]\n" if cut else "") + stream.read().decode(errors="replace")


def main() -> None:
    """One phase."""
    about = json.load(sys.stdin)
    told = measured(about, Tracepoints(about.get("trace", [])))
    if about.get("profile") and os.path.exists(STACKS):  # noqa: PTH110
        told["profile"] = folded()
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
