# SPDX-License-Identifier: GPL-2.0-only
"""One expectation and a value of each boot -> a finding: it holds, does not hold, or cannot be told.

The rules. E is the effect in the expected direction: before / after where a metric should fall, after /
before where it should rise. Of a percentage (Kind.SHARE) it is that of the odds, and so is `by`.

* holds: E differs from 1, is estimated at `by` or more, and every boot after meets `to`.
* does not hold: E is less than `by`, or differs from 1 in the other direction, or more than MISSES of all
  boots after do not meet `to`.
* cannot tell: everything else.

An answer has a grade where it needs one. "Holds" says that there is an effect, estimated at `by` or more, and
not that it is as large: at a true E of `by` it is the answer every other time. So it is "size open" unless
the whole interval lies beyond `by`. "Does not hold" is "the other way" when E differs from 1 in that
direction, "smaller than asked" when it differs in the expected one, "no change" when it does not differ, and
"not in every boot" when only `to` denies it.

"Differs" and "is less" are two-sided tests (see effect) at an error of `alpha`, each corrected for false
discoveries over the case's deciding expectations (Benjamini and Hochberg 1995). So an effect is claimed where
there is none, and one of `by` or more is denied, with a chance of about alpha / 2 each. The corrections are
apart: where a case's other effects are there, "is less" asks for a smaller p than "differs". So what differs
from 1 in the other direction is denied by that, as surely as it would hold in the expected one.
"More than MISSES" is the lower end of the share's interval (effect.share) at 1 - alpha / n, n the deciding
expectations with a `to` (Bonferroni), so that a share of MISSES or less is denied with a chance of at most
alpha / 2 over the case.
A time has to change by case.LEAST_TIME at least, whatever its `by`.
The range between 1 and `by` does not matter to the case (an indifference zone: Bechhofer 1954); either answer
may result there.
The interval of an expectation that decides is widened with the test: of m expectations R of which differ from
1, each has an interval at 1 - alpha R / m (R at least 1), so that of the R intervals a share of at most alpha
miss the effect (Benjamini and Yekutieli 2005), and an interval leaves 1 out exactly where "differs" is true
(unless boots have no spread at all: it then has no length). Others have one at 1 - alpha.

For clear answers, `by` has to be larger than the spread of the boots (calibration) and smaller than the
effect.

Not here: which runs count, and the answer of a case (verdict).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from numalab.analysis import effect, metrics
from numalab.analysis.effect import LEAST_BOOTS, Effect
from numalab.analysis.metrics import Kind
from numalab.model.case import LEAST_TIME, Case, Direction, Expectation
from numalab.model.run import Run
from numalab.model.verdict import CONFIDENCE, Answer, Finding, Grade, percent

ALPHA = 1 - CONFIDENCE
MISSES = 0.1
"""The share of boots after that may miss `to`. An effect that nine boots of ten show is there, and a smaller
share is not to be had: of 3 boots all must miss before it is denied, of 5 three, of 8 four, of 12 five."""


@dataclass(frozen=True, kw_only=True)
class MeasuredExpectation:
    """An expectation and the boots' values for it, before the correction over the case."""

    expectation: Expectation
    before: tuple[float, ...]
    after: tuple[float, ...]
    effect: Effect | None
    """None without two boots of each kernel, or when all values are 0."""
    obstacle: str
    """Why no answer is possible, whatever the effect; '' when one is."""
    silent: str
    """Why it does not decide; '' when it does."""
    label: str
    """What kind of number it is, where a reader must know; else ''."""
    odds: bool
    """Whether the effect is of the odds of a percentage (Kind.SHARE)."""


def alone(
    expectation: Expectation,
    before: Sequence[float],
    after: Sequence[float],
    *,
    kind: Kind = Kind.RATIO,
    alpha: float = ALPHA,
) -> Finding:
    """One expectation judged by itself."""
    return together([with_values(expectation, before, after, kind)], alpha)[0]


