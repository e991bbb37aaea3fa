# SPDX-License-Identifier: GPL-2.0-only
"""The command line's entry point: the app, the commands that have no module of their own, and the exit
status.

The exit statuses are errors.Exit; docs/verdicts.md ("Exit statuses") has the table. Not here: options that
several commands share (options), printing (terminal).
"""

from __future__ import annotations

import functools
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from numalab.cli import case as case_commands
from numalab.cli import guest as guest_commands
from numalab.cli import html as html_commands
from numalab.cli import kernel as kernel_commands
from numalab.cli import measure as measure_commands
from numalab.cli import pool as pool_commands
from numalab.cli import report as report_commands
from numalab.cli.options import (
    MINUTE,
    AccelOption,
    Uri,
    accel_word,
    fail_with,
    inventory,
    learn_options,
    show_each,
    show_error,
)
from numalab.cli.progress import Progress
from numalab.cli.terminal import as_called, echo, handle_signals, limit, outlive_readers
from numalab.core.errors import Cancelled, Exit, InputError, LabError
from numalab.core.log import note

if TYPE_CHECKING:
    from concurrent.futures import Future

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="The lab for Linux memory-management regressions: guests with NUMA topologies, measured.",
)
images = typer.Typer(no_args_is_help=True, help="Guest images: build and list them.")
app.add_typer(images, name="image")
app.add_typer(kernel_commands.app, name="kernel")
app.add_typer(pool_commands.app, name="pool")
for part in (guest_commands, case_commands, report_commands, html_commands, measure_commands):
    part.register(app)


def _show_version(requested: bool) -> None:
    if requested:
        from numalab.core import version

        echo(f"numalab {version.version()}")
        raise typer.Exit


