# SPDX-License-Identifier: GPL-2.0-only
"""Disks prepared beforehand: a guest of its own does a workload's first phases once, and the data disks it
leaves are what other guests begin on, each with an overlay.

Only phases that the workload marks so (Phase.prepares) and that come before all others are done so. Disks are
found by their key, the checksum of everything that decides what is on them: image, kernel and its era's
environment, machine, settings, commands and files of the phases. So one file system with its inodes is made
once for a size and an era. Not here: the folder that they are kept in (guest.prepared).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import Field

from numalab.core import checksum, state
from numalab.core.errors import CommandFailed, GuestError, InputError
from numalab.core.log import step
from numalab.core.process import Deadline
from numalab.guest import guest as guests
from numalab.guest import launch, prepared, provision
from numalab.guest.guest import Guest
from numalab.guest.launch import GuestRequest
from numalab.guest.settings import UP_SECONDS
from numalab.host import accelerator, ssh
from numalab.host import disks as host_disks
from numalab.host.hypervisor import Host
from numalab.kernel import boot as kernel_boot
from numalab.kernel.recipe import Kernel
from numalab.measure import programs, runner
from numalab.model import binding
from numalab.model.guest import DiskForm, PreparedDisks
from numalab.model.values import Clock, Phase, SizeClass, Value, jsonable
from numalab.runs import compatibility

FORMAT = "1"
"""Changed when this module leaves other disks by the same phases."""
PATIENCE = 2
"""Time for a phase, in its limits, which are by the guest's clock: a virtual one may be slower than ours."""
WAIT_SECONDS = 6 * 3600.0
"""How long to wait for another lab.py that makes the same disks."""
FLUSH = """
if grep -E '^/dev/(vd[b-z]|sd)' /proc/mounts >&2; then echo 'data disks are still mounted' >&2; exit 1; fi
sync
for disk in /dev/vd[b-z] /dev/sd[a-z]; do [ ! -b "$disk" ] || sync "$disk" || exit; done
"""
"""sync(1) of a device flushes its write cache too, which an unmount need not; the root disk is vda."""


class Work(Value):
    """What is done to the disks: the first phases of a workload, with these parameters and settings."""

    workload: str
    size: SizeClass
    params: dict[str, Any] = Field(default_factory=dict)
    order: provision.Order = Field(default_factory=provision.Order)


def clock(kernel: Kernel, wanted: Clock | None) -> Clock | None:
    """The clock of a guest in which nothing is measured, where a measured one's is to be `wanted`.

    A guest boots faster on the host's clock, but an old kernel's ticket locks may wait for ever for a CPU
    that does not run there: seen with 4.0, eight CPUs on a busy host of two.
    """
    return wanted if kernel.era else Clock.HOST


def phases(of: Sequence[Phase]) -> tuple[Phase, ...]:
    """Which of a workload's phases may be done beforehand: the first ones, up to one that does more.
    Programs are compiled in each guest's image anyway."""
    return tuple(phase for phase in takewhile(lambda one: one.prepares or one.makes, of) if phase.prepares)


@contextmanager
def disks(
    request: GuestRequest,
    work: Work,
    host: Host,
    limit: Callable[[float], Deadline],
    *,
    while_made: AbstractContextManager[None] | None = None,
) -> Iterator[PreparedDisks]:
    """The prepared disks for a guest that is requested, made on first use, and kept from gc during the block.

    `while_made` is entered when they have to be made. InputError when no phase of the workload prepares, or
    when no guest here can stand on such disks.
    """
    module = runner.load(work.workload)
    params = runner.parameters(module, work.size, work.params)
    every = module.phases(params)
    if not (first := phases(every)):
        raise InputError(f"workload {work.workload}: no phase of it prepares disks", field="prepared_disks")
    if host.where.ssh:
        raise InputError("prepared disks: not with another machine's guests", field="prepared_disks")
    for disk in request.shape.disks:
        host_disks.check_size(disk, state.folder("disks"), DiskForm.QCOW2)
    # With the programs that phases before the last of them run.
    todo = every[: every.index(first[-1]) + 1]
    request, key = _keyed(request, todo, _files(module, params), work.order, host, limit(UP_SECONDS))
    place = state.folder("disks") / key
    with ExitStack() as held:
        with state.lock(f"disks-{key}", limit(WAIT_SECONDS)):
            if not place.exists():
                with while_made or nullcontext():
                    seconds = UP_SECONDS + sum(PATIENCE * phase.limit_seconds for phase in todo)
                    _make(request, work, todo, place, host, limit(seconds))
            held.enter_context(state.using(place))
        known = prepared.read(place)
        prepared.touch(place)
        # A run leaves them out by the names that they have now; the key does not have those.
        yield known.model_copy(update={"phases": tuple(phase.name for phase in first)})


