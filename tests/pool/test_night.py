# SPDX-License-Identifier: GPL-2.0-only
"""A night of fake guests through the workers that lab.py starts: over SSH, with faults, and through srun."""

from __future__ import annotations

from pathlib import Path

import pytest

from numalab.pool import night as nights
from numalab.pool.night import Night
from tests.pool.conftest import Fleet, stand_in_for_srun
from tests.unit.pool import fakes
from tests.unit.pool.session import Session, exactly_once
from tests.vm.conftest import until


@pytest.fixture
def home(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The fleet, whose store is this process's."""
    monkeypatch.setenv("LAB_STATE", fleet.env["LAB_STATE"])
    return fleet


def test_a_night_in_which_one_host_dies_and_one_comes_back_late(home: Fleet) -> None:
    one, two, three = home.machines
    assert home("pool", "up", "--inventory", home.inventory).returncode == 0
    for machine in home.machines:
        (machine.state / "hold-1").touch()
    night = nights.make([fakes.order(number, 3) for number in range(5)])
    session = Session(home, night, patience=1)
    session.until(lambda: all(list(machine.state.glob("began-*-1")) for machine in home.machines))
    one.kill()
    two.link("down")
    # Both are lost and their experiments given away; three's goes on.
    session.until(lambda: home.void() == {one.name, two.name})
    (two.state / "hold-1").unlink()
    two.link("up")
    until(lambda: home.states() == ["lost", "up", "up"], "it is back")
    session.until(lambda: two.name in session.driver._known)
    (three.state / "hold-1").unlink()
    results = session.end()
    assert [result.over and not result.cause for result in results] == [True] * 5
    exactly_once(results)
    last = dict(sorted((order, host) for (order, _), host in home.begun().items()))
    assert set(last.values()) == {two.name, three.name}
    assert home("pool", "down").returncode == 0
    until(lambda: not home.left(), "all have ended")


def test_a_round_through_what_stands_for_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(tmp_path)
    monkeypatch.setenv("LAB_STATE", fleet.env["LAB_STATE"])
    try:
        up = fleet("pool", "up", "--launch", stand_in_for_srun(tmp_path))
        assert (up.returncode, up.stderr) == (0, "")
        night = nights.make([fakes.order(number, 2) for number in range(4)])
        results = Session(fleet, night, patience=1).end()
        exactly_once(results)
        assert set(fleet.begun().values()) == {"node1", "node2"}
        assert Session(fleet, Night(night.name)).end() == results, "nothing is left to do"
    finally:
        down = fleet("pool", "down")
    assert down.returncode == 0
    until(lambda: not fleet.left(), "all have ended")
