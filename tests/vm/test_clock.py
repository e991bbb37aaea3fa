# SPDX-License-Identifier: GPL-2.0-only
"""The virtual clock: what runs beside a guest changes none of its counts."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.clock import load
from tests.vm.conftest import Command

METRICS = ("numa_pte_updates", "numa_hint_faults")
SPREAD = math.log(1.1)
"""Boots of one kernel scatter by 1 to 2 % on this clock; on the host's, a busy host took them apart by a
factor of 3."""


@pytest.mark.minutes(20)
def test_company_changes_no_count(lab_py: Command) -> None:
    """Two boots alone, one after the other; then the same two side by side, on a host with busy loops."""
    alone = counts(lab_py, "--side-by-side", "1")
    with load("busy"):
        together = counts(lab_py, "--side-by-side", "2")
    assert alone.keys() == together.keys() == {0, 1}
    for boot, (seed, values) in alone.items():
        assert together[boot][0] == seed
        for metric, one, other in zip(METRICS, values, together[boot][1], strict=True):
            assert abs(math.log(one / other)) < SPREAD, (
                f"boot {boot}: {metric} {one} alone, {other} in company"
            )


def counts(lab_py: Command, *words: str) -> dict[int, tuple[int, list[int]]]:
    """By boot: its seed, and METRICS of its measured phase."""
    kernels = ("--kernels", "6.1,6.1", "--boots", "1", "--seed", "7")
    done = lab_py("run", "migratefail", *kernels, "--clock", "virtual", *words, timeout=600)
    if "it takes QEMU 8.1 or later" in done.stderr:
        pytest.skip("QEMU has no virtual clock: make setup QEMU=backports")
    assert done.returncode == 3, f"one boot of each tells nothing:\n{done.stdout}{done.stderr}"
    runs = [json.loads(path.read_text()) for path in lab_py.state.glob("runs/*/run.json")]
    newest = max(run["place"]["experiment"] for run in runs)
    return {
        run["place"]["boot"]: (
            run["guest"]["spec"]["seed"],
            [run["phases"][-1]["counters"]["vmstat"][metric] for metric in METRICS],
        )
        for run in runs
        if run["place"]["experiment"] == newest
    }
