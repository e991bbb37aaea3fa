# SPDX-License-Identifier: GPL-2.0-only
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from numalab.core.errors import Cancelled
from numalab.experiment import several
from numalab.experiment.several import Turn


def results(*jobs: Callable[[Turn], str]) -> list[str]:
    return [job.result() for job in several.run(jobs, threading.Event())]


def test_one_after_another() -> None:
    """A job that makes no room ends before the next one begins."""
    going = 0

    def alone(_: Turn) -> str:
        nonlocal going
        going += 1
        time.sleep(0.1)
        assert going == 1
        going -= 1
        return "done"

    assert results(alone, alone, alone) == ["done"] * 3


def test_a_job_begins_when_the_one_before_makes_room() -> None:
    """All three are up at once; results keep their order though the last one ends first."""
    last_ended, all_up = threading.Event(), threading.Barrier(3)

    def first(turn: Turn) -> str:
        turn.room()
        all_up.wait(10)
        assert last_ended.wait(10)
        return "first"

    def second(turn: Turn) -> str:
        turn.room()
        all_up.wait(10)
        return "second"

    def third(_: Turn) -> str:
        all_up.wait(10)
        last_ended.set()
        return "third"

    assert results(first, second, third) == ["first", "second", "third"]


def test_room_is_that_of_the_latest_job() -> None:
    """The first one's room is taken by the second, which makes none: the third waits."""
    begun, second_ended = list[str](), threading.Event()

    def first(turn: Turn) -> str:
        turn.room()
        assert second_ended.wait(10)
        turn.room()
        return "first"

    def second(_: Turn) -> str:
        begun.append("second")
        assert not second_ended.wait(0.6)
        assert begun == ["second"]
        second_ended.set()
        return "second"

    def third(_: Turn) -> str:
        begun.append("third")
        return "third"

    assert results(first, second, third) == ["first", "second", "third"]


def test_an_error_is_its_jobs_own() -> None:
    def breaks(_: Turn) -> str:
        raise OSError("full disk")

    jobs = list(several.run([breaks, lambda _: "done"], threading.Event()))
    with pytest.raises(OSError, match="full disk"):
        jobs[0].result()
    assert jobs[1].result() == "done"


def test_whoever_wants_no_more_ends_all() -> None:
    """The others are cancelled, and have ended before the generator closes; what has not begun never does."""
    cancel, both, ended = threading.Event(), threading.Barrier(2), list[str]()

    def first(turn: Turn) -> str:
        turn.room()
        both.wait(10)
        return "first"

    def second(_: Turn) -> str:
        both.wait(10)
        assert cancel.wait(10)
        ended.append("second")
        return "second"

    def third(_: Turn) -> str:
        ended.append("third")
        return "third"

    with closing(several.run([first, second, third], cancel)) as jobs:
        assert next(jobs).result() == "first"
    assert ended == ["second"]


def test_nothing_to_run() -> None:
    assert results() == []


def test_a_job_may_wait_for_those_before() -> None:
    """As one does whose clock is the host's, or that builds kernels."""
    happened, begun = list[str](), threading.Event()

    def first(turn: Turn) -> str:
        turn.room()
        assert begun.wait(10)
        time.sleep(0.3)
        happened.append("first ended")
        return "first"

    def second(turn: Turn) -> str:
        begun.set()
        turn.alone(threading.Event())
        happened.append("second alone")
        return "second"

    assert results(first, second) == ["first", "second"]
    assert happened == ["first ended", "second alone"]


def test_what_waits_for_those_before_can_be_cancelled() -> None:
    cancel, begun = threading.Event(), threading.Event()

    def first(turn: Turn) -> str:
        turn.room()
        assert cancel.wait(10)
        raise Cancelled("boot: cancelled")

    def second(turn: Turn) -> str:
        begun.set()
        turn.alone(cancel)
        return "second"

    def third(_: Turn) -> str:
        raise AssertionError("it begins though all is cancelled")

    jobs = several.run([first, second, third], cancel)

    def cancelled() -> None:
        begun.wait(10)
        cancel.set()

    threading.Thread(target=cancelled).start()
    for job in jobs:
        with pytest.raises(Cancelled):
            job.result()
        break
    jobs.close()


def test_an_experiment_by_itself_is_alone() -> None:
    Turn().alone(threading.Event())
