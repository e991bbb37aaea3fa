# SPDX-License-Identifier: GPL-2.0-only
"""How time, memory and disk grow with what the lab is given.

    .venv/bin/python benchmarks/speed.py --grow runs nodes vcpus guests inodes [--plot FILE] [--table FILE]

    runs     100 to 100,000 stored runs of 54 kB each (benchmarks/store.py): making their index, then `runs`,
             those of a case, verdict and compare of one experiment, each a process of its own
    nodes    2, 4, 8 and 16 nodes with 16 vCPUs and 4 GiB: the domain's XML, `lab.py up`, `lab.py down`
    vcpus    8, 16, 32 and 64 vCPUs on four nodes with 4 GiB: likewise
    guests   1, 2, 4 and 8 guests of one vCPU and 512 MiB, each by a `lab.py up` of its own, all at once
    inodes   10,000 to a million on a sparse 500 TB XFS, each in a fresh guest: fs_mark and xfs_repair

--least and --most leave sizes out. Guests run kernel 6.1, which must be built, in the lab's own state
directory, and are ended whatever happens. Stored runs are in a state directory of their own in /var/tmp.

    seconds    elapsed
    CPU        processor seconds of lab.py and its children, without libvirtd and QEMU; of inodes, the guest's
    lab MiB    the largest resident set of any lab.py
    QEMU MiB   the largest resident sets of all guests together, when the last of them is up
    disk MiB   what stored runs, their index or the guests' folders take on the disk

Below its sizes, each kind of row has its exponent: the slope of a line through the logarithms of value and
size. 1 is linear, 0 is no growth, "!" marks what is worse than linear. "last" is the slope between the two
largest sizes, where a part that does not grow, such as Python's start, hides less. On a busy host believe CPU
rather than seconds.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from plotly.colors import qualitative
from plotly.subplots import make_subplots

from benchmarks import store
from numalab.core import state
from numalab.core.paths import ROOT
from numalab.core.process import Deadline
from numalab.guest import guest as guests
from numalab.host.domain import domain_xml
from numalab.host.hypervisor import connect
from numalab.host.machine import qemu_process
from numalab.measure import runner
from numalab.model import catalog
from numalab.model.topology import Topology
from numalab.model.units import MIB
from numalab.model.values import SizeClass
from numalab.report.text import ABSENT
from tests.unit.makers import spec

KERNEL = "6.1"
XML_ROUNDS = 50
COMMAND_SECONDS = 1200.0
RECORDED, JUDGED = ROOT / "tests/recorded/runs/1dc3791.tar.xz", "auto"
"""Runs with raw snapshots, and their experiment of ten boots, which is judged among all the others."""
LAUNCH = """
import os, sys, time
begin, quiet = time.monotonic(), [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, used = os.wait4(process, 0)
print(time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status) & 255)
"""
"""Runs a program and prints seconds, processor seconds and KiB of its largest resident set. It is a small
process of its own, since Linux counts the memory of who starts a program as the program's (exec_mmap())."""
SAME = 1.15
"""Values whose largest is below so many times their smallest do not grow: noise has no exponent."""
STEEP = 1.15
"""An exponent above this is marked: it is worse than linear by more than times scatter."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one thing took; None: not measured."""

    seconds: float | None = None
    cpu: float | None = None
    lab: float | None = None
    qemu: float | None = None
    disk: float | None = None


COLUMNS = {"seconds": "seconds", "cpu": "CPU", "lab": "lab MiB", "qemu": "QEMU MiB", "disk": "disk MiB"}
"""The fields of Cost -> their heads."""

Growth = Mapping[str, Mapping[int, Cost]]
"""What was done -> size -> what it took."""


def slope(values: Mapping[int, float]) -> float | None:
    """The exponent of a power law through size -> value; None where there is none to see."""
    points = [(math.log(size), math.log(value)) for size, value in values.items() if value > 0]
    if len(points) < 2 or max(values.values()) < SAME * min(values.values()):
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def exponents(costs: Mapping[int, Cost]) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Each column's exponent, over all sizes and over the two largest."""
    whole, last = dict[str, float | None](), dict[str, float | None]()
    for field in COLUMNS:
        values = {
            size: value for size, cost in sorted(costs.items()) if (value := getattr(cost, field)) is not None
        }
        whole[field] = slope(values)
        last[field] = slope(dict(list(values.items())[-2:])) if len(values) > 2 else None
    return whole, last


