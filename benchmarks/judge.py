#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Error rates of verdicts, and how often they detect known effects: simulated boots, the same every time.

In percent, ten tables: effects claimed where nothing changed, for several distributions; for two kernels with
unlike distributions of the same geometric mean; the known effects (issue 4's table, KNOWN) detected; the same
cases with "before" passed off as "after"; counters that should be 0 (`to`) denied, by the share of boots that
miss it; boots that drift; boots of which each resembles the one before it; experiments that are spread over
hosts, each a block; one build of each kernel and several, whose layout has an effect; two plans of
`--boots auto`.

    .venv/bin/python benchmarks/judge.py [--tries 2000] [--without-exact] [--only TABLE]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np
import numpy.typing as npt

from numalab.analysis import effect, expectation, verdict
from numalab.analysis.metrics import Kind
from numalab.experiment.plan import boot_order
from numalab.model.case import CaseSize, Cost, Direction, Expectation, Machine
from numalab.model.verdict import Answer, Finding

Draw = Callable[[np.random.Generator, int], list[float]]
BOOTS = (3, 4, 5, 8)


@dataclass(frozen=True, kw_only=True)
class Known:
    """A row of issue 4's table "What is known to be visible under emulation": three boots of each kernel."""

    name: str
    metric: str
    kind: Kind
    before: tuple[float, ...]
    after: tuple[float, ...]
    by: float
    """A threshold that a case may set, well below the effect. The issue names none."""
    to: float | None = None

    def wish(self) -> Expectation:
        """A case's expectation of it."""
        return Expectation(metric=self.metric, phase="*", direction=Direction.FALLS, by=self.by, to=self.to)


def _known(
    name: str,
    metric: str,
    kind: Kind,
    before: Sequence[float],
    after: Sequence[float],
    by: float,
    to: float | None = None,
) -> Known:
    return Known(name=name, metric=metric, kind=kind, before=tuple(before), after=tuple(after), by=by, to=to)


COUNT, RATIO, SHARE = Kind.COUNT, Kind.RATIO, Kind.SHARE
KNOWN = (
    _known("slowscan", "numa_pte_updates", COUNT, (1557e3, 1721e3, 1590e3), (98e3, 98e3, 98e3), 4),
    _known("savedwrite", "faults_per_hint_fault", RATIO, (2.3, 2.0, 2.3), (1.04, 1.03, 1.09), 1.5),
    _known("nogroup", "migrated_per_hint_fault", RATIO, (0.207, 0.193, 0.222), (0.133, 0.107, 0.163), 1.3),
    _known("all three", "pgfault", COUNT, (96e3, 106e3, 99e3), (70e3, 76e3, 76e3), 1.2),
    _known("all three", "migrated_per_hint_fault", RATIO, (0.90, 0.77, 0.91), (0.28, 0.42, 0.70), 1.3),
    _known("nodirty", "numa_pte_updates", COUNT, (483e3, 311e3, 80e3), (11.6e3, 2.4e3, 5.4e3), 5),
    _known("dirtyspread", "nr_vmscan_immediate_reclaim", COUNT, (11413, 12957, 947), (0, 0, 0), 10, 0),
    _known("dirtyspread", "kswapd_scan_per_steal", RATIO, (1.65, 1.43, 1.30), (1.001, 1.001, 1.001), 1.2),
    _known("stagger", "numa_pte_updates", COUNT, (148e3, 131e3, 98e3), (66e3, 49e3, 66e3), 1.5),
    _known(
        "fairzone, 1 node", "fairzone_resets_per_1000_pages", RATIO, (2.9, 2.0, 1.8), (0.18, 0.18, 0.18), 3
    ),
    _known(
        "fairzone, 4 nodes", "fairzone_resets_per_1000_pages", RATIO, (94, 107, 99), (0.61, 0.60, 0.60), 10
    ),
    _known("fairzone, 4 nodes", "fairzone_remote", COUNT, (291e3, 329e3, 307e3), (116e3, 124e3, 109e3), 1.5),
)


def _drawn(values: npt.ArrayLike, digits: int = 12) -> list[float]:
    return [float(value) for value in np.round(np.asarray(values, dtype=float), digits)]


def _scattered(mean: float, sd: float, digits: int = 12) -> Draw:
    """Boots with a log-normal distribution."""
    return lambda rng, boots: _drawn(np.exp(rng.normal(mean, sd, boots)), digits)


def _modes(sd: float, apart: float, share: float) -> Draw:
    """Boots with one of two modes, at random."""
    return lambda rng, boots: _drawn(
        np.exp(8 + rng.normal(0, sd, boots) + apart * (rng.random(boots) < share))
    )


def _zeros(sd: float, share: float) -> Draw:
    """Boots of which only a share counts anything."""
    return lambda rng, boots: _drawn(np.exp(rng.normal(9, sd, boots)) * (rng.random(boots) < share), 0)


def _percentages(whole: int, share: float) -> Draw:
    """Boots in each of which a share of so many events is of one sort; the share differs a little by boot."""
    return lambda rng, boots: _drawn(
        100 / whole * rng.binomial(whole, rng.beta(50 * share, 50 * (1 - share), boots))
    )


UNCHANGED: dict[str, tuple[Kind, Draw]] = {
    "log-normal": (RATIO, _scattered(8, 0.5)),  # the width does not matter: the tests use logs
    "exponential": (RATIO, lambda rng, boots: _drawn(rng.exponential(1, boots))),
    "counts, log-normal by 4.5": (COUNT, _scattered(4, 1.5, 0)),
    "counts, Poisson, mean 1": (COUNT, lambda rng, boots: _drawn(rng.poisson(1, boots))),
    "counts, Poisson, mean 2": (COUNT, lambda rng, boots: _drawn(rng.poisson(2, boots))),
    "counts, Poisson, mean 5": (COUNT, lambda rng, boots: _drawn(rng.poisson(5, boots))),
    "counts, Poisson, mean 100": (COUNT, lambda rng, boots: _drawn(rng.poisson(100, boots))),
    "counts in bursts, mean 1000": (COUNT, lambda rng, boots: _drawn(rng.negative_binomial(1, 1e-3, boots))),
    "counts in rare bursts": (COUNT, lambda rng, boots: _drawn(rng.negative_binomial(0.2, 2e-4, boots))),
    "1 boot of 10 is an outlier": (RATIO, _modes(0.05, 1.5, 0.1)),
    "0 in half of the boots": (COUNT, _zeros(0.5, 0.5)),
    "0 in most boots": (COUNT, _zeros(0.5, 0.2)),
    "percentages about 40": (SHARE, _percentages(100, 0.4)),
    "percentages about 98": (SHARE, _percentages(100, 0.98)),
    "percentages about 99.9": (SHARE, _percentages(1000, 0.999)),
    "two modes, even": (RATIO, _modes(0.05, 2, 0.5)),
    "two modes, exact": (RATIO, _modes(0, 2, 0.5)),
    "two modes, 3 of 10": (RATIO, _modes(0.05, 2, 0.3)),
}
UNLIKE: dict[str, tuple[Draw, Draw]] = {
    "log-normal by 5 %, and by 50 %": (_scattered(8, 0.05), _scattered(8, 0.5)),
    "log-normal by 20 %, and exponential": (
        _scattered(-float(np.euler_gamma), 0.2),
        UNCHANGED["exponential"][1],
    ),
    "log-normal by 20 %, and two modes, even": (_scattered(9, 0.2), UNCHANGED["two modes, even"][1]),
    "log-normal by 20 %, and two modes, 3 of 10": (_scattered(8.6, 0.2), UNCHANGED["two modes, 3 of 10"][1]),
    "log-normal by 5 %, and outliers": (_scattered(8.15, 0.05), UNCHANGED["1 boot of 10 is an outlier"][1]),
}
"""Kernels whose boots have the same geometric mean, which is what an effect compares, and nothing more."""
ANY = Expectation(metric="any", phase="*", direction=Direction.FALLS)
RISES = Expectation(metric="any", phase="*", direction=Direction.RISES)
TO_NOTHING = Expectation(metric="any", phase="*", direction=Direction.FALLS, by=10, to=0)
MANY = _scattered(9, 0.3, 0)
MISSING_BOOTS = (*BOOTS, 12)
AUTO = verdict.looks(CaseSize(source="", machines=(Machine(topology="4socket"),), minutes=1))
PLANS = (AUTO, (4, 6, 8))


def one(
    wish: Expectation,
    kind: Kind,
    before: Sequence[float],
    after: Sequence[float],
    alpha: float = expectation.ALPHA,
) -> Finding:
    """A finding from drawn boots."""
    return expectation.together([expectation.with_values(wish, before, after, kind)], alpha, outlook=False)[0]


def rates(
    wish: Expectation, kind: Kind, before: Draw, after: Draw, boots: int, tries: int
) -> dict[Answer, float]:
    """The share of each answer, in percent."""
    rng, counted = np.random.default_rng(4), dict.fromkeys(Answer, 0)
    for _ in range(tries):
        counted[one(wish, kind, before(rng, boots), after(rng, boots)).answer] += 1
    return {answer: 100 * count / tries for answer, count in counted.items()}


def auto(wish: Expectation, kind: Kind, before: Draw, after: Draw, tries: int, *, shared: bool) -> float:
    """How often --boots auto ends with `holds`, in percent; `shared` divides the error by the looks."""
    return looking(wish, kind, before, after, tries, AUTO, shared=shared)[0][Answer.HOLDS]


def looking(
    wish: Expectation,
    kind: Kind,
    before: Draw,
    after: Draw,
    tries: int,
    plan: Sequence[int],
    *,
    shared: bool = True,
) -> tuple[dict[Answer, float], float]:
    """The share of each answer in the end, in percent, and the mean boots of each kernel that it took."""
    rng, counted, took = np.random.default_rng(5), dict.fromkeys(Answer, 0), 0
    errors = verdict.errors(plan) if shared else [expectation.ALPHA] * len(plan)
    for _ in range(tries):
        sides = before(rng, plan[-1]), after(rng, plan[-1])
        for boots, alpha in zip(plan, errors, strict=True):
            answer = one(wish, kind, sides[0][:boots], sides[1][:boots], alpha).answer
            if answer is not Answer.CANNOT_TELL:
                break
        counted[answer] += 1
        took += boots
    return {answer: 100 * count / tries for answer, count in counted.items()}, took / tries


def show_looks(tries: int) -> None:
    """Print what looks that begin with 4 boots would change."""
    print("\nlooks: before against after, holds, %; planted, does not hold, % (mean boots of each kernel)")
    print(f"{'':50}{'by':>6}" + "".join(f"{f'auto {plan}':>28}" for plan in PLANS))
    for row in KNOWN:
        before, after = like(row, row.before), like(row, row.after)
        cells = []
        for plan in PLANS:
            held, took = looking(row.wish(), row.kind, before, after, tries, plan)
            denied, more = looking(row.wish(), row.kind, before, before, tries, plan)
            cells.append(
                f"{held[Answer.HOLDS]:.1f} ({took:.1f}) {denied[Answer.DOES_NOT_HOLD]:.1f} ({more:.1f})"
            )
        shown = "".join(f"{cell:>28}" for cell in cells)
        print(f"{row.name:18} {row.metric:31}{row.by:6g}{shown}", flush=True)


def like(row: Known, values: Sequence[float]) -> Draw:
    """Boots with the geometric mean and the spread of three observed ones; if all were 0, zeros."""
    if not any(values):
        return lambda rng, boots: [0.0] * boots
    logs = [math.log(value) for value in values]
    return _scattered(mean(logs), stdev(logs), 0 if row.kind is COUNT else 6)


def show_unchanged(tries: int) -> None:
    """Print how often effects are claimed where there are none."""
    print(f"nothing changed: `falls` held, % of {tries} tries ({50 * expectation.ALPHA:.3g} are allowed)")
    print(
        f"{'boots of each kernel':28}"
        + "".join(f"{boots:>7}" for boots in BOOTS)
        + f"{f'auto {AUTO}':>16}{'unshared':>10}"
    )
    for name, (kind, draw) in UNCHANGED.items():
        held = [rates(ANY, kind, draw, draw, boots, tries)[Answer.HOLDS] for boots in BOOTS]
        shared, unshared = (auto(ANY, kind, draw, draw, tries, shared=way) for way in (True, False))
        print(
            f"{name:28}" + "".join(f"{rate:7.1f}" for rate in held) + f"{shared:16.1f}{unshared:10.1f}",
            flush=True,
        )
    print(f"2 boots of each kernel, were they allowed to decide: {two_boots(tries):.1f} (two modes, even)")


def show_unlike(tries: int) -> None:
    """Print how often effects are claimed of kernels that differ in all but their geometric mean."""
    print("\nthe same geometric mean, unlike distributions: `falls` held, % (`rises` held)")
    print(f"{'boots of each kernel':44}" + "".join(f"{boots:>14}" for boots in BOOTS))
    for name, (before, after) in UNLIKE.items():
        cells = [
            tuple(rates(wish, RATIO, before, after, boots, tries)[Answer.HOLDS] for wish in (ANY, RISES))
            for boots in BOOTS
        ]
        shown = "".join(f"{f'{fell:.1f} ({rose:.1f})':>14}" for fell, rose in cells)
        print(f"{name:44}{shown}", flush=True)


def show_known(tries: int) -> None:
    """Print how often real effects are detected."""
    print("\nknown effects, boots drawn to scatter as the three that were seen: holds, %")
    print(f"{'':50}{'by':>6}" + "".join(f"{boots:>7}" for boots in BOOTS) + f"{'auto':>7}  of the three seen")
    for row in KNOWN:
        before, after = like(row, row.before), like(row, row.after)
        held = [rates(row.wish(), row.kind, before, after, boots, tries)[Answer.HOLDS] for boots in BOOTS]
        held.append(auto(row.wish(), row.kind, before, after, tries, shared=True))
        seen = one(row.wish(), row.kind, row.before, row.after)
        print(
            f"{row.name:18} {row.metric:31}{row.by:6g}"
            + "".join(f"{rate:7.1f}" for rate in held)
            + f"  {seen.answer}, p {seen.p or 0:.2g}",
            flush=True,
        )


def show_planted(tries: int) -> None:
    """Print how often planted regressions are detected."""
    print("\nthe same with before passed off as after: does not hold, % (held, %)")
    for row in KNOWN:
        before = like(row, row.before)
        of_boots = [rates(row.wish(), row.kind, before, before, boots, tries) for boots in BOOTS]
        shown = "".join(f"{rate[Answer.DOES_NOT_HOLD]:7.1f} ({rate[Answer.HOLDS]:.1f})" for rate in of_boots)
        print(f"{row.name:18} {row.metric:31}{row.by:6g}{shown}", flush=True)


def missing(share: float) -> Draw:
    """Boots that count nothing, except that a share of them counts a few events."""
    return lambda rng, boots: _drawn(3 * (rng.random(boots) < share))


def show_misses(tries: int) -> None:
    """Print how often `to` is denied."""
    print("\nfalls by 10 to 0, and some boots after count 3: does not hold, %")
    print(f"({50 * expectation.ALPHA:.3g} are allowed where {100 * expectation.MISSES:g} % of boots miss)")
    print(f"{'boots of each kernel':28}" + "".join(f"{boots:>7}" for boots in MISSING_BOOTS))
    for share in (0.01, 0.05, expectation.MISSES, 0.3, 0.5, 0.9, 1.0):
        shares = [
            rates(TO_NOTHING, COUNT, MANY, missing(share), boots, tries)[Answer.DOES_NOT_HOLD]
            for boots in MISSING_BOOTS
        ]
        name = f"{100 * share:g} % of boots miss"
        print(f"{name:28}" + "".join(f"{rate:7.1f}" for rate in shares), flush=True)


def show_drift(tries: int) -> None:
    """Print what a drift over the boots of an experiment does, taken out and left in."""
    asked = Expectation(metric="any", phase="*", direction=Direction.FALLS, by=1.1)
    print("\nboots that scatter by 5 % and drift: %, with the drift taken out (left in)")
    print(f"{'':44}" + "".join(f"{f'{boots} boots':>16}" for boots in BOOTS))
    for drift in (0.0, 0.02, 0.1):
        for name, ratio, wanted in (
            ("nothing changed: `falls` held", 1.0, (ANY, Answer.HOLDS)),
            ("falls by 1.3: by 1.1 held", 1 / 1.3, (asked, Answer.HOLDS)),
            ("nothing changed: by 1.1 denied", 1.0, (asked, Answer.DOES_NOT_HOLD)),
        ):
            cells = [drifting(drift, ratio, *wanted, boots, tries) for boots in BOOTS]
            shown = "".join(f"{out:.1f} ({left:.1f})".rjust(16) for out, left in cells)
            print(f"{f'{100 * drift:g} % a boot, {name}':44}{shown}", flush=True)


def _places(boots: int, seed: int) -> tuple[list[int], list[int]]:
    """The positions of an experiment's boots in the order in which the lab boots, before and after."""
    places: tuple[list[int], list[int]] = ([], [])
    for number, index in boot_order("ab", boots, seed=seed):
        places[index].append(number)
    return places


def drifting(
    drift: float, ratio: float, wish: Expectation, answer: Answer, boots: int, tries: int
) -> tuple[float, float]:
    """How often boots of an experiment give the answer, in percent: with their positions, and without."""
    rng, counted = np.random.default_rng(7), [0, 0]
    for seed in range(tries):
        places = _places(boots, seed)
        before, after = (
            _drawn(np.exp(rng.normal(8, 0.05, boots) + np.multiply(np.log1p(drift), of_side)))
            for of_side in places
        )
        for which, positions in enumerate((places, None)):
            measured = expectation.with_values(
                wish, before, [ratio * value for value in after], RATIO, positions=positions
            )
            counted[which] += expectation.together([measured], outlook=False)[0].answer is answer
    return 100 * counted[0] / tries, 100 * counted[1] / tries


def show_correlated(tries: int) -> None:
    """Print what boots that resemble the boot before them do, interleaved and one kernel after the other."""
    print(
        "\nnothing changed, correlated boots: `falls` held, %, as the lab boots (all before, then all after)"
    )
    print(f"{'':44}" + "".join(f"{f'{boots} boots':>14}" for boots in BOOTS))
    for share in (-0.5, 0.0, 0.3, 0.6, 0.9):
        cells = [correlated(share, boots, tries) for boots in BOOTS]
        shown = "".join(f"{f'{mixed:.1f} ({apart:.1f})':>14}" for mixed, apart in cells)
        print(f"{f'correlation with the boot before: {share:g}':44}{shown}", flush=True)


def correlated(share: float, boots: int, tries: int) -> tuple[float, float]:
    """How often `falls` holds, in percent, of boots whose logs are a stationary series with that correlation
    between neighbours (AR(1)): in the lab's order, and all of one kernel before those of the other."""
    rng, counted = np.random.default_rng(9), [0, 0]
    for seed in range(tries):
        drawn = rng.normal(0, 1, 2 * boots)
        for place in range(1, 2 * boots):
            drawn[place] = share * drawn[place - 1] + math.sqrt(1 - share**2) * drawn[place]
        values = _drawn(np.exp(8 + 0.05 * drawn))
        orders = _places(boots, seed), (range(boots), range(boots, 2 * boots))
        for which, (first, second) in enumerate(orders):
            measured = expectation.with_values(
                ANY,
                [values[place] for place in first],
                [values[place] for place in second],
                RATIO,
                positions=(first, second),
            )
            counted[which] += expectation.together([measured], outlook=False)[0].answer is Answer.HOLDS
    return 100 * counted[0] / tries, 100 * counted[1] / tries


HOSTS = ((1, 6), (2, 3), (3, 2), (1, 8), (2, 4), (4, 2))
"""(hosts, rounds on each): experiments of 6 and 8 rounds, on one host and spread."""


def _speedy(draw: Draw) -> Callable[[np.random.Generator, npt.NDArray[np.float64]], npt.ArrayLike]:
    """Boots of a distribution, on hosts of these speeds."""
    return lambda rng, speeds: np.multiply(draw(rng, len(speeds)), speeds)


ON_HOSTS: dict[str, tuple[Kind, Callable[[np.random.Generator, npt.NDArray[np.float64]], npt.ArrayLike]]] = {
    "log-normal by 20 %": (RATIO, _speedy(_scattered(8, 0.2))),
    "counts, log-normal by 20 %": (COUNT, _speedy(_scattered(5, 0.2))),
    "counts, Poisson, mean 20": (COUNT, lambda rng, speeds: rng.poisson(20 * speeds)),
    "two modes, even": (RATIO, _speedy(UNCHANGED["two modes, even"][1])),
    "two modes on one host": (
        RATIO,
        lambda rng, speeds: (
            speeds
            * np.exp(
                rng.normal(8, 0.02, len(speeds)) + np.log(4) * (rng.random(len(speeds)) < 0.5) * (speeds == 1)
            )
        ),
    ),
    "counts, two modes on one host": (
        COUNT,
        lambda rng, speeds: np.where(
            speeds == 1,
            np.where(rng.random(len(speeds)) < 0.5, 1000, 4000),
            rng.poisson(1000 * speeds),
        ),
    ),
    "scatter grows with speed": (
        RATIO,
        lambda rng, speeds: speeds * np.exp(rng.normal(8, 0.1 * speeds, len(speeds))),
    ),
}

VISIBLE = tuple(ON_HOSTS)[:3]
"""The cases whose scatter is small enough to see an effect of 1.6."""


def show_hosts(tries: int) -> None:
    """Print what it costs to spread an experiment over hosts of which each is twice as fast as another."""
    print(
        "\nspread over hosts that differ by a factor of two: `falls` held, %, hosts as blocks (as one host's)"
    )
    print(
        f"{'hosts x rounds on each':48}" + "".join(f"{f'{hosts} x {rounds}':>13}" for hosts, rounds in HOSTS)
    )
    for what, ratio, names in (("nothing changed", 1.0, ON_HOSTS), ("falls by 1.6", 1 / 1.6, VISIBLE)):
        for name in names:
            cells = [spread(name, ratio, hosts, rounds, tries) for hosts, rounds in HOSTS]
            shown = "".join(f"{f'{block:.1f} ({pooled:.1f})':>13}" for block, pooled in cells)
            print(f"{f'{what}, {name}':48}{shown}", flush=True)


def spread(name: str, ratio: float, hosts: int, rounds: int, tries: int) -> tuple[float, float]:
    """How often `falls` holds, in percent, of rounds on hosts each of which is twice as fast as the one
    before: with hosts as blocks, and as if all boots were of one host."""
    rng, counted, (kind, draw) = np.random.default_rng(8), [0, 0], ON_HOSTS[name]
    on = [f"h{host}" for host in range(hosts) for _ in range(rounds)]
    speeds = np.repeat([2.0**host for host in range(hosts)], rounds)
    for _ in range(tries):
        before, after = np.asarray(draw(rng, speeds)), ratio * np.asarray(draw(rng, speeds))
        sides = [_drawn(side, 0 if kind is COUNT else 12) for side in (before, after)]
        for which, blocks in enumerate(((on, on), None)):
            measured = expectation.with_values(ANY, sides[0], sides[1], kind, hosts=blocks)
            counted[which] += expectation.together([measured], outlook=False)[0].answer is Answer.HOLDS
    return 100 * counted[0] / tries, 100 * counted[1] / tries


BUILDS = ((6, 0), (6, 3), (6, 6), (8, 0), (8, 4), (8, 8))
"""(boots of each kernel, its builds): 0 is one build that is judged boot by boot."""


def show_builds(tries: int) -> None:
    """Print what a layout that each build has of its own does to verdicts on times."""
    print("\nbuilds whose layout moves a time: a fall of any size held, %, of boots that scatter by 1 %")
    print(
        f"{'builds x boots of each':48}" + "".join(f"{f'{b or 1} x {n // (b or 1)}':>8}" for n, b in BUILDS)
    )
    for what, ratio in (("nothing changed", 1.0), ("falls by 1.2", 1 / 1.2)):
        for layout in (0.0, 0.01, 0.03, 0.05):
            cells = [laid_out(layout, ratio, boots, builds, tries) for boots, builds in BUILDS]
            name = f"{what}, layouts scatter by {100 * layout:g} %"
            print(f"{name:48}" + "".join(f"{held:8.1f}" for held in cells), flush=True)


def laid_out(layout: float, ratio: float, boots: int, builds: int, tries: int) -> float:
    """How often `falls` of a time holds, in percent, when each build has a log-normal level of its own. Of
    several builds a sample is the mean of one's boots, as metrics.placed makes them."""
    rng, held = np.random.default_rng(12), 0
    timed = Expectation(metric="system", phase="*", direction=Direction.FALLS, cost=Cost.WORK)
    for _ in range(tries):
        sides = []
        for factor in (1.0, ratio):
            levels = np.repeat(rng.normal(0, layout, builds or 1), boots // (builds or 1))
            values = 10 * factor * np.exp(levels + rng.normal(0, 0.01, boots))
            sides.append(_drawn(values.reshape(builds or boots, -1).mean(axis=1)))
        measured = expectation.with_values(timed, sides[0], sides[1], Kind.TIME)
        held += expectation.together([measured], outlook=False)[0].answer is Answer.HOLDS
    return 100 * held / tries


def two_boots(tries: int) -> float:
    """Effects claimed from two boots of each kernel without a change, in percent: why LEAST_BOOTS is 3."""
    rng, draw, held = np.random.default_rng(6), UNCHANGED["two modes, even"][1], 0
    for _ in range(tries):
        compared = effect.compare(draw(rng, 2), draw(rng, 2), counts=False)
        held += compared.log < 0 and effect.p_distance(compared, compared.log) <= expectation.ALPHA
    return 100 * held / tries


TABLES = {
    "unchanged": show_unchanged,
    "unlike": show_unlike,
    "known": show_known,
    "planted": show_planted,
    "misses": show_misses,
    "drift": show_drift,
    "correlated": show_correlated,
    "hosts": show_hosts,
    "builds": show_builds,
    "looks": show_looks,
}


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--without-exact", action="store_true", help="as if there were no exact test")
    parser.add_argument("--only", metavar="TABLE", choices=TABLES, help=", ".join(TABLES))
    options = parser.parse_args()
    tries: int = options.tries
    if options.without_exact:
        effect.EXACT_BOOTS = sys.maxsize
    for name, show in TABLES.items():
        if options.only in (None, name):
            show(tries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
