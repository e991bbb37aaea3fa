# SPDX-License-Identifier: GPL-2.0-only
"""Guests from a ready state: differ where they must, are verified, and boot where the state is of no use."""

from __future__ import annotations

import json
import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.unit.makers import pytest_argv
from tests.vm.conftest import Command

SMALL = ("--topology", "uma-2g", "--memory", "512M", "--vcpus", "1", "--kernel", "6.1", "--ready")
INSIDE = """
cat /proc/sys/kernel/hostname /etc/machine-id
head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'; echo
date +%s
test -e /root/mine && echo another guest wrote to this disk
touch /root/mine
head -c 7 /dev/disk/by-id/virtio-scratch | tr '\\0' .; echo
printf %s "$(cat /proc/sys/kernel/hostname)" | dd of=/dev/disk/by-id/virtio-scratch conv=fsync status=none
"""
CLOCK_SECONDS = 20
"""The clock of the second guest is set anew; the state is older than that by then (see the test)."""


def up(lab_py: Command, name: str) -> subprocess.CompletedProcess[str]:
    result = lab_py("up", *SMALL, "--name", name)
    assert result.returncode == 0, result.stderr
    return result


def states(lab_py: Command) -> list[Path]:
    return sorted((lab_py.state / "ready").glob("[!.]*"))


def record(lab_py: Command, name: str) -> dict[str, object]:
    known: dict[str, object] = json.loads((lab_py.state / "guests" / name / "guest.json").read_text())
    return known


def test_two_guests_from_one_state(lab_py: Command) -> None:
    """Name, machine-id, random numbers, clock, port and disks are each guest's own; the topology is verified."""
    (lab_py.state / "ready").unlink(missing_ok=True)  # of the session: this state is this test's own
    seen: dict[str, tuple[str, ...]] = {}
    for name in ("one", "two"):
        if seen:  # a clock that is not set shows
            time.sleep(CLOCK_SECONDS)
        result = up(lab_py, name)
        assert "saved as a ready state" in result.stderr or name == "two", result.stderr
        assert f"{name}: restored from a ready state" in result.stderr
        assert f"{name}: topology verified from inside" in result.stderr
        begin = datetime.now(UTC).timestamp()
        lines = lab_py("exec", name, "--", "sh", "-c", INSIDE).stdout.splitlines()
        now = datetime.now(UTC).timestamp()
        hostname, machine_id, chance, clock, scratch = lines
        assert hostname == name
        assert scratch == ".......", "the disk has what another guest wrote"
        assert begin - CLOCK_SECONDS < int(clock) < now + CLOCK_SECONDS
        seen[name] = (machine_id, chance, str(record(lab_py, name)["spec"]["ssh_port"]))  # type: ignore[index]
    for one, two in zip(seen["one"], seen["two"], strict=True):
        assert one != two
    (place,) = states(lab_py)
    assert record(lab_py, "one")["ready_state"] == record(lab_py, "two")["ready_state"] == place.name
    assert f"began from    ready state {place.name}" in lab_py("status", "one").stdout

    before = (place / "root.qcow2").read_bytes()
    assert lab_py("down", "one").returncode == 0
    long_ago = time.time() - 365 * 86400
    os.utime(place / "state.json", (long_ago, long_ago))
    assert "ready state" not in lab_py("gc").stdout, "a guest stands on it"
    assert lab_py("down", "two").returncode == 0
    assert (place / "root.qcow2").read_bytes() == before, "a guest wrote to the state's disk"
    assert f"ready state {place.name}: not used for" in lab_py("gc").stdout
    assert not states(lab_py)
    assert not lab_py.left()


def test_a_damaged_state_is_thrown_away(lab_py: Command) -> None:
    """A file that libvirt or QEMU refuses: one line, and a boot."""
    (lab_py.state / "ready").unlink(missing_ok=True)
    up(lab_py, "one")
    assert lab_py("down", "one").returncode == 0
    (place,) = states(lab_py)
    size = (place / "memory").stat().st_size
    with (place / "memory").open("r+b") as handle:
        handle.seek(size // 2)
        handle.write(bytes(range(256)) * 4096)
        handle.truncate(size - 4096)
    result = up(lab_py, "one")
    assert f"its ready state {place.name} is of no use" in result.stderr
    assert "one: boot" in result.stderr
    assert record(lab_py, "one")["ready_state"] == ""
    assert not states(lab_py)


MARKED = """
import pytest
from numalab.host import ssh

pytestmark = [pytest.mark.topology("uma-2g", memory="512M", vcpus=1), pytest.mark.kernel("6.1")]

@pytest.mark.ready
@pytest.mark.parametrize("number", [1, 2])
def test_any_guest(number, guest, deadline):
    assert guest.record.ready_state
    name = ssh.succeed(guest, "cat /proc/sys/kernel/hostname", deadline=deadline).strip()
    assert name == guest.name
    ssh.succeed(guest, "test ! -e /root/mine && touch /root/mine", deadline=deadline)

def test_a_fresh_boot(guest):
    assert not guest.record.ready_state
"""


def test_guests_of_a_users_tests(lab_py: Command, tmp_path: Path) -> None:
    """Those marked `ready` share one state; the disk of one is not the other's."""
    done = subprocess.run(
        pytest_argv(tmp_path, MARKED),
        cwd=tmp_path,
        env=lab_py.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout
    assert len(states(lab_py)) == 1
    assert not lab_py.left()
