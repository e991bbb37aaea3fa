"""fs_mark, then xfs_repair in four configurations, on a sparse 500 TB XFS; and Mel Gorman's, on one of its own.

Source: slowscan-lkml-2015.txt, Dave Chinner, March 9, 11:29 a.m. (fs_mark) and 7:19 p.m. (mkfs), March
17, 7:06 a.m. (the four configurations; bhash is 101073 in all tables, 101703 once in a recipe), March 18, 10:23 p.m.
(what its cache tells of itself; here as bcache.hits, bcache.misses, bcache.hash_buckets_with_8_entries, …). Mel Gorman's
(March 7, 3:20 p.m.) is taken to be xfsrepair-bench of MMTests, 9c3a6461 of November 28, 2014: 50 million inodes
without data in 4 directories, a log of 131072 blocks, xfs_repair -vv -o bhash=32768 -o ag_stride=4, three times over on an
image of nine tenths of a disk. Its size is not told; here it is 1 TiB, of which mkfs.xfs makes 4 allocation groups. An
iteration is a boot.
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
    """Dave Chinner's four, a phase each (repair-defaults, …), and Mel Gorman's, whose phases are mmtests-*."""

    DEFAULTS = "defaults"
    AGSTRIDE = "agstride"
    BHASH = "bhash"
    AGSTRIDE_BHASH = "agstride-bhash"
    MMTESTS = "mmtests"


OPTIONS = {
    Configuration.DEFAULTS: "",
    Configuration.AGSTRIDE: "-o ag_stride=-1",
    Configuration.BHASH: "-o bhash={bhash}",
    Configuration.AGSTRIDE_BHASH: "-o ag_stride=-1,bhash={bhash}",
    Configuration.MMTESTS: "-o bhash=32768 -o ag_stride=4",
}
RECYCLES = (Configuration.BHASH, Configuration.AGSTRIDE_BHASH)
"""Configurations whose cache has to be full and recycle buffers: where Dave Chinner's cost began."""
CACHE = r"""awk -v recycles=%d '
/^libxfs_bcache:/ {text = ""; on = 1; next}
!/^(Max|Active|Hash|Hits|Misses|Hit|MRU|Dirty MRU)/ {on = 0}
on {sub(/ *\(.*/, ""); sub(/ *= */, " "); sub(/>/, "over_"); value = $NF; $NF = ""; sub(/ +$/, ""); gsub(/ +/, "_")
    text = text "numalab: bcache." tolower($0) " " value "\n"; last[tolower($0)] = value}
END {printf "%%s", text; room = last["max_supported_entries"]; used = last["max_utilized_entries"]
    if (recycles && !(room && used + 0 >= room + 0 && last["misses"] > room + 0)) {
        print "xfs_repair: its cache did not recycle: of " room " buffers " used " in use at most: take a smaller bhash" > "/dev/stderr"
        exit 1}}' """ + LOG
"""The statistics that xfs_repair -vv prints after each of its phases: those of the last."""
SHOOTDOWNS = "awk '$1 == \"TLB:\" {for (cpu = 2; $cpu ~ /^[0-9]+$/; cpu++) sum += $cpu} END {print sum + 0}' /proc/interrupts"
"""TLB shootdowns since boot: IPIs that CPUs got to flush TLB entries."""


class Params(Value):
    """fs_mark's arguments: `directories` (-d) × `files` (-n) × `loops` (-L) inodes over `subdirs` (-D); what repairs it.

    `bhash` is that of the two configurations which have one. xfs_repair caches 8 times as many buffers, and recycles them when
    that many are in use; a repair that does not come to that fails its phase. mmtests has as many subdirs, MMTESTS_DIRECTORIES and its own files and loops.
    """

    configurations: Annotated[tuple[Configuration, ...], Field(min_length=1)] = tuple(Configuration)
    bhash: Annotated[int, Field(ge=1)] = 101073
    directories: Annotated[int, Field(ge=1)] = 8
    subdirs: Annotated[int, Field(ge=1)]
    files: Annotated[int, Field(ge=1)]
    loops: Annotated[int, Field(ge=1)]
    mmtests_files: Annotated[int, Field(ge=1)]
    mmtests_loops: Annotated[int, Field(ge=1)]
    fsmark_seconds: float
    repair_seconds: float

    @property
    def inodes(self) -> int:
        """Files that fs_mark leaves for the four configurations."""
        return self.directories * self.files * self.loops


