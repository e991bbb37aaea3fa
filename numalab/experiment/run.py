# SPDX-License-Identifier: GPL-2.0-only
"""A case run: fresh guests of each kernel in turn, one run each; and a case prepared for a person.

Boots alternate (A B, then B A): never all of one kernel and then all of the other, so that what drifts on the
host falls on both. A boot is one sample, whatever it repeats inside. Not here: what follows from the runs (judge).
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from pydantic import Field

from numalab.analysis import calibration, metrics
from numalab.analysis import verdict as judge
from numalab.core import state
from numalab.core.errors import InputError, KernelOops, LabError, NameTaken
from numalab.core.log import step
from numalab.core.process import Deadline
from numalab.guest import guest as guests
from numalab.guest import launch, provision
from numalab.guest.guest import Guest
from numalab.host import image, ssh
from numalab.host.hypervisor import Host
from numalab.kernel import boot as kernel_boot
from numalab.kernel import build
from numalab.kernel.recipe import recipe
from numalab.measure import runner
from numalab.model import catalog, topology
from numalab.model.case import Arm, Case, CaseSize, Machine, Place
from numalab.model.guest import Boot as BootFiles
from numalab.model.guest import GuestRequest
from numalab.model.run import Run
from numalab.model.topology import Disk, Topology
from numalab.model.values import Phase, SizeClass, Value
from numalab.model.verdict import Verdict
from numalab.runs import index as run_index

PREPARE_SECONDS = 6 * 3600.0
"""For kernels that have to be built first; a distribution's whole configuration under emulation is the longest."""
SPARE_SECONDS = 60.0
"""Beyond a boot's limit, for ending the guest."""


class Plan(Value):
    """What is asked of an experiment, everything decided."""

    case_name: str
    case: Case
    size: SizeClass
    machine: Machine
    kernels: tuple[str, ...]
    """Recipes, by name or path. The first is "before", all others are "after". Twice the same kernel is a calibration."""
    wish: str = "auto"
    profile_hz: int = 0
    image: str = "debian12"
    image_id: str = ""
    """The build of the image that all boots use, from the first to the last; '' until they begin."""
    pinned: dict[str, BootFiles] = Field(default_factory=dict)
    """By name, the build of each kernel that all its boots use."""

    @property
    def about(self) -> CaseSize:
        """The case's parameters of this size."""
        return self.case.sizes[self.size]


def plan(
    name: str, size: SizeClass, *, kernels: Sequence[str] = (), topology_name: str | None = None, memory: int | None = None,
    vcpus: int | None = None, wish: str = "auto", profile_hz: int = 0,
) -> Plan:
    """A case and what a person chose, checked before anything is made. Raises InputError."""
    case = catalog.case(name)
    if size not in case.sizes:
        raise InputError(f"case {name} has no size {size}: it has {', '.join(case.sizes)}")
    if len(kernels) == 1:
        raise InputError(f"--kernels {kernels[0]}: one kernel compares with nothing; give two, such as {case.before},{case.after}")
    machines = case.sizes[size].machines
    named = (one for one in machines if topology_name in (None, one.topology))
    machine = next(named, None) or _like(machines[0], topology_name or machines[0].topology)
    machine = machine.model_copy(update={"memory": memory or machine.memory, "vcpus": vcpus or machine.vcpus})
    made = Plan(
        case_name=Path(name).name.removesuffix(".yml"), case=case, size=size, machine=machine,
        kernels=tuple(kernels) or (case.before, case.after), wish=wish, profile_hz=profile_hz,
    )
    check(made)
    return made


def _like(first: Machine, name: str) -> Machine:
    """A topology that the case does not name: no larger than the case's first machine, or quick would not be quick."""
    own = catalog.topology(name)
    least = sum(bool(node.cpus) for node in own.nodes)
    return first.model_copy(update={
        "topology": name, "memory": min(own.memory, first.memory) if first.memory else None,
        "vcpus": max(least, min(own.vcpus, first.vcpus)) if first.vcpus else None,
    })


