# SPDX-License-Identifier: GPL-2.0-only
"""The report's plots: metrics boot by boot, effects with their intervals, counters and memory over time,
profiles.

Pure. Plotly draws them in the reader's browser. Text from a run is escaped, because Plotly interprets a few
HTML tags in any text. Not here: which plots a section has (section_charts), the drawing of a topology
(topology_diagram).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import plotly.graph_objects as go
from scipy import stats

from numalab.model.case import Direction
from numalab.model.values import Value
from numalab.model.verdict import CONFIDENCE, Answer, Finding, percent
from numalab.report.chart import ChartTable, Plot, axis, figure, interval, joined, note, number, rows, titled
from numalab.report.text import short
from numalab.runs import profile, samples
from numalab.runs.profile import Stacks
from numalab.runs.samples import Series

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0609a", "#8c7a00", "#5a6fd0", "#b04a4a", "#6b7780")
"""Colours of kernels, the baseline's first. The first three are Okabe and Ito's (jfly.uni-koeln.de/color);
all have a contrast of 3:1 on white."""
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "triangle-down", "pentagon", "star", "hexagon")
"""Symbols of kernels, so that colours alone need not be told apart."""
DASHES = (
    "solid",
    "7px 4px",
    "2px 3px",
    "8px 3px 2px 3px",
    "14px 4px",
    "12px 3px 2px 3px",
    "5px 2px",
    "2px 6px",
)
ANSWER_COLOURS = {Answer.HOLDS: "#1a7f4b", Answer.DOES_NOT_HOLD: "#c0392b", Answer.CANNOT_TELL: "#8a6d00"}
FLAME_COLOURS = ("#f2b880", "#f0a868", "#eec08c", "#f3cf9b", "#e9a270")
RULE = "#888888"
"""The colour of lines that are not data, visible on white and on black."""
MOMENTS = 240
"""The most points of a line: what a plot of this width can show."""
TABLE_MOMENTS = 11
LEAST_SHARE = 0.002
"""The least share of a profile that is drawn: a smaller box would be less than two pixels wide."""
LISTED = 25
"""The most functions in a profile's table."""
CALLED = 8
"""The most functions of a profile whose callers are printed."""
INTERVAL = f"{CONFIDENCE:.0%} interval"
PAGE = 4096

Values = Sequence[tuple[str, float]]
"""(label of a boot, its value)."""


class Mean(Value):
    """The arithmetic mean of the boots' values, with its interval by Student's t; none for one boot."""

    mean: float
    low: float | None = None
    high: float | None = None


def mean(values: Sequence[float]) -> Mean:
    """The mean of at least one value."""
    middle = math.fsum(values) / len(values)
    if len(values) < 2:
        return Mean(mean=middle)
    error = float(stats.sem(values))
    if not error:
        return Mean(mean=middle, low=middle, high=middle)
    low, high = stats.t.interval(CONFIDENCE, len(values) - 1, loc=middle, scale=error)
    return Mean(mean=middle, low=float(low), high=float(high))


def dots(
    title: str,
    unit: str,
    values: Mapping[str, Mapping[str, Values]],
    kernels: Sequence[str],
    *,
    about: str = "",
) -> Plot | None:
    """A plot of a metric: `values` by phase and kernel. None when there are no values.

    Each boot is a dot, the mean a tick across its interval; one row for each kernel, grouped by phase.
    """
    groups = [
        (phase, [(kernel, by[kernel]) for kernel in kernels if by.get(kernel)])
        for phase, by in values.items()
    ]
    groups = [(phase, by_kernel) for phase, by_kernel in groups if by_kernel]
    if not groups:
        return None
    start, end = _ends([[value for _, value in boots] for _, by_kernel in groups for _, boots in by_kernel])
    traces, notes, cells = [], [], []
    means: dict[float, str] = {}
    y = 0.0
    for phase, by_kernel in groups:
        notes.append(note(y, phase))
        for kernel, boots in by_kernel:
            y -= 1
            middle = mean([value for _, value in boots])
            traces += _row(y, kernel, boots, middle, kernels.index(kernel), (start, end))
            means[y] = short(middle.mean)
            each = "  ".join(number(value) for _, value in boots)
            cells.append(
                (phase, kernel, str(len(boots)), number(middle.mean), interval(middle.low, middle.high), each)
            )
        y -= 1
    height = int(-y * 17 + 26)
    form = "SI" if end >= 1 else "power"  # A prefix suits large counts; 5 µ faults do not exist.
    drawn = figure(
        traces,
        height,
        (6, 54, 6, 20),
        annotations=notes,
        yaxis=rows(y + 0.5, 0.6, means),
        xaxis=axis(range=[start, end], fixedrange=True, nticks=5, exponentformat=form),
    )
    table = ChartTable(
        caption=titled(title, unit),
        head=("phase", "kernel", "boots", "mean", INTERVAL, "each boot"),
        rows=tuple(cells),
    )
    sentence = joined(cells, "{0}, {1}: mean {3}, interval {4}, boots {2}")
    return Plot(
        title=title,
        unit=unit,
        about=about,
        alt=f"{title}, each boot as a dot. {sentence}",
        figure=drawn,
        height=height,
        table=table,
    )


