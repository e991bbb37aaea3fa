"""Runs and verdicts -> the sections of a report: what stands side by side, which plots, which facts.

Pure: what lies beside the runs on disk (samples, profiles, links) comes with them as values. How a section
looks is the templates'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numalab import comparable, counters, drawing, figures, folded, metrics, moments, tables
from numalab.blocks import Block
from numalab.case import Answer, Case, Expectation, Finding, Verdict
from numalab.drawing import Drawing
from numalab.folded import Stacks
from numalab.model import Accel, Topology, Value, show_size
from numalab.moments import Sample
from numalab.plot import Plot
from numalab.runs import Run

NUMA = {key: title for title, key in counters.NUMA_ROWS}
JUDGED = "Judged"
GROUPS = (
    ("Times", tuple(metrics.TIMES)),
    ("NUMA balancing", (*NUMA, "migrated_per_hint_fault", "faults_per_hint_fault", "hint_faults_per_pte_update", "autonuma_cost")),
    ("Reclaim", ("nr_vmscan_write", "nr_vmscan_immediate_reclaim", *(name for name in metrics.DERIVED if re.match("kswapd_|direct_|vmscan_", name)))),
)
"""Metrics of every section, in the seeds' order; the other derived ones and what a run tells beside follow them."""
WATCHED = (
    "numa_pte_updates", "numa_hint_faults", "numa_hint_faults_local", "numa_pages_migrated", "pgmigrate_fail", "pgfault", "pgscan_kswapd", "pgsteal_kswapd",
    "pgscan_direct", "nr_vmscan_write", "nr_vmscan_immediate_reclaim", "nr_dirty", "nr_writeback",
)
"""Counters of /proc/vmstat that are drawn over time where they move, beside those that the case judges."""


class Link(Value):
    """A file in the report, relative to its folder; its size for a person."""

    text: str
    href: str
    size: str


class Patch(Value):
    """A patch of a kernel, as its header has it."""

    name: str
    subject: str
    mirrors: str
    moves: tuple[str, ...]
    undone: bool


class Kernel(Value):
    """A kernel as its recipe tells of it; `unknown` says why there is no recipe."""

    description: str = ""
    source: str = ""
    patches: tuple[Patch, ...] = ()
    unknown: str = ""


@dataclass(frozen=True, kw_only=True)
class Boot:
    """A run with what lies beside it: samples and profiles by phase, files in the report, files that were too large for it."""

    run: Run
    samples: Mapping[str, Sequence[Sample]]
    stacks: Mapping[str, Stacks]
    links: Sequence[Link] = ()
    left: Sequence[str] = ()
    number: int
    """From 1, in the order in which its experiment's guests were booted."""

    @property
    def name(self) -> str:
        """As plots and tables call it."""
        return f"boot {self.number}"


@dataclass(frozen=True, kw_only=True)
class Key:
    """A kernel in a section's legend."""

    name: str
    colour: str
    sign: str
    dashes: str
    boots: int
    release: str
    hash: str
    about: Kernel


