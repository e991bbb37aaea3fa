# SPDX-License-Identifier: GPL-2.0-only
"""Runs of an experiment -> a verdict; and whether more boots could make it clearer.

This module decides which runs count, and what a reader should doubt. Broken runs, times under emulation (but
see metrics.no_evidence), and effects that the kernel's release does not have are no evidence. Not here: what
counts as an effect (expectation), booting (experiment).

With `--boots auto` an experiment is judged at several looks, which are fixed beforehand (`looks`) and counted
in the runs (Place.looks). The looks share the allowed error, more of it to later ones (`errors`), and
intervals are widened to match, so that they hold at all looks together (Bonferroni; repeated confidence
intervals, Jennison and Turnbull 1989). Looking again until the answer fits would find effects where there are
none; benchmarks/judge.py measures how often, with and without this correction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from numalab.analysis import beginning, expectation, kernel_state, metrics
from numalab.analysis.calibration import Calibration, inside
from numalab.analysis.effect import LEAST_BOOTS, LEAST_ON_HOST, too_few
from numalab.core.errors import InputError
from numalab.model import order
from numalab.model.case import Arm, Case, CaseSize, Expectation, Place
from numalab.model.run import SHUFFLED, PhaseResult, Run
from numalab.model.values import jsonable
from numalab.model.verdict import Answer, Finding, Grade, Verdict
from numalab.runs import compatibility
from numalab.runs.compatibility import Traits

KEPT = 0.1
"""The share of the processor time that a guest asks for which other programs may take from it unmentioned;
where that is not known, the share of the host's processor time that they may take."""
STEP = 1.5
"""The factor from one look to the next: 3, 5 and 8 boots of each kernel."""
UNBOUND = "the guest is bound to none of its nodes and CPUs: --pin"
DESCRIPTIVE = ("description", "source", "published", "also", "notes")
"""The parts of a case that only describe it. Runs may differ in them."""

MOVED = {
    # specjbb.py
    "ecf4054b393eb69b5baf0a5ee002c6e066033ba37605b18ad8ccb09685f68eda": (
        "d8223ef994b8ca9d89fbca0f1776908c143e2614086009b49ca75c0431264fe7"
    ),
}
"""SHA-256 of inputs -> of the same files later. Only their imports changed, when the package got rooms;
so runs with either may be judged together. Remove an entry when its file changes again."""

Sides = Mapping[Arm, Sequence[Run]]


def verdict(
    runs: Sequence[Run],
    *,
    calibration: Calibration | None = None,
    configurations: kernel_state.Configurations | None = None,
    force: bool = False,
) -> Verdict:
    """A case judged from all boots of an experiment; each run's place has its arm and the expectations.

    Broken runs are named in `doubts` and do not count. InputError for runs that belong to no case, and for
    runs that differ in more than the two kernels, unless `force` turns that into a doubt. `configurations`
    are those of the kernels, as far as they are known: with them a doubt names the options that differ.
    """
    every = sorted(
        {run.id: run for run in runs}.values(), key=lambda run: (run.place.boot if run.place else 0, run.id)
    )
    if not every:
        raise InputError("there is no run to judge")
    sound = [run for run in every if not run.error]
    unlike = _unlike(every, sound)
    whole = _samples(sound)
    if unlike and not force:
        raise InputError(
            f"these runs are not comparable: {'; '.join(unlike)}: leave some out, or force it", field="force"
        )
    first, spec = (whole or every)[0], (whole or every)[0].guest.spec
    place = first.place
    assert place is not None
    sides = {arm: _side(whole, arm) for arm in Arm}
    findings = tuple(
        expectation.together([_measured(expected, sides) for expected in place.case.expect], error(every))
    )
    named = {arm: [run.kernel for run in _side(every, arm)] for arm in Arm}
    return Verdict(
        case_name=place.case_name,
        size=first.size,
        topology=spec.topology_name,
        accel=spec.accel.value,
        clock=spec.clock,
        before=_name(named, Arm.BEFORE, place.case),
        after=_name(named, Arm.AFTER, place.case),
        boots=(len(sides[Arm.BEFORE]), len(sides[Arm.AFTER])),
        answer=(answer := overall(findings)),
        grade=_grade(answer, findings),
        findings=findings,
        runs=tuple(run.id for run in whole),
        varied="; ".join(filter(None, (spread(whole), several_builds(whole), _varied(whole)))),
        doubts=tuple(
            map(
                _line,
                [
                    *(f"forced, though not comparable: {line}" for line in unlike),
                    *_about_runs(every, sides),
                    *_about_order(whole, findings),
                    *kernel_state.doubts(sides, configurations or {}),
                    *_about_values(findings, sides),
                    *_about_builds(findings, whole),
                    *_about_thresholds(first, sides, calibration),
                ],
            )
        ),
    )


