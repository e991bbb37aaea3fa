# SPDX-License-Identifier: GPL-2.0-only
"""Which runs may stand side by side: the same work on the same machine, and only the kernel another.

The one place that says what "the same" means; compare, the report and the judge ask here. Whether unlike
runs are refused or forced is theirs to decide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numalab.model.run import Run
from numalab.model.topology import Topology
from numalab.model.values import jsonable

HOST = ("machine", "machine id", "cpu", "cpus")
"""The facts about a run's host that say which machine it is. Its load and its versions may change between two
boots."""
LATER = ("machine id",)
"""The facts in HOST that older runs do not have: compared between runs that have them."""
NO_PART = ("description", "source")
"""The fields of a topology that only describe it. A machine is its vCPUs, memory, nodes, distances and
disks."""

MOST = 40
"""Characters of one fact in a message: a list of nodes is longer."""
MANY = 3
"""Facts in a message: enough to tell what is meant."""

Traits = dict[str, Mapping[str, Any]]


def traits(run: Run) -> Traits:
    """What a run must share with those it is compared with: name of the trait -> its facts."""
    spec = run.guest.spec
    return {
        "workload": {"": run.workload},
        "size": {"": run.size.value},
        "parameters": run.params,
        "accelerator": {"": spec.accel.value},
        "topology": shape(spec.topology),
        "settings": run.settings,
        "host": {key: run.host[key] for key in HOST if key in run.host},
    }


def shape(topology: Topology) -> dict[str, Any]:
    """What makes a topology another machine, as plain JSON data."""
    return {key: value for key, value in jsonable(topology).items() if key not in NO_PART}


def differences(runs: Sequence[Run], of: Callable[[Run], Traits] = traits) -> tuple[str, ...]:
    """A line for each trait in which runs differ: 'accelerator: kvm (3 runs), tcg (2 runs)'. None: they may
    be compared.

    `of` gives the traits of a run, the same ones for every run.
    """
    every = [of(run) for run in runs]
    lines = []
    for trait in every[0] if every else ():
        kinds: list[tuple[Mapping[str, Any], list[int]]] = []
        known = [found[trait] for found in every]
        for index, facts_here in enumerate(_completed(facts, known) for facts in known):
            same = next((members for facts, members in kinds if facts == facts_here), None)
            if same is None:
                kinds.append((facts_here, [index]))
            else:
                same.append(index)
        if len(kinds) > 1:
            all_facts = [facts for facts, _ in kinds]
            names = [
                f"{runs[members[0]].guest.spec.topology_name} " if trait == "topology" else ""
                for _, members in kinds
            ]
            tallies = [f"({len(members)} run{'s' * (len(members) > 1)})" for _, members in kinds]
            shown = [
                f"{name}{_apart(facts, all_facts)} {tally}"
                for name, facts, tally in zip(names, all_facts, tallies, strict=True)
            ]
            lines.append(f"{trait}: {', '.join(shown)}")
    return tuple(lines)


def _completed(facts: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """An older run's facts, with LATER from a newer run that has all of them."""
    newer = next(
        (
            other
            for other in every
            if all(other.get(key) == value for key, value in facts.items())
            and any(key in other and key not in facts for key in LATER)
        ),
        {},
    )
    return {**facts, **{key: newer[key] for key in LATER if key in newer}}


def _apart(facts: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> str:
    """The facts that not all share, in a few words: MANY of them, those that are short first."""
    keys = sorted(set().union(*every))
    apart = [key for key in keys if any(other.get(key) != facts.get(key) for other in every)]
    apart.sort(key=lambda key: any(isinstance(other.get(key), (list, tuple, dict)) for other in every))
    words = [f"{key}{'=' if key else ''}{_word(facts.get(key))}" for key in apart[:MANY]]
    return " ".join(words + ["…"] * (len(apart) > MANY))


def _word(value: object) -> str:
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MOST else text[: MOST - 1] + "…"
