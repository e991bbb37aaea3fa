# SPDX-License-Identifier: GPL-2.0-only
"""Plots: dots, means and intervals by hand, effects at the edges, absent values, escaping."""

from __future__ import annotations

import json
from typing import Any

import pytest

from numalab.model.verdict import Answer
from numalab.report import chart, charts
from numalab.report.chart import Plot
from numalab.runs import profile as runs_profile
from numalab.runs import samples as runs_samples
from tests.unit.reports import HOSTILE, case, finding, profile, samples

KERNELS = ["before", "after"]


def boots(*values: float) -> list[tuple[str, float]]:
    return [(f"boot {number}", value) for number, value in enumerate(values, 1)]


def drawn(found: Plot | None) -> list[dict[str, Any]]:
    """The traces of a plot."""
    assert found
    traces: list[dict[str, Any]] = found.figure["data"]
    return traces


def test_mean_and_interval_by_hand() -> None:
    """1557 1721 1590: mean 1622.67, s 86.73; t(0.975, 2) = 4.3027, so ± 215.4."""
    found = charts.mean([1557, 1721, 1590])
    assert found.mean == pytest.approx(1622.667, abs=1e-3)
    assert found.low == pytest.approx(1407.2, abs=0.1)
    assert found.high == pytest.approx(1838.1, abs=0.1)
    assert charts.mean([3.0]) == charts.Mean(mean=3.0), "one boot has no interval"
    assert charts.mean([98.0, 98.0, 98.0]) == charts.Mean(mean=98.0, low=98.0, high=98.0)


def test_numbers() -> None:
    assert [
        chart.number(value) for value in (None, float("nan"), float("inf"), 0, 98.0, 0.06051, 123456.7)
    ] == ["-", "-", "∞", "0", "98", "0.06051", "123457"]
    assert [chart.interval(*ends) for ends in ((None, None), (1, 2), (None, 0.4), (2, None))] == [
        "-",
        "[1, 2]",
        "[0, 0.4]",
        "[2, ∞]",
    ]


def test_every_boot_is_a_dot_and_the_mean_a_tick() -> None:
    found = charts.dots(
        "pgfault", "", {"touch": {"before": boots(1557, 1721, 1590), "after": boots(98, 98, 98)}}, KERNELS
    )
    assert found
    assert [trace["x"] for trace in drawn(found) if "customdata" in trace] == [
        [1557, 1721, 1590],
        [98, 98, 98],
    ]
    ticks = [trace["x"][0] for trace in drawn(found) if trace.get("marker", {}).get("symbol") == "line-ns"]
    assert ticks == [pytest.approx(1622.667, abs=1e-3), 98]
    assert found.table.rows[0] == ("touch", "before", "3", "1623", "[1407, 1838]", "1557  1721  1590")
    assert "touch, before: mean 1623, interval [1407, 1838], boots 3" in found.alt


def test_a_single_boot_has_no_interval() -> None:
    found = charts.dots("pgfault", "", {"touch": {"before": boots(42)}}, KERNELS)
    assert found
    assert not [trace for trace in drawn(found) if trace["mode"] == "lines"]
    assert found.table.rows == (("touch", "before", "1", "42", "-", "42"),)


def test_absent_kernels_and_phases_have_no_row() -> None:
    found = charts.dots(
        "pgfault",
        "",
        {"touch": {"before": boots(1), "after": []}, "other": {"before": [], "after": []}},
        KERNELS,
    )
    assert found
    assert [row[:2] for row in found.table.rows] == [("touch", "before")]
    assert charts.dots("pgfault", "", {"touch": {"before": [], "after": []}}, KERNELS) is None


@pytest.mark.parametrize("values", [(0, 0), (5, 500), (-3, -1), (-2, 4), (1e-6, 2e-6)])
def test_the_axis_holds_every_dot_and_nothing(values: tuple[float, ...]) -> None:
    found = charts.dots("x", "", {"p": {"before": boots(*values)}}, KERNELS)
    assert found
    start, end = found.figure["layout"]["xaxis"]["range"]
    assert start < min(0, *values) <= max(0, *values) < end


def test_wide_intervals_do_not_dwarf_the_dots() -> None:
    """Two boots: t is 12.7, and the interval many times as wide as the distance of the dots."""
    found = charts.dots("x", "", {"p": {"before": boots(10, 20)}}, KERNELS)
    assert found
    assert found.figure["layout"]["xaxis"]["range"][1] < 2 * 20
    assert found.table.rows[0][4] == "[-48.53, 78.53]", "the table has it whole"


def test_effects() -> None:
    of = case(more=[{"metric": "pgfault", "phase": "touch", "direction": "rises", "decides": False}])
    found = charts.effects(
        [
            finding(of, 0, [9, 9], [1, 1], Answer.HOLDS, (0.11, 0.05, 0.25)),
            finding(of, 1, [], [], Answer.CANNOT_TELL, None),
        ]
    )
    assert found
    assert found.table.rows == (
        ("numa_pte_updates", "touch", "0.11", "[0.05, 0.25] (95 %)", "0.5", "holds"),
    ), "without a ratio there is nothing to draw"
    odds = charts.effects(
        [finding(of, 0, [9, 9], [1, 1], Answer.HOLDS, (0.11, 0.05, 0.25)).model_copy(update={"odds": True})]
    )
    assert odds
    assert odds.table.rows[0][2] == "odds 0.11"
    assert charts.effects([finding(of, 1, [], [], Answer.CANNOT_TELL, None)]) is None