def overall(findings: Sequence[Finding]) -> Answer:
    """A case's answer: it holds when all deciding findings hold, and does not hold when one does not."""
    answers = {finding.answer for finding in findings if finding.decides}
    if Answer.DOES_NOT_HOLD in answers:
        return Answer.DOES_NOT_HOLD
    return Answer.HOLDS if answers == {Answer.HOLDS} else Answer.CANNOT_TELL


def _grade(answer: Answer, findings: Sequence[Finding]) -> Grade | None:
    """A case's grade, from the deciding findings with the case's answer."""
    grades = {finding.grade for finding in findings if finding.decides and finding.answer is answer}
    if answer is Answer.HOLDS:
        return Grade.SIZE_OPEN if Grade.SIZE_OPEN in grades else None
    return grades.pop() if len(grades) == 1 else None


def looks(size: CaseSize) -> tuple[int, ...]:
    """Boots of each kernel at which `--boots auto` judges, in order; fixed before the first boot."""
    boots = [max(size.boots, LEAST_BOOTS)]
    while boots[-1] < size.most_boots:
        boots.append(min(math.ceil(boots[-1] * STEP), size.most_boots))
    return tuple(boots)


def errors(plan: Sequence[int]) -> list[float]:
    """The error that each look of `looks` may make; together expectation.ALPHA.

    Of n boots in the end, ALPHA (boots / n)² is spent until each look (Kim and DeMets 1987). Early looks can
    tell little anyway; of evenly spaced ones the last, which decides most often, keeps most of it.
    """
    spent = [(boots / plan[-1]) ** 2 for boots in plan]
    return [expectation.ALPHA * (now - before) for before, now in pairwise([0.0, *spent])]


def error(runs: Sequence[Run]) -> float:
    """The error that a judgement of an experiment's runs may make."""
    run, place = max(((run, run.place) for run in runs if run.place), key=lambda pair: pair[1].looks)
    plan = looks(place.case.sizes[run.size])
    if place.looks != len(plan):  # one look, or those of a lab with another plan
        return expectation.ALPHA / place.looks
    counts = Counter((one.kernel, one.place.arm) for one in runs if one.place and not one.error)
    fewest = min(counts.values(), default=0)
    return [part for boots, part in zip(plan, errors(plan), strict=True) if boots <= max(fewest, plan[0])][-1]


def enough(judged: Verdict) -> bool:
    """Whether more boots are of no use: the answer is clear, or no unclear finding can ever be tested."""
    open_ones = [
        finding for finding in judged.findings if finding.decides and finding.answer is Answer.CANNOT_TELL
    ]
    return judged.answer is not Answer.CANNOT_TELL or (
        min(judged.boots) >= LEAST_BOOTS and not any(map(_testable, open_ones))
    )


def _testable(finding: Finding) -> bool:
    """Whether there is a test, or more boots would make one: some boots of each kernel have a value, but too
    few have."""
    fewest = min(len(finding.before), len(finding.after))
    return finding.p is not None or 0 < fewest < LEAST_BOOTS


def next_look(judged: Verdict, plan: Sequence[int]) -> int | None:
    """Boots of each kernel for the next look, from `looks`; None when they are enough or the plan has ended.

    A broken boot is not in `judged.boots`: a caller that repeats it needs a limit of its own.
    """
    return None if enough(judged) else next((boots for boots in plan if boots > min(judged.boots)), None)


