# SPDX-License-Identifier: GPL-2.0-only
"""`gc`: remove guests, half-made files, images, ready states, prepared disks and pools that nobody owns any
more.

Every decision about a guest is made under its lock, on its state at that time. What cannot be read, and what
a process on another machine may still use, is left alone, with a warning. Not here: kernels (prune).
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from numalab.core import state
from numalab.core.errors import CommandFailed, DeadlinePassed, HostError, LabError
from numalab.core.log import note
from numalab.core.process import Deadline
from numalab.guest import guest as guests
from numalab.guest import prepared, ready
from numalab.host import disks, image
from numalab.host.domain import Mark, mark
from numalab.host.hypervisor import Host

RUN = re.compile(r"\d{8}T\d{6}-")
"""How the name of a run's folder begins: state.stamp()."""


def collect(host: Host, deadline: Deadline) -> list[str]:
    """Remove what nobody owns any more and nothing else; returns one line for each thing removed.

    Guests on other hypervisors than `host` stay: each has its own gc (--connect).
    """
    removed, busy = list[str](), set[str]()
    for name in guests.names():
        with _held(name, busy) as held:
            removed += _tried(f"guest {name}", partial(_guest, name, host, deadline)) if held else []
    for stray in host.marks(deadline):
        if stray.lab == state.identity():
            with _held(stray.name, busy) as held:
                removed += (
                    _tried(f"domain of {stray.name}", partial(_domain, stray, host, deadline)) if held else []
                )
    for path in [*state.abandoned(), *_claims()]:
        removed += _tried(str(path), partial(_half_made, path))
    # States before the images that they stand on.
    steps: dict[str, Callable[[], Iterable[str]]] = {
        "ready states": partial(_stale_states, host, deadline),
        "prepared disks": partial(_stale_disks, deadline),
        "images": partial(_stale_images, deadline),
        "programs": _unused_programs,
        "runs": _broken_runs,
        f"half-made files on {host.where.ssh or 'this machine'}": partial(_half_sent, host, deadline),
        "storage pool": partial(disks.sweep_pool, deadline),
    }
    for what, step in steps.items():
        removed += _tried(what, step)
    return removed


def _half_made(path: Path) -> list[str]:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    if path.exists():
        note(f"{path}: cannot be removed")
        return []
    return [f"half-made {re.sub(r'^[.](making-[^-]*-([0-9]+-)?|claim-)', '', path.name)}"]


def _half_sent(host: Host, deadline: Deadline) -> list[str]:
    return [f"half-made {path} on {host.where.ssh}" for path in host.where.sweep(deadline)]


def _tried(what: str, collected: Callable[[], Iterable[str]]) -> list[str]:
    """What was removed until libvirt or a file system refused, with a warning: others may go."""
    removed: list[str] = []
    try:
        removed.extend(collected())
    except (HostError, CommandFailed, OSError) as error:
        note(f"{what}: left alone: {error}")
    return removed


@contextlib.contextmanager
def _held(name: str, busy: set[str]) -> Iterator[bool]:
    """Hold a guest's lock during the block if it is free; yields whether it is. A guest whose lock is held
    elsewhere is reported once, and `busy` from then on."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(guests.hold(name, Deadline.after(0)))
        except DeadlinePassed:
            if name not in busy:
                note(f"guest {name}: left alone: another lab.py works on it")
            busy.add(name)
        # Outside of the try: a DeadlinePassed in the block is not about the lock.
        yield name not in busy


def _guest(name: str, host: Host, deadline: Deadline) -> list[str]:
    """Remove a guest that was lost or never finished; returns a line for each removal. Its lock is held."""
    place = state.folder("guests") / name
    if not place.exists():  # removed by `down` meanwhile
        return []
    try:
        maker = guests.maker(name)
        record = guests.read(name) if (place / "guest.json").exists() else None
    except LabError as error:
        note(f"guest {name}: left alone: {error}")
        return []
    if record and not guests.ours(record):
        note(f"guest {name}: left alone: {guests.copied(record)}: if it is no more, remove {place}")
        return []
    process = maker.parsed if maker else None
    if maker and process and process.elsewhere:
        note(
            f"guest {name}: left alone: another machine ({maker.node}) made it: run lab.py gc there, or, if"
            f" it is no more, remove {place}"
        )
        return []
    if process and process.lives:
        return []
    uri = record.uri if record else maker.uri if maker else ""
    if uri not in (host.uri, ""):
        return []
    running = record is not None and host.running(mark(record.spec), deadline)
    if record and record.ready and record.kept and running:
        return []
    if maker and not process and not running:
        note(
            f"guest {name}: left alone: a lab before 2026-11 made it, and did not say on which machine: if on"
            f" this one, lab.py down {name}"
        )
        return []
    if record:
        host.stop(mark(record.spec), deadline)
        if qemu := host.qemu(mark(record.spec)):
            note(
                f"guest {name}: left alone: its QEMU (process {qemu}) runs, but libvirt at {host.uri} does"
                " not know it"
            )
            return []
    guests.remove(place, host, deadline)
    ready = record is not None and record.ready
    return [
        f"guest {name}: "
        + (
            "what it was for has ended"
            if ready and running
            else "it was lost"
            if ready
            else "its up did not end"
        )
    ]


def _domain(stray: Mark, host: Host, deadline: Deadline) -> list[str]:
    """End a domain of this lab whose guest is gone or has another domain. The guest's lock is held."""
    try:
        record = guests.read(stray.name) if Path(stray.directory).exists() else None
    except LabError:
        return []
    if record and record.spec.uuid == stray.uuid:
        return []
    host.stop(stray, deadline)
    return [f"domain of {stray.name}: its guest is gone"]


