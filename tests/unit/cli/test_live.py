# SPDX-License-Identifier: GPL-2.0-only
"""An experiment's progress: plain lines in a pipe; on a terminal, live counters below the step."""

from __future__ import annotations

import io
import logging
import time

import pytest
import rich.console
from rich.console import Console

from numalab.cli import live, progress
from numalab.core import log
from numalab.experiment import judging
from numalab.experiment.plan import Plan
from numalab.experiment.run import ExperimentBoot
from numalab.kernel import recipe
from numalab.model.case import Arm, Place
from numalab.model.values import SizeClass
from tests.unit import synthetic

BEFORE, AFTER = "6.1-slowscan-before", "6.1"


@pytest.fixture
def plan() -> Plan:
    return Plan(
        case_name="mine",
        case=synthetic.CASE,
        size=SizeClass.QUICK,
        machine=synthetic.CASE.sizes[SizeClass.QUICK].machines[0],
        kernels=(recipe.load(BEFORE), recipe.load(AFTER)),
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def lab_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "numalab")
    return caplog


def boot(number: int, side_by_side: int = 1) -> ExperimentBoot:
    index = [0, 1, 1, 0][number % 4]
    place = Place(
        case_name="mine",
        case=synthetic.CASE,
        experiment="e",
        arm=Arm.AFTER if index else Arm.BEFORE,
        boot=number,
        side_by_side=side_by_side,
    )
    return ExperimentBoot(recipe.load((BEFORE, AFTER)[index]), place)


def test_boots(plan: Plan, clock: list[float], lab_log: pytest.LogCaptureFixture) -> None:
    """The number of boots and the remaining time, without the time that kernels took to build."""
    view = live.View(plan, 3)
    for number in range(6):
        clock[0] += 120 if number else 9999
        view.began(boot(number))
    assert lab_log.messages == [
        "mine: boot 1 of 6: before, 6.1-slowscan-before",
        "mine: boot 2 of 6: after, 6.1; about 10 min left",
        "mine: boot 3 of 6: after, 6.1; about 8 min left",
        "mine: boot 4 of 6: before, 6.1-slowscan-before; about 6 min left",
        "mine: boot 5 of 6: before, 6.1-slowscan-before; about 4 min left",
        "mine: boot 6 of 6: after, 6.1; about 2 min left",
    ]


def test_boots_side_by_side(plan: Plan, clock: list[float], lab_log: pytest.LogCaptureFixture) -> None:
    """The first two begin together; then one begins whenever another has ended."""
    view = live.View(plan, 2)
    for number, seconds in enumerate((9999, 0, 120, 0)):
        clock[0] += seconds
        view.began(boot(number, side_by_side=2))
    assert lab_log.messages == [
        "mine: boot 1 of 4: before, 6.1-slowscan-before",
        "mine: boot 2 of 4: after, 6.1",
        "mine: boot 3 of 4: after, 6.1; about 6 min left",
        "mine: boot 4 of 4: before, 6.1-slowscan-before; about 2 min left",
    ]


def test_boots_of_auto(plan: Plan, lab_log: pytest.LogCaptureFixture) -> None:
    """The number of boots is not known."""
    view = live.View(plan, None)
    view.began(boot(0))
    view.began(boot(7))
    assert lab_log.messages == [
        "mine: boot 1 of at most 16: before, 6.1-slowscan-before",
        "mine: boot 8 of at most 16: before, 6.1-slowscan-before",
    ]


def test_phases(lab_log: pytest.LogCaptureFixture) -> None:
    """Measured phases, with what they counted."""
    view = live.BootView("mine-0")
    view.ended(synthetic.phase("mkfs", measured=False, vmstat={"numa_pte_updates": 5}))
    view.ended(
        synthetic.phase("touch", vmstat={"numa_pte_updates": 1_557_000, "nr_vmscan_write": 0, "pgfault": 5})
    )
    view.ended(synthetic.phase("idle"))
    assert lab_log.messages == ["mine-0: touch: numa_pte_updates 1.56M", "mine-0: idle: nothing moved"]