def deciding(case: Case, releases: Collection[str], runs: Sequence[Run]) -> tuple[Expectation, ...]:
    """The case's expectations that decide for these runs: on one of these releases ('': any), and by what is
    evidence on their accelerator and clock."""
    return tuple(
        expected
        for expected in case.expect
        if expected.decides
        and any(not release or expected.applies(release) for release in releases)
        and not metrics.no_evidence(expected.metric, expected.cost, runs)
    )


def with_values(
    expectation: Expectation,
    before: Sequence[float],
    after: Sequence[float],
    kind: Kind,
    *,
    obstacle: str = "",
    silent: str = "",
    label: str = "",
    positions: tuple[Sequence[float], Sequence[float]] | None = None,
    hosts: tuple[Sequence[str], Sequence[str]] | None = None,
    whole: bool | None = None,
) -> MeasuredExpectation:
    """An expectation with the values of the boots that have one.

    `whole`: whether what was counted is whole numbers, as counts are; None: as the values are.
    `obstacle` to `label`: see the class. `positions`, `hosts`: see effect.compare.
    """
    values, fewest = [*before, *after], min(len(before), len(after))
    share = kind is Kind.SHARE
    if whole is None:
        whole = metrics.whole_numbers(values)
    counts = kind is Kind.COUNT and whole
    halves = [
        name
        for name, side in (("before", before), ("after", after))
        if effect.mixed(side) and not counts and not share
    ]
    if not fewest:
        lacking = [name for name, side in (("before", before), ("after", after)) if not side]
        trouble = f"{expectation.metric} is absent from every boot {' and '.join(lacking)}"
    elif min(values) < 0:
        trouble = f"{expectation.metric} is negative in some boots: a level, of which a ratio says nothing"
    elif share and max(values) > 100:
        trouble = f"{expectation.metric} is above 100 % in some boots: no part of a whole"
    elif halves:
        trouble = (
            f"{expectation.metric} is 0 in some boots {' and '.join(halves)} and not in others: it is no"
            " count, and has no scale on which to tell how far apart they are; more boots change nothing"
        )
    elif not any(values):
        trouble = f"{expectation.metric} is 0 in every boot of both kernels"
    elif fewest < LEAST_BOOTS:
        trouble = (
            f"{len(before)} and {len(after)} boots have it: {LEAST_BOOTS} of each kernel are the least that"
            " decide"
        )
    else:
        trouble = ""
    thin = _thin_hosts(hosts) if hosts and fewest else ""
    if thin:
        trouble = trouble or f"{expectation.metric}: {thin}"
    sound = not thin and fewest > 1 and min(values) >= 0 and any(values) and not halves
    sound = sound and not (share and max(values) > 100)
    return MeasuredExpectation(
        expectation=expectation,
        before=tuple(before),
        after=tuple(after),
        effect=effect.compare(before, after, counts=counts, share=share, positions=positions, hosts=hosts)
        if sound
        else None,
        obstacle=obstacle or trouble,
        silent=silent or ("" if expectation.decides else "so the case has it"),
        label=label,
        odds=share,
    )


def _thin_hosts(hosts: tuple[Sequence[str], Sequence[str]]) -> str:
    """Why the boots' hosts, before and after, have too few of them to be blocks; '' when they have enough."""
    boots = {name: (hosts[0].count(name), hosts[1].count(name)) for name in sorted({*hosts[0], *hosts[1]})}
    thin, least = effect.too_few(boots)
    if thin:
        named = (f"{name} has {before} and {after} boots" for name, (before, after) in thin.items())
        return (
            f"{', '.join(named)}: a host of an experiment that is spread needs {effect.LEAST_ON_HOST} boots"
            " of each kernel that have it"
        )
    sides = " and ".join(str(len(side)) for side in hosts)
    return f"{sides} boots: spread over hosts, {least} of each kernel that have it decide" if least else ""


