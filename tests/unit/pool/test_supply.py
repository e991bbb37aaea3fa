# SPDX-License-Identifier: GPL-2.0-only
"""What rounds need: kernels built on builders side by side (a fake build), and sent to hosts before rounds."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from numalab.core import state
from numalab.core.errors import Cancelled, CommandFailed, HostError, InputError
from numalab.core.process import Deadline
from numalab.host import image
from numalab.kernel import build as kernel_build
from numalab.kernel import recipe, toolchain
from numalab.kernel.build import Built
from numalab.kernel.toolchain import Builder
from numalab.model.values import Accel
from numalab.pool import driver, supply, travel, worker
from numalab.pool import night as nights
from numalab.pool.driver import Judged, Result, Wish
from numalab.pool.night import Night
from numalab.pool.queue import (
    Begin,
    Cause,
    Ended,
    Finished,
    Host,
    HostUp,
    NotReady,
    Queue,
    Ready,
    RoundDone,
    Submit,
    Tick,
)
from numalab.pool.supply import Supply, Workshop
from numalab.pool.unit import Order, Unit
from numalab.runs import index
from tests.unit.makers import until
from tests.unit.pool import fakes
from tests.unit.pool.fakes import Pool
from tests.unit.pool.test_travel import made_image, made_kernel, start

KERNELS = ("6.1-slowscan-before", "6.1")
HERE, FARM = Builder("localhost", local=True), Builder("farm", local=False)


def order(number: int, rounds: int = 1, kernels: tuple[str, ...] = KERNELS) -> Order:
    return fakes.order(number, rounds).model_copy(update={"kernels": kernels})


class FakeBuild:
    """A build that waits until the test lets it go on, and says what runs where."""

    def __init__(self, *builders: Builder) -> None:
        self.builders = builders or (HERE,)
        self.done: set[str] = set()
        self.running: dict[str, list[str]] = {builder.host: [] for builder in self.builders}
        self.most = dict.fromkeys(self.running, 0)
        self.go_on = threading.Event()
        self.errors: dict[str, Exception] = {}
        self.told: list[Ready | NotReady] = []

    def build(self, name: str, builder: Builder, deadline: Deadline) -> None:
        here = self.running[builder.host]
        here.append(name)
        self.most[builder.host] = max(self.most[builder.host], len(here))
        try:
            if error := self.errors.get(f"{name} on {builder.host}") or self.errors.get(name):
                raise error
            while not self.go_on.is_set():
                deadline.check("the fake build")
                deadline.pause(0.01)
            self.done.add(name)
        finally:
            here.remove(name)

    @property
    def at_once(self) -> int:
        return sum(map(len, self.running.values()))

    def supply(self) -> Supply:
        return Supply(
            Workshop(is_built=self.done.__contains__, build=self.build, builders=lambda: self.builders)
        )


def test_builders_build_side_by_side_and_each_one_at_a_time() -> None:
    fake = FakeBuild(HERE, FARM)
    made = fake.supply()
    waiting = made.begin([order(0, kernels=("a", "b")), order(1, kernels=("c", "d"))], fake.told.append)
    assert waiting == {"00000-fake", "00001-fake"}
    until(lambda: fake.at_once == 2)
    fake.go_on.set()
    until(lambda: len(fake.told) == 2)
    assert {event.order for event in fake.told if isinstance(event, Ready)} == waiting
    assert fake.most == {"localhost": 1, "farm": 1}
    made.end()


def test_nothing_waits_for_what_is_built() -> None:
    fake = FakeBuild()
    fake.done = {"a", "b"}
    fake.errors["a"] = AssertionError("it is built")
    made = fake.supply()
    assert made.begin([order(0, kernels=("a", "b"))], fake.told.append) == set()
    made.end()
    assert fake.told == []


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (InputError("patch x does not apply"), Cause.INPUT),
        (CommandFailed("make failed"), Cause.LAB),
        (RuntimeError("a bug"), Cause.LAB),
    ],
)
def test_a_build_that_fails_ends_its_orders_alone(error: Exception, cause: Cause) -> None:
    fake = FakeBuild()
    fake.go_on.set()
    fake.errors["b"] = error
    made = fake.supply()
    made.begin([order(0, kernels=("a", "b")), order(1, kernels=("a", "c"))], fake.told.append)
    until(lambda: len(fake.told) == 2)
    made.end()
    failed = next(event for event in fake.told if isinstance(event, NotReady))
    assert (failed.order, failed.cause) == ("00000-fake", cause)
    assert str(error) in failed.why
    assert Ready("00001-fake") in fake.told


def test_without_builders_only_what_is_built_runs() -> None:
    def none() -> list[Builder]:
        raise InputError("[builders] is empty")

    fake, told = FakeBuild(), list[Ready | NotReady]()
    fake.done = {"a"}
    made = Supply(replace(fake.supply()._workshop, builders=none))
    assert made.begin([order(0, kernels=("a",)), order(1, kernels=("a", "b"))], told.append) == {"00001-fake"}
    assert told == [NotReady("00001-fake", Cause.INPUT, "[builders] is empty")]


@pytest.mark.parametrize("error", [HostError("builder farm: has gcc 13"), CommandFailed("gcc: unreachable")])
def test_a_builder_that_cannot_leaves_its_kernels_to_others(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """With other tools than the first one's, or down."""
    fake = FakeBuild(HERE, FARM)
    says = "builder farm: " + str(error).removeprefix("builder farm: ")
    fake.errors |= {f"{name} on farm": error for name in "abcd"}
    made = fake.supply()
    made.begin([order(0, kernels=("a", "b")), order(1, kernels=("c", "d"))], fake.told.append)
    until(lambda: f"{says}: it builds none of this night's" in caplog.text)
    fake.go_on.set()
    until(lambda: len(fake.told) == 2)
    assert {type(event) for event in fake.told} == {Ready}
    assert caplog.text.count("builds none") == 1
    made.end()


