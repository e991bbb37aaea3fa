# SPDX-License-Identifier: GPL-2.0-only
"""A case as values: what testcases/NAME.yml says, and where a run belongs.

A case is a workload on a machine, under a kernel "before" and one "after", and what is expected of the
counters. Not here: reading the file (catalog), running it (experiment), judging it (analysis.verdict), what
is concluded (verdict).
"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from numalab.model.topology import Disk
from numalab.model.units import Size
from numalab.model.values import Clock, Line, Name, SizeClass, Value

PhasePattern = Annotated[str, Field(pattern=r"^[a-z0-9*?][a-z0-9*?-]{0,39}$")]
Word = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_][a-zA-Z0-9_./:-]*$")]
SettingName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_][a-zA-Z0-9_./-]*$")]
Setting = Annotated[str, Field(pattern=r"^[^\n'\"\\]*$")]
"""Name and value of a sysctl or a knob, as the tuning role can set them and read them back."""


class Direction(StrEnum):
    """Whether a metric falls or rises from "before" to "after"."""

    FALLS = "falls"
    RISES = "rises"


class Cost(StrEnum):
    """What a time is spent on; it decides whether a virtual clock, which counts instructions, can tell."""

    WORK = "work"
    """Instructions: scanning, faulting, reclaiming. A virtual clock counts them."""
    LOCALITY = "locality"
    """Caches, TLB misses, the way to another node's memory. On a virtual clock every instruction costs the
    same."""
    WAITING = "waiting"
    """Waits for a disk, a lock or another CPU. The CPUs of a guest with a virtual clock run one at a time."""


LEAST_TIME = 1.02
"""The least factor asked of a time. Where code and data come to lie moves a time by some per cent without any
change of the source (Mytkowicz and others, ASPLOS 2009), and each kernel here is one build, whose boots all
share it: a smaller difference, however sure, is that of two binaries. Chosen, not measured."""


class Expectation(Value):
    """What "after" does to one metric. See metrics.value for what a metric can be.

    The effect is there when the ratio of the two kernels' values is at least `by` in the direction given
    (falls by 2: after is half of before, or less). Of a percentage (metrics.Kind.SHARE) it is the ratio of
    the odds, p / (100 - p): from 70 to 91 they rise by 4.3. With `to`, "after" must also be at most `to`
    (falls) or at least `to` (rises) in every boot: for counters that are exactly 0 on one side. A boot that
    misses it leaves the answer open; too large a share of them denies it (expectation.MISSES).
    """

    metric: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]+$")]
    phase: PhasePattern
    """A phase's name, or a pattern (repair-*): counters and times are summed over the phases that match."""
    direction: Direction
    by: Annotated[float, Field(ge=1)] = 1.0
    to: float | None = None
    releases: Annotated[str, Field(pattern=r"^[0-9a-z.*?|-]+$")] = "*"
    """Kernels that show the effect, by uname -r (4.*|3.*). On others it is shown, but decides nothing."""
    cost: Cost | None = None
    """What a time is spent on; None for what is no time. On a virtual clock times of work alone decide."""
    decides: bool = True
    """False: measured and shown beside the published number, but not part of the verdict."""
    why: Line = ""

    @property
    def asked(self) -> float:
        """The factor that is asked for: `by`, of a time LEAST_TIME at least."""
        return max(self.by, LEAST_TIME) if self.cost else self.by

    def applies(self, release: str) -> bool:
        """Whether a kernel of that release is expected to show the effect."""
        return any(fnmatchcase(release, pattern) for pattern in self.releases.split("|"))


class Machine(Value):
    """A topology and its scaling; None keeps the topology's own memory and vCPUs."""

    topology: Annotated[str, Field(min_length=1)]
    memory: Size | None = None
    vcpus: Annotated[int, Field(ge=1)] | None = None


