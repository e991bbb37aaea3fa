# SPDX-License-Identifier: GPL-2.0-only
"""Sparse 500 TB disks in each form, and images that no run changes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from numalab.core import state
from numalab.core.process import Deadline, run
from numalab.host import disks
from numalab.model.guest import DiskForm
from numalab.model.topology import Disk
from numalab.model.units import TIB
from tests.vm.conftest import Command

SMALL = ("--topology", "uma-2g", "--memory", "512M", "--vcpus", "1", "--name", "one", "--kernel", "6.1")
MKFS = (
    "mkfs.xfs -q -f -K -m crc=1,finobt=1 /dev/disk/by-id/virtio-500TB && blockdev --getsize64"
    " /dev/disk/by-id/virtio-500TB"
)


def pool(lab_py: Command) -> Path:
    """The mount point of this machine's pool."""
    return lab_py.state / f"pool-{state.this_machine()}"


def space(folder: Path) -> int:
    """Bytes that a folder's files occupy."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def check_500tb(lab_py: Command, form: str) -> None:
    """Up with a 500 TB disk of this form and a file system on it; little space used, nothing left."""
    result = lab_py("up", *SMALL, "--disk", "500TB=500T", "--storage", form)
    assert result.returncode == 0, result.stderr
    made = lab_py("exec", "one", "--", "sh", "-c", MKFS)
    assert made.returncode == 0, made.stderr
    assert int(made.stdout) == 500 * TIB
    # mkfs zeroes a log of 2 GiB, which a raw file keeps as unwritten extents, and writes to each of 500 groups.
    assert space(lab_py.state / "guests") + space(pool(lab_py)) < 4 << 30
    assert lab_py("down", "one").returncode == 0
    assert not lab_py.left()


def test_qcow2(lab_py: Command) -> None:
    images = sorted((lab_py.state / "images").glob("*/*/disk.qcow2"))
    before = [hashlib.sha256(path.read_bytes()).hexdigest() for path in images]
    check_500tb(lab_py, "qcow2")
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in images] == before, (
        "a run changed an image"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="a loop mount needs root")
def test_pool(lab_py: Command) -> None:
    check_500tb(lab_py, "pool")
    assert pool(lab_py).is_mount()
    assert "storage pool" in lab_py("gc").stdout
    assert not pool(lab_py).is_mount()


@pytest.mark.skipif(os.geteuid() != 0, reason="a loop mount needs root")
def test_raw_disk_on_the_pool_has_the_seeds_extent_size(
    lab_py: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_STATE", str(lab_py.state))
    deadline = Deadline.after(60)
    folder = lab_py.state / "guests" / "two"
    folder.mkdir(parents=True)
    try:
        disk = disks.create(
            Disk.model_validate({"name": "500TB", "size": "500TiB"}), folder, DiskForm.POOL, deadline
        )
        assert Path(disk.path).stat().st_size == 500 * TIB
        assert "[1048576]" in run(["xfs_io", "-c", "extsize", disk.path], deadline=deadline).stdout
        assert disks.largest_file(pool(lab_py)) > 500 * TIB
    finally:
        folder.rmdir()
        disks.sweep_pool(deadline)
