# SPDX-License-Identifier: GPL-2.0-only
"""How often verdicts are wrong, from boots whose truth is known.

Boots of one kernel, split in two, are two equal kernels: nothing may hold. Boots of a case's two kernels
contain the case's effect: it may not be denied. So every experiment contains trials, of as many boots of each
kernel as the case has by default, each judged as the case is. The trials of one experiment share boots and
are not independent. So intervals are made over experiments (`bootstrap`), and bounds count `disjoint` trials
only, those that share no boot (`at_most`, `at_most_whenever`).

One experiment seldom has twice the default boots of a kernel. Experiments that are alike in all but their
time (Experiment.like) are then taken together, in the order of time, until they have (`pools`). Such trials
are kept apart: their boots are not interleaved as those of one experiment are.

An experiment is judged by the expectations that stood in the case when it was booted. Booted by
testcases/test_rates.py among others, read and printed by benchmarks/rates.py.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, product
from statistics import median, quantiles

from numalab.analysis import expectation, metrics, verdict
from numalab.model.case import Arm, Expectation
from numalab.model.run import Run
from numalab.model.values import Clock, SizeClass, Value
from numalab.model.verdict import CONFIDENCE, Answer, Finding
from numalab.runs import compatibility

MOST_TRIALS = 400
"""Trials judged of one group of boots: all that there are, or as many drawn at random."""
SEED = 16
DRAWS = 5_000
"""Experiments are drawn again so often for an interval."""
BET = 0.9
"""The part of the stake that a wrong trial loses (at_most_whenever). With all of it, fewer trials would do
while none is wrong, and none would ever do afterwards."""
_ENOUGH = math.log(1 / (1 - CONFIDENCE))


class Judged(Value):
    """What an experiment is judged by: the part of its case that decides, as it was booted."""

    case_name: str
    size: SizeClass
    before: str
    after: str
    boots: int
    """How many of each kernel, by default."""
    expect: tuple[Expectation, ...]
    """The expectations that decide on this accelerator, clock and release."""


class Boot(Value):
    """A boot's values, one for each expectation; None where it has none."""

    number: int
    """Its number in the experiment, from 0."""
    values: tuple[float | None, ...]


class Experiment(Value):
    """A complete experiment, reduced to what decides."""

    name: str
    judged: Judged
    clock: Clock
    accel: str
    topology: str
    like: str
    """A checksum of all that boots must share to be compared: case, workload, machine, image, builds."""
    seed: int | None
    others: float | None = None
    """The share of the host's CPU time that other programs took: of each boot the busiest phase, of these the
    median. None where no boot recorded it."""
    kernels: dict[str, tuple[Boot, ...]]


