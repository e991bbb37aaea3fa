# SPDX-License-Identifier: GPL-2.0-only
"""A machine as a person describes it, the rules that make it possible, and scaling it.

Not here: the file and line that it comes from (catalog), what a guest shows of it (verification).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, ValidationError, ValidationInfo, model_validator

from numalab.core.errors import InputError
from numalab.model.units import MIB, Cpus, Size, show_cpus, show_size
from numalab.model.values import STORED, Line, Value, first_line, jsonable

MAX_VCPUS = 255
"""The number of xAPIC ids. More vCPUs need an interrupt-remapping IOMMU, which lab guests do not have."""
MAX_NODES = 64
"""CONFIG_NODES_SHIFT in kernels/config/base.config: a kernel ignores further nodes. QEMU's limit is 128."""
LEAST_NODE = 128 * MIB
"""The least memory of a node that has memory: an x86 memory block, and room for the kernel's own data."""
FAKE_STEP = 32 * MIB
"""numa=fake cuts nodes in this step (FAKE_NODE_MIN_SIZE in arch/x86/mm/numa_emulation.c)."""
MAX_HMAT_ENTRY = 65534
"""ACPI 6.5, 5.2.27.4: an entry has 16 bits; 0xFFFF means "not reachable"."""
ROOT_DISK = "root"
"""Serial and file name of the disk that a guest boots from (host.disks.overlay)."""
LOCAL_DISTANCE = 10
"""ACPI 6.5, 5.2.17: the SLIT's diagonal. Every other entry is larger; 255 means "not reachable"."""


class Node(Value):
    """One NUMA node as the firmware describes it (SRAT); latency and bandwidth go to the HMAT."""

    cpus: Cpus = ()
    memory: Size = 0
    latency_ns: int | None = Field(default=None, gt=0, le=MAX_HMAT_ENTRY)
    bandwidth_mibs: int | None = Field(default=None, gt=0)


class Bus(StrEnum):
    """How the guest sees a disk."""

    VIRTIO = "virtio"
    USB = "usb"


