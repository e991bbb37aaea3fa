# SPDX-License-Identifier: GPL-2.0-only
"""The machine that runs a guest, this one or another: its facts, its load, its processor time.

Not here: which facts runs must share to be compared (runs.compatibility).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from numalab.core.errors import HostError
from numalab.core.process import Deadline
from numalab.host.remote import Where

FACTS = r"""
echo "machine=$(uname -n)"
echo "kernel=$(uname -r)"
echo "cpu=$(sed -n 's/^model name[[:space:]]*:[[:space:]]*//p' /proc/cpuinfo | head -n 1)"
echo "cpus=$(getconf _NPROCESSORS_ONLN)"
[ ! -s /etc/machine-id ] || echo "machine id=$(sha256sum </etc/machine-id | cut -c 1-16)"
read -r load rest </proc/loadavg
echo "load at start=$load"
"""
"""sh -c. The machine id tells two machines of one name apart; machine-id(5) allows to pass on only a hash."""
USER_HZ = 100
"""The unit of /proc/stat is 1/100 s on x86, whatever the kernel's HZ."""
NEEDED = ("machine", "kernel", "cpu", "cpus", "load at start")


def read_facts(where: Where, deadline: Deadline) -> dict[str, str]:
    """A machine's facts, in one round trip; `machine id` is absent where it has none. Raises HostError."""
    text = where.run(["sh", "-c", FACTS], deadline=deadline).stdout
    facts = {
        key: value.strip()
        for key, equals, value in (line.partition("=") for line in text.splitlines())
        if equals
    }
    if lacking := [key for key in NEEDED if key not in facts]:
        raise HostError(f"{where.ssh or 'this machine'}: does not tell its {', '.join(lacking)}")
    return facts


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
    """With the idle time."""


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


def share_of_others(begin: CpuTime, end: CpuTime, own_seconds: float) -> float:
    """The share of the machine's processor time, 0 to 1, that everything took but what used `own_seconds`."""
    total = end.total - begin.total
    return min(max((end.busy - begin.busy - own_seconds) / total, 0.0), 1.0) if total > 0 else 0.0
