# SPDX-License-Identifier: GPL-2.0-only
"""The workloads' C programs: they compile without warnings, do their work, and fail with an exit status."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from numalab.core import paths
from numalab.measure import runner
from numalab.model.values import SizeClass
from numalab.runs import counters

SOURCES = paths.ROOT / paths.WORKLOADS
WORDS = {
    "remote": ("4", "1", "3"),
    "threads": ("3", "2", "1", "2"),
    "migratefail": ("4", "1", "1"),
    "dirtymap": ("FILE", "4", "1"),
    "autonuma": ("2", "2", "own", "4", "3", "0"),
}
"""A small command line for each."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of them, each compiled by its workload's own phase."""
    place = tmp_path_factory.mktemp("programs")
    for name in WORDS:
        module = runner.load(name)
        commands = [
            phase.command
            for phase in module.phases(module.PARAMS[SizeClass.QUICK])
            if phase.name == f"compile-{name}"
        ]
        assert len(commands) == 1
        done = subprocess.run(
            ["sh", "-c", commands[0].replace("/root/", f"{place}/")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
    return place


def ran(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False)


def test_none_is_left_out() -> None:
    assert {path.stem for path in SOURCES.glob("*.c")} == {
        *WORDS,
        "nas.cg",
        "nas.ep",
        "nas.is",
        "nas.lu",
        "nas.mg",
    }


def test_threads_in_one_buffer(programs: Path) -> None:
    told = counters.workload_numbers(ran(programs / "remote", *WORDS["remote"]).stdout)
    assert told["passes"] > 0
    assert 0 <= told["touch_minor_faults"] < 1024, "those of populating 4 MiB are left out"


def test_rounds_of_threads(programs: Path) -> None:
    assert counters.workload_numbers(ran(programs / "threads", *WORDS["threads"]).stdout)["passes"] > 0


def test_a_mapped_file(programs: Path, tmp_path: Path) -> None:
    place = tmp_path / "shared"
    told = counters.workload_numbers(ran(programs / "dirtymap", str(place), "4", "1").stdout)
    assert told["passes"] > 0
    assert place.stat().st_size == 4 << 20
    again = ran(programs / "dirtymap", str(place), "4", "1")
    assert (again.returncode, again.stderr) == (1, f"dirtymap: {place}: File exists\n")


@pytest.mark.parametrize("kind", ["shared", "own", "slice"])
def test_zeroing(programs: Path, kind: str) -> None:
    done = ran(programs / "autonuma", "2", "2", kind, "4", "3", "1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_child_that_fails_is_told(programs: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"ulimit -v 100000; {programs}/autonuma 2 2 shared 1000 1 0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Cannot allocate memory" in done.stderr


@pytest.mark.skipif(
    Path("/sys/devices/system/node/node1").exists(),
    reason="this host has the nodes that migratefail would fill",
)
def test_migrations_need_nodes(programs: Path) -> None:
    done = ran(programs / "migratefail", *WORDS["migratefail"])
    assert done.returncode == 1
    assert "node1/meminfo: No such file or directory" in done.stderr


@pytest.mark.parametrize("name", WORDS)
def test_wrong_words(programs: Path, tmp_path: Path, name: str) -> None:
    words = [word.replace("FILE", str(tmp_path / "file")) for word in WORDS[name]]
    for wrong in (words[:-1], [*words, "1"], [*words[:-1], "-1"], [*words[:-1], "1x"]):
        done = ran(programs / name, *wrong)
        assert done.returncode in (1, 2), wrong
        assert done.stderr
