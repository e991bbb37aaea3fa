# SPDX-License-Identifier: GPL-2.0-only
"""Sections -> the page: Jinja2 over templates/, everything escaped. Pure; `html` puts it on disk."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from numalab.core import paths
from numalab.report import chart, charts, sections, table
from numalab.report.sections import Section

STATIC = ("report.css", "report.js")
"""Files of templates/ that stand beside the page as they are."""


def environment() -> Environment:
    """Autoescaping whatever a template is called; a name that is not there is an error, not nothing."""
    found = Environment(loader=FileSystemLoader(paths.TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.filters |= {"number": chart.number, "interval": chart.interval, "show": table.show}
    found.filters |= {"asked": sections.asked, "deciding": sections.deciding, "middle": middle}
    return found


def render(found: Sequence[Section], made: str) -> str:
    """index.html; `made` says when, for a person."""
    return environment().get_template("report.html").render(sections=found, made=made, runs=sum(len(section.boots) for section in found))


def middle(values: Sequence[float]) -> float | None:
    """The mean of the boots' values; None without any."""
    return charts.mean(values).mean if values else None


def static(name: str) -> str:
    """One of STATIC."""
    env = environment()
    assert env.loader
    return env.loader.get_source(env, name)[0]
