# SPDX-License-Identifier: GPL-2.0-only
"""What runs where: a state machine without a clock, a network or a disk. Events go in, actions come out.

An attempt is an experiment on one host, or one host's part of an experiment that is spread (unit.parts), each
part on a host of its own; its rounds run in order, one at a time. A host runs one round at a time, and
finishes what it began before it begins something new, unless that waits for a kernel. A round that fails by
the lab's or the host's fault is void and is run again on the same host. An attempt whose host does not come
back, or is set aside, is void as a whole, and the order begins again elsewhere as the next attempt. Each
submission has a ticket, and what comes home with any other ticket than the current one is refused: so nothing
counts twice.

The caller gives the time with each event (seconds, any origin) and carries out the actions in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from numalab.model.values import Accel
from numalab.pool.unit import Order

MOST_ERRORS = 3
"""Lab errors and losses in a row after which a host is set aside. In a row: in a long night every host has
three."""
MOST_FAILURES = 2
"""Hosts that an order may cause to be set aside. Then the fault is the order's: it is given up, and its
errors no longer count against the hosts."""
MOST_ATTEMPTS = 10
"""Attempts of one order: it may be the order that kills its hosts."""
PATIENCE_SECONDS = 600.0
"""How long an attempt waits for its host to come back."""
NOBODY_SECONDS = 900.0
"""After so long without any host that could take what is left, it is given up. A night can be resumed."""

ASIDE_SECONDS = 60.0
"""The same when every host has been set aside: another one may be on its way."""


class Cause(StrEnum):
    """Why a round ended without a result."""

    LAB = "lab error"
    INPUT = "wrong input"
    """Its host refuses it, such as a kernel's file that is not there: tried on the others, on each once."""
    CRASH = "kernel crash"
    """The guest's kernel crashed. It stands, as a verdict does."""
    LOST = "lost"
    """The host's worker died. Three times in a row, without a round between, sets it aside too."""
    STOPPED = "stopped"
    """The user ended it."""
    GONE = "builds gone"
    """The image or a kernel that the attempt began with is gone from its host: begun again with others."""


@dataclass(frozen=True)
class Host:
    """A host as its worker describes it."""

    name: str
    instance: str
    """Another one after each start of its worker: the worker's address."""
    memory: int
    """Bytes."""
    accels: frozenset[Accel]

    def fits(self, order: Order) -> bool:
        """Whether an order's guests can run here."""
        return order.needs_memory <= self.memory and (
            order.needs_accel in self.accels if order.needs_accel else bool(self.accels)
        )


@dataclass(frozen=True)
class Ticket:
    """One submission of a round."""

    order: str
    attempt: int
    number: int
    host: str
    serial: int


@dataclass(frozen=True)
class HostUp:
    """A host has a worker."""

    host: Host


@dataclass(frozen=True)
class HostLost:
    """A host's worker is gone."""

    name: str


@dataclass(frozen=True)
class RoundDone:
    """A round is in the store."""

    ticket: Ticket


@dataclass(frozen=True)
class RoundFailed:
    """A round has ended without a result."""

    ticket: Ticket
    cause: Cause
    text: str


@dataclass(frozen=True)
class MoreRounds:
    """After Finished: the answer is not clear yet, and `rounds` are wanted in all."""

    order: str
    rounds: int


@dataclass(frozen=True)
class Drain:
    """Nothing begins any more."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class Ready:
    """An order that was kept waiting (Queue.wait) may begin."""

    order: str


@dataclass(frozen=True)
class NotReady:
    """What an order waited for cannot be had."""

    order: str
    cause: Cause
    why: str


@dataclass(frozen=True)
class Moved:
    """A host has got a part, or the whole, of what a round needs: its limit begins anew."""

    ticket: Ticket
    whole: bool = False


Event = HostUp | HostLost | RoundDone | RoundFailed | MoreRounds | Drain | Tick | Ready | NotReady | Moved


@dataclass(frozen=True)
class Begin:
    """Give the attempt a name and write it down; a Submit of its first round follows."""

    order: str
    attempt: int
    host: str


@dataclass(frozen=True)
class Submit:
    """Send a round to its host."""

    ticket: Ticket
    rounds: int
    """How many are planned so far."""


@dataclass(frozen=True)
class VoidRound:
    """What the store has of this round does not count. The attempt goes on."""

    ticket: Ticket
    why: str


@dataclass(frozen=True)
class VoidAttempt:
    """What the store has of this attempt does not count."""

    order: str
    attempt: int
    why: str


@dataclass(frozen=True)
class Forget:
    """The round's task is no longer wanted, and no answer to it."""

    ticket: Ticket


