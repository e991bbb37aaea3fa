# SPDX-License-Identifier: GPL-2.0-only
"""Verdicts on boots whose truth is known: which trials an experiment contains, and what they show."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from numalab.analysis import error_rates, verdict
from numalab.analysis.error_rates import Boot, Experiment, Truth
from numalab.experiment.plan import boot_order
from numalab.model.case import Arm, Cost, Direction, Expectation
from numalab.model.run import Run
from numalab.model.values import Clock
from numalab.model.verdict import Answer
from tests.unit import synthetic
from tests.unit.makers import FORWARDS, on_virtual_clock

BEFORE, AFTER = "6.1-slowscan-before", "6.1"
VALUES = {
    BEFORE: (1_557_000, 1_721_000, 1_590_000, 1_602_000, 1_610_000, 1_580_000, 1_630_000, 1_571_000),
    AFTER: (98_000, 98_100, 98_500, 99_000, 98_300, 98_700, 98_200, 98_900),
}
UNKNOWN = Expectation(metric="of-another-checkout", phase="*", direction=Direction.FALLS)


def boots(
    name: str = "a", kernels: Sequence[str] = (BEFORE, AFTER), rounds: int = 3, *, swapped: bool = False
) -> list[Run]:
    """The runs of an experiment; `swapped` gives every second boot of a kernel the other's value."""
    runs: list[Run] = []
    for number, index in boot_order(kernels, rounds, seed=FORWARDS):
        turn = sum(run.kernel == kernels[index] for run in runs)
        of = (
            kernels[index] if not swapped or turn % 2 == 0 else next(k for k in VALUES if k != kernels[index])
        )
        runs.append(
            synthetic.run(
                kernels[index],
                synthetic.phase("repair-x", vmstat={"numa_pte_updates": VALUES[of][turn]}),
                boot=number,
                arm=Arm.AFTER if index else Arm.BEFORE,
                experiment=name,
                id=f"{name}-{number}",
            )
        )
    return runs


def placed(runs: Sequence[Run], **changes: object) -> list[Run]:
    return [
        run.model_copy(update={"place": run.place.model_copy(update=changes)}) for run in runs if run.place
    ]


def one(runs: Sequence[Run]) -> Experiment:
    (found,) = error_rates.experiments(runs)
    return found


def test_an_experiment() -> None:
    """Each kernel's boots in their order, whatever its position; the case as it was booted."""
    found = one([*boots(kernels=(BEFORE, BEFORE, AFTER, AFTER))[::-1], synthetic.run(AFTER)])
    assert (found.name, found.clock, found.accel, found.topology) == ("a", Clock.HOST, "tcg", "4socket")
    assert [boot.number for boot in found.kernels[BEFORE]] == [0, 1, 6, 7, 8, 9]
    assert [boot.values for boot in found.kernels[AFTER]] == [(value,) for value in VALUES[AFTER][:6]]
    assert (found.judged.before, found.judged.after, found.judged.boots) == (BEFORE, AFTER, 3)


@pytest.mark.parametrize(
    "runs",
    [
        placed(boots(), planned=8),
        [
            *placed(boots(), planned=6)[:-1],
            *[run.model_copy(update={"error": "lost"}) for run in boots()[-1:]],
        ],
        [*boots()[:-1], *[run.model_copy(update={"inputs": {"x": "1"}}) for run in boots()[-1:]]],
        [*boots()[:-1], *[run.model_copy(update={"release": "6.1-other"}) for run in boots()[-1:]]],
        placed(boots(), case=synthetic.CASE.model_copy(update={"sizes": {}})),
        placed(boots(), case=synthetic.CASE.model_copy(update={"expect": (UNKNOWN,)})),
        [run.model_copy(update={"place": None}) for run in boots()],
        [],
    ],
    ids=["short", "broken", "inputs", "build", "size", "metric", "alone", "none"],
)
def test_what_is_left_out(runs: Sequence[Run]) -> None:
    assert not list(error_rates.experiments(runs))


