# SPDX-License-Identifier: GPL-2.0-only
"""Runs a case: fresh guests of each kernel in turn, one run each. Also prepares a guest of a case for a
person.

Boots alternate (plan.boot_order), never all of one kernel first, so that a drift of the host affects both. A
boot is one sample, whatever it repeats inside. On a virtual clock, which company does not disturb, guests run
side by side. A measured guest holds CPUs of the machine (state.machine_share), so that several experiments
share it without more guests than CPUs. Not here: what the runs show (judging), what is decided before the
first boot (plan).
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from numalab.analysis import calibration, expectation, metrics, verdict
from numalab.core import state
from numalab.core.errors import (
    BuildsGone,
    DeadlinePassed,
    HostError,
    InputError,
    KernelOops,
    NameTaken,
    NoRoom,
)
from numalab.core.log import note, step, tell
from numalab.core.process import POLL_SECONDS, Deadline
from numalab.experiment import judging
from numalab.experiment.plan import (
    Builds,
    Plan,
    are_built,
    boot_order,
    boot_seed,
    build_kernels,
    check_alone,
    check_rounds,
    interesting_phase,
    pin_builds,
    scaled_topology,
    workload_phases,
)
from numalab.experiment.several import Turn
from numalab.guest import guest as guests
from numalab.guest import launch, provision
from numalab.guest import ready as ready_states
from numalab.guest.guest import Guest
from numalab.guest.settings import UP_SECONDS
from numalab.host import accelerator, image, ssh
from numalab.host.hypervisor import Host
from numalab.kernel.recipe import Kernel
from numalab.measure import preparation, programs, runner
from numalab.model.case import Arm, Machine, Place
from numalab.model.guest import Boot as BootFiles
from numalab.model.guest import PreparedDisks
from numalab.model.run import Run
from numalab.model.units import MIB, show_size
from numalab.model.values import Clock, SizeClass, Value
from numalab.model.verdict import Verdict
from numalab.runs import record

PREPARE_SECONDS = 6 * 3600.0
"""Time limit for kernels that must be built first; slowest is a distribution's, emulated."""
VIRTUAL_PATIENCE = 2
"""A boot's limit on a virtual clock, in a case's `minutes`: its guest has one CPU of the host, and on a busy
host, which must not matter, only a part of that."""
ROOM_SECONDS = 5.0
"""How often a boot looks for memory that other guests had."""
SPARE_SECONDS = 60.0
"""Added to a boot's limit, for ending the guest."""


@dataclass(frozen=True)
class ExperimentBoot:
    """One boot of an experiment, before it begins."""

    kernel: Kernel
    place: Place
    up: threading.Event = field(default_factory=threading.Event, compare=False)
    """Set when its guest is up: it waits for neither CPUs nor memory."""

    @property
    def name(self) -> str:
        """What progress calls it: its guest's name, unless that is taken."""
        return f"{self.place.case_name}-{self.place.boot}"


def _no_room() -> None:
    """No other experiment runs beside this one."""


