# SPDX-License-Identifier: GPL-2.0-only
"""Disks on the host: the form for each size and file system; sparse files; the pool."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numalab.core import state
from numalab.core.errors import DeadlinePassed, HostError, InputError
from numalab.core.process import Deadline
from numalab.host import disks
from numalab.model.guest import DiskForm
from numalab.model.topology import Disk
from numalab.model.units import GIB, MIB, TIB
from tests.unit.guest.test_guest import held

EXT4, XFS = 16 * TIB - MIB, (1 << 63) - MIB
"""The largest file on either, to the MiB."""


def disk(size: str, name: str = "data") -> Disk:
    return Disk.model_validate({"name": name, "size": size})


@pytest.fixture
def ends_at(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(disks, "largest_file", lambda *_: request.param)


def fits(path: Path, size: int) -> bool:
    try:
        os.truncate(path, size)
    except OSError:
        return False
    return True


def test_largest_file(tmp_path: Path) -> None:
    largest = disks.largest_file(tmp_path)
    probe = tmp_path / "probe"
    probe.touch()
    assert largest % MIB == 0
    assert largest >= 4 * GIB - MIB, "no file system of these days ends below"
    assert fits(probe, largest)
    assert largest + MIB >= 1 << 63 or not fits(probe, largest + MIB)
    probe.unlink()
    assert not list(tmp_path.glob("tmp*"))


@pytest.mark.parametrize("ends_at", [EXT4], indirect=True)
@pytest.mark.parametrize(
    ("size", "form", "becomes"),
    [
        ("10G", DiskForm.AUTO, DiskForm.RAW),
        ("500T", DiskForm.AUTO, DiskForm.QCOW2),
        ("500T", DiskForm.QCOW2, DiskForm.QCOW2),
        ("2P", DiskForm.AUTO, DiskForm.QCOW2),
        ("10G", DiskForm.QCOW2, DiskForm.QCOW2),
        ("10G", DiskForm.RAW, DiskForm.RAW),
        ("5P", DiskForm.POOL, DiskForm.POOL),
    ],
)
@pytest.mark.usefixtures("ends_at")
def test_on_ext4(size: str, form: DiskForm, becomes: DiskForm, tmp_path: Path) -> None:
    assert disks.check_size(disk(size), tmp_path, form) is becomes


@pytest.mark.parametrize("ends_at", [XFS], indirect=True)
@pytest.mark.parametrize("size", ["500T", "3P"])
@pytest.mark.usefixtures("ends_at")
def test_on_xfs(size: str, tmp_path: Path) -> None:
    assert disks.check_size(disk(size), tmp_path, DiskForm.AUTO) is DiskForm.RAW


@pytest.mark.parametrize("ends_at", [EXT4], indirect=True)
@pytest.mark.parametrize(
    ("size", "form", "reason"),
    [
        ("500T", DiskForm.RAW, "500TiB raw, but files in .* end at 16TiB: use qcow2 or a pool for it"),
        ("3000T", DiskForm.AUTO, "3000TiB, but a qcow2 ends at 2PiB: use a pool for it"),
        ("3000T", DiskForm.QCOW2, "3000TiB, but a qcow2 ends at 2PiB: use a pool for it"),
    ],
)
@pytest.mark.usefixtures("ends_at")
def test_refused(size: str, form: DiskForm, reason: str, tmp_path: Path, deadline: Deadline) -> None:
    with pytest.raises(InputError, match=f"^disk data: {reason}"):
        disks.check_size(disk(size), tmp_path, form)
    with pytest.raises(InputError, match=f"^disk data: {reason}"):
        disks.create(disk(size), tmp_path, form, deadline)
    assert not list(tmp_path.glob("data*"))


@pytest.mark.parametrize("ends_at", [1 << 64], indirect=True)
@pytest.mark.usefixtures("ends_at")
def test_a_size_that_no_file_can_have_leaves_none(tmp_path: Path, deadline: Deadline) -> None:
    with pytest.raises(InputError, match=r"^disk data: 9000PiB: "):
        disks.create(disk("9000P"), tmp_path, DiskForm.RAW, deadline)
    assert not list(tmp_path.glob("data*"))


def test_a_raw_disk_is_sparse_and_private(tmp_path: Path, deadline: Deadline) -> None:
    made = disks.create(disk("3G"), tmp_path, DiskForm.RAW, deadline)
    stat = Path(made.path).stat()
    assert (made.path, made.format, made.serial) == (str(tmp_path / "data.raw"), "raw", "data")
    assert (stat.st_size, stat.st_mode & 0o777) == (3 * GIB, 0o600)
    assert stat.st_blocks * 512 < MIB


@pytest.mark.parametrize("ends_at", [EXT4], indirect=True)
@pytest.mark.usefixtures("ends_at")
def test_500_terabytes_on_ext4(tmp_path: Path, deadline: Deadline) -> None:
    made = disks.create(disk("500T"), tmp_path, DiskForm.AUTO, deadline)
    base = disks.overlay(Path(made.path), tmp_path / "root.qcow2", deadline)
    assert (made.format, made.serial, base.format, base.serial) == ("qcow2", "data", "qcow2", "root")
    info = json.loads(
        subprocess.run(
            ["qemu-img", "info", "--output=json", base.path], capture_output=True, check=True, timeout=60
        ).stdout
    )
    assert (info["virtual-size"], info["format"], info["backing-filename"]) == (
        500 * TIB,
        "qcow2",
        made.path,
    )
    assert Path(made.path).stat().st_blocks * 512 < 64 * MIB


@pytest.mark.parametrize("refused", [True, False])
def test_direct_io(refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this host's file system can do."""
    really_open = os.open

    def opened(path: Path, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT and refused:
            raise OSError(errno.EINVAL, "Invalid argument")
        return really_open(path, flags & ~os.O_DIRECT, *rest, **named)

    monkeypatch.setattr(os, "open", opened)
    place = tmp_path / "disks"
    place.mkdir()
    assert disks.direct_io(place) is not refused
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(("free", "enough"), [(disks.ROOM, True), (disks.ROOM - 1, False)])
def test_room(free: int, enough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 0, free))
    if enough:
        disks.check_room(tmp_path)
    else:
        with pytest.raises(
            HostError, match=r"2047MiB free, a guest needs 2048MiB: lab.py gc, or set LAB_STATE"
        ):
            disks.check_room(tmp_path)


