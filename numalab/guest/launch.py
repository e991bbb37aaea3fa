# SPDX-License-Identifier: GPL-2.0-only
"""Making a guest: claim its name, make its disks, boot it, reach it, verify its topology.

When `up` fails, nothing of the guest is left; after a kill -9, maintenance.gc finds and removes it. Not here:
using or ending a guest (guest), its modules, GRUB and sysctls (provision).
"""

from __future__ import annotations

import contextlib
import json
import platform
import random
import shutil
import socket
import uuid
from pathlib import Path

from numalab.core import state
from numalab.core.errors import BootHung, HostError, InputError, LabError, NameTaken
from numalab.core.log import note, step
from numalab.core.process import Deadline
from numalab.guest import guest as guests
from numalab.guest.guest import Guest
from numalab.host import accelerator, image, qemu_user
from numalab.host import disks as host_disks
from numalab.host.domain import CMDLINE, domain_xml
from numalab.host.hypervisor import Host
from numalab.host.image import Image
from numalab.host.remote import HERE, Where, part_prefix
from numalab.kernel import boot as kernel_boot
from numalab.model import topology
from numalab.model.guest import Boot, GuestRecord, GuestRequest, GuestSpec
from numalab.model.topology import Topology
from numalab.model.units import MIB, show_size
from numalab.model.values import jsonable

UP_SECONDS = 300.0
"""From nothing to verified. The slowest seen took 75 s: 16 vCPUs emulated on two cores, Debian's kernel."""
PORT_TRIES = 3
BOOT_TRIES = 3
CLAIM = """
if [ -e "$1/maker" ] && [ "$(cat "$1/maker")" = "$4" ]; then echo "$2" >"$1/lab"; exit; fi
mkdir -p -m 700 "${1%/*}" && fresh=$(mktemp -d "${1%/*}/$3XXXXXXXX") || exit
echo "$2" >"$fresh/lab" && mv -T "$fresh" "$1" || { rm -rf "$fresh"; exit 1; }
"""
"""sh -c, with a guest's folder, the lab's id, the prefix of its partial files, and our claim: creates the
folder with the lab's mark in it. Where both machines share the state directory, the folder exists already,
with that claim. mv replaces an empty folder only: earlier labs left one when they were killed between the two
steps."""


def up(request: GuestRequest, host: Host, deadline: Deadline) -> Guest:
    """Make, boot, reach and verify a guest. On any error, nothing of it is left.

    A boot that hangs under emulation is repeated on fresh disks: with a warning, and counted in the record.
    """
    for hung in range(BOOT_TRIES - 1):
        try:
            return _up(request, host, deadline, hung)
        except BootHung as error:
            console_log = state.folder("logs") / f"hung-{state.stamp()}-{request.name}-{hung + 1}.log"
            with contextlib.suppress(OSError):
                console_log.write_text(error.evidence)
            note(f"{error}; begun again (the end of its console: {console_log})")
    return _up(request, host, deadline, BOOT_TRIES - 1)


def _up(request: GuestRequest, host: Host, deadline: Deadline, hung: int) -> Guest:
    """One attempt, under the guest's lock."""
    with guests.hold(request.name, deadline):
        return _made(request, host, deadline, hung)


def _made(request: GuestRequest, host: Host, deadline: Deadline, hung: int) -> Guest:
    place = _claim(request.name, host.uri)
    guest = None
    try:
        base, boot = _chosen(request, deadline)
        with state.using(*folders(base, boot)):  # until gc can read the record that names them
            guest = _prepare(request, base, boot, host, place, deadline, hung)
        start(guest, request, deadline)
        with step("boot", who=request.name):
            guest.reach(deadline)
        with step("topology verified from inside", who=request.name):
            guest.verify(deadline)
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


def _claim(name: str, uri: str) -> Path:
    """Create the guest's folder, which claims its name. It appears together with the file `maker`."""
    place = state.folder("guests") / name
    fresh = state.scratch(place)
    fresh.mkdir(mode=0o700)
    maker = guests.Maker(process=str(state.this_process()), node=platform.node(), uri=uri)
    try:
        (fresh / "maker").write_text(json.dumps(jsonable(maker)))
        fresh.rename(place)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if place.exists():
            raise taken(name) from None
        raise HostError(f"{place}: {error.strerror}") from error
    return place


def taken(name: str) -> NameTaken:
    """The error for a name that is in use."""
    return NameTaken(
        f"a guest called {name} is there: lab.py down {name}, or choose another name", field="name"
    )


def _chosen(request: GuestRequest, deadline: Deadline) -> tuple[Image, Boot]:
    """The image and the kernel to boot. HostError when either is not built."""
    base = (
        image.pinned(request.image_name, request.image_id)
        if request.image_id
        else image.require(request.image_name, deadline)
    )
    boot = request.pinned or kernel_boot.resolve(request.kernel_name, base)
    if not boot.kernel:
        raise HostError(f"kernel {request.kernel_name}: nothing to boot")
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
            f"{where.ssh}:{place}: {done.stderr.strip()}: is it another lab's guest of this name? Choose another name",
            field="name",
        )


