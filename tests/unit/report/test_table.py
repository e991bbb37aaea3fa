# SPDX-License-Identifier: GPL-2.0-only
"""Blocks as text: the seeds' own tables, letter by letter; widths, wrapping, absent values."""

from __future__ import annotations

import pytest

from numalab.report import reference
from numalab.report.comparison import COUNTER_LABEL, TOTAL_LABEL
from numalab.report.reference import number
from numalab.report.table import Block, Cell, Row, heading, show_gain, text


def block(name: str, title: str, label: int = 0) -> Block:
    """A published table as a block: its values, and its gains as printed."""
    (table,) = (table for table in reference.load(name).tables if table.title == title)
    rows = []
    for row in table.rows:
        operation, _, what = row.name.partition(" ") if row.gains else ("", "", row.name)
        gains = row.gains or (None,) * len(row.values)
        cells = tuple(
            Cell(value=float(number(value or "")), gain=None if gain is None else float(gain))
            for value, gain in zip(row.values, gains, strict=True)
        )
        rows.append(
            Row(
                operation=operation, name=what, decimals=2 if "." in (row.values[0] or "") else 0, cells=cells
            )
        )
    return Block(
        title=title, columns=table.columns, rows=tuple(rows), gains=bool(table.rows[0].gains), label=label
    )


AUTONUMA = """\
                                           4.0.0-rc1             4.0.0-rc1                3.19.0
                                             vanilla           slowscan-v2               vanilla
Time System-NUMA01                  602.44 (  0.00%)      209.42 ( 65.24%)      194.70 ( 67.68%)
Time System-NUMA01_THEADLOCAL        78.10 (  0.00%)       92.70 (-18.69%)       98.52 (-26.15%)
Time System-NUMA02                    6.47 (  0.00%)        6.06 (  6.34%)        9.28 (-43.43%)
Time System-NUMA02_SMT                5.06 (  0.00%)        3.39 ( 33.00%)        3.79 ( 25.10%)
Time Elapsed-NUMA01                 755.96 (  0.00%)      833.63 (-10.27%)      558.84 ( 26.08%)
Time Elapsed-NUMA01_THEADLOCAL      382.22 (  0.00%)      395.45 ( -3.46%)      382.54 ( -0.08%)
Time Elapsed-NUMA02                  49.38 (  0.00%)       50.21 ( -1.68%)       49.83 ( -0.91%)
Time Elapsed-NUMA02_SMT              47.70 (  0.00%)       48.55 ( -1.78%)       46.59 (  2.33%)"""

XFSREPAIR = """\
                                    4.0.0-rc1             4.0.0-rc1                3.19.0
                                      vanilla           slowscan-v2               vanilla
Min      real-fsmark        1157.41 (  0.00%)     1150.38 (  0.61%)     1164.44 ( -0.61%)
Min      syst-fsmark        3998.06 (  0.00%)     3988.42 (  0.24%)     4016.12 ( -0.45%)
Min      real-xfsrepair      497.64 (  0.00%)      456.87 (  8.19%)      442.64 ( 11.05%)
Min      syst-xfsrepair      500.61 (  0.00%)      263.41 ( 47.38%)      194.97 ( 61.05%)
Amean    real-fsmark        1166.63 (  0.00%)     1155.97 (  0.91%)     1166.28 (  0.03%)
Amean    syst-fsmark        4020.94 (  0.00%)     4004.19 (  0.42%)     4025.87 ( -0.12%)
Amean    real-xfsrepair      507.85 (  0.00%)      459.58 (  9.50%)      447.66 ( 11.85%)
Amean    syst-xfsrepair      519.88 (  0.00%)      281.63 ( 45.83%)      202.93 ( 60.97%)
Stddev   real-fsmark           6.55 (  0.00%)        3.97 ( 39.30%)        1.44 ( 77.98%)
Stddev   syst-fsmark          16.22 (  0.00%)       15.09 (  6.96%)        9.76 ( 39.86%)
Stddev   real-xfsrepair       11.17 (  0.00%)        3.41 ( 69.43%)        5.57 ( 50.17%)
Stddev   syst-xfsrepair       13.98 (  0.00%)       19.94 (-42.60%)        5.69 ( 59.31%)
CoeffVar real-fsmark           0.56 (  0.00%)        0.34 ( 38.74%)        0.12 ( 77.97%)
CoeffVar syst-fsmark           0.40 (  0.00%)        0.38 (  6.57%)        0.24 ( 39.93%)
CoeffVar real-xfsrepair        2.20 (  0.00%)        0.74 ( 66.22%)        1.24 ( 43.47%)
CoeffVar syst-xfsrepair        2.69 (  0.00%)        7.08 (-163.23%)        2.80 ( -4.23%)
Max      real-fsmark        1171.98 (  0.00%)     1159.25 (  1.09%)     1167.96 (  0.34%)
Max      syst-fsmark        4033.84 (  0.00%)     4024.53 (  0.23%)     4039.20 ( -0.13%)
Max      real-xfsrepair      523.40 (  0.00%)      464.40 ( 11.27%)      455.42 ( 12.99%)
Max      syst-xfsrepair      533.37 (  0.00%)      309.38 ( 42.00%)      207.94 ( 61.01%)"""

