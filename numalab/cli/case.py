# SPDX-License-Identifier: GPL-2.0-only
"""lab.py cases, run, matrix, verdict, calibrate, repro, watch: cases run and judged, and a case's machine for
a person.

Options in, text out; the work is done by experiment and analysis.
"""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from numalab.cli.options import (
    MINUTE,
    AccelOption,
    BootSeedOption,
    ClockOption,
    GuestName,
    HugePagesOption,
    MemoryOption,
    PinOption,
    PreparedDisksOption,
    ReadyOption,
    SeedOption,
    SizeOption,
    StoredRuns,
    StoredSizeOption,
    StoredTopologyOption,
    Uri,
    VcpusOption,
    accel_word,
    clock_word,
    inventory,
    one_of,
    pin_word,
    reach,
    show_each,
    show_error,
    size_option,
)
from numalab.cli.terminal import as_called, cancel, echo, limit, on_signals
from numalab.core.errors import Cancelled, Exit, InputError, LabError
from numalab.core.log import tell
from numalab.guest.settings import UP_SECONDS

if TYPE_CHECKING:
    from numalab.experiment import run as experiment
    from numalab.experiment.plan import Plan
    from numalab.experiment.several import Turn
    from numalab.model.run import Run
    from numalab.model.verdict import Verdict

REPRO = "/root/numalab-next.sh"

CaseName = Annotated[
    str, typer.Argument(metavar="CASE", help="name in testcases/ (see cases), or a path to such a file")
]
TopologyOption = Annotated[
    str | None, typer.Option("--topology", "-t", metavar="T", help="instead of the case's first machine")
]
PoolOption = Annotated[
    bool, typer.Option("--pool", help="on the pool's hosts (pool up) instead of this machine")
]
SpreadOption = Annotated[
    int,
    typer.Option(
        "--spread",
        metavar="N",
        min=1,
        help="share each case's rounds among N hosts of the pool, each a block in the statistics (--pool)",
    ),
]
BuildsOption = Annotated[
    int,
    typer.Option(
        "--builds",
        metavar="N",
        min=1,
        help="build each kernel N times (3 or more), with code and data laid out differently: each build is a"
        " sample; boots take them in turn",
    ),
]
SideBySideOption = Annotated[
    int | None,
    typer.Option(
        "--side-by-side",
        metavar="N",
        min=1,
        help="guests at a time (virtual clock); default: as many as CPUs and memory allow",
    ),
]
BootsOption = Annotated[
    str | None,
    typer.Option(
        "--boots", metavar="N|auto", help="fresh boots of each kernel; auto: until the answer is clear"
    ),
]


def status(verdicts: tuple[Verdict, ...]) -> Exit:
    """One exit status for several verdicts: "does not hold" first, then "cannot tell"."""
    from numalab.model.verdict import Answer

    answers = {verdict.answer for verdict in verdicts}
    if Answer.DOES_NOT_HOLD in answers:
        return Exit.DOES_NOT_HOLD
    return Exit.CANNOT_TELL if Answer.CANNOT_TELL in answers else Exit.HOLDS


def boots_option(text: str | None, plan: Plan) -> int | None:
    """--boots as a number of rounds; None is auto."""
    if text == "auto":
        return None
    if text is None:
        return plan.case_size.boots
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--boots: {text!r} is neither a number from 1 nor auto")
    return int(text)


def _plan(
    case: str,
    size: str,
    kernels: str | None,
    topology_name: str | None,
    memory: str | None,
    vcpus: int | None,
    accelerator: str,
    clock: str,
    profile: int = 0,
    seed: int | None = None,
    side_by_side: int | None = None,
    pin: str = "auto",
    huge_pages: str | None = None,
    builds: int = 1,
    ready: bool = False,
    prepared_disks: bool = False,
) -> Plan:
    from numalab.experiment.plan import make_plan
    from numalab.model.values import SizeClass

    return make_plan(
        case,
        SizeClass(one_of(SizeClass, "--size", size)),
        kernels=() if kernels is None else kernels.split(","),
        topology_name=topology_name,
        memory=size_option("--memory", memory),
        vcpus=vcpus,
        accel=accel_word(accelerator),
        clock=clock_word(clock),
        seed=seed,
        side_by_side=side_by_side,
        pin=pin_word(pin),
        huge_page=size_option("--huge-pages", huge_pages),
        profile_hz=profile,
        builds=builds,
        ready=ready,
        prepared_disks=prepared_disks,
    )


