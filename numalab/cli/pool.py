# SPDX-License-Identifier: GPL-2.0-only
"""lab.py pool …: start, show and end the pool of hypervisors. What it does is in numalab.pool.

`worker` and `serve` are programs of the pool's own, not for a person to type.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from numalab.cli.options import MINUTE
from numalab.cli.terminal import cancel, echo, limit
from numalab.core.errors import Exit, InputError

if TYPE_CHECKING:
    from numalab.pool.cluster import Row

app = typer.Typer(no_args_is_help=True, help="A pool of hypervisors: start, show and end it.")
UP_SECONDS = 6 * MINUTE
HEADINGS = ("HOST", "STATE", "FREE", "CPUS", "ACCEL", "RUNS", "LAB", "SOFTWARE")


@app.command("up")
def up(
    inventory: Annotated[
        Path | None,
        typer.Option(
            "--inventory",
            "-i",
            metavar="FILE",
            help="whose group [hypervisors] is started; default: inventory.ini",
        ),
    ] = None,
    launch: Annotated[
        str | None,
        typer.Option(
            "--launch",
            metavar="'srun …'",
            help="a program that starts a worker on each of its machines, instead of the inventory's hosts",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="ADDRESS",
            help="with --launch: this machine's address for its workers, by TLS with the pool's own keys;"
            " default: this machine alone",
        ),
    ] = None,
) -> None:
    """Start a scheduler here, and a worker on each hypervisor. Hosts that cannot be reached are named, and
    tried again; status 2 if none is up."""
    from numalab.host import ansible
    from numalab.pool import cluster
    from numalab.pool.cluster import LOOPBACK, State

    if listen and not launch:
        raise InputError(
            "--listen: the workers of an inventory are reached through SSH: give it with --launch only"
        )
    deadline = limit(UP_SECONDS)
    targets = (
        [cluster.launched(launch)] if launch else cluster.targets(inventory or ansible.INVENTORY, deadline)
    )
    pool = cluster.up(targets, listen or LOOPBACK, deadline)
    for one in pool.connections:
        echo(f"{one.name}: {one.state}{f': {one.why}' if one.why else ''}")
    if pool.dashboard:
        echo(f"dashboard: {pool.dashboard}")
    if not any(one.state is State.UP for one in pool.connections):
        raise typer.Exit(Exit.LAB_ERROR)


@app.command("status")
def status() -> None:
    """Show the hosts: what each offers and runs, its lab and QEMU."""
    from numalab.core import version
    from numalab.pool import cluster

    for line in table(cluster.status(version.version())):
        echo(line)


@app.command("down")
def down() -> None:
    """End the workers, their connections and the scheduler. Rounds that run are ended."""
    from numalab.pool import cluster

    for line in cluster.down(limit(3 * MINUTE)) or ["no pool is up"]:
        echo(line)


def table(rows: list[Row]) -> list[str]:
    """The lines of `pool status`; notes follow their host."""
    from numalab.model.units import GIB
    from numalab.report.text import aligned

    cells = [
        HEADINGS,
        *(
            (
                row.name,
                row.state,
                *((f"{row.memory / GIB:.1f}G", str(row.cpus), row.accel) if row.cpus else ("-", "-", "-")),
                ",".join(row.running) or "-",
                row.version or "-",
                row.software or "-",
            )
            for row in rows
        ),
    ]
    head, *lines = aligned(cells, left=len(HEADINGS))
    shown = [head]
    for row, line in zip(rows, lines, strict=True):
        shown += [line, f"    {row.note}"] if row.note else [line]
    return shown


@app.command("serve", hidden=True)
def serve() -> None:
    """The pool's server, which `pool up` starts."""
    from numalab.pool import cluster

    cluster.need_dask()
    from numalab.pool import server  # Dask is imported when a pool is used

    order = cluster.Order.model_validate_json(sys.stdin.buffer.read())
    server.serve(order, lambda line: echo(line, err=True), cancel)


@app.command("worker", hidden=True)
def worker() -> None:
    """The pool's worker on a host, which the server starts."""
    from numalab.pool import cluster

    cluster.need_dask()
    from numalab.pool import host

    def say(line: str) -> None:
        echo(line)
        sys.stdout.flush()

    host.serve(sys.stdin.buffer, say, cancel)