def together(
    measured: Sequence[MeasuredExpectation], alpha: float = ALPHA, *, outlook: bool = True
) -> list[Finding]:
    """A case's expectations judged, corrected over those that decide and can be answered.

    `outlook`: say too what so many boots could have shown, and what more would; it takes most of the time.
    """
    none = [1.0 if one.effect is None else effect.p_distance(one.effect, one.effect.log) for one in measured]
    less = [1.0 if one.effect is None else _p_less(one.effect, one.expectation) for one in measured]
    family = [
        i for i, one in enumerate(measured) if one.effect is not None and not one.silent and not one.obstacle
    ]
    q_none, q_less = _corrected(none, family), _corrected(less, family)
    widened = _interval_alpha(q_none, alpha)
    shares = sum(measured[i].expectation.to is not None for i in family)
    findings = []
    for i, one in enumerate(measured):
        own_alpha = widened if i in q_none else alpha
        answer, grade, reason = _answer(
            one,
            q_none.get(i, none[i]),
            q_less.get(i, less[i]),
            alpha,
            corrected=i in q_none,
            interval_alpha=own_alpha,
            share_alpha=alpha / shares if shares and i in q_none else alpha,
        )
        reason = f"{one.label}: {reason}" if one.label else reason
        numbers: dict[str, Any] = {"ratio": _rough(one)}
        if one.effect is not None:
            differ, be_less = _planned_alpha(i, q_none, alpha), _planned_alpha(i, q_less, alpha)
            numbers = {
                "p": none[i],
                "q": q_none.get(i),
                **_interval(one.effect, own_alpha),
                **_numbers(one.effect),
            }
            if outlook:
                numbers["detectable"] = effect.detectable(one.effect, differ, one.expectation.asked)
            if outlook and answer is Answer.CANNOT_TELL and not one.obstacle and not _missed(one):
                numbers |= _boots(one.effect, one.expectation, differ, be_less)
                reason += f"; {_outlook(one.effect, one.expectation, numbers)}"
        findings.append(
            Finding.model_validate(
                {
                    "expectation": one.expectation,
                    "before": one.before,
                    "after": one.after,
                    **numbers,
                    "answer": answer,
                    "grade": grade,
                    "odds": one.odds,
                    "decides": not one.silent,
                    "reason": f"{reason} (decides nothing: {one.silent})" if one.silent else reason,
                }
            )
        )
    return findings


def _corrected(ps: Sequence[float], family: Sequence[int]) -> dict[int, float]:
    """The Benjamini-Hochberg q values of the family's members."""
    if len(family) < 2:
        return {i: ps[i] for i in family}
    # Imported here: scipy.stats takes longer than the rest of a lab.py that judges nothing.
    from scipy.stats import false_discovery_control

    return dict(zip(family, map(float, false_discovery_control([ps[i] for i in family])), strict=True))


def _interval_alpha(q_none: Mapping[int, float], alpha: float) -> float:
    """The error of each deciding interval, from the q values of "no change"."""
    return alpha * max(sum(q <= alpha for q in q_none.values()), 1) / max(len(q_none), 1)


def _interval(observed: Effect, alpha: float) -> dict[str, float | None]:
    low, high = effect.interval(observed, alpha)
    return {"low": low, "high": high, "confidence": 1 - alpha}


def _planned_alpha(i: int, qs: Mapping[int, float], alpha: float) -> float:
    """The error at which an expectation's p would be small enough, when those are that are now. `qs`: the
    deciding expectations' corrected p of one test."""
    if i not in qs:
        return alpha
    small = sum(q <= alpha for q in qs.values())
    return alpha * (small if qs[i] <= alpha else small + 1) / len(qs)


def _numbers(observed: Effect) -> dict[str, float | None]:
    return {
        "ratio": effect.ratio(observed),
        "drift": math.exp(observed.drift.log) if observed.drift else None,
    }


