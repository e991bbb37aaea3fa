"""Numbers -> Plotly figures, each with the table of its numbers and a sentence for those who do not see it.

Pure. Plotly does the drawing, in the reader's browser; here is said what is drawn. Inks that change with
light, dark and print are left to templates/report.css, so no text or grid line has a colour here. What
comes from a run is escaped: Plotly reads a few HTML tags in any text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from scipy import stats

from numalab import folded, moments
from numalab.case import CONFIDENCE, Answer, Direction, Finding
from numalab.folded import Stacks
from numalab.model import Value
from numalab.moments import Series

ABSENT = "-"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0609a", "#8c7a00", "#5a6fd0", "#b04a4a", "#6b7780")
"""Of kernels, the first the baseline. After Okabe and Ito (jfly.uni-koeln.de/color), the last five darker or added: 3:1 at least on white and on black."""
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "triangle-down", "pentagon", "star", "hexagon")
"""Of kernels: nobody needs to tell the colours apart."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px 2px", "2px 4px")
ANSWER_COLOURS = {Answer.HOLDS: "#1a7f4b", Answer.DOES_NOT_HOLD: "#c0392b", Answer.CANNOT_TELL: "#8a6d00"}
FLAME_COLOURS = ("#f2b880", "#f0a868", "#eec08c", "#f3cf9b", "#e9a270")
MOMENTS = 240
"""Points of a line, at most: what a plot of this width can show."""
TABLE_MOMENTS = 11
LEAST_SHARE = 0.002
"""Of a profile: a thinner box of a flame graph is less than two pixels wide."""
LISTED = 25
"""Functions in a profile's table."""
LABEL = 34
"""Characters of a label inside a plot; a telephone has no more room. Its table has it whole."""


Values = Sequence[tuple[str, float]]
"""What a boot is called, its value."""


class Table(Value):
    """Cells as text. The first cell of a row is its header."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Plot(Value):
    """A figure as Plotly's JSON: {"data": […], "layout": {…}}; height in CSS pixels."""

    title: str
    unit: str = ""
    about: str = ""
    """What the title's word means: a formula, a counter's own name."""
    alt: str
    figure: dict[str, Any]
    height: int
    wide: bool = False
    table: Table


class Mean(Value):
    """Of the boots' values: arithmetic mean and its interval by Student's t; no interval from one boot."""

    mean: float
    low: float | None = None
    high: float | None = None


def number(value: float | None) -> str:
    """For a cell: whole numbers whole, others to four digits, absent as "-"."""
    if value is None or math.isnan(value):
        return ABSENT
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 10000 else f"{value:.4g}"


def short(value: float) -> str:
    """For a label: 1557000 -> 1.56M."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}" if not value or abs(value) >= 0.001 else f"{value:.1e}"


def mean(values: Sequence[float]) -> Mean:
    """At least one value is needed."""
    middle = math.fsum(values) / len(values)
    if len(values) < 2:
        return Mean(mean=middle)
    error = float(stats.sem(values))
    if not error:
        return Mean(mean=middle, low=middle, high=middle)
    low, high = stats.t.interval(CONFIDENCE, len(values) - 1, loc=middle, scale=error)
    return Mean(mean=middle, low=float(low), high=float(high))


def dots(title: str, unit: str, values: Mapping[str, Mapping[str, Values]], kernels: Sequence[str], *, about: str = "") -> Plot | None:
    """A metric: `values` by phase and kernel. None when nobody has any.

    Each boot is a dot, the mean a tick across its interval; one row a kernel, kernels grouped by phase.
    """
    groups = [(phase, [(kernel, by[kernel]) for kernel in kernels if by.get(kernel)]) for phase, by in values.items()]
    groups = [(phase, rows) for phase, rows in groups if rows]
    if not groups:
        return None
    traces: list[go.Scatter] = []
    notes: list[dict[str, Any]] = []
    cells: list[tuple[str, ...]] = []
    start, end = _ends([[value for _, value in found] for _, rows in groups for _, found in rows])
    y = 0.0
    for phase, rows in groups:
        notes.append(_note(y, phase, x=0, anchor="left"))
        for kernel, found in rows:
            y -= 1
            index = kernels.index(kernel)
            middle = mean([value for _, value in found])
            traces += _row(y, kernel, found, middle, index, (start, end))
            notes.append(_note(y, short(middle.mean), x=1.01, anchor="left"))
            cells.append((phase, kernel, str(len(found)), number(middle.mean), interval(middle.low, middle.high), "  ".join(number(value) for _, value in found)))
        y -= 1
    height = int(-y * 17 + 26)
    layout = _layout(height, margin={"l": 6, "r": 54, "t": 6, "b": 20}, annotations=notes, showlegend=False)
    # A prefix suits large counts; 5 µ faults do not exist.
    form = "SI" if end >= 1 else "power"
    layout |= {"yaxis": {"visible": False, "range": [y + 0.5, 0.6], "fixedrange": True},
               "xaxis": _axis("", range=[start, end], fixedrange=True, nticks=5, exponentformat=form)}
    table = Table(caption=title, head=("phase", "kernel", "boots", "mean", f"{CONFIDENCE:.0%} interval", f"each boot{f', {unit}' if unit else ''}"), rows=tuple(cells))
    said = "; ".join(f"{cell[0]}, {cell[1]}: mean {cell[3]}, interval {cell[4]}, {cell[2]} boots" for cell in cells)
    return Plot(title=title, unit=unit, about=about, alt=f"{title}, each boot as a dot. {said}", figure=_figure(traces, layout), height=height, table=table)


def _ends(columns: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Of an axis from 0 over all dots and, as far as they do not dwarf them, all intervals; a little more, so that no dot is cut."""
    most, least = max(0.0, *(max(column) for column in columns)), min(0.0, *(min(column) for column in columns))
    found = [mean(column) for column in columns]
    high = min(max(most, *(one.high or most for one in found)), 1.6 * most) or (0.0 if least else 1.0)
    low = max(min(least, *(one.low or least for one in found)), 1.6 * least)
    room = 0.03 * (high - low)
    return low - room, high + room


