# SPDX-License-Identifier: GPL-2.0-only
"""The statistics against numbers computed by hand, against scipy's own test, and against invariants."""

from __future__ import annotations

import math
from dataclasses import replace
from math import e

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from numalab.analysis import effect
from numalab.analysis.effect import Effect, compare

pytestmark = pytest.mark.filterwarnings("error")

POSITIVE = st.floats(min_value=1e-6, max_value=1e12)
SIDE = st.lists(POSITIVE, min_size=2, max_size=8)
COUNTS = st.lists(st.integers(min_value=0, max_value=10**12).map(float), min_size=2, max_size=8)


def p_none(found: Effect) -> float:
    return effect.p_distance(found, found.log)


def width(found: Effect) -> float:
    """The width of the interval, in logs."""
    low, high = effect.interval(found, 0.05)
    assert low
    assert high
    return math.log(high / low)


def test_welch_by_hand() -> None:
    """Logs 0 1 2 and 3 4 5: difference 3, standard error √(1/3 + 1/3), 4 degrees of freedom, t = 3.674.

    t(4, 97.5 %) is 2.776.
    """
    found = compare([1, e, e**2], [e**3, e**4, e**5], counts=False)
    assert found.log == pytest.approx(3)
    assert found.error == pytest.approx(math.sqrt(2 / 3))
    assert found.freedom == pytest.approx(4)
    assert p_none(found) == pytest.approx(0.02131, abs=1e-5)
    low, high = effect.interval(found, 0.05)
    assert effect.ratio(found) == pytest.approx(e**3)
    assert low == pytest.approx(math.exp(3 - 2.776 * math.sqrt(2 / 3)), rel=1e-3)
    assert high == pytest.approx(math.exp(3 + 2.776 * math.sqrt(2 / 3)), rel=1e-3)


def test_two_modes_need_both_tests() -> None:
    """Half of the boots after are high, none before: Welch finds a difference, the exact test none."""
    before, after = [1.0] * 8, [1.0] * 4 + [8.0] * 4
    found = compare(before, after, counts=False)
    assert effect.p_distance(replace(found, logs=None), found.log) < 0.05
    assert p_none(found) > 0.05
    low, high = effect.interval(found, 0.05)
    assert high is not None
    assert low <= 1 < high, "the interval has what either test leaves in"


@pytest.mark.parametrize("boots", [3, 4, 5, 8])
def test_the_exact_test_is_asked_from_5_boots(boots: int) -> None:
    rng = np.random.default_rng(boots)
    found = compare(
        list(np.exp(rng.normal(0, 1, boots))), list(np.exp(rng.normal(0.2, 1, boots))), counts=False
    )
    assert (found.shifts is not None) == (boots >= 5)
    if boots < 5:
        assert p_none(found) == p_none(replace(found, logs=None))


def test_satterthwaite_by_hand() -> None:
    """Logs 0 2 4 (variance 4) and 0 1 0 1 (variance 1/3): parts 4/3 and 1/12.

    Degrees of freedom: (17/12)² / ((16/9)/2 + (1/144)/3).
    """
    found = compare([1, e**2, e**4], [1, e, 1, e], counts=False)
    assert found.freedom == pytest.approx((17 / 12) ** 2 / (16 / 9 / 2 + 1 / 144 / 3))
    assert found.error == pytest.approx(math.sqrt(17 / 12))


@given(SIDE, SIDE)
def test_as_scipy_has_it(before: list[float], after: list[float]) -> None:
    # scipy warns of values that differ by no more than rounding
    assume(min(np.std(np.log(before)), np.std(np.log(after))) > 1e-6)
    found = compare(before, after, counts=False)
    found = replace(found, logs=None)  # without the exact test
    theirs = stats.ttest_ind(np.log(after), np.log(before), equal_var=False)
    ends = theirs.confidence_interval(0.95)
    assert p_none(found) == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)
    low, high = effect.interval(found, 0.05)
    assert low == pytest.approx(math.exp(ends.low), rel=1e-6)
    assert high is None or high == pytest.approx(math.exp(ends.high), rel=1e-6)


