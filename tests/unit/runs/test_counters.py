# SPDX-License-Identifier: GPL-2.0-only
"""Text of kernels from 3.19 to 6.18 -> counters, and derived ratios (test_reference: the seeds' tables)."""

from __future__ import annotations

import pytest

from numalab.runs.counters import derived, difference, parse, phase, short, workload_numbers
from tests.unit.makers import recorded

NODE0 = "/sys/devices/system/node/node0"


@pytest.mark.parametrize(
    ("kernel", "count", "some", "absent"),
    [
        (
            "3.19",
            13,
            {"numa_hit": 5163221, "numa_pages_migrated": 1228114, "pgmigrate_fail": 0},
            {"pgfault", "numa_huge_pmd_updates"},
        ),
        (
            "6.1",
            173,
            {"numa_pte_updates": 88793, "numa_huge_pte_updates": 25, "numa_hint_faults": 40861},
            {"numa_task_migrated", "nr_free_pages_blocks"},
        ),
        ("6.18", 192, {"numa_hit": 179143020, "numa_hint_faults": 0}, {"nr_bounce", "nr_writeback_temp"}),
    ],
)
def test_parse(kernel: str, count: int, some: dict[str, int], absent: set[str]) -> None:
    found = parse(recorded(f"vmstat-{kernel}.txt"))
    assert len(found) == count
    assert found | some == found
    assert not absent & set(found)


def test_every_line_of_a_kernel_is_a_counter() -> None:
    for name in ("vmstat-6.1.txt", "vmstat-6.18.txt", "node0.vmstat-6.1.txt", "node0.numastat-6.1.txt"):
        assert len(parse(recorded(name))) == len(recorded(name).splitlines())


@pytest.mark.parametrize(
    ("text", "counters"),
    [
        ("", {}),
        ("a 1\nb -2\n", {"a": 1, "b": -2}),
        ("a 1", {"a": 1}),
        ("Node 0, zone DMA\n  pages free 3\nflags: 4\n a 5\nb 6 kB\nc\nd 0x7\ne 8\n", {"e": 8}),
    ],
)
def test_other_lines_are_passed_over(text: str, counters: dict[str, int]) -> None:
    assert parse(text) == counters


def test_absent_is_absent() -> None:
    """A counter in only one snapshot (a module came or went) has no difference; it is not 0."""
    assert difference({"a": 1, "gone": 5}, {"a": 4, "new": 7}) == {"a": 3}
    assert difference({"level": 9}, {"level": 2}) == {"level": -7}
    assert (
        difference(parse(recorded("vmstat-3.19.txt")), parse(recorded("vmstat-6.1.txt"))).keys()
        == parse(recorded("vmstat-3.19.txt")).keys()
    )


def test_phase() -> None:
    before = {
        "/proc/vmstat": "numa_hit 5\nonly_before 1\n",
        f"{NODE0}/vmstat": "nr_free_pages 9\n",
        f"{NODE0}/numastat": "other_node 3\n",
        "/gone": "a 1\n",
    }
    after = {
        "/proc/vmstat": "numa_hit 8\n",
        f"{NODE0}/vmstat": "nr_free_pages 4\n",
        f"{NODE0}/numastat": "other_node 3\n",
        "/new": "a 1\n",
    }
    assert phase(before, after) == {
        "vmstat": {"numa_hit": 3},
        "node0.vmstat": {"nr_free_pages": -5},
        "node0.numastat": {"other_node": 0},
    }


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/proc/vmstat", "vmstat"),
        (f"{NODE0}/vmstat", "node0.vmstat"),
        ("/sys/devices/system/node/node12/numastat", "node12.numastat"),
        ("node0.vmstat", "node0.vmstat"),
    ],
)
def test_short(path: str, name: str) -> None:
    assert short(path) == name


def test_derived_by_hand() -> None:
    assert derived(
        {
            "numa_pte_updates": 2000,
            "numa_huge_pte_updates": 3,
            "numa_hint_faults": 8,
            "numa_hint_faults_local": 3,
        }
    ) == {
        "page_range_updates": 3536,
        "base_pte_updates": 464,
        "hint_local_percent": 37.5,
    }
    found = derived(parse(recorded("vmstat-6.1.txt")))
    assert found["page_range_updates"] == 101593  # 88793 + 512 * 25
    assert found["base_pte_updates"] == 75993
    assert (
        found["minor_faults"]
        == parse(recorded("vmstat-6.1.txt"))["pgfault"] - parse(recorded("vmstat-6.1.txt"))["pgmajfault"]
        > 0
    )
    assert found["hint_local_percent"] == pytest.approx(20.7165, abs=1e-4)  # 8465 of 40861


@pytest.mark.parametrize(
    ("vmstat", "keys"),
    [
        ({}, set()),
        ({"numa_pte_updates": 5}, set()),
        ({"numa_huge_pte_updates": 5}, set()),
        ({"numa_pte_updates": 0, "numa_huge_pte_updates": 0}, {"page_range_updates", "base_pte_updates"}),
        ({"numa_hint_faults": 0, "numa_hint_faults_local": 0}, set()),
        ({"numa_hint_faults": 5}, set()),
        ({"numa_hint_faults": 5, "numa_hint_faults_local": 0}, {"hint_local_percent"}),
        ({"pgfault": 5}, set()),
        ({"pgmajfault": 5}, set()),
        ({"pgfault": 5, "pgmajfault": 5}, {"minor_faults"}),
    ],
)
def test_what_is_derived_from_the_absent_is_absent(vmstat: dict[str, int], keys: set[str]) -> None:
    assert set(derived(vmstat)) == keys


def test_a_snapshot_between_the_two_counters() -> None:
    """The kernel counts huge PMDs as it changes them, and PTE updates after the whole range."""
    assert derived({"numa_pte_updates": 500, "numa_huge_pte_updates": 1})["base_pte_updates"] == 0


@pytest.mark.parametrize(
    ("kernel", "percent"),
    [("3.19", 26.4184), ("4.0-rc1", 26.6419), ("4.0-rc4", 28.0359), ("3.19-ptedirty", 26.9884)],
)
def test_posted(kernel: str, percent: float) -> None:
    """Dave Chinner's counters: no huge pages, and every migrated page is a NUMA migration."""
    found = parse(recorded(f"vmstat-{kernel}.txt"))
    assert derived(found)["page_range_updates"] == found["numa_pte_updates"]
    assert derived(found)["base_pte_updates"] == found["numa_pte_updates"]
    assert derived(found)["hint_local_percent"] == pytest.approx(percent, abs=1e-4)
    assert found["pgmigrate_success"] == found["numa_pages_migrated"]


def test_workload_numbers() -> None:
    """What only looks like a number is text, as any other line of the workload's."""
    lines = "numalab: passes 3\nnumalab: rate -1.5e+3\nnumalab: version 1.2.3\nnumalab: passes 4\nnumalab: odd .\n"
    assert workload_numbers(f"begin\n{lines}end\n") == {"passes": 4.0, "rate": -1500.0}
