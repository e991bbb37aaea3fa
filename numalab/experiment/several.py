# SPDX-License-Identifier: GPL-2.0-only
"""Runs several experiments in their order. The next one begins when those before it leave a CPU idle, so that
on a virtual clock a matrix keeps all CPUs of a machine busy. Not here: an experiment (run), and the CPUs that
its guests hold (state.machine_share).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from numalab.core.errors import Cancelled
from numalab.core.process import POLL_SECONDS

T = TypeVar("T")


class Turn:
    """An experiment's turn among several."""

    def __init__(self, earlier: Sequence[Future[Any]] = ()) -> None:
        self._earlier = tuple(earlier)
        self._room = threading.Event()

    def room(self) -> None:
        """From now on the next experiment may run beside this one."""
        self._room.set()

    @property
    def has_room(self) -> bool:
        """Whether the next experiment may begin."""
        return self._room.is_set()

    def alone(self, cancel: threading.Event) -> None:
        """Wait until those before have ended. Raises Cancelled."""
        while busy := [job for job in self._earlier if not job.done()]:
            if cancel.is_set():
                raise Cancelled("waiting for the cases before: cancelled")
            wait(busy, POLL_SECONDS, FIRST_COMPLETED)


def run(jobs: Sequence[Callable[[Turn], T]], cancel: threading.Event) -> Generator[Future[T]]:
    """Run jobs, each in a thread of its own. The next one begins when the latest has room for it, or has
    ended. Yields the jobs' futures in order, each when done.

    Close the generator when not all of it is used: if a job goes on, that sets `cancel`, which has to end it,
    and waits.
    """
    waiting, going, turn = deque(jobs), deque[Future[T]](), Turn()
    with ThreadPoolExecutor(max(1, len(jobs)), "experiment") as pool:
        try:
            while waiting or going:
                if going and going[0].done():
                    yield going.popleft()
                elif waiting and (not going or ((turn.has_room or going[-1].done()) and not cancel.is_set())):
                    turn = Turn(going)
                    going.append(pool.submit(waiting.popleft(), turn))
                else:
                    wait([job for job in going if not job.done()], POLL_SECONDS, FIRST_COMPLETED)
        finally:
            if any(not job.done() for job in going):
                cancel.set()
