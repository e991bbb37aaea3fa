"""fs_mark writes large files on XFS in a small machine.

Source: perzonedirty-lkml-2011.txt: fs_mark -d fsmark-one -d fsmark-two -D 100 -N 150 -n 150 -L 25 -t 1 -S 0 -s 10 MiB.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from numalab.model import Phase, SizeClass, Value
from numalab.workload import ON_SMALLEST_NODE, mounted

DISK = "/dev/disk/by-id/virtio-scratch"
MOUNT = "/mnt/scratch"
FILE_MIB = 10


class Params(Value):
    """Two directories × `files` (-n) × `loops` (-L) files of 10 MiB; from where (see writeback)."""

    files: Annotated[int, Field(ge=1)]
    loops: Annotated[int, Field(ge=1)]
    small_node: bool = False
    seconds: Annotated[float, Field(gt=0)]


PARAMS = {
    # 1000 MiB, more than the memory of the case's quick machine: a seventy-fifth of the seed's files, in its directories.
    SizeClass.QUICK: Params(files=10, loops=5, seconds=600),
    # The seed's: 73 GiB, 20 minutes on its disk.
    SizeClass.FULL: Params(files=150, loops=25, seconds=4 * 3600),
}


def phases(params: Params) -> tuple[Phase, ...]:
    """A fresh file system, then fs_mark."""
    make = mounted("xfs", DISK, MOUNT)
    where = ON_SMALLEST_NODE if params.small_node else ""
    mark = (
        f"cd {MOUNT} && {where}fs_mark -d fsmark-one -d fsmark-two -D 100 -N 150 -n {params.files} -L {params.loops} -t 1 -S 0 -s {FILE_MIB << 20}"
    )
    return (
        Phase(name="mkfs", command=make, limit_seconds=300, measured=False),
        Phase(name="fsmark", command=mark, limit_seconds=params.seconds),
    )
