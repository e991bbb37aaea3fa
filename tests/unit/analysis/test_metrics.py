# SPDX-License-Identifier: GPL-2.0-only
"""Each metric against numbers computed by hand; absent values; names that cannot be a metric."""

from __future__ import annotations

import pytest

from numalab.analysis import metrics
from numalab.analysis.metrics import DERIVED, TIMES, Kind
from numalab.core.errors import InputError
from numalab.model.run import PhaseResult, Run
from numalab.model.values import Phase, SizeClass
from numalab.runs.counters import parse
from tests.unit.makers import record_of, recorded, spec

BALANCING = {
    "numa_pte_updates": 1000,
    "numa_huge_pte_updates": 2,
    "numa_hint_faults": 200,
    "numa_hint_faults_local": 50,
    "numa_pages_migrated": 80,
    "pgfault": 520,
    "pgmajfault": 20,
}
RECLAIM = {
    "nr_vmscan_write": 30,
    "pgscan_kswapd": 400,
    "pgsteal_kswapd": 100,
    "pgscan_direct": 200,
    "pgsteal_direct": 150,
}
RECLAIM_3_19 = {
    "pgscan_kswapd_dma": 100,
    "pgscan_kswapd_dma32": 300,
    "pgsteal_kswapd_dma": 40,
    "pgsteal_kswapd_dma32": 60,
    "pgscan_direct_normal": 200,
    "pgsteal_direct_normal": 150,
    "pgscan_direct_throttle": 7,
    "nr_vmscan_write": 30,
}
FAIR = {
    "pgalloc_dma": 0,
    "pgalloc_dma32": 3000,
    "pgalloc_normal": 1000,
    "fairzone_scanned": 8000,
    "fairzone_remote": 2000,
    "fairzone_depleted": 1000,
    "fairzone_unfair_scanned": 4000,
    "fairzone_reset": 12,
    "fairzone_zones_reset": 36,
}
BY_HAND: tuple[tuple[str, dict[str, int], float], ...] = (
    ("page_range_updates", BALANCING, 1000 + 512 * 2),
    ("base_pte_updates", {**BALANCING, "numa_huge_pte_updates": 1}, 1000 - 512),
    ("hint_local_percent", BALANCING, 25),
    ("minor_faults", BALANCING, 500),
    ("migrated_per_hint_fault", BALANCING, 0.4),
    ("other_minor_faults", BALANCING, 300),
    ("faults_per_hint_fault", BALANCING, 2.5),
    ("touch_faults_per_hint_fault", BALANCING, 1.5),  # 300 are told
    ("hint_faults_per_pte_update", BALANCING, 0.2),
    ("pte_updates_per_user_second", BALANCING, 250),  # user is 4 s
    ("numa_pte_updates_per_cpu_second", BALANCING, 200),  # user and system are 5 s
    ("page_range_updates_per_cpu_second", BALANCING, 404.8),
    ("numa_hint_faults_per_cpu_second", BALANCING, 40),
    ("autonuma_cost", BALANCING, 1.11232),  # (7 * 1000 + 5000 * 200 + 1316.5 * 80) / 1e6
    ("system_percent", {}, 20),  # system is 1 s
    ("vmscan_write_per_scan", RECLAIM, 0.05),
    ("kswapd_scan_per_steal", RECLAIM, 4),
    ("direct_scan_per_steal", RECLAIM, 4 / 3),
    ("kswapd_scanned", RECLAIM, 400),
    ("kswapd_reclaimed", RECLAIM, 100),
    ("direct_scanned", RECLAIM, 200),
    ("direct_reclaimed", RECLAIM, 150),
    ("kswapd_efficiency", RECLAIM, 25),
    ("direct_efficiency", RECLAIM, 75),
    ("zones_looked_at_per_1000_pages", FAIR, 3000),
    ("fairzone_looked_at_per_1000_pages", FAIR, 2000),
    ("fairzone_skipped_per_1000_pages", FAIR, 750),
    ("fairzone_resets_per_1000_pages", FAIR, 3),
    ("fairzone_zones_reset_per_1000_pages", FAIR, 9),
)


