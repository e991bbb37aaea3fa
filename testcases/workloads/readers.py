"""Sequential readers side by side, of more than memory: allocation and reclaim at full speed.

Source: fairzone-lkml-2014.txt (its totals are of tiobench, which reads like this); issue 4's recipe, tried by hand.
The disk is sparse and read as it is: zeroes, which cost the host nothing.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from numalab.model import Phase, SizeClass, Value

DISK = "/dev/disk/by-id/virtio-data"


class Params(Value):
    """How many readers, what each reads, and how long they may take."""

    readers: Annotated[int, Field(ge=1)] = 4
    mib: Annotated[int, Field(ge=1)]
    seconds: Annotated[float, Field(gt=0)]


PARAMS = {
    SizeClass.QUICK: Params(mib=1024, seconds=300),
    # Ten times the memory of the seed's class of machine, four times that of uma-4g.
    SizeClass.FULL: Params(mib=4096, seconds=3600),
}


def phases(params: Params) -> tuple[Phase, ...]:
    """All readers at once, each in its part of the disk `data`; one that fails fails the phase."""
    reader = f"dd if={DISK} of=/dev/null bs=64k count={params.mib * 16} skip=$((reader * {params.mib * 16})) status=none"
    command = (
        f"pids=; for reader in $(seq 0 {params.readers - 1}); do {reader} & pids=\"$pids $!\"; done; "
        "for pid in $pids; do wait $pid || exit; done"
    )
    return (Phase(name="read", command=command, limit_seconds=params.seconds),)
