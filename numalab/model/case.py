# SPDX-License-Identifier: GPL-2.0-only
"""A case and what is concluded from it: values only, frozen, as a person wrote them or the judge found them.

testcases/NAME.yml is a Case: a workload on a machine, under a kernel "before" and one "after", and what is
expected of the counters. Loaded by `catalog.case`, run by `experiment`, judged by `judge`.
"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import Field

from numalab.model.topology import Disk
from numalab.model.units import Size
from numalab.model.values import Line, Name, SizeClass, Value

PhasePattern = Annotated[str, Field(pattern=r"^[a-z0-9*?][a-z0-9*?-]{0,39}$")]
Word = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_][a-zA-Z0-9_./:-]*$")]
SettingName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_][a-zA-Z0-9_./-]*$")]
Setting = Annotated[str, Field(pattern=r"^[^\n'\"\\]*$")]
"""Name and value of a sysctl or a knob, as the tuning role can set and read them back."""


class Direction(StrEnum):
    """Where a metric goes from "before" to "after"."""

    FALLS = "falls"
    RISES = "rises"


class Expectation(Value):
    """What "after" does to one metric. See metrics.value for what a metric can be.

    The effect is there when the ratio of the two kernels' values is at least `by` in the direction given
    (falls by 2: after is half of before, or less). With `to`, "after" must also be at most `to` (falls) or
    at least `to` (rises) in every boot: for counters that are exactly 0 on one side.
    """

    metric: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]+$")]
    phase: PhasePattern
    """A phase's name, or a pattern (repair-*) over whose phases counters and times are added up."""
    direction: Direction
    by: Annotated[float, Field(ge=1)] = 1.0
    to: float | None = None
    releases: Annotated[str, Field(pattern=r"^[0-9a-z.*?|-]+$")] = "*"
    """Kernels that show the effect, by uname -r (4.*|3.*): elsewhere it is told, and decides nothing."""
    decides: bool = True
    """False: measured and shown beside the published number, but no part of the verdict."""
    why: Line = ""

    def applies(self, release: str) -> bool:
        """Whether this effect is to be seen on a kernel of that release."""
        return any(fnmatchcase(release, pattern) for pattern in self.releases.split("|"))


class Machine(Value):
    """A topology, scaled; None keeps the topology's own."""

    topology: Annotated[str, Field(min_length=1)]
    memory: Size | None = None
    vcpus: Annotated[int, Field(ge=1)] | None = None


class CaseSize(Value):
    """One size of a case: everything that differs between two emulated cores and the seed's machine."""

    source: Line
    """Where these parameters are from: the seed's message, or what was measured."""
    machines: Annotated[tuple[Machine, ...], Field(min_length=1)]
    """The first is what runs when nobody chooses."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the workload, over its own defaults for this size."""
    sysctls: dict[SettingName, Setting] = Field(default_factory=dict)
    knobs: dict[SettingName, Setting] = Field(default_factory=dict)
    """Settings of NUMA balancing: scan_delay_ms, scan_period_min_ms, scan_period_max_ms, scan_size_mb."""
    boots: Annotated[int, Field(ge=3)] = 3
    """Fresh boots of each kernel when nobody says."""
    most_boots: Annotated[int, Field(ge=3)] = 8
    """Where --boots auto gives up."""
    minutes: Annotated[float, Field(gt=0)]
    """What one boot may take, from `up` to `down`; longer is an error."""


class Case(Value):
    """testcases/NAME.yml."""

    description: Line
    source: Line
    """The seed, and the message in it."""
    published: tuple[Name, ...] = ()
    """Tables of reference/ that this case mirrors."""
    workload: Name
    before: Name
    after: Name
    also: tuple[Name, ...] = ()
    """Further kernels that are worth comparing (lab.py run CASE --kernels …)."""
    disks: tuple[Disk, ...] = ()
    """Beside the topology's own; one of the same name replaces it."""
    append: str = ""
    """Further words on the kernel's command line."""
    tracepoints: tuple[Word, ...] = ()
    """Counted in each phase: system:event, as in migrate:mm_migrate_pages."""
    sizes: dict[SizeClass, CaseSize]
    expect: Annotated[tuple[Expectation, ...], Field(min_length=1)]
    notes: str = ""
    """What today's kernels, or emulation, do not show, and why the case judges as it does."""


class Arm(StrEnum):
    """Which side of an experiment a boot belongs to; A against A is a calibration."""

    BEFORE = "before"
    AFTER = "after"


class Place(Value):
    """Where a run belongs: kept in the run, so that it can be judged without the checkout that made it."""

    case_name: str
    case: Case
    experiment: str
    """Shared by all boots of one experiment."""
    arm: Arm
    boot: int
    """From 0, in the order in which the experiment's guests were booted."""
    looks: Annotated[int, Field(ge=1)] = 1
    """How often the experiment may be judged before it ends (--boots auto): its chances of an error are
    shared out over these."""
    planned: Annotated[int, Field(ge=1)] | None = None
    """Boots of all kernels together that the experiment was to have when this one began; --boots auto plans
    from look to look. None in runs of before this was kept."""
