# SPDX-License-Identifier: GPL-2.0-only
"""A guest before it is made: what its domain's XML is composed of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from numalab.model.topology import Bus, Topology
from numalab.model.values import Accel, Name, Value

MKFS_XFS = "LAB_MKFS_XFS"
"""Set for every command in a guest whose era has `mkfs_xfs`; a workload writes ${LAB_MKFS_XFS:-its own options}."""


class DiskFile(Value):
    """A disk's file on the host, as QEMU is to open it."""

    path: str
    format: Annotated[str, Field(pattern="^(raw|qcow2)$")]
    serial: str
    direct: bool
    """cache=none: the host's file system supports O_DIRECT."""
    bus: Bus = Bus.VIRTIO
    mibs_per_second: int | None = None


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
    """Whether the guest reaches the host's loopback, its LAN and beyond; without it there is the forwarded SSH port only."""
    owner: tuple[int, int] | None = None
    """uid and gid to run QEMU as under the system instance of libvirt; None under a session."""