class Truth(StrEnum):
    """What is known of a trial."""

    EFFECT = "before against after"
    PLANTED = "before passed off as after"
    UNCHANGED = "after against itself"

    @property
    def false(self) -> Answer:
        """The answer that is wrong."""
        return Answer.DOES_NOT_HOLD if self is Truth.EFFECT else Answer.HOLDS


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The trials of one truth in the boots of one group of experiments."""

    judged: Judged
    clock: Clock
    truth: Truth
    experiments: tuple[str, ...]
    answers: Counter[Answer]
    differing: int
    """The trials in which a deciding metric was seen to differ between the sides, in whatever direction."""
    disjoint: int
    """How many trials there are that share no boot."""

    @property
    def number(self) -> int:
        """How many were judged."""
        return self.answers.total()

    @property
    def pooled(self) -> bool:
        """Whether the boots are of several experiments."""
        return len(self.experiments) > 1


def deciding(runs: Sequence[Run]) -> tuple[Expectation, ...]:
    """The expectations that decide for the runs of one experiment."""
    places = [run.place for run in runs if run.place]
    # In (before, before, after, after) all but the first kernel have the arm "after", in random order.
    releases = [
        run.release
        for kernel in (*(place.case.after for place in places[:1]), None)
        for run in runs
        if run.place and run.place.arm is Arm.AFTER and kernel in (run.kernel, None)
    ]
    release = releases[0] if releases else ""
    return expectation.deciding(places[0].case, {release}, runs) if places else ()


def experiments(runs: Iterable[Run]) -> Iterator[Experiment]:
    """The complete experiments among runs, in the order of their names.

    Left out: those that lack planned boots, whose boots may not be compared, and in which nothing decides.
    """
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.place and not run.error:
            groups[run.place.experiment].append(run)
    for _, group in sorted(groups.items()):
        if one := _experiment(sorted(group, key=lambda run: (run.place.boot if run.place else 0, run.id))):
            yield one


def _experiment(runs: Sequence[Run]) -> Experiment | None:
    first, places = runs[0], [run.place for run in runs if run.place]
    place, spec = places[0], first.guest.spec
    # A run of another checkout may have metrics that this one does not know.
    known = all(metrics.known(expected.metric) for expected in place.case.expect)
    expect = deciding(runs) if known and first.size in place.case.sizes else ()
    builds = {(run.kernel, run.guest.kernel_hash, run.release) for run in runs}
    if (
        not expect
        or any(one.block for one in places)  # boots of several hosts are not split as one host's are
        or len({one.boot for one in places}) < max(one.planned or 0 for one in places)
        or len({_alike(run) for run in runs}) > 1
        or len(builds) > len({run.kernel for run in runs})
    ):
        return None
    kernels: dict[str, list[Boot]] = defaultdict(list)
    for run, at in zip(runs, places, strict=True):
        numbers = tuple(metrics.value(run, expected.metric, expected.phase) for expected in expect)
        kernels[run.kernel].append(Boot(number=at.boot, values=numbers))
    return Experiment(
        name=place.experiment,
        judged=Judged(
            case_name=place.case_name,
            size=first.size,
            before=place.case.before,
            after=place.case.after,
            boots=place.case.sizes[first.size].boots,
            expect=tuple(expected.model_copy(update={"why": ""}) for expected in expect),
        ),
        clock=spec.clock,
        accel=spec.accel.value,
        topology=spec.topology_name,
        like=checksum([_alike(first), sorted(builds)]),
        seed=place.seed,
        others=_others(runs),
        kernels={name: tuple(boots) for name, boots in kernels.items()},
    )


def _others(runs: Sequence[Run]) -> float | None:
    known = [share for run in runs if (share := run.host_others) is not None]
    return round(median(known), 2) if known else None


def _alike(run: Run) -> str:
    """A checksum of what all boots of an experiment share."""
    assert run.place is not None
    # Without defaults: a field that a case gains later changes nothing about earlier boots.
    case = run.place.case.model_dump(mode="json", exclude_defaults=True)
    return checksum(
        [
            compatibility.traits(run),
            {key: value for key, value in case.items() if key not in verdict.DESCRIPTIVE},
            run.guest.image_id,
            run.inputs,
        ]
    )


def checksum(data: object) -> str:
    """Twelve digits that stand for plain JSON data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=dict).encode()).hexdigest()[:12]


def findings(
    judged: Judged, before: Sequence[Boot], after: Sequence[Boot], *, pooled: bool = False
) -> list[Finding]:
    """The findings if these boots were those of the case's kernels: as verdict.verdict finds it.

    `pooled`: the boots are of several experiments, so that their numbers are no order.
    """
    measured = []
    for i, expected in enumerate(judged.expect):
        sides = [[boot for boot in side if boot.values[i] is not None] for side in (before, after)]
        values = [[boot.values[i] or 0.0 for boot in side] for side in sides]
        first, second = ([float(boot.number) for boot in side] for side in sides)
        measured.append(
            expectation.with_values(
                expected,
                values[0],
                values[1],
                metrics.kind(expected.metric),
                positions=None if pooled else (first, second),
            )
        )
    return expectation.together(measured, outlook=False)


def differ(results: Iterable[Finding]) -> bool:
    """Whether a change of any size is claimed."""
    return any(finding.q is not None and finding.q <= 1 - CONFIDENCE for finding in results)


def halves(boots: Sequence[Boot]) -> tuple[list[Boot], list[Boot]]:
    """A kernel's boots as those of two, in the order A B B A: what drifts with time is in both."""
    return (
        [boot for i, boot in enumerate(boots) if i % 4 in (0, 3)],
        [boot for i, boot in enumerate(boots) if i % 4 in (1, 2)],
    )