def _boot_there(boot: Boot, there: dict[Path, Path], cmdline: str) -> Boot:
    """The boot with the paths of its files on the hypervisor."""
    kernel, initrd = (str(there[Path(path)]) if path else None for path in (boot.kernel, boot.initrd))
    return boot.model_copy(update={"kernel": kernel, "initrd": initrd, "cmdline": cmdline})


def _prepare(
    request: GuestRequest, base: Image, boot: Boot, host: Host, place: Path, deadline: Deadline, hung: int
) -> Guest:
    """Everything before the start: accelerator, disks, record."""
    where = host.where
    request = request.model_copy(update={"shape": kernel_boot.fitted(request.kernel_name, request.shape)})
    probe = accelerator.choose(request.accel, Path(boot.kernel or ""), deadline, where)
    disk_file = base.file("disk.qcow2")
    files = [disk_file, *(Path(path) for path in (boot.kernel, boot.initrd) if path)]
    there = {path: path for path in files}
    if where.ssh:
        _claim_there(place, where, deadline)
        with step(f"files to {where.ssh}", who=request.name):
            there = where.push(files, deadline)
    host_disks.check_room(place, where)
    for disk in request.shape.disks:
        host_disks.check_size(disk, place, request.form, where)
    runs_as = qemu_user.let_in(host, files, deadline)
    words = [f"root={base.root} rw {CMDLINE} systemd.hostname={request.name}"]
    words += [f"numa=fake={request.shape.fake}"] if request.shape.fake else []
    words += [boot.cmdline] if boot.cmdline else []
    words += [request.append] if request.append else []
    disks = [host_disks.overlay(there[disk_file], place / "root.qcow2", deadline, where)]
    disks += [host_disks.create(disk, place, request.form, deadline, where) for disk in request.shape.disks]
    spec = GuestSpec(
        name=request.name,
        uuid=str(uuid.uuid4()),
        topology=request.shape,
        topology_name=request.topology_name,
        accel=probe.accel,
        boot=_boot_there(boot, there, " ".join(words)),
        disks=tuple(disks),
        ssh_port=request.ssh_port or free_port(where),
        directory=str(place),
        lab=state.identity(),
        owner=runs_as.owner,
        network=request.network,
    )
    record = GuestRecord(
        spec=spec,
        uri=host.uri,
        image=base.name,
        image_id=base.id,
        kernel_hash=kernel_boot.digest(boot),
        accel_reason=probe.reason,
        created=state.stamp(),
        ready=False,
        kept=request.kept,
        hung=hung,
    )
    if probe.accel.value == "tcg":
        note(f"emulated (TCG: {probe.reason}); counters are faithful, times are not", who=request.name)
    (place / "known_hosts").write_text(f"numalab {base.file('host_key.pub').read_text()}")
    (place / "known_hosts").chmod(0o600)
    guest = Guest(record, host)
    guest.save()
    return guest


def start(guest: Guest, request: GuestRequest, deadline: Deadline) -> None:
    """Create the domain. One at a time on the host, so that no two guests count the same free memory."""
    where = guest.host.where
    if request.ssh_port and not where.ssh and not _port_free(request.ssh_port):
        raise InputError(
            f"ssh port {request.ssh_port}: the port is taken; choose another or leave it out",
            field="ssh_port",
        )
    where.touch(guest.console_log, deadline)  # before libvirt's log daemon creates it as root
    qemu_user.hand_over(guest.record.spec, guest.host)
    with state.machine_lock("admission", deadline), step("start", who=request.name):
        admit(request.shape, guest.host, deadline)
        for tries in range(PORT_TRIES):
            xml = domain_xml(guest.record.spec)
            (guest.directory / "domain.xml").write_text(xml)
            try:
                guest.host.create(xml, deadline)
                return
            except HostError as error:
                # Another process may take the port between our check and QEMU's bind.
                if (
                    "host forwarding rule" not in error.evidence
                    or request.ssh_port
                    or tries == PORT_TRIES - 1
                ):
                    raise
            spec = guest.record.spec.model_copy(update={"ssh_port": free_port(where)})
            guest.update(spec=spec)


def admit(asked: Topology, host: Host, deadline: Deadline) -> None:
    """HostError when the host lacks memory for this topology; names the largest of its shape that fits."""
    free = host.free_memory(deadline)
    if asked.memory > free:
        fits = topology.largest(asked, free)
        most = (
            f"{fits.memory // MIB}M is the largest of this shape that fits"
            if fits
            else "not even the smallest of this shape fits"
        )
        raise HostError(
            f"{show_size(asked.memory)} of memory asked, {free // MIB}MiB free on the host: {most}",
            field="memory" if fits else "",
        )


def free_port(where: Where = HERE) -> int:
    """A loopback port that is free now; on another machine a random one: QEMU refuses it if it is taken."""
    if where.ssh:
        return random.randrange(20000, 32768)  # below the kernel's ephemeral ports
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
