"""A run as text: absent is "-", emulation and breakage are said, ratios are the seeds'."""

from __future__ import annotations

import pytest

from numalab import report
from numalab.model import Accel, Phase, SizeClass, jsonable
from numalab.runs import PhaseResult, Run
from tests.unit.makers import spec

SLOWSCAN_V2 = {
    "numa_hit": 121929782, "numa_pte_updates": 117237258, "numa_huge_pte_updates": 52121, "numa_hint_faults": 87299060, "numa_hint_faults_local": 32939258,
}

PHASES: tuple[tuple[str, bool, dict[str, dict[str, int]]], ...] = (
    ("mkfs", False, {}), ("repair", True, {"vmstat": SLOWSCAN_V2}), ("bare", True, {"vmstat": {"numa_hit": 0}}), ("none", True, {}),
)


def run(accel: Accel = Accel.TCG, *, error: str = "", warnings: tuple[str, ...] = ()) -> Run:
    """A run with one phase that counted as the seed's slowscan-v2 did, one that counted little, one that is no result."""
    phases = [
        PhaseResult(phase=Phase(name=name, command="true", limit_seconds=60, measured=measured), status=0, elapsed=12.345, user=2, system=1,
                    counters=counters, guest_load=0, host_load=0)
        for name, measured, counters in PHASES
    ]
    return Run(
        id="r", workload="xfsrepair", size=SizeClass.FULL, params={}, started="", host={}, guest={"spec": jsonable(spec(accel=accel))}, release="6.1.0",
        cmdline="", phases=tuple(phases), error=error, console_warnings=warnings,
    )


def rows(text: str) -> dict[str, list[str]]:
    """The table's rows by title."""
    lines = text.partition("\n\n")[2].splitlines()
    return {line[:25].strip(): line[25:].split() for line in lines}


def test_head() -> None:
    head = report.summary(run()).splitlines()[0]
    for word in ("xfsrepair (full)", "4socket", "16 vCPUs", "16GiB", "debian 6.1.0", "tcg"):
        assert word in head


def test_absent_is_a_dash_and_zero_is_zero() -> None:
    found = rows(report.summary(run()))
    assert found[""] == ["repair", "bare", "none"], "what is not measured is not shown"
    assert found["NUMA alloc hit"] == ["121929782", "0", "-"]
    assert found["NUMA alloc miss"] == found["Minor faults"] == ["-", "-", "-"]
    assert found["NUMA page range updates"] == ["143923210", "-", "-"]
    assert found["Elapsed"] == ["12.35", "12.35", "12.35"] or found["Elapsed"] == ["12.34"] * 3


def test_percent_as_published() -> None:
    """The seed has 37 for 37.73: its tool cuts off, and ours stands beside it in one table."""
    assert rows(report.summary(run()))["NUMA hint local percent"] == ["37", "-", "-"]


@pytest.mark.parametrize(("accel", "said"), [(Accel.TCG, True), (Accel.KVM, False)])
def test_emulation_is_said(accel: Accel, said: bool) -> None:
    assert ("emulated" in report.summary(run(accel))) is said


def test_breakage_is_said() -> None:
    text = report.summary(run(error="phase repair: exit status 1", warnings=("watchdog: BUG: soft lockup",)))
    assert "BROKEN, not a result: phase repair: exit status 1" in text
    assert "console: watchdog: BUG: soft lockup" in text
    assert "BROKEN" not in report.summary(run())


def test_a_run_that_broke_before_its_first_phase() -> None:
    text = report.summary(run(error="SSH is lost").model_copy(update={"phases": ()}))
    assert "BROKEN, not a result: SSH is lost" in text
