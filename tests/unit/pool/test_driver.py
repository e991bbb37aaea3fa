# SPDX-License-Identifier: GPL-2.0-only
"""The driver over real Dask processes on this machine, with fake guests: killed, frozen, resumed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distributed
import pytest

from numalab.core.errors import Cancelled, HostError, InputError
from numalab.model.run import Run
from numalab.pool import cluster, driver, store, unit
from numalab.pool import night as nights
from numalab.pool.driver import Driver, Judged, Result
from numalab.pool.night import Night
from numalab.pool.queue import Cause
from numalab.pool.unit import Order
from numalab.runs import index
from tests.unit.makers import until
from tests.unit.pool import fakes
from tests.unit.pool.fakes import Pool
from tests.unit.pool.session import Session, exactly_once

FIRST, SECOND = "00000-fake", "00001-fake"


def began(place: Path, order: str, number: int) -> Callable[[], bool]:
    return (place / f"began-{order}-{number}").exists


def test_two_experiments_on_two_hosts(pool: Pool) -> None:
    pool.start("h0")
    pool.start("h1")
    (pool.state("h0") / "hold").touch()  # the other host does not get both
    session = Session(pool, nights.make([fakes.order(0, 2), fakes.order(1, 2)]))
    session.until(lambda: len({ticket.host for _, ticket in session.seen}) == 2)
    (pool.state("h0") / "hold").unlink()
    results = session.end()
    assert [result.over and not result.cause for result in results] == [True, True]
    exactly_once(results)
    assert {run.host["machine"] for one in results for run in store.runs(one.experiment)} == {"h0", "h1"}


def test_a_killed_worker_s_experiment_begins_again_elsewhere(pool: Pool) -> None:
    h0 = pool.start("h0")
    (h0 / "hold-1").touch()
    session = Session(pool, nights.make([fakes.order(0, 3)]))
    session.until(began(h0, FIRST, 1))
    pool.start("h1")
    session.until(lambda: "h1" in session.driver._known)
    pool.kill("h0")
    results = session.end()
    exactly_once(results)
    assert {run.host["machine"] for run in store.runs(results[0].experiment)} == {"h1"}
    void = [entry for entry in index.find() if entry.error]
    assert void
    assert all("void: h0" in entry.error for entry in void)


def test_a_worker_that_comes_back_goes_on(pool: Pool) -> None:
    h0 = pool.start("h0")
    (h0 / "hold").touch()
    session = Session(pool, nights.make([fakes.order(0, 2)]), patience=1e6)
    session.until(began(h0, FIRST, 0))
    pool.kill("h0")
    (h0 / "hold").unlink()
    pool.start("h0")
    results = session.end()
    exactly_once(results)
    assert [ticket.attempt for what, ticket in session.seen if what == "stored"] == [0, 0]


def test_a_frozen_worker_s_late_round_does_not_count(tmp_path: Path) -> None:
    place = tmp_path / "frozen"
    place.mkdir()
    with Pool(place, ttl="8s") as pool:
        h0 = pool.start("h0")
        (h0 / "hold").touch()
        session = Session(pool, nights.make([fakes.order(0, 2), fakes.order(1, 2)]))
        session.until(began(h0, FIRST, 0))
        late = session.driver.results[FIRST].experiment
        pool.freeze("h0")
        h1 = pool.state("h1")
        h1.mkdir()
        (h1 / "hold-1").touch()
        pool.start("h1")
        session.until(lambda: any(began(h1, order, 1)() for order in (FIRST, SECOND)))
        session.until(lambda: "h0" not in session.driver._known)
        (h0 / "hold").unlink()
        pool.thaw("h0")
        # It finishes its round and is not heard, or ends itself. The session still runs, and takes nothing.
        until(lambda: not fakes.alive(pool, "h0") or any((h0 / "runs").glob("*/run.json")))
        time.sleep(1)
        (h1 / "hold-1").unlink()
        results = session.end()
        exactly_once(results)
        assert [run for run in store.runs(late) if not run.error] == []


def test_a_round_after_its_limit_is_refused(pool: Pool) -> None:
    h0 = pool.start("h0")
    (h0 / "hold").touch()
    # From its submission: on a machine with a load of 12 it began after 6 s.
    session = Session(pool, nights.make([fakes.order(0, 1, seconds=12)]), patience=1e6)
    session.until(began(h0, FIRST, 0))
    session.until(lambda: session.count("refused") >= 1)  # the host is told to end it, and says that it has
    (h0 / "hold").unlink()
    results = session.end()
    exactly_once(results)


@pytest.mark.parametrize("who", ["scheduler", "driver"])
def test_resumed_from_the_store(pool: Pool, who: str) -> None:
    h0 = pool.start("h0")
    (h0 / "hold-2").touch()
    night = nights.make([fakes.order(0, 1), fakes.order(1, 3)])
    session = Session(pool, night)
    session.until(began(h0, SECOND, 2))
    if who == "scheduler":
        pool.kill("scheduler")
        with pytest.raises(HostError, match="scheduler does not answer"):
            session.end()
        pool.kill("h0")
        (h0 / "hold-2").unlink()
        pool.start_scheduler()
        pool.start("h0")
    else:
        session.wish.end.set()
        session.wish.drain.set()
        with pytest.raises(Cancelled):
            session.end()
        (h0 / "hold-2").unlink()
    before = {entry.id for entry in index.find() if not entry.error}
    assert len(before) == 4
    resumed = Session(pool, Night(night.name), patience=1e6)
    results = resumed.end()
    exactly_once(results)
    assert before <= {entry.id for entry in index.find() if not entry.error}
    assert resumed.count("stored") == 2
    again = Session(pool, Night(night.name))
    assert again.end() == results, "what is over is judged again, though nothing is left to do"
    assert all(result.over for result in results)
    assert again.seen == []


def test_half_a_round_in_the_store_is_run_again(pool: Pool) -> None:
    pool.start("h0")
    night = nights.make([fakes.order(0, 2)])
    (result,) = Session(pool, night).end()
    first = [run for run in store.runs(result.experiment) if run.place and run.place.boot == 3]
    store.void(result.experiment, "as if this machine had died", range(3, 9))
    results = Session(pool, Night(night.name), patience=1e6).end()
    exactly_once(results)
    assert first[0].id not in {run.id for run in store.runs(result.experiment) if not run.error}


def test_a_crash_stands_and_its_runs_come_home(pool: Pool) -> None:
    h0 = pool.start("h0")
    (h0 / "crash").write_text("the after kernel crashed: BUG: unable to handle page fault")
    night = nights.make([fakes.order(0, 2)])
    (result,) = Session(pool, night).end()
    assert result.cause is Cause.CRASH
    assert "BUG" in result.why
    assert len(store.runs(result.experiment)) == 1
    resumed = Session(pool, Night(night.name))
    assert resumed.end()[0].cause is Cause.CRASH
    assert resumed.seen == []


def test_a_host_with_three_errors_is_set_aside(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    h0 = pool.start("h0")
    (h0 / "error").write_text("no room on the disk")
    session = Session(pool, nights.make([fakes.order(0, 2), fakes.order(1, 2)]))
    session.until(lambda: session.count("submitted") >= 3)
    pool.start("h1")
    results = session.end()
    exactly_once(results)
    assert "h0: set aside: 3 lab errors in a row; the last: h0: no room on the disk" in caplog.text


def test_a_worker_with_the_collecting_state_is_refused(
    pool: Pool, lab_state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool.start("h0", lab_state)
    session = Session(pool, nights.make([fakes.order(0, 1)]))
    session.until(lambda: "set aside" in caplog.text)
    session.wish.drain.set()
    with pytest.raises(Cancelled):
        session.end()
    assert "is the state directory that runs come home to" in caplog.text


def test_one_session_at_a_time_uses_a_pool(pool: Pool) -> None:
    h0 = pool.start("h0")
    (h0 / "hold").touch()
    session = Session(pool, nights.make([fakes.order(0, 1)]))
    session.until(began(h0, FIRST, 0))
    with pytest.raises(InputError, match="runs a night on the pool"):
        Session(pool, nights.make([fakes.order(0, 1)])).end()
    (h0 / "hold").unlink()
    exactly_once(session.end())


def test_another_checkout_does_not_go_on_with_an_experiment(pool: Pool) -> None:
    """Its experiment is void and begins again; what had ended stays."""
    h0 = pool.start("h0")
    (h0 / "hold-1").touch()
    night = nights.make([fakes.order(0, 1, seconds=5000), fakes.order(1, 2)])  # the longest is first
    session = Session(pool, night)
    session.until(began(h0, SECOND, 1))
    session.wish.end.set()
    session.wish.drain.set()
    with pytest.raises(Cancelled):
        session.end()
    (h0 / "hold-1").unlink()
    journal = night.folder / "journal.jsonl"
    journal.write_text(journal.read_text().replace(unit.checkout(), "0" * 16))
    old = session.driver.results[SECOND].experiment
    done = session.driver.results[FIRST].experiment
    resumed = Session(pool, Night(night.name), patience=1e6)
    results = resumed.end()
    exactly_once(results)
    assert [one.experiment == before for one, before in zip(results, (done, old), strict=True)] == [
        True,
        False,
    ]
    assert {run.error.partition(":")[0] for run in store.runs(old)} == {"void"}
    assert {ticket.attempt for what, ticket in resumed.seen if what == "stored"} == {1}


def test_what_round_0_settled_is_in_the_journal_before_its_runs_are_in_the_store(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.start("h0")
    night = nights.make([fakes.order(0, 2)])
    seen: list[int] = []
    add = store.add

    def watched(*words: Any) -> Any:
        seen.append(sum(isinstance(line, nights.Settled) for line in night.lines()))
        return add(*words)

    monkeypatch.setattr(store, "add", watched)
    exactly_once(Session(pool, night).end())
    assert seen == [1, 1]


def test_a_transfer_that_hangs_holds_nobody_up_and_one_that_fails_costs_one_round(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, go_on, first = distributed.Future.result, threading.Event(), threading.Event()

    def hanging(self: Any, timeout: float | None = None) -> Any:
        if not first.is_set():
            first.set()
            assert go_on.wait(60)
            raise OSError("the connection broke")
        return result(self, timeout=timeout)

    monkeypatch.setattr(distributed.Future, "result", hanging)
    pool.start("h0")
    pool.start("h1")
    session = Session(pool, nights.make([fakes.order(0, 1), fakes.order(1, 1)]), patience=1e6)
    session.until(lambda: session.count("stored") == 1)
    go_on.set()
    results = session.end()
    exactly_once(results)
    assert session.count("stored") == 2
    assert session.count("submitted") == 3


def test_a_worker_that_was_started_again_is_another_instance() -> None:
    facts = {"id": "h0", "resources": {"memory": 1, "tcg": 1}}
    old, new = (driver._host("h0", {**facts, "address": f"tls://127.0.0.1:{port}"}) for port in (1, 2))
    assert old != new


def test_a_frozen_scheduler_ends_the_session(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 10.0)
    h0 = pool.start("h0")
    (h0 / "hold").touch()
    session = Session(pool, nights.make([fakes.order(0, 1)]))
    session.until(began(h0, FIRST, 0))
    pool.freeze("scheduler")
    try:
        with pytest.raises(HostError, match="scheduler does not answer any more"):
            session.end()
    finally:
        pool.thaw("scheduler")


def test_a_client_that_is_closed_is_an_error_of_the_lab(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(*_: Any, **__: Any) -> None:
        raise distributed.client.ClosedClientError("Client is closed")

    monkeypatch.setattr(distributed.Client, "submit", submit)
    pool.start("h0")
    with pytest.raises(HostError, match="scheduler does not answer any more"):
        Session(pool, nights.make([fakes.order(0, 1)])).end()


def test_hosts_are_told_to_end_again(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that was on its way when they were told first did not hear it."""
    monkeypatch.setattr(driver, "END_EVERY_SECONDS", 0.1)
    h0 = pool.start("h0")
    (h0 / "hold").touch()
    session = Session(pool, nights.make([fakes.order(0, 1)]))
    session.until(began(h0, FIRST, 0))
    end, lost = Driver._end, list[object]()

    def end_but_the_first(self: Driver, addresses: list[str]) -> None:
        if lost:
            end(self, addresses)
        lost.append(addresses)

    monkeypatch.setattr(Driver, "_end", end_but_the_first)
    session.wish.drain.set()
    session.wish.end.set()
    with pytest.raises(Cancelled, match="stopped"):
        session.end()
    assert len(lost) > 1


