# SPDX-License-Identifier: GPL-2.0-only
"""The pool with real guests: a matrix over three hypervisors, one of which is killed and one cut off for a while;
and kernels that two builders make, image and kernels that travel, one experiment on two hosts, `pytest --lab-pool`.

`make pool GUESTS=1`; an hour under emulation. Image and base kernel are this machine's, by hard links.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from numalab.core import state
from numalab.core.errors import Exit
from numalab.core.paths import ROOT
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
"""The kernels of all four: what is tried is the pool, and each kernel takes minutes to build."""
BOOTS = 2
SOONER = """
import sys
from numalab.pool import queue
queue.PATIENCE_SECONDS = 60.0  # not ten minutes, after which a lost host's experiment is given away
from numalab.cli.main import main
main()
"""
HOURS = 2 * 3600.0


def furnish(place: Path, *names: str) -> None:
    """A state directory that has what this machine's has under these names, by hard links."""
    real = state.directory()
    place.mkdir(mode=0o700)
    for name in names:
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "--archive", "--link", real / name, target], check=True)


def had(*names: str) -> list[str]:
    """Those of these parts of this machine's state directory that are there."""
    return [name for name in names if (state.directory() / name).exists()]


@pytest.fixture
def home(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The fleet, each machine with image and kernels; its store is this process's."""
    have = had("ssh", "images", "bases", "downloads", "configs", "kernels")
    for place in (*(machine.state for machine in fleet.machines), Path(fleet.env["LAB_STATE"])):
        furnish(place, *have)
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


def test_two_builders_make_what_a_night_lacks_and_all_of_it_travels(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the machines are builders and hypervisors, reached by SSH, and have nothing. This one has the image
    and 6.1."""
    one, two, _ = fleet.machines
    (base,) = (path.name for path in (state.directory() / "kernels").glob(f"6.1-{'[0-9a-f]' * 16}"))
    have = had("ssh", "images", "bases", "downloads", "configs", f"kernels/{base}")
    furnish(Path(fleet.env["LAB_STATE"]), *have)
    monkeypatch.setenv("LAB_STATE", fleet.env["LAB_STATE"])
    lab = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, lab], check=True)
    (lab / ".venv").symlink_to(ROOT / ".venv")
    hosts = [
        f"{line} kernel_root={machine.place}/builder ansible_python_interpreter=/usr/bin/python3"
        for line in Path(fleet.inventory).read_text().splitlines()
        for machine in (one, two)
        if line.startswith(machine.name)
    ]
    (lab / "inventory.ini").write_text("\n".join(["[hypervisors]", *hosts, "[builders]", *hosts, ""]))

    def run(*words: str | Path) -> str:
        """What a command of that checkout prints, both streams; none ends with an error of the lab."""
        result = subprocess.run(
            words,
            cwd=lab,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HOURS,
            check=False,
        )
        print(result.stdout)
        assert result.returncode in {Exit.HOLDS, Exit.DOES_NOT_HOLD, Exit.CANNOT_TELL}, result.stdout
        return result.stdout

    run("./lab.py", "pool", "up")
    night = run("./lab.py", "matrix", "threads", "dirtymap", "--series", "6.1", "--boots", "1", "--pool")
    # Each builder made one of the two kernels, and each host ran one of the two experiments.
    for variant in ("6.1-stagger-before", "6.1-nodirty-before"):
        assert len(list((state.directory() / "kernels").glob(f"{variant}-*"))) == 1
    assert {str(path.parent.parent) for path in tmp_path.glob("machine*/builder/builds/*")} == {
        f"{machine.place}/builder" for machine in (one, two)
    }
    assert len(index.find()) == 4, night
    for case in ("threads", "dirtymap"):
        assert len(index.find(case=case)) == 2

    spread = run("./lab.py", "run", "threads", "--boots", "6", "--pool", "--spread", "2")
    assert "spread over 2 hosts, each a block: boots on " in spread
    assert len(index.find(case="threads")) == 2 + 12

    tests = run(
        *(".venv/bin/pytest", "-p", "no:cacheprovider", "testcases/dirtymap.yml", "--lab-pool"),
        *("--lab-kernel", "6.1", "--lab-boots", "3"),
    )
    assert "1 passed" in tests
    assert len(index.find()) == 22

    run("./lab.py", "pool", "down")
    until(lambda: not fleet.left(), "all have ended")
    for machine in (one, two):
        assert machine.pids("qemu-system") == []