def run(
    plan: Plan,
    host: Host,
    boots: int,
    *,
    experiment: str,
    first: int = 0,
    planned: int | None = None,
    looks: int = 1,
    block: str = "",
    limit: Callable[[float], Deadline],
    began: Callable[[ExperimentBoot], runner.Watcher | None] = lambda _: None,
    room: Callable[[], None] = _no_room,
) -> Generator[tuple[Run, Path]]:
    """Boot and measure rounds `first` to `boots` - 1, plan.side_by_side guests at a time. Yields a run for
    each boot, in order. `planned` rounds are in the record; None: `boots`. `block`: see Place. `room` is
    called when the guests of all boots are up or have ended, and fewer than plan.side_by_side are up.

    An error in any boot ends the experiment; earlier runs stay. Nothing begins while the caller looks at a
    run. Close the generator when not all of it is used: that ends the boots in progress.
    """
    begun = [
        ExperimentBoot(
            kernel := plan.laid_out(plan.kernels[index], number // len(plan.kernels)),
            Place(
                case_name=plan.case_name,
                case=plan.case,
                experiment=experiment,
                arm=Arm.BEFORE if index == 0 else Arm.AFTER,
                boot=number,
                looks=looks,
                planned=(planned or boots) * len(plan.kernels),
                seed=plan.seed,
                side_by_side=plan.side_by_side or 1,
                block=block,
                build=kernel.layout,
            ),
        )
        for number, index in boot_order(plan.kernels, boots, first=first, seed=plan.seed or 0)
    ]
    at_once = plan.side_by_side or 1
    stop, cancel = threading.Event(), limit(0).cancel
    waiting, going = deque(begun), deque[Future[tuple[Run, Path]]]()
    with ThreadPoolExecutor(at_once) as pool:
        try:
            while waiting or going:
                if going and going[0].done():
                    yield going.popleft().result()
                    continue
                busy = [boot for boot in going if not boot.done()]
                if waiting and len(busy) < at_once:
                    going.append(pool.submit(_measure, plan, host, waiting.popleft(), began, stop))
                    continue
                if len(busy) < at_once and all(boot.up.is_set() for boot in begun):
                    room()
                wait(busy, POLL_SECONDS, FIRST_COMPLETED)
                if cancel.is_set():
                    stop.set()
                for boot in going:
                    if boot.done() and (error := boot.exception()):
                        raise error
        finally:
            stop.set()  # ends those in progress


def _measure(
    plan: Plan,
    host: Host,
    boot: ExperimentBoot,
    began: Callable[[ExperimentBoot], runner.Watcher | None],
    stop: threading.Event,
) -> tuple[Run, Path]:
    """One boot's run, on CPUs of its own; ended early by `stop`. A boot from which other programs took too
    much processor time is taken again, once: its first run is kept with an error, and does not count."""
    with _own_cpus(plan, host, stop), _crash_of(boot.place.arm, boot.kernel):
        run, folder = _take(plan, host, boot, began(boot), stop)
        if not (busy := verdict.busy(run, plan.judged_releases)):
            return run, folder
        note(f"{boot.name}: {busy}: the boot is taken again, once (run {run.id} does not count)")
        record.write(run.model_copy(update={"error": f"taken again: {busy}"}), folder)
        again = replace(boot, place=boot.place.model_copy(update={"instead_of": run.id}))
        return _take(plan, host, again, began(again), stop)


def _take(
    plan: Plan, host: Host, boot: ExperimentBoot, watcher: runner.Watcher | None, stop: threading.Event
) -> tuple[Run, Path]:
    """A fresh guest, measured. It waits for the memory that other guests of the lab have."""
    patient, waits = Deadline.after(PREPARE_SECONDS, stop), False
    while True:
        try:
            return _boot(plan, host, boot, watcher, stop)
        except NoRoom as error:
            others = sorted({mark.name for mark in host.marks(patient)})
            if not others or scaled_topology(plan).memory > host.memory(patient):
                raise
            if not waits:
                tell(f"waiting for memory that guests have ({', '.join(others)}): {error}", who=boot.name)
            waits = True
            patient.pause(ROOM_SECONDS)
            patient.check(f"{boot.name}: waiting for memory that other guests have")


def _boot(
    plan: Plan, host: Host, boot: ExperimentBoot, watcher: runner.Watcher | None, stop: threading.Event
) -> tuple[Run, Path]:
    seconds, begun = patience(plan.case_size.minutes, plan.clock), time.monotonic()
    deadline = Deadline.after(seconds, stop)
    # A guest from a ready state is not booted: no seed reaches it.
    seed = None if plan.seed is None or plan.ready else boot_seed(plan.seed, boot.place.boot)
    with (
        _too_late(boot, plan.size, seconds / 60, deadline),
        booted(plan, host, boot.kernel, boot.name, deadline, seed=seed) as (guest, settings),
    ):
        boot.up.set()
        options = runner.Options(
            params=plan.case_size.params,
            tracepoints=plan.case.tracepoints,
            settings=settings,
            profile_hz=plan.profile_hz,
            place=boot.place,
            begun=begun,
            prepared=plan.prepared_disks,
        )
        return runner.run(guest, plan.case.workload, plan.size, deadline, options, watcher=watcher)


@contextmanager
def _own_cpus(plan: Plan, host: Host, stop: threading.Event) -> Iterator[None]:
    """Hold the CPUs that a guest of the plan uses, so that other guests of this lab leave them alone."""
    total = host.cpus(Deadline.after(SPARE_SECONDS, stop))
    # A guest on a virtual clock runs its CPUs one at a time.
    wanted = 1 if plan.clock is Clock.VIRTUAL else min(total, scaled_topology(plan).vcpus)
    machine = f" of {host.where.ssh}" if host.where.ssh else ""
    with state.machine_share(f"CPUs{machine}", total, wanted, Deadline.after(PREPARE_SECONDS, stop)):
        yield


def patience(minutes: float, clock: Clock | None) -> float:
    """Seconds of the host for a boot whose case allows it so many minutes."""
    return 60 * minutes * (VIRTUAL_PATIENCE if clock is Clock.VIRTUAL else 1)


@contextmanager
def _too_late(boot: ExperimentBoot, size: SizeClass, minutes: float, deadline: Deadline) -> Iterator[None]:
    """Name the limit that a boot exceeded, and where it is set."""
    try:
        yield
    except DeadlinePassed as error:
        if deadline.remaining():  # a step's own limit
            raise
        field = f"case {boot.place.case_name}, size {size}: minutes"
        raise DeadlinePassed(
            f"{boot.name}: not done in {minutes:g} minutes ({field}): {error}",
            evidence=error.evidence,
        ) from error


@contextmanager
def _crash_of(arm: Arm, kernel: Kernel) -> Iterator[None]:
    """Add arm and kernel to an oops: a crash of the kernel "before" is no regression."""
    try:
        yield
    except KernelOops as error:
        raise KernelOops(
            f"the {arm} kernel ({kernel.name}) crashed: {error}", evidence=error.evidence
        ) from error


def fresh_experiment(case_name: str) -> str:
    """A new experiment's name: time, case, process id, random digits."""
    return f"{state.stamp()}-{case_name}-{os.getpid()}-{secrets.token_hex(4)}"


@contextmanager
def booted(
    plan: Plan, host: Host, kernel: Kernel, name: str, deadline: Deadline, *, seed: int | None = None
) -> Iterator[tuple[Guest, dict[str, str]]]:
    """A fresh guest of the plan, with its settings as read back; ended with the block."""
    while True:
        try:
            guest, settings = up(plan, host, kernel, guests.fresh_name(name), deadline, seed=seed)
            break
        except NameTaken:  # by another experiment, after our check
            deadline.check(f"finding a name for guest {name}")
    with guests.ending(guest):
        yield guest, settings


def up(
    plan: Plan,
    host: Host,
    kernel: Kernel,
    name: str,
    deadline: Deadline,
    *,
    kept: bool = False,
    seed: int | None = None,
) -> tuple[Guest, dict[str, str]]:
    """A guest of the plan, and its sysctls and knobs as they are set; `kept` for a person. On any error,
    nothing is left."""
    request = _request(plan, kernel, name).model_copy(
        update={"kept": kept, "seed": seed, "prepared": plan.disks.get(kernel.build_name)}
    )
    soon = deadline.within(UP_SECONDS)
    if plan.ready:
        # A boot among guests that do not boot would be no boot of the same experiment.
        guest = ready_states.up(request, host, soon, or_boot=False)
    else:
        guest = launch.up(request, host, soon)
    order = _order(plan)
    if not (order.sysctls or order.knobs):
        return guest, {}
    with guests.ending(guest, only_on_error=True), step("sysctls and knobs set and read back", who=name):
        return guest, provision.apply(guest, order, deadline)


def _order(plan: Plan) -> provision.Order:
    size = plan.case_size
    return provision.Order(sysctls=size.sysctls, knobs=size.knobs, instead=size.instead)


def _request(plan: Plan, kernel: Kernel, name: str) -> launch.GuestRequest:
    """A request for a guest of the plan."""
    return launch.GuestRequest(
        name=name,
        topology_name=plan.machine.topology,
        shape=scaled_topology(plan),
        kernel=kernel,
        accel=plan.accel,
        clock=plan.clock,
        pin=plan.pin,
        huge_page=plan.huge_page,
        profiled=plan.profile_hz > 0,
        probe=plan.probe,
        append=plan.case.append,
        image_name=plan.image,
        image_id=plan.image_id,
        pinned=plan.pinned.get(kernel.build_name),
    )


@contextmanager
def on_prepared_disks(plan: Plan, host: Host, limit: Callable[[float], Deadline]) -> Iterator[Plan]:
    """The plan with the disks that its boots begin on, made on first use and kept from gc during the block.

    All kernels of an era begin on the same ones, which the last of them prepares, an "after".
    """
    with ExitStack() as held:
        made, disks = dict[str, PreparedDisks](), dict[str, PreparedDisks]()
        for kernel in plan.all_builds if plan.prepared_disks else ():
            last = next(one for one in reversed(plan.all_builds) if one.era == kernel.era)
            if last.build_name not in made:
                work = preparation.Work(
                    workload=plan.case.workload,
                    size=plan.size,
                    params=plan.case_size.params,
                    order=_order(plan),
                )
                quick = _unmeasured(plan, last)
                arm = Arm.BEFORE if last.name == plan.kernels[0].name else Arm.AFTER
                prepared = preparation.disks(
                    _request(plan, last, "disks"),
                    work,
                    host,
                    limit,
                    while_made=_own_cpus(quick, host, limit(0).cancel),
                )
                with _crash_of(arm, last):
                    made[last.build_name] = held.enter_context(prepared)
            disks[kernel.build_name] = made[last.build_name]
        yield plan.model_copy(update={"disks": disks})


def prelude(plan: Plan, guest: Guest, deadline: Deadline) -> None:
    """Run everything before the interesting phase in a guest: make file systems and files, drop caches."""
    module = runner.load(plan.case.workload)
    runner.give_files(guest, module, runner.parameters(module, plan.size, plan.case_size.params), deadline)
    last = interesting_phase(plan)
    disks = plan.disks.get(plan.kernels[0].build_name)
    for phase in workload_phases(plan):
        if phase == last:
            return
        if disks and phase.name in disks.phases:
            continue
        if phase.makes:
            programs.give(guest, phase, deadline)
            continue
        with step(f"{plan.case.workload}: {phase.name}", who=guest.name):
            # On the virtual clock its limit is in the guest's seconds, and the host may need more.
            virtual = guest.record.spec.clock is Clock.VIRTUAL
            soon = deadline if virtual else deadline.within(phase.limit_seconds)
            ssh.succeed(guest, phase.command, deadline=soon)


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment: runs with their folders, and a verdict for each kernel but the first."""

    experiment: str
    runs: tuple[tuple[Run, Path], ...]
    verdicts: tuple[Verdict, ...]


class Observer(Protocol):
    """Observes an experiment in progress."""

    def began(self, boot: ExperimentBoot) -> runner.Watcher:
        """A boot begins; returns its observer."""

    def so_far(self, judged: Verdict) -> None:
        """The verdict so far: called once a round, for each kernel but the first."""


def conduct(
    plan: Plan,
    host: Host,
    boots: int | None,
    *,
    limit: Callable[[float], Deadline],
    view: Observer,
    turn: Turn | None = None,
) -> Outcome:
    """Run a case to its verdict: `boots` rounds, or (None) until the answer is clear or most_boots is
    reached. Its `turn` has room for another experiment on the virtual clock, when no boot waits and a CPU is
    idle; never when the plan says how many guests run at a time. It waits for the experiments before it when
    kernels must be built, which takes all CPUs and the disk, or where its clock is the host's.
    """
    turn, cancel, limited = turn or Turn(), limit(0).cancel, plan.side_by_side is not None
    check_rounds(plan, boots or verdict.looks(plan.case_size)[0])
    _check_host(plan, host, limit(SPARE_SECONDS))
    if not are_built(plan, limit(PREPARE_SECONDS)):
        turn.alone(cancel)
        build_kernels(plan, limit(PREPARE_SECONDS))
    pinned, folders = pin_builds(plan, limit(SPARE_SECONDS))
    with state.using(*folders):
        settled = _settled(pinned, host, limit(UP_SECONDS))
        if settled.clock is not Clock.VIRTUAL:
            turn.alone(cancel)
        make_programs(settled, host, limit)
        room = _no_room if limited or settled.clock is not Clock.VIRTUAL else turn.room
        with on_prepared_disks(settled, host, limit) as settled:
            return _conduct(settled, host, boots, limit=limit, view=view, room=room)


def _check_host(plan: Plan, host: Host, deadline: Deadline) -> None:
    """Before kernels are built for hours: NoRoom for more memory than the machine has, InputError for what no
    guest of another machine begins from."""
    wanted, there = scaled_topology(plan).memory, host.memory(deadline)
    if wanted > there:
        raise NoRoom(
            f"case {plan.case_name}: {show_size(wanted)} of memory requested, and the host has"
            f" {there // MIB}MiB: choose less",
            field="memory",
        )
    for asked, what, option in (
        (plan.ready, "ready states", "ready"),
        (plan.prepared_disks, "prepared disks", "prepared_disks"),
    ):
        if asked and host.where.ssh:
            raise InputError(
                f"case {plan.case_name}: {what} are for this machine's own guests, not for those of"
                f" {host.where.ssh}",
                field=option,
            )


def _unmeasured(plan: Plan, kernel: Kernel) -> Plan:
    """The plan for a guest in which nothing is measured."""
    return plan.model_copy(update={"clock": preparation.clock(kernel, plan.clock)})


def _compiling(plan: Plan, kernel: Kernel) -> Plan:
    """The plan for a guest in which programs are compiled: of one CPU, without disks and settings of the
    case. An emulated guest of eight takes twice as long to boot. A ready state of it would be used once."""
    bare = plan.case_size.model_copy(update={"sysctls": {}, "knobs": {}, "instead": {}})
    case = plan.case.model_copy(update={"disks": (), "sizes": {plan.size: bare}})
    machine = Machine(topology="uma-2g", vcpus=1)
    return _unmeasured(plan, kernel).model_copy(update={"case": case, "machine": machine, "ready": False})


def make_programs(plan: Plan, host: Host, limit: Callable[[float], Deadline]) -> None:
    """Compile what the workload's guests need and no earlier guest of the image made, in a guest for that."""
    lacking = programs.missing(plan.image_id, workload_phases(plan))
    if not lacking:
        return
    kernel = plan.all_builds[0]
    quick = _compiling(plan, kernel)
    with _crash_of(Arm.BEFORE, kernel), _own_cpus(quick, host, limit(0).cancel):
        deadline = limit(UP_SECONDS + sum(phase.limit_seconds for phase in lacking))
        with booted(quick, host, kernel, f"{plan.case_name}-compile", deadline) as (guest, _):
            for phase in lacking:
                programs.give(guest, phase, deadline)


def _settled(plan: Plan, host: Host, deadline: Deadline) -> Plan:
    """The plan with its seed, and the accelerator, clock and guests at a time that this machine allows."""
    kernel = Path(plan.pinned[plan.all_builds[0].build_name].kernel or "")
    probe = accelerator.choose(plan.accel, kernel, deadline, host.where)
    clock = accelerator.choose_clock(plan.clock, probe.accel, kernel, deadline, host.where)
    if clock is Clock.HOST:
        check_alone(plan)
    accelerator.warn(probe, clock, plan.case_name)
    # What guests of experiments beside this one have will be free; a boot waits for it.
    memory = host.free_memory(deadline, besides=guests.made_by_us())
    room = min(host.cpus(deadline), memory // scaled_topology(plan).memory)
    chosen = {
        "probe": probe,
        "clock": clock,
        "side_by_side": plan.side_by_side or (max(room, 1) if clock is Clock.VIRTUAL else 1),
        "seed": secrets.randbits(32) if plan.seed is None else plan.seed,
    }
    tell(f"seed {chosen['seed']}, {chosen['side_by_side']} at a time", who=plan.case_name)
    return plan.model_copy(update=chosen)


class Settled(Value):
    """What the first round of an experiment settles for the others: its builds, accelerator and clock."""

    image_id: str
    pinned: dict[str, BootFiles]
    probe: accelerator.Probe
    clock: Clock
    side_by_side: int


def one_round(
    plan: Plan,
    host: Host,
    number: int,
    *,
    experiment: str,
    rounds: int,
    looks: int,
    block: str = "",
    settled: Settled | None,
    given: Builds | None = None,
    limit: Callable[[float], Deadline],
) -> Settled:
    """Boot and measure round `number` of an experiment of `rounds`, whose other rounds other calls run.

    `settled` is what an earlier call returned, None for the first, which uses the builds that are `given`.
    Nothing is built. The plan has its seed. Raises as `run`.
    """
    if settled is None:
        pinned, folders = pin_builds(plan, limit(SPARE_SECONDS), given)
    else:
        pinned = plan.model_copy(update={"image_id": settled.image_id, "pinned": settled.pinned})
        folders = launch.folders(_still_there(plan, settled), *settled.pinned.values())
    with state.using(*folders):
        if settled is None:
            ready = _settled(pinned, host, limit(UP_SECONDS))
            make_programs(ready, host, limit)
        else:
            chosen = {"probe": settled.probe, "clock": settled.clock, "side_by_side": settled.side_by_side}
            ready = pinned.model_copy(update=chosen)
        boots = run(
            ready,
            host,
            number + 1,
            experiment=experiment,
            first=number,
            planned=rounds,
            looks=looks,
            block=block,
            limit=limit,
        )
        with closing(boots):
            for _ in boots:
                pass
    assert ready.probe is not None
    assert ready.clock is not None
    assert ready.side_by_side is not None
    return Settled(
        image_id=ready.image_id,
        pinned=ready.pinned,
        probe=ready.probe,
        clock=ready.clock,
        side_by_side=ready.side_by_side,
    )


def _still_there(plan: Plan, settled: Settled) -> image.Image:
    """The image that an experiment began with. BuildsGone where it or a kernel has been removed since: gc and
    kernel prune go by what is current, not by what a night may resume with."""
    try:
        base = image.pinned(plan.image, settled.image_id)
    except HostError as error:
        raise BuildsGone(str(error)) from error
    for name, boot in settled.pinned.items():
        if boot.kernel and not Path(boot.kernel).exists():
            raise BuildsGone(f"kernel {name}: {boot.kernel} is gone")
    return base


def _conduct(
    plan: Plan,
    host: Host,
    boots: int | None,
    *,
    limit: Callable[[float], Deadline],
    view: Observer,
    room: Callable[[], None],
) -> Outcome:
    experiment, runs = fresh_experiment(plan.case_name), list[tuple[Run, Path]]()
    looks = (boots,) if boots else verdict.looks(plan.case_size)
    first, rounds = 0, looks[0]
    while True:
        more_runs = run(
            plan,
            host,
            rounds,
            experiment=experiment,
            first=first,
            looks=len(looks),
            limit=limit,
            began=view.began,
            room=room,
        )
        with closing(more_runs):
            for one in more_runs:
                runs.append(one)
                if len(runs) == 1:
                    _say_spread(plan, one[0], looks[-1])
                    _say_absent(plan, one[0])
                if len(runs) % len(plan.kernels) == 0 and len(runs) > len(plan.kernels):
                    for judged in judging.verdicts([run for run, _ in runs]):
                        view.so_far(judged)
        latest = judging.verdicts([run for run, _ in runs])
        more = [count for judged in latest if (count := verdict.next_look(judged, looks)) is not None]
        if not more:
            return Outcome(experiment, tuple(runs), latest)
        first, rounds = rounds, max(more)


def _say_absent(plan: Plan, run: Run) -> None:
    """Say, after the first boot, which deciding metrics have no value: no counter's name can be checked
    before a guest is up."""
    for one in expectation.deciding(plan.case, plan.judged_releases, [run]):
        if metrics.value(run, one.metric, one.phase) is None:
            note(
                f"{one.metric}, {one.phase}: has no value in this boot: if no boot has one, the case cannot"
                f" tell. Is its name right? lab.py show {run.id} has the counters",
                who=plan.case_name,
            )


def _say_spread(plan: Plan, run: Run, boots: int) -> None:
    """Say, after the first boot, when a threshold is within the spread that a calibration measured here."""
    known = calibration.load(calibration.site(run))
    deciding = expectation.deciding(plan.case, plan.judged_releases, [run])
    if known and len(set(plan.kernels)) > 1:
        for line in verdict.within_spread(deciding, boots, known):
            note(f"{line}: less than that cannot be told", who=plan.case_name)
