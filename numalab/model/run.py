# SPDX-License-Identifier: GPL-2.0-only
"""What was measured: a Run and the results of its phases. Values only; runs.record reads and writes them."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from numalab.model.case import Place
from numalab.model.guest import GuestRecord
from numalab.model.values import Accel, Clock, Phase, SizeClass, Stored, Value

CONFIGURATION = "configuration"
"""The key of Run.kernel_facts that has the SHA-256 of the kernel's options (kconfig.in_force); the text is in
the run's folder."""

SHUFFLED = "free pages shuffled"
"""The key of Run.kernel_facts that is Y where the kernel shuffled its lists of free pages at boot."""


class Memory(Value):
    """What a guest's memory was made of at one moment, in base pages."""

    anonymous: int
    """Anonymous pages, those of huge pages too."""
    huge: int
    """The anonymous pages that were parts of transparent huge pages."""


INSTRUCTIONS = "instructions"
"""What a profile counts on the virtual clock, where QEMU can (PhaseResult.profiled)."""


class PhaseResult(Value):
    """A phase's result. Times in seconds; `counters`: differences by source (vmstat, node0.vmstat, …)."""

    phase: Phase
    status: int
    elapsed: float
    user: float
    system: float
    counters: dict[str, dict[str, int]]
    output: dict[str, float] = Field(default_factory=dict)
    """The workload's own numbers: lines `numalab: NAME VALUE` on its standard output."""
    memory: Memory | None = None
    """When the guest had the most anonymous memory, by the phase's samples and edges; None where /proc/vmstat
    does not tell, and in older runs that are read without their folder."""
    guest_load: float
    host_load: float
    """The load of the machine that runs the guest."""
    host_others: float | None = None
    """The share of that machine's processor time, 0 to 1, that everything but the guest's QEMU took during
    the phase; None in older runs."""
    host_kept: float | None = None
    """The share of the processor time that the guest's vCPUs asked for, 0 to 1, which other programs took;
    None in older runs and where guests run on another machine."""
    profiled: str = ""
    """What the phase's profile counts: instructions, or samples by cycles or cpu-clock; '' without one, and
    in older runs (cpu-clock)."""


class Run(Stored):
    """One workload on one fresh guest: where, on what, how it ended. Raw snapshots are kept beside it."""

    id: str
    workload: str
    size: SizeClass
    params: dict[str, Any]
    started: str
    host: dict[str, str]
    """Facts about the machine that runs the guest; see machine.read_facts."""
    guest: GuestRecord
    inputs: dict[str, str] = Field(default_factory=dict)
    """File name -> SHA-256 of what the run depends on, beside the guest's files (which are in `guest`)."""
    release: str
    cmdline: str
    kernel_facts: dict[str, str] = Field(default_factory=dict)
    """Compiler, linker, preemption model, configuration, THP, NUMA balancing, init and SHUFFLED, as the
    guest's kernel tells them; empty in older runs."""
    kernel_address: str = ""
    """The address of _text in hexadecimal, which KASLR chooses anew in each boot; '' where the guest does not
    tell, and in older runs."""
    settings: dict[str, str] = Field(default_factory=dict)
    """Sysctls and knobs, set and read back."""
    place: Place | None = None
    """The case and experiment of the run; None for a workload that was run by itself."""
    phases: tuple[PhaseResult, ...] = ()
    prepared: tuple[str, ...] = ()
    """The workload's first phases, by name, that another guest had done on the disks on which this one began
    (GuestRecord.prepared): they are no part of this run."""
    console_warnings: tuple[str, ...] = ()
    host_seconds: float | None = None
    """What a boot of a case took on the host's clock, from before its guest was made until its last phase had
    ended: what the case's `minutes` limit. None for other runs, and older ones."""
    error: str = ""
    """Why the run broke. A run with an error is evidence, never a data point."""

    @property
    def kernel(self) -> str:
        """The kernel's name in kernels/."""
        return self.guest.spec.boot.name

    @property
    def emulated(self) -> bool:
        """Whether the guest was emulated, so that its times mean nothing."""
        return self.guest.spec.accel is Accel.TCG

    @property
    def virtual(self) -> bool:
        """Whether the guest's clock counted instructions (see values.Clock)."""
        return self.guest.spec.clock is Clock.VIRTUAL

    @property
    def measured(self) -> list[PhaseResult]:
        """The measured phases, in order."""
        return [result for result in self.phases if result.phase.measured]

    @property
    def host_others(self) -> float | None:
        """The most that others took of the host in a measured phase; None where no phase recorded it."""
        shares = [result.host_others for result in self.measured if result.host_others is not None]
        return max(shares, default=None)

    def phase(self, name: str) -> PhaseResult:
        """The result of a phase; KeyError when it did not run."""
        for result in self.phases:
            if result.phase.name == name:
                return result
        raise KeyError(name)
