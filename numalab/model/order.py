# SPDX-License-Identifier: GPL-2.0-only
"""What of a host spoils the times of its guests, from the facts that host.machine reads.

Under KVM times decide, so they must come from a host that is in order. A fact that a host does not tell is no
reproach. Not here: reading the facts (host.machine), the load of other programs in a run (analysis.verdict).
"""

from __future__ import annotations

from collections.abc import Mapping

from numalab.model.topology import Topology

SWITCHES = {
    "SMT": ("on", "siblings share a core: echo off >/sys/devices/system/cpu/smt/control"),
    "turbo": (
        "on",
        "a core's frequency follows its neighbours' load: switch it off in the firmware or cpufreq",
    ),
    "KSM": ("on", "pages of guests are merged: echo 2 >/sys/kernel/mm/ksm/run"),
    "NUMA balancing": ("on", "the host moves the guest's memory: sysctl kernel.numa_balancing=0"),
    "swap": ("on", "a guest's memory may be on a disk: swapoff -a"),
}
"""Fact -> the value that spoils times, and why and how to mend it."""
GOVERNOR = "performance"


def spoilers(host: Mapping[str, str]) -> list[str]:
    """What spoils times on this host, whatever guest it runs: a line each, with the cure."""
    lines = [f"{name} is {bad}: {why}" for name, (bad, why) in SWITCHES.items() if host.get(name) == bad]
    if (governor := host.get("governor", "")) and governor != GOVERNOR:
        lines.append(f"the frequency governor is {governor}: cpupower frequency-set -g {GOVERNOR}")
    if (thp := host.get("THP", "")) and thp != "never":
        # QEMU asks for huge pages itself (MADV_HUGEPAGE), so madvise is like always.
        lines.append(f"THP is {thp}: which of a guest's pages are huge is chance")
    return lines


def shortage(host: Mapping[str, str], topology: Topology) -> list[str]:
    """What of the topology the host has too little of: a line each."""
    lines = []
    if len(topology.nodes) > (nodes := _number(host, "nodes")) > 0:
        effect = "no memory of the guest is remote" if nodes == 1 else "some of the guest's nodes share one"
        lines.append(f"{len(topology.nodes)} nodes on {nodes} of the host: {effect}")
    if topology.vcpus > (cores := _number(host, "cores")) > 0:
        lines.append(f"{topology.vcpus} vCPUs on {cores} cores of the host")
    return lines


def _number(host: Mapping[str, str], name: str) -> int:
    """A number among the facts; 0 when the host does not tell it."""
    text = host.get(name, "")
    return int(text) if text.isdecimal() else 0
