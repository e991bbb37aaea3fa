# SPDX-License-Identifier: GPL-2.0-only
"""The facts of the machine that runs a guest: this one, or another over a fake ssh."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.core.errors import HostError
from numalab.core.process import Deadline
from numalab.host import machine
from numalab.host.remote import HERE, Where

THERE = Where("me@there")


def test_this_machine(deadline: Deadline) -> None:
    """As earlier labs recorded them, so that older runs stay comparable."""
    facts = machine.read_facts(HERE, deadline)
    models = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    assert (facts["machine"], facts["kernel"], facts["cpus"]) == (
        platform.node(),
        platform.release(),
        str(os.cpu_count()),
    )
    assert facts["cpu"] == (models[0] if models else "")
    assert float(facts["load at start"]) >= 0
    assert machine.load(HERE, deadline) >= 0


def test_a_machine_elsewhere(program: Callable[[str, str], Path], tmp_path: Path, deadline: Deadline) -> None:
    """The machine's own facts, in one round trip, from programs on that machine."""
    there = tmp_path / "there"
    there.mkdir()
    for name, script in {
        "uname": 'case "$1" in -n) echo big;; -r) echo 6.12.1;; esac',
        "getconf": "echo 96",
    }.items():
        (there / name).write_text(f"#!/bin/sh\n{script}\n")
        (there / name).chmod(0o755)
    (tmp_path / "loadavg").write_text("7.25 1.00 1.00 1/2 3\n")
    program(
        "ssh",
        f"for word; do last=$word; done; echo x >> {tmp_path}/asked; PATH={there}:$PATH; export PATH; "
        f'exec sh -c "$(printf %s "$last" | sed "s#/proc/loadavg#{tmp_path}/loadavg#g")"',
    )
    facts = machine.read_facts(THERE, deadline)
    assert {key: facts[key] for key in ("machine", "kernel", "cpus", "load at start")} == {
        "machine": "big",
        "kernel": "6.12.1",
        "cpus": "96",
        "load at start": "7.25",
    }
    assert (tmp_path / "asked").read_text() == "x\n"
    assert machine.load(THERE, deadline) == 7.25


def test_the_machine_id_is_handed_on_as_a_hash(
    program: Callable[[str, str], Path], tmp_path: Path, deadline: Deadline
) -> None:
    own = tmp_path / "machine-id"
    own.write_text("0123456789abcdef0123456789abcdef\n")
    program(
        "ssh",
        f'for word; do last=$word; done; exec sh -c "$(printf %s "$last" | sed "s#/etc/machine-id#{own}#g")"',
    )
    first = machine.read_facts(THERE, deadline)["machine id"]
    assert len(first) == 16
    assert first not in own.read_text()
    own.write_text("f" * 32)
    assert machine.read_facts(THERE, deadline)["machine id"] != first
    own.write_text("")
    assert "machine id" not in machine.read_facts(THERE, deadline)


@pytest.mark.parametrize("answer", ["", "echo Welcome; exit", "echo machine=big; exit"])
def test_a_machine_that_does_not_tell(
    program: Callable[[str, str], Path], deadline: Deadline, answer: str
) -> None:
    program("ssh", answer or "exit 0")
    with pytest.raises(HostError, match=r"me@there: does not tell its .*kernel"):
        machine.read_facts(THERE, deadline)
    with pytest.raises(HostError, match="me@there: /proc/loadavg"):
        machine.load(THERE, deadline)


STAT = "cpu  100 20 30 1000 50 4 6 40 10 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n"


def test_cpu_time(program: Callable[[str, str], Path], tmp_path: Path, deadline: Deadline) -> None:
    """Steal is busy; guest is in user already; idle and iowait are not busy."""
    (tmp_path / "stat").write_text(STAT)
    program(
        "ssh",
        f'for word; do last=$word; done; exec sh -c "$(printf %s "$last" | sed "s#/proc/stat#{tmp_path}/stat#g")"',
    )
    assert machine.cpu_time(THERE, deadline) == machine.CpuTime(busy=2.0, total=12.5)
    here = machine.cpu_time(HERE, deadline)
    assert 0 < here.busy < here.total
    (tmp_path / "stat").write_text("cpu\n")
    with pytest.raises(HostError, match="me@there: /proc/stat has no CPU times"):
        machine.cpu_time(THERE, deadline)


@pytest.mark.parametrize(
    ("busy", "total", "own", "share"),
    [
        (80, 100, 60, 0.2),
        (60, 100, 60, 0),
        (59, 100, 60, 0),  # the two are not read at once
        (100, 100, 0, 1),
        (0, 0, 0, 0),
    ],
)
def test_share_of_others(busy: float, total: float, own: float, share: float) -> None:
    begin = machine.CpuTime(1000, 5000)
    end = machine.CpuTime(1000 + busy, 5000 + total)
    assert machine.share_of_others(begin, end, own) == pytest.approx(share)
