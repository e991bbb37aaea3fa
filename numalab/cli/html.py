# SPDX-License-Identifier: GPL-2.0-only
"""lab.py report: runs and their verdicts as a folder of HTML. How a report is made is in report.html."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from numalab.cli.options import StoredRuns, StoredSizeOption, StoredTopologyOption
from numalab.cli.terminal import echo

if TYPE_CHECKING:
    from numalab.model.run import Run
    from numalab.model.verdict import Verdict


def report(
    words: StoredRuns,
    target: Annotated[
        Path,
        typer.Option(
            "--html", metavar="DIR", help="the folder to write; a report that is there already is replaced"
        ),
    ],
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="K", help="the kernel of the first column; default: before"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="set runs side by side that are not comparable, and say so")
    ] = False,
    size: StoredSizeOption = None,
    topology: StoredTopologyOption = None,
) -> None:
    """Write a report of runs as HTML pages. They have verdicts, tables, plots, what was run on what, and raw
    data, and need no network."""
    from numalab.cli import report as report_commands

    # Imported here: Plotly, Jinja2 and scipy.stats load slowly, and no other command needs them.
    from numalab.report import html, sections
    from numalab.runs import index as run_index
    from numalab.runs import record

    recorded = [
        (record.read(folder), folder) for folder in run_index.choose(words, size=size, topology=topology)
    ]
    runs = [run for run, _ in recorded]
    for group in sections.together(runs, apart=not force):
        report_commands.unlike(group, force=force)
    judged = verdicts(runs, force=force)
    echo(html.write(recorded, judged, target, baseline=baseline, apart=not force))


def verdicts(runs: Sequence[Run], *, force: bool) -> list[Verdict]:
    """The verdicts of each experiment that has runs of both arms, in order; other experiments have none. On
    each hypervisor by itself, unless they are forced together."""
    from numalab.experiment import judging
    from numalab.runs import compatibility

    experiments: dict[str, list[Run]] = {}
    for run in runs:
        if run.place:
            experiments.setdefault(run.place.experiment, []).append(run)
    both = []
    for whole in experiments.values():
        hosts = [whole] if force else compatibility.by_hypervisor(whole)
        both += [members for members in hosts if judging.both_sides(members, several=len(hosts) > 1)]
    return [
        judging.among_others(one, members)
        for members in both
        for one in judging.verdicts(members, force=force)
    ]


def register(app: typer.Typer) -> None:
    """Add this command to lab.py."""
    app.command()(report)
