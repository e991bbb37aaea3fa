# SPDX-License-Identifier: GPL-2.0-only
"""Comparisons as JSON, runs as CSV: for programs, with names that do not change.

JSON (`Comparison`; its schema, by pydantic, is `schema()` and what lab.py compare --format schema prints):

    format      "numalab-compare-1"; another number when a field changes its meaning
    columns     a kernel each, the baseline first: heading, kernel, releases, ids of its runs
    forced      in what the runs differ although they were compared (--force)
    blocks      the tables (table.Block): rows with a cell for each column; null is absent, a gain is in %
    published   the published effects beside ours (replication.Beside), with --published
    verdicts    what the cases of these runs conclude (verdict.Verdict)
    broken      runs that are no data, and why

Runs of several hypervisors are compared on each by itself: an array of such objects, each with `hypervisor`
(compatibility.hypervisor) before the rest; in CSV, a column `hypervisor` after the others.

CSV: a line for each run, measured phase and metric that the run has, under these columns (FIELDS):

    run, started (UTC), case, experiment, arm, boot, workload, size, topology, accel, kernel, release,
    phase, metric, unit, value

A metric is named as in numalab/analysis/metrics.py: counters of /proc/vmstat by their own names,
node0.vmstat:NAME, trace:SYSTEM:EVENT, output:NAME, user, system, elapsed in seconds, and what is derived from
these. Values are exact for counters, and shortest exact decimals otherwise. Absent metrics have no line;
broken runs none.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from numalab.analysis import metrics
from numalab.model.run import PhaseResult, Run
from numalab.model.values import Value
from numalab.model.verdict import Verdict
from numalab.report import comparison as report_comparison
from numalab.report.comparison import Columns
from numalab.report.replication import Beside
from numalab.report.table import Block

FIELDS = (
    "run",
    "started",
    "case",
    "experiment",
    "arm",
    "boot",
    "workload",
    "size",
    "topology",
    "accel",
    "kernel",
    "release",
    "phase",
    "metric",
    "unit",
    "value",
)


class Column(Value):
    """A kernel's boots."""

    heading: str
    kernel: str
    releases: tuple[str, ...]
    runs: tuple[str, ...]


class Broken(Value):
    """A run that is no data point."""

    run: str
    error: str


class Comparison(Value):
    """Everything that `compare` reports; see the top of this module."""

    format: Literal["numalab-compare-1"] = "numalab-compare-1"
    columns: tuple[Column, ...]
    forced: tuple[str, ...] = ()
    blocks: tuple[Block, ...]
    published: tuple[Beside, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    broken: tuple[Broken, ...] = ()


def comparison(
    by_heading: Columns,
    *,
    runs: Sequence[Run],
    forced: Sequence[str],
    published: Sequence[Beside],
    verdicts: Sequence[Verdict],
) -> Comparison:
    """Everything in one value. Besides the tables of the text it has the workloads' other numbers."""
    columns = tuple(
        Column(
            heading=heading,
            kernel=boots[0].kernel,
            releases=tuple(dict.fromkeys(run.release for run in boots)),
            runs=tuple(run.id for run in boots),
        )
        for heading, boots in by_heading.items()
    )
    other_numbers = report_comparison.other_numbers(by_heading)
    return Comparison(
        columns=columns,
        forced=tuple(forced),
        blocks=(*report_comparison.compare(by_heading), *((other_numbers,) if other_numbers.rows else ())),
        published=tuple(published),
        verdicts=tuple(verdicts),
        broken=tuple(Broken(run=run.id, error=run.error) for run in runs if run.error),
    )


def schema() -> dict[str, Any]:
    """The JSON schema of a comparison."""
    return Comparison.model_json_schema(mode="serialization")


def to_csv(hosts: Sequence[Sequence[Run]], names: Sequence[str]) -> str:
    """Unbroken runs by hypervisor as CSV (RFC 4180, but with \\n at the end of lines), with a heading.

    `names`: of the hypervisors; one of '' leaves out their column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*FIELDS, *(["hypervisor"] if any(names) else [])))
    for runs, name in zip(hosts, names, strict=True):
        for run in runs:
            if not run.error:
                writer.writerows((*line, *([name] if name else [])) for line in _lines(run))
    return text.getvalue()


def _lines(run: Run) -> Iterator[tuple[object, ...]]:
    spec, place = run.guest.spec, run.place
    head = (
        run.id,
        run.started,
        *((place.case_name, place.experiment, place.arm.value, place.boot) if place else ("", "", "", "")),
        run.workload,
        run.size.value,
        spec.topology_name,
        spec.accel.value,
        run.kernel,
        run.release,
    )
    for result in run.phases:
        sums = metrics.merged(run, result.phase.name)
        if sums is not None:
            for name, about in ((name, metrics.describe(name)) for name in names(result)):
                if (value := about.of(sums)) is not None:
                    yield (*head, result.phase.name, name, about.unit, value)


def names(result: PhaseResult) -> list[str]:
    """All metrics that a phase may have: times, counters of each source, the workload's own, derived ones."""
    counted = [
        name if source == "vmstat" else f"{source}:{name}"
        for source, values in result.counters.items()
        for name in values
    ]
    return [*metrics.TIMES, *counted, *(f"output:{name}" for name in result.output), *metrics.DERIVED]
