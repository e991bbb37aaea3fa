# SPDX-License-Identifier: GPL-2.0-only
"""One metric, two kernels: the effect, its uncertainty, and the number of boots that show it.

A boot is one sample. Kernel counters vary by a factor rather than by an amount (a boot in which half as much
is scanned has half of all that follows), so everything is done with logarithms, and an effect is a ratio.
Welch's t test (Welch 1947, with Satterthwaite's degrees of freedom) compares the means of the logs: the
kernels need not have the same spread, and often do not, since many a regression is a larger spread.

Two rules keep it honest with few boots and small counts.

* A count varies at least as one of independent events does (Poisson: the variance is the mean; of the log,
  1/mean). Three boots that counted 1 1 1 and 0 0 0 have no spread of their own, but mean little. Large counts
  do not feel this. A metric without this floor (a ratio) and without any spread is judged by `two_modes`.
* Zeros. With one in the data, a shift is added to all values: 1/2 to counts (Anscombe 1948; Haldane and Woolf
  for log ratios), half of the median of the positive values to others. Where a kernel counted 0 in every
  boot, the ratio is 0 and its interval is open on that side. A count has a scale of its own, and others have
  none: 0, 0 and 1e-9 may be alike or far apart. So kernels of which some boots have 0 and others not are
  compared by counts only (`mixed`).

A percentage has a ceiling: from 92 it cannot rise by 1.1. So the odds p / (100 - p) are compared, which have
no ends. With a 0 or a 100 in the data, percentages are taken as known to half a point (`EDGE`): it is added
to both parts, and a boot's log varies by at least that much.

A drift. As an experiment goes on, a host may become slower or warmer, or its file system older. A trend over
the boots' positions that both kernels share and that differs from none at `DRIFT_ALPHA` is fitted and taken
out (analysis of covariance, with a variance of its own for each kernel). It costs a degree of freedom, shared
by both, and with it a part of the power of few boots; so it is done only where a drift is seen, and what is
not seen stays in the spread. benchmarks/judge.py shows the rates of wrong answers with and without a drift.

Several hosts. The rounds of an experiment that was spread over hosts are judged within each: a host is a
block, whose level is its own (a two-way layout without interaction, on logs). The effect is the mean of the
hosts' own differences, with the weights of least squares (`shares`); a kernel's variance is that of its boots
about its means on the hosts, so that each host costs a degree of freedom of either kernel, and is not below
the floor of each host's own counts. Where the kernels' effect is another one on each host, this is its mean
over these hosts. No drift is looked for: each host has its own, and whole rounds bear it as one host's do.

The exact test (permutation) is a second gate: with EXACT_BOOTS boots of each kernel or more a p is the larger
one of both tests, and an interval has what either leaves in. Welch's test takes logs to be about normal, and
two modes are not. Where the kernels' boots separate fully, no split is more extreme: Welch's decides alone.
With fewer boots the exact test would be too coarse: with 3 its p is never below 2/20.
benchmarks/judge.py measures the rates of wrong answers for several distributions, from Poisson to two modes,
with it and without. Not here: what a case expects (expectation).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from statistics import fmean, median
from typing import TYPE_CHECKING

from numalab.analysis import permutation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LEAST_BOOTS = 3
"""The least boots of each kernel for any decision. A counter that has two modes, chosen at random in each
boot, seems to differ between two equal kernels with the chance `two_modes`: 12 % with 2 boots of each, 3 %
with 3."""
LEAST_ON_HOST = 2
"""The least boots of each kernel on a host that is a block: one has no spread within its host."""
LEAST_WITHIN = 3
"""The least boots of each kernel beyond one a host, where there are several: with 2, a host whose counter has
two modes beside a quiet one claims an effect between equal kernels with a chance of 6 %."""
EXACT_BOOTS = 5
"""The least boots of each kernel for which the exact test is asked. With 4 it could reject one split of 70
alone, and would deny effects much less often; with 3 it would change nothing."""
MOST_BOOTS = 1000
"""The largest result of boots_needed: so many, or more."""
POWER = 0.8
PARTS = 50
"""Parts of the distribution of a standard error over which a chance is averaged."""
MOST_EFFECT = 1e6
"""The largest result of detectable: this factor, or more."""
EDGE = 0.5
"""What is added to both parts of percentages when one of them is 0 or 100, in points."""
DRIFT_ALPHA = 0.01
"""The p below which a trend over the boots is a drift."""
NO_SPREAD = 1e-9
"""Standard error of a log ratio below which values differ only by rounding."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect after / before, as logarithms."""

    boots: tuple[int, int]
    log: float
    """The log of the ratio of geometric means (of values + shift)."""
    variances: tuple[float, float]
    """The variances of a boot's log, before and after, from the boots or from their counts."""
    vanished: tuple[bool, bool]
    """Whether all values of a kernel are 0: before, after."""
    drift: Drift | None = None
    """What was taken out of the boots' logs."""
    logs: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """The boots' logs, before and after, without the drift; None where only their spread is supposed."""
    hosts: tuple[tuple[float, float], ...] = ()
    """Boots before and after on each host, where hosts are blocks, and `logs` are in their order."""

    @property
    def _parts(self) -> list[tuple[float, float]]:
        """The parts of the variance of `log`, each with its degrees of freedom."""
        if self.hosts:
            return [
                (variance * weight, n - len(self.hosts))
                for variance, weight, n in zip(self.variances, _weights(self.hosts), self.boots, strict=True)
            ]
        lost = self.drift.lost if self.drift else (0.0, 0.0)
        parts = [
            (variance / n, n - 1 - less)
            for variance, n, less in zip(self.variances, self.boots, lost, strict=True)
        ]
        return (
            [*parts, (self.drift.apart**2 * self.drift.variance, sum(self.boots) - 3)]
            if self.drift
            else parts
        )

    @property
    def error(self) -> float:
        """The standard error of `log`."""
        return math.sqrt(sum(part for part, _ in self._parts))

    @property
    def freedom(self) -> float:
        """Satterthwaite's degrees of freedom of `error`."""
        return _freedom(self._parts)

    @cached_property
    def shifts(self) -> npt.NDArray[np.float64] | None:
        """See permutation.shifts; None where the exact test is not asked."""
        if self.logs is None or min(self.boots) < EXACT_BOOTS:
            return None
        cells = [(int(before), int(after)) for before, after in self.hosts]
        return permutation.shifts(*self.logs, cells)

    @property
    def planned_freedom(self) -> float:
        """Degrees of freedom for planning.

        The test estimates its own from the boots, and with few boots they come out lower than with the true
        spread: a plan with those for a power of 80 % has a power of 70 % with 3 boots. The geometric mean of
        them and their minimum keeps it at 80 to 83 % (test_effect measures that).
        """
        return math.sqrt(self.freedom * min(freedom for _, freedom in self._parts[:2]))


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A trend over the positions of boots."""

    log: float
    """The change of a boot's log from one position to the next."""
    variance: float
    """The variance of `log`."""
    apart: float
    """How much later the boots after are than those before, on average, in positions."""
    lost: tuple[float, float]
    """The parts of a degree of freedom that the fit takes from before and after."""


