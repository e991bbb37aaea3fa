# SPDX-License-Identifier: GPL-2.0-only
"""What this host can do, and for each lack its cost and the command that mends it. Changes nothing."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from numalab.core import packages, state
from numalab.core.errors import HostError, LabError
from numalab.core.process import Deadline, need, run
from numalab.guest import ready
from numalab.host import accelerator, disks, image, machine, packer, qemu_user
from numalab.host.ansible import ansible
from numalab.host.hypervisor import connect
from numalab.host.remote import HERE
from numalab.model import order
from numalab.model.units import GIB, MIB, TIB
from numalab.model.values import Accel

LEAST_MEMORY = 2 * GIB
LEAST_DISK = 8 * GIB
"""An image's build holds the base tree, its raw disk and its qcow2 at once; 5 GiB were observed."""


@dataclass(frozen=True)
class Fact:
    """One fact about the host. A lack of a `needed` one makes doctor fail; others cost something."""

    name: str
    value: str
    good: bool = True
    cost: str = ""
    mend: str = ""
    needed: bool = False


PROGRAMS = (
    ("qemu", "qemu-system-x86_64", ["--version"], "qemu-system-x86", "no guest starts"),
    ("qemu-img", "qemu-img", ["--version"], "qemu-utils", "no disks can be made"),
    ("mmdebstrap", "mmdebstrap", ["--version"], "mmdebstrap", "images need --base"),
    ("ssh", "ssh", ["-V"], "openssh-client", "no guest can be reached"),
    ("busybox", "busybox", ["true"], "busybox-static", "the accelerator cannot be probed"),
)


def examine(accel: str, uri: str | None, deadline: Deadline) -> list[Fact]:
    """All facts about this host, in the order in which to fix them."""
    return [
        *_programs(deadline),
        *_ansible(deadline),
        *_libvirt(uri, deadline),
        *_disk(),
        *_accel(accel, deadline),
    ]


def _programs(deadline: Deadline) -> Iterator[Fact]:
    for name, program, words, package, cost in PROGRAMS:
        try:
            result = run([need(program, package), *words], deadline=deadline, check=False)
            lines = (result.stdout + result.stderr).strip().splitlines()
            yield Fact(name, lines[0].strip() if lines else "there")
        except HostError:
            yield Fact(name, "not installed", False, cost, packages.mend(package), needed=True)
    yield _packer(deadline)


def _packer(deadline: Deadline) -> Fact:
    """Which Packer builds images; it is no lack that there is none, since the lab can do without."""
    program = packer.program()
    if program:
        version = run([program, "version"], deadline=deadline, check=False).stdout.strip().splitlines()
        return Fact("packer", f"{version[0] if version else 'there'} at {program}")
    if packer.fetchable():
        return Fact("packer", f"not installed: image build fetches that of Debian {packer.SUITE}")
    return Fact("packer", "none to be had: image build boots the base itself")


def _ansible(deadline: Deadline) -> Iterator[Fact]:
    try:
        version = run([ansible("ansible-playbook"), "--version"], deadline=deadline).stdout.splitlines()[0]
        yield Fact("ansible", version)
    except LabError as error:
        yield Fact("ansible", str(error), False, "no image can be provisioned", "make setup", needed=True)


def _libvirt(uri: str | None, deadline: Deadline) -> Iterator[Fact]:
    try:
        host = connect(uri, deadline)
    except LabError as error:
        mend = (
            "start libvirtd (systemctl start libvirtd; without systemd, lab.py starts it as root), or"
            " --connect URI"
        )
        yield Fact("libvirt", str(error), False, "no guest starts", mend, needed=True)
        return
    yield Fact("libvirt", f"{host.version()} at {host.uri}")
    yield from _other_qemu(host.capabilities(deadline).emulator) if not host.where.ssh else ()
    user = qemu_user.choose(host, deadline)
    yield Fact(
        "QEMU user",
        f"{user.name}: {user.reason}",
        not user.avoidable,
        "a guest that breaks out of QEMU is root here",
        "chmod 711 it if it is the lab's, else set LAB_STATE to another folder: install -d -m 711"
        " /var/lib/numalab",
    )
    free = host.free_memory(deadline)
    yield Fact(
        "memory",
        f"{free // MIB}MiB free for guests",
        free >= LEAST_MEMORY,
        "only scaled-down topologies fit",
        "end other programs, or up --memory",
    )


