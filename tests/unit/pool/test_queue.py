# SPDX-License-Identifier: GPL-2.0-only
"""Whatever hosts do: every wanted round counts once, and a counted experiment ran on one host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numalab.model.units import GIB
from numalab.model.values import Accel
from numalab.pool import queue, unit
from numalab.pool.queue import Cause, Host, Queue, Ticket
from tests.unit.pool.fakes import order

PATIENCE = 100.0


def host(name: str, instance: int = 0, memory: int = 8 * GIB) -> Host:
    return Host(name, f"{name}-{instance}", memory, frozenset({Accel.TCG}))


class World:
    """Carries out a queue's actions as the driver does, with a store of (order, attempt, round, host)."""

    def __init__(self, orders: int, rounds: int, hosts: int) -> None:
        self.now = 0.0
        self.queue = Queue(
            [order(number, rounds) for number in range(orders)], self.now, patience=PATIENCE, nobody=PATIENCE
        )
        self.rounds = rounds
        self.starts = dict.fromkeys((f"h{number}" for number in range(hosts)), 0)
        self.up: set[str] = set()
        self.store: list[tuple[str, int, int, str]] = []
        self.ended: dict[str, object] = {}
        self.submitted: list[Ticket] = []
        self.aside: list[str] = []
        for name in self.starts:
            self.start(name)

    def do(self, event: queue.Event) -> None:
        for action in self.queue.handle(event, self.now):
            match action:
                case queue.Submit(ticket, _):
                    assert ticket.host in self.up
                    assert all(other.order != ticket.order for other in self.queue.running if other != ticket)
                    self.submitted.append(ticket)
                case queue.VoidAttempt(name, attempt, _):
                    self.store = [one for one in self.store if one[:2] != (name, attempt)]
                case queue.Finished(name, attempt):
                    self.ended[name] = attempt
                case queue.Ended(name, cause, _):
                    self.ended[name] = cause
                case queue.SetAside(name, _):
                    self.aside.append(name)

    def start(self, name: str) -> None:
        self.starts[name] += 1
        self.up.add(name)
        self.do(queue.HostUp(host(name, self.starts[name])))

    def done(self, ticket: Ticket) -> None:
        if self.queue.expects(ticket):
            self.store.append((ticket.order, ticket.attempt, ticket.number, ticket.host))
        self.do(queue.RoundDone(ticket))

    def fail(self, ticket: Ticket, cause: Cause) -> None:
        self.do(queue.RoundFailed(ticket, cause, "broke"))

    def lose(self, name: str) -> None:
        self.up.discard(name)
        self.do(queue.HostLost(name))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.do(queue.Tick())

    def to_the_end(self) -> None:
        """From now on nothing fails, and every host comes back."""
        for name in set(self.starts) - self.up:
            self.start(name)
        for _ in range(10_000):
            if self.queue.over:
                return
            if self.queue.running:
                self.done(self.queue.running[0])
            else:
                self.tick(PATIENCE / 2)
        raise AssertionError("the queue does not come to its end")

    def check(self) -> None:
        """The store has each round of a finished order once, of one attempt on one host."""
        for name, ended in self.ended.items():
            rounds = [one for one in self.store if one[0] == name]
            if isinstance(ended, int):
                assert [one[2] for one in rounds] == list(range(self.rounds))
                assert {one[1] for one in rounds} == {ended}
                assert len({one[3] for one in rounds}) == 1
            elif ended is Cause.LAB:
                assert rounds == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["done", "done", "done", "late", "lab", "lost", "crash", "lose", "start", "tick", "long"]
        ),
        st.integers(0, 50),
    ),
    max_size=60,
)


def step(world: World, what: str, which: int) -> None:
    running: Sequence[Ticket] = world.queue.running
    names = list(world.starts)
    name = names[which % len(names)]
    match what:
        case "done" | "lab" | "lost" | "crash" if running:
            ticket = running[which % len(running)]
            causes = {"lab": Cause.LAB, "lost": Cause.LOST, "crash": Cause.CRASH}
            world.done(ticket) if what == "done" else world.fail(ticket, causes[what])
        case "late" if world.submitted:  # any round that was ever sent comes home, perhaps again
            world.done(world.submitted[which % len(world.submitted)])
        case "lose" if name in world.up:
            world.lose(name)
        case "start":  # also a start that nobody saw end
            world.start(name)
        case "tick":
            world.tick(1)
        case "long":  # over a round's limit and the patience
            world.tick(1000)