@given(SIDE, SIDE)
def test_sides_swapped_is_the_ratio_turned_over(before: list[float], after: list[float]) -> None:
    one, other = compare(before, after, counts=False), compare(after, before, counts=False)
    (low, high), (other_low, other_high) = effect.interval(one, 0.05), effect.interval(other, 0.05)
    assert one.log == -other.log
    assert p_none(one) == pytest.approx(p_none(other))
    if low and high and other_low and other_high:
        assert low == pytest.approx(1 / other_high)
        assert high == pytest.approx(1 / other_low)


@given(SIDE, SIDE, st.floats(min_value=1e-3, max_value=1e3))
def test_another_unit_changes_nothing(before: list[float], after: list[float], scale: float) -> None:
    one, other = (
        compare(before, after, counts=False),
        compare([scale * value for value in before], [scale * value for value in after], counts=False),
    )
    assert one.log == pytest.approx(other.log, abs=1e-9)
    assert one.error == pytest.approx(other.error, abs=1e-9)


@given(
    st.lists(st.one_of(st.just(0.0), POSITIVE), min_size=2, max_size=6),
    SIDE,
    st.floats(min_value=1e-3, max_value=1e3),
)
def test_another_unit_changes_nothing_with_zeros_either(
    before: list[float], after: list[float], scale: float
) -> None:
    one, other = (
        compare(before, after, counts=False),
        compare([scale * value for value in before], [scale * value for value in after], counts=False),
    )
    assert one.log == pytest.approx(other.log, abs=1e-9)


@given(COUNTS, COUNTS)
def test_more_boots_that_are_alike_never_widen_the_interval(before: list[float], after: list[float]) -> None:
    if any(before) and any(after):
        once, twice = (compare(before * times, after * times, counts=True) for times in (1, 2))
        if once.error * stats.t.ppf(0.975, once.freedom) < 300:
            assert width(twice) <= width(once) + 1e-9


@given(COUNTS, COUNTS)
def test_always_a_number(before: list[float], after: list[float]) -> None:
    if not any(before + after):
        return
    for counts in (True, False):
        found = compare(before, after, counts=counts)
        ends = [end for end in effect.interval(found, 0.05) if end is not None]
        ratio = effect.ratio(found)
        numbers = [p_none(found), effect.detectable(found, 0.05), *ends, *([] if ratio is None else [ratio])]
        assert all(math.isfinite(number) for number in numbers)
        assert 0 <= p_none(found) <= 1
        assert effect.detectable(found, 0.05) >= 1
        assert ratio is None or ends[0] <= ratio * (1 + 1e-9)
        assert ratio is None or len(ends) < 2 or ratio <= ends[1] * (1 + 1e-9)
        needed = effect.boots_needed(found, math.log(2), 0.05)
        assert needed is not None
        assert effect.LEAST_BOOTS <= needed <= effect.MOST_BOOTS


def test_counts_scatter_at_least_as_independent_events_do() -> None:
    """7 7 7 and 3 3 3 have no spread of their own; as Poisson counts, the logs' variances are 1/7, 1/3."""
    found = compare([7, 7, 7], [3, 3, 3], counts=True)
    assert list(found.variances) == pytest.approx([1 / 7, 1 / 3])
    assert p_none(found) > 0.05
    many = compare([70000] * 3, [30000] * 3, counts=True)
    assert p_none(many) < 1e-6, "large counts do not feel it"
    wide = compare([100, 400, 1600], [10, 40, 160], counts=True)
    assert wide.variances[0] == pytest.approx(math.log(4) ** 2), "nor do those that scatter more"


