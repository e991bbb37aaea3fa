# SPDX-License-Identifier: GPL-2.0-only
"""From a run to one number: how counters, times and a workload's own numbers become metrics.

A metric's name is one of

    numa_pte_updates                     a counter of /proc/vmstat, by its own name
    node1.vmstat:nr_anon_pages           a counter of another source: nodeN.vmstat, nodeN.numastat
    kswapd:kswapd1                       CPU time of a node's kswapd, in milliseconds
    trace:migrate:mm_migrate_pages       how often a tracepoint was hit
    output:files_per_second              the workload's own number (`numalab: NAME VALUE`)
    user, system, elapsed                seconds
    migrated_per_hint_fault              one of DERIVED

Absent is absent: a metric is None where one of its counters does not exist, or where its divisor is 0. Not
here: what a metric should do (model.case), and whether it did (verdict).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple, TypeVar

from numalab.core.errors import InputError
from numalab.model.case import Cost
from numalab.model.run import PhaseResult, Run
from numalab.runs import counters

N = TypeVar("N", int, float)
Vmstat = Mapping[str, int]


class Kind(StrEnum):
    """What a metric is made of: events; several numbers; a part of a whole, in percent, which is judged by
    its odds (see effect); or a time (see `no_evidence`)."""

    COUNT = "count"
    RATIO = "ratio"
    SHARE = "share"
    TIME = "time"


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Phases added up: seconds, counter differences by source, the workload's own numbers."""

    elapsed: float
    user: float
    system: float
    counters: Mapping[str, Vmstat]
    output: Mapping[str, float]

    @property
    def vmstat(self) -> Vmstat:
        """Counters of /proc/vmstat; empty when it was not read."""
        return self.counters.get("vmstat", {})


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric: unit, kind, formula and source; `of` computes its value for added-up phases."""

    unit: str
    kind: Kind
    about: str
    of: Callable[[Sums], float | None]


Term = Callable[[Sums], float | None]


def _counter(name: str) -> Term:
    return lambda sums: sums.vmstat.get(name)


def _total(*terms: Term) -> Term:
    """The sum; absent when a term is."""

    def total(sums: Sums) -> float | None:
        parts = [part for term in terms if (part := term(sums)) is not None]
        return sum(parts) if len(parts) == len(terms) else None

    return total


def _less(whole: Term, part: Term) -> Term:
    """A count without a part of it; absent when either is."""

    def rest(sums: Sums) -> float | None:
        total, out = whole(sums), part(sums)
        return total - out if total is not None and out is not None else None

    return rest


def _ratio(top: Term, bottom: Term, scale: float = 1) -> Term:
    """scale × top / bottom; absent when either is, or when bottom is 0."""

    def ratio(sums: Sums) -> float | None:
        above, below = top(sums), bottom(sums)
        return scale * above / below if above is not None and below else None

    return ratio


def _zones(name: str) -> Term:
    """A counter (pgscan_kswapd) that kernels before 4.8 have for each zone (pgscan_kswapd_dma32)."""

    def over(sums: Sums) -> float | None:
        counts = [
            sums.vmstat[key] for key in (name, *(f"{name}_{zone}" for zone in _ZONES)) if key in sums.vmstat
        ]
        return sum(counts) if counts else None

    return over


def _else(now: Term, then: Term) -> Term:
    """The first of two that is there: today's counters, or those that earlier kernels had in their place."""

    def either(sums: Sums) -> float | None:
        value = now(sums)
        return then(sums) if value is None else value

    return either


def _derived(name: str) -> Term:
    """A ratio of the seeds' tables, from counters.derived."""
    return lambda sums: counters.derived(sums.vmstat).get(name)


def _kswapd_seconds(sums: Sums) -> float | None:
    threads = sums.counters.get(counters.KSWAPD)
    return sum(threads.values()) / 1000 if threads else None


_minor = _derived("minor_faults")


def _cost(sums: Sums) -> float | None:
    """See AUTONUMA_COST."""
    parts = [sums.vmstat.get(name) for name in AUTONUMA_COST]
    if any(part is None for part in parts):
        return None
    return (
        sum(part * cost for part, cost in zip(parts, AUTONUMA_COST.values(), strict=True) if part is not None)
        / 1e6
    )


