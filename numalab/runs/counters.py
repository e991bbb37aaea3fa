# SPDX-License-Identifier: GPL-2.0-only
"""Text that the kernel prints -> counters, their differences, and the ratios of the seeds' tables.

Absent is absent, never 0: a kernel without a counter has no key for it, and what is derived from it is absent
too. Not here: metrics over whole runs (analysis.metrics).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

VMSTAT = "/proc/vmstat"
MEMINFO = "/proc/meminfo"
FILES = (VMSTAT, "/sys/devices/system/node/node*/vmstat", "/sys/devices/system/node/node*/numastat", MEMINFO)
"""The files read before and after each phase. A node's vmstat holds its own nr_* and, since 5.14, numa_*.
meminfo has no counters, and is kept as it is: it tells of pools of huge pages too."""
KSWAPD = "kswapd"
"""The source that has the CPU time of each kswapd thread, in milliseconds (agent.cpu_time)."""
HUGE_PAGES = 512
"""Base pages of a huge page on x86-64 (2 MiB of 4 KiB)."""

RATE = "per_10_s."
"""Begins the names of tracepoints' rates among a phase's numbers; see samples.rates."""
PROFILE = "profile_percent."
"""Prefix, among a phase's own numbers, of a function's share of the profile: a metric, but no table row."""

Counters = dict[str, int]


def parse(text: str) -> Counters:
    """`name value` lines (vmstat, numastat, `system:event value`) -> counters. Other lines are ignored."""
    return {name: int(value) for name, value in re.findall(r"^(\w+(?::\w+)?) (-?\d+)$", text, re.MULTILINE)}


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> Counters:
    """after - before, for the counters that both have."""
    return {name: after[name] - before[name] for name in after if name in before}


def phase(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Counters]:
    """Two snapshots (path -> text) -> differences, under 'vmstat', 'node0.vmstat', 'node0.numastat', …"""
    return {
        short(path): difference(parse(before[path]), parse(after[path]))
        for path in after
        if path in before and short(path) != short(MEMINFO)
    }


def workload_numbers(stdout: str) -> dict[str, float]:
    """The workload's own numbers: `numalab: NAME VALUE` lines of its output. The last value counts."""
    pairs = re.findall(r"^numalab: ([\w.-]+) (-?\d+(?:\.\d*)?(?:e[-+]?\d+)?)$", stdout, re.MULTILINE)
    return {name: float(value) for name, value in pairs}


def short(path: str) -> str:
    """/sys/devices/system/node/node0/vmstat -> node0.vmstat; /proc/vmstat -> vmstat."""
    match = re.search(r"(node\d+)/(\w+)$", path)
    return f"{match[1]}.{match[2]}" if match else path.rsplit("/", 1)[-1]


NUMA_ROWS = (
    ("NUMA alloc hit", "numa_hit"),
    ("NUMA alloc miss", "numa_miss"),
    ("NUMA interleave hit", "numa_interleave"),
    ("NUMA alloc local", "numa_local"),
    ("NUMA base PTE updates", "numa_pte_updates"),
    ("NUMA huge PMD updates", "numa_huge_pte_updates"),
    ("NUMA page range updates", "page_range_updates"),
    ("NUMA hint faults", "numa_hint_faults"),
    ("NUMA hint local faults", "numa_hint_faults_local"),
    ("NUMA hint local percent", "hint_local_percent"),
    ("NUMA pages migrated", "numa_pages_migrated"),
    ("Minor faults", "minor_faults"),
)
"""The seeds' names of the NUMA block (slowscan, nodirty, stagger) and the counter behind each."""


def derived(vmstat: Mapping[str, int]) -> dict[str, float]:
    """The ratios of the seeds' tables, where their counters are there.

    page_range_updates = numa_pte_updates + 512 × huge PMD updates: as mmtests has it, which counts huge pages
    twice, since numa_pte_updates has had their base pages since 3.13 (72403b4a0fbd);
    base_pte_updates = numa_pte_updates - 512 × huge PMD updates;
    hint_local_percent = local / all hinting faults × 100, absent when there was no fault;
    minor_faults = all faults - those that waited for a disk.
    """
    values: dict[str, float] = {}
    base, huge = vmstat.get("numa_pte_updates"), vmstat.get("numa_huge_pte_updates")
    if base is not None and huge is not None:
        values["page_range_updates"] = base + HUGE_PAGES * huge
        values["base_pte_updates"] = max(0, base - HUGE_PAGES * huge)  # counted one after the other
    faults, local = vmstat.get("numa_hint_faults"), vmstat.get("numa_hint_faults_local")
    if faults and local is not None:
        values["hint_local_percent"] = 100 * local / faults
    every, major = vmstat.get("pgfault"), vmstat.get("pgmajfault")
    if every is not None and major is not None:
        values["minor_faults"] = every - major
    return values