def test_what_decides() -> None:
    """As in a verdict: no time under emulation, nothing of other releases, nothing that is only shown."""
    expect = (
        *synthetic.CASE.expect,
        Expectation(metric="system", phase="*", direction=Direction.FALLS, cost=Cost.WORK),
        Expectation(metric="pgfault", phase="*", direction=Direction.FALLS, releases="4.*"),
        Expectation(metric="pgmajfault", phase="*", direction=Direction.FALLS, decides=False),
    )
    runs = placed(boots(), case=synthetic.CASE.model_copy(update={"expect": expect}))
    assert [each.metric for each in error_rates.deciding(runs)] == ["numa_pte_updates"]
    virtual = [on_virtual_clock(run) for run in runs]
    assert [each.metric for each in error_rates.deciding(virtual)] == ["numa_pte_updates", "system"]
    assert [finding.expectation.metric for finding in verdict.verdict(runs).findings if finding.decides] == [
        "numa_pte_updates"
    ]


@pytest.mark.parametrize("swapped", [False, True])
def test_judged_as_a_case_is(swapped: bool) -> None:
    """The same answer, interval and p as a verdict of the runs, without what more boots would show."""
    runs = boots(rounds=4, swapped=swapped)
    found = one(runs)
    (finding,) = error_rates.findings(found.judged, found.kernels[BEFORE], found.kernels[AFTER])
    judged = verdict.verdict(runs)
    (expected,) = judged.findings
    assert verdict.overall([finding]) is judged.answer
    same = ("ratio", "low", "high", "p", "q", "grade", "before", "after")
    assert [getattr(finding, name) for name in same] == [getattr(expected, name) for name in same]
    assert expected.reason.startswith(finding.reason)


def test_halves() -> None:
    """A B B A: of a steady drift both sides have the same mean."""
    some = [Boot(number=i, values=(i,)) for i in range(8)]
    one_half, other = error_rates.halves(some)
    assert [boot.number for boot in one_half] == [0, 3, 4, 7]
    assert sum(boot.number for boot in one_half) == sum(boot.number for boot in other)


def test_splits() -> None:
    """6 boots split into 3 and 3 in 20 ways: 10 pairs of sides, each side once in place of "before"."""
    some = [Boot(number=i, values=(i,)) for i in range(6)]
    found = [
        tuple(tuple(boot.number for boot in side) for side in sides) for sides in error_rates.splits(some, 3)
    ]
    assert len(set(found)) == len(found) == 20
    assert all(sorted([*before, *after]) == list(range(6)) for before, after in found)
    assert {(after, before) for before, after in found} == set(found)


def test_many_splits() -> None:
    """As many as are judged, at random but the same every time; no boot is on both sides."""
    some = [Boot(number=i, values=(i,)) for i in range(12)]
    found = error_rates.splits(some, 3)
    assert len(found) == error_rates.MOST_TRIALS
    assert found == error_rates.splits(some, 3)
    assert all(len({boot.number for side in sides for boot in side}) == 6 for sides in found)


def test_pairs() -> None:
    some = [Boot(number=i, values=(i,)) for i in range(12)]
    assert len(error_rates.pairs(some[:4], some[4:8], 3)) == 16
    assert error_rates.pairs(some[:3], some[3:6], 3) == [(tuple(some[:3]), tuple(some[3:6]))]
    assert len(error_rates.pairs(some[:6], some[6:], 3)) == 400
    many = error_rates.pairs(some[:8], some[4:], 3)
    assert len(many) == error_rates.MOST_TRIALS
    assert many == error_rates.pairs(some[:8], some[4:], 3)


def named(names: str, rounds: int = 3, **changes: object) -> list[Experiment]:
    """An experiment for each letter."""
    return [one(boots(name, rounds=rounds)).model_copy(update=changes) for name in names]