def splits(boots: Sequence[Boot], size: int) -> list[tuple[list[Boot], list[Boot]]]:
    """The ways to take two sides of `size` boots from those of one kernel; which is "before" matters."""
    places = range(len(boots))
    ways = math.comb(len(boots), size) * math.comb(len(boots) - size, size)
    if ways <= MOST_TRIALS:
        chosen = [
            (one, other)
            for one in combinations(places, size)
            for other in combinations(sorted({*places} - {*one}), size)
        ]
    else:
        draw = random.Random(SEED)
        drawn = (draw.sample(places, 2 * size) for _ in range(MOST_TRIALS))
        chosen = [(tuple(both[:size]), tuple(both[size:])) for both in drawn]
    return [([boots[i] for i in one], [boots[i] for i in other]) for one, other in chosen]


def pairs(
    before: Sequence[Boot], after: Sequence[Boot], size: int
) -> list[tuple[Sequence[Boot], Sequence[Boot]]]:
    """The ways to take `size` boots of each of two kernels."""
    if math.comb(len(before), size) * math.comb(len(after), size) <= MOST_TRIALS:
        return list(product(combinations(before, size), combinations(after, size)))
    draw = random.Random(SEED)
    return [(draw.sample(before, size), draw.sample(after, size)) for _ in range(MOST_TRIALS)]


def unlike_seeds(all_experiments: Iterable[Experiment]) -> list[Experiment]:
    """The experiments without those that repeat another's boots on a virtual clock, seed for seed."""
    seen: set[tuple[str, int]] = set()
    kept = []
    for one in all_experiments:
        if one.clock is Clock.VIRTUAL and one.seed is not None:
            if (one.like, one.seed) in seen:
                continue
            seen.add((one.like, one.seed))
        kept.append(one)
    return kept


def pools(all_experiments: Iterable[Experiment]) -> list[list[Experiment]]:
    """Experiments, or groups of like ones, that have twice the default boots of each of their kernels.

    Each is in one group at most, with those next to it in time. Of experiments that are enough by themselves
    none is taken into a group. What is left over joins the last group of its kind.
    """
    alone: list[Experiment] = []
    kinds: dict[str, list[Experiment]] = defaultdict(list)
    for one in sorted(all_experiments, key=lambda one: one.name):
        (alone if _enough([one]) else kinds[one.like]).append(one)
    groups = [[one] for one in alone]
    for kind in kinds.values():
        made: list[list[Experiment]] = []
        rest: list[Experiment] = []
        for one in kind:
            rest.append(one)
            if _enough(rest):
                made.append(rest)
                rest = []
        if made:
            made[-1] += rest
        groups += made
    return groups


def _enough(group: Sequence[Experiment]) -> bool:
    return all(
        sum(len(one.kernels[kernel]) for one in group) >= 2 * group[0].judged.boots
        for kernel in group[0].kernels
    )


def trials(all_experiments: Sequence[Experiment]) -> Iterator[Trials]:
    """All trials in these experiments."""
    all_experiments = unlike_seeds(all_experiments)
    for one in all_experiments:
        judged = one.judged
        before, after = (one.kernels.get(kernel, ()) for kernel in (judged.before, judged.after))
        disjoint = min(len(before), len(after)) // judged.boots
        if disjoint and judged.before != judged.after:
            yield _trials([one], Truth.EFFECT, pairs(before, after, judged.boots), disjoint)
    for group in pools(all_experiments):
        judged = group[0].judged
        for kernel in group[0].kernels:
            boots = [boot for one in group for boot in one.kernels[kernel]]
            truth = Truth.PLANTED if kernel == judged.before else Truth.UNCHANGED
            disjoint = len(boots) // (2 * judged.boots)
            yield _trials(group, truth, splits(boots, judged.boots), disjoint)


