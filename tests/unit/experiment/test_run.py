# SPDX-License-Identifier: GPL-2.0-only
"""Experiments with fake guests: the order of boots, what remains when one breaks, and when to stop."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from numalab.analysis import calibration
from numalab.core import state
from numalab.core.errors import (
    Cancelled,
    CommandFailed,
    DeadlinePassed,
    GuestError,
    InputError,
    KernelOops,
    NameTaken,
    NoRoom,
)
from numalab.core.process import Deadline
from numalab.experiment import judging
from numalab.experiment import run as experiment
from numalab.experiment.plan import (
    Plan,
    boot_order,
    boot_seed,
    build_kernels,
    check_plan,
    interesting_phase,
    make_plan,
    scaled_topology,
    workload_phases,
)
from numalab.experiment.run import ExperimentBoot
from numalab.experiment.several import Turn
from numalab.guest import guest as guests
from numalab.guest import launch, provision, ready
from numalab.guest.launch import GuestRequest
from numalab.guest.settings import UP_SECONDS
from numalab.host import accelerator, image
from numalab.host.accelerator import Probe
from numalab.host.domain import mark
from numalab.host.remote import Where
from numalab.kernel import build, era, kconfig, recipe
from numalab.measure import preparation, programs, runner
from numalab.model import catalog
from numalab.model.case import Arm
from numalab.model.guest import Boot as BootFiles
from numalab.model.guest import PreparedDisks
from numalab.model.run import Run
from numalab.model.units import GIB
from numalab.model.values import Accel, Clock, Phase, SizeClass
from numalab.model.verdict import Answer, Verdict
from numalab.runs import record
from tests.unit import synthetic
from tests.unit.makers import FORWARDS, FakeHost, FakeShell, kernel_names, record_of, spec

CASE = """
description: what failed migrations do to the scanner
source: slowscan-lkml-2015.txt
workload: remote
before: 6.1-slowscan-before
after: "6.1"
disks: [{name: scratch, size: 1GiB}, {name: 500TB, size: 2GiB}]
append: quiet
tracepoints: ["migrate:mm_migrate_pages"]
sizes:
  quick:
    source: ours
    machines: [{topology: 4socket, memory: 4GiB, vcpus: 8}, {topology: cpus2of4, memory: 2GiB}]
    params: {mib: 64}
    sysctls: {vm.watermark_scale_factor: "1000"}
    knobs: {scan_delay_ms: "100"}
    boots: 3
    most_boots: 8
    minutes: 4
expect:
  - {metric: numa_pte_updates, phase: touch, direction: falls, by: 2}
"""
BEFORE, AFTER = "6.1-slowscan-before", "6.1"
AFTER_4_0 = "4.0-rc1-slowscan-after"
CLEAR = {BEFORE: [1_557_000, 1_721_000, 1_590_000], AFTER: [98_000, 98_100, 98_500]}
"""numa_pte_updates of each kernel's boots, in order: an effect that three boots show."""
NOISE = {BEFORE: [100_000, 40_000, 90_000, 350_000], AFTER: [60_000, 30_000, 170_000, 20_000]}
"""Values that do not show whether there is an effect."""