@dataclass(frozen=True, kw_only=True)
class Group:
    """Plots that stand together."""

    title: str
    plots: Sequence[Plot]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One case on one machine; or runs of a workload that belong to no case (`case` None)."""

    id: str
    title: str
    machine: str
    case: Case | None
    emulated: bool
    verdicts: Sequence[Verdict]
    effects: Sequence[Plot]
    doubts: Sequence[str]
    keys: Sequence[Key]
    tables: Sequence[Block]
    groups: Sequence[Group]
    absent: Sequence[str]
    zero: Sequence[str]
    """Metrics that no boot has, and those that are 0 in all: told, not drawn."""
    over_time: Sequence[Group]
    profiles: Sequence[Group]
    drawing: Drawing
    facts: Sequence[tuple[str, Sequence[str]]]
    boots: Sequence[tuple[str, Boot]]
    """Kernel as the legend has it, boot; broken ones too."""


SIGNS = "●◆■▲▼⬟★⬢"
"""figures.SYMBOLS as characters, for the legend."""


def build(boots: Sequence[Boot], verdicts: Sequence[Verdict], kernels: Mapping[str, Kernel], *, baseline: str | None = None) -> list[Section]:
    """Sections in the order of their first boots. `kernels` by name; a verdict goes where its runs are; `baseline` as in tables.columns."""
    places: dict[tuple[str, ...], list[Boot]] = {}
    for boot in boots:
        places.setdefault(_place(boot.run), []).append(boot)
    return [_section(f"s{index}", group, verdicts, kernels, baseline) for index, group in enumerate(places.values(), 1)]


def _place(run: Run) -> tuple[str, ...]:
    """What runs of one section share: nobody would lay others side by side."""
    spec = run.guest["spec"]
    shape = {key: value for key, value in spec["topology"].items() if key not in comparable.NO_PART}
    return (run.place.case_name if run.place else "", run.workload, run.size, spec["topology_name"], str(shape), spec["accel"])


def _section(ident: str, boots: Sequence[Boot], verdicts: Sequence[Verdict], kernels: Mapping[str, Kernel], baseline: str | None) -> Section:
    ids = {boot.run.id for boot in boots}
    own = [verdict for verdict in verdicts if ids & set(verdict.runs)]
    whole = [boot for boot in boots if not boot.run.error]
    columns = tables.columns([boot.run for boot in whole], baseline) if whole else {}
    names = {run.id: name for name, runs in columns.items() for run in runs}
    names |= {boot.run.id: tables.kernel(boot.run) for boot in boots if boot.run.error}
    order = list(dict.fromkeys([*columns, *names.values()]))
    first = boots[0].run
    spec = first.guest["spec"]
    case = next((boot.run.place.case for boot in boots if boot.run.place), None)
    expected = list(dict.fromkeys((e.metric, e.phase) for e in (case.expect if case else ())))
    groups, absent, zero = _metrics(whole, names, order, expected, emulated=spec["accel"] == Accel.TCG)
    differing = comparable.differences([boot.run for boot in whole])
    return Section(
        id=ident, title=first.place.case_name if first.place else first.workload, case=case, emulated=spec["accel"] == Accel.TCG,
        machine=f"{first.size} on {spec['topology_name']}: {spec['topology']['vcpus']} vCPUs, {spec['topology']['memory']}, {spec['accel']}",
        verdicts=own, effects=[plot for verdict in own if (plot := figures.effects(verdict.findings))],
        doubts=[*dict.fromkeys(doubt for verdict in own for doubt in verdict.doubts), *(f"these runs differ in {line}" for line in differing)],
        keys=[_key(index, name, [boot.run for boot in whole if names[boot.run.id] == name], [boot.run for boot in boots if names[boot.run.id] == name], kernels)
              for index, name in enumerate(order)],
        tables=tables.compare(columns) if columns else (), groups=groups, absent=absent, zero=zero,
        over_time=_over_time(whole, names, order, [metric for metric, _ in expected]), profiles=_profiles(whole, names, order),
        drawing=drawing.draw(Topology.model_validate(spec["topology"])), facts=facts([boot.run for boot in boots]),
        boots=[(names[boot.run.id], boot) for boot in boots],
    )


def _key(index: int, name: str, whole: Sequence[Run], every: Sequence[Run], kernels: Mapping[str, Kernel]) -> Key:
    dashes = figures.DASHES[index % len(figures.DASHES)]
    return Key(
        name=name, colour=figures.COLOURS[index % len(figures.COLOURS)], sign=SIGNS[index % len(SIGNS)], boots=len(whole),
        dashes="" if dashes == "solid" else dashes.replace("px", ""), release=", ".join(unique(run.release for run in every)),
        hash=", ".join(unique(str(run.guest.get("kernel_hash", "")) for run in every)), about=kernels.get(tables.kernel(every[0]), Kernel()),
    )


def _metrics(
    boots: Sequence[Boot], names: Mapping[str, str], order: Sequence[str], expected: Sequence[tuple[str, str]], *, emulated: bool
) -> tuple[list[Group], list[str], list[str]]:
    """A plot of every metric, and the names of those that are absent and of those that are 0 everywhere.

    First those that are judged, drawn even at 0, then GROUPS, then all others that any boot has.
    """
    runs = [boot.run for boot in boots]
    ran = unique(result.phase.name for run in runs for result in run.phases if result.phase.measured)
    known = {name for _, group in GROUPS for name in group}
    traced = unique(f"trace:{event}" for run in runs for result in run.phases for event in result.counters.get("trace", {}))
    told = unique(f"output:{name}" for run in runs for result in run.phases for name in result.output)
    rest = (*GROUPS, ("Other", tuple(name for name in metrics.DERIVED if name not in known)), ("Tracepoints", traced), ("Told by the workload", told))
    wanted = [(JUDGED, [(name, [pattern]) for name, pattern in expected]), *((title, [(name, ran) for name in group]) for title, group in rest)]
    groups, absent, zero = [], [], []
    drawn: set[tuple[str, ...]] = set()
    for title, asked in wanted:
        plots = []
        for name, patterns in asked:
            values = {pattern: {kernel: _values(boots, names, kernel, name, pattern) for kernel in order} for pattern in patterns}
            every = [value for by in values.values() for found in by.values() for _, value in found]
            if title != JUDGED and (name, *patterns) in drawn:
                continue
            if not every:
                absent.append(name)
            elif not any(every) and title != JUDGED:
                zero.append(name)
            else:
                drawn.add((name, *patterns))
                meaning = metrics.describe(name)
                words = [name] if name in NUMA else []
                words += [meaning.about] if name in metrics.TIMES or name in metrics.DERIVED else []
                words += ["emulated: no evidence"] if emulated and meaning.kind is metrics.Kind.TIME else []
                about = "; ".join(words)
                plots.append(figures.dots(NUMA.get(name, name), meaning.unit, values, order, about=about))
        if found := [plot for plot in plots if plot]:
            groups.append(Group(title=title, plots=found))
    return groups, unique(absent), unique(zero)


def _values(boots: Sequence[Boot], names: Mapping[str, str], kernel: str, metric: str, pattern: str) -> figures.Values:
    """A kernel's values, one a boot that has it."""
    found = [(boot.name, metrics.value(boot.run, metric, pattern)) for boot in boots if names[boot.run.id] == kernel]
    return [(name, value) for name, value in found if value is not None]


