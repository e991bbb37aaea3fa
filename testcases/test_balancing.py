# SPDX-License-Identifier: GPL-2.0-only
"""kernel.numa_balancing switches hinting faults on and off under the same workload."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from numalab.core.process import Deadline
from numalab.guest.guest import Guest
from numalab.host import ssh
from numalab.model.run import Run


@pytest.mark.minutes(8)
@pytest.mark.topology("2socket", memory="2G", vcpus=2)
def test_hint_faults_only_with_balancing(guest: Guest, run: Callable[..., Run], deadline: Deadline) -> None:
    counts = {}
    for balancing in (0, 1):
        ssh.succeed(guest, f"sysctl -w kernel.numa_balancing={balancing}", deadline=deadline)
        counts[balancing] = run("remote").phase("touch").counters["vmstat"]["numa_hint_faults"]
    assert counts[0] == 0
    assert counts[1] > 0