_ZONES = ("dma", "dma32", "normal", "high", "movable", "device")
_PAGE_ACCESS = 56 / 8
"""Words of a struct page (56 bytes on x86-64 in 2012): Ca in the model below."""
_PAGE_COPY = (_PAGE_ACCESS + 4096 / 8) * (1 + 1.5)
"""Reading a page locally and writing it remotely, at 1.5 times the cost: Cpagerw × (1 + Wnuma)."""
AUTONUMA_COST = {
    "numa_pte_updates": _PAGE_ACCESS,
    "numa_hint_faults": 5000.0,
    "numa_pages_migrated": _PAGE_ACCESS + 12 + _PAGE_COPY,
}
"""What one of each costs, in words of memory touched: 7, 5000 and 19 + 1297.5.

Mel Gorman's model in the changelog of Linux 03c5a6e16322 (mm: numa: Add pte updates, hinting and migration
stats), with the constants of mmtests, MonitorMmtestsvmstat.pm: a hinting fault 5000, isolating a page the
access and 12 for locks. Two differences. mmtests drops the copy of a migrated page (a semicolon ends the sum
before it), so its cost is lower by 1297.5e-6 a page; the changelog counts the isolation twice, which its
author took back (20130107152931.GM3885@suse.de).
"""

_KSWAPD_RECLAIMED = _else(_zones("pgsteal_kswapd"), _counter("kswapd_steal"))
_DIRECT_RECLAIMED = _else(_zones("pgsteal_direct"), _less(_zones("pgsteal"), _counter("kswapd_steal")))
"""Before 3.5 kswapd_steal counts what kswapd reclaimed, and pgsteal_ZONE what anybody did.

Ying Han's "mm: fix up the vmscan stat in vmstat" (April 2012) split the latter by the reclaimer. Scans were
split already.
"""
_SCANNED = _total(_zones("pgscan_kswapd"), _zones("pgscan_direct"))
_ALLOCATED = _zones("pgalloc")
_REFUSED = _total(_counter("fairzone_remote"), _counter("fairzone_depleted"))
_LOOKED = _total(_counter("fairzone_scanned"), _counter("fairzone_unfair_scanned"))


def _per_fault(name: str) -> Term:
    return _ratio(_counter(name), _counter("numa_hint_faults"))


def _per_cpu_second(name: str, count: Term) -> Metric:
    """How often NUMA balancing did something in a second of the phase's own CPU time, which paces its scans
    (task_tick_numa compares sum_exec_runtime). It is a time like any rate: what a host takes from an emulated
    guest is in the divisor, and a kernel that is quicker has a higher rate of the same count."""
    return _metric(
        "/s", Kind.TIME, f"{name} / (user + system)", _ratio(count, lambda sums: sums.user + sums.system)
    )


def _per_1000_pages(top: Term) -> Term:
    return _ratio(top, _ALLOCATED, 1000)


def _metric(unit: str, kind: Kind, about: str, of: Term) -> Metric:
    return Metric(unit=unit, kind=kind, about=about, of=of)


