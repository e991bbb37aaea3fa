# SPDX-License-Identifier: GPL-2.0-only
"""Which plots a section of a report has: every metric, what was sampled over time, profiles.

Pure. Not here: how a plot is drawn (charts), which runs share a section (sections).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from numalab.analysis import metrics
from numalab.model.run import INSTRUCTIONS, Run
from numalab.model.values import Value
from numalab.report import charts
from numalab.report.chart import Plot
from numalab.runs import counters, profile
from numalab.runs import samples as runs_samples
from numalab.runs.profile import Stacks
from numalab.runs.samples import Sample

NUMA = {key: title for title, key in counters.NUMA_ROWS}
JUDGED = "Judged"
GROUPS = (
    ("Times", tuple(metrics.TIMES)),
    (
        "NUMA balancing",
        (
            *NUMA,
            "migrated_per_hint_fault",
            "faults_per_hint_fault",
            "hint_faults_per_pte_update",
            "autonuma_cost",
        ),
    ),
    (
        "Reclaim",
        (
            "nr_vmscan_write",
            "nr_vmscan_immediate_reclaim",
            *(name for name in metrics.DERIVED if re.match("kswapd_|direct_|vmscan_", name)),
        ),
    ),
)
"""Metrics of every section, in the seeds' order. Other derived metrics and the runs' own numbers follow."""
WATCHED = (
    "numa_pte_updates",
    "numa_hint_faults",
    "numa_hint_faults_local",
    "numa_pages_migrated",
    "pgmigrate_fail",
    "pgfault",
    "pgscan_kswapd",
    "pgsteal_kswapd",
    "pgscan_direct",
    "nr_vmscan_write",
    "nr_vmscan_immediate_reclaim",
    "nr_dirty",
    "nr_writeback",
)
"""Counters of /proc/vmstat that are drawn over time when they move, besides those that the case judges."""


class Link(Value):
    """A file in the report, by its path in the report's folder, with its size as text."""

    text: str
    href: str
    size: str


@dataclass(frozen=True, kw_only=True)
class MeasuredBoot:
    """A run with its data: samples and profiles by phase, files in the report, files that were too large."""

    run: Run
    samples: Mapping[str, Sequence[Sample]]
    stacks: Mapping[str, Stacks]
    links: Sequence[Link] = ()
    left: Sequence[str] = ()
    number: int
    """Its number in boot order, from 1."""

    @property
    def name(self) -> str:
        """The boot's label in plots and tables."""
        return f"boot {self.number}"


MeasuredBoots = Sequence[tuple[str, MeasuredBoot]]
"""Each unbroken boot with its kernel's label in the legend; the baseline's boots first."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Plots that are shown together."""

    title: str
    plots: Sequence[Plot]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """All metrics: the drawn ones, and the names of those that no boot has and of those that are 0 in all."""

    groups: Sequence[Group]
    absent: Sequence[str]
    zero: Sequence[str]


def every_metric(boots: MeasuredBoots, expected: Iterable[tuple[str, str]], *, times: str) -> Gallery:
    """A plot of every metric: the expected ones (metric, phase), even at 0, then GROUPS, then all others."""
    kernels, measured = (
        unique(kernel for kernel, _ in boots),
        [result for _, boot in boots for result in boot.run.measured],
    )
    ran = tuple(unique(result.phase.name for result in measured))
    wanted: list[tuple[str, list[tuple[str, tuple[str, ...]]]]] = [
        (JUDGED, [(name, (pattern,)) for name, pattern in expected])
    ]
    wanted += [(title, [(name, ran) for name in names]) for title, names in _groups(boots)]
    groups, absent, zero = [], list[tuple[str, tuple[str, ...]]](), []
    drawn: set[tuple[str, tuple[str, ...]]] = set()
    for title, members in wanted:
        plots = []
        for name, patterns in members:
            values = {pattern: _values(boots, name, pattern) for pattern in patterns}
            every = [value for by in values.values() for points in by.values() for _, value in points]
            if not every:
                absent.append((name, patterns))
            elif not any(every) and title != JUDGED:
                zero.append(name)
            elif (name, patterns) not in drawn:
                drawn.add((name, patterns))
                plots.append(
                    charts.dots(
                        NUMA.get(name, name),
                        metrics.describe(name).unit,
                        values,
                        kernels,
                        about=_about(name, times=times),
                    )
                )
        groups.append(_group(title, plots))
    return Gallery(
        groups=[group for group in groups if group.plots],
        # A judged one may be drawn for other phases than its own.
        absent=unique(
            name if name not in {*zero, *(one for one, _ in drawn)} else f"{name} ({', '.join(patterns)})"
            for name, patterns in absent
        ),
        zero=unique(zero),
    )


def _groups(boots: MeasuredBoots) -> list[tuple[str, Sequence[str]]]:
    """Titles and metric names of all possible groups."""
    results = [result for _, boot in boots for result in boot.run.measured]
    traced = unique(f"trace:{event}" for result in results for event in result.counters.get("trace", {}))
    outputs = unique(
        f"output:{name}"
        for result in results
        for name in result.output
        if not name.startswith(counters.PROFILE)
    )
    known = {name for _, names in GROUPS for name in names}
    return [
        *GROUPS,
        ("Other", [name for name in metrics.DERIVED if name not in known]),
        ("Tracepoints", traced),
        ("Told by the workload", outputs),
    ]