class CaseSize(Value):
    """One size of a case: whatever differs between two emulated cores and the seed's machine."""

    source: Line
    """Where these parameters are from: the seed's message, or what was measured."""
    machines: Annotated[tuple[Machine, ...], Field(min_length=1)]
    """The first runs by default."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the workload that override its defaults for this size."""
    sysctls: dict[SettingName, Setting] = Field(default_factory=dict)
    instead: dict[SettingName, dict[SettingName, Setting]] = Field(default_factory=dict)
    """A name in `sysctls` -> what is set instead where the kernel lacks it."""
    knobs: dict[SettingName, Setting] = Field(default_factory=dict)
    """Settings of NUMA balancing: scan_delay_ms, scan_period_min_ms, scan_period_max_ms, scan_size_mb."""
    boots: Annotated[int, Field(ge=3)] = 3
    """Fresh boots of each kernel by default."""
    most_boots: Annotated[int, Field(ge=3)] = 8
    """The most boots of each kernel with --boots auto."""
    minutes: Annotated[float, Field(gt=0)]
    """Time limit of one boot, from `up` to `down`; exceeding it is an error."""

    @model_validator(mode="after")
    def _lacking(self) -> Self:
        if unknown := sorted(self.instead.keys() - self.sysctls.keys()):
            raise ValueError(f"instead: {unknown[0]} is none of this size's sysctls")
        return self


class Case(Value):
    """testcases/NAME.yml."""

    description: Line
    source: Line
    """The seed, and the message in it."""
    published: tuple[Name, ...] = ()
    """Tables of reference/ that this case reproduces."""
    workload: Name
    before: Name
    after: Name
    also: tuple[Name, ...] = ()
    """More kernels that are worth comparing (lab.py run CASE --kernels …)."""
    disks: tuple[Disk, ...] = ()
    """Added to the topology's disks; one of the same name replaces the topology's."""
    append: str = ""
    """Words added to the kernel command line."""
    tracepoints: tuple[Word, ...] = ()
    """Counted in each phase: system:event, as in migrate:mm_migrate_pages."""
    clock: Clock | None = None
    """The clock of boots for which nobody names one; None: virtual where an emulated guest can have it. The
    host's where something of the host's decides, such as a disk without a speed of its own."""
    sizes: dict[SizeClass, CaseSize]
    expect: Annotated[tuple[Expectation, ...], Field(min_length=1)]
    notes: str = ""
    """What today's kernels, or emulation, do not show, and why the case has its expectations."""


class Arm(StrEnum):
    """The side of an experiment that a boot belongs to. A against A is a calibration."""

    BEFORE = "before"
    AFTER = "after"


class Place(Value):
    """The experiment and case of a run, kept in the run so that it can be judged without its checkout."""

    case_name: str
    case: Case
    experiment: str
    """Name of the experiment, shared by all its boots."""
    arm: Arm
    boot: int
    """The boot's number in the experiment, from 0."""
    looks: Annotated[int, Field(ge=1)] = 1
    """How often the experiment may be judged (--boots auto); these looks share the allowed error."""
    planned: Annotated[int, Field(ge=1)] | None = None
    """Boots of all kernels together that were planned when this one began; --boots auto plans from look to
    look. None in runs from before this was recorded."""
    seed: int | None = None
    """The experiment's, from which each boot's is made (GuestSpec.seed). None in runs from before."""
    side_by_side: Annotated[int, Field(ge=1)] = 1
    """How many guests of the experiment could run at a time; fewer did where others had the CPUs."""
    block: str = ""
    """The pool's name of the host that ran it, where the experiment was spread over several, as was asked
    for: a block in the statistics. '' otherwise."""
    build: Annotated[int, Field(ge=0)] = 0
    """Which of several builds of its kernel it booted, from 1; they differ in layout only. 0 of one build."""
    instead_of: str = ""
    """The id of this boot's first run, if the host was busy in that one (verdict.busy) and the boot was taken
    again; that run has an error."""
