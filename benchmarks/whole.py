# SPDX-License-Identifier: GPL-2.0-only
"""Where the time of a case's boots goes, and how long make's targets take.

    .venv/bin/python benchmarks/speed.py --case migratefail [--table FILE]
    .venv/bin/python benchmarks/speed.py --make unit demo test [--keep-state] [--table FILE]

--case runs `lab.py run CASE --boots 1 --side-by-side 1`: one boot of each kernel, with nothing beside it.
"Cannot tell", which so few boots end in, is no error. A row for each boot, in seconds of the host:

    start      lab.py's step "start": the domain, and the start of QEMU
    boot       lab.py's step "boot": until SSH connects
    measured   the workload's measured phases, with the counters that are read before and after each
    else       the rest: disks, release and topology verified, settings, programs and files, phases that are
               not measured, the record, `down`
    whole      from lab.py's line "boot N of M" until the guest's folder is gone, which ends its `down`

Kernels and programs that are missing are built before the first boot and are in none. A boot that hung under
emulation and was begun again is left out.

--make clones HEAD, and runs `make setup` and then each target there, with the variables of .ci/run: the row
"test" is what .ci/run takes after setup. Each has an empty state directory, or yours (--keep-state). What
setup installs on the host, and pip's cache, stay: only on a bare host is the row "setup" that of a bare host.
CPU minutes are those of make and its descendants, without guests, whose QEMU is libvirtd's. Clone and state
are in /var/tmp and are removed afterwards.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from numalab.core import state
from numalab.core.paths import ROOT
from numalab.experiment.plan import make_plan, workload_phases
from numalab.model.values import SizeClass

VARIABLES = ("QEMU=backports", "AT_ONCE=2")
"""What .ci/run gives make."""
LAST_LINES = 20
"""Of the output of a target that failed."""
POLL_SECONDS = 0.02
VERDICTS = (0, 1, 3)
"""Exit statuses of a `lab.py run` that came to its end."""
BOOT = re.compile(r" +\S+: (boot \d+ of \d+: [^;]+).*")
STEP = re.compile(r"✓ +(?P<seconds>[\d.]+) s  (?P<guest>[^:]+): (?P<step>.+)")
HUNG = "begun again"
"""Words in lab.py's warning that a boot hung under emulation."""

Lines = Sequence[tuple[float, str]]
"""When a line was read, and the line."""
Table = list[tuple[str, ...]]


def cpu() -> float:
    """Processor seconds so far of the children that have ended, with theirs."""
    used = os.times()
    return used.children_user + used.children_system


def case(name: str) -> Table:
    """A row for each boot of a case. Ends the program when lab.py comes to no verdict."""
    words = [str(ROOT / "lab.py"), "run", name, "--boots", "1", "--side-by-side", "1"]
    lines: list[tuple[float, str]] = []
    seen: dict[str, float] = {}
    guests = state.folder("guests")
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        reader = threading.Thread(target=_read, args=(process, lines))
        reader.start()
        while process.poll() is None:
            now = time.monotonic()
            seen |= {place.name: now for place in guests.iterdir()}
            time.sleep(POLL_SECONDS)
        reader.join()
    if process.returncode not in VERDICTS:
        sys.exit(f"{' '.join(words)}: exit status {process.returncode}")
    plan = make_plan(name, SizeClass.QUICK)
    return boots(
        lines, seen, [f"{plan.case.workload}: {one.name}" for one in workload_phases(plan) if one.measured]
    )


def _read(process: subprocess.Popen[str], lines: list[tuple[float, str]]) -> None:
    """Keep lab.py's lines with their times, and show them."""
    for line in process.stderr or ():
        lines.append((time.monotonic(), line.rstrip()))
        print(line, end="", file=sys.stderr, flush=True)


def boots(lines: Lines, seen: Mapping[str, float], measured: Collection[str]) -> Table:
    """A row for each boot from lab.py's lines, the times at which each guest's folder was last seen, and the
    steps that are measured phases."""
    rows: Table = [("BOOT, SECONDS", "START", "BOOT", "MEASURED", "ELSE", "WHOLE", "ELSE OF WHOLE")]
    begins = [at for at, (_, line) in enumerate(lines) if BOOT.match(line)]
    for at, end in pairwise([*begins, len(lines)]):
        begin, first = lines[at]
        about = BOOT.sub(r"\1", first)
        said = [line for _, line in lines[at + 1 : end]]
        if any(HUNG in line for line in said):
            print(f"{about}: hung and was begun again: not counted", file=sys.stderr)
            continue
        steps = [step for line in said if (step := STEP.match(line))]
        took = {step["step"]: float(step["seconds"]) for step in steps}
        whole = seen[steps[0]["guest"]] - begin
        parts = [took["start"], took["boot"], sum(took[phase] for phase in measured)]
        rest = whole - sum(parts)
        shown = (f"{seconds:.1f}" for seconds in (*parts, rest, whole))
        rows.append((about, *shown, f"{rest / whole:.1%}"))
    return rows


def make(targets: Sequence[str], keep_state: bool) -> tuple[Table, bool]:
    """A row for each target of make in a clone of HEAD, "setup" first, and whether all succeeded."""
    rows: Table = [("MAKE", "MINUTES", "CPU MINUTES", "EXIT STATUS")]
    with tempfile.TemporaryDirectory(prefix="numalab-speed-", dir="/var/tmp") as place:
        clone = Path(place) / "numalab"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        for target in dict.fromkeys(("setup", *targets)):
            with tempfile.TemporaryDirectory(prefix="state-", dir=place) as empty:
                status, seconds, used = make_one(
                    target, clone, str(state.directory().absolute()) if keep_state else empty
                )
            rows.append((target, f"{seconds / 60:.1f}", f"{used / 60:.1f}", str(status)))
            print("make", *rows[-1], file=sys.stderr, flush=True)
    return rows, all(row[-1] == "0" for row in rows[1:])


def make_one(target: str, clone: Path, its_state: str) -> tuple[int, float, float]:
    """Run a target in the clone: exit status, seconds, processor seconds. If it failed, its last lines are
    printed."""
    # The clone's programs would import numalab from where PYTHONPATH says.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["LAB_STATE"] = its_state
    begin, used = time.monotonic(), cpu()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        with subprocess.Popen(
            ["make", target, *VARIABLES],
            cwd=clone,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process:
            try:
                process.wait()
            except KeyboardInterrupt:  # lab.py has it too, and ends its guests: their state must be there
                process.wait()
                raise
        seconds, used = time.monotonic() - begin, cpu() - used
        if process.returncode:
            output.seek(0)
            last = output.readlines()[-LAST_LINES:]
            print(f"make {target}: exit status {process.returncode}", *last, sep="\n", file=sys.stderr)
    return process.returncode, seconds, used
