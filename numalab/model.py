# SPDX-License-Identifier: GPL-2.0-only
"""The values that everything else is made of: frozen, keyword-only, units in names or types.

Sizes are bytes (int) once parsed; in files and arguments they carry a binary unit (512MiB, 500T). The
rules that make a value possible at all stand here; where it came from (a file, a line) is `catalog`'s.
"""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, model_validator

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB, "P": 1 << 50}
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
MAX_VCPUS = 255
"""xAPIC ids end here; more needs an interrupt-remapping IOMMU that the lab does not give its guests."""
MAX_NODES = 64
"""CONFIG_NODES_SHIFT of kernels/config/base.config; a kernel leaves out nodes beyond its own limit, QEMU ends at 128."""
LEAST_NODE = 128 * MIB
"""The least memory of a node that has any: an x86 memory block, and room for the kernel's own things."""
FAKE_STEP = 32 * MIB
"""numa=fake cuts nodes in this step (FAKE_NODE_MIN_SIZE in arch/x86/mm/numa_emulation.c)."""
MAX_HMAT_ENTRY = 65534
"""ACPI 6.5, 5.2.27.4: 16 bits an entry, of which 0xFFFF says "not reachable"."""
ROOT_DISK = "root"
"""Serial and file name of the disk that a guest boots from (storage.overlay)."""
LOCAL_DISTANCE = 10
"""ACPI 6.5, 5.2.17: the SLIT's diagonal; every other entry is larger, 255 says "not reachable"."""


def parse_size(text: object) -> int:
    """'512MiB', '4G', '500T' -> bytes. Units are binary, as in truncate(1) and xfs_io(8)."""
    if isinstance(text, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGTP])(?:iB)?|B)", text.strip())
        if match:
            return int(Decimal(match[1]) * _UNITS[match[2] or ""])
    raise ValueError(f"{text!r} is not a size: write a number and a binary unit, such as 512MiB, 4G or 500T")


def show_size(size: int) -> str:
    """Bytes -> the shortest exact text: 3584MiB, 500TiB."""
    unit, scale = next((unit, scale) for unit, scale in reversed(_UNITS.items()) if scale == 1 or (size and size % scale == 0))
    return f"{size // scale}{unit}{'iB' if unit else 'B'}"


def parse_cpus(text: object) -> tuple[int, ...]:
    """'0-3,8' -> (0, 1, 2, 3, 8): the kernel's cpulist format; '' is no CPU."""
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    if not isinstance(text, str) or not re.fullmatch(r"(\d+(-\d+)?(,\d+(-\d+)?)*)?", text):
        raise ValueError(f"{text!r} is not a CPU list such as 0-3,8")
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if int(last or first) < int(first) or int(last or first) > 4096:
            raise ValueError(f"{part!r} is not a range of CPUs")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(sorted(set(cpus)))


def show_cpus(cpus: tuple[int, ...]) -> str:
    """(0, 1, 2, 3, 8) -> '0-3,8'."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def check_name(text: str) -> str:
    """The one validator of names that reach a path, XML or a command line; returns the name."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name: 1 to 40 of a-z 0-9 . _ - and first a letter or digit")
    return text


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(show_size, when_used="json")]
Cpus = Annotated[tuple[int, ...], BeforeValidator(parse_cpus), PlainSerializer(show_cpus, when_used="json")]
Name = Annotated[str, BeforeValidator(lambda text: check_name(str(text)))]


def _printable(text: str) -> str:
    """A line that may go into XML, a table or a terminal."""
    if not text.isprintable():
        raise ValueError(f"{text!r} has characters that cannot be printed on one line")
    return text


Line = Annotated[str, AfterValidator(_printable)]


class Value(BaseModel):
    """Frozen; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Stored(Value):
    """A value that outlives its process, as JSON, with the number of its format.

    Another checkout may have written it. An earlier format is read, if need be by `upgraded`; a later one is
    refused, and whoever finds such a file leaves it alone. A class whose format has changed gives `format`
    the new number as its default.
    """

    format: int = 1

    @model_validator(mode="before")
    @classmethod
    def _known_format(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        number, newest = data.get("format", 1), cls.model_fields["format"].default
        if not isinstance(number, int) or number > newest:
            raise ValueError(f"format {number}: a newer numalab wrote it; this one reads formats up to {newest}")
        return {**(cls.upgraded(data, number) if number < newest else data), "format": newest}

    @classmethod
    def upgraded(cls, data: dict[str, Any], number: int) -> dict[str, Any]:
        """Data of format `number` as today's."""
        return data