def test_the_end_ends_builds() -> None:
    fake = FakeBuild(HERE, FARM)
    made = fake.supply()
    made.begin([order(0, kernels=("a", "b", "c"))], fake.told.append)
    until(lambda: fake.at_once == 2)
    made.end()
    assert fake.at_once == 0
    assert fake.told == []
    assert fake.done == set()


def test_a_builder_with_other_tools_is_not_asked_to_build(
    monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """It would make a kernel that this machine does not look for."""
    from tests.unit.kernel.test_recipe import plan as made

    first = made()

    def planned(*_: object, fetch: bool, on: Builder | None = None) -> object:
        if not fetch:
            return None
        tools = first.tools.model_copy(update={"compiler": "gcc 13"})
        return first.model_copy(update={"tools": tools, "builder": on}) if on == FARM else first

    monkeypatch.setattr(kernel_build, "make_plan", planned)
    monkeypatch.setattr(toolchain, "builders", lambda: (HERE, FARM))
    with pytest.raises(
        HostError, match=r"builder farm: has gcc 13, .*, and localhost gcc 12, .*: it would make"
    ):
        kernel_build.build(recipe.load("6.1"), None, deadline, on=FARM)


def test_the_queue_begins_nothing_that_waits() -> None:
    queue = Queue([order(0), order(1)], 0.0, nobody=10.0)
    queue.wait("00000-fake")
    h0 = Host("h0", "h0-0", 8 << 30, frozenset({Accel.TCG}))
    first, submit = queue.handle(HostUp(h0), 0.0)
    assert isinstance(first, Begin)
    assert isinstance(submit, Submit)
    assert first.order == submit.ticket.order == "00001-fake"
    (finished,) = queue.handle(RoundDone(submit.ticket), 1.0)
    assert isinstance(finished, Finished)
    assert queue.handle(Tick(), 1e6) == []  # not given up: it will be ready
    again, _ = queue.handle(Ready("00000-fake"), 1e6)
    assert again == Begin("00000-fake", 0, "h0")


def test_a_host_that_offers_less_is_the_same_host() -> None:
    """KVM that turns out not to boot ends no round there, nor the wait for one that hangs."""
    queue = Queue([order(0), order(1)], 0.0)
    h0 = Host("h0", "h0-0", 8 << 30, frozenset({Accel.TCG, Accel.KVM}))
    less = Host("h0", "h0-0", 8 << 30, frozenset({Accel.TCG}))
    _, submit = queue.handle(HostUp(h0), 0.0)
    assert isinstance(submit, Submit)
    assert queue.handle(HostUp(less), 1.0) == []
    assert queue.expects(submit.ticket)
    queue.handle(Tick(), 1e4)  # it hangs
    assert queue.handle(HostUp(h0), 1e4 + 1) == []  # nothing begins beside it


def test_an_attempt_that_was_begun_waits_too() -> None:
    """Its session was killed, and its kernel is gone meanwhile."""
    queue = Queue([order(0)], 0.0)
    queue.wait("00000-fake")
    h0 = Host("h0", "h0-0", 8 << 30, frozenset({Accel.TCG}))
    queue.restore("00000-fake", 2, h0, 0, 1, 0.0)
    assert queue.handle(HostUp(h0), 0.0) == []
    assert [type(action) for action in queue.handle(Ready("00000-fake"), 1.0)] == [Submit]


def test_what_an_order_waited_for_cannot_be_had() -> None:
    queue = Queue([order(0)], 0.0)
    queue.wait("00000-fake")
    assert queue.handle(NotReady("00000-fake", Cause.LAB, "make failed"), 1.0) == [
        Ended("00000-fake", Cause.LAB, "make failed")
    ]
    assert queue.over


# With the driver, over Dask.


def perform(text: str, checkout: str) -> dict[str, Any]:
    """A fake round that notes what it was given."""

    def measured(one: Unit, limit: Callable[[float], Deadline]) -> str:
        (state.directory() / f"given-{one.order.id}-{one.number}").write_text(str(one.builds))
        return fakes.measure(one, limit)

    return worker.perform_with(text, checkout, measured)


class Session:
    """A driver with a supply, in a thread."""

    def __init__(self, pool: Pool, night: Night, made: Supply) -> None:
        self.wish, self.results, self.error = Wish(), list[Result](), list[BaseException]()
        self.driver = driver.Driver(
            pool.client(),
            night,
            perform=perform,
            judged=lambda _order, _name: Judged((), None),
            every=0.05,
            patience=0.0,
            supply=made,
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.results = self.driver.run(self.wish)
        except BaseException as error:
            self.error.append(error)

    def end(self) -> list[Result]:
        until(lambda: not self.thread.is_alive())
        if self.error:
            raise self.error[0]
        return self.results


@pytest.fixture
def home(lab_state: Path, monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> Path:
    """This machine has an image and a kernel, which every recipe leads to."""
    made_image(lab_state, "a" * 16, image.inputs("debian12", None, deadline))
    made_kernel(lab_state)

    def built(_name: str) -> Built | None:
        return kernel_build.at(lab_state / "kernels" / f"6.1-{'d' * 16}")

    monkeypatch.setattr(supply, "built", built)
    monkeypatch.setattr(travel, "PIECE_BYTES", 1000)
    return lab_state


def everything() -> FakeBuild:
    fake = FakeBuild()
    fake.done = set(KERNELS)
    return fake


def counted(results: list[Result]) -> None:
    assert [(result.over, result.cause) for result in results] == [(True, None)] * len(results)
    whole = [entry.experiment for entry in index.find() if not entry.error]
    for result in results:
        assert result.order.rounds is not None
        assert whole.count(result.experiment) == 2 * result.order.rounds


def test_a_host_gets_what_it_needs_once(pool: Pool, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "numalab")
    h0 = start(pool, "h0")
    counted(Session(pool, nights.make([order(0, 2), order(1)]), everything().supply()).end())
    assert (h0 / "images" / "debian12" / ("a" * 16) / state.SSH_KEY).read_text() == "private\n"
    assert (h0 / "kernels" / f"6.1-{'d' * 16}" / "modules.tar").read_bytes() == b"modules" * 1000
    sent = [record.getMessage() for record in caplog.records if " sent: " in record.getMessage()]
    assert [line.split(" sent")[0] for line in sent] == [
        f"h0: image debian12 {'a' * 16}",
        f"h0: kernel 6.1 {'d' * 16}",
    ]
    for name in ("00000-fake-0", "00001-fake-0"):
        given = (h0 / f"given-{name}").read_text()
        assert f"image_id='{'a' * 16}'" in given
        assert f"'6.1': '6.1-{'d' * 16}'" in given
    assert (h0 / "given-00000-fake-1").read_text() == "None"  # what round 0 settled


def test_rounds_that_have_what_they_need_begin_before_others_kernels_are_built(
    pool: Pool, home: Path
) -> None:
    h0 = start(pool, "h0")
    fake = everything()
    session = Session(pool, nights.make([order(0, kernels=("x", "6.1")), order(1)]), fake.supply())
    until(lambda: session.error or session.driver.results["00001-fake"].over)
    assert fake.at_once == 1
    assert not (h0 / "given-00000-fake-0").exists()
    fake.go_on.set()
    bad, good = session.end()
    assert "x" in fake.done
    # There is no recipe x to send, which was tried when its build had ended. It ends its own experiment only.
    assert bad.cause is Cause.LAB
    assert re.match("what it needs cannot be sent: .*kernels/x", bad.why)
    counted([good])


def test_what_cannot_be_built_ends_its_experiment(pool: Pool, home: Path) -> None:
    start(pool, "h0")
    fake = everything()
    fake.errors["x"] = InputError("patch p does not apply")
    bad, good = Session(pool, nights.make([order(0, kernels=("x", "6.1")), order(1)]), fake.supply()).end()
    assert (bad.cause, bad.why) == (Cause.INPUT, "patch p does not apply")
    counted([good])


def held_after(
    monkeypatch: pytest.MonkeyPatch, host: str, pieces: int
) -> tuple[threading.Event, threading.Event]:
    """Stop a transfer to a host after some pieces; returns the events that it has stopped, and may go on."""
    stopped, go_on, send = threading.Event(), threading.Event(), travel.send
    count = [0]

    def slow(one: Any, files: Any, call: travel.Call, to: str, cancel: threading.Event, **how: Any) -> str:
        def held(function: Callable[..., Any], *words: Any) -> dict[str, Any]:
            if function is travel.put and to == host:
                count[0] += 1
                if count[0] > pieces and not go_on.is_set():
                    stopped.set()
                    until(lambda: go_on.is_set() or cancel.is_set())
            return call(function, *words)

        return send(one, files, held, to, cancel, **how)

    monkeypatch.setattr(travel, "send", slow)
    return stopped, go_on


def test_a_host_killed_in_mid_transfer(pool: Pool, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its round is void, and the experiment runs elsewhere; nothing half is left in place."""
    h0 = start(pool, "h0")
    stopped, go_on = held_after(monkeypatch, "h0", 5)
    session = Session(pool, nights.make([order(0, 2)]), everything().supply())
    assert stopped.wait(60)
    h1 = start(pool, "h1")
    until(lambda: session.error or "h1" in session.driver._known)
    pool.kill("h0")
    go_on.set()
    counted(session.end())
    assert (h1 / "given-00000-fake-0").exists()
    assert not (h0 / "images" / "debian12" / ("a" * 16)).exists()
    assert list((h0 / "images" / "debian12").iterdir()) != []


def test_a_host_that_cannot_keep_it_is_set_aside(
    pool: Pool, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    h0 = start(pool, "h0")
    (h0 / "kernels").touch()  # as a full disk: nothing can be put there
    session = Session(pool, nights.make([order(0)]), everything().supply())
    until(lambda: session.error or "h0: set aside: 3 lab errors in a row; the last: h0: " in caplog.text)
    start(pool, "h1")
    counted(session.end())


def test_an_error_of_this_machine_blames_no_host(
    pool: Pool, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(pool, "h0")
    (home / "kernels" / f"6.1-{'d' * 16}" / "bzImage").write_bytes(b"short")
    (bad,) = Session(pool, nights.make([order(0)]), everything().supply()).end()
    assert bad.cause is Cause.LAB
    assert re.fullmatch(r"what it needs cannot be sent: kernel 6\.1: .* has 5 bytes, not 6000.*", bad.why)
    assert "set aside" not in caplog.text


def test_ctrl_c_ends_a_transfer(pool: Pool, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h0 = start(pool, "h0")
    stopped, _ = held_after(monkeypatch, "h0", 5)
    night = nights.make([order(0)])
    session = Session(pool, night, everything().supply())
    assert stopped.wait(60)
    session.wish.drain.set()
    with pytest.raises(Cancelled, match="stopped"):
        session.end()
    assert not (h0 / "given-00000-fake-0").exists()
    monkeypatch.undo()


def test_a_frozen_host_holds_up_nobody(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "frozen"
    place.mkdir()
    with Pool(place, ttl="15s") as pool:
        start(pool, "h0")
        stopped, go_on = held_after(monkeypatch, "h0", 5)
        session = Session(pool, nights.make([order(0)]), everything().supply())
        assert stopped.wait(60)
        start(pool, "h1")
        until(lambda: session.error or "h1" in session.driver._known)
        pool.freeze("h0")
        go_on.set()
        try:
            counted(session.end())
        finally:
            pool.thaw("h0")