def phase(
    name: str,
    counters: dict[str, dict[str, int]],
    *,
    measured: bool = True,
    output: dict[str, float] | None = None,
) -> PhaseResult:
    return PhaseResult(
        phase=Phase(name=name, command="true", limit_seconds=60, measured=measured),
        status=0,
        elapsed=10,
        user=4,
        system=1,
        counters=counters,
        output=output or {},
        guest_load=0,
        host_load=0,
    )


def run(*phases: PhaseResult) -> Run:
    return Run(
        id="r",
        workload="w",
        size=SizeClass.QUICK,
        params={},
        started="",
        host={},
        guest=record_of(spec()),
        release="",
        cmdline="",
        phases=phases,
    )


@pytest.mark.parametrize(("name", "vmstat", "expected"), BY_HAND, ids=[row[0] for row in BY_HAND])
def test_by_hand(name: str, vmstat: dict[str, int], expected: float) -> None:
    told = phase("a", {"vmstat": vmstat}, output={"touch_minor_faults": 300})
    assert metrics.value(run(told), name, "a") == pytest.approx(expected, rel=1e-12)


def test_every_derived_metric_was_worked_out() -> None:
    assert {row[0] for row in BY_HAND} | {"kswapd_seconds"} == set(DERIVED)


def test_time_of_kswapd() -> None:
    """All nodes' threads, over phases; a boot in which one was not seen has no time of kswapd."""
    first, last = (
        phase(name, {"vmstat": {}, "kswapd": times})
        for name, times in (("a", {"kswapd0": 1230, "kswapd1": 20}), ("b", {"kswapd0": 0, "kswapd1": 750}))
    )
    assert metrics.value(run(first, last), "kswapd_seconds", "*") == 2
    assert metrics.value(run(first, last), "kswapd_seconds", "a") == 1.25
    assert metrics.value(run(first, last), "kswapd:kswapd1", "*") == 770
    assert metrics.value(run(first, phase("b", {"vmstat": {}})), "kswapd_seconds", "*") is None
    assert {metrics.kind(name) for name in ("kswapd_seconds", "kswapd:kswapd0")} == {metrics.Kind.TIME}


@pytest.mark.parametrize("name", [row[0] for row in BY_HAND if row[1] is RECLAIM])
def test_counters_by_zone(name: str) -> None:
    """Kernels before 4.8 count reclaim by zone; the sum is the same metric. The throttle count is none."""
    old, new = (
        metrics.value(run(phase("a", {"vmstat": vmstat})), name, "a") for vmstat in (RECLAIM_3_19, RECLAIM)
    )
    assert old == new is not None


@pytest.mark.parametrize("name", sorted(DERIVED))
def test_nothing_below_the_line_and_nothing_at_all(name: str) -> None:
    """With counters of 0, a metric with a divisor is absent. Without the counters, every metric is."""
    zeros = dict.fromkeys([*BALANCING, *RECLAIM, *FAIR], 0)
    idle = phase("a", {"vmstat": zeros}).model_copy(update={"user": 0.0, "system": 0.0})
    reclaim = {"kswapd_scanned", "kswapd_reclaimed", "direct_scanned", "direct_reclaimed"}
    sums = {"page_range_updates", "base_pte_updates", "minor_faults", "other_minor_faults"} | reclaim
    sums |= {"autonuma_cost"}
    assert metrics.value(run(idle), name, "a") == (0 if name in sums else None)
    if name != "system_percent":
        assert metrics.value(run(phase("a", {"vmstat": {}})), name, "a") is None
        assert metrics.value(run(phase("a", {})), name, "a") is None


def test_a_part_that_is_absent_is_not_0() -> None:
    for name, vmstat, _ in BY_HAND:
        for missing in vmstat:
            if missing in ("pgalloc_dma", "pgalloc_dma32", "pgalloc_normal"):
                continue  # a machine has the zones that it has
            value = metrics.value(
                run(phase("a", {"vmstat": {key: count for key, count in vmstat.items() if key != missing}})),
                name,
                "a",
            )
            whole = metrics.value(run(phase("a", {"vmstat": vmstat})), name, "a")
            assert value in (None, whole), f"{name} without {missing}"