class Accel(StrEnum):
    """What runs the guest's instructions."""

    KVM = "kvm"
    TCG = "tcg"


class SizeClass(StrEnum):
    """How large a workload is: for two emulated cores, or the seed's own."""

    QUICK = "quick"
    FULL = "full"


class Node(Value):
    """One NUMA node as the firmware tells of it (SRAT); latency and bandwidth go to the HMAT."""

    cpus: Cpus = ()
    memory: Size = 0
    latency_ns: int | None = Field(default=None, gt=0, le=MAX_HMAT_ENTRY)
    bandwidth_mibs: int | None = Field(default=None, gt=0)


class Bus(StrEnum):
    """How the guest sees a disk."""

    VIRTIO = "virtio"
    USB = "usb"


class Disk(Value):
    """A data disk; sparse. The guest finds it as /dev/disk/by-id/virtio-NAME, a USB stick as /dev/disk/by-id/usb-*_NAME-*."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9]{1,20}$")]  # 20: virtio-blk's serial
    size: Annotated[Size, Field(ge=MIB)]
    bus: Bus = Bus.VIRTIO
    mibs_per_second: Annotated[int, Field(ge=1)] | None = None
    """Bandwidth, reading and writing together; None is as fast as the host."""


class Topology(Value):
    """A machine: vCPUs, memory, nodes with distances or fake nodes, disks. Memory is in bytes.

    `nodes` empty is UMA. `fake` is the kernel's own numa=fake=N on a UMA machine. `distances[i][j]` is
    from node i to node j; absent, it is 10 on the diagonal and 20 elsewhere, as the kernel assumes.
    `machine` is QEMU's: where RAM splits below 4 GiB differs (topology.low_memory), hence the zones.
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
    """Whether numa=fake gives each CPU to one fake node (an era's kernels), not to all of them."""
    disks: Annotated[tuple[Disk, ...], Field(max_length=25)] = ()  # vdb to vdz

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for check in (self._check_cpus, self._check_memory, self._check_distances, self._check_rest):
            check()
        return self

    def _check_cpus(self) -> None:
        owner: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            for cpu in node.cpus:
                if cpu in owner:
                    raise ValueError(f"nodes: vCPU {cpu} is in node {owner[cpu]} and again in node {index}")
                if cpu >= self.vcpus:
                    raise ValueError(f"nodes: node {index} has vCPU {cpu}, but there are only {self.vcpus} (0-{self.vcpus - 1})")
                owner[cpu] = index
        missing = tuple(cpu for cpu in range(self.vcpus) if cpu not in owner)
        if self.nodes and missing:
            raise ValueError(f"nodes: vCPU {show_cpus(missing)} is in no node")
        if self.vcpus % self.sockets:
            raise ValueError(f"sockets: {self.vcpus} vCPUs do not divide into {self.sockets} sockets")

    def _check_memory(self) -> None:
        for index, node in enumerate(self.nodes):
            if node.memory % MIB:
                raise ValueError(f"nodes: node {index}'s memory is not a whole number of MiB")
            if 0 < node.memory < LEAST_NODE:
                raise ValueError(f"nodes: node {index} has {show_size(node.memory)}; a node with memory has {show_size(LEAST_NODE)} at least")
            if not node.memory and not node.cpus:
                raise ValueError(f"nodes: node {index} has neither CPUs nor memory")
            if node.cpus and index and not self.nodes[index - 1].cpus:
                # libvirt 9.0 looks for a vCPU's node from node 0 on, and takes the missing CPU mask of a node for one
                # (qemuProcessSetupPid); libvirtd dies by SIGSEGV, for all of its users.
                raise ValueError(f"nodes: node {index} has CPUs, but node {index - 1} before it has none: number the nodes "
                                 "without CPUs last (libvirt 9.0 crashes on others)")
        if self.memory % MIB:
            raise ValueError(f"memory: {show_size(self.memory)} is not a whole number of MiB")
        total = sum(node.memory for node in self.nodes)
        if self.nodes and total != self.memory:
            raise ValueError(f"memory: is {show_size(self.memory)}, but the nodes' add up to {show_size(total)}")

    def _check_distances(self) -> None:
        if not self.distances:
            return
        count = len(self.nodes)
        if len(self.distances) != count or any(len(row) != count for row in self.distances):
            raise ValueError(f"distances: must be a full table of {count} rows of {count} (QEMU refuses an asymmetric one with gaps)")
        for i, row in enumerate(self.distances):
            for j, distance in enumerate(row):
                if i == j and distance != LOCAL_DISTANCE:
                    raise ValueError(f"distances: node {i} to itself is {distance}; ACPI has it {LOCAL_DISTANCE}")
                if i != j and not LOCAL_DISTANCE < distance < 255:
                    raise ValueError(f"distances: node {i} to {j} is {distance}; remote ones are 11 to 254")

    def _check_rest(self) -> None:
        if self.fake and self.nodes:
            raise ValueError("fake: numa=fake splits a machine without nodes; drop `nodes` or `fake`")
        if self.fake and self.memory < self.fake * LEAST_NODE:
            raise ValueError(f"fake: {self.fake} nodes share {show_size(self.memory)}; each needs {show_size(LEAST_NODE)} at least")
        if self.fake and self.memory % (self.fake * FAKE_STEP):
            # A node that has a hole, as node 0 has below 1 MiB, gets a step more, for which the last one may then be missing:
            # 6.1 makes 6 nodes of 900 MiB with numa=fake=7.
            raise ValueError(f"fake: {self.fake} nodes share {show_size(self.memory)}; each needs a multiple of {show_size(FAKE_STEP)}")
        names = [disk.name for disk in self.disks]
        if doubles := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"disks: {sorted(doubles)[0]} is there twice")
        if ROOT_DISK in names:
            raise ValueError(f"disks: {ROOT_DISK} is the guest's own disk; choose another name")
        hmat = [(node.latency_ns is None, node.bandwidth_mibs is None) for node in self.nodes if node.memory]
        if len({flag for pair in hmat for flag in pair}) > 1:
            raise ValueError("nodes: latency_ns and bandwidth_mibs go on every node with memory, or on none")
        if rates := [node.bandwidth_mibs for node in self.nodes if node.bandwidth_mibs]:
            # The HMAT has 16 bits for each entry, and QEMU takes the largest power of two that divides all for its unit.
            unit = min(rate & -rate for rate in rates)
            if max(rates) // unit > MAX_HMAT_ENTRY:
                raise ValueError(f"nodes: bandwidth_mibs are up to {max(rates)} in steps of {unit}; "
                                 f"the HMAT holds {MAX_HMAT_ENTRY} steps: round them to multiples of a larger power of two")
        memoryless = [index for index, node in enumerate(self.nodes) if not node.memory]
        if memoryless and any(node.latency_ns or node.bandwidth_mibs for node in self.nodes):
            # With an HMAT libvirt makes a memory backend for each node, and QEMU refuses one of size 0.
            raise ValueError(f"nodes: node {memoryless[0]} has no memory, so no node can have latency_ns and bandwidth_mibs")


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


class Phase(Value):
    """One step of a workload: a shell command run in the guest between two snapshots of its counters."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    command: str
    limit_seconds: Annotated[float, Field(gt=0)]
    measured: bool = True
    """Whether its counters are a result; preparation is recorded too, but not shown as one."""


def first_line(error: OSError | ValueError) -> str:
    """One line of an error that may have many: of pydantic's, the first field that is wrong and why."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return ": ".join(filter(None, (".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, "))))
    return next(iter(str(error).splitlines()), type(error).__name__)


def jsonable(value: BaseModel) -> dict[str, Any]:
    """A value as plain JSON data: what goes to disk beside a run."""
    return value.model_dump(mode="json")
