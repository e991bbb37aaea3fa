# SPDX-License-Identifier: GPL-2.0-only
"""The programs that workloads compile: made once for each image and command, kept, and given to other guests.

A compilation takes an emulated guest a third of a boot, and would make an experiment's first boot unlike the
others.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from numalab.core import state
from numalab.core.checksum import of_texts
from numalab.core.log import step
from numalab.core.process import Deadline
from numalab.guest.guest import Guest
from numalab.host import ssh
from numalab.model.values import Phase


def kept(image_id: str, phase: Phase) -> Path:
    """Where the program of a phase is kept, for guests of an image; it may not be there yet."""
    return state.folder("programs") / f"{image_id}-{of_texts(phase.command)[:16]}"


def missing(image_id: str, phases: Iterable[Phase]) -> list[Phase]:
    """The phases whose programs are not kept yet."""
    return [phase for phase in phases if phase.makes and not kept(image_id, phase).exists()]


def give(guest: Guest, phase: Phase, deadline: Deadline) -> None:
    """Put the program of a phase where the phase would make it; compile it in this guest if none is kept.

    A person's guest may have another compiler by now: what is compiled there is not kept for others.
    """
    place = kept(guest.record.image_id, phase)
    folder = f"mkdir -p {PurePosixPath(phase.makes).parent}"  # an earlier phase may be what makes it
    if place.exists():
        put = f"{folder} && cat > {phase.makes} && chmod 755 {phase.makes}"
        ssh.succeed(guest, put, deadline=deadline, input=place.read_bytes())
        return
    with step(phase.name, who=guest.name):
        ssh.succeed(guest, f"{folder} && {phase.command}", deadline=deadline.within(phase.limit_seconds))
    if guest.record.kept:
        return
    fresh = state.scratch(place)
    try:
        guest.ssh.copy(source=f"guest:{phase.makes}", target=str(fresh), deadline=deadline)
        state.sync(fresh)
        fresh.replace(place)
    finally:
        fresh.unlink(missing_ok=True)