MMTESTS_DIRECTORIES = 4
PARAMS = {
    # 40,000 inodes: enough to touch all 500 allocation groups, a minute or two a repair on two emulated cores. Without these
    # groups a repair is short: 200,000 inodes took 21 s.
    # bhash 256: 2048 buffers, of some 6,600 that such a file system has.
    SizeClass.QUICK: Params(
        bhash=256, subdirs=100, files=1000, loops=5, mmtests_files=2500, mmtests_loops=10, fsmark_seconds=300, repair_seconds=600
    ),
    # The seeds': -D 10000 -n 100000 -L 32, 25.6 million inodes; a few minutes and 4 to 18 a repair on Dave Chinner's machine.
    # -n 125000 -L 100, 50 million; 20 minutes and 8 on Mel Gorman's.
    SizeClass.FULL: Params(
        subdirs=10000, files=100000, loops=32, mmtests_files=125000, mmtests_loops=100, fsmark_seconds=4 * 3600, repair_seconds=4 * 3600
    ),
}


def phases(params: Params) -> tuple[Phase, ...]:
    """For the four configurations, and for mmtests: mkfs, fs_mark, repair with cold caches, and all found clean."""
    four = [name for name in params.configurations if name is not Configuration.MMTESTS]
    steps = []
    if four:
        mark = _mark(params.subdirs, params.files, 1, params.loops, params.directories)
        steps += _made("", mkfs_xfs("-m crc=1,finobt=1"), mark, params)
        for name in four:
            steps += _repaired(f"repair-{name}", name, params)
        steps.append(_check("check", params))
    if Configuration.MMTESTS in params.configurations:
        mark = _mark(params.subdirs, params.mmtests_files, 0, params.mmtests_loops, MMTESTS_DIRECTORIES)
        steps += _made("mmtests-", f"{mkfs_xfs('')} -d size=1t -l size=131072b", mark, params)
        steps += [*_repaired("mmtests-repair", Configuration.MMTESTS, params), _check("mmtests-check", params)]
    return tuple(steps)


def _mark(subdirs: int, files: int, size: int, loops: int, directories: int) -> str:
    targets = " ".join(f"-d {MOUNT}/{number}" for number in range(directories))
    return f"fs_mark -D {subdirs} -S0 -n {files} -s {size} -L {loops} {targets}"


def _made(which: str, options: str, mark: str, params: Params) -> list[Phase]:
    # -K: discarding 500 TB through qcow2 takes a minute and changes nothing on a disk that has never been written.
    make = f"{options} -K {DISK} && mkdir -p {MOUNT} && mount {DISK} {MOUNT}"
    return [
        Phase(name=f"{which}mkfs", command=make, limit_seconds=300, measured=False, prepares=True),
        Phase(name=f"{which}fsmark", command=mark, limit_seconds=params.fsmark_seconds, prepares=True),
        Phase(name=f"{which}umount", command=f"df -i {MOUNT} && umount {MOUNT}", limit_seconds=300, measured=False, prepares=True),
    ]


def _repaired(phase: str, name: Configuration, params: Params) -> list[Phase]:
    options = OPTIONS[name].format(bhash=params.bhash)
    repair = (
        f"before=$({SHOOTDOWNS}); xfs_repair -vv {options} {DISK} > {LOG} 2>&1 || {{ status=$?; tail {LOG} >&2; exit $status; }}; "
        f"echo numalab: tlb_shootdowns $(($({SHOOTDOWNS}) - before))"
    )
    return [
        Phase(name=f"drop-{name}", command="sync && echo 3 > /proc/sys/vm/drop_caches", limit_seconds=60, measured=False),
        Phase(name=phase, command=f"{repair}; {CACHE % (name in RECYCLES)}", limit_seconds=params.repair_seconds),
    ]


def _check(name: str, params: Params) -> Phase:
    # Without strides: it is not measured, and on few CPUs a stride's threads only get in each other's way.
    return Phase(name=name, command=f"xfs_repair -n -o ag_stride=-1 {DISK}", limit_seconds=params.repair_seconds, measured=False)
