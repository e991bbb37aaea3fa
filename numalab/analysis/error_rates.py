# SPDX-License-Identifier: GPL-2.0-only
"""Verdicts on boots whose truth is known: a planted regression must be detected, and no change must not be
claimed.

An experiment over the kernels (before, before, after, after) contains all three truths. Judged here; booted
by testcases/test_rates.py, counted by benchmarks/rates.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numalab.analysis import verdict
from numalab.core.errors import InputError
from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.model.verdict import CONFIDENCE, Answer, Verdict


def sides(runs: Sequence[Run], kernels: int) -> list[list[Run]]:
    """An experiment's runs by the index of their kernel in it (Place.kernel).

    The same kernel may be there several times. InputError for a run that belongs to no experiment.
    """
    by_position: list[list[Run]] = [[] for _ in range(kernels)]
    for run in runs:
        if run.place is None:
            raise InputError(f"run {run.id} belongs to no experiment")
        turn, position = divmod(run.place.boot, kernels)
        earlier = position if turn % 2 == 0 else kernels - 1 - position
        by_position[earlier if run.place.kernel is None else run.place.kernel].append(run)
    return by_position


def against(before: Sequence[Run], after: Sequence[Run]) -> list[Run]:
    """Runs with new arms: to pass one kernel off as the other, or to compare it with itself."""
    return [
        run.model_copy(update={"place": run.place.model_copy(update={"arm": arm})})
        for arm, side in ((Arm.BEFORE, before), (Arm.AFTER, after))
        for run in side
        if run.place
    ]


@dataclass(frozen=True)
class Trial:
    """The verdicts on boots of the kernels before, before, after, after."""

    effect: Verdict
    """Before against after, with the boots of both halves, twice as many as below: there is an effect."""
    planted: Verdict
    """Before in place of after: the expectation must not hold."""
    unchanged: Verdict
    """After against itself."""

    @property
    def red(self) -> bool:
        """Whether the planted regression was detected."""
        return self.planted.answer is Answer.DOES_NOT_HOLD

    @property
    def green(self) -> bool:
        """Whether no change is claimed between equal kernels."""
        return all(finding.q is None or finding.q > 1 - CONFIDENCE for finding in self.unchanged.findings)


def of(runs: Sequence[Run]) -> Trial:
    """The three verdicts of an experiment over (before, before, after, after)."""
    before, passed_off, after, again = sides(runs, 4)
    return Trial(
        verdict.verdict(against([*before, *passed_off], [*after, *again])),
        verdict.verdict(against(before, passed_off)),
        verdict.verdict(against(after, again)),
    )
