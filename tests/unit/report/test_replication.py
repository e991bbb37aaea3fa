# SPDX-License-Identifier: GPL-2.0-only
"""Published effects beside ours: ratios, directions, intervals; never seconds."""

from __future__ import annotations

from datetime import date

import pytest

from numalab.analysis import expectation, metrics
from numalab.analysis.metrics import Kind
from numalab.model.case import Arm, Direction, Expectation
from numalab.model.run import Run
from numalab.model.values import Accel
from numalab.model.verdict import Answer
from numalab.report import comparison, replication
from numalab.report import reference as report_reference
from numalab.report.replication import Agreement, Beside
from tests.unit.makers import on_virtual_clock
from tests.unit.synthetic import phase, run

SEED = {"slowscan-xfsrepair": report_reference.load("slowscan-xfsrepair")}
BEFORE, AFTER = "6.1-slowscan-before", "6.1"


def boots(
    kernel: str, arm: Arm, system: list[float], faults: list[int], accel: Accel = Accel.KVM
) -> list[Run]:
    return [
        run(
            kernel,
            phase("mmtests-repair", system=seconds, vmstat={"numa_hint_faults": count, "numa_interleave": 0}),
            boot=boot,
            arm=arm,
            accel=accel,
        )
        for boot, (seconds, count) in enumerate(zip(system, faults, strict=True))
    ]


def rows(accel: Accel = Accel.KVM, after: list[float] | None = None) -> dict[str, Beside]:
    """Rows by metric: system time 10 11 12 s, then 0.6 of it; faults 1000 1100 1200, then 2000 2100 2200."""
    found = comparison.columns(
        [
            *boots(BEFORE, Arm.BEFORE, [10, 11, 12], [1000, 1100, 1200], accel),
            *boots(AFTER, Arm.AFTER, after or [6, 6.6, 7.2], [2000, 2100, 2200], accel),
        ]
    )
    return {row.metric: row for row in replication.beside(SEED, found, BEFORE)}


def test_the_same_way() -> None:
    """The seed: 519.88 to 281.63 s. Ours: exactly 0.6 in each boot; the interval is Welch's over logs."""
    row = rows()["system"]
    assert (row.row, row.phase, row.boots) == ("Amean syst-xfsrepair", "mmtests-repair", (3, 3))
    assert replication.change(row.published) == "-45.83%"
    assert row.ratio == pytest.approx(0.6)
    assert row.low is not None
    assert row.high is not None
    assert row.low < 0.6 < row.high < 1
    assert row.low * row.high == pytest.approx(0.36), "symmetric in logs"
    assert row.agreement is Agreement.SAME


def test_the_other_way() -> None:
    row = rows()["numa_hint_faults"]
    assert replication.change(row.published) == "-51.60%"
    assert row.ratio == pytest.approx((2000 * 2100 * 2200 / (1000 * 1100 * 1200)) ** (1 / 3))
    assert row.agreement is Agreement.OTHER


def test_no_change_is_open() -> None:
    assert rows(after=[10.1, 10.9, 12.05])["system"].agreement is Agreement.OPEN


def beside(
    published: dict[str, tuple[str, str]], before: dict[str, list[float]], after: dict[str, list[float]]
) -> tuple[Beside, ...]:
    """Rows named after their metrics, beside boots under KVM: a time `elapsed`, and counters."""
    result = report_reference.Published.model_validate(
        {
            "description": "a table",
            "seed": "seed.txt",
            "author": "somebody",
            "date": date(2015, 1, 1),
            "machine": "theirs",
            "workload": "theirs",
            "columns": ["old", "new"],
            "before": "old",
            "after": "new",
            "tables": [
                {
                    "title": "a table",
                    "rows": [
                        {"name": name, "values": values, "metric": name, "phase": "work"}
                        for name, values in published.items()
                    ],
                }
            ],
        }
    )
    runs = []
    for kernel, arm, values in ((BEFORE, Arm.BEFORE, before), (AFTER, Arm.AFTER, after)):
        for boot in range(3):
            own = {name: side[boot] for name, side in values.items() if boot < len(side)}
            elapsed = own.pop("elapsed", 1.0)
            vmstat = {name: int(value) for name, value in own.items()}
            runs.append(
                run(
                    kernel, phase("work", elapsed=elapsed, vmstat=vmstat), boot=boot, arm=arm, accel=Accel.KVM
                )
            )
    return replication.beside({"table": result}, comparison.columns(runs), BEFORE)


