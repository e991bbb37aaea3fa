# SPDX-License-Identifier: GPL-2.0-only
"""The virtual clock: what runs beside a guest changes none of its counts, nor does counting its instructions, nor is a
slow disk any faster."""

from __future__ import annotations

import math
import re
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
from tests.vm.conftest import Command

METRICS = ("numa_pte_updates", "numa_hint_faults", "system")
SPREAD = math.log(1.15)
"""Boots of one kernel scatter by 1 to 3 % on this clock (benchmarks/clock.py). On the host's, a busy host took
them apart by a factor of 3."""


SLOW = """
description: a slow stick and a slow disk
vcpus: 2
memory: 512MiB
disks: [{name: stick, size: 1GiB, bus: usb, mibs_per_second: 12}, {name: data, size: 1GiB, mibs_per_second: 30}]
"""
WRITE = "(while :; do :; done) & dd if=/dev/zero of=$(echo /dev/disk/by-id/{link}) bs=1M count=32 oflag=direct 2>&1; kill $!"
"""While all CPUs of a guest are idle, its clock is the host's; so one is busy."""
FASTER = 1.25
"""A stick's speed is that of its requests (guest.slow_disks): 14 % above what its name says when this was written."""


@pytest.mark.minutes(20)
def test_company_changes_no_count(lab: Lab, deadline: Deadline) -> None:
    """One boot alone, whose instructions QEMU counts; then one with the same seed that it does not, and a run
    there beside a busy loop for each of the host's CPUs."""
    require_clock(lab, deadline)
    alone, folder = boot(lab, deadline, "idle", profile_hz=1)
    beside, _ = boot(lab, deadline, "busy")
    assert alone.guest.spec.seed == beside.guest.spec.seed
    for metric in METRICS:
        one, other = (metrics.value(run, metric, "touch") for run in (alone, beside))
        assert one
        assert other
        assert abs(math.log(one / other)) < SPREAD, f"{metric}: {one} alone, {other} beside busy loops"
    check_profile(alone, folder)


def test_company_makes_no_disk_faster(lab_py: Command, lab: Lab, deadline: Deadline, tmp_path: Path) -> None:
    """QEMU holds disks back by the host's clock: to this guest, whose clock a busy host slows down, they would be
    two or three times as fast. A host whose own disk is busy may make them slower."""
    require_clock(lab, deadline)
    shape = tmp_path / "slow.yml"
    shape.write_text(SLOW)
    made = lab_py("up", "-t", str(shape), "--name", "slow", "--kernel", "6.1", "--clock", "virtual")
    assert made.returncode == 0, made.stderr
    for kind in ("idle", "busy"):
        with load(kind), load(kind), load(kind):
            for bus, link, mibs in (("virtio", "virtio-data", 30), ("usb", "usb-*_stick-*", 12)):
                written = lab_py("exec", "slow", "--", "sh", "-c", WRITE.format(link=link))
                assert written.returncode == 0, written.stdout
                copied = re.search(r"copied, ([0-9.]+) s", written.stdout)
                assert copied, written.stdout
                speed = 32 / float(copied[1])
                assert speed < mibs * FASTER, f"{kind}: {bus} {speed} MiB/s, not {mibs}"


def require_clock(lab: Lab, deadline: Deadline) -> None:
    """Skip where QEMU is too old for the virtual clock; fail where it should have it."""
    kernel = image.require("debian12", deadline).file("vmlinuz")
    probe = accelerator.virtual_clock(kernel, deadline, lab.host.where)
    if tuple(map(int, accelerator.qemu_version(deadline).split(".")[:2])) < (8, 1):
        pytest.skip(probe.reason)
    assert probe.works, probe.reason


def check_profile(run: Run, folder: Path) -> None:
    """The instructions are those that the guest's clock went by, but for moments in which all CPUs were idle, and
    lie where this case's work is."""
    assert run.guest.spec.instructions
    (index,) = (number for number, phase in enumerate(run.phases) if phase.phase.name == "touch")
    stacks = record.profile(folder, index, "touch")
    executed = profile.samples(stacks) * run.guest.spec.instruction_seconds
    assert 0.8 < executed / run.phases[index].elapsed < 1.05
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


def boot(lab: Lab, deadline: Deadline, company: str, profile_hz: int = 0) -> tuple[Run, Path]:
    """A run of migratefail on 6.1, with seed 7, on a host that is kept busy or not ("busy", "idle"); and its
    folder."""
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
        with load(company):
            return runner.run(guest, plan.case.workload, plan.size, deadline, options)
