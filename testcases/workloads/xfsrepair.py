"""fs_mark, then xfs_repair in four configurations, on a sparse 500 TB XFS.

Source: slowscan-lkml-2015.txt, Dave Chinner, March 9, 11:29 a.m. (fs_mark) and 7:19 p.m. (mkfs), March
17, 7:06 a.m. (the four configurations; bhash is 101073 in all tables, 101703 once in a recipe), March 18, 10:23 p.m.
(what its cache tells of itself; here as bcache.hits, bcache.misses, bcache.hash_buckets_with_8_entries, …).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from numalab.model import Phase, SizeClass, Value
from numalab.workload import mkfs_xfs

DISK = "/dev/disk/by-id/virtio-500TB"
MOUNT = "/mnt/scratch"
LOG = "/root/repair.log"


class Configuration(StrEnum):
    """The seed's four, and a phase each: repair-defaults, …"""

    DEFAULTS = "defaults"
    AGSTRIDE = "agstride"
    BHASH = "bhash"
    AGSTRIDE_BHASH = "agstride-bhash"


OPTIONS = {
    Configuration.DEFAULTS: "",
    Configuration.AGSTRIDE: "-o ag_stride=-1",
    Configuration.BHASH: "-o bhash=101073",
    Configuration.AGSTRIDE_BHASH: "-o ag_stride=-1,bhash=101073",
}
CACHE = r"""awk '
/^libxfs_bcache:/ {text = ""; on = 1; next}
!/^(Max|Active|Hash|Hits|Misses|Hit|MRU|Dirty MRU)/ {on = 0}
on {sub(/ *\(.*/, ""); sub(/ *= */, " "); sub(/>/, "over_"); value = $NF; $NF = ""; sub(/ +$/, ""); gsub(/ +/, "_")
    text = text "numalab: bcache." tolower($0) " " value "\n"}
END {printf "%s", text}' """ + LOG
"""The statistics that xfs_repair -vv prints after each of its phases: those of the last."""


class Params(Value):
    """fs_mark's arguments: `directories` (-d) × `files` (-n) × `loops` (-L) inodes over `subdirs` (-D); what repairs it."""

    configurations: Annotated[tuple[Configuration, ...], Field(min_length=1)] = tuple(Configuration)
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
    for name in params.configurations:
        steps.append(Phase(name=f"drop-{name}", command="sync && echo 3 > /proc/sys/vm/drop_caches", limit_seconds=60, measured=False))
        repair = f"xfs_repair -vv {OPTIONS[name]} {DISK} > {LOG} 2>&1 || {{ status=$?; tail {LOG} >&2; exit $status; }}"
        steps.append(Phase(name=f"repair-{name}", command=f"{repair}; {CACHE}", limit_seconds=params.repair_seconds))
    # Without strides: it is not measured, and on few CPUs a stride's threads only get in each other's way.
    steps.append(Phase(name="check", command=f"xfs_repair -n -o ag_stride=-1 {DISK}", limit_seconds=params.repair_seconds, measured=False))
    return tuple(steps)
