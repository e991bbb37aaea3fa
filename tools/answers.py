#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Draw the pictures of docs/verdicts.md.

    .venv/bin/python tools/answers.py

docs/answers.svg: intervals of real boots and the answers that they lead to. The boots are those of
benchmarks/boots.json. Each row is one metric of one experiment, on a logarithmic scale of its own on which no
change and `by` are at the same places.

docs/boots.svg: the least effect that can be told from none, by scatter and number of boots
(effect.detectable).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import rates  # noqa: E402
from numalab.analysis import effect, error_rates, expectation  # noqa: E402
from numalab.analysis.error_rates import Experiment  # noqa: E402
from numalab.model.case import Direction  # noqa: E402
from numalab.model.verdict import Finding, percent  # noqa: E402

PICTURE, CHART = ROOT / "docs" / "answers.svg", ROOT / "docs" / "boots.svg"
ROWS = (
    ("20261123T075523-fairzone-14513-832955a6", "fairzone_looked_at_per_1000_pages", False),
    ("20261123T062306-fairzone-20631-460774de", "fairzone_looked_at_per_1000_pages", False),
    ("20261123T091215-threads-15114-818eb101", "numa_pte_updates", False),
    ("20261123T105438-xfsrepair-32288-ae98db54", "system", False),
    ("20261123T134726-fairzone-31021-a20aa6b0", "fairzone_looked_at_per_1000_pages", True),
)
"""Experiment, metric, and whether "before" is passed off as "after": with the boots of the next like one."""
WIDTH, LEFT, RIGHT, HIGH, TOP = 860, 330, 650, 44, 40
ENDS = (-1.5, 3.0)
"""What the axis shows: 0 is no change, 1 is `by`."""
NUMBERS = range(3, 13)
"""Boots of each kernel."""
SCATTERS = (0.02, 0.05, 0.1, 0.2, 0.5)
MARKS = (1.05, 1.1, 1.2, 1.5, 2, 3, 5)
CHART_WIDTH, CHART_LEFT, CHART_RIGHT, CHART_TOP, CHART_BOTTOM, CHART_HEIGHT = 640, 60, 500, 40, 290, 330
CHART_ENDS = (1.02, 6.5)


def finding(experiments: Sequence[Experiment], name: str, metric: str, *, planted: bool) -> Finding:
    """What was found of a metric."""
    one = next(each for each in experiments if each.name == name)
    judged = one.judged
    pooled = False
    if planted:
        group = next(each for each in error_rates.pools(experiments) if one in each)
        pooled = len(group) > 1
        sides = error_rates.halves([boot for each in group for boot in each.kernels[judged.before]])
        before, after = sides[0][: judged.boots], sides[1][: judged.boots]
    else:
        before, after = list(one.kernels[judged.before]), list(one.kernels[judged.after])
    found = error_rates.findings(judged, before, after, pooled=pooled)
    return next(each for each in found if each.expectation.metric == metric)


def along(ratio: float, found: Finding) -> float:
    """Where a ratio lies on the axis, in pixels."""
    sign = -1 if found.expectation.direction is Direction.FALLS else 1
    place = sign * math.log(ratio) / math.log(found.expectation.asked)
    shown = min(max(place, ENDS[0]), ENDS[1])
    return LEFT + (shown - ENDS[0]) / (ENDS[1] - ENDS[0]) * (RIGHT - LEFT)


