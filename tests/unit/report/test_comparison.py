# SPDX-License-Identifier: GPL-2.0-only
"""Runs -> tables: columns, statistics by hand, counters by their formulas; the seed's boots and table."""

from __future__ import annotations

import statistics
from decimal import Decimal

import pytest

from numalab.core.errors import InputError
from numalab.model.case import Arm
from numalab.model.run import PhaseResult, Run
from numalab.report import comparison, reference
from numalab.report.comparison import Better
from numalab.report.reference import number
from numalab.report.table import Block, text
from tests.unit.report.test_table import XFSREPAIR
from tests.unit.synthetic import phase, run

SEED = reference.load("slowscan-xfsrepair").tables[0]
KERNELS = ("4.0.0-rc1-vanilla", "4.0.0-rc1-slowscan-v2", "3.19.0-vanilla")


def cells(block: Block, operation: str, name: str) -> list[tuple[float | None, float | None]]:
    """(value, gain) of a row, rounded as they are printed."""
    (row,) = (row for row in block.rows if (row.operation, row.name) == (operation, name))
    return [
        tuple(None if number is None else round(number, 2) for number in (cell.value, cell.gain))  # type: ignore[misc]
        for cell in row.cells
    ]


def printed(name: str) -> list[Decimal]:
    """A row of the published xfsrepair table."""
    (found,) = (row for row in SEED.rows if row.name == name)
    return [number(value or "") for value in found.values]


def boots_of(what: str, column: int) -> list[Decimal]:
    """The seed's three boots: Min, Max, and three times Amean less these."""
    low, mean, high = (printed(f"{operation} {what}")[column] for operation in ("Min", "Amean", "Max"))
    return [low, 3 * mean - low - high, high]


@pytest.mark.parametrize("what", ["real-fsmark", "syst-fsmark", "real-xfsrepair", "syst-xfsrepair"])
@pytest.mark.parametrize("column", range(3))
def test_the_seed_had_three_boots_and_divides_by_n(what: str, column: int) -> None:
    """Its Stddev is that of these three values, not of a sample; ours is larger by the root of 3/2."""
    boots = boots_of(what, column)
    theirs = printed(f"Stddev {what}")[column]
    assert float(statistics.pstdev(boots)) == pytest.approx(float(theirs), abs=0.02), (
        "0.01 of Amean is 0.03 of the third boot"
    )
    assert float(statistics.stdev(boots)) / float(statistics.pstdev(boots)) == pytest.approx(1.5**0.5)


def seed_runs() -> list[Run]:
    """Nine runs with the times of the seed's boots."""

    def phases(column: int, boot: int) -> tuple[PhaseResult, ...]:
        return tuple(
            phase(
                name,
                elapsed=float(boots_of(f"real-{name}", column)[boot]),
                system=float(boots_of(f"syst-{name}", column)[boot]),
            )
            for name in ("fsmark", "xfsrepair")
        )

    return [
        run(kernel, *phases(column, boot), boot=3 * boot + column)
        for column, kernel in enumerate(KERNELS)
        for boot in range(3)
    ]


def test_the_seeds_boots_give_the_seeds_table() -> None:
    """Headings, and the lines of Min, Amean and Max, letter by letter."""
    ours = [
        line
        for line in text(comparison.times(comparison.columns(seed_runs()))).splitlines()
        if "user-" not in line
    ]
    kept = [line for line in XFSREPAIR.splitlines() if line.startswith(("Min", "Amean", "Max", " "))]
    assert len(kept) == 14
    assert [line for line in ours if not line.startswith(("Stddev", "CoeffVar"))] == kept
    assert len(ours) == len(XFSREPAIR.splitlines())


def test_any_column_can_be_the_baseline() -> None:
    """As Ingo Molnar asks on March 8: 3.19 first. The table of March 12 has -156.19%."""
    found = comparison.times(comparison.columns(seed_runs(), "3.19.0-vanilla"))
    assert found.columns == ("3.19.0-vanilla", *KERNELS[:2])
    assert cells(found, "Amean", "syst-xfsrepair") == [(202.93, 0), (519.88, -156.19), (281.63, -38.78)]