def _conduct(plan: Plan, boots: int | None, uri: str | None, turn: Turn | None = None) -> experiment.Outcome:
    from numalab.cli import live
    from numalab.experiment import run as experiment
    from numalab.host.hypervisor import connect

    return experiment.conduct(
        plan, connect(uri, limit(MINUTE)), boots, limit=limit, view=live.View(plan, boots), turn=turn
    )


def cases() -> None:
    """List the cases."""
    from numalab.model import catalog

    def show(name: str) -> None:
        case = catalog.case(name)
        echo(f"{name:16} {case.description}")
        for size, case_size in case.sizes.items():
            machines = ", ".join(machine.topology for machine in case_size.machines)
            echo(
                f"{'':16}   {size}: {machines}; {case.before} against {case.after}; {case_size.boots} boots"
                f" each, at most {case_size.minutes:g} min a boot"
            )

    show_each("testcases", show)


def run(
    cases: Annotated[
        list[str],
        typer.Argument(metavar="CASE…", help="names in testcases/ (see cases), or paths to such files"),
    ],
    kernels: Annotated[
        str | None,
        typer.Option(
            "--kernels", metavar="K,K…", help="before and after (and more afters); default: the case's"
        ),
    ] = None,
    boots: BootsOption = None,
    builds: BuildsOption = 1,
    size: SizeOption = "quick",
    topology_name: TopologyOption = None,
    memory: MemoryOption = None,
    vcpus: VcpusOption = None,
    profile: Annotated[
        int,
        typer.Option(
            "--profile",
            metavar="HZ",
            min=0,
            help="take call graphs. On the virtual clock QEMU counts instructions instead, which costs a"
            " phase nothing; else sampling costs time, so judge no times by such a run",
        ),
    ] = 0,
    accelerator: AccelOption = "auto",
    clock: ClockOption = "auto",
    seed: SeedOption = None,
    side_by_side: SideBySideOption = None,
    pin: PinOption = "auto",
    huge_pages: HugePagesOption = None,
    ready: ReadyOption = False,
    prepared_disks: PreparedDisksOption = False,
    pool: PoolOption = False,
    spread: SpreadOption = 1,
    uri: Uri = None,
) -> None:
    """Run cases: fresh boots of each kernel in turn, and a verdict."""
    plans = [
        _plan(
            case,
            size,
            kernels,
            topology_name,
            memory,
            vcpus,
            accelerator,
            clock,
            profile,
            seed,
            side_by_side,
            pin,
            huge_pages,
            builds,
            ready,
            prepared_disks,
        )
        for case in cases
    ]
    if prepared_disks:
        _check_prepares(cases, plans)
    if pool:
        refuse_paths(cases, plans)
    conduct_all([(plan, boots_option(boots, plan)) for plan in plans], pool=pool, spread=spread, uri=uri)


def _check_prepares(cases: Sequence[str], plans: Sequence[Plan]) -> None:
    """InputError when --prepared-disks is without effect in all of the cases."""
    if not any(plan.prepared_disks for plan in plans):
        raise InputError(f"--prepared-disks: no phase of {', '.join(cases)} prepares disks")


