# SPDX-License-Identifier: GPL-2.0-only
"""The seeds' tables as data: percentages follow from the values, or are listed here as ones that cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from itertools import product
from pathlib import Path

import pytest

from numalab.analysis import metrics
from numalab.core import paths
from numalab.core.errors import InputError
from numalab.model import catalog
from numalab.report import comparison, reference
from numalab.report.reference import Change, Published, PublishedRow, PublishedTable, number
from numalab.runs.counters import NUMA_ROWS, derived, parse
from tests.unit.makers import recorded

NAMES = catalog.names("reference")
ALL = {name: reference.load(name) for name in NAMES}
HUNDREDTH = Decimal("0.01")
SEEDS = {
    "slowscan-lkml-2015.txt",
    "nodirty-09a913a7.txt",
    "stagger-1378447598.txt",
    "perzonedirty-lkml-2011.txt",
    "fairzone-lkml-2014.txt",
}


def rows() -> Iterator[tuple[str, PublishedTable, PublishedRow]]:
    return (
        (name, table, row) for name, result in ALL.items() for table in result.tables for row in table.rows
    )


def row(name: str, title: str) -> PublishedRow:
    """The only row of that name in a file."""
    (found,) = (row for table in ALL[name].tables for row in table.rows if row.name == title)
    return found


def values(of: PublishedRow) -> list[Decimal]:
    assert None not in of.values
    return [number(value) for value in of.values if value is not None]


def half(printed: str) -> Decimal:
    """Half a unit of the last printed digit: the rounding error of a printed value."""
    return Decimal(1).scaleb(-len(printed.partition(".")[2])) / 2


def test_every_seed_has_its_tables() -> None:
    assert {result.seed for result in ALL.values()} == SEEDS
    assert sum(1 for _ in rows()) == 259


# Gains: (first - value) / first.

GAINS = [
    (name, row.name, column)
    for name, _, row in rows()
    for column, percent in enumerate(row.gains)
    if percent is not None and row.values[0] is not None
]


def test_no_gain_is_left_out() -> None:
    told = {row.name for _, _, row in rows() if row.gains and row.values[0] is None}
    assert len(GAINS) == 208
    assert told == {
        "minor faults, autonumabench",
        "minor faults, xfsrepair",
    }, "told in a sentence without values"


@pytest.mark.parametrize(
    ("name", "table", "of"),
    [(name, table, row) for name, table, row in rows() if row.gains and row.values[0] is not None],
    ids=lambda part: part if isinstance(part, str) else getattr(part, "name", ""),
)
def test_gains(name: str, table: PublishedTable, of: PublishedRow) -> None:
    """Exact from the printed values; where `unrounded` says so, within their rounding but not exact."""
    first = values(of)[0]
    for column, printed in enumerate(of.gains):
        assert printed is not None
        value = values(of)[column]
        ours = comparison.gain(first, value)
        assert ours is not None
        exact = ours.quantize(HUNDREDTH, ROUND_HALF_EVEN) == Decimal(printed)
        assert exact is (column not in of.unrounded), f"{of.name}: {printed} printed, {ours:.4f} computed"
        if column in of.unrounded:
            old, new = (half(text or "") for text in (of.values[0], of.values[column]))
            corners = [
                comparison.gain(first + i * old, value + j * new) or Decimal(0)
                for i, j in product((-1, 1), repeat=2)
            ]
            assert min(corners) - half(printed) <= Decimal(printed) <= max(corners) + half(printed)


def test_only_spreads_were_computed_from_more_digits() -> None:
    """The 16 gains of Stddev and CoeffVar in the xfsrepair table: small numbers with two printed digits."""
    found = [row.name for _, _, row in rows() for _ in row.unrounded]
    assert len(found) == 16
    assert {name.split()[0] for name in found} == {"Stddev", "CoeffVar"}


def test_variation_is_deviation_over_mean() -> None:
    """CoeffVar = 100 × Stddev / Amean, within the printed digits."""
    checked = 0
    for what in ("real-fsmark", "syst-fsmark", "real-xfsrepair", "syst-xfsrepair"):
        mean, deviation, variation = (
            row("slowscan-xfsrepair", f"{operation} {what}") for operation in ("Amean", "Stddev", "CoeffVar")
        )
        for m, d, v, text in zip(
            values(mean), values(deviation), values(variation), deviation.values, strict=True
        ):
            slack = half(text or "")
            assert 100 * (d - slack) / m - HUNDREDTH / 2 <= v <= 100 * (d + slack) / m + HUNDREDTH / 2
            checked += 1
    assert checked == 12


# NUMA blocks, by columns.


def blocks() -> list[tuple[str, dict[str, int]]]:
    """Each column of a NUMA block: file, number, and the counters behind its rows."""
    keys = dict(NUMA_ROWS)
    found = []
    for name, result in ALL.items():
        for table in result.tables:
            if table.title == "NUMA balancing":
                found += [
                    (f"{name} [{i}]", {keys[row.name]: int(values(row)[i]) for row in table.rows})
                    for i in range(len(table.columns))
                ]
    return found


def test_numa_blocks_are_whole() -> None:
    assert sorted((name, len(column)) for name, column in blocks()) == sorted(
        [(f"slowscan-xfsrepair [{i}]", 11) for i in range(3)]
        + [(f"ptewrite-autonuma [{i}]", 7) for i in range(3)]
        + [(f"nodirty-btrfs [{i}]", 7) for i in range(2)]
        + [(f"stagger-nas [{i}]", 8) for i in range(2)]
    )


@pytest.mark.parametrize(("title", "column"), blocks(), ids=[title for title, _ in blocks()])
def test_numa_blocks(title: str, column: dict[str, int]) -> None:
    """The seeds' ranges are exactly base + 512 × huge; percentages are cut, not rounded (37.73 is 37)."""
    ours = derived({key: value for key, value in column.items() if key.startswith("numa_")})
    assert ours["page_range_updates"] == column["page_range_updates"]
    assert int(ours["hint_local_percent"]) == column["hint_local_percent"]


