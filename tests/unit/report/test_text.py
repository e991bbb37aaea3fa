# SPDX-License-Identifier: GPL-2.0-only
"""Runs and verdicts as text: absent is "-", emulation and errors are shown, ratios are the seeds'."""

from __future__ import annotations

import pytest

from numalab.analysis import calibration
from numalab.experiment import judging
from numalab.experiment.plan import boot_order
from numalab.model.case import Arm, Direction, Expectation
from numalab.model.run import PhaseResult, Run
from numalab.model.values import Accel, Phase, SizeClass
from numalab.model.verdict import Grade, Verdict
from numalab.report import text as report_text
from tests.unit import synthetic
from tests.unit.makers import record_of, spec
from tests.unit.synthetic import disks_of

SLOWSCAN_V2 = {
    "numa_hit": 121929782,
    "numa_pte_updates": 117237258,
    "numa_huge_pte_updates": 52121,
    "numa_hint_faults": 87299060,
    "numa_hint_faults_local": 32939258,
}

PHASES: tuple[tuple[str, bool, dict[str, dict[str, int]]], ...] = (
    ("mkfs", False, {}),
    ("repair", True, {"vmstat": SLOWSCAN_V2}),
    ("bare", True, {"vmstat": {"numa_hit": 0}}),
    ("none", True, {}),
)


def run(accel: Accel = Accel.TCG, *, error: str = "", warnings: tuple[str, ...] = ()) -> Run:
    """A run of three phases: with the seed's slowscan-v2 counters, with small ones, and not measured."""
    phases = [
        PhaseResult(
            phase=Phase(name=name, command="true", limit_seconds=60, measured=measured),
            status=0,
            elapsed=12.345,
            user=2,
            system=1,
            counters=counters,
            guest_load=0,
            host_load=0,
        )
        for name, measured, counters in PHASES
    ]
    return Run(
        id="r",
        workload="xfsrepair",
        size=SizeClass.FULL,
        params={},
        started="",
        host={},
        guest=record_of(spec(accel=accel)),
        release="6.1.0",
        cmdline="",
        phases=tuple(phases),
        error=error,
        console_warnings=warnings,
    )


def rows(text: str) -> dict[str, list[str]]:
    """The table's rows by title."""
    lines = text.partition("\n\n")[2].splitlines()
    return {line[:25].strip(): line[25:].split() for line in lines}


def test_head() -> None:
    head = report_text.summary(run()).splitlines()[0]
    for word in ("xfsrepair (full)", "4socket", "16 vCPUs", "16GiB", "debian 6.1.0", "tcg"):
        assert word in head


def test_absent_is_a_dash_and_zero_is_zero() -> None:
    found = rows(report_text.summary(run()))
    assert found[""] == ["repair", "bare", "none"], "what is not measured is not shown"
    assert found["NUMA alloc hit"] == ["121929782", "0", "-"]
    assert found["NUMA alloc miss"] == found["Minor faults"] == ["-", "-", "-"]
    assert found["NUMA page range updates"] == ["143923210", "-", "-"]
    assert found["Elapsed"] == ["12.35", "12.35", "12.35"] or found["Elapsed"] == ["12.34"] * 3


def test_percent_as_published() -> None:
    """The seed has 37 for 37.73: its tool cuts off, and ours is compared with it in one table."""
    assert rows(report_text.summary(run()))["NUMA hint local percent"] == ["37", "-", "-"]


@pytest.mark.parametrize(("accel", "said"), [(Accel.TCG, True), (Accel.KVM, False)])
def test_emulation_is_said(accel: Accel, said: bool) -> None:
    assert ("emulated" in report_text.summary(run(accel))) is said


def test_breakage_is_said() -> None:
    text = report_text.summary(
        run(error="phase repair: exit status 1", warnings=("watchdog: BUG: soft lockup",))
    )
    assert "BROKEN, not a result: phase repair: exit status 1" in text
    assert "console: watchdog: BUG: soft lockup" in text
    assert "BROKEN" not in report_text.summary(run())