def label(x: float, y: float, text: str, *, anchor: str = "start", grey: bool = False) -> str:
    """A text."""
    colour = "#666" if grey else "#222"
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def svg(width: int, height: int, lines: Sequence[str]) -> str:
    """A picture of these elements, on white."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    )
    return "\n".join([*head, *lines, "</svg>"]) + "\n"


def picture(rows: Sequence[tuple[str, Finding]]) -> str:
    """The SVG."""
    height = TOP + HIGH * len(rows) + 10
    none, by = (LEFT + (place - ENDS[0]) / (ENDS[1] - ENDS[0]) * (RIGHT - LEFT) for place in (0, 1))
    lines = [
        label(none, 20, "no change", anchor="middle", grey=True),
        label(by, 20, "by", anchor="middle", grey=True),
        *(line(x, 28, x, height - 6, 'stroke="#999" stroke-dasharray="4 3"') for x in (none, by)),
    ]
    for i, (name, found) in enumerate(rows):
        y = TOP + HIGH * i + HIGH / 2
        low, middle, high = (
            along(ratio or math.nan, found) for ratio in (found.low, found.ratio, found.high)
        )
        direction = "1/" if found.expectation.direction is Direction.FALLS else ""
        lines += [
            label(10, y - 4, name),
            label(
                10,
                y + 12,
                f"by {found.expectation.asked:g} ({direction}by ="
                f" {found.expectation.asked ** (-1 if direction else 1):.2g}):"
                f" {found.ratio:.2f}, {found.low:.2f} to {found.high:.2f} ({percent(found.confidence)})",
                grey=True,
            ),
            line(low, y, high, y, 'stroke="#1f6feb" stroke-width="3"'),
            f'<circle cx="{middle:.1f}" cy="{y:.1f}" r="5" fill="#1f6feb"/>',
            label(RIGHT + 20, y + 4, f"{found.answer}{f', {found.grade}' if found.grade else ''}"),
        ]
    return svg(WIDTH, height, lines)


def rows() -> list[tuple[str, Finding]]:
    """The rows' names, and what was found."""
    experiments = rates.read(rates.BOOTS)
    made = []
    for name, metric, planted in ROWS:
        found = finding(experiments, name, metric, planted=planted)
        case = next(each.judged.case_name for each in experiments if each.name == name)
        short = metric.removeprefix("fairzone_")
        made.append((f"{case}: before against itself" if planted else f"{case}: {short}", found))
    return made


def least(scatter: float, boots: int) -> float:
    """The least factor that so many boots of each kernel tell from none in 80 % of experiments, where both
    scatter so much (a standard deviation of logs)."""
    supposed = effect.Effect(
        boots=(boots, boots), log=0.0, variances=(scatter**2, scatter**2), vanished=(False, False)
    )
    return effect.detectable(supposed, expectation.ALPHA)


def chart() -> str:
    """The SVG of docs/boots.svg."""

    def place(boots: int, factor: float) -> tuple[float, float]:
        across = (boots - NUMBERS[0]) / (NUMBERS[-1] - NUMBERS[0])
        # Factors on a scale of log log: 1.1 is as far from 1.21 as 1.2 is from 1.44.
        ends = [math.log(math.log(end)) for end in CHART_ENDS]
        up = (math.log(math.log(factor)) - ends[0]) / (ends[1] - ends[0])
        return (
            CHART_LEFT + across * (CHART_RIGHT - CHART_LEFT),
            CHART_BOTTOM - up * (CHART_BOTTOM - CHART_TOP),
        )

    lines = [
        label(10, 20, "least factor that is told from no change in 80 % of experiments", grey=True),
        label(CHART_RIGHT + 12, 20, "boots scatter by", grey=True),
        label(
            (CHART_LEFT + CHART_RIGHT) / 2,
            CHART_HEIGHT - 4,
            "boots of each kernel",
            anchor="middle",
            grey=True,
        ),
    ]
    for factor in MARKS:
        y = place(NUMBERS[0], factor)[1]
        lines += [
            line(CHART_LEFT, y, CHART_RIGHT, y, 'stroke="#ddd"'),
            label(CHART_LEFT - 8, y + 4, f"{factor:g}", anchor="end", grey=True),
        ]
    lines += [
        label(place(boots, MARKS[0])[0], CHART_BOTTOM + 18, str(boots), anchor="middle", grey=True)
        for boots in NUMBERS
    ]
    for scatter in SCATTERS:
        points = [place(boots, least(scatter, boots)) for boots in NUMBERS]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines += [
            f'<polyline points="{path}" fill="none" stroke="#1f6feb" stroke-width="2"/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f6feb"/>' for x, y in points),
            label(CHART_RIGHT + 12, points[-1][1] + 4, f"{100 * scatter:g} %"),
        ]
    return svg(CHART_WIDTH, CHART_HEIGHT, lines)


def main() -> None:
    """Write the pictures."""
    PICTURE.write_text(picture(rows()))
    CHART.write_text(chart())


if __name__ == "__main__":
    main()
