# SPDX-License-Identifier: GPL-2.0-only
"""benchmarks/grow.py without a guest: exponents, tables, plots, the machines that it makes, what fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import grow, speed
from benchmarks.grow import Cost
from numalab.host.domain import domain_xml
from numalab.model import catalog
from tests.unit.makers import spec

SQUARE = {size: Cost(seconds=size**2 / 100, cpu=0.3, lab=40.0 + size / 1000) for size in (10, 100, 1000)}


def test_the_exponent_is_that_of_a_power_law() -> None:
    assert grow.slope({10: 1.0, 100: 100.0, 1000: 10_000.0}) == pytest.approx(2)
    assert grow.slope({2: 8.0, 4: 4.0}) == pytest.approx(-1)


@pytest.mark.parametrize(
    "values", [{}, {10: 1.0}, {10: 1.0, 100: 1.1}, {10: 0.0, 100: 0.0}, {10: 0.0, 100: 5.0}]
)
def test_no_exponent_of_noise_or_of_one_size(values: dict[int, float]) -> None:
    assert grow.slope(values) is None


def test_what_does_not_grow_hides_growth_at_small_sizes_only() -> None:
    costs = {size: Cost(seconds=1.0 + size / 1000) for size in (10, 1000, 100_000)}
    whole, last = grow.exponents(costs)
    assert whole["seconds"] is not None
    assert last["seconds"] is not None
    assert whole["seconds"] < 0.6 < 0.8 < last["seconds"] < 1


def test_table_marks_what_is_worse_than_linear() -> None:
    head, *rows = grow.rows("runs", {"verdict": SQUARE})
    assert head == ("RUNS", "", "SECONDS", "CPU", "LAB MIB", "QEMU MIB", "DISK MIB")
    assert rows[0] == ("verdict", "10", "1", "0.3", "40.01", "-", "-")
    assert [row[:2] for row in rows[:3]] == [("verdict", "10"), ("verdict", "100"), ("verdict", "1,000")]
    assert rows[3] == ("verdict", "exponent", "2.00!", "-", "-", "-", "-")
    assert rows[4][:3] == ("verdict", "last", "2.00!")


def test_plot_has_each_column_that_was_measured(tmp_path: Path) -> None:
    flat = {size: Cost(cpu=0.356 + size / 1e6) for size in SQUARE}
    grow.plot({"runs": {"verdict": SQUARE}, "nodes": {"up": flat, "verdict": SQUARE}}, tmp_path / "plot.html")
    text = (tmp_path / "plot.html").read_text()
    assert text.count('"name":"verdict"') == 6
    assert text.count('"name":"up"') == 1
    assert text.count('"showlegend":true') == 2, "a name is in the legend once"
    colours = set(re.findall(r'"line":\{"color":"([^"]+)"\},"name":"(\w+)"', text))
    assert len(colours) == len(dict(colours)) == 2, "a name has one colour, and no other has it"
    assert text.count('"range":[-1,0]') == 2, "what does not grow looks flat: 0.356 and 0.357, and 0.3"


@pytest.mark.parametrize(
    ("nodes", "vcpus"),
    [(count, 16) for count in grow.GROWN["nodes"][0]] + [(4, count) for count in grow.GROWN["vcpus"][0]],
)
def test_its_machines_are_valid(nodes: int, vcpus: int, tmp_path: Path) -> None:
    (tmp_path / "made.yml").write_text(grow.topology_text(nodes, vcpus, 4096))
    shape = catalog.topology(str(tmp_path / "made.yml"))
    assert (len(shape.nodes), shape.vcpus, shape.memory) == (nodes, vcpus, 4 << 30)
    assert domain_xml(spec(shape)).count("<cell ") == nodes


def test_each_that_speed_offers_can_be_measured() -> None:
    assert tuple(grow.GROWN) == speed.WHAT


def test_no_size_between_least_and_most() -> None:
    with pytest.raises(
        SystemExit, match=r"--grow nodes: no size of 2, 4, 8, 16 is between --least and --most"
    ):
        next(grow.measure(["nodes"], least=100))


def test_a_command_that_fails_ends_it(lab_state: Path) -> None:
    with pytest.raises(SystemExit, match="there is no run of case xfsrepair"):
        grow.command("compare", "xfsrepair")


def test_the_memory_is_the_commands_own(lab_state: Path) -> None:
    ours = b"x" * (300 << 20)
    cost = grow.command("--version")
    assert cost.lab is not None
    assert cost.cpu is not None
    assert 5 < cost.lab < len(ours) / (1 << 20)
    assert cost.cpu > 0