def _boots(observed: Effect, expected: Expectation, differ: float, less: float) -> dict[str, Any]:
    """Boots of each kernel that settle it, if the effect is as estimated.

    `differ`, `less`: the errors of the two tests.
    """
    asked, towards = math.log(expected.asked), _towards(observed, expected)
    # The distance from what it is tested against, that test's error, and the least estimate that will do.
    ways: list[tuple[float, float, float]]
    if math.isinf(towards):
        ways = [(abs(observed.log), differ, 0.0)]
    elif towards >= asked:
        ways = [(towards, differ, asked)]
    else:  # denied as less than `by`, or as the other way, whichever takes fewer boots
        ways = [(asked - towards, less, 0.0), *([(-towards, differ, 0.0)] if towards < 0 else [])]
    possible = [
        (boots, way)
        for way in ways
        if (boots := effect.boots_needed(observed, way[0], way[1], least=way[2])) is not None
    ]
    if not possible:
        return {"boots_needed": None, "boots_range": None}
    boots, (distance, error, least) = min(possible, key=lambda pair: pair[0])
    return {
        "boots_needed": boots,
        "boots_range": effect.boots_range(observed, distance, error, least=least),
    }


def _rough(one: MeasuredExpectation) -> float | None:
    """after / before, from too few boots for an interval."""
    values = [*one.before, *one.after]
    if not one.before or not one.after or min(values) <= 0 or (one.odds and max(values) >= 100):
        return None
    before, after = (
        geometric_mean([effect.odds(value, 0) for value in side] if one.odds else side)
        for side in (one.before, one.after)
    )
    return after / before


def _answer(
    one: MeasuredExpectation,
    q_none: float,
    q_less: float,
    alpha: float,
    *,
    corrected: bool,
    interval_alpha: float,
    share_alpha: float,
) -> tuple[Answer, Grade | None, str]:
    """Answer and grade by the module's rules, and the reason.

    `corrected`: whether these are q, as of the members of the family, and not p.

    `interval_alpha` and `share_alpha`: of the intervals of the effect, and of the boots that miss `to`.
    """
    if one.obstacle or one.effect is None:
        return Answer.CANNOT_TELL, None, one.obstacle
    expected = one.expectation
    reason = _effect_text(one.effect, expected, interval_alpha, odds=one.odds)
    missed = _missed(one)
    least, most = effect.share(missed, len(one.after), share_alpha)
    if expected.to is not None and not missed:
        reason = (
            f"{reason}; no boot after misses {expected.to:g}: at most {100 * most:.3g} % of boots do"
            f" ({percent(1 - share_alpha)})"
        )
    elif missed:
        reason = (
            f"{reason}; {missed} of {len(one.after)} boots after {'is' if missed == 1 else 'are'} not at"
            f" {expected.to:g}: {100 * least:.3g} % to {100 * most:.3g} % of boots miss it"
            f" ({percent(1 - share_alpha)}), {100 * MISSES:g} % may"
        )
    differs = q_none <= alpha
    if q_less <= alpha or (differs and _towards(one.effect, expected) < 0):
        return Answer.DOES_NOT_HOLD, _failure(one.effect, expected, differs=differs), reason
    if least > MISSES:
        return Answer.DOES_NOT_HOLD, Grade.MISSED, reason
    if not differs:
        word = "q (p, corrected for all that decide)" if corrected else "p"
        return Answer.CANNOT_TELL, None, f"{reason}; {word} {q_none:.2g} is above {alpha:.2g}"
    if _towards(one.effect, expected) < math.log(expected.asked) - effect.NO_SPREAD:
        return Answer.CANNOT_TELL, None, f"{reason}; there is an effect, but maybe not as large as that"
    if missed:
        return Answer.CANNOT_TELL, None, reason
    clear = _wholly_beyond(one.effect, expected, interval_alpha)
    return Answer.HOLDS, None if clear else Grade.SIZE_OPEN, reason


def _missed(one: MeasuredExpectation) -> int:
    """How many boots after are not at `to`."""
    to = one.expectation.to
    if to is None:
        return 0
    return sum(
        value > to if one.expectation.direction is Direction.FALLS else value < to for value in one.after
    )


