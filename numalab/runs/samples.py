# SPDX-License-Identifier: GPL-2.0-only
"""Samples of a phase -> counters over time, pages by node and by zone. Pure; `record.samples` reads them.

A sample is {"t": seconds since the phase began, "vmstat": {counter: absolute value}, "node0.vmstat": {…},
"node0.DMA32": {…}, "trace": {event: count}, "host": {"kept": seconds}}. The last three are of
/proc/zoneinfo, of tracepoints, and of the host: processor time that others took from the guest's vCPUs since
the phase began.
Samples of earlier versions and those at a phase's edges have none of these.
Absent is absent: a sample without a counter is no point of its line. Not here: drawing (report.charts).
"""

from __future__ import annotations

import math
import re
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from numalab.model.run import Memory
from numalab.runs.counters import HUGE_PAGES

T = TypeVar("T")
Sample = Mapping[str, Any]
Series = list[tuple[float, float]]
"""Seconds since the phase began, value."""

_LEVEL = re.compile(r"nr_(?!vmscan_|dirtied$|written$|throttled_written$|foll_pin_|tlb_)")
"""vmstat's nr_* are levels (pages that are dirty now), except those that only rise (mm/vmstat.c)."""
_RESIDENT = (
    ("nr_anon_pages", "nr_file_pages"),
    ("nr_inactive_anon", "nr_active_anon", "nr_inactive_file", "nr_active_file"),
)
"""Sums to a node's pages in use: mapped and cached pages, or the LRU lists where those are not by node."""

_OF_ZONE = {
    "free": ("nr_free_pages",),
    "inactive file": ("nr_zone_inactive_file", "nr_inactive_file"),
    "active file": ("nr_zone_active_file", "nr_active_file"),
    "dirty": ("nr_dirty",),
    "under writeback": ("nr_writeback",),
    "dirty or under writeback": ("nr_zone_write_pending",),
}
"""What is shown of a zone, and the counter behind it: today's, or that of kernels before 4.8. Since then a
zone has one count of dirty pages and those under writeback together; each of the two is counted by node."""
_OF_NODE = {"dirty": ("nr_dirty",), "under writeback": ("nr_writeback",)}
LEAST_CHANGE = 0.02
"""The least change, as a share of a zone's or a node's pages, that is worth drawing: some pages change hands
in every phase."""


WINDOW = 10.0
"""Seconds of a rate's windows: `perf stat -r 6 … sleep 10` of the seed slowscan-lkml-2015."""
STEADY = 0.95
"""The steady part of a phase begins when it has this share of the most anonymous pages that it comes to have:
"where the memory footprint stabilises" (Dave Chinner, March 19, 2015, 10:41 p.m.). The share was chosen."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How often an event was hit in a window of WINDOW seconds, over the windows of a phase's steady part."""

    mean: float
    windows: int
    error_percent: float | None
    """The standard error of the mean in percent of it, perf stat's `+-`; None of one window, or of 0."""


@dataclass(frozen=True, kw_only=True)
class Zone:
    """A zone or a node: how many pages it has, and levels of some of them over time, by what they are."""

    pages: int
    lines: Mapping[str, Series]

    @property
    def changing(self) -> set[str]:
        """Which levels change by LEAST_CHANGE; none where only free pages do."""
        changing = {
            what
            for what, line in self.lines.items()
            if line and _span(line) >= max(1, LEAST_CHANGE * self.pages)
        }
        return changing if changing - {"free"} else set()


def _span(line: Series) -> float:
    values = [value for _, value in line]
    return max(values) - min(values)


def level(counter: str) -> bool:
    """Whether a counter is a level, shown as it is, and not a count that only rises."""
    return _LEVEL.match(counter) is not None


def series(samples: Sequence[Sample], counter: str) -> Series:
    """A counter over time: a level as it is, a count since the first sample that has it."""
    points = [
        (float(sample["t"]), float(sample["vmstat"][counter]))
        for sample in samples
        if counter in sample.get("vmstat", {})
    ]
    start = 0.0 if level(counter) or not points else points[0][1]
    return [(t, value - start) for t, value in points]


def kept(samples: Sequence[Sample]) -> Series:
    """Processor seconds of the host that others took from the guest's vCPUs, since the phase began."""
    return [(float(sample["t"]), float(sample["host"]["kept"])) for sample in samples if "host" in sample]


def rates(samples: Sequence[Sample]) -> dict[str, Rate]:
    """Each tracepoint's rate in the steady part of a phase; none where that is shorter than a window, or
    where the samples have no tracepoints or no count of anonymous pages."""
    footprint = series(samples, "nr_anon_pages")
    most = max((pages for _, pages in footprint), default=0)
    begin = next((t for t, pages in footprint if pages >= STEADY * most), 0.0)
    events = dict.fromkeys(event for sample in samples for event in sample.get("trace", {}))
    lines = {
        event: [
            (float(sample["t"]), float(sample["trace"][event]))
            for sample in samples
            if sample["t"] >= begin and event in sample.get("trace", {})
        ]
        for event in events
        if most
    }
    rate_of = {event: _rate(line) for event, line in lines.items()}
    return {event: rate for event, rate in rate_of.items() if rate}