@app.callback()
def options(
    show: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Options of lab.py itself."""


@app.command("show")
def show_run(
    word: Annotated[str, typer.Argument(metavar="RUN", help="a run: its id, or its folder")],
) -> None:
    """Show a run's counters, from its raw snapshots."""
    from numalab.report import text
    from numalab.runs import index, record

    echo(text.summary(record.read(index.place(word) or Path(word))))


@app.command("doctor")
def examine(accelerator: AccelOption = "auto", uri: Uri = None) -> None:
    """Check what this host can do, and how to mend what it lacks."""
    from numalab.host.accelerator import PROBE_SECONDS
    from numalab.maintenance import doctor

    # The probe goes by progress: on a slow machine with KVM it takes more than what else is looked at.
    facts = doctor.examine(accelerator, uri, limit(2 * MINUTE + PROBE_SECONDS))
    for fact in facts:
        echo(f"{'ok  ' if fact.good else 'LACK'}  {fact.name:16} {fact.value}")
        if not fact.good:
            echo(f"      {'':16} costs: {fact.cost}\n      {'':16} mend:  {fact.mend}")
    if any(not fact.good and fact.needed for fact in facts):
        raise typer.Exit(Exit.LAB_ERROR)


@images.command("build")
def image_build(
    name: Annotated[str, typer.Argument(metavar="NAME", help="in images/")] = "debian12",
    base: Annotated[
        Path | None,
        typer.Option(
            "--base",
            metavar="FILE",
            help="a cloud image (with cloud-init) to start from instead of mmdebstrap",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="build it even if it is there")] = False,
    with_packer: Annotated[
        bool, typer.Option("--packer/--no-packer", help="have Packer boot the base, or the lab itself")
    ] = True,
    accelerator: AccelOption = "auto",
    kernel_names: Annotated[
        str | None,
        typer.Option("--kernel", metavar="K[,K...]", help="build these kernels at the same time"),
    ] = None,
) -> None:
    """Build a guest image, unless one with the same inputs is there."""
    from concurrent.futures import ThreadPoolExecutor

    from numalab.host import image
    from numalab.kernel import build as kernel_build
    from numalab.kernel import recipe

    kernels = [recipe.load(one) for one in kernel_names.split(",")] if kernel_names else []
    if needy := next((one.name for one in kernels if one.needs_image), None):
        raise InputError(f"--kernel {needy}: its configuration is the image's: build it afterwards")
    with ThreadPoolExecutor(2) as pool:
        building = pool.submit(
            image.build,
            name,
            accelerator=accel_word(accelerator),
            deadline=limit(image.BUILD_SECONDS),
            base=base,
            force=force,
            with_packer=with_packer,
        )
        compiling = pool.submit(
            lambda: [kernel_build.build(one, None, limit(kernel_build.BUILD_SECONDS)) for one in kernels]
        )
        for one, other, rest in ((building, compiling, "kernels"), (compiling, building, "image")):
            one.add_done_callback(functools.partial(_failed_early, other, rest))
    if not building.exception():
        echo(f"{name} {building.result().id}: {building.result().directory}")
    for built in [] if compiling.exception() else compiling.result():
        echo(f"{built.name} {built.key}: {built.release}: {built.file('bzImage')}")
    fail_with([error for error in (building.exception(), compiling.exception()) if error])


def _failed_early(other: Future[Any], rest: str, one: Future[Any]) -> None:
    """Show at once that `one` failed where `other` still runs."""
    if (error := one.exception()) and not isinstance(error, Cancelled) and not other.done():
        note(f"{error} (the {rest} will be finished first)")


@images.command("list")
def image_list() -> None:
    """List the images, and whether each is built."""
    from numalab.host import image

    def show(name: str) -> None:
        built = image.existing(name, limit(MINUTE))
        echo(f"{name:12} {built.id if built else 'not built':16}  {image.recipe(name).description}")

    show_each("images", show)


@app.command("topologies")
def topology_list() -> None:
    """List the topologies."""
    from numalab.model import catalog

    def show(name: str) -> None:
        shape = catalog.topology(name)
        echo(f"{name:12} {shape.vcpus:3} vCPUs {shape.memory >> 20:6}M  {shape.description}")

    show_each("topologies", show)


@app.command("inventory")
def show_inventory() -> None:
    """Write an Ansible inventory of the guests, and print its path. Use it as in: ansible -i inventory.ini
    -i PATH guests -m ping"""
    echo(inventory())


def main() -> NoReturn:
    """Run lab.py's command and exit with its status."""
    handle_signals()
    outlive_readers()
    code: int = Exit.LAB_ERROR
    with suppress(OSError), Progress():  # standard error may be a file on a full disk
        code = _outcome()
    sys.exit(code)


def _app_of(word: str) -> typer.Typer:
    """The app with the one command or group of this name; with all of them when there is none. Typer takes a
    tenth of a second of processor time to look at them all."""
    commands = [
        one
        for one in app.registered_commands
        if one.callback and word == (one.name or one.callback.__name__.replace("_", "-"))
    ]
    groups = [one for one in app.registered_groups if word == one.name]
    if not commands and not groups:
        return app
    part = copy(app)
    part.registered_commands, part.registered_groups = commands, groups
    return part


def _outcome() -> int:
    """Run the command and return its exit status, which a failure to print does not change."""
    try:
        command = typer.main.get_command(_app_of(next(iter(sys.argv[1:]), "")))
        learn_options(command, sys.argv[1:])
        status = _command(command)
        if sys.stdout:
            # Report a full disk here: Python would do it at its exit, with status 120.
            sys.stdout.flush()
        return status
    except Cancelled:
        from numalab.guest import guest as guests

        with suppress(OSError, LabError):
            left = ", ".join(guests.made_by_us())
            there = f"; still there: {left} (lab.py list, lab.py gc)" if left else ""
            echo(as_called(f"lab.py: cancelled{there}"), err=True)
        return Exit.CANCELLED
    except LabError as error:
        with suppress(OSError):
            show_error(error)
        return error.status
    except (OSError, subprocess.SubprocessError) as error:
        with suppress(OSError):
            echo(as_called(f"lab.py: error: {error}"), err=True)
    except Exception:  # Python would exit with 1, which means "does not hold"
        with suppress(OSError):
            echo(traceback.format_exc(), err=True)
    return Exit.LAB_ERROR


def _command(call: Callable[..., object]) -> int:
    try:
        result = call(standalone_mode=False)
        return result if isinstance(result, int) else 0
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        raise Cancelled("cancelled") from None
    except Exception as error:
        # Bad usage: click's exceptions, of which typer has copies since 0.2x, with other classes and the same
        # attributes.
        if not hasattr(error, "format_message"):
            raise
        raise InputError(f"{error.format_message()} (--help tells more)") from None
