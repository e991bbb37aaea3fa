# SPDX-License-Identifier: GPL-2.0-only
"""lab.py matrix over three hypervisors with real guests, one of which is killed, and one cut off for a while.

`make pool GUESTS=1`; half an hour under emulation. Image and kernels are this machine's, by hard links.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from numalab.core import state
from numalab.core.errors import Exit
from numalab.pool import night as nights
from numalab.pool.driver import Result
from numalab.pool.night import Attempt
from numalab.runs import index
from tests.pool.conftest import Fleet
from tests.unit.pool.session import exactly_once
from tests.vm.conftest import until

CASES = ("dirtymap", "threads", "savedwrite", "migratefail")
"""Those whose boots are shortest."""
KERNELS = "6.1-slowscan-before,6.1"
"""Of all four: what is tried is the pool, and each kernel takes minutes to build."""
BOOTS = 2
SOONER = """
import sys
from numalab.pool import queue
queue.PATIENCE_SECONDS = 60.0  # not ten minutes, after which a lost host's experiment is given away
from numalab.cli.main import main
main()
"""
HOURS = 2 * 3600.0


@pytest.fixture
def home(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The fleet, each machine with image and kernels; its store is this process's."""
    real = state.directory()
    for place in (*(machine.state for machine in fleet.machines), Path(fleet.env["LAB_STATE"])):
        place.mkdir(mode=0o700)
        have = [
            str(real / name)
            for name in ("ssh", "images", "bases", "downloads", "configs", "kernels")
            if (real / name).exists()
        ]
        subprocess.run(["cp", "--archive", "--link", *have, place], check=True)
    monkeypatch.setenv("LAB_STATE", fleet.env["LAB_STATE"])
    return fleet


def answers(text: str) -> list[str]:
    """The lines of a verdict that say what it is."""
    return [line for line in text.splitlines() if " boots: " in line]


def test_a_matrix_in_which_one_host_dies_and_one_comes_back_late(home: Fleet, tmp_path: Path) -> None:
    one, two, _ = home.machines
    up = home("pool", "up", "--inventory", home.inventory)
    assert (up.returncode, up.stderr) == (0, "")
    words = ["matrix", *CASES, "--kernels", KERNELS, "--boots", str(BOOTS), "--clock", "virtual", "--pool"]
    printed, told = tmp_path / "stdout", tmp_path / "stderr"
    with printed.open("w") as out, told.open("w") as log:
        child = subprocess.Popen([sys.executable, "-c", SOONER, *words], stdout=out, stderr=log)
    try:

        def middle() -> bool:
            assert child.poll() is None, told.read_text()
            return bool(nights.names()) and len(home.begun()) >= 3 and bool(index.find())

        until(middle, "all three have begun, and a round is at home", HOURS)
        one.kill()
        two.link("down")
        until(lambda: home.void() >= {one.name, two.name}, "their experiments are given away", HOURS)
        two.link("up")
        status = child.wait(HOURS)
    finally:
        child.kill()
        child.wait()
        print(told.read_text(), printed.read_text(), sep="\n")
    assert status in {Exit.HOLDS, Exit.DOES_NOT_HOLD, Exit.CANNOT_TELL}

    # Every wanted round once.
    (name,) = nights.names()
    night = nights.Night(name)
    latest = {line.order: line for line in night.lines() if isinstance(line, Attempt)}
    exactly_once([Result(order, latest[order.id].experiment) for order in night.orders])
    # The pool's verdicts are those of the same runs without a pool.
    again = [answers(home("verdict", attempt.experiment).stdout) for attempt in latest.values()]
    assert sorted(line for lines in again for line in lines) == sorted(answers(printed.read_text()))
    assert len(again) == len(CASES)

    assert home("pool", "down").returncode == 0
    until(lambda: not home.left(), "all have ended")
    one.boot()
    for machine in home.machines:
        assert machine.lab("gc").returncode == 0
        assert [path.name for path in (machine.state / "guests").glob("*")] == []
        assert machine.pids("qemu-system") == []
    assert home("gc").returncode == 0
    assert list((home.place / "state/pool").glob("*.*")) == []
