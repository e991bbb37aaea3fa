# SPDX-License-Identifier: GPL-2.0-only
"""Runs -> the text tables of the seeds: statistics of the boots, User/System/Elapsed, the block of counters.

A column is a kernel, the first one the baseline; a boot is one sample. Formulas and style are those of the
published mails (slowscan-lkml-2015.txt), with these deliberate differences:

* Stddev divides by n - 1. The seed's divides by n: its three boots follow from Min, Amean and Max, as
  tests/unit/report/test_comparison.py shows.
* A counter, and what is derived from it, is a mean over the boots. A ratio is that of the sums, so that it
  agrees with the rows that it is made of. What was not measured prints as "-".
* Headings never touch each other: a column is as wide as its kernel's name needs.

Not here: the layout of a table (table), which runs may be compared (runs.compatibility), what the numbers
mean (analysis.verdict).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import TypeVar

from numalab.analysis import metrics
from numalab.analysis.metrics import Kind
from numalab.core.errors import InputError
from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.model.values import times_are
from numalab.report.table import Block, Cell, Row
from numalab.runs import counters

N = TypeVar("N", float, Decimal)
Columns = dict[str, tuple[Run, ...]]
"""Heading -> the boots under it, the baseline first."""
EVERY_PHASE = "*"
TIMED = TIMES, RATES, TOTALS = "times in seconds", "rates", "totals in seconds"
"""Titles of the blocks of times, of which emulation makes something else (values.times_are)."""
TOTAL_LABEL, COUNTER_LABEL = 8, 26
"""Widths of the row names in the seeds."""

RECLAIM_ROWS = (
    ("Page writes by reclaim", "nr_vmscan_write"),
    ("Page reclaim immediate", "nr_vmscan_immediate_reclaim"),
    ("Kswapd pages scanned", "kswapd_scanned"),
    ("Kswapd pages reclaimed", "kswapd_reclaimed"),
    ("Direct pages scanned", "direct_scanned"),
    ("Direct pages reclaimed", "direct_reclaimed"),
    ("Kswapd efficiency", "kswapd_efficiency"),
    ("Direct efficiency", "direct_efficiency"),
)
"""mmtests' names of reclaim counters, and the metric behind each."""
COUNTER_ROWS = (*counters.NUMA_ROWS, ("AutoNUMA cost", "autonuma_cost"), *RECLAIM_ROWS)


class Better(StrEnum):
    """Which direction is an improvement."""

    LOWER = "lower"
    HIGHER = "higher"


def gain(base: N, value: N, better: Better = Better.LOWER) -> N | None:
    """The gain of `value` over `base` in %; None over a base of 0.

    It is (base - value) / base for a time, and (value - base) / base for a rate.
    """
    if not base:
        return None if value else base
    percent = 100 * (base - value) / base
    return percent if better is Better.LOWER else -percent


def columns(runs: Sequence[Run], baseline: str | None = None) -> Columns:
    """Unbroken runs by kernel: "before" first, then in boot order. A kernel in both arms (A against A) gets a
    column for each.

    `baseline` is put first where it is a column (check_baseline). InputError when there is no run.
    """
    whole = sorted(
        (run for run in runs if not run.error),
        key=lambda run: (run.place is not None and run.place.arm is not Arm.BEFORE, run.started, run.id),
    )
    if not whole:
        raise InputError(
            f"nothing to compare: all {len(runs)} runs broke"
            if runs
            else "nothing to compare: no run was chosen"
        )
    arms: dict[str, set[str]] = {}
    for run in whole:
        arms.setdefault(run.kernel, set()).add(run.place.arm if run.place else "")
    by_heading: dict[str, list[Run]] = {}
    for run in whole:
        name = run.kernel
        by_heading.setdefault(
            f"{name}-{run.place.arm}" if run.place and len(arms[name]) > 1 else name, []
        ).append(run)
    if baseline in by_heading:
        by_heading = {baseline: by_heading[baseline], **by_heading}
    return {name: tuple(boots) for name, boots in by_heading.items()}