def unfinished(runs: Sequence[Run], judged: Verdict) -> list[str]:
    """A line for each experiment that lacks planned boots. `runs` are all of its runs, of every kernel."""
    lines = []
    experiments: dict[str, list[tuple[Run, Place]]] = {}
    for run in runs:
        if run.place:
            experiments.setdefault(run.place.experiment, []).append((run, run.place))
    for name, boots in experiments.items():
        planned = max(place.planned or 0 for _, place in boots)
        counted = {place.boot for run, place in boots if not run.error}
        run, place = boots[-1]
        if len(counted) < planned:
            lines.append(
                f"experiment {name} is unfinished: {len(counted)} of {planned} planned boots count; "
                "it was cut short, still goes on, or some were left out"
            )
        elif planned and place.looks > 1 and next_look(judged, plan := looks(place.case.sizes[run.size])):
            lines.append(
                f"experiment {name} is unfinished: unclear after {min(judged.boots)} boots of each kernel,"
                f" and it was to go on to {plan[-1]}"
            )
    return [_line(line) for line in lines]


def _side(runs: Sequence[Run], arm: Arm) -> list[Run]:
    return [run for run in runs if run.place and run.place.arm is arm]


def _unlike(every: Sequence[Run], whole: Sequence[Run]) -> list[str]:
    """A line for each way in which runs differ and should not."""
    if strays := [run.id for run in every if run.place is None]:
        raise InputError(
            f"run {strays[0]} belongs to no case: lab.py run CASE makes runs that do, lab.py compare sets"
            " others side by side"
        )
    kernels = [
        f"kernel {arm}, {line}"
        for arm in Arm
        for runs in _by_build(_side(whole, arm)).values()
        for line in compatibility.differences(runs, _kernel)
    ]
    alike = [
        *compatibility.differences(whole),
        *compatibility.differences(whole, _inputs),
        *compatibility.differences(whole, _of_several_builds),
        *kernels,
    ]
    return [*alike, *_thin_hosts(whole)]


def _thin_hosts(runs: Sequence[Run]) -> list[str]:
    """A line for each host of a spread experiment that has too few boots to be a block in the statistics."""
    boots = hosts(runs)
    thin, least = too_few(boots)
    if least:
        before, after = (sum(side) for side in zip(*boots.values(), strict=True))
        return [
            f"{len(boots)} hosts have {before} and {after} boots, and {least} of each kernel are the least"
        ]
    return [
        f"host {name} has {before} and {after} boots, and {LEAST_ON_HOST} of each kernel are the least"
        for name, (before, after) in thin.items()
    ]


def hosts(runs: Sequence[Run]) -> dict[str, tuple[int, int]]:
    """Host -> its boots before and after, of the unbroken runs of an experiment that was spread over hosts;
    empty for others."""
    counts = Counter((run.place.block, run.place.arm) for run in runs if run.place and not run.error)
    names = sorted({name for name, _ in counts if name})
    return {name: (counts[name, Arm.BEFORE], counts[name, Arm.AFTER]) for name in names}


def spread(runs: Sequence[Run]) -> str:
    """Over which hosts an experiment was spread, in words; '' for one that was not."""
    blocks = hosts(runs)
    if not blocks:
        return ""
    boots = ", ".join(f"{name} {before} and {after}" for name, (before, after) in blocks.items())
    return (
        f"spread over {len(blocks)} host{'s' * (len(blocks) > 1)}, each a block: boots on {boots}; the effect"
        " is that within hosts"
    )


def _by_build(runs: Iterable[Run]) -> dict[int, list[Run]]:
    """The runs of each of a kernel's builds, by its number; of one build, all under 0."""
    of_build: dict[int, list[Run]] = {}
    for run in runs:
        of_build.setdefault(run.place.build if run.place else 0, []).append(run)
    return of_build


def builds(runs: Sequence[Run]) -> tuple[int, int]:
    """How many builds of each kernel the unbroken runs have that differ in layout only; (0, 0) where each
    kernel is one build."""
    numbers = [_by_build(run for run in _side(runs, arm) if not run.error) for arm in Arm]
    before, after = (sum(map(bool, of)) for of in numbers)
    return before, after


