# SPDX-License-Identifier: GPL-2.0-only
"""The table of docs/seeds.md: which experiment stands for a case, what its row says, and that no case is left out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from numalab.analysis.verdict import verdict
from numalab.core.paths import ROOT
from numalab.measure import runner
from numalab.model import catalog
from numalab.model.case import Arm, Case
from numalab.model.run import Run
from tests.unit import synthetic
from tools import seeds


def boots(before: list[int], after: list[int], case: Case = synthetic.CASE) -> list[Run]:
    """An experiment with so many PTE updates in each boot."""
    arms = (
        (case.before, Arm.BEFORE, before),
        (case.after, Arm.AFTER, after),
    )
    return [
        synthetic.run(
            kernel,
            synthetic.phase("repair-bhash", vmstat={"numa_pte_updates": count}),
            arm=arm,
            boot=number,
            case=case,
        )
        for kernel, arm, counts in arms
        for number, count in enumerate(counts)
    ]


RUNS = [
    run.model_copy(update={"inputs": runner.input_hashes(run.workload)})
    for run in boots([300, 310, 290], [100, 104, 98])
]
"""Three boots of each kernel, whose workload is today's."""


def test_a_row() -> None:
    name, kernels, made, answer, decides, told = seeds.row(
        "xfsrepair", synthetic.CASE, (verdict(RUNS), RUNS[0], True)
    )
    assert name == "`xfsrepair`<br>slowscan-lkml-2015"
    assert kernels == "`6.1-slowscan-before` → `6.1`"
    assert made == "3 + 3, 4socket, tcg, 2026-11-21"
    assert answer == "**holds**"
    assert re.fullmatch(
        r"`numa_pte_updates` ×0\.336 \(0\.\d+ to 0\.\d+, 95 %\); falls by 1\.5: holds", decides
    )
    assert told == "-"


def test_a_row_without_an_experiment() -> None:
    assert "no complete experiment is stored" in seeds.row("nas", synthetic.CASE, None)


def test_what_there_is_to_know() -> None:
    case = synthetic.CASE
    size = case.sizes[seeds.SIZE]
    sizes = {seeds.SIZE: size.model_copy(update={"boots": 5})}
    expect = (case.expect[0].model_copy(update={"by": 2.0}),)
    harder = case.model_copy(update={"sizes": sizes, "expect": expect})
    assert seeds.notes(harder, RUNS[0], (3, 3), kernels_today=False) == (
        "a kernel was built anew since; the case has changed since; the case asks for 5 boots"
    )
    older = RUNS[0].model_copy(update={"inputs": {}})
    assert seeds.notes(case, older, (3, 3), kernels_today=True) == "the workload has changed since"


@pytest.mark.parametrize(
    "changes",
    [
        {"notes": "more of them"},
        {"source": "another"},
        {"expect": (synthetic.CASE.expect[0].model_copy(update={"why": "another reason"}),)},
        {
            "expect": (
                *synthetic.CASE.expect,
                synthetic.CASE.expect[0].model_copy(update={"metric": "numa_hint_faults", "releases": "4.*"}),
            )
        },
    ],
)
def test_texts_and_other_releases_are_no_change_of_a_case(changes: dict[str, Any]) -> None:
    today = synthetic.CASE.model_copy(update=changes)
    assert seeds.notes(today, RUNS[0], (3, 3), kernels_today=True) == ""


def test_effects_of_nothing() -> None:
    none_after = verdict(boots([300, 310, 290], [0, 0, 0])).findings[0]
    assert seeds.effect(none_after).startswith("`numa_pte_updates` ×0 (0 to ")
    none_before = verdict(boots([0, 0, 0], [100, 104, 98])).findings[0]
    assert "no ratio: 0 before" in seeds.effect(none_before)


def test_the_cases_own_kernels() -> None:
    assert seeds.own_kernels(RUNS, synthetic.CASE)
    assert not seeds.own_kernels(RUNS[:3], synthetic.CASE)
    assert not seeds.own_kernels(RUNS, synthetic.CASE.model_copy(update={"before": "6.1-all-before"}))


def test_a_broken_boot_gives_no_verdict() -> None:
    assert seeds.judge(RUNS) is not None
    assert seeds.judge([*RUNS[:-1], RUNS[-1].model_copy(update={"error": "the guest was lost"})]) is None


def test_a_table() -> None:
    first, second, third = seeds.markdown([["a"] * len(seeds.HEAD)]).splitlines()
    assert {line.count(" | ") for line in (first, second, third)} == {len(seeds.HEAD) - 1}


def test_the_page_has_every_case_and_every_table() -> None:
    page = (ROOT / "docs/seeds.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)`<br>", page, re.MULTILINE)
    assert sorted(rows) == catalog.names("testcases")
    assert [name for name in catalog.names("reference") if f"`{name}`" not in page] == []