def spread_once(result: Result, hosts: dict[str, int]) -> None:
    """One experiment, every boot once; so many boots on each host, which is named in each run."""
    runs = [run for run in store.runs(result.experiment) if not run.error]
    assert result.order.rounds is not None
    boots = Counter(run.place.boot for run in runs if run.place)
    assert boots == dict.fromkeys(range(2 * result.order.rounds), 1)
    assert Counter(run.place.block for run in runs if run.place) == hosts
    assert all(run.place and run.place.block == run.host["machine"] for run in runs)
    assert {entry.experiment for entry in index.find() if not entry.error} == {result.experiment}


def test_one_experiment_over_two_hosts(pool: Pool) -> None:
    """One of them dies, another takes its whole part; then the night is begun again, and runs nothing."""
    pool.start("h0")
    h1 = pool.state("h1")
    h1.mkdir()
    (h1 / "hold-1").touch()  # the second round of either part
    (h1 / "hold-3").touch()
    pool.start("h1")
    night = nights.make([fakes.order(0, 4, spread=2)])
    judged: list[str] = []

    def judge(_order: Order, runs: list[Run]) -> Judged:
        judged.extend({run.place.experiment for run in runs if run.place})
        return Judged((), None)

    session = Session(pool, night, judged=judge)
    session.until(lambda: began(h1, f"{FIRST}-1", 1)() or began(h1, f"{FIRST}-2", 3)())
    pool.start("h2")
    session.until(lambda: "h2" in session.driver._known)
    assert judged == []
    pool.kill("h1")
    (result,) = session.end()
    parts = {"h0": 4, "h2": 4}
    spread_once(result, parts)
    assert judged == [result.experiment]
    resumed = Session(pool, Night(night.name), judged=judge)
    (again,) = resumed.end()
    assert (again.experiment, again.cause, resumed.count("stored")) == (result.experiment, None, 0)
    spread_once(again, parts)


