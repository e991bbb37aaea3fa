# SPDX-License-Identifier: GPL-2.0-only
"""Where a guest's memory and vCPUs are on its host. Pure: a topology and the host's nodes -> a binding.

Not here: reading the host's nodes (host.machine), the domain's XML (host.domain).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from numalab.model.topology import Topology
from numalab.model.units import KIB, show_cpus, show_size
from numalab.model.values import Value

AUTO, OFF = "auto", "off"
MAP = r"\d{1,3}=\d{1,3}(,\d{1,3}=\d{1,3})*"


@dataclass(frozen=True)
class HostNode:
    """One NUMA node of a host."""

    number: int
    memory: int
    """Bytes, free or reclaimable."""
    cores: tuple[tuple[int, ...], ...]
    """The CPUs of each core: several where SMT is on."""
    huge_pages: Mapping[int, int]
    """Size in bytes -> how many of that size are free."""


class Binding(Value):
    """Which parts of the host a guest has."""

    nodes: tuple[int, ...]
    """The host's node for each of the guest's; of a guest without nodes, for all of its memory."""
    vcpus: tuple[int, ...]
    """The host's CPU for each vCPU, each on a core of its own."""
    emulator: tuple[int, ...]
    """The host's CPUs for QEMU's other threads."""

    @property
    def shape(self) -> str:
        """Which of the guest's nodes share one of the host's: '0,1,0,1', whatever the host's numbers are."""
        order = list(dict.fromkeys(self.nodes))
        return ",".join(str(order.index(node)) for node in self.nodes)


def bind(
    topology: Topology, host: Sequence[HostNode], pin: str, taken: Collection[int], huge_page: int | None
) -> Binding:
    """Each guest node on a node of the host, by the map or (auto) each on another one; each vCPU on a core.

    `taken` are the host's CPUs to which other guests' vCPUs are pinned; their cores are left out. ValueError
    says why the guest does not fit.
    """
    parts = [(node.cpus, node.memory) for node in topology.nodes]
    parts = parts or [(tuple(range(topology.vcpus)), topology.memory)]
    if empty := [index for index, (_, memory) in enumerate(parts) if not memory]:
        # QEMU's machine type for such guests (host.domain) has no memory backends, which libvirt binds.
        raise ValueError(f"node {empty[0]} of the guest has no memory: libvirt cannot bind such a guest")
    free = {one.number: [core for core in one.cores if not set(core) & set(taken)] for one in host}
    room = {one.number: _room(one, huge_page) for one in host}
    wanted = _wanted(pin, len(parts), room)
    nodes, vcpus = list[int](), dict[int, int]()
    for index, (cpus, memory) in enumerate(parts):
        fits = [
            number
            for number in ([wanted[index]] if wanted else [one for one in room if one not in nodes])
            if len(free[number]) >= len(cpus) and room[number] >= memory
        ]
        if not fits:
            need = f"{len(cpus)} free cores and {show_size(memory)} of "
            need += "huge pages" if huge_page else "memory"
            raise ValueError(
                f"node {index} of the guest needs {need}: "
                + (
                    f"node {wanted[index]} of the host lacks them"
                    if wanted
                    else f"no {'other ' * bool(nodes)}node of the host has them"
                )
            )
        nodes.append(fits[0])
        room[fits[0]] -= memory
        cores, free[fits[0]] = free[fits[0]][: len(cpus)], free[fits[0]][len(cpus) :]
        vcpus |= {vcpu: core[0] for vcpu, core in zip(cpus, cores, strict=True)}
    return Binding(
        nodes=tuple(nodes),
        vcpus=tuple(vcpus[vcpu] for vcpu in range(topology.vcpus)),
        emulator=_emulator(host, nodes, free, set(vcpus.values())),
    )


def parse_pin(text: str) -> str:
    """The checked text of --pin. Raises ValueError."""
    if not re.fullmatch(f"{AUTO}|{OFF}|{MAP}", text):
        raise ValueError(f"{text!r} is none of auto, off, or a map such as 0=0,1=1 (guest node=host node)")
    return text


Pin = Annotated[str, AfterValidator(parse_pin)]
"""What --pin takes: auto, off, or a map GUEST_NODE=HOST_NODE,…"""


def _room(node: HostNode, huge_page: int | None) -> int:
    return huge_page * node.huge_pages.get(huge_page, 0) if huge_page else node.memory


def _wanted(pin: str, parts: int, room: Collection[int]) -> dict[int, int]:
    """The map of --pin; empty for auto. ValueError when it names other nodes than there are."""
    if pin == AUTO:
        return {}
    words = (pair.split("=") for pair in pin.split(","))
    pairs = [(int(guest), int(node)) for guest, node in words]
    if sorted(guest for guest, _ in pairs) != list(range(parts)):
        raise ValueError(f"the guest's nodes are 0 to {parts - 1}: name each of them once")
    if unknown := [node for _, node in pairs if node not in room]:
        raise ValueError(
            f"the host has no node {unknown[0]}: it has {show_cpus(tuple(sorted(room))) or 'none'}"
        )
    return dict(pairs)


def _emulator(
    host: Sequence[HostNode],
    nodes: Collection[int],
    free: Mapping[int, list[tuple[int, ...]]],
    used: set[int],
) -> tuple[int, ...]:
    """CPUs of the guest's host nodes for QEMU's own threads: those of free cores, or the siblings of vCPUs'
    cores, or else the vCPUs' own."""
    spare = {cpu for number in nodes for core in free[number] for cpu in core}
    siblings = {cpu for one in host for core in one.cores if set(core) & used for cpu in core} - used
    return tuple(sorted(spare or siblings or used))


def check_huge_pages(
    topology: Topology, host: Sequence[HostNode], huge_page: int, binding: Binding | None
) -> None:
    """ValueError when the host has too few free huge pages for a guest, or a node no multiple of one."""
    for index, memory in enumerate([node.memory for node in topology.nodes] or [topology.memory]):
        if memory % huge_page:
            raise ValueError(
                f"{show_size(memory)} of the guest's node {index} is no multiple of {show_size(huge_page)}"
            )
    if binding:
        return  # bind has looked at each node
    pages, free = topology.memory // huge_page, sum(one.huge_pages.get(huge_page, 0) for one in host)
    if pages > free:
        raise ValueError(
            f"{pages} pages of {show_size(huge_page)} wanted, {free} are free: echo {pages}"
            f" >/sys/kernel/mm/hugepages/hugepages-{huge_page // KIB}kB/nr_hugepages"
        )
