# SPDX-License-Identifier: GPL-2.0-only
"""Runs and verdicts -> the sections of a report: which runs are shown together, which plots, which facts.

Pure: samples, profiles and links of the runs are passed in as values. Not here: the layout of a section
(templates/), reading and writing files (html).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from numalab.analysis import metrics
from numalab.analysis.beginning import prepared, restored
from numalab.analysis.verdict import hung, several_builds, spread
from numalab.model.case import Case, Expectation
from numalab.model.run import Run
from numalab.model.topology import Disk
from numalab.model.units import show_size
from numalab.model.values import Value
from numalab.model.verdict import Answer, Finding, Verdict
from numalab.report import charts, comparison, replication, section_charts, topology_diagram
from numalab.report.chart import ChartTable, Plot
from numalab.report.reference import Published
from numalab.report.section_charts import Gallery, Group, MeasuredBoot, MeasuredBoots, unique
from numalab.report.table import Block
from numalab.report.topology_diagram import Drawing
from numalab.runs import compatibility

SIGNS = "●◆■▲▼⬟★⬢"
"""charts.SYMBOLS as characters, for the legend."""


class PatchSummary(Value):
    """A patch of a kernel, from its header."""

    name: str
    subject: str
    mirrors: str
    moves: tuple[str, ...]
    undone: bool


class Kernel(Value):
    """A kernel as its recipe describes it; `unknown` says why there is no recipe."""

    description: str = ""
    source: str = ""
    patches: tuple[PatchSummary, ...] = ()
    unknown: str = ""


@dataclass(frozen=True, kw_only=True)
class Key:
    """A kernel's entry in the legend of a section."""

    name: str
    colour: str
    sign: str
    dashes: str
    boots: int
    release: str
    hash: str
    about: Kernel


@dataclass(frozen=True, kw_only=True)
class Section:
    """One case on one machine; or, with `case` None, runs of a workload that belong to no case."""

    id: str
    title: str
    machine: str
    case: Case | None
    caveat: str
    """What a reader must know of its measurements; '' under KVM."""
    times: str
    """What its times are worth; '' under KVM."""
    verdicts: Sequence[Verdict]
    effects: Sequence[Plot]
    doubts: Sequence[str]
    keys: Sequence[Key]
    tables: Sequence[Block]
    published: Sequence[ChartTable]
    metrics: Gallery
    over_time: Sequence[Group]
    profiles: Sequence[Group]
    drawing: Drawing
    facts: Sequence[tuple[str, Sequence[str]]]
    boots: MeasuredBoots
    """All boots in order, including broken ones."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """Facts outside the runs: kernels and published tables by name; `baseline` as in comparison.columns."""

    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    references: Mapping[str, Published] = field(default_factory=dict)
    baseline: str | None = None
    apart: bool = True
    """Whether runs of each hypervisor have a section of their own; not where they are forced together."""


def build(boots: Sequence[MeasuredBoot], verdicts: Sequence[Verdict], known: Known) -> list[Section]:
    """Sections in the order of their first boots. A verdict goes to the section of its runs."""
    by_id = {boot.run.id: boot for boot in boots}
    runs = [boot.run for boot in boots]
    several = known.apart and len(compatibility.by_hypervisor(runs)) > 1
    groups = together(runs, apart=known.apart)
    comparison.check_baseline(groups, known.baseline)
    return [
        _section(f"s{index}", [by_id[run.id] for run in group], verdicts, known, several=several)
        for index, group in enumerate(groups, 1)
    ]


def together(runs: Sequence[Run], *, apart: bool = True) -> list[list[Run]]:
    """Runs by section: of one case, or of one workload without a case, in one size on one machine, and, if
    `apart`, of one hypervisor."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    hosts = compatibility.by_hypervisor(runs) if apart else [runs]
    host = {run.id: str(number) for number, group in enumerate(hosts) for run in group}
    for run in runs:
        spec = run.guest.spec
        machine = (spec.topology_name, str(spec.topology.vcpus), str(spec.topology.memory), spec.runs_on)
        groups.setdefault(
            (run.place.case_name if run.place else "", run.workload, run.size, host[run.id], *machine), []
        ).append(run)
    return list(groups.values())


