# SPDX-License-Identifier: GPL-2.0-only
"""What differs between the kernels of an experiment beyond what it compares: tools, configuration, state, and
how much of their memory was in huge pages.

Runs without facts are older, and say nothing. Not here: collecting the facts (measure.kernel_facts).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from numalab.model.case import Arm
from numalab.model.run import CONFIGURATION, Run
from numalab.model.units import MIB

Options = Mapping[str, str]
Configurations = Mapping[str, Options]
"""SHA-256 of a configuration -> its options, without those that are not set."""
MOST = 3
"""The most options in a doubt."""
LEAST_ANONYMOUS = 32 * MIB // 4096
"""Pages. Without work a guest has 10 to 20 MiB of anonymous memory, with up to three huge pages or none."""
HUGE = 0.1
"""By how much the share of anonymous memory in huge pages may differ between the kernels. Chosen."""


def doubts(sides: Mapping[Arm, Sequence[Run]], configurations: Configurations) -> list[str]:
    """A line for each fact that differs between the arms, or among the boots of one, with all its values."""
    known = {arm: runs for arm, side in sides.items() if (runs := [run for run in side if run.kernel_facts])}
    names = dict.fromkeys(name for runs in known.values() for run in runs for name in run.kernel_facts)
    lines = [
        _apart(name, {arm: [_fact(run, name) for run in runs] for arm, runs in known.items()})
        for name in names
        if name != CONFIGURATION
    ]
    return [*filter(None, [*lines, _configuration(known, configurations)]), *_huge_pages(sides)]


def _huge_pages(sides: Mapping[Arm, Sequence[Run]]) -> list[str]:
    """'huge pages in anonymous memory (touch): 0% to 2% before, 45% to 47% after', for each measured phase in
    which all boots of a kernel have more of them than any of the other, and typical ones differ by HUGE."""
    lines = []
    for phase in dict.fromkeys(
        one.phase.name for side in sides.values() for run in side for one in run.measured
    ):
        shares = {arm: _shares(side, phase) for arm, side in sides.items()}
        if not all(shares.values()):
            continue
        low, high = sorted(shares.values(), key=median)
        if max(low) < min(high) and median(high) - median(low) > HUGE:
            words = [f"{_range(every)} {arm}" for arm, every in shares.items()]
            lines.append(f"huge pages in anonymous memory ({phase}): {', '.join(words)}")
    return lines


def _shares(side: Sequence[Run], phase: str) -> list[float]:
    """The share of anonymous memory in huge pages, of each boot that had enough of it in a phase."""
    memories = [one.memory for run in side for one in run.measured if one.phase.name == phase]
    return [one.huge / one.anonymous for one in memories if one and one.anonymous >= LEAST_ANONYMOUS]


def _range(shares: Sequence[float]) -> str:
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return low if low == high else f"{low} to {high}"


def _fact(run: Run, name: str) -> str:
    return run.kernel_facts.get(name, "not recorded")


def _apart(name: str, values: Mapping[Arm, Sequence[str]]) -> str:
    """'THP: always before, madvise after'; '' when all values are the same."""
    if len({value for every in values.values() for value in every}) < 2:
        return ""
    sides = []
    for arm, every in values.items():
        counts = Counter(every)
        shares = {value: f" in {count} of {len(every)} boots" for value, count in counts.items()}
        words = [f"{value}{shares[value] if len(counts) > 1 else ''}" for value in counts]
        sides.append(f"{' and '.join(words)} {arm}")
    return f"{name}: {', '.join(sides)}"


def _configuration(known: Mapping[Arm, Sequence[Run]], configurations: Configurations) -> str:
    """The options that differ; where they are not known, the runs whose files tell them."""
    recorded = {
        arm: [run for run in side if CONFIGURATION in run.kernel_facts] for arm, side in known.items()
    }
    first: dict[str, str] = {}
    for run in (run for side in recorded.values() for run in side):
        first.setdefault(run.kernel_facts[CONFIGURATION], run.id)
    if len(first) < 2:
        presence = {
            arm: ["recorded" if CONFIGURATION in run.kernel_facts else "not recorded" for run in side]
            for arm, side in known.items()
        }
        return _apart(CONFIGURATION, presence)
    if not first.keys() <= configurations.keys():
        ids = ", ".join(sorted(first.values()))
        return f"{CONFIGURATION}: not the same options: see kernel.config of {ids}"
    options = {
        arm: [configurations[run.kernel_facts[CONFIGURATION]] for run in side]
        for arm, side in recorded.items()
        if side
    }
    names = {name for digest in first for name in configurations[digest]}
    different = [
        line
        for name in sorted(names)
        if (
            line := _apart(
                name, {arm: [one.get(name, "not set") for one in side] for arm, side in options.items()}
            )
        )
    ]
    more = len(different) - MOST
    shown = [*different[:MOST], *([f"{more} more option{'s' * (more > 1)}"] if more > 0 else [])]
    return f"{CONFIGURATION}: {'; '.join(shown)}"
