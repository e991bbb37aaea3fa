# SPDX-License-Identifier: GPL-2.0-only
"""The NUMA layout that a guest with a topology must show, the layout that it does show, and whether they
agree.

No guest is needed here: the expected layout follows from the Topology alone, the observed one is parsed from
text that the command PROBE prints in the guest. Not here: running it (guest).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from numalab.model.topology import LOCAL_DISTANCE, Node, Topology
from numalab.model.units import GIB, MIB, parse_cpus, show_cpus, show_size

PAGE = 4096
NODE_TOLERANCE = 0.02
"""A node's memory may differ from the topology's by this share, or by SLACK, whichever is more."""
SLACK = 8 * MIB
"""Firmware holes, and reserved ranges below 1 MiB and at the end of RAM, which "present" does not count."""
FAKE_SLACK = 64 * MIB
"""numa=fake rounds to 32 MiB (FAKE_NODE_MIN_SIZE in arch/x86/mm/numa_emulation.c) at both ends of a node."""
REMOTE_DISTANCE = 20
"""The default of the kernel and of libvirt for two nodes without a distance table."""

PROBE = (
    "read -r release </proc/sys/kernel/osrelease; echo release:$release; "
    "cd /sys/devices/system/node && grep -aHs . online node*/cpulist node*/distance "
    "node*/access0/initiators/read_latency node*/access0/initiators/read_bandwidth; cat /proc/zoneinfo"
)
"""Shell command for the guest; `observed_release` and `observed_layout` parse its output. -a: before 3.3
`online` ends in a NUL."""


@dataclass(frozen=True)
class NumaLayout:
    """The NUMA layout of a machine: CPUs by node, and present bytes by node and zone.

    `distances` are by node pair. `latency_ns` and `bandwidth_mibs` are by node, from the HMAT entries of the
    best initiator (sysfs access0); absent where there are none.
    """

    nodes: tuple[int, ...]
    cpus: dict[int, tuple[int, ...]]
    zones: dict[tuple[int, str], int]
    distances: dict[tuple[int, int], int]
    latency_ns: dict[int, int] = field(default_factory=dict)
    bandwidth_mibs: dict[int, int] = field(default_factory=dict)

    def memory(self, node: int) -> int:
        """Bytes present in all zones of a node."""
        return sum(size for (owner, _), size in self.zones.items() if owner == node)


def low_memory(machine: str, memory: int) -> int:
    """Bytes of RAM that QEMU's x86 machines put below 4 GiB; the rest begins at 4 GiB.

    From QEMU's hw/i386/pc_piix.c and pc_q35.c (7.2): from 3.5 GiB on pc splits at 3 GiB, from 2.75 GiB
    on q35 splits at 2 GiB.
    """
    most, split = {"pc": (3584 * MIB, 3 * GIB), "q35": (2816 * MIB, 2 * GIB)}[machine]
    return split if memory >= most else memory


def expected_layout(topology: Topology) -> NumaLayout:
    """The layout that a guest with this topology must show."""
    if topology.fake:
        share = topology.memory // topology.fake
        sizes = [share] * topology.fake
        # Every fake node shows all CPUs of the physical node that it was cut from, at that node's distance to
        # itself. Kernels 3.16 to 4.18 took each for a physical node (emu_setup_memblk in
        # arch/x86/mm/numa_emulation.c) and dealt the CPUs without a node out over them (numa_init_array in
        # numa.c).
        cpus = {
            i: tuple(
                range(i, topology.vcpus, topology.fake) if topology.deals_cpus else range(topology.vcpus)
            )
            for i in range(topology.fake)
        }
        far = REMOTE_DISTANCE if topology.deals_cpus else LOCAL_DISTANCE
        table = [
            [LOCAL_DISTANCE if i == j else far for j in range(topology.fake)] for i in range(topology.fake)
        ]
    else:
        nodes = topology.nodes or (
            Node(cpus=show_cpus(tuple(range(topology.vcpus))), memory=show_size(topology.memory)),
        )
        sizes = [node.memory for node in nodes]
        cpus = {i: node.cpus for i, node in enumerate(nodes)}
        table = [list(row) for row in topology.distances] or [
            [LOCAL_DISTANCE if i == j else REMOTE_DISTANCE for j in range(len(nodes))]
            for i in range(len(nodes))
        ]
    zones: dict[tuple[int, str], int] = defaultdict(int)
    start, low = 0, low_memory(topology.machine, topology.memory)
    for index, size in enumerate(sizes):
        for zone, first, last in (
            ("DMA", 0, 16 * MIB),
            ("DMA32", 16 * MIB, low),
            ("Normal", low, topology.memory),
        ):
            if (part := min(start + size, last) - max(start, first)) > 0:
                zones[index, zone] = part
        start += size
    return NumaLayout(
        nodes=tuple(range(len(sizes))),
        cpus=cpus,
        zones=dict(zones),
        distances={(i, j): distance for i, row in enumerate(table) for j, distance in enumerate(row)},
        latency_ns={i: node.latency_ns for i, node in enumerate(topology.nodes) if node.latency_ns},
        bandwidth_mibs={
            i: node.bandwidth_mibs for i, node in enumerate(topology.nodes) if node.bandwidth_mibs
        },
    )


def observed_release(text: str) -> str:
    """The release of the kernel that a guest runs, from the output of PROBE; '' where it does not tell."""
    match = re.search(r"^release:(.+)$", text, re.MULTILINE)
    return match[1] if match else ""


def observed_layout(text: str) -> NumaLayout:
    """The layout that a guest shows, from the output of PROBE."""
    cpus: dict[int, tuple[int, ...]] = {}
    distances: dict[tuple[int, int], int] = {}
    hmat: dict[str, dict[int, int]] = {"latency": {}, "bandwidth": {}}
    online = re.search(r"^online:(\S+)$", text, re.MULTILINE)
    nodes = parse_cpus(online[1]) if online else (0,)  # without CONFIG_NUMA the folder is absent
    for node, key, value in re.findall(r"^node(\d+)/(?:access0/initiators/)?(\w+):(.*)$", text, re.MULTILINE):
        if key == "cpulist":
            cpus[int(node)] = parse_cpus(value.strip())
        elif key == "distance":
            # One entry for each online node, in ascending order.
            distances |= {(int(node), other): int(d) for other, d in zip(nodes, value.split(), strict=False)}
        elif int(value):
            hmat[key.removeprefix("read_")][int(node)] = int(value)
    zones: dict[tuple[int, str], int] = {}
    for node, zone, body in re.findall(r"^Node (\d+), zone +(\w+)\n((?: .*\n)*)", text, re.MULTILINE):
        present = re.search(r"^ +present +(\d+)$", body, re.MULTILINE)
        if present and int(present[1]):
            zones[int(node), zone] = int(present[1]) * PAGE
    for node in nodes:
        cpus.setdefault(node, ())
    return NumaLayout(nodes, cpus, zones, distances, hmat["latency"], hmat["bandwidth"])


@dataclass(frozen=True)
class LayoutRow:
    """One compared property: its name, requested and observed value as text, and whether they agree."""

    what: str
    requested: str
    observed: str
    agrees: bool


def compare_layouts(want: NumaLayout, have: NumaLayout, *, fake: bool = False) -> list[LayoutRow]:
    """Expected and observed values side by side, node by node. `fake` allows for numa=fake's rounding."""
    rows = [LayoutRow("nodes", show_cpus(want.nodes), show_cpus(have.nodes), want.nodes == have.nodes)]
    slack = FAKE_SLACK if fake else SLACK
    for node in sorted({*want.nodes, *have.nodes}):
        mine, theirs = want.cpus.get(node), have.cpus.get(node)
        rows.append(LayoutRow(f"node {node} CPUs", _cpus(mine), _cpus(theirs), mine == theirs))
        rows.append(_sizes(f"node {node} memory", want.memory(node), have.memory(node), slack))
        for zone in ("DMA", "DMA32", "Normal", "Movable"):
            mine_z, theirs_z = want.zones.get((node, zone), 0), have.zones.get((node, zone), 0)
            if mine_z or theirs_z:
                rows.append(_sizes(f"node {node} zone {zone}", mine_z, theirs_z, slack))
        others = sorted({*want.nodes, *have.nodes})
        row_w = [want.distances.get((node, other)) for other in others]
        row_h = [have.distances.get((node, other)) for other in others]
        rows.append(LayoutRow(f"node {node} distances", _words(row_w), _words(row_h), row_w == row_h))
        for what, w, h in (
            ("latency ns", want.latency_ns, have.latency_ns),
            ("bandwidth MiB/s", want.bandwidth_mibs, have.bandwidth_mibs),
        ):
            if node in w or node in h:
                rows.append(
                    LayoutRow(
                        f"node {node} {what}",
                        str(w.get(node, "none")),
                        str(h.get(node, "none")),
                        w.get(node) == h.get(node),
                    )
                )
    return rows


def _cpus(cpus: tuple[int, ...] | None) -> str:
    return "no node" if cpus is None else show_cpus(cpus) or "none"


def _words(values: list[int | None]) -> str:
    return " ".join("-" if value is None else str(value) for value in values)


def _sizes(what: str, want: int, have: int, slack: int) -> LayoutRow:
    near = abs(want - have) <= max(slack, NODE_TOLERANCE * want) and bool(want) == bool(have)
    return LayoutRow(what, f"{want / MIB:.0f} MiB", f"{have / MIB:.0f} MiB", near)


def layout_table(rows: list[LayoutRow]) -> str:
    """The rows as a text table; differences are marked."""
    cells = [("", "requested", "observed"), *((r.what, r.requested, r.observed) for r in rows)]
    widths = [max(len(text) for text in column) for column in zip(*cells, strict=True)]
    lines = [f"  {'':{widths[0]}}  {'requested':{widths[1]}}  observed"]
    lines += [
        f"{' ' if r.agrees else '!'} {r.what:{widths[0]}}  {r.requested:{widths[1]}}  {r.observed}".rstrip()
        for r in rows
    ]
    return "\n".join(lines)
