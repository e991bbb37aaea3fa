#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""How long a guest takes from `lab.py up` to its first command and to its end, beside virtme-ng with the
same kernel, CPUs, memory and nodes on the same host, and in which stages of an `up` the time goes.

    .venv/bin/python benchmarks/speed.py [--rounds 3] [--vng PATH] [--case CASE] [--make TARGET…]

Each round boots each guest and virtme-ng once, one at a time, another one first in each round. "To the first
command" is `lab.py up` and `lab.py exec NAME -- true`; "down" is `lab.py down`; "round trip" is both. A ratio
is to virtme-ng's round trip of the same round. A round ends with lab.py --help and other commands that start
nothing, and their processor seconds; --commands measures these alone.

--case tells where the time of a case's boots goes, and --make how long make's targets take in a fresh clone:
benchmarks/whole.py says how. They measure that alone, unless --rounds is given too. All by one command, in
hours:

    .venv/bin/python benchmarks/speed.py --rounds 3 --case migratefail --make unit demo test --table FILE

--grow measures growth instead: benchmarks/grow.py says what. --table writes the tables as Markdown, as
docs/machines.md shows them. Kernel 6.1 must be built (lab.py kernel build 6.1). Nothing is judged. The load
average at the start, which is printed, tells whether the host was busy with something else.

virtme-ng is no part of the lab. Without --vng and without a `vng` on PATH, its row and the ratios are left
out. To have it:

    python3 -m venv /tmp/vng && /tmp/vng/bin/pip install virtme-ng

It boots the lab's lean kernel, which has 9p, virtiofs and overlayfs built in. The host's root is the guest's
root, by virtiofs where the host has a virtiofsd, else by 9p, and virtme-ng's own init runs. It runs without
KVM where the lab does (lab.py doctor). All else is its default: it shows no console, while the lab logs one,
and its emulated CPU is QEMU's `max`, while the lab's is Nehalem. Its round trip ends when QEMU has ended.
Where the host has no udevd, as in a container, its init runs the command but cannot return the status, so
the command writes it to a file in a shared folder.

The stages of an `up`, seen from outside by looking every 20 ms:

    lab.py            from the start of the process until it has written the domain's XML, just before it
                      calls libvirt
    libvirt's create  until lab.py says that the domain is started: libvirt, and the start of QEMU
    firmware          until the first bytes are in the console log: SeaBIOS, the kernel's decompression, and
                      what the kernel does before it enables its console
    kernel            until "Run … as init process"; with an initrd, as of Debian's kernel, that is its init
    init              until lab.py starts ssh: when the lab's init has printed that sshd listens; where it
                      prints nothing, when sshd has sent its greeting
    ssh               until lab.py says that the guest booted: key exchange
    verified          until `lab.py up` ends: release and topology compared, a restored guest renewed, modules
                      installed if there are any
    first command     `lab.py exec NAME -- true`, a process of its own

A guest from a ready state has neither firmware nor init: from its start on, all is "ssh", with what puts it
right. "In a test" it is the fixture `guest` of a test marked `ready`, from the test's set-up to its first
command, in pytest's own process.

Each value is a median over the rounds, and the sum is theirs. The last row, "kernel, guest's clock", is
the time stamp of "Run … as init process": what the kernel itself counts, from the start of its clock. It is
not in the sum.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import whole  # noqa: E402
from numalab.core import state  # noqa: E402
from numalab.core.process import Deadline  # noqa: E402
from numalab.host import accelerator, image  # noqa: E402
from numalab.kernel import boot, recipe  # noqa: E402
from numalab.model import catalog, topology  # noqa: E402
from numalab.model.topology import Topology  # noqa: E402
from numalab.model.units import GIB, MIB, show_cpus  # noqa: E402
from numalab.model.values import Accel, Clock  # noqa: E402
from numalab.report.text import ABSENT, aligned  # noqa: E402

