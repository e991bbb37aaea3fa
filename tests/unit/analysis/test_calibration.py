# SPDX-License-Identifier: GPL-2.0-only
"""A against A: the spread computed by hand, kept for one site only, and thresholds within it."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest

from numalab.analysis import calibration
from numalab.analysis.calibration import Spread
from numalab.core import state
from numalab.core.errors import InputError
from numalab.model.case import Arm, Case
from numalab.model.run import Run
from numalab.model.topology import Topology, scale
from numalab.model.values import Accel
from tests.unit.analysis.test_verdict import FALLING, QUICK, boot, case, experiment
from tests.unit.makers import spec

SAME = case(before="6.1", after="6.1")
LOCAL = case(FALLING.model_copy(update={"metric": "hint_local_percent"}), before="6.1", after="6.1")


def spread_of(counts: tuple[int, ...], **more: Any) -> Spread:
    half = len(counts) // 2
    found = calibration.of(experiment(counts[:half], counts[half:], of=SAME, **more)).spread(FALLING)
    assert found is not None
    return found


def test_by_hand() -> None:
    """Logs of 100 200 400 are ln 2 apart: their standard deviation is ln 2, over both arms alike."""
    found = spread_of((100, 200, 400))
    assert (found.metric, found.phase, found.boots) == ("numa_pte_updates", "work-*", 3)
    assert found.mean == pytest.approx(700 / 3)
    assert found.sd == pytest.approx(math.log(2))


def test_limit_by_hand() -> None:
    """exp(t sd √(2/n)): with 3 boots calibrated t(2, 97.5 %) is 4.303, with 6 t(5) is 2.571."""
    assert Spread(metric="m", phase="*", boots=3, mean=1, sd=0.1).limit(3) == pytest.approx(
        math.exp(4.3027 * 0.1 * math.sqrt(2 / 3)), rel=1e-4
    )
    assert Spread(metric="m", phase="*", boots=6, mean=1, sd=0.1).limit(8) == pytest.approx(
        math.exp(2.5706 * 0.1 * 0.5), rel=1e-4
    )
    assert Spread(metric="m", phase="*", boots=6, mean=1, sd=0).limit(3) == 1


def test_the_limit_is_passed_once_in_20_times() -> None:
    """Six boots calibrate, two lots of three are compared; 3000 times."""
    drawn = np.random.default_rng(1).normal(0, 0.3, (3000, 12))
    passed = 0
    for row in drawn:
        limit = Spread(metric="m", phase="*", boots=6, mean=1, sd=float(np.std(row[:6], ddof=1))).limit(3)
        passed += abs(float(np.mean(row[6:9]) - np.mean(row[9:]))) > math.log(limit)
    assert passed / 3000 == pytest.approx(0.05, abs=0.015)


def test_zeros_have_a_spread_too() -> None:
    assert spread_of((0, 0, 0)).sd == 0
    mixed = spread_of((0, 4, 0, 9))
    assert mixed.sd == pytest.approx(np.std(np.log([0.5, 4.5, 0.5, 9.5]), ddof=1))


def test_the_spread_within_several_experiments() -> None:
    """Pooled: what differs between them is no spread, and each mean takes a degree of freedom."""
    one, other = (100, 110, 105), (1000, 1200)
    pooled = calibration.spread([one, other], FALLING)
    logs = [np.log(side) - np.mean(np.log(side)) for side in (one, other)]
    assert pooled
    assert pooled.sd == pytest.approx(math.sqrt(sum(float(np.sum(side**2)) for side in logs) / 3))
    assert (pooled.boots, pooled.mean) == (4, 503)
    assert calibration.spread([(1, 2), (3,)], FALLING) is None


def local(*counts: tuple[int, int]) -> list[Run]:
    """Boots with these hinting faults: all, local ones."""
    vmstat = [{"numa_hint_faults": every, "numa_hint_faults_local": near} for every, near in counts]
    return [boot(Arm.AFTER, index, numbers, of=LOCAL) for index, numbers in enumerate(vmstat)]


def test_percentages_have_the_spread_of_their_odds() -> None:
    """80, 90, 50 %: odds 4, 9, 1; a spread of an older lab, of the percentages, is none."""
    known = calibration.of(local((100, 80), (200, 180), (100, 50)))
    (spread,) = known.spreads
    assert spread.odds
    assert spread.sd == pytest.approx(np.std(np.log([4, 9, 1]), ddof=1))
    assert spread.mean == pytest.approx((80 + 90 + 50) / 3)
    assert known.spread(LOCAL.expect[0]) == spread
    older = known.model_copy(update={"spreads": (spread.model_copy(update={"odds": False}),)})
    assert older.spread(LOCAL.expect[0]) is None


def test_some_zeros_in_a_ratio_have_no_spread() -> None:
    ratio = FALLING.model_copy(update={"metric": "migrated_per_hint_fault"})
    of = case(ratio, before="6.1", after="6.1")
    for moved, spreads in (((4, 5, 6), 1), ((0, 0, 4), 0), ((0, 0, 0), 1)):
        runs = [
            boot(Arm.AFTER, index, {"numa_hint_faults": 100, "numa_pages_migrated": pages}, of=of)
            for index, pages in enumerate(moved)
        ]
        assert len(calibration.of(runs).spreads) == spreads


def test_thresholds_inside_the_spread() -> None:
    """100 110 105 95 ± 6.3 %: t(3) = 3.182; a factor of 1.18 is chance with 3 boots of each, 1.07 with 20."""
    known = calibration.of(experiment((100, 110), (105, 95), of=SAME))
    tight, fit = FALLING.model_copy(update={"by": 1.1}), FALLING.model_copy(update={"by": 1.3})
    ((refused, limit),) = calibration.inside((tight, fit), 3, known)
    assert refused == tight
    assert limit == pytest.approx(math.exp(3.1824 * 0.06274 * math.sqrt(2 / 3)), rel=1e-3)
    assert calibration.inside((tight, fit), 20, known) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"by": 1.0},
        {"by": 1.1, "metric": "pgfault"},
        {"by": 1.1, "phase": "work-0"},
    ],
)
def test_what_is_no_threshold_or_not_calibrated(changes: dict[str, Any]) -> None:
    known = calibration.of(experiment((100, 200), (50, 300), of=SAME))
    assert calibration.inside((FALLING.model_copy(update={"by": 1.1}),), 3, known)
    assert calibration.inside((FALLING.model_copy(update=changes),), 3, known) == ()


def test_a_count_that_is_not_whole_is_no_count() -> None:
    """What a workload computed has no Poisson floor, and no scale where some are 0."""
    own = FALLING.model_copy(update={"metric": "output:share"})
    whole, part = calibration.spread([[4, 5, 6]], own), calibration.spread([[0.4, 0.5, 0.6]], own)
    assert whole
    assert part
    assert part.sd == pytest.approx(statistics.stdev(map(math.log, (4, 5, 6))))
    assert calibration.spread([[0, 0.5, 0.6]], own) is None
    assert calibration.spread([[0, 5, 6]], own)


def test_a_metric_that_few_boots_have_is_not_calibrated() -> None:
    runs = [*experiment((100, 200), (), of=SAME), boot(Arm.AFTER, 1, {"pgfault": 3}, of=SAME)]
    assert calibration.of(runs).spreads == ()


def test_runs_that_broke_do_not_count() -> None:
    broken = boot(Arm.AFTER, 9, {"numa_pte_updates": 10**9}, of=SAME, error="panic")
    runs = experiment((100, 110), (105, 95), of=SAME)
    assert calibration.of([*runs, broken]).spreads == calibration.of(runs).spreads
    assert calibration.of([*runs, broken]).runs == tuple(sorted(run.id for run in runs))
    with pytest.raises(InputError, match="needs 3 boots that ended well, there are 2"):
        calibration.of([*experiment((100,), (105,), of=SAME), broken])


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (experiment((100, 110), (105,)), "kernel: 6.1, 6.1-x-before"),
        (
            [*experiment((100, 110), (105,), of=SAME), boot(Arm.AFTER, 9, {}, of=SAME, accel=Accel.KVM)],
            "accelerator: ",
        ),
        (
            [
                *experiment((100, 110), (105,), of=SAME),
                boot(Arm.AFTER, 9, {}, of=case(before="6.1", after="6.1", append="x")),
            ],
            "their case",
        ),
    ],
)
def test_of_one_kernel_on_one_machine(runs: list[Run], words: str) -> None:
    with pytest.raises(InputError, match="one kernel, case and machine") as refused:
        calibration.of(runs)
    assert words in str(refused.value)


def test_kept_and_found_again() -> None:
    runs = experiment((100, 110), (105, 95), of=SAME)
    known = calibration.of(runs)
    assert calibration.load(known.site) is None
    path = calibration.save(known)
    assert path.parent == state.folder("calibration")
    assert path.name.startswith("slow-quick-")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert calibration.load(calibration.site(runs[0])) == known
    again = calibration.of(experiment((100, 120), (105, 95), of=SAME))
    calibration.save(again)
    assert calibration.load(known.site) == again, "the last one counts"


def test_planned_before_there_is_a_run() -> None:
    """The site before the first boot is that of the runs; thresholds and descriptions are no part of it."""
    shape = spec("4socket").topology
    asked = case(FALLING.model_copy(update={"by": 9.0}), notes="other words")
    for run in experiment((100,), (105,)):
        assert calibration.plan("slow", asked, run.size, shape, Accel.TCG, "vm") == calibration.site(run)


def shrunk() -> Topology:
    return scale(spec("4socket").topology, vcpus=8)


def with_spec(**changes: object) -> Run:
    run = boot(Arm.AFTER, 0, {})
    spec = run.guest.spec.model_copy(update=changes)
    return run.model_copy(update={"guest": run.guest.model_copy(update={"spec": spec})})


def restored() -> Run:
    run = boot(Arm.AFTER, 0, {})
    return run.model_copy(update={"guest": run.guest.model_copy(update={"ready_state": "a1"})})


@pytest.mark.parametrize(
    "other",
    [
        boot(Arm.AFTER, 0, {}, accel=Accel.KVM),
        boot(Arm.AFTER, 0, {}, topology="fakenuma"),
        boot(Arm.AFTER, 0, {}, topology=shrunk()),
        boot(Arm.AFTER, 0, {}, host={"machine": "big"}),
        boot(Arm.AFTER, 0, {}, of=case(append="x")),
        boot(Arm.AFTER, 0, {}, of=case(workload="v")),
        boot(
            Arm.AFTER,
            0,
            {},
            of=case(sizes={"quick": QUICK.model_copy(update={"knobs": {"scan_size_mb": "1"}})}),
        ),
        restored(),
        boot(Arm.AFTER, 0, {}, prepared=("make",)),
        with_spec(huge_page=2 << 20),
        with_spec(icount_shift=5),
    ],
    ids=[
        "accelerator",
        "topology",
        "scaled",
        "host",
        "command line",
        "workload",
        "knobs",
        "ready states",
        "prepared disks",
        "huge pages",
        "shift",
    ],
)
def test_another_site_is_not_calibrated(other: Run) -> None:
    known = calibration.of(experiment((100, 110), (105, 95), of=SAME))
    calibration.save(known)
    assert calibration.load(calibration.site(other)) is None


def test_a_run_of_no_case_has_no_site() -> None:
    stray = boot(Arm.AFTER, 0, {}).model_copy(update={"place": None})
    with pytest.raises(InputError, match="belongs to no case"):
        calibration.site(stray)


@pytest.mark.parametrize("damage", [b"{", b"", b"[]", b"\xff\xfe"])
def test_a_file_that_is_broken(damage: bytes) -> None:
    known = calibration.of(experiment((100, 110), (105, 95), of=SAME))
    calibration.save(known).write_bytes(damage)
    with pytest.raises(InputError, match=r"not a calibration: .*lab\.py calibrate slow"):
        calibration.load(known.site)


def test_a_case_is_kept_as_data() -> None:
    """Numbers and sizes of a case survive storage: a site that is read back is the same site."""
    odd: Case = case(disks=({"name": "data", "size": "3GiB"},), before="6.1", after="6.1")
    known = calibration.of(experiment((100, 110), (105, 95), of=odd))
    calibration.save(known)
    found = calibration.load(known.site)
    assert found is not None
    assert found.site == known.site


def of_machine(ident: str | None) -> list[Run]:
    """An experiment on the machine with this id; None: recorded by a lab without machine ids."""
    runs = experiment((100, 110), (105, 95), of=SAME)
    return [
        run.model_copy(update={"host": {**run.host, **({} if ident is None else {"machine id": ident})}})
        for run in runs
    ]


def test_two_machines_of_one_name_are_two_sites() -> None:
    calibration.save(calibration.of(of_machine("a")))
    assert calibration.load(calibration.site(of_machine("a")[0])) is not None
    assert calibration.load(calibration.site(of_machine("b")[0])) is None
    assert calibration.load(calibration.site(of_machine(None)[0])) is None
    with pytest.raises(InputError, match="these runs differ in host: machine id=a"):
        calibration.of(
            [*of_machine("a"), *(run.model_copy(update={"id": f"{run.id}-b"}) for run in of_machine("b"))]
        )


def test_an_older_calibration_still_counts() -> None:
    known = calibration.of(of_machine(None))
    path = calibration.save(known)
    assert "machine_id" not in str(path)
    assert calibration.load(calibration.site(of_machine("a")[0])) == known
    mixed = calibration.of(
        [*of_machine(None), *(run.model_copy(update={"id": f"{run.id}-a"}) for run in of_machine("a"))]
    )
    assert mixed.site.machine_id == "a"
