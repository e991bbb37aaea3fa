# SPDX-License-Identifier: GPL-2.0-only
"""Ready states: a guest that has booted is saved once, and others like it begin where it was, in seconds.

A state is found by its key, the checksum of everything that the guest was made from, so it is never used for
a guest that would have booted otherwise: another image, kernel, topology, command line, QEMU, libvirt or
machine has another key. gc removes states that no key leads to any more. A guest from a state has not booted
by itself, so experiments take one only where they are told to (--ready), and say so. Not here: booting
(launch), the saved file's format (host.saved).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from numalab.core import checksum, paths, state
from numalab.core.errors import BadReadyState, HostError, InputError
from numalab.core.log import note, step
from numalab.core.process import Deadline
from numalab.guest import guest as guests
from numalab.guest import kept, launch
from numalab.guest.guest import Guest
from numalab.guest.launch import GuestRequest
from numalab.host import accelerator, machine, qemu_user, ssh
from numalab.host import disks as host_disks
from numalab.host.domain import domain_xml
from numalab.host.hypervisor import Host
from numalab.host.image import Image
from numalab.kernel import boot as kernel_boot
from numalab.model import binding
from numalab.model.guest import Boot, BootWay, DiskFile, DiskForm, GuestSpec, ReadyState
from numalab.model.units import show_size
from numalab.model.values import Accel, Clock, first_line, jsonable

FORMAT = 2
"""Incremented when this module, or renewed.py, makes another state of the same guest."""
MEMORY, RECORD = "memory", "state.json"
OLDEST = (5, 10)
"""The oldest kernel whose restored guests get random numbers of their own; see _check_release."""
CPUINFO = Path("/proc/cpuinfo")


def up(request: GuestRequest, host: Host, deadline: Deadline, *, or_boot: bool = True) -> Guest:
    """Bring a guest up from its ready state, which is made on first use.

    Where the state is at fault, it is thrown away and the guest boots, with one line that says so; without
    `or_boot`, for a guest that is to be compared with others of its state, BadReadyState is raised.
    InputError for a request that no state can serve.
    """
    _check(request, host)
    launch.check_free(request.name)
    base, boot = launch.choose(request, deadline)
    _check_release(boot)
    request = request.model_copy(update={"image_id": base.id, "pinned": boot})
    with state.using(*launch.folders(base, boot)):
        request, key = _keyed(request, base, boot, host, deadline)
        place = state.folder("ready") / key
        try:
            with _state(request, place, host, deadline) as saved:
                return launch.up(request.model_copy(update={"saved": saved}), host, deadline)
        except BadReadyState as error:
            state.discard(place, lambda: needed(key))
            if not or_boot:
                raise
            note(f"its ready state {key} is of no use ({error}): booted afresh", who=request.name)
    return launch.up(request.model_copy(update={"savable": False}), host, deadline)


def _check(request: GuestRequest, host: Host) -> None:
    """InputError for what cannot be restored, or would not mean what it says."""
    for wrong, why in (
        (host.where.ssh, "another machine: ready states are for this machine's own guests"),
        (request.boot is BootWay.GRUB, "boot grub: a guest from a ready state is not booted"),
        (request.clock is not Clock.HOST, "another clock: ready states have the host's clock"),
        (
            request.seed is not None,
            "a seed: a seed is a boot's, and a guest from a ready state is not booted",
        ),
        (request.pin != binding.OFF or request.huge_page, "pin or huge pages: a state has its own memory"),
        (request.prepared is not None, "prepared disks: a state has its own disks"),
        (request.form is DiskForm.POOL, "storage pool: disks of ready states are not in the pool"),
        (
            any(disk.size > host_disks.QCOW2_MOST for disk in request.shape.disks),
            f"a disk of more than {show_size(host_disks.QCOW2_MOST)}: guests write to overlays, in qcow2",
        ),
    ):
        if wrong:
            raise InputError(f"ready: not with {why}", field="ready")


def _check_release(boot: Boot) -> None:
    """InputError for a kernel in which guests of one state could draw the same random numbers: before 4.17
    there is no RNDRESEEDCRNG, and until 5.12 ("random: fix the RNDRESEEDCRNG ioctl", in 5.10 by its stable
    updates) the ioctl does not take what has been added."""
    release = re.match(r"(\d+)\.(\d+)", boot.release)
    if release and tuple(map(int, release.groups())) < OLDEST:
        raise InputError(
            f"ready: not with kernel {boot.release}: before {OLDEST[0]}.{OLDEST[1]} a restored guest cannot"
            " be given random numbers of its own",
            field="ready",
        )


def _keyed(
    request: GuestRequest, base: Image, boot: Boot, host: Host, deadline: Deadline
) -> tuple[GuestRequest, str]:
    """The request with its accelerator chosen, and the key of its state: a checksum of a domain like the
    guest's, of the contents of its files, and of what runs it."""
    probe = request.probe or accelerator.choose(request.accel, Path(boot.kernel or ""), deadline, host.where)
    if request.probe is None:
        accelerator.warn(probe, Clock.HOST, request.name)
    request = request.model_copy(update={"probe": probe, "savable": True})
    shape = kernel_boot.fitted(request.kernel, request.shape)
    files = [Path(path) for path in (boot.kernel, boot.initrd) if path]
    owner = qemu_user.let_in(host, [base.file("disk.qcow2"), *files], deadline).owner
    disk = DiskFile(path="/", format="qcow2", serial="root", direct=False)
    spec = GuestSpec(
        name="ready",
        uuid="",
        topology=shape,
        topology_name="",
        accel=probe.accel,
        boot=launch.compose_boot(
            request, "ready", shape, base, boot, {path: path for path in files}, Clock.HOST
        ).model_copy(update={"kernel": "/kernel", "initrd": "/initrd" if boot.initrd else None}),
        disks=(disk, *(disk.model_copy(update={"serial": one.name, "bus": one.bus}) for one in shape.disks)),
        ssh_port=1,
        directory="/",
        network=request.network,
        savable=True,
        owner=owner,
    )
    parts = [
        str(FORMAT),
        domain_xml(spec),
        shape.model_dump_json(),
        request.form.value,
        base.id,
        *(checksum.sha256(path) for path in files),
        *filter(None, [kernel_boot.modules_checksum(request.kernel, boot)]),
        state.this_machine(),
        host.hypervisor(),
        machine.read_facts(host.where, deadline)["kernel"],
        _processor() if probe.accel is Accel.KVM else "",
    ]
    return request, checksum.of_texts(*parts)[:16]


