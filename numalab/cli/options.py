# SPDX-License-Identifier: GPL-2.0-only
"""What several commands of lab.py share: options, opening a guest by name, the inventory, showing errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from numalab.cli.terminal import as_called, echo, error_line, limit
from numalab.core.errors import Cancelled, HostError, InputError, KernelOops, LabError

if TYPE_CHECKING:
    from numalab.guest.guest import Guest
    from numalab.model.guest import BootWay, DiskForm, Init
    from numalab.model.values import Clock, SizeClass

MINUTE = 60.0
COMMAND_SECONDS = 24 * 3600.0
"""Default time limit of exec, ssh and transfers."""

Uri = Annotated[
    str | None,
    typer.Option(
        "--connect", metavar="URI", help="libvirt connection; default: your session (root: the system's)"
    ),
]
AccelOption = Annotated[
    str,
    typer.Option(
        "--accel", metavar="kvm|tcg|auto", help="auto tries whether a kernel really boots under KVM"
    ),
]
ClockOption = Annotated[
    str,
    typer.Option(
        "--clock",
        metavar="host|virtual|auto",
        help="virtual: the guest's clock counts its instructions: the host's load changes only the speed"
        " of disks without mibs_per_second (TCG); auto: virtual where QEMU can do it, unless a case names"
        " one",
    ),
]
PinOption = Annotated[
    str,
    typer.Option(
        "--pin",
        metavar="auto|off|MAP",
        help="the host's nodes and cores for the guest's; auto: under KVM, where they suffice; MAP: such as"
        " 0=0,1=1 (guest node=host node)",
    ),
]
HugePagesOption = Annotated[
    str | None,
    typer.Option(
        "--huge-pages", metavar="SIZE", help="the guest's memory from huge pages of the host: 2M, 1G"
    ),
]


def _seed(of: str) -> Any:
    return typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help=of)


SeedOption = Annotated[
    int | None,
    _seed(
        "of what differs from boot to boot: RDRAND under TCG and so the kernel's address (KASLR), the"
        " order of free pages, the start of phases; default: random where guests are measured"
    ),
]
BootSeedOption = Annotated[int | None, _seed("of one boot, as a run's record has it (show); default: random")]
ReadyOption = Annotated[
    bool,
    typer.Option(
        "--ready",
        help="begin from a saved state of such a guest, made on first use, instead of a boot; a verdict has"
        " a doubt for it",
    ),
]
PreparedDisksOption = Annotated[
    bool,
    typer.Option(
        "--prepared-disks",
        help="begin on disks on which another guest has done the workload's first phases, once, where it has"
        " such phases (xfsrepair)",
    ),
]
GuestName = Annotated[str, typer.Argument(metavar="N", help="a guest's name (see list)")]
SizeOption = Annotated[
    str,
    typer.Option(
        "--size",
        metavar="quick|full",
        help="quick: small enough for emulation on two cores; full: the seeds' own",
    ),
]
STORED_RUNS = typer.Argument(
    metavar="RUN…|EXPERIMENT|CASE", help="runs, or an experiment, or a case: its newest experiment"
)
StoredRuns = Annotated[list[str], STORED_RUNS]
StoredSizeOption = Annotated[
    str | None,
    typer.Option("--size", metavar="quick|full", help="of a case: its newest experiment of that size"),
]
StoredTopologyOption = Annotated[
    str | None,
    typer.Option("--topology", "-t", metavar="T", help="of a case: its newest experiment on that topology"),
]
MemoryOption = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="scale to this total, keeping the shape")
]
VcpusOption = Annotated[
    int | None, typer.Option("--vcpus", metavar="N", help="scale to this many, keeping the shape")
]


def open_guest(name: str) -> Guest:
    """A guest by name, running or not. HostError for one on another machine with our state directory."""
    from numalab.guest import guest as guests
    from numalab.guest.guest import Guest
    from numalab.host.hypervisor import connect

    record = guests.read(name)
    if not guests.ours(record):
        raise HostError(
            f"guest {name}: {guests.copied(record)}: run lab.py with that as LAB_STATE, or, if it is no more,"
            " lab.py gc says what to remove"
        )
    if node := guests.elsewhere(record):
        raise HostError(
            f"guest {name} is on {node}, and {record.uri} is another libvirt here: run lab.py there"
        )
    return Guest(record, connect(record.uri, limit(MINUTE)))


def reach(name: str) -> Guest:
    """A running guest by name."""
    guest = open_guest(name)
    if not guest.host.running(guest.mark, limit(MINUTE)):
        raise InputError(f"guest {name} does not run any more: lab.py gc removes what is left of it")
    return guest


def one_of(
    kind: type[SizeClass] | type[DiskForm] | type[BootWay] | type[Init], option: str, text: str
) -> str:
    """A word of an option with few values. InputError lists all of them."""
    words = [member.value for member in kind]
    if text not in words:
        raise InputError(f"{option}: {text!r} is none of {', '.join(words)}")
    return text


def accel_word(text: str) -> str:
    """The checked word of --accel."""
    if text not in ("kvm", "tcg", "auto"):
        raise InputError(f"--accel: {text!r} is none of kvm, tcg, auto")
    return text


def clock_word(text: str) -> Clock | None:
    """The clock of --clock; None for auto."""
    from numalab.model.values import Clock

    if text == "auto":
        return None
    try:
        return Clock(text)
    except ValueError:
        raise InputError(f"--clock: {text!r} is none of host, virtual, auto") from None


def pin_word(text: str) -> str:
    """The checked word of --pin."""
    from numalab.model.binding import parse_pin

    try:
        return parse_pin(text)
    except ValueError as error:
        raise InputError(f"--pin: {error}") from error


def size_option(option: str, text: str | None) -> int | None:
    """The size in an option, in bytes and not 0; None when the option is not given."""
    from numalab.model.units import parse_nonzero_size

    try:
        return None if text is None else parse_nonzero_size(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from error


def inventory() -> Path:
    """Update the dynamic inventory to the guests that are up; returns its path."""
    from numalab.guest import guest as guests
    from numalab.host import ansible

    ready = []
    for name in guests.names():
        try:
            record = guests.read(name)
            here = guests.ours(record) and not guests.elsewhere(record)
        except LabError:
            continue
        if record.ready and here:
            ready.append(guests.ssh_to(record))
    return ansible.write_inventory(ready)


_options: dict[str, str] = {}
"""The parameters of the running command -> their options."""


def learn_options(command: Callable[..., object], words: Sequence[str]) -> None:
    """Store the options of the command that `words` call, for `show_error`."""
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    _options.clear()
    _options.update(
        {one.name: one.opts[0] for one in getattr(command, "params", ()) if one.opts[0].startswith("--")}
    )


def show_error(error: BaseException) -> None:
    """Print an error's line and, indented, its evidence."""
    echo(as_called(f"lab.py: error: {error_line(error, _options)}"), err=True)
    for line in getattr(error, "evidence", "").splitlines():
        echo(f"    {line}", err=True)


def show_each(folder: str, show: Callable[[str], None]) -> None:
    """Show what each file of a folder holds, by name; then, as errors, the files that cannot be read."""
    from numalab.model import catalog

    unread: list[BaseException] = []
    for name in catalog.names(folder):
        try:
            show(name)
        except InputError as error:
            unread.append(error)
    fail_with(unread)


def fail_with(errors: Sequence[BaseException]) -> None:
    """Show all errors but one, which is raised: a cancellation, else a kernel's crash, else the first."""
    if not errors:
        return
    gravest = next(
        (error for kind in (Cancelled, KernelOops) for error in errors if isinstance(error, kind)), errors[0]
    )
    for error in errors:
        if error is not gravest:
            show_error(error)
    raise gravest