def test_the_time_of_a_boot_is_said_where_it_is_known() -> None:
    assert "host's, to the end" not in report_text.summary(run())
    timed = run().model_copy(update={"host_seconds": 43.4})
    assert "the boot took 43 s of the host's, to the end of its last phase" in report_text.summary(timed)


def test_a_run_that_broke_before_its_first_phase() -> None:
    text = report_text.summary(run(error="SSH is lost").model_copy(update={"phases": ()}))
    assert "BROKEN, not a result: SSH is lost" in text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7, "7"),
        (0.0605, "0.0605"),
        (0.9, "0.9"),
        (999.4, "999"),
        (999.9, "1000"),
        (1234.5, "1234"),
        (9999, "9999"),
        (9999.7, "10k"),
        (10_000, "10k"),
        (147_213, "147k"),
        (999_499, "999k"),
        (999_600, "1M"),
        (1_557_000, "1.56M"),
        (121_929_782, "122M"),
        (999_600_000, "1G"),
        (1.5e9, "1.5G"),
        (2.5e12, "2500G"),
        (-147_213, "-147k"),
        (-3.5, "-3.5"),
        (3.18e-6, "3.18e-06"),
    ],
)
def test_short(number: float, text: str) -> None:
    assert report_text.short(number) == text


FALLS = Direction.FALLS
WISHES = (
    Expectation(
        metric="numa_pte_updates",
        phase="repair-*",
        direction=FALLS,
        by=1.5,
        why="the seed: 242 to 117 million",
    ),
    Expectation(metric="nr_vmscan_immediate_reclaim", phase="repair-*", direction=FALLS, by=10, to=0),
    Expectation(metric="migrated_per_hint_fault", phase="repair-*", direction=FALLS, by=1.1, releases="4.*"),
    Expectation(metric="system", phase="repair-*", direction=FALLS),
    Expectation(metric="trace:migrate:mm_migrate_pages", phase="repair-*", direction=FALLS, decides=False),
)
BOOTS = {
    "6.1-slowscan-before": [(1_557_000, 11413, 90_000), (1_721_000, 12957, 77_000), (1_590_000, 947, 91_000)],
    "6.1": [(98_000, 0, 28_000), (98_100, 0, 42_000), (98_500, 0, 70_000)],
}

SYSTEM = {"6.1-slowscan-before": (10.5, 10.9, 10.8), "6.1": (9.6, 10.0, 9.7)}


