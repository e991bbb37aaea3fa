# SPDX-License-Identifier: GPL-2.0-only
"""A plot as a value: Plotly's JSON, the table of its numbers, a sentence for those who do not see it. And how
numbers are written.

Pure. Inks that change with light, dark and print are left to templates/report.css, so no text or grid line
has a colour here. What is drawn is `figures`'.
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
"""Characters of a label inside a plot; a telephone has no more room. Its table has it whole."""


class ChartTable(Value):
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
    table: ChartTable


def number(value: float | None) -> str:
    """For a cell: whole numbers whole, others to four digits, absent as "-"."""
    if value is None or math.isnan(value):
        return ABSENT
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 10000 else f"{value:.4g}"


def interval(low: float | None, high: float | None) -> str:
    """For a cell: [low, high]; of a ratio one end may be missing."""
    if low is None and high is None:
        return ABSENT
    return f"[{number(0.0 if low is None else low)}, {number(math.inf if high is None else high)}]"


def titled(title: str, unit: str) -> str:
    """NUMA page range updates, pages."""
    return f"{title}, {unit}" if unit else title


def joined(rows: Sequence[Sequence[str]], form: str) -> str:
    """Rows as one sentence: `form` is filled with each one's cells."""
    return "; ".join(form.format(*row) for row in rows)


def note(y: float, text: str) -> dict[str, Any]:
    """A label over the plot, at the left of a row. It takes no width from the axis."""
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
    """Large numbers get a prefix, 1.5M, unless `more` says otherwise."""
    named = {"title": {"text": escape(title), "standoff": 4}} if title else {}
    return {**named, "zeroline": False, "automargin": True, "exponentformat": "SI", **more}


def rows(low: float, high: float, beside: Mapping[float, str]) -> dict[str, Any]:
    """An axis of rows; `beside` is each row's number at the right.

    They are labels of the axis, not annotations: Plotly measures those in the reader's font and widens the
    margin where they need more. They stand off as far as a mark reaches that is drawn at the plot's edge.
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
    """Checked by Plotly; as plain JSON data. `margin` is left, right, top, bottom."""
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
