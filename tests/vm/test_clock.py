# SPDX-License-Identifier: GPL-2.0-only
"""The virtual clock: what runs beside a guest changes none of its counts."""

from __future__ import annotations

import math

import pytest

from benchmarks.clock import load
from numalab.analysis import metrics
from numalab.core.process import Deadline
from numalab.experiment import run as experiment
from numalab.experiment.plan import make_plan, pin_builds
from numalab.host import accelerator, image
from numalab.measure import runner
from numalab.model.run import Run
from numalab.model.values import Clock, SizeClass
from numalab.pytest_plugin import Lab

METRICS = ("numa_pte_updates", "numa_hint_faults", "system")
SPREAD = math.log(1.15)
"""Boots of one kernel scatter by 1 to 3 % on this clock (benchmarks/clock.py). On the host's, a busy host took
them apart by a factor of 3."""


@pytest.mark.minutes(20)
def test_company_changes_no_count(lab: Lab, deadline: Deadline) -> None:
    """One boot alone; then one with the same seed, beside a busy loop for each of the host's CPUs."""
    kernel = image.require("debian12", deadline).file("vmlinuz")
    probe = accelerator.virtual_clock(kernel, deadline, lab.host.where)
    if not probe.works:
        pytest.skip(probe.reason)
    alone = boot(lab, deadline)
    with load("busy"):
        beside = boot(lab, deadline)
    assert alone.guest.spec.seed == beside.guest.spec.seed
    for metric in METRICS:
        one, other = (metrics.value(run, metric, "touch") for run in (alone, beside))
        assert one
        assert other
        assert abs(math.log(one / other)) < SPREAD, f"{metric}: {one} alone, {other} beside busy loops"


def boot(lab: Lab, deadline: Deadline) -> Run:
    """A run of migratefail on 6.1, with seed 7."""
    # The kernel after, twice: the one before would have to be built first.
    plan = make_plan("migratefail", SizeClass.QUICK, kernels=("6.1", "6.1"), clock=Clock.VIRTUAL)
    plan, _ = pin_builds(plan, deadline)
    with experiment.booted(plan, lab.host, plan.kernels[0], "company", deadline, seed=7) as (
        guest,
        _settings,
    ):
        return runner.run(guest, plan.case.workload, plan.size, deadline)[0]
