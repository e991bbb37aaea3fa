# SPDX-License-Identifier: GPL-2.0-only
"""Published effects beside ours: directions and ratios, never another machine's seconds.

A row of reference/ with a metric and phases says how that metric changed from its "before" to its "after".
Here it is compared with the boots of two of our kernels, as an expectation of the published direction
(expectation.alone): the change of the geometric mean and its confidence interval. Not here: the published
files (reference).
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

from numalab.analysis import expectation, metrics, verdict
from numalab.analysis.metrics import Kind
from numalab.core.errors import InputError
from numalab.kernel import recipe
from numalab.model.case import LEAST_TIME, Cost, Direction, Expectation
from numalab.model.run import Run
from numalab.model.values import Value
from numalab.model.verdict import CONFIDENCE, Answer, Finding, Grade, percent
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
    """The interval includes no change, or there is none; no change was published; or a time of ours changed
    by less than LEAST_TIME."""
    EMULATED = "emulated"
    """A time under TCG that is no evidence (see metrics.no_evidence)."""


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
    ratio: float | None = None
    """Our ratio; None when a side has no value, or all of before is 0."""
    low: float | None = None
    high: float | None = None
    """Bounds of its confidence interval; both None without one, one of them where it is open."""
    confidence: float = CONFIDENCE
    """The interval's level."""
    boots: tuple[int, int]
    """Boots that have a value."""
    instructions: bool = False
    """Whether ours is a time that counts instructions (metrics.instruction_time) and is evidence."""
    agreement: Agreement


def beside(references: Mapping[str, Published], columns: Columns, before: str) -> tuple[Beside, ...]:
    """Every published row beside the boots of `before` (a heading) and of each other kernel. Rows about
    phases that no boot has, and tables about other patch sets than the kernels', are left out.

    Rows are judged together, corrected over all that are evidence and over the looks of the experiment.
    """
    phases = comparison.phases(columns)
    rows = [
        _row(name, effect, (before, after), columns)
        for name, about in references.items()
        for after in columns
        if after != before and _about(about, *(columns[name][0].kernel for name in (before, after)))
        for effect in report_reference.effects(about)
        if any(fnmatchcase(phase, effect.phase) for phase in phases)
    ]
    errors = [_error(columns[row.before], columns[row.after]) for row, _ in rows]
    findings = expectation.together(
        [measured for _, measured in rows], min(errors, default=expectation.ALPHA)
    )
    return tuple(_judged(row, finding) for (row, _), finding in zip(rows, findings, strict=True))


def _about(published: Published, before: str, after: str) -> bool:
    """Whether a published result may be about the difference between two kernels. One without a recipe may
    have any."""
    if published.patches is None:
        return True
    try:
        first, second = ({*recipe.patch_items(recipe.load(name).recipe)} for name in (before, after))
    except InputError:
        return True
    return first == second or published.patches in {name for _, name in first ^ second}


def _error(before: Sequence[Run], after: Sequence[Run]) -> float:
    """The error that a comparison of two columns may make."""
    runs = [run for run in (*before, *after) if run.place]
    return verdict.error(runs) if runs else expectation.ALPHA


def _row(
    name: str, effect: PublishedEffect, kernels: tuple[str, str], columns: Columns
) -> tuple[Beside, expectation.MeasuredExpectation]:
    """A published row without our effect yet, and what was measured for it."""
    boots = [columns[heading] for heading in kernels]
    values = metrics.placed(boots[0], boots[1], effect.metric, effect.phase)
    expected = Expectation(
        metric=effect.metric,
        phase=effect.phase,
        direction=Direction.FALLS if effect.ratio < 1 else Direction.RISES,
    )
    # A published change is of a percentage itself, and so is ours beside it.
    kind = Kind.RATIO if (own := metrics.kind(effect.metric)) is Kind.SHARE else own
    # The tables do not say what their times are spent on. In the kernel it is work: scanning, faulting.
    cost = Cost.WORK if effect.metric == "system" else None
    emulated = bool(metrics.no_evidence(effect.metric, cost, [run for runs in boots for run in runs]))
    row = Beside(
        before=kernels[0],
        after=kernels[1],
        reference=name,
        row=effect.row,
        metric=effect.metric,
        phase=effect.phase,
        published=effect.ratio,
        boots=(len(values.before), len(values.after)),
        instructions=not emulated and any(metrics.instruction_time(effect.metric, runs) for runs in boots),
        agreement=Agreement.EMULATED if emulated else Agreement.OPEN,
    )
    silent = "emulated" if emulated else ""
    return row, expectation.with_values(
        expected,
        values.before,
        values.after,
        kind,
        silent=silent,
        positions=values.positions,
        hosts=values.hosts,
        whole=values.whole,
    )


def _judged(row: Beside, ours: Finding) -> Beside:
    """The row with our effect and, unless it is no evidence, whether that agrees."""
    evidence = row.agreement is not Agreement.EMULATED
    numbers = {"ratio": ours.ratio, "low": ours.low, "high": ours.high, "confidence": ours.confidence}
    if evidence and ours.q is None:  # too few boots have it: its interval would not be corrected
        numbers |= {"low": None, "high": None}
    agreement = _agreement(row.published, ours) if evidence else row.agreement
    return row.model_copy(update={**numbers, "agreement": agreement})


def _agreement(published: float, ours: Finding) -> Agreement:
    """Whether a change that is evidence agrees with the published one."""
    timed = metrics.kind(ours.expectation.metric) is Kind.TIME
    if published == 1 or (timed and ours.ratio and 1 / LEAST_TIME < ours.ratio < LEAST_TIME):
        return Agreement.OPEN
    if ours.answer is Answer.HOLDS:
        return Agreement.SAME
    return Agreement.OTHER if ours.grade is Grade.OTHER_WAY else Agreement.OPEN


def levels(rows: Sequence[Beside]) -> str:
    """The levels of the rows' intervals: '95 %', or '99.8, emulated 95 %'."""
    # A row without an effect has no interval, and no level.
    having = [row for row in rows if row.low is not None or row.high is not None] or rows
    of = {row.agreement is Agreement.EMULATED: percent(row.confidence) for row in having}
    if len(set(of.values())) == 1:
        return next(iter(of.values()))
    return f"{of[False].removesuffix(' %')}, emulated {of[True]}"


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
            f"{'':{label}}{'published':>10}{'here':>10}  interval ({levels(mine)})",
        ]
        lines += [
            f"{row.row:{label}}{change(row.published):>10}{change(row.ratio):>10}  {interval(row):14}"
            f" {row.agreement}"
            for row in mine
        ]
        counted = dict.fromkeys(row.row for row in mine if row.instructions)
        lines += textwrap.wrap(f"instruction time: {', '.join(counted)}", 76) if counted else []
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
