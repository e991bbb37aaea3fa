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
COUNTS = "counts"
"""What the profiles of a run count: instructions, cycles, ticks of a clock."""
HEADER = "lab.h"
"""What the C programs of workloads share, among the inputs of a run."""
LATER = ("machine id", "microcode", COUNTS, HEADER)
"""Facts that some runs lack, older ones or those without a profile: compared only between runs that have
them."""
SHORT = 8
"""The characters of a machine id that are shown."""
TITLES = (("microcode", "microcode"), ("QEMU", "qemu"), ("libvirt", "libvirt"))
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
        "clock": {"": spec.clock.value, "shift": spec.icount_shift if run.virtual else None},
        "beginning": {"": "ready state" if run.guest.ready_state else "boot"},
        "prepared disks": {"": " ".join(run.prepared) or "none"},
        "clock of slow disks": {
            disk.serial: disk.speed_clock.value for disk in spec.disks if disk.mibs_per_second
        },
        "huge pages": {"": spec.huge_page and show_size(spec.huge_page)},
        "topology": shape(spec.topology),
        "settings": run.settings,
        "profile": _profile(run),
        "host": _host(run),
        # Its kind must be one where hosts are blocks: under emulation it is the guest's processor.
        "QEMU": {"": run.host.get("qemu", "").partition(".")[0] if run.place and run.place.block else ""},
    }


def _profile(run: Run) -> dict[str, str]:
    """Shares of a profile by instructions are no shares of one by samples."""
    counted = sorted({phase.profiled for phase in run.phases if phase.profiled})
    return {COUNTS: " and ".join(counted)} if counted else {}


def _host(run: Run) -> dict[str, str]:
    """What identifies a run's host. An experiment that was spread has hosts as blocks, and counts as one."""
    if run.place and run.place.block:
        return {"spread": run.place.experiment}
    return {key: run.host[key] for key in HOST if key in run.host}


def by_hypervisor(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs of each host, in the order of their first ones; those of a spread experiment are together."""
    return [[runs[index] for index in members] for _, members in _kinds([_host(run) for run in runs])]


def hypervisor(runs: Sequence[Run]) -> str:
    """The hypervisor of the runs of one host, in words; of a spread experiment, those of all its hosts."""
    named: dict[str, list[Run]] = {}
    for run in runs:
        named.setdefault(run.place.block if run.place else "", []).append(run)
    return "; ".join(
        f"{name}: {_about(members)}" if name else _about(members) for name, members in named.items()
    )


def _about(runs: Sequence[Run]) -> str:
    """Name, machine id, CPU, microcode, QEMU, libvirt and accelerator, as far as the runs know them."""

    def facts(key: str) -> list[str]:
        return list(dict.fromkeys(run.host[key] for run in runs if run.host.get(key)))

    idents = [ident[:SHORT] for ident in facts("machine id")]
    words = [
        " and ".join(facts("machine")) or "a machine without a name",
        *(f"machine id {ident}" for ident in idents),
        *facts("cpu"),
        *(f"{title} {' and '.join(facts(key))}" for title, key in TITLES if facts(key)),
        " and ".join(dict.fromkeys(run.guest.spec.accel.value for run in runs)),
    ]
    return ", ".join(words)


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
        kinds = _kinds([run_traits[trait] for run_traits in every])
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


def _kinds(known: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], list[int]]]:
    """Each kind of facts, and the places of those who have it."""
    kinds: list[tuple[Mapping[str, Any], list[int]]] = []
    for index, facts_here in enumerate(_completed(facts, known) for facts in known):
        same = next((members for facts, members in kinds if facts == facts_here), None)
        if same is None:
            kinds.append((facts_here, [index]))
        else:
            same.append(index)
    return kinds


def _completed(facts: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """An older run's facts, with LATER filled in from the most complete run that agrees with all of them."""
    newer = max(
        (other for other in every if all(other.get(key) == value for key, value in facts.items())),
        key=lambda other: sum(key in other for key in LATER),
        default={},
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