def test_a_spread_night_is_resumed(pool: Pool) -> None:
    h0 = pool.start("h0")
    (h0 / "hold-1").touch()
    night = nights.make([fakes.order(0, 4, spread=2, accel="tcg")])
    session = Session(pool, night)
    session.until(began(h0, f"{FIRST}-1", 1))
    session.wish.end.set()
    session.wish.drain.set()
    with pytest.raises(Cancelled):
        session.end()
    (h0 / "hold-1").unlink()
    pool.start("h1")
    resumed = Session(pool, Night(night.name), patience=1e6)
    (result,) = resumed.end()
    spread_once(result, {"h0": 4, "h1": 4})
    assert resumed.count("stored") == 3


@pytest.mark.parametrize("checkouts", ["all", "one part"])
def test_parts_of_two_checkouts_are_not_one_experiment(pool: Pool, checkouts: str) -> None:
    """A part that had ended under another checkout begins again, with the one that had not."""
    pool.start("h0")
    h1 = pool.state("h1")
    h1.mkdir()
    (h1 / "hold").touch()
    pool.start("h1")
    night = nights.make([fakes.order(0, 4, spread=2)])
    session = Session(pool, night)
    session.until(lambda: any(part.over for part in session.driver.results.values()))
    session.until(lambda: any(began(h1, f"{FIRST}-{number}", 2 * number - 2)() for number in (1, 2)))
    session.wish.end.set()
    session.wish.drain.set()
    with pytest.raises(Cancelled):
        session.end()
    (h1 / "hold").unlink()
    (ended,) = [name for name, part in session.driver.results.items() if part.over]
    old = session.driver.results[ended].experiment
    journal = night.folder / "journal.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text(
        "".join(
            f"{line.replace(unit.checkout(), '0' * 16) if checkouts == 'all' or ended in line else line}\n"
            for line in lines
        )
    )
    resumed = Session(pool, Night(night.name), patience=1e6)
    (result,) = resumed.end()
    spread_once(result, {"h0": 4, "h1": 4})
    assert resumed.count("stored") == 4
    if checkouts == "all":
        assert result.experiment != old
    again = Session(pool, Night(night.name))
    assert again.end()[0].experiment == result.experiment
    assert again.seen == []