TIMES = {
    "user": _metric(
        "s", Kind.TIME, "CPU time of the phase's processes in user space", lambda sums: sums.user
    ),
    "system": _metric(
        "s", Kind.TIME, "CPU time of the phase's processes in the kernel", lambda sums: sums.system
    ),
    "elapsed": _metric("s", Kind.TIME, "wall-clock time of the phase", lambda sums: sums.elapsed),
}
DERIVED = {
    "page_range_updates": _metric(
        "pages",
        Kind.COUNT,
        "numa_pte_updates + 512 × numa_huge_pte_updates (the seeds' tables; it counts huge pages twice)",
        _derived("page_range_updates"),
    ),
    "base_pte_updates": _metric(
        "pages",
        Kind.COUNT,
        "numa_pte_updates − 512 × numa_huge_pte_updates: what is not in huge pages",
        _derived("base_pte_updates"),
    ),
    "hint_local_percent": _metric(
        "%",
        Kind.SHARE,
        "100 × numa_hint_faults_local / numa_hint_faults (the seeds' tables)",
        _derived("hint_local_percent"),
    ),
    "minor_faults": _metric("faults", Kind.COUNT, "pgfault − pgmajfault (mmtests' Minor Faults)", _minor),
    "other_minor_faults": _metric(
        "faults",
        Kind.COUNT,
        "minor_faults − numa_hint_faults: of populating, and second ones for a lost write permission",
        _less(_minor, _counter("numa_hint_faults")),
    ),
    "migrated_per_hint_fault": _metric(
        "pages/fault", Kind.RATIO, "numa_pages_migrated / numa_hint_faults", _per_fault("numa_pages_migrated")
    ),
    "faults_per_hint_fault": _metric(
        "faults/fault",
        Kind.RATIO,
        "minor_faults / numa_hint_faults: a second one is for a lost write permission",
        _ratio(_minor, _counter("numa_hint_faults")),
    ),
    "touch_faults_per_hint_fault": _metric(
        "faults/fault",
        Kind.RATIO,
        "output:touch_minor_faults / numa_hint_faults: those of populating left out",
        _ratio(lambda sums: sums.output.get("touch_minor_faults"), _counter("numa_hint_faults")),
    ),
    "hint_faults_per_pte_update": _metric(
        "faults/PTE",
        Kind.RATIO,
        "numa_hint_faults / numa_pte_updates",
        _ratio(_counter("numa_hint_faults"), _counter("numa_pte_updates")),
    ),
    "pte_updates_per_user_second": _metric(
        "PTEs/s",
        Kind.TIME,
        "numa_pte_updates / user",
        _ratio(_counter("numa_pte_updates"), lambda sums: sums.user),
    ),
    "numa_pte_updates_per_cpu_second": _per_cpu_second("numa_pte_updates", _counter("numa_pte_updates")),
    "page_range_updates_per_cpu_second": _per_cpu_second(
        "page_range_updates", _derived("page_range_updates")
    ),
    "numa_hint_faults_per_cpu_second": _per_cpu_second("numa_hint_faults", _counter("numa_hint_faults")),
    "autonuma_cost": _metric(
        "million words",
        Kind.RATIO,
        "7 × PTE updates + 5000 × hinting faults + 1316.5 × pages migrated, / 10⁶: see AUTONUMA_COST",
        _cost,
    ),
    "system_percent": _metric(
        "%",
        Kind.TIME,
        "100 × system / (user + system)",
        _ratio(lambda sums: sums.system, lambda sums: sums.user + sums.system, 100),
    ),
    "kswapd_seconds": _metric(
        "s",
        Kind.TIME,
        "CPU time of all kswapd threads, which `system` is without: utime + stime of /proc/PID/stat",
        _kswapd_seconds,
    ),
    "vmscan_write_per_scan": _metric(
        "pages/page",
        Kind.RATIO,
        "nr_vmscan_write / pages scanned by kswapd and direct reclaim",
        _ratio(_counter("nr_vmscan_write"), _SCANNED),
    ),
    "kswapd_scanned": _metric(
        "pages", Kind.COUNT, "pgscan_kswapd, or the sum of its zones before 4.8", _zones("pgscan_kswapd")
    ),
    "kswapd_reclaimed": _metric(
        "pages",
        Kind.COUNT,
        "pgsteal_kswapd, or the sum of its zones before 4.8, or kswapd_steal before 3.5",
        _KSWAPD_RECLAIMED,
    ),
    "direct_scanned": _metric(
        "pages", Kind.COUNT, "pgscan_direct, or the sum of its zones before 4.8", _zones("pgscan_direct")
    ),
    "direct_reclaimed": _metric(
        "pages",
        Kind.COUNT,
        "pgsteal_direct, or the sum of its zones before 4.8, or that of pgsteal less kswapd_steal before 3.5",
        _DIRECT_RECLAIMED,
    ),
    "kswapd_scan_per_steal": _metric(
        "pages/page",
        Kind.RATIO,
        "pgscan_kswapd / pgsteal_kswapd",
        _ratio(_zones("pgscan_kswapd"), _KSWAPD_RECLAIMED),
    ),
    "direct_scan_per_steal": _metric(
        "pages/page",
        Kind.RATIO,
        "pgscan_direct / pgsteal_direct",
        _ratio(_zones("pgscan_direct"), _DIRECT_RECLAIMED),
    ),
    "kswapd_efficiency": _metric(
        "%",
        Kind.SHARE,
        "100 × pgsteal_kswapd / pgscan_kswapd (mmtests)",
        _ratio(_KSWAPD_RECLAIMED, _zones("pgscan_kswapd"), 100),
    ),
    "direct_efficiency": _metric(
        "%",
        Kind.SHARE,
        "100 × pgsteal_direct / pgscan_direct (mmtests)",
        _ratio(_DIRECT_RECLAIMED, _zones("pgscan_direct"), 100),
    ),
    "zones_looked_at_per_1000_pages": _metric(
        "zones",
        Kind.RATIO,
        "1000 × (fairzone_scanned + fairzone_unfair_scanned) / pgalloc_*",
        _per_1000_pages(_LOOKED),
    ),
    "fairzone_looked_at_per_1000_pages": _metric(
        "zones",
        Kind.RATIO,
        "1000 × fairzone_scanned / pgalloc_*",
        _per_1000_pages(_counter("fairzone_scanned")),
    ),
    "fairzone_skipped_per_1000_pages": _metric(
        "zones",
        Kind.RATIO,
        "1000 × (fairzone_remote + fairzone_depleted) / pgalloc_*",
        _per_1000_pages(_REFUSED),
    ),
    "fairzone_resets_per_1000_pages": _metric(
        "resets", Kind.RATIO, "1000 × fairzone_reset / pgalloc_*", _per_1000_pages(_counter("fairzone_reset"))
    ),
    "fairzone_zones_reset_per_1000_pages": _metric(
        "zones",
        Kind.RATIO,
        "1000 × fairzone_zones_reset / pgalloc_*",
        _per_1000_pages(_counter("fairzone_zones_reset")),
    ),
}
"""Formulas over counters of /proc/vmstat and times. fairzone_* are from kernels/patches/fairzone-*."""