def test_recorded_vmstat_is_the_same_transcription() -> None:
    """tests/recorded has Dave Chinner's counters as a kernel's text."""
    result = ALL["repair-vmstat"]
    (table,) = result.tables
    for column, name in enumerate(("3.19", "4.0-rc1", "4.0-rc4", "3.19-ptedirty")):
        assert parse(recorded(f"vmstat-{name}.txt")) == {
            row.name: int(values(row)[column]) for row in table.rows
        }


# Shares, and what perf derives.


def test_perf_stat() -> None:
    """Rates are by task clock, IPC by cycles, CPUs by elapsed time; branch-misses are a share of branches."""
    (table,) = (table for table in ALL["perzonedirty-usb"].tables if table.title == "perf stat")
    count = {row.name: values(row) for row in table.rows}
    clock = [value / 1000 for value in count["task-clock-msecs"]]
    checked = 0
    for of in table.rows:
        for column, printed in enumerate(of.beside or (None, None)):
            if printed is None:
                continue
            text, unit = printed.split()
            ours = {
                "M/sec": count[of.name][column] / clock[column] / 10**6,
                "IPC": count["instructions"][column] / count["cycles"][column],
                "CPUs": clock[column] / count["seconds time elapsed"][column],
            }[unit]
            assert round(ours, 3) == Decimal(text), of.name
            checked += 1
        for column, percent in enumerate(of.shares):
            assert round(100 * count[of.name][column] / count["branches"][column], 3) == Decimal(
                percent or ""
            )
            checked += 1
    assert checked == 20


