# SPDX-License-Identifier: GPL-2.0-only
"""Carries out what the queue decides, over Dask: submits rounds, stores what comes home, notices lost hosts.

Of Dask this uses transport and liveness only. Where a round runs is the queue's choice, and a task is bound
to one worker's address: none is stolen, none is retried. A task's result is released when it is in the store.
Not here: the decisions (queue), what is on disk (night, store), what a host does (worker).
"""

from __future__ import annotations

import queue as queues
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import distributed

from numalab.analysis import verdict
from numalab.core import log, state
from numalab.core.errors import Cancelled, HostError, InputError, LabError
from numalab.experiment import judging
from numalab.experiment import run as experiment
from numalab.experiment.plan import Builds
from numalab.model.run import Run
from numalab.model.units import GIB
from numalab.model.values import Accel
from numalab.model.verdict import Verdict
from numalab.pool import cluster, store, travel, unit, worker
from numalab.pool import night as nights
from numalab.pool import queue as pool_queue
from numalab.pool.night import Attempt, Night
from numalab.pool.queue import Cause, Host, Queue, Ticket
from numalab.pool.supply import Supply
from numalab.pool.unit import Order, Unit

POLL_SECONDS = 1.0
"""How often the scheduler is asked for its workers."""
FETCH_SECONDS = 300.0
"""Limit of the transfer of one round's runs."""
END_EVERY_SECONDS = 5.0
"""How often hosts are told to end what runs: a round that was just on its way does not hear it."""
ANSWER_SECONDS = 3.0
"""How long the loop stands still for hosts that are told to end what runs; a frozen one never answers."""
END_SECONDS = 180.0
"""How long hosts may take to end what runs, after a second Ctrl-C."""


@dataclass
class Result:
    """How an order ended."""

    order: Order
    experiment: str = ""
    verdicts: tuple[Verdict, ...] = ()
    cause: Cause | None = None
    """None with verdicts, and for what is still to come."""
    why: str = ""
    over: bool = False


class Judged(NamedTuple):
    """An experiment's verdicts, and the rounds that it needs in all when they are not clear."""

    verdicts: tuple[Verdict, ...]
    more: int | None


def judge(order: Order, runs: list[Run]) -> Judged:
    """Judge an experiment's runs, as on one machine."""
    verdicts = judging.verdicts(runs)
    more = [count for one in verdicts if (count := verdict.next_look(one, order.looks)) is not None]
    return Judged(verdicts, max(more) if more else None)


class _Given(NamedTuple):
    """What a host has got for a round; None, and why not. A cause of None: by a fault of this machine."""

    ticket: Ticket
    rounds: int
    builds: Builds | None
    cause: Cause | None = None
    why: str = ""


class _Fetched(NamedTuple):
    """What came home of a task: an answer, or why none did."""

    ticket: Ticket
    answer: dict[str, Any] | None
    why: str = ""


@dataclass
class Wish:
    """What the user asks for while a night runs; set from a signal's handler."""

    drain: threading.Event = field(default_factory=threading.Event)
    """Nothing begins any more."""
    end: threading.Event = field(default_factory=threading.Event)
    """What runs is ended."""


