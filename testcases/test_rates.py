# SPDX-License-Identifier: GPL-2.0-only
"""The lab's own error rates: a planted regression must be detected, and no change must not be claimed.

Each test boots (before, before, after, after) in turn; benchmarks/rates.py prints the results of all such
experiments. Long: `pytest testcases --rates`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from numalab.analysis import error_rates
from numalab.cli import live
from numalab.core.process import Deadline
from numalab.experiment import run as experiment
from numalab.experiment.plan import make_plan
from numalab.model import catalog
from numalab.model.verdict import Answer
from numalab.pytest_plugin import CannotTell, Lab
from numalab.report import text


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
    rates = error_rates.of([run for run, _ in outcome.runs])
    record_property("experiment", outcome.experiment)
    assert rates.green, text.verdict(rates.unchanged)
    if rates.planted.answer is Answer.CANNOT_TELL:
        raise CannotTell(text.verdict(rates.planted))
    assert rates.red, text.verdict(rates.planted)