def test_what_others_took() -> None:
    """The median of boots' busiest phases; None where no boot knows."""
    runs = boots()
    assert one(runs).others is None
    shares = [None, 0.2, 0.9, 0.4, 0.3, 0.5]
    loaded = [
        run.model_copy(
            update={"phases": tuple(phase.model_copy(update={"host_others": share}) for phase in run.phases)}
        )
        for run, share in zip(runs, shares, strict=True)
    ]
    assert one(loaded).others == 0.4


def test_pools() -> None:
    """Neighbours in time, until each kernel has twice the boots; what is left over joins the last group."""
    enough, other = named("d", rounds=6), named("x", like="another machine")
    found = error_rates.pools([*named("edcba"[0::2]), *enough, *other, *named("fb")])
    assert [[each.name for each in group] for group in found] == [["d"], ["a", "b"], ["c", "e", "f"]]


def test_pools_of_too_few() -> None:
    assert not error_rates.pools(named("a"))


def test_one_seed_is_one_sample() -> None:
    """On the virtual clock only: there the seed decides nearly everything."""
    virtual = named("ab", clock=Clock.VIRTUAL, seed=7)
    assert [each.name for each in error_rates.unlike_seeds(virtual)] == ["a"]
    assert len(error_rates.unlike_seeds(named("ab", seed=7))) == 2
    assert len(error_rates.unlike_seeds(named("ab", clock=Clock.VIRTUAL))) == 2
    assert len(error_rates.unlike_seeds([virtual[0], *named("b", clock=Clock.VIRTUAL, seed=8)])) == 2


def test_trials() -> None:
    """Two experiments of 3 boots: a trial in each, and in both together each kernel against itself."""
    effect, again, planted, unchanged = error_rates.trials(named("ab"))
    assert [each.truth for each in (effect, again)] == [Truth.EFFECT] * 2
    assert (effect.answers, effect.disjoint, effect.pooled) == (Counter({Answer.HOLDS: 1}), 1, False)
    assert {each.truth for each in (planted, unchanged)} == {Truth.PLANTED, Truth.UNCHANGED}
    for each in (planted, unchanged):
        assert (each.experiments, each.number, each.disjoint, each.pooled) == (("a", "b"), 20, 1, True)
        assert each.answers == Counter({Answer.DOES_NOT_HOLD: 20})


def test_trials_of_one_experiment() -> None:
    """(before, before, after, after), or twice the rounds: enough by itself."""
    found = list(error_rates.trials([one(boots(kernels=(BEFORE, BEFORE, AFTER, AFTER)))]))
    assert [(each.truth, each.number, each.disjoint, each.pooled) for each in found] == [
        (Truth.EFFECT, 400, 2, False),
        (Truth.PLANTED, 20, 1, False),
        (Truth.UNCHANGED, 20, 1, False),
    ]
    assert not any(each.differing for each in found[1:])


def test_trials_of_a_lab_that_errs() -> None:
    """Half of each kernel's boots are the other's in truth: sorted by chance, they contradict the names."""
    found = {each.truth: each for each in error_rates.trials([one(boots(rounds=6, swapped=True))])}
    for truth in (Truth.PLANTED, Truth.UNCHANGED):
        assert found[truth].answers[Answer.HOLDS] == 1
        assert found[truth].differing == 2
    assert found[Truth.EFFECT].answers[Answer.DOES_NOT_HOLD] > 0


def test_other_kernels() -> None:
    """A kernel that is neither of the case's is compared with itself alone."""
    runs = [
        run.model_copy(update={"id": f"{run.id}-{i}"})
        for i, run in enumerate(boots(kernels=(AFTER, AFTER), rounds=3))
    ]
    assert [each.truth for each in error_rates.trials([one(runs)])] == [Truth.UNCHANGED]