def _freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Satterthwaite's degrees of freedom of a sum of variances, each with its own."""
    return sum(part for part, _ in parts) ** 2 / sum(part**2 / freedom for part, freedom in parts)


def shift(values: Sequence[float], *, counts: bool) -> float:
    """What is added to all values before taking logs: 0 unless one of them is 0."""
    if min(values) > 0:
        return 0.0
    return 0.5 if counts else median([value for value in values if value > 0] or [1.0]) / 2


def mixed(values: Sequence[float]) -> bool:
    """Whether some values of a kernel are 0 and others not: no ratio without a scale tells how far apart."""
    return 0 < sum(value == 0 for value in values) < len(values)


def edge(percentages: Sequence[float]) -> float:
    """What is added to both parts of percentages before taking odds: 0 unless one of them is 0 or 100."""
    return 0.0 if min(percentages) > 0 and max(percentages) < 100 else EDGE


def odds(percentage: float, extra: float) -> float:
    """The part over the rest of the whole; `extra`: see edge."""
    return (percentage + extra) / (100 - percentage + extra)


def logs(values: Sequence[float], extra: float, *, share: bool) -> list[float]:
    """What is compared: the logarithms of values, or of a percentage's odds. `extra`: see shift, or edge."""
    return [math.log(odds(value, extra) if share else value + extra) for value in values]


