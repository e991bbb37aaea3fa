# SPDX-License-Identifier: GPL-2.0-only
"""The exact test against scipy's, against numbers by hand, and test against interval."""

from __future__ import annotations

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