def test_ratios_without_spread() -> None:
    """No spread to estimate: the chance that two modes split exactly by kernel, 2 (1/2)^6."""
    apart, alike = compare([7.5] * 3, [3.5] * 3, counts=False), compare([7.1] * 3, [7.1] * 4, counts=False)
    assert p_none(apart) == 1 / 32
    assert effect.interval(apart, 0.05) == (effect.ratio(apart), effect.ratio(apart))
    assert effect.ratio(apart) == pytest.approx(3.5 / 7.5)
    assert p_none(alike) == 1
    assert effect.ratio(alike) == pytest.approx(1)
    assert effect.detectable(apart, 0.05) == 1
    assert effect.boots_needed(apart, math.log(1.3), 0.05) == effect.LEAST_BOOTS
    # At 1 % the modes of 3 boots may be chance, those of 4 are not: 2 (1/2)^8.
    assert effect.detectable(apart, 0.01) == pytest.approx(effect.MOST_EFFECT)
    assert effect.boots_needed(apart, math.log(1.3), 0.01) == 4
    assert effect.boots_range(apart, math.log(1.3), 0.01) == (4, 4)
    assert effect.boots_range(apart, math.log(1.3), 0.01, least=math.log(2)) is None


@pytest.mark.parametrize(
    ("boots", "chance"),
    [
        ((1, 1), 0.5),
        ((2, 2), 1 / 8),
        ((3, 3), 1 / 32),
        ((4, 4), 1 / 128),
        ((2, 4), 2 * (1 / 3) ** 2 * (2 / 3) ** 4),
    ],
)
def test_two_modes(boots: tuple[int, int], chance: float) -> None:
    assert effect.two_modes(boots) == pytest.approx(chance)


def test_two_modes_is_barnards_test() -> None:
    assert effect.two_modes((3, 3)) == pytest.approx(stats.barnard_exact([[3, 0], [0, 3]]).pvalue)


def test_two_boots_would_be_fooled_and_three_are_not() -> None:
    """Why LEAST_BOOTS is 3, at an error of 5 %."""
    assert (
        effect.two_modes((effect.LEAST_BOOTS - 1,) * 2) > 0.05 >= effect.two_modes((effect.LEAST_BOOTS,) * 2)
    )


def test_zeros_of_counts() -> None:
    """Counts + 1/2: logs of 20.5 40.5 80.5 and three of 0.5, whose variance is at least 1 / 0.5."""
    found = compare([20, 40, 80], [0, 0, 0], counts=True)
    assert found.log == pytest.approx(math.log(0.5) - math.log(20.5 * 40.5 * 80.5) / 3)
    assert found.variances[1] == 2
    assert effect.ratio(found) == 0
    low, high = effect.interval(found, 0.05)
    assert low == 0
    assert high is not None
    assert 0 < high < 1


def test_zeros_before_are_without_end() -> None:
    found = compare([0, 0, 0], [20, 40, 80], counts=True)
    assert effect.ratio(found) is None
    low, high = effect.interval(found, 0.05)
    assert high is None
    assert low is not None
    assert low > 1


def test_the_shift_is_half_of_the_median_of_ratios() -> None:
    assert effect.shift([0, 0.4, 0.2], counts=False) == pytest.approx(0.15)
    assert effect.shift([0, 4, 2], counts=True) == 0.5
    assert effect.shift([0.4, 0.2], counts=False) == effect.shift([4, 2], counts=True) == 0


def test_one_of_two_counts_of_nothing_says_nothing() -> None:
    assert p_none(compare([1, 1, 1], [0, 0, 0], counts=True)) > 0.3
    assert p_none(compare([0, 0, 5000], [0, 0, 0], counts=True)) > 0.3


def scattered(boots: int, *variances: float) -> Effect:
    return Effect(
        boots=(boots, boots), log=0, variances=(variances[0], variances[1]), vanished=(False, False)
    )


def power(planned: Effect, log: float, least: float = 0.0, tries: int = 4000) -> float:
    """How often an effect is detected, and estimated at `least` or more, in boots drawn with that spread."""
    drawn = (
        np.random.default_rng(1).normal(0, 1, (tries, 2, planned.boots[0]))
        * np.sqrt(planned.variances)[None, :, None]
    )
    drawn[:, 1] += log
    p = np.asarray(stats.ttest_ind(drawn[:, 0], drawn[:, 1], axis=1, equal_var=False).pvalue)
    return float(np.mean((p <= 0.05) & (drawn[:, 1].mean(axis=1) - drawn[:, 0].mean(axis=1) >= least)))