def compare(
    before: Sequence[float],
    after: Sequence[float],
    *,
    counts: bool,
    share: bool = False,
    positions: tuple[Sequence[float], Sequence[float]] | None = None,
    hosts: tuple[Sequence[str], Sequence[str]] | None = None,
) -> Effect:
    """The effect between the values of two or more boots of each kernel. No value is negative, not all are 0.

    `counts`: the values are numbers of events, not ratios or times; others may not be `mixed`.
    `share`: they are percentages, and the effect is that of their odds.
    `positions`: of the boots in their experiment; without them no drift is looked for.
    `hosts`: the hosts of the boots, if they are blocks: LEAST_ON_HOST boots of each kernel on each.
    """
    both = [*before, *after]
    extra = edge(both) if share else shift(both, counts=counts)
    vanished = (not share and not any(before), not share and not any(after))
    if hosts:
        return _within(
            [_by_host(side, of_side) for side, of_side in zip((before, after), hosts, strict=True)],
            lambda side: logs(side, extra, share=share),
            lambda side: _floor(side, extra, counts=counts, share=share),
            vanished,
        )
    floors = [_floor(side, extra, counts=counts, share=share) for side in (before, after)]
    sides = [logs(side, extra, share=share) for side in (before, after)]
    log, drift = fmean(sides[1]) - fmean(sides[0]), None
    if positions and not any(vanished) and min(len(before), len(after)) >= LEAST_BOOTS:
        drift = _drift(sides, positions, floors)
    if drift and positions:
        log -= drift.log * drift.apart
        sides = _without(drift.log, sides, positions)
    spread = [
        max(_variance(side, less), floor)
        for side, less, floor in zip(sides, drift.lost if drift else (0.0, 0.0), floors, strict=True)
    ]
    return Effect(
        boots=(len(before), len(after)),
        log=log,
        variances=(spread[0], spread[1]),
        vanished=vanished,
        drift=drift,
        logs=(tuple(sides[0]), tuple(sides[1])),
    )


def _floor(side: Sequence[float], extra: float, *, counts: bool, share: bool) -> float:
    """The least variance of a boot's log."""
    if share:
        return sum((extra / (part + extra)) ** 2 for part in (fmean(side), 100 - fmean(side)))
    return 1 / (fmean(side) + extra) if counts else 0.0


def shares(hosts: Sequence[tuple[float, float]]) -> list[float]:
    """Each host's share in the effect within hosts, by its boots before and after: least squares' weights."""
    weights = [before * after / (before + after) for before, after in hosts]
    return [weight / sum(weights) for weight in weights]


