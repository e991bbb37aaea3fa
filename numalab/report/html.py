# SPDX-License-Identifier: GPL-2.0-only
"""The HTML report: one folder that needs no network, with index.html, Plotly's script, and a copy of each
run.

    index.html  report.css  report.js  plotly.min.js     report.json     which runs, which verdicts
    runs/ID/    ID.tar.gz, run.json, console.txt, NN-PHASE.stdout.txt, …

The page is rendered by Jinja2 from templates/, everything escaped. Not here: the contents of the page
(sections), the files of a run in it (attachments).
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from numalab.analysis import expectation
from numalab.core import paths, state
from numalab.core.errors import InputError
from numalab.kernel import patch as kernel_patch
from numalab.kernel import recipe as kernel_recipe
from numalab.model.run import Run
from numalab.model.values import jsonable
from numalab.model.verdict import Verdict, percent
from numalab.report import attachments, chart, charts, comparison, reference, sections, table
from numalab.report.reference import Published
from numalab.report.section_charts import MeasuredBoot
from numalab.report.sections import Kernel, Known, PatchSummary, Section
from numalab.runs import counters, record
from numalab.runs.samples import Sample

MARK = "numalab report"
"""What report.json has in a folder that is a report, and may be replaced."""
STATIC = ("report.css", "report.js")
"""Files of templates/ that are copied into the report unchanged."""


def write(
    runs: Sequence[tuple[Run, Path]],
    verdicts: Sequence[Verdict],
    target: Path,
    *,
    baseline: str | None = None,
    apart: bool = True,
) -> Path:
    """Write a report of runs and their verdicts, completely or not at all; returns the page's path.

    A folder that is a report is replaced. InputError for another folder that is not empty, for a run whose
    evidence cannot be read, and for two runs with one id.
    """
    _check(target)
    if doubles := {run.id for run, _ in runs if [other.id for other, _ in runs].count(run.id) > 1}:
        raise InputError(f"{sorted(doubles)[0]}: is there twice: a report's files are named by run")
    with state.making(target.absolute()) as scratch:
        scratch.chmod(0o755)  # others may read a report
        boots = [
            _boot(run, folder, scratch, _number(run, [other for other, _ in runs])) for run, folder in runs
        ]
        releases = {run.kernel: run.release for run, _ in runs}
        kernels = {name: kernel(name, release) for name, release in releases.items()}
        known = Known(
            kernels=kernels, references=_references(run for run, _ in runs), baseline=baseline, apart=apart
        )
        made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        about = {
            "kind": MARK,
            "made": made,
            "runs": [run.id for run, _ in runs],
            "verdicts": [jsonable(verdict) for verdict in verdicts],
        }
        (scratch / "report.json").write_text(json.dumps(about, indent=1))
        (scratch / "index.html").write_text(
            render(sections.build(boots, verdicts, known), made), encoding="utf-8"
        )
        (scratch / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
        for name in STATIC:
            (scratch / name).write_text(static(name), encoding="utf-8")
    return target / "index.html"


def _references(runs: Iterable[Run]) -> dict[str, Published]:
    """The published tables that the runs' cases name; those that this checkout lacks are left out."""
    references = {}
    for name in {name for run in runs if run.place for name in run.place.case.published}:
        with contextlib.suppress(InputError):
            references[name] = reference.load(name)
    return references


def _check(target: Path) -> None:
    """InputError unless a report may be written there."""
    try:
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            return
        about = json.loads((target / "report.json").read_text())
        ours = isinstance(about, dict) and about.get("kind") == MARK
    except (OSError, ValueError):
        ours = False
    if not ours:
        raise InputError(
            f"target: {target} is there and is no report of the lab's: name another folder, or remove it",
            field="target",
        )


def _boot(run: Run, folder: Path, target: Path, number: int) -> MeasuredBoot:
    """A run with its files. Those of a broken run are copied, but not drawn."""
    kept = attachments.copy(run, folder, target)
    samples, stacks = {}, {}
    for index, result in enumerate(() if run.error else run.phases):
        name = result.phase.name
        if result.phase.measured and (recorded := record.samples(folder, index, name)):
            place = record.phase_folder(folder, index, name)
            samples[name] = [_edge(place / "before", 0.0), *recorded, _edge(place / "after", result.elapsed)]
        if profile := record.profile(folder, index, name):
            stacks[name] = profile
    return MeasuredBoot(
        run=run, samples=samples, stacks=stacks, links=kept.links, left=kept.left, number=number
    )