def test_an_unknown_baseline_names_those_there_are() -> None:
    with pytest.raises(
        InputError,
        match=r"^baseline 5\.10: there is no run of it; there are 4\.0\.0-rc1-vanilla, .*, 3\.19\.0-vanilla$",
    ):
        comparison.check_baseline([seed_runs()], "5.10")


def test_a_baseline_of_one_of_several_groups() -> None:
    """The others are as without one."""
    runs = seed_runs()
    groups = [[run for run in runs if run.kernel == kernel] for kernel in KERNELS]
    comparison.check_baseline(groups, KERNELS[0])
    assert comparison.columns(groups[1], KERNELS[0]) == comparison.columns(groups[1])


# Gains.


@pytest.mark.parametrize(
    ("base", "value", "better", "percent"),
    [
        (200.0, 100.0, Better.LOWER, 50.0),
        (100.0, 200.0, Better.LOWER, -100.0),
        (200.0, 100.0, Better.HIGHER, -50.0),
        (100.0, 200.0, Better.HIGHER, 100.0),
        (0.0, 0.0, Better.LOWER, 0.0),
        (0.0, 5.0, Better.LOWER, None),
        (5.0, 0.0, Better.LOWER, 100.0),
    ],
)
def test_gain(base: float, value: float, better: Better, percent: float | None) -> None:
    assert comparison.gain(base, value, better) == percent


# Statistics by hand.


def test_times_by_hand() -> None:
    """2 4 9 s: mean 5, squares of 3 1 4 are 26, over 2 is 13, its root 3.606, and that is 72.11 % of 5."""
    found = comparison.columns(
        [run("a", phase("p", system=value), boot=i) for i, value in enumerate((2, 4, 9))]
        + [run("b", phase("p", system=value), boot=i + 3) for i, value in enumerate((1, 1, 4))]
    )
    block = comparison.times(found)
    assert block.gains
    assert cells(block, "Min", "syst-p") == [(2, 0), (1, 50)]
    assert cells(block, "Amean", "syst-p") == [(5, 0), (2, 60)]
    assert cells(block, "Stddev", "syst-p") == [(3.61, 0), (1.73, 51.96)]
    assert cells(block, "CoeffVar", "syst-p") == [(72.11, 0), (86.6, -20.1)]
    assert cells(block, "Max", "syst-p") == [(9, 0), (4, 55.56)]
    assert [row.name for row in block.rows[:3]] == ["real-p", "syst-p", "user-p"]
    assert [row.operation for row in block.rows[::3]] == ["Min", "Amean", "Stddev", "CoeffVar", "Max"]


def test_rates_by_hand() -> None:
    """40 and 60 per second: 2 / (1/40 + 1/60) = 48. More is better, but not more spread."""

    def boot(kernel: str, rate: float, number: int) -> Run:
        return run(kernel, phase("p", output={"files_per_second": rate}), boot=number)

    block = comparison.rates(
        comparison.columns([boot("a", 40, 0), boot("a", 60, 1), boot("b", 80, 2), boot("b", 120, 3)])
    )
    assert cells(block, "Hmean", "files_per_second-p") == [(48, 0), (96, 100)]
    assert cells(block, "Min", "files_per_second-p") == [(40, 0), (80, 100)]
    assert cells(block, "Max", "files_per_second-p") == [(60, 0), (120, 100)]
    assert cells(block, "Stddev", "files_per_second-p") == [(14.14, 0), (28.28, -100)]
    assert cells(block, "CoeffVar", "files_per_second-p") == [(28.28, 0), (28.28, 0)]
    assert "Amean" not in {row.operation for row in block.rows}


