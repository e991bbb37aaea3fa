# SPDX-License-Identifier: GPL-2.0-only
"""Samples over time: levels and counts, pages by node, absent values."""

from __future__ import annotations

import statistics

import pytest

from numalab.measure import agent
from numalab.model.run import Memory
from numalab.runs import counters, samples
from tests.unit.makers import recorded

SAMPLES = [
    {
        "t": 0.0,
        "vmstat": {"pgfault": 100, "nr_dirty": 7},
        "node0.vmstat": {"nr_anon_pages": 1, "nr_file_pages": 2},
    },
    {"t": 1.0, "vmstat": {"nr_dirty": 9}},
    {
        "t": 2.0,
        "vmstat": {"pgfault": 130, "nr_dirty": 7},
        "node0.vmstat": {"nr_anon_pages": 5, "nr_file_pages": 2},
        "node10.vmstat": {"nr_free_pages": 3},
    },
]


def test_counts_begin_at_nothing_and_levels_stand() -> None:
    assert samples.series(SAMPLES, "pgfault") == [(0.0, 0.0), (2.0, 30.0)], "a moment without it is no point"
    assert samples.series(SAMPLES, "nr_dirty") == [(0.0, 7.0), (1.0, 9.0), (2.0, 7.0)]
    assert samples.series(SAMPLES, "numa_pte_updates") == []


@pytest.mark.parametrize(
    ("counter", "level"),
    [
        ("nr_dirty", True),
        ("nr_free_pages", True),
        ("nr_anon_pages", True),
        ("nr_vmscan_write", False),
        ("nr_vmscan_immediate_reclaim", False),
        ("nr_dirtied", False),
        ("nr_written", False),
        ("nr_foll_pin_acquired", False),
        ("pgfault", False),
        ("numa_pte_updates", False),
    ],
)
def test_levels(counter: str, level: bool) -> None:
    assert samples.level(counter) is level


def test_moves() -> None:
    assert samples.moves([(0, 1), (1, 2)])
    assert not samples.moves([(0, 1), (1, 1)])
    assert not samples.moves([])


def test_pages_of_nodes_that_tell() -> None:
    assert samples.pages(SAMPLES) == {0: [(0.0, 3.0), (2.0, 7.0)]}
    assert samples.pages([]) == {}


def test_lru_lists_stand_in() -> None:
    lists = {"nr_inactive_anon": 1, "nr_active_anon": 2, "nr_inactive_file": 4, "nr_active_file": 8}
    assert samples.in_use(lists) == 15
    assert samples.in_use(lists | {"nr_anon_pages": 100, "nr_file_pages": 200}) == 300
    del lists["nr_active_anon"]
    assert samples.in_use(lists) is None


def test_a_real_nodes_pages() -> None:
    text = recorded("node0.vmstat-6.1.txt")
    counters = {name: int(value) for name, value in (line.split() for line in text.splitlines())}
    assert samples.in_use(counters) == counters["nr_anon_pages"] + counters["nr_file_pages"] > 0


def anonymous(pages: int, huge: int) -> dict[str, int]:
    """/proc/vmstat with so many anonymous pages and huge pages."""
    return {"nr_anon_pages": pages, "nr_anon_transparent_hugepages": huge, "nr_dirty": 7}


@pytest.mark.parametrize(
    ("release", "pages"),
    [
        ("6.1.0-56-amd64", 2000),
        ("3.12.0-numalab", 2000),
        ("3.11.10", 2000 + 3 * 512),
        ("3.2.102-numalab-3.2", 2000 + 3 * 512),
    ],
)
def test_memory(release: str, pages: int) -> None:
    """Before 3.12 nr_anon_pages leaves out huge pages."""
    assert samples.memory(anonymous(2000, 3), release) == Memory(anonymous=pages, huge=3 * 512)


@pytest.mark.parametrize("lacks", ["nr_anon_pages", "nr_anon_transparent_hugepages"])
def test_memory_that_is_not_told(lacks: str) -> None:
    text = {name: count for name, count in anonymous(2000, 3).items() if name != lacks}
    assert samples.memory(text, "6.1") is None


def test_memory_of_a_real_kernel() -> None:
    found = samples.memory(counters.parse(recorded("vmstat-6.1.txt")), "6.1")
    assert found is not None
    assert found.anonymous > found.huge == 0


def test_the_moment_of_most_memory() -> None:
    moments = [anonymous(900, 0), {}, anonymous(5000, 2), anonymous(4000, 7)]
    assert samples.fullest(moments, "6.1") == Memory(anonymous=5000, huge=1024)
    assert samples.fullest(moments, "3.2") == Memory(anonymous=4000 + 7 * 512, huge=7 * 512)
    assert samples.fullest([{}], "6.1") is None
    assert samples.fullest([], "6.1") is None