def test_cache_shares() -> None:
    """xfs_repair's shares of entries are cut off; a chain of n has n entries. Its hit ratio is rounded."""
    active = values(row("repair-cache", "Active entries"))[0]
    chained = checked = Decimal(0)
    for of in ALL["repair-cache"].tables[0].rows:
        if of.shares:
            length = re.search(r"with (\d+) entries", of.name)
            entries = values(of)[0] * (int(length[1]) if length else 1)
            assert (100 * entries / active).to_integral_value(ROUND_FLOOR) == Decimal(of.shares[0] or "")
            chained += entries if length else 0
            checked += 1
    assert checked == 39
    assert chained == active
    hits, misses = (values(row("repair-cache", name))[0] for name in ("Hits", "Misses"))
    assert round(100 * hits / (hits + misses), 2) == values(row("repair-cache", "Hit ratio"))[0]


def test_shares_of_a_whole() -> None:
    """Percentages of top and perf lack counts, but have a sum: eight CPU states; one function's callers."""
    for of in ALL["repair-cpus"].tables[0].rows:
        assert abs(sum(values(of), Decimal(-100))) <= 8 * half("0.0") + Decimal("0.05"), of.name
    callers = [row("repair-profile", name).values[1] for name in ("flush_tlb_page", "flush_tlb_mm_range")]
    assert [number(text or "") for text in callers] == [Decimal("99.87"), 100 - Decimal("99.87")]
    sides = [
        values(row("repair-profile", name))[0]
        for name in (
            "native_send_call_func_ipi",
            "native_send_call_func_single_ipi, beside native_send_call_func_ipi",
        )
    ]
    assert sum(sides) == 100


def test_percent_of_a_cpu() -> None:
    """time(1)'s %P is (user + system) / elapsed, cut off; two of twelve cells are one too low."""
    less = []
    for bench in ("NUMA01", "NUMA01_THEADLOCAL", "NUMA02", "NUMA02_SMT"):
        user, system, elapsed, cpu = (
            values(row("ptewrite-autonuma", f"Time {what}-{bench}"))
            for what in ("User", "System", "Elapsed", "CPU")
        )
        for column in range(3):
            ours = (100 * (user[column] + system[column]) / elapsed[column]).to_integral_value(ROUND_FLOOR)
            if ours != cpu[column]:
                less.append((bench, column, ours - cpu[column]))
    assert less == [("NUMA01", 2, Decimal(1)), ("NUMA02", 1, Decimal(1))]


def test_percentages_that_nothing_can_be_checked_against() -> None:
    """perf stat's spread over unprinted repetitions, and the share of time in which an event was counted."""
    assert sum(percent is not None for _, _, row in rows() for percent in row.spreads) == 31
    assert sum(percent is not None for _, _, row in rows() for percent in row.scaled) == 12


CLAIMS = [(name, claim) for name, result in ALL.items() for claim in result.claims]


@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=[f"{name}-{claim.percent}" for name, claim in CLAIMS])
def test_claims(name: str, claim: reference.Claim) -> None:
    """A sentence's percentage is the table's, cut off or rounded; or marked as different, with a reason."""
    assert claim.recomputes or claim.note
    if claim.row is None:
        return
    ((at, of),) = (
        (table.columns, row) for table in ALL[name].tables for row in table.rows if row.name == claim.row
    )
    old, new = (values(of)[at.index(side or "")] for side in (claim.before, claim.after))
    change = 100 * (new / old - 1 if claim.change is Change.RISE else old / new - 1)
    assert (
        Decimal(claim.percent) in (change.to_integral_value(ROUND_FLOOR), round(change))
    ) is claim.recomputes


def test_the_note_on_the_throughput_is_right() -> None:
    old, new = values(row("perzonedirty-usb", "seconds time elapsed"))
    assert round(100 * (old / new - 1), 1) == Decimal("50.6")
    assert round(100 * (1 - new / old), 1) == Decimal("33.6")


# Set beside ours.


