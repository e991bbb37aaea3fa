"""dd writes more than memory to a slow disk: do dirty pages reach the end of reclaim's lists?

Source: perzonedirty-lkml-2011.txt ("Copying 8G to fuse-ntfs on USB stick in 4G machine"): dd if=/dev/zero bs=32k
count=262144, six times under perf stat. `small_node` puts the writer on the smallest node's CPUs, so that the node
takes the part of the seed's small zone: since 4.8 reclaim's lists and the dirty limits are a node's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from numalab.model import Bus, Phase, SizeClass, Value
from numalab.workload import ON_SMALLEST_NODE, mounted

MOUNT = "/mnt/slow"
COUNTS = "/root/perf.csv"
EVENTS = "cache-misses,cache-references,branch-misses,branches,instructions,cycles,page-faults,cpu-migrations,context-switches,task-clock"
"""Those of the seed. Where there is no PMU (TCG), perf counts the last four only, and only these are told."""

TELL = (
    '$1 ~ /^[0-9.]+$/ { print "numalab: " $3 " " $1; spread = $4 ~ /%$/; share = $(5 + spread); '
    'if (spread) print "numalab: " $3 ".spread_percent " $4 + 0; if (share < 100) print "numalab: " $3 ".scaled_percent " share }'
)
"""awk's program over perf stat -x ';': each mean; with -r its spread over the runs; and of an event that was counted for a part
of the time only (more events than counters), that part: its mean is then scaled."""


class FileSystem(StrEnum):
    """What is written to."""

    NTFS = "ntfs"
    XFS = "xfs"


class Params(Value):
    """The disk by name and bus, its file system, how much is written to it and how often, and from where."""

    disk: Annotated[str, Field(pattern=r"^[a-zA-Z0-9]+$")] = "stick"
    bus: Bus = Bus.USB
    filesystem: FileSystem = FileSystem.NTFS
    mib: Annotated[int, Field(ge=1)]
    repeats: Annotated[int, Field(ge=1)]
    block_kib: Literal[4, 8, 16, 32, 64, 128, 256, 512, 1024] = 32
    """dd's bs; the seed's is 32k. Where a file system has folios of several pages, those of a file are as long as its writes."""
    small_node: bool = False
    big_writes: bool = False
    """ntfs-3g's option of that name: requests of 128 KiB to the FUSE daemon where its default, and the seed's, is a page. Emulation
    needs it (1 MB/s otherwise); what the daemon dirties, the block device's pages, is the same."""
    seconds: Annotated[float, Field(gt=0)]


PARAMS = {
    SizeClass.QUICK: Params(mib=1024, repeats=1, seconds=600),
    # The seed's: 15 minutes a copy on its stick, six copies.
    SizeClass.FULL: Params(mib=8192, repeats=6, seconds=4 * 3600),
}


def phases(params: Params) -> tuple[Phase, ...]:
    """A fresh file system, then dd. ntfs-3g, which does the writing to the disk, runs where dd does."""
    where = ON_SMALLEST_NODE if params.small_node else ""
    device = f"/dev/disk/by-id/usb-*_{params.disk}-*" if params.bus is Bus.USB else f"/dev/disk/by-id/virtio-{params.disk}"
    kind = "ntfs-3g" if params.filesystem is FileSystem.NTFS else params.filesystem
    copy = f"dd if=/dev/zero of={MOUNT}/zeroes bs={params.block_kib}k count={params.mib * 1024 // params.block_kib}"
    options = " -o big_writes" if params.big_writes else ""
    counted = f"perf stat -r {params.repeats} -x ';' -o {COUNTS} -e {EVENTS} {where}{copy}"
    # perf 6.1 now and then returns 0 for a command that failed (2 of 60 times here), so the result is looked at.
    whole = f"[ $(stat -c %s {MOUNT}/zeroes) -eq {params.mib << 20} ]"
    told = f"awk -F ';' '{TELL}' {COUNTS}"
    fresh = f"set -- {device} && {mounted(params.filesystem, '$1', MOUNT, mount=f'{where}mount -t {kind}{options}')}"
    return (
        Phase(name="mkfs", command=fresh, limit_seconds=300, measured=False),
        Phase(name="dd", command=f"{counted} && {whole} && {told}", limit_seconds=params.seconds),
    )
