"""mkfs.xfs of 500 TB with and without discarding the disk first: why the lab's recipes say -K.

The seed's mkfs.xfs discards (slowscan-lkml-2015.txt, March 9, 7:19 p.m.); its disk was a raw file. Through
a qcow2 a discard of 500 TB walks all of the disk's tables; on a disk that was never written it changes
nothing.
"""

from __future__ import annotations

from numalab.model import Phase, SizeClass, Value
from numalab.workload import mkfs_xfs

DISK = "/dev/disk/by-id/virtio-500TB"


class Params(Value):
    """No sizes: the disk is the topology's."""

    seconds: float


PARAMS = {SizeClass.QUICK: Params(seconds=600), SizeClass.FULL: Params(seconds=600)}


def phases(params: Params) -> tuple[Phase, ...]:
    """The same file system twice."""
    make = mkfs_xfs("-m crc=1,finobt=1")
    return (
        Phase(name="keep", command=f"{make} -K {DISK}", limit_seconds=params.seconds),
        Phase(name="discard", command=f"{make} {DISK}", limit_seconds=params.seconds),
    )