def judged(accel: Accel = Accel.TCG) -> Verdict:
    """A verdict from three boots of each kernel."""
    case = synthetic.CASE.model_copy(update={"expect": WISHES})
    names = list(BOOTS)
    runs = []
    for boot, index in boot_order(names, 3):
        updates, reclaimed, migrated = BOOTS[names[index]][boot // 2]
        vmstat = {
            "numa_pte_updates": updates,
            "nr_vmscan_immediate_reclaim": reclaimed,
            "numa_pages_migrated": migrated,
            "numa_hint_faults": 100_000,
        }
        phase = synthetic.phase("repair-defaults", system=SYSTEM[names[index]][boot // 2], vmstat=vmstat)
        runs.append(
            synthetic.run(
                names[index], phase, boot=boot, arm=Arm.AFTER if index else Arm.BEFORE, case=case, accel=accel
            )
        )
    return judging.verdicts(runs)[0]


def test_verdict() -> None:
    """The answer first, then deciding findings with each boot's value, then the others, then doubts."""
    assert (
        report_text.verdict(judged())
        == """\
xfsrepair (quick) on 4socket, tcg: 6.1-slowscan-before against 6.1, 3 and 3 boots: HOLDS
  numa_pte_updates, repair-*: falls by a factor of 1.5: holds, ×0.0606
    6.1-slowscan-before  1.56M  1.72M  1.59M
    6.1                    98k  98.1k  98.5k
    after/before is 0.0606 (95 %: 0.0532 to 0.069), asked for: 0.667 or less
  nr_vmscan_immediate_reclaim, repair-*: falls by a factor of 10, to 0: holds, ×0
    6.1-slowscan-before  11.4k  13k  947
    6.1                      0    0    0
    after/before is 0 (95 %: 0 to 0.00255), asked for: 0.1 or less; no boot after misses 0: at most 70.8 % of boots do (95 %)
  no part of the verdict:
    migrated_per_hint_fault, repair-*: falls by a factor of 1.1: cannot tell, ×0.507
      6.1-slowscan-before   0.9  0.77  0.91
      6.1                  0.28  0.42   0.7
      after/before is 0.507 (95 %: 0.172 to 1.5), asked for: 0.909 or less; p 0.12 is above 0.05; so many boots that scatter so hold in 80 % \
at a true factor of 4.38; if the effect is as estimated, 4 to 33 of each kernel hold in 80 % (decides nothing: expected of releases 4.*, this is 6.1-numalab)
    system, repair-*: falls: cannot tell, ×0.91
      6.1-slowscan-before  10.5  10.9  10.8
      6.1                   9.6    10   9.7
      times are emulated and tell nothing (decides nothing: emulated)
    trace:migrate:mm_migrate_pages, repair-*: falls: cannot tell
      6.1-slowscan-before  -
      6.1                  -
      trace:migrate:mm_migrate_pages is absent from every boot before and after (decides nothing: so the case has it)
  doubt: not calibrated on this machine: how far A is from A is not known (lab.py calibrate)
  emulated: times are no evidence, and counters depend on the host's load, and no time decided this"""
    )


def test_verdict_without_emulation() -> None:
    """Times decide, and emulation is not mentioned."""
    text = report_text.verdict(judged(Accel.KVM))
    assert "emulated" not in text
    assert "\n  system, repair-*: falls: holds, ×0.91\n" in text
    assert "boots of each kernel" not in text


def test_grades_are_shown() -> None:
    found = judged()
    first = found.findings[0].model_copy(update={"grade": Grade.SIZE_OPEN})
    text = report_text.verdict(found.model_copy(update={"findings": (first,), "grade": Grade.SIZE_OPEN}))
    assert "3 and 3 boots: HOLDS, SIZE OPEN\n" in text
    assert "falls by a factor of 1.5: holds, size open, ×0.0606\n" in text


def test_odds_are_named() -> None:
    found = judged()
    local = found.findings[0].expectation.model_copy(update={"metric": "hint_local_percent"})
    first = found.findings[0].model_copy(update={"expectation": local, "odds": True})
    text = report_text.verdict(found.model_copy(update={"findings": (first,)}))
    assert "hint_local_percent, repair-*: falls by a factor of 1.5 in odds: holds, odds ×0.0606\n" in text


def test_verdict_where_one_side_lacks_boots() -> None:
    """Values are in columns, as many as each side has."""
    found = judged()
    first = found.findings[0].model_copy(update={"after": (98_000.0,)})
    text = report_text.verdict(found.model_copy(update={"findings": (first,)}))
    assert "    6.1-slowscan-before  1.56M  1.72M  1.59M\n    6.1                    98k\n" in text


def test_repro() -> None:
    """Commands can be typed as shown, with the counters behind derived metrics."""
    case = synthetic.CASE.model_copy(update={"expect": WISHES, "tracepoints": ("migrate:mm_migrate_pages",)})
    phase = Phase(name="repair-defaults", command="xfs_repair -vv /dev/vdb\nmore", limit_seconds=9)
    assert (
        report_text.repro(case, "6.1-slowscan-before", "repro-xfsrepair", phase, "/root/next.sh")
        == """\
repro-xfsrepair: kernel 6.1-slowscan-before, all done up to phase repair-defaults of xfsrepair: what failed migrations do to the scanner
  in the guest:  sh /root/next.sh    # xfs_repair -vv /dev/vdb
                 grep -E '^(numa_pte_updates|nr_vmscan_immediate_reclaim|numa_pages_migrated|numa_hint_faults)' /proc/vmstat    # before and after
                 perf stat -a -r 6 -e migrate:mm_migrate_pages sleep 10    # when it is steady
  here:          ./lab.py watch repro-xfsrepair    # what moves, live
                 ./lab.py ssh repro-xfsrepair      # another shell
                 ./lab.py down repro-xfsrepair     # when you are done
  expected of 6.1 against 6.1-slowscan-before:
    numa_pte_updates, repair-*: falls by a factor of 1.5: the seed: 242 to 117 million
    nr_vmscan_immediate_reclaim, repair-*: falls by a factor of 10, to 0
    migrated_per_hint_fault, repair-*: falls by a factor of 1.1 (in 4.*)
    system, repair-*: falls
    trace:migrate:mm_migrate_pages, repair-*: falls"""
    )


@pytest.mark.parametrize(
    ("metric", "counters"),
    [
        ("numa_pte_updates", "numa_pte_updates"),
        ("minor_faults", "pgfault|pgmajfault"),
        ("other_minor_faults", "numa_hint_faults|pgfault|pgmajfault"),
        ("page_range_updates", "numa_pte_updates|numa_huge_pte_updates"),
        ("touch_faults_per_hint_fault", "numa_hint_faults"),
        ("faults_per_hint_fault", "numa_hint_faults|pgfault|pgmajfault"),
        ("kswapd_scan_per_steal", "pgscan_kswapd|pgsteal_kswapd"),
        ("fairzone_resets_per_1000_pages", "fairzone_reset|pgalloc_"),
        ("elapsed", None),
        ("output:files_per_second", None),
        ("trace:migrate:mm_migrate_pages", None),
    ],
)
def test_repro_greps_for_what_is_there(metric: str, counters: str | None) -> None:
    case = synthetic.CASE.model_copy(
        update={"expect": (Expectation(metric=metric, phase="touch", direction=FALLS),)}
    )
    text = report_text.repro(
        case, "6.1", "g", Phase(name="touch", command="true", limit_seconds=9), "/root/next.sh"
    )
    assert (f"grep -E '^({counters})' /proc/vmstat" in text) if counters else ("grep" not in text)


def test_spread() -> None:
    """In columns; an emulated machine is marked."""
    runs = [
        synthetic.run(
            "6.1",
            synthetic.phase("repair-defaults", system=9 + boot / 10, vmstat={"numa_pte_updates": updates}),
            boot=boot,
            arm=Arm.AFTER,
            case=synthetic.CASE.model_copy(update={"expect": WISHES}),
        )
        for boot, updates in enumerate([98_000, 110_000, 120_000, 98_500])
    ]
    assert (
        report_text.spread(calibration.of(runs))
        == """\
xfsrepair (quick) on tcg, 6.1 against itself, 4 boots:
  METRIC             PHASE     MEAN  SCATTER  3 BOOTS AGAINST 3
  numa_pte_updates   repair-*  107k     9.7%        up to ×1.29
  system (emulated)  repair-*  9.15     1.4%        up to ×1.04"""
    )


def test_a_run_that_began_otherwise_says_so() -> None:
    run = synthetic.run("6.1", synthetic.phase("repair-bhash"))
    assert "ready" not in report_text.summary(run)
    restored = run.model_copy(update={"guest": run.guest.model_copy(update={"ready_state": "a1"})})
    assert "\nbegan from ready state a1: not a boot of its own\n" in report_text.summary(restored)
    begun = run.model_copy(
        update={
            "prepared": ("mkfs", "fsmark"),
            "guest": run.guest.model_copy(update={"prepared": disks_of("b2")}),
        }
    )
    assert "\non prepared disks b2: without mkfs, fsmark\n" in report_text.summary(begun)
