"""A case run: fresh guests of each kernel in turn, one run each; and a case prepared for a person.

Boots alternate (A B, then B A): never all of one kernel and then all of the other, so that what drifts on the
host falls on both. A boot is one sample, whatever it repeats inside. Not here: what follows from the runs (judge).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from numalab import catalog, image, kernelbuild, measure, metrics, settle, shell, state, topology
from numalab import guest as guests
from numalab.case import Arm, Case, CaseSize, Machine, Place
from numalab.errors import InputError
from numalab.guest import Guest, Request
from numalab.host import Host
from numalab.log import step
from numalab.model import Disk, Name, Phase, SizeClass, Topology, Value
from numalab.proc import Deadline
from numalab.recipes import recipe
from numalab.runs import Run

PREPARE_SECONDS = 6 * 3600.0
"""For kernels that have to be built first; a distribution's whole configuration under emulation is the longest."""
SPARE_SECONDS = 60.0
"""Of a boot's limit, for ending the guest."""


class Plan(Value):
    """What is asked of an experiment, everything decided."""

    case_name: str
    case: Case
    size: SizeClass
    machine: Machine
    kernels: tuple[Name, ...]
    """The first is "before", all others are "after". Twice the same kernel is a calibration."""
    wish: str = "auto"
    profile_hz: int = 0
    image: str = "debian12"

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
    machine = next((one for one in machines if one.topology == topology_name), Machine(topology=topology_name) if topology_name else machines[0])
    machine = Machine(topology=machine.topology, memory=memory or machine.memory, vcpus=vcpus or machine.vcpus)
    made = Plan(
        case_name=Path(name).name.removesuffix(".yml"), case=case, size=size, machine=machine,
        kernels=tuple(kernels) or (case.before, case.after), wish=wish, profile_hz=profile_hz,
    )
    check(made)
    return made


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
            kernelbuild.build(name, image.existing(asked.image, deadline), deadline)


@dataclass(frozen=True)
class Boot:
    """One boot of an experiment, as it is about to begin."""

    number: int
    arm: Arm
    kernel: str
    experiment: str


def run(
    asked: Plan, host: Host, boots: int, *, experiment: str, first: int = 0, limit: Callable[[float], Deadline],
    began: Callable[[Boot], measure.Watcher | None] = lambda _: None,
) -> Iterator[tuple[Run, Path]]:
    """Boot and measure rounds `first` to `boots` - 1 of an experiment, a run each. An error ends it; earlier runs stay."""
    for number, index in order(asked.kernels, boots, first=first):
        boot = Boot(number, Arm.BEFORE if index == 0 else Arm.AFTER, asked.kernels[index], experiment)
        watcher = began(boot)
        deadline = limit(60 * asked.about.minutes)
        with booted(asked, host, boot.kernel, f"{asked.case_name}-{number}", deadline) as (guest, settings):
            options = measure.Options(
                params=asked.about.params, tracepoints=asked.case.tracepoints, settings=settings, profile_hz=asked.profile_hz,
                place=Place(case_name=asked.case_name, case=asked.case, experiment=experiment, arm=boot.arm, boot=number),
            )
            yield measure.run(guest, asked.case.workload, asked.size, deadline, options, watcher=watcher)


def fresh_experiment(asked: Plan) -> str:
    """An experiment's name: when, which case, whose."""
    return f"{state.stamp()}-{asked.case_name}-{os.getpid()}"


@contextmanager
def booted(asked: Plan, host: Host, kernel: str, name: str, deadline: Deadline) -> Iterator[tuple[Guest, dict[str, str]]]:
    """A fresh guest of the plan and what was set in it and read back; down at the end of the block."""
    guest = up(asked, host, kernel, guests.fresh_name(name), deadline)
    try:
        yield guest, settings(asked)
    finally:
        guest.down(Deadline.after(SPARE_SECONDS))


def up(asked: Plan, host: Host, kernel: str, name: str, deadline: Deadline) -> Guest:
    """A guest of the plan with its sysctls and knobs. On any error, nothing is left."""
    request = Request(
        name=name, topology_name=asked.machine.topology, shape=shape(asked), kernel_name=kernel, wish=asked.wish,
        append=asked.case.append, image_name=asked.image,
    )
    guest = settle.up(request, host, deadline.within(guests.UP_SECONDS))
    try:
        if asked.about.sysctls or asked.about.knobs:
            with step("sysctls and knobs set and read back", who=name):
                settle.tune(guest, settle.Order(sysctls=asked.about.sysctls, knobs=asked.about.knobs), deadline)
    except BaseException:
        guest.down(Deadline.after(SPARE_SECONDS))
        raise
    return guest


def settings(asked: Plan) -> dict[str, str]:
    """Sysctls and knobs of the plan, in one mapping for the record."""
    return {**asked.about.sysctls, **asked.about.knobs}


def phases(asked: Plan) -> tuple[Phase, ...]:
    """The workload's, with the plan's parameters."""
    module = measure.load(asked.case.workload)
    found: tuple[Phase, ...] = module.phases(measure.parameters(module, asked.size, asked.about.params))
    return found


def interesting(asked: Plan) -> Phase:
    """The first phase that something is expected of."""
    return next(phase for phase in phases(asked) for wanted in asked.case.expect if phase.measured and fnmatchcase(phase.name, wanted.phase))


def prelude(asked: Plan, guest: Guest, deadline: Deadline) -> None:
    """Everything up to the interesting phase, done in a guest: file systems made, files created, caches dropped."""
    module = measure.load(asked.case.workload)
    measure.give_files(guest, module, measure.parameters(module, asked.size, asked.about.params), deadline)
    last = interesting(asked)
    for phase in phases(asked):
        if phase == last:
            return
        with step(f"{asked.case.workload}: {phase.name}", who=guest.name):
            shell.succeed(guest, phase.command, deadline=deadline.within(phase.limit_seconds))
