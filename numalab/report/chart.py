# SPDX-License-Identifier: GPL-2.0-only
"""A plot as a value: Plotly's JSON, the table of its numbers, and a sentence for readers who cannot see it.
Also how numbers are written.

Pure. Colours that differ between light, dark and print are in templates/report.css, so no text or grid line
has a colour here. Not here: particular plots (charts).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from numalab.model.values import Value

ABSENT = "-"
LABEL = 34
"""The most characters of a label inside a plot, for a telephone's width. The table has the whole label."""


class ChartTable(Value):
    """A table's cells as text. The first cell of a row is its header."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Plot(Value):
    """A figure as Plotly's JSON: {"data": […], "layout": {…}}; height in CSS pixels."""

    title: str
    unit: str = ""
    about: str = ""
    """What the title stands for: a formula, or a counter's own name."""
    alt: str
    figure: dict[str, Any]
    height: int
    wide: bool = False
    table: ChartTable
    callers: str = ""
    """A profile's lines, as perf report prints them (profile.callers)."""


def number(value: float | None) -> str:
    """A number for a cell: integers exactly, others with four digits, absent as "-"."""
    if value is None or math.isnan(value):
        return ABSENT
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 10000 else f"{value:.4g}"


def interval(low: float | None, high: float | None) -> str:
    """An interval for a cell: [low, high]; a ratio may lack one end."""
    if low is None and high is None:
        return ABSENT
    return f"[{number(0.0 if low is None else low)}, {number(math.inf if high is None else high)}]"


def titled(title: str, unit: str) -> str:
    """A plot's title with its unit: NUMA page range updates, pages."""
    return f"{title}, {unit}" if unit else title


def joined(rows: Sequence[Sequence[str]], form: str) -> str:
    """Rows as one sentence: `form` is filled with the cells of each."""
    return "; ".join(form.format(*row) for row in rows)


def note(y: float, text: str) -> dict[str, Any]:
    """A label above a row, at the left of the plot. It takes no width from the axis."""
    cut = text if len(text) <= LABEL else f"{text[: LABEL - 1]}…"
    return {
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": y,
        "yref": "y",
        "yanchor": "middle",
        "text": escape(cut),
        "showarrow": False,
        "font": {"size": 11},
    }


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """A value axis. Large numbers get an SI prefix, 1.5M, unless `more` says otherwise."""
    named = {"title": {"text": escape(title), "standoff": 4}} if title else {}
    return {**named, "zeroline": False, "automargin": True, "exponentformat": "SI", **more}


def rows(low: float, high: float, beside: Mapping[float, str]) -> dict[str, Any]:
    """An axis of rows; `beside` is the number at the right of each row.

    The numbers are labels of the axis, not annotations: Plotly measures those in the reader's font and widens
    the margin where they need more. Their distance leaves room for a mark at the plot's edge.
    """
    return axis(
        side="right",
        range=[low, high],
        fixedrange=True,
        showgrid=False,
        ticks="",
        ticklabelstandoff=8,
        tickvals=list(beside),
        ticktext=[escape(text) for text in beside.values()],
    )


def figure(
    traces: Sequence[Any], height: int, margin: tuple[int, int, int, int], **layout: Any
) -> dict[str, Any]:
    """A figure checked by Plotly, as plain JSON data. `margin` is left, right, top, bottom."""
    about = {
        "template": go.layout.Template(),  # Plotly's own is 7 kB in each figure.
        "height": height,
        "margin": dict(zip("lrtb", margin, strict=True)),
        "font": {"size": 11},
        "showlegend": False,
        "dragmode": False,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {
            "bgcolor": "#fffbe8",
            "bordercolor": "#555555",
            "font": {"color": "#1c1c1c", "size": 12},
        },
    }
    made: Mapping[str, Any] = go.Figure(data=list(traces), layout=about | layout).to_dict()
    return dict(made)
