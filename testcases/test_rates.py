# SPDX-License-Identifier: GPL-2.0-only
"""The lab's own error rates: a planted regression must be detected, and no change must not be claimed.

Each test boots (before, before, after, after) in turn, so that each kernel has twice the default boots, and
compares each with itself. benchmarks/rates.py judges all splits of such boots. Long:
`pytest testcases --lab-rates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from numalab.analysis import error_rates, verdict
from numalab.cli import live
from numalab.core.process import Deadline
from numalab.experiment import run as experiment
from numalab.experiment.plan import make_plan
from numalab.model import catalog
from numalab.model.verdict import Answer, Finding
from numalab.pytest_plugin import CannotTell, Lab


@pytest.mark.rates
@pytest.mark.minutes(120)
@pytest.mark.parametrize("name", catalog.names("testcases"))
def test_before_passed_off_as_after_goes_red(
    name: str, lab: Lab, record_property: Callable[[str, object], None]
) -> None:
    case = catalog.case(name)
    plan = make_plan(
        name,
        lab.size,
        kernels=(case.before, case.before, case.after, case.after),
        accel=lab.config.getoption("--accel"),
    )
    rounds = plan.case_size.boots
    outcome = experiment.conduct(plan, lab.host, rounds, limit=Deadline.after, view=live.View(plan, rounds))
    record_property("experiment", outcome.experiment)
    made = next(error_rates.experiments(run for run, _ in outcome.runs), None)
    assert made, f"experiment {outcome.experiment} lacks boots, or nothing decides"
    unchanged, planted = (
        error_rates.findings(made.judged, *error_rates.halves(made.kernels[kernel]))
        for kernel in (case.after, case.before)
    )
    assert not error_rates.differ(unchanged), reasons(unchanged)
    answer = verdict.overall(planted)
    if answer is Answer.CANNOT_TELL:
        raise CannotTell(reasons(planted))
    assert answer is Answer.DOES_NOT_HOLD, reasons(planted)


def reasons(findings: Iterable[Finding]) -> str:
    """What was found of each metric."""
    return "\n".join(f"{found.expectation.metric}: {found.answer}: {found.reason}" for found in findings)