def rows(what: str, growth: Growth) -> list[tuple[str, ...]]:
    """The table: a row for each size, then the exponents; steep ones have a `!`."""

    def shown(value: float | None) -> str:
        return ABSENT if value is None else f"{value:.4f}" if value < 0.1 else f"{value:.4g}"

    def power(value: float | None) -> str:
        return ABSENT if value is None else f"{value:.2f}{'!' if value > STEEP else ''}"

    table = [(what.upper(), "", *(head.upper() for head in COLUMNS.values()))]
    for name, costs in growth.items():
        for size, cost in sorted(costs.items()):
            table.append((name, f"{size:,}", *(shown(getattr(cost, field)) for field in COLUMNS)))
        for label, powers in zip(("exponent", "last"), exponents(costs), strict=True):
            table.append((name, label, *(power(powers[field]) for field in COLUMNS)))
    return table


def plot(grown: Mapping[str, Growth], path: Path) -> None:
    """A page with a row of plots for each thing that grew, one for each column, on logarithmic axes."""
    picture = make_subplots(
        rows=len(grown),
        cols=len(COLUMNS),
        subplot_titles=list(COLUMNS.values()) * len(grown),
        vertical_spacing=0.25 / len(grown),
    )
    names = list(dict.fromkeys(name for growth in grown.values() for name in growth))
    colours, unnamed = dict(zip(names, cycle(qualitative.D3 + qualitative.Set1), strict=False)), set(names)
    for row, (what, growth) in enumerate(grown.items(), 1):
        sizes = sorted({size for costs in growth.values() for size in costs})
        for column, field in enumerate(COLUMNS, 1):
            place, values = {"row": row, "col": column}, list[float]()
            for name, costs in growth.items():
                points = {
                    size: value for size, cost in sorted(costs.items()) if (value := getattr(cost, field))
                }
                if not points:
                    continue
                values += points.values()
                picture.add_scatter(
                    x=list(points),
                    y=list(points.values()),
                    name=name,
                    line_color=colours[name],
                    legendgroup=name,
                    showlegend=name in unnamed,
                    **place,
                )
                unnamed.discard(name)
            ticks = {"tickvals": sizes, "ticktext": [f"{size:,}" for size in sizes]}
            picture.update_xaxes(type="log", title=what, visible=bool(values), **ticks, **place)
            picture.update_yaxes(type="log", visible=bool(values), dtick=1, range=_decades(values), **place)
    picture.update_layout(height=350 * len(grown))
    picture.write_html(path, include_plotlyjs=True)


def _decades(values: Sequence[float]) -> list[int]:
    """The whole decades, as logarithms, that the values are in: what does not grow then looks flat."""
    logs = [math.log10(value) for value in values] or [0.0]
    return [math.floor(min(logs)), math.floor(max(logs)) + 1]


