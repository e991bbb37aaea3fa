# SPDX-License-Identifier: GPL-2.0-only
"""What of a host spoils times, from its facts."""

from __future__ import annotations

import pytest

from numalab.model.order import shortage, spoilers
from tests.unit.makers import spec

GOOD = {
    "nodes": "4",
    "cores": "64",
    "SMT": "off",
    "governor": "performance",
    "turbo": "off",
    "KSM": "off",
    "THP": "never",
    "NUMA balancing": "off",
    "swap": "off",
}


def test_a_host_in_order() -> None:
    assert spoilers(GOOD) == []
    assert shortage(GOOD, spec("4socket").topology) == []


def test_a_host_that_tells_nothing() -> None:
    """As in runs of earlier labs: no reproach."""
    assert spoilers({}) == []
    assert shortage({"nodes": "0", "cores": ""}, spec("4socket").topology) == []


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        ("SMT", "on", "SMT is on: siblings share a core"),
        ("turbo", "on", "turbo is on: "),
        ("KSM", "on", "KSM is on: "),
        ("NUMA balancing", "on", "NUMA balancing is on: "),
        ("swap", "on", "swap is on: "),
        ("governor", "powersave", "the frequency governor is powersave: "),
        ("governor", "performance powersave", "the frequency governor is performance powersave: "),
        ("THP", "always", "THP is always: "),
        ("THP", "madvise", "THP is madvise: "),
    ],
)
def test_each_spoils(fact: str, value: str, line: str) -> None:
    (only,) = spoilers({**GOOD, fact: value})
    assert only.startswith(line)


def test_fewer_than_asked_for() -> None:
    wanted = spec("4socket").topology
    assert shortage({"nodes": "1", "cores": "2"}, wanted) == [
        "4 nodes on 1 of the host: no memory of the guest is remote",
        f"{wanted.vcpus} vCPUs on 2 cores of the host",
    ]
    assert shortage({"nodes": "2", "cores": "64"}, wanted) == [
        "4 nodes on 2 of the host: some of the guest's nodes share one"
    ]
