#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The time that indexing, listing and comparing take with ten thousand runs.

The runs are generated in a state directory of their own: a run.json of four phases each, as large as a real
one, without raw snapshots, which neither the index nor compare reads. Exits with 1 when a listing or a
comparison of one experiment takes more than 2 s, without Python's start.

    .venv/bin/python benchmarks/store.py [--runs 10000]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from numalab.core import state  # noqa: E402
from numalab.model.case import Arm  # noqa: E402
from numalab.model.values import jsonable  # noqa: E402
from numalab.report import comparison  # noqa: E402
from numalab.runs import compatibility, record  # noqa: E402
from numalab.runs import index as run_index  # noqa: E402
from tests.unit.makers import recorded  # noqa: E402
from tests.unit.synthetic import phase, run  # noqa: E402

LIMIT_SECONDS = 2.0
PER_EXPERIMENT = 10
CASES = ("xfsrepair", "autonuma", "threads", "dirtymap")
KERNELS = {Arm.BEFORE: "6.1-slowscan-before", Arm.AFTER: "6.1"}


def templates() -> list[str]:
    """A run.json of each arm, with capitals for the parts that differ between runs."""
    texts = []
    for arm, kernel in KERNELS.items():
        vmstat = {
            name: int(value)
            for name, value in (line.split() for line in recorded("vmstat-6.1.txt").splitlines())
        }
        nodes = {f"node{node}.vmstat": dict(list(vmstat.items())[:60]) for node in range(4)}
        phases = [
            one.model_copy(update={"counters": {**one.counters, **nodes}})
            for one in (
                phase(name, vmstat=vmstat)
                for name in ("fsmark", "repair-defaults", "repair-bhash", "repair-agstride")
            )
        ]
        one = run(
            kernel, *phases, arm=arm, experiment="EXPERIMENT", case_name="CASE", id="ID", started="STARTED"
        )
        texts.append(json.dumps(jsonable(one), indent=1))
    return texts


def make(runs: Path, count: int) -> None:
    """Write experiments of PER_EXPERIMENT runs, with the arms in turn, ten minutes apart."""
    texts = templates()
    for number in range(count):
        started = time.strftime("%Y%m%dT%H%M%S", time.gmtime(1.7e9 + 600 * number))
        experiment = number // PER_EXPERIMENT
        words = {
            "ID": f"{started}-{number}",
            "STARTED": started,
            "EXPERIMENT": f"e{experiment:05}",
            "CASE": CASES[experiment % len(CASES)],
        }
        text = texts[number % 2]
        for word, value in words.items():
            text = text.replace(f'"{word}"', f'"{value}"')
        (runs / words["ID"]).mkdir()
        (runs / words["ID"] / "run.json").write_text(text)


def timed(what: str, call: Callable[[], object]) -> float:
    """Call it, print its time, and return that in seconds."""
    begin, cpu = time.monotonic(), time.process_time()
    answer = call()
    seconds = time.monotonic() - begin
    print(f"{what:45} {seconds:8.3f} s {time.process_time() - cpu:8.3f} s   {answer}", flush=True)
    return seconds


def compared(folders: list[Path]) -> str:
    """Compare the chosen runs, as `compare` does."""
    runs = [record.summary(folder) for folder in folders]
    assert not compatibility.differences(runs)
    return (
        f"{len(runs)} runs, {sum(len(block.rows) for block in comparison.compare(comparison.columns(runs)))}"
        " rows"
    )


def command(*words: str) -> str:
    """Run a command as a process of its own, with Python's start."""
    done = subprocess.run([ROOT / "lab.py", *words], check=True, capture_output=True, text=True)
    return f"{len(done.stdout.splitlines())} lines"


def main() -> int:
    """Make, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10_000)
    count = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="numalab-benchmark-", dir="/var/tmp") as place:
        os.environ["LAB_STATE"] = place
        runs = state.folder("runs")
        make(runs, count)
        last = max(runs.iterdir()) / "run.json"
        print(
            f"{count} runs of {last.stat().st_size / 1e3:.0f} kB; load {os.getloadavg()[0]:.2f},"
            f" {os.cpu_count()} CPUs"
        )
        print(f"{'':45} {'elapsed':>10} {'own CPU':>10}")
        timed("index made anew", lambda: f"{len(run_index.find())} runs")
        limited = [
            timed("list all", lambda: f"{len(run_index.find())} runs"),
            timed(
                "list a case's, one kernel's, since a day",
                lambda: f"{len(run_index.find(case='xfsrepair', kernel='6.1', since='2024-01-01'))} runs",
            ),
            timed("compare a case's newest experiment", lambda: compared(run_index.choose(["xfsrepair"]))),
        ]
        timed("lab.py --help: Python's start and imports", lambda: command("--help"))
        timed("lab.py runs --case xfsrepair", lambda: command("runs", "--case", "xfsrepair"))
        timed("lab.py compare xfsrepair", lambda: command("compare", "xfsrepair"))
        hundred = [entry.folder for entry in run_index.find(case="xfsrepair")[-100:]]
        timed("compare 100 runs", lambda: compared(hundred))
        last.touch()
        limited.append(timed("list all when one run changed", lambda: f"{len(run_index.find())} runs"))
    return 1 if max(limited) > LIMIT_SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
