"""fs_mark, then xfs_repair in four configurations, on a sparse 500 TB XFS.

Source: slowscan-lkml-2015.txt, Dave Chinner, March 9, 11:29 a.m. (fs_mark) and 7:19 p.m. (mkfs), March
17, 7:06 a.m. (the four configurations; bhash is 101073 in all tables, 101703 once in a recipe).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from numalab.model import Phase, SizeClass, Value
from numalab.workload import mkfs_xfs

DISK = "/dev/disk/by-id/virtio-500TB"
MOUNT = "/mnt/scratch"
CONFIGURATIONS = {
    "defaults": "",
    "agstride": "-o ag_stride=-1",
    "bhash": "-o bhash=101073",
    "agstride-bhash": "-o ag_stride=-1,bhash=101073",
}


class Params(Value):
    """fs_mark's arguments: `directories` (-d) × `files` (-n) × `loops` (-L) inodes over `subdirs` (-D)."""

    directories: Annotated[int, Field(ge=1)] = 8
    subdirs: Annotated[int, Field(ge=1)]
    files: Annotated[int, Field(ge=1)]
    loops: Annotated[int, Field(ge=1)]
    fsmark_seconds: float
    repair_seconds: float

    @property
    def inodes(self) -> int:
        """Files that fs_mark leaves."""
        return self.directories * self.files * self.loops


PARAMS = {
    # 40,000 inodes: enough to touch all 500 allocation groups, a minute or two a repair on two emulated cores.
    SizeClass.QUICK: Params(subdirs=100, files=1000, loops=5, fsmark_seconds=300, repair_seconds=600),
    # The seed's: -D 10000 -n 100000 -L 32, 25.6 million inodes; 20 minutes and 4 to 18 a repair on its machine.
    SizeClass.FULL: Params(subdirs=10000, files=100000, loops=32, fsmark_seconds=4 * 3600, repair_seconds=4 * 3600),
}


def phases(params: Params) -> tuple[Phase, ...]:
    """mkfs, fs_mark, and each repair with cold caches; at the end the file system must be found clean."""
    targets = " ".join(f"-d {MOUNT}/{number}" for number in range(params.directories))
    # The seed's mkfs.xfs -f -mcrc=1,finobt=1, and -K: discarding 500 TB through qcow2 takes a minute and
    # changes nothing on a disk that has never been written.
    make = f"{mkfs_xfs('-m crc=1,finobt=1')} -K {DISK} && mkdir -p {MOUNT} && mount {DISK} {MOUNT}"
    mark = f"fs_mark -D {params.subdirs} -S0 -n {params.files} -s 1 -L {params.loops} {targets}"
    steps = [
        Phase(name="mkfs", command=make, limit_seconds=300, measured=False),
        Phase(name="fsmark", command=mark, limit_seconds=params.fsmark_seconds),
        Phase(name="umount", command=f"df -i {MOUNT} && umount {MOUNT}", limit_seconds=300, measured=False),
    ]
    for name, options in CONFIGURATIONS.items():
        steps.append(Phase(name=f"drop-{name}", command="sync && echo 3 > /proc/sys/vm/drop_caches", limit_seconds=60, measured=False))
        steps.append(Phase(name=f"repair-{name}", command=f"xfs_repair {options} {DISK}", limit_seconds=params.repair_seconds))
    # Without strides: it is not measured, and on few CPUs a stride's threads only get in each other's way.
    steps.append(Phase(name="check", command=f"xfs_repair -n -o ag_stride=-1 {DISK}", limit_seconds=params.repair_seconds, measured=False))
    return tuple(steps)
