# SPDX-License-Identifier: GPL-2.0-only
"""lab.py measure: a workload by itself.

Options in, text out; the work is done by measure. Not here: cases (case).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from numalab.cli.options import (
    COMMAND_SECONDS,
    AccelOption,
    ClockOption,
    HugePagesOption,
    MemoryOption,
    PinOption,
    PreparedDisksOption,
    ReadyOption,
    SeedOption,
    SizeOption,
    Uri,
    VcpusOption,
    accel_word,
    clock_word,
    one_of,
    pin_word,
    reach,
    size_option,
)
from numalab.cli.terminal import echo, limit
from numalab.core.errors import InputError
from numalab.guest.settings import UP_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from numalab.guest.launch import GuestRequest
    from numalab.model.run import Run
    from numalab.model.values import SizeClass


def measure(
    context: typer.Context,
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="name in testcases/workloads/")],
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="N", help="a guest that is up; otherwise a fresh one, gone afterwards"),
    ] = None,
    topology_name: Annotated[
        str, typer.Option("--topology", "-t", metavar="T", help="name in topologies/, or a path")
    ] = "4socket",
    size: SizeOption = "quick",
    kernel_name: Annotated[str, typer.Option("--kernel", metavar="K", help="name in kernels/")] = "debian",
    memory: MemoryOption = None,
    vcpus: VcpusOption = None,
    accelerator: AccelOption = "auto",
    clock: ClockOption = "auto",
    seed: SeedOption = None,
    pin: PinOption = "auto",
    huge_pages: HugePagesOption = None,
    ready: ReadyOption = False,
    prepared_disks: PreparedDisksOption = False,
    uri: Uri = None,
) -> None:
    """Run a workload in one guest, and show its counters by phase."""
    import secrets

    from numalab.guest import guest as guests
    from numalab.guest import launch
    from numalab.kernel import recipe
    from numalab.measure import runner
    from numalab.model import catalog, topology
    from numalab.model.values import SizeClass
    from numalab.report import text

    which = SizeClass(one_of(SizeClass, "--size", size))
    runner.check(workload, which)
    if on is not None and (idle := _given(context)):
        raise InputError(f"{', '.join(idle)}: guest {on} is up already, and is what it is")
    if ready and prepared_disks:  # before hours of preparing
        raise InputError("--ready: not with --prepared-disks: a state has its own disks")
    if on is not None:
        result, folder = runner.run(reach(on), workload, which, limit(COMMAND_SECONDS))
    else:
        shape = topology.scale(
            catalog.topology(topology_name), memory=size_option("--memory", memory), vcpus=vcpus
        )
        request = launch.GuestRequest(
            name=guests.fresh_name(f"measure-{workload}"),
            topology_name=topology_name,
            shape=shape,
            kernel=recipe.load(kernel_name),
            accel=accel_word(accelerator),
            clock=clock_word(clock),
            pin=pin_word(pin),
            huge_page=size_option("--huge-pages", huge_pages),
            seed=secrets.randbits(32) if seed is None and not ready else seed,
        )
        result, folder = _measure_in(
            request, workload, which, uri=uri, ready=ready, prepared_disks=prepared_disks
        )
    echo(text.summary(result))
    echo(f"all of it: {folder}")


def _given(context: typer.Context) -> list[str]:
    """The options on the command line that are about the machine."""
    about_run = ("workload", "on", "size")
    return [
        option.opts[0]
        for option in context.command.params
        if option.name not in about_run
        and option.name
        and (source := context.get_parameter_source(option.name)) is not None
        and source.name == "COMMANDLINE"
    ]


def _measure_in(
    request: GuestRequest,
    workload: str,
    size: SizeClass,
    *,
    uri: str | None,
    ready: bool,
    prepared_disks: bool,
) -> tuple[Run, Path]:
    """Run a workload in a guest of its own."""
    from numalab.guest import guest as guests
    from numalab.guest import launch
    from numalab.guest import ready as ready_states
    from numalab.host.hypervisor import connect
    from numalab.measure import preparation, runner
    from numalab.model import binding
    from numalab.model.values import Clock

    host = connect(uri, limit(UP_SECONDS))
    with ExitStack() as held:
        if prepared_disks:
            work = preparation.Work(workload=workload, size=size)
            disks = held.enter_context(preparation.disks(request, work, host, limit))
            request = request.model_copy(update={"prepared": disks})
        if ready:  # what is left open is as a state has it
            changes = {
                **({"clock": Clock.HOST} if request.clock is None else {}),
                **({"pin": binding.OFF} if request.pin == binding.AUTO else {}),
            }
            guest = ready_states.up(request.model_copy(update=changes), host, limit(UP_SECONDS))
        else:
            guest = launch.up(request, host, limit(UP_SECONDS))
        held.enter_context(guests.ending(guest))
        options = runner.Options(prepared=prepared_disks)
        return runner.run(guest, workload, size, limit(COMMAND_SECONDS), options)


def register(app: typer.Typer) -> None:
    """Add this command to lab.py."""
    app.command()(measure)
