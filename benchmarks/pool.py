# SPDX-License-Identifier: GPL-2.0-only
"""A night of fake guests over processes on this machine, with hosts that die: what the pool itself costs.

    python -m benchmarks.pool --hosts 100 --rounds 10000

Each host is a Dask worker with a state directory of its own; its guests write a small run and end at once. At
moments drawn by --seed a host is killed (kill -9) and another started, until --dying of the hosts have died;
in the middle the scheduler is killed too, and the night is resumed. Exit status 1 when a round is lost or
doubled, or a session ends with an error.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from numalab.core.errors import HostError
from numalab.pool import night as nights
from numalab.pool import store
from numalab.pool.driver import Driver, Judged, Result
from numalab.pool.queue import Ticket
from numalab.pool.unit import Order
from tests.unit.pool import fakes
from tests.unit.pool.fakes import Pool

ROUNDS = 10
"""Of one experiment."""


def main() -> int:
    """Run the benchmark, print its numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--dying", type=float, default=0.05, help="share of the hosts")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="numalab-pool-") as text:
        place = Path(text)
        os.environ["LAB_STATE"] = str(place / "home")
        (place / "pool").mkdir()
        with Pool(place / "pool") as pool:
            return _measure(pool, chosen.hosts, chosen.rounds, chosen.dying, random.Random(chosen.seed))


def _measure(pool: Pool, hosts: int, rounds: int, dying: float, draw: random.Random) -> int:
    names = [f"h{number}" for number in range(hosts)]
    for name in names:
        pool.start(name)
    night = nights.make([fakes.order(number, ROUNDS) for number in range(rounds // ROUNDS)])
    deaths = sorted(draw.sample(range(rounds), max(1, round(hosts * dying))))
    first = _Session(pool, night)
    client = pool.client()
    client.wait_for_workers(hosts, timeout=600)
    client.close()
    begin, cpu = time.monotonic(), 0.0
    memory = 0
    killed = 0
    session, resumed = first, 0.0
    before = 0
    while session.running:
        time.sleep(0.05)
        stored = before + session.driver.stored
        if deaths and stored >= deaths[0]:
            deaths.pop(0)
            name = draw.choice(names)
            pool.kill(name)
            pool.start(name)
            killed += 1
        memory = max(memory, _status(pool.pid("scheduler")))
        if session is first and stored >= rounds // 2:
            cpu += _cpu(pool.pid("scheduler"))
            pool.kill("scheduler")
            session.wait()
            if not isinstance(session.error, HostError):
                print(f"the session whose scheduler was killed: {session.error}", file=sys.stderr)
                return 1
            before = session.driver.stored
            pool.start_scheduler()
            for name in names:
                pool.kill(name)
                pool.start(name)
            again = time.monotonic()
            session = _Session(pool, nights.Night(night.name))
            while session.running and not session.driver.resumed:
                time.sleep(0.005)
            resumed = time.monotonic() - again
    cpu += _cpu(pool.pid("scheduler"))
    seconds = time.monotonic() - begin
    session.wait()
    lost, doubled = _count(night.orders, session.results)
    done = before + session.driver.stored
    print(f"hosts {hosts}, rounds {rounds}, hosts killed {killed}, scheduler killed once")
    print(f"rounds lost {lost}, doubled {doubled}, run again {done - rounds}")
    print(f"wall time {seconds:.0f} s, {1000 * seconds / done:.0f} ms a round, with the restarts")
    print(f"this process: {1000 * time.process_time() / done:.1f} ms of CPU a round (store, queue, client)")
    print(f"scheduler: {1000 * cpu / done:.1f} ms of CPU a round, {memory >> 20} MiB at most")
    print(f"resumed in {resumed:.2f} s: journal and store read, {rounds // 2} rounds and more in it")
    if session.error:
        print(f"ended: {session.error}", file=sys.stderr)
    return int(lost + doubled > 0 or session.error is not None)


class _Driver(Driver):
    resumed = False

    def _resume(self) -> None:
        super()._resume()
        self.resumed = True


class _Session:
    def __init__(self, pool: Pool, night: nights.Night) -> None:
        self.results: list[Result] = []
        self.error: BaseException | None = None
        self.driver = _Driver(
            pool.client(),
            night,
            perform=fakes.perform,
            judged=lambda _order, _name: Judged((), None),
            observe=_quiet,
            patience=5,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.results = self.driver.run()
        except BaseException as error:  # of the first one it is wanted: its scheduler is killed
            self.error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()


def _quiet(_what: str, _ticket: Ticket) -> None:
    pass


def _wanted(order: Order) -> int:
    return ROUNDS * len(order.kernels)


def _count(orders: Iterable[Order], results: list[Result]) -> tuple[int, int]:
    """Boots that are lost, and boots that count more than once or on a second host."""
    lost = doubled = 0
    known = {result.order.id: result for result in results}
    for order in orders:
        if (result := known.get(order.id)) is None:
            lost += _wanted(order)
            continue
        runs = [run for run in store.runs(result.experiment) if not run.error]
        boots = Counter(run.place.boot for run in runs if run.place)
        lost += _wanted(order) - len(boots)
        hosts = {run.host["machine"] for run in runs}
        doubled += sum(boots.values()) - len(boots) + max(len(hosts) - 1, 0)
    return lost, doubled


def _cpu(process: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status(process: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