def _ends(columns: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The ends of an axis from 0, with a margin, over all dots and all intervals that do not dwarf them."""
    every = [value for column in columns for value in column]
    means = [mean(column) for column in columns]
    most, least = max([0.0, *every]), min([0.0, *every])
    high = min(max([most, *(one.high for one in means if one.high is not None)]), 1.6 * most) or (
        0.0 if least else 1.0
    )
    low = max(min([least, *(one.low for one in means if one.low is not None)]), 1.6 * least)
    room = 0.03 * (high - low)
    return low - room, high + room


def _row(
    y: float, kernel: str, boots: Values, middle: Mean, index: int, ends: tuple[float, float]
) -> list[go.Scatter]:
    """A kernel's row: interval, mean, dots. An interval is cut at the plot's end; the table has it whole."""
    colour = COLOURS[index % len(COLOURS)]
    traces = []
    if middle.low is not None and middle.high is not None:
        span = [max(middle.low, ends[0]), min(middle.high, ends[1])]
        traces.append(
            go.Scatter(x=span, y=[y, y], mode="lines", line={"color": colour, "width": 2}, hoverinfo="skip")
        )
    tick = {"symbol": "line-ns", "size": 13, "line": {"color": colour, "width": 2.5}}
    traces.append(go.Scatter(x=[middle.mean], y=[y], mode="markers", hoverinfo="skip", marker=tick))
    traces.append(
        go.Scatter(
            x=[value for _, value in boots],
            y=[y] * len(boots),
            mode="markers",
            customdata=[escape(boot) for boot, _ in boots],
            cliponaxis=False,
            marker={"color": colour, "symbol": SYMBOLS[index % len(SYMBOLS)], "size": 8, "opacity": 0.75},
            hovertemplate=f"{escape(kernel)}<br>%{{customdata}}: %{{x}}<extra></extra>",
        )
    )
    return traces


def effects(findings: Sequence[Finding]) -> Plot | None:
    """A plot of after / before for each finding, with its interval, on a log axis; None without ratios."""
    shown = [finding for finding in findings if finding.ratio is not None]
    if not shown:
        return None
    known = [
        value
        for finding in shown
        for value in (finding.ratio, finding.low, finding.high, _required_ratio(finding))
        if value and value < math.inf
    ]
    start, end = min([*known, 0.9]) / 1.6, max([*known, 1.1]) * 1.6
    traces, notes, cells = [], [], []
    ratios: dict[float, str] = {}
    for row, finding in enumerate(shown):
        y, expected = -2.0 * row - 1, finding.expectation
        traces += _effect(y, finding, (start, end))
        notes.append(note(y + 0.85, f"{expected.metric} · {expected.phase}{' · odds' * finding.odds}"))
        ratios[y] = number(finding.ratio)
        cells.append(
            (
                expected.metric,
                expected.phase,
                f"{'odds ' * finding.odds}{number(finding.ratio)}",
                _interval(finding),
                number(_required_ratio(finding)),
                finding.words,
            )
        )
    height, ticks = 34 * len(shown) + 52, _ticks(start, end)
    drawn = figure(
        traces,
        height,
        (6, 54, 6, 40),
        annotations=notes,
        yaxis=rows(-2.0 * len(shown) - 0.2, 0.4, ratios),
        xaxis=axis(
            "after / before",
            type="log",
            range=[math.log10(start), math.log10(end)],
            fixedrange=True,
            tickvals=ticks,
            ticktext=[f"{tick:g}" for tick in ticks],
        ),
        shapes=[
            {
                "type": "line",
                "x0": 1,
                "x1": 1,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"width": 1.5, "color": RULE},
            }
        ],
    )
    table = ChartTable(
        caption="Effects",
        head=("metric", "phase", "after / before", "interval", "expected", "answer"),
        rows=tuple(cells),
    )
    sentence = joined(cells, "{0} in {1}: {2}, interval {3}, {5}")
    return Plot(
        title="Effect of each expectation",
        alt=f"Ratio of after to before. {sentence}",
        figure=drawn,
        height=height,
        wide=True,
        table=table,
    )


def _effect(y: float, finding: Finding, ends: tuple[float, float]) -> list[go.Scatter]:
    """A finding's row: interval, ratio, expected ratio. Zeros and open ends are drawn at the edge."""
    colour = ANSWER_COLOURS[finding.answer]
    ratio, low, high = (
        min(max(value, ends[0]), ends[1])
        for value in (finding.ratio or 0.0, finding.low or 0.0, finding.high or math.inf)
    )
    traces = []
    if finding.low is not None or finding.high is not None:
        traces.append(
            go.Scatter(
                x=[low, high], y=[y, y], mode="lines", line={"color": colour, "width": 2}, hoverinfo="skip"
            )
        )
    symbol = "triangle-left" if not finding.ratio else "circle" if finding.decides else "circle-open"
    label = (
        f"{finding.expectation.metric} · {finding.expectation.phase}: {number(finding.ratio)}"
        f" {_interval(finding)}"
    )
    traces.append(
        go.Scatter(
            x=[ratio],
            y=[y],
            mode="markers",
            marker={"color": colour, "size": 10, "symbol": symbol, "line": {"width": 2, "color": colour}},
            hovertemplate=f"{escape(label)}<extra></extra>",
            cliponaxis=False,
        )
    )
    tick = {"symbol": "line-ns", "size": 12, "line": {"width": 1.5, "color": RULE}}
    return [
        *traces,
        go.Scatter(
            x=[_required_ratio(finding)],
            y=[y],
            mode="markers",
            hovertemplate="expected: %{x:.3g}<extra></extra>",
            marker=tick,
        ),
    ]


def _interval(finding: Finding) -> str:
    """A finding's interval with its level: [0.274, 0.285] (95 %)."""
    return f"{interval(finding.low, finding.high)} ({percent(finding.confidence)})"


def _required_ratio(finding: Finding) -> float:
    """The ratio that an expectation requires at least."""
    asked = finding.expectation.asked
    return 1 / asked if finding.expectation.direction is Direction.FALLS else asked


def _ticks(start: float, end: float) -> list[float]:
    """Ticks at 1, 2 and 5 of each decade, or at the decades alone where those would be too many."""
    decades = range(math.floor(math.log10(start)), math.ceil(math.log10(end)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    return [tick for decade in decades for step in steps if start <= (tick := step * 10.0**decade) <= end]


def over_time(
    title: str, unit: str, lines: Sequence[tuple[str, str, Series]], kernels: Sequence[str]
) -> Plot | None:
    """A plot of a counter over a phase: `lines` are (boot, kernel, series). None when no line moves."""
    if not any(samples.moves(line) for _, _, line in lines):
        return None
    traces = []
    for boot, kernel, line in lines:
        index, few = kernels.index(kernel), samples.thin(line, MOMENTS)
        traces.append(
            go.Scatter(
                x=[round(t, 2) for t, _ in few],
                y=[value for _, value in few],
                mode="lines",
                opacity=0.85,
                line={
                    "color": COLOURS[index % len(COLOURS)],
                    "width": 1.5,
                    "dash": DASHES[index % len(DASHES)],
                },
                hovertemplate=f"{escape(kernel)}<br>{escape(boot)}, %{{x}} s: %{{y}}<extra></extra>",
            )
        )
    height = 190
    drawn = figure(
        traces,
        height,
        (48, 10, 8, 36),
        hovermode="closest",
        xaxis=axis("s", nticks=6, rangemode="tozero"),
        yaxis=axis(nticks=5, rangemode="tozero"),
    )
    cells = tuple(
        (f"{t:.1f}", *(number(samples.at(line, t)) for _, _, line in lines))
        for t in _grid([line for _, _, line in lines])
    )
    table = ChartTable(
        caption=titled(title, unit),
        head=("s", *(f"{kernel} {boot}" for boot, kernel, _ in lines)),
        rows=cells,
    )
    sentence = joined(
        [(kernel, boot, number(line[-1][1])) for boot, kernel, line in lines if line], "{0} {1}: {2}"
    )
    return Plot(
        title=title,
        unit=unit,
        alt=f"{title} over time, a line for each boot. At the end {sentence}",
        figure=drawn,
        height=height,
        table=table,
    )


def heat(title: str, nodes: Mapping[int, Series], most: float) -> Plot | None:
    """MiB in use by node over a phase of one boot. `most` (pages) ends the colour scale of all its group."""
    if not nodes:
        return None
    names = [f"node {node}" for node in nodes]
    few = samples.thin(sorted({t for line in nodes.values() for t, _ in line}), MOMENTS)
    height = 22 * len(names) + 46
    trace = go.Heatmap(
        z=[[_mib(samples.at(line, t)) for t in few] for line in nodes.values()],
        x=[round(t, 2) for t in few],
        y=names,
        zmin=0,
        zmax=_mib(most),
        colorscale="Cividis",
        colorbar={"thickness": 9, "nticks": 4, "len": 1.1, "outlinewidth": 0},
        hovertemplate="%{y}, %{x} s: %{z} MiB<extra></extra>",
    )
    drawn = figure(
        [trace],
        height,
        (52, 6, 8, 36),
        xaxis=axis("s", nticks=6),
        yaxis=axis(autorange="reversed", fixedrange=True),
    )
    grid = _grid(list(nodes.values()))
    cells = tuple(
        (name, *(number(_mib(samples.at(line, t))) for t in grid))
        for name, line in zip(names, nodes.values(), strict=True)
    )
    table = ChartTable(caption=f"{title}, MiB", head=("node", *(f"{t:.1f} s" for t in grid)), rows=cells)
    sentence = joined([(row[0], row[1], row[-1]) for row in cells], "{0}: {1} at first, {2} at last")
    return Plot(
        title=title,
        unit="MiB",
        alt=f"Heat map of MiB in use by node over time. {sentence}",
        figure=drawn,
        height=height,
        table=table,
    )


def _mib(pages: float | None) -> float | None:
    return None if pages is None else round(pages * PAGE / (1 << 20), 1)


def _grid(lines: Sequence[Series]) -> list[float]:
    """Evenly spaced times for a table, from the first to the last of any line."""
    times = [t for line in lines for t, _ in line]
    start, end = min(times), max(times)
    return (
        [start + (end - start) * i / (TABLE_MOMENTS - 1) for i in range(TABLE_MOMENTS)]
        if end > start
        else [start]
    )


def flame(title: str, stacks: Stacks, unit: str) -> Plot | None:
    """A profile as a flame graph, callers below what they call; None without samples.

    `unit` is what was counted: samples, or instructions.
    """
    every = profile.samples(stacks)
    if not every:
        return None
    counted = f"{every:,} {unit}"
    boxes = profile.frames(stacks, least=LEAST_SHARE)
    colours = [FLAME_COLOURS[sum(box.function.encode()) % len(FLAME_COLOURS)] for box in boxes]
    trace = go.Icicle(
        ids=["all", *(str(index) for index in range(len(boxes)))],
        labels=["all", *(escape(box.function) for box in boxes)],
        parents=["", *("all" if box.parent is None else str(box.parent) for box in boxes)],
        values=[every, *(box.count for box in boxes)],
        branchvalues="total",
        sort=False,
        tiling={"orientation": "v", "flip": "y", "pad": 1},
        pathbar={"visible": False},
        textposition="middle left",
        hovertemplate="%{label}<br>%{percentRoot:.2%}, %{value} " + unit + "<extra></extra>",
        textfont={"color": "#1c1c1c", "size": 11},
        marker={"colors": ["#d9d4cc", *colours], "line": {"width": 0}},
        leaf={"opacity": 1},
    )
    height = 18 * (max((box.depth for box in boxes), default=0) + 1) + 12
    drawn = figure([trace], height, (2, 2, 4, 4), uniformtext={"mode": "hide", "minsize": 9})
    cells = tuple(
        (share.function, f"{share.total:.2%}", f"{share.own:.2%}")
        for share in profile.shares(stacks)[:LISTED]
    )
    table = ChartTable(
        caption=f"{title}: functions by their share of {counted} of busy CPUs;"
        f" flush_tlb* {profile.share_of(stacks, profile.FLUSH_TLB):.2%}",
        head=("function", "with what it calls", "itself"),
        rows=cells,
    )
    alt = f"Flame graph of {counted}. Largest: {joined(cells[:5], '{0} {1}')}"
    return Plot(
        title=title,
        unit=counted,
        alt=alt,
        figure=drawn,
        height=height,
        wide=True,
        table=table,
        callers=profile.callers(stacks, functions=CALLED),
    )