def _row(y: float, kernel: str, values: Values, middle: Mean, index: int, ends: tuple[float, float]) -> list[go.Scatter]:
    """A kernel's line with its interval, its mean, its dots. An interval ends where the plot does; its table has it whole."""
    colour = COLOURS[index % len(COLOURS)]
    traces = []
    if middle.low is not None and middle.high is not None:
        span = [max(middle.low, ends[0]), min(middle.high, ends[1])]
        traces.append(go.Scatter(x=span, y=[y, y], mode="lines", line={"color": colour, "width": 2}, hoverinfo="skip"))
    traces.append(go.Scatter(x=[middle.mean], y=[y], mode="markers", hoverinfo="skip",
                             marker={"symbol": "line-ns", "size": 13, "line": {"color": colour, "width": 2.5}}))
    traces.append(go.Scatter(
        x=[value for _, value in values], y=[y] * len(values), mode="markers", hovertemplate=f"{escape(kernel)}<br>%{{customdata}}: %{{x}}<extra></extra>",
        customdata=[escape(boot) for boot, _ in values], cliponaxis=False, marker={"color": colour, "symbol": SYMBOLS[index % len(SYMBOLS)], "size": 8, "opacity": 0.75},
    ))
    return traces


def effects(findings: Sequence[Finding]) -> Plot | None:
    """after / before of each finding with its interval, on a log axis; None when no finding has a ratio."""
    shown = [finding for finding in findings if finding.ratio is not None]
    known = [value for finding in shown for value in (finding.ratio, finding.low, finding.high, _asked(finding)) if value and 0 < value < math.inf]
    if not shown:
        return None
    start, end = min([*known, 0.9]) / 1.6, max([*known, 1.1]) * 1.6
    traces: list[go.Scatter] = []
    notes: list[dict[str, Any]] = []
    for row, finding in enumerate(shown):
        y, colour = -2.0 * row - 1, ANSWER_COLOURS[finding.answer]
        ratio, low, high = (min(max(value, start), end) if value is not None else None for value in (finding.ratio, finding.low, finding.high))
        if low is not None and high is not None:
            traces.append(go.Scatter(x=[low, high], y=[y, y], mode="lines", line={"color": colour, "width": 2}, hoverinfo="skip"))
        outside = finding.ratio is not None and not start <= finding.ratio <= end
        symbol = "triangle-left" if outside else "circle" if finding.decides else "circle-open"
        traces.append(go.Scatter(x=[ratio], y=[y], mode="markers", marker={"color": colour, "size": 10, "symbol": symbol, "line": {"width": 2, "color": colour}},
                                 hovertemplate=f"{escape(_named(finding))}: {number(finding.ratio)} {interval(finding.low, finding.high)}<extra></extra>"))
        traces.append(go.Scatter(x=[_asked(finding)], y=[y], mode="markers", hovertemplate="asked: %{x:.3g}<extra></extra>",
                                 marker={"symbol": "line-ns", "size": 16, "line": {"width": 1.5, "color": "#888888"}}))
        notes += [_note(y + 0.85, _named(finding), x=0, anchor="left"), _note(y, number(finding.ratio), x=1.01, anchor="left")]
    ticks = _ticks(start, end)
    height = 34 * len(shown) + 52
    layout = _layout(height, margin={"l": 6, "r": 50, "t": 6, "b": 40}, annotations=notes, showlegend=False)
    layout |= {"yaxis": {"visible": False, "range": [-2.0 * len(shown) - 0.2, 0.4], "fixedrange": True},
               "xaxis": _axis("after / before", type="log", range=[math.log10(start), math.log10(end)], fixedrange=True,
                             tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks]),
               "shapes": [{"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 1.5, "color": "#888888"}}]}
    cells = tuple((finding.expectation.metric, finding.expectation.phase, number(finding.ratio), interval(finding.low, finding.high), number(_asked(finding)),
                   finding.answer.value) for finding in shown)
    table = Table(caption="effects", head=("metric", "phase", "after / before", f"{CONFIDENCE:.0%} interval", "asked", "answer"), rows=cells)
    said = "; ".join(f"{cell[0]} in {cell[1]}: {cell[2]}, interval {cell[3]}, {cell[5]}" for cell in cells)
    return Plot(title="Effect of each expectation", alt=f"Ratio of after to before. {said}", figure=_figure(traces, layout), height=height, wide=True, table=table)


def _ticks(start: float, end: float) -> list[float]:
    """1, 2, 5 of each decade, or the decades alone where those would be many."""
    decades = range(math.floor(math.log10(start)), math.ceil(math.log10(end)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    return [tick for decade in decades for step in steps if start <= (tick := step * 10.0**decade) <= end]


def _named(finding: Finding) -> str:
    return f"{finding.expectation.metric} · {finding.expectation.phase}"


def _asked(finding: Finding) -> float:
    """The ratio that an expectation asks for, at least."""
    by = finding.expectation.by
    return 1 / by if finding.expectation.direction is Direction.FALLS else by


def over_time(title: str, unit: str, lines: Sequence[tuple[str, str, Series]], kernels: Sequence[str]) -> Plot | None:
    """A counter over a phase: `lines` are (boot, kernel, series), one a boot. None when nothing moves in any."""
    if not any(moments.moves(line) for _, _, line in lines):
        return None
    traces = []
    for boot, kernel, line in lines:
        index = kernels.index(kernel)
        few = moments.thin(line, MOMENTS)
        traces.append(go.Scatter(
            x=[round(t, 2) for t, _ in few], y=[value for _, value in few], mode="lines", hovertemplate=f"{escape(kernel)}<br>{escape(boot)}: %{{y}}<extra></extra>",
            line={"color": COLOURS[index % len(COLOURS)], "width": 1.5, "dash": DASHES[index % len(DASHES)]}, opacity=0.85,
        ))
    height = 190
    layout = _layout(height, margin={"l": 48, "r": 10, "t": 8, "b": 36}, showlegend=False, hovermode="closest")
    layout |= {"xaxis": _axis("s", nticks=6, rangemode="tozero"), "yaxis": _axis("", nticks=5, rangemode="tozero", exponentformat="SI")}
    grid = _grid([line for _, _, line in lines])
    rows = tuple((f"{t:.1f}", *(number(moments.at(line, t)) for _, _, line in lines)) for t in grid)
    table = Table(caption=f"{title}{f', {unit}' if unit else ''}", head=("s", *(f"{kernel} {boot}" for boot, kernel, _ in lines)), rows=rows)
    ends = "; ".join(f"{kernel} {boot}: {number(line[-1][1]) if line else ABSENT}" for boot, kernel, line in lines)
    return Plot(title=title, unit=unit, alt=f"{title} over time, a line for each boot. At the end {ends}", figure=_figure(traces, layout), height=height, table=table)


def heat(title: str, nodes: Mapping[int, Series], most: float) -> Plot | None:
    """MiB in use by node over a phase of one boot; `most` (pages) ends the colour scale, the same for all plots that stand together."""
    if not nodes:
        return None
    names = [f"node {node}" for node in nodes]
    times = sorted({t for line in nodes.values() for t, _ in line})
    few = moments.thin(times, MOMENTS)
    z = [[_mib(moments.at(line, t)) for t in few] for line in nodes.values()]
    height = 22 * len(names) + 46
    trace = go.Heatmap(z=z, x=[round(t, 2) for t in few], y=names, zmin=0, zmax=_mib(most), colorscale="Cividis", hovertemplate="%{y}, %{x} s: %{z} MiB<extra></extra>",
                       colorbar={"thickness": 9, "nticks": 4, "len": 1.1, "outlinewidth": 0})
    layout = _layout(height, margin={"l": 52, "r": 6, "t": 8, "b": 36})
    layout |= {"xaxis": _axis("s", nticks=6), "yaxis": {"autorange": "reversed", "fixedrange": True}}
    grid = _grid(list(nodes.values()))
    rows = tuple((name, *(number(_mib(moments.at(line, t))) for t in grid)) for name, line in zip(names, nodes.values(), strict=True))
    table = Table(caption=f"{title}, MiB", head=("node", *(f"{t:.1f} s" for t in grid)), rows=rows)
    said = "; ".join(f"{row[0]}: {row[1]} at first, {row[-1]} at last" for row in rows)
    return Plot(title=title, unit="MiB", alt=f"Heat map of MiB in use by node over time. {said}", figure=_figure([trace], layout), height=height, table=table)


def flame(title: str, stacks: Stacks) -> Plot | None:
    """A profile as a flame graph, callers below what they call; None without samples."""
    every = folded.samples(stacks)
    if not every:
        return None
    boxes = folded.frames(stacks, least=LEAST_SHARE)
    trace = go.Icicle(
        ids=["all", *(str(index) for index in range(len(boxes)))], labels=["all", *(escape(box.function) for box in boxes)],
        parents=["", *("all" if box.parent is None else str(box.parent) for box in boxes)], values=[every, *(box.count for box in boxes)],
        branchvalues="total", sort=False, tiling={"orientation": "v", "flip": "y", "pad": 1}, pathbar={"visible": False}, textposition="middle left",
        hovertemplate="%{label}<br>%{percentRoot:.2%}, %{value} samples<extra></extra>", textfont={"color": "#1c1c1c", "size": 11},
        marker={"colors": ["#d9d4cc", *(FLAME_COLOURS[sum(box.function.encode()) % len(FLAME_COLOURS)] for box in boxes)], "line": {"width": 0}},
    )
    height = 18 * (max((box.depth for box in boxes), default=0) + 1) + 12
    layout = _layout(height, margin={"l": 2, "r": 2, "t": 4, "b": 4}, uniformtext={"mode": "hide", "minsize": 9})
    shares = folded.shares(stacks)[:LISTED]
    rows = tuple((share.function, f"{share.total:.2%}", f"{share.own:.2%}") for share in shares)
    table = Table(caption=f"{title}: functions by share of {every} samples", head=("function", "with what it calls", "itself"), rows=rows)
    said = "; ".join(f"{row[0]} {row[1]}" for row in rows[:5])
    return Plot(title=title, unit=f"{every} samples", alt=f"Flame graph of {every} samples. Largest: {said}", figure=_figure([trace], layout), height=height, wide=True, table=table)


def _mib(pages: float | None) -> float | None:
    return None if pages is None else round(pages * 4096 / (1 << 20), 1)


def _grid(lines: Sequence[Series]) -> list[float]:
    """Evenly spaced moments for a table, from the first to the last of any line."""
    times = [t for line in lines for t, _ in line]
    start, end = min(times), max(times)
    return [start + (end - start) * i / (TABLE_MOMENTS - 1) for i in range(TABLE_MOMENTS)] if end > start else [start]


def interval(low: float | None, high: float | None) -> str:
    """For a cell: [low, high]."""
    return ABSENT if low is None or high is None else f"[{number(low)}, {number(high)}]"


def _note(y: float, text: str, *, x: float, anchor: str) -> dict[str, Any]:
    """A label at a row, over the whole width: it takes none from the axis."""
    cut = text if len(text) <= LABEL else f"{text[:LABEL - 1]}…"
    return {"x": x, "xref": "paper", "xanchor": anchor, "y": y, "yref": "y", "yanchor": "middle", "text": escape(cut), "showarrow": False, "font": {"size": 11}}


def _axis(title: str, **more: Any) -> dict[str, Any]:
    named = {"title": {"text": escape(title), "standoff": 4}} if title else {}
    return named | {"zeroline": False, "automargin": True, "exponentformat": "SI"} | more


def _layout(height: int, **more: Any) -> dict[str, Any]:
    # An empty template: Plotly's own is 7 kB in each figure.
    return {"template": go.layout.Template(), "height": height, "font": {"size": 11}, "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
            "dragmode": False, "hoverlabel": {"bgcolor": "#fffbe8", "bordercolor": "#555555", "font": {"color": "#1c1c1c", "size": 12}}, **more}


def _figure(traces: Sequence[Any], layout: Mapping[str, Any]) -> dict[str, Any]:
    """Checked by Plotly; as plain JSON data."""
    figure: dict[str, Any] = go.Figure(data=list(traces), layout=dict(layout)).to_dict()
    return figure