def _trials(
    group: Sequence[Experiment],
    truth: Truth,
    sides: Iterable[tuple[Sequence[Boot], Sequence[Boot]]],
    disjoint: int,
) -> Trials:
    pooled = len(group) > 1
    every = [findings(group[0].judged, before, after, pooled=pooled) for before, after in sides]
    return Trials(
        judged=group[0].judged,
        clock=group[0].clock,
        truth=truth,
        experiments=tuple(one.name for one in group),
        answers=Counter(verdict.overall(each) for each in every),
        differing=sum(map(differ, every)),
        disjoint=disjoint,
    )


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How often something happened, as shares."""

    share: float
    """The mean over groups of experiments, each weighted by its disjoint trials."""
    low: float
    high: float
    """The interval of `share`, by the bootstrap."""
    most: float
    """What the true share is at most."""


def rate(parts: Sequence[tuple[float, int]]) -> Rate:
    """The rate over groups of experiments, from the share and the disjoint trials of each."""
    share, disjoint = mean(parts), sum(weight for _, weight in parts)
    low, high = bootstrap(parts)
    return Rate(share=share, low=low, high=high, most=at_most(share, disjoint))


def mean(parts: Sequence[tuple[float, int]]) -> float:
    """The mean of shares, each with its weight."""
    return sum(share * weight for share, weight in parts) / sum(weight for _, weight in parts)


def bootstrap(parts: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """The 95 % interval of a rate: groups of experiments are drawn again, with all they contain (Efron 1979).

    It knows only what was seen: where nothing was, it ends at 0. See at_most.
    """
    draw = random.Random(SEED)
    means = [mean(draw.choices(parts, k=len(parts))) for _ in range(DRAWS)]
    ends = quantiles(means, n=40, method="inclusive")
    return ends[0], ends[-1]


def at_most(share: float, disjoint: int) -> float:
    """The largest true rate at which so small a share has a chance of 5 %. The error of having drawn only
    MOST_TRIALS splits is left out.

    Hoeffding (1963, section 5): the mean over all splits of a sample is no further off than that of as many
    independent trials as share no boot. Chernoff's bound for those, where nothing was seen the exact one.
    """
    return _least_excluded(share, lambda rate: disjoint * _divergence(share, rate))


def _divergence(share: float, of: float) -> float:
    """Kullback's and Leibler's, between two events of these chances."""
    return sum(
        part * math.log(part / other) if other else math.inf
        for part, other in ((share, of), (1 - share, 1 - of))
        if part
    )


def at_most_whenever(parts: Sequence[tuple[float, int]]) -> float:
    """As at_most, of the share and the disjoint trials of each group, but at whatever trial one stops: a rate
    that is looked at after each experiment, until it is low enough, needs this bound.

    Each trial is a bet that it is right, against a rate of m: the stake gains BET · m / (1 − m) of itself,
    and loses BET of itself where the trial is wrong. If the true rate is m or more, the chance that the stake
    ever grows to its twentyfold is 5 % (Ville 1939; Waudby-Smith and Ramdas, JRSS B 2024).
    """
    return _least_excluded(0.0, lambda rate: _stake(parts, rate))


def _least_excluded(low: float, evidence: Callable[[float], float]) -> float:
    """The least rate above `low` against which there is evidence _ENOUGH; it grows with the rate."""
    high = 1.0
    for _ in range(40):  # more would reach 1, of which no stake is left
        middle = (low + high) / 2
        low, high = (middle, high) if evidence(middle) < _ENOUGH else (low, middle)
    return high


def _stake(parts: Sequence[tuple[float, int]], rate: float) -> float:
    """The logarithm of what a stake of 1 has become, at least. A group's boots can be split into disjoint
    trials in many ways, whose mean stake counts: two inequalities, Weierstrass's and Jensen's, bound it."""
    gain, lost = _gain(rate), BET / (1 - rate + BET * rate)
    logs = []
    for share, disjoint in parts:
        wrong = share * disjoint
        bounds = [wrong * math.log1p(-lost)] + ([math.log1p(-lost * wrong)] if lost * wrong < 1 else [])
        logs.append(disjoint * gain + max(bounds))
    return math.fsum(logs)


def trials_for(most: float, parts: Sequence[tuple[float, int]] = ()) -> int:
    """How many disjoint trials more, none of them wrong, show a rate below `most`; 0 where it is shown."""
    return max(0, math.ceil((_ENOUGH - _stake(parts, most)) / _gain(most)))


def _gain(rate: float) -> float:
    """What a trial that is right adds to the logarithm of the stake."""
    return math.log1p(BET * rate / (1 - rate))
