# SPDX-License-Identifier: GPL-2.0-only
"""tools/answers.py: the pictures in docs/verdicts.md are of the boots in benchmarks/boots.json, and of what
the lab computes today."""

from __future__ import annotations

import re

import pytest
from lxml import etree

from tools import answers

NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def test_the_picture_has_what_is_found_today() -> None:
    rows = answers.rows()
    assert [(str(found.answer), found.grade and str(found.grade)) for _, found in rows] == [
        ("holds", None),
        ("holds", "size open"),
        ("cannot tell", None),
        ("cannot tell", None),
        ("does not hold", "no change"),
    ]
    drawn, kept = (
        [str(text.text) for text in etree.fromstring(source.encode()).iter("{*}text")]
        for source in (answers.picture(rows), answers.PICTURE.read_text())
    )
    assert drawn == kept, "tools/answers.py draws it again"


def test_the_axis() -> None:
    """No change and `by` are at the same places in every row; what lies beyond the ends stops there."""
    places = [
        (answers.along(1, found), answers.along(1 / found.expectation.asked, found))
        for _, found in answers.rows()
    ]
    assert len({(round(none, 6), round(by, 6)) for none, by in places}) == 1
    found = answers.rows()[0][1]
    assert answers.along(1e-9, found) == answers.RIGHT
    assert answers.along(1e9, found) == answers.LEFT


def test_the_chart_has_what_is_computed_today() -> None:
    drawn, kept = answers.chart(), answers.CHART.read_text()
    etree.fromstring(drawn.encode())
    assert NUMBER.sub("", drawn) == NUMBER.sub("", kept), "tools/answers.py draws it again"
    # scipy's versions differ in the last digits.
    assert [*map(float, NUMBER.findall(drawn))] == pytest.approx([*map(float, NUMBER.findall(kept))], abs=0.2)
    for scatter in answers.SCATTERS:
        told = [answers.least(scatter, boots) for boots in answers.NUMBERS]
        assert told == sorted(told, reverse=True), "more boots tell smaller effects"
        assert answers.CHART_ENDS[0] < told[-1] < told[0] < answers.CHART_ENDS[1]