def test_bootstrap() -> None:
    """Over experiments, not over what is in them: ten that agree within themselves tell as much as ten."""
    agreeing = [(1.0, 1)] * 3 + [(0.0, 1)] * 7
    low, high = error_rates.bootstrap(agreeing)
    assert (low, high) == pytest.approx((0.0, 0.6), abs=0.1001)
    assert error_rates.bootstrap(agreeing) == (low, high)
    assert error_rates.bootstrap([(0.0, 1)] * 9) == (0, 0)
    assert error_rates.bootstrap([(0.25, 2)] * 9) == (0.25, 0.25)


def test_mean() -> None:
    assert error_rates.mean([(0.0, 3), (1.0, 1)]) == 0.25


@pytest.mark.parametrize("disjoint", [1, 17, 100])
def test_nothing_seen(disjoint: int) -> None:
    """Exact: at that rate, none is seen in one of twenty."""
    assert (1 - error_rates.at_most(0, disjoint)) ** disjoint == pytest.approx(0.05)


def test_at_most() -> None:
    assert error_rates.at_most(0, 17) == pytest.approx(0.162, abs=0.001)
    assert error_rates.at_most(1, 5) == 1
    assert error_rates.at_most(0.1, 50) > error_rates.at_most(0.1, 500) > 0.1


def test_at_most_is_a_bound() -> None:
    """Missed in at most 5 %, although all splits are counted: U statistics of boots, two sides of 2."""
    draw, true, missed = random.Random(3), 2 * 0.3**2 * 0.7**2, 0
    tries = 400
    for _ in range(tries):
        sample = [Boot(number=i, values=(float(draw.random() < 0.3),)) for i in range(12)]
        every = error_rates.splits(sample, 2)
        apart = [
            len({boot.values for boot in before}) == len({boot.values for boot in after}) == 1
            and before[0].values != after[0].values
            for before, after in every
        ]
        missed += error_rates.at_most(sum(apart) / len(apart), 3) < true
    assert missed <= 0.05 * tries


def test_at_most_whenever_one_stops() -> None:
    """Exceeded by the true rate in at most 5 %, though it is looked at after every trial."""
    draw, true, tries, missed = random.Random(5), 0.05, 400, 0
    for _ in range(tries):
        parts: list[tuple[float, int]] = []
        while len(parts) < 150 and error_rates.trials_for(true, parts):
            parts.append((float(draw.random() < true), 1))
        missed += error_rates.at_most_whenever(parts) <= true
    assert 0 < missed <= 0.05 * tries
    assert error_rates.at_most_whenever([(0.0, 100)]) > error_rates.at_most(0, 100)


def test_at_most_whenever_of_a_group_is_on_the_safe_side() -> None:
    """Of a group all splits into disjoint trials count: the mean of their stakes, which is not known."""
    wrong = [(1, 0, 0), (0, 0, 0), (1, 1, 0), (0, 0, 1)]  # of each way to split, which trials are wrong
    share = sum(map(sum, wrong)) / 12
    for rate in (0.01, 0.2, 0.5, 0.9):
        stakes = [math.exp(sum(error_rates._stake([(float(one), 1)], rate) for one in way)) for way in wrong]
        assert error_rates._stake([(share, 3)], rate) <= math.log(sum(stakes) / len(stakes)) + 1e-12
    assert error_rates.at_most_whenever([(1.0, 3)]) == pytest.approx(1)


def test_trials_for() -> None:
    """As many as at_most_whenever takes, from nothing or where some were wrong."""
    assert error_rates.trials_for(0.01) == 332
    for begun in ([], [(0.0, 10)], [(0.1, 1), (0.0, 200)], [(1.0, 1)], [(0.25, 6)]):
        number = error_rates.trials_for(0.01, begun)
        assert error_rates.at_most_whenever([*begun, (0.0, number)]) <= 0.01
        assert error_rates.at_most_whenever([*begun, (0.0, number - 1)]) > 0.01
    assert error_rates.trials_for(0.01, [(0.0, 400)]) == 0
