"""lab.py report: runs and their verdicts as a folder of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from numalab import experiment, html, record, state
from numalab.case import Verdict
from numalab.errors import InputError
from numalab.runs import Run


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…|EXPERIMENT|CASE", help="runs (ids or folders), an experiment, or a case: its newest experiment")],
    target: Annotated[Path, typer.Option("--html", metavar="DIR", help="the folder to write; a report that is there already is replaced")],
    baseline: Annotated[str | None, typer.Option("--baseline", metavar="K", help="the kernel of the first column; default: before")] = None,
    force: Annotated[bool, typer.Option("--force", help="judge runs that are not comparable, and say so")] = False,
) -> None:
    """Write a report that any browser shows, without a network: verdicts, tables, plots, what was run on what, raw data."""
    found = [(record.read(folder), folder) for folder in _choose(runs)]
    page = html.write(found, verdicts([run for run, _ in found], force=force), target, baseline=baseline)
    typer.echo(page)


def verdicts(runs: Sequence[Run], *, force: bool) -> list[Verdict]:
    """Of each experiment, in the order in which they are named; runs that belong to none have none."""
    experiments: dict[str, list[Run]] = {}
    for run in runs:
        if run.place:
            experiments.setdefault(run.place.experiment, []).append(run)
    return [verdict for members in experiments.values() for verdict in experiment.verdicts(members, force=force)]


def _choose(words: Sequence[str]) -> list[Path]:
    found = []
    for word in words:
        places = [Path(word), state.folder("runs") / Path(word).name]
        if not (place := next((place for place in places if (place / "run.json").is_file()), None)):
            raise InputError(f"{word}: there is no such run: neither a folder with run.json nor an id under {state.folder('runs')}")
        found.append(place)
    return found


def register(app: typer.Typer) -> None:
    """Put this command on lab.py."""
    app.command()(report)
