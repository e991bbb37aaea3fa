# SPDX-License-Identifier: GPL-2.0-only
"""Runs without boots: a kernel, an arm, phases with the numbers that a test needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numalab.model.case import Arm, Case, CaseSize, Direction, Expectation, Machine, Place
from numalab.model.guest import Boot, PreparedDisks
from numalab.model.run import PhaseResult, Run
from numalab.model.values import Accel, Phase, SizeClass
from tests.unit.makers import record_of, spec

CASE = Case(
    description="what failed migrations do to the scanner",
    source="slowscan-lkml-2015.txt, March 7",
    published=("slowscan-xfsrepair",),
    workload="xfsrepair",
    before="6.1-slowscan-before",
    after="6.1",
    expect=(Expectation(metric="numa_pte_updates", phase="repair-*", direction=Direction.FALLS, by=1.5),),
    sizes={SizeClass.QUICK: CaseSize(source="ours", machines=(Machine(topology="4socket"),), minutes=3)},
)


def phase(
    name: str,
    *,
    elapsed: float = 10.0,
    system: float = 2.0,
    user: float = 5.0,
    vmstat: Mapping[str, int] | None = None,
    output: Mapping[str, float] | None = None,
    measured: bool = True,
) -> PhaseResult:
    """A phase that ended well."""
    return PhaseResult(
        phase=Phase(name=name, command="true", limit_seconds=60, measured=measured),
        status=0,
        elapsed=elapsed,
        user=user,
        system=system,
        counters={"vmstat": dict(vmstat or {})},
        output=dict(output or {}),
        guest_load=0,
        host_load=0,
    )


def run(
    kernel: str,
    *phases: PhaseResult,
    boot: int = 0,
    arm: Arm | None = None,
    topology: str = "4socket",
    accel: Accel = Accel.TCG,
    experiment: str = "20261121T120000-xfsrepair",
    case_name: str = "xfsrepair",
    case: Case = CASE,
    **changes: Any,
) -> Run:
    """A run of `kernel`; with an arm it belongs to an experiment of `case`."""
    place = Place(case_name=case_name, case=case, experiment=experiment, arm=arm, boot=boot) if arm else None
    made = Run(
        id=f"20261121T1200{boot:02}-xfsrepair-{topology}-{kernel}-{boot}",
        workload="xfsrepair",
        size=SizeClass.QUICK,
        params={"files": 1000},
        started=f"20261121T1200{boot:02}",
        host={"machine": "vm", "cpu": "EPYC", "cpus": "2"},
        guest=record_of(spec(topology, accel=accel, boot=Boot(name=kernel))),
        release=f"{kernel}-numalab",
        cmdline="quiet",
        place=place,
        phases=phases,
    )
    return made.model_copy(update=changes)


def disks_of(key: str, kernel: str = "6.1") -> PreparedDisks:
    """Prepared disks on which a file system has been made, and filled."""
    return PreparedDisks(
        key=key,
        directory=f"/lab/disks/{key}",
        workload="xfsrepair",
        phases=("mkfs", "fsmark", "umount"),
        kernel=kernel,
        release=f"{kernel}-numalab",
        image="debian12",
        image_id="0" * 16,
        disks=(),
        seconds=60,
        made="20261125T010000",
    )
