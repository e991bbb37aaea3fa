# SPDX-License-Identifier: GPL-2.0-only
"""How much boots of one kernel differ by themselves: A against A, kept by case, size, machine and
accelerator.

A threshold (`by`) that A against A exceeds by chance is no threshold. So a case's thresholds are compared
with its calibration before it is judged. Not here: the boots themselves (experiment), what a verdict does
with it (verdict).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field

from numalab.analysis import effect, metrics
from numalab.analysis.metrics import Kind
from numalab.core import state
from numalab.core.errors import InputError
from numalab.model.case import Case, Expectation
from numalab.model.run import Run
from numalab.model.topology import Topology
from numalab.model.values import Accel, Clock, SizeClass, Stored, Value, first_line, jsonable
from numalab.model.verdict import CONFIDENCE
from numalab.runs import compatibility

PARTS = ("workload", "disks", "append")
"""The parts of a case that affect the spread of its boots, besides what differs by size."""
SIZE_PARTS = ("params", "sysctls", "knobs")


LATER: dict[str, object] = {
    "machine_id": "",
    "clock": Clock.HOST,
    "icount_shift": 3,
    "ready": False,
    "prepared": False,
    "huge_page": None,
}
"""Facts of a site that older calibrations lack, and what they then were."""


class Site(Value):
    """What a calibration is valid for: another case, size, topology, accelerator or host has its own."""

    case_name: str
    size: SizeClass
    recipe: dict[str, Any]
    """PARTS of the case and SIZE_PARTS of its size: a case edited there is another site."""
    shape: dict[str, Any]
    """The topology as it ran, scaled, without its description."""
    accel: str
    clock: Clock = Clock.HOST
    icount_shift: int = 3
    """See GuestSpec."""
    machine: str
    """The name of the machine that runs the guests."""
    machine_id: str = ""
    """Tells machines of one name apart; '' for older runs, which lack it."""
    ready: bool = False
    """Whether guests began from ready states, which scatter less than boots."""
    prepared: bool = False
    """Whether they began on prepared disks."""
    huge_page: int | None = None
    """The size of the host's huge pages that were their memory, in bytes; None: ordinary pages."""

    def older(self) -> Site:
        """The same site, as an older lab recorded it."""
        return self.model_copy(update={"machine_id": ""})

    def file(self) -> Path:
        """The file of its calibration."""
        facts = {
            key: value for key, value in jsonable(self).items() if key not in LATER or value != LATER[key]
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
        return state.folder("calibration") / f"{self.case_name}-{self.size}-{digest}.json"


class Spread(Value):
    """The spread of one metric over boots of one kernel."""

    metric: str
    phase: str
    boots: int
    mean: float
    """The mean of the values, in the metric's unit."""
    sd: float = Field(ge=0)
    """The standard deviation of the values' logarithms (for zeros see effect.shift): 0.1 is about 10 %."""
    odds: bool = False
    """Whether these are the logarithms of a percentage's odds. They were its own before it was judged so."""

    def limit(self, boots: int) -> float:
        """The factor by which two groups of this many boots of one kernel differ in at most 1 of 20 cases.

        The difference of two means of n logs has the standard error sd √(2/n); sd is known with boots - 1
        degrees of freedom (Student's t).
        """
        quantile = effect.quantile((1 + CONFIDENCE) / 2, self.boots - 1)
        return math.exp(min(quantile * self.sd * math.sqrt(2 / boots), math.log(effect.MOST_EFFECT)))


class Calibration(Stored):
    """Boots of one kernel at one site."""

    site: Site
    kernel: str
    runs: tuple[str, ...]
    made: str
    spreads: tuple[Spread, ...]

    def spread(self, expectation: Expectation) -> Spread | None:
        """The spread of an expectation's metric; None when too few boots have a value, or when an older lab
        measured that of a percentage itself.
        """
        odds = metrics.kind(expectation.metric) is Kind.SHARE
        return next(
            (
                spread
                for spread in self.spreads
                if (spread.metric, spread.phase, spread.odds) == (expectation.metric, expectation.phase, odds)
            ),
            None,
        )


def site(run: Run) -> Site:
    """The site of a run. InputError for a run that belongs to no case."""
    if run.place is None:
        raise InputError(f"run {run.id} belongs to no case, and cannot calibrate one")
    spec = run.guest.spec
    here = plan(
        run.place.case_name, run.place.case, run.size, spec.topology, spec.accel, run.host.get("machine", "")
    )
    later = {
        "machine_id": run.host.get("machine id", ""),
        "clock": spec.clock,
        "icount_shift": spec.icount_shift,
        "ready": bool(run.guest.ready_state),
        "prepared": bool(run.prepared),
        "huge_page": spec.huge_page,
    }
    return here.model_copy(update=later)


def plan(name: str, case: Case, size: SizeClass, topology: Topology, accel: Accel, machine: str) -> Site:
    """The site of future runs: `topology` scaled, `machine` the name of the machine that runs the guests."""
    known, here = jsonable(case), jsonable(case.sizes[size])
    recipe = {key: known[key] for key in PARTS} | {key: here[key] for key in SIZE_PARTS}
    if here["instead"]:
        recipe["instead"] = here["instead"]  # others keep the file that they had before there was any
    return Site(
        case_name=name,
        size=size,
        recipe=recipe,
        accel=accel.value,
        machine=machine,
        shape=compatibility.shape(topology),
    )


def of(runs: Sequence[Run]) -> Calibration:
    """The spread of each metric that the case has expectations of. Broken runs do not count.

    InputError when the runs are not of one kernel at one site, or fewer than effect.LEAST_BOOTS.
    """
    whole = sorted((run for run in runs if not run.error), key=lambda run: run.id)
    if len(whole) < effect.LEAST_BOOTS:
        raise InputError(
            f"a calibration needs {effect.LEAST_BOOTS} boots that ended well, there are {len(whole)}"
        )
    # A newer run has the machine's id, and goes before those without.
    here = max((site(run) for run in whole), key=lambda each: each.machine_id)
    kernels = {run.kernel for run in whole}
    unlike = [
        *compatibility.differences(whole),
        *([f"kernel: {', '.join(sorted(kernels))}"] if len(kernels) > 1 else []),
    ]
    if unlike or any(site(run).older() != here.older() for run in whole):
        raise InputError(
            "a calibration is of one kernel, case and machine; these runs differ in"
            f" {'; '.join(unlike) or 'their case'}"
        )
    place = whole[0].place
    assert place is not None
    spreads = {
        (expected.metric, expected.phase): spread(
            [metrics.values(whole, expected.metric, expected.phase)], expected
        )
        for expected in place.case.expect
    }
    return Calibration(
        site=here,
        kernel=kernels.pop(),
        runs=tuple(run.id for run in whole),
        made=state.stamp(),
        spreads=tuple(known for known in spreads.values() if known is not None),
    )


def spread(groups: Sequence[Sequence[float]], expected: Expectation) -> Spread | None:
    """The spread of an expectation's values within groups of boots; None where too few boots have one.

    That of several groups, as of experiments, is pooled. `boots` is then smaller by one for each group after
    the first, whose mean takes a degree of freedom too.
    """
    values, kind = [value for group in groups for value in group], metrics.kind(expected.metric)
    share = kind is Kind.SHARE
    counts = kind is Kind.COUNT and metrics.whole_numbers(values)
    free = len(values) - len(groups)
    if free < effect.LEAST_BOOTS - 1 or min(values) < 0 or (share and max(values) > 100):
        return None
    if effect.mixed(values) and not counts and not share:
        return None
    extra = effect.edge(values) if share else effect.shift(values, counts=counts)
    logs = [effect.logs(group, extra, share=share) for group in groups]
    return Spread(
        metric=expected.metric,
        phase=expected.phase,
        boots=free + 1,
        mean=fmean(values),
        sd=math.sqrt(sum(map(effect.squares, logs)) / free),
        odds=share,
    )


def inside(
    deciding: Iterable[Expectation], boots: int, calibration: Calibration
) -> tuple[tuple[Expectation, float], ...]:
    """Expectations whose `by` is within the spread, each with the least `by` that so many boots allow.

    A `by` of 1 is no threshold (any significant change will do), and never within the spread.
    """
    within = []
    for expected in deciding:
        spread = calibration.spread(expected)
        if expected.by > 1 and spread is not None and expected.by < (limit := spread.limit(boots)):
            within.append((expected, limit))
    return tuple(within)


def save(calibration: Calibration) -> Path:
    """Store a calibration, in place of an earlier one of its site."""
    path = calibration.site.file()
    state.write(path, json.dumps(jsonable(calibration), indent=1))
    return path


def load(where: Site) -> Calibration | None:
    """The calibration of a site, or one that an older lab made there; None without one. Raises InputError."""
    path = next((path for path in (where.file(), where.older().file()) if path.exists()), where.file())
    try:
        return Calibration.from_json(path.read_text()) if path.exists() else None
    except (OSError, ValueError) as error:  # ValueError: JSON, UTF-8 or fields
        raise InputError(
            f"{path}: not a calibration: {first_line(error)}: remove it, and run lab.py calibrate"
            f" {where.case_name}"
        ) from error
