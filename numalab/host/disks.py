# SPDX-License-Identifier: GPL-2.0-only
"""A guest's disks on the host: overlays over images, sparse data disks, and the XFS pool on a loop device.

The largest file of a file system is found with truncate(2), not looked up in a table. Nothing is allocated
ahead: a 500 TB disk takes a few MiB of host space. Not here: the images themselves (image).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from numalab.core import state
from numalab.core.errors import CommandFailed, HostError, InputError
from numalab.core.log import note, step
from numalab.core.process import Deadline, need, run
from numalab.host.remote import HERE, Where
from numalab.model.guest import DiskFile, DiskForm
from numalab.model.topology import Disk
from numalab.model.units import MIB, TIB, show_size

QCOW2_MOST = 2048 * TIB
"""With 64 KiB clusters and the largest L1 table, 32 MiB (QEMU's docs/interop/qcow2.txt, block/qcow2.h)."""
POOL_SIZE = 2 * TIB
"""The pool's own file is sparse too; XFS on it holds files of up to 8 EiB."""
LOCK = "storage-pool"
"""Held by whoever mounts, fills or unmounts the pool; "pool" is that of the Dask pool."""
ROOM = 2048 * MIB
"""Free host space that a guest needs at its start: overlays grow as the guest writes."""


def largest_file(folder: Path, where: Where = HERE) -> int:
    """Bytes of the largest sparse file in a folder: to the MiB here, to a power of two on another machine."""
    if where.ssh:
        sizes = " ".join(str(1 << power) for power in range(62, 29, -1))
        script = (
            f'f=$(mktemp -p "$1"); for s in {sizes}; do truncate -s $s "$f" 2>/dev/null && echo $s && break;'
            ' done; rm -f "$f"'
        )
        return int(where.run(["sh", "-c", script, "sh", folder], deadline=Deadline.after(60)).stdout or "0")
    with tempfile.TemporaryFile(dir=folder) as probe:
        low, high = 0, (1 << 63) // MIB - 1
        while low < high:
            middle = (low + high + 1) // 2
            try:
                os.ftruncate(probe.fileno(), middle * MIB)
                low = middle
            except OSError:
                high = middle - 1
        os.ftruncate(probe.fileno(), 0)
    return low * MIB


def direct_io(folder: Path, where: Where = HERE) -> bool:
    """Whether files in the folder can be opened with O_DIRECT, as QEMU's cache=none needs."""
    if where.ssh:
        script = (
            'f=$(mktemp -p "$1"); dd if=/dev/zero of="$f" bs=4096 count=1 oflag=direct 2>/dev/null; s=$?; rm'
            ' -f "$f"; exit $s'
        )
        return (
            where.run(["sh", "-c", script, "sh", folder], deadline=Deadline.after(60), check=False).status
            == 0
        )
    with tempfile.NamedTemporaryFile(dir=folder) as probe:
        try:
            os.close(os.open(probe.name, os.O_RDWR | os.O_DIRECT))
        except OSError:
            return False
    return True


def check_room(folder: Path, where: Where = HERE) -> None:
    """HostError when the disk is too full for a guest's overlays."""
    if where.ssh:
        free = int(
            where.run(["df", "-B1", "--output=avail", folder], deadline=Deadline.after(60)).stdout.split()[1]
        )
    else:
        free = shutil.disk_usage(folder).free
    if free < ROOM:
        raise HostError(
            f"{folder}: {free // MIB}MiB free, a guest needs {ROOM // MIB}MiB: lab.py gc, or set LAB_STATE to"
            " a larger disk"
        )


def overlay(
    image: Path, target: Path, deadline: Deadline, where: Where = HERE, *, over: str = "qcow2"
) -> DiskFile:
    """A qcow2 file that takes the guest's writes, over an image of format `over` that stays unchanged."""
    words: list[str | Path] = [
        where.program("qemu-img", "qemu-utils"),
        "create",
        "-q",
        "-f",
        "qcow2",
        "-F",
        over,
        "-b",
        image,
        target,
    ]
    where.run(words, deadline=deadline)
    return DiskFile(path=str(target), format="qcow2", serial="root", direct=direct_io(target.parent, where))


def check_size(disk: Disk, folder: Path, form: DiskForm, where: Where = HERE) -> DiskForm:
    """The disk's form, with AUTO resolved. InputError when that form cannot hold its size."""
    most = largest_file(folder, where) if form in (DiskForm.AUTO, DiskForm.RAW) else 0
    if form is DiskForm.AUTO:
        form = DiskForm.RAW if disk.size <= most else DiskForm.QCOW2
    if form is DiskForm.RAW and disk.size > most:
        why = f"{show_size(disk.size)} raw, but files in {folder} end at {most / TIB:.0f}TiB"
        raise InputError(f"disk {disk.name}: {why}: use qcow2 or a pool for it", field="storage")
    if form is DiskForm.QCOW2 and disk.size > QCOW2_MOST:
        why = f"{show_size(disk.size)}, but a qcow2 ends at {show_size(QCOW2_MOST)}"
        raise InputError(f"disk {disk.name}: {why}: use a pool for it, or raw on XFS", field="storage")
    return form


def create(disk: Disk, folder: Path, form: DiskForm, deadline: Deadline, where: Where = HERE) -> DiskFile:
    """Create a sparse data disk in a guest's folder; with form pool, in the pool, removed with the guest."""
    form = check_size(disk, folder, form, where)
    if form is DiskForm.POOL and where.ssh:
        raise InputError(
            f"storage pool is for this machine's own disks, not for those of {where.ssh}", field="storage"
        )
    if form is DiskForm.QCOW2:
        path = folder / f"{disk.name}.qcow2"
        where.run(
            [where.program("qemu-img", "qemu-utils"), "create", "-q", "-f", "qcow2", path, str(disk.size)],
            deadline=deadline,
        )
        return _disk_file(disk, path, "qcow2", where)
    place = _pool_folder(folder.name, deadline) if form is DiskForm.POOL else folder
    place.mkdir(exist_ok=True)
    path = place / f"{disk.name}.raw"
    where.run(["install", "-m", "600", "/dev/null", path], deadline=deadline)
    if where.run(["stat", "-f", "-c", "%T", place], deadline=deadline).stdout.strip() == "xfs":
        # As in the seed. The extent size can only be set while the file is empty.
        where.run([where.program("xfs_io", "xfsprogs"), "-c", "extsize 1m", path], deadline=deadline)
    result = where.run(["truncate", "-s", str(disk.size), path], deadline=deadline, check=False)
    if result.status:
        where.run(["rm", "-f", path], deadline=deadline)
        raise InputError(f"disk {disk.name}: {show_size(disk.size)}: {result.stderr.strip()}")
    return _disk_file(disk, path, "raw", where)


def keep(disk: DiskFile, folder: Path) -> DiskFile:
    """Move a disk that no guest uses any more into a folder of the lab, for guests to stand on. Its path is
    then relative to that folder."""
    path = Path(shutil.move(disk.path, folder))
    # QEMU's user wrote it; the disk below all later guests is the lab's, and read alone.
    os.chown(path, os.getuid(), os.getgid())
    path.chmod(0o600)
    return disk.model_copy(update={"path": path.name})


def _disk_file(disk: Disk, path: Path, image_format: str, where: Where) -> DiskFile:
    """A data disk's file, as QEMU opens it."""
    return DiskFile(
        path=str(path),
        format=image_format,
        serial=disk.name,
        direct=direct_io(path.parent, where),
        bus=disk.bus,
        mibs_per_second=disk.mibs_per_second,
    )


def _pool_place() -> Path:
    """The mount point of this machine's pool; its file is beside it, with .xfs.

    Each machine has its own pool: two mounts of one file system would damage it.
    """
    return state.directory() / f"pool-{state.this_machine()}"


def _pool_folder(guest: str, deadline: Deadline) -> Path:
    """A guest's folder in the pool, made under the lock: an empty pool may be released."""
    with state.lock(LOCK, deadline):
        place = pool(deadline) / guest
        place.mkdir(exist_ok=True)
    return place


def pool(deadline: Deadline) -> Path:
    """The mounted pool, XFS in a sparse file on a loop device. Made and mounted on first use, as root."""
    with state.lock(LOCK, deadline):
        place = _pool_place()
        if place.is_mount():
            return place
        backing = place.with_suffix(".xfs")
        place.mkdir(exist_ok=True, mode=0o700)
        if os.geteuid() != 0:
            raise HostError("storage pool needs root for its loop mount; qcow2 does not", field="storage")
        with step("storage pool: XFS on a loop device"):
            if not backing.exists():
                fresh = state.scratch(backing)
                fresh.touch(mode=0o600)
                with fresh.open("wb") as handle:
                    handle.truncate(min(POOL_SIZE, largest_file(state.directory())))
                run([need("mkfs.xfs", "xfsprogs"), "-q", "-f", "-K", fresh], deadline=deadline)
                state.sync(fresh)
                fresh.rename(backing)
            run(["mount", "-o", "loop", backing, place], deadline=deadline)
    return place


def drop_pool_disks(guest: str) -> None:
    """Remove a guest's files in the pool, if that is mounted; else `sweep_pool` does."""
    shutil.rmtree(_pool_place() / guest, ignore_errors=True)


def sweep_pool(deadline: Deadline) -> list[str]:
    """Remove the disks of guests that are gone from this machine's pool, and a pool that is then empty;
    returns a line for each.

    After a reboot the pool is mounted first: guests that the reboot ended have left their disks in it.
    """
    place, removed = _pool_place(), list[str]()
    backing = place.with_suffix(".xfs")
    if os.geteuid() != 0 or not backing.exists():
        return []
    with state.lock(LOCK, deadline):
        pool(deadline)
        for folder in sorted(place.iterdir()):
            # A guest's name is claimed before its folder in the pool is made.
            if not (state.folder("guests") / folder.name).exists():
                shutil.rmtree(folder, ignore_errors=True)
                if not folder.exists():
                    removed.append(f"disks of {folder.name} in the storage pool: their guest is gone")
        if not any(place.iterdir()):
            try:
                run(["umount", place], deadline=deadline)
            except CommandFailed as error:  # what was removed is said all the same
                note(f"storage pool: left alone: {error}")
                return removed
            backing.unlink(missing_ok=True)
            removed.append("storage pool: empty")
    return removed
