# SPDX-License-Identifier: GPL-2.0-only
"""Which runs may be compared: the same work on the same machine, with only the kernel different.

The one definition of "the same", for compare, the report and the verdict. Not here: whether different runs
are refused or forced, which the callers decide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numalab.model.run import Run
from numalab.model.topology import Topology
from numalab.model.units import show_size
from numalab.model.values import jsonable

HOST = ("machine", "machine id", "cpu", "microcode", "cpus")
"""Facts that identify a run's host. Its load and its versions may change between two boots."""
LATER = ("machine id", "microcode")
"""Facts of HOST that older runs lack: compared only between runs that have them."""
NO_PART = ("description", "source")
"""Fields of a topology that only describe it. vCPUs, memory, nodes, distances and disks make the machine."""

MOST = 40
"""The most characters of a fact in a message: a list of nodes is longer."""
MANY = 3
"""The most facts in a message."""

Traits = dict[str, Mapping[str, Any]]


def traits(run: Run) -> Traits:
    """What compared runs must share: name of the trait -> its facts."""
    spec = run.guest.spec
    return {
        "workload": {"": run.workload},
        "size": {"": run.size.value},
        "parameters": run.params,
        "accelerator": {"": spec.accel.value},
        "clock": {"": spec.clock.value},
        "beginning": {"": "ready state" if run.guest.ready_state else "boot"},
        "huge pages": {"": spec.huge_page and show_size(spec.huge_page)},
        "topology": shape(spec.topology),
        "settings": run.settings,
        "host": _host(run),
    }


def _host(run: Run) -> dict[str, str]:
    """A run's host; of an experiment that was spread over hosts as blocks, what these must share: the kind of
    QEMU, by its major version. Under emulation it is the guest's processor."""
    if run.place and run.place.block:
        return {"spread": run.place.experiment, "qemu": run.host.get("qemu", "").partition(".")[0]}
    return {key: run.host[key] for key in HOST if key in run.host}


def shape(topology: Topology) -> dict[str, Any]:
    """The parts of a topology that make it another machine, as plain JSON data."""
    return {key: value for key, value in jsonable(topology).items() if key not in NO_PART}


def differences(runs: Sequence[Run], of: Callable[[Run], Traits] = traits) -> tuple[str, ...]:
    """A line for each trait in which runs differ: 'accelerator: kvm (3 runs), tcg (2 runs)'. Empty: they may
    be compared.

    `of` returns the traits of a run, with the same names for every run.
    """
    every = [of(run) for run in runs]
    lines = []
    for trait in every[0] if every else ():
        kinds: list[tuple[Mapping[str, Any], list[int]]] = []
        known = [run_traits[trait] for run_traits in every]
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
    """An older run's facts, with LATER filled in from a newer run that agrees with all of them."""
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
    """The facts that differ, in a few words: at most MANY, short ones first."""
    keys = sorted(set().union(*every))
    apart = [key for key in keys if any(other.get(key) != facts.get(key) for other in every)]
    apart.sort(key=lambda key: any(isinstance(other.get(key), (list, tuple, dict)) for other in every))
    words = [f"{key}{'=' if key else ''}{_word(facts.get(key))}" for key in apart[:MANY]]
    return " ".join(words + ["…"] * (len(apart) > MANY))


def _word(value: object) -> str:
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MOST else text[: MOST - 1] + "…"
