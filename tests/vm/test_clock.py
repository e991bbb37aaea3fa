# SPDX-License-Identifier: GPL-2.0-only
"""The virtual clock: what runs beside a guest changes none of its counts, nor does counting its instructions."""

from __future__ import annotations

import math
from pathlib import Path

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
from numalab.runs import profile, record

METRICS = ("numa_pte_updates", "numa_hint_faults", "system")
INSTRUCTION_SECONDS = 8e-9
"""What an instruction takes on this clock (domain.ICOUNT)."""
SPREAD = math.log(1.15)
"""Boots of one kernel scatter by 1 to 3 % on this clock (benchmarks/clock.py). On the host's, a busy host took
them apart by a factor of 3."""


@pytest.mark.minutes(20)
def test_company_changes_no_count(lab: Lab, deadline: Deadline) -> None:
    """One boot alone, whose instructions QEMU counts; then one with the same seed that it does not, beside a busy
    loop for each of the host's CPUs."""
    kernel = image.require("debian12", deadline).file("vmlinuz")
    probe = accelerator.virtual_clock(kernel, deadline, lab.host.where)
    if tuple(map(int, accelerator.qemu_version(deadline).split(".")[:2])) < (8, 1):
        pytest.skip(probe.reason)
    assert probe.works, probe.reason
    alone, folder = boot(lab, deadline, profile_hz=1)
    with load("busy"):
        beside, _ = boot(lab, deadline)
    assert alone.guest.spec.seed == beside.guest.spec.seed
    for metric in METRICS:
        one, other = (metrics.value(run, metric, "touch") for run in (alone, beside))
        assert one
        assert other
        assert abs(math.log(one / other)) < SPREAD, f"{metric}: {one} alone, {other} beside busy loops"
    check_profile(alone, folder)


def check_profile(run: Run, folder: Path) -> None:
    """The instructions are those that the guest's clock went by, but for moments in which all CPUs were idle, and
    lie where this case's work is."""
    assert run.guest.spec.instructions
    (index,) = (number for number, phase in enumerate(run.phases) if phase.phase.name == "touch")
    stacks = record.profile(folder, index, "touch")
    assert 0.8 < profile.samples(stacks) * INSTRUCTION_SECONDS / run.phases[index].elapsed < 1.05
    shares = {share.function: share.total for share in profile.shares(stacks)}
    assert shares["user"] > 0.2
    assert 0.2 < shares["kernel"] < 0.8
    assert 0 < shares["migrate_misplaced_page"] < shares["exc_page_fault"] < shares["kernel"]
    assert 0 < shares["task_numa_work"] < shares["kernel"]
    # Of several vCPUs none has another's callers.
    assert {
        stack[stack.index("change_protection") - 1] for stack in stacks if "change_protection" in stack
    } <= {
        "change_prot_numa",
        "mprotect_fixup",
    }
    every = profile.parse((record.phase_folder(folder, index, "touch") / record.PROFILE).read_text())
    assert not {name for stack in every if "default_idle_call" in stack for name in stack} & {
        "asm_exc_page_fault",
        "entry_SYSCALL_64_after_hwframe",
        "change_protection",
    }


def boot(lab: Lab, deadline: Deadline, profile_hz: int = 0) -> tuple[Run, Path]:
    """A run of migratefail on 6.1, with seed 7, and its folder."""
    # The kernel after, twice: the one before would have to be built first.
    plan = make_plan(
        "migratefail", SizeClass.QUICK, kernels=("6.1", "6.1"), clock=Clock.VIRTUAL, profile_hz=profile_hz
    )
    plan, _ = pin_builds(plan, deadline)
    with experiment.booted(plan, lab.host, plan.kernels[0], "company", deadline, seed=7) as (
        guest,
        _settings,
    ):
        options = runner.Options(profile_hz=profile_hz)
        return runner.run(guest, plan.case.workload, plan.size, deadline, options)
