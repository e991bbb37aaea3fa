# SPDX-License-Identifier: GPL-2.0-only
"""What travels to a host: an order (an experiment that is wanted) and a unit (one round of it), as JSON.

Text, and no pickled class of ours: a host with another version refuses it by its checkout's digest, and does
not misread it. Not here: who runs what (queue), running it (worker).
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.analysis import verdict
from numalab.analysis.effect import least_boots
from numalab.core import paths
from numalab.core.errors import InputError
from numalab.experiment import run as experiment
from numalab.experiment.plan import Builds, Plan, make_plan, parameters, scaled_topology
from numalab.guest.settings import UP_SECONDS
from numalab.model import binding
from numalab.model.binding import Pin
from numalab.model.values import Accel, Clock, Name, Seed, SizeClass, Value

SOURCES = ("testcases", "topologies", "kernels", "images", "playbooks")
"""What decides a measurement beside the package: the folders whose files must be the same on all machines of
a pool."""
SEND_SECONDS = 1800.0
"""Added to a round's limit while image and kernels are sent to its host. The limit begins anew with each
piece that arrives, so this is for what comes before the first, such as checksums of large files."""
BOOT_SPARE_SECONDS = 120.0
"""The part of a boot's limit for ending a guest, writing its run and waiting for answers of the host."""


class Part(Value):
    """Which rounds of an experiment that is spread over hosts an order is for."""

    of: Name
    """The id of the order that was spread."""
    first: int
    """The number of its first round in the experiment."""
    rounds: int
    """The rounds of the whole experiment."""


class Order(Value):
    """An experiment that is wanted."""

    id: Name
    case: str
    size: SizeClass
    kernels: tuple[str, ...]
    topology: str
    memory: int | None = None
    vcpus: int | None = None
    accel: str = "auto"
    clock: Clock | None = None
    seed: Seed | None = None
    side_by_side: Annotated[int, Field(ge=1)] | None = None
    pin: Pin = binding.AUTO
    huge_page: int | None = None
    profile_hz: int = 0
    rounds: Annotated[int, Field(ge=1)] | None
    """None: until the answer is clear, or the case's most_boots are reached."""
    looks: tuple[int, ...]
    """The numbers of rounds after which the experiment may be judged; one of them unless `rounds` is None."""
    needs_memory: int
    """Bytes that a host must have: of one guest, or of as many as `side_by_side` has run at a time."""
    round_seconds: float
    """Limit of a round. It ends the wait for a host that hangs; a guest that hangs ends by its own limit."""
    prepare_seconds: float = 0.0
    """Added to the limit of round 0, before which image and kernels are sent."""
    spread: Annotated[int, Field(ge=1)] = 1
    """Hosts that share the rounds of this experiment; of more than one, each is a block in the statistics."""
    part: Part | None = None
    """Set in one of `parts`: the rounds that one host runs. Its own are numbered from 0 like any order's."""

    @property
    def first(self) -> int:
        """The number of its first round in the experiment."""
        return self.part.first if self.part else 0

    def boots(self, rounds: range) -> range:
        """The numbers in the experiment of the boots of rounds of its own."""
        kernels = len(self.kernels)
        return range((self.first + rounds.start) * kernels, (self.first + rounds.stop) * kernels)

    @property
    def needs_accel(self) -> Accel | None:
        """The accelerator that a host must have; None: any."""
        return None if self.accel == "auto" else Accel(self.accel)

    def seconds(self, number: int) -> float:
        """The limit of a round, in seconds."""
        return self.round_seconds + (self.prepare_seconds if number == 0 else 0.0)


class Unit(Value):
    """A round of an experiment, for one host."""

    order: Order
    experiment: str
    """Its name. An experiment that begins again on another host has another one."""
    number: int
    """The round's number in its experiment, from 0."""
    block: str = ""
    """The host's name, where the experiment is spread (Place.block)."""
    rounds: int
    """How many are planned so far."""
    home: str
    """The state directory (state.identity) that collects the runs. A host has one of its own: what a lost
    worker still writes there counts nowhere."""
    seed: Seed
    builds: Builds | None = None
    """What was sent to the host, or was there; only for round 0."""
    settled: str = ""
    """What round 0 settled on this host (experiment.Settled as JSON): the builds, accelerator and clock."""
    serial: str
    """Unique to this try. A host begins each only once: Dask runs a task again when the worker that held its
    result has died."""

    @property
    def boots(self) -> range:
        """The numbers of its boots."""
        kernels = len(self.order.kernels)
        return range(self.number * kernels, (self.number + 1) * kernels)