def several_builds(runs: Sequence[Run]) -> str:
    """How many builds each kernel had, in words; '' of one."""
    before, after = builds(runs)
    if not before and not after:
        return ""
    return (
        f"{before} and {after} builds of the kernels, which differ in layout only: each is one sample, the"
        " mean of its boots"
    )


def _of_several_builds(run: Run) -> Traits:
    """The trait that runs of one build and those of one of several may not be judged together."""
    return {"builds of each kernel": {"": "several" if run.place and run.place.build else "one"}}


def _inputs(run: Run) -> Traits:
    """Traits that compared runs may differ in, but judged runs may not."""
    assert run.place is not None
    case = {key: value for key, value in jsonable(run.place.case).items() if key not in DESCRIPTIVE}
    inputs = {name: MOVED.get(digest, digest) for name, digest in run.inputs.items()}
    return {"case": {"": run.place.case_name, **case}, "image": {"": run.guest.image_id}, "inputs": inputs}


def _kernel(run: Run) -> Traits:
    return {"name": {"": run.kernel}, "build": {"": run.guest.kernel_hash}, "release": {"": run.release}}


def _judged_by(sides: Sides) -> tuple[str, list[Run]]:
    """What says which expectations decide: the release of the kernel "after", and all runs."""
    runs = [run for side in sides.values() for run in side]
    return next((run.release for run in sides[Arm.AFTER]), ""), runs


def _measured(expected: Expectation, sides: Sides) -> expectation.MeasuredExpectation:
    """An expectation with the values of the boots that have one."""
    values = metrics.placed(sides[Arm.BEFORE], sides[Arm.AFTER], expected.metric, expected.phase)
    kind = metrics.kind(expected.metric)
    release, runs = _judged_by(sides)
    unfit = metrics.no_evidence(expected.metric, expected.cost, runs)
    foreign = (
        f"expected of releases {expected.releases}, this is {release}"
        if release and not expected.applies(release)
        else ""
    )
    return expectation.with_values(
        expected,
        values.before,
        values.after,
        kind,
        obstacle=unfit,
        silent="emulated" if unfit else foreign,
        label="instruction time" if metrics.instruction_time(expected.metric, runs) and not unfit else "",
        positions=values.positions,
        hosts=values.hosts,
        whole=values.whole,
    )


UNKNOWN = "a kernel without a run"
"""The name of a kernel that no run tells: an experiment ended before its first boot."""


def _name(named: Mapping[Arm, Sequence[str]], arm: Arm, case: Case) -> str:
    """The kernel of an arm. One that has no run yet is the case's own where the other arm's is."""
    own = {Arm.BEFORE: case.before, Arm.AFTER: case.after}
    if named[arm]:
        return named[arm][0]
    return own[arm] if all(names[0] == own[other] for other, names in named.items() if names) else UNKNOWN


def busy(run: Run, releases: Collection[str]) -> str:
    """Why a boot should be taken again: other programs took more than KEPT of the processor time that its
    guest asked for in a phase that decides on one of these releases, of the kernels "after" ('': any). ''
    for no reason, and where that is not known.

    It looks at nothing that the guest counted. But what the host does for the guest outside of QEMU, such as
    writing back its disks, is work of other programs too.
    """
    if run.virtual or run.error or run.place is None:
        return ""
    phases = [expected.phase for expected in expectation.deciding(run.place.case, releases, [run])]
    deciding = [
        one
        for one in run.measured
        if one.host_kept is not None and any(fnmatchcase(one.phase.name, phase) for phase in phases)
    ]
    share, words, name = _lost(deciding)
    return f"phase {name}: {words}" if share > KEPT else ""


