# SPDX-License-Identifier: GPL-2.0-only
"""What is concluded from a case's runs: values only, made by `analysis.verdict`."""

from __future__ import annotations

from enum import StrEnum

from numalab.model.case import Expectation
from numalab.model.values import Line, SizeClass, Value

CONFIDENCE = 0.95
"""The confidence of every interval; 1 - CONFIDENCE is the false discovery rate over a case's expectations."""


class Answer(StrEnum):
    """What is concluded of an expectation, and of a case."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    CANNOT_TELL = "cannot tell"


class Finding(Value):
    """One expectation judged: the values of the boots, the effect, how sure."""

    expectation: Expectation
    before: tuple[float, ...]
    """A value for each boot that has one, in boot order."""
    after: tuple[float, ...]
    ratio: float | None = None
    """after / before, of geometric means (see effect.shift for values of 0); None without one, as when all of
    before is 0."""
    low: float | None = None
    high: float | None = None
    """The ratio's confidence interval; None where it has no end, or where there are not two boots of each
    kernel."""
    p: float | None = None
    """The two-sided p-value of no change."""
    q: float | None = None
    """p after the false-discovery correction over the case's deciding expectations; None for the others."""
    detectable: float | None = None
    """The effect (as `by`: 1.3 is 30 %) that this many boots with this spread show with a power of 80 %."""
    boots_needed: int | None = None
    """How many boots of each kernel it takes for the effect that was asked for (`by`; where that is 1, the
    one found) to be shown with a power of 80 %."""
    answer: Answer
    decides: bool
    reason: Line


class Verdict(Value):
    """A case judged on one machine."""

    case_name: str
    size: SizeClass
    topology: str
    accel: str
    before: str
    after: str
    """Kernels, by name."""
    boots: tuple[int, int]
    answer: Answer
    findings: tuple[Finding, ...]
    runs: tuple[str, ...]
    doubts: tuple[Line, ...] = ()
    """What a reader should know: forced comparison, broken boots, calibration that is missing."""