@dataclass(frozen=True)
class Stop:
    """End what runs on a host that exceeded a round's limit."""

    host: str


@dataclass(frozen=True)
class Refused:
    """A result came home whose round was void or given away: it is not stored."""

    ticket: Ticket


@dataclass(frozen=True)
class Finished:
    """All rounds that are planned so far are in the store."""

    order: str
    attempt: int


@dataclass(frozen=True)
class Ended:
    """An order ended without a verdict: its kernel crashed, or it was given up."""

    order: str
    cause: Cause
    why: str


@dataclass(frozen=True)
class SetAside:
    """A host gets nothing any more."""

    host: str
    why: str


@dataclass(frozen=True)
class Reinstated:
    """The errors of a host were an order's, which was given up."""

    host: str


Action = (
    Begin
    | Submit
    | VoidRound
    | VoidAttempt
    | Forget
    | Stop
    | Refused
    | Finished
    | Ended
    | SetAside
    | Reinstated
)


@dataclass(eq=False)
class _Host:
    facts: Host
    up: bool = True
    aside: bool = False
    ticket: Ticket | None = None
    """What runs there and is still wanted."""
    stuck: Ticket | None = None
    """What may still run there though its limit passed; until it ends, nothing is submitted."""
    lost_at: float = 0.0
    orders: list[str] = field(default_factory=list)
    """Orders whose attempt is here and has rounds to come."""
    errors: list[str] = field(default_factory=list)
    """The orders of its latest lab errors, in a row."""

    @property
    def usable(self) -> bool:
        return self.up and not self.aside


@dataclass(eq=False)
class _Wanted:
    order: Order
    rounds: int
    attempt: int = -1
    host: str = ""
    done: int = 0
    """Rounds 0 to done - 1 are in the store."""
    failures: int = 0
    over: bool = False
    refused_by: set[str] = field(default_factory=set)
    """Names of the hosts that called it wrong input."""