def merged(run: Run, pattern: str) -> Sums | None:
    """The measured phases whose name matches, added up; None when there is none.

    A value that one of them lacks is absent from the sum: part of a count is not the count.
    """
    results = [result for result in run.measured if fnmatchcase(result.phase.name, pattern)]
    if not results:
        return None
    sources = [
        source for source in results[0].counters if all(source in result.counters for result in results)
    ]

    def seconds(of: Callable[[PhaseResult], float]) -> float:
        return sum(of(result) for result in results)

    return Sums(
        elapsed=seconds(lambda result: result.elapsed),
        user=seconds(lambda result: result.user),
        system=seconds(lambda result: result.system),
        counters={source: _added([result.counters[source] for result in results]) for source in sources},
        output=_added([result.output for result in results]),
    )


def _added(parts: list[dict[str, N]]) -> dict[str, N]:
    if len(parts) == 1:
        return parts[0]
    return {key: sum(part[key] for part in parts) for key in parts[0] if all(key in part for part in parts)}


def value(run: Run, metric: str, pattern: str) -> float | None:
    """A metric over the measured phases that match; None when absent. InputError for an impossible name."""
    about = describe(metric)
    sums = merged(run, pattern)
    return None if sums is None else about.of(sums)


def values(runs: Iterable[Run], metric: str, pattern: str) -> list[float]:
    """`value` of each run that has one."""
    return [number for run in runs if (number := value(run, metric, pattern)) is not None]


class Placed(NamedTuple):
    """The values of both sides of a comparison, of the boots that have one, and where these boots stood."""

    before: list[float]
    after: list[float]
    positions: tuple[list[float], list[float]] | None
    """The boots' numbers in their experiment; None unless one experiment made all, on one host."""
    hosts: tuple[list[str], list[str]] | None
    """The boots' hosts, where one experiment was spread over several."""
    whole: bool
    """Whether every boot's own value is a whole number; means of builds are not."""


def _of_builds(kept: Sequence[tuple[float, Run]]) -> list[tuple[float, float]]:
    """(value, position) of each sample: a boot, or, where a kernel has several builds, the mean of a build's.

    Boots of one build share its layout, so that more of them are no more samples of what layout does.
    """
    builds: dict[object, list[tuple[float, float]]] = {}
    for number, run in kept:
        boot, build = (run.place.boot, run.place.build) if run.place else (0, 0)
        builds.setdefault(build or run.id, []).append((number, float(boot)))
    return [(fmean(number for number, _ in of), fmean(boot for _, boot in of)) for of in builds.values()]


def whole_numbers(values: Iterable[float]) -> bool:
    """Whether all are whole, as what was counted is."""
    return all(float(value).is_integer() for value in values)


def placed(before: Sequence[Run], after: Sequence[Run], metric: str, pattern: str) -> Placed:
    """The values of both sides, and where their boots stood. Of several builds: see _of_builds."""
    places = [run.place for run in (*before, *after)]
    single = len({place.experiment if place else "" for place in places}) == 1 and None not in places
    kept = [
        [(number, run) for run in side if (number := value(run, metric, pattern)) is not None]
        for side in (before, after)
    ]
    whole = whole_numbers(number for side in kept for number, _ in side)
    if single and all(place and place.block for place in places):
        first, second = ([number for number, _ in side] for side in kept)
        here, there = ([run.place.block for _, run in side if run.place] for side in kept)
        return Placed(first, second, None, (here, there), whole)
    samples = [_of_builds(side) for side in kept]
    first, second = ([number for number, _ in side] for side in samples)
    one, other = ([position for _, position in side] for side in samples)
    return Placed(first, second, (one, other) if single else None, None, whole)


