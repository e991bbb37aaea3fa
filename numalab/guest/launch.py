# SPDX-License-Identifier: GPL-2.0-only
"""Bringing a guest up: claim its name, choose what it boots, make its disks, start it, reach it, verify its
topology, give it what its kernel needs inside.

When `up` fails, nothing of the guest is left; after a kill -9, maintenance.gc finds and removes it. Not here:
the domain's start (start), using or ending a guest (guest), its modules, GRUB and sysctls (provision).
"""

from __future__ import annotations

import json
import platform
import secrets
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.core import state
from numalab.core.errors import (
    BadReadyState,
    BootHung,
    CommandFailed,
    DeadlinePassed,
    GuestError,
    HostError,
    InputError,
    LabError,
    NameTaken,
)
from numalab.core.log import note, step
from numalab.core.process import Deadline
from numalab.guest import guest as guests
from numalab.guest import provision, renewed, slow_disks
from numalab.guest.guest import Guest
from numalab.guest.start import BOOT_TRIES, keep_hang, start
from numalab.host import accelerator, domain, emulator, image, instructions, qemu_user
from numalab.host import disks as host_disks
from numalab.host import saved as saved_file
from numalab.host.domain import (
    CMDLINE,
    INIT_WORD,
    ROUTE_WORD,
    SEEDED_CMDLINE,
    VIRTUAL_CMDLINE,
    restored_xml,
)
from numalab.host.hypervisor import Host
from numalab.host.image import Image
from numalab.host.remote import Where, free_port, part_prefix
from numalab.kernel import boot as kernel_boot
from numalab.kernel.recipe import Kernel
from numalab.model import binding
from numalab.model.binding import Pin
from numalab.model.guest import (
    Boot,
    BootWay,
    DiskFile,
    DiskForm,
    GuestRecord,
    GuestSpec,
    Init,
    PreparedDisks,
    ReadyState,
)
from numalab.model.topology import Disk, Topology
from numalab.model.values import Clock, Name, Seed, Value, check_name, jsonable

RESTORED_SECONDS = 90.0
"""Limit for the first answers of a restored guest, whose sshd runs already."""
ENTROPY_BYTES = 64
"""Random bytes that a restored guest is given: more than the 32 of a key of the kernel's generator."""
CLAIM = """
if [ -e "$1/maker" ] && [ "$(cat "$1/maker")" = "$4" ]; then echo "$2" >"$1/lab"; exit; fi
mkdir -p -m 700 "${1%/*}" && fresh=$(mktemp -d "${1%/*}/$3XXXXXXXX") || exit
echo "$2" >"$fresh/lab" && mv -T "$fresh" "$1" || { rm -rf "$fresh"; exit 1; }
"""
"""sh -c, with a guest's folder, the lab's id, the prefix of its partial files, and our claim: creates the
folder with the lab's mark in it. Where both machines share the state directory, the folder exists already,
with that claim. mv replaces an empty folder only: earlier labs left one when they were killed between the two
steps."""


class GuestRequest(Value):
    """A request for one guest: what `up` takes."""

    name: Name
    topology_name: str
    shape: Topology
    kernel: Kernel
    boot: BootWay = BootWay.DIRECT
    init: Init = Init.LAB
    """Ignored with GRUB and for old kernels, whose random seed only systemd credits: it is systemd there."""
    image_name: str = "debian12"
    image_id: str = ""
    """The id of a particular build of the image; '' takes the newest one of the current inputs."""
    append: str = ""
    accel: str = "auto"
    clock: Clock | None = Clock.HOST
    """None: virtual where an emulated guest can have it, for guests that are measured."""
    probe: accelerator.Probe | None = None
    """The accelerator where an experiment has chosen it for all its boots; `accel` is then without effect."""
    seed: Seed | None = None
    """See GuestSpec."""
    form: DiskForm = DiskForm.AUTO
    ssh_port: int | None = None
    network: bool = False
    """See GuestSpec."""
    kept: bool = False
    """See GuestRecord."""
    pin: Pin = binding.OFF
    """Which nodes and CPUs of the host the guest has: auto (under KVM, where they suffice), a map, or off."""
    huge_page: Annotated[int, Field(gt=0)] | None = None
    """See GuestSpec."""
    profiled: bool = False
    """Whether QEMU is to count instructions in measured phases, where it can: on the virtual clock."""
    pinned: Boot | None = None
    """A particular build of the kernel; None takes the current recipe's."""
    savable: bool = False
    """See GuestSpec."""
    prepared: PreparedDisks | None = None
    """The disks that its data disks are to stand on; None makes empty ones."""
    saved: ReadyState | None = None
    """The ready state to begin from; None boots. guest.ready finds or makes it."""