@given(STEPS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_every_round_counts_once(
    steps: Iterable[tuple[str, int]], orders: int, rounds: int, hosts: int
) -> None:
    world = World(orders, rounds, hosts)
    for what, which in steps:
        step(world, what, which)
    world.to_the_end()
    assert len(world.ended) == orders
    world.check()


@given(st.lists(st.tuples(st.sampled_from(["lose", "late", "tick"]), st.integers(0, 50)), max_size=40))
def test_lost_hosts_alone_cost_no_verdict(steps: Iterable[tuple[str, int]]) -> None:
    """A round of each host that runs is done between two losses: three in a row would set a host aside."""
    world = World(4, 3, 3)
    for what, which in steps:
        if what == "lose":
            name = f"h{which % 3}"
            if name in world.up:
                world.lose(name)
            world.tick(which * PATIENCE / 20)
            world.start(name)
            for ticket in world.queue.running:
                world.done(ticket)
        else:
            step(world, what, which)
    world.to_the_end()
    assert world.aside == []
    assert all(isinstance(ended, int) for ended in world.ended.values())
    world.check()


def test_a_host_that_comes_back_goes_on() -> None:
    world = World(1, 3, 2)
    (first,) = world.queue.running
    world.done(first)
    world.lose(first.host)
    world.tick(PATIENCE)
    assert not world.queue.running
    world.start(first.host)
    (again,) = world.queue.running
    assert (again.host, again.attempt, again.number) == (first.host, 0, 1)


def test_one_that_does_not_loses_the_experiment() -> None:
    world = World(1, 3, 2)
    (first,) = world.queue.running
    world.done(first)
    (late,) = world.queue.running
    world.lose(first.host)
    world.tick(PATIENCE + 1)
    (other,) = world.queue.running
    assert (other.attempt, other.number) == (1, 0)
    assert other.host != first.host
    world.start(first.host)
    assert queue.Refused(late) in world.queue.handle(queue.RoundDone(late), world.now)
    world.to_the_end()
    world.check()


def test_a_frozen_host_gets_nothing_until_its_round_ends() -> None:
    world = World(2, 1, 1)
    (frozen,) = world.queue.running
    world.tick(1000)
    assert not world.queue.running
    world.done(frozen)
    assert world.store == []
    (again,) = world.queue.running
    assert again.serial != frozen.serial


def test_three_lab_errors_set_a_host_aside() -> None:
    world = World(2, 2, 2)
    bad = world.queue.running[0].host
    for _ in range(queue.MOST_ERRORS):
        (ticket,) = [one for one in world.queue.running if one.host == bad]
        world.fail(ticket, Cause.LAB)
    assert world.aside == [bad]
    world.to_the_end()
    assert set(world.ended.values()) == {0, 1}
    world.check()


def test_nothing_waits_for_hosts_that_are_all_set_aside() -> None:
    """Given up after a minute; the next order has the host again."""
    world = World(orders=2, rounds=1, hosts=1)
    for _ in range(3):
        world.fail(world.submitted[-1], Cause.LAB)
    assert world.aside == ["h0"]
    world.tick(1)
    assert not world.ended
    world.tick(queue.ASIDE_SECONDS)
    assert list(world.ended.values()) == [Cause.LAB]
    world.done(world.submitted[-1])
    assert world.queue.over
    assert len(world.store) == 1


def test_an_order_that_fails_everywhere_is_given_up_and_its_hosts_go_on() -> None:
    world = World(3, 1, 2)
    poison = "00000-fake"
    while world.ended.get(poison) is None:
        for ticket in world.queue.running:
            world.fail(ticket, Cause.LAB) if ticket.order == poison else world.done(ticket)
    world.to_the_end()
    assert world.ended == {poison: Cause.LAB, "00001-fake": 0, "00002-fake": 0}
    assert [one[0] for one in world.store] == ["00001-fake", "00002-fake"]


def test_crashes_are_not_tried_again() -> None:
    world = World(1, 2, 2)
    (ticket,) = world.queue.running
    world.fail(ticket, Cause.CRASH)
    assert world.queue.over
    assert world.submitted == [ticket]


def test_what_one_host_refuses_another_runs() -> None:
    """Such as a kernel's file that only one has. The first host is not blamed, and goes on with other orders."""
    world = World(2, 1, 2)
    first, second = world.queue.running
    world.fail(first, Cause.INPUT)
    assert [one.order for one in world.queue.running] == [second.order], "its host does not get it again"
    world.done(second)
    (again,) = world.queue.running
    assert (again.order, again.host, again.attempt) == (first.order, second.host, 1)
    world.done(again)
    assert (world.aside, world.ended) == ([], {first.order: 1, second.order: 0})


def test_what_every_host_refuses_is_given_up_after_one_round_on_each() -> None:
    world = World(1, 2, 2)
    for _ in range(2):
        (ticket,) = world.queue.running
        world.fail(ticket, Cause.INPUT)
    assert world.ended == {ticket.order: Cause.INPUT}
    assert [one.host for one in world.submitted] == ["h0", "h1"]
    assert world.aside == []


def test_an_order_that_fits_no_host_is_given_up_after_the_patience() -> None:
    big = order(0, 1).model_copy(update={"needs_memory": 64 * GIB})
    night = Queue([big, order(1, 1)], 0, patience=PATIENCE, nobody=PATIENCE)
    night.handle(queue.HostUp(host("h0")), 0)
    (ticket,) = night.running
    assert ticket.order == "00001-fake"
    night.handle(queue.RoundDone(ticket), 1)
    assert night.handle(queue.Tick(), 2) == []
    (ended,) = [one for one in night.handle(queue.Tick(), PATIENCE + 3) if isinstance(one, queue.Ended)]
    assert "65536 MiB" in ended.why
    assert night.over


def test_drained_it_ends_with_what_runs() -> None:
    world = World(3, 2, 2)
    world.do(queue.Drain())
    for ticket in world.queue.running:
        world.done(ticket)
    assert world.queue.over
    assert len(world.submitted) == 2


def test_more_rounds_stay_on_the_host() -> None:
    world = World(1, 1, 2)
    (first,) = world.queue.running
    world.done(first)
    assert world.queue.over
    world.do(queue.MoreRounds("00000-fake", 2))
    (second,) = world.queue.running
    assert (second.host, second.attempt, second.number) == (first.host, 0, 1)


@pytest.mark.parametrize("more", [True, False])
def test_no_other_experiment_begins_between_two_looks(more: bool) -> None:
    """Else its host would be bound to it, while others may be idle."""
    orders = [order(number, 1).model_copy(update={"looks": (1, 2)}) for number in range(2)]
    night = Queue(orders, 0, patience=PATIENCE, nobody=PATIENCE)
    night.handle(queue.HostUp(host("h0")), 0)
    (first,) = night.running
    assert night.handle(queue.RoundDone(first), 1) == [queue.Finished(first.order, 0)]
    if more:
        night.handle(queue.MoreRounds(first.order, 2), 1)
        (second,) = night.running
        assert (second.order, second.number) == (first.order, 1)
        night.handle(queue.RoundDone(second), 2)
    else:
        night.handle(queue.Tick(), 2)
    (other,) = night.running
    assert other.order != first.order


def test_builds_that_are_gone_are_no_fault_of_the_hosts() -> None:
    """A night that is resumed after a new image: its half-done experiments begin again, and no host is set aside."""
    world = World(1, 2, 1)
    for attempt in range(3):
        world.done(world.submitted[-1])
        world.fail(world.submitted[-1], Cause.GONE)
        assert world.submitted[-1].attempt == attempt + 1
    world.done(world.submitted[-1])
    world.done(world.submitted[-1])
    assert (world.aside, world.ended) == ([], {"00000-fake": 3})


def test_wrong_input_is_told_from_a_lab_error() -> None:
    world = World(1, 2, 1)
    (ticket,) = world.queue.running
    world.fail(ticket, Cause.INPUT)
    assert world.ended == {ticket.order: Cause.INPUT}


def test_a_finished_experiment_that_is_restored_has_its_further_rounds_on_its_host() -> None:
    night = Queue([order(0, 2)], 0, patience=PATIENCE, nobody=PATIENCE)
    night.restore("00000-fake", 3, host("h0"), 2, 2, 0)
    assert queue.Finished("00000-fake", 3) in night.handle(queue.HostUp(host("h1")), 1)
    assert night.handle(queue.MoreRounds("00000-fake", 4), 1) == []
    night.handle(queue.HostUp(host("h0")), 2)
    (ticket,) = night.running
    assert (ticket.host, ticket.attempt, ticket.number) == ("h0", 3, 2)


def test_restored_it_goes_on_where_the_store_ends() -> None:
    night = Queue([order(0, 3), order(1, 3), order(2, 3)], 0, patience=PATIENCE, nobody=PATIENCE)
    night.restore("00000-fake", 4, host("h0"), 2, 3, 0)
    night.restore("00001-fake", 0, host("h1"), 3, 3, 0)
    night.restore_attempts("00002-fake", 7)
    actions = night.handle(queue.HostUp(host("h1")), 1)
    assert queue.Finished("00001-fake", 0) in actions
    assert queue.Begin("00002-fake", 7, "h1") in actions
    night.handle(queue.HostUp(host("h0")), 1)
    assert {(one.order, one.attempt, one.number) for one in night.running} == {
        ("00000-fake", 4, 2),
        ("00002-fake", 7, 0),
    }


def spread_over(hosts: int, rounds: int, *names: str, patience: float = PATIENCE) -> Queue:
    """An order that is spread, and these hosts."""
    night = Queue(unit.parts(order(0, rounds, spread=hosts)), 0, patience=patience, nobody=PATIENCE)
    for name in names:
        night.handle(queue.HostUp(host(name)), 0)
    return night


def test_parts_of_a_spread_order_run_on_hosts_of_their_own() -> None:
    night = spread_over(2, 4, "h0", "h1", "h2")
    assert {(one.order, one.host, one.number) for one in night.running} == {
        ("00000-fake-1", "h0", 0),
        ("00000-fake-2", "h1", 0),
    }


def test_a_host_does_not_take_two_parts() -> None:
    """Two hosts for two parts, one of which leaves: its part is given up after the patience, and the line says
    what it needs."""
    night = spread_over(2, 4, "h0", "h1")
    night.handle(queue.HostLost("h1"), 0)
    for _ in range(2):
        (ticket,) = night.running
        assert ticket.order == "00000-fake-1"
        night.handle(queue.RoundDone(ticket), 1)
    night.handle(queue.Tick(), PATIENCE + 1)
    assert not night.running
    (ended,) = [one for one in night.handle(queue.Tick(), 3 * PATIENCE) if isinstance(one, queue.Ended)]
    assert ended.order == "00000-fake-2"
    assert "one of 2 hosts with the same accelerators" in ended.why


def test_parts_run_on_hosts_with_the_same_accelerators() -> None:
    """The first one too: it does not begin on a host that is the only one of its kind."""
    night = spread_over(2, 4)
    both = frozenset({Accel.KVM, Accel.TCG})
    night.handle(queue.HostUp(queue.Host("kvm", "kvm-0", 8 * GIB, both)), 0)
    night.handle(queue.HostUp(host("h0")), 0)
    assert not night.running
    night.handle(queue.HostUp(host("h1")), 0)
    assert {one.host for one in night.running} == {"h0", "h1"}


def test_a_spread_order_without_hosts_of_one_kind_is_given_up_before_it_begins() -> None:
    night = spread_over(2, 4, "h0")
    actions = night.handle(queue.Tick(), PATIENCE + 1)
    (ended,) = [one for one in actions if isinstance(one, queue.Ended)]
    assert "one of 2 hosts with the same accelerators" in ended.why
    assert not any(isinstance(one, queue.Begin) for one in actions)
    assert night.over


def test_a_lost_part_begins_again_on_a_host_that_has_none() -> None:
    night = spread_over(2, 4, "h0", "h1")
    night.handle(queue.HostLost("h1"), 0)
    night.handle(queue.Tick(), PATIENCE + 1)
    assert {one.host for one in night.running} == {"h0"}, "h0 has a part"
    night.handle(queue.HostUp(host("h2")), PATIENCE + 2)
    night.handle(queue.Tick(), PATIENCE + 3)
    assert {(one.order, one.host, one.attempt) for one in night.running} == {
        ("00000-fake-1", "h0", 0),
        ("00000-fake-2", "h2", 1),
    }


def test_a_host_whose_restored_order_waits_takes_another() -> None:
    night = Queue([order(0, 2), order(1, 2)], 0, patience=PATIENCE, nobody=PATIENCE)
    night.restore("00000-fake", 0, host("h0"), 1, 2, 0)
    night.wait("00000-fake")
    night.handle(queue.HostUp(host("h0")), 0)
    (other,) = night.running
    assert (other.order, other.host) == ("00001-fake", "h0")
    night.handle(queue.Ready("00000-fake"), 1)
    night.handle(queue.RoundDone(other), 2)
    (own,) = night.running
    assert (own.order, own.attempt, own.number) == ("00000-fake", 0, 1), "begun first, finished first"
    night.handle(queue.RoundDone(own), 3)
    assert [(one.order, one.number) for one in night.running] == [("00001-fake", 1)]


@pytest.mark.parametrize("when", ["while a round runs", "between"])
def test_a_host_whose_kvm_turns_out_not_to_work_is_left_and_not_set_aside(when: str) -> None:
    both, tcg = (
        Host("h0", "h0-0", 8 * GIB, accels)
        for accels in (frozenset({Accel.KVM, Accel.TCG}), frozenset({Accel.TCG}))
    )
    needs_kvm = order(0, 2).model_copy(update={"accel": "kvm"})
    night = Queue([needs_kvm, order(1, 1)], 0, patience=PATIENCE, nobody=PATIENCE)
    night.handle(queue.HostUp(both), 0)
    (first,) = night.running
    assert first.order == "00000-fake"
    if when == "between":
        night.handle(queue.RoundFailed(first, Cause.LOST, "h0: gone"), 1)
        actions = night.handle(queue.HostUp(tcg), 2)
    else:
        night.handle(queue.HostUp(tcg), 1)
        assert night.running == (first,), "what runs there comes to its end"
        actions = night.handle(queue.RoundFailed(first, Cause.LAB, "no kvm"), 2)
    assert queue.VoidAttempt("00000-fake", 0, "h0 no longer offers what it needs") in actions
    (other,) = night.running
    assert other.order == "00001-fake"
    assert night._hosts["h0"].errors == ([] if when == "while a round runs" else ["00000-fake"])
    night.handle(queue.RoundDone(other), 3)
    night.handle(queue.HostUp(Host("h1", "h1-0", 8 * GIB, both.accels)), 4)
    assert [(one.host, one.attempt) for one in night.running] == [("h1", 1)]


@pytest.mark.parametrize("cause", [Cause.CRASH, Cause.INPUT, Cause.GONE])
def test_a_part_that_fails_ends_the_others(cause: Cause) -> None:
    """What runs of them comes to its end, and nothing follows it; what has not begun does not begin."""
    night = spread_over(3, 12, "h0", "h1", "h2")
    first, second, _ = night.running
    night.handle(queue.HostLost("h2"), 0)
    night.handle(queue.Tick(), PATIENCE + 1)
    actions = night.handle(queue.RoundFailed(first, cause, "broke"), 1)
    assert [one.order for one in actions if isinstance(one, queue.Ended)] == [first.order]
    assert not any(isinstance(one, queue.Begin) for one in night.handle(queue.HostUp(host("h2")), 2))
    assert not night.open
    assert night.running == (second,)
    assert not night.over, "a round is on its way home"
    assert night.handle(queue.RoundDone(second), 3) == []
    assert night.over


@pytest.mark.parametrize("how", ["lost", "late", "failed"])
def test_a_part_that_is_over_does_not_begin_again(how: str) -> None:
    night = spread_over(2, 8, "h0", "h1")
    first, second = night.running
    night.handle(queue.RoundFailed(first, Cause.CRASH, "broke"), 1)
    events: dict[str, queue.Event] = {
        "lost": queue.HostLost("h1"),
        "late": queue.Tick(),
        "failed": queue.RoundFailed(second, Cause.LAB, "broke"),
    }
    night.handle(events[how], 1e6)
    night.handle(queue.RoundDone(second), 1e6)
    night.handle(queue.HostUp(host("h1", 1)), 1e6)
    actions = night.handle(queue.Tick(), 2e6)
    assert night.running == ()
    assert actions == []
    assert night.over


def test_a_part_that_is_given_up_ends_the_others_once() -> None:
    """With no host left: each of them was waiting."""
    night = spread_over(2, 8, "h0", "h1")
    for name in ("h0", "h1"):
        night.handle(queue.HostLost(name), 0)
    ended = [
        one
        for now in (PATIENCE * 2, PATIENCE * 4, PATIENCE * 6)
        for one in night.handle(queue.Tick(), now)
        if isinstance(one, queue.Ended)
    ]
    assert len(ended) == 1
    assert night.over