class Driver:
    """One night over one pool."""

    def __init__(
        self,
        client: distributed.Client,
        night: Night,
        *,
        perform: Callable[[str, str], dict[str, Any]] = worker.perform,
        judged: Callable[[Order, list[Run]], Judged] = judge,
        every: float = POLL_SECONDS,
        patience: float = pool_queue.PATIENCE_SECONDS,
        supply: Supply | None = None,
        observe: Callable[[str, Ticket], None] = lambda _what, _ticket: None,
    ) -> None:
        """`supply` builds and sends what rounds need; None: nothing.

        `observe` is called with "submitted", "stored" or "refused" and the round's ticket."""
        self.client, self.night, self._supply = client, night, supply
        self._perform, self._judged, self._every, self._observe = perform, judged, every, observe
        self._checkout = unit.checkout()
        parts = [part for order in night.orders for part in unit.parts(order)]
        self._queue = Queue(pool_queue.longest_first(parts), time.monotonic(), patience=patience)
        self.results = {part.id: Result(part) for part in parts}
        """Results by the queue's orders; in `whole`, by the night's. The same, if an order is not spread."""
        self.whole = {order.id: self.results.get(order.id) or Result(order) for order in night.orders}
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._settled: dict[tuple[str, int], str] = {}
        self._known: dict[str, Host] = {}
        self._addresses: dict[str, str] = {}
        self._tasks: dict[Ticket, tuple[Unit, distributed.Future[dict[str, Any]]]] = {}
        self._sending: dict[Ticket, threading.Event] = {}
        """Rounds whose host is given what they need; the event ends that."""
        self._inbox: queues.SimpleQueue[
            Ticket | _Fetched | _Given | pool_queue.Ready | pool_queue.NotReady | pool_queue.Moved
        ] = queues.SimpleQueue()
        """Tasks that have ended; then what they answered. What hosts were given, and what was built."""
        self._polled = 0.0
        self._places: store.Places = {}
        """Where the runs at home are; read once, when the night is taken up."""
        self.stored = 0
        """Rounds that came home in this session."""

    def run(self, wish: Wish | None = None) -> list[Result]:
        """Run the night to its end; the results in the order of its orders. Raises LabError.

        Whatever ends it, `Driver(client, Night(name)).run()` goes on from the store.
        """
        wish = wish or Wish()
        with nights.held(self.night), log.step(f"night {self.night.name}", who="pool"):
            self._resume()
            try:
                if self._supply:
                    for order in self._supply.begin(self._queue.open, self._inbox.put):
                        self._queue.wait(order)
                self._loop(wish)
            finally:
                self._forget_all()
                if self._supply:
                    self._supply.end()
        if wish.drain.is_set() and any(not one.over for one in self.results.values()):
            raise Cancelled(f"night {self.night.name}: stopped")
        return list(self.whole.values())

    def _loop(self, wish: Wish) -> None:
        draining, ending_at, told_at = False, 0.0, 0.0
        self._handle(pool_queue.Tick())  # what was whole is judged, also when nothing is left to do
        while not self._queue.over:
            if wish.drain.is_set() and not draining:
                draining = True
                log.note(f"no round begins any more; {len(self._queue.running)} run to their end")
                self._handle(pool_queue.Drain())
                self._stop_sending()
                continue
            if wish.end.is_set() and not ending_at:
                ending_at = told_at = time.monotonic()
                self._end(list(self._addresses.values()))
            if ending_at and time.monotonic() - told_at > END_EVERY_SECONDS:
                told_at = time.monotonic()
                running = {one.host for one in self._queue.running}
                self._end([self._addresses[host] for host in sorted(running & self._addresses.keys())])
            if ending_at and time.monotonic() - ending_at > END_SECONDS:
                hosts = ", ".join(sorted({one.host for one in self._queue.running}))
                raise Cancelled(f"{hosts}: did not end what runs there")
            with suppress(queues.Empty):
                arrived = self._inbox.get(timeout=self._every)
                match arrived:
                    case _Fetched():
                        self._fetched(arrived)
                    case _Given():
                        self._given(arrived)
                    case Ticket():
                        self._arrived(arrived)
                    case _:
                        self._handle(arrived)
            if time.monotonic() - self._polled >= self._every:
                self._poll()
                self._handle(pool_queue.Tick())
                self._polled = time.monotonic()

    # What is on disk.

    def _resume(self) -> None:
        """Take up the night from its journal and the store."""
        void: dict[tuple[str, int], str] = {}
        ended: dict[str, nights.Ended] = {}
        planned: dict[str, int] = {}
        for line in self.night.lines():
            match line:
                case Attempt():
                    self._attempts[line.order, line.number] = line
                case nights.Void():
                    void[line.order, line.number] = line.why
                case nights.Settled():
                    self._settled[line.order, line.number] = line.settled
                case nights.Planned():
                    planned[line.order] = line.rounds
                case nights.Ended():
                    ended[line.order] = line
        self._places = store.places()
        latest = {order: attempt for (order, _), attempt in self._attempts.items()}
        for (order, number), why in void.items():
            # The next attempt at a part may have the same experiment: what it measured since stays.
            name = self._attempts[order, number].experiment
            if latest[order].number == number or latest[order].experiment != name:
                self._void(order, number, why)
        live = {
            order: attempt for order, attempt in latest.items() if (attempt.order, attempt.number) not in void
        }
        planned = {name: planned.get(name, one.order.looks[0]) for name, one in self.results.items()}
        measured = {order: self._measured(attempt) for order, attempt in live.items()}
        whole = {
            order
            for order in live
            if order in ended and ended[order].cause is None and measured[order] >= planned[order]
        }
        now = time.monotonic()
        # First what ended its experiment: its other parts are over then.
        stands = {order for order, line in ended.items() if line.cause in (Cause.CRASH, Cause.INPUT)}
        for order, attempt in sorted(latest.items(), key=lambda item: item[0] not in stands):
            if self.results[order].over:
                continue
            line_ended = ended.get(order)
            if line_ended and order in stands:
                result = self.results[order]
                result.experiment, result.cause, result.why = (
                    attempt.experiment,
                    line_ended.cause,
                    line_ended.why,
                )
                result.over = True
                self._queue.end(order)
                self._gather(result)
            elif order in live:
                wanted = self.results[order].order
                kernels, done, rounds = len(wanted.kernels), measured[order], planned[order]
                if wanted.part:
                    done = min(done, rounds)  # the next ones are another part's
                # A round of which a part is in the store is run again; the part does not count.
                if wanted.part or len(self._places.get(attempt.experiment, ())) > done * kernels:
                    self._void(order, attempt.number, "half a round", done)
                # An experiment stays as a whole: its parts are of one checkout, and no more of it is run.
                parts = [one for one in self.results if one == order or self._together(one, order)]
                stays = whole.issuperset(parts) and len({live[one].checkout for one in parts}) == 1
                if attempt.checkout != self._checkout and not stays:
                    why = "it was begun with another checkout than this one"
                    what = "its part" if wanted.part else "all"
                    log.note(f"{order}: {what} of experiment {attempt.experiment} is void: {why}")
                    self.night.add(nights.Void(order=order, number=attempt.number, why=why))
                    self._void(order, attempt.number, why)
                    self._queue.restore_attempts(order, attempt.number + 1)
                    continue
                host = Host(attempt.host, "", attempt.memory, frozenset(map(Accel, attempt.accels)))
                self.results[order].experiment = attempt.experiment
                self._queue.restore(order, attempt.number, host, min(done, rounds), rounds, now)
            else:
                self._queue.restore_attempts(order, attempt.number + 1)
        # Of a session that was killed. There is no other one: this one holds the lock.
        self._end([one["address"] for one in self._workers().values()])

    # What hosts do.

    def _poll(self) -> None:
        """Tell the queue which workers are new, other ones, or gone."""
        here = self._workers()
        for name in [name for name in self._known if name not in here]:
            del self._known[name], self._addresses[name]
            log.note(f"{name}: its worker is gone")
            self._handle(pool_queue.HostLost(name))
        for name, facts in here.items():
            host = _host(name, facts)
            if self._known.get(name) != host:
                before = self._known.get(name)
                self._known[name], self._addresses[name] = host, facts["address"]
                again = "another worker" if before and before.instance != host.instance else "here"
                offers = ", ".join(sorted(host.accels))
                log.tell(f"{name}: {again}, {host.memory / GIB:.1f} GiB, {offers}")
                self._handle(pool_queue.HostUp(host))
        log.moving(self._line())

    def _workers(self) -> Mapping[str, dict[str, Any]]:
        """Host -> what the scheduler knows of its worker, with `address`. HostError without an answer."""
        return {
            str(facts["name"]): {**facts, "address": address}
            for address, facts in cluster.workers(self.client).items()
            if facts.get("status", "running") == "running"
        }

    def _end(self, addresses: Sequence[str]) -> None:
        """End what runs on workers; nobody waits long for those that do not answer."""

        def ask() -> None:
            with suppress(Exception):  # a worker that is gone, a client that is closed
                self.client.run(worker.end_all, workers=list(addresses), on_error="ignore")

        if addresses:
            _not_for_long(ask)

    def _arrived(self, ticket: Ticket) -> None:
        """A task has ended. Its answer is fetched in a thread: its host may hang now, and others go on."""
        task = self._tasks.get(ticket)
        if task is None:
            return
        _, future = task
        if not self._queue.expects(ticket):
            self._fetched(_Fetched(ticket, None))
        elif future.status == "finished":
            threading.Thread(target=self._fetch, args=(ticket, future), daemon=True).start()
        else:
            self._fetched(_Fetched(ticket, None, _why(future)))

    def _fetch(self, ticket: Ticket, future: distributed.Future[dict[str, Any]]) -> None:
        try:
            fetched = _Fetched(ticket, future.result(timeout=FETCH_SECONDS))
        except BaseException as error:  # the worker died with its result, and whatever Dask makes of that
            fetched = _Fetched(ticket, None, str(error) or type(error).__name__)
        self._inbox.put(fetched)

    def _fetched(self, fetched: _Fetched) -> None:
        """A task's runs go to the store, then the queue hears of it, then Dask may forget it."""
        ticket = fetched.ticket
        task = self._tasks.pop(ticket, None)
        if task is None:
            return
        one, future = task
        if not self._queue.expects(ticket):
            self._handle(pool_queue.RoundDone(ticket))
        elif fetched.answer is not None:
            self._handle(self._taken(ticket, one, fetched.answer))
        else:
            self._known.pop(ticket.host, None)  # the next poll sees whether it is there
            self._handle(pool_queue.RoundFailed(ticket, Cause.LOST, f"{ticket.host}: {fetched.why}"))
        future.release()

    def _taken(self, ticket: Ticket, one: Unit, answer: dict[str, Any]) -> pool_queue.Event:
        """The event of an answer; a measured round is in the store when this returns."""
        text = f"{ticket.host}: {answer.get('error', '')}"
        try:
            if not answer["cause"]:
                # First: a session that dies in between has the rounds to come settled as this one.
                if (ticket.order, ticket.attempt) not in self._settled:
                    settled = nights.Settled(
                        order=ticket.order, number=ticket.attempt, settled=answer["settled"]
                    )
                    self._settled[ticket.order, ticket.attempt] = settled.settled
                    self.night.add(settled)
                store.add(one, answer["tar"], answer["sha256"], self._places)
                self.stored += 1
                self._observe("stored", ticket)
                return pool_queue.RoundDone(ticket)
            if answer["cause"] == Cause.CRASH and "tar" in answer:
                self._keep(one, answer)
        except (store.NotWhole, InputError) as error:
            return pool_queue.RoundFailed(ticket, Cause.LAB, f"{ticket.host}: {error}")
        except OSError as error:
            raise HostError(f"the store of this machine: {error}") from error
        return pool_queue.RoundFailed(ticket, Cause(answer["cause"]), text)

    def _keep(self, one: Unit, answer: dict[str, Any]) -> None:
        try:
            store.keep(one, answer["tar"], answer["sha256"], self._places)
        except (store.NotWhole, InputError) as error:  # the crash stands all the same
            log.note(f"{one.order.id}: the runs of its kernel's crash are not in the store: {error}")

    # What the queue decides.

    def _handle(self, event: pool_queue.Event) -> None:
        for action in self._queue.handle(event, time.monotonic()):
            self._do(action)

    def _do(self, action: pool_queue.Action) -> None:
        match action:
            case pool_queue.Begin(order, number, host):
                self._begin(order, number, host)
            case pool_queue.Submit(ticket, rounds):
                if self._supply and (ticket.order, ticket.attempt) not in self._settled:
                    self._give(self._supply, ticket, rounds)
                else:
                    self._submit(ticket, rounds, None)
            case pool_queue.VoidRound(ticket, why):
                log.note(f"{ticket.order}: round {ticket.number + 1} is void and is run again: {why}")
                self._void(ticket.order, ticket.attempt, why, ticket.number)
            case pool_queue.VoidAttempt(order, number, why):
                what = "its part" if self._part_of(order) else "all"
                name = self._attempts[order, number].experiment
                log.note(f"{order}: {what} of experiment {name} is void: {why}")
                self.night.add(nights.Void(order=order, number=number, why=why))
                self._void(order, number, why)
            case pool_queue.Forget(ticket):
                task = self._tasks.pop(ticket, None)
                if task:
                    self._forget([task[1]])
                if ticket in self._sending:
                    self._sending[ticket].set()
            case pool_queue.Stop(host):
                self._stop_sending(host)
                self._end([self._addresses[host]] if host in self._addresses else [])
            case pool_queue.Refused(ticket):
                self._observe("refused", ticket)
                log.note(f"{ticket.order}: round {ticket.number + 1} of {ticket.host} came too late: refused")
            case pool_queue.Finished(order, number):
                self._finished(order, self._attempts[order, number])
            case pool_queue.Ended(order, cause, why):
                self._over(order, cause, why)
            case pool_queue.SetAside(host, why):
                log.note(f"{host}: set aside: {why}")
            case pool_queue.Reinstated(host):
                log.note(f"{host}: takes part again: the errors were an order's")

    def _void(self, order: str, number: int, why: str, from_round: int = 0) -> None:
        """What the store has of an attempt from a round on does not count."""
        wanted, name = self.results[order].order, self._attempts[order, number].experiment
        last = wanted.looks[-1] if wanted.part else sys.maxsize // 2 // len(wanted.kernels)
        store.void(name, why, wanted.boots(range(from_round, last)), among=self._places)

    def _begin(self, order: str, number: int, host: str) -> None:
        wanted, facts = self.results[order].order, self._known[host]
        # Parts of one experiment share its name, its seed and the checkout.
        others = (one for one in self._attempts.values() if self._together(one.order, order))
        whole = next((one for one in others if one.checkout == self._checkout), None)
        seed = secrets.randbits(32) if wanted.seed is None else wanted.seed
        attempt = Attempt(
            order=order,
            number=number,
            host=host,
            experiment=whole.experiment if whole else experiment.fresh_experiment(wanted.case),
            seed=whole.seed if whole else seed,
            memory=facts.memory,
            accels=tuple(sorted(facts.accels)),
            checkout=self._checkout,
        )
        self.night.add(attempt)
        self._attempts[order, number] = attempt
        self.results[order].experiment = attempt.experiment

    # What a host needs before a round.

    def _give(self, supply: Supply, ticket: Ticket, rounds: int) -> None:
        """Give a host what an experiment needs, in a thread: the round is submitted when it is there."""
        order, address = self.results[ticket.order].order, self._addresses[ticket.host]
        stop = self._sending[ticket] = threading.Event()

        def call(function: Callable[..., Any], *words: Any) -> dict[str, Any]:
            try:
                answer: dict[str, Any] = self.client.run(function, *words, workers=[address])[address]
            except Exception as error:  # the host died, and whatever Dask makes of that
                raise travel.Lost(str(error) or type(error).__name__) from error
            self._inbox.put(pool_queue.Moved(ticket))
            return answer

        def give() -> None:
            try:
                builds = supply.give(order, self._checkout, ticket.host, call, stop)
                given = _Given(ticket, rounds, builds)
            except travel.Lost as error:
                given = _Given(ticket, rounds, None, Cause.LOST, str(error))
            except Cancelled as error:
                given = _Given(ticket, rounds, None, Cause.STOPPED, str(error))
            except travel.Refused as error:
                given = _Given(ticket, rounds, None, Cause.LAB, str(error))
            except Exception as error:
                given = _Given(ticket, rounds, None, None, str(error) or type(error).__name__)
            self._inbox.put(given)

        threading.Thread(target=give, daemon=True).start()

    def _given(self, given: _Given) -> None:
        ticket = given.ticket
        self._sending.pop(ticket, None)
        if not self._queue.expects(ticket):
            self._handle(pool_queue.RoundDone(ticket))
        elif given.builds is not None:
            self._handle(pool_queue.Moved(ticket, whole=True))
            self._submit(ticket, given.rounds, given.builds)
        elif given.cause is None:
            why = f"what it needs cannot be sent: {given.why}"
            self._handle(pool_queue.NotReady(ticket.order, Cause.LAB, why))
            self._handle(pool_queue.RoundFailed(ticket, Cause.STOPPED, why))
        else:
            if given.cause is Cause.LOST:
                self._known.pop(ticket.host, None)  # the next poll sees whether it is there
            self._handle(pool_queue.RoundFailed(ticket, given.cause, f"{ticket.host}: {given.why}"))

    def _stop_sending(self, host: str = "") -> None:
        for ticket, stop in self._sending.items():
            if host in ("", ticket.host):
                stop.set()

    def _submit(self, ticket: Ticket, rounds: int, builds: Builds | None) -> None:
        attempt, wanted = self._attempts[ticket.order, ticket.attempt], self.results[ticket.order].order
        one = Unit(
            order=wanted,
            experiment=attempt.experiment,
            number=wanted.first + ticket.number,
            block=ticket.host if wanted.part else "",
            rounds=wanted.part.rounds if wanted.part else rounds,
            home=state.identity(),
            seed=attempt.seed,
            builds=builds,
            settled=self._settled.get((ticket.order, ticket.attempt), ""),
            serial=f"{attempt.experiment}-{ticket.number}-{secrets.token_hex(4)}",
        )
        log.tell(f"round {ticket.number + 1} of {rounds} on {ticket.host}", who=ticket.order)
        try:
            future = self.client.submit(
                self._perform,
                one.model_dump_json(),
                self._checkout,
                key=one.serial,
                workers=[self._addresses[ticket.host]],
                allow_other_workers=False,
                retries=0,
                pure=False,
            )
        except distributed.client.ClosedClientError as error:
            raise HostError(f"the pool's scheduler does not answer any more ({error})") from error
        self._tasks[ticket] = one, future
        future.add_done_callback(lambda _future: self._inbox.put(ticket))
        self._observe("submitted", ticket)

    def _finished(self, order: str, attempt: Attempt) -> None:
        result, name = self.results[order], attempt.experiment
        if result.order.part:
            self._over(order, None, "")
            return
        try:
            result.verdicts, more = self._judged(result.order, store.runs(name, self._places))
        except LabError as error:  # runs that are not comparable
            self._over(order, Cause.INPUT, str(error))
            return
        # What another checkout has finished gets no rounds of this one.
        if more is None or attempt.checkout != self._checkout:
            answers = ", ".join(one.answer for one in result.verdicts)
            log.tell(f"{answers or 'done'} ({name})", who=order)
            self._over(order, None, "")
        else:
            self.night.add(nights.Planned(order=order, rounds=more))
            self._handle(pool_queue.MoreRounds(order, more))

    def _over(self, order: str, cause: Cause | None, why: str) -> None:
        result = self.results[order]
        result.cause, result.why = cause, why
        self.night.add(nights.Ended(order=order, cause=cause, why=why))
        result.over = True  # last: another thread may wait for it
        if cause:
            log.note(f"{order}: {cause}: {why}")
        self._gather(result)

    def _measured(self, attempt: Attempt) -> int:
        """An attempt's rounds in the store; of a part, those of the parts that follow it too."""
        wanted = self.results[attempt.order].order
        return store.rounds(attempt.experiment, len(wanted.kernels), wanted.first, among=self._places)

    def _together(self, one: str, other: str) -> bool:
        """Whether two orders are parts of one experiment."""
        return bool(self._part_of(one)) and self._part_of(one) == self._part_of(other)

    def _part_of(self, order: str) -> str:
        part = self.results[order].order.part
        return part.of if part else ""

    def _gather(self, ended: Result) -> None:
        """A part has ended: the experiment ends with its last part, or with the first one that fails."""
        if not ended.order.part or (whole := self.whole[ended.order.part.of]).over:
            return
        parts = [one for name, one in self.results.items() if self._part_of(name) == whole.order.id]
        whole.experiment = ended.experiment
        if ended.cause:
            whole.cause, whole.why, whole.over = ended.cause, ended.why, True
            for one in parts:
                one.over = True  # the queue has ended them
        elif all(one.over for one in parts):
            try:
                whole.verdicts, _ = self._judged(whole.order, store.runs(whole.experiment, self._places))
                answers = ", ".join(one.answer for one in whole.verdicts)
                log.tell(f"{answers or 'done'} ({whole.experiment})", who=whole.order.id)
            except LabError as error:  # hosts that are not comparable
                whole.cause, whole.why = Cause.INPUT, str(error)
                log.note(f"{whole.order.id}: {whole.cause}: {whole.why}")
            whole.over = True

    def _forget_all(self) -> None:
        self._stop_sending()
        self._forget([future for _, future in self._tasks.values()])
        self._tasks.clear()

    def _forget(self, futures: Sequence[distributed.Future[dict[str, Any]]]) -> None:
        def cancel() -> None:
            with suppress(Exception):  # a worker or a scheduler that is gone
                self.client.cancel(list(futures), force=True)

        if futures:
            _not_for_long(cancel)

    def _line(self) -> str:
        """What runs, in one line."""
        done = planned = 0
        for name, result in self.results.items():
            rounds, of = self._queue.progress(name)
            done += rounds * len(result.order.kernels)
            planned += of * len(result.order.kernels)
        over = sum(result.over for result in self.whole.values())
        running = ", ".join(f"{one.host}: {one.order} {one.number + 1}" for one in self._queue.running[:8])
        return (
            f"{done} of {planned} boots, {over} of {len(self.whole)} experiments over;"
            f" {len(self._known)} hosts, {len(self._queue.running)} rounds running {running}"
        )


def _not_for_long(call: Callable[[], None]) -> None:
    """Call what may never return: a worker or a scheduler that is frozen does not answer."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)


def _host(name: str, facts: Mapping[str, Any]) -> Host:
    resources = facts.get("resources", {})
    return Host(
        name=name,
        instance=str(facts["address"]),  # `id` is the name
        memory=int(resources.get("memory", 0)),
        accels=frozenset(one for one in Accel if resources.get(one.value)),
    )


def _why(future: distributed.Future[Any]) -> str:
    if future.status != "error":
        return f"the task is {future.status}"
    with suppress(Exception):
        return str(future.exception(timeout=10))
    return "the task failed"
