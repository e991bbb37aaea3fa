# SPDX-License-Identifier: GPL-2.0-only
"""What is concluded from a case's runs. Values only; analysis.verdict makes them."""

from __future__ import annotations

from enum import StrEnum

from numalab.model.case import Expectation
from numalab.model.values import Clock, Line, SizeClass, Value

CONFIDENCE = 0.95
"""The confidence of an interval that stands alone; 1 - CONFIDENCE is the false discovery rate over a case's
expectations."""


def percent(confidence: float) -> str:
    """A level of confidence in words: 95 %, 98.3 %, 99.981 %; the error has two digits."""
    return f"{100 - float(f'{100 * (1 - confidence):.2g}'):.10g} %"


class Answer(StrEnum):
    """The answer to an expectation, and to a case."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    CANNOT_TELL = "cannot tell"


class Grade(StrEnum):
    """What an answer leaves open, or how an expectation failed. It changes no answer and no exit status."""

    SIZE_OPEN = "size open"
    """It holds, and the interval is not wholly beyond `by`."""
    NO_CHANGE = "no change"
    """It does not hold: the effect is less than `by`, and no difference from 1 was seen."""
    SMALLER = "smaller than asked"
    """It does not hold: there is an effect in the expected direction, less than `by`."""
    OTHER_WAY = "the other way"
    """It does not hold: there is an effect in the other direction."""
    MISSED = "not in every boot"
    """It does not hold: too many boots after are not at `to`."""


def worded(answer: Answer, grade: Grade | None) -> str:
    """An answer with its grade: 'holds, size open', 'does not hold: no change'."""
    if grade is None:
        return str(answer)
    return f"{answer}{', ' if answer is Answer.HOLDS else ': '}{grade}"


class Finding(Value):
    """The result for one expectation: the boots' values, the effect, and its uncertainty."""

    expectation: Expectation
    before: tuple[float, ...]
    """One value for each boot that has one, in boot order."""
    after: tuple[float, ...]
    ratio: float | None = None
    """after / before, of geometric means (for values of 0 see effect.shift); None where before is all 0."""
    low: float | None = None
    high: float | None = None
    """Bounds of the ratio's confidence interval; None where it is open, or without two boots each."""
    confidence: float = CONFIDENCE
    """The interval's level; higher where several expectations decide, and with several looks."""
    drift: float | None = None
    """The factor by which values (where `odds`, their odds) change from boot to boot, as if it were the same
    for both kernels, which the ratio leaves out; None where no drift was seen."""
    p: float | None = None
    """The two-sided p-value of "no change"."""
    q: float | None = None
    """p after false-discovery correction over the case's deciding expectations; None for the others."""
    detectable: float | None = None
    """The least true effect (as `by`: 1.3 is 30 %) at which so many boots of this spread hold with a chance
    of 80 %: differ from 1, and are estimated at `by` or more."""
    boots_needed: int | None = None
    """If it cannot be told: how many boots of each kernel settle it with a chance of 80 % if the effect is as
    estimated: it holds where that is beyond `by`, else it is denied. None where no number does."""
    boots_range: tuple[int, int] | None = None
    """The fewest and the most that `boots_needed` may be: so few boots hardly know their own scatter."""
    answer: Answer
    grade: Grade | None = None
    """None where the answer needs none: it holds and its size is clear, or it cannot be told."""
    odds: bool = False
    """Whether ratio, interval and `by` are of the odds p / (100 - p) of a percentage, which has a ceiling."""
    decides: bool
    reason: Line

    @property
    def words(self) -> str:
        """The answer with its grade."""
        return worded(self.answer, self.grade)


class Verdict(Value):
    """The result for a case on one machine."""

    case_name: str
    size: SizeClass
    topology: str
    accel: str
    clock: Clock = Clock.HOST
    before: str
    after: str
    """The two kernels' names."""
    boots: tuple[int, int]
    answer: Answer
    grade: Grade | None = None
    """SIZE_OPEN where a deciding finding's is; how it failed, where deciding findings agree in that."""
    findings: tuple[Finding, ...]
    runs: tuple[str, ...]
    varied: Line = ""
    """Over which hosts the boots were spread, and what was varied from boot to boot with which seed; '' for
    boots of one host of which none had a seed."""
    doubts: tuple[Line, ...] = ()
    """Warnings for the reader: a forced comparison, broken boots, a missing calibration."""

    @property
    def words(self) -> str:
        """The answer with its grade."""
        return worded(self.answer, self.grade)