def known(metric: str) -> bool:
    """Whether a name can be a metric: a derived one, a time, or of a counter's form."""
    return metric in TIMES or metric in DERIVED or _counter_of(metric) is not None


def kind(metric: str) -> Kind:
    """What a metric is made of. Raises InputError."""
    return describe(metric).kind


def describe(metric: str) -> Metric:
    """Unit, kind and formula of any metric. InputError for a name that cannot be one."""
    if metric in TIMES:
        return TIMES[metric]
    if metric in DERIVED:
        return DERIVED[metric]
    parts = _counter_of(metric)
    if parts is None:
        raise InputError(
            f"metric {metric!r} is none: write a counter of /proc/vmstat, SOURCE:COUNTER"
            " (node1.vmstat:nr_dirty, kswapd:kswapd0, trace:SYSTEM:EVENT, output:NAME),"
            f" {', '.join(TIMES)} or one of {', '.join(DERIVED)}"
        )
    source, name = parts
    if source == "output":
        sort = Kind.TIME if name.startswith(_OF_TIME) or _timed(name) else Kind.COUNT
        return _metric("", sort, "reported by the workload", lambda sums: sums.output.get(name))
    unit, sort = ("ms", Kind.TIME) if source == counters.KSWAPD else ("", Kind.COUNT)
    return _metric(unit, sort, f"counter of {source}", lambda sums: sums.counters.get(source, {}).get(name))


def no_evidence(metric: str, cost: Cost | None, runs: Sequence[Run]) -> str:
    """Why a metric of these runs is no evidence; '' where it is. `cost` is what the time is spent on.

    An emulated guest's times mean nothing on the host's clock. On a virtual clock they count instructions.
    """
    emulated = [run for run in runs if run.emulated]
    if kind(metric) is not Kind.TIME or not emulated:
        return ""
    if not all(run.virtual for run in emulated):
        return "times are emulated and tell nothing"
    return _NOT_COUNTED[cost]


_NOT_COUNTED = {
    Cost.WORK: "",
    Cost.LOCALITY: "instruction time does not tell locality",
    Cost.WAITING: "instruction time does not tell waiting",
    None: "instruction time tells work alone, and this is not said to be work",
}


def instruction_time(metric: str, runs: Iterable[Run]) -> bool:
    """Whether a metric is a time that counts instructions in some of these runs."""
    return kind(metric) is Kind.TIME and any(run.virtual for run in runs)


_SOURCES = (
    (r"vmstat|node\d+\.(vmstat|numastat)", r"[a-z]\w*"),
    ("trace", r"\w+:\w+"),
    (counters.KSWAPD, r"kswapd\d+"),
    ("output", r"[\w.-]+"),
)
"""The sources of counters, and the form of their names."""
_OF_TIME = (counters.PROFILE, counters.RATE)
"""Prefixes of the lab's own numbers that are shares of time, or rates."""
_TIMED = {
    *(f"{part}second{s}" for part in ("", "milli", "micro", "nano") for s in ("", "s")),
    *("s", "sec", "secs", "ms", "msec", "msecs", "us", "usec", "usecs", "ns", "nsec", "nsecs"),
    *("minute", "minutes", "hour", "hours", "time", "clock", "duration", "latency", "latencies", "lat"),
    *("elapsed", "runtime", "walltime", "cputime", "rate", "speed", "throughput", "bandwidth"),
    *("iops", "tps", "rps", "qps", "kbps", "mbps", "gbps"),
}
"""Words in the name of a workload's own number that make it a time or a rate: repair_seconds, latencyUs,
files_per_sec, perf's task-clock. A name without one is a count's, and a count is evidence under emulation."""
_TIMES_ALONE = {*TIMES, "real", "sys"}
"""Names that are times if they have no other word: system, but not system_calls."""


def _timed(name: str) -> bool:
    """Whether a workload's own number is a time or a rate, by its name."""
    words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    per_minute = ("per", "min") in pairwise(words)  # by itself it is a least value
    return name in _TIMES_ALONE or per_minute or not _TIMED.isdisjoint(words)


def _counter_of(metric: str) -> tuple[str, str] | None:
    """(source, counter) of a counter's name; a bare name is one of /proc/vmstat."""
    source, name = metric.split(":", 1) if ":" in metric else ("vmstat", metric)
    good = any(re.fullmatch(sources, source) and re.fullmatch(names, name) for sources, names in _SOURCES)
    return (source, name) if good else None
