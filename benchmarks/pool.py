# SPDX-License-Identifier: GPL-2.0-only
"""A night of fake guests over processes on this machine, with hosts that die: what the pool itself costs.

    python -m benchmarks.pool --hosts 100 --rounds 10000

Each host is a Dask worker with a state directory of its own; its guests write a small run and end at once. At
moments drawn by --seed a host is killed (kill -9) and another started, until --dying of the hosts have died;
in the middle the scheduler is killed too, and the night is resumed. All travels by TLS, and not through SSH.
Exit status 1 when a round is lost or doubled, or a session ends with an error.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from numalab.core.errors import HostError
from numalab.model.run import Run
from numalab.pool import night as nights
from numalab.pool import store
from numalab.pool.driver import Driver, Judged, Result
from numalab.pool.queue import Ticket
from numalab.pool.unit import Order
from tests.unit.pool import fakes
from tests.unit.pool.fakes import Pool

ROUNDS = 10
"""The rounds of one experiment."""
IDLE_SECONDS = 20.0
PATIENCE_SECONDS = 5.0
"""How long an experiment waits for its host. A killed one is replaced at once."""


def main() -> int:
    """Run the benchmark, print its numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--dying", type=float, default=0.05, help="share of the hosts")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else its workers would outlive it
    with tempfile.TemporaryDirectory(prefix="numalab-pool-") as text:
        place = Path(text)
        os.environ["LAB_STATE"] = str(place / "home")
        (place / "pool").mkdir()
        with Pool(place / "pool", tls=True) as pool:
            return _measure(pool, chosen.hosts, chosen.rounds, chosen.dying, random.Random(chosen.seed))