def _rate(line: Series) -> Rate | None:
    """The rate of a count that only rises, by its whole windows from the first moment on."""
    windows = int((line[-1][0] - line[0][0]) / WINDOW)
    if not windows:
        return None
    edges = [between(line, line[0][0] + WINDOW * number) for number in range(windows + 1)]
    counts = [after - before for before, after in pairwise(edges)]
    mean = statistics.fmean(counts)
    error = 100 * statistics.stdev(counts) / math.sqrt(windows) / mean if windows > 1 and mean else None
    return Rate(mean=mean, windows=windows, error_percent=error)


def between(line: Series, t: float) -> float:
    """A line's value at a moment within it, on the straight line between its neighbours."""
    after = min(bisect_right(line, t, key=lambda point: point[0]), len(line) - 1)
    (t0, before), (t1, value) = line[after - 1], line[after]
    return before + (value - before) * (t - t0) / (t1 - t0) if t1 > t0 else value


def moves(line: Series) -> bool:
    """Whether a line changes, and is worth drawing."""
    return len({value for _, value in line}) > 1


def pages(samples: Sequence[Sample]) -> dict[int, Series]:
    """Pages in use by node over time, anonymous and file pages together; only nodes that have counts."""
    nodes = {
        int(match[1])
        for sample in samples
        for source in sample
        if (match := re.fullmatch(r"node(\d+)\.vmstat", source))
    }
    by_node: dict[int, Series] = {}
    for node in sorted(nodes):
        held = [(float(sample["t"]), in_use(sample.get(f"node{node}.vmstat", {}))) for sample in samples]
        if line := [(t, float(count)) for t, count in held if count is not None]:
            by_node[node] = line
    return by_node


def in_use(counters: Mapping[str, int]) -> int | None:
    """Pages of a node that are in use; None when its vmstat does not tell."""
    for names in _RESIDENT:
        if all(name in counters for name in names):
            return sum(counters[name] for name in names)
    return None


def fullest(moments: Sequence[Mapping[str, int]], release: str) -> Memory | None:
    """The memory at that of these moments of /proc/vmstat which has the most anonymous pages; None when none
    tells. `release` is the kernel's."""
    told = (memory(moment, release) for moment in moments)
    return max((one for one in told if one), key=lambda one: one.anonymous, default=None)


def memory(vmstat: Mapping[str, int], release: str) -> Memory | None:
    """What memory is made of by one reading of /proc/vmstat. nr_anon_pages has huge pages since 3.12 (Kirill
    Shutemov, "thp: account anon transparent huge pages into NR_ANON_PAGES", July 2013)."""
    pages, huge_pages = (vmstat.get(name) for name in ("nr_anon_pages", "nr_anon_transparent_hugepages"))
    if not isinstance(pages, int) or not isinstance(huge_pages, int):
        return None
    numbers = [int(number) for number in re.findall(r"\d+", release)[:2]]
    apart = len(numbers) == 2 and numbers < [3, 12]
    return Memory(anonymous=pages + HUGE_PAGES * huge_pages * apart, huge=HUGE_PAGES * huge_pages)


def zones(samples: Sequence[Sample]) -> dict[str, Zone]:
    """Each zone by its name ("node 1, DMA32"), and "node 1" with what its zones do not tell apart."""
    last = {source: counters for sample in samples for source, counters in sample.items()}
    zone_of: dict[str, Zone] = {}
    nodes: dict[int, int] = {}
    for node, name, source in sorted(
        (int(match[1]), match[2], source)
        for source in last
        if (match := re.fullmatch(r"node(\d+)\.(\w+)", source)) and "present" in last[source]
    ):
        zone = Zone(pages=last[source]["present"], lines=_lines(samples, source, _OF_ZONE))
        zone_of[f"node {node}, {name}"] = zone
        if "nr_zone_write_pending" in last[source]:
            nodes[node] = nodes.get(node, 0) + zone.pages
    for node, pages in nodes.items():
        zone_of[f"node {node}"] = Zone(pages=pages, lines=_lines(samples, f"node{node}.vmstat", _OF_NODE))
    return zone_of


def _lines(
    samples: Sequence[Sample], source: str, counters: Mapping[str, tuple[str, ...]]
) -> dict[str, Series]:
    """Levels of a source over time, by what they are; of several names the first that a sample has."""
    return {
        what: [
            (float(sample["t"]), float(sample[source][name]))
            for sample in samples
            for name in [name for name in names if name in sample.get(source, {})][:1]
        ]
        for what, names in counters.items()
    }


def at(line: Series, t: float) -> float | None:
    """The last value of a time-ordered line at or before `t`; None before the first."""
    after = bisect_right(line, t, key=lambda point: point[0])
    return line[after - 1][1] if after else None


def thin(items: Sequence[T], most: int) -> list[T]:
    """At most `most` (2 or more) items, evenly selected, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