def matrix(
    cases: Annotated[
        list[str] | None, typer.Argument(metavar="CASE", help="default: all of testcases/")
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option("--size", metavar="quick|full", help="may be repeated; default: quick"),
    ] = None,
    topologies: Annotated[
        list[str] | None,
        typer.Option("--topology", "-t", metavar="T", help="may be repeated; default: each case's first"),
    ] = None,
    kernels: Annotated[
        list[str] | None,
        typer.Option("--kernels", metavar="K,K…", help="before and after; may be repeated"),
    ] = None,
    series: Annotated[
        list[str] | None,
        typer.Option("--series", metavar="S", help="each case's kernels of this series; may be repeated"),
    ] = None,
    boots: BootsOption = None,
    builds: BuildsOption = 1,
    accelerator: AccelOption = "auto",
    clock: ClockOption = "auto",
    seed: SeedOption = None,
    side_by_side: SideBySideOption = None,
    pin: PinOption = "auto",
    huge_pages: HugePagesOption = None,
    prepared_disks: PreparedDisksOption = False,
    pool: PoolOption = False,
    spread: SpreadOption = 1,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="NIGHT", help="go on with a night on the pool, from the store"),
    ] = None,
    uri: Uri = None,
) -> None:
    """Run cases x sizes x topologies x kernels, here or on a pool."""
    from numalab.experiment import matrix as experiments
    from numalab.experiment.plan import make_plan
    from numalab.model import catalog
    from numalab.model.values import SizeClass

    if resume is not None:
        given = (
            cases,
            sizes,
            topologies,
            kernels,
            series,
            boots,
            huge_pages,
            pool,
            uri,
            spread > 1,
            builds > 1,
            prepared_disks,
            seed is not None,
            side_by_side,
        )
        if any(given) or (accelerator, clock, pin) != ("auto", "auto", "auto"):
            raise InputError(
                f"--resume {resume}: the night has its cases and their options already: give no others"
            )
        _night(resume, [])
        return
    cells = experiments.cells(
        cases or catalog.names("testcases"),
        sizes=[SizeClass(one_of(SizeClass, "--size", one)) for one in sizes or [SizeClass.QUICK]],
        topologies=topologies or (),
        kernels=kernels or (),
        series=series or (),
    )
    plans = [
        make_plan(
            cell.case,
            cell.size,
            kernels=cell.kernels,
            topology_name=cell.topology,
            accel=accel_word(accelerator),
            clock=clock_word(clock),
            seed=seed,
            side_by_side=side_by_side,
            pin=pin_word(pin),
            huge_page=size_option("--huge-pages", huge_pages),
            builds=builds,
            prepared_disks=prepared_disks,
        )
        for cell in cells
    ]
    if not plans:
        raise InputError("the matrix is empty: no case has these sizes and kernels")
    if pool:
        refuse_paths(cases or [], plans)
    conduct_all([(plan, boots_option(boots, plan)) for plan in plans], pool=pool, spread=spread, uri=uri)


def refuse_paths(cases: Sequence[str], plans: Sequence[Plan], option: str = "--pool") -> None:
    """InputError for a file that is given as a path: a host of a pool would use its own of that name."""
    kernels = (kernel.name for plan in plans for kernel in plan.kernels)
    topologies = (plan.machine.topology for plan in plans)
    if path := next((word for word in (*cases, *kernels, *topologies) if "/" in word), None):
        raise InputError(
            f"{option}: {path}: is a path: give the name of a file in testcases/, kernels/ or topologies/,"
            " which every host of the pool has"
        )