OWN = "pool-OWN"


@pytest.fixture
def mounted(program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of mount points; mount(8) and mkfs are fakes, and `mount -o loop FILE PLACE` adds one."""
    names: set[str] = set()
    monkeypatch.setattr(state, "this_machine", lambda: "OWN")
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name in names or (path / ".mounted").exists())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program("mount", 'mkdir -p "$4" && touch "$3.mounted"')
    program("mkfs.xfs", "exit")
    program("umount", f'echo "$1" >> "{state.directory()}/unmounted"')
    return names


def unmounted() -> list[str]:
    """The mount points that were unmounted."""
    log = state.directory() / "unmounted"
    return [Path(line).name for line in log.read_text().splitlines()] if log.exists() else []


def in_pool(guest: str, deadline: Deadline) -> Path:
    """A guest's disk in the pool."""
    return Path(disks.create(disk("1G"), state.folder("guests", guest), DiskForm.POOL, deadline).path)


def test_a_guest_drops_its_own_pool_disks_only(mounted: set[str], deadline: Deadline) -> None:
    """`up` names a second guest of a topology NAME-2, so one guest's name may be a prefix of another's."""
    made = {guest: in_pool(guest, deadline) for guest in ("a", "a-2", "ab")}
    assert all(path.is_relative_to(state.folder(OWN)) for path in made.values())
    disks.drop_pool_disks("a")
    assert [guest for guest, path in made.items() if path.exists()] == ["a-2", "ab"]


@pytest.mark.parametrize("name", ["local", "nights", "begun"])
def test_the_dask_pools_folder_is_no_guests(name: str, mounted: set[str], deadline: Deadline) -> None:
    """LAB_STATE/pool: a local worker's state directory, the nights, and what was begun. Guests may be called so."""
    theirs = state.folder("pool", name)
    in_pool(name, deadline)
    disks.drop_pool_disks(name)
    disks.sweep_pool(deadline)
    assert theirs.is_dir()


def test_a_machine_mounts_its_own_pool(mounted: set[str], deadline: Deadline) -> None:
    """One state directory on two machines: another machine may have mounted its own."""
    other = state.directory() / "pool-abcdef.xfs"
    other.write_text("of another machine")
    assert disks.pool(deadline) == state.directory() / OWN
    assert (state.directory() / f"{OWN}.xfs.mounted").exists()
    mounted.add(OWN)
    assert disks.sweep_pool(deadline) == ["storage pool: empty"]
    assert (other.read_text(), unmounted()) == ("of another machine", [OWN])
    assert not (state.directory() / f"{OWN}.xfs").exists()


def test_what_guests_left_in_the_pool_goes(mounted: set[str], deadline: Deadline) -> None:
    """After a reboot the pool is not mounted, and the guests that it ended drop nothing."""
    gone, there = in_pool("gone", deadline), in_pool("there", deadline)
    (state.folder("guests") / "gone").rmdir()
    (state.directory() / f"{OWN}.xfs.mounted").unlink()
    assert disks.sweep_pool(deadline) == ["disks of gone in the storage pool: their guest is gone"]
    assert (state.directory() / f"{OWN}.xfs.mounted").exists(), "it was mounted"
    assert (gone.exists(), there.exists(), unmounted()) == (False, True, [])
    (state.folder("guests") / "there").rmdir()
    assert disks.sweep_pool(deadline) == [
        "disks of there in the storage pool: their guest is gone",
        "storage pool: empty",
    ]
    assert disks.sweep_pool(deadline) == []


def test_a_pool_is_not_released_while_a_disk_is_made(mounted: set[str], deadline: Deadline) -> None:
    """The pool is empty until the guest's folder is made in it."""
    disks.pool(deadline)
    with held("storage-pool"):
        with pytest.raises(DeadlinePassed):
            disks.sweep_pool(Deadline.after(0.3))
        with pytest.raises(DeadlinePassed):
            disks.create(disk("1G"), state.folder("guests", "a"), DiskForm.POOL, Deadline.after(0.3))
    assert (unmounted(), list(state.folder(OWN).iterdir())) == ([], [])


def test_without_root_no_pool_is_mounted(
    mounted: set[str], monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    in_pool("gone", deadline)
    (state.folder("guests") / "gone").rmdir()
    (state.directory() / f"{OWN}.xfs.mounted").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert disks.sweep_pool(deadline) == []
    assert not (state.directory() / f"{OWN}.xfs.mounted").exists()
