# SPDX-License-Identifier: GPL-2.0-only
"""xfs_repair on 500 TB, as the 2015 thread ran it: clean at the end, and pages move between nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from numalab.core.process import Deadline
from numalab.guest import provision
from numalab.guest.guest import Guest
from numalab.model import catalog
from numalab.model.run import Run
from numalab.model.values import SizeClass


@pytest.mark.minutes(30)
@pytest.mark.topology("4socket", memory="4G", vcpus=4)
def test_repair_migrates_pages(guest: Guest, run: Callable[..., Run], deadline: Deadline) -> None:
    # With the kernel's default knobs a repair this short is not scanned at all under emulation: 0 PTE updates
    # in all four.
    provision.apply(
        guest, provision.Order(knobs=catalog.case("xfsrepair").sizes[SizeClass.QUICK].knobs), deadline
    )
    # A fifth of the case's inodes, and a tenth of those of mmtests-*, which only have to pass. A repair of
    # 8,000 inodes in 500 allocation groups still updates 20,000 PTEs or more.
    result = run("xfsrepair", loops=1, mmtests_loops=1)
    repairs = [phase for phase in result.phases if phase.phase.name.startswith("repair-")]
    assert len(repairs) == 4
    assert result.phase("check").status == 0, "xfs_repair -n: the file system is not clean"
    for counter in ("numa_pte_updates", "numa_hint_faults", "numa_pages_migrated"):
        assert sum(phase.counters["vmstat"][counter] for phase in repairs) > 0, counter