@pytest.mark.parametrize("boots", [3, 4, 5, 8])
@pytest.mark.parametrize("variances", [(1, 1), (1, 0.25), (1e-4, 1)])
def test_detectable_has_the_power_that_it_says(boots: int, variances: tuple[float, float]) -> None:
    planned = scattered(boots, *variances)
    assert (
        effect.POWER - 0.03 < power(planned, math.log(effect.detectable(planned, 0.05))) < effect.POWER + 0.05
    )


@pytest.mark.parametrize("boots", [3, 4, 8])
@pytest.mark.parametrize("by", [1.0, 1.3, 2.0, 10.0])
@pytest.mark.parametrize("variances", [(0.01, 0.01), (1e-4, 0.09)])
def test_detectable_is_what_holds(boots: int, by: float, variances: tuple[float, float]) -> None:
    """To hold takes an estimate of `by` or more too: a change of exactly `by` does so in a half at most."""
    planned = scattered(boots, *variances)
    could = effect.detectable(planned, 0.05, by)
    assert could > by
    assert effect.POWER - 0.03 < power(planned, math.log(could), math.log(by)) < effect.POWER + 0.05
    if by > 1:
        assert power(planned, math.log(by), math.log(by)) < 0.52
    assert effect.boots_needed(planned, math.log(by), 0.05, least=math.log(by)) is None


def test_boots_that_hold_a_larger_effect_have_the_power() -> None:
    """A true 1.6 of which 1.3 is asked: neither too few boots, nor many more than that takes."""
    needed = effect.boots_needed(scattered(4, 0.09, 0.09), math.log(1.6), 0.05, least=math.log(1.3))
    assert needed is not None
    assert needed > effect.boots_needed(scattered(4, 0.09, 0.09), math.log(1.6), 0.05)  # type: ignore[operator]
    held = [power(scattered(n, 0.09, 0.09), math.log(1.6), math.log(1.3)) for n in (needed - 3, needed)]
    assert held[0] < effect.POWER < held[1]


def test_the_range_of_boots_is_that_of_their_scatter() -> None:
    """chi-squared with 4 degrees of freedom: 80 % of estimates are within 0.266 and 1.945 of the variance."""
    found = scattered(3, 0.09, 0.09)
    low, high = (
        effect.boots_needed(scattered(3, *(2 * [0.09 / part])), math.log(2), 0.05) for part in (1.945, 0.266)
    )
    assert effect.boots_range(found, math.log(2), 0.05) == (low, high)
    assert low is not None
    assert high is not None
    middle = effect.boots_needed(found, math.log(2), 0.05)
    assert middle is not None
    assert low <= middle < high


@pytest.mark.parametrize("factor", [1.3, 2, 10])
def test_boots_needed_are_the_fewest(factor: float) -> None:
    """With this many boots the factor is detectable, and with one boot less it is not."""
    found = compare([10, 14, 9, 20], [11, 19, 13], counts=False)
    needed = effect.boots_needed(found, math.log(factor), 0.05)
    assert needed is not None
    assert effect.detectable(scattered(needed, *found.variances), 0.05) <= factor
    assert (
        needed == effect.LEAST_BOOTS
        or effect.detectable(scattered(needed - 1, *found.variances), 0.05) > factor
    )


@pytest.mark.parametrize("spread", [0.001, 0.01, 0.1, 0.3])
@pytest.mark.parametrize("alpha", [0.05, 0.005])
def test_a_larger_effect_never_needs_more_boots(spread: float, alpha: float) -> None:
    """With scipy 1.17 a factor of 2 needed 3 boots and one of 4 needed 19."""
    found = Effect(boots=(3, 3), log=0.0, variances=(spread**2, spread**2), vanished=(False, False))
    needed = [
        effect.boots_needed(found, math.log(factor), alpha)
        for factor in (1.05, 1.1, 1.3, 1.6, 2, 3, 4, 7, 20, 100, 1e6)
    ]
    assert needed == sorted(needed, key=lambda boots: -(boots or 0))
    assert needed[-1] == effect.LEAST_BOOTS