@pytest.fixture
def case(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yml"
    path.write_text(CASE)
    return path


@pytest.fixture
def plan(case: Path) -> Plan:
    """In an order that tests can name."""
    return make_plan(str(case), SizeClass.QUICK, seed=FORWARDS)


class Lab:
    """Replaces provision and runner: `values` by kernel; `breaks` at a boot, in one place or another."""

    def __init__(self, values: Mapping[str, Sequence[int]] = CLEAR) -> None:
        self.values = values
        self.taken: dict[str, int] = {}
        self.happened: list[str] = []
        self.requests: list[GuestRequest] = []
        self.orders: list[provision.Order] = []
        self.options: list[runner.Options] = []
        self.breaks: dict[str, BaseException] = {}
        self.shares: list[tuple[str, int, int]] = []
        self.deadlines: list[Deadline] = []
        self.clock = Clock.HOST
        self.lacking: list[Phase] = []
        """Phases whose programs no guest has made yet."""
        self.together: threading.Barrier | None = None
        """Guests that must be up at the same time; None: one after the other."""
        self.built = True
        """Whether the kernels are."""
        self.alone = True
        """Without `together`: whether one guest at a time is up."""
        self.up_now = 0
        self.kept: list[float] = []
        """The share of processor time that others take from each guest that is measured, in turn."""

    @contextmanager
    def share(self, name: str, total: int, wanted: int, deadline: Deadline) -> Iterator[None]:
        """See state.machine_share."""
        self.shares.append((name, total, wanted))
        yield

    def up(self, request: GuestRequest, host: object, deadline: Deadline) -> Any:
        """See launch.up."""
        self._maybe("up")
        self.requests.append(request)
        self.deadlines.append(deadline)
        self.up_now += 1
        lab = self

        class Guest:
            name = request.name
            kernel = request.kernel.name

            def down(self, deadline: Deadline) -> None:
                lab.up_now -= 1
                lab.happened.append("down")

        return Guest()

    def give(self, guest: Any, phase: Phase, deadline: Deadline) -> None:
        """See programs.give."""
        self.happened.append(f"{phase.name} in {guest.name}")

    def tune(self, guest: object, order: provision.Order, deadline: Deadline) -> dict[str, str]:
        """See provision.apply."""
        self._maybe("tune")
        self.orders.append(order)
        return order.sysctls | order.knobs

    def measure(
        self,
        guest: Any,
        workload: str,
        size: SizeClass,
        deadline: Deadline,
        options: runner.Options,
        *,
        watcher: runner.Watcher | None = None,
    ) -> tuple[Run, Path]:
        """See runner.run."""
        if self.together:
            self.together.wait(10)
        else:
            assert self.up_now == 1 or not self.alone, "one guest at a time"
        self._maybe("measure")
        self.options.append(options)
        place = options.place
        assert place is not None
        turn = self.taken[guest.kernel] = self.taken.get(guest.kernel, -1) + 1
        series = self.values[guest.kernel]
        phase = synthetic.phase("touch", vmstat={"numa_pte_updates": series[turn % len(series)]})
        run = synthetic.run(
            guest.kernel,
            phase.model_copy(update={"host_kept": self.kept.pop(0) if self.kept else None}),
            boot=place.boot,
            arm=place.arm,
            case=place.case,
            workload=workload,
            place=place,
        )
        self.happened.append(f"{place.boot} {guest.kernel} {place.arm}")
        return run, Path(f"/runs/{place.boot}")

    def _maybe(self, where: str) -> None:
        at = f"{where} {len([word for word in self.happened if word == 'down'])}"
        if at in self.breaks:
            raise self.breaks[at]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab()
    monkeypatch.setattr(launch, "up", made.up)
    monkeypatch.setattr(provision, "apply", made.tune)
    monkeypatch.setattr(runner, "run", made.measure)
    monkeypatch.setattr(experiment, "are_built", lambda *_: made.built)
    monkeypatch.setattr(experiment, "build_kernels", lambda *_: None)
    monkeypatch.setattr(programs, "missing", lambda *_: made.lacking)
    monkeypatch.setattr(programs, "give", made.give)
    # An experiment on this machine may hold its CPUs for an hour.
    monkeypatch.setattr(state, "machine_share", made.share)
    monkeypatch.setattr(accelerator, "choose", lambda *_: Probe(accel=Accel.TCG, reason="faked", key=""))
    monkeypatch.setattr(accelerator, "choose_clock", lambda clock, *_: clock or made.clock)
    place = state.folder("images", "e" * 16)
    builds = {name: BootFiles(name=name, kernel=f"/{name}/bzImage") for name in (BEFORE, AFTER)}
    monkeypatch.setattr(
        experiment,
        "pin_builds",
        lambda plan, _: (plan.model_copy(update={"image_id": place.name, "pinned": builds}), {place}),
    )
    return made


class Seen:
    """An experiment.run.Observer that records its calls."""

    def __init__(self) -> None:
        self.boots: list[ExperimentBoot] = []
        self.verdicts: list[Verdict] = []

    def began(self, boot: ExperimentBoot) -> Seen:
        """See Observer."""
        self.boots.append(boot)
        return self

    def so_far(self, verdict: Verdict) -> None:
        """See Observer."""
        self.verdicts.append(verdict)

    def moving(self, phase: str, sample: Mapping[str, Any]) -> None:
        """See runner.Watcher."""

    def ended(self, result: object) -> None:
        """See runner.Watcher."""


def conduct(plan: Plan, boots: int | None, seen: Seen | None = None, **more: Any) -> experiment.Outcome:
    host, view = FakeHost().real(), seen or Seen()
    return experiment.conduct(plan, host, boots, limit=Deadline.after, view=view, **more)


def test_an_experiment_keeps_what_it_stands_on(lab: Lab, plan: Plan) -> None:
    """All boots use one build of the image, which nobody may remove from the first to the last."""
    place = state.folder("images", "e" * 16)

    class Remover(Seen):
        def began(self, boot: ExperimentBoot) -> Seen:
            assert not state.discard(place), "gc or image build --force could remove it"
            return super().began(boot)

    conduct(plan, 2, Remover())
    assert {request.image_id for request in lab.requests} == {"e" * 16}
    assert [request.pinned.kernel for request in lab.requests if request.pinned] == [
        f"/{name}/bzImage" for name in (BEFORE, AFTER, AFTER, BEFORE)
    ]
    assert state.discard(place)


def test_from_ready_states(
    lab: Lab, case: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each boot's guest, on the host's clock and without a seed; one whose state is of no use does not boot."""
    begun: list[bool] = []

    def restored(request: GuestRequest, host: object, deadline: Deadline, *, or_boot: bool = True) -> Any:
        begun.append(or_boot)
        return lab.up(request, host, deadline)

    lab.clock = Clock.VIRTUAL
    monkeypatch.setattr(ready, "up", restored)
    conduct(make_plan(str(case), SizeClass.QUICK, ready=True), 2)
    assert begun == [False] * 4
    assert {(one.clock, one.seed, one.pin) for one in lab.requests} == {(Clock.HOST, None, "off")}
    assert ", 1 at a time" in caplog.text, "one guest writes to a state's file at a time"


@pytest.mark.parametrize(
    ("choice", "why", "field"),
    [
        ({"clock": Clock.VIRTUAL}, "the virtual clock", "clock"),
        ({"pin": "0=0"}, "pin", "pin"),
        ({"huge_page": 2 << 20}, "huge pages", "huge_page"),
        ({"seed": 7}, "a seed, which is that of boots", "seed"),
    ],
)
def test_what_ready_states_exclude(case: Path, choice: dict[str, Any], why: str, field: str) -> None:
    with pytest.raises(InputError, match=f"from ready states: not with {why}: ") as raised:
        make_plan(str(case), SizeClass.QUICK, ready=True, **choice)
    assert raised.value.field == field


def test_a_kernel_too_old_for_ready_states(case: Path) -> None:
    """Known by its era before anything is built."""
    with pytest.raises(InputError, match=r"from ready states: not with kernel 4\.0: ") as raised:
        make_plan(str(case), SizeClass.QUICK, ready=True, kernels=("6.1", "4.0"))
    assert raised.value.field == "ready"


class Preparer:
    """Replaces preparation.disks."""

    def __init__(self) -> None:
        self.works: list[preparation.Work] = []
        self.kernels: list[str] = []
        self.in_use = 0

    @contextmanager
    def disks(
        self, request: GuestRequest, work: preparation.Work, *_: object, **rest: Any
    ) -> Iterator[PreparedDisks]:
        """See preparation.disks; makes them."""
        with rest["while_made"]:
            self.kernels.append(request.kernel.name)
        self.works.append(work)
        self.in_use += 1
        yield synthetic.disks_of("k", request.kernel.name)
        self.in_use -= 1


@pytest.fixture
def preparer(monkeypatch: pytest.MonkeyPatch) -> Preparer:
    made = Preparer()
    monkeypatch.setattr(preparation, "disks", made.disks)
    return made


REPAIRS = CASE.replace("remote", "xfsrepair").replace("phase: touch", "phase: repair-*")
REPAIRS = REPAIRS.replace("{mib: 64}", "{loops: 3}")


def test_on_prepared_disks(lab: Lab, preparer: Preparer, tmp_path: Path) -> None:
    """All boots begin on one, made by an "after" under the case's own settings, and kept to the end."""
    path = tmp_path / "repairs.yml"
    path.write_text(REPAIRS)
    plan = make_plan(str(path), SizeClass.QUICK, prepared_disks=True)

    class Looks(Seen):
        def began(self, boot: ExperimentBoot) -> Seen:
            assert preparer.in_use == 1
            return super().began(boot)

    conduct(plan, 2, Looks())
    assert preparer.in_use == 0
    assert preparer.kernels == [AFTER]
    (work,) = preparer.works
    assert (work.workload, work.params) == ("xfsrepair", {"loops": 3})
    assert (work.order.sysctls, work.order.knobs) == (
        {"vm.watermark_scale_factor": "1000"},
        {"scan_delay_ms": "100"},
    )
    assert [request.prepared for request in lab.requests] == [synthetic.disks_of("k", AFTER)] * 4
    assert {options.prepared for options in lab.options} == {True}
    assert ("CPUs", 2, 2) in lab.shares, "as many as such a guest has, while they are made"


def test_without_prepared_disks(lab: Lab, preparer: Preparer, plan: Plan) -> None:
    conduct(plan, 1)
    assert preparer.kernels == []
    assert [request.prepared for request in lab.requests] == [None, None]
    assert {options.prepared for options in lab.options} == {False}


def test_each_era_has_its_own_prepared_disks(lab: Lab, preparer: Preparer, tmp_path: Path) -> None:
    """Their file systems differ: an old kernel may not mount what today's makes."""
    path = tmp_path / "repairs.yml"
    path.write_text(REPAIRS)
    plan = make_plan(
        str(path),
        SizeClass.QUICK,
        kernels=("4.0-rc1", "6.1", AFTER_4_0),
        prepared_disks=True,
        clock=Clock.VIRTUAL,
    )
    with experiment.on_prepared_disks(plan, FakeHost().real(), Deadline.after) as prepared:
        made = {name: disks.kernel for name, disks in prepared.disks.items()}
    assert made == {"4.0-rc1": AFTER_4_0, "6.1": "6.1", AFTER_4_0: AFTER_4_0}
    assert preparer.kernels == [AFTER_4_0, "6.1"]
    assert [wanted for _, _, wanted in lab.shares] == [1, 2], "CPUs: an old kernel keeps the virtual clock"


def test_prepared_disks_where_no_phase_prepares(case: Path) -> None:
    assert not make_plan(str(case), SizeClass.QUICK, prepared_disks=True).prepared_disks


def test_an_expectation_of_a_phase_that_would_be_left_out(tmp_path: Path) -> None:
    """What a case asks of a measured phase is not left unanswered."""
    path = tmp_path / "repairs.yml"
    path.write_text(REPAIRS + "  - {metric: elapsed, phase: fsmark, direction: falls, decides: false}\n")
    make_plan(str(path), SizeClass.QUICK)
    with pytest.raises(
        InputError, match=r"leave phase fsmark out, and it has an expectation of that \(elapsed\)"
    ):
        make_plan(str(path), SizeClass.QUICK, prepared_disks=True)


def test_prepared_disks_or_ready_states(tmp_path: Path) -> None:
    path = tmp_path / "repairs.yml"
    path.write_text(REPAIRS)
    with pytest.raises(InputError, match="from ready states: not with prepared disks: "):
        make_plan(str(path), SizeClass.QUICK, prepared_disks=True, ready=True)


@pytest.mark.parametrize(
    ("choice", "what"), [("ready", "ready states"), ("prepared_disks", "prepared disks")]
)
def test_another_machine_has_neither(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str, what: str
) -> None:
    """Said before anything is built."""
    path = tmp_path / "repairs.yml"
    path.write_text(REPAIRS)
    plan = make_plan(str(path), SizeClass.QUICK).model_copy(update={choice: True})
    monkeypatch.setattr(experiment, "build_kernels", lambda *_: pytest.fail("kernels are built"))
    monkeypatch.setattr(FakeHost, "where", Where(ssh="big"))
    with pytest.raises(InputError, match=f"{what} are for this machine's own guests, not for those of big"):
        conduct(plan, 1)


def test_a_prelude_on_prepared_disks(preparer: Preparer, tmp_path: Path, deadline: Deadline) -> None:
    """Caches are dropped there too."""
    path = tmp_path / "repairs.yml"
    path.write_text(REPAIRS)
    plan = make_plan(str(path), SizeClass.QUICK, kernels=("6.1", "6.1"), prepared_disks=True)
    shell: Any = FakeShell(lambda *_: (0, "", ""))
    shell.name, shell.record = "repro", record_of(spec())
    experiment.prelude(plan.model_copy(update={"disks": {"6.1": synthetic.disks_of("k")}}), shell, deadline)
    assert shell.commands == ["sync && echo 3 > /proc/sys/vm/drop_caches"]


def test_a_name_that_another_experiment_takes(lab: Lab, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken between our check and our claim."""
    lab.breaks = {"up 0": NameTaken("a guest called mine-0 is there")}
    up = lab.up

    def once(*words: Any) -> Any:
        try:
            return up(*words)
        finally:
            lab.breaks = {}

    monkeypatch.setattr(launch, "up", once)
    assert len(conduct(plan, 1).runs) == 2


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs whose records are written again."""
    runs: list[Run] = []
    monkeypatch.setattr(record, "write", lambda run, _: runs.append(run))
    return runs


def test_a_boot_on_a_busy_host_is_taken_again(
    lab: Lab, plan: Plan, rewritten: list[Run], caplog: pytest.LogCaptureFixture
) -> None:
    """Once: a host that stays busy is a doubt. The fresh guest is the same boot: kernel, number and seed."""
    lab.kept = [0.02, 0.43, 0.9]
    seen = Seen()
    outcome = conduct(plan, 1, seen)
    places = [run.place for run, _ in outcome.runs if run.place]
    (first,) = rewritten
    assert [(place.boot, place.instead_of) for place in places] == [(0, ""), (1, first.id)]
    assert first.error == (
        "taken again: phase touch: other programs took 43% of the processor time that the guest asked for"
    )
    once, again = (run.kernel for run, _ in outcome.runs)
    assert [request.kernel.name for request in lab.requests] == [once, again, again]
    assert lab.requests[1].seed == lab.requests[2].seed
    assert lab.up_now == 0
    assert [boot.place.boot for boot in seen.boots] == [0, 1, 1], "each guest has its own view"
    assert f"asked for: the boot is taken again, once (run {first.id} does not count)" in caplog.text


def test_a_boot_that_fails_when_it_is_taken_again(lab: Lab, plan: Plan, rewritten: list[Run]) -> None:
    lab.kept, lab.breaks = [0.5], {"measure 1": GuestError("it hangs")}
    with pytest.raises(GuestError, match="it hangs"):
        conduct(plan, 1)
    assert len(rewritten) == 1


@pytest.mark.parametrize("kernels", ["ab", "abc", "abcd"])
def test_order(kernels: str) -> None:
    """Drawn for each pair of rounds, forwards and then backwards: a drift of the host affects all alike."""
    count, seen = len(kernels), set()
    for seed in range(200):
        order = [index for _, index in boot_order(kernels, 6, seed=seed)]
        assert order == [index for _, index in boot_order(kernels, 6, seed=seed)]
        for turn in (0, 2, 4):
            forwards, backwards = (order[count * start :][:count] for start in (turn, turn + 1))
            assert sorted(forwards) == list(range(count))
            assert backwards == forwards[::-1]
            seen.add((turn, *forwards))
    assert len(seen) == 3 * math.factorial(count), "every order, in each pair of rounds"


@pytest.mark.parametrize("kernels", ["ab", "abc", "abcd", "aabb"])
@pytest.mark.parametrize(("first", "rounds"), [(0, 1), (0, 4), (0, 5), (1, 3), (3, 4)])
def test_order_goes_on_where_it_was(kernels: str, first: int, rounds: int) -> None:
    """Each kernel has one boot a round; rounds added later continue the order."""
    order = boot_order(kernels, rounds, first=first, seed=5)
    assert order == boot_order(kernels, rounds, seed=5)[first * len(kernels) :]
    assert sorted(index for _, index in order) == sorted([*range(len(kernels))] * (rounds - first))


def test_a_case_may_have_a_clock(case: Path) -> None:
    """It is that of boots for which nobody names one."""
    assert make_plan(str(case), SizeClass.QUICK).clock is None
    case.write_text(f"clock: host\n{CASE.lstrip()}")
    assert make_plan(str(case), SizeClass.QUICK).clock is Clock.HOST
    assert make_plan(str(case), SizeClass.QUICK, clock=Clock.VIRTUAL).clock is Clock.VIRTUAL


def test_plan(plan: Plan) -> None:
    assert (plan.case_name, plan.size, kernel_names(plan)) == (
        "mine",
        SizeClass.QUICK,
        (BEFORE, AFTER),
    )
    assert (plan.machine.topology, plan.machine.memory, plan.machine.vcpus) == ("4socket", 4 * GIB, 8)
    assert plan.case_size.boots == 3
    assert plan.case_size.sysctls == {"vm.watermark_scale_factor": "1000"}
    assert plan.case_size.knobs == {"scan_delay_ms": "100"}


@pytest.mark.parametrize(
    ("words", "machine"),
    [
        ({"topology_name": "cpus2of4"}, ("cpus2of4", 2 * GIB, None)),
        ({"topology_name": "cpus2of4", "vcpus": 2}, ("cpus2of4", 2 * GIB, 2)),
        ({"memory": 8 * GIB}, ("4socket", 8 * GIB, 8)),
        # A topology that the case does not name is no larger than the case's first, nor than its own size.
        ({"topology_name": "fakenuma"}, ("fakenuma", 4 * GIB, 8)),
        ({"topology_name": "uma-2g"}, ("uma-2g", 2 * GIB, 4)),
        ({"topology_name": "uma-2g", "memory": GIB}, ("uma-2g", GIB, 4)),
    ],
)
def test_machine(case: Path, words: dict[str, Any], machine: tuple[str, int | None, int | None]) -> None:
    plan = make_plan(str(case), SizeClass.QUICK, **words)
    assert (plan.machine.topology, plan.machine.memory, plan.machine.vcpus) == machine
    shape = scaled_topology(plan)
    assert shape.memory == (machine[1] or catalog.topology(machine[0]).memory)
    assert shape.vcpus == (machine[2] or catalog.topology(machine[0]).vcpus)


def test_a_machine_has_a_cpu_for_each_node_that_has_some(tmp_path: Path) -> None:
    path = tmp_path / "narrow.yml"
    path.write_text(CASE.replace("topology: 4socket, memory: 4GiB, vcpus: 8", "topology: uma-2g, vcpus: 2"))
    assert make_plan(str(path), SizeClass.QUICK, topology_name="4socket").machine.vcpus == 4


def test_shape_has_the_cases_disks(plan: Plan) -> None:
    """A disk replaces the topology's disk of its name, or is added."""
    assert {disk.name: disk.size for disk in catalog.topology("4socket").disks} == {"500TB": 500 << 40}
    assert {disk.name: disk.size for disk in scaled_topology(plan).disks} == {
        "500TB": 2 * GIB,
        "scratch": GIB,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"kernels": ("6.1", "2.4")}, r"no kernels file .*2\.4\.yml"),
        ({"kernels": ("6.1", "")}, "'' is not a name"),
        (
            {"kernels": ("6.1",)},
            r"^kernels 6\.1: one kernel compares with nothing; give two, such as 6\.1-slowscan-before,6\.1",
        ),
        ({"size": SizeClass.FULL}, "has no size full: it has quick"),
        ({"topology_name": "7socket"}, "no topologies file .*7socket"),
        ({"vcpus": 2}, "^vcpus 2: 4 nodes of this topology have CPUs"),
        ({"vcpus": 0}, "^vcpus 0: 4 nodes of this topology have CPUs"),
        ({"memory": 0}, "^memory: this topology needs"),
        ({"memory": GIB // 1024}, "^memory: this topology needs"),
    ],
)
def test_what_was_chosen_is_checked(case: Path, words: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_plan(str(case), **{"size": SizeClass.QUICK, **words})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("workload: remote", "workload: distant", "there is no workload distant: there are .*remote"),
        ("numa_pte_updates", "numa.updates", r"case mine: there is no metric numa\.updates"),
        ("numa_pte_updates", "elapsed", r"case mine: elapsed: cost: is missing: say what this time"),
        (
            "by: 2",
            "by: 2, cost: work",
            r"case mine: numa_pte_updates: cost: says what a time is spent on, and",
        ),
        ("phase: touch", "phase: tuch", "case mine: remote has no measured phase tuch in size quick"),
        ("phase: touch", "phase: compile-*", "no measured phase compile-"),
        ("mib: 64", "mib: 0", "remote: quick parameter mib: .*greater than or equal to 1"),
        ("mib: 64", "megs: 64", "remote: quick parameter megs: .*not permitted"),
        ("topology: 4socket", "topology: 7socket", "no topologies file"),
        ("workload: remote", "workload: remote\npublished: [nosuch]", r"no reference file .*nosuch\.yml"),
        ("scan_delay_ms", "scan_delay", "case mine: knob scan_delay is none of scan_delay_ms, "),
        ('after: "6.1"', 'after: "2.4"', r"no kernels file .*2\.4\.yml"),
    ],
)
def test_what_the_case_says_is_checked(case: Path, old: str, new: str, message: str) -> None:
    """Before anything is booted or built."""
    assert old in CASE
    case.write_text(CASE.replace(old, new))
    with pytest.raises(InputError, match=message):
        make_plan(str(case), SizeClass.QUICK)


@pytest.mark.parametrize("name", ["My case", "x" * 30, "-x", ""])
def test_a_case_whose_name_no_guest_can_have(name: str, tmp_path: Path) -> None:
    """Before kernels are built; the file is named."""
    path = tmp_path / f"{name}.yml"
    path.write_text(CASE)
    with pytest.raises(
        InputError, match=f"^case {re.escape(str(path))}: .* is no name for guests: rename the file"
    ):
        make_plan(str(path), SizeClass.QUICK)
    longest = tmp_path / f"{'x' * 29}.yml"
    longest.write_text(CASE)
    assert make_plan(str(longest), SizeClass.QUICK).case_name == "x" * 29


def test_interesting(plan: Plan) -> None:
    assert interesting_phase(plan).name == "touch"


def test_prelude(plan: Plan, lab: Lab, deadline: Deadline) -> None:
    """All phases before the interesting one, which is left to the person."""
    case = plan.case.model_copy(update={"workload": "dirtymap"})
    plan = plan.model_copy(
        update={"case": case, "case_size": plan.case_size.model_copy(update={"params": {}})}
    )
    shell = FakeShell(lambda *_: (0, "", ""))
    shell.name, shell.record = "g", record_of(spec())  # type: ignore[attr-defined]
    experiment.prelude(plan, shell, deadline)  # type: ignore[arg-type]
    assert lab.happened == ["compile-dirtymap in g"]
    (made,) = shell.commands
    assert "mkfs.btrfs" in made
    assert shell.limits[0] <= 120, "a phase's own limit"
    shell.record = record_of(spec().model_copy(update={"clock": Clock.VIRTUAL}))  # type: ignore[attr-defined]
    experiment.prelude(plan, shell, Deadline.after(1000))  # type: ignore[arg-type]
    assert shell.limits[1] > 900, "on the virtual clock that is in the guest's seconds"
    broken = FakeShell(lambda *_: (1, "", "no space"))
    broken.name, broken.record = "g", record_of(spec())  # type: ignore[attr-defined]
    with pytest.raises(CommandFailed, match="no space"):
        experiment.prelude(plan, broken, deadline)  # type: ignore[arg-type]


def test_a_crash_while_programs_are_made_names_the_kernel(plan: Plan, lab: Lab) -> None:
    lab.lacking = [phase for phase in workload_phases(plan) if phase.makes]
    lab.breaks["up 0"] = KernelOops("guest mine-compile: its kernel says: kernel BUG at mm/a.c:1!")
    crashed = r"^the before kernel \(6\.1-slowscan-before\) crashed: guest mine-compile: "
    with pytest.raises(KernelOops, match=crashed):
        experiment.conduct(plan, FakeHost().real(), 2, limit=Deadline.after, view=Seen())


def test_programs_are_made_before_the_first_boot(plan: Plan, lab: Lab) -> None:
    """In a guest of their own, on the host's clock, so that all boots that are measured are alike."""
    lab.clock, lab.together = Clock.VIRTUAL, threading.Barrier(2)
    lab.lacking = [phase for phase in workload_phases(plan) if phase.makes]
    limits: list[tuple[float, int]] = []

    def limit(seconds: float) -> Deadline:
        limits.append((seconds, len(lab.shares)))
        return Deadline.after(seconds)

    experiment.conduct(plan, FakeHost().real(), 2, limit=limit, view=Seen())
    seconds = UP_SECONDS + sum(phase.limit_seconds for phase in lab.lacking)
    assert (seconds, 1) in limits, "its time does not run while it waits for CPUs"
    assert lab.happened[:2] == ["compile-remote in mine-compile", "down"]
    assert not any("compile" in word for word in lab.happened[2:])
    assert [request.clock for request in lab.requests] == [Clock.HOST, *[Clock.VIRTUAL] * 4]
    assert [request.shape.vcpus > 1 for request in lab.requests] == [False, *[True] * 4]
    assert len(lab.orders) == 4, "no settings where nothing is measured"


def test_an_old_kernel_compiles_on_the_clock_of_its_boots(plan: Plan, lab: Lab) -> None:
    """On the host's clock its ticket locks may wait for a CPU that the host does not run."""
    lab.clock, lab.together = Clock.VIRTUAL, threading.Barrier(2)
    lab.lacking = [phase for phase in workload_phases(plan) if phase.makes]
    old = tuple(kernel.model_copy(update={"era": era.era("3.16")}) for kernel in plan.kernels)
    plan = plan.model_copy(update={"kernels": old})
    experiment.conduct(plan, FakeHost().real(), 2, limit=Deadline.after, view=Seen())
    assert [request.clock for request in lab.requests] == [Clock.VIRTUAL] * 5


def test_prepare(plan: Plan, monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    """Kernels with a recipe are built, each once; the distribution's exists."""
    built: list[str] = []
    monkeypatch.setattr(image, "existing", lambda *_: None)
    monkeypatch.setattr(build, "build", lambda kernel, *_: built.append(kernel.name))
    build_kernels(
        plan.model_copy(update={"kernels": tuple(map(recipe.load, ("debian", AFTER, AFTER, BEFORE)))}),
        deadline,
    )
    assert built == [AFTER, BEFORE]


def test_rounds_take_several_builds_in_turn(
    plan: Plan, lab: Lab, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """Each layout of each kernel is built and pinned once, and both kernels of a round have the same number."""
    several = plan.model_copy(update={"builds": 3})
    monkeypatch.setattr(image, "existing", lambda *_: None)
    made: list[tuple[str, int]] = []
    monkeypatch.setattr(build, "build", lambda kernel, *_: made.append((kernel.name, kernel.layout)))
    build_kernels(several, deadline)
    assert sorted(made) == sorted((name, number) for name in (BEFORE, AFTER) for number in (1, 2, 3))

    pinned = {
        kernel.build_name: BootFiles(name=kernel.name, kernel=f"/{kernel.name}/{kernel.layout}")
        for kernel in several.all_builds
    }
    runs = list(
        experiment.run(
            several.model_copy(update={"pinned": pinned}),
            FakeHost().real(),
            4,
            experiment="e",
            limit=Deadline.after,
        )
    )
    assert [run.place.build for run, _ in runs if run.place] == [1, 1, 2, 2, 3, 3, 1, 1]
    assert [request.pinned.kernel for request in lab.requests if request.pinned] == [
        f"/{run.kernel}/{run.place.build}" for run, _ in runs if run.place
    ]


def test_builds_that_cannot_be_samples_are_refused(plan: Plan, lab: Lab) -> None:
    with pytest.raises(InputError, match=r"2 builds .*, and 3 are the least that decide"):
        check_plan(plan.model_copy(update={"builds": 2}))
    debian = (recipe.load("debian"), *plan.kernels[1:])
    with pytest.raises(InputError, match="kernel debian is not built here"):
        check_plan(plan.model_copy(update={"builds": 3, "kernels": debian}))
    several = plan.model_copy(update={"builds": 3})
    check_plan(several)
    with pytest.raises(InputError, match="3 builds of each kernel take as many boots, and not 2"):
        conduct(several, 2, Seen())
    assert not lab.requests


def test_run(plan: Plan, lab: Lab) -> None:
    seen, start = Seen(), time.monotonic()
    runs = list(
        experiment.run(
            plan, FakeHost().real(), 2, experiment="e", looks=3, limit=Deadline.after, began=seen.began
        )
    )
    assert [word for word in lab.happened if word != "down"] == [
        f"0 {BEFORE} before",
        f"1 {AFTER} after",
        f"2 {AFTER} after",
        f"3 {BEFORE} before",
    ]
    assert lab.happened[1::2] == ["down"] * 4, "one after the other"
    assert [boot.kernel.name for boot in seen.boots] == [BEFORE, AFTER, AFTER, BEFORE]
    assert len({deadline.at for deadline in lab.deadlines}) == 4, "each boot has its own time"
    assert lab.shares == [("CPUs", 2, 2)] * 4, "on the host's clock a guest takes as many CPUs as it has"
    request, options = lab.requests[1], lab.options[1]
    assert (request.topology_name, request.kernel.name, request.append, request.accel) == (
        "4socket",
        AFTER,
        "quiet",
        "auto",
    )
    assert request.shape == scaled_topology(plan)
    assert len({request.name for request in lab.requests}) == 4
    assert (
        lab.orders
        == [provision.Order(sysctls={"vm.watermark_scale_factor": "1000"}, knobs={"scan_delay_ms": "100"})]
        * 4
    )
    assert options.settings == {"vm.watermark_scale_factor": "1000", "scan_delay_ms": "100"}
    begun = [options.begun or 0 for options in lab.options]
    assert start <= begun[0] < begun[1] < begun[2] < begun[3], "each boot's own beginning"
    assert (options.params, options.tracepoints) == ({"mib": 64}, ("migrate:mm_migrate_pages",))
    place = runs[1][0].place
    assert place
    assert (place.case_name, place.case, place.experiment, place.arm, place.boot, place.looks) == (
        "mine",
        plan.case,
        "e",
        Arm.AFTER,
        1,
        3,
    )


def test_side_by_side_on_a_virtual_clock(plan: Plan, lab: Lab) -> None:
    """Two CPUs hold two guests; each boot has a seed of its own, made from the experiment's."""
    lab.clock, lab.together = Clock.VIRTUAL, threading.Barrier(2)
    outcome = conduct(plan.model_copy(update={"seed": 7}), 3)
    assert [run.place.boot for run, _ in outcome.runs if run.place] == list(range(6))
    assert {(run.place.side_by_side, run.place.seed) for run, _ in outcome.runs if run.place} == {(2, 7)}
    assert lab.shares == [("CPUs", 2, 1)] * 6, "its CPUs run one at a time"
    assert {request.clock for request in lab.requests} == {Clock.VIRTUAL}
    assert {request.seed for request in lab.requests} == {boot_seed(7, number) for number in range(6)}
    assert outcome.verdicts[0].answer is Answer.HOLDS


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"side_by_side": 1, "clock": Clock.VIRTUAL}, 1),
        ({"clock": Clock.VIRTUAL}, 2),
        ({"clock": Clock.HOST}, 1),
        ({"clock": Clock.VIRTUAL, "machine": {"memory": 40 * GIB}}, 1),
    ],
)
def test_guests_at_a_time(plan: Plan, lab: Lab, words: dict[str, Any], expected: int) -> None:
    """As many as CPUs and memory allow (64 GiB here), unless a person wants fewer."""
    machine = plan.machine.model_copy(update=words.pop("machine", {}))
    if expected > 1:
        lab.together = threading.Barrier(expected)
    outcome = conduct(plan.model_copy(update={"machine": machine, **words}), 1)
    assert {run.place.side_by_side for run, _ in outcome.runs if run.place} == {expected}


