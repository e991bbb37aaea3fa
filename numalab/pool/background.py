# SPDX-License-Identifier: GPL-2.0-only
"""A night on the pool in a thread of its own, each of whose experiments can be waited for: for pytest.

Not here: the tests (pytest_plugin), the same from the command line (cli.case).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from numalab.core import state
from numalab.core.errors import Cancelled, HostError, InputError, KernelOops, LabError
from numalab.experiment.plan import Plan
from numalab.experiment.run import Outcome
from numalab.pool import cluster, driver, store, unit
from numalab.pool import night as nights
from numalab.pool.queue import Cause
from numalab.pool.supply import Supply

LOOK_SECONDS = 0.2
CLOSE_SECONDS = 60.0
ERRORS: dict[Cause, type[LabError]] = {Cause.CRASH: KernelOops, Cause.INPUT: InputError}


class Background:
    """A night that runs; `close` ends it."""

    def __init__(self, plans: Sequence[tuple[Plan, int | None]]) -> None:
        """Begin a night of these experiments, with so many boots as in unit.order. Raises LabError."""
        self._client = cluster.connect()
        try:
            night = nights.make([unit.order(number, *one) for number, one in enumerate(plans)])
            self._driver = driver.Driver(self._client, night, supply=Supply())
        except BaseException:
            self._disconnect()
            raise
        self.night, self.dashboard = night.name, self._client.dashboard_link
        self._orders = [order.id for order in night.orders]
        self._wish, self._error = driver.Wish(), list[BaseException]()
        self._thread = threading.Thread(target=self._run, name="pool")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._driver.run(self._wish)
        except BaseException as error:  # for whoever waits
            self._error.append(error)
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        with suppress(OSError, RuntimeError):  # a scheduler that is gone, or answers nothing
            self._client.close(timeout=CLOSE_SECONDS)

    def outcome(self, number: int) -> Outcome:
        """The outcome of an experiment, by its place among the plans; waits for its end.

        Raises KernelOops for a kernel's crash, InputError and HostError for what gave no verdict; Cancelled
        and HostError for what ended the night before.
        """
        result = self._driver.whole[self._orders[number]]
        while not result.over and self._thread.is_alive():
            self._thread.join(LOOK_SECONDS)
        if not result.over:
            error = self._error[0] if self._error else None
            # One of its own for each who waits: an exception that is raised twice collects both tracebacks.
            if error is None or isinstance(error, Cancelled):
                raise Cancelled(f"night {self.night}: stopped") from error
            raise HostError(f"night {self.night} ended: {error}") from error
        if result.cause:
            raise ERRORS.get(result.cause, HostError)(result.why)
        runs = [run for run in store.runs(result.experiment) if not run.error]
        return Outcome(
            result.experiment,
            tuple((run, state.folder("runs") / run.id) for run in runs),
            result.verdicts,
        )

    @property
    def over(self) -> bool:
        """Whether nothing runs any more."""
        return not self._thread.is_alive()

    @property
    def whole(self) -> bool:
        """Whether every experiment has ended."""
        return all(result.over for result in self._driver.whole.values())

    def end(self) -> None:
        """End the rounds that run."""
        self._wish.end.set()

    def close(self) -> None:
        """Let the rounds that run come to their end, unless `end` is called, and wait for that."""
        self._wish.drain.set()
        while self._thread.is_alive():
            self._thread.join(LOOK_SECONDS)
