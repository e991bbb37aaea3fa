# SPDX-License-Identifier: GPL-2.0-only
"""Verdicts of an experiment's runs with what the state directory knows beside them: the calibration of their
site, the kernels' configurations, other experiments of the case.

Needs no guest. Not here: how runs are judged (analysis.verdict), booting them (run).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from numalab.analysis import calibration, verdict
from numalab.core import state
from numalab.core.errors import InputError, LabError
from numalab.kernel import kconfig
from numalab.model.case import Arm
from numalab.model.run import CONFIGURATION, Run
from numalab.model.verdict import Answer, Verdict
from numalab.runs import index as run_index
from numalab.runs import record

UNCONFIRMED = (
    "not confirmed: one experiment in 40 denies an effect that is there: run the case again before you"
    " report it"
)


def verdicts(runs: Sequence[Run], *, force: bool = False) -> tuple[Verdict, ...]:
    """A verdict for each kernel but the first. The runs are one experiment's. Raises InputError."""
    before = [run for run in runs if run.place and run.place.arm is Arm.BEFORE]
    after = [run for run in runs if run.place and run.place.arm is Arm.AFTER]
    # A calibration is one host's.
    known = calibration.load(calibration.site(runs[0])) if after and not verdict.hosts(runs) else None
    names = dict.fromkeys(run.kernel for run in after)
    configurations = _configurations(runs)
    judged = [
        verdict.verdict(
            [*before, *(run for run in after if run.kernel == name)],
            calibration=known,
            configurations=configurations,
            force=force,
        )
        for name in names
    ]
    return tuple(_doubted(one, verdict.unfinished(runs, one)) for one in judged)


def _configurations(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """The kernels' configurations, by their digest, from the runs' folders; empty when all are the same."""
    folders: dict[str, list[Path]] = {}
    for run in runs:
        if digest := run.kernel_facts.get(CONFIGURATION):
            folders.setdefault(digest, []).append(state.folder("runs") / run.id)
    if len(folders) < 2:
        return {}
    options_of: dict[str, dict[str, str]] = {}
    for digest, places in folders.items():
        for place in places:
            with suppress(OSError):  # a run that was given by a path, or whose folder is gone
                options = kconfig.in_force((place / record.KERNEL_CONFIG).read_text(errors="replace"))
                if kconfig.digest(options) == digest:
                    options_of[digest] = options
                    break
    return options_of


def _doubted(judged: Verdict, doubts: Sequence[str]) -> Verdict:
    return judged.model_copy(update={"doubts": (*judged.doubts, *doubts)})


def both_sides(runs: Sequence[Run], *, several: bool) -> bool:
    """Whether runs have both arms. On one of several hypervisors broken runs alone are no side."""
    return {run.place.arm for run in runs if run.place and not (run.error and several)} == set(Arm)


def among_others(judged: Verdict, runs: Sequence[Run]) -> Verdict:
    """The verdict, with a doubt when there are more experiments of the same case, machine and kernels, and
    one when no other of them denies the effect as well by boots: experiments from the same ready states share
    theirs.

    Somebody who repeats an experiment until it fits gets a verdict that holds, but with a larger error than
    the one stated. One that denies an effect that is there comes of one experiment in 40, so of a matrix of
    twelve cases in every fourth: that is confirmed by a fresh experiment before anybody is told.
    """
    try:
        others = _others(judged, runs)
    except LabError as error:
        return _doubted(judged, [f"whether it was repeated is not known: {error}"])
    counts = Counter(other.answer for other in others)
    confirmed = any(other.answer is Answer.DOES_NOT_HOLD and other.booted for other in others)
    if judged.answer is Answer.DOES_NOT_HOLD and not confirmed:
        judged = _doubted(judged, [UNCONFIRMED])
    if not others:
        return judged
    begun, count = min(run.started for run in runs), len(others)
    answers = ", ".join(f"{answer}: {number}" for answer, number in sorted(counts.items()))
    return _doubted(
        judged,
        [
            (
                f"repeated: {count} other experiment{'s' * (count > 1)} of this case, size, topology, machine"
                f" and kernels {'are' if count > 1 else 'is'} here,"
                f" {sum(other.started < begun for other in others)} earlier; {answers}"
            ),
        ],
    )


class _Other(NamedTuple):
    """Another experiment like the judged one."""

    started: str
    answer: str
    booted: bool
    """Whether its guests booted, and began from no ready states."""


def _others(judged: Verdict, runs: Sequence[Run]) -> list[_Other]:
    """Every other experiment like the judged one, even with boots of one kernel only."""
    own, machines = {run.place.experiment for run in runs if run.place}, _machines(runs)
    experiments: dict[str, list[run_index.Entry]] = {}
    for entry in run_index.find(
        case=judged.case_name,
        size=judged.size,
        topology=judged.topology,
        accel=judged.accel,
        clock=judged.clock,
    ):
        if entry.experiment not in own:
            experiments.setdefault(entry.experiment, []).append(entry)
    others = []
    for entries in experiments.values():
        before = {entry.kernel for entry in entries if entry.arm == Arm.BEFORE}
        after = {entry.kernel for entry in entries if entry.arm == Arm.AFTER}
        if before <= {judged.before} and (judged.after in after or not after):
            boots = [
                record.summary(entry.folder)
                for entry in entries
                if entry.arm == Arm.BEFORE or entry.kernel == judged.after
            ]
            if _machines(boots) == machines:
                booted = not any(run.guest.ready_state for run in boots)
                others.append(_Other(boots[0].started, _answer(boots), booted))
    return others


def _machines(runs: Sequence[Run]) -> set[str | None]:
    """The names of an experiment's machines: one, unless it was spread over several."""
    return {run.host.get("machine") for run in (runs if verdict.hosts(runs) else runs[:1])}


def _answer(runs: Sequence[Run]) -> str:
    try:
        return verdict.verdict(runs).answer
    except InputError:
        return "no verdict"