NUMA = """\
                             4.0.0-rc1   4.0.0-rc1      3.19.0
                               vanilla slowscan-v2     vanilla
NUMA alloc hit               146138883   121929782   104019526
NUMA alloc miss               13146328    11456356     7806370
NUMA interleave hit                  0           0           0
NUMA alloc local             146060848   121865921   103953085
NUMA base PTE updates        242201535   117237258   216624143
NUMA huge PMD updates           113270       52121      127782
NUMA page range updates      300195775   143923210   282048527
NUMA hint faults             180388025    87299060   147235021
NUMA hint local faults        72784532    32939258    61866265
NUMA hint local percent             40          37          42
NUMA pages migrated           71175262    41395302    23237799"""

TOTALS = """\
           4.0.0-rc1   4.0.0-rc1      3.19.0
             vanilla slowscan-v2     vanilla
User        53384.29    56093.11    46119.12
System        692.14      311.64      306.41
Elapsed      1236.87     1328.61     1039.88"""


@pytest.mark.parametrize(
    ("found", "printed"),
    [
        (block("slowscan-autonuma", "the standard autonuma benchmark"), AUTONUMA),
        (block("slowscan-xfsrepair", "xfsrepair"), XFSREPAIR),
        # In these two the seed was edited by hand: a second blank before slowscan-v2 moves the last heading by
        # one.
        (block("slowscan-xfsrepair", "NUMA balancing", COUNTER_LABEL), NUMA),
        (block("slowscan-autonuma", "totals", TOTAL_LABEL), TOTALS),
    ],
    ids=["autonuma", "xfsrepair", "numa", "totals"],
)
def test_as_published(found: Block, printed: str) -> None:
    assert text(found) == printed


def test_within_a_width_columns_are_narrowed_and_wrapped() -> None:
    """Two of three columns fit: the third gets a table of its own, with the baseline again."""
    found = text(block("slowscan-xfsrepair", "xfsrepair"), 76)
    assert max(map(len, found.splitlines())) <= 76
    first, second = (part.splitlines() for part in found.split("\n\n"))
    assert [line.split() for line in first[:2]] == [["4.0.0-rc1", "4.0.0-rc1"], ["vanilla", "slowscan-v2"]]
    assert [line.split() for line in second[:2]] == [["4.0.0-rc1", "3.19.0"], ["vanilla", "vanilla"]]
    assert "Amean    syst-xfsrepair  519.88 (  0.00%)   202.93 ( 60.97%)" in second
    assert "CoeffVar syst-xfsrepair    2.69 (  0.00%)     7.08 (-163.23%)" in first
    assert len(first) == len(second) == 22


