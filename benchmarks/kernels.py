#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The time that a kernel variant and a known kernel take, against a full build in the same run on the same
machine.

Builds in a state directory of its own, so it takes as long as a first build does (7 minutes on two quiet
cores). Exits with 1 when a variant takes more than 20 s or a known kernel more than 1 s.

    .venv/bin/python benchmarks/kernels.py [--stock 6.1] [VARIANT...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIANT_SECONDS, KNOWN_SECONDS = 20.0, 1.0


def timed(name: str, environment: dict[str, str]) -> float:
    """Seconds that `lab.py kernel build NAME` takes."""
    begin = time.monotonic()
    subprocess.run(
        [ROOT / "lab.py", "kernel", "build", name], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    return time.monotonic() - begin


def main() -> int:
    """Build, and print a line for each kernel."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stock", default="6.1")
    parser.add_argument(
        "variants", nargs="*", default=["6.1-slowscan-before", "6.1-fairzone-before", "6.1-nodirty-before"]
    )
    parser.add_argument(
        "--state", help="build here, where none of them is known yet, and keep what was built"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="numalab-benchmark-", dir="/var/tmp") as place:
        environment = {**os.environ, "LAB_STATE": asked.state or place}
        print(f"load {os.getloadavg()[0]:.2f} at the start, {os.cpu_count()} CPUs", flush=True)
        full = timed(asked.stock, environment)
        print(f"{'full':8} {asked.stock:28} {full:8.2f} s", flush=True)
        limits = {"variant": VARIANT_SECONDS, "known": KNOWN_SECONDS}
        missed = 0
        for kind, name in [(kind, name) for name in asked.variants for kind in limits]:
            seconds = timed(name, environment)
            missed += seconds > limits[kind]
            print(
                f"{kind:8} {name:28} {seconds:8.2f} s  {seconds / full:.4f} of full  (at most"
                f" {limits[kind]:.0f} s)",
                flush=True,
            )
        print(f"load {os.getloadavg()[0]:.2f} at the end")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