def test_reclaim_of_3_2() -> None:
    """Before 3.5 kswapd_steal is kswapd's part of pgsteal_ZONE, and the rest was reclaimed directly.

    By hand from vmstat-3.2.txt: kswapd scanned 7968 + 512000 + 88032 pages and reclaimed 456000 of the 4800 + 402000 +
    73200; 2000 + 40000 + 6000 were scanned directly.
    """
    whole = run(phase("a", {"vmstat": parse(recorded("vmstat-3.2.txt"))}))
    expected = {
        "kswapd_scanned": 608000,
        "kswapd_reclaimed": 456000,
        "direct_scanned": 48000,
        "direct_reclaimed": 24000,
        "kswapd_scan_per_steal": 4 / 3,
        "direct_scan_per_steal": 2,
        "kswapd_efficiency": 75,
        "direct_efficiency": 50,
        "vmscan_write_per_scan": 0.05,
    }
    assert {name: metrics.value(whole, name, "*") for name in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("missing", "absent"),
    [
        ("kswapd_steal", {"kswapd_reclaimed", "direct_reclaimed"}),
        ("pgsteal_", {"direct_reclaimed"}),
    ],
)
def test_reclaim_of_3_2_without_a_part(missing: str, absent: set[str]) -> None:
    vmstat = {
        name: count
        for name, count in parse(recorded("vmstat-3.2.txt")).items()
        if not name.startswith(missing)
    }
    less = run(phase("a", {"vmstat": vmstat}))
    names = {"kswapd_reclaimed", "direct_reclaimed"}
    assert {name for name in names if metrics.value(less, name, "*") is None} == absent


def test_todays_counters_go_first() -> None:
    """A kernel with both (none has) is read by today's."""
    both = RECLAIM | {"kswapd_steal": 1, "pgsteal_normal": 2}
    of = run(phase("a", {"vmstat": both}))
    assert metrics.value(of, "kswapd_reclaimed", "a") == 100
    assert metrics.value(of, "direct_reclaimed", "a") == 150


def test_published_cost() -> None:
    """mmtests' cost without page copies: for 5.3-rc2 (5948 updates, 4639 faults, 1528 pages) 23.27."""
    vmstat = {"numa_pte_updates": 5948, "numa_hint_faults": 4639, "numa_pages_migrated": 1528}
    ours = metrics.value(run(phase("a", {"vmstat": vmstat})), "autonuma_cost", "a")
    assert ours is not None
    assert ours - 1528 * (7 + 512) * 2.5 / 1e6 == pytest.approx(23.27, abs=0.005)


def test_recorded() -> None:
    """A whole /proc/vmstat of 6.1: 40861 faults, 38005 pages migrated, 281208 - 532 minor faults."""
    whole = run(phase("a", {"vmstat": parse(recorded("vmstat-6.1.txt"))}))
    assert metrics.value(whole, "migrated_per_hint_fault", "*") == pytest.approx(38005 / 40861)
    assert metrics.value(whole, "faults_per_hint_fault", "*") == pytest.approx(280676 / 40861)
    assert metrics.value(whole, "fairzone_resets_per_1000_pages", "*") is None


def test_phases_are_added_up() -> None:
    parts = run(
        phase("make", {"vmstat": {"a": 1000}}, measured=False),
        phase(
            "repair-one",
            {"vmstat": {"a": 1, "b": 2}, "node0.vmstat": {"c": 1}, "trace": {"migrate:mm_migrate_pages": 3}},
            output={"x": 1.5, "y": 1},
        ),
        phase("repair-two", {"vmstat": {"a": 4}, "trace": {"migrate:mm_migrate_pages": 5}}, output={"x": 2}),
        phase("other", {"vmstat": {"a": 100}}),
    )
    sums = metrics.merged(parts, "repair-*")
    assert sums is not None
    assert (sums.elapsed, sums.user, sums.system) == (20, 8, 2)
    assert sums.counters == {"vmstat": {"a": 5}, "trace": {"migrate:mm_migrate_pages": 8}}
    assert sums.output == {"x": 3.5}
    assert metrics.value(parts, "a", "*") == 105
    assert metrics.value(parts, "b", "repair-*") is None, "a part of a count is not the count"
    assert metrics.value(parts, "b", "repair-one") == 2


