# SPDX-License-Identifier: GPL-2.0-only
"""lab.py compare and runs: runs compared as text, mail, JSON or CSV; and the list of runs.

Options in, text out; the tables are made by report, the list by runs.index.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer

from numalab.cli.options import STORED_RUNS, StoredSizeOption, StoredTopologyOption
from numalab.cli.terminal import echo
from numalab.core.errors import InputError
from numalab.core.log import note

if TYPE_CHECKING:
    from numalab.model.run import Run
    from numalab.model.verdict import Verdict
    from numalab.report.comparison import Columns
    from numalab.report.reference import Published
    from numalab.report.replication import Beside
    from numalab.runs import index as run_index


class Format(StrEnum):
    """The output format of a comparison."""

    TEXT = "text"
    MAIL = "mail"
    JSON = "json"
    CSV = "csv"
    SCHEMA = "schema"


def compare(
    words: Annotated[list[str] | None, STORED_RUNS] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="K", help="the kernel of the first column; default: before"),
    ] = None,
    with_published: Annotated[
        bool, typer.Option("--published", help="set the published effects that the case mirrors beside these")
    ] = False,
    form: Annotated[
        Format,
        typer.Option(
            "--format", metavar="text|mail|json|csv|schema", help="mail: within 76 columns; schema: of json"
        ),
    ] = Format.TEXT,
    force: Annotated[
        bool, typer.Option("--force", help="compare runs that are not comparable, and say so")
    ] = False,
    size: StoredSizeOption = None,
    topology: StoredTopologyOption = None,
) -> None:
    """Compare runs: times, rates and counters by kernel."""
    from numalab.model.values import jsonable
    from numalab.report import comparison, export, mail, replication
    from numalab.runs import compatibility, record
    from numalab.runs import index as run_index

    if form is Format.SCHEMA:
        echo(json.dumps(export.schema(), indent=1))
        return
    if not words:
        raise InputError(
            "compare: which runs? Give runs, an experiment or a case; lab.py runs shows what there is"
        )
    if form is Format.CSV and with_published:
        raise InputError("--published: not with --format csv, which has the runs' values alone")
    runs = [record.summary(folder) for folder in run_index.choose(words, size=size, topology=topology)]
    # Runs of several hypervisors are set side by side on each by itself, unless all are forced together.
    hosts = [runs] if force else compatibility.by_hypervisor(runs)
    names = [compatibility.hypervisor(group) if len(hosts) > 1 else "" for group in hosts]
    forced = [unlike(group, force=force) for group in hosts]
    comparison.check_baseline(hosts, baseline)
    documents = []
    for group, name, different in zip(hosts, names, forced, strict=True):
        if len(hosts) > 1 and all(run.error for run in group):
            for line in notes(group, different):
                note(f"hypervisor {name}: {line}")
            continue
        columns = comparison.columns(group, baseline)
        references = mirrored(group) if with_published else {}
        beside = replication.beside(references, columns, comparison.before(columns))
        if references and len(columns) > 1 and not beside:
            note(f"no row of the published tables is about {' and '.join(columns)} (reference/)")
        if form is Format.CSV:
            continue
        above = [*([f"hypervisor {name}"] if name else []), *notes(group, different)]
        if form is Format.TEXT:
            documents.append(plain(columns, above, beside, references))
            continue
        judged, doubts = verdicts(group, force=force, several=len(hosts) > 1)
        if form is Format.MAIL:
            documents.append(
                mail.compose(
                    columns, notes=[*above, *doubts], beside=beside, references=references, verdicts=judged
                )
            )
        else:
            compared = jsonable(
                export.comparison(columns, runs=group, forced=different, published=beside, verdicts=judged)
            )
            documents.append(json.dumps({"hypervisor": name, **compared} if name else compared, indent=1))
    if all(run.error for run in runs):
        raise InputError(f"nothing to compare: all {len(runs)} runs broke")
    if form is Format.CSV:
        echo(export.to_csv(hosts, names), nl=False)
    elif form is Format.JSON and len(hosts) > 1:
        echo(f"[{', '.join(documents)}]")
    else:
        echo(
            "\n\n".join(documents) if form is Format.TEXT else "\n".join(documents),
            nl=form is not Format.MAIL,
        )


def unlike(runs: Sequence[Run], *, force: bool) -> tuple[str, ...]:
    """The traits in which unbroken runs must not differ but do; InputError unless forced."""
    from numalab.runs import compatibility

    lines = compatibility.differences([run for run in runs if not run.error])
    if lines and not force:
        raise InputError(f"these runs are not comparable: {'; '.join(lines)}: leave some out, or use --force")
    return lines


def notes(runs: Sequence[Run], forced: Sequence[str]) -> list[str]:
    """Notes for the reader, to be printed before the tables."""
    return [
        *(f"NOT COMPARABLE, forced: {line}" for line in forced),
        *(f"not counted: {run.id}: {run.error}" for run in runs if run.error),
    ]


def mirrored(runs: Sequence[Run]) -> dict[str, Published]:
    """The published tables of the runs' cases. InputError when there are none."""
    from numalab.report import reference

    names = dict.fromkeys(name for run in runs if run.place for name in run.place.case.published)
    if not names:
        raise InputError(
            "--published: these runs' cases name no published tables (published: in testcases/CASE.yml);"
            " threads, nas and xfsrepair name some"
        )
    return {name: reference.load(name) for name in names}


