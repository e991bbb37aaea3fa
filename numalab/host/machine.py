# SPDX-License-Identifier: GPL-2.0-only
"""The machine that runs a guest, this one or another: its facts, its load, its processor time.

Not here: which facts runs must share to be compared (runs.compatibility).
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from numalab.core.errors import HostError
from numalab.core.process import Deadline
from numalab.host.remote import Where
from numalab.model.binding import HostNode
from numalab.model.units import KIB, parse_cpus

FACTS = r"""
echo "machine=$(uname -n)"
echo "kernel=$(uname -r)"
echo "cpu=$(sed -n 's/^model name[[:space:]]*:[[:space:]]*//p' /proc/cpuinfo | head -n 1)"
echo "cpus=$(getconf _NPROCESSORS_ONLN)"
microcode=$(sed -n 's/^microcode[[:space:]]*:[[:space:]]*//p' /proc/cpuinfo | head -n 1)
[ -z "$microcode" ] || echo "microcode=$microcode"
[ ! -s /etc/machine-id ] || echo "machine id=$(sha256sum </etc/machine-id | cut -c 1-16)"
read -r load rest </proc/loadavg
echo "load at start=$load"
cd "$1/sys/devices/system" && {
    echo "nodes=$(ls -d node/node[0-9]* 2>/dev/null | wc -l)"
    echo "cores=$(cat cpu/cpu[0-9]*/topology/thread_siblings_list 2>/dev/null | sort -u | wc -l)"
    case "$(cat cpu/smt/active 2>/dev/null)" in 1) echo SMT=on;; 0) echo SMT=off;; esac
    echo "governor=$(cat cpu/cpu[0-9]*/cpufreq/scaling_governor 2>/dev/null | sort -u | paste -s -d ' ')"
    case "$(cat cpu/cpufreq/boost 2>/dev/null)$(cat cpu/intel_pstate/no_turbo 2>/dev/null | tr 01 10)" in
        *1*) echo turbo=on;; *0*) echo turbo=off;; esac
}
case "$(cat "$1/sys/kernel/mm/ksm/run" 2>/dev/null)" in 1) echo KSM=on;; [02]) echo KSM=off;; esac
echo "THP=$(sed 's/.*\[\(.*\)\].*/\1/' "$1/sys/kernel/mm/transparent_hugepage/enabled" 2>/dev/null)"
case "$(cat "$1/proc/sys/kernel/numa_balancing" 2>/dev/null)" in
    0) echo 'NUMA balancing=off';; [1-9]*) echo 'NUMA balancing=on';; esac