def _other_qemu(emulator: str) -> Iterator[Fact]:
    """A QEMU in PATH that is not the one that libvirt starts; nothing where they are one."""
    in_path = shutil.which(accelerator.QEMU[0])
    if in_path and Path(in_path).resolve() != Path(emulator).resolve():
        yield Fact(
            "QEMU in PATH",
            f"{in_path}, but libvirt starts {emulator}",
            False,
            "what is found out about KVM and the virtual clock is not about the QEMU that guests get",
            f"put {Path(emulator).parent} first in PATH",
        )


def _disk() -> Iterator[Fact]:
    place = state.directory()
    free = shutil.disk_usage(place).free
    yield Fact(
        "state",
        f"{place}: {free // GIB}GiB free",
        free >= LEAST_DISK,
        f"an image's build needs {LEAST_DISK // GIB}GiB",
        "free some, or set LAB_STATE to another disk",
    )
    if saved := ready.places():
        used = 0
        with contextlib.suppress(FileNotFoundError):  # a gc that runs meanwhile
            used = sum(file.stat().st_blocks * 512 for one in saved for file in one.iterdir())
        yield Fact("ready states", f"{len(saved)}, {used // MIB}MiB: for up --ready; gc removes the old ones")
    largest = disks.largest_file(place)
    raw = largest >= 500 * TIB
    yield Fact(
        "largest file",
        f"{largest / TIB:.0f}TiB" + ("" if raw else "; 500 TB disks are qcow2"),
        raw,
        "500 TB disks are not raw: mkfs must not discard (-K), and QEMU keeps tables",
        "put LAB_STATE on XFS or btrfs, or (root) up --storage pool",
    )
    direct = disks.direct_io(place)
    yield Fact(
        "O_DIRECT",
        "yes: cache=none" if direct else "no: cache=writeback",
        direct,
        "guests' disks go through the host's page cache",
        "put LAB_STATE on ext4, XFS or btrfs",
    )


def _accel(accel: str, deadline: Deadline) -> Iterator[Fact]:
    try:
        guest_image = image.existing("debian12", deadline)
    except LabError as error:
        yield Fact("image", str(error), False, "no guest starts", "what it names")
        yield Fact("accelerator", "not probed: that takes the image's kernel")
        return
    if guest_image is None:
        yield Fact("image", "debian12 is not built", False, "no guest starts", "lab.py image build debian12")
        yield Fact("accelerator", "not probed: that takes the image's kernel")
        return
    yield Fact("image", f"{guest_image.name} {guest_image.id}")
    try:
        probe = accelerator.choose(accel, guest_image.file("vmlinuz"), deadline)
        yield Fact(
            "accelerator",
            f"{probe.accel}: {probe.reason}",
            probe.accel == "kvm" or accel == "tcg",
            "emulation: times mean nothing, and everything takes longer",
            f"a host with working KVM; after a change to this one: rm {state.directory()}/cache/accel.json",
        )
    except LabError as error:
        yield Fact("accelerator", str(error), False, "no guest starts as asked", "--accel auto", needed=True)
        return
    if probe.accel is Accel.TCG:
        yield _clock(guest_image, deadline)
    else:
        yield from _order(machine.read_facts(HERE, deadline))


def _order(facts: Mapping[str, str]) -> Iterator[Fact]:
    """What spoils the times of guests under KVM."""
    size = f"{facts.get('nodes', '?')} nodes, {facts.get('cores', '?')} cores"
    wrong = order.spoilers(facts)
    yield Fact(
        "times",
        f"{size}; " + ("; ".join(wrong) if wrong else "nothing spoils them"),
        not wrong,
        "times scatter, and verdicts on times say so",
        "see each",
    )


def _clock(guest_image: image.Image, deadline: Deadline) -> Fact:
    """Whether emulated guests can have a virtual clock. They start without one too."""
    try:
        probe = accelerator.virtual_clock(guest_image.file("vmlinuz"), deadline)
        works, reason = probe.works, probe.reason
    except LabError as error:
        works, reason = False, str(error)
    return Fact(
        "virtual clock",
        reason,
        works,
        "the host's load changes what a guest counts",
        "a newer QEMU (on Debian 12: make setup QEMU=backports); if the host was only busy, "
        f"rm {state.directory()}/cache/clock.json",
    )
