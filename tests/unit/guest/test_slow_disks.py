# SPDX-License-Identifier: GPL-2.0-only
"""Disks with a speed on the virtual clock: what a guest's kernel is to set, and what the script says when it cannot.
tests/vm/test_clock.py measures them."""

from __future__ import annotations

import subprocess

import pytest

from numalab.core import paths
from numalab.core.errors import InputError
from numalab.guest import slow_disks
from numalab.model.guest import DiskFile
from numalab.model.topology import Bus, Disk
from numalab.model.values import Clock
from tests.unit.makers import disk_file

VIRTIO = Disk.model_validate({"name": "data", "size": "1GiB", "mibs_per_second": 30})
STICK = Disk.model_validate({"name": "stick", "size": "1GiB", "bus": "usb", "mibs_per_second": 14})


ROOT = DiskFile(path="/root.qcow2", format="qcow2", serial="root", direct=False)
FILES = (ROOT, disk_file(VIRTIO), disk_file(STICK))


def test_the_guests_kernel_holds_disks_back_on_the_virtual_clock() -> None:
    timed = slow_disks.timed(FILES, Clock.VIRTUAL)
    assert slow_disks.settings(timed) == ["bytes_per_second:data:31457280", "request_kib:stick:12"]


def test_qemu_does_on_the_hosts() -> None:
    assert slow_disks.timed(FILES, Clock.HOST) == FILES
    assert slow_disks.settings(FILES) == []


def test_a_disk_without_a_speed_is_left_alone() -> None:
    assert slow_disks.timed((ROOT,), Clock.VIRTUAL) == (ROOT,)
    assert slow_disks.settings((ROOT,)) == []


@pytest.mark.parametrize("speed", [3, 121])
def test_a_stick_that_the_controller_cannot_make(speed: int) -> None:
    stick = STICK.model_copy(update={"mibs_per_second": speed})
    with pytest.raises(InputError, match=rf"^disk stick: .* is 4 to 120 on the virtual clock, not {speed}: "):
        slow_disks.check([VIRTIO, stick], Clock.VIRTUAL)
    slow_disks.check([stick], Clock.HOST)
    slow_disks.check([stick.model_copy(update={"bus": Bus.VIRTIO})], Clock.VIRTUAL)


@pytest.mark.parametrize("speed", [4, 120])
def test_a_stick_that_it_can(speed: int) -> None:
    slow_disks.check([STICK.model_copy(update={"mibs_per_second": speed})], Clock.VIRTUAL)


def test_a_disk_that_does_not_come_is_named() -> None:
    """Without its waiting, which takes half a minute."""
    script = paths.SLOW_DISKS.read_text().replace("sleep 0.1", ":")
    done = subprocess.run(
        ["sh", "-s", "--", "request_kib:numalabNone:12"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "disk numalabNone: is not there\n")
