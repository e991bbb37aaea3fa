# SPDX-License-Identifier: GPL-2.0-only
"""Scaling keeps the shape; expected layouts are computed by hand; an observed one is a recorded text."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numalab.core.errors import InputError
from numalab.model import catalog, topology, verification
from numalab.model.topology import LEAST_NODE, Topology, scale
from numalab.model.units import GIB, MIB, show_cpus, show_size
from numalab.model.verification import (
    PROBE,
    NumaLayout,
    compare_layouts,
    expected_layout,
    low_memory,
    observed_layout,
)
from tests.unit.makers import recorded

PROBED = "probe-4socket-6.1.txt"
LEAST = LEAST_NODE // MIB


def make(nodes: list[tuple[int, int]]) -> Topology:
    """A topology of (CPUs, MiB) for each node, CPUs numbered node by node."""
    first, made = 0, []
    for count, mib in nodes:
        made.append({"cpus": show_cpus(tuple(range(first, first + count))), "memory": f"{mib}MiB"})
        first += count
    return Topology.model_validate(
        {"description": "made", "vcpus": first, "memory": f"{sum(mib for _, mib in nodes)}MiB", "nodes": made}
    )


@st.composite
def shapes(draw: st.DrawFn) -> Topology:
    """Up to six nodes of very different sizes, some without CPUs or without memory."""
    mibs = st.one_of(st.just(0), st.integers(LEAST, 300), st.integers(300, 100_000))
    nodes = draw(st.lists(st.tuples(st.integers(0, 40), mibs).filter(any), min_size=1, max_size=6))
    return make(sorted([(1, 256), *nodes], key=lambda node: not node[0]))  # those without CPUs last


@given(shapes(), st.integers(0, 200_000), st.integers(0, 248))
def test_scaling_keeps_the_shape(shape: Topology, more_mib: int, more_cpus: int) -> None:
    mib = max(256, LEAST * sum(bool(node.memory) for node in shape.nodes)) + more_mib
    vcpus = sum(bool(node.cpus) for node in shape.nodes) + more_cpus
    got = scale(shape, memory=mib * MIB, vcpus=vcpus)
    assert sum(node.memory for node in got.nodes) == got.memory == mib * MIB
    assert sorted(cpu for node in got.nodes for cpu in node.cpus) == list(range(vcpus))
    for before, after in zip(shape.nodes, got.nodes, strict=True):
        assert bool(before.cpus) == bool(after.cpus)
        assert after.memory >= LEAST_NODE if before.memory else not after.memory


@given(shapes(), st.integers(0, 20_000))
def test_scaling_keeps_the_order(shape: Topology, more_mib: int) -> None:
    """A node stays at least as large as one that was smaller; equal nodes stay equal, to the MiB."""
    got = scale(
        shape, memory=(max(256, LEAST * sum(bool(node.memory) for node in shape.nodes)) + more_mib) * MIB
    )
    sizes = sorted(
        zip((node.memory for node in shape.nodes), (node.memory for node in got.nodes), strict=True)
    )
    for (before, after), (next_before, next_after) in pairwise(sizes):
        assert after <= next_after
        assert before != next_before or next_after - after <= MIB


@pytest.mark.parametrize(
    ("nodes", "mib", "want"),
    [
        ([(1, 1000), (1, 1000), (1, 1000)], 1000, [334, 333, 333]),
        ([(1, 3328), (1, 768)], 2048, [1664, 384]),
        ([(1, 3000), (1, 1000), (1, 0)], 1000, [750, 250, 0]),
        ([(1, 128), (1, 128), (1, 1000), (1, 1000)], 522, [128, 128, 133, 133]),
        ([(1, 1000), (1, 1000), (1, 128)], 600, [236, 236, 128]),
    ],
)
def test_scaled_memory(nodes: list[tuple[int, int]], mib: int, want: list[int]) -> None:
    assert [node.memory // MIB for node in scale(make(nodes), memory=mib * MIB).nodes] == want


@pytest.mark.parametrize("name", catalog.names("topologies"))
def test_scaling_to_its_own_size_is_itself(name: str) -> None:
    shape = catalog.topology(name)
    assert scale(shape) == shape
    assert scale(shape, memory=shape.memory, vcpus=shape.vcpus) == shape


def test_scaled_4socket() -> None:
    shape = scale(catalog.topology("4socket"), memory=4 * GIB, vcpus=8)
    assert [(show_cpus(node.cpus), show_size(node.memory)) for node in shape.nodes] == [
        ("0-1", "1GiB"),
        ("2-3", "1GiB"),
        ("4-5", "1GiB"),
        ("6-7", "1GiB"),
    ]
    assert (shape.sockets, shape.distances, shape.disks) == (
        4,
        catalog.topology("4socket").distances,
        catalog.topology("4socket").disks,
    )


def test_memory_alone_keeps_the_cpu_numbers() -> None:
    nodes = [{"cpus": "0,2", "memory": "1GiB"}, {"cpus": "1,3", "memory": "1GiB"}]
    shape = Topology.model_validate(
        {"description": "interleaved", "vcpus": 4, "memory": "2GiB", "nodes": nodes}
    )
    assert [node.cpus for node in scale(shape, memory=GIB).nodes] == [(0, 2), (1, 3)]
    assert [node.cpus for node in scale(shape, vcpus=6).nodes] == [(0, 1, 2), (3, 4, 5)]


@pytest.mark.parametrize(("vcpus", "sockets"), [(16, 4), (8, 4), (6, 3), (5, 1), (9, 3)])
def test_sockets_divide_the_vcpus(vcpus: int, sockets: int) -> None:
    assert scale(catalog.topology("4socket"), vcpus=vcpus).sockets == sockets


@pytest.mark.parametrize(
    ("name", "memory", "vcpus", "reason"),
    [
        ("4socket", None, 3, "vcpus 3: 4 nodes of this topology have CPUs"),
        ("4socket", None, -1, "vcpus -1"),
        ("4socket", 511 * MIB, None, "memory: this topology needs 512MiB"),
        ("cpuless", 255 * MIB, None, "memory: this topology needs 256MiB"),
        ("fakenuma", 511 * MIB, None, "memory: this topology needs 512MiB"),
        ("uma-2g", GIB + 1, None, "memory: 1073741825 bytes is not a whole number of MiB"),
        ("4socket", None, 256, "256"),
        ("uma-2g", None, 0, "vcpus"),
        ("uma-2g", 200 * MIB, None, "200MiB"),
    ],
)
def test_refused_scales(name: str, memory: int | None, vcpus: int | None, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        scale(catalog.topology(name), memory=memory, vcpus=vcpus)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value), "an error is one line"


@pytest.mark.parametrize(
    ("machine", "mib", "low"),
    [
        ("pc", 2048, 2048),
        ("pc", 3583, 3583),
        ("pc", 3584, 3072),
        ("pc", 16384, 3072),
        ("q35", 2048, 2048),
        ("q35", 2815, 2815),
        ("q35", 2816, 2048),
        ("q35", 16384, 2048),
    ],
)
def test_low_memory(machine: str, mib: int, low: int) -> None:
    assert low_memory(machine, mib * MIB) == low * MIB


@pytest.mark.parametrize(
    ("name", "mib", "zones"),
    [
        # "a DMA32 zone of a bit over 3G, a Normal zone of 500M, and a DMA zone of 15M"
        ("uma-4g", None, {(0, "DMA"): 16, (0, "DMA32"): 3056, (0, "Normal"): 512}),
        # "the scenario without the Normal zone"
        ("uma-2g", None, {(0, "DMA"): 16, (0, "DMA32"): 2032}),
        (
            "4socket",
            None,
            {
                (0, "DMA"): 16,
                (0, "DMA32"): 2032,
                (0, "Normal"): 2048,
                (1, "Normal"): 4096,
                (2, "Normal"): 4096,
                (3, "Normal"): 4096,
            },
        ),
        (
            "4socket",
            4096,
            {
                (0, "DMA"): 16,
                (0, "DMA32"): 1008,
                (1, "DMA32"): 1024,
                (2, "Normal"): 1024,
                (3, "Normal"): 1024,
            },
        ),
        ("unequal", None, {(0, "DMA"): 16, (0, "DMA32"): 2032, (0, "Normal"): 1280, (1, "Normal"): 768}),
        ("memoryless", None, {(0, "DMA"): 16, (0, "DMA32"): 2032}),
        (
            "fakenuma",
            None,
            {
                (0, "DMA"): 16,
                (0, "DMA32"): 3056,
                (0, "Normal"): 1024,
                (1, "Normal"): 4096,
                (2, "Normal"): 4096,
                (3, "Normal"): 4096,
            },
        ),
    ],
)
def test_asked_zones(name: str, mib: int | None, zones: dict[tuple[int, str], int]) -> None:
    view = expected_layout(scale(catalog.topology(name), memory=mib and mib * MIB))
    assert {key: size // MIB for key, size in view.zones.items()} == zones


def test_asked_nodes() -> None:
    fake = expected_layout(catalog.topology("fakenuma"))
    assert fake.nodes == (0, 1, 2, 3)
    assert set(fake.cpus.values()) == {tuple(range(16))}
    assert set(fake.distances.values()) == {10}
    dealt = expected_layout(catalog.topology("fakenuma").model_copy(update={"deals_cpus": True}))
    assert (dealt.cpus[0], dealt.cpus[3]) == ((0, 4, 8, 12), (3, 7, 11, 15))
    assert {ends: far for ends, far in dealt.distances.items() if 3 in ends} == {
        (0, 3): 20,
        (1, 3): 20,
        (2, 3): 20,
        (3, 3): 10,
        (3, 0): 20,
        (3, 1): 20,
        (3, 2): 20,
    }
    assert dealt.zones == fake.zones
    tiers = expected_layout(catalog.topology("tiers"))
    assert tiers.cpus == {0: (0, 1, 2, 3), 1: ()}
    assert (tiers.latency_ns, tiers.bandwidth_mibs) == ({0: 80, 1: 250}, {0: 40960, 1: 10240})
    assert tiers.distances == {(0, 0): 10, (0, 1): 20, (1, 0): 20, (1, 1): 10}
    assert expected_layout(catalog.topology("uma-2g")).distances == {(0, 0): 10}


def test_distances_that_no_table_gives() -> None:
    assert expected_layout(make([(1, 256), (1, 256)])).distances == {
        (0, 0): 10,
        (0, 1): 20,
        (1, 0): 20,
        (1, 1): 10,
    }


def the_guest() -> tuple[NumaLayout, NumaLayout]:
    """Expected and observed layout of the guest whose probe is recorded: 4socket at 4 GiB and 8 vCPUs."""
    return expected_layout(scale(catalog.topology("4socket"), memory=4 * GIB, vcpus=8)), observed_layout(
        recorded(PROBED)
    )


def test_found() -> None:
    view = the_guest()[1]
    assert view.cpus == {0: (0, 1), 1: (2, 3), 2: (4, 5), 3: (6, 7)}
    assert view.distances[0, 2] == view.distances[3, 1] == 31
    assert view.distances[0, 0] == 10
    assert view.zones[0, "DMA"] == 3998 * 4096
    assert set(view.zones) == {(0, "DMA"), (0, "DMA32"), (1, "DMA32"), (2, "Normal"), (3, "Normal")}
    assert (view.latency_ns, view.bandwidth_mibs) == ({}, {})


def test_what_was_found_is_what_was_asked() -> None:
    rows = compare_layouts(*the_guest())
    assert [row.what for row in rows if not row.agrees] == []
    assert {"nodes", "node 2 CPUs", "node 3 memory", "node 1 zone DMA32", "node 0 distances"} <= {
        row.what for row in rows
    }
    head, *lines = verification.layout_table(rows).splitlines()
    assert head.split() == ["requested", "observed"]
    assert not any(line.startswith("!") for line in lines)


def test_headings_stand_above_their_columns() -> None:
    head, line = verification.layout_table([verification.LayoutRow("nodes", "0", "0-1", False)]).splitlines()
    assert (head.index("requested"), head.index("observed")) == (line.index("0"), line.index("0-1"))


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("node1/cpulist:2-3", "node1/cpulist:2-4", {"node 1 CPUs"}),
        ("node3/cpulist:6-7\n", "", {"node 3 CPUs"}),
        ("distance:21 10 21 31", "distance:21 10 21 20", {"node 1 distances"}),
        ("present  262109", "present  131054", {"node 1 memory", "node 1 zone DMA32"}),
        ("Node 3, zone   Normal", "Node 3, zone  Movable", {"node 3 zone Normal", "node 3 zone Movable"}),
    ],
)
def test_what_differs_is_seen(old: str, new: str, wrong: set[str]) -> None:
    text = recorded(PROBED)
    assert old in text
    rows = compare_layouts(the_guest()[0], observed_layout(text.replace(old, new)))
    assert {row.what for row in rows if not row.agrees} == wrong
    assert sum(line.startswith("! ") for line in verification.layout_table(rows).splitlines()) == len(wrong)


def test_a_missing_node_is_seen() -> None:
    text = (
        recorded(PROBED)
        .replace("online:0-3", "online:0-2")
        .replace("node3/cpulist:6-7\n", "")
        .replace("node3/distance:21 31 21 10\n", "")
    )
    text = (
        text.replace("10 21 31 21", "10 21 31")
        .replace("21 10 21 31", "21 10 21")
        .replace("31 21 10 21", "31 21 10")
        .replace("Node 3, zone", "Node 9, zone")
    )
    rows = compare_layouts(the_guest()[0], observed_layout(text))
    assert [
        row.observed for row in rows if row.what in ("node 0 distances", "node 3 CPUs", "node 3 memory")
    ] == ["10 21 31 -", "no node", "0 MiB"]
    wrong = {row.what for row in rows if not row.agrees}
    assert {"nodes", "node 3 CPUs", "node 3 memory", "node 3 zone Normal", "node 0 distances"} <= wrong


def test_a_further_node_is_seen() -> None:
    want = expected_layout(scale(catalog.topology("2socket"), memory=2 * GIB, vcpus=4))
    wrong = {row.what for row in compare_layouts(want, the_guest()[1]) if not row.agrees}
    assert {"nodes", "node 2 CPUs", "node 3 memory", "node 0 distances"} <= wrong


def test_another_table_is_a_mismatch_and_no_crash() -> None:
    """A kernel whose distance tables do not match its online nodes differs; verification must not raise."""
    text = recorded(PROBED).replace("online:0-3", "online:0-2")
    assert any(not row.agrees for row in compare_layouts(the_guest()[0], observed_layout(text)))


@pytest.mark.parametrize(("mib", "agrees"), [(0, True), (8, True), (-20, True), (-21, False), (21, False)])
def test_tolerance(mib: int, agrees: bool) -> None:
    """2 % of 1 GiB is 20.48 MiB."""
    want = expected_layout(make([(4, 1024)]))
    have = NumaLayout(
        want.nodes, want.cpus, want.zones | {(0, "DMA32"): want.zones[0, "DMA32"] + mib * MIB}, want.distances
    )
    assert [row.agrees for row in compare_layouts(want, have) if row.what == "node 0 memory"] == [agrees]


def test_a_nul_after_online(tmp_path: Path) -> None:
    """Kernels before 3.3 print one; grep must not take the file for binary."""
    (tmp_path / "online").write_bytes(b"0-3\n\0")
    for node in range(4):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text("0-3\n")
    text = subprocess.run(
        ["sh", "-c", PROBE.replace("/sys/devices/system/node", str(tmp_path))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert observed_layout(text).nodes == (0, 1, 2, 3)


def test_hmat_is_found() -> None:
    text = (
        "online:0-1\nnode0/cpulist:0-3\nnode0/distance:10 20\nnode1/distance:20 10\n"
        "node0/access0/initiators/read_latency:80\nnode1/access0/initiators/read_latency:250\n"
        "node0/access0/initiators/read_bandwidth:40960\nnode1/access0/initiators/read_bandwidth:0\n"
    )
    view = observed_layout(text)
    assert view.cpus == {0: (0, 1, 2, 3), 1: ()}
    assert (view.latency_ns, view.bandwidth_mibs) == ({0: 80, 1: 250}, {0: 40960})
    wrong = {
        row.what
        for row in compare_layouts(expected_layout(catalog.topology("tiers")), view)
        if not row.agrees
    }
    assert "node 1 bandwidth MiB/s" in wrong
    assert not wrong & {"node 0 latency ns", "node 1 latency ns", "node 0 bandwidth MiB/s"}


def test_a_kernel_without_numa() -> None:
    zones = recorded(PROBED).partition("Node 1, zone")[0]
    view = observed_layout(zones[zones.index("Node 0") :])
    assert view.nodes == (0,)
    assert view.cpus == {0: ()}


@pytest.mark.parametrize("mib", [511, 600, 4096, 20_000])
def test_largest(mib: int) -> None:
    shape = catalog.topology("4socket")
    fits = topology.largest(shape, mib * MIB)
    if mib < 512:
        assert fits is None
    else:
        assert fits is not None
        assert fits.memory == min(mib // 256 * 256 * MIB, shape.memory)
        assert len(fits.nodes) == 4


def test_the_largest_that_fits_has_whole_fake_nodes() -> None:
    shape = Topology.model_validate({"description": "seven", "vcpus": 2, "memory": "3584MiB", "fake": 7})
    fits = topology.largest(shape, 2 * GIB)
    assert fits
    assert fits.memory == 9 * 224 * MIB