def _claims() -> list[Path]:
    """Folders with which labs before 2026-11 claimed a guest's name, left when they were killed."""
    return [path for path in state.folder("guests").glob(".claim-*") if state.unchanged(path, state.DAY)]


def _stale_states(host: Host, deadline: Deadline) -> Iterator[str]:
    """Remove the ready states that no guest will begin from and that none stands on."""
    for place in ready.places():
        why = ready.stale(place, host, deadline)
        if why and state.discard(place, partial(ready.needed, place.name)):
            yield f"ready state {place.name}: {why}"


def _stale_disks(deadline: Deadline) -> Iterator[str]:
    """Remove the prepared disks that no guest will begin on and that none stands on."""
    for place in prepared.places():
        why = prepared.stale(place, deadline)
        if why and state.discard(place, partial(prepared.needed, place.name)):
            yield f"prepared disks {place.name}: {why}"


def _stale_images(deadline: Deadline) -> Iterator[str]:
    """Remove the images that no inputs lead to, no guest is based on, and no process uses."""
    if unknown := guests.records()[1]:
        note(f"no image is removed: what guest {unknown[0]} stands on cannot be read")
        return

    def needed(id: str) -> bool:
        records, unknown = guests.records()
        return bool(unknown) or id in {record.image_id for record in records}

    for folder in state.folder("images").iterdir():
        with contextlib.suppress(LabError):
            current = image.current(folder.name, deadline)
            for place in folder.iterdir():
                if (
                    not current
                    or place.name in current
                    or place.name.startswith(".")
                    or needed(place.name)
                    or not _ours(place)
                ):
                    continue
                if state.discard(place, partial(needed, place.name)):
                    yield f"image {folder.name}/{place.name}: no longer current, and nobody uses it"


def _ours(place: Path) -> bool:
    """Whether an image's manifest can be read; a newer one of another checkout cannot."""
    try:
        image.manifest(place)
    except HostError as error:
        note(f"{place}: left alone: {error}")
        return False
    return True


def _unused_programs() -> Iterator[str]:
    """Remove the workloads' programs (measure.programs) of images that are gone."""
    images = {place.name for place in state.folder("images").glob("*/*")}
    for path in sorted(state.folder("programs").iterdir()):
        if not path.name.startswith(".") and path.name.partition("-")[0] not in images:
            path.unlink(missing_ok=True)
            yield f"program {path.name}: its image is gone"


def _broken_runs() -> Iterator[str]:
    """Remove day-old run folders without a run.json, left by killed labs before 2026-11.

    Other folders there are a person's own: one in which runs were put away, say.
    """
    for place in state.folder("runs").iterdir():
        if not RUN.match(place.name) or place.is_symlink() or not place.is_dir():
            continue
        try:
            if next(place.rglob("run.json"), None):
                continue
        except OSError:  # it was put away or completed meanwhile
            continue
        if state.unchanged(place, state.DAY):
            shutil.rmtree(place, ignore_errors=True)
            yield f"run {place.name}: its measurement did not end"
