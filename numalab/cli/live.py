# SPDX-License-Identifier: GPL-2.0-only
"""The progress of an experiment for a person: which boot, which phase, live counters, and the remaining time.

On a terminal the counters change below the step; in a pipe each boot and each measured phase is a plain line.
Not here: how steps are drawn (progress).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from numalab.analysis import verdict
from numalab.core import log
from numalab.experiment.plan import Plan
from numalab.experiment.run import ExperimentBoot
from numalab.model.run import PhaseResult
from numalab.model.verdict import Verdict
from numalab.report.text import short

WATCHED = (
    "numa_pte_updates",
    "numa_hint_faults",
    "numa_hint_faults_local",
    "numa_pages_migrated",
    "nr_vmscan_immediate_reclaim",
    "nr_vmscan_write",
    "pgscan_kswapd",
    "pgscan_direct",
)
"""The counters that one of the seeds' systems or another is about."""


class View:
    """An experiment.run.Observer over all boots: `boots` rounds, or (None) as many as it takes."""

    def __init__(self, plan: Plan, boots: int | None) -> None:
        self.plan, self.fixed = plan, boots is not None
        self.total = (boots or verdict.looks(plan.case_size)[-1]) * len(plan.kernels)
        self.started = 0.0

    def began(self, boot: ExperimentBoot) -> BootView:
        """A boot begins."""
        left, now = "", time.monotonic()
        # When one begins, all but those beside it have ended.
        ended = boot.place.boot + 1 - boot.place.side_by_side
        self.started = self.started or now
        if self.fixed and ended > 0:
            left = f"; about {(now - self.started) / ended * (self.total - ended) / 60:.0f} min left"
        log.tell(
            f"boot {boot.place.boot + 1} of {'' if self.fixed else 'at most '}{self.total}: {boot.place.arm},"
            f" {boot.kernel.name}{left}",
            who=self.plan.case_name,
        )
        return BootView(boot.name)

    def so_far(self, judged: Verdict) -> None:
        """Log the effects after a round, not the answer: to stop at the first clear one errs too often."""
        ratios = [
            f"{finding.expectation.metric} ×{finding.ratio:.3g}"
            for finding in judged.findings
            if finding.decides and finding.ratio is not None
        ]
        log.tell(
            f"so far ({judged.boots[0]} and {judged.boots[1]} boots), no verdict yet:"
            f" {'; '.join(ratios) or 'no ratio'}",
            who=self.plan.case_name,
        )


class BootView:
    """A runner.Watcher over one boot."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first: tuple[str, Mapping[str, Any]] | None = None

    def moving(self, phase: str, sample: Mapping[str, Any]) -> None:
        """See runner.Watcher."""
        if self.first is None or self.first[0] != phase:
            self.first = (phase, sample)
            return
        now, then = sample.get("vmstat", {}), self.first[1].get("vmstat", {})
        moved = [
            f"{name} +{short(now[name] - then[name])}"
            for name in WATCHED
            if name in then and now.get(name, 0) > then[name]
        ]
        log.moving("  ".join(moved))

    def ended(self, result: PhaseResult) -> None:
        """See runner.Watcher."""
        if result.phase.measured:
            moved = [
                f"{name} {short(result.counters['vmstat'][name])}"
                for name in WATCHED
                if result.counters.get("vmstat", {}).get(name)
            ]
            log.tell(f"{result.phase.name}: {'  '.join(moved) or 'nothing moved'}", who=self.name)


def watched_table(
    first: Mapping[str, int], before: Mapping[str, int], now: Mapping[str, int], seconds: float
) -> list[tuple[str, str, str]]:
    """Rows of `lab.py watch`: counter, change since `first`, rate from `before` to `now`."""
    names = [
        name
        for name in now
        if name.startswith(("numa_", "pgmigrate_")) or name in WATCHED or name in ("pgfault", "pgmajfault")
    ]
    return [
        (
            name,
            f"{now[name] - first.get(name, now[name])}",
            f"{(now[name] - before.get(name, now[name])) / seconds:.0f}",
        )
        for name in names
    ]
