# SPDX-License-Identifier: GPL-2.0-only
"""The plan of an experiment: case, size, machine, kernels, builds, and the order of boots, all decided in
advance.

Not here: booting and measuring (run).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.analysis import metrics
from numalab.analysis.effect import LEAST_BOOTS
from numalab.core.errors import InputError
from numalab.core.process import Deadline
from numalab.guest import launch
from numalab.guest.settings import KNOBS
from numalab.host import accelerator, image
from numalab.kernel import boot as kernel_boot
from numalab.kernel import build, recipe
from numalab.kernel.recipe import Kernel
from numalab.measure import preparation, runner
from numalab.model import binding, catalog, topology
from numalab.model.binding import Pin
from numalab.model.case import Case, CaseSize, Machine
from numalab.model.guest import Boot as BootFiles
from numalab.model.guest import PreparedDisks
from numalab.model.topology import Disk, Topology
from numalab.model.values import MOST_NAME, Accel, Clock, Phase, Seed, SizeClass, Value, check_name

LONGEST_ENDING = "-compile-00"
"""The longest ending of a guest's name after its case's."""


class Plan(Value):
    """What an experiment will do, with every choice made."""

    case_name: str
    case: Case
    size: SizeClass
    machine: Machine
    kernels: tuple[Kernel, ...]
    """First "before", then any number of "after". One kernel twice calibrates."""
    accel: str = "auto"
    clock: Clock | None = None
    """None: virtual where an emulated guest can have it."""
    seed: Seed | None = None
    """Each boot's seed is made from it; None: a random one is drawn before the first boot."""
    side_by_side: Annotated[int, Field(ge=1)] | None = None
    """Guests at a time; None: as many as this machine holds on a virtual clock, one on the host's."""
    pin: Pin = binding.AUTO
    huge_page: int | None = None
    """Where the guests are on their host; see GuestRequest."""
    probe: accelerator.Probe | None = None
    """The accelerator of all boots; None until the first one."""
    profile_hz: int = 0
    ready: bool = False
    """Whether guests begin from ready states (guest.ready), one of each kernel, and do not boot."""
    prepared_disks: bool = False
    """Whether the workload's first phases are done once, on disks that all boots then begin on."""
    disks: dict[str, PreparedDisks] = Field(default_factory=dict)
    """Kernel.build_name -> those disks; empty until the first boot."""
    image: str = "debian12"
    image_id: str = ""
    """The build of the image that all boots use; '' until the first boot."""
    pinned: dict[str, BootFiles] = Field(default_factory=dict)
    """Kernel.build_name -> the build that its boots use."""
    builds: Annotated[int, Field(ge=1)] = 1
    """Builds of each kernel; several differ in layout only, and the rounds take them in turn."""

    @property
    def case_size(self) -> CaseSize:
        """The case's parameters for this size."""
        return self.case.sizes[self.size]

    def laid_out(self, kernel: Kernel, turn: int) -> Kernel:
        """The kernel as the boot in round `turn` takes it: of several builds, one in turn."""
        return kernel.model_copy(update={"layout": 1 + turn % self.builds}) if self.builds > 1 else kernel

    @property
    def judged_releases(self) -> set[str]:
        """The releases by which expectations apply, those of the kernels "after"; '' for one that is not
        known."""
        turns = range(self.builds)
        after = {self.laid_out(kernel, turn).build_name for kernel in self.kernels[1:] for turn in turns}
        return {self.pinned[name].release if name in self.pinned else "" for name in after} or {""}

    @property
    def all_builds(self) -> tuple[Kernel, ...]:
        """Every build of every kernel, each once."""
        return tuple(
            dict.fromkeys(
                self.laid_out(kernel, turn) for turn in range(self.builds) for kernel in self.kernels
            )
        )


def make_plan(
    name: str,
    size: SizeClass,
    *,
    kernels: Sequence[str] = (),
    topology_name: str | None = None,
    memory: int | None = None,
    vcpus: int | None = None,
    accel: str = "auto",
    clock: Clock | None = None,
    seed: int | None = None,
    side_by_side: int | None = None,
    pin: str = binding.AUTO,
    huge_page: int | None = None,
    profile_hz: int = 0,
    builds: int = 1,
    ready: bool = False,
    prepared_disks: bool = False,
) -> Plan:
    """The plan for a case and a person's choices, checked before anything is made. Raises InputError.

    `prepared_disks` is without effect where no phase of the workload prepares disks.
    """
    case = catalog.case(name)
    if size not in case.sizes:
        raise InputError(f"case {name} has no size {size}: it has {', '.join(case.sizes)}")
    if len(kernels) == 1:
        raise InputError(
            f"kernels {kernels[0]}: one kernel compares with nothing; give two, such as"
            f" {case.before},{case.after}",
            field="kernels",
        )
    machines = case.sizes[size].machines
    named = (one for one in machines if topology_name in (None, one.topology))
    machine = next(named, None) or _like(machines[0], topology_name or machines[0].topology)
    chosen = {key: value for key, value in (("memory", memory), ("vcpus", vcpus)) if value is not None}
    machine = machine.model_copy(update=chosen)
    made = Plan(
        case_name=_guests_name(name),
        case=case,
        size=size,
        machine=machine,
        kernels=tuple(recipe.load(name) for name in kernels or (case.before, case.after)),
        accel=accel,
        clock=clock or case.clock,
        seed=seed,
        side_by_side=side_by_side,
        pin=pin,
        huge_page=huge_page,
        profile_hz=profile_hz,
        builds=builds,
    )
    if prepared_disks and preparation.phases(workload_phases(made)):
        made = _on_prepared_disks(made)
    if ready:
        made = _from_ready_states(made)
    check_plan(made)
    return made


