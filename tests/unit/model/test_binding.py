# SPDX-License-Identifier: GPL-2.0-only
"""Which nodes and CPUs of its host a guest is bound to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numalab.model import catalog, topology
from numalab.model.binding import AUTO, Binding, HostNode, bind, check_huge_pages, parse_pin
from numalab.model.topology import Node, Topology
from numalab.model.units import GIB, MIB

FOUR = topology.scale(catalog.topology("4socket"), memory=4 * GIB, vcpus=8)
UMA = topology.scale(catalog.topology("uma-4g"), vcpus=2)


def host(
    nodes: int = 4, cores: int = 4, *, threads: int = 2, memory: int = 8 * GIB, pages: int = 0
) -> list[HostNode]:
    """A host whose second threads are numbered after all cores, as Linux numbers them on x86."""
    every = nodes * cores
    return [
        HostNode(
            number=node,
            memory=memory,
            cores=tuple(
                tuple(node * cores + core + thread * every for thread in range(threads))
                for core in range(cores)
            ),
            huge_pages={2 * MIB: pages},
        )
        for node in range(nodes)
    ]


def test_each_node_has_one_of_the_hosts() -> None:
    assert bind(FOUR, host(), AUTO, (), None) == Binding(
        nodes=(0, 1, 2, 3),
        vcpus=(0, 1, 4, 5, 8, 9, 12, 13),
        emulator=binding_rest({2, 3, 6, 7, 10, 11, 14, 15}),
    )


def binding_rest(cores: set[int]) -> tuple[int, ...]:
    """CPUs of cores that no vCPU has: both threads."""
    return tuple(sorted(cores | {core + 16 for core in cores}))


def test_a_machine_without_nodes_is_on_one() -> None:
    bound = bind(UMA, host(), AUTO, (), None)
    assert (bound.nodes, bound.vcpus) == ((0,), (0, 1))


def test_siblings_are_left_to_qemu_where_no_core_is_left() -> None:
    assert bind(FOUR, host(cores=2), AUTO, (), None).emulator == tuple(range(8, 16))
    alone = bind(FOUR, host(cores=2, threads=1), AUTO, (), None)
    assert alone.emulator == tuple(sorted(alone.vcpus))


def test_other_guests_cores_are_left_alone() -> None:
    """A core of which another guest has one thread too."""
    assert bind(UMA, host(nodes=1), AUTO, {0, 5}, None).vcpus == (2, 3)
    assert bind(UMA, host(), AUTO, {0, 1, 2}, None).nodes == (1,)


def test_a_map_may_share_nodes() -> None:
    bound = bind(FOUR, host(nodes=2), "0=1,1=1,2=0,3=0", (), None)
    assert bound.nodes == (1, 1, 0, 0)
    assert bound.vcpus == (4, 5, 6, 7, 0, 1, 2, 3)
    assert bound.shape == "0,0,1,1"
    assert bind(FOUR, host(nodes=2), "0=0,1=0,2=1,3=1", (), None).shape == bound.shape


@pytest.mark.parametrize(
    ("pin", "machine", "line"),
    [
        (AUTO, host(nodes=3), "node 3 of the guest needs 2 free cores and 1GiB of memory: no other node"),
        (
            AUTO,
            host(cores=1),
            "node 0 of the guest needs 2 free cores and 1GiB of memory: no node of the host",
        ),
        (AUTO, host(memory=GIB - 1), "node 0 of the guest needs"),
        (AUTO, [], "no node of the host has them"),
        ("0=0,1=1,2=2", host(), "the guest's nodes are 0 to 3: name each of them once"),
        ("0=0,1=1,2=2,2=3", host(), "name each of them once"),
        ("0=0,1=1,2=2,3=9", host(), "the host has no node 9: it has 0-3"),
        (
            "0=0,1=0,2=0,3=1",
            host(),
            "node 2 of the guest needs 2 free cores and 1GiB of memory: node 0 of the host lacks",
        ),
    ],
)
def test_what_does_not_fit(pin: str, machine: list[HostNode], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        bind(FOUR, machine, pin, (), None)


def test_an_empty_node_cannot_be_bound() -> None:
    with pytest.raises(ValueError, match="node 1 of the guest has no memory"):
        bind(catalog.topology("memoryless"), host(cores=16), AUTO, (), None)


def test_huge_pages_count_instead_of_memory() -> None:
    assert bind(FOUR, host(memory=0, pages=512), AUTO, (), 2 * MIB).nodes == (0, 1, 2, 3)
    with pytest.raises(ValueError, match="1GiB of huge pages"):
        bind(FOUR, host(pages=511), AUTO, (), 2 * MIB)


def test_huge_pages_without_a_binding() -> None:
    check_huge_pages(FOUR, host(nodes=1, pages=2048), 2 * MIB, None)
    with pytest.raises(
        ValueError, match=r"2048 pages of 2MiB wanted, 2047 are free: echo 2048 >.*/hugepages-2048kB/"
    ):
        check_huge_pages(FOUR, host(nodes=1, pages=2047), 2 * MIB, None)
    odd = UMA.model_copy(update={"memory": 4 * GIB + MIB})
    with pytest.raises(ValueError, match="4097MiB of the guest's node 0 is no multiple of 2MiB"):
        check_huge_pages(odd, host(pages=9999), 2 * MIB, None)


@pytest.mark.parametrize("text", ["auto", "off", "0=0", "0=1,1=0"])
def test_a_pin(text: str) -> None:
    assert parse_pin(text) == text


@pytest.mark.parametrize("text", ["", "on", "0", "0=", "0=0,", "a=1", "0=0 1=1", "auto,off"])
def test_no_pin(text: str) -> None:
    with pytest.raises(ValueError, match="none of auto, off, or a map"):
        parse_pin(text)


@st.composite
def machines(draw: st.DrawFn) -> tuple[Topology, list[HostNode], set[int]]:
    """A guest, a host of unequal nodes, and CPUs that others have."""
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    nodes = tuple(
        Node.model_validate(
            {"cpus": f"{start}-{start + size - 1}" if size else "", "memory": f"{draw(st.integers(1, 4))}GiB"}
        )
        for start, size in zip(starts, sizes, strict=True)
    )
    total = sum(node.memory for node in nodes)
    guest = FOUR.model_copy(update={"vcpus": sum(sizes), "nodes": nodes, "memory": total, "distances": ()})
    cores = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    first = iter(range(100))
    machine = [
        HostNode(
            number=number,
            memory=draw(st.integers(1, 8)) * GIB,
            cores=tuple((cpu, cpu + 100) for cpu in (next(first) for _ in range(count))),
            huge_pages={},
        )
        for number, count in enumerate(cores)
    ]
    return guest, machine, draw(st.sets(st.integers(0, 30), max_size=6))


@given(machines())
def test_what_is_bound_is_there_and_free(given_machines: tuple[Topology, list[HostNode], set[int]]) -> None:
    guest, machine, taken = given_machines
    try:
        bound = bind(guest, machine, AUTO, taken, None)
    except ValueError:
        return
    core_of = {cpu: (one.number, core) for one in machine for core in one.cores for cpu in core}
    assert len(set(bound.nodes)) == len(guest.nodes), "each on another node"
    used = [core_of[cpu] for cpu in bound.vcpus]
    assert len(set(used)) == guest.vcpus, "each vCPU on a core of its own"
    assert not {cpu for _, core in used for cpu in core} & taken
    for node, number in zip(guest.nodes, bound.nodes, strict=True):
        assert node.memory <= machine[number].memory
        assert {core_of[bound.vcpus[vcpu]][0] for vcpu in node.cpus} <= {number}
    assert bound.emulator