def up(request: GuestRequest, host: Host, deadline: Deadline) -> Guest:
    """Make, boot, reach, verify and provision a guest. On any error, nothing of it is left.

    A boot that hangs under emulation, or breaks QEMU, is repeated on fresh disks: with a warning, and counted
    in the record.
    """
    # Before `hold`, which would wait for another lab.py that works on the guest.
    check_free(request.name)
    with guests.hold(request.name, deadline):
        if request.saved:
            return _up(request, host, deadline, 0)
        for hung in range(BOOT_TRIES - 1):
            try:
                return _up(request, host, deadline, hung)
            except BootHung as error:
                console_log = keep_hang(error, request.name, hung + 1)
                if (state.folder("guests") / request.name).exists():
                    raise  # it could not be ended, and its QEMU may still run
                note(f"{error}; begun again (the end of its console: {console_log})")
        return _up(request, host, deadline, BOOT_TRIES - 1)


def _up(request: GuestRequest, host: Host, deadline: Deadline, hung: int) -> Guest:
    """One attempt, under the guest's lock."""
    place = _claim(request.name, host.uri)
    guest = None
    try:
        base, boot = choose(request, deadline)
        with state.using(*folders(base, boot)):  # until gc can read the record that names them
            guest = _make(request, base, boot, host, place, deadline, hung)
        _begin(guest, request, deadline)
        with step("topology verified from inside", who=request.name):
            _verify(guest, request, deadline)
        if not request.saved:  # else the saved guest was given it
            provision.after_boot(guest, request.kernel, request.boot, deadline, ssh_port=request.ssh_port)
        # Last: gc leaves a ready guest alone, although who made it is gone.
        guest.record = guest.record.model_copy(update={"ready": True})
        guest.save()
        return guest
    except BaseException as error:
        if isinstance(error, LabError) and not error.evidence:
            error.evidence = guest.console_tail() if guest else ""
        try:
            if guest is not None:
                guest.down(Deadline.after(60))
            guests.remove(place, host, Deadline.after(60))
        except (LabError, OSError) as also:  # the first error matters more
            note(f"not all is cleaned up ({also}): lab.py gc", who=request.name)
        raise


def _begin(guest: Guest, request: GuestRequest, deadline: Deadline) -> None:
    """Start the guest's domain and wait until it answers: a boot, or what a ready state goes on from."""
    if request.saved is None:
        start(guest, deadline, ssh_port=request.ssh_port, pin=request.pin)
        with step("boot", who=request.name):
            guest.reach(deadline)
        return
    memory = Path(request.saved.directory) / "memory"
    shutil.copyfile(memory.with_name("console.log"), guest.console_log)  # its kernel printed that

    def restore(xml: str) -> None:
        try:
            saved_file.replace_xml(memory, restored_xml(saved_file.domain_xml(memory), xml))
            guest.host.restore(memory, deadline)
        except ValueError as error:
            raise BadReadyState(f"{memory}: its XML is not of this guest: {error}") from error
        except HostError as error:
            raise BadReadyState(str(error), evidence=error.evidence) from error

    start(guest, deadline, ssh_port=request.ssh_port, create=restore)
    with step("restored from a ready state", who=request.name), _fault_of_state(deadline) as soon:
        guest.ssh.connect(soon)


def _verify(guest: Guest, request: GuestRequest, deadline: Deadline) -> None:
    """Verify a guest that answers. One that begins from a ready state is given what is its own before."""
    if request.saved is None:
        guest.verify(deadline)
        return
    with _fault_of_state(deadline) as soon:
        guest.verify(soon, first=_renewal(guest))


@contextmanager
def _fault_of_state(deadline: Deadline) -> Iterator[Deadline]:
    """A limit for a guest that has just been restored, whose errors are BadReadyState."""
    try:
        yield deadline.within(RESTORED_SECONDS)
    except DeadlinePassed as error:
        deadline.check("reaching the restored guest")
        raise BadReadyState(f"no answer in {RESTORED_SECONDS:.0f} s", evidence=error.evidence) from error
    except (GuestError, CommandFailed) as error:
        raise BadReadyState(str(error), evidence=error.evidence) from error