def test_no_such_phase() -> None:
    bare = run(phase("make", {"vmstat": {"a": 1}}, measured=False))
    assert metrics.merged(bare, "repair-*") is None
    assert metrics.value(bare, "a", "make") is None, "preparation is no result"
    assert metrics.value(run(), "elapsed", "*") is None


def test_sources_by_name() -> None:
    counters = {
        "vmstat": {"pgfault": 1},
        "node1.vmstat": {"nr_dirty": -2},
        "node12.numastat": {"numa_foreign": 3},
        "trace": {"migrate:mm_migrate_pages": 4},
    }
    whole = run(phase("a", counters, output={"cache.hits": 5.5}))
    found = {
        name: metrics.value(whole, name, "a")
        for name in (
            "pgfault",
            "vmstat:pgfault",
            "node1.vmstat:nr_dirty",
            "node12.numastat:numa_foreign",
            "trace:migrate:mm_migrate_pages",
            "output:cache.hits",
            "user",
            "system",
            "elapsed",
            "node0.vmstat:nr_dirty",
            "output:none",
        )
    }
    assert list(found.values()) == [1, 1, -2, 3, 4, 5.5, 4, 1, 10, None, None]


@pytest.mark.parametrize(
    "name",
    [
        "Elapsed",
        "node1.vmstat",
        "node1.vmstat:",
        "foo:bar",
        "trace:mm_migrate_pages",
        "output:",
        "numa-hit",
        "",
        "nodex.vmstat:a",
    ],
)
def test_a_name_that_can_be_none(name: str) -> None:
    assert not metrics.known(name)
    with pytest.raises(InputError, match="metric") as error:
        metrics.value(run(), name, "*")
    assert "migrated_per_hint_fault" in str(error.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("user", Kind.TIME),
        ("elapsed", Kind.TIME),
        ("pte_updates_per_user_second", Kind.TIME),
        ("numa_pte_updates_per_cpu_second", Kind.TIME),
        ("page_range_updates_per_cpu_second", Kind.TIME),
        ("numa_hint_faults_per_cpu_second", Kind.TIME),
        ("system_percent", Kind.TIME),
        ("output:repair_seconds", Kind.TIME),
        ("output:files_per_second", Kind.TIME),
        ("output:repair_milliseconds", Kind.TIME),
        ("output:repair_ms", Kind.TIME),
        ("output:p99.latency", Kind.TIME),
        ("output:latency_p99_us", Kind.TIME),
        ("output:user-time", Kind.TIME),
        ("output:elapsed_s", Kind.TIME),
        ("output:files_per_sec", Kind.TIME),
        ("output:mib_per_s", Kind.TIME),
        ("output:Throughput", Kind.TIME),
        ("output:task-clock", Kind.TIME),
        *((f"output:{name}", Kind.TIME) for name in ("elapsed", "system", "real", "runtime", "scan_rate")),
        *((f"output:{name}", Kind.TIME) for name in ("latencyUs", "userTime", "ops_per_min", "tps", "IOPS")),
        *((f"output:{name}", Kind.COUNT) for name in ("system_calls", "min_pages", "real_pages", "moved")),
        ("output:cpu_clock", Kind.TIME),
        ("output:secondary_hits", Kind.COUNT),
        ("output:lifetimes", Kind.COUNT),
        ("output:bcache.cache_hits", Kind.COUNT),
        ("output:context-switches", Kind.COUNT),
        ("output:hits", Kind.COUNT),
        ("numa_pte_updates", Kind.COUNT),
        ("trace:migrate:mm_migrate_pages", Kind.COUNT),
        ("minor_faults", Kind.COUNT),
        ("hint_local_percent", Kind.SHARE),
        ("kswapd_efficiency", Kind.SHARE),
        ("direct_efficiency", Kind.SHARE),
        ("autonuma_cost", Kind.RATIO),
    ],
)
def test_kinds(name: str, kind: Kind) -> None:
    assert metrics.known(name)
    assert metrics.kind(name) is kind


def test_each_says_what_it_is() -> None:
    for name, metric in {**TIMES, **DERIVED}.items():
        assert metric.unit, name
        assert len(metric.about) > 10, name