def _about_runs(every: Sequence[Run], sides: Sides) -> list[str]:
    """Doubts about boots that broke, warned or were repeated, and experiments that were not interleaved."""
    first = {run.place.instead_of: run for run in every if run.place and run.place.instead_of}
    lines = [
        f"run {run.id} broke and is not counted: {run.error}"
        for run in every
        if run.error and run.id not in first
    ]
    if first:
        arms = Counter(run.place.arm for run in first.values() if run.place)
        lines.append(
            f"boots taken again: {', '.join(f'{arms[arm]} {arm}' for arm in Arm)}: other programs took more"
            f" than {KEPT:.0%} of the processor time that the guest asked for in {', '.join(first)}"
        )
    if again := hung(every):
        lines.append(
            f"{again}, before {', '.join(run.id for run in every if run.guest.hung)}: a kernel that hangs"
            " looks the same"
        )
    if restored := beginning.restored(every):
        lines.append(f"{restored}; so they scatter less than boots do, and intervals are too narrow")
    if prepared := beginning.prepared(every):
        lines.append(f"{prepared}; what came out on these disks is one sample")
    for run in every:
        if run.console_warnings and (not run.error or run.id in first):
            lines.append(
                f"run {run.id}: {len(run.console_warnings)} warnings on its console, the first:"
                f" {run.console_warnings[0]}"
            )
    lines += _about_host(every)
    lines += _about_seeds(every)
    experiments = {run.place.experiment for run in every if run.place}
    if len(experiments) > 1:
        lines.append(f"the boots are of {len(experiments)} experiments, not interleaved with each other")
    order = [[run.place.boot for run in sides[arm] if run.place] for arm in Arm]
    if (
        len(experiments) == 1
        and min(map(len, order)) > 1
        and (max(order[0]) < min(order[1]) or max(order[1]) < min(order[0]))
    ):
        lines.append(
            "the boots are not interleaved: what changed on the host between them looks like a change of the"
            " kernel"
        )
    return lines


def _varied(runs: Sequence[Run]) -> str:
    """What the lab varied between these boots, by which seeds."""
    seeds = dict.fromkeys(
        run.place.seed
        for run in runs
        if run.place and run.place.seed is not None and run.guest.spec.seed is not None
    )
    if not seeds:
        return ""
    shuffled = all(run.kernel_facts.get(SHUFFLED) == "Y" for run in runs)
    addresses = {run.kernel_address for run in runs if run.kernel_address}
    parts = (
        "what RDRAND gives" * all(run.emulated for run in runs),
        "where the kernel lies (KASLR)" * (len(addresses) > 1),
        "the order of free pages" * shuffled,
    )
    *most, last = [*filter(None, parts), "the start of each measured phase"]
    words = f"{', '.join(most)}, and {last}" if most else last
    return f"varied from boot to boot: {words} (seed {', '.join(map(str, seeds))})"


def _samples(runs: Iterable[Run]) -> list[Run]:
    """The runs without those on a virtual clock that have an earlier one's kernel and seed: what the seed
    decides is alike in them, though the host's time makes them differ (docs/clock.md)."""
    seen: set[tuple[str, int]] = set()
    samples = []
    for run in runs:
        seed = run.guest.spec.seed if run.virtual else None
        if seed is None or (run.kernel, seed) not in seen:
            samples.append(run)
        if seed is not None:
            seen.add((run.kernel, seed))
    return samples


def _about_seeds(every: Sequence[Run]) -> list[str]:
    """A doubt when boots were left out that have the seed of another one."""
    whole = [run for run in every if not run.error]
    again = len(whole) - len(_samples(whole))
    return [f"{again} of {len(whole)} boots are left out: another one of the kernel has their seed"] * (
        again > 0
    )


def _about_host(every: Sequence[Run]) -> list[str]:
    """A doubt when other programs kept the host busy while a guest followed the host's clock."""
    losses = {run.id: _lost(run.measured) for run in every if not run.virtual and not run.error}
    shares = {ident: lost for ident, lost in losses.items() if lost[0] > KEPT}
    if not shares:
        return []
    worst = max(shares, key=lambda ident: shares[ident])
    return [
        f"the host was busy with something else in {len(shares)} of {len(losses)} boots, most in {worst}:"
        f" {shares[worst][1]}"
    ]


