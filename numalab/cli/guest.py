# SPDX-License-Identifier: GPL-2.0-only
"""lab.py up, down and the other commands on guests: parse options, call guest, print."""

from __future__ import annotations

import json
import os
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from numalab.cli.options import (
    COMMAND_SECONDS,
    MINUTE,
    AccelOption,
    ClockOption,
    GuestName,
    HugePagesOption,
    MemoryOption,
    PinOption,
    SeedOption,
    Uri,
    VcpusOption,
    accel_word,
    clock_word,
    fail_with,
    inventory,
    one_of,
    open_guest,
    pin_word,
    reach,
    show_error,
    size_option,
)
from numalab.cli.terminal import as_called, echo, limit, visible
from numalab.core.errors import Cancelled, DeadlinePassed, Exit, HostError, InputError, LabError
from numalab.guest.settings import KNOBS, UP_SECONDS

if TYPE_CHECKING:
    from numalab.guest.launch import GuestRequest
    from numalab.host.domain import Mark
    from numalab.kernel.recipe import Kernel
    from numalab.model.guest import GuestRecord
    from numalab.model.topology import Topology


def up(
    topologies: Annotated[
        list[str],
        typer.Option(
            "--topology",
            "-t",
            metavar="T",
            help="name in topologies/, or a path; repeat it for several guests",
        ),
    ] = ["4socket"],  # noqa: B006
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", "-n", metavar="N", help="one for each guest; default: after topology and kernel"
        ),
    ] = None,
    kernel_names: Annotated[
        str,
        typer.Option("--kernel", metavar="K[,K...]", help="name in kernels/; of several, a guest for each"),
    ] = "debian",
    boot: Annotated[
        str,
        typer.Option(
            "--boot",
            metavar="direct|grub",
            help="grub: the kernel is installed in the guest, which starts it itself",
        ),
    ] = "direct",
    init: Annotated[
        str,
        typer.Option(
            "--init",
            metavar="lab|systemd",
            help="lab: sshd and a console, and up sooner; systemd: all of the distribution",
        ),
    ] = "lab",
    memory: MemoryOption = None,
    vcpus: VcpusOption = None,
    disk: Annotated[
        list[str] | None,
        typer.Option(
            "--disk", metavar="[NAME=]SIZE", help="a further sparse disk, or another size of one (500TB=900T)"
        ),
    ] = None,
    append: Annotated[
        str, typer.Option("--append", metavar="WORDS", help="further words on the kernel command line")
    ] = "",
    storage: Annotated[
        str,
        typer.Option(
            "--storage",
            metavar="auto|raw|qcow2|pool",
            help="how data disks are kept; pool: XFS on a loop device (root)",
        ),
    ] = "auto",
    image_name: Annotated[str, typer.Option("--image", metavar="I", help="name in images/")] = "debian12",
    ssh_port: Annotated[
        int | None,
        typer.Option(
            "--ssh-port", metavar="P", min=1, max=65535, help="loopback port for SSH; default: a free one"
        ),
    ] = None,
    network: Annotated[
        bool,
        typer.Option(
            "--network",
            help="let the guest reach this host, its LAN and beyond; default: SSH from the host only",
        ),
    ] = False,
    accelerator: AccelOption = "auto",
    clock: ClockOption = "host",
    seed: SeedOption = None,
    pin: PinOption = "off",
    huge_pages: HugePagesOption = None,
    ready: Annotated[
        bool,
        typer.Option(
            "--ready",
            help="begin from a saved state of such a guest, made on first use",
        ),
    ] = False,
    uri: Uri = None,
    timeout: Annotated[float, typer.Option(help="seconds until an unfinished up is given up")] = UP_SECONDS,
) -> None:
    """Bring up guests, and verify each one's topology from inside."""
    from numalab.guest import launch
    from numalab.guest import ready as ready_states
    from numalab.host import image
    from numalab.host.hypervisor import connect
    from numalab.kernel import boot as kernel_boot
    from numalab.model.guest import BootWay, DiskForm, Init

    common: dict[str, object] = {
        "image_name": image_name,
        "append": append,
        "accel": accel_word(accelerator),
        "clock": clock_word(clock),
        "seed": seed,
        "pin": pin_word(pin),
        "huge_page": size_option("--huge-pages", huge_pages),
        "kept": True,
        "ssh_port": ssh_port,
        "network": network,
        "boot": one_of(BootWay, "--boot", boot),
        "init": one_of(Init, "--init", init),
        "form": one_of(DiskForm, "--storage", storage),
    }
    requests = _requests(
        topologies,
        _kernels(kernel_names),
        name or [],
        common,
        size_option("--memory", memory),
        vcpus,
        disk or [],
    )
    deadline = limit(timeout)
    if len({request.kernel.name for request in requests}) > 1:
        # Nothing is started when any kernel of a comparison is not built.
        for request in requests:
            kernel_boot.resolve(request.kernel, image.require(image_name, deadline))
    host = connect(uri, deadline)
    with ThreadPoolExecutor(len(requests)) as pool:
        bring_up = ready_states.up if ready else launch.up
        futures = [pool.submit(bring_up, request, host, deadline) for request in requests]
        outcomes = [(future.exception(), future) for future in futures]
    inventory()
    for error, future in outcomes:
        if error is None:
            guest = future.result()
            spec = guest.record.spec
            echo(
                f"{spec.name} is up: {spec.topology.description}; kernel {spec.boot.name}, {spec.runs_on},"
                f" topology verified{'; from a ready state' * bool(guest.record.ready_state)}"
            )
            commands = [f"./lab.py {word} {spec.name}" for word in ("ssh", "console", "down")]
            echo(as_called(f"  {'    '.join(commands)}"))
    fail_with([error for error, _ in outcomes if error is not None])