def test_the_shift_of_ratios_is_not_a_vanishing_value() -> None:
    """Half of the median: with half of the least, one boot at 1e-9 made 5 against 0 a factor of a million."""
    assert effect.shift([5, 6, 7, 1e-9, 0, 0], counts=False) == 2.75
    assert effect.shift([0, 0], counts=False) == 0.5
    found = compare([5.0] * 7 + [1e-9], [0.0] * 8, counts=False)
    low, high = effect.interval(found, 0.05)
    assert low == 0
    assert high is not None
    assert high > 0.1


@pytest.mark.parametrize(
    ("values", "expected"), [([0, 0, 1e-9], True), ([0, 0, 0], False), ([1, 2], False), ([], False)]
)
def test_mixed(values: list[float], expected: bool) -> None:
    assert effect.mixed(values) is expected


def test_odds_by_hand() -> None:
    """80 % is 4 to 1, 90 % is 9 to 1; with a 100 among them half a point is added to both parts."""
    found = compare([80, 80, 80], [90, 90, 90], counts=False, share=True)
    assert effect.ratio(found) == pytest.approx(9 / 4)
    assert found.variances == (0, 0)
    edged = compare([92, 92, 92], [100, 100, 100], counts=False, share=True)
    assert effect.ratio(edged) == pytest.approx((100.5 / 0.5) / (92.5 / 8.5))
    assert edged.variances == pytest.approx(((0.5 / 92.5) ** 2 + (0.5 / 8.5) ** 2, (0.5 / 100.5) ** 2 + 1))
    assert edged.vanished == (False, False)


@given(st.lists(st.floats(min_value=0, max_value=100), min_size=2, max_size=6), COUNTS)
def test_percentages_are_their_rests_the_other_way_round(before: list[float], other: list[float]) -> None:
    after = [100 * value / max([*other, 1]) for value in other]
    one = compare(before, after, counts=False, share=True)
    rest = compare(
        [100 - value for value in before], [100 - value for value in after], counts=False, share=True
    )
    assert math.isfinite(one.log)
    if min(min(value, 100 - value) for value in [*before, *after]) > 1e-6 or effect.edge([*before, *after]):
        assert rest.log == pytest.approx(-one.log, abs=1e-6)
        assert rest.variances == pytest.approx(one.variances, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 3])
@pytest.mark.parametrize(("part", "whole"), [(0, 3), (1, 12), (2, 3), (5, 12), (8, 8)])
def test_share_as_scipy_has_it(part: int, whole: int, alpha: float) -> None:
    theirs = stats.binomtest(part, whole).proportion_ci(1 - alpha)
    assert effect.share(part, whole, alpha) == pytest.approx((theirs.low, theirs.high))


def test_boots_needed_has_an_end() -> None:
    wild = compare([1, 1e6, 1e-6], [1, 1e-6, 1e6], counts=False)
    assert effect.boots_needed(wild, math.log(1.01), 0.05) == effect.MOST_BOOTS
    assert effect.boots_needed(wild, 0, 0.05) is None
    assert effect.boots_range(wild, 0, 0.05) is None
    assert effect.detectable(wild, 0.05) == pytest.approx(effect.MOST_EFFECT)


TWO_ROUNDS = ([0.0, 3.0, 4.0, 7.0], [1.0, 2.0, 5.0, 6.0])
"""The positions of boots in the order A B B A A B B A."""


def drifting(slope: float, *, apart: float = 0.0, counts: bool = False) -> Effect:
    """Boots whose logs scatter by a little, and change by `slope` from one to the next."""
    noise = ([0.01, -0.02, 0.015, -0.005], [-0.01, 0.005, 0.02, -0.015])
    before, after = (
        [math.exp(9 + level + slope * position + extra) for position, extra in zip(*pair, strict=True)]
        for level, pair in zip((0.0, apart), zip(TWO_ROUNDS, noise, strict=True), strict=True)
    )
    values = [[round(value) for value in side] for side in (before, after)] if counts else [before, after]
    return compare(*values, counts=counts, positions=TWO_ROUNDS)