def test_the_other_way_beside_rows_that_go_the_same_way() -> None:
    """Its interval leaves no change out, as it does alone, and so it is not open."""
    same = {f"numa_{i}": ("100", "50") for i in range(7)}
    before = {name: [1e5, 1.02e5, 0.99e5] for name in same}
    after = {name: [4e4, 4.1e4, 3.9e4] for name in same}
    found = beside(
        {**same, "numa_odd": ("100", "50")},
        {**before, "numa_odd": [10000, 10300, 9800]},
        {**after, "numa_odd": [11400, 12100, 11200]},
    )
    assert [row.agreement for row in found] == [*[Agreement.SAME] * 7, Agreement.OTHER]
    assert (found[-1].low or 0) > 1


def test_nothing_agrees_with_no_change() -> None:
    (row,) = beside({"numa_a": ("100", "100")}, {"numa_a": [100, 101, 99]}, {"numa_a": [50, 51, 49]})
    assert row.low is not None
    assert row.agreement is Agreement.OPEN


@pytest.mark.parametrize(
    ("after", "agreement"),
    [(99.6, Agreement.OPEN), (100.4, Agreement.OPEN), (97, Agreement.SAME), (103, Agreement.OTHER)],
)
def test_a_time_has_to_change_by_2_percent(after: float, agreement: Agreement) -> None:
    """Two builds of one source differ by less."""
    (row,) = beside(
        {"elapsed": ("100", "50")},
        {"elapsed": [100, 100.05, 99.95]},
        {"elapsed": [after, after + 0.05, after - 0.05]},
    )
    assert row.confidence == 0.95
    assert row.agreement is agreement


@pytest.mark.parametrize("names", ["abc", "cab"])
def test_a_row_that_few_boots_have_has_no_interval(names: str) -> None:
    """It is not corrected with the others, and the heading has the level of those."""
    before, after = [100.0, 130, 80], [90.0, 120, 88]
    found = beside(
        {f"numa_{name}": ("100", "50") for name in names},
        {f"numa_{name}": before for name in "abc"},
        {"numa_a": after, "numa_b": after, "numa_c": after[:2]},
    )
    assert replication.levels(found) == "97.5 %"
    (few,) = (row for row in found if row.metric == "numa_c")
    assert (few.boots, few.low, few.high) == ((3, 2), None, None)
    assert few.ratio is not None


def test_a_percentage_is_compared_as_it_was_published() -> None:
    """Published is the change of the percentage, though cases judge its odds."""
    columns = comparison.columns(
        [
            run(
                kernel,
                phase("cg", vmstat={"numa_hint_faults": 1000, "numa_hint_faults_local": near + boot}),
                boot=boot,
                arm=arm,
                accel=Accel.KVM,
            )
            for kernel, arm, near in (("6.1-nodirty-before", Arm.BEFORE, 700), (AFTER, Arm.AFTER, 910))
            for boot in range(3)
        ]
    )
    rows = replication.beside(
        {"nodirty": report_reference.load("nodirty-btrfs")}, columns, "6.1-nodirty-before"
    )
    (row,) = (row for row in rows if row.metric == "hint_local_percent")
    assert row.published == pytest.approx(91 / 70)
    assert row.ratio == pytest.approx(911 / 701, rel=1e-4)
    assert row.agreement is Agreement.SAME


