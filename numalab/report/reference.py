# SPDX-License-Identifier: GPL-2.0-only
"""The seeds' tables as data: reference/NAME.yml -> Published. Values stay as they were printed.

A percentage beside a value is a gain, (first - value) / first × 100: of a time or a count it is positive when
there is less of it, so 2.69 -> 7.08 is -163.23. Only ratios of two columns are compared with our numbers
(`effects`); another machine's seconds mean nothing here. Not here: our side of that comparison (replication).
"""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from numalab.model import catalog
from numalab.model.case import PhasePattern
from numalab.model.values import Line, Name, Value

FOLDER = "reference"
_NUMBER = r"~?-?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?k?"
_CLOCK = r"(\d+)m(\d+(?:\.\d+)?)s?"


def _printed(text: str) -> str:
    if not re.fullmatch(rf"{_NUMBER}|{_CLOCK}", text):
        raise ValueError(
            f'{text!r} is not a number as mails print it: "602.44", "140,671,831", "235k", "~55,000", "9m34s"'
        )
    return text


def _percent(text: str) -> str:
    if not re.fullmatch(r"-?\d+(\.\d+)?", text):
        raise ValueError(f'{text!r} is not a percentage: write its digits alone, as in "-163.23"')
    return text


Printed = Annotated[str, AfterValidator(_printed)]
"""A number to its last printed digit; k is a thousand, ~ is about, 9m34s is minutes and seconds."""
Percent = Annotated[str, AfterValidator(_percent)]
"""A percentage to its last printed digit."""
Index = Annotated[int, Field(ge=0)]


class PublishedRow(Value):
    """A row of a table. Everything but the name is by column; None was not printed."""

    name: Line
    values: tuple[Printed | None, ...]
    unit: Line = ""
    gains: tuple[Percent | None, ...] = ()
    """Gains over the first column."""
    unrounded: tuple[Index, ...] = ()
    """Columns whose gain was computed from more digits than were printed."""
    shares: tuple[Percent | None, ...] = ()
    """Shares of another row; the test of the table has the rule."""
    spreads: tuple[Percent | None, ...] = ()
    """perf stat's `+-`: the standard error over repetitions in % of their mean. They were not printed."""
    scaled: tuple[Percent | None, ...] = ()
    """perf stat's `scaled from`: the share of the time in which the event was counted."""
    beside: tuple[Line | None, ...] = ()
    """What else perf stat derived: rates per task-clock."""
    metric: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]+$")] | None = None
    """Our metric for this row (metrics.value): the kernel's own name of a counter."""
    phase: PhasePattern | None = None
    """Our phases that do the same work; without them the row is not compared with ours."""

    @model_validator(mode="after")
    def _mapped(self) -> Self:
        if self.phase and not self.metric:
            raise ValueError("phase: is of use only with a metric")
        return self


class PublishedTable(Value):
    """Rows under the same columns. `columns`, `before` and `after` default to the file's."""

    title: Line
    unit: Line = ""
    columns: tuple[Line, ...] = ()
    before: Line | None = None
    after: Line | None = None
    rows: Annotated[tuple[PublishedRow, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _even(self) -> Self:
        for side in (self.before, self.after):
            if side is not None and side not in self.columns:
                raise ValueError(f"there is no column {side!r}")
        for row in self.rows:
            for field in ("values", "gains", "shares", "spreads", "scaled", "beside"):
                cells = getattr(row, field)
                if len(cells) != len(self.columns) and (cells or field == "values"):
                    raise ValueError(
                        f"row {row.name!r}: {len(cells)} {field} for {len(self.columns)} columns"
                    )
            if row.unrounded and max(row.unrounded) >= len(row.gains):
                raise ValueError(
                    f"row {row.name!r}: unrounded: there is no gain in column {max(row.unrounded)}"
                )
        return self


class Change(StrEnum):
    """How a message expresses a change as one number."""

    RISE = "rise"
    """after / before - 1"""
    RATE = "rate"
    """before / after - 1: the rate of work whose time was measured"""


class Claim(Value):
    """A percentage in a sentence about a table."""

    says: Line
    percent: Percent
    row: Line | None = None
    before: Line | None = None
    after: Line | None = None
    change: Change | None = None
    recomputes: bool = True
    """Whether the table agrees with the sentence, cut off or rounded."""
    note: Line = ""


class Published(Value):
    """reference/NAME.yml: one posted result."""

    description: Line
    seed: Annotated[str, Field(pattern=r"^[a-z0-9.-]+\.txt$")]
    author: Line
    date: date
    machine: Line
    workload: Line
    columns: Annotated[tuple[Line, ...], Field(min_length=1)]
    before: Line | None = None
    """The column for "before": without the change that the message is about."""
    after: Line | None = None
    patches: Name | None = None
    """The patch set of kernels/patches/ that the message is about, where a case names tables about several.
    They are not set beside two kernels that differ in other patch sets only."""
    tables: Annotated[tuple[PublishedTable, ...], Field(min_length=1)]
    claims: tuple[Claim, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, data: object) -> object:
        """Give each table the file's values for what it leaves out."""
        if isinstance(data, dict) and isinstance(data.get("tables"), list):
            file = {key: data[key] for key in ("columns", "before", "after") if key in data}
            tables = [
                {**({} if "columns" in table else file), **table} if isinstance(table, dict) else table
                for table in data["tables"]
            ]
            return {**data, "tables": tables}
        return data


class PublishedEffect(Value):
    """The published effect of a change on one thing: a ratio, independent of the machine's speed."""

    table: Line
    row: Line
    metric: str
    phase: str
    before: Line
    after: Line
    ratio: float
    """after / before"""


def load(name: str) -> Published:
    """reference/NAME.yml, or a path to such a file. Raises InputError with file, line, key and reason."""
    return catalog.load(Published, catalog.find(FOLDER, name))


def number(printed: str) -> Decimal:
    """The number that a printed value stands for: a clock as seconds, k and ~ resolved."""
    if match := re.fullmatch(_CLOCK, printed):
        return 60 * Decimal(match[1]) + Decimal(match[2])
    scale = 1000 if printed.endswith("k") else 1
    return scale * Decimal(printed.strip("~k").replace(",", ""))


def effects(result: Published) -> list[PublishedEffect]:
    """Every row with a counterpart here and a ratio, from its table's "before" to its "after"."""
    published = []
    for table in result.tables:
        if table.before is None or table.after is None:
            continue
        for row in table.rows:
            ratio = _ratio(row, table.columns.index(table.before), table.columns.index(table.after))
            if row.metric and row.phase and ratio is not None:
                published.append(
                    PublishedEffect(
                        table=table.title,
                        row=row.name,
                        metric=row.metric,
                        phase=row.phase,
                        before=table.before,
                        after=table.after,
                        ratio=ratio,
                    )
                )
    return published


def _ratio(row: PublishedRow, before: int, after: int) -> float | None:
    """after / before from the values; where none were printed, from a gain over "before"."""
    old, new = row.values[before], row.values[after]
    if old is not None and new is not None:
        return float(number(new) / number(old)) if number(old) else None
    gain = row.gains[after] if row.gains and before == 0 else None
    return None if gain is None else float(1 - Decimal(gain) / 100)