def test_effects_are_ratios_of_after_to_before() -> None:
    found = {effect.row: effect for effect in reference.effects(ALL["slowscan-xfsrepair"])}
    system = found["Amean syst-xfsrepair"]
    assert (system.metric, system.phase, system.before, system.after) == (
        "system",
        "mmtests-repair",
        "4.0.0-rc1 vanilla",
        "4.0.0-rc1 slowscan-v2",
    )
    assert round(100 * (system.ratio - 1), 2) == -45.83
    assert "NUMA interleave hit" not in found, "0 before and after"
    assert "Stddev syst-xfsrepair" not in found, "no counterpart here"
    ptewrite = {effect.row: effect.ratio for effect in reference.effects(ALL["ptewrite-xfsrepair"])}
    assert ptewrite["Amean syst-xfsrepair"] == pytest.approx(282.45 / 519.88), (
        "before is not the first column"
    )
    assert {effect.row: effect.ratio for effect in reference.effects(ALL["savedwrite"])} == {
        "minor faults, autonumabench": pytest.approx(0.8),
        "minor faults, xfsrepair": pytest.approx(0.42),
    }
    assert reference.effects(ALL["perzonedirty-usb"])[-1].ratio == 0
    assert reference.effects(ALL["repair-cpus"]) == []


def test_metrics_of_rows_are_metrics() -> None:
    mapped = [row for _, _, row in rows() if row.metric]
    assert len(mapped) > 100
    assert [row.name for row in mapped if not metrics.known(row.metric or "")] == []


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("602.44", "602.44"),
        ("140,671,831", "140671831"),
        ("235k", "235000"),
        ("~55,000", "55000"),
        ("9m34s", "574"),
        ("7m45", "465"),
        ("20m43.901s", "1243.901"),
    ],
)
def test_number(printed: str, value: str) -> None:
    assert number(printed) == Decimal(value)


GOOD = """description: d
seed: slowscan-lkml-2015.txt
author: a
date: 2015-03-07
machine: m
workload: w
columns: [one, two]
before: one
after: two
tables:
  - title: t
    rows:
      - {name: r, values: ["1", "2"], gains: ["0.00", "-100.00"]}
"""


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "good.yml"
    path.write_text(GOOD)
    assert isinstance(reference.load(str(path)), Published)


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ('"1", "2"', '"1", "two"', 13, "tables.0.rows.0.values.1: 'two' is not a number"),
        ('"1", "2"', "1, 2", 13, "tables.0.rows.0.values.0"),
        ('"1", "2"', '"1"', 11, "row 'r': 1 values for 2 columns"),
        ('"0.00", ', "", 11, "row 'r': 1 gains for 2 columns"),
        ("-100.00", "-100.00%", 13, "'-100.00%' is not a percentage"),
        ('"]}', '"], unrounded: [2]}', 11, "there is no gain in column 2"),
        ('"]}', '"], phase: fsmark}', 13, "phase: is of use only with a metric"),
        ("after: two", "after: three", 11, "there is no column 'three'"),
        ("    rows:", "    rows: []\n    other:", 12, "at least 1 item"),
        ("date: 2015-03-07", "date: 2015-02-30", 1, "not YAML"),
        ("author: a\n", "", 1, "author: Field required"),
        ("seed: slowscan", "seed: ../slowscan", 2, "seed: String should match pattern"),
    ],
)
def test_bad_files_are_told_by_line(old: str, new: str, line: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        reference.load(str(path))
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert said in str(caught.value)


def test_an_unknown_table_names_those_there_are() -> None:
    with pytest.raises(InputError, match=r"no reference file .*nothing\.yml: there are .*slowscan-xfsrepair"):
        reference.load("nothing")


@pytest.mark.parametrize("case", catalog.names("testcases"))
def test_cases_mirror_tables_that_there_are(case: str) -> None:
    assert set(catalog.case(case).published) <= set(NAMES)


def test_tables_are_about_patch_sets_that_there_are() -> None:
    about = {one.patches for one in ALL.values()} - {None}
    assert about
    assert {name for name in about if not (paths.ROOT / "kernels/patches" / str(name)).is_dir()} == set()