def _kernels(text: str) -> list[Kernel]:
    """The kernels of --kernel. Raises InputError."""
    from numalab.kernel import recipe

    names = text.split(",")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--kernel: {name} is there twice")
    return [recipe.load(name) for name in names]


def _requests(
    topologies: list[str],
    kernels: list[Kernel],
    names: list[str],
    common: dict[str, object],
    memory: int | None,
    vcpus: int | None,
    disks: list[str],
) -> list[GuestRequest]:
    """Requests for the guests of one command. Every error in them is raised here, before anything is made."""
    from numalab.guest import guest as guests
    from numalab.guest.launch import GuestRequest
    from numalab.kernel import recipe
    from numalab.model import catalog, topology
    from numalab.model.values import check_name

    pairs = [(text, kernel) for text in topologies for kernel in kernels]
    if names and len(names) != len(pairs):
        raise InputError(
            f"--name: {len(names)} names for {len(topologies)} topologies"
            + (f" times {len(kernels)} kernels" if len(kernels) > 1 else "")
        )
    if common["ssh_port"] and len(pairs) > 1:
        raise InputError("--ssh-port: one port cannot serve several guests")
    requests: list[GuestRequest] = []
    for index, (text, kernel) in enumerate(pairs):
        shape = topology.scale(_with_disks(catalog.topology(text), disks), memory=memory, vcpus=vcpus)
        taken = {request.name for request in requests}
        stem = f"{recipe.stem(text)}-{kernel.stem}" if len(kernels) > 1 else text
        name = names[index] if names else guests.fresh_name(stem, taken)
        try:
            check_name(name)
            if name in taken:
                raise ValueError(f"{name!r} is there twice")
        except ValueError as error:
            raise InputError(f"--name: {error}") from error
        requests.append(
            GuestRequest.model_validate(
                {**common, "name": name, "topology_name": text, "kernel": kernel, "shape": shape}
            )
        )
    return requests


def _with_disks(shape: Topology, texts: list[str]) -> Topology:
    """The topology with more data disks. A bare SIZE is also the disk's name (500T -> 500T)."""
    from pydantic import ValidationError

    from numalab.model.topology import Disk
    from numalab.model.values import first_fault

    disks = {disk.name: disk for disk in shape.disks}
    for text in texts:
        name, _, size = text.rpartition("=")
        try:
            disk = Disk.model_validate({"name": name or size, "size": size})
        except ValidationError as error:
            raise InputError(f"--disk {text}: {first_fault(error)[1]}") from error
        # A topology's disk of the same size is the one meant.
        if not name and disk.size in {known.size for known in disks.values()}:
            continue
        disks[disk.name] = disk
    return shape.model_copy(update={"disks": tuple(disks.values())})