def _guests_name(case: str) -> str:
    """The name of a case, which is its file's and which its guests' names begin with. InputError."""
    name = Path(case).name.removesuffix(".yml")
    try:
        check_name(f"{name}{LONGEST_ENDING}")
    except ValueError:
        most = MOST_NAME - len(LONGEST_ENDING)
        raise InputError(
            f"case {case}: {name!r} is no name for guests: rename the file: 1 to {most} of a-z 0-9 . _ -"
            " before .yml, and first a letter or digit"
        ) from None
    return name


def _on_prepared_disks(plan: Plan) -> Plan:
    """The plan with its first phases done beforehand. InputError when it has an expectation of one."""
    for phase in preparation.phases(workload_phases(plan)):
        for expectation in plan.case.expect:
            if fnmatchcase(phase.name, expectation.phase):
                raise InputError(
                    f"case {plan.case_name}: prepared disks leave phase {phase.name} out, and it has an"
                    f" expectation of that ({expectation.metric})",
                    field="prepared_disks",
                )
    return plan.model_copy(update={"prepared_disks": True})


def _from_ready_states(plan: Plan) -> Plan:
    """The plan with guests that begin from ready states: on the host's clock, and with memory that was saved.
    InputError for a choice that this excludes."""
    for wrong, why, field in (
        (plan.clock is Clock.VIRTUAL, "the virtual clock: ready states have the host's clock", "clock"),
        (plan.pin not in (binding.AUTO, binding.OFF), "pin: a state has its own memory", "pin"),
        (plan.prepared_disks, "prepared disks: a state has its own disks", "prepared_disks"),
        (plan.huge_page is not None, "huge pages: a state has its own memory", "huge_page"),
        (plan.seed is not None, "a seed, which is that of boots: nothing is booted", "seed"),
    ):
        if wrong:
            raise InputError(f"case {plan.case_name}: from ready states: not with {why}", field=field)
    for kernel in plan.kernels:
        # Others that are too old are known by their builds (guest.ready).
        if kernel.era and kernel.era.random_seed:
            raise InputError(
                f"case {plan.case_name}: from ready states: not with kernel {kernel.name}: a restored guest"
                " of its day cannot be given random numbers of its own",
                field="ready",
            )
    return plan.model_copy(update={"ready": True, "clock": Clock.HOST, "pin": binding.OFF})


def _like(first: Machine, name: str) -> Machine:
    """A topology that the case does not name, no larger than the case's first machine: quick stays quick."""
    own = catalog.topology(name)
    least = sum(bool(node.cpus) for node in own.nodes)
    return first.model_copy(
        update={
            "topology": name,
            "memory": min(own.memory, first.memory) if first.memory else None,
            "vcpus": max(least, min(own.vcpus, first.vcpus)) if first.vcpus else None,
        }
    )


def check_plan(plan: Plan) -> None:
    """InputError when the workload, a metric, a phase, a knob or a published table of the plan is not there,
    or a time that decides has no `cost`."""
    for knob in sorted(plan.case_size.knobs.keys() - set(KNOBS)):
        raise InputError(f"case {plan.case_name}: knob {knob} is none of {', '.join(KNOBS)}")
    for table in plan.case.published:
        catalog.find("reference", table)
    for expectation in plan.case.expect:
        if not metrics.known(expectation.metric):
            raise InputError(f"case {plan.case_name}: there is no metric {expectation.metric}")
        timed = metrics.kind(expectation.metric) is metrics.Kind.TIME
        if expectation.cost is None and timed and expectation.decides:
            raise InputError(
                f"case {plan.case_name}: {expectation.metric}: cost: is missing: say what this time is spent"
                " on: work, locality or waiting"
            )
        if expectation.cost and not timed:
            raise InputError(
                f"case {plan.case_name}: {expectation.metric}: cost: says what a time is spent on, and"
                " this is none"
            )
        if not any(
            phase.measured and fnmatchcase(phase.name, expectation.phase) for phase in workload_phases(plan)
        ):
            raise InputError(
                f"case {plan.case_name}: {plan.case.workload} has no measured phase {expectation.phase} in"
                f" size {plan.size}"
            )
    scaled_topology(plan)
    if plan.clock is Clock.HOST or (plan.clock is None and plan.accel == Accel.KVM):
        check_alone(plan)
    if plan.builds > 1:
        _check_builds(plan)


