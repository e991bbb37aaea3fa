# SPDX-License-Identifier: GPL-2.0-only
"""A topology as a drawing: the position of each node's box, and the lines between them. The macro `topology`
in templates/parts.html draws it.

Pure. The one picture that Plotly does not draw: all others are in charts.
"""

from __future__ import annotations

import math
from itertools import combinations

from numalab.model import verification
from numalab.model.topology import LOCAL_DISTANCE, Topology
from numalab.model.units import MIB, show_cpus, show_size
from numalab.model.values import Value
from numalab.model.verification import NumaLayout

BOX = (122, 78)
"""Width and height of a node in CSS pixels: four of them fit on a telephone."""
MOST_LETTERS = 15
"""The longest CPU list in a box: text starts 10 pixels from its left side, and a digit is 7 wide."""
MARGIN = 8
MOST_JOINED = 8
"""The most nodes that are joined by lines; for more, the table of distances has to do."""
SIDES_WIDE = 3
"""Boxes in a row without lines."""


class Box(Value):
    """A node: its upper left corner and its text."""

    node: int
    x: float
    y: float
    lines: tuple[str, ...]


class Line(Value):
    """A pair of nodes: both ends, position of the distance label, and rank (0 nearest, 1, 2, … farther)."""

    x1: float
    y1: float
    x2: float
    y2: float
    label_x: float
    label_y: float
    label: str
    rank: int


class Drawing(Value):
    """The whole drawing. `distances` are by row and column of `nodes`; `description` is the same in words."""

    width: int
    height: int
    box: tuple[int, int] = BOX
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    nodes: tuple[int, ...]
    distances: tuple[tuple[int | None, ...], ...]
    fake: bool
    description: str


def draw(shape: Topology) -> Drawing:
    """Draw verification.expected_layout: UMA and numa=fake have the nodes that the kernel shows."""
    view = verification.expected_layout(shape)
    joined = 1 < len(view.nodes) <= MOST_JOINED and not shape.fake
    centres = _circle(len(view.nodes)) if joined else _rows(len(view.nodes))
    boxes = tuple(
        Box(node=node, x=x - BOX[0] / 2, y=y - BOX[1] / 2, lines=(_fitted(cpus), *others))
        for node, (x, y) in zip(view.nodes, centres, strict=True)
        for cpus, *others in (_lines(view, node),)
    )
    return Drawing(
        width=math.ceil(max(x for x, _ in centres) + BOX[0] / 2 + MARGIN),
        height=math.ceil(max(y for _, y in centres) + BOX[1] / 2 + MARGIN),
        boxes=boxes,
        lines=_join(view, centres) if joined else (),
        nodes=view.nodes,
        distances=tuple(tuple(view.distances.get((i, j)) for j in view.nodes) for i in view.nodes),
        fake=bool(shape.fake),
        description=". ".join(f"Node {node}: {', '.join(_lines(view, node))}" for node in view.nodes),
    )


def _lines(view: NumaLayout, node: int) -> tuple[str, ...]:
    cpus, memory = view.cpus.get(node, ()), view.memory(node)
    lines = [f"CPU {show_cpus(cpus)}" if cpus else "no CPU", show_size(memory) if memory else "no memory"]
    # The 16 MiB of zone DMA are not worth showing.
    zones = [
        f"{zone} {size // MIB}MiB"
        for (owner, zone), size in view.zones.items()
        if owner == node and zone != "DMA"
    ]
    hmat = [f"{view.latency_ns[node]} ns"] if node in view.latency_ns else []
    hmat += [f"{view.bandwidth_mibs[node]} MiB/s"] if node in view.bandwidth_mibs else []
    return (*lines, *(hmat or zones))


def _fitted(cpus: str) -> str:
    """A CPU list that fits into a box, cut after a whole number; `description`, the title, has all of it."""
    return cpus if len(cpus) <= MOST_LETTERS else f"{cpus[: cpus.rindex(',', 0, MOST_LETTERS) + 1]}…"


def _rows(count: int) -> list[tuple[float, float]]:
    """Centres of the boxes, row by row."""
    wide = min(count, SIDES_WIDE) if count != 4 else 2
    gap = 18
    return [
        (
            MARGIN + BOX[0] / 2 + (i % wide) * (BOX[0] + gap),
            MARGIN + BOX[1] / 2 + (i // wide) * (BOX[1] + gap),
        )
        for i in range(count)
    ]


def _circle(count: int) -> list[tuple[float, float]]:
    """Centres on a ring, clockwise from the upper left: neighbouring sockets are neighbours here."""
    # Half the width and height of the ring: boxes stay apart, with room for a label on the line between.
    across, down = {2: (92.0, 0.0), 3: (100.0, 80.0), 4: (125.0, 100.0)}.get(
        count, (36.0 * count, 27.0 * count)
    )
    turn = math.pi if count == 2 else 1.25 * math.pi if count == 4 else 1.5 * math.pi
    angles = [turn + 2 * math.pi * i / count for i in range(count)]
    points = [(across * math.cos(angle), down * math.sin(angle)) for angle in angles]
    left, top = min(x for x, _ in points), min(y for _, y in points)
    return [(x - left + BOX[0] / 2 + MARGIN, y - top + BOX[1] / 2 + MARGIN) for x, y in points]


def _join(view: NumaLayout, centres: list[tuple[float, float]]) -> tuple[Line, ...]:
    """A line for each pair; the farther apart a pair is, the higher its rank, and the fainter its line."""
    ranks = sorted({distance for distance in view.distances.values() if distance > LOCAL_DISTANCE})
    lines = []
    for (i, a), (j, b) in combinations(enumerate(view.nodes), 2):
        there, back = view.distances.get((a, b)), view.distances.get((b, a))
        if there is None or back is None:
            continue
        (x1, y1), (x2, y2) = centres[i], centres[j]
        # Diagonals cross in the middle: their labels are nearer to one end.
        part = 0.5 if j - i in (1, len(view.nodes) - 1) else 0.42
        lines.append(
            Line(
                x1=x1,
                y1=y1,
                x2=x2,
                y2=y2,
                label_x=x1 + part * (x2 - x1),
                label_y=y1 + part * (y2 - y1),
                label=f"{there}" if there == back else f"{there} / {back}",
                rank=ranks.index(max(there, back)) if max(there, back) in ranks else 0,
            )
        )
    return tuple(lines)
