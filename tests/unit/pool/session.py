# SPDX-License-Identifier: GPL-2.0-only
"""A driver over fake guests, in a thread of a test; and what must be in the store when it has ended."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import distributed

from numalab.model.run import Run
from numalab.pool import store
from numalab.pool.driver import Driver, Judged, Result, Wish
from numalab.pool.night import Night
from numalab.pool.queue import Ticket
from numalab.pool.unit import Order
from numalab.runs import index
from tests.unit.makers import until
from tests.unit.pool import fakes


class Pool(Protocol):
    """One of fakes, or one that lab.py started."""

    def client(self) -> distributed.Client:
        """A new client of its scheduler."""


def unjudged(_order: Order, _runs: list[Run]) -> Judged:
    """The fake guest counts nothing that a verdict could be made of."""
    return Judged((), None)


class Session:
    """A driver in a thread of its own."""

    def __init__(
        self,
        pool: Pool,
        night: Night,
        *,
        patience: float = 0.0,
        judged: Callable[[Order, list[Run]], Judged] = unjudged,
    ) -> None:
        self.seen: list[tuple[str, Ticket]] = []
        self.wish = Wish()
        self.results: list[Result] = []
        self.error: BaseException | None = None
        self.driver = Driver(
            pool.client(),
            night,
            perform=fakes.perform,
            judged=judged,
            every=0.05,
            patience=patience,
            observe=lambda what, ticket: self.seen.append((what, ticket)),
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.results = self.driver.run(self.wish)
        except BaseException as error:
            self.error = error

    def count(self, what: str) -> int:
        return sum(seen == what for seen, _ in self.seen)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that the driver does; its error ends the wait."""
        until(lambda: condition() or self.error)
        if self.error:
            raise self.error

    def end(self) -> list[Result]:
        until(lambda: not self._thread.is_alive())
        if self.error:
            raise self.error
        return self.results


def exactly_once(results: list[Result]) -> None:
    """Each order's experiment is in the store: every boot once, on one host; all else does not count."""
    entries = index.find()
    whole = {entry.experiment for entry in entries if not entry.error}
    assert whole == {result.experiment for result in results}
    for result in results:
        runs = [run for run in store.runs(result.experiment) if not run.error]
        assert result.order.rounds is not None
        boots = Counter(run.place.boot for run in runs if run.place)
        assert boots == dict.fromkeys(range(2 * result.order.rounds), 1)
        assert len({run.host["machine"] for run in runs}) == 1