@pytest.mark.parametrize("slope", [0.1, -0.1, 0.5])
def test_a_drift_is_fitted_by_least_squares(slope: float) -> None:
    """Against numpy: a level, a difference between the kernels, and a slope that both share."""
    found = drifting(slope, apart=0.3)
    places = np.array([*TWO_ROUNDS[0], *TWO_ROUNDS[1]])
    design = np.column_stack([np.ones(8), [0] * 4 + [1] * 4, places])
    noise = np.array([0.01, -0.02, 0.015, -0.005, -0.01, 0.005, 0.02, -0.015])
    fit = np.linalg.lstsq(design, 9 + 0.3 * design[:, 1] + slope * places + noise, rcond=None)
    assert found.drift
    assert (found.log, found.drift.log) == pytest.approx((fit[0][1], fit[0][2]))
    # Both kernels lose half of a degree of freedom here; their variances are of the residuals.
    residuals = 9 + 0.3 * design[:, 1] + slope * places + noise - design @ fit[0]
    assert found.drift.lost == pytest.approx((25 / 42, 17 / 42))
    assert found.variances[0] == pytest.approx(sum(residuals[:4] ** 2) / (3 - 25 / 42))
    assert found.freedom < compare([1, 2, 3, 4], [1, 2, 3, 4], counts=False).freedom
    assert p_none(found) < 1e-4, "the drift hides nothing"


def test_what_a_drift_costs_is_planned_for() -> None:
    """The slope's own error, and the degree of freedom that it took: a little less can be shown."""
    found = drifting(0.1)
    assert found.drift
    alike = replace(found, drift=None)
    assert effect.detectable(found, 0.05) > effect.detectable(alike, 0.05)
    later = replace(found, drift=replace(found.drift, apart=5.0))
    assert math.log(effect.detectable(later, 0.05)) > 1.2 * math.log(effect.detectable(found, 0.05))
    error = math.sqrt(sum(found.variances) / 4 + found.drift.variance * 25)
    assert later.error == pytest.approx(error)


def test_without_a_drift_positions_change_nothing() -> None:
    before, after = [10.0, 14.0, 9.0, 20.0], [11.0, 19.0, 13.0, 12.0]
    assert compare(before, after, counts=False, positions=TWO_ROUNDS) == compare(before, after, counts=False)


def test_what_is_no_drift() -> None:
    """Few events, which scatter more than their boots happen to; none at all; boots that are all alike."""
    places = ([0.0, 3.0, 4.0], [1.0, 2.0, 5.0])
    assert drifting(0.1, counts=True).drift
    assert not compare([1, 2, 3], [1, 2, 3], counts=True, positions=places).drift
    assert not compare([10, 20, 30], [0, 0, 0], counts=True, positions=places).drift
    assert not compare([7.0] * 3, [5.0] * 3, counts=False, positions=places).drift
    assert not compare([1.0, 2.0], [1.0, 2.0], counts=False, positions=([0.0, 3.0], [1.0, 2.0])).drift


@pytest.mark.parametrize(("boots", "spreads"), [(3, (0.05, 0.05)), (4, (0.2, 0.02)), (8, (0.05, 0.05))])
@pytest.mark.parametrize("slope", [0.0, 0.02, 0.1])
def test_a_drift_makes_no_effect(boots: int, spreads: tuple[float, float], slope: float) -> None:
    """An experiment of a kernel against itself on a host that becomes slower, 2000 times."""
    rng, claimed = np.random.default_rng(2), 0
    places: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * boots):
        places[(number % 4) in (1, 2)].append(float(number))
    for _ in range(2000):
        before, after = (
            np.exp(9 + rng.normal(0, spread, boots) + slope * np.array(of_side))
            for spread, of_side in zip(spreads, places, strict=True)
        )
        claimed += p_none(compare(list(before), list(after), counts=False, positions=places)) <= 0.05
    assert claimed / 2000 < 0.07