def _over_time(boots: Sequence[Boot], names: Mapping[str, str], order: Sequence[str], judged: Sequence[str]) -> list[Group]:
    """By phase: watched and judged counters, then each boot's pages by node. Only what was sampled."""
    groups = []
    for phase in unique(name for boot in boots for name in boot.samples):
        ordered = sorted(boots, key=lambda boot: order.index(names[boot.run.id]))
        sampled = [(boot.name, names[boot.run.id], boot.samples[phase]) for boot in ordered if boot.samples.get(phase)]
        plots = []
        for counter in unique((*judged, *WATCHED)):
            lines = [(boot, kernel, line) for boot, kernel, found in sampled if (line := moments.series(found, counter))]
            plots.append(figures.over_time(NUMA.get(counter, counter), "pages" if moments.level(counter) else "", lines, order))
        nodes = [(boot, kernel, pages) for boot, kernel, found in sampled if (pages := moments.pages(found))]
        most = max((value for *_, pages in nodes for line in pages.values() for _, value in line), default=0.0)
        maps = [figures.heat(f"{kernel}, {boot}", pages, most) for boot, kernel, pages in nodes]
        for title, drawn in ((f"Phase {phase}", plots), (f"Phase {phase}: memory in use by node", maps)):
            if found := [plot for plot in drawn if plot]:
                groups.append(Group(title=title, plots=found))
    return groups


def _profiles(boots: Sequence[Boot], names: Mapping[str, str], order: Sequence[str]) -> list[Group]:
    """By phase a flame graph of each kernel, its boots' samples added up."""
    groups = []
    for phase in unique(name for boot in boots for name in boot.stacks):
        plots = []
        for kernel in order:
            profiles = [boot.stacks[phase] for boot in boots if names[boot.run.id] == kernel and phase in boot.stacks]
            plots.append(figures.flame(f"{kernel}, {len(profiles)} boot{'s' * (len(profiles) != 1)}", folded.merged(profiles)))
        if found := [plot for plot in plots if plot]:
            groups.append(Group(title=phase, plots=found))
    return groups


def facts(runs: Sequence[Run]) -> list[tuple[str, Sequence[str]]]:
    """What was run on what, as (title, values): more than one value where the runs differ."""
    hosts = [run.host for run in runs]
    specs = [run.guest["spec"] for run in runs]
    found: list[tuple[str, Sequence[str]]] = [
        ("Host", unique(", ".join(f"{key} {host[key]}" for key in ("machine", "cpu", "cpus", "kernel") if host.get(key)) for host in hosts)),
        ("Hypervisor", unique(", ".join(f"{key} {host[key]}" for key in ("qemu", "libvirt", "uri") if host.get(key)) for host in hosts)),
        ("Accelerator", unique(f"{spec['accel']}: {run.guest.get('accel_reason') or 'no reason is recorded'}" for run, spec in zip(runs, specs, strict=True))),
        ("Topology", unique(f"{spec['topology_name']}: {spec['topology']['description']}" for spec in specs)),
        ("Disks", unique(_disk(disk) for spec in specs for disk in spec["topology"].get("disks", ()))),
        ("Image", unique(f"{run.guest.get('image', '')} {run.guest.get('image_id', '')}".strip() for run in runs)),
        ("Settings", unique(f"{key}={value}" for run in runs for key, value in sorted(run.settings.items()))),
        ("Parameters", unique(f"{key}={value}" for run in runs for key, value in run.params.items())),
    ]
    return [(title, values) for title, values in found if values]


def _disk(disk: Mapping[str, Any]) -> str:
    slow = f", {disk['mibs_per_second']} MiB/s" if disk.get("mibs_per_second") else ""
    size = disk["size"]
    return f"{disk['name']} {show_size(size) if isinstance(size, int) else size}, {disk.get('bus', 'virtio')}{slow}"


def asked(expectation: Expectation) -> str:
    """What an expectation asks for, in a few words."""
    words = [str(expectation.direction)]
    words += [f"by {expectation.by:g} or more"] if expectation.by > 1 else []
    words += [f"to {expectation.to:g} or {'less' if expectation.direction == 'falls' else 'more'}"] if expectation.to is not None else []
    return ", ".join(words)


def deciding(verdict: Verdict) -> list[Finding]:
    """The findings that a verdict stands on, those that do not hold first."""
    order = [Answer.DOES_NOT_HOLD, Answer.CANNOT_TELL, Answer.HOLDS]
    return sorted((finding for finding in verdict.findings if finding.decides), key=lambda finding: order.index(finding.answer))


def unique(values: Iterable[str]) -> list[str]:
    """Each once, in order of appearance, the empty ones left out."""
    return [value for value in dict.fromkeys(values) if value]
