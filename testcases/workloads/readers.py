"""Sequential readers side by side, of more than memory: allocation and reclaim at full speed.

Source: fairzone-lkml-2014.txt, which does not say what was run; reading is issue 4's recipe, tried by hand.
The disk is sparse and read as it is: zeroes, which cost the host nothing.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from numalab.core.errors import InputError
from numalab.model import Phase, SizeClass, Value

DISK = "/dev/disk/by-id/virtio-data"


class Params(Value):
    """How many readers; what each reads, in MiB, or else how many times the guest's memory all read, as far as the disk goes; and
    how long they may take."""

    readers: Annotated[int, Field(ge=1)] = 4
    mib: Annotated[int, Field(ge=0)] = 0
    memories: Annotated[int, Field(ge=0)] = 0
    seconds: Annotated[float, Field(gt=0)]


PARAMS = {
    SizeClass.QUICK: Params(mib=1024, seconds=300),
    # Four times the guest's memory: as much of the disk as there is on 4socket, whose 16 GiB its 64 GiB hold four times.
    SizeClass.FULL: Params(memories=4, seconds=3600),
}


def phases(params: Params) -> tuple[Phase, ...]:
    """All readers at once, each in its part of the disk `data`; one that fails fails the phase. Raises InputError."""
    if not params.mib and not params.memories:
        raise InputError("readers: mib or memories is to be above 0")
    each = f"{params.mib}"
    if not params.mib:
        part = f"{params.memories} * $2 / 1024 / {params.readers}"
        most = f"disk / 1048576 / {params.readers}"
        each = (
            f"$(awk -v disk=$(blockdev --getsize64 {DISK}) "
            f"'/MemTotal/ {{all = {part}; most = {most}; print int(all < most ? all : most)}}' /proc/meminfo)"
        )
    reader = f"dd if={DISK} of=/dev/null bs=64k count=$((each * 16)) skip=$((reader * each * 16)) status=none"
    command = (
        f"each={each}; pids=; for reader in $(seq 0 {params.readers - 1}); do {reader} & pids=\"$pids $!\"; done; "
        "for pid in $pids; do wait $pid || exit; done"
    )
    return (Phase(name="read", command=command, limit_seconds=params.seconds),)
