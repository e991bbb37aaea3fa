# SPDX-License-Identifier: GPL-2.0-only
"""Sizes, CPU lists, names, and impossible topologies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numalab.model import catalog
from numalab.model.guest import GuestSpec
from numalab.model.run import Run
from numalab.model.topology import Topology
from numalab.model.units import (
    GIB,
    KIB,
    MIB,
    TIB,
    parse_cpus,
    parse_nonzero_size,
    parse_size,
    show_cpus,
    show_part,
    show_size,
)
from numalab.model.values import check_name, jsonable
from tests.unit.makers import record_of, spec

UMA: dict[str, Any] = {"description": "one node", "vcpus": 4, "memory": "2GiB"}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 * MIB),
        ("4G", 4 * GIB),
        ("4 GiB", 4 * GIB),
        ("500T", 500 * TIB),
        ("500TiB", 500 * TIB),
        ("1.5G", 1536 * MIB),
        ("4K", 4 * KIB),
        ("7B", 7),
        (" 1M ", MIB),
        ("2P", 2048 * TIB),
        ("0B", 0),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["512", 512, "", "G", "4g", "4GB", "4 kB", "-1G", "1e3M", "4GiBs", "1,5G", None, True, 4.0, [4]]
)
def test_sizes_need_a_binary_unit(text: object) -> None:
    with pytest.raises(ValueError, match="is not a size: write a number and a binary unit"):
        parse_size(text)


@given(st.integers(0, 1 << 60))
def test_sizes_come_back(size: int) -> None:
    assert parse_size(show_size(size)) == size


def test_a_part_of_a_transfer() -> None:
    """A size that was rounded down is not exceeded."""
    assert show_part(12 * MIB, 1300 * MIB) == "12 of 1,300 MiB"
    assert show_part(131 * MIB, 130 * MIB) == "130 of 130 MiB"
    assert show_part(1200 * MIB, 0) == "1,200 MiB"


def test_a_size_of_nothing() -> None:
    """An option's: huge pages of 0 bytes once ended in a traceback."""
    assert parse_size("0M") == 0
    assert parse_nonzero_size("2M") == 2 * MIB
    with pytest.raises(ValueError, match="'0M': must be more than nothing"):
        parse_nonzero_size("0M")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1, "1B"), (3584 * MIB, "3584MiB"), (500 * TIB, "500TiB"), (1025 * KIB, "1025KiB")],
)
def test_sizes_are_shown_short(size: int, text: str) -> None:
    assert show_size(size) == text


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8", (0, 1, 2, 3, 8)), ("", ()), ("5", (5,)), (5, (5,)), ("7-7", (7,)), ("0,2,4", (0, 2, 4))],
)
def test_cpu_lists(text: object, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize(
    "text", ["3-0", "0-", "-3", "0,,1", "0-3,", "a", "0 1", "0x1", "0-3:2/4", None, True, 1.5, (0, 1)]
)
def test_no_cpu_lists(text: object) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_cpus(text)


@given(st.sets(st.integers(0, 254)))
def test_cpu_lists_come_back(cpus: set[int]) -> None:
    assert parse_cpus(show_cpus(tuple(cpus))) == tuple(sorted(cpus))


def test_cpu_lists_are_sets() -> None:
    """The kernel prints them sorted, so ours must be too, or verification compares different texts."""
    assert parse_cpus("2-3,0-1") == (0, 1, 2, 3)


@pytest.mark.parametrize("name", ["a", "4socket", "6.1-slowscan-before", "x" * 40, "a_b"])
def test_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b",
        "a b",
        "<name/>",
        "&amp;",
        "../up",
        ".",
        "..",
        "-n",
        "x" * 41,
        "A",
        "a\n",
        "é",
        "a;b",
        "a\0",
        "'",
    ],
)
def test_no_names(name: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        check_name(name)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vcpus": 0}, "vcpus"),
        ({"vcpus": 256}, "vcpus"),
        ({"vcpus": "4"}, "vcpus"),
        ({"vcpus": True}, "vcpus"),
        ({"sockets": 3}, "4 vCPUs do not divide into 3 sockets"),
        ({"memory": "128MiB"}, "memory"),
        ({"machine": "microvm"}, "machine"),
        ({"fake": 1}, "fake"),
        ({"fake": 33}, "fake"),
        ({"distances": [[10]]}, "full table of 0 rows"),
        ({"disks": [{"name": "a/b", "size": "1G"}]}, "disks.0.name"),
        ({"disks": [{"name": "x" * 21, "size": "1G"}]}, "disks.0.name"),
        ({"disks": [{"name": "a", "size": "1B"}]}, "disks.0.size"),
        (
            {"nodes": [{"cpus": "0-3", "memory": "1GiB"}, {}], "memory": "1GiB"},
            "node 1 has neither CPUs nor memory",
        ),
        (
            {"nodes": [{"cpus": "1-3", "memory": "1GiB"}, {"cpus": "0", "memory": "1GiB"}], "memory": "2GiB"},
            (
                "node 0 begins with vCPU 1, and a later node with vCPU 0: Linux numbers nodes by their first"
                " vCPU"
            ),
        ),
        (
            {"vcpus": 240, "sockets": 12},
            "sockets: 12 sockets of 20 vCPUs take APIC ids up to 371; 254 is the largest",
        ),
        ({"vcpus": 255, "sockets": 5}, "sockets: 5 sockets of 51 vCPUs take APIC ids up to 306"),
        (
            {"nodes": [{"cpus": "0-3", "memory": "1048577K"}], "memory": "1048577K"},
            "not a whole number of MiB",
        ),
        ({"nodes": [{"cpus": "0-4", "memory": "2GiB"}]}, r"node 0 has vCPU 4, but there are only 4 \(0-3\)"),
        (
            {
                "nodes": [
                    {"cpus": "0-3", "memory": "1GiB", "latency_ns": 80, "bandwidth_mibs": 1},
                    {"memory": "1GiB"},
                ]
            },
            "or on none",
        ),
        ({"nodes": [{"cpus": "0-3", "memory": "2GiB", "latency_ns": 80}]}, "or on none"),
        ({"memory": "262145K"}, "memory: 262145KiB is not a whole number of MiB"),
        ({"fake": 17}, "fake: 17 nodes share 2GiB; each needs 128MiB at least"),
        ({"disks": [{"name": "root", "size": "1G"}]}, "disks: root is the guest's own disk"),
        ({"fake": 7}, "fake: 7 nodes share 2GiB; each needs a multiple of 32MiB"),
        (
            {"nodes": [{"cpus": "0-3", "memory": "1921MiB"}, {"memory": "127MiB"}]},
            "node 1 has 127MiB; a node with memory has 128MiB at least",
        ),
        (
            {
                "nodes": [{"cpus": "0-3", "memory": "256MiB"}, *[{"memory": "128MiB"}] * 64],
                "memory": "8448MiB",
            },
            "at most 64 items",
        ),
        (
            {"nodes": [{"memory": "1GiB"}, {"cpus": "0-3", "memory": "1GiB"}]},
            "node 1 has CPUs, but node 0 before it has none",
        ),
        (
            {
                "nodes": [
                    {"cpus": "0-1", "memory": "2GiB", "latency_ns": 80, "bandwidth_mibs": 1},
                    {"cpus": "2-3"},
                ]
            },
            "node 1 has no memory, so no node can",
        ),
        (
            {
                "nodes": [
                    {"cpus": "0-3", "memory": "1GiB", "latency_ns": 80, "bandwidth_mibs": 65535},
                    {"memory": "1GiB", "latency_ns": 80, "bandwidth_mibs": 1},
                ]
            },
            "bandwidth_mibs are up to 65535 in steps of 1",
        ),
        (
            {
                "nodes": [{"cpus": "0-3", "memory": "1GiB"}, {"memory": "1GiB"}],
                "distances": [[11, 20], [20, 10]],
            },
            "node 0 to itself is 11",
        ),
        (
            {
                "nodes": [{"cpus": "0-3", "memory": "1GiB"}, {"memory": "1GiB"}],
                "distances": [[10, 20], [255, 10]],
            },
            "node 1 to 0 is 255",
        ),
        (
            {
                "nodes": [{"cpus": "0-3", "memory": "1GiB"}, {"memory": "1GiB"}],
                "distances": [[10, 20], [10, 10]],
            },
            "node 1 to 0 is 10",
        ),
    ],
)
def test_impossible_topologies(change: dict[str, Any], reason: str) -> None:
    Topology.model_validate(UMA)
    with pytest.raises(ValueError, match=reason):
        Topology.model_validate(UMA | change)