def check(asked: Plan) -> None:
    """InputError when a kernel, the workload, a metric or a phase of the plan does not exist."""
    for name in asked.kernels:
        recipe(name)
    for wanted in asked.case.expect:
        if not metrics.known(wanted.metric):
            raise InputError(f"case {asked.case_name}: there is no metric {wanted.metric}")
        if not any(phase.measured and fnmatchcase(phase.name, wanted.phase) for phase in phases(asked)):
            raise InputError(f"case {asked.case_name}: {asked.case.workload} has no measured phase {wanted.phase} in size {asked.size}")
    shape(asked)


def shape(asked: Plan) -> Topology:
    """The machine, scaled, with the case's disks."""
    own = topology.scale(catalog.topology(asked.machine.topology), memory=asked.machine.memory, vcpus=asked.machine.vcpus)
    disks: dict[str, Disk] = {disk.name: disk for disk in (*own.disks, *asked.case.disks)}
    return own.model_copy(update={"disks": tuple(disks.values())})


def order(kernels: Sequence[str], boots: int, *, first: int = 0) -> list[tuple[int, int]]:
    """(boot, index of its kernel) of rounds `first` to `boots` - 1: forwards in even rounds, backwards in odd ones."""
    found: list[tuple[int, int]] = []
    for turn in range(first, boots):
        sequence = range(len(kernels)) if turn % 2 == 0 else range(len(kernels) - 1, -1, -1)
        found += [(turn * len(kernels) + position, index) for position, index in enumerate(sequence)]
    return found


def prepare(asked: Plan, deadline: Deadline) -> None:
    """Build the kernels that are not there yet."""
    for name in dict.fromkeys(asked.kernels):
        if recipe(name).built:
            build.build(name, image.existing(asked.image, deadline), deadline)


def pinned(asked: Plan, deadline: Deadline) -> tuple[Plan, set[Path]]:
    """The plan on certain builds of its image and kernels, and the folders that nobody may remove until its last boot."""
    base = image.require(asked.image, deadline)
    boots = {name: kernel_boot.resolve(name, base) for name in asked.kernels}
    return asked.model_copy(update={"image_id": base.id, "pinned": boots}), launch.folders(base, *boots.values())


@dataclass(frozen=True)
class Boot:
    """One boot of an experiment, as it is about to begin."""

    number: int
    arm: Arm
    kernel: str
    experiment: str


def run(
    asked: Plan, host: Host, boots: int, *, experiment: str, first: int = 0, looks: int = 1, limit: Callable[[float], Deadline],
    began: Callable[[Boot], runner.Watcher | None] = lambda _: None,
) -> Iterator[tuple[Run, Path]]:
    """Boot and measure rounds `first` to `boots` - 1 of an experiment, a run each. An error ends it; earlier runs stay.

    A run is handed over when its guest is down: whoever takes it may take long, or raise.
    """
    for number, index in order(asked.kernels, boots, first=first):
        boot = Boot(number, Arm.BEFORE if index == 0 else Arm.AFTER, asked.kernels[index], experiment)
        watcher = began(boot)
        deadline = limit(60 * asked.about.minutes)
        with _crash_of(boot), booted(asked, host, boot.kernel, f"{asked.case_name}-{number}", deadline) as (guest, settings):
            options = runner.Options(
                params=asked.about.params, tracepoints=asked.case.tracepoints, settings=settings, profile_hz=asked.profile_hz,
                place=Place(case_name=asked.case_name, case=asked.case, experiment=experiment, arm=boot.arm, boot=number, looks=looks,
                            planned=boots * len(asked.kernels)),
            )
            done = runner.run(guest, asked.case.workload, asked.size, deadline, options, watcher=watcher)
        yield done


@contextmanager
def _crash_of(boot: Boot) -> Iterator[None]:
    """Name the arm and the kernel in an oops: a crash of the kernel "before" is no regression."""
    try:
        yield
    except KernelOops as error:
        raise KernelOops(f"the {boot.arm} kernel ({boot.kernel}) crashed: {error}", evidence=error.evidence) from error


def fresh_experiment(asked: Plan) -> str:
    """An experiment's name: when, which case, whose."""
    return f"{state.stamp()}-{asked.case_name}-{os.getpid()}-{secrets.token_hex(4)}"