TOPOLOGY, GIBS, VCPUS, KERNEL = "4socket", 4, 8, "6.1"
VIRTUAL = f"{KERNEL}, virtual clock"
READY = f"{KERNEL}, from a ready state"
"""It is made before the first round, in which it would be a boot and a save."""
GUESTS: dict[str, tuple[str, ...]] = {
    KERNEL: ("--kernel", KERNEL),
    "debian": ("--kernel", "debian"),
    VIRTUAL: ("--kernel", KERNEL, "--clock", "virtual"),
    f"{KERNEL}, systemd": ("--kernel", KERNEL, "--init", "systemd"),
    READY: ("--kernel", KERNEL, "--ready"),
}
"""The guests of a round, and what `up` is given for each."""
TEST = f"{READY}, in a test"
FIRST, DOWN, WHOLE = "to the first command", "down", "round trip"
VNG = "virtme-ng"
STAGES = (
    "lab.py",
    "libvirt's create",
    "firmware",
    "kernel",
    "init",
    "ssh",
    "verified",
    "first command",
)
GUEST_CLOCK = "kernel, guest's clock"
A_TEST = f"""
import pytest
from numalab.host import ssh

@pytest.mark.topology("{TOPOLOGY}", memory="{GIBS}GiB", vcpus={VCPUS})
@pytest.mark.kernel("{KERNEL}")
@pytest.mark.ready
@pytest.mark.parametrize("number", [1, 2])
def test_first_command(number, guest, deadline):
    ssh.succeed(guest, "true", deadline=deadline)
"""
INIT = re.compile(rb"^\[ *(\d+\.\d+)\] Run \S+ as init process", re.MULTILINE)
ENDS = (("start", "libvirt's create"), ("boot", "ssh"), ("restored from a ready state", "ssh"))
"""lab.py's lines that end a stage."""
COMMANDS = ("--help", "--version", "runs", "list")
"""Commands of lab.py that a person waits for, and that start nothing."""
POLL_SECONDS = 0.02
LIMIT_SECONDS = 600.0
HUNG_SECONDS, ATTEMPTS = 120.0, 3
"""How long virtme-ng's round trip may take, and how often a round begins it: an emulated guest hangs at
times, and virtme-ng's runs on then. One hang must not lose the rounds before it."""
WHAT = ("runs", "nodes", "vcpus", "guests", "inodes")
"""What --grow can grow (benchmarks/grow.py)."""
BUSY = 0.5
"""The least load average at which the host is called busy."""
INSTALL = "python3 -m venv /tmp/vng && /tmp/vng/bin/pip install virtme-ng, then --vng /tmp/vng/bin/vng"

Round = dict[str, float]
"""Row -> seconds."""


def init_stamp(console: bytes) -> float | None:
    """The time stamp of the kernel's first "Run … as init process"; None when it is not there (yet)."""
    match = INIT.search(console)
    return float(match[1]) if match else None


def stages(begin: float, ends: Mapping[str, float]) -> Round:
    """The length of each stage from the times at which they ended. What was not seen to end has no length of
    its own and is part of the next."""
    lengths: Round = {}
    for stage in STAGES:
        if stage in ends:
            end = max(begin, ends[stage])  # a line of lab.py's may be read late
            lengths[stage], begin = end - begin, end
    return lengths


def turned(tasks: Sequence[str], number: int) -> list[str]:
    """The order of a round: another task is first in each, since the host's load may change within one."""
    first = number % len(tasks)
    return [*tasks[first:], *tasks[:first]]


def spread(values: Sequence[float]) -> tuple[str, str, str]:
    """Median, least and most, as text."""
    if not values:
        return ABSENT, ABSENT, ABSENT
    return f"{statistics.median(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}"


def ratios(rounds: Sequence[Round], row: str) -> list[float]:
    """A row against virtme-ng in each round that has both."""
    return [one[row] / one[VNG] for one in rounds if row in one and VNG in one]


def times(rounds: Sequence[Round]) -> list[tuple[str, ...]]:
    """A row for each thing that was timed: its seconds, and its ratios to virtme-ng."""
    head = ("SECONDS", "MEDIAN", "LEAST", "MOST", f"TO {VNG.upper()}", "LEAST", "MOST")
    rows = dict.fromkeys(row for one in rounds for row in one)
    return [
        head,
        *(
            (row, *spread([one[row] for one in rounds if row in one]), *spread(ratios(rounds, row)))
            for row in rows
        ),
    ]