def list_guests() -> None:
    """List guests with state, topology, kernel and SSH port."""
    from numalab.guest import guest as guests
    from numalab.host.domain import mark
    from numalab.host.hypervisor import connect
    from numalab.report import text as report_text

    rows: list[tuple[str, ...]] = [
        ("NAME", "STATE", "TOPOLOGY", "VCPUS", "MEMORY", "KERNEL", "ACCEL", "CLOCK", "PORT")
    ]
    running: dict[str, set[Mark] | None] = {}
    """By libvirt, the guests that run there; None where it does not answer."""
    for name in guests.names():
        try:
            record = guests.read(name)
            node = guests.elsewhere(record)
        except InputError:
            rows.append((name, "unfinished", *[""] * 7))
            continue
        except HostError:  # `status` shows the reason
            rows.append((name, "unreadable", *[""] * 7))
            continue
        if not guests.ours(record):
            life = "another lab's"
        elif node:
            life = f"on {node}"
        else:
            if record.uri not in running:
                try:
                    running[record.uri] = set(connect(record.uri, limit(MINUTE)).marks(limit(MINUTE)))
                except (HostError, DeadlinePassed) as error:
                    show_error(error)
                    running[record.uri] = None
            there = running[record.uri]
            if there is None:
                life = "unknown"
            elif mark(record.spec) not in there:
                life = "lost"
            else:
                life = "running" if record.ready else "starting"
        spec = record.spec
        size = (str(spec.topology.vcpus), f"{spec.topology.memory >> 20}M")
        machine = (spec.topology_name, *size, spec.boot.name, spec.accel, spec.clock)
        rows.append((name, life, *machine, str(spec.ssh_port)))
    echo("\n".join(report_text.aligned(rows, left=len(rows[0]))))


def status(name: GuestName) -> None:
    """Show one guest, and verify its topology again."""
    from numalab.host import console, qemu_user
    from numalab.host.domain import domain_name
    from numalab.model import verification

    guest = reach(name)
    spec = guest.record.spec
    facts = {
        "topology": f"{spec.topology_name}: {spec.topology.description}",
        "accelerator": f"{spec.runs_on} ({guest.record.accel_reason})",
        "kernel": f"{spec.boot.name} ({guest.record.kernel_hash})",
        "command line": spec.boot.cmdline,
        "image": f"{guest.record.image} ({guest.record.image_id})",
        "libvirt": f"{guest.record.uri} domain {domain_name(guest.mark)}",
        "ssh": f"root@127.0.0.1 port {spec.ssh_port}",
        "network": (
            "reaches the host, its LAN and beyond (--network)"
            if spec.network
            else "none but SSH from the host"
        ),
        "QEMU user": qemu_user.shown(spec, guest.host),
        "created": guest.record.created,
        "began from": _beginning(guest.record),
        "hung boots": str(guest.record.hung),
        "folder": str(guest.directory),
    }
    if disks := guest.record.prepared:
        facts["disks over"] = f"prepared disks {disks.key}: {disks.workload}: {', '.join(disks.phases)}"
    facts |= {
        f"disk {disk.serial}": f"{disk.path} ({disk.format}, cache={'none' if disk.direct else 'writeback'})"
        for disk in spec.disks
    }
    for key, value in facts.items():
        echo(f"{key:13} {value}")
    for piece in guest.console_pieces():
        for line in console.warnings(piece):
            echo(f"console       {line}")
    echo(verification.layout_table(guest.verify(limit(2 * MINUTE))))


def _beginning(record: GuestRecord) -> str:
    """A boot, or a ready state and what a guest from one shares with others."""
    if not record.ready_state:
        return "a boot of its own"
    return f"ready state {record.ready_state}: not a boot of its own (docs/guests.md)"


def put_in_order(
    name: GuestName,
    sysctl: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SYSCTL=VALUE", help="such as kernel.numa_balancing=0"),
    ] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option("--knob", metavar="KNOB=VALUE", help=f"of NUMA balancing: {', '.join(KNOBS)}"),
    ] = None,
    boot: Annotated[
        str | None,
        typer.Option(
            "--boot", metavar="grub", help="install the guest's kernel in the guest and let GRUB start it"
        ),
    ] = None,
) -> None:
    """Set sysctls and knobs of a guest, and read them back. A second time changes nothing."""
    from numalab.guest import provision
    from numalab.kernel import recipe
    from numalab.model.guest import BootWay

    order = provision.Order(
        sysctls=provision.pairs("sysctl", sysctl or []), knobs=provision.pairs("knob", knob or [])
    )
    guest = reach(name)
    changed = provision.tune(guest, order, limit(5 * MINUTE)).changed
    if boot and one_of(BootWay, "--boot", boot) == BootWay.GRUB:
        kernel = recipe.load(guest.record.spec.boot.name)
        changed += provision.own_kernel(guest, kernel, limit(UP_SECONDS))
        inventory()
    echo(f"{name}: changed={changed}")


def ssh(name: GuestName) -> None:
    """Open a shell in a guest."""
    guest = reach(name)
    os.execvp("ssh", guest.ssh.argv("-t", guest.ssh.host))


