# SPDX-License-Identifier: GPL-2.0-only
"""No text of a plot or drawing is cut off, on screens of 1280 and 390 pixels or paper, or overlaps a mark."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from numalab.experiment import judging
from numalab.model.case import Arm
from numalab.model.topology import Topology
from numalab.model.verdict import Answer
from numalab.report import html
from numalab.runs import index as run_index
from numalab.runs import record
from tests.browser.conftest import Page
from tests.unit import reports
from tests.unit.makers import RECORDED

MEDIA = (("screen", 1280), ("screen", 390), ("print", 680))
"""CSS pixels; A4 has 680 within report.css's margins."""
CUT = """
return [...document.querySelectorAll(".plot, .machine svg")].flatMap((plot) => [...plot.querySelectorAll("text")].map((text) => {
  const {left, right, top, bottom, width} = text.getBoundingClientRect();
  const around = [plot, text.ownerSVGElement].map((one) => one.getBoundingClientRect());
  const box = text.closest("g")?.querySelector(":scope > rect, :scope > path.surface");
  if (box) around.push(box.getBoundingClientRect());
  const out = Math.max(...around.flatMap((one) => [one.left - left, right - one.right, one.top - top, bottom - one.bottom]));
  return {plot: plot.id || plot.getAttribute("aria-labelledby"), text: text.textContent, out: width ? out : 0};
})).filter((text) => text.out > 0.5);"""
"""Texts that exceed their plot, their SVG, or the box that they label, by more than half a pixel."""
ON_MARKS = """
return [...document.querySelectorAll(".plot")].flatMap((plot) => {
  const marks = [...plot.querySelectorAll(".point, .js-line")].map((one) => one.getBoundingClientRect());
  return [...plot.querySelectorAll(".ytick text")].filter((text) => {
    const one = text.getBoundingClientRect();
    return marks.some((mark) => one.left < mark.right && mark.left < one.right && one.top < mark.bottom && mark.top < one.bottom);
  }).map((text) => ({plot: plot.id, text: text.textContent}));
});"""
"""Numbers beside a plot that overlap a mark."""


def recorded(place: Path) -> Path:
    """A report of the runs in tests/recorded."""
    with tarfile.open(RECORDED / "runs" / "1dc3791.tar.xz") as archive:
        archive.extractall(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_STATE", str(place / "state"))
        runs = [(record.read(entry.folder), entry.folder) for entry in run_index.find()]
        cases = sorted({run.place.case_name for run, _ in runs if run.place})
        verdicts = [
            found
            for name in cases
            for found in judging.verdicts(
                [run for run, _ in runs if run.place and run.place.case_name == name]
            )
        ]
        return html.write(runs, verdicts, place / "report").parent


def long(place: Path) -> Path:
    """A report of runs with long labels: small ratios, large and negative values, many nodes, CPU lists."""
    arms = (Arm.BEFORE, Arm.AFTER, Arm.AFTER, Arm.BEFORE)
    of = reports.case(
        more=[
            {"metric": name, "phase": "touch", "direction": "falls"}
            for name in ("pgfault", "pgmajfault", "numa_hint_faults", "numa_hit")
        ]
    )
    ratios = (
        (0.06051, 0.05261, 0.06952),
        (0.001234, 0.001, 0.1),
        (1.235e-05, 1e-5, 2e-5),
        (123456.7, 1e5, 2e5),
        (0.0, 0.0, 0.4),
    )
    found = [
        reports.finding(of, index, (9, 9), (1, 1), Answer.HOLDS, ratio) for index, ratio in enumerate(ratios)
    ]
    values = {
        "numa_pte_updates": 1.557e15,
        "pgfault": 1.2e6,
        "numa_hint_faults": 9.99e11,
        "numa_hint_faults_local": 3,
        "pgmajfault": 8,
    }
    told = {"output:drift": -0.00123456, "output:loss": -1.557e6, "output:tiny": 3.18e-13}
    runs, verdicts = [], []
    for count in (4, 16):
        nodes = [
            {"cpus": ",".join(str(cpu) for cpu in range(node, 12 * count, count)), "memory": "1GiB"}
            for node in range(count)
        ]
        shape = Topology.model_validate(
            {"description": "CPUs in turn", "vcpus": 12 * count, "memory": f"{count}GiB", "nodes": nodes}
        )
        some = []
        for boot, arm in enumerate(arms):
            counted = {name: value * (1 + boot / 1e3) for name, value in (values | told).items()}
            kernel = of.before if arm is Arm.BEFORE else of.after
            some.append(
                reports.run(
                    kernel,
                    {"touch": counted},
                    boot=boot,
                    arm=arm,
                    of=of,
                    name=f"nodes{count}",
                    topology=shape,
                )
            )
        verdicts.append(reports.verdict(some, found, Answer.HOLDS))
        sampled = {"touch": reports.samples(values, nodes=count)}
        runs += [
            (run, reports.put(run, place / "runs", sampled=sampled, folded={"touch": reports.profile(560)}))
            for run in some
        ]
    return html.write(runs, verdicts, place / "report").parent


@pytest.fixture(scope="module", params=[recorded, long], ids=lambda made: str(made.__name__))
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Replaces conftest's report, which test_report looks at."""
    made: Path = request.param(tmp_path_factory.mktemp("plots"))
    return made


@pytest.mark.parametrize(("medium", "width"), MEDIA)
def test_no_text_is_cut_off(page: Page, medium: str, width: int) -> None:
    page.show(width=width, phone=width < 600)
    if medium == "print":
        page.cdp("Emulation.setEmulatedMedia", media="print")
        page.js("dispatchEvent(new Event('beforeprint'))")
    else:
        page.draw()
    assert page.js(
        "return [...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('text'))"
    ), "each is drawn"
    assert not page.js(CUT)
    assert not page.js(ON_MARKS)