def check_baseline(groups: Iterable[Sequence[Run]], baseline: str | None) -> None:
    """InputError when it is a column of none of these groups of runs, each of which is compared by itself."""
    known = dict.fromkeys(
        name for runs in groups if any(not run.error for run in runs) for name in columns(runs)
    )
    if baseline is not None and known and baseline not in known:
        raise InputError(
            f"baseline {baseline}: there is no run of it; there are {', '.join(known)}", field="baseline"
        )


def before(by_heading: Columns) -> str:
    """The column of arm "before", whatever the baseline is; without arms the first column."""
    return next(
        (
            heading
            for heading, boots in by_heading.items()
            if boots[0].place and boots[0].place.arm is Arm.BEFORE
        ),
        next(iter(by_heading)),
    )


def compare(by_heading: Columns) -> tuple[Block, ...]:
    """The seeds' blocks: times, rates, totals, counters; empty ones are left out."""
    blocks = (times(by_heading), rates(by_heading), totals(by_heading), counted(by_heading))
    return tuple(block for block in blocks if block.rows)


def titled(block: Block, by_heading: Columns) -> str:
    """A block's title, with what its times are where they are none of a real machine's."""
    what = what_times_are(run for boots in by_heading.values() for run in boots)
    return f"{block.title} ({what})" if what and block.title in TIMED else block.title


def what_times_are(runs: Iterable[Run]) -> str:
    """values.times_are for one run or more; '' for KVM. Runs that were forced together may differ in it."""
    kinds = dict.fromkeys(times_are(run.guest.spec.accel, run.guest.spec.clock) for run in runs)
    return next(iter(kinds)) if len(kinds) == 1 else " beside ".join(kind or "KVM" for kind in kinds)


def times(by_heading: Columns) -> Block:
    """Min, Amean, Stddev, CoeffVar and Max over the boots: of each phase's real, system and user time, and of
    the workload's own times."""
    series = {
        f"{short}-{phase}": _series(by_heading, metric, phase)
        for phase in phases(by_heading)
        for short, metric in (("real", "elapsed"), ("syst", "system"), ("user", "user"))
    }
    series |= {
        f"{name}-{phase}": _series(by_heading, f"output:{name}", phase)
        for phase, name in _outputs(by_heading)
        if _sort(name) is Kind.TIME
    }
    return _statistics(TIMES, by_heading, series, Better.LOWER)


def rates(by_heading: Columns) -> Block:
    """As `times`, for the workload's own rates: more is better, and Hmean replaces Amean."""
    series = {
        f"{name}-{phase}": _series(by_heading, f"output:{name}", phase)
        for phase, name in _outputs(by_heading)
        if _sort(name) is Kind.RATIO
    }
    return _statistics(RATES, by_heading, series, Better.HIGHER)


def other_numbers(by_heading: Columns) -> Block:
    """Means of the workload's other numbers. Their good direction is unknown, so they have no gains."""
    rows = []
    for phase, name in _outputs(by_heading):
        if _sort(name) is Kind.COUNT:
            boots = _series(by_heading, f"output:{name}", phase)
            whole = all(value == int(value) for values in boots for value in values)
            cells = tuple(Cell(value=statistics.fmean(values) if values else None) for values in boots)
            rows.append(Row(name=f"{name}-{phase}", decimals=0 if whole else 2, cells=cells))
    return Block(title="reported by the workload", columns=tuple(by_heading), rows=tuple(rows))


def totals(by_heading: Columns) -> Block:
    """User, System, Elapsed and, where measured, Kswapd in seconds: all measured phases, means of boots."""
    rows = []
    named = (("User", "user"), ("System", "system"), ("Elapsed", "elapsed"), ("Kswapd", "kswapd_seconds"))
    for title, metric in named:
        boots = _series(by_heading, metric, EVERY_PHASE)
        if metric not in metrics.TIMES and not any(boots):
            continue  # boots of before it was measured
        rows.append(
            Row(
                name=title,
                cells=tuple(Cell(value=statistics.fmean(values) if values else None) for values in boots),
            )
        )
    return Block(title=TOTALS, columns=tuple(by_heading), rows=tuple(rows), label=TOTAL_LABEL)