@pytest.mark.parametrize(
    ("words", "at"),
    [
        ({"clock": Clock.VIRTUAL}, [5]),
        ({"clock": Clock.VIRTUAL, "side_by_side": 2}, []),
        ({"clock": Clock.HOST}, []),
    ],
)
def test_room_for_another_experiment(plan: Plan, lab: Lab, words: dict[str, Any], at: list[int]) -> None:
    """When the last boots are under way and one of two CPUs is idle; never where a person chose how many
    guests run at a time, or on the host's clock."""
    ended, last, measure = list[int](), threading.Event(), lab.measure

    def one(guest: Any, workload: str, size: SizeClass, deadline: Deadline, options: Any, **more: Any) -> Any:
        assert options.place
        if options.place.boot == 5 and at:
            assert last.wait(10), "the last boot waits for the room that it leaves"
        return measure(guest, workload, size, deadline, options, **more)

    class Seen(Turn):
        def room(self) -> None:
            ended.append(lab.happened.count("down"))
            last.set()

    lab.alone = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "run", one)
        conduct(plan.model_copy(update=words), 3, turn=Seen())
    assert ended[:1] == at


def test_no_room_while_a_boot_waits(plan: Plan, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 16 CPUs all six boots begin at once; where other guests have the CPUs, no further case begins."""
    free, rooms, ups = threading.Event(), list[int](), list[str]()
    share, up, measure = lab.share, lab.up, lab.measure

    @contextmanager
    def last_waits(name: str, total: int, wanted: int, deadline: Deadline) -> Iterator[None]:
        with share(name, total, wanted, deadline):
            if len(lab.shares) == 6:
                assert not free.wait(0.7), "there was room for another case"
            yield

    def counted(request: GuestRequest, *words: Any) -> Any:
        ups.append(request.name)
        return up(request, *words)

    def until_there_is_room(*words: Any, **options: Any) -> Any:
        assert free.wait(10)
        return measure(*words, **options)

    class Seen(Turn):
        def room(self) -> None:
            rooms.append(len(ups))
            free.set()

    monkeypatch.setattr(runner, "run", until_there_is_room)
    monkeypatch.setattr(FakeHost, "cpus", lambda *_: 16)
    monkeypatch.setattr(state, "machine_share", last_waits)
    monkeypatch.setattr(launch, "up", counted)
    lab.together = threading.Barrier(6)
    conduct(plan.model_copy(update={"clock": Clock.VIRTUAL}), 3, turn=Seen())
    assert set(rooms) == {6}


@pytest.mark.parametrize(
    ("clock", "built", "waits"), [("host", True, 1), ("virtual", False, 1), ("virtual", True, 0)]
)
def test_what_disturbs_others_waits_for_them(
    plan: Plan, lab: Lab, clock: str, built: bool, waits: int
) -> None:
    """A case on the host's clock, which they disturb, and kernels that are built, beside other cases."""
    waited = list[int]()

    class Seen(Turn):
        def alone(self, cancel: threading.Event) -> None:
            waited.append(len(lab.requests))

    lab.built, lab.alone = built, False
    conduct(plan.model_copy(update={"clock": Clock(clock)}), 1, turn=Seen())
    assert waited == [0] * waits, "before the first boot"


def test_guests_beside_an_experiment_leave_it_their_memory(
    plan: Plan, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another experiment of this process end, so they do not lower how many run at a time."""
    big = {"machine": plan.machine.model_copy(update={"memory": 40 * GIB}), "clock": Clock.VIRTUAL}
    monkeypatch.setattr(guests, "made_by_us", lambda: ["theirs"])
    monkeypatch.setattr(FakeHost, "free_memory", lambda *_, besides: 80 * GIB * (besides == ["theirs"]))
    lab.together = threading.Barrier(2)
    outcome = conduct(plan.model_copy(update=big), 1)
    assert {run.place.side_by_side for run, _ in outcome.runs if run.place} == {2}


def test_company_on_the_hosts_clock_is_refused(plan: Plan, lab: Lab) -> None:
    with pytest.raises(
        InputError, match=r"^side by side: 2 guests on the host's clock take each other's time"
    ):
        conduct(plan.model_copy(update={"side_by_side": 2, "clock": Clock.HOST}), 1)
    assert not lab.requests


@pytest.mark.parametrize("words", [{"clock": Clock.HOST}, {"accel": "kvm"}])
def test_company_is_refused_before_anything_is_built(words: dict[str, Any]) -> None:
    """Where it is known that the clock is the host's; with auto a kernel says which one it is."""
    with pytest.raises(InputError, match=r"^side by side: 3 guests on the host's clock"):
        make_plan("nas", SizeClass.QUICK, side_by_side=3, **words)


def test_a_new_experiment_has_a_new_seed(plan: Plan, lab: Lab) -> None:
    unseeded = plan.model_copy(update={"seed": None})
    seeds = {run.place.seed for _ in range(2) for run, _ in conduct(unseeded, 1).runs if run.place}
    assert len(seeds) == 2


@pytest.mark.parametrize("how", ["another breaks", "cancelled"])
def test_what_ends_one_boot_ends_those_beside_it(
    plan: Plan, lab: Lab, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the four minutes of the other, and no guest stays."""
    cancel, both = threading.Event(), threading.Barrier(2)

    def measure(guest: Any, workload: str, size: SizeClass, deadline: Deadline, *_: Any, **__: Any) -> Any:
        both.wait(10)
        if how == "cancelled":
            cancel.set()
        elif guest.kernel == AFTER:
            raise GuestError("the kernel warned")
        deadline.pause(60)
        deadline.check("measuring")

    monkeypatch.setattr(runner, "run", measure)
    boots = experiment.run(
        plan.model_copy(update={"side_by_side": 2, "clock": Clock.VIRTUAL}),
        FakeHost().real(),
        1,
        experiment="e",
        limit=lambda seconds: Deadline.after(seconds, cancel),
    )
    with pytest.raises(GuestError if how == "another breaks" else Cancelled):
        list(boots)
    assert lab.up_now == 0
    assert lab.happened == ["down", "down"]


def test_a_boot_that_takes_too_long_names_its_limit(plan: Plan, lab: Lab) -> None:
    """The command that was running then is no help; where the limit is set is. A step's own limit is named
    by the step."""
    lab.breaks["measure 0"] = DeadlinePassed("ssh -F none -o …: the time limit passed")
    hasty = plan.case_size.model_copy(update={"minutes": 1e-9})
    quick = plan.case.model_copy(update={"sizes": {SizeClass.QUICK: hasty}})
    for case, words in (
        (quick, r"^mine-0: not done in 1e-09 minutes \(case mine, size quick: minutes\): ssh"),
        (plan.case, "^ssh"),
    ):
        late = plan.model_copy(update={"case": case})
        with pytest.raises(DeadlinePassed, match=words):
            list(experiment.run(late, FakeHost().real(), 1, experiment="e", limit=Deadline.after))
        lab.happened.clear()


def test_a_guest_without_settings_is_not_tuned(plan: Plan, lab: Lab) -> None:
    bare = plan.case_size.model_copy(update={"sysctls": {}, "knobs": {}})
    plain = plan.model_copy(update={"case": plan.case.model_copy(update={"sizes": {SizeClass.QUICK: bare}})})
    list(experiment.run(plain, FakeHost().real(), 1, experiment="e", limit=Deadline.after))
    assert not lab.orders


@pytest.mark.parametrize("where", ["up", "tune", "measure"])
@pytest.mark.parametrize("error", [GuestError("the kernel warned"), KeyboardInterrupt()])
def test_a_boot_that_breaks_ends_it(plan: Plan, lab: Lab, where: str, error: BaseException) -> None:
    """Earlier runs stay, no later guest is booted, and the broken one is down."""
    lab.breaks[f"{where} 2"] = error
    runs: list[tuple[Run, Path]] = []
    with pytest.raises(type(error)):
        runs.extend(experiment.run(plan, FakeHost().real(), 3, experiment="e", limit=Deadline.after))
    assert [run.place.boot for run, _ in runs if run.place] == [0, 1]
    assert lab.up_now == 0
    assert len(lab.requests) == (2 if where == "up" else 3)


def test_no_guest_is_up_while_a_run_is_looked_at(plan: Plan, lab: Lab) -> None:
    """The caller may raise, and then nobody would end the guest."""
    for _ in experiment.run(plan, FakeHost().real(), 1, experiment="e", limit=Deadline.after):
        assert lab.up_now == 0


def test_conduct(plan: Plan, lab: Lab) -> None:
    seen = Seen()
    outcome = conduct(plan, 3, seen)
    assert len(outcome.runs) == 6
    assert {run.place.experiment for run, _ in outcome.runs if run.place} == {outcome.experiment}
    assert {run.place.looks for run, _ in outcome.runs if run.place} == {1}
    assert {run.place.planned for run, _ in outcome.runs if run.place} == {6}
    assert [(verdict.answer, verdict.boots) for verdict in outcome.verdicts] == [(Answer.HOLDS, (3, 3))]
    assert [verdict.boots for verdict in seen.verdicts] == [
        (2, 2),
        (3, 3),
    ], "told once a round, from two boots of each on"


def test_conduct_judges_each_kernel_against_the_first(case: Path, lab: Lab) -> None:
    lab.values = {**CLEAR, "6.12": [1_500_000, 1_600_000, 1_550_000]}
    plan = make_plan(str(case), SizeClass.QUICK, kernels=(BEFORE, AFTER, "6.12"), seed=FORWARDS)
    outcome = conduct(plan, 3)
    assert [(verdict.before, verdict.after, verdict.answer) for verdict in outcome.verdicts] == [
        (BEFORE, AFTER, Answer.HOLDS),
        (BEFORE, "6.12", Answer.DOES_NOT_HOLD),
    ]


def test_auto_ends_when_it_is_clear(plan: Plan, lab: Lab) -> None:
    outcome = conduct(plan, None)
    assert (len(outcome.runs), outcome.verdicts[0].answer) == (6, Answer.HOLDS)
    assert {run.place.looks for run, _ in outcome.runs if run.place} == {3}, (
        "3, 5 and 8 boots: fixed before the first"
    )


def test_auto_goes_on_until_the_budget_is_spent(plan: Plan, lab: Lab) -> None:
    lab.values = NOISE
    outcome = conduct(plan, None)
    assert (len(outcome.runs), outcome.verdicts[0].answer) == (16, Answer.CANNOT_TELL)
    assert [run.place.boot for run, _ in outcome.runs if run.place] == list(range(16))
    assert len({run.place.experiment for run, _ in outcome.runs if run.place}) == 1
    assert [boot.split()[1] for boot in lab.happened if boot != "down"] == [BEFORE, AFTER, AFTER, BEFORE] * 4


def test_an_experiment_that_is_cut_short_is_doubted(plan: Plan, lab: Lab) -> None:
    """Interrupted within a look, and between two looks of --boots auto; one that is clear has ended."""

    def unfinished(runs: Sequence[Run]) -> list[str]:
        return [doubt for doubt in judging.verdicts(runs)[0].doubts if "unfinished" in doubt]

    clear = [run for run, _ in conduct(plan, None).runs]
    assert unfinished(clear) == []
    lab.values, lab.taken = NOISE, {}
    spent = [run for run, _ in conduct(plan, None).runs]
    assert [run.place.planned for run in spent if run.place] == [6] * 6 + [10] * 4 + [16] * 6
    assert unfinished(spent) == []
    assert "11 of 16 planned boots count" in unfinished(spent[:11])[0]
    assert "unclear after 3 boots of each kernel, and it was to go on to 8" in unfinished(spent[:6])[0]
    broken = [*spent[:-1], spent[-1].model_copy(update={"error": "panic"})]
    assert "15 of 16 planned boots count" in unfinished(broken)[0]


def test_auto_of_several_goes_on_for_the_one_that_is_not_clear(case: Path, lab: Lab) -> None:
    lab.values = {**CLEAR, "6.12": [500_000, 1_600_000, 300_000, 900_000]}
    outcome = conduct(make_plan(str(case), SizeClass.QUICK, kernels=(BEFORE, AFTER, "6.12")), None)
    assert len(outcome.runs) > 9
    assert len(outcome.runs) % 3 == 0
    assert {verdict.boots for verdict in outcome.verdicts} == {(len(outcome.runs) // 3,) * 2}


def test_an_error_ends_an_experiment_without_a_verdict(plan: Plan, lab: Lab) -> None:
    lab.breaks["measure 3"] = GuestError("the kernel warned")
    seen = Seen()
    with pytest.raises(GuestError, match="the kernel warned"):
        conduct(plan, 3, seen)
    assert len(seen.boots) == 4
    assert lab.up_now == 0


def calibrated(lab: Lab, plan: Plan, values: Sequence[int]) -> None:
    """Store a calibration of this case and machine."""
    lab.values = {AFTER: values}
    outcome = conduct(plan.model_copy(update={"kernels": (plan.kernels[1],) * 2}), 3)
    calibration.save(calibration.of([run for run, _ in outcome.runs]))
    lab.happened.clear()
    lab.taken.clear()


def test_thresholds_inside_the_spread_are_a_doubt(
    plan: Plan, lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """Said after the first boot, which determines the machine, and under the verdict: a larger effect shows."""
    calibrated(lab, plan, [100_000, 300_000, 900_000, 50_000])
    lab.values = CLEAR
    (judged,) = conduct(plan, 3).verdicts
    assert judged.answer is Answer.HOLDS
    (doubt,) = judged.doubts
    assert "numa_pte_updates (touch): 3 boots of one kernel differ by up to " in doubt
    (line,) = (line for line in caplog.messages if "by themselves" in line)
    assert line.endswith(f"{doubt}: less than that cannot be told")
    # Said of two kernels only: a calibration is of one.
    caplog.clear()
    conduct(plan.model_copy(update={"kernels": (plan.kernels[1],) * 2}), 3)
    assert "by themselves" not in caplog.text


def test_expectations_go_by_the_release_after(plan: Plan) -> None:
    """Whichever arm boots first."""
    before, after = plan.kernels
    third = after.model_copy(update={"name": "third"})
    files = {
        kernel.build_name: BootFiles(name=kernel.name, release=release)
        for kernel, release in ((before, "3.19.0"), (after, "4.0.0"), (third, "4.1.0"))
    }
    assert plan.judged_releases == {""}, "nothing is built yet"
    built = plan.model_copy(update={"pinned": files})
    assert built.judged_releases == {"4.0.0"}
    assert built.model_copy(update={"kernels": (before, after, third)}).judged_releases == {"4.0.0", "4.1.0"}


def test_a_metric_without_a_value_is_said_after_the_first_boot(
    plan: Plan, lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """A misspelt counter would else cost all boots before the case could not tell."""
    (right,) = plan.case.expect
    wrong = right.model_copy(update={"metric": "numa_pte_updats"})
    conduct(plan.model_copy(update={"case": plan.case.model_copy(update={"expect": (right, wrong)})}), 3)
    (line,) = (line for line in caplog.messages if "has no value in this boot" in line)
    assert "numa_pte_updats, touch: " in line


def test_thresholds_outside_the_spread_are_not(plan: Plan, lab: Lab) -> None:
    calibrated(lab, plan, [98_000, 98_100, 98_500])
    lab.values = CLEAR
    verdict = conduct(plan, 3).verdicts[0]
    assert verdict.answer is Answer.HOLDS
    assert not verdict.doubts, "it is calibrated, interleaved, and nothing broke"


def test_options_that_differ_are_read_from_the_folders_of_runs(plan: Plan, lab: Lab) -> None:
    """One folder of each configuration is enough; a file that is not the run's own says nothing."""
    texts = {Arm.BEFORE: "CONFIG_HZ=250\n", Arm.AFTER: "CONFIG_HZ=1000\n"}
    runs = []
    for run, _ in conduct(plan, 3).runs:
        assert run.place
        digest = kconfig.digest(kconfig.in_force(texts[run.place.arm]))
        runs.append(run.model_copy(update={"kernel_facts": {"configuration": digest}}))

    def told() -> str:
        return next(doubt for doubt in judging.verdicts(runs)[0].doubts if "configuration" in doubt)

    assert "see kernel.config of" in told()
    for run in runs[-2:]:
        assert run.place
        folder = state.folder("runs") / run.id
        folder.mkdir(exist_ok=True)
        (folder / "kernel.config").write_text(texts[run.place.arm])
    assert told() == "configuration: CONFIG_HZ: 250 before, 1000 after"
    (folder / "kernel.config").write_text("CONFIG_HZ=100\n")
    assert "see kernel.config of" in told()


def test_verdicts_need_both_sides(lab: Lab, plan: Plan) -> None:
    runs = [run for run, _ in conduct(plan, 3).runs]
    assert judging.verdicts([run for run in runs if run.place and run.place.arm is Arm.BEFORE]) == ()
    assert judging.verdicts([]) == ()


def test_a_boot_waits_for_memory_that_other_guests_have(
    plan: Plan, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two experiments on one machine: neither ends the other. Where nobody has the memory, waiting is in vain."""
    host = FakeHost()
    lab.breaks["up 1"] = NoRoom("4GiB of memory requested, 2048MiB free on the host")
    with pytest.raises(NoRoom):
        list(experiment.run(plan, host.real(), 1, experiment="e", limit=Deadline.after))
    host.add(mark(spec(name="of-another")))
    looked = threading.Event()

    def pause(_deadline: Deadline, _seconds: float) -> None:
        looked.set()
        lab.breaks.clear()

    monkeypatch.setattr(Deadline, "pause", pause)
    assert len(list(experiment.run(plan, host.real(), 1, experiment="e", limit=Deadline.after))) == 2
    assert looked.is_set()


def test_ctrl_c_ends_a_wait_for_memory(plan: Plan, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cancelled, and no error of the lab."""
    host, ends = FakeHost(), threading.Event()
    host.add(mark(spec(name="of-another")))
    lab.breaks["up 0"] = NoRoom("4GiB of memory requested, 2048MiB free on the host")
    monkeypatch.setattr(experiment, "ROOM_SECONDS", 0.01)

    def end(text: str, **_: str) -> None:
        if "waiting for memory" in text:
            ends.set()

    monkeypatch.setattr(experiment, "tell", end)
    boots = experiment.run(
        plan, host.real(), 1, experiment="e", limit=lambda seconds: Deadline.after(seconds, ends)
    )
    with pytest.raises(Cancelled, match="waiting for memory"):
        list(boots)


def test_more_memory_than_the_machine_has_is_not_waited_for(plan: Plan, lab: Lab) -> None:
    host = FakeHost()
    host.add(mark(spec(name="of-another")))
    host.has = GIB
    lab.breaks["up 0"] = NoRoom("4GiB of memory requested, 512MiB free on the host")
    with pytest.raises(NoRoom):
        list(experiment.run(plan, host.real(), 1, experiment="e", limit=Deadline.after))


def test_more_memory_than_the_machine_has_is_refused_before_kernels_are_built(
    plan: Plan, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost()
    host.has = GIB
    monkeypatch.setattr(experiment, "build_kernels", lambda *_: pytest.fail("kernels are built"))
    with pytest.raises(
        NoRoom, match=r"case mine: 4GiB of memory requested, and the host has 1024MiB: choose less"
    ):
        experiment.conduct(plan, host.real(), 1, limit=Deadline.after, view=Seen())