@pytest.mark.parametrize(
    "change",
    [
        {"fake": 16},
        {"nodes": [{"cpus": "0-3", "memory": "128MiB"}, *[{"memory": "128MiB"}] * 63], "memory": "8GiB"},
        {
            "nodes": [
                {"cpus": "0-3", "memory": "1GiB", "latency_ns": 1, "bandwidth_mibs": 1048544},
                {"memory": "1GiB", "latency_ns": 65534, "bandwidth_mibs": 16},
            ]
        },
    ],
)
def test_the_outermost_topologies(change: dict[str, Any]) -> None:
    assert Topology.model_validate(UMA | change)


def test_an_asymmetric_full_table_is_possible() -> None:
    nodes = [{"cpus": "0-3", "memory": "1GiB"}, {"memory": "1GiB"}]
    assert Topology.model_validate(UMA | {"nodes": nodes, "distances": [[10, 17], [28, 10]]}).distances == (
        (10, 17),
        (28, 10),
    )


@pytest.mark.parametrize("text", ["a\x01b", "a\x00b", "a\ufffeb"])
def test_a_description_fits_into_xml(text: str) -> None:
    """It goes into the domain's <description>, where control characters are not allowed."""
    with pytest.raises(ValueError, match="description"):
        Topology.model_validate(UMA | {"description": text})


def test_values_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        setattr(catalog.topology("4socket"), "vcpus", 3)  # noqa: B010


@pytest.mark.parametrize("name", catalog.names("topologies"))
def test_values_survive_json(name: str) -> None:
    shape = catalog.topology(name)
    assert Topology.model_validate(jsonable(shape)) == shape
    assert GuestSpec.model_validate(jsonable(spec(name, owner=(1, 2)))) == spec(name, owner=(1, 2))


def test_a_phase_that_did_not_run() -> None:
    run = Run(
        id="a",
        workload="w",
        size="quick",
        params={},
        started="",
        host={},
        guest=record_of(spec()),
        release="",
        cmdline="",
    )
    with pytest.raises(KeyError, match="repair"):
        run.phase("repair")