def test_so_far(plan: Plan, lab_log: pytest.LogCaptureFixture) -> None:
    view = live.View(plan, 3)
    runs = [
        synthetic.run(
            kernel, synthetic.phase("repair-x", vmstat={"numa_pte_updates": value}), boot=number, arm=arm
        )
        for number, (kernel, arm, value) in enumerate(
            [
                (BEFORE, Arm.BEFORE, 1_557_000),
                (AFTER, Arm.AFTER, 98_000),
                (AFTER, Arm.AFTER, 98_100),
                (BEFORE, Arm.BEFORE, 1_721_000),
            ]
        )
    ]
    [verdict] = judging.verdicts(runs)
    view.so_far(verdict)
    view.so_far(verdict.model_copy(update={"findings": ()}))
    assert lab_log.messages == [
        "mine: so far (2 and 2 boots), no verdict yet: numa_pte_updates ×0.0599",
        "mine: so far (2 and 2 boots), no verdict yet: no ratio",
    ]


def test_what_moves_is_of_this_phase_of_this_boot(plan: Plan, lab_log: pytest.LogCaptureFixture) -> None:
    """The same phase of the previous boot had other counts."""
    boots = live.View(plan, 3)
    view = boots.began(boot(0))
    view.moving("touch", {"t": 2.0, "vmstat": {"numa_pte_updates": 100, "nr_dirty": 1}})
    view.moving("touch", {"t": 4.0, "vmstat": {"numa_pte_updates": 350, "nr_dirty": 9, "pgscan_kswapd": 4}})
    view.moving("other", {"t": 2.0, "vmstat": {"numa_pte_updates": 400}})
    view.moving("other", {"t": 4.0, "vmstat": {"numa_pte_updates": 500}})
    view = boots.began(boot(1))
    view.moving("other", {"t": 2.0, "vmstat": {"numa_pte_updates": 9000}})
    view.moving("other", {"t": 4.0, "vmstat": {"numa_pte_updates": 9007}})
    view.moving("other", {"t": 6.0})
    messages = [record.getMessage() for record in lab_log.records if vars(record)["state"] == "moving"]
    assert messages == ["numa_pte_updates +250", "numa_pte_updates +100", "numa_pte_updates +7", ""]


@pytest.mark.parametrize("terminal", [True, False])
def test_on_a_terminal_and_in_a_pipe(terminal: bool, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boots, phases and results so far are lines in both; live counters are only on a terminal."""
    out = io.StringIO()
    monkeypatch.setattr(
        rich.console, "Console", lambda **_: Console(file=out, force_terminal=terminal, width=120)
    )
    with progress.Progress() as shown:
        view = live.View(plan, 3).began(boot(0))
        with log.step("remote: touch", who="g"):
            view.moving("touch", {"t": 2.0, "vmstat": {"numa_pte_updates": 100}})
            view.moving("touch", {"t": 4.0, "vmstat": {"numa_pte_updates": 350}})
            rows = Console(file=io.StringIO(), width=120)
            rows.print(shown)
        view.ended(synthetic.phase("touch", vmstat={"numa_pte_updates": 250}))
        assert "numa_pte_updates +250" in rows.file.getvalue()  # type: ignore[attr-defined]
    text = out.getvalue()
    assert "mine: boot 1 of 6: before, 6.1-slowscan-before" in text
    assert "mine-0: touch: numa_pte_updates 250" in text
    if not terminal:
        assert "+250" not in text
        assert "\x1b" not in text
        assert len(text.splitlines()) == 3, "a line for the boot, one for the step, one for the phase"


def test_the_logger_is_as_it_was() -> None:
    """Later log records in the same process appear as before."""
    logger = logging.getLogger("numalab")
    before = (logger.level, logger.propagate, list(logger.handlers))
    with progress.Progress():
        assert not logger.propagate
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_watched_table() -> None:
    """A counter that appeared meanwhile has not changed yet."""
    first, before = (
        {"numa_hit": 100, "pgscan_kswapd": 0},
        {"numa_hit": 160, "pgscan_kswapd": 10, "nr_dirty": 5},
    )
    now = {"numa_hit": 180, "pgscan_kswapd": 10, "nr_dirty": 7, "pgmigrate_success": 4}
    assert live.watched_table(first, before, now, 4.0) == [
        ("numa_hit", "80", "5"),
        ("pgscan_kswapd", "10", "0"),
        ("pgmigrate_success", "0", "0"),
    ]


def test_what_is_watched_is_sampled() -> None:
    """Counters that the agent leaves out of its samples cannot be shown."""
    from numalab.measure import agent

    assert all(name.startswith(agent.MOVING) for name in live.WATCHED)