def _edge(place: Path, t: float) -> Sample:
    """A sample made from the snapshot at the begin or end of a phase."""
    return {"t": t, **{path.name: counters.parse(path.read_text()) for path in sorted(place.iterdir())}}


def _number(run: Run, runs: Sequence[Run]) -> int:
    """The number, from 1, of a boot in its experiment; else among the runs of its workload and kernel."""
    alike = [other.id for other in runs if (other.workload, other.kernel) == (run.workload, run.kernel)]
    return run.place.boot + 1 if run.place else alike.index(run.id) + 1


def kernel(name: str, release: str) -> Kernel:
    """What kernels/ says now of a kernel that called itself `release`; `unknown` when it has no readable
    recipe."""
    try:
        loaded = kernel_recipe.load(name)
        recipe = loaded.recipe
        of_release = re.match(r"\d+\.\d+", release)
        series = recipe.of_series or (of_release and of_release[0])  # the build reads it in the tree
        patches = []
        for undone, item in kernel_recipe.patch_items(recipe):
            if recipe.source.git and kernel_recipe.is_commit(item):
                patches.append(
                    PatchSummary(
                        name=item, subject="a commit of that repository", mirrors="", moves=(), undone=undone
                    )
                )
                continue
            for patch in kernel_recipe.patch_set(item, series, loaded, reverse=undone):
                header = kernel_patch.header(patch.text, patch.label)
                moves = tuple(f"{counter} {way}" for counter, way in header.moves.items())
                patches.append(
                    PatchSummary(
                        name=patch.label,
                        subject=header.subject,
                        mirrors=header.mirrors,
                        moves=moves,
                        undone=undone,
                    )
                )
        return Kernel(description=recipe.description, source=_source(recipe), patches=tuple(patches))
    except (InputError, OSError) as error:
        return Kernel(unknown=f"This checkout cannot tell what {name} is: {error}")


def _source(recipe: kernel_recipe.KernelRecipe) -> str:
    """The source of a kernel, as its recipe names it."""
    given = recipe.source.model_dump(mode="json", by_alias=True, exclude_none=True)
    return ", ".join(
        f"{kind} {'' if value is True else _words(value)}".strip() for kind, value in given.items()
    )


def _words(value: object) -> str:
    return (
        " ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, Mapping) else str(value)
    )


def environment() -> Environment:
    """Jinja2 with autoescaping for every template; an undefined name is an error."""
    env = Environment(
        loader=FileSystemLoader(paths.TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals["TIMED"] = comparison.TIMED
    env.filters |= {
        "number": chart.number,
        "interval": chart.interval,
        "percent": percent,
        "show": table.show,
        "expected_change": sections.expected_change,
        "deciding": sections.deciding,
        "means": lambda finding: means(finding.before, finding.after, finding.odds),
        "boots_range": lambda both: expectation.boots_range(*both),
    }
    return env


def render(page_sections: Sequence[Section], made: str) -> str:
    """index.html; `made` is the time of the report, for a person."""
    return (
        environment()
        .get_template("report.html")
        .render(sections=page_sections, made=made, runs=sum(len(section.boots) for section in page_sections))
    )


def means(before: Sequence[float], after: Sequence[float], odds: bool) -> tuple[float | None, ...]:
    """The means of the boots' values that go with a finding's ratio: geometric ones, of percentages by their
    odds; arithmetic ones where not all values have one. None for a side without values."""
    most = 100.0 if odds else math.inf
    if not all(0 < value < most for value in (*before, *after)):
        return tuple(charts.mean(side).mean if side else None for side in (before, after))
    parts = [[value / (100 - value) for value in side] if odds else side for side in (before, after)]
    of_parts = [statistics.geometric_mean(side) if side else None for side in parts]
    return tuple(mean if mean is None or not odds else 100 * mean / (1 + mean) for mean in of_parts)


def static(name: str) -> str:
    """The text of one of STATIC."""
    env = environment()
    assert env.loader
    return env.loader.get_source(env, name)[0]
