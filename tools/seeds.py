#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Print the table of docs/seeds.md: the verdict of each case at the quick size, from stored runs.

    .venv/bin/python tools/seeds.py

Of each case it takes the newest experiment that has all of its planned boots and was made with the case's own
two kernels as their files are today. Where there is none with today's kernels, it takes one with earlier
builds, and says so. Nothing is booted. Judging is numalab.experiment.judging.verdicts, as in lab.py verdict:
by the expectations that stood in the case when it ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from numalab.analysis import verdict as analysis
from numalab.core.errors import InputError
from numalab.core.process import Deadline
from numalab.experiment import judging
from numalab.kernel import build as kernel_build
from numalab.kernel import recipe
from numalab.measure import runner
from numalab.model import catalog
from numalab.model.case import Arm, Case
from numalab.model.run import Run
from numalab.model.values import SizeClass, accel_label
from numalab.model.verdict import Finding, Verdict, percent
from numalab.runs import index, record

HEAD = (
    "case",
    "before → after",
    "boots",
    "answer",
    "what decides: after/before (interval), expected",
    "to know",
)
SIZE = SizeClass.QUICK
KEY_SECONDS = 60.0


def experiments(case: str) -> Iterator[list[Run]]:
    """The runs of each stored experiment of a case at the quick size, newest first."""
    groups: dict[str, list[index.Entry]] = {}
    for entry in index.find(case=case, size=SIZE):
        groups.setdefault(entry.experiment, []).append(entry)
    for entries in sorted(groups.values(), key=lambda group: group[0].started, reverse=True):
        yield [record.summary(entry.folder) for entry in entries]


def own_kernels(runs: Sequence[Run], case: Case) -> bool:
    """Whether an experiment set the case's two kernels against each other, and no others."""
    arms = {(run.place.arm, run.kernel) for run in runs if run.place}
    return arms == {(Arm.BEFORE, case.before), (Arm.AFTER, case.after)}


def judge(runs: Sequence[Run]) -> Verdict | None:
    """The verdict of an experiment; None if boots broke, are missing or cannot be judged."""
    if any(run.error for run in runs):
        return None
    try:
        (judged,) = judging.verdicts(runs)
    except InputError:
        return None
    return None if analysis.unfinished(runs, judged) else judged


@cache
def todays_build(name: str) -> str:
    """The folder's name of a kernel that is built from today's files."""
    plan = kernel_build.make_plan(recipe.load(name), None, Deadline.after(KEY_SECONDS), fetch=False)
    return f"{name}-{plan.key}" if plan else ""


def current(runs: Sequence[Run]) -> bool:
    """Whether both kernels are as their files are today."""
    return all(Path(run.guest.spec.boot.kernel or "").parent.name == todays_build(run.kernel) for run in runs)


def choose(name: str, case: Case) -> tuple[list[Run], Verdict] | None:
    """The experiment that stands for a case, with its verdict."""
    complete = [
        (runs, judged)
        for runs in experiments(name)
        if own_kernels(runs, case) and (judged := judge(runs)) is not None
    ]
    return next((one for one in complete if current(one[0])), complete[0] if complete else None)


def notes(case: Case, run: Run, boots: tuple[int, int], *, kernels_today: bool) -> str:
    """What a reader should know of an experiment, given the case's file of today and the one it ran with."""
    assert run.place is not None
    told = []
    if not kernels_today:
        told.append("a kernel was built anew since")
    if run.inputs != runner.input_hashes(run.workload):
        told.append("the workload has changed since")
    if _asks(case, run.release) != _asks(run.place.case, run.release):
        told.append("the case has changed since")
    asked = case.sizes[SIZE].boots
    if min(boots) < asked:
        told.append(f"the case asks for {asked} boots")
    return "; ".join(told)


def effect(one: Finding) -> str:
    """A deciding finding: the metric, its effect with the interval, what is expected, the answer."""
    expected = one.expectation
    if one.ratio is None:
        size = "no ratio: 0 before"
    elif one.low is None and one.high is None:
        size = f"×{one.ratio:.3g}"
    else:
        low = "0" if one.low is None else f"{one.low:.3g}"
        high = "open" if one.high is None else f"{one.high:.3g}"
        size = f"×{one.ratio:.3g} ({low} to {high}, {percent(one.confidence)})"
    by = f" by {expected.by:g}" if expected.by > 1 else ""
    to = "" if expected.to is None else f", to {expected.to:g}"
    odds = " of the odds" if one.odds else ""
    return f"`{expected.metric}` {size}{odds}; {expected.direction}{by}{to}: {one.words}"


def row(name: str, case: Case, found: tuple[Verdict, Run, bool] | None) -> tuple[str, ...]:
    """A case's row. `found`: the verdict, its first boot, and whether its kernels are today's."""
    head = f"`{name}`<br>{case.source.partition(',')[0].replace('.txt', '')}"
    if found is None:
        return head, f"`{case.before}` → `{case.after}`", "-", "-", "no complete experiment is stored", "-"
    judged, run, kernels_today = found
    boots = "{} + {}".format(*judged.boots)
    day = f"{run.started[:4]}-{run.started[4:6]}-{run.started[6:8]}"
    return (
        head,
        f"`{judged.before}` → `{judged.after}`",
        f"{boots}, {judged.topology}, {accel_label(judged.accel, judged.clock)}, {day}",
        f"**{judged.words}**",
        "<br>".join(effect(one) for one in judged.findings if one.decides),
        notes(case, run, judged.boots, kernels_today=kernels_today) or "-",
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *rows))


def main() -> None:
    """Print the table, cases of one seed together."""
    rows = []
    cases = {name: catalog.case(name) for name in catalog.names("testcases")}
    for name, case in sorted(cases.items(), key=lambda item: (item[1].source.partition(",")[0], item[0])):
        chosen = choose(name, case)
        rows.append(row(name, case, (chosen[1], chosen[0][0], current(chosen[0])) if chosen else None))
    print(f"Made on {datetime.now(UTC):%Y-%m-%d} by `.venv/bin/python tools/seeds.py`:\n")
    print(markdown(rows))


def _asks(case: Case, release: str) -> list[dict[str, object]]:
    """What a case does at the quick size and what decides on a release; not its texts and its boots."""
    return [
        case.model_dump(mode="json", exclude={*analysis.DESCRIPTIVE, "sizes", "expect"}),
        case.sizes[SIZE].model_dump(mode="json", exclude={"source", "boots", "most_boots", "minutes"}),
        *(
            expected.model_dump(mode="json", exclude={"why"})
            for expected in case.expect
            if expected.decides and expected.applies(release)
        ),
    ]


if __name__ == "__main__":
    main()