def test_what_workloads_tell_is_sorted_by_name() -> None:
    """Less of a time is better, more of a rate; other numbers have no known direction, and no gain."""
    told = {"seconds": 3.5, "files_per_second": 100.0, "passes": 7.0, "hit_ratio": 54.35}
    told |= {"per_10_s.migrate.mm_migrate_pages": 418.3, "task-clock": 10692.76}
    found = comparison.columns(
        [run("a", phase("p", output=told)), run("b", phase("p", output={**told, "passes": 8.0}), boot=1)]
    )
    assert "seconds-p" in {row.name for row in comparison.times(found).rows}
    assert {row.name for row in comparison.rates(found).rows} == {"files_per_second-p"}
    block = comparison.other_numbers(found)
    assert not block.gains
    assert [line.split() for line in text(block).splitlines()[1:]] == [
        ["passes-p", "7", "8"],
        ["hit_ratio-p", "54.35", "54.35"],
        ["per_10_s.migrate.mm_migrate_pages-p", "418.30", "418.30"],
        ["task-clock-p", "10692.76", "10692.76"],
    ]


def test_one_boot_has_no_spread() -> None:
    block = comparison.times(
        comparison.columns([run("a", phase("p", system=2)), run("b", phase("p", system=1), boot=1)])
    )
    assert (
        cells(block, "Stddev", "syst-p") == cells(block, "CoeffVar", "syst-p") == [(None, None), (None, None)]
    )
    assert cells(block, "Amean", "syst-p") == [(2, 0), (1, 50)]


def test_what_was_not_measured_is_absent() -> None:
    """A phase that only the second kernel has: without a base there is no gain."""
    block = comparison.times(
        comparison.columns([run("a", phase("p")), run("b", phase("p"), phase("q", system=3), boot=1)])
    )
    assert cells(block, "Amean", "syst-q") == [(None, None), (3, None)]
    assert "syst-q           - (      -)        3.00 (      -)" in text(block)


def test_preparation_is_no_result() -> None:
    found = comparison.columns(
        [run("a", phase("mkfs", measured=False, vmstat={"numa_hit": 5}), phase("p", vmstat={"numa_hit": 3}))]
    )
    assert comparison.phases(found) == ["p"]
    assert cells(comparison.counted(found), "", "NUMA alloc hit") == [(3, None)]


def test_totals_are_sums_of_phases_and_means_of_boots() -> None:
    boots = [
        run("a", phase("p", user=1, system=2, elapsed=3), phase("q", user=10, system=20, elapsed=30), boot=0),
        run("a", phase("p", user=2), boot=1),
    ]
    block = comparison.totals(comparison.columns(boots))
    assert cells(block, "", "User") == [(6.5, None)]
    assert [row.name for row in block.rows] == ["User", "System", "Elapsed"]


def test_totals_have_the_time_of_kswapd_where_it_was_measured() -> None:
    ran = phase("p").model_copy(update={"counters": {"kswapd": {"kswapd0": 1500, "kswapd1": 500}}})
    block = comparison.totals(comparison.columns([run("a", ran, boot=0), run("b", phase("p"), boot=1)]))
    assert cells(block, "", "Kswapd") == [(2, None), (None, None)]


# Counters.


def counted(kernel: str, vmstat: dict[str, int], number: int = 0) -> Run:
    return run(kernel, phase("p", vmstat=vmstat), boot=number)


def test_counters_are_means_and_ratios_are_of_sums() -> None:
    """10 of 100 local and 90 of 300: 100 of 400, not the mean of 10 % and 30 %.

    Ranges: (1000 + 2000)/2 + 512 × (1 + 2)/2.
    """
    base = {
        "numa_pte_updates": 1000,
        "numa_huge_pte_updates": 1,
        "numa_hint_faults": 100,
        "numa_hint_faults_local": 10,
    }
    more = {
        "numa_pte_updates": 2000,
        "numa_huge_pte_updates": 2,
        "numa_hint_faults": 300,
        "numa_hint_faults_local": 90,
    }
    block = comparison.counted(comparison.columns([counted("a", base), counted("a", more, 1)]))
    assert cells(block, "", "NUMA hint local percent") == [(25, None)]
    assert cells(block, "", "NUMA page range updates") == [(2268, None)]
    assert cells(block, "", "NUMA base PTE updates") == [(1500, None)]
    lines = {line[:26].strip(): line[26:].split() for line in text(block).splitlines()}
    assert lines["NUMA huge PMD updates"] == ["1"], "1.5, cut off"
    assert lines["NUMA pages migrated"] == ["-"]