def _section(
    ident: str, boots: Sequence[MeasuredBoot], verdicts: Sequence[Verdict], known: Known, *, several: bool
) -> Section:
    """`several`: the report has more than one hypervisor, so that the section names its own."""
    runs, first = [boot.run for boot in boots], boots[0].run
    spec, case = first.guest.spec, next((boot.run.place.case for boot in boots if boot.run.place), None)
    whole = [run for run in runs if not run.error]
    columns = comparison.columns(whole, known.baseline) if whole else {}
    times = comparison.what_times_are(runs)
    names = {run.id: run.kernel for run in runs} | {
        run.id: name for name, members in columns.items() for run in members
    }
    order = unique([*columns, *names.values()])
    every = [(names[boot.run.id], boot) for boot in boots]
    shown = sorted(
        ((kernel, boot) for kernel, boot in every if not boot.run.error), key=lambda one: order.index(one[0])
    )
    expected = dict.fromkeys(
        (expectation.metric, expectation.phase) for expectation in (case.expect if case else ())
    )
    own = [verdict for verdict in verdicts if _belongs(verdict, runs)]
    gone = [name for name in (case.published if case else ()) if name not in known.references]
    doubts = [doubt for verdict in own for doubt in verdict.doubts] + [
        f"these runs differ in {line}" for line in compatibility.differences(whole)
    ]
    doubts += [f"not set beside reference/{name}.yml: this checkout has no such table" for name in gone]
    return Section(
        id=ident,
        title=first.place.case_name if first.place else first.workload,
        case=case,
        caveat=spec.caveat,
        times=times,
        machine=(
            f"{first.size} on {spec.topology_name}: {spec.topology.vcpus} vCPUs,"
            f" {show_size(spec.topology.memory)}, {spec.runs_on}"
            f"{f'; hypervisor {compatibility.hypervisor(runs)}' if several else ''}"
        ),
        verdicts=own,
        effects=[plot for verdict in own if (plot := charts.effects(verdict.findings))],
        doubts=unique(doubts),
        keys=[_key(index, name, every, known.kernels) for index, name in enumerate(order)],
        tables=comparison.compare(columns) if columns else (),
        published=_published(known.references, columns, case),
        metrics=section_charts.every_metric(shown, expected, times=times),
        over_time=section_charts.over_time(shown, [metric for metric, _ in expected]),
        profiles=section_charts.profiles(shown),
        drawing=topology_diagram.draw(spec.topology),
        facts=facts(runs),
        boots=every,
    )


def _belongs(verdict: Verdict, runs: Sequence[Run]) -> bool:
    """Whether a verdict is about these runs. One without unbroken boots is matched by case and machine."""
    if verdict.runs:
        return not {run.id for run in runs}.isdisjoint(verdict.runs)
    machine, spec = (
        (verdict.case_name, verdict.size, verdict.topology, verdict.accel, verdict.clock),
        runs[0].guest.spec,
    )
    return machine == (
        runs[0].place.case_name if runs[0].place else "",
        runs[0].size,
        spec.topology_name,
        spec.accel,
        spec.clock,
    )


def _published(
    references: Mapping[str, Published], columns: comparison.Columns, case: Case | None
) -> list[ChartTable]:
    """A case's published effects beside its boots: a table for each reference and pair of kernels."""
    mirrored = {name: references[name] for name in (case.published if case else ()) if name in references}
    if not mirrored or len(columns) < 2:
        return []
    rows = replication.beside(mirrored, columns, comparison.before(columns))
    tables = []
    for (name, before, after), mine in replication.grouped(rows).items():
        about = references[name]
        cells = tuple(
            (
                f"{row.row} (instruction time)" if row.instructions else row.row,
                replication.change(row.published),
                replication.change(row.ratio),
                replication.interval(row),
                f"{row.boots[0]} + {row.boots[1]}",
                str(row.agreement),
            )
            for row in mine
        )
        caption = (
            f"{about.author}, {about.date}, {about.machine}: {about.before} to {about.after}. Here: {before}"
            f" to {after}."
        )
        tables.append(
            ChartTable(
                caption=caption,
                head=(
                    "change of",
                    "published",
                    "here",
                    f"interval ({replication.levels(mine)})",
                    "boots",
                    "direction",
                ),
                rows=cells,
            )
        )
    return tables


