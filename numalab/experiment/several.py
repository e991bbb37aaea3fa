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
from typing import TypeVar

from numalab.core.process import POLL_SECONDS

T = TypeVar("T")


def run(jobs: Sequence[Callable[[Callable[[], None]], T]], cancel: threading.Event) -> Generator[Future[T]]:
    """Run jobs, each in a thread of its own. A job gets a function to call when another one may run beside
    it; the next job begins then, or when it has ended. Yields the jobs' futures in order, each when done.

    Close the generator when not all of it is used: if a job goes on, that sets `cancel`, which has to end it,
    and waits.
    """
    waiting, going, room = deque(jobs), deque[Future[T]](), threading.Event()
    with ThreadPoolExecutor(max(1, len(jobs)), "experiment") as pool:
        try:
            while waiting or going:
                if going and going[0].done():
                    yield going.popleft()
                elif waiting and (not going or room.is_set() or going[-1].done()):
                    room = threading.Event()
                    going.append(pool.submit(waiting.popleft(), room.set))
                else:
                    wait([job for job in going if not job.done()], POLL_SECONDS, FIRST_COMPLETED)
        finally:
            if any(not job.done() for job in going):
                cancel.set()
