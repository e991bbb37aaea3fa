# SPDX-License-Identifier: GPL-2.0-only
"""What dd writes; and what is told of perf stat's counts: means, their spread over the runs, and which are scaled."""

from __future__ import annotations

import subprocess

import pytest

from numalab.measure import runner
from numalab.model.values import SizeClass
from numalab.runs import counters

SIX = """# started on Mon Nov 23 12:35:47 2026

803.40;msec;task-clock;19.33%;803452;100.00;0.018;CPUs utilized
49;;page-faults;0.68%;803452;100.00;50.139;K/sec
77;;branches;2.50%;401726;50.00;1;K/sec
<not supported>;;cycles;0.00%;0;100.00;;
"""
ONE = """1.07;msec;task-clock;1066335;100.00;0.724;CPUs utilized
50;;page-faults;1066335;75.00;46.890;K/sec
<not supported>;;cycles;0;100.00;;
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            SIX,
            {
                "task-clock": 803.4,
                "task-clock.spread_percent": 19.33,
                "page-faults": 49,
                "page-faults.spread_percent": 0.68,
                "branches": 77,
                "branches.spread_percent": 2.5,
                "branches.scaled_percent": 50,
            },
        ),
        (ONE, {"task-clock": 1.07, "page-faults": 50, "page-faults.scaled_percent": 75}),
    ],
)
def test_counts(text: str, told: dict[str, float]) -> None:
    words = ["awk", "-F", ";", runner.load("writeback").TELL]
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=60, check=True)
    assert counters.workload_numbers(done.stdout) == told


@pytest.mark.parametrize(
    ("block", "written"), [({}, "bs=32k count=98304"), ({"block_kib": 4}, "bs=4k count=786432")]
)
def test_dd_writes_as_much_in_blocks_of_any_size(block: dict[str, int], written: str) -> None:
    module = runner.load("writeback")
    params = runner.parameters(module, SizeClass.QUICK, {"mib": 3072, **block})
    (dd,) = (phase for phase in module.phases(params) if phase.measured)
    assert f"/zeroes {written} && " in dd.command