def conduct_all(
    plans: Sequence[tuple[Plan, int | None]], *, pool: bool, uri: str | None, spread: int = 1
) -> None:
    """Run experiments, print their verdicts in order, and exit with the gravest status.

    An error ends its experiment; the others are run. Cancelled ends all at once.
    """
    if pool:
        if uri:
            raise InputError(
                "--pool --connect: each host of a pool uses its own libvirt; give one of the two"
            )
        _night(None, plans, spread)
        return
    if spread > 1:
        raise InputError(
            f"--spread {spread}: this machine is one host: with --pool the pool's share the rounds"
        )
    from numalab.experiment import several

    verdicts: list[Verdict] = []
    failed = set[int]()
    unseen: dict[int, experiment.Outcome] = {}

    def conduct(number: int, turn: Turn) -> None:
        unseen[number] = _conduct(*plans[number], uri, turn)

    jobs = [partial(conduct, number) for number in range(len(plans))]
    try:
        with closing(several.run(jobs, cancel)) as ended:
            for number, job in enumerate(ended):
                try:
                    job.result()
                except Cancelled:
                    raise
                except (LabError, OSError, subprocess.SubprocessError) as error:  # a full disk is an OSError
                    if len(plans) == 1:
                        raise
                    failed.add(error.status if isinstance(error, LabError) else Exit.LAB_ERROR)
                    plan, _ = plans[number]
                    with suppress(OSError):  # standard error may be a file on that disk
                        echo(f"case {plan.case_name}, size {plan.size}, {plan.machine.topology}:", err=True)
                        show_error(error)
                else:
                    verdicts += unseen[number].verdicts
                    _show_outcome(unseen.pop(number))
    finally:  # Ctrl-C: cases that had ended while one before them went on
        for _, outcome in sorted(unseen.items()):
            _show_outcome(outcome)
    if Exit.KERNEL_CRASHED in failed:
        raise typer.Exit(Exit.KERNEL_CRASHED)
    raise typer.Exit(Exit.LAB_ERROR if failed else status(tuple(verdicts)))


def _show_outcome(outcome: experiment.Outcome) -> None:
    _show_verdicts(outcome.experiment, outcome.verdicts, [run for run, _ in outcome.runs])


def _show_verdicts(name: str, verdicts: Sequence[Verdict], runs: Sequence[Run]) -> None:
    from numalab.experiment import judging
    from numalab.report import text as report_text

    for verdict in verdicts:
        echo(report_text.verdict(judging.among_others(verdict, runs)))
    echo(as_called(f"\ntables: ./lab.py compare {name}    judge again: ./lab.py verdict {name}"))


def _night(name: str | None, plans: Sequence[tuple[Plan, int | None]], spread: int = 1) -> None:
    """Run plans on the pool, or go on with the night of this name."""
    from numalab.pool import cluster

    cluster.need_dask()
    # Here: Dask is imported when a pool is used, and takes a second.
    from numalab.pool import driver, store, unit
    from numalab.pool import night as nights
    from numalab.pool.queue import Cause
    from numalab.pool.supply import Supply

    wish = driver.Wish()
    restore = on_signals(wish.drain.set, wish.end.set)
    try:
        client = cluster.connect()
        night = (
            nights.Night(name)
            if name
            else nights.make([unit.order(number, *one, spread) for number, one in enumerate(plans)])
        )
        echo(
            f"night {night.name}: {len(night.orders)} experiments; dashboard: {client.dashboard_link}",
            err=True,
        )
        try:
            results = driver.Driver(client, night, supply=Supply()).run(wish)
        except LabError:
            echo(as_called(f"go on with it: ./lab.py matrix --resume {night.name}"), err=True)
            raise
        finally:
            with suppress(OSError, RuntimeError):  # a scheduler that is gone, or answers nothing
                client.close(timeout=MINUTE)
    finally:
        restore()
    for result in results:
        if result.verdicts:
            _show_verdicts(result.experiment, result.verdicts, store.runs(result.experiment))
    for result in results:
        answer = ", ".join(verdict.answer for verdict in result.verdicts) or f"{result.cause}: {result.why}"
        echo(f"{result.order.case:16} {result.order.size:6} {result.order.topology:12} {answer}")
    causes = {result.cause for result in results}
    if Cause.CRASH in causes:
        raise typer.Exit(Exit.KERNEL_CRASHED)
    if causes - {None}:
        raise typer.Exit(Exit.LAB_ERROR)
    raise typer.Exit(status(tuple(verdict for result in results for verdict in result.verdicts)))


