# SPDX-License-Identifier: GPL-2.0-only
"""xfs_repair's cache statistics become the workload's own numbers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from numalab.measure import runner
from numalab.model.values import SizeClass
from numalab.runs import counters

SAID = """\
libxfs_bcache: 0x67e110
Hits = 1
Hash buckets with   7 entries      5 ( 50%)
Phase 7 - verify and correct link counts...
Hits = 9
libxfs_bcache: 0x67e110
Max supported entries = 808584
Hit ratio = 54.35
MRU 0 entries =   4667 (  0%)
Hash buckets with   8 entries  14387 ( 14%)
Hash buckets with >24 entries      2 (  0%)
done
"""


def test_the_statistics_of_its_last_phase(tmp_path: Path, program: Callable[[str, str], Path]) -> None:
    module = runner.load("xfsrepair")
    repair = next(
        phase.command
        for phase in module.phases(module.PARAMS[SizeClass.QUICK])
        if phase.name == "repair-bhash"
    )
    script = repair.replace("/root/", f"{tmp_path}/")
    (tmp_path / "said").write_text(SAID)
    program("xfs_repair", f"cat {tmp_path}/said")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert counters.workload_numbers(done.stdout) == {
        "bcache.max_supported_entries": 808584,
        "bcache.hit_ratio": 54.35,
        "bcache.mru_0_entries": 4667,
        "bcache.hash_buckets_with_8_entries": 14387,
        "bcache.hash_buckets_with_over_24_entries": 2,
    }

    program("xfs_repair", "echo 'fatal error' >&2; exit 4")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (4, "", "fatal error\n")
