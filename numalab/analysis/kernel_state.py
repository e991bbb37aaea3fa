# SPDX-License-Identifier: GPL-2.0-only
"""What differs between the kernels of an experiment beyond what it compares: tools, configuration, state.

Runs without facts are older, and say nothing. Not here: collecting the facts (measure.kernel_facts).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from numalab.model.case import Arm
from numalab.model.run import CONFIGURATION, Run

Options = Mapping[str, str]
Configurations = Mapping[str, Options]
"""SHA-256 of a configuration -> its options, without those that are not set."""
MOST = 3
"""The most options in a doubt."""


def doubts(sides: Mapping[Arm, Sequence[Run]], configurations: Configurations) -> list[str]:
    """A line for each fact that differs between the arms, or among the boots of one, with all its values."""
    known = {arm: runs for arm, side in sides.items() if (runs := [run for run in side if run.kernel_facts])}
    names = dict.fromkeys(name for runs in known.values() for run in runs for name in run.kernel_facts)
    lines = [
        _apart(name, {arm: [_fact(run, name) for run in runs] for arm, runs in known.items()})
        for name in names
        if name != CONFIGURATION
    ]
    return list(filter(None, [*lines, _configuration(known, configurations)]))


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