def _values(boots: MeasuredBoots, metric: str, pattern: str) -> dict[str, list[tuple[str, float]]]:
    """Kernel -> name and value of each boot that has a value."""
    by_kernel: dict[str, list[tuple[str, float]]] = {}
    for kernel, boot in boots:
        if (value := metrics.value(boot.run, metric, pattern)) is not None:
            by_kernel.setdefault(kernel, []).append((boot.name, value))
    return by_kernel


def _about(metric: str, *, times: str) -> str:
    """A metric's own name where the title is the seeds', its formula, and what its times are worth."""
    meaning = metrics.describe(metric)
    words = [metric] if metric in NUMA else []
    words += [meaning.about] if metric in metrics.TIMES or metric in metrics.DERIVED else []
    words += [times] if times and meaning.kind is metrics.Kind.TIME else []
    return "; ".join(words)


def over_time(boots: MeasuredBoots, judged: Iterable[str]) -> list[Group]:
    """Each sampled phase's judged and watched counters, zones, and each boot's memory by node."""
    groups, kernels, judged = [], unique(kernel for kernel, _ in boots), list(judged)
    for phase in unique(name for _, boot in boots for name in boot.samples):
        sampled = [
            (boot.name, kernel, boot.samples[phase]) for kernel, boot in boots if boot.samples.get(phase)
        ]
        plots: list[Plot | None] = []
        for counter in unique((*judged, *WATCHED)):
            lines = [
                (boot, kernel, line)
                for boot, kernel, samples in sampled
                if (line := runs_samples.series(samples, counter))
            ]
            plots.append(
                charts.over_time(
                    NUMA.get(counter, counter), "pages" if runs_samples.level(counter) else "", lines, kernels
                )
            )
        taken = [
            (boot, kernel, line) for boot, kernel, samples in sampled if (line := runs_samples.kept(samples))
        ]
        plots.append(charts.over_time("taken from the vCPUs by others on the host", "s", taken, kernels))
        nodes = [
            (boot, kernel, pages)
            for boot, kernel, samples in sampled
            if (pages := runs_samples.pages(samples))
        ]
        most = max(
            (value for *_, pages in nodes for line in pages.values() for _, value in line), default=0.0
        )
        maps = [charts.heat(f"{kernel}, {boot}", pages, most) for boot, kernel, pages in nodes]
        groups += [
            _group(f"Phase {phase}", plots),
            _group(f"Phase {phase}: pages by zone", _zones(sampled, kernels)),
            _group(f"Phase {phase}: memory in use by node", maps),
        ]
    return [group for group in groups if group.plots]


def _zones(sampled: Sequence[tuple[str, str, Sequence[Sample]]], kernels: Sequence[str]) -> list[Plot | None]:
    """File pages of each zone over time, where they change in a boot."""
    boots = [(boot, kernel, runs_samples.zones(samples)) for boot, kernel, samples in sampled]
    shown = {
        (place, what) for _, _, places in boots for place, zone in places.items() for what in zone.changing
    }
    order = [(place, what) for _, _, places in boots for place, zone in places.items() for what in zone.lines]
    return [
        charts.over_time(
            f"{place}: {what}",
            "pages",
            [
                (boot, kernel, line)
                for boot, kernel, places in boots
                if place in places and (line := places[place].lines.get(what))
            ],
            kernels,
        )
        for place, what in dict.fromkeys(order)
        if (place, what) in shown
    ]


def profiles(boots: MeasuredBoots) -> list[Group]:
    """Each phase's flame graphs: one for each kernel, with its boots' samples added."""
    groups = []
    for phase in unique(name for _, boot in boots for name in boot.stacks):
        plots = []
        for kernel in unique(kernel for kernel, boot in boots if phase in boot.stacks):
            of = [boot for name, boot in boots if name == kernel and phase in boot.stacks]
            # A sample is one of thousands, an instruction one of billions: they do not add up.
            for unit in unique(unit_of(boot, phase) for boot in of):
                stacks = [boot.stacks[phase] for boot in of if unit_of(boot, phase) == unit]
                title = f"{kernel}, {len(stacks)} boot{'s' * (len(stacks) != 1)}"
                plots.append(charts.flame(title, profile.merged(stacks), unit))
        groups.append(_group(f"Phase {phase}", plots))
    return [group for group in groups if group.plots]


def unit_of(boot: MeasuredBoot, phase: str) -> str:
    """What a boot's profile of a phase counts."""
    counted = boot.run.phase(phase).profiled
    return counted if counted == INSTRUCTIONS else f"samples by {counted or 'cpu-clock'}"


def _group(title: str, plots: Iterable[Plot | None]) -> Group:
    return Group(title=title, plots=[plot for plot in plots if plot])


def unique(values: Iterable[str]) -> list[str]:
    """Each value once, in order of appearance, without empty ones."""
    return [value for value in dict.fromkeys(values) if value]