def _key(index: int, name: str, boots: MeasuredBoots, kernels: Mapping[str, Kernel]) -> Key:
    mine = [boot.run for kernel, boot in boots if kernel == name]
    dashes = charts.DASHES[index % len(charts.DASHES)]
    return Key(
        name=name,
        colour=charts.COLOURS[index % len(charts.COLOURS)],
        sign=SIGNS[index % len(SIGNS)],
        boots=sum(not run.error for run in mine),
        dashes="" if dashes == "solid" else dashes.replace("px", ""),
        release=", ".join(unique(run.release for run in mine)),
        hash=", ".join(unique(run.guest.kernel_hash for run in mine)),
        about=kernels.get(mine[0].kernel, Kernel()),
    )


def facts(runs: Sequence[Run]) -> list[tuple[str, Sequence[str]]]:
    """The facts about host, guest and kernels as (title, values), with several values where runs differ."""
    hosts = [run.host for run in runs]
    specs = [run.guest.spec for run in runs]
    # A guest from a ready state is not booted: no seed reaches it.
    seeded = [
        run.place for run in runs if run.place and run.place.seed is not None and not run.guest.ready_state
    ]
    titled: list[tuple[str, Sequence[str]]] = [
        (
            "Host",
            unique(
                ", ".join(
                    f"{key} {host[key]}" for key in ("machine", "cpu", "cpus", "kernel") if host.get(key)
                )
                for host in hosts
            ),
        ),
        (
            "Hypervisor",
            unique(
                ", ".join(f"{key} {host[key]}" for key in ("qemu", "libvirt", "uri") if host.get(key))
                for host in hosts
            ),
        ),
        (
            "Accelerator",
            unique(
                f"{run.guest.spec.runs_on}: {run.guest.accel_reason or 'no reason is recorded'}"
                for run in runs
            ),
        ),
        ("Seed", unique(str(place.seed) for place in seeded)),
        ("At a time", unique(f"{place.side_by_side} at most" for place in seeded)),
        ("Spread", unique([spread(runs)])),
        ("Builds", unique([several_builds(runs)])),
        ("Restored", unique([restored(runs)])),
        ("Prepared", unique([prepared(runs)])),
        ("Hung", unique([hung(runs)])),
        ("Topology", unique(f"{spec.topology_name}: {spec.topology.description}" for spec in specs)),
        ("Disks", unique(_disk(disk) for spec in specs for disk in spec.topology.disks)),
        ("Image", unique(f"{run.guest.image} {run.guest.image_id}" for run in runs)),
        (
            "Settings",
            unique(
                ", ".join(f"{key} {value}" for key, value in sorted(run.settings.items())) for run in runs
            ),
        ),
        (
            "Parameters",
            unique(", ".join(f"{key} {value}" for key, value in run.params.items()) for run in runs),
        ),
    ]
    return [(title, values) for title, values in titled if values]


def _disk(disk: Disk) -> str:
    slow = f", {disk.mibs_per_second} MiB/s" if disk.mibs_per_second else ""
    return f"{disk.name} {show_size(disk.size)}, {disk.bus}{slow}"


def expected_change(expectation: Expectation) -> str:
    """An expectation in a few words."""
    words = [str(expectation.direction)]
    odds = " in odds" if metrics.kind(expectation.metric) is metrics.Kind.SHARE else ""
    words += [f"by {expectation.by:g} or more{odds}"] if expectation.by > 1 else []
    words += (
        [f"to {expectation.to:g} or {'less' if expectation.direction == 'falls' else 'more'}"]
        if expectation.to is not None
        else []
    )
    return ", ".join(words)


def deciding(verdict: Verdict) -> list[Finding]:
    """The deciding findings of a verdict, those that do not hold first."""
    order = [Answer.DOES_NOT_HOLD, Answer.CANNOT_TELL, Answer.HOLDS]
    return sorted(
        (finding for finding in verdict.findings if finding.decides),
        key=lambda finding: order.index(finding.answer),
    )