@contextmanager
def booted(asked: Plan, host: Host, kernel: str, name: str, deadline: Deadline) -> Iterator[tuple[Guest, dict[str, str]]]:
    """A fresh guest of the plan and what was set in it and read back; down at the end of the block."""
    while True:
        try:
            guest = up(asked, host, kernel, guests.fresh_name(name), deadline)
            break
        except NameTaken:  # by another experiment, between our look and the claim
            deadline.check(f"finding a name for guest {name}")
    with guests.ending(guest):
        yield guest, settings(asked)


def up(asked: Plan, host: Host, kernel: str, name: str, deadline: Deadline, *, kept: bool = False) -> Guest:
    """A guest of the plan with its sysctls and knobs; `kept` for a person. On any error, nothing is left."""
    request = GuestRequest(
        name=name, topology_name=asked.machine.topology, shape=shape(asked), kernel_name=kernel, wish=asked.wish,
        append=asked.case.append, image_name=asked.image, image_id=asked.image_id, kept=kept,
        pinned=asked.pinned.get(kernel),
    )
    guest = provision.up(request, host, deadline.within(launch.UP_SECONDS))
    if asked.about.sysctls or asked.about.knobs:
        with guests.ending(guest, only_on_error=True), step("sysctls and knobs set and read back", who=name):
            provision.tune(guest, provision.Order(sysctls=asked.about.sysctls, knobs=asked.about.knobs), deadline)
    return guest


def settings(asked: Plan) -> dict[str, str]:
    """Sysctls and knobs of the plan, in one mapping for the record."""
    return {**asked.about.sysctls, **asked.about.knobs}


def phases(asked: Plan) -> tuple[Phase, ...]:
    """The workload's, with the plan's parameters."""
    module = runner.load(asked.case.workload)
    found: tuple[Phase, ...] = module.phases(runner.parameters(module, asked.size, asked.about.params))
    return found


def interesting(asked: Plan) -> Phase:
    """The first phase that something is expected of."""
    return next(phase for phase in phases(asked) for wanted in asked.case.expect if phase.measured and fnmatchcase(phase.name, wanted.phase))


def prelude(asked: Plan, guest: Guest, deadline: Deadline) -> None:
    """Everything up to the interesting phase, done in a guest: file systems made, files created, caches dropped."""
    module = runner.load(asked.case.workload)
    runner.give_files(guest, module, runner.parameters(module, asked.size, asked.about.params), deadline)
    last = interesting(asked)
    for phase in phases(asked):
        if phase == last:
            return
        with step(f"{asked.case.workload}: {phase.name}", who=guest.name):
            ssh.succeed(guest, phase.command, deadline=deadline.within(phase.limit_seconds))


@dataclass(frozen=True)
class Outcome:
    """An experiment at its end: its runs with their folders, and a verdict for each kernel but the first."""

    experiment: str
    runs: tuple[tuple[Run, Path], ...]
    verdicts: tuple[Verdict, ...]


class View(runner.Watcher, Protocol):
    """Who wants to see an experiment while it goes on."""

    def began(self, boot: Boot) -> runner.Watcher:
        """A boot is about to begin; who watches it."""

    def so_far(self, verdict: Verdict) -> None:
        """What the boots so far say; once a round, for each kernel but the first."""


def conduct(asked: Plan, host: Host, boots: int | None, *, limit: Callable[[float], Deadline], view: View) -> Outcome:
    """Run a case to its verdict: `boots` rounds, or (None) until the answer is clear or most_boots is reached.

    Raises InputError after the first boot when a threshold lies inside what a calibration of this very
    machine found one kernel to scatter by itself.
    """
    prepare(asked, limit(PREPARE_SECONDS))
    plan, folders = pinned(asked, limit(SPARE_SECONDS))
    with state.using(*folders):
        return _conduct(plan, host, boots, limit=limit, view=view)