def test_zones_of_today() -> None:
    """A zone has its lists and one count of pages to be written, its node dirty ones and those under writeback."""
    first, last = agent.zones(recorded("zoneinfo-6.1.txt")), agent.zones(recorded("zoneinfo-6.1.txt"))
    last["node1.DMA32"] |= {
        "nr_zone_inactive_file": 20000,
        "nr_zone_write_pending": 9000,
        "nr_free_pages": 400,
    }
    last["node0.DMA32"] |= {"nr_free_pages": 400}
    found = samples.zones(
        [
            {"t": 0, "node1.vmstat": {"nr_dirty": 5}, "node1.numastat": {"numa_hit": 7}},
            {"t": 2, "node1.vmstat": {"nr_dirty": 7, "nr_writeback": 0}, **first},
            {"t": 4, "node1.vmstat": {"nr_dirty": 6900, "nr_writeback": 2100}, **last},
        ]
    )
    assert list(found) == ["node 0, DMA", "node 0, DMA32", "node 1, DMA32", "node 0", "node 1"]
    zone, node = found["node 1, DMA32"], found["node 1"]
    assert zone.lines["dirty or under writeback"][-1] == (4.0, 9000.0)
    assert zone.lines["inactive file"][-1] == (4.0, 20000.0)
    assert zone.lines["dirty"] == []
    assert node.lines == {
        "dirty": [(0.0, 5.0), (2.0, 7.0), (4.0, 6900.0)],
        "under writeback": [(2.0, 0.0), (4.0, 2100.0)],
    }
    assert zone.pages == node.pages == first["node1.DMA32"]["present"]
    assert zone.changing == {"free", "inactive file", "dirty or under writeback"}
    assert node.changing == {"dirty", "under writeback"}
    assert found["node 0, DMA32"].changing == set(), "its free pages alone"


def test_zones_before_4_8() -> None:
    found = samples.zones([{"t": 2, **agent.zones(recorded("zoneinfo-3.19.txt"))}])
    assert list(found) == ["node 0, DMA", "node 0, Normal"]
    lines = {what: line[0][1] for what, line in found["node 0, Normal"].lines.items() if line}
    assert lines == {
        "free": 11203,
        "inactive file": 112313,
        "active file": 9942,
        "dirty": 59709,
        "under writeback": 739,
    }


def test_samples_without_zones() -> None:
    assert samples.zones(SAMPLES) == {}


def test_at() -> None:
    line = [(1.0, 5.0), (2.0, 6.0)]
    assert [samples.at(line, t) for t in (0.5, 1.0, 1.9, 2.0, 9.0)] == [None, 5.0, 5.0, 6.0, 6.0]


def test_thin_keeps_both_ends() -> None:
    assert samples.thin(range(1000), 5) == [0, 250, 500, 749, 999]
    assert samples.thin([1, 2], 5) == [1, 2]


EVENT = "migrate:mm_migrate_pages"


def growing(counts: list[int], *, steady: int = 4, step: float = 4.0) -> list[dict[str, object]]:
    """A sample each `step` seconds with these counts; the footprint is whole from the sample `steady` on."""
    return [
        {
            "t": step * (number + 1),
            "vmstat": {"nr_anon_pages": 1000 if number >= steady else 100 * number},
            "trace": {EVENT: count},
        }
        for number, count in enumerate(counts)
    ]


def test_rates_of_the_steady_part() -> None:
    """The seed's rate: windows of 10 s once the footprint is stable. What came before is not in it."""
    start = [0, 5000, 9000, 12000]
    # Steady from t = 20 to 52: windows begin at 20, 30 and 40, and end halfway between samples where one is at 30.
    later = [12000, 12100, 12200, 12300, 12440, 12580, 12700, 12820, 12940]
    rate = samples.rates(growing(start + later))[EVENT]
    assert rate.windows == 3
    counts = (12250 - 12000, 12580 - 12250, 12880 - 12580)
    assert rate.mean == pytest.approx(sum(counts) / 3)
    assert rate.error_percent == pytest.approx(100 * statistics.stdev(counts) / 3**0.5 / rate.mean)


def test_no_rate() -> None:
    """A steady part shorter than a window has none, nor have samples without tracepoints or footprint."""
    assert samples.rates(growing([0, 1, 2, 3, 4, 5])) == {}
    assert samples.rates(SAMPLES) == {}
    assert samples.rates([{"t": 1.0, "vmstat": {}, "trace": {EVENT: 1}}]) == {}
    assert samples.rates([]) == {}


def test_a_rate_without_spread() -> None:
    one = samples.rates(growing([0, 0, 0, 0, 0, 40, 80, 120]))[EVENT]
    assert (one.mean, one.windows, one.error_percent) == (100.0, 1, None)
    nothing = samples.rates(growing([5] * 12))[EVENT]
    assert (nothing.mean, nothing.windows, nothing.error_percent) == (0.0, 2, None)
