# SPDX-License-Identifier: GPL-2.0-only
"""A night in a thread, over real Dask processes with fake guests: each experiment is waited for by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import distributed
import pytest

from numalab.core.errors import Cancelled, HostError, InputError, KernelOops
from numalab.experiment.plan import make_plan
from numalab.model.run import Run
from numalab.model.values import SizeClass
from numalab.pool import cluster, driver, unit
from numalab.pool.background import Background
from numalab.pool.driver import Driver, Judged
from numalab.pool.night import Night
from numalab.pool.supply import Supply
from numalab.pool.unit import Order
from tests.unit.makers import until
from tests.unit.pool import fakes
from tests.unit.pool.fakes import Pool

Begin = Callable[[int], Background]


@pytest.fixture
def begin(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Begins a night of so many experiments with two rounds of fake guests."""

    def judge(order: Order, _runs: list[Run]) -> Judged:
        if order.id == "00001-fake":
            raise InputError("these runs are not comparable")
        return Judged((), None)

    real = partial(driver.Driver, perform=fakes.perform, judged=judge, every=0.05, patience=0.0)

    def own(client: distributed.Client, night: Night, *, supply: Supply) -> driver.Driver:
        assert isinstance(supply, Supply), "hosts are given what they lack"
        return real(client, night)  # fake guests lack nothing

    monkeypatch.setattr(cluster, "connect", pool.client)
    monkeypatch.setattr(driver, "Driver", own)
    monkeypatch.setattr(unit, "order", lambda number, *_: fakes.order(number, 2))
    return lambda count: Background([(make_plan("threads", SizeClass.QUICK), 2)] * count)


def test_each_experiment_is_waited_for(pool: Pool, begin: Begin) -> None:
    """The first has its outcome while the others are still to come; one without a verdict is an error."""
    h0 = pool.start("h0")
    night = begin(3)
    first = night.outcome(0)
    assert [run.place.boot for run, _ in first.runs if run.place] == [0, 1, 2, 3]
    assert all((folder / "run.json").exists() for _, folder in first.runs)
    with pytest.raises(InputError, match="not comparable"):
        night.outcome(1)
    (h0 / "crash").write_text("the after kernel crashed: BUG")
    night.close()
    assert night.over


def test_a_crash_is_the_kernel_s(pool: Pool, begin: Begin) -> None:
    h0 = pool.start("h0")
    (h0 / "crash").write_text("the after kernel crashed: BUG")
    night = begin(1)
    with pytest.raises(KernelOops, match="BUG"):
        night.outcome(0)
    night.close()
    assert night.whole


def test_closed_early_it_can_be_resumed(pool: Pool, begin: Begin) -> None:
    """Without `end` the round that runs is stored; no other begins, and who waits is told."""
    h0 = pool.start("h0")
    (h0 / "hold").touch()
    night = begin(1)
    until((h0 / "began-00000-fake-0").exists)
    night._wish.drain.set()
    (h0 / "hold").unlink()
    with pytest.raises(Cancelled):
        night.outcome(0)
    night.close()
    assert not night.whole
    resumed = driver.Driver(pool.client(), Night(night.night), supply=Supply())
    (result,) = resumed.run()
    assert (result.over, resumed.stored) == (True, 1)


def test_what_ends_the_night_reaches_all_who_wait(
    pool: Pool, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets an exception of its own, which names the night."""
    (pool.start("h0") / "hold").touch()

    def ended(*_: object) -> None:
        raise HostError("the disk is full")

    monkeypatch.setattr(Driver, "run", ended)
    night = begin(2)
    errors = []
    for number in (0, 1):
        with pytest.raises(HostError, match=f"night {night.night} ended: the disk is full") as raised:
            night.outcome(number)
        errors.append(raised.value)
    assert errors[0] is not errors[1]
    night.close()


def test_end_does_not_wait_for_the_round(pool: Pool, begin: Begin) -> None:
    h0 = pool.start("h0")
    (h0 / "hold").touch()
    night = begin(1)
    until((h0 / "began-00000-fake-0").exists)
    night.end()
    night.close()
    assert not night.whole
