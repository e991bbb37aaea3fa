# SPDX-License-Identifier: GPL-2.0-only
"""A table with kernels as columns, as a value and as text in the style of the seeds: headings, widths, gains
in parentheses.

Not here: the numbers in a table (comparison).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from numalab.model.values import Value

ABSENT = "-"
GAIN_COLUMN, PLAIN_COLUMN = 22, 12
"""Column widths in the seeds: a value with its gain, a value alone."""


class Cell(Value):
    """A kernel's number, and its gain over the baseline in %; None is absent."""

    value: float | None
    gain: float | None = None


class Row(Value):
    """A row of a block. `decimals` 0 cuts off without rounding, as the seeds do (37.7 % local is 37)."""

    operation: str = ""
    name: str
    decimals: int = 2
    unit: str = ""
    cells: tuple[Cell, ...]


class Block(Value):
    """One table: a cell for each column in each row. `gains`: values are followed by their gains."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    gains: bool = False
    label: int = 0
    """The least width of the row names."""


def text(block: Block, width: int | None = None) -> str:
    """A block as lines. With `width`, columns are narrowed, and those that do not fit go to further tables,
    each with the baseline first."""
    narrow = width is not None
    gain = (
        max(len(show(row, cell, gains=block.gains)[1]) for row in block.rows for cell in row.cells)
        if narrow
        else len(show_gain(0))
        if block.gains
        else 0
    )
    least = 0 if narrow else GAIN_COLUMN if block.gains else PLAIN_COLUMN
    widths = [max(least, 1 + _widest(block, index, gain)) for index in range(len(block.columns))]
    labels = _labels(block)
    pieces = [list(range(len(widths)))] if width is None else _fitting(widths, width - len(labels[0]))
    return "\n\n".join("\n".join(_piece(block, labels, piece, widths, gain)) for piece in pieces)


def heading(name: str) -> tuple[str, str]:
    """A kernel's name over two lines: 4.0.0-rc1-slowscan-v2 -> 4.0.0-rc1, slowscan-v2."""
    match = re.fullmatch(r"(\d+(?:\.\d+)*(?:-rc\d+)?+)[- ](.+)", name)
    return (match[1], match[2]) if match else (name, "")


def show(row: Row, cell: Cell, *, gains: bool) -> tuple[str, str]:
    """(value, gain) of a cell as text; the gain is '' in a block without gains."""
    over = show_gain(cell.gain) if gains else ""
    if cell.value is None:
        return ABSENT, over
    return (
        f"{cell.value:.{row.decimals}f}{row.unit}" if row.decimals else f"{int(cell.value)}{row.unit}",
        over,
    )


def show_gain(percent: float | None) -> str:
    """' ( 45.83%)'. A gain that rounds to 0 has no sign."""
    return f" ({ABSENT:>7})" if percent is None else f" ({round(percent, 2) + 0.0:6.2f}%)"


def _labels(block: Block) -> list[str]:
    """The row names, padded to one width."""
    first = max(len(row.operation) for row in block.rows)
    names = [f"{row.operation:{first}} {row.name}" if first else row.name for row in block.rows]
    return [f"{name:{max(block.label, *map(len, names), 0)}}" for name in names]


def _widest(block: Block, index: int, gain: int) -> int:
    """The width of a column: its values with their gains, and its heading."""
    values = (len(show(row, row.cells[index], gains=block.gains)[0]) + gain for row in block.rows)
    return max(*values, *map(len, heading(block.columns[index])))


def _fitting(widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns of each table: the baseline and those that fit beside it; one alone where none fits."""
    pieces = [[0]]
    for index in range(1, len(widths)):
        if sum(widths[other] for other in pieces[-1]) + widths[index] <= room:
            pieces[-1].append(index)
        else:
            pieces.append([0, index] if widths[0] + widths[index] <= room else [index])
    return pieces


def _piece(
    block: Block, labels: Sequence[str], chosen: Sequence[int], widths: Sequence[int], gain: int
) -> list[str]:
    heads = [(heading(block.columns[index]), widths[index]) for index in chosen]
    lines = [
        " " * len(labels[0]) + "".join(f"{head[part]:>{width}}" for head, width in heads) for part in (0, 1)
    ]
    for label, row in zip(labels, block.rows, strict=True):
        cells = [(show(row, row.cells[index], gains=block.gains), widths[index]) for index in chosen]
        # Values stay aligned. Where there is room, a gain of three digits extends to the right, as in the
        # seed (-163.23%).
        lines.append(
            label + "".join(f"{value:>{width - gain}}{over:{gain}}" for (value, over), width in cells)
        )
    return [line.rstrip() for line in lines if line.strip()]