def waterfall(seen: Mapping[str, Sequence[Round]]) -> list[tuple[str, ...]]:
    """A row for each stage, with its median in each guest, and the sum of a guest's medians."""
    medians = {
        guest: {
            stage: statistics.median(values)
            for stage in (*STAGES, GUEST_CLOCK)
            if (values := [one[stage] for one in rounds if stage in one])
        }
        for guest, rounds in seen.items()
    }
    rows = [
        (stage, *(f"{known[stage]:.2f}" if stage in known else ABSENT for known in medians.values()))
        for stage in (*STAGES, GUEST_CLOCK)
    ]
    sums = ("sum", *(f"{sum(known.get(stage, 0.0) for stage in STAGES):.2f}" for known in medians.values()))
    return [("STAGE", *seen), *rows[:-1], sums, rows[-1]]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first row is its head, the first column to the left, the others to the right."""
    lines = [rows[0], ["---", *["---:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def timed(words: Sequence[str | Path]) -> float:
    """Seconds that a command takes, which must succeed."""
    begin = time.monotonic()
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    seconds = time.monotonic() - begin
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit status {done.returncode}\n{done.stderr}")
    return seconds


def guest(label: str, name: str) -> tuple[Round, Round]:
    """Boot one guest, run `true` in it and end it: seconds, and the stages of its `up`."""
    words = ["--topology", TOPOLOGY, "--memory", f"{GIBS}G", "--vcpus", str(VCPUS), "--name", name]
    while True:
        seen: Round = {}
        ended = False
        begin = time.monotonic()
        try:
            hung = up([ROOT / "lab.py", "up", *words, *GUESTS[label]], name, seen)
            timed([ROOT / "lab.py", "exec", name, "--", "true"])
            seen[STAGES[-1]] = time.monotonic()
            stamp = init_stamp((state.folder("guests") / name / "console.log").read_bytes())
            down = timed([ROOT / "lab.py", "down", name])
            ended = True
        finally:
            trip = time.monotonic() - begin
            if not ended:
                subprocess.run([ROOT / "lab.py", "down", name], capture_output=True, check=False)
        if not hung:
            break
        print(f"{label}: a boot hung and lab.py began it again: not counted", file=sys.stderr)
    parts = stages(begin, seen)
    first = sum(parts.values())
    seconds = {f"{label}: {FIRST}": first, f"{label}: {DOWN}": down, f"{label}: {WHOLE}": trip}
    return seconds, parts | ({GUEST_CLOCK: stamp} if stamp is not None and label != READY else {})


def in_a_test() -> Round:
    """The seconds that pytest gives for the set-up, call and end of the second test whose guest is from a
    ready state: with the first one the process has loaded what it needs."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "test_speed.py"
        file.write_text(A_TEST)
        words = ["-q", "-p", "no:cacheprovider", "--durations=0", "-vv", f"--rootdir={place}", str(file)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    took = {
        part: float(text)
        for text, part in re.findall(r"^([\d.]+)s (setup|call|teardown) .*\[2\]", done.stdout, re.M)
    }
    if done.returncode or len(took) < 3:
        sys.exit(f"a test with a guest from a ready state: exit status {done.returncode}\n{done.stdout}")
    first = took["setup"] + took["call"]
    return {
        f"{TEST}: {FIRST}": first,
        f"{TEST}: {DOWN}": took["teardown"],
        f"{TEST}: {WHOLE}": sum(took.values()),
    }


def up(words: Sequence[str | Path], name: str, seen: Round) -> bool:
    """Run `lab.py up` and note in `seen` when each stage ended. Returns whether a boot hung."""
    folder = state.folder("guests") / name
    lines: list[str] = []
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        reader = threading.Thread(target=_read, args=(process, name, lines, seen))
        reader.start()
        while process.poll() is None:
            _look(process.pid, folder, seen)
            time.sleep(POLL_SECONDS)
        seen["verified"] = time.monotonic()
        reader.join()
    if process.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit status {process.returncode}\n{''.join(lines)}")
    return any(whole.HUNG in line for line in lines)


def _read(process: subprocess.Popen[str], name: str, lines: list[str], seen: Round) -> None:
    """Keep lab.py's lines. Two of them end a stage."""
    for line in process.stderr or ():
        lines.append(line)
        for step, stage in ENDS:
            if line.rstrip().endswith(f"{name}: {step}"):
                seen[stage] = time.monotonic()


def _look(process: int, folder: Path, seen: Round) -> None:
    """Note what has happened since the last look."""
    now = time.monotonic()
    if "lab.py" not in seen:
        if (folder / "domain.xml").exists():
            seen["lab.py"] = now
    elif "kernel" not in seen:
        with contextlib.suppress(OSError):
            console = (folder / "console.log").read_bytes()
            if console:
                seen.setdefault("firmware", now)
            if init_stamp(console) is not None:
                seen["kernel"] = now
    elif "init" not in seen and "ssh" in _children(process):
        seen["init"] = now


def _children(process: int) -> set[str]:
    """The names of the processes that a process has started."""
    names = set()
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                with contextlib.suppress(OSError):
                    names.add(Path(f"/proc/{child}/comm").read_text().strip())
    return names


def vng_words(vng: str, kernel: str, shape: Topology, accel: Accel) -> list[str]:
    """virtme-ng's command line for the lab's kernel and topology."""
    words = [vng, "--run", kernel, "--cpus", str(shape.vcpus), "--memory", f"{shape.memory // MIB}M"]
    words += ["--disable-kvm"] if accel is Accel.TCG else []
    for node in shape.nodes:
        words += ["--numa", f"{node.memory // MIB}M,cpus={show_cpus(node.cpus)}"]
    for one, distances in enumerate(shape.distances or ()):
        for other, distance in enumerate(distances[one + 1 :], one + 1):
            words += ["--numa-distance", f"{one},{other}={distance}"]
    return words


def end_those_with(word: str) -> None:
    """End the processes that have a word on their command line. virtme-ng may end before its QEMU, which then
    goes on (seen where the guest has no udevd) and takes the CPUs of all that is timed after it."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in place.read_bytes() and int(place.parent.name) != os.getpid():
                os.kill(int(place.parent.name), signal.SIGKILL)


def virtme(words: Sequence[str]) -> float:
    """Seconds of virtme-ng's round trip. One that hung is begun again, and is not in the seconds."""
    for attempt in range(1, ATTEMPTS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return virtme_once(words)
        print(f"{VNG} hung for {HUNG_SECONDS:g} s ({attempt} of {ATTEMPTS}): begun again", file=sys.stderr)
    return virtme_once(words)


def virtme_once(words: Sequence[str]) -> float:
    """Seconds of virtme-ng's round trip. Raises TimeoutExpired when it has hung; its processes are ended."""
    # virtme-ng starts virtme-run, which is beside it and need not be on PATH.
    path = f"{Path(words[0]).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="numalab-speed-", dir="/var/tmp") as shared:
        status = Path(shared) / "status"
        begin = time.monotonic()
        with subprocess.Popen(
            [*words, "--rwdir", shared, "--exec", f"true; echo $? >{status}"],
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=HUNG_SECONDS)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # with its QEMU
                raise
            finally:
                end_those_with(shared)
        seconds = time.monotonic() - begin
        if not status.is_file() or status.read_text() != "0\n":
            sys.exit(f"{' '.join(words)}: the command did not run\n{output}")
    return seconds


def commands() -> Round:
    """Time each of COMMANDS: seconds, and the processors' part of them, which other load changes less."""
    seconds: Round = {}
    for word in COMMANDS:
        before = whole.cpu()
        seconds[f"lab.py {word}"] = timed([ROOT / "lab.py", word])
        seconds[f"lab.py {word}: CPU"] = whole.cpu() - before
    return seconds


def today() -> str:
    """The date, the host's CPUs and its load."""
    return f"{datetime.date.today()}, {os.cpu_count()} CPUs; load {os.getloadavg()[0]:.2f} at the start"


def grow(asked: argparse.Namespace) -> None:
    """Measure growth, and print its tables."""
    from benchmarks import grow as growth  # here: plotly takes a second

    about = today()
    print(about, flush=True)
    growths, tables = {}, []
    for what, grown, table in growth.measure(asked.grow, asked.least, asked.most):
        growths[what] = grown
        tables.append(table)
        print("", *aligned(table), sep="\n", flush=True)
    if asked.plot:
        growth.plot(growths, asked.plot)
    if asked.table:
        asked.table.write_text("\n".join([f"{about}\n", *map(markdown, tables)]))


def in_rounds(asked: int, vng: str | None) -> tuple[str, list[whole.Table]]:
    """Measure guests, virtme-ng and commands in so many rounds: what was measured where, and the tables."""
    load = os.getloadavg()[0]
    deadline = Deadline.after(LIMIT_SECONDS)
    kernel = Path(boot.resolve(recipe.load(KERNEL), image.require("debian12", deadline)).kernel or "")
    accel = accelerator.choose("auto", kernel, deadline).accel
    shape = topology.scale(catalog.topology(TOPOLOGY), memory=GIBS * GIB, vcpus=VCPUS)
    labels = list(GUESTS)
    if accelerator.choose_clock(None, accel, kernel, deadline) is not Clock.VIRTUAL:
        labels.remove(VIRTUAL)
        print(f"without the virtual clock, which is not to be had under {accel.value}", file=sys.stderr)

    versions = [f"QEMU {accelerator.qemu_version(deadline)}"]
    if vng:
        words = [vng, "--version"]
        versions.append(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    about = (
        f"{datetime.date.today()}, {os.cpu_count()} CPUs, {accel.value}, {', '.join(versions)}; {TOPOLOGY},"
        f" {VCPUS} vCPUs, {GIBS} GiB; rounds: {asked}; load {load:.2f} at the start:"
        f" a {'busy' if load >= BUSY else 'quiet'} host"
    )
    print(about, flush=True)

    guest(READY, f"speed-{os.getpid()}")
    rounds: list[Round] = []
    seen: dict[str, list[Round]] = {label: [] for label in labels}
    for number in range(asked):
        seconds: Round = {}
        rounds.append(seconds)
        for task in turned([*labels, TEST, *([VNG] if vng else [])], number):
            if task == TEST:
                took = in_a_test()
            elif vng and task == VNG:
                took = {VNG: virtme(vng_words(vng, str(kernel), shape, accel))}
            else:
                took, parts = guest(task, f"speed-{os.getpid()}")
                seen[task].append(parts)
            seconds |= took
            shown = "; ".join(f"{row} {value:.1f} s" for row, value in took.items())
            print(f"round {number + 1}, load {os.getloadavg()[0]:.2f}: {shown}", file=sys.stderr)
        seconds |= commands()

    return about, [times(rounds), waterfall(seen)]


def arguments() -> argparse.Namespace:
    """The command line. `rounds` is 0 where there are to be none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "--rounds", type=int, help="how often guests and commands are measured (3; beside --case, --make: 0)"
    )
    parser.add_argument("--vng", help="virtme-ng's program; default: vng on PATH")
    parser.add_argument(
        "--commands", action="store_true", help="time lab.py's quick commands only: no guest, no virtme-ng"
    )
    parser.add_argument("--case", help="one boot of each of a case's kernels, by its steps (migratefail)")
    parser.add_argument(
        "--make",
        nargs="+",
        metavar="TARGET",
        default=[],
        help="time make's targets in a fresh clone of HEAD, after setup (unit demo test; test is .ci/run)",
    )
    parser.add_argument(
        "--keep-state",
        action="store_true",
        help="--make's targets have your LAB_STATE instead of an empty one each",
    )
    parser.add_argument(
        "--grow", nargs="+", metavar="WHAT", choices=WHAT, help=f"measure growth instead: {', '.join(WHAT)}"
    )
    parser.add_argument("--least", type=int, default=0, metavar="N", help="of --grow's sizes only from N on")
    parser.add_argument("--most", type=int, metavar="N", help="of --grow's sizes only up to N")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write --grow's plots here, as HTML")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the tables here, as Markdown")
    asked = parser.parse_args()
    if (asked.grow or asked.commands) and (asked.case or asked.make):
        parser.error("--grow and --commands measure nothing beside: leave out --case and --make")
    if asked.vng and not shutil.which(asked.vng):
        parser.error(f"--vng {asked.vng}: there is no such program")
    if asked.rounds is None:
        asked.rounds = 0 if asked.case or asked.make else 3
    return asked


def main() -> None:
    """Measure, and print the tables. The exit status is 1 when a target of make failed."""
    asked = arguments()
    if asked.grow:
        grow(asked)
        return
    if asked.commands:
        print(f"{today()}; rounds: {asked.rounds}", flush=True)
        print(*aligned(times([commands() for _ in range(asked.rounds)])), sep="\n")
        return
    tables: list[whole.Table] = []
    if asked.rounds:
        vng = shutil.which(asked.vng or "vng")
        if not vng:
            print(f"no vng on PATH: without {VNG} and ratios to it; to have them: {INSTALL}", file=sys.stderr)
        about, tables = in_rounds(asked.rounds, vng)
    else:
        print(about := today(), flush=True)
    show(about, tables, tables, asked.table)
    if asked.case:
        tables.append(whole.case(asked.case))
        show(about, tables[-1:], tables, asked.table)
    if asked.make:
        table, succeeded = whole.make(asked.make, asked.keep_state)
        tables.append(table)
        show(about, [table], tables, asked.table)
        if not succeeded:
            sys.exit(1)


def show(about: str, new: Sequence[whole.Table], tables: Sequence[whole.Table], file: Path | None) -> None:
    """Print the new tables, and write all so far: an error later on must not lose the hours before it."""
    for table in new:
        print("", *aligned(table), sep="\n", flush=True)
    if file:
        file.write_text("\n".join([f"{about}\n", *map(markdown, tables)]))


if __name__ == "__main__":
    main()