def test_a_wide_column_does_not_keep_others_apart() -> None:
    """a and b fit together, c only beside the baseline, d beside nothing."""
    wide = ("a", "b", "c" * 16, "d" * 30)
    found = text(Block(title="", columns=wide, rows=(row(*(Cell(value=index) for index in range(4))),)), 24)
    assert [part.splitlines()[-1].split() for part in found.split("\n\n")] == [
        ["r", "0.00", "1.00"],
        ["r", "0.00", "2.00"],
        ["r", "3.00"],
    ]


def test_a_column_alone_when_no_two_fit() -> None:
    found = text(block("slowscan-xfsrepair", "xfsrepair"), 45)
    assert [part.splitlines()[1].split() for part in found.split("\n\n")] == [
        ["vanilla"],
        ["slowscan-v2"],
        ["vanilla"],
    ]
    assert max(map(len, found.splitlines())) <= 45


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("4.0.0-rc1-slowscan-v2", ("4.0.0-rc1", "slowscan-v2")),
        ("6.1-slowscan-before", ("6.1", "slowscan-before")),
        ("6.1", ("6.1", "")),
        ("4.0.0-rc1 vanilla", ("4.0.0-rc1", "vanilla")),
        ("4.0-rc4", ("4.0-rc4", "")),
        ("debian", ("debian", "")),
        ("my-kernel", ("my-kernel", "")),
        ("3.0-per-zone-dirty", ("3.0", "per-zone-dirty")),
    ],
)
def test_heading(name: str, lines: tuple[str, str]) -> None:
    assert heading(name) == lines


def row(*cells: Cell, decimals: int = 2, unit: str = "") -> Row:
    return Row(name="r", decimals=decimals, unit=unit, cells=cells)


def test_headings_never_run_into_each_other() -> None:
    """The seed of March 12 has `vanillaptewrite-v1r20`."""
    found = text(
        Block(
            title="",
            columns=("6.1", "6.1-nogroup-ptedirty-before"),
            rows=(row(Cell(value=1), Cell(value=2)),),
        )
    )
    assert found.splitlines() == [
        "          6.1                     6.1",
        "              nogroup-ptedirty-before",
        "r        1.00                    2.00",
    ]


def test_one_heading_line_where_no_kernel_needs_two() -> None:
    assert text(
        Block(title="", columns=("debian",), rows=(row(Cell(value=3.7), decimals=0),))
    ).splitlines() == ["       debian", "r           3"]


def test_large_values_keep_their_distance() -> None:
    lines = text(
        Block(title="", columns=("a", "b"), rows=(row(Cell(value=1e15), Cell(value=1e15), decimals=0),))
    ).splitlines()
    assert lines[1] == "r 1000000000000000 1000000000000000"


@pytest.mark.parametrize(
    ("percent", "shown"),
    [
        (45.834, " ( 45.83%)"),
        (0.0, " (  0.00%)"),
        (-0.004, " (  0.00%)"),
        (-0.006, " ( -0.01%)"),
        (-163.228, " (-163.23%)"),
        (None, " (      -)"),
    ],
)
def test_gain(percent: float | None, shown: str) -> None:
    assert show_gain(percent) == shown


def test_absent_is_a_dash_and_zero_is_zero() -> None:
    found = text(
        Block(
            title="", columns=("a", "b"), rows=(row(Cell(value=None), Cell(value=0.0), decimals=0, unit="%"),)
        )
    )
    assert found.splitlines()[1].split() == ["r", "-", "0%"]
    found = text(
        Block(
            title="",
            columns=("a", "b"),
            gains=True,
            rows=(row(Cell(value=None), Cell(value=0.0, gain=None)),),
        )
    )
    assert found.splitlines()[1] == "r           - (      -)        0.00 (      -)"


def test_values_are_cut_off_without_decimals() -> None:
    """The seed has 37 for 37.73."""
    found = text(
        Block(
            title="",
            columns=("a",),
            rows=(row(Cell(value=37.73), decimals=0, unit="%"), row(Cell(value=-0.9), decimals=0)),
        )
    )
    assert [line.split()[1] for line in found.splitlines()[1:]] == ["37%", "0"]
