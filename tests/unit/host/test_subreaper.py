# SPDX-License-Identifier: GPL-2.0-only
"""Daemons that a command leaves behind are the subreaper's, which lives as long as they do."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from numalab.core.errors import DeadlinePassed
from numalab.core.process import run
from numalab.host import subreaper
from tests.unit.makers import Written


def start(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-IS", subreaper.__file__, "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def state_and_parent(pid: int) -> tuple[str, int]:
    """ "gone" and 0 where there is no such process, not even a zombie."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "gone", 0
    return state, int(parent)


def wait_until(pid: int, *states: str) -> None:
    until = time.monotonic() + 30
    while state_and_parent(pid)[0] not in states:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("status", [0, 3])
def test_the_commands_status_and_output(status: int) -> None:
    result = start(f"echo out; echo err >&2; exit {status}")
    assert (result.returncode, result.stdout, result.stderr) == (status, "out\n", "err\n")


def test_a_command_that_does_not_end_goes_with_its_caller(tmp_path: Path) -> None:
    """At the caller's deadline, or when it is cancelled: no command stays that nobody waits for."""
    pids = tmp_path / "pids"
    command = [sys.executable, "-IS", subreaper.__file__, "sh", "-c", f"echo $$ $PPID > {pids}; sleep 60"]
    with pytest.raises(DeadlinePassed):
        run(command, deadline=Written.to(pids, words=2), check=False)
    for pid in pids.read_text().split():
        wait_until(int(pid), "Z", "gone")


def test_an_orphan_is_reaped_and_the_subreaper_ends(tmp_path: Path) -> None:
    """The orphan outlives the command, as libvirtd does, and ends when the test lets it."""
    gate = tmp_path / "gate"
    wait = f"until [ -e {gate} ]; do sleep 0.02; done"
    result = start(f"({wait}) >/dev/null 2>&1 & echo $!")
    orphan = int(result.stdout)
    reaper = state_and_parent(orphan)[1]
    assert subreaper.__file__ in Path(f"/proc/{reaper}/cmdline").read_text().split("\0")
    assert Path(f"/proc/{reaper}/cwd").resolve() == Path("/")
    gate.touch()
    wait_until(orphan, "gone")
    wait_until(reaper, "Z", "gone")  # its own parent may reap late
