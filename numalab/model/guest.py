# SPDX-License-Identifier: GPL-2.0-only
"""A guest as values: what is asked for, what its domain is made of, and the record that is kept of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from numalab.model.topology import Bus, Topology
from numalab.model.values import Accel, Name, Stored, Value

MKFS_XFS = "LAB_MKFS_XFS"
"""Set for every command in a guest whose era has `mkfs_xfs`; a workload writes ${LAB_MKFS_XFS:-its own
options}."""


class DiskForm(StrEnum):
    """How a data disk is kept; auto takes raw where the file system can hold one, else qcow2."""

    AUTO = "auto"
    RAW = "raw"
    QCOW2 = "qcow2"
    POOL = "pool"


class DiskFile(Value):
    """A disk's file on the host, as QEMU is to open it."""

    path: str
    format: Annotated[str, Field(pattern="^(raw|qcow2)$")]
    serial: str
    direct: bool
    """cache=none: the host's file system supports O_DIRECT."""
    bus: Bus = Bus.VIRTIO
    mibs_per_second: int | None = None


class BootWay(StrEnum):
    """Who starts the kernel: QEMU, from the host's files, or the guest's own GRUB."""

    DIRECT = "direct"
    GRUB = "grub"


class Boot(Value):
    """What the guest boots: a kernel straight from the host's files, or (kernel None) its own GRUB."""

    name: str
    kernel: str | None = None
    initrd: str | None = None
    cmdline: str = ""
    release: str = ""
    """What uname -r must say; '' when nobody knows."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables for every command in the guest: what a workload must know of the kernel's era."""


class GuestSpec(Value):
    """Everything that a domain's XML is made of."""

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
    """Whose guest this is: state.identity() of the lab that made it; another lab's gc leaves it alone."""
    network: bool = False
    """Whether the guest reaches the host's loopback, its LAN and beyond; without it there is the forwarded
    SSH port only."""
    owner: tuple[int, int] | None = None
    """uid and gid to run QEMU as under the system instance of libvirt; None under a session."""


class GuestRequest(Value):
    """What a person asks of `up`."""

    name: Name
    topology_name: str
    shape: Topology
    kernel_name: str = "debian"
    boot: BootWay = BootWay.DIRECT
    image_name: str = "debian12"
    image_id: str = ""
    """A certain build of the image; '' takes the newest of today's inputs."""
    append: str = ""
    accel: str = "auto"
    form: DiskForm = DiskForm.AUTO
    ssh_port: int | None = None
    network: bool = False
    """See GuestSpec."""
    kept: bool = False
    """See GuestRecord."""
    pinned: Boot | None = None
    """A certain build of the kernel; None takes that of today's recipe."""


class GuestRecord(Stored):
    """guests/NAME/guest.json: enough to reach the guest from another process, and to clean up after one. A
    run keeps its guest's."""

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
    """Whether it stays up after the process that made it, for a person; else gc ends it when that process is
    gone."""
    hung: int = 0
    """How many boots hung under emulation before this one."""

    @classmethod
    def upgraded(cls, data: dict[str, Any], number: int) -> dict[str, Any]:
        """Format 1 named its maker, which now stands in a file of its own."""
        return {key: value for key, value in data.items() if key not in ("maker", "maker_started")}