class Queue:
    """The state of a night. `handle` takes an event and returns what is to be done, in order."""

    def __init__(
        self,
        orders: Iterable[Order],
        now: float,
        *,
        patience: float = PATIENCE_SECONDS,
        nobody: float = NOBODY_SECONDS,
    ) -> None:
        self._wanted = {order.id: _Wanted(order, order.looks[0]) for order in orders}
        self._parts: dict[str, list[_Wanted]] = {}
        """The parts of each order that is spread, by the id of the whole."""
        for wanted in self._wanted.values():
            if wanted.order.part:
                self._parts.setdefault(wanted.order.part.of, []).append(wanted)
        self._pending = dict.fromkeys(self._wanted)
        """The orders that no host has, in their order. A dict: an ordered set."""
        self._hosts: dict[str, _Host] = {}
        self._actions: list[Action] = []
        self._running: dict[Ticket, float] = {}
        """Since when."""
        self._supplied: set[Ticket] = set()
        """The rounds whose host has got what they need."""
        self._away: set[str] = set()
        """Names of the hosts that are lost and still have orders."""
        self._waiting: set[str] = set()
        """Orders of which no round may begin yet: kernels are being built for them."""
        self._serial, self._draining = 0, False
        self._patience, self._nobody, self._moved_at = patience, nobody, now

    # What a caller may ask.

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return not self._running and (self._draining or not self.open)

    @property
    def running(self) -> Sequence[Ticket]:
        """The rounds that run now."""
        return tuple(self._running)

    def expects(self, ticket: Ticket) -> bool:
        """Whether this ticket's result is to be stored."""
        return ticket in self._running

    def progress(self, order: str) -> tuple[int, int]:
        """Rounds in the store, and rounds planned so far."""
        return self._wanted[order].done, self._wanted[order].rounds

    @property
    def open(self) -> Sequence[Order]:
        """The orders that are not over."""
        return tuple(wanted.order for wanted in self._wanted.values() if not wanted.over)

    def wait(self, order: str) -> None:
        """Begin no round of an order before it is Ready. Before the first event."""
        self._waiting.add(order)

    # Resuming.

    def restore(self, order: str, attempt: int, host: Host, done: int, rounds: int, now: float) -> None:
        """An attempt as the disk has it: its host is lost until a HostUp. Before the first event."""
        wanted = self._wanted[order]
        wanted.attempt, wanted.host, wanted.done, wanted.rounds = attempt, host.name, done, rounds
        # Of a finished one too: more rounds may be wanted, and they run there.
        there = self._hosts.setdefault(host.name, _Host(host, up=False, lost_at=now))
        if done >= rounds:
            self._finish(wanted)
        else:
            there.orders.append(order)
            self._away.add(host.name)
        self._pending.pop(order, None)

    def restore_attempts(self, order: str, attempts: int) -> None:
        """The number of attempts that were begun and are void."""
        self._wanted[order].attempt = attempts - 1

    def end(self, order: str) -> None:
        """An order has ended without a verdict, and with it all parts of its experiment. A round of them that
        runs comes to its end."""
        wanted = self._wanted[order]
        for one in self._parts[wanted.order.part.of] if wanted.order.part else [wanted]:
            one.over = True
            self._pending.pop(one.order.id, None)
            if one.host and one.order.id in self._hosts[one.host].orders:
                self._hosts[one.host].orders.remove(one.order.id)

    # Events.

    def handle(self, event: Event, now: float) -> list[Action]:
        """What is to be done after an event at `now`, in order."""
        if self._running or not isinstance(event, Tick):
            self._moved_at = now
        match event:
            case HostUp(host):
                self._host_up(host, now)
            case HostLost(name):
                self._host_lost(name, now)
            case RoundDone(ticket):
                self._round_done(ticket)
            case RoundFailed(ticket, cause, text):
                self._round_failed(ticket, cause, text, now)
            case MoreRounds(order, rounds):
                self._more(self._wanted[order], rounds)
            case Drain():
                self._draining = True
            case Ready(order):
                self._waiting.discard(order)
            case NotReady(order, cause, text):
                self._waiting.discard(order)
                if not self._wanted[order].over:
                    self._give_up(self._wanted[order], text, cause)
            case Moved(ticket, whole):
                if ticket in self._running:
                    self._running[ticket] = now
                    if whole:
                        self._supplied.add(ticket)
            case Tick():
                self._tick(now)
        if not any(self._may_go_on(action) for action in self._actions):
            self._assign(now)
        actions, self._actions = self._actions, []
        return actions

    def _may_go_on(self, action: Action) -> bool:
        """Whether the caller may answer with MoreRounds, which go before another order on that host. If not,
        the next Tick assigns."""
        if not isinstance(action, Finished):
            return False
        wanted = self._wanted[action.order]
        return wanted.done < wanted.order.looks[-1]

    def _host_up(self, facts: Host, now: float) -> None:
        known = self._hosts.get(facts.name)
        if known is None:
            self._hosts[facts.name] = _Host(facts)
            return
        if known.up and known.facts.instance != facts.instance:
            self._host_lost(facts.name, now)
        known.facts, known.up = facts, True
        for order in list(known.orders):  # KVM may have turned out not to work
            wanted = self._wanted[order]
            if not facts.fits(wanted.order) and not (known.ticket and known.ticket.order == order):
                self._leave(known, wanted, f"{facts.name} no longer offers what it needs")
        if not known.stuck:  # else it is the same worker, and offers something else
            self._away.discard(facts.name)

    def _host_lost(self, name: str, now: float) -> None:
        host = self._hosts.get(name)
        if host is None or not host.up:
            return
        host.up, host.lost_at, host.stuck = False, now, None
        if host.orders:
            self._away.add(name)
        if host.ticket:
            ticket = self._take(host)
            self._actions += [Forget(ticket), VoidRound(ticket, f"{name} was lost")]
            self._blame(host, self._wanted[ticket.order], f"{name} was lost")

    def _round_done(self, ticket: Ticket) -> None:
        if not self._current(ticket):
            return
        host, wanted = self._hosts[ticket.host], self._wanted[ticket.order]
        self._take(host)
        host.errors.clear()
        wanted.done += 1
        if wanted.done == wanted.rounds and not wanted.over:
            host.orders.remove(ticket.order)
            self._finish(wanted)

    def _round_failed(self, ticket: Ticket, cause: Cause, text: str, now: float) -> None:
        if not self._current(ticket):
            return
        host, wanted = self._hosts[ticket.host], self._wanted[ticket.order]
        self._take(host)
        if cause is Cause.LOST:  # until a HostUp
            host.up, host.lost_at = False, now
            self._away.add(ticket.host)
        if wanted.over:  # another part has ended the experiment
            return
        if cause is Cause.CRASH:
            host.errors.clear()
            self._end(wanted, cause, text)
            return
        self._actions.append(VoidRound(ticket, text))
        if cause is Cause.INPUT:
            wanted.refused_by.add(ticket.host)
            if self._somebody_else(wanted.order, ticket.host):
                self._leave(host, wanted, f"{ticket.host}: {text}")
            else:
                self._give_up(wanted, text, cause)
        elif cause is Cause.LAB and not host.facts.fits(wanted.order):  # no fault of the host's
            self._leave(host, wanted, f"{ticket.host} no longer offers what it needs")
        elif cause is Cause.GONE and wanted.order.part:  # the other parts have had these builds
            self._give_up(wanted, text)
        elif cause is Cause.GONE:
            self._leave(host, wanted, f"{ticket.host}: {text}")
        elif cause is not Cause.STOPPED:
            self._blame(host, wanted, text)

    def _more(self, wanted: _Wanted, rounds: int) -> None:
        wanted.rounds, wanted.over = rounds, False
        host = self._hosts.get(wanted.host)
        if host is None or host.aside:
            self._again(wanted, f"{wanted.host} gets nothing any more")
            return
        host.orders.insert(0, wanted.order.id)
        if not host.up:
            self._away.add(host.facts.name)

    def _tick(self, now: float) -> None:
        for ticket, since in list(self._running.items()):
            wanted, host = self._wanted[ticket.order], self._hosts[ticket.host]
            sent = ticket in self._supplied
            seconds = wanted.order.round_seconds if sent else wanted.order.seconds(ticket.number)
            if now - since > seconds:
                host.stuck = self._take(host)
                host.lost_at = now
                self._away.add(ticket.host)
                text = f"{ticket.host}: no answer in {seconds:g} s"
                self._actions += [VoidRound(ticket, text), Stop(ticket.host)]
                self._blame(host, wanted, text)
        for name in sorted(self._away):
            host = self._hosts[name]
            if now - host.lost_at <= self._patience:
                continue
            for order in list(host.orders):
                wanted = self._wanted[order]
                if wanted.done == 0 or self._somebody_else(wanted.order, name):
                    self._leave(host, wanted, f"{name} did not come back in {self._patience:g} s")
            if not host.orders:
                self._away.discard(name)
        self._give_up_what_fits_nowhere(now)

    # Steps.

    def _current(self, ticket: Ticket) -> bool:
        """Whether a ticket's answer counts; for another, says that it is refused."""
        if ticket in self._running:
            return True
        self._actions.append(Refused(ticket))
        host = self._hosts.get(ticket.host)
        if host and host.stuck == ticket:
            host.stuck = None
            self._away.discard(ticket.host)
        return False

    def _take(self, host: _Host) -> Ticket:
        ticket, host.ticket = host.ticket, None
        assert ticket is not None
        del self._running[ticket]
        self._supplied.discard(ticket)
        return ticket

    def _finish(self, wanted: _Wanted) -> None:
        wanted.over = True
        self._actions.append(Finished(wanted.order.id, wanted.attempt))

    def _end(self, wanted: _Wanted, cause: Cause, why: str) -> None:
        self.end(wanted.order.id)
        self._actions.append(Ended(wanted.order.id, cause, why))

    def _blame(self, host: _Host, wanted: _Wanted, text: str) -> None:
        host.errors.append(wanted.order.id)
        if len(host.errors) < MOST_ERRORS:
            return
        host.aside = True
        name = host.facts.name
        self._actions.append(SetAside(name, f"{len(host.errors)} lab errors in a row; the last: {text}"))
        wanted.failures += 1
        if wanted.failures >= MOST_FAILURES and not wanted.over:
            self._give_up(wanted, text)
        for order in list(host.orders) if host.aside else ():
            self._leave(host, self._wanted[order], f"{name} was set aside")

    def _give_up(self, wanted: _Wanted, why: str, cause: Cause = Cause.LAB) -> None:
        order = wanted.order.id
        if wanted.attempt >= 0:
            self._actions.append(VoidAttempt(order, wanted.attempt, why))
        self._end(wanted, cause, why)
        for host in self._hosts.values():
            if order in host.errors:
                host.errors = [other for other in host.errors if other != order]
                if host.aside and len(host.errors) < MOST_ERRORS:
                    host.aside = False
                    self._actions.append(Reinstated(host.facts.name))

    def _leave(self, host: _Host, wanted: _Wanted, why: str) -> None:
        """End an attempt: its order begins again elsewhere."""
        host.orders.remove(wanted.order.id)
        self._again(wanted, why)

    def _again(self, wanted: _Wanted, why: str) -> None:
        self._actions.append(VoidAttempt(wanted.order.id, wanted.attempt, why))
        wanted.done, wanted.host, wanted.over = 0, "", False
        if wanted.attempt + 1 >= MOST_ATTEMPTS:
            self._end(wanted, Cause.LAB, f"begun {MOST_ATTEMPTS} times; the last: {why}")
        else:  # before what has never begun
            self._pending = {wanted.order.id: None, **self._pending}

    def _somebody_else(self, order: Order, name: str) -> bool:
        return any(
            host.usable and not host.stuck and host.facts.name != name and self._may(host, order)
            for host in self._hosts.values()
        )

    def _may(self, host: _Host, order: Order) -> bool:
        """Whether a host may run an order: it fits, and was not refused there; of an experiment that is
        spread it has no other part, and what the hosts of the others have to run it on. The first part begins
        where there are such hosts for the others."""
        if not host.facts.fits(order) or host.facts.name in self._wanted[order.id].refused_by:
            return False
        if order.part is None:
            return True
        others = [one.host for one in self._parts[order.part.of] if one.order.id != order.id and one.host]
        if host.facts.name in others:
            return False
        if order.needs_accel:
            return True
        if others:
            return all(self._hosts[name].facts.accels == host.facts.accels for name in others)
        alike = [one for one in self._hosts.values() if one.facts.accels == host.facts.accels]
        return sum(one.usable and one.facts.fits(order) for one in alike) >= order.spread

    def _give_up_what_fits_nowhere(self, now: float) -> None:
        """Orders that no host which is up could take: after NOBODY_SECONDS, or ASIDE_SECONDS when all hosts
        are set aside; never while something runs."""
        if self._running or self._draining or self._waiting:
            self._moved_at = now
            return
        none_left = bool(self._hosts) and all(host.aside for host in self._hosts.values())
        if now - self._moved_at <= (min(ASIDE_SECONDS, self._nobody) if none_left else self._nobody):
            return
        waiting = [*self._pending, *(order for host in self._hosts.values() for order in host.orders)]
        for order in waiting:
            wanted = self._wanted[order]
            if wanted.over or self._somebody_else(wanted.order, ""):  # over: with another part, just now
                continue
            if none_left:  # one at a time: hosts may take part again without it
                self._give_up(wanted, "every host of the pool is set aside")
                return
            needs = f"{wanted.order.needs_memory >> 20} MiB, {wanted.order.needs_accel or 'any accelerator'}"
            if wanted.order.part:
                needs += f", one of {wanted.order.spread} hosts with the same accelerators"
            self._give_up(wanted, f"no host of the pool is there that could take it ({needs})")

    def _assign(self, now: float) -> None:
        if self._draining:
            return
        for host in self._hosts.values():
            if host.usable and not host.ticket and not host.stuck:
                if not self._ready(host.orders):
                    self._begin(host)
                if ready := self._ready(host.orders):
                    self._submit(host, self._wanted[ready[0]], now)

    def _ready(self, orders: Iterable[str]) -> list[str]:
        """The orders of which a round may begin."""
        return [order for order in orders if order not in self._waiting]

    def _begin(self, host: _Host) -> None:
        ready = self._ready(self._pending)
        chosen = next((one for one in ready if self._may(host, self._wanted[one].order)), None)
        if chosen is None:
            return
        del self._pending[chosen]
        wanted = self._wanted[chosen]
        wanted.attempt, wanted.host, wanted.done = wanted.attempt + 1, host.facts.name, 0
        host.orders.append(chosen)
        self._actions.append(Begin(chosen, wanted.attempt, host.facts.name))

    def _submit(self, host: _Host, wanted: _Wanted, now: float) -> None:
        self._serial += 1
        ticket = Ticket(wanted.order.id, wanted.attempt, wanted.done, host.facts.name, self._serial)
        host.ticket = ticket
        self._running[ticket] = now
        self._actions.append(Submit(ticket, wanted.rounds))


def longest_first(orders: Iterable[Order]) -> list[Order]:
    """A night ends when its last order does."""
    return sorted(orders, key=lambda order: -order.round_seconds * order.looks[-1])