def _renewal(guest: Guest) -> str:
    """The shell command that sets a restored guest's clock, and gives it a name, a machine-id and random
    numbers of its own.

    The clock is right to within the time that a command takes over SSH.
    """
    own = f"{guest.name} {uuid.UUID(guest.record.spec.uuid).hex} {secrets.token_hex(ENTROPY_BYTES)}"
    # Builtins of the shell, since each program that is started costs an emulated guest a tenth of a second.
    return (
        f"echo {time.time():.3f} {own} >{renewed.REQUEST} && read -r answer <{renewed.ANSWER} &&"
        f' {{ [ "$answer" = {renewed.DONE} ] || {{ echo "not renewed: $answer" >&2; false; }}; }}'
    )


def _claim(name: str, uri: str) -> Path:
    """Create the guest's folder, which claims its name. It appears together with the file `maker`."""
    place = state.folder("guests") / name
    fresh = state.scratch(place)
    fresh.mkdir(mode=0o700)
    maker = guests.Maker(process=str(state.this_process()), node=platform.node(), uri=uri)
    try:
        state.write(fresh / "maker", json.dumps(jsonable(maker)))
        fresh.rename(place)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if place.exists():
            raise taken(name) from None
        raise HostError(f"{place}: {error.strerror}") from error
    return place


def check_free(name: str) -> None:
    """InputError for what is no name, NameTaken for one that is in use."""
    try:
        check_name(name)
    except ValueError as error:
        raise InputError(str(error), field="name") from error
    if (state.folder("guests") / name).exists():
        raise taken(name)


def taken(name: str) -> NameTaken:
    """The error for a name that is in use."""
    return NameTaken(
        f"a guest called {name} is there: lab.py down {name}, or choose another name", field="name"
    )


def choose(request: GuestRequest, deadline: Deadline) -> tuple[Image, Boot]:
    """The image and the kernel to boot, as files of this machine. HostError when either is not built."""
    base = (
        image.pinned(request.image_name, request.image_id)
        if request.image_id
        else image.require(request.image_name, deadline)
    )
    boot = request.pinned or kernel_boot.resolve(request.kernel, base)
    if not boot.kernel:
        raise HostError(f"kernel {request.kernel.name}: nothing to boot")
    return base, boot


def folders(base: Image, *boots: Boot) -> set[Path]:
    """The folders of this lab that boots need: state.using keeps another lab.py from removing them."""
    places = {Path(base.directory), *(Path(boot.kernel).parent for boot in boots if boot.kernel)}
    return {place for place in places if place.is_relative_to(state.directory())}


def _claim_there(place: Path, where: Where, deadline: Deadline) -> None:
    """Create the guest's folder on the hypervisor, with this lab's mark: another lab may use the path."""
    claim = (place / "maker").read_text()
    done = where.run(
        ["sh", "-c", CLAIM, "sh", place, state.identity(), part_prefix(), claim],
        deadline=deadline,
        check=False,
    )
    if done.status:
        raise HostError(
            f"{where.ssh}:{place}: {done.stderr.strip()}: is it another lab's guest of this name? Choose"
            " another name",
            field="name",
        )