def test_within_hosts_by_hand() -> None:
    """Logs 0 2 against 1 3 on host a, 10 12 against 14 16 on b: the differences 1 and 4, mean 2.5. Each
    kernel's variance is (2 + 2) / 2 = 2 with 2 degrees of freedom: standard error √(2/4 + 2/4)."""
    on = ["a", "a", "b", "b"]
    before, after = [e**0, e**2, e**10, e**12], [e**1, e**3, e**14, e**16]
    found = compare(before, after, counts=False, hosts=(on, on))
    assert found.log == pytest.approx(2.5)
    assert found.variances == pytest.approx((2, 2))
    assert found.error == pytest.approx(1)
    assert found.freedom == pytest.approx(4)
    assert p_none(found) == pytest.approx(2 * stats.t.sf(2.5, 4))
    mixed = compare(
        [before[i] for i in (2, 0, 3, 1)], after, counts=False, hosts=([on[i] for i in (2, 0, 3, 1)], on)
    )
    assert mixed == found, "the boots' order does not matter"


@given(
    st.lists(st.tuples(SIDE.filter(lambda side: len(side) > 1), SIDE), min_size=2, max_size=4),
    st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=4, max_size=4),
)
def test_a_host_may_be_faster(hosts: list[tuple[list[float], list[float]]], factors: list[float]) -> None:
    """A factor on all values of a host, other on each, changes nothing: not the effect, nor its error."""
    on = tuple([f"h{i}" for i, host in enumerate(hosts) for _ in host[side]] for side in (0, 1))

    def found(times: list[float]) -> Effect:
        sides = [[v * times[i] for i, host in enumerate(hosts) for v in host[side]] for side in (0, 1)]
        return compare(*sides, counts=False, hosts=(on[0], on[1]))

    plain, other = found([1.0] * 4), found(factors)
    assert other.log == pytest.approx(plain.log, abs=1e-6)
    assert other.error == pytest.approx(plain.error, abs=1e-6)


def test_as_least_squares_has_it() -> None:
    """The effect of the two-way layout, unbalanced, by numpy's own solver."""
    rng = np.random.default_rng(8)
    on = (["a"] * 3 + ["b"] * 2 + ["c"] * 4, ["a"] * 2 + ["b"] * 5 + ["c"] * 2)
    sides = [list(np.exp(rng.normal(3, 1, 9))) for _ in on]
    rows = [[float(host == name) for name in "abc"] + [float(arm)] for arm in (0, 1) for host in on[arm]]
    solved, *_ = np.linalg.lstsq(np.array(rows), np.log([*sides[0], *sides[1]]), rcond=None)
    assert compare(sides[0], sides[1], counts=False, hosts=on).log == pytest.approx(float(solved[3]))


def test_each_host_has_the_floor_of_its_counts() -> None:
    """1 and 10,000 events, without a spread of their own: the variances are 1 and 1e-4, halved by weights."""
    on = ["a", "a", "b", "b"]
    found = compare([1, 1, 1e4, 1e4], [1, 1, 1e4, 1e4], counts=True, hosts=(on, on))
    assert found.variances == pytest.approx(((1 + 1e-4) / 2, (1 + 1e-4) / 2))


def test_no_spread_within_hosts() -> None:
    """Two modes: with a difference on each host, and with one that only one host shows."""
    on = ["a", "a", "b", "b"]
    found = compare([1.0, 1, 7, 7], [2.0, 2, 14, 14], counts=False, hosts=(on, on))
    assert p_none(found) == effect.two_modes((4, 4))
    assert p_none(compare([1.0, 1, 7, 7], [2.0, 2, 7, 7], counts=False, hosts=(on, on))) == 1
    assert p_none(compare([1.0, 1, 7, 7], [2.0, 2, 5, 5], counts=False, hosts=(on, on))) == 1


def test_planning_within_hosts() -> None:
    """What is said of more boots is true of an experiment that has them: the same spread on more rounds."""
    on = ["a", "a", "b", "b"]
    found = compare([1.0, 1.2, 10, 12], [1.3, 1.5, 13, 15], counts=False, hosts=(on, on))
    needed = effect.boots_needed(found, found.log, 0.05)
    assert needed is not None
    assert needed >= 4, "two rounds a host"
    fewest, most = effect.boots_range(found, found.log, 0.05) or (0, 0)
    assert 4 <= fewest <= needed <= most
    assert effect.detectable(found, 0.05) > 1