def _measure(pool: Pool, hosts: int, rounds: int, dying: float, draw: random.Random) -> int:
    names = [f"h{number}" for number in range(hosts)]
    night = nights.make([fakes.order(number, ROUNDS) for number in range(rounds // ROUNDS)])
    deaths = sorted(draw.sample(range(rounds), round(hosts * dying)))
    gauge = _Gauge(pool)
    _start(pool, names)
    scheduler, host = gauge.idle("scheduler", names[0])
    print(f"without work: scheduler {scheduler:.1f} % of a CPU, a host {host:.1f} %", flush=True)
    session = _Session(pool, night)
    while session.running and session.driver.stored < rounds // 2:
        _look(gauge, names, session.driver.stored, deaths, draw)
    begun = time.monotonic()
    gauge.ended("scheduler")
    pool.kill("scheduler")
    session.wait()
    if not isinstance(session.error, HostError):
        print(f"the session whose scheduler was killed: {session.error}", file=sys.stderr)
        return 1
    print(f"a killed scheduler was noticed after {time.monotonic() - begun:.1f} s", flush=True)
    print(session.told("first session"), flush=True)
    first = session.driver.stored
    for name in names:  # before the new scheduler: while they look for the old one they take the CPUs
        gauge.ended(name)
        pool.kill(name)
    pool.start_scheduler()
    _start(pool, names)
    begun = time.monotonic()
    session = _Session(pool, nights.Night(night.name))
    while session.running and not session.driver.resumed:
        time.sleep(0.005)
    print(f"resumed: journal and store were read after {time.monotonic() - begun:.1f} s", flush=True)
    while session.running and not session.driver.stored:
        time.sleep(0.005)
    print(f"resumed: the next round was stored after {time.monotonic() - begun:.1f} s", flush=True)
    while session.running:
        _look(gauge, names, first + session.driver.stored, deaths, draw)
    for name in ("scheduler", *names):
        gauge.ended(name)
    session.wait()
    print(session.told("second session"))
    done = first + session.driver.stored
    lost, doubled = _count(night.orders, session.results)
    cpu = gauge.cpu
    print(f"hosts {hosts}, rounds {rounds}, hosts killed {gauge.killed}, scheduler killed once")
    print(f"rounds lost {lost}, doubled {doubled}, stored and then run again {done - rounds}")
    print(
        f"scheduler: {1000 * cpu['scheduler'] / done:.1f} ms of CPU a round, {gauge.memory['scheduler']} MiB"
        f" and {gauge.files['scheduler']} open files at most"
    )
    print(f"this process: {gauge.memory['here']} MiB and {gauge.files['here']} open files at most")
    print(f"a host: {1000 * cpu['hosts'] / done:.1f} ms of CPU a round, with the start of its worker")
    if session.error:
        print(f"ended: {session.error}", file=sys.stderr)
    return int(lost + doubled > 0 or session.error is not None)


def _start(pool: Pool, names: list[str]) -> None:
    """Start hosts and wait for them; by tens, so that none gives up while the others begin."""
    client = pool.client()
    for begin in range(0, len(names), 10):
        for name in names[begin : begin + 10]:
            pool.start(name)
        client.wait_for_workers(min(begin + 10, len(names)), timeout=600)
    client.close()


def _look(gauge: _Gauge, names: list[str], stored: int, deaths: list[int], draw: random.Random) -> None:
    """Kill a host if its time has come, and see what the processes have."""
    time.sleep(0.05)
    if deaths and stored >= deaths[0]:
        deaths.pop(0)
        name = draw.choice(names)
        gauge.ended(name)
        gauge.pool.kill(name)
        gauge.pool.start(name)
        gauge.killed += 1
    gauge.look()


@dataclass
class _Gauge:
    """What processes have used: CPU seconds of all of a kind, the most MiB and open files of one."""

    pool: Pool
    killed: int = 0
    cpu: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    memory: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    files: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def idle(self, *names: str) -> list[float]:
        """Percent of a CPU that processes take while nothing runs."""
        time.sleep(5)  # until they have begun
        begun, before = time.monotonic(), [_cpu(self.pool.pid(name)) for name in names]
        time.sleep(IDLE_SECONDS)
        seconds = time.monotonic() - begun
        return [
            100 * (_cpu(self.pool.pid(name)) - old) / seconds for name, old in zip(names, before, strict=True)
        ]

    def look(self) -> None:
        for name, process in (("scheduler", self.pool.pid("scheduler")), ("here", os.getpid())):
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            self.memory[name] = max(self.memory[name], pages * os.sysconf("SC_PAGE_SIZE") >> 20)
            self.files[name] = max(self.files[name], len(list(Path(f"/proc/{process}/fd").iterdir())))

    def ended(self, name: str) -> None:
        """Before a process ends."""
        self.cpu["scheduler" if name == "scheduler" else "hosts"] += _cpu(self.pool.pid(name))


class _Driver(Driver):
    resumed = False

    def _resume(self) -> None:
        super()._resume()
        self.resumed = True


class _Session:
    """A driver in a thread of its own."""

    def __init__(self, pool: Pool, night: nights.Night) -> None:
        self.results: list[Result] = []
        self.error: BaseException | None = None
        self._sent: dict[Ticket, float] = {}
        self._took: list[float] = []
        self._ends: list[tuple[float, float]] = []
        self.driver = _Driver(
            pool.client(),
            night,
            perform=fakes.perform,
            judged=_unjudged,
            observe=self._observe,
            patience=PATIENCE_SECONDS,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.results = self.driver.run()
        except BaseException as error:  # of the first one it is wanted: its scheduler is killed
            self.error = error

    def _observe(self, what: str, ticket: Ticket) -> None:
        now = time.monotonic()
        if what == "submitted":
            self._sent[ticket] = now
        elif what == "stored":
            self._took.append(now - self._sent[ticket])
            self._ends.append((now, time.process_time()))

    def told(self, name: str) -> str:
        """Rounds a second, and this process's CPU a round, in the session's first and last quarter."""
        quarter = max(1, len(self._ends) // 4)
        parts = self._ends[: quarter + 1], self._ends[-quarter - 1 :]
        rates = [(len(part) - 1) / (part[-1][0] - part[0][0]) for part in parts]
        cpus = [1000 * (part[-1][1] - part[0][1]) / (len(part) - 1) for part in parts]
        median = 1000 * statistics.median(self._took)
        return (
            f"{name}: {len(self._ends)} rounds, {rates[0]:.1f} a second in its first quarter, {rates[1]:.1f}"
            f" in its last; this process: {cpus[0]:.1f} and {cpus[1]:.1f} ms of CPU a round;"
            f" from a round's submission to the store: {median:.0f} ms (median)"
        )

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()


def _unjudged(order: Order, runs: list[Run]) -> Judged:
    """The fake guest counts nothing that a verdict could be made of; its runs were read, as for one."""
    assert len([run for run in runs if not run.error]) == _wanted(order)
    return Judged((), None)


def _wanted(order: Order) -> int:
    return ROUNDS * len(order.kernels)


def _count(orders: Iterable[Order], results: list[Result]) -> tuple[int, int]:
    """Boots that are lost, and boots that count more than once or on a second host."""
    lost = doubled = 0
    known, places = {result.order.id: result for result in results}, store.places()
    for order in orders:
        if (result := known.get(order.id)) is None:
            lost += _wanted(order)
            continue
        runs = [run for run in store.runs(result.experiment, places) if not run.error]
        boots = Counter(run.place.boot for run in runs if run.place)
        lost += _wanted(order) - len(boots)
        hosts = {run.host["machine"] for run in runs}
        doubled += sum(boots.values()) - len(boots) + max(len(hosts) - 1, 0)
    return lost, doubled


def _cpu(process: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