def _files(module: Any, params: Value) -> Mapping[str, Path]:
    """The workload's files: path in the guest -> path here."""
    return module.files(params) if hasattr(module, "files") else {}


def _keyed(
    request: GuestRequest,
    todo: Sequence[Phase],
    files: Mapping[str, Path],
    order: provision.Order,
    host: Host,
    deadline: Deadline,
) -> tuple[GuestRequest, str]:
    """The request of the guest that makes the disks, and their key."""
    base, boot = launch.choose(request, deadline)
    probe = request.probe or accelerator.choose(request.accel, Path(boot.kernel or ""), deadline, host.where)
    request = request.model_copy(
        update={
            "image_id": base.id,
            "pinned": boot,
            "probe": probe,
            "clock": clock(request.kernel, request.clock),
            "pin": binding.OFF,
            "huge_page": None,
            "seed": None,
            "profiled": False,
            "kept": False,
            "ssh_port": None,
        }
    )
    shape = compatibility.shape(kernel_boot.fitted(request.kernel, request.shape))
    parts = [
        FORMAT,
        base.id,
        kernel_boot.digest(request.kernel, boot),
        json.dumps(boot.environment, sort_keys=True),
        request.append,
        json.dumps(shape, sort_keys=True),
        probe.accel.value,
        json.dumps(jsonable(order), sort_keys=True),
        *(phase.command for phase in todo),
        *(f"{target} {checksum.sha256(Path(source))}" for target, source in sorted(files.items())),
    ]
    return request, checksum.of_texts(*parts)[:16]


def _make(
    request: GuestRequest, work: Work, todo: Sequence[Phase], place: Path, host: Host, deadline: Deadline
) -> None:
    """Do the phases in a guest, and keep its disks. A kill -9 leaves a guest and a scratch folder, for gc."""
    name = guests.fresh_name(f"disks-{place.name[:8]}")
    guest = launch.up(request.model_copy(update={"name": name}), host, deadline.within(UP_SECONDS))
    with guests.ending(guest), state.making(place) as scratch:
        began = time.monotonic()
        try:
            _prepare(guest, work, todo, deadline)
        except (GuestError, CommandFailed) as error:
            if oops := guests.crash(guest):
                raise oops from error
            raise
        seconds = time.monotonic() - began
        guest.watch(last=True)  # an oops in the last moment
        guest.ssh.disconnect(deadline)
        host.stop(guest.mark, deadline)
        record = guest.record
        data = [
            disk for disk in record.spec.disks if disk.serial in {one.name for one in request.shape.disks}
        ]
        shutil.copy(guest.console_log, scratch)
        prepared.write(
            PreparedDisks(
                key=place.name,
                directory=str(place),
                workload=work.workload,
                phases=tuple(phase.name for phase in todo if phase.prepares),
                kernel=record.spec.boot.name,
                release=record.spec.boot.release,
                image=record.image,
                image_id=record.image_id,
                disks=tuple(host_disks.keep(disk, scratch) for disk in data),
                seconds=round(seconds, 1),
                made=state.stamp(),
            ),
            scratch,
        )


def _prepare(guest: Guest, work: Work, todo: Sequence[Phase], deadline: Deadline) -> None:
    """Do the phases, and have all that they wrote on the disks."""
    if work.order.sysctls or work.order.knobs:
        provision.apply(guest, work.order, deadline)
    module = runner.load(work.workload)
    runner.give_files(guest, module, runner.parameters(module, work.size, work.params), deadline)
    for phase in todo:
        if phase.makes:
            programs.give(guest, phase, deadline)
            continue
        with step(f"{work.workload}: {phase.name}, once for prepared disks", who=guest.name):
            ssh.succeed(guest, phase.command, deadline=deadline.within(PATIENCE * phase.limit_seconds))
    ssh.succeed(guest, FLUSH, deadline=deadline)