def _failure(observed: Effect, expected: Expectation, *, differs: bool) -> Grade:
    """How an effect of less than `by` fails; `differs`: from 1. A time that moves the other way by less than
    LEAST_TIME may be one of two layouts, and is no change."""
    towards = _towards(observed, expected)
    if not differs or (expected.cost and -math.log(LEAST_TIME) < towards <= 0):
        return Grade.NO_CHANGE
    return Grade.SMALLER if towards > 0 else Grade.OTHER_WAY


def _wholly_beyond(observed: Effect, expected: Expectation, alpha: float) -> bool:
    """Whether the interval of an effect that differs from 1 lies beyond `by`, in the expected direction."""
    if expected.asked == 1:
        return True
    low, high = effect.interval(observed, alpha)
    if expected.direction is Direction.RISES:
        return low >= expected.asked * (1 - effect.NO_SPREAD)
    return high is not None and high * expected.asked <= 1 + effect.NO_SPREAD


def _towards(observed: Effect, expected: Expectation) -> float:
    """log E, in the expected direction; infinite where a metric fell to 0, or rose from 0."""
    falls = expected.direction is Direction.FALLS
    if observed.vanished[1 if falls else 0]:
        return math.inf
    return -observed.log if falls else observed.log


def _p_less(observed: Effect, expected: Expectation) -> float:
    """Two-sided p of E = `by`; 1 unless the observed E is less."""
    short = math.log(expected.asked) - _towards(observed, expected)
    if short <= effect.NO_SPREAD:
        return 1.0
    return effect.p_distance(observed, short if expected.direction is Direction.FALLS else -short)


def _effect_text(observed: Effect, expected: Expectation, alpha: float, *, odds: bool) -> str:
    """The observed and the expected effect, in words."""
    ratio, (low, high) = effect.ratio(observed), effect.interval(observed, alpha)
    asked = expected.asked
    # Ends that three digits do not tell apart, as of a time that hardly scatters, have five.
    digits = 3 if high is None or f"{low:.3g}" != f"{high:.3g}" else 5
    shown = "without end" if ratio is None else f"{ratio:.{digits}g}"
    ends = f"{low:.{digits}g} or more" if high is None else f"{low:.{digits}g} to {high:.{digits}g}"
    bound, word = (1 / asked, "less") if expected.direction is Direction.FALLS else (asked, "more")
    of = " of the odds p/(100 - p)" if odds else ""
    of += f" within {len(observed.hosts)} hosts" if observed.hosts else ""
    drift = (
        f"; a drift by a factor of {math.exp(observed.drift.log):.4g} from boot to boot is taken out"
        if observed.drift
        else ""
    )
    return (
        f"after/before{of} is {shown} ({percent(1 - alpha)}: {ends}), asked for:"
        f" {word if asked == 1 else f'{bound:.3g} or {word}'}{drift}"
    )


def boots_range(fewest: int, most: int) -> str:
    """Finding.boots_range in words."""
    needed = f"{fewest} to {most}" if fewest < most else str(most)
    return needed + " or more" * (most == effect.MOST_BOOTS)


def _outlook(observed: Effect, expected: Expectation, numbers: Mapping[str, Any]) -> str:
    """In words, `detectable` and `boots_range` of a finding that cannot be told."""
    power = f"{100 * effect.POWER:.0f} %"
    least = numbers["detectable"]
    factor = f"a true factor of {least:.3g}" if least < effect.MOST_EFFECT / 2 else "no factor"
    text = f"so many boots that scatter so hold in {power} at {factor}"
    if numbers["boots_range"] is None:
        return text
    needed = boots_range(*numbers["boots_range"])
    outcome = "hold" if _towards(observed, expected) >= math.log(expected.asked) else "deny it"
    return f"{text}; if the effect is as estimated, {needed} of each kernel {outcome} in {power}"