def _make(
    request: GuestRequest, base: Image, boot: Boot, host: Host, place: Path, deadline: Deadline, hung: int
) -> Guest:
    """Everything before the start: accelerator, files on the hypervisor, disks, record."""
    where = host.where
    shape = kernel_boot.fitted(request.kernel, request.shape)
    probe = request.probe or accelerator.choose(request.accel, Path(boot.kernel or ""), deadline, where)
    clock = accelerator.choose_clock(request.clock, probe.accel, Path(boot.kernel or ""), deadline, where)
    slow_disks.check(shape.disks, clock)
    program = emulator.program(host, shape, deadline)
    counter = instructions.plugin(host, deadline) if request.profiled and clock is Clock.VIRTUAL else ""
    paths = (boot.kernel, boot.initrd, program.path if program else None)
    files = [base.file("disk.qcow2"), *(Path(path) for path in paths if path)]
    there = _push(files, request.name, place, where, deadline)
    saved, prepared = request.saved, request.prepared
    host_disks.check_room(place, where)
    for disk in shape.disks:
        host_disks.check_size(disk, place, DiskForm.QCOW2 if prepared else request.form, where)
    # A ready state outlives links to its image, as in a state directory of tests.
    root = there[files[0]].resolve() if request.savable else there[files[0]]
    below = [Path(disk.path) for one in (saved, prepared) if one for disk in one.disks]
    plugins = [Path(counter)] if counter else []
    owner = qemu_user.let_in(host, [*files, *below, *plugins], deadline).owner
    spec = GuestSpec(
        name=request.name,
        uuid=str(uuid.uuid4()),
        topology=shape,
        topology_name=request.topology_name,
        accel=probe.accel,
        clock=clock,
        icount_shift=domain.ICOUNT_SHIFT,
        seed=request.seed,
        boot=compose_boot(request, saved.name if saved else request.name, shape, base, boot, there, clock),
        disks=slow_disks.timed(_make_disks(request, root, shape.disks, place, where, deadline), clock),
        ssh_port=request.ssh_port or free_port(where),
        directory=str(place),
        lab=state.identity(),
        emulator=program,
        instructions=counter,
        owner=owner,
        network=request.network,
        savable=request.savable,
        huge_page=request.huge_page,
    )
    record = GuestRecord(
        spec=spec,
        uri=host.uri,
        image=base.name,
        image_id=base.id,
        kernel_hash=kernel_boot.digest(request.kernel, boot),
        accel_reason=probe.reason,
        created=state.stamp(),
        ready=False,
        kept=request.kept,
        hung=hung,
        ready_state=saved.key if saved else "",
        prepared=prepared,
    )
    if request.probe is None:  # else whoever chose it has warned
        accelerator.warn(probe, clock, request.name)
    (place / "known_hosts").write_text(f"numalab {base.file('host_key.pub').read_text()}")
    (place / "known_hosts").chmod(0o600)
    guest = Guest(record, host)
    guest.save()
    return guest


def _push(files: list[Path], name: str, place: Path, where: Where, deadline: Deadline) -> dict[Path, Path]:
    """Each file's path on the hypervisor, where another machine gets its copies and the guest's folder."""
    if not where.ssh:
        return {path: path for path in files}
    _claim_there(place, where, deadline)
    with step(f"files to {where.ssh}", who=name):
        return where.push(files, deadline)


def _make_disks(
    request: GuestRequest, root: Path, disks: tuple[Disk, ...], place: Path, where: Where, deadline: Deadline
) -> tuple[DiskFile, ...]:
    """The overlay over the image's disk, and the data disks; or overlays over those that there are."""
    if request.saved:
        return _over(request.saved.disks, place, deadline)
    overlay = host_disks.overlay(root, place / "root.qcow2", deadline, where)
    if request.prepared:
        return (overlay, *_over(request.prepared.disks, place, deadline))
    return (overlay, *(host_disks.create(disk, place, request.form, deadline, where) for disk in disks))


def _over(disks: tuple[DiskFile, ...], place: Path, deadline: Deadline) -> tuple[DiskFile, ...]:
    """Overlays over the disks of a ready state, or over prepared ones."""
    return tuple(
        host_disks.overlay(
            Path(disk.path), place / f"{disk.serial}.qcow2", deadline, over=disk.format
        ).model_copy(update={"serial": disk.serial, "bus": disk.bus, "mibs_per_second": disk.mibs_per_second})
        for disk in disks
    )


def _init(request: GuestRequest, base: Image) -> Init:
    """What the guest will run as its first process."""
    era = request.kernel.era
    lab = base.has_init and request.boot is BootWay.DIRECT and not (era and era.random_seed)
    return request.init if lab else Init.SYSTEMD


def compose_boot(
    request: GuestRequest,
    name: str,
    shape: Topology,
    base: Image,
    boot: Boot,
    there: dict[Path, Path],
    clock: Clock,
) -> Boot:
    """The boot with its files' paths on the hypervisor and the whole command line, which has the guest's
    name or that of the guest whose saved state it begins from."""
    words = [f"root={base.root} rw {CMDLINE} {provision.HOSTNAME}{name}"]
    words += [VIRTUAL_CMDLINE] if clock is Clock.VIRTUAL else []
    words += [SEEDED_CMDLINE] if request.seed is not None else []
    words += [f"numa=fake={shape.fake}"] if shape.fake else []
    if _init(request, base) is Init.LAB:
        words += [INIT_WORD, *([ROUTE_WORD] if request.network else [])]
    words += [text for text in (boot.cmdline, request.append) if text]
    kernel, initrd = (str(there[Path(path)]) if path else None for path in (boot.kernel, boot.initrd))
    return boot.model_copy(update={"kernel": kernel, "initrd": initrd, "cmdline": " ".join(words)})