def execute(
    name: GuestName,
    command: Annotated[list[str], typer.Argument(metavar="CMD...", help="the command, after --")],
    timeout: Annotated[
        float,
        typer.Option(
            help="seconds until the command is ended in the guest; on the virtual clock it may go on"
        ),
    ] = COMMAND_SECONDS,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help=(
                "print status, stdout, stderr, seconds, timed_out as JSON; of a stream its last 16 MiB, and"
                " stdout_cut, stderr_cut: bytes before"
            ),
        ),
    ] = False,
) -> None:
    """Run a command in a guest. Ends with its exit status (124: time limit, 125: the lab failed)."""
    deadline, line = limit(timeout), shlex.join(command)
    outcome: dict[str, object]
    try:
        guest = reach(name)
        # After >&- sys.stdout is None.
        streams = {"out": getattr(sys.stdout, "buffer", None), "err": getattr(sys.stderr, "buffer", None)}
        result = (
            guest.execute(line, deadline=deadline)
            if as_json
            else guest.stream(line, deadline=deadline, **streams)
        )
        code = result.status
        outcome = {
            "status": code,
            "stdout": result.stdout,
            "stderr": result.stderr,
            "seconds": round(result.seconds, 3),
            "timed_out": False,
            "stdout_cut": result.stdout_cut,
            "stderr_cut": result.stderr_cut,
        }
    except DeadlinePassed as error:
        code, outcome = (
            Exit.EXEC_TIMED_OUT,
            {
                "status": None,
                "stdout": "",
                "stderr": str(error) + "\n",
                "seconds": timeout,
                "timed_out": True,
                "stdout_cut": 0,
                "stderr_cut": 0,
            },
        )
        if not as_json:
            show_error(error)
    except Cancelled:
        raise
    except (LabError, OSError) as error:
        with suppress(OSError):
            show_error(error)
        raise typer.Exit(Exit.EXEC_LAB_ERROR) from error
    if as_json:
        echo(json.dumps(outcome))
    raise typer.Exit(code)


def open_console(
    name: GuestName,
    log: Annotated[bool, typer.Option("--log", help="print the kernel's log so far instead")] = False,
) -> None:
    """Open a guest's console; Ctrl-] leaves it. The file of the kernel's whole log is named first."""
    if log:
        for piece in open_guest(name).console_pieces():
            # A file or a program gets the log unchanged.
            sys.stdout.write(visible(piece) if sys.stdout.isatty() else piece)
        return
    guest = reach(name)
    echo(f"kernel log: {guest.console_log}", err=True)
    words = guest.host.console_argv(guest.mark)
    os.execvp(words[0], words)


def put(
    name: GuestName,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="on this host")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="in the guest")],
) -> None:
    """Copy a file or folder into a guest."""
    if not source.exists():
        raise InputError(f"{source}: there is no such file")
    reach(name).ssh.copy(source=str(source), target=f"guest:{target}", deadline=limit(COMMAND_SECONDS))


def get(
    name: GuestName,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="in the guest")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="on this host")],
) -> None:
    """Copy a file or folder out of a guest."""
    reach(name).ssh.copy(source=f"guest:{source}", target=str(target), deadline=limit(COMMAND_SECONDS))


def down(
    names: Annotated[list[str] | None, typer.Argument(metavar="N...", help="guests (see list)")] = None,
    everything: Annotated[bool, typer.Option("--all", help="all of the lab's guests")] = False,
) -> None:
    """End guests and remove all that they had."""
    from numalab.guest import guest as guests

    if not everything and not names:
        raise InputError("down: which guest? (or --all)")
    errors: list[LabError] = []
    for name in guests.names() if everything else names or []:
        try:
            open_guest(name).down(limit(MINUTE))
        except Cancelled:
            raise
        except LabError as error:  # the others are still ended
            errors.append(error)
        else:
            echo(f"{name} is down")
    inventory()
    fail_with(errors)


def gc(uri: Uri = None) -> None:
    """Remove what killed commands left behind, and what is stale. Touches nothing that is not the lab's."""
    from numalab.host.hypervisor import connect
    from numalab.maintenance import gc as maintenance_gc
    from numalab.pool import cluster

    removed = cluster.sweep_idle() + maintenance_gc.collect(connect(uri, limit(MINUTE)), limit(5 * MINUTE))
    inventory()
    for line in removed or ["nothing to remove"]:
        echo(line)


def register(app: typer.Typer) -> None:
    """Add these commands to lab.py."""
    app.command()(up)
    app.command("list")(list_guests)
    app.command()(status)
    app.command("provision")(put_in_order)
    app.command()(ssh)
    app.command("exec")(execute)
    app.command("console")(open_console)
    for command in (put, get, down, gc):
        app.command()(command)