@pytest.mark.parametrize(
    ("ratio", "low", "high"),
    [(0.0, None, 0.4), (0.0, 0.0, 0.0), (3.0, 1.0, None), (1.0, 1.0, 1.0), (1e-7, 1e-9, 1e5)],
)
def test_effects_at_the_edge_stay_in_the_plot(ratio: float, low: float | None, high: float | None) -> None:
    one = finding(case(), 0, [9], [0], Answer.HOLDS, (1.0, 1.0, 1.0)).model_copy(
        update={"ratio": ratio, "low": low, "high": high}
    )
    found = charts.effects([one])
    assert found
    axis = found.figure["layout"]["xaxis"]
    values = [value for trace in drawn(found) for value in trace["x"]]
    assert all(10 ** axis["range"][0] * 0.999 <= value <= 10 ** axis["range"][1] * 1.001 for value in values)
    assert axis["tickvals"]


def test_over_time() -> None:
    lines = [
        ("boot 1", "before", runs_samples.series(samples({"pgfault": 100}), "pgfault")),
        ("boot 2", "after", [(0.0, 0.0), (1.0, 3.0)]),
    ]
    found = charts.over_time("pgfault", "", lines, KERNELS)
    assert found
    assert [trace["line"]["dash"] for trace in drawn(found)] == list(charts.DASHES[:2]), (
        "kernels differ in more than colour"
    )
    assert found.table.head == ("s", "before boot 1", "after boot 2")
    assert found.table.rows[-1][1:] == ("100", "3")
    assert (
        charts.over_time("pgfault", "", [("boot 1", "before", [(0.0, 0.0), (1.0, 0.0)])], KERNELS) is None
    ), "what does not move is not drawn"


def test_long_series_are_thinned() -> None:
    found = charts.over_time(
        "x", "", [("boot 1", "before", [(float(t), float(t)) for t in range(5000)])], KERNELS
    )
    assert len(drawn(found)[0]["x"]) == charts.MOMENTS
    assert drawn(found)[0]["x"][-1] == 4999


def test_heat() -> None:
    nodes = runs_samples.pages(samples({}))
    found = charts.heat("6.1, boot 1", nodes, 262144)
    assert found
    trace = drawn(found)[0]
    assert trace["y"] == ["node 0", "node 1", "node 2", "node 3"]
    assert trace["zmax"] == 1024.0, "262144 pages of 4 KiB are 1024 MiB"
    assert len(trace["z"]) == 4
    assert len(trace["z"][0]) == len(trace["x"])
    assert found.table.rows[0][0] == "node 0"
    assert charts.heat("6.1, boot 1", {}, 0) is None


def test_flame() -> None:
    found = charts.flame("6.1", runs_profile.parse(profile(560)), "samples")
    assert found
    trace = drawn(found)[0]
    assert trace["labels"][0] == "all"
    assert trace["values"][0] == 1000
    assert len(trace["ids"]) == len(set(trace["ids"])) == len(trace["parents"]) == len(trace["values"])
    assert set(trace["parents"][1:]) <= set(trace["ids"])
    assert ("flush_tlb_page", "56.00%", "0.00%") in found.table.rows
    assert found.table.caption.endswith("; flush_tlb* 56.00%"), "each sample once, whatever of it flushes"
    assert ("default_send_IPI_mask_sequence_phys", "56.00%", "56.00%") in found.table.rows
    assert charts.flame("6.1", {}, "samples") is None


def brightness(colour: str, factor: float = 1.0) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [min(1.0, int(colour[at : at + 2], 16) / 255 * factor) for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colour", [*charts.COLOURS, *charts.ANSWER_COLOURS.values(), charts.RULE])
def test_colours_are_seen_on_white_and_on_dark(colour: str) -> None:
    """3:1, as WCAG wants for graphics; report.css brightens them by 1.4 on its dark background, #15171a."""
    assert 1.05 / (brightness(colour) + 0.05) >= 3
    assert (brightness(colour, 1.4) + 0.05) / (brightness("#15171a") + 0.05) >= 3


def test_what_comes_from_a_run_is_no_html() -> None:
    """Plotly would show <b> in bold and make <a> a link."""
    found = [
        charts.dots(HOSTILE, "", {HOSTILE: {HOSTILE: [(HOSTILE, 1.0)]}}, [HOSTILE]),
        charts.over_time(HOSTILE, "", [(HOSTILE, HOSTILE, [(0.0, 0.0), (1.0, 1.0)])], [HOSTILE]),
        charts.flame(HOSTILE, {(HOSTILE, "std::vector<int>"): 5}, "samples"),
    ]
    for one in found:
        assert one
        text = json.dumps(one.figure)
        assert "<script" not in text
        assert "<img" not in text
        assert "<int>" not in text