def command(*words: str) -> Cost:
    """Run lab.py and return what it took. Ends the program if it fails."""
    done = subprocess.run(
        [sys.executable, "-IS", "-c", LAUNCH, sys.executable, ROOT / "lab.py", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    # Of all that is measured here only a verdict may be any.
    if done.returncode not in ((0, 1, 3) if words[0] == "verdict" else (0,)):
        raise SystemExit(f"lab.py {' '.join(words)}: status {done.returncode}\n{done.stderr}")
    seconds, cpu, kib = map(float, done.stdout.split())
    return Cost(seconds=seconds, cpu=cpu, lab=kib / 1024)


def on_disk(place: Path) -> float:
    """MiB that a folder's files take."""
    return sum(path.lstat().st_blocks * 512 for path in place.rglob("*")) / MIB


def runs(counts: Sequence[int]) -> Growth:
    """Stored runs: the commands that look through them."""
    grown: dict[str, dict[int, Cost]] = {}
    for count in counts:
        with _state_of_its_own() as place:
            folder = state.folder("runs")
            store.make(folder, count)
            newest = max(folder.iterdir())
            subprocess.run(
                ["tar", "-xJf", RECORDED, "-C", place, "--strip-components=1", "state/runs"], check=True
            )
            tell(f"{count:,} runs are made")

            def took(name: str, *words: str, count: int = count) -> None:
                grown.setdefault(name, {})[count] = cost = command(*words)
                tell(f"{name} of {count:,}: {cost.seconds:.1f} s")

            took("runs, index made", "runs")
            took("runs", "runs")
            took("runs of a case", "runs", "--case", "xfsrepair")
            took("verdict", "verdict", JUDGED)
            took("compare", "compare", "xfsrepair")
            (newest / "run.json").touch()
            took("runs, one changed", "runs")
            grown.setdefault("stored", {})[count] = Cost(disk=on_disk(folder))
            grown.setdefault("index", {})[count] = Cost(disk=on_disk(place / "cache"))
    return grown


@contextlib.contextmanager
def _state_of_its_own() -> Iterator[Path]:
    """LAB_STATE, of this process and its children, in the block."""
    before = os.environ.get("LAB_STATE")
    with tempfile.TemporaryDirectory(prefix="numalab-grow-", dir="/var/tmp") as place:
        os.environ["LAB_STATE"] = place
        try:
            yield Path(place)
        finally:
            del os.environ["LAB_STATE"]
            if before is not None:
                os.environ["LAB_STATE"] = before


def topology_text(nodes: int, vcpus: int, mib: int) -> str:
    """A topology's file: `nodes` equal nodes, a socket each, all one hop apart."""
    each = vcpus // nodes
    lines = [
        f"description: {nodes} nodes",
        f"vcpus: {vcpus}",
        f"sockets: {nodes}",
        f"memory: {mib}MiB",
        "nodes:",
    ]
    lines += [
        f"  - {{cpus: {node * each}-{(node + 1) * each - 1}, memory: {mib // nodes}MiB}}"
        for node in range(nodes)
    ]
    return "\n".join([*lines, ""])


def of_machines(shapes: Mapping[int, str]) -> Growth:
    """Size -> a topology's text: its XML, and a guest's way up and down."""
    grown: dict[str, dict[int, Cost]] = {"XML": {}, "up": {}, "down": {}}
    with tempfile.TemporaryDirectory(prefix="numalab-grow-") as place:
        for size, text in shapes.items():
            path = Path(place) / f"grow{size}.yml"
            path.write_text(text)
            grown["XML"][size] = xml(catalog.topology(str(path)))
            with booted(1, ["-t", str(path)]) as (up, ended):
                grown["up"][size] = up
                tell(f"{size}: up {up.seconds:.1f} s")
            grown["down"][size] = ended[0]
    return grown


def xml(shape: Topology) -> Cost:
    """Composing a domain's XML, the mean of several."""
    one = spec(shape)
    begin, cpu = time.monotonic(), time.process_time()
    for _ in range(XML_ROUNDS):
        domain_xml(one)
    return Cost(seconds=(time.monotonic() - begin) / XML_ROUNDS, cpu=(time.process_time() - cpu) / XML_ROUNDS)


@contextlib.contextmanager
def booted(count: int, words: Sequence[str]) -> Iterator[tuple[Cost, list[Cost]]]:
    """Guests, each by an `up` of its own, all at once: what that took. The list has what `down` of all took,
    after the block."""
    names = [f"grow-{os.getpid()}-{number}" for number in range(count)]
    ended: list[Cost] = []
    done = False
    try:
        begin = time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            each = list(
                pool.map(lambda name: command("up", "--kernel", KERNEL, "--name", name, *words), names)
            )
        seconds = time.monotonic() - begin
        records = [guests.read(name) for name in names]
        yield (
            Cost(
                seconds=seconds,
                cpu=sum(one.cpu or 0.0 for one in each),
                lab=max(one.lab or 0.0 for one in each),
                qemu=sum(_resident(qemu_process(record.spec.uuid)) for record in records),
                disk=sum(on_disk(Path(record.spec.directory)) for record in records),
            ),
            ended,
        )
        ended.append(command("down", *names))
        done = True
    finally:
        if not done:
            left = [name for name in names if name in guests.names()]
            subprocess.run([ROOT / "lab.py", "down", *left], check=False, capture_output=True)


def _resident(process: int | None) -> float:
    """MiB; 0 for a process that is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def nodes(counts: Sequence[int]) -> Growth:
    """16 vCPUs and 4 GiB over more and more nodes."""
    return of_machines({count: topology_text(count, 16, 4096) for count in counts})


def vcpus(counts: Sequence[int]) -> Growth:
    """More and more vCPUs on four nodes with 4 GiB."""
    return of_machines({count: topology_text(4, count, 4096) for count in counts})


def several(counts: Sequence[int]) -> Growth:
    """Small guests at once."""
    grown: dict[str, dict[int, Cost]] = {"up": {}, "down": {}}
    for count in counts:
        with booted(count, ["-t", "uma-2g", "--memory", "512M", "--vcpus", "1"]) as (up, ended):
            grown["up"][count] = up
            tell(f"{count} guests: up {up.seconds:.1f} s")
        grown["down"][count] = ended[0]
    return grown


def inodes(counts: Sequence[int]) -> Growth:
    """fs_mark and xfs_repair (bhash) on 500 TB, each size in a fresh guest of four nodes and four vCPUs."""
    grown: dict[str, dict[int, Cost]] = {"fsmark": {}, "repair-bhash": {}}
    for count in counts:
        with booted(1, ["-t", "4socket", "--memory", "4G", "--vcpus", "4"]):
            name = f"grow-{os.getpid()}-0"
            record = guests.read(name)
            deadline = Deadline.after(COMMAND_SECONDS * max(1, count / 100_000))
            params = {
                "configurations": ["bhash"],
                "directories": 8,
                "subdirs": 100,
                "files": count // 8,
                "loops": 1,
                "fsmark_seconds": deadline.remaining(),
                "repair_seconds": deadline.remaining(),
            }
            guest = guests.Guest(record, connect(record.uri, deadline))
            run, _ = runner.run(guest, "xfsrepair", SizeClass.QUICK, deadline, runner.Options(params=params))
            disk, qemu = on_disk(Path(record.spec.directory)), _resident(qemu_process(record.spec.uuid))
            for phase, costs in grown.items():
                one = run.phase(phase)
                costs[count] = Cost(
                    seconds=float(one.elapsed or 0.0),
                    cpu=(one.user or 0.0) + (one.system or 0.0),
                    qemu=qemu,
                    disk=disk,
                )
                tell(f"{count:,} inodes: {phase} {one.elapsed} s")
    return grown


def tell(line: str) -> None:
    """Say how far it is."""
    print(line, file=sys.stderr, flush=True)


GROWN: dict[str, tuple[tuple[int, ...], Callable[[Sequence[int]], Growth]]] = {
    "runs": ((100, 1_000, 10_000, 100_000), runs),
    "nodes": ((2, 4, 8, 16), nodes),
    "vcpus": ((8, 16, 32, 64), vcpus),
    "guests": ((1, 2, 4, 8), several),
    "inodes": ((10_000, 100_000, 1_000_000), inodes),
}
"""What can grow -> its sizes, and how it is measured."""


def measure(
    what: Sequence[str], least: int = 0, most: int | None = None
) -> Iterator[tuple[str, Growth, list[tuple[str, ...]]]]:
    """Measure each of `what`: its name, what it took, and its table."""
    for name, (sizes, measured) in ((name, GROWN[name]) for name in dict.fromkeys(what)):
        chosen = [size for size in sizes if least <= size <= (most or math.inf)]
        if not chosen:
            raise SystemExit(
                f"--grow {name}: no size of {', '.join(map(str, sizes))} is between --least and --most"
            )
        growth = measured(chosen)
        yield name, growth, rows(name, growth)