def order(number: int, plan: Plan, boots: int | None, spread: int = 1) -> Order:
    """The order for a plan; `number` makes its id unique in a night, `boots` is as experiment.conduct's.

    InputError where `spread` hosts have too few rounds to be blocks in the statistics.
    """
    if plan.builds > 1:
        raise InputError(
            f"case {plan.case_name}: several builds of each kernel are for experiments on this machine: the"
            " pool sends one of each",
            field="builds",
        )
    if plan.ready:
        raise InputError(
            f"case {plan.case_name}: ready states are for experiments on this machine: each state is one"
            " machine's",
            field="ready",
        )
    if plan.prepared_disks:
        raise InputError(
            f"case {plan.case_name}: prepared disks are for experiments on this machine",
            field="prepared_disks",
        )
    if tarball := getattr(parameters(plan), "tarball", ""):
        raise InputError(
            f"case {plan.case_name}: {tarball}: a file of this machine, by its environment: a host of the"
            " pool has another environment"
        )
    least = least_boots(spread)
    if spread > 1 and boots is None:
        raise InputError(
            f"case {plan.case_name}: what is spread over {spread} hosts is judged once, and not until its"
            f" answer is clear: give a number, {least} or more",
            field="boots",
        )
    if spread > 1 and boots is not None and boots < least:
        raise InputError(
            f"case {plan.case_name}: {boots} rounds over {spread} hosts are too few: {least} or more",
            field="boots",
        )
    patience = 60 * plan.case_size.minutes * experiment.VIRTUAL_PATIENCE
    # Twice: a boot from which others took processor time is taken again.
    boot = 2 * (patience + UP_SECONDS + BOOT_SPARE_SECONDS)
    return Order(
        id=f"{number:05}-{plan.case_name}"[:40],
        case=plan.case_name,
        size=plan.size,
        kernels=tuple(kernel.name for kernel in plan.kernels),
        topology=plan.machine.topology,
        memory=plan.machine.memory,
        vcpus=plan.machine.vcpus,
        accel=plan.accel,
        clock=plan.clock,
        seed=plan.seed,
        side_by_side=plan.side_by_side,
        pin=plan.pin,
        huge_page=plan.huge_page,
        profile_hz=plan.profile_hz,
        rounds=boots,
        looks=(boots,) if boots else tuple(verdict.looks(plan.case_size)),
        needs_memory=scaled_topology(plan).memory * min(plan.side_by_side or 1, len(plan.kernels)),
        round_seconds=boot * len(plan.kernels),
        prepare_seconds=SEND_SECONDS,
        spread=spread,
    )


def parts(wanted: Order) -> list[Order]:
    """What the queue deals out for an order: itself, or the rounds of each host that it is spread over."""
    if wanted.spread == 1 or not wanted.rounds:
        return [wanted]
    edges = [wanted.rounds * host // wanted.spread for host in range(wanted.spread + 1)]
    return [
        wanted.model_copy(
            update={
                "id": f"{wanted.id[:36]}-{number}",
                "rounds": end - first,
                "looks": (end - first,),
                "part": Part(of=wanted.id, first=first, rounds=wanted.rounds),
            }
        )
        for number, (first, end) in enumerate(pairwise(edges), 1)
    ]


def plan(wanted: Order) -> Plan:
    """The plan of an order, from this machine's checkout. Raises InputError."""
    return make_plan(
        wanted.case,
        wanted.size,
        kernels=wanted.kernels,
        topology_name=wanted.topology,
        memory=wanted.memory,
        vcpus=wanted.vcpus,
        accel=wanted.accel,
        clock=wanted.clock,
        seed=wanted.seed,
        side_by_side=wanted.side_by_side,
        pin=wanted.pin,
        huge_page=wanted.huge_page,
        profile_hz=wanted.profile_hz,
    )


def checkout() -> str:
    """A digest of the files of this checkout that decide a measurement, changed and new ones too."""
    digest = hashlib.sha256()
    for name, path in sorted(_files().items()):
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _files() -> dict[str, Path]:
    """The files of SOURCES by name, of whatever kind: an image's files have no suffix. As paths.find looks
    for them: a person's own goes before the delivered one."""
    files = dict[str, Path]()
    for root in reversed(paths.roots()):
        files |= {str(path.relative_to(root)): path for folder in SOURCES for path in _below(root / folder)}
    # Where numalab is installed, the delivered files are in the package.
    package = (path for path in _below(paths.PACKAGE) if not path.is_relative_to(paths.PACKAGE / "files"))
    return files | {f"numalab/{path.relative_to(paths.PACKAGE)}": path for path in package}


def _below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