def _conduct(asked: Plan, host: Host, boots: int | None, *, limit: Callable[[float], Deadline], view: View) -> Outcome:
    experiment, runs = fresh_experiment(asked), list[tuple[Run, Path]]()
    looks = (boots,) if boots else judge.looks(asked.about)
    first, rounds = 0, looks[0]
    while True:
        for one in run(asked, host, rounds, experiment=experiment, first=first, looks=len(looks), limit=limit, began=view.began):
            runs.append(one)
            if len(runs) == 1:
                _refuse(asked, one[0], looks[-1])
            if len(runs) % len(asked.kernels) == 0 and len(runs) > len(asked.kernels):
                for verdict in verdicts([run for run, _ in runs]):
                    view.so_far(verdict)
        found = verdicts([run for run, _ in runs])
        more = [count for verdict in found if (count := judge.next_look(verdict, looks)) is not None]
        if not more:
            return Outcome(experiment, tuple(runs), found)
        first, rounds = rounds, max(more)


def _refuse(asked: Plan, run: Run, boots: int) -> None:
    """InputError when a threshold of the case lies inside the spread of one kernel, for so many boots."""
    known = calibration.load(calibration.site(run))
    refused = calibration.inside(asked.case, boots, known) if known and len(set(asked.kernels)) > 1 else ()
    if refused:
        told = "; ".join(f"{wish.metric}: by {wish.by:g}, but one kernel alone differs by up to {least:.3g}" for wish, least in refused)
        raise InputError(f"case {asked.case_name}: {boots} boots cannot bear its thresholds here ({told}): more --boots, or a larger `by`")


def verdicts(runs: Sequence[Run], *, force: bool = False) -> tuple[Verdict, ...]:
    """One for each kernel that stands against the first; all runs are of one experiment, which may be unfinished. Raises InputError."""
    before = [run for run in runs if run.place and run.place.arm is Arm.BEFORE]
    after = [run for run in runs if run.place and run.place.arm is Arm.AFTER]
    known = calibration.load(calibration.site(runs[0])) if after else None
    names = dict.fromkeys(run.kernel for run in after)
    judged = [judge.verdict([*before, *(run for run in after if run.kernel == name)], calibration=known, force=force) for name in names]
    return tuple(_doubted(one, judge.unfinished(runs, one)) for one in judged)


def _doubted(judged: Verdict, doubts: Sequence[str]) -> Verdict:
    return judged.model_copy(update={"doubts": (*judged.doubts, *doubts)})


def among_others(judged: Verdict, runs: Sequence[Run]) -> Verdict:
    """The verdict of these runs, with a doubt when the store has further experiments of the same case, machine and kernels.

    Who repeats an experiment until it fits has a verdict that holds, and its stated error is not that of one experiment.
    """
    try:
        others = _others(judged, runs)
    except LabError as error:
        return _doubted(judged, [f"whether it was repeated is not known: {error}"])
    if not others:
        return judged
    begun, count = min(run.started for run in runs), len(others)
    answers = ", ".join(f"{answer}: {number}" for answer, number in sorted(Counter(answer for _, answer in others).items()))
    return _doubted(judged, [
        f"repeated: {count} other experiment{'s' * (count > 1)} of this case, size, topology, machine and kernels "
        f"{'are' if count > 1 else 'is'} here, {sum(started < begun for started, _ in others)} earlier; {answers}",
    ])


def _others(judged: Verdict, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(when it began, answer) of each further experiment like the one judged. One that has no boot after yet counts too."""
    own, machine = {run.place.experiment for run in runs if run.place}, runs[0].host.get("machine")
    experiments: dict[str, list[run_index.Entry]] = {}
    for entry in run_index.find(case=judged.case_name, size=judged.size, topology=judged.topology, accel=judged.accel):
        if entry.experiment not in own:
            experiments.setdefault(entry.experiment, []).append(entry)
    found = []
    for entries in experiments.values():
        before = {entry.kernel for entry in entries if entry.arm == Arm.BEFORE}
        after = {entry.kernel for entry in entries if entry.arm == Arm.AFTER}
        if before == {judged.before} and (judged.after in after or not after):
            boots = [run_index.load(entry) for entry in entries if entry.arm == Arm.BEFORE or entry.kernel == judged.after]
            if boots[0].host.get("machine") == machine:
                found.append((boots[0].started, _answer(boots)))
    return found


def _answer(runs: Sequence[Run]) -> str:
    try:
        return judge.verdict(runs).answer
    except InputError:
        return "no verdict"