class Disk(Value):
    """A sparse data disk: in the guest /dev/disk/by-id/virtio-NAME, or usb-*_NAME-* for a USB stick."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9]{1,20}$")]  # 20: virtio-blk's serial
    size: Annotated[Size, Field(ge=MIB)]
    bus: Bus = Bus.VIRTIO
    mibs_per_second: Annotated[int, Field(ge=1)] | None = None
    """Bandwidth; None does not limit it. Who holds the disk back: guest.slow_disks."""


class Topology(Value):
    """A machine: vCPUs, memory in bytes, nodes with distances or fake nodes, disks.

    `nodes` empty is UMA. `fake` is the kernel's own numa=fake=N on a UMA machine. `distances[i][j]` is from
    node i to node j; when absent it is 10 on the diagonal and 20 elsewhere, as the kernel assumes. `machine`
    is QEMU's machine type: it decides where RAM splits below 4 GiB (verification.low_memory), and so the
    zones.
    """

    description: Line
    source: Line = ""
    machine: Annotated[str, Field(pattern="^(q35|pc)$")] = "q35"
    vcpus: Annotated[int, Field(ge=1, le=MAX_VCPUS, strict=True)]
    sockets: Annotated[int, Field(ge=1, strict=True)] = 1
    memory: Annotated[Size, Field(ge=256 * MIB)]
    nodes: Annotated[tuple[Node, ...], Field(max_length=MAX_NODES)] = ()
    distances: tuple[tuple[Annotated[int, Field(strict=True)], ...], ...] = ()
    fake: Annotated[int, Field(ge=2, le=32, strict=True)] | None = None
    deals_cpus: bool = False
    """Whether numa=fake gives each CPU to one fake node only, as the kernels of some eras do."""
    disks: Annotated[tuple[Disk, ...], Field(max_length=25)] = ()  # vdb to vdz

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for check in (self._check_cpus, self._check_memory, self._check_distances, self._check_disks):
            check()
        return self

    @model_validator(mode="after")
    def _possible(self, info: ValidationInfo) -> Self:
        """What Linux, libvirt and QEMU take. A stored topology has had its guest: a rule that was added since
        does not make its runs unreadable, nor a guest that is up."""
        if info.context != STORED:
            for check in (self._limit_cpus, self._limit_memory, self._limit_distances, self._limit_hmat):
                check()
        return self

    def _check_cpus(self) -> None:
        owner: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            for cpu in node.cpus:
                if cpu in owner:
                    raise ValueError(f"nodes: vCPU {cpu} is in node {owner[cpu]} and again in node {index}")
                if cpu >= self.vcpus:
                    raise ValueError(
                        f"nodes: node {index} has vCPU {cpu}, but there are only {self.vcpus}"
                        f" (0-{self.vcpus - 1})"
                    )
                owner[cpu] = index
        missing = tuple(cpu for cpu in range(self.vcpus) if cpu not in owner)
        if self.nodes and missing:
            raise ValueError(f"nodes: vCPU {show_cpus(missing)} is in no node")
        if self.vcpus % self.sockets:
            raise ValueError(f"sockets: {self.vcpus} vCPUs do not divide into {self.sockets} sockets")

    def _check_memory(self) -> None:
        for index, node in enumerate(self.nodes):
            if not node.memory and not node.cpus:
                raise ValueError(f"nodes: node {index} has neither CPUs nor memory")
        total = sum(node.memory for node in self.nodes)
        if self.nodes and total != self.memory:
            raise ValueError(
                f"memory: is {show_size(self.memory)}, but the nodes' add up to {show_size(total)}"
            )
        if self.fake and self.nodes:
            raise ValueError("fake: numa=fake splits a machine without nodes; drop `nodes` or `fake`")

    def _check_distances(self) -> None:
        if not self.distances:
            return
        count = len(self.nodes)
        if len(self.distances) != count or any(len(row) != count for row in self.distances):
            raise ValueError(
                f"distances: must be a full table of {count} rows of {count} (QEMU refuses an asymmetric one"
                " with gaps)"
            )

    def _check_disks(self) -> None:
        names = [disk.name for disk in self.disks]
        if doubles := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"disks: {sorted(doubles)[0]} is there twice")
        if ROOT_DISK in names:
            raise ValueError(f"disks: {ROOT_DISK} is the guest's own disk; choose another name")

    def _limit_cpus(self) -> None:
        owner = {cpu: index for index, node in enumerate(self.nodes) for cpu in node.cpus}
        firsts = [min(node.cpus) for node in self.nodes if node.cpus]
        if firsts != sorted(firsts):
            # Linux numbers nodes in the order of the SRAT (acpi_map_pxm_to_node in drivers/acpi/numa/srat.c),
            # where CPUs come first, by number: the guest would show these nodes under other numbers.
            index = next(
                owner[cpu] for cpu, least in zip(firsts, sorted(firsts), strict=True) if cpu != least
            )
            raise ValueError(
                f"nodes: node {index} begins with vCPU {min(self.nodes[index].cpus)}, and a later node with"
                f" vCPU {min(first for first in firsts if owner[first] > index)}: Linux numbers nodes by"
                " their first vCPU: sort them so"
            )
        cores = self.vcpus // self.sockets
        if (ids := ((self.sockets - 1) << (cores - 1).bit_length()) + cores) > MAX_VCPUS:
            # Each socket takes a power of two of APIC ids (QEMU's include/hw/i386/topology.h), and TCG has no
            # x2APIC.
            raise ValueError(
                f"sockets: {self.sockets} sockets of {cores} vCPUs take APIC ids up to {ids - 1}; "
                f"{MAX_VCPUS - 1} is the largest that a guest has: choose fewer sockets"
            )

    def _limit_memory(self) -> None:
        for index, node in enumerate(self.nodes):
            if node.memory % MIB:
                raise ValueError(f"nodes: node {index}'s memory is not a whole number of MiB")
            if 0 < node.memory < LEAST_NODE:
                raise ValueError(
                    f"nodes: node {index} has {show_size(node.memory)}; a node with memory has"
                    f" {show_size(LEAST_NODE)} at least"
                )
            if node.cpus and index and not self.nodes[index - 1].cpus:
                # libvirt 9.0 searches a vCPU's node from node 0 on and reads the CPU mask that a node without
                # CPUs does not have (qemuProcessSetupPid): libvirtd dies by SIGSEGV, for all of its users.
                raise ValueError(
                    f"nodes: node {index} has CPUs, but node {index - 1} before it has none: number the nodes"
                    " without CPUs last (libvirt 9.0 crashes on others)"
                )
        if self.memory % MIB:
            raise ValueError(f"memory: {show_size(self.memory)} is not a whole number of MiB")
        if self.fake and self.memory < self.fake * LEAST_NODE:
            raise ValueError(
                f"fake: {self.fake} nodes share {show_size(self.memory)}; each needs {show_size(LEAST_NODE)}"
                " at least"
            )
        if self.fake and self.memory % (self.fake * FAKE_STEP):
            # A node with a hole, such as node 0 below 1 MiB, gets one step more, and the last node may then
            # be missing: 6.1 makes 6 nodes of 900 MiB with numa=fake=7.
            raise ValueError(
                f"fake: {self.fake} nodes share {show_size(self.memory)}; each needs a multiple of"
                f" {show_size(FAKE_STEP)}"
            )

    def _limit_distances(self) -> None:
        for i, row in enumerate(self.distances):
            for j, distance in enumerate(row):
                if i == j and distance != LOCAL_DISTANCE:
                    raise ValueError(
                        f"distances: node {i} to itself is {distance}; ACPI has it {LOCAL_DISTANCE}"
                    )
                if i != j and not LOCAL_DISTANCE < distance < 255:
                    raise ValueError(f"distances: node {i} to {j} is {distance}; remote ones are 11 to 254")

    def _limit_hmat(self) -> None:
        hmat = [(node.latency_ns is None, node.bandwidth_mibs is None) for node in self.nodes if node.memory]
        if len({flag for pair in hmat for flag in pair}) > 1:
            raise ValueError("nodes: latency_ns and bandwidth_mibs go on every node with memory, or on none")
        if rates := [node.bandwidth_mibs for node in self.nodes if node.bandwidth_mibs]:
            # An HMAT entry has 16 bits. QEMU's unit is the largest power of two that divides all bandwidths.
            unit = min(rate & -rate for rate in rates)
            if max(rates) // unit > MAX_HMAT_ENTRY:
                raise ValueError(
                    f"nodes: bandwidth_mibs are up to {max(rates)} in steps of {unit}; "
                    f"the HMAT holds {MAX_HMAT_ENTRY} steps: round them to multiples of a larger power of two"
                )
        memoryless = [index for index, node in enumerate(self.nodes) if not node.memory]
        if memoryless and any(node.latency_ns or node.bandwidth_mibs for node in self.nodes):
            # With an HMAT libvirt makes a memory backend for each node, and QEMU refuses one of size 0.
            raise ValueError(
                f"nodes: node {memoryless[0]} has no memory, so no node can have latency_ns and"
                " bandwidth_mibs"
            )


def scale(topology: Topology, *, memory: int | None = None, vcpus: int | None = None) -> Topology:
    """The same shape with other totals: each node keeps its share, to the MiB and the vCPU.

    Every node with CPUs keeps at least one, every node with memory at least LEAST_NODE. Raises InputError
    when that is not possible.
    """
    memory = topology.memory if memory is None else memory
    vcpus = topology.vcpus if vcpus is None else vcpus
    mem_shares = [node.memory for node in topology.nodes]
    cpu_shares = [len(node.cpus) for node in topology.nodes]
    if memory % MIB:
        raise InputError(f"memory: {memory} bytes is not a whole number of MiB", field="memory")
    if vcpus < sum(map(bool, cpu_shares)):
        raise InputError(
            f"vcpus {vcpus}: {sum(map(bool, cpu_shares))} nodes of this topology have CPUs, one each is the"
            " least",
            field="vcpus",
        )
    if memory < (least := LEAST_NODE * max(1, topology.fake or sum(map(bool, mem_shares)))):
        raise InputError(
            f"memory: this topology needs {least // MIB}MiB at least ({LEAST_NODE // MIB}MiB a node)",
            field="memory",
        )
    mems = [m * MIB for m in _apportion(memory // MIB, mem_shares, least=LEAST_NODE // MIB)]
    counts = _apportion(vcpus, cpu_shares, least=1)
    nodes, first = [], 0
    for node, mem, count in zip(topology.nodes, mems, counts, strict=True):
        # Scaled vCPUs are renumbered node by node; unscaled ones keep the file's numbers.
        cpus = node.cpus if vcpus == topology.vcpus else tuple(range(first, first + count))
        first += count
        nodes.append(jsonable(node) | {"cpus": show_cpus(cpus), "memory": show_size(mem)})
    sockets = topology.sockets
    while vcpus > 0 and vcpus % sockets:
        sockets -= 1
    try:
        return Topology.model_validate(
            jsonable(topology)
            | {
                "memory": show_size(memory),
                "vcpus": vcpus,
                "nodes": nodes,
                "sockets": sockets,
            }
        )
    except ValidationError as error:
        raise InputError(
            f"this topology cannot be scaled to {vcpus} vCPUs and {memory // MIB}MiB: {first_line(error)}"
        ) from error


def _apportion(total: int, shares: list[int], *, least: int) -> list[int]:
    """Split a whole number in proportion to shares (largest remainder). A share of 0 gets 0, any other at
    least `least`.

    `total` must be enough for that.
    """
    parts = [0] * len(shares)
    free = {i for i, share in enumerate(shares) if share}
    while low := {i for i in free if total * shares[i] < least * sum(shares[j] for j in free)}:
        for i in low:
            parts[i] = least
        total -= least * len(low)
        free -= low
    whole = sum(shares[i] for i in free)
    for i in free:
        parts[i] = total * shares[i] // whole
    left = total - sum(parts[i] for i in free)
    for i in sorted(free, key=lambda i: (-(total * shares[i] % whole), i))[:left]:
        parts[i] += 1
    return parts


def largest(topology: Topology, memory: int) -> Topology | None:
    """The topology scaled to the most that fits into `memory` bytes; None when not even the least fits."""
    step = topology.fake * FAKE_STEP if topology.fake else 256 * MIB
    size = memory // step * step
    try:
        return scale(topology, memory=min(size, topology.memory))
    except (InputError, ValueError):
        return None