def _weights(hosts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """What the variances of a boot before and of one after add to that of the effect within hosts."""
    parts = list(zip(shares(hosts), hosts, strict=True))
    return sum(part**2 / n for part, (n, _) in parts), sum(part**2 / n for part, (_, n) in parts)


def _by_host(values: Sequence[float], hosts: Sequence[str]) -> list[list[float]]:
    """The values of each host, the hosts in the order of their names."""
    pairs = list(zip(hosts, values, strict=True))
    return [[value for host, value in pairs if host == name] for name in sorted(set(hosts))]


def _within(
    sides: Sequence[Sequence[Sequence[float]]],
    logs_of: Callable[[Sequence[float]], list[float]],
    floor_of: Callable[[Sequence[float]], float],
    vanished: tuple[bool, bool],
) -> Effect:
    """The effect within hosts, of both sides' values by host."""
    values = [[logs_of(host) for host in side] for side in sides]
    hosts = tuple((len(before), len(after)) for before, after in zip(*sides, strict=True))
    boots = (sum(before for before, _ in hosts), sum(after for _, after in hosts))
    parts = shares(hosts)
    variances = []
    for side, counted, n, whole in zip(values, sides, boots, _weights(hosts), strict=True):
        own = sum(map(squares, side)) / (n - len(hosts))
        weighted = (
            part**2 / len(host) * max(own, floor_of(host)) for part, host in zip(parts, counted, strict=True)
        )
        variances.append(sum(weighted) / whole)
    return Effect(
        boots=boots,
        log=sum(
            part * (fmean(after) - fmean(before)) for part, before, after in zip(parts, *values, strict=True)
        ),
        variances=(variances[0], variances[1]),
        vanished=vanished,
        logs=(tuple(chain(*values[0])), tuple(chain(*values[1]))),
        hosts=hosts,
    )


def _without(
    slope: float, sides: Sequence[Sequence[float]], positions: Sequence[Sequence[float]]
) -> list[list[float]]:
    """The logs less a trend over positions."""
    return [
        [value - slope * position for value, position in zip(side, of_side, strict=True)]
        for side, of_side in zip(sides, positions, strict=True)
    ]


def squares(values: Sequence[float]) -> float:
    """The sum of their squared differences from their mean. statistics.variance, which computes in fractions,
    takes ten times as long."""
    centre = fmean(values)
    return math.fsum((value - centre) ** 2 for value in values)


def _variance(values: Sequence[float], lost: float) -> float:
    """The variance of values from which a fit took `lost` degrees of freedom."""
    return squares(values) / (len(values) - 1 - lost)


def _drift(
    sides: Sequence[Sequence[float]],
    positions: tuple[Sequence[float], Sequence[float]],
    floors: Sequence[float],
) -> Drift | None:
    """The trend of logs over positions within both kernels, by least squares; None when it may be chance.

    `floors`: the least variance of a boot's log, before and after.
    """
    from scipy.special import stdtr

    extents = [squares(of_side) for of_side in positions]
    if not all(extents):
        return None
    whole = sum(extents)
    slope = (
        sum(
            (value - centre) * (position - middle)
            for side, of_side in zip(sides, positions, strict=True)
            for centre, middle in [(fmean(side), fmean(of_side))]
            for value, position in zip(side, of_side, strict=True)
        )
        / whole
    )
    lost = (extents[0] / whole, extents[1] / whole)
    left = _without(slope, sides, positions)
    # Each kernel has its own variance: where "before" scatters much more, its boots say less of the trend.
    error = (
        sum(
            max(_variance(side, less), floor) * extent
            for side, less, floor, extent in zip(left, lost, floors, extents, strict=True)
        )
        / whole**2
    )
    if math.sqrt(error) <= NO_SPREAD:
        return None
    p = 2 * float(stdtr(sum(map(len, sides)) - 3, -abs(slope) / math.sqrt(error)))
    if p > DRIFT_ALPHA:
        return None
    apart = fmean(positions[1]) - fmean(positions[0])
    return Drift(log=slope, variance=error, apart=apart, lost=lost)


def ratio(effect: Effect) -> float | None:
    """after / before; None when before is all 0."""
    return None if effect.vanished[0] else 0.0 if effect.vanished[1] else math.exp(effect.log)


def quantile(probability: float, freedom: float) -> float:
    """A quantile of Student's t distribution.

    scipy is imported in the functions that use it: its import takes as long as the rest of a lab.py that
    judges nothing.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def interval(effect: Effect, alpha: float) -> tuple[float, float | None]:
    """The ratio's confidence interval at 1 - alpha; None is an open end."""
    reach = quantile(1 - alpha / 2, effect.freedom) * effect.error if effect.error > NO_SPREAD else 0.0
    ends = effect.log - reach, effect.log + reach
    if effect.shifts is not None:
        exact = permutation.interval(effect.shifts, alpha)
        ends = min(ends[0], exact[0]), max(ends[1], exact[1])
    low = 0.0 if effect.vanished[1] else math.exp(ends[0])
    return low, None if effect.vanished[0] else _exp(ends[1])


def _exp(log: float) -> float | None:
    """exp; None when the result does not fit into a float."""
    return math.exp(log) if log < 700 else None


def two_modes(boots: tuple[int, int]) -> float:
    """The chance that boots with two random modes split exactly by kernel, although the kernel has no
    influence.

    2 p^n (1-p)^m at its maximum, p = n/(n+m). For equal numbers this is the unconditional exact test (Barnard
    1945) of a table with n in its diagonal and 0 elsewhere.
    """
    n, m = boots
    return float(min(1.0, 2 * (n / (n + m)) ** n * (m / (n + m)) ** m))


def p_distance(effect: Effect, distance: float) -> float:
    """The two-sided p of a supposed log, from which the observed one differs by `distance`: the larger of
    that of Welch's test and that of the exact one."""
    exact = 0.0 if effect.shifts is None else permutation.p(effect.shifts, effect.log - distance)
    return max(_p_welch(effect, distance), exact)


def _p_welch(effect: Effect, distance: float) -> float:
    if effect.error > NO_SPREAD:
        from scipy.special import stdtr

        return min(1.0, float(2 * stdtr(effect.freedom, -abs(distance) / effect.error)))
    if abs(distance) <= NO_SPREAD:
        return 1.0
    return two_modes(effect.boots) if _one_way(effect) else 1.0


def _one_way(effect: Effect) -> bool:
    """Whether the kernels differ on each host, in one direction. Where boots have no spread, and only some
    hosts show a difference, modes chosen by host do that as well."""
    if effect.logs is None or not effect.hosts:
        return True
    before, after = map(iter, effect.logs)
    signs = {
        math.copysign(1, apart) if abs(apart) > NO_SPREAD else 0.0
        for n, m in effect.hosts
        for apart in [fmean(islice(after, int(m))) - fmean(islice(before, int(n)))]
    }
    return len(signs) == 1


def share(part: int, whole: int, alpha: float) -> tuple[float, float]:
    """The interval at 1 - alpha of a share of which `part` of `whole` were drawn (Clopper and Pearson 1934).

    Its error is alpha / 2 at most at each end, however few were drawn.
    """
    from scipy.special import betaincinv

    low = float(betaincinv(part, whole - part + 1, alpha / 2)) if part else 0.0
    high = float(betaincinv(part + 1, whole - part, 1 - alpha / 2)) if part < whole else 1.0
    return low, high


def detectable(effect: Effect, alpha: float, by: float = 1.0) -> float:
    """The least true effect (a factor) at which as many boots with this spread have a chance of POWER to
    hold: to differ from 1, and to be estimated at `by` or more. MOST_EFFECT where they can show none.

    At a true effect of exactly `by` that chance is a half at most, however many the boots.
    """
    chance = _Chance(effect, alpha)
    least = math.log(by)
    low, high = least, max(least, math.log(MOST_EFFECT))
    if chance(low, least) >= POWER:
        return by
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if chance(middle, least) >= POWER else (middle, high)
    return math.exp(high)


def boots_needed(effect: Effect, distance: float, alpha: float, *, least: float = 0.0) -> int | None:
    """Boots of each kernel with which a true log of `distance` has a chance of POWER to differ from 0 and to
    be estimated at `least` or more. None where no number of boots has it: `distance` is not beyond `least`.
    """
    return _boots_needed(effect, distance, alpha, least, 1.0)


def boots_range(
    effect: Effect, distance: float, alpha: float, *, least: float = 0.0
) -> tuple[int, int] | None:
    """The fewest and the most that boots_needed may be, by how well so many boots tell their own scatter: at
    the ends of its interval at POWER (chi-squared)."""
    from scipy.special import chdtri

    if effect.error <= NO_SPREAD:
        needed = _boots_needed(effect, distance, alpha, least, 1.0)
        return None if needed is None else (needed, needed)
    freedom = effect.freedom
    ends = [freedom / float(chdtri(freedom, part)) for part in ((1 - POWER) / 2, (1 + POWER) / 2)]
    boots = [_boots_needed(effect, distance, alpha, least, times) for times in ends]
    return None if boots[0] is None or boots[1] is None else (boots[0], boots[1])


def _boots_needed(effect: Effect, distance: float, alpha: float, least: float, times: float) -> int | None:
    if distance - max(least, 0.0) <= NO_SPREAD:
        return None
    return (fewest := _fewest(effect)) + bisect_left(
        range(fewest, MOST_BOOTS),
        True,
        key=lambda boots: _Chance(_imagined(effect, boots, times), alpha)(distance, least) >= POWER,
    )


def least_boots(hosts: int) -> int:
    """The least boots of each kernel for a decision, on so many hosts that are blocks (0: they are none)."""
    return max(LEAST_BOOTS, LEAST_ON_HOST * hosts, hosts + LEAST_WITHIN if hosts > 1 else 0)


def too_few(hosts: Mapping[str, tuple[int, int]]) -> tuple[dict[str, tuple[int, int]], int]:
    """Which hosts have too few boots of a kernel (the hosts are blocks; name -> boots before and after). If
    none has: the least boots of each kernel, where all together have fewer (0: they have enough)."""
    thin = {name: boots for name, boots in hosts.items() if min(boots) < LEAST_ON_HOST}
    least = least_boots(len(hosts))
    fewest = min(sum(side) for side in zip(*hosts.values(), strict=True)) if hosts else least
    return thin, least if not thin and fewest < least else 0


def _fewest(effect: Effect) -> int:
    """The least boots of each kernel that can decide."""
    return least_boots(len(effect.hosts))


def _imagined(effect: Effect, boots: int, times: float) -> Effect:
    """The effect from so many boots of each kernel whose variances are `times` as large.

    With longer experiments a trend is known better, by the cube of their length, and the sides' mean
    positions come nearer to each other.
    """
    longer = 2 * boots / sum(effect.boots)
    first, second = (times * variance for variance in effect.variances)
    drift = effect.drift and replace(
        effect.drift, variance=times * effect.drift.variance / longer**3, apart=effect.drift.apart / longer
    )
    hosts = tuple((boots / len(effect.hosts),) * 2 for _ in effect.hosts)
    return replace(effect, boots=(boots, boots), variances=(first, second), drift=drift, hosts=hosts)


class _Chance:
    """The chance that boots like these show a true log effect: their error and its degrees of freedom."""

    def __init__(self, effect: Effect, alpha: float) -> None:
        import numpy as np
        from scipy.special import chdtri

        self.error = effect.error
        if self.error <= NO_SPREAD:
            self.differs = two_modes(effect.boots) <= alpha
            return
        freedom = effect.planned_freedom
        # The error as boots would estimate it, over the true one: at the middles of equal parts of its
        # distribution, which leaves a sum over normal distributions of the integral over it.
        parts = (np.arange(PARTS) + 0.5) / PARTS
        self.least = quantile(1 - alpha / 2, freedom) * np.sqrt(
            np.asarray(chdtri(freedom, parts), dtype=float) / freedom
        )

    def __call__(self, log: float, least: float) -> float:
        """The chance of an estimate that differs upwards from 0, by `least` or more, where `log` is true."""
        if self.error <= NO_SPREAD:
            return float(self.differs and log >= max(least, 0.0))
        import numpy as np
        from scipy.special import ndtr

        return float(np.mean(ndtr(log / self.error - np.maximum(self.least, least / self.error))))
