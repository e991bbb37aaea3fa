# SPDX-License-Identifier: GPL-2.0-only
"""The exact test against scipy's, against numbers by hand, and test against interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from numalab.analysis import permutation

SIDE = st.lists(st.floats(min_value=-50, max_value=50), min_size=3, max_size=6)


def test_by_hand() -> None:
    """0 1 against 10 12: one swapped pair has 10 - 1, 10 - 0, 12 - 1 or 12 - 0, both swapped 11 - 0.5."""
    ordered = permutation.shifts([0, 1], [10, 12])
    assert list(ordered) == [9, 10, 10.5, 11, 12]
    assert permutation.p(ordered, 0) == 0, "no split is as extreme: it says all that it can"
    assert permutation.p(ordered, 9) == pytest.approx(2 * 2 / 6)
    assert permutation.p(ordered, 10.5) == 1
    assert permutation.interval(ordered, 0.05) == (9, 12)
    assert permutation.interval(ordered, 0.7) == (10, 11)


@pytest.mark.parametrize(("before", "after"), [(4, 4), (5, 6), (6, 4), (6, 6)])
@pytest.mark.parametrize("shift", [0.0, 0.7, -0.4])
def test_as_scipy_has_it(before: int, after: int, shift: float) -> None:
    rng = np.random.default_rng(9)
    one, other = rng.normal(0, 1, before), rng.normal(0.3, 1, after)
    mine = permutation.p(permutation.shifts(list(one), list(other)), shift)

    def difference(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(np.mean(x, axis=axis) - np.mean(y, axis=axis))

    theirs = stats.permutation_test((one + shift, other), difference, vectorized=True, n_resamples=10**6)
    assert mine == pytest.approx(float(theirs.pvalue))


@given(SIDE, SIDE, st.sampled_from([0.05, 0.0305, 0.2]), st.floats(min_value=-120, max_value=120))
def test_the_interval_leaves_out_what_is_rejected(
    before: Sequence[float], after: Sequence[float], alpha: float, shift: float
) -> None:
    ordered = permutation.shifts(before, after)
    low, high = permutation.interval(ordered, alpha)
    if min(abs(shift - low), abs(shift - high)) > 1e-6:
        assert (permutation.p(ordered, shift) <= alpha) == (not low <= shift <= high)
    rest = permutation.shifts(after, before)
    assert permutation.p(rest, -shift) == pytest.approx(permutation.p(ordered, shift))


def test_many_boots_draw_their_splits() -> None:
    """The same ones each time, and near to all of them: 12 and 12 boots have 2.7 million."""
    rng = np.random.default_rng(1)
    before, after = list(rng.normal(0, 1, 12)), list(rng.normal(0.8, 1, 12))
    ordered = permutation.shifts(before, after)
    assert len(ordered) <= permutation.MOST_SPLITS < math.comb(24, 12)
    welch = stats.ttest_ind(after, before, equal_var=False)
    assert permutation.p(ordered, 0) == pytest.approx(float(welch.pvalue), abs=0.01)
    assert list(permutation.shifts(before, after)) == list(ordered)


def test_hosts_by_hand() -> None:
    """Two hosts with 0 1 against 10 12, and 100 against 105: a split swaps within a host, or on both."""
    ordered = permutation.shifts([0, 1, 100], [10, 12, 105], [(2, 2), (1, 1)])
    alone = [9, 10, 10.5, 11, 12]
    both = [(9 + 5) / 2, (10 + 5) / 2, (11 + 5) / 2, (12 + 5) / 2, (22 - 1 + 5) / 3]
    assert list(ordered) == pytest.approx(sorted([5, *alone, *both]))
    assert permutation.p(ordered, 4) == 0
    assert permutation.p(ordered, 5) == pytest.approx(2 * 2 / 12)


def test_within_hosts_a_split_is_as_extreme_as_its_statistic_says() -> None:
    """The shifts against a count of all splits, with the statistic of effect.shares made anew for each."""
    rng = np.random.default_rng(3)
    cells = [(2, 3), (3, 2)]
    before, after = [list(rng.normal(0, 1, 5)) for _ in "ab"]
    ordered = permutation.shifts(before, after, cells)

    def statistic(sides: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
        parts = [(len(one) * len(other) / (len(one) + len(other))) for one, other in sides]
        means = [np.mean(other) - np.mean(one) for one, other in sides]
        return float(np.dot(parts, means) / sum(parts))

    hosts = [(before[:2], after[:3]), (before[2:], after[3:])]
    for shift in (-1.0, 0.0, 0.3, 2.0):
        shifted = [[*one, *(value - shift for value in other)] for one, other in hosts]
        observed = statistic(
            [(pool[: cell[0]], pool[cell[0] :]) for pool, cell in zip(shifted, cells, strict=True)]
        )
        counts = [0, 0]
        splits = [list(itertools.combinations(range(5), cell[0])) for cell in cells]
        for chosen in itertools.product(*splits):
            sides = [
                ([pool[i] for i in taken], [pool[i] for i in range(5) if i not in taken])
                for pool, taken in zip(shifted, chosen, strict=True)
            ]
            counts[0] += statistic(sides) >= observed - 1e-9
            counts[1] += statistic(sides) <= observed + 1e-9
        fewest = min(counts)
        expected = 0.0 if fewest == 1 else min(1.0, 2 * fewest / math.prod(map(len, splits)))
        assert permutation.p(ordered, shift) == pytest.approx(expected)


def test_many_hosts_draw_their_splits() -> None:
    """Four hosts of three and three have 160,000 splits; drawn ones are near to all."""
    rng = np.random.default_rng(2)
    levels = np.repeat([0.0, 5.0, 9.0, 2.0], 3)
    before, after = levels + rng.normal(0, 1, 12), levels + rng.normal(0.8, 1, 12)
    ordered = permutation.shifts(list(before), list(after), [(3, 3)] * 4)
    assert len(ordered) <= permutation.MOST_SPLITS
    left = [np.concatenate([side - levels, [0]])[:-1] for side in (before, after)]
    assert permutation.p(ordered, 0) == pytest.approx(float(stats.ttest_ind(*left).pvalue), abs=0.03)