def counted(by_heading: Columns) -> Block:
    """The seeds' counters: all measured phases of a boot, the mean over boots; percentages of their sums."""
    sums = [(_all_boots(boots), len(boots)) for boots in by_heading.values()]
    rows = []
    for title, metric in COUNTER_ROWS:
        about = metrics.describe(metric)
        values = [(None if one is None else about.of(one), boots) for one, boots in sums]
        cells = tuple(
            Cell(value=value if value is None or about.unit == "%" else value / boots)
            for value, boots in values
        )
        rows.append(
            Row(name=title, decimals=0, unit="%" if metric.endswith("_efficiency") else "", cells=cells)
        )
    return Block(title="counters", columns=tuple(by_heading), rows=tuple(rows), label=COUNTER_LABEL)


def phases(by_heading: Columns) -> list[str]:
    """The measured phases of all boots, in the order of their first appearance."""
    return list(
        dict.fromkeys(
            result.phase.name for boots in by_heading.values() for run in boots for result in run.measured
        )
    )


def _outputs(by_heading: Columns) -> list[tuple[str, str]]:
    """(phase, name) of the workloads' own numbers in measured phases."""
    every = [result for boots in by_heading.values() for run in boots for result in run.measured]
    return list(
        dict.fromkeys(
            (result.phase.name, name)
            for result in every
            for name in result.output
            if not name.startswith(counters.PROFILE)
        )
    )


def _sort(output: str) -> Kind:
    """The kind of a workload's own number, by its name: a TIME in seconds, a RATIO (files_per_second), or a
    COUNT of anything else: the lab's rates and perf's milliseconds are times to metrics, and no seconds."""
    if re.search(r"per[_-]second", output):
        return Kind.RATIO
    return Kind.TIME if re.search(r"(^|[^a-z])seconds?($|[^a-z])", output) else Kind.COUNT


def _series(by_heading: Columns, metric: str, phase: str) -> list[list[float]]:
    """A metric's values by column, without the boots that lack it."""
    every = [[metrics.value(run, metric, phase) for run in boots] for boots in by_heading.values()]
    return [[value for value in values if value is not None] for values in every]


def _all_boots(boots: Sequence[Run]) -> metrics.Sums | None:
    """All phases of all boots added up, as metrics adds up those of one."""
    return metrics.merged(
        boots[0].model_copy(update={"phases": tuple(result for run in boots for result in run.phases)}),
        EVERY_PHASE,
    )


def _variation(values: Sequence[float]) -> float | None:
    """Coefficient of variation in %: deviation / arithmetic mean. None for one value, or a mean of 0."""
    mean = statistics.fmean(values)
    return 100 * statistics.stdev(values) / mean if len(values) > 1 and mean else None


def _deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample, divided by n - 1; None for one value."""
    return statistics.stdev(values) if len(values) > 1 else None


def _harmonic(values: Sequence[float]) -> float | None:
    """n / Σ 1/x; None where a rate is negative."""
    return statistics.harmonic_mean(values) if min(values) >= 0 else None


_MEANS: Mapping[Better, tuple[str, Callable[[Sequence[float]], float | None]]] = {
    Better.LOWER: ("Amean", statistics.fmean),
    Better.HIGHER: ("Hmean", _harmonic),
}


def _statistics(
    title: str, by_heading: Columns, series: Mapping[str, list[list[float]]], better: Better
) -> Block:
    """A block of statistics. Spreads are better when they are lower, whatever is measured."""
    operations: tuple[tuple[str, Callable[[Sequence[float]], float | None], Better], ...] = (
        ("Min", min, better),
        (*_MEANS[better], better),
        ("Stddev", _deviation, Better.LOWER),
        ("CoeffVar", _variation, Better.LOWER),
        ("Max", max, better),
    )
    rows = []
    for operation, of, way in operations:
        for name, boots in series.items():
            values = [of(column) if column else None for column in boots]
            base = values[0]
            gains = [None if base is None or value is None else gain(base, value, way) for value in values]
            cells = tuple(Cell(value=value, gain=over) for value, over in zip(values, gains, strict=True))
            rows.append(Row(operation=operation, name=name, cells=cells))
    return Block(title=title, columns=tuple(by_heading), rows=tuple(rows), gains=True)
