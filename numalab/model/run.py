# SPDX-License-Identifier: GPL-2.0-only
"""What was measured: a Run and its phases. Values only; `record` keeps them on disk."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from numalab.model.case import Place
from numalab.model.guest import GuestRecord
from numalab.model.values import Accel, Phase, SizeClass, Stored, Value


class PhaseResult(Value):
    """What a phase did. Times in seconds; `counters` are differences by source (vmstat, node0.vmstat, trace,
    …)."""

    phase: Phase
    status: int
    elapsed: float
    user: float
    system: float
    counters: dict[str, dict[str, int]]
    output: dict[str, float] = Field(default_factory=dict)
    """What the workload told of itself: lines `numalab: NAME VALUE` on its standard output."""
    guest_load: float
    host_load: float
    """The load of the machine that runs the guest."""


class Run(Stored):
    """One workload on one fresh guest: where, on what, how it ended. Raw snapshots stand beside it."""

    id: str
    workload: str
    size: SizeClass
    params: dict[str, Any]
    started: str
    host: dict[str, str]
    """The machine that runs the guest; see machine.about."""
    guest: GuestRecord
    """Read by the present rules: one that is added to Topology must not refuse what guests have run on."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Files that the run depends on beside the guest's (which are in `guest`) -> their SHA-256."""
    release: str
    cmdline: str
    settings: dict[str, str] = Field(default_factory=dict)
    """Sysctls and knobs that were set and read back."""
    place: Place | None = None
    """The case and experiment that it belongs to; None for a workload run by itself."""
    phases: tuple[PhaseResult, ...] = ()
    console_warnings: tuple[str, ...] = ()
    error: str = ""
    """Why it broke; a run with an error is evidence, never a data point."""

    @property
    def kernel(self) -> str:
        """The name, in kernels/, of what its guest booted."""
        return self.guest.spec.boot.name

    @property
    def emulated(self) -> bool:
        """Whether its times tell nothing."""
        return self.guest.spec.accel is Accel.TCG

    @property
    def measured(self) -> list[PhaseResult]:
        """The phases that it is about, in their order."""
        return [result for result in self.phases if result.phase.measured]

    def phase(self, name: str) -> PhaseResult:
        """The result of a phase; KeyError when it did not run."""
        for result in self.phases:
            if result.phase.name == name:
                return result
        raise KeyError(name)