def check_alone(plan: Plan) -> None:
    """InputError when guests on the host's clock are to run side by side."""
    if (plan.side_by_side or 1) > 1:
        raise InputError(
            f"side by side: {plan.side_by_side} guests on the host's clock take each other's time: one at a"
            " time, or the virtual clock",
            field="side_by_side",
        )


def _check_builds(plan: Plan) -> None:
    """InputError when the kernels cannot have so many builds, or too few to be samples."""
    if plan.builds < LEAST_BOOTS:
        raise InputError(
            f"case {plan.case_name}: {plan.builds} builds of each kernel: each is one sample, and"
            f" {LEAST_BOOTS} are the least that decide",
            field="builds",
        )
    for kernel in plan.kernels:
        if not kernel.recipe.built:
            raise InputError(
                f"kernel {kernel.name} is not built here: there is one build of it", field="builds"
            )


def check_rounds(plan: Plan, rounds: int) -> None:
    """InputError when so many rounds leave a build without a boot."""
    if rounds < plan.builds:
        raise InputError(
            f"case {plan.case_name}: {plan.builds} builds of each kernel take as many boots, and not"
            f" {rounds}: give a larger number of boots, or fewer builds",
            field="boots",
        )


def scaled_topology(plan: Plan) -> Topology:
    """The machine, scaled, with the case's disks."""
    own = topology.scale(
        catalog.topology(plan.machine.topology), memory=plan.machine.memory, vcpus=plan.machine.vcpus
    )
    disks: dict[str, Disk] = {disk.name: disk for disk in (*own.disks, *plan.case.disks)}
    return own.model_copy(update={"disks": tuple(disks.values())})


def boot_order(
    kernels: Sequence[object], boots: int, *, first: int = 0, seed: int = 0
) -> list[tuple[int, int]]:
    """(boot, index of its kernel) of rounds `first` to `boots` - 1.

    The order of each even round is drawn at random by `seed`, so that it does not beat with anything periodic
    on the host. The next round has it reversed, so that a drift affects all kernels alike.
    """
    order: list[tuple[int, int]] = []
    for turn in range(first, boots):
        drawn = random.Random(f"{seed} {turn - turn % 2}").sample(range(len(kernels)), len(kernels))
        sequence = drawn if turn % 2 == 0 else drawn[::-1]
        order += [(turn * len(kernels) + position, index) for position, index in enumerate(sequence)]
    return order


def build_kernels(plan: Plan, deadline: Deadline) -> None:
    """Build the kernels that are not built yet."""
    for kernel in plan.all_builds:
        if kernel.recipe.built:
            build.build(kernel, image.existing(plan.image, deadline), deadline)


def are_built(plan: Plan, deadline: Deadline) -> bool:
    """Whether build_kernels has nothing to build."""
    base = image.existing(plan.image, deadline)
    plans = [
        build.make_plan(kernel, base, deadline, fetch=False)
        for kernel in plan.all_builds
        if kernel.recipe.built
    ]
    return all(one is not None and build.existing(one) for one in plans)


class Builds(Value):
    """The builds that an experiment is given instead of those that its inputs lead to here."""

    image_id: str
    """'': this machine's own."""
    kernels: dict[str, str]
    """Name -> folder (NAME-KEY) in the state directory's kernels, of the kernels that are built."""


def pin_builds(plan: Plan, deadline: Deadline, given: Builds | None = None) -> tuple[Plan, set[Path]]:
    """The plan with fixed builds of its image and kernels, and the folders that its boots need. HostError
    when one is not there."""
    known = given or Builds(image_id="", kernels={})
    base = image.pinned(plan.image, known.image_id) if known.image_id else image.require(plan.image, deadline)
    boots = {
        kernel.build_name: kernel_boot.resolve(kernel, base, known.kernels.get(kernel.name, ""))
        for kernel in plan.all_builds
    }
    return plan.model_copy(update={"image_id": base.id, "pinned": boots}), launch.folders(
        base, *boots.values()
    )


def boot_seed(seed: int, number: int) -> int:
    """The seed of an experiment's boot."""
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4])


def workload_phases(plan: Plan) -> tuple[Phase, ...]:
    """The workload's phases with the plan's parameters."""
    phases: tuple[Phase, ...] = runner.load(plan.case.workload).phases(parameters(plan))
    return phases


def parameters(plan: Plan) -> Value:
    """The workload's parameters in the plan."""
    return runner.parameters(runner.load(plan.case.workload), plan.size, plan.case_size.params)


def interesting_phase(plan: Plan) -> Phase:
    """The first phase that has an expectation."""
    return next(
        phase
        for phase in workload_phases(plan)
        for expectation in plan.case.expect
        if phase.measured and fnmatchcase(phase.name, expectation.phase)
    )
