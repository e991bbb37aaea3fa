# SPDX-License-Identifier: GPL-2.0-only
from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from numalab.experiment import several

Room = Callable[[], None]


def results(*jobs: Callable[[Room], str]) -> list[str]:
    return [job.result() for job in several.run(jobs, threading.Event())]


def test_one_after_another() -> None:
    """A job that makes no room ends before the next one begins."""
    going = 0

    def alone(_: Room) -> str:
        nonlocal going
        going += 1
        assert going == 1
        going -= 1
        return "done"

    assert results(alone, alone, alone) == ["done"] * 3


def test_a_job_begins_when_the_one_before_makes_room() -> None:
    """All three are up at once; results keep their order though the last one ends first."""
    last_ended, all_up = threading.Event(), threading.Barrier(3)

    def first(room: Room) -> str:
        room()
        all_up.wait(10)
        assert last_ended.wait(10)
        return "first"

    def second(room: Room) -> str:
        room()
        all_up.wait(10)
        return "second"

    def third(_: Room) -> str:
        all_up.wait(10)
        last_ended.set()
        return "third"

    assert results(first, second, third) == ["first", "second", "third"]


def test_room_is_that_of_the_latest_job() -> None:
    """The first one's room is taken by the second, which makes none: the third waits."""
    begun, second_ended = list[str](), threading.Event()

    def first(room: Room) -> str:
        room()
        assert second_ended.wait(10)
        room()
        return "first"

    def second(_: Room) -> str:
        begun.append("second")
        assert not second_ended.wait(0.6)
        assert begun == ["second"]
        second_ended.set()
        return "second"

    def third(_: Room) -> str:
        begun.append("third")
        return "third"

    assert results(first, second, third) == ["first", "second", "third"]


def test_an_error_is_its_jobs_own() -> None:
    def breaks(_: Room) -> str:
        raise OSError("full disk")

    jobs = list(several.run([breaks, lambda _: "done"], threading.Event()))
    with pytest.raises(OSError, match="full disk"):
        jobs[0].result()
    assert jobs[1].result() == "done"


def test_whoever_wants_no_more_ends_all() -> None:
    """The others are cancelled, and have ended before the generator closes; what has not begun never does."""
    cancel, both, ended = threading.Event(), threading.Barrier(2), list[str]()

    def first(room: Room) -> str:
        room()
        both.wait(10)
        return "first"

    def second(_: Room) -> str:
        both.wait(10)
        assert cancel.wait(10)
        ended.append("second")
        return "second"

    def third(_: Room) -> str:
        ended.append("third")
        return "third"

    with closing(several.run([first, second, third], cancel)) as jobs:
        assert next(jobs).result() == "first"
    assert ended == ["second"]


def test_nothing_to_run() -> None:
    assert results() == []