def _about_order(runs: Sequence[Run], findings: Sequence[Finding]) -> list[str]:
    """A doubt when times were taken under KVM on a host that was not in order for them."""
    timed = any(metrics.kind(finding.expectation.metric) is metrics.Kind.TIME for finding in findings)
    wrong = Counter(
        line
        for run in runs
        if timed and not run.emulated
        for line in (
            *order.shortage(run.host, run.guest.spec.topology),
            *([UNBOUND] if "nodes" in run.host and not run.guest.spec.binding else []),
            *order.spoilers(run.host),
        )
    )
    shapes = Counter(one.guest.spec.binding.shape if one.guest.spec.binding else "none" for one in runs)
    if timed and len(shapes) > 1:
        wrong.update(["some boots were bound to its nodes otherwise than others"])
    return [f"the host was not in order for times: {'; '.join(wrong)}"] if wrong else []


def _lost(phases: Sequence[PhaseResult]) -> tuple[float, str, str]:
    """The most that other programs took in a phase: as a share, in words, and the phase's name."""
    shares = [
        (one.host_kept, "took {:.0%} of the processor time that the guest asked for", one.phase.name)
        if one.host_kept is not None
        else (
            one.host_others or 0.0,
            "took {:.0%} of its processor time, and the guest had less of it",
            one.phase.name,
        )
        for one in phases
    ]
    share, words, name = max(shares, default=(0.0, "", ""))
    return share, f"other programs {words.format(share)}", name


def _about_values(findings: Sequence[Finding], sides: Sides) -> list[str]:
    """Doubts about metrics that only some boots have, and that drift."""
    drifts = [
        f"{'odds of ' * finding.odds}{finding.expectation.metric} ({finding.expectation.phase}): a factor of"
        f" {finding.drift:.4g} from boot to boot, taken out of both kernels' values: the host, or what boots"
        " leave on it, changes as the experiment goes on"
        for finding in findings
        if finding.drift
    ]
    for finding in findings:
        metric, phase = finding.expectation.metric, finding.expectation.phase
        for arm, side in sides.items():
            having = len(metrics.values(side, metric, phase))
            if 0 < having < len(side):
                drifts.append(
                    f"{metric} ({phase}) is absent from {len(side) - having} of {len(side)} boots {arm}"
                )
    return drifts


def _about_builds(findings: Sequence[Finding], runs: Sequence[Run]) -> list[str]:
    """A doubt when times decide that one build of each kernel took; where instructions are counted, or times
    decide nothing, where the code lies does not matter. Of several builds it is part of the scatter."""
    times = [
        finding.expectation.metric
        for finding in findings
        if finding.decides and metrics.kind(finding.expectation.metric) is metrics.Kind.TIME
    ]
    if not times or any(run.emulated for run in runs) or min(builds(runs)) > 1:
        return []
    return [
        "one build of each kernel: where the linker puts code and data moves a time by some per cent, and"
        f" more boots do not average that out ({', '.join(dict.fromkeys(times))})"
    ]


def _about_thresholds(run: Run, sides: Sides, known: Calibration | None) -> list[str]:
    """Doubts about thresholds within the calibrated spread, or about a missing calibration."""
    assert run.place is not None
    fewest = min(map(len, sides.values()))
    release, runs = _judged_by(sides)
    deciding = expectation.deciding(run.place.case, {release}, runs)
    if known is None:
        return ["not calibrated on this machine: how far A is from A is not known (lab.py calibrate)"]
    return within_spread(deciding, fewest, known) if fewest else []


def within_spread(deciding: Iterable[Expectation], boots: int, known: Calibration) -> list[str]:
    """For each expectation whose `by` so many boots of one kernel differ by: by how much, in words. An effect
    that is larger than that can be told all the same."""
    return [
        f"{expected.metric} ({expected.phase}): {boots} boots of one kernel differ by up to {limit:.3g} by"
        f" themselves, and {expected.by:g} was asked for"
        for expected, limit in inside(deciding, boots, known)
    ]


def _line(text: str) -> str:
    """The text on one line, as every doubt must be."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def hung(runs: Sequence[Run]) -> str:
    """How many boots were repeated because the emulator hung or broke in them, in words; '' for none."""
    count = sum(run.guest.hung for run in runs)
    return (
        f"{count} boot{'s' * (count > 1)} hung or broke QEMU under emulation and"
        f" {'were' if count > 1 else 'was'} begun again"
        if count
        else ""
    )
