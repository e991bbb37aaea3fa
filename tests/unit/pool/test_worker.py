# SPDX-License-Identifier: GPL-2.0-only
"""A worker's answers, without Dask: what it refuses, and a crash whose runs cannot be packed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from numalab.core.errors import HostError, KernelOops
from numalab.core.process import Deadline
from numalab.pool import store, unit, worker
from numalab.pool.queue import Cause
from numalab.pool.unit import Unit
from tests.unit.pool import fakes


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> str:
    """A unit as JSON, in a process that has begun none."""
    for name in ("_cancel", "_closing"):
        monkeypatch.setattr(worker, name, threading.Event())
    return Unit(
        order=fakes.order(0, 2),
        experiment="20261121T120000-fake",
        number=0,
        rounds=2,
        home="0" * 16,
        seed=1,
        serial="s",
    ).model_dump_json()


def begun(_one: Unit, _limit: Callable[[float], Deadline]) -> str:
    raise AssertionError("the round began")


def test_a_worker_that_is_ending_begins_no_round(text: str) -> None:
    worker.close()
    for _ in range(2):
        assert worker.perform_with(text, unit.checkout(), begun)["cause"] == Cause.STOPPED


def test_a_worker_that_is_ending_ends_its_round(text: str) -> None:
    def ends(_one: Unit, limit: Callable[[float], Deadline]) -> str:
        worker.close()
        limit(60).check("the fake guest")
        raise AssertionError("it goes on")

    assert worker.perform_with(text, unit.checkout(), ends)["cause"] == Cause.STOPPED


def test_after_a_round_was_ended_the_next_one_begins(text: str) -> None:
    worker.end_all()
    assert worker.perform_with(text, unit.checkout(), fakes.measure)["cause"] == ""


@pytest.mark.parametrize("error", [HostError("1025 MiB compressed"), OSError("no such run")])
def test_a_crash_stands_without_its_runs(
    text: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def crashes(_one: Unit, _limit: Callable[[float], Deadline]) -> str:
        raise KernelOops("the after kernel crashed")

    def pack(_places: Sequence[Path]) -> bytes:
        raise error

    monkeypatch.setattr(store, "pack", pack)
    answer = worker.perform_with(text, unit.checkout(), crashes)
    assert answer == {"cause": Cause.CRASH, "error": "the after kernel crashed"}