def verdict(
    runs: StoredRuns,
    force: Annotated[
        bool, typer.Option("--force", help="judge runs that are not comparable, and say so")
    ] = False,
    size: StoredSizeOption = None,
    topology: StoredTopologyOption = None,
) -> None:
    """Judge stored runs again. Runs of several hypervisors are judged on each by itself."""
    from numalab.experiment import judging
    from numalab.report import text as report_text
    from numalab.runs import compatibility, record
    from numalab.runs import index as run_index

    chosen = [record.read(folder) for folder in run_index.choose(runs, size=size, topology=topology)]
    hosts = [chosen] if force else compatibility.by_hypervisor(chosen)
    verdicts: list[Verdict] = []
    for group in hosts:
        if len(hosts) > 1:
            echo(f"hypervisor {compatibility.hypervisor(group)}:")
            if not judging.both_sides(group, several=True):
                echo("  no verdict: not both sides have a boot that counts")
                for run in group:
                    if run.error:
                        echo(f"  not counted: {run.id}: {run.error}")
                continue
        judged = judging.verdicts(group, force=force)
        verdicts += judged
        for one in judged:
            echo(report_text.verdict(judging.among_others(one, group)))
    if not verdicts:
        raise InputError(
            'there is no run of a kernel "after" among these: a verdict needs both sides of an experiment'
            if len(hosts) == 1
            else "no hypervisor has both sides of an experiment: a verdict needs boots of both that count"
        )
    for name in dict.fromkeys(run.place.experiment for run in chosen if run.place):
        own = [run for run in chosen if run.place and run.place.experiment == name]
        machines = dict.fromkeys(run.host.get("machine", "an unknown machine") for run in own)
        echo(f"judged: experiment {name}, begun {min(run.started for run in own)} on {', '.join(machines)}")
    raise typer.Exit(status(tuple(verdicts)))


def calibrate(
    case: CaseName,
    kernel: Annotated[
        str | None,
        typer.Option("--kernel", metavar="K", help="that is compared with itself; default: the case's after"),
    ] = None,
    boots: Annotated[
        int | None,
        typer.Option("--boots", metavar="N", min=2, help="fresh boots of each side; default: the case's"),
    ] = None,
    size: SizeOption = "quick",
    topology_name: TopologyOption = None,
    memory: MemoryOption = None,
    vcpus: VcpusOption = None,
    accelerator: AccelOption = "auto",
    clock: ClockOption = "auto",
    seed: SeedOption = None,
    side_by_side: SideBySideOption = None,
    pin: PinOption = "auto",
    huge_pages: HugePagesOption = None,
    ready: ReadyOption = False,
    prepared_disks: PreparedDisksOption = False,
    uri: Uri = None,
) -> None:
    """Measure how far boots of one kernel differ on this host. What a case asks for has to be more."""
    from numalab.analysis import calibration
    from numalab.model import catalog
    from numalab.report import text as report_text

    kernel_name = catalog.case(case).after if kernel is None else _one_kernel(kernel)
    plan = _plan(
        case,
        size,
        f"{kernel_name},{kernel_name}",
        topology_name,
        memory,
        vcpus,
        accelerator,
        clock,
        seed=seed,
        side_by_side=side_by_side,
        pin=pin,
        huge_pages=huge_pages,
        ready=ready,
        prepared_disks=prepared_disks,
    )
    if prepared_disks:
        _check_prepares([case], [plan])
    outcome = _conduct(plan, boots or plan.case_size.boots, uri)
    spreads = calibration.of([run for run, _ in outcome.runs])
    path = calibration.save(spreads)
    echo(report_text.spread(spreads))
    echo(f"kept: {path}")


def _one_kernel(name: str) -> str:
    """InputError for several names."""
    if "," in name:
        raise InputError(f"--kernel {name}: one kernel is needed here")
    return name