def _processor() -> str:
    """What a guest under KVM sees of this machine's processor: model, features, microcode."""
    wanted = ("model name", "flags", "stepping", "microcode")
    first = CPUINFO.read_text().split("\n\n")[0].splitlines()
    return "\n".join(line for line in first if line.partition(":")[0].strip() in wanted)


@contextmanager
def _state(request: GuestRequest, place: Path, host: Host, deadline: Deadline) -> Iterator[ReadyState]:
    """The state in its folder, made if it is not there, and kept from gc during the block. One lab.py at a
    time makes or restores it: both write to its files."""
    with state.lock(f"ready-{place.name}", deadline):
        if not place.exists():
            _make(request, place, host, deadline)
        with state.using(place):
            yield read(place)
            (place / RECORD).touch()  # gc goes by its age; not of one that was of no use


def _make(request: GuestRequest, place: Path, host: Host, deadline: Deadline) -> None:
    """Boot a guest as requested, and save it. A kill -9 leaves a guest and a scratch folder, for gc."""
    name = guests.fresh_name(f"ready-{place.name[:8]}")
    wanted = request.model_copy(update={"name": name, "kept": False, "ssh_port": None})
    guest = launch.up(wanted, host, deadline)
    try:
        with guests.ending(guest), state.making(place) as scratch:
            _save(guest, place, scratch, host, deadline)
    except HostError as error:  # libvirt, or a file system, will not have it: the guest boots then
        raise BadReadyState(str(error), evidence=error.evidence) from error


def _save(guest: Guest, place: Path, scratch: Path, host: Host, deadline: Deadline) -> None:
    """Save a guest's memory, disks and record into the folder that becomes `place`; this stops the guest."""
    name, record = guest.name, guest.record
    # -S: site would take longer to import than all the rest.
    ssh.succeed(guest, "exec python3 -I -S -", deadline=deadline, input=paths.RENEWED.read_bytes())
    guest.ssh.disconnect(deadline)
    with step("saved as a ready state", who=name):
        host.save(guest.mark, scratch / MEMORY, deadline)
        disks = tuple(host_disks.keep(disk, scratch) for disk in record.spec.disks)
        shutil.copy(guest.console_log, scratch)
        saved = ReadyState(
            key=place.name,
            directory=str(place),
            name=name,
            image=record.image,
            image_id=record.image_id,
            kernel=str(Path(record.spec.boot.kernel or "").resolve()),
            disks=disks,
            memory_bytes=(scratch / MEMORY).stat().st_size,
            machine=state.this_machine(),
            hypervisor=host.hypervisor(),
            made=state.stamp(),
        )
        (scratch / RECORD).write_text(json.dumps(jsonable(saved), indent=1))


def read(place: Path) -> ReadyState:
    """The state in a folder. BadReadyState when it is not whole."""
    try:
        saved = ReadyState.from_json((place / RECORD).read_text())
        size = (place / MEMORY).stat().st_size
        if size != saved.memory_bytes:
            raise BadReadyState(f"{place / MEMORY} has {size} bytes, not {saved.memory_bytes}")
        disks = kept.disks(saved.disks, place)
    except (OSError, ValueError) as error:
        raise BadReadyState(f"{place}: not a ready state: {first_line(error)}") from error
    return saved.model_copy(update={"directory": str(place), "disks": disks})


def places() -> list[Path]:
    """The folders of all states."""
    return kept.places("ready")


def needed(key: str) -> bool:
    """Whether a guest's disks stand on this state."""
    return kept.needed(lambda record: record.ready_state == key)


def stale(place: Path, host: Host, deadline: Deadline) -> str:
    """Why no guest will begin from this state any more; '' when one may. A state of another machine or of a
    newer lab, and one whose image's newest build cannot be told, goes by its age alone."""
    try:
        if why := kept.unused(place / RECORD):
            return why
        saved = read(place)
    except (HostError, OSError) as error:
        # One whose record cannot be read may be a newer lab's: it goes by its age alone.
        return "" if isinstance(error.__cause__, ValueError) else "not whole"
    if saved.machine != state.this_machine():
        return ""
    if not Path(saved.kernel).exists():
        return "its kernel is gone"
    if why := kept.outdated(saved.image, saved.image_id, deadline):
        return why
    if not host.where.ssh and saved.hypervisor != host.hypervisor():
        return f"made by {saved.hypervisor}"
    return ""
