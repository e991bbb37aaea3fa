# SPDX-License-Identifier: GPL-2.0-only
"""Files that people write: all of ours load, and every error names file, line, key and reason."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numalab.analysis import metrics
from numalab.core.errors import InputError
from numalab.host import image
from numalab.kernel import recipe
from numalab.model import catalog
from numalab.model.topology import Topology

GOOD = """\
description: two nodes
vcpus: 4
memory: 2GiB
nodes:
  - {cpus: 0-1, memory: 1GiB}
  - {cpus: 2-3, memory: 1GiB}
distances:
  - [10, 20]
  - [20, 10]
disks:
  - {name: data, size: 1TiB}
"""
SHIPPED = ["2socket", "4socket", "cpuless", "fakenuma", "memoryless", "tiers", "uma-2g", "uma-4g", "unequal"]


def load(tmp_path: Path, text: str) -> Topology:
    path = tmp_path / "bad.yml"
    path.write_text(text)
    return catalog.topology(str(path))


def test_good(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).nodes[1].cpus == (2, 3)


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("cpus: 2-3", "cpus: 1-3", 4, "nodes: vCPU 1 is in node 0 and again in node 1"),
        ("cpus: 2-3", "cpus: 2", 4, "nodes: vCPU 3 is in no node"),
        ("cpus: 2-3", "cpus: 3-2", 6, "nodes.1.cpus: '3-2' is not a range of CPUs"),
        ("[20, 10]", "[9, 10]", 7, "distances: node 1 to 0 is 9; remote ones are 11 to 254"),
        ("[20, 10]", "[20, 9]", 7, "distances: node 1 to itself is 9; ACPI has it 10"),
        ("[20, 10]", "[20]", 7, "distances: must be a full table of 2 rows of 2"),
        ("  - [20, 10]\n", "", 7, "distances: must be a full table of 2 rows of 2"),
        ("[20, 10]", "[20, ten]", 9, "distances.1.1: "),
        ("vcpus: 4", "vcpus: 4\ncolour: blue", 3, "colour: Extra inputs are not permitted"),
        ("{cpus: 2-3,", "{colour: blue, cpus: 2-3,", 6, "nodes.1.colour: Extra inputs are not permitted"),
        ("memory: 2GiB", "memory: 2147483648", 3, "memory: 2147483648 is not a size"),
        ("memory: 2GiB", "memory: 2GB", 3, "memory: '2GB' is not a size"),
        ("0-1, memory: 1GiB", "0-1, memory: 1024", 5, "nodes.0.memory: 1024 is not a size"),
        ("size: 1TiB", "size: 1", 11, "disks.0.size: 1 is not a size"),
        ("memory: 2GiB", "memory: 3GiB", 3, "memory: is 3GiB, but the nodes' add up to 2GiB"),
        ("size: 1TiB}", "size: 1TiB}\n  - {name: data, size: 2TiB}", 10, "disks: data is there twice"),
        ("name: data", "name: a/b", 11, "disks.0.name: "),
        ("vcpus: 4", "vcpus: 4\nfake: 2", 3, "fake: numa=fake splits a machine without nodes"),
        ("vcpus: 4", "vcpus: four", 2, "vcpus: Input should be a valid integer"),
        ("vcpus: 4", "vcpus: 4\nsockets: 3", 3, "sockets: 4 vCPUs do not divide into 3 sockets"),
        ("vcpus: 4\n", "", 1, "vcpus: Field required"),
        ("vcpus: 4", "vcpus: 4\nvcpus: 8", 3, "not YAML: "),
        ("[10, 20]", "[10, 20", 9, "not YAML: "),
        ("vcpus: 4", "\tvcpus: 4", 2, "not YAML: "),
    ],
)
def test_bad(tmp_path: Path, old: str, new: str, line: int, reason: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert str(caught.value).startswith(f"{tmp_path}/bad.yml:{line}: {reason}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "word\n", "4\n"])
def test_no_mapping(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"bad\.yml:1: must be a mapping"):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"description: \xff\n", r"bad\.yml: "),
        (b"vcpus: 4\ndescription: a\x01b\n", r"bad\.yml:2: not YAML: "),
        (b"description: 2015-13-41\n", r"bad\.yml:1: "),
    ],
    ids=["utf-8", "control", "date"],
)
def test_no_text(tmp_path: Path, body: bytes, where: str) -> None:
    (tmp_path / "bad.yml").write_bytes(body)
    with pytest.raises(InputError, match=where):
        catalog.topology(str(tmp_path / "bad.yml"))


@given(
    st.integers(0, len(GOOD)),
    st.integers(0, 6),
    st.text(st.sampled_from("{}[]:-,&*!|>'\"%@`#?\t\n ab09~<\x07é"), max_size=6),
)
def test_any_mistake_is_an_input_error(at: int, gone: int, put: str) -> None:
    with tempfile.TemporaryDirectory() as place, contextlib.suppress(InputError):
        load(Path(place), GOOD[:at] + put + GOOD[at + gone :])


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.yml: there are 2socket, 4socket, "):
        catalog.topology(str(tmp_path / "gone.yml"))
    with pytest.raises(InputError, match=r"17socket\.yml: there are 2socket, 4socket, "):
        catalog.topology("17socket")


@pytest.mark.parametrize("name", ["a b", "../4socket", "<x/>", "", "4socket/"])
def test_bad_name(name: str) -> None:
    with pytest.raises(InputError, match="is not a name"):
        catalog.topology(name)


def test_topologies_are_there() -> None:
    assert set(SHIPPED) <= set(catalog.names("topologies"))


@pytest.mark.parametrize("name", catalog.names("topologies"))
def test_topologies_load(name: str) -> None:
    assert catalog.topology(name).description


@pytest.mark.parametrize("name", catalog.names("kernels"))
def test_kernels_load(name: str) -> None:
    assert recipe.load(name).recipe.description


@pytest.mark.parametrize("name", catalog.names("testcases"))
def test_cases_load(name: str) -> None:
    """Each expectation of a time says what the time is spent on, and no other does."""
    for expected in catalog.case(name).expect:
        timed = metrics.kind(expected.metric) is metrics.Kind.TIME
        assert (expected.cost is not None) == timed, f"{name}.yml: {expected.metric}"


@pytest.mark.parametrize("name", catalog.names("images"))
def test_images_load(name: str) -> None:
    assert image.recipe(name).packages


def test_the_seeds_machine() -> None:
    """slowscan-lkml-2015.txt: -smp 16 -m 16384, numa=fake=4, three data disks."""
    shape = catalog.topology("fakenuma")
    assert (shape.vcpus, shape.memory, shape.fake) == (16, 16384 << 20, 4)
    assert [disk.name for disk in shape.disks] == ["test", "scratch", "500TB"]
    assert shape.disks[2].size == 500 << 40


def test_of_many_names_those_most_like_the_wanted_one() -> None:
    """The 60 kernels would fill the screen."""
    many = [f"6.{number}" for number in range(30)] + ["7.2-slowscan-before"]
    assert catalog.there_are(many[:3], "6.7") == "there are 6.0, 6.1, 6.2"
    assert catalog.there_are([], "6.7") == "there are none"
    assert catalog.there_are(many, "7.2-slowscan") == "there are 31 others, such as 7.2-slowscan-before"
    assert catalog.there_are(many, "nosuch") == "there are 31 others in that folder"