def repro(
    case: CaseName,
    kernel: Annotated[
        str, typer.Option("--kernel", metavar="before|after|K", help="the case's, or a name in kernels/")
    ] = "before",
    size: SizeOption = "quick",
    topology_name: TopologyOption = None,
    memory: MemoryOption = None,
    vcpus: VcpusOption = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", metavar="N", help="the guest's; default: repro-CASE")
    ] = None,
    enter: Annotated[bool, typer.Option("--shell/--no-shell", help="end in a shell in the guest")] = True,
    accelerator: AccelOption = "auto",
    clock: ClockOption = "auto",
    seed: BootSeedOption = None,
    prepared_disks: PreparedDisksOption = False,
    uri: Uri = None,
) -> None:
    """Run a case up to its deciding phase, and open a shell there. A script in the guest has the phase's
    command."""
    from numalab.experiment import run as experiment
    from numalab.experiment.plan import build_kernels, interesting_phase
    from numalab.guest import guest as guests
    from numalab.guest import launch
    from numalab.host import ssh
    from numalab.host.hypervisor import connect
    from numalab.model import catalog
    from numalab.report import text as report_text

    if name is not None:  # before hours of building
        launch.check_free(name)
    own = catalog.case(case)
    kernel_name = {"before": own.before, "after": own.after}.get(kernel, _one_kernel(kernel))
    plan = _plan(
        case,
        size,
        f"{kernel_name},{kernel_name}",
        topology_name,
        memory,
        vcpus,
        accelerator,
        clock,
        pin="off",
        prepared_disks=prepared_disks,
    )
    if prepared_disks:
        _check_prepares([case], [plan])
    build_kernels(plan, limit(experiment.PREPARE_SECONDS))
    host = connect(uri, limit(MINUTE))
    with experiment.on_prepared_disks(plan, host, limit) as plan:
        guest, _ = experiment.up(
            plan,
            host,
            plan.kernels[0],
            guests.fresh_name(f"repro-{plan.case_name}") if name is None else name,
            limit(UP_SECONDS),
            kept=True,
            seed=secrets.randbits(32) if seed is None else seed,
        )
    with guests.ending(guest, only_on_error=True):
        tell(f"seed {guest.record.spec.seed}", who=guest.name)
        seconds = experiment.patience(plan.case_size.minutes, guest.record.spec.clock)
        experiment.prelude(plan, guest, limit(seconds))
        phase = interesting_phase(plan)
        ssh.succeed(guest, f"cat > {REPRO}", deadline=limit(MINUTE), input=f"{phase.command}\n".encode())
    inventory()
    echo(report_text.repro(plan.case, kernel_name, guest.name, phase, REPRO))
    if enter:
        os.execvp("ssh", guest.ssh.argv("-t", guest.ssh.host))


def watch(
    name: GuestName,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="between two looks")
    ] = 2.0,
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=0, help="looks, then end; 0: until Ctrl-C")
    ] = 0,
) -> None:
    """Watch a guest's NUMA counters. Shows changes since the watch began, and a second."""
    from numalab.cli import live
    from numalab.host import ssh
    from numalab.runs import counters

    guest = reach(name)

    def look() -> tuple[float, dict[str, int]]:
        return time.monotonic(), counters.parse(
            ssh.succeed(guest, ["cat", counters.VMSTAT], deadline=limit(MINUTE))
        )

    first = before = look()
    for number in itertools.count(1):
        limit(every + 1).pause(every)
        if cancel.is_set():
            return
        now = look()
        # By the clock: under emulation reading the counters takes a good part of a second.
        _show(live.watched_table(first[1], before[1], now[1], now[0] - before[0]))
        before = now
        if number == count:
            return


def _show(rows: list[tuple[str, str, str]]) -> None:
    import click

    if sys.stdout.isatty():
        click.clear()
    for name, since, each in [("", "since", "a second"), *rows]:
        echo(f"{name:32} {since:>14} {each:>12}")


def register(app: typer.Typer) -> None:
    """Add these commands to lab.py."""
    for command in (cases, run, matrix, verdict, calibrate, repro, watch):
        app.command()(command)
