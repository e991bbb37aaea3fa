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
    asked = make_plan(
        name,
        lab.size,
        kernels=(case.before, case.before, case.after, case.after),
        accel=lab.config.getoption("--accel"),
    )
    rounds = asked.case_size.boots
    outcome = experiment.conduct(asked, lab.host, rounds, limit=Deadline.after, view=live.View(asked, rounds))
    found = error_rates.of([run for run, _ in outcome.runs])
    record_property("experiment", outcome.experiment)
    assert found.green, text.verdict(found.unchanged)
    if found.planted.answer is Answer.CANNOT_TELL:
        raise CannotTell(text.verdict(found.planted))
    assert found.red, text.verdict(found.planted)
