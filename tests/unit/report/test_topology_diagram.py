# SPDX-License-Identifier: GPL-2.0-only
"""Topologies drawn: all in topologies/, and shapes that no file has yet."""

from __future__ import annotations

from itertools import combinations

import pytest

from numalab.model import catalog
from numalab.model.topology import Topology
from numalab.report import topology_diagram
from numalab.report.topology_diagram import BOX, Drawing

MOST_WIDE = 366
"""CSS pixels between the margins on a telephone of 390."""


def ring(count: int) -> Topology:
    nodes = [{"cpus": str(node), "memory": "256MiB"} for node in range(count)]
    return Topology.model_validate(
        {"description": "a ring", "vcpus": count, "memory": f"{256 * count}MiB", "nodes": nodes}
    )


def overlap(found: Drawing) -> list[tuple[int, int]]:
    """Pairs of nodes whose boxes touch, or leave no room for the distance label between them."""
    room = 20 if found.lines else 1
    return [
        (a.node, b.node)
        for a, b in combinations(found.boxes, 2)
        if abs(a.x - b.x) < BOX[0] + room and abs(a.y - b.y) < BOX[1] + room
    ]


@pytest.mark.parametrize("name", catalog.names("topologies"))
def test_every_topology_has_its_picture(name: str) -> None:
    found = topology_diagram.draw(catalog.topology(name))
    assert found.boxes
    assert not overlap(found)
    assert len(found.distances) == len(found.nodes) == len(found.boxes)
    assert all(
        box.x >= 0 and box.x + BOX[0] <= found.width and box.y >= 0 and box.y + BOX[1] <= found.height
        for box in found.boxes
    )
    for box in found.boxes:
        assert f"Node {box.node}: {box.lines[0]}" in found.description


@pytest.mark.parametrize("count", range(1, 17))
def test_boxes_stay_apart(count: int) -> None:
    found = topology_diagram.draw(ring(count))
    assert not overlap(found)
    assert len(found.lines) == (count * (count - 1) // 2 if count <= topology_diagram.MOST_JOINED else 0)


def test_four_sockets() -> None:
    found = topology_diagram.draw(catalog.topology("4socket"))
    assert sorted(line.label for line in found.lines) == ["21"] * 4 + ["31"] * 2
    assert {line.label: line.rank for line in found.lines} == {"21": 0, "31": 1}
    assert found.boxes[1].lines == ("CPU 4-7", "4GiB", "Normal 4096MiB")
    assert found.distances[0] == (10, 21, 31, 21)
    assert found.width <= MOST_WIDE


def test_labels_stand_on_no_box() -> None:
    found = topology_diagram.draw(catalog.topology("4socket"))
    for line in found.lines:
        assert not [
            box.node
            for box in found.boxes
            if box.x < line.label_x < box.x + BOX[0] and box.y < line.label_y < box.y + BOX[1]
        ]
    assert len({(line.label_x, line.label_y) for line in found.lines}) == 6


def test_uma_is_one_node_with_zones() -> None:
    found = topology_diagram.draw(catalog.topology("uma-4g"))
    assert found.boxes[0].lines == ("CPU 0-3", "3584MiB", "DMA32 3056MiB", "Normal 512MiB")
    assert not found.lines
    assert found.distances == ((10,),)


def test_fake_nodes_are_said_to_be_fake() -> None:
    found = topology_diagram.draw(catalog.topology("fakenuma"))
    assert found.fake
    assert len(found.boxes) == 4
    assert not found.lines
    assert {distance for row in found.distances for distance in row} == {10}


def test_hmat_and_nodes_that_lack_something() -> None:
    assert topology_diagram.draw(catalog.topology("tiers")).boxes[1].lines == (
        "no CPU",
        "2GiB",
        "250 ns",
        "10240 MiB/s",
    )
    assert "no memory" in {
        line for box in topology_diagram.draw(catalog.topology("memoryless")).boxes for line in box.lines
    }


def test_a_distance_that_differs_by_way() -> None:
    shape = ring(2).model_copy(update={"distances": ((10, 15), (20, 10))})
    assert [line.label for line in topology_diagram.draw(shape).lines] == ["15 / 20"]


def test_a_long_list_of_cpus_is_cut_in_its_box_and_whole_in_words() -> None:
    nodes = [
        {"cpus": ",".join(str(cpu) for cpu in range(node, 48, 4)), "memory": "1GiB"} for node in range(4)
    ]
    shape = Topology.model_validate(
        {"description": "CPUs in turn", "vcpus": 48, "memory": "4GiB", "nodes": nodes}
    )
    found = topology_diagram.draw(shape)
    assert found.boxes[0].lines[0] == "CPU 0,4,8,12,…"
    assert "Node 0: CPU 0,4,8,12,16,20,24,28,32,36,40,44, 1GiB" in found.description
