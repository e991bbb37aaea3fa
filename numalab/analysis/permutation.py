# SPDX-License-Identifier: GPL-2.0-only
"""The exact test of a shift between two samples: what the boots say when their distribution is not known.

If a kernel changes nothing but adds a shift to each value (here: to its logarithm, so a factor), the labels
of boots are exchangeable once the shift is taken off: every way to split the values into sides of these sizes
was as likely (Fisher 1935; Pitman 1937). Where the t test relies on values that are about normal, this relies
on nothing but equal shapes, and needs boots: with 3 of each side the least p is 2/20.

The statistic is the difference of means. A split that swaps the values B of "before" for as many values A of
"after" has a difference as large as the observed one exactly when the shift is at least mean(A) - mean(B). So
those numbers, sorted, give the p of every shift and the interval too (Maritz 1979), which leaves a shift out
exactly where the test rejects it.

With several hosts as blocks a boot is exchangeable with those of its own host only: a split is made of one in
each host, and the statistic is the mean of the hosts' differences with the weights of effect.shares. With
these, too, it is mean(A) - mean(B) of all values that a split swaps, on whatever hosts, that decides. Not
here: when the test is asked, and beside what (effect).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # its import takes long, and most commands judge nothing
    import numpy as np
    import numpy.typing as npt

MOST_SPLITS = 20_000
"""All splits are made where there are no more (8 and 8 boots have 12,870). Else so many are drawn, the same
each time; the observed one is counted too, which keeps the test valid (Phipson and Smyth 2010)."""
SEED = 11
SAME = 1e-9
"""Shifts that differ by less differ by rounding."""


def shifts(
    before: Sequence[float], after: Sequence[float], cells: Sequence[tuple[int, int]] = ()
) -> npt.NDArray[np.float64]:
    """For each split but the observed one the shift at which it is as extreme, in ascending order.

    `cells`: the numbers of values before and after on each host, whose values follow each other; () for one.
    """
    import numpy as np

    weights = _weights(tuple(cells) or ((len(before), len(after)),))
    # Not `@`: OpenBLAS has threads for it, which wait for each other ten times as long on a busy host.
    return np.sort(np.einsum("ij,j->i", weights, np.array([*before, *after])))


def p(ordered: npt.NDArray[np.float64], shift: float) -> float:
    """The two-sided p of a shift, from `shifts`. 0 where no other split is as extreme as the observed one:
    then the test says all that it can with so few boots, however large its least p."""
    import numpy as np

    as_low = int(np.searchsorted(ordered, shift + SAME, side="right"))
    as_high = len(ordered) - int(np.searchsorted(ordered, shift - SAME, side="left"))
    fewer = min(as_low, as_high)
    return min(1.0, 2 * (1 + fewer) / (1 + len(ordered))) if fewer else 0.0


def interval(ordered: npt.NDArray[np.float64], alpha: float) -> tuple[float, float]:
    """The shifts that are not rejected at `alpha`, from `shifts`."""
    place = max(math.floor((1 + len(ordered)) * alpha / 2 + SAME), 1)
    return float(ordered[place - 1]), float(ordered[-place])


@lru_cache(maxsize=4)
def _weights(cells: tuple[tuple[int, int], ...]) -> npt.NDArray[np.float64]:
    """For each split but the observed one a row of weights: with the values of both sides, its shift."""
    import numpy as np

    before, after = (sum(cell[side] for cell in cells) for side in (0, 1))
    if math.prod(math.comb(sum(cell), cell[1]) for cell in cells) <= MOST_SPLITS:
        of_hosts = [list(combinations(range(sum(cell)), cell[1])) for cell in cells]
        chosen = [np.array(rows) for rows in zip(*product(*of_hosts), strict=True)]
    else:
        draw = random.Random(SEED)
        chosen = []
        for cell in cells:
            keys = np.array([draw.random() for _ in range(MOST_SPLITS * sum(cell))])
            chosen.append(keys.reshape(MOST_SPLITS, sum(cell)).argsort(axis=1)[:, : cell[1]])
    taken = np.zeros((len(chosen[0]), before + after))
    first, second = 0, before
    for (one, other), rows in zip(cells, chosen, strict=True):
        columns = np.array([*range(first, first + one), *range(second, second + other)])
        np.put_along_axis(taken, columns[rows], 1.0, axis=1)
        first, second = first + one, second + other
    moved = taken[:, :before].sum(axis=1)
    taken, moved = taken[moved > 0], moved[moved > 0]
    weights: npt.NDArray[np.float64] = np.hstack([-taken[:, :before], 1 - taken[:, before:]])
    weights /= moved[:, None]
    return weights
