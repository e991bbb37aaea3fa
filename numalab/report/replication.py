# SPDX-License-Identifier: GPL-2.0-only
"""Published effects beside ours: directions and ratios, never another machine's seconds.

A row of reference/ with a metric and phases says how that metric changed from its "before" to its "after".
Here it is compared with the boots of two of our kernels, as an expectation of the published direction
(expectation.alone): the change of the geometric mean and its confidence interval. Not here: the published
files (reference).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

from numalab.analysis import expectation, metrics
from numalab.analysis.metrics import Kind
from numalab.model.case import Direction, Expectation
from numalab.model.values import Value
from numalab.model.verdict import CONFIDENCE, Answer
from numalab.report import comparison
from numalab.report import reference as report_reference
from numalab.report.comparison import Columns
from numalab.report.reference import Published, PublishedEffect
from numalab.report.table import ABSENT


class Agreement(StrEnum):
    """Whether our effect agrees with the published one."""

    SAME = "same way"
    OTHER = "other way"
    OPEN = "open"
    """The interval includes no change, or there is no interval."""
    EMULATED = "emulated"
    """A time under TCG, which is no evidence."""


class Beside(Value):
    """A published effect and ours. Ratios are after / before."""

    before: str
    after: str
    """The headings of our two kernels."""
    reference: str
    """reference/NAME.yml"""
    row: str
    """The row's name in it."""
    metric: str
    phase: str
    published: float
    ratio: float | None
    """Our ratio; None when a side has no value, or all of before is 0."""
    low: float | None
    high: float | None
    """Bounds of its confidence interval; both None without one, one of them where it is open."""
    boots: tuple[int, int]
    """Boots that have a value."""
    agreement: Agreement


def beside(references: Mapping[str, Published], columns: Columns, before: str) -> tuple[Beside, ...]:
    """Every published row beside the boots of `before` (a heading) and of each other kernel. Rows about
    phases that no boot has are left out."""
    phases = comparison.phases(columns)
    return tuple(
        _beside(name, effect, (before, after), columns)
        for name, about in references.items()
        for after in columns
        if after != before
        for effect in report_reference.effects(about)
        if any(fnmatchcase(phase, effect.phase) for phase in phases)
    )


def _beside(name: str, effect: PublishedEffect, kernels: tuple[str, str], columns: Columns) -> Beside:
    boots = [columns[heading] for heading in kernels]
    sides = [metrics.values(runs, effect.metric, effect.phase) for runs in boots]
    expected = Expectation(
        metric=effect.metric,
        phase=effect.phase,
        direction=Direction.FALLS if effect.ratio < 1 else Direction.RISES,
    )
    kind = metrics.kind(effect.metric)
    ours = expectation.alone(expected, sides[0], sides[1], kind=kind)
    emulated = kind is Kind.TIME and any(run.emulated for runs in boots for run in runs)
    agreement = (
        Agreement.EMULATED
        if emulated
        else {
            Answer.HOLDS: Agreement.SAME,
            Answer.DOES_NOT_HOLD: Agreement.OTHER,
            Answer.CANNOT_TELL: Agreement.OPEN,
        }[ours.answer]
    )
    return Beside(
        before=kernels[0],
        after=kernels[1],
        reference=name,
        row=effect.row,
        metric=effect.metric,
        phase=effect.phase,
        published=effect.ratio,
        ratio=ours.ratio,
        low=ours.low,
        high=ours.high,
        boots=(len(sides[0]), len(sides[1])),
        agreement=agreement,
    )


def grouped(rows: Sequence[Beside]) -> dict[tuple[str, str, str], list[Beside]]:
    """Rows by reference and pair of kernels, in order."""
    groups: dict[tuple[str, str, str], list[Beside]] = {}
    for row in rows:
        groups.setdefault((row.reference, row.before, row.after), []).append(row)
    return groups


def text(rows: Sequence[Beside], references: Mapping[str, Published]) -> str:
    """A table for each reference and pair of kernels, within 76 columns unless a change is very large."""
    parts = []
    for (name, before, after), mine in grouped(rows).items():
        about = references[name]
        label = max(len(row.row) for row in mine)
        lines = [
            f"published: {about.author}, {about.date} (reference/{name}.yml)",
            f"           {about.before} -> {about.after}",
            f"here:      {before} -> {after}",
            f"{'':{label}}{'published':>10}{'here':>10}  {CONFIDENCE:.0%} interval",
        ]
        lines += [
            f"{row.row:{label}}{change(row.published):>10}{change(row.ratio):>10}  {interval(row):14}"
            f" {row.agreement}"
            for row in mine
        ]
        parts.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(parts)


def change(ratio: float | None, decimals: int = 2) -> str:
    """0.5417 -> '-45.83%'; absent is '-'."""
    return ABSENT if ratio is None else f"{round(100 * (ratio - 1), decimals) + 0.0:+.{decimals}f}%"


def interval(row: Beside) -> str:
    """'-47.1..-34.5%'; an open end is left out."""
    if row.low is None and row.high is None:
        return ABSENT
    return f"{change(row.low, 1).removesuffix('%')}..{'' if row.high is None else change(row.high, 1)}"
