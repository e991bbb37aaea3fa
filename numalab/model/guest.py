# SPDX-License-Identifier: GPL-2.0-only
"""A guest as values: what its domain is made of, and its record.

Not here: the request for one (guest.launch), reaching it (guest.guest), domain XML (host.domain).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from numalab.model.binding import Binding
from numalab.model.topology import Bus, Topology
from numalab.model.values import Accel, Clock, Name, Seed, Stored, Value, accel_label, caveat

MKFS_XFS = "LAB_MKFS_XFS"
"""Environment variable of every command in a guest whose era has `mkfs_xfs`. A workload writes
${LAB_MKFS_XFS:-its own options}."""


class DiskForm(StrEnum):
    """The file format of a data disk. auto is raw where the file system can hold such a file, else qcow2."""

    AUTO = "auto"
    RAW = "raw"
    QCOW2 = "qcow2"
    POOL = "pool"


class DiskFile(Value):
    """A disk's file on the host, and how QEMU opens it."""

    path: str
    format: Annotated[str, Field(pattern="^(raw|qcow2)$")]
    serial: str
    direct: bool
    """cache=none: the host's file system supports O_DIRECT."""
    bus: Bus = Bus.VIRTIO
    mibs_per_second: int | None = None
    speed_clock: Clock = Clock.HOST
    """The clock by which its speed is kept: QEMU's throttling knows the host's alone (guest.slow_disks)."""


class BootWay(StrEnum):
    """What starts the kernel: QEMU, from files of the host, or the guest's own GRUB."""

    DIRECT = "direct"
    GRUB = "grub"


class Init(StrEnum):
    """What runs as the guest's first process: the lab's own, which starts sshd and no more, or systemd."""

    LAB = "lab"
    SYSTEMD = "systemd"


class Boot(Value):
    """What the guest boots: a kernel from files of the host, or (kernel None) whatever its GRUB starts."""

    name: str
    kernel: str | None = None
    initrd: str | None = None
    cmdline: str = ""
    release: str = ""
    """The expected uname -r; '' when it is not known."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment of every command in the guest: what a workload must know of the kernel's era."""


class ReadyState(Stored):
    """ready/KEY/state.json: a booted guest as it was saved, from which others are restored."""

    format: int = 1
    key: str
    """The checksum of everything that the saved guest was made from."""
    directory: str
    """Its folder, which holds `memory` (what libvirt saved) and the disks."""
    name: str
    """The saved guest's name, which is on the kernel command line of every guest from this state."""
    image: str
    image_id: str
    kernel: str
    """The kernel's file."""
    disks: tuple[DiskFile, ...]
    """The disks at the save. They never change again: guests write to overlays."""
    memory_bytes: int
    machine: str
    """The machine that made it (state.this_machine()), and its hypervisor."""
    hypervisor: str
    made: str


class PreparedDisks(Stored):
    """disks/KEY/disks.json: the data disks of a guest that did a workload's first phases, for others to begin
    on."""

    format: int = 1
    key: str
    """The checksum of everything that decides what is on them."""
    directory: str
    workload: str
    phases: tuple[str, ...]
    """The names of the phases that are done on them."""
    kernel: str
    """The name and the release of the kernel that did them."""
    release: str
    image: str
    image_id: str
    disks: tuple[DiskFile, ...]
    """They never change again: guests write to overlays."""
    seconds: float
    """How long the phases took, by the host's clock."""
    made: str


class Emulator(Value):
    """A program that stands for QEMU."""

    path: str
    confined_by: tuple[str, ...] = ()
    """What confines QEMU by a profile on that host. Its profiles do not know this program: it has none."""


class GuestSpec(Value):
    """Everything that a domain's XML is made from."""

    name: Name
    uuid: str
    topology: Topology
    topology_name: str
    accel: Accel
    boot: Boot
    disks: tuple[DiskFile, ...]
    ssh_port: Annotated[int, Field(ge=1, le=65535)]
    directory: str
    """The guest's folder on the host: overlays, console log, domain XML."""
    lab: str = ""
    """The lab that made the guest (state.identity()); gc of another lab leaves it alone."""
    network: bool = False
    """Whether the guest reaches the host's loopback, its LAN and beyond; otherwise only SSH is forwarded."""
    clock: Clock = Clock.HOST
    icount_shift: Annotated[int, Field(ge=0, le=10)] = 3
    """On the virtual clock an instruction takes 2**icount_shift ns (QEMU's -icount)."""
    seed: Seed | None = None
    """What this boot differs by from others of its experiment: QEMU's -seed under TCG, and how long each
    measured phase is put off (runner). None: whatever the host's timing makes of it."""
    savable: bool = False
    """Whether its state can be saved or was: under KVM its CPU then lacks what cannot be (invtsc)."""
    binding: Binding | None = None
    """The host's nodes and CPUs that the guest has; None: wherever the host's kernel puts it."""
    huge_page: int | None = None
    """Bytes of the host's huge pages that its memory is made of; None: ordinary memory."""
    emulator: Emulator | None = None
    """The program that is started as QEMU; None: the one that libvirt takes."""
    instructions: str = ""
    """The plugin with which QEMU counts instructions in measured phases (host.instructions); '' without."""
    owner: tuple[int, int] | None = None
    """uid and gid that QEMU runs as under the system instance of libvirt; None under a session."""

    @property
    def runs_on(self) -> str:
        """Accelerator and clock, as reports name them."""
        return accel_label(self.accel, self.clock)

    @property
    def instruction_seconds(self) -> float:
        """What an instruction takes on the virtual clock."""
        return (1 << self.icount_shift) * 1e-9

    @property
    def caveat(self) -> str:
        """What a reader of its measurements must know; '' under KVM."""
        return caveat(self.accel, self.clock)


class GuestRecord(Stored):
    """guests/NAME/guest.json: enough to reach or remove the guest from another process. Runs keep it."""

    format: int = 2
    spec: GuestSpec
    uri: str
    image: str
    image_id: str
    kernel_hash: str
    accel_reason: str
    created: str
    ready: bool
    kept: bool = True
    """Whether the guest outlives the process that made it. If not, gc ends it once that process is gone."""
    hung: int = 0
    """How many boots hung under emulation, or broke QEMU, before this one."""
    ready_state: str = ""
    """The key of the ready state that the guest began from and that its disks stand on; '' for a fresh
    boot."""
    prepared: PreparedDisks | None = None
    """The disks that its data disks stand on; None for disks of its own."""

    @classmethod
    def upgraded(cls, data: dict[str, Any], number: int) -> dict[str, Any]:
        """Format 1 held the guest's maker, which now has a file of its own."""
        return {key: value for key, value in data.items() if key not in ("maker", "maker_started")}