@pytest.mark.parametrize("other", ["0", "1"])
def test_an_experiment_whose_parts_have_all_ended_stays_under_another_checkout(
    pool: Pool, other: str
) -> None:
    """Unless they were measured under two of them."""
    pool.start("h0")
    pool.start("h1")
    night = nights.make([fakes.order(0, 4, spread=2)])
    (result,) = Session(pool, night).end()
    journal = night.folder / "journal.jsonl"
    text = journal.read_text().replace(unit.checkout(), "0" * 16, 1)
    journal.write_text(text.replace(unit.checkout(), other * 16))
    resumed = Session(pool, Night(night.name), patience=1e6)
    (again,) = resumed.end()
    assert again.cause is None
    assert (again.experiment == result.experiment) == (other == "0")
    assert resumed.count("stored") == (0 if other == "0" else 4)
    spread_once(again, {"h0": 4, "h1": 4})


def test_a_part_that_crashes_ends_the_experiment(pool: Pool) -> None:
    h0 = pool.start("h0")
    (h0 / "crash").write_text("the after kernel crashed: BUG")
    night = nights.make([fakes.order(0, 4, spread=2, accel="tcg")])
    (result,) = Session(pool, night).end()
    assert (result.cause, result.over) == (Cause.CRASH, True)
    assert "BUG" in result.why
    assert Session(pool, Night(night.name)).end()[0].cause is Cause.CRASH


