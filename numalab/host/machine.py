# SPDX-License-Identifier: GPL-2.0-only
"""The machine that runs a guest, this one or another: its facts and its load.

Not here: which facts runs must share to be compared (runs.compatibility).
"""

from __future__ import annotations

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