def test_rows_are_judged_together() -> None:
    """A row that is one of many needs more than one that stands alone; two looks ask for more still."""
    columns = comparison.columns(
        [
            *boots(BEFORE, Arm.BEFORE, [10, 12, 11], [1000, 1200, 1100]),
            *boots(AFTER, Arm.AFTER, [8.5, 9.5, 9.0], [1010, 1180, 1120]),
        ]
    )
    alone = expectation.alone(
        Expectation(metric="system", phase="mmtests-repair", direction=Direction.FALLS),
        metrics.values(columns[BEFORE], "system", "mmtests-repair"),
        metrics.values(columns[AFTER], "system", "mmtests-repair"),
        kind=Kind.TIME,
    )
    together = {row.metric: row for row in replication.beside(SEED, columns, BEFORE)}
    evidence = [row for row in together.values() if row.low is not None]
    assert len(evidence) > 1
    assert alone.answer is Answer.HOLDS
    assert together["system"].agreement is Agreement.OPEN
    assert together["system"].confidence == pytest.approx(1 - expectation.ALPHA / len(evidence))
    looked = {
        name: tuple(
            one.model_copy(update={"place": one.place.model_copy(update={"looks": 2})}) if one.place else one
            for one in runs
        )
        for name, runs in columns.items()
    }
    row = next(row for row in replication.beside(SEED, looked, BEFORE) if row.metric == "system")
    assert row.confidence == pytest.approx(1 - expectation.ALPHA / len(evidence) / 2)


def test_levels() -> None:
    assert replication.levels(tuple(rows().values())) == "96.7 %"
    found = tuple(
        row.model_copy(update={"confidence": 0.95 if row.agreement is Agreement.EMULATED else 0.99})
        for row in rows(Accel.TCG).values()
    )
    assert replication.levels(found) == "99, emulated 95 %"


def test_a_row_without_an_interval_has_no_level() -> None:
    """One that was 0 in all boots, last."""
    of = tuple(row.model_copy(update={"confidence": 0.99}) for row in rows().values())
    empty = of[0].model_copy(update={"confidence": 0.95, "ratio": None, "low": None, "high": None})
    assert replication.levels((*of, empty)) == "99 %"


def test_emulated_times_are_no_evidence_and_counters_are() -> None:
    found = rows(Accel.TCG)
    assert found["system"].agreement is Agreement.EMULATED
    assert found["numa_hint_faults"].agreement is Agreement.OTHER


def test_on_a_virtual_clock_system_time_is_evidence_and_elapsed_is_not() -> None:
    """What the kernel does is work; how long it took is where memory lay, too."""
    columns = comparison.columns(
        [
            *boots(BEFORE, Arm.BEFORE, [10, 11, 12], [1000, 1100, 1200], Accel.TCG),
            *boots(AFTER, Arm.AFTER, [6, 6.6, 7.2], [2000, 2100, 2200], Accel.TCG),
        ]
    )
    virtual = {name: tuple(map(on_virtual_clock, runs)) for name, runs in columns.items()}
    found = {row.metric: row for row in replication.beside(SEED, virtual, BEFORE)}
    assert found["system"].agreement is Agreement.SAME
    assert {row.agreement for name, row in found.items() if name in ("elapsed", "user")} == {
        Agreement.EMULATED
    }
    assert [metric for metric, row in found.items() if row.instructions] == ["system"]
    assert replication.text(tuple(found.values()), SEED).endswith("\ninstruction time: Amean syst-xfsrepair")


def test_one_boot_of_each_has_a_ratio_and_no_interval() -> None:
    found = comparison.columns(
        [*boots(BEFORE, Arm.BEFORE, [10], [1000]), *boots(AFTER, Arm.AFTER, [5], [500])]
    )
    row = {row.metric: row for row in replication.beside(SEED, found, BEFORE)}["system"]
    assert row.ratio == pytest.approx(0.5)
    assert (row.low, row.high, row.agreement) == (None, None, Agreement.OPEN)


def test_absent_is_absent_and_other_phases_are_left_out() -> None:
    found = rows()
    assert (found["numa_pte_updates"].ratio, found["numa_pte_updates"].boots) == (None, (0, 0))
    assert "Amean syst-fsmark" not in {row.row for row in found.values()}, "no boot has that phase"
    assert "numa_interleave" not in found, "0 there, so no ratio there"