def test_a_part_that_crashes_ends_the_part_that_runs(pool: Pool) -> None:
    """Its round comes home, and no other is run: not in this session, and not when the night is resumed."""
    places = [pool.start("h0"), pool.start("h1")]
    for place in places:
        (place / "hold").touch()
    (places[0] / "crash").write_text("the after kernel crashed: BUG")
    night = nights.make([fakes.order(0, 8, spread=2)])
    session = Session(pool, night)
    session.until(lambda: session.count("submitted") == 2)
    (places[0] / "hold").unlink()
    session.until(lambda: session.driver.whole[FIRST].over)
    (places[1] / "hold").unlink()
    (result,) = session.end()
    assert (result.cause, session.count("submitted"), session.count("stored")) == (Cause.CRASH, 2, 1)
    resumed = Session(pool, Night(night.name))
    (again,) = resumed.end()
    assert (again.cause, again.experiment, resumed.seen) == (Cause.CRASH, result.experiment, [])


def test_hosts_that_are_not_comparable_are_no_verdict(pool: Pool) -> None:
    pool.start("h0")
    pool.start("h1")

    def judge(_order: Order, _runs: list[Run]) -> Judged:
        raise InputError("these runs are not comparable")

    (result,) = Session(pool, nights.make([fakes.order(0, 4, spread=2)]), judged=judge).end()
    assert (result.cause, result.over) == (Cause.INPUT, True)