case "$(wc -l <"$1/proc/swaps" 2>/dev/null)" in ''|0) ;; 1) echo swap=off;; *) echo swap=on;; esac
"""
"""sh -c, with the root of the /sys and /proc of what follows the load: '', or a test's. A fact of these
(model.order) is absent where the machine does not tell it. The machine id tells two machines of one name
apart; machine-id(5) allows to pass on only a hash."""
NODES = r"""
cd "$1/sys/devices/system" || exit 0
cat cpu/cpu[0-9]*/topology/thread_siblings_list | sort -u | sed 's/^/core /'
for node in node/node[0-9]*; do
    [ -d "$node" ] || continue
    number=${node#node/node}
    echo "cpus $number $(cat "$node/cpulist")"
    sed -n 's/^Node .* \(MemFree\|FilePages\|SReclaimable\|Shmem\): *\([0-9]*\) kB/\1 \2/p' "$node/meminfo" |
        while read -r name kib; do echo "kib $number $([ "$name" != Shmem ] || echo -)$kib"; done
    for pages in "$node"/hugepages/hugepages-*kB; do
        size=${pages##*-}
        [ ! -e "$pages" ] || echo "pages $number ${size%kB} $(cat "$pages/free_hugepages")"
    done
done
"""
"""sh -c, with the root of /sys as for FACTS: what host_nodes reads. FilePages has Shmem in it, which is not
reclaimed without swap."""
USER_HZ = 100
"""The unit of /proc/stat is 1/100 s on x86, whatever the kernel's HZ."""
LEAST_SECONDS = 1.0
"""Processor time of a guest below which no share is computed: /proc/stat counts in steps of 10 ms."""
VCPU = re.compile(r"(CPU \d+|ALL CPUs)/(KVM|TCG)\n")
"""QEMU's names of the threads that run vCPUs; libvirt starts it with debug-threads=on. "ALL CPUs" is one
thread that runs them in turn, as on the virtual clock."""
NEEDED = ("machine", "kernel", "cpu", "cpus", "load at start")


def read_facts(where: Where, deadline: Deadline, root: str = "") -> dict[str, str]:
    """A machine's facts, in one round trip; `machine id`, `microcode` and what model.order judges are
    absent where it does not tell them. Raises HostError. `root` is for tests; see FACTS."""
    text = where.run(["sh", "-c", FACTS, "sh", root], deadline=deadline).stdout
    facts = {
        key: value.strip()
        for key, equals, value in (line.partition("=") for line in text.splitlines())
        if equals and (value.strip() or key in NEEDED)
    }
    if lacking := [key for key in NEEDED if key not in facts]:
        raise HostError(f"{where.ssh or 'this machine'}: does not tell its {', '.join(lacking)}")
    return facts


def host_nodes(where: Where, deadline: Deadline, root: str = "") -> list[HostNode]:
    """The machine's NUMA nodes, in one round trip; empty where its kernel has none. Raises HostError."""
    cores = list[tuple[int, ...]]()
    cpus = dict[int, set[int]]()
    kib, pages = Counter[int](), dict[int, dict[int, int]]()
    text = where.run(["sh", "-c", NODES, "sh", root], deadline=deadline).stdout
    try:
        for line in text.splitlines():
            match line.split():
                case ["core", siblings]:
                    cores.append(parse_cpus(siblings))
                case ["cpus", number, *lists]:
                    cpus[int(number)] = set(parse_cpus("".join(lists)))
                case ["kib", number, count]:
                    kib[int(number)] += int(count)
                case ["pages", number, size, count]:
                    pages.setdefault(int(number), {})[int(size) * KIB] = int(count)
    except ValueError as error:
        raise HostError(f"{where.ssh or 'this machine'}: its nodes in /sys: {error}") from error
    return [
        HostNode(
            number=number,
            memory=kib[number] * KIB,
            cores=tuple(core for core in cores if set(core) <= own),
            huge_pages=pages.get(number, {}),
        )
        for number, own in sorted(cpus.items())
    ]


def load(where: Where, deadline: Deadline) -> float:
    """The machine's load average over one minute. Raises HostError."""
    try:
        return float(where.read(Path("/proc/loadavg"), 0, deadline, 100).split()[0])
    except (IndexError, ValueError) as error:  # base64's too
        raise HostError(f"{where.ssh or 'this machine'}: /proc/loadavg has no load: {error}") from error


@dataclass(frozen=True)
class CpuTime:
    """Processor seconds of a machine since its boot, over all its CPUs."""

    busy: float
    """User, system, interrupts, and what a hypervisor below took away (steal)."""
    total: float
    """All time, idle time too."""


def cpu_time(where: Where, deadline: Deadline) -> CpuTime:
    """The machine's processor time, from the first line of its /proc/stat (proc(5)). Raises HostError."""
    try:
        words = where.read(Path("/proc/stat"), 0, deadline, 200).split(b"\n")[0].split()
        # guest and guest_nice, which follow, are in user and nice already.
        user, nice, system, idle, iowait, *interrupts = (int(word) / USER_HZ for word in words[1:9])
    except ValueError as error:  # base64's too
        raise HostError(f"{where.ssh or 'this machine'}: /proc/stat has no CPU times: {error}") from error
    busy = user + nice + system + sum(interrupts)
    return CpuTime(busy, busy + idle + iowait)


@dataclass(frozen=True)
class VcpuTime:
    """Seconds of a guest's vCPU threads since they began, added up."""

    ran: float
    waited: float
    """Ready to run while this machine's CPUs ran something else."""


def vcpu_time(qemu: int, proc: Path = Path("/proc")) -> VcpuTime | None:
    """Times of the vCPU threads of a QEMU on this machine, from their schedstat (Linux,
    Documentation/scheduler/sched-stats.rst); None where it does not tell, as without CONFIG_SCHED_INFO."""
    ran = waited = 0
    try:
        for thread in (proc / str(qemu) / "task").iterdir():
            name = ""
            with contextlib.suppress(OSError):  # QEMU's I/O threads come and go
                name = (thread / "comm").read_text()
            if VCPU.fullmatch(name):
                run, wait, _ = map(int, (thread / "schedstat").read_text().split())
                ran, waited = ran + run, waited + wait
    except (OSError, ValueError):
        return None
    return VcpuTime(ran / 1e9, waited / 1e9) if ran else None


def qemu_process(ident: str, proc: Path = Path("/proc")) -> int | None:
    """The id of the QEMU process with this UUID on this machine; None when there is none."""
    for process in proc.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = process.read_bytes().split(b"\0")
            if b"qemu" in words[0] and ident.encode() in words:
                return int(process.parent.name)
    return None


@dataclass(frozen=True)
class Moment:
    """What a machine and a guest on it had used up by a moment."""

    machine: CpuTime
    qemu: float
    """Processor seconds of the guest's QEMU, all threads."""
    vcpus: VcpuTime | None
    """None where they are not known: on another machine."""


def share_of_others(begin: Moment, end: Moment) -> float:
    """The share of the machine's processor time, 0 to 1, that everything took but the guest's QEMU."""
    total = end.machine.total - begin.machine.total
    return min(_seconds_of_others(begin, end) / total, 1.0) if total > 0 else 0.0


def share_kept(begin: Moment, end: Moment) -> float | None:
    """The share of the processor time that a guest's vCPUs asked for, 0 to 1, which others took; None where
    it is not known.

    The vCPUs lost the time in which they waited, but no more than others took: more vCPUs than CPUs wait for
    each other. What a hypervisor below this machine took is in neither.
    """
    if (lost := seconds_kept(begin, end)) is None:
        return None
    assert begin.vcpus
    assert end.vcpus
    ran = end.vcpus.ran - begin.vcpus.ran
    return lost / (ran + lost) if ran + lost > LEAST_SECONDS else 0.0


def seconds_kept(begin: Moment, end: Moment) -> float | None:
    """Processor seconds that a guest's vCPUs asked for and others took; None where they are not known."""
    if begin.vcpus is None or end.vcpus is None:
        return None
    return min(end.vcpus.waited - begin.vcpus.waited, _seconds_of_others(begin, end))


def _seconds_of_others(begin: Moment, end: Moment) -> float:
    return max(end.machine.busy - begin.machine.busy - (end.qemu - begin.qemu), 0.0)
