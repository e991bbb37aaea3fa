"""Threads on all nodes write to one file that they have mapped, MAP_SHARED: dirty pages that cannot, or need not, migrate.

Source: nodirty-09a913a7.txt ("avoids marking shared dirty pages for hinting faults"); issue 4's recipe, tried by
hand. The case holds writeback off (vm.dirty_*), so that the pages stay dirty.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.model import Phase, SizeClass, Value
from numalab.workload import compile_c, mounted

SOURCE = Path(__file__).with_suffix(".c")
DISK = "/dev/disk/by-id/virtio-data"
MOUNT = "/mnt/data"


class FileSystem(StrEnum):
    """Those of the seed."""

    BTRFS = "btrfs"
    XFS = "xfs"


class Params(Value):
    """The file's size and file system, and how long it is written to."""

    filesystem: FileSystem = FileSystem.BTRFS
    mib: Annotated[int, Field(ge=1)]
    seconds: Annotated[int, Field(ge=1)]


PARAMS = {
    SizeClass.QUICK: Params(mib=128, seconds=12),
    SizeClass.FULL: Params(mib=4096, seconds=60),
}


def phases(params: Params) -> tuple[Phase, ...]:
    """Compile; a fresh file system on the disk `data`; touch."""
    make = mounted(params.filesystem, DISK, MOUNT)
    command = f"/root/dirtymap {MOUNT}/shared {params.mib} {params.seconds}"
    return (
        compile_c(SOURCE, "/root/dirtymap", "-pthread"),
        Phase(name="mkfs", command=make, limit_seconds=120, measured=False),
        Phase(name="touch", command=command, limit_seconds=params.seconds * 6 + 120),
    )