def test_each_other_kernel_is_set_against_before() -> None:
    third = boots("6.12", Arm.AFTER, [5, 5, 5], [1, 1, 1])
    found = comparison.columns(
        [
            *boots(BEFORE, Arm.BEFORE, [10] * 3, [9] * 3),
            *boots(AFTER, Arm.AFTER, [6] * 3, [9] * 3),
            *(one.model_copy(update={"started": "20261122"}) for one in third),
        ],
        "6.12",
    )
    assert list(found) == ["6.12", BEFORE, AFTER]
    pairs = [
        (row.before, row.after) for row in replication.beside(SEED, found, BEFORE) if row.metric == "system"
    ]
    assert pairs == [(BEFORE, "6.12"), (BEFORE, AFTER)]


@pytest.mark.parametrize(
    ("patches", "after", "shown"),
    [
        (None, AFTER, True),
        ("slowscan", AFTER, True),
        ("stagger", AFTER, False),
        ("stagger", BEFORE, True),  # kernels that differ in no patch set may differ otherwise
        ("stagger", "mine", True),  # no recipe tells
    ],
)
def test_tables_about_other_patch_sets_are_left_out(patches: str | None, after: str, shown: bool) -> None:
    found = comparison.columns(
        [
            *boots(BEFORE, Arm.BEFORE, [10] * 3, [9] * 3),
            *boots(after, Arm.AFTER, [5] * 3, [9] * 3),
        ]
    )
    references = {name: about.model_copy(update={"patches": patches}) for name, about in SEED.items()}
    assert bool(replication.beside(references, found, comparison.before(found))) is shown


def test_text() -> None:
    lines = replication.text(tuple(rows().values()), SEED).splitlines()
    assert lines[:4] == [
        "published: Mel Gorman, 2015-03-07 (reference/slowscan-xfsrepair.yml)",
        "           4.0.0-rc1 vanilla -> 4.0.0-rc1 slowscan-v2",
        "here:      6.1-slowscan-before -> 6.1",
        "                        published      here  interval (96.7 %)",
    ]
    (line,) = (line for line in lines if line.startswith("Amean syst-xfsrepair"))
    assert line.split()[:4] == ["Amean", "syst-xfsrepair", "-45.83%", "-40.00%"]
    assert line.endswith("same way")
    assert "NUMA base PTE updates     -51.60%         -  -              open" in lines
    assert max(map(len, lines)) <= 76
    assert "519" not in "\n".join(lines), "no seconds of another machine"


@pytest.mark.parametrize(
    "name", ["slowscan-autonuma", "ptewrite-autonuma", "perzonedirty-usb", "repair-times", "stagger-nas"]
)
def test_every_reference_fits_a_mail(name: str) -> None:
    reference = {name: report_reference.load(name).model_copy(update={"patches": None})}
    phases = {effect.phase.replace("*", "x") for effect in report_reference.effects(reference[name])}
    found = comparison.columns(
        [
            run(kernel, *(phase(one) for one in sorted(phases)), boot=boot, arm=arm)
            for boot in range(3)
            for kernel, arm in ((BEFORE, Arm.BEFORE), (AFTER, Arm.AFTER))
        ]
    )
    text = replication.text(replication.beside(reference, found, BEFORE), reference)
    assert max(map(len, text.splitlines())) <= 76


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        (0.54169, "-45.83%"),
        (1.0, "+0.00%"),
        (0.99999, "+0.00%"),
        (2.6323, "+163.23%"),
        (0.0, "-100.00%"),
        (None, "-"),
    ],
)
def test_change(ratio: float | None, shown: str) -> None:
    assert replication.change(ratio) == shown


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.5289, 0.6548, "-47.1..-34.5%"),
        (1.2, None, "+20.0.."),
        (None, None, "-"),
        (0.0, 0.4, "-100.0..-60.0%"),
    ],
)
def test_interval(low: float | None, high: float | None, shown: str) -> None:
    assert replication.interval(rows()["system"].model_copy(update={"low": low, "high": high})) == shown