def test_autonuma_cost_by_hand() -> None:
    """7 × 1000000 PTEs + 5000 × 2000 faults + 1316.5 × 4000 pages = 22.266 million, with page copies."""
    vmstat = {"numa_pte_updates": 1_000_000, "numa_hint_faults": 2000, "numa_pages_migrated": 4000}
    assert cells(
        comparison.counted(comparison.columns([counted("a", vmstat), counted("a", vmstat, 1)])),
        "",
        "AutoNUMA cost",
    ) == [(22.27, None)]


def test_reclaim_by_hand() -> None:
    vmstat = {
        "nr_vmscan_write": 7,
        "nr_vmscan_immediate_reclaim": 9,
        "pgscan_kswapd": 200,
        "pgsteal_kswapd": 150,
        "pgscan_direct": 40,
        "pgsteal_direct": 39,
    }
    lines = [
        line.split()
        for line in text(comparison.counted(comparison.columns([counted("a", vmstat)]))).splitlines()
    ]
    assert lines[-8:] == [
        ["Page", "writes", "by", "reclaim", "7"],
        ["Page", "reclaim", "immediate", "9"],
        ["Kswapd", "pages", "scanned", "200"],
        ["Kswapd", "pages", "reclaimed", "150"],
        ["Direct", "pages", "scanned", "40"],
        ["Direct", "pages", "reclaimed", "39"],
        ["Kswapd", "efficiency", "75%"],
        ["Direct", "efficiency", "97%"],
    ]


def test_zones_are_added_up() -> None:
    """Before 4.8 these counters are kept by zone; one zone is not the sum."""
    vmstat = {
        "pgscan_kswapd_dma": 1,
        "pgscan_kswapd_dma32": 20,
        "pgscan_kswapd_normal": 300,
        "pgsteal_kswapd_dma32": 100,
        "pgsteal_kswapd_normal": 7,
    }
    block = comparison.counted(comparison.columns([counted("a", vmstat)]))
    assert cells(block, "", "Kswapd pages scanned") == [(321, None)]
    assert cells(block, "", "Kswapd pages reclaimed") == [(107, None)]
    assert cells(block, "", "Kswapd efficiency") == [(33.33, None)]
    assert cells(block, "", "Direct pages scanned") == [(None, None)]


# Columns.


def test_before_comes_first_whatever_was_booted_first() -> None:
    boots = [
        run("6.1", boot=0, arm=Arm.AFTER),
        run("6.1-slowscan-before", boot=1, arm=Arm.BEFORE),
        run("6.1", boot=2, arm=Arm.AFTER),
    ]
    assert {name: [boot.id[-1] for boot in boots] for name, boots in comparison.columns(boots).items()} == {
        "6.1-slowscan-before": ["1"],
        "6.1": ["0", "2"],
    }


def test_a_kernel_against_itself_has_two_columns() -> None:
    found = comparison.columns([run("6.1", boot=0, arm=Arm.AFTER), run("6.1", boot=1, arm=Arm.BEFORE)])
    assert list(found) == ["6.1-before", "6.1-after"]


def test_broken_runs_are_no_data() -> None:
    found = comparison.columns(
        [run("a", boot=0), run("a", boot=1, error="guest lost"), run("b", boot=2, error="oops")]
    )
    assert {name: len(boots) for name, boots in found.items()} == {"a": 1}


@pytest.mark.parametrize(
    ("runs", "said"),
    [([], "no run was chosen"), ([run("a", error="lost"), run("b", error="lost")], "all 2 runs broke")],
)
def test_nothing_to_compare(runs: list[Run], said: str) -> None:
    with pytest.raises(InputError, match=f"^nothing to compare: {said}$"):
        comparison.columns(runs)


def test_compare_has_all_blocks_with_rows() -> None:
    found = comparison.columns([run("a", phase("p", output={"files_per_second": 3.0}))])
    assert [block.title for block in comparison.compare(found)] == [
        "times in seconds",
        "rates",
        "totals in seconds",
        "counters",
    ]
