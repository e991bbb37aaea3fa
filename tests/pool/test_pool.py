# SPDX-License-Identifier: GPL-2.0-only
"""lab.py pool over three hypervisors that are reached by SSH; what is killed, cut off and frozen."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.pool.conftest import Fleet, stand_in_for_srun
from tests.vm.conftest import until


def test_a_pool_through_faults(fleet: Fleet) -> None:
    one, two, three = fleet.machines
    up = fleet("pool", "up", "--inventory", fleet.inventory)
    assert (up.returncode, up.stderr) == (0, "")
    assert fleet.states() == ["up"] * 3
    assert len(fleet.left()) >= 4  # the server, and a worker on each
    assert fleet("pool", "up", "--inventory", fleet.inventory).returncode == 2

    # sshd alone is open to the network; 0100007F is 127.0.0.1.
    for machine in fleet.machines:
        assert {
            where
            for where in machine.listening()
            if not where.startswith("0100007F") and ":0016" not in where
        } == set()

    # A worker that is killed comes back.
    (old,) = one.pids("lab.py pool worker")[-1:]
    os.kill(old, signal.SIGKILL)
    until(lambda: (now := one.pids("lab.py pool worker")) and old not in now, "another worker")
    until(lambda: fleet.states() == ["up"] * 3, "it is up")

    # A link that goes down, and up again. Before it is up, the worker there may have ended by itself.
    two.link("down")
    until(lambda: fleet.states() == ["up", "lost", "up"], "the loss is seen")
    two.link("up")
    until(lambda: fleet.states() == ["up"] * 3, "it is back")

    # A host that dies.
    three.kill()
    until(lambda: fleet.states() == ["up", "up", "lost"], "the death is seen")

    down = fleet("pool", "down")
    assert (down.returncode, down.stderr) == (0, "")
    until(lambda: not fleet.left(), "all have ended")
    assert fleet("pool", "down").stdout == "no pool is up\n"
    assert sorted(path.name for path in (fleet.place / "state/pool").iterdir()) == []


def test_nothing_outlives_a_killed_server(fleet: Fleet) -> None:
    fleet.machines[0].kill()
    up = fleet("pool", "up", "--inventory", fleet.inventory)
    assert up.returncode == 0, up.stderr
    assert f"{fleet.machines[0].name}: lost: " in up.stdout
    assert fleet.states() == ["lost", "up", "up"]
    record = json.loads((fleet.place / "state/pool/pool.json").read_text())
    os.kill(int(record["server"].split(".")[2]), signal.SIGKILL)
    until(lambda: not fleet.left(), "all workers have ended")
    assert fleet("pool", "status").returncode == 2
    assert "pool.json" in fleet("gc").stdout
    assert not list((fleet.place / "state/pool").iterdir())


def test_a_launcher_that_stands_for_srun(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        up = fleet("pool", "up", "--launch", stand_in_for_srun(tmp_path))
        assert (up.returncode, up.stderr) == (0, "")

        def names() -> list[str]:
            lines = fleet("pool", "status").stdout.splitlines()[1:]
            return [line.split()[0] for line in lines if line.split()[1] == "up"]

        until(lambda: names() == ["node1", "node2"], "both workers are up")
    finally:
        down = fleet("pool", "down")
    assert down.returncode == 0
    until(lambda: not fleet.left(), "all have ended")