def verdicts(runs: Sequence[Run], *, force: bool, several: bool) -> tuple[tuple[Verdict, ...], list[str]]:
    """The verdicts of a case when its runs have both arms, and otherwise why there is none. `several`: they
    are those on one of several hypervisors."""
    from numalab.experiment import judging

    if not all(run.place for run in runs) or not judging.both_sides(runs, several=several):
        return (), []
    try:
        judged = judging.verdicts(runs, force=force)
        return tuple(judging.among_others(one, runs) for one in judged), []
    except InputError as error:
        return (), [f"no verdict: {error}"]


def plain(
    columns: Columns, above: Sequence[str], beside: Sequence[Beside], references: Mapping[str, Published]
) -> str:
    """The seeds' tables as text, with the workload's name over the first."""
    from numalab.model.units import show_size
    from numalab.report import comparison, replication, table

    run = next(iter(columns.values()))[0]
    spec = run.guest.spec
    boots = ", ".join(f"{len(boots)} of {heading}" for heading, boots in columns.items())
    shape = f"{spec.topology_name}: {spec.topology.vcpus} vCPUs, {show_size(spec.topology.memory)}"
    head = [f"{run.workload} ({run.size}) on {shape}, {spec.runs_on}; boots: {boots}"]
    if spec.caveat:
        head.append(spec.caveat)
    first, *others = (table.text(block) for block in comparison.compare(columns))
    parts = ["\n".join([*head, *above]), f"{run.workload}\n{first}", *others]
    return "\n\n".join([*parts, *([replication.text(beside, references)] if beside else [])])


def runs(
    case: Annotated[str | None, typer.Option("--case", metavar="CASE", help="only this case's")] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", metavar="K", help="only this kernel's")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="WHEN", help="2026-11-21, 20261121T1430 (UTC), or an age: 90m, 12h, 7d, 2w"
        ),
    ] = None,
    experiment_name: Annotated[
        str | None, typer.Option("--experiment", metavar="E", help="only this experiment's")
    ] = None,
    add: Annotated[
        list[Path] | None, typer.Option("--add", metavar="FOLDER", help="copy a run from another machine in")
    ] = None,
) -> None:
    """List stored runs, oldest first."""
    from numalab.runs import index as run_index

    for folder in add or []:
        echo(f"{run_index.add(folder).id} is here")
    if add:
        return
    filters = {"case": case, "kernel": kernel, "since": since, "experiment": experiment_name}
    entries = run_index.find(**filters)
    given = " ".join(f"--{name} {text}" for name, text in filters.items() if text is not None)
    if given and not entries:
        note(f"runs: no stored run matches {given}")
    for line in listing(entries):
        echo(line)


def listing(entries: Sequence[run_index.Entry]) -> list[str]:
    """A line for each run, with the reason for a broken or damaged one."""
    from numalab.report import text

    rows = [("STARTED", "CASE", "KERNEL", "TOPOLOGY", "SIZE", "ACCEL", "CLOCK", "EXPERIMENT", "RUN")]
    rows += [
        (
            one.started,
            one.case_name or f"({one.workload})",
            one.kernel,
            one.topology,
            one.size,
            one.accel,
            one.clock,
            one.experiment or text.ABSENT,
            one.id,
        )
        for one in entries
        if not one.damage
    ]
    whys = [
        "",
        *(f"  BROKE: {shorten(one.error, 100)}" if one.error else "" for one in entries if not one.damage),
    ]
    lines = [line + why for line, why in zip(text.aligned(rows, left=len(rows[0])), whys, strict=True)]
    return lines + [f"DAMAGED  {one.id}: {one.damage}" for one in entries if one.damage]


def register(app: typer.Typer) -> None:
    """Add these commands to lab.py."""
    for command in (compare, runs):
        app.command()(command)
