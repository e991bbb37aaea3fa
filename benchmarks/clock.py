#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""How far the boots of one kernel scatter, on the host's clock and on the virtual one, on an idle and on a
busy host.

    .venv/bin/python benchmarks/clock.py migratefail [--boots 8] [--clock virtual] [--load busy] [--again]

    .venv/bin/python benchmarks/clock.py --stored EXPERIMENT…
    .venv/bin/python benchmarks/clock.py --took EXPERIMENT…
    .venv/bin/python benchmarks/clock.py --executed EXPERIMENT…
    .venv/bin/python benchmarks/clock.py --quarters [--metric NAME] EXPERIMENT…
    .venv/bin/python benchmarks/clock.py --kept [CASE…]

Runs the case once for each clock and load, or takes stored experiments, and prints for each kernel and each
metric that decides: the mean over the boots, their standard deviation (of the logarithms: 1.0 % is 1.0 %),
and the least factor that three boots of each kernel can tell from chance. HOST is the most of the host's
processor time that others took in a measured phase, guests of the same experiment included. --load busy runs
an endless loop for each of the host's CPUs, and no boot is taken again for it. With --again each experiment
is made a second time with the same seeds; SAME SEED is then the standard deviation of boots with one seed: 0
if the clock and the seed decided everything. Other options go to lab.py run (--side-by-side 1, --vcpus 4).
The virtual clock needs QEMU 8.1 or later (lab.py doctor).

--shift N,N… boots on the virtual clock with an instruction of 2**N ns, once for each N, and prints the time
that a boot took on the host too. Nobody else has such runs, so they are removed at the end;
--discard removes those of other shapes (--vcpus, --memory) likewise.

--took shows, for stored experiments, how many seconds of the host's clock their boots took (half of them at
most MEDIAN), and what the case's `minutes` allow. OTHERS is the median of the shares of the host that others
took.

--executed shows, for stored experiments whose instructions QEMU counted (lab.py run CASE --profile 1), the
part of each measured phase's time on the guest's clock in which it executed: instructions × 8 ns / elapsed.
In the rest all of its CPUs were idle, and its clock followed the host's.

--quarters shows, for stored experiments, how the quarters of the measured phases go together, in what decides
of the counts of /proc/vmstat and their ratios (or with --metric NAME in that), which are sampled every two
seconds. NEIGHBOURS is the mean correlation of a quarter with the next, over the boots of a kernel; FIRST AND
LAST that of the first with the fourth, with its 95 % interval (Fisher 1921). Where something of the boot
makes the scatter (where its memory is, an address), a boot that counts more in its first quarter does so in
its last one too.
Where only neighbours go together, it is chance within the phase that lasts for some seconds; where nothing
does, chance that does not even last. Of either a longer phase would have less.

--kept boots nothing: it takes the boots in benchmarks/boots.json (benchmarks/rates.py), for each case and
clock all experiments on the machine and by the metrics of the newest one, and shows side by side those on
the virtual clock and on the host's, by the share of the host's CPU time that others took (of each boot in
its busiest phase; the median of an experiment's boots). A cell is mean, scatter and (boots); boots are
compared within their experiment, and these scatters are pooled. P is the p of Welch's test that boots on the
virtual clock, of the first and of the third column, differ by chance only: of N rows the least is 1/N or so.
LEAST FACTOR, of all on the virtual clock, is the smallest that the case's number of BOOTS can tell from
chance, and ASKED the factor that it asks for, both of its newest experiment.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import rates  # noqa: E402
from numalab.analysis import calibration, effect, error_rates, metrics  # noqa: E402
from numalab.analysis.calibration import Spread  # noqa: E402
from numalab.analysis.error_rates import Experiment, Judged  # noqa: E402
from numalab.analysis.metrics import Kind  # noqa: E402
from numalab.core import state  # noqa: E402
from numalab.core.errors import LabError  # noqa: E402
from numalab.experiment.run import patience  # noqa: E402
from numalab.model.case import Arm, Expectation  # noqa: E402
from numalab.model.run import PhaseResult, Run  # noqa: E402
from numalab.model.values import Clock  # noqa: E402
from numalab.report.text import aligned, short  # noqa: E402
from numalab.runs import counters, index, profile, record, samples  # noqa: E402

LOADS = ("idle", "busy")
HEAD: tuple[str, ...] = (
    "CASE",
    "CLOCK",
    "HOST",
    "METRIC",
    "PHASE",
    "ARM",
    "BOOTS",
    "MEAN",
    "SCATTER",
    "SAME SEED",
    "LEAST FACTOR",
)
BANDS = {
    (Clock.VIRTUAL, 0): "VIRTUAL, <20%",
    (Clock.VIRTUAL, 1): "20 TO 55%",
    (Clock.VIRTUAL, 2): "55% OR MORE",
    (Clock.HOST, 0): "HOST'S, <20%",
    (Clock.HOST, 1): "20% OR MORE",
}
"""Columns of KEPT by clock and rates.band."""
KEPT: tuple[str, ...] = (
    *("CASE", "ARM", "METRIC", "PHASE"),
    *BANDS.values(),
    *("P", "BOOTS", "LEAST FACTOR", "ASKED"),
)
SLOW_DISKS, SLOW_DISKS_SINCE = "writeback-", "20261127"
"""Cases whose disks keep their speed by the guest's clock, and since when: before, the host's clock made it,
and boots on the virtual clock had faster disks the busier the host was."""
SHIFTED: tuple[str, ...] = tuple(
    {"CLOCK": "SHIFT", "SAME SEED": "SECONDS A BOOT"}.get(name, name) for name in HEAD
)
TOOK = ("CASE", "CLOCK", "OTHERS", "BOOTS", "MEDIAN", "MOST", "ALLOWED")
EXECUTED = ("CASE", "PHASE", "BOOTS", *(arm.value.upper() for arm in Arm))
QUARTERS = (
    *("CASE", "CLOCK", "METRIC", "PHASE", "ARM", "BOOTS", "SCATTER"),
    *("NEIGHBOURS", "FIRST AND LAST"),
)
PARTS = 4
LIMIT = 1 - 1e-9
"""What a correlation of 1 counts as, which has no interval."""
PLAIN = (str(ROOT / "lab.py"),)
LAB = (
    "import sys; from numalab.host import domain; from numalab.cli.main import main;"
    " domain.ICOUNT_SHIFT = int(sys.argv.pop(1)); main()"
)
"""lab.py with another shift."""
ONCE = (
    "from numalab.analysis import verdict; from numalab.cli.main import main;"
    " verdict.busy = lambda *_: ''; main()"
)
"""lab.py without a second run of a boot from which others took the processors: here that is on purpose."""


@contextlib.contextmanager
def load(kind: str) -> Iterator[None]:
    """Keep every CPU of the host busy, or leave it as it is."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range((os.cpu_count() or 1) if kind == "busy" else 0)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def experiment(
    case: str, boots: int, clock: str, words: Sequence[str], lab: Sequence[str] = PLAIN
) -> list[Run]:
    """The runs of one experiment with the case; `lab` is the command."""
    done = subprocess.run(
        [*lab, "run", case, "--boots", str(boots), "--clock", clock, *words],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    name = re.search(r"lab\.py compare (\S+)", done.stdout)
    if done.returncode not in rates.VERDICTS or not name:
        sys.exit(f"{case} on the {clock} clock: lab.py run ended with {done.returncode}")
    return stored(name[1])


def same_seed(runs: Sequence[Run], again: Sequence[Run], metric: str, phase: str) -> str:
    """The standard deviation of boots with one seed, from pairs of them; '-' without pairs."""
    seconds = {run.guest.spec.seed: run for run in again}
    pairs = [
        (metrics.value(run, metric, phase), metrics.value(seconds[run.guest.spec.seed], metric, phase))
        for run in runs
        if run.guest.spec.seed in seconds
    ]
    logs = [math.log(one / other) for one, other in pairs if one and other]
    return f"{math.sqrt(statistics.fmean(log * log for log in logs) / 2):.1%}" if logs else "-"


def deciding(runs: Sequence[Run]) -> set[tuple[str, str]]:
    """Metric and phase of each expectation that decides for these runs."""
    return {(expected.metric, expected.phase) for expected in error_rates.deciding(runs)}


def busy(runs: Sequence[Run]) -> str:
    """The most of the host's processor time that others took in a measured phase."""
    shares = [share for run in runs if (share := run.host_others) is not None]
    return f"{max(shares):.0%}" if shares else "-"


def rows(runs: Sequence[Run], again: Sequence[Run]) -> list[tuple[str, ...]]:
    """A row for each deciding expectation and kernel of an experiment, and of one with the same seeds. Boots
    that were taken again do not count."""
    lines: list[tuple[str, ...]] = []
    again = [run for run in again if not run.error]
    judged = deciding(runs)
    for arm in Arm:
        side = [run for run in runs if run.place and run.place.arm is arm and not run.error]
        known = calibration.of(side)
        first = (known.site.case_name, known.site.clock.value, busy(side))
        lines += [
            _row(first, arm, spread, same_seed(side, again, spread.metric, spread.phase))
            for spread in known.spreads
            if (spread.metric, spread.phase) in judged
        ]
    return lines


def _row(first: tuple[str, ...], arm: Arm, spread: Spread, last_but_one: str) -> tuple[str, ...]:
    """A row of HEAD."""
    return (
        *first,
        spread.metric,
        spread.phase,
        arm.value,
        str(spread.boots),
        short(spread.mean),
        f"{spread.sd:.1%}",
        last_but_one,
        f"{spread.limit(effect.LEAST_BOOTS):.3g}",
    )


def kept(experiments: Sequence[Experiment]) -> list[tuple[str, ...]]:
    """A row of KEPT for each case, kernel and deciding expectation of experiments in benchmarks/boots.json.

    How many boots a case has by default, and how large a change it asks for, make no difference here."""
    newest: dict[tuple[str, Clock], tuple[Judged, str, str]] = {}
    asked: dict[tuple[str, Expectation], tuple[int, float]] = {}
    cells: dict[tuple[str, Arm, Expectation], dict[tuple[Clock, int], list[list[float]]]] = {}
    latest_first = sorted(error_rates.unlike_seeds(experiments), key=lambda one: one.name, reverse=True)
    for one in sorted(latest_first, key=lambda one: one.clock is not Clock.VIRTUAL):
        if one.others is None or _other_disks(one):
            continue
        if not {one.judged.before, one.judged.after} & one.kernels.keys():
            continue  # the case with kernels of another series
        name = one.judged.case_name
        expect = tuple(expected.model_copy(update={"by": 1.0}) for expected in one.judged.expect)
        judged = one.judged.model_copy(update={"boots": 0, "expect": expect})
        kind = judged, one.topology, one.accel
        if kind != newest.setdefault((name, one.clock), kind):
            continue
        for expected, own in zip(expect, one.judged.expect, strict=True):
            asked.setdefault((name, expected), (one.judged.boots, own.asked))
        band = min(rates.band(one), max(known for clock, known in BANDS if clock is one.clock))
        for arm, kernel in zip(Arm, (judged.before, judged.after), strict=True):
            for i, expected in enumerate(expect):
                side = [
                    value for boot in one.kernels.get(kernel, ()) if (value := boot.values[i]) is not None
                ]
                if side:
                    row = cells.setdefault((name, arm, expected), {})
                    row.setdefault((one.clock, band), []).append(side)
    order = list(Arm)
    return [
        _side_by_side(*key, cells[key], *asked[key[0], key[2]])
        for key in sorted(cells, key=lambda key: (key[0], order.index(key[1])))
    ]


def _other_disks(one: Experiment) -> bool:
    return (
        one.clock is Clock.VIRTUAL
        and one.judged.case_name.startswith(SLOW_DISKS)
        and one.name < SLOW_DISKS_SINCE
    )


def _side_by_side(
    name: str,
    arm: Arm,
    expected: Expectation,
    cells: Mapping[tuple[Clock, int], list[list[float]]],
    boots: int,
    asked: float,
) -> tuple[str, ...]:
    """A row of KEPT. `boots` of each kernel are the case's, and `asked` is the factor that it asks for."""

    def cell(clock: Clock, band: int) -> str:
        sides = cells.get((clock, band), [])
        spread = calibration.spread(sides, expected) if sides else None
        return f"{short(spread.mean)} {spread.sd:.1%} ({sum(map(len, sides))})" if spread else "-"

    virtual = [side for (clock, _), sides in cells.items() if clock is Clock.VIRTUAL for side in sides]
    pooled = calibration.spread(virtual, expected) if virtual else None
    return (
        name,
        arm.value,
        expected.metric,
        expected.phase,
        *(cell(*band) for band in BANDS),
        _by_chance(cells.get((Clock.VIRTUAL, 0), []), cells.get((Clock.VIRTUAL, 2), [])),
        str(boots),
        f"{pooled.limit(boots):.3g}" if pooled else "-",
        f"{asked:g}",
    )


def _by_chance(quiet: Sequence[Sequence[float]], loaded: Sequence[Sequence[float]]) -> str:
    """The p of Welch's test: how often boots that are alike differ as much by chance. '-' with a 0, which has
    no logarithm, or fewer than two boots of either."""
    sides = [[value for side in sides for value in side] for sides in (quiet, loaded)]
    if min(map(len, sides)) < 2 or min(map(min, sides)) <= 0:
        return "-"
    logs = [np.log(side) for side in sides]
    return f"{stats.ttest_ind(*logs, equal_var=False).pvalue:.2g}" if any(map(np.ptp, logs)) else "-"


def _range(shares: Sequence[float]) -> str:
    """'32% to 67%'; '-' of none."""
    if not shares:
        return "-"
    least, most = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return least if least == most else f"{least} to {most}"


def stored(experiment: str) -> list[Run]:
    """The runs of a stored experiment."""
    return [record.read(folder) for folder in index.choose([experiment])]


def took(experiments: Sequence[str]) -> list[tuple[str, ...]]:
    """A row of TOOK for each case and clock of stored experiments. Runs that broke do not count."""
    sides: dict[tuple[str, Clock], list[tuple[float, float, float | None]]] = {}
    for run in (run for name in experiments for run in stored(name)):
        if run.place and run.host_seconds is not None and not run.error:
            clock = run.guest.spec.clock
            allowed = patience(run.place.case.sizes[run.size].minutes, clock)
            sides.setdefault((run.place.case_name, clock), []).append(
                (run.host_seconds, allowed, run.host_others)
            )
    rows = []
    for (name, clock), side in sides.items():
        seconds, limits, shares = zip(*side, strict=True)
        others = [share for share in shares if share is not None]
        rows.append(
            (
                *(name, clock.value),
                f"{statistics.median(others):.0%}" if others else "-",
                str(len(side)),
                *(f"{taken:.0f}" for taken in (statistics.median(seconds), max(seconds))),
                " ".join(f"{limit:.0f}" for limit in sorted({*limits})),
            )
        )
    return rows


def executed(experiment: str) -> list[tuple[str, ...]]:
    """A row of EXECUTED for each measured phase of a stored experiment whose instructions were counted."""
    shares: dict[tuple[str, str], dict[Arm, list[float]]] = {}
    for folder in index.choose([experiment]):
        run = record.read(folder)
        for number, result in enumerate(run.phases):
            if run.place and run.guest.spec.instructions and result.phase.measured and not run.error:
                # Sleeping CPUs execute nothing; the idle task's own instructions count too.
                text = (record.phase_folder(folder, number, result.phase.name) / record.PROFILE).read_text()
                seconds = profile.samples(profile.parse(text)) * run.guest.spec.instruction_seconds
                sides = shares.setdefault((run.place.case_name, result.phase.name), {arm: [] for arm in Arm})
                sides[run.place.arm].append(seconds / result.elapsed)
    return [
        (*key, " + ".join(str(len(side)) for side in sides.values()), *map(_range, sides.values()))
        for key, sides in shares.items()
    ]


def quarters(experiments: Sequence[str], metric: str | None = None) -> list[tuple[str, ...]]:
    """A row of QUARTERS for each deciding metric, or for `metric`, and each kernel of stored experiments, as
    far as the samples of /proc/vmstat have it. Boots are compared within their experiment."""
    sides: dict[tuple[str, ...], list[list[tuple[float, ...]]]] = {}
    for experiment in experiments:
        read = [(folder, record.read(folder)) for folder in index.choose([experiment])]
        runs = [(run, (run, *quarter(folder, run))) for folder, run in read if not run.error]
        judged = sorted(deciding([run for run, _ in runs]))
        for name, phase in sorted({(metric, phase) for _, phase in judged} if metric else judged):
            if metrics.kind(name) is Kind.TIME:
                continue  # no time of a part of a phase is recorded
            for arm in Arm:
                lines = [
                    [metrics.value(part, name, phase) for part in parts]
                    for run, parts in runs
                    if run.place and run.place.arm is arm
                ]
                side = [tuple(value for value in line if value is not None) for line in lines]
                side = [line for line in side if len(line) == 1 + PARTS]
                spec, place = runs[0][0].guest.spec, runs[0][0].place
                if len(side) >= effect.LEAST_BOOTS and place:
                    key = place.case_name, spec.clock.value, name, phase, arm.value
                    sides.setdefault(key, []).append(side)
    return [(*key, *_quarters(groups)) for key, groups in sides.items()]


def quarter(folder: Path, run: Run) -> list[Run]:
    """The run with the sampled counters of each quarter of its phases."""
    parts: tuple[list[PhaseResult], ...] = tuple([] for _ in range(PARTS))
    for number, result in enumerate(run.phases):
        place = record.phase_folder(folder, number, result.phase.name)
        before = counters.parse((place / "before" / "vmstat").read_text())
        taken = [
            one for one in record.samples(folder, number, result.phase.name) if one["t"] < result.elapsed
        ]
        counted: tuple[dict[str, int], ...] = tuple({} for _ in range(PARTS))
        for name, count in result.counters["vmstat"].items():
            line = [(one["t"], one["vmstat"][name] - before[name]) for one in taken if name in one["vmstat"]]
            if line:
                line = [(0.0, 0.0), *line, (result.elapsed, count)]
                ends = [round(samples.between(line, result.elapsed * i / PARTS)) for i in range(PARTS + 1)]
                for part, begin, end in zip(counted, ends, ends[1:], strict=False):
                    part[name] = end - begin
        for results, part in zip(parts, counted, strict=True):
            results.append(result.model_copy(update={"counters": {"vmstat": part}, "output": {}}))
    return [run.model_copy(update={"phases": tuple(results)}) for results in parts]


def _quarters(groups: Sequence[Sequence[tuple[float, ...]]]) -> tuple[str, ...]:
    """Boots, scatter of the whole in percent of the mean, and the correlations of quarters."""
    # For each experiment: the boots' wholes, first quarters, second, …
    lines = [[*zip(*group, strict=True)] for group in groups]
    boots = sum(map(len, groups))
    mean = sum(sum(line[0]) for line in lines) / boots

    def product(i: int, j: int) -> float:
        """Sum of products of deviations from the mean of the experiment."""
        return sum(statistics.covariance(line[i], line[j]) * (len(line[i]) - 1) for line in lines)

    def correlation(i: int, j: int) -> float | None:
        spread = math.sqrt(product(i, i) * product(j, j))
        return max(-LIMIT, min(LIMIT, product(i, j) / spread)) if spread else None

    scatter = f"{math.sqrt(product(0, 0) / (boots - len(lines))) / mean:.1%}" if mean else "-"
    known = [seen for i in range(1, PARTS) if (seen := correlation(i, i + 1)) is not None]
    neighbours = f"{statistics.fmean(known):+.2f}" if known else "-"
    seen, free, apart = correlation(1, PARTS), boots - len(lines) - 2, "-"
    if seen is not None and free > 0:
        low, high = (math.tanh(math.atanh(seen) + side * 1.96 / math.sqrt(free)) for side in (-1, 1))
        apart = f"{seen:+.2f} ({low:+.2f} to {high:+.2f})"
    return str(boots), scatter, neighbours, apart


def shifts(case: str, boots: int, words: Sequence[str], values: Sequence[int]) -> Iterator[list[Run]]:
    """Run the case once for each shift; yield the runs, then print the table so far."""
    table = [SHIFTED]
    for shift in values:
        start = time.monotonic()
        lab = [sys.executable, "-c", LAB, str(shift)]
        runs = experiment(case, boots, Clock.VIRTUAL.value, words, lab)
        seconds = f"{(time.monotonic() - start) / len(runs):.0f}"
        yield runs
        for row in rows(runs, []):
            cells = dict(zip(HEAD, row, strict=True)) | {"CLOCK": str(shift), "SAME SEED": seconds}
            table.append(tuple(cells.values()))
        print("\n".join(aligned(table, left=6)), flush=True)


def clocks(
    case: str, boots: int, words: Sequence[str], chosen: Sequence[str], loads: Sequence[str], again: bool
) -> Iterator[list[Run]]:
    """Run the case once for each clock and load; yield the runs, then print the table so far."""
    table = [HEAD]
    for clock in chosen:
        for host in loads:
            lab = [sys.executable, "-c", ONCE] if host == "busy" else PLAIN
            with load(host):
                runs = experiment(case, boots, clock, words, lab)
                yield runs
                place = runs[0].place
                repeat = ["--seed", str(place.seed), *words] if again and place else []
                repeated = experiment(case, boots, clock, repeat, lab) if repeat else []
                if repeated:
                    yield repeated
            table += rows(runs, repeated)
            print("\n".join(aligned(table, left=6)), flush=True)


def main() -> None:
    """Run the case and print the table, a clock and a load at a time."""
    try:
        _main()
    except (LabError, OSError) as error:
        sys.exit(f"error: {error}")


def _main() -> None:
    parser = argparse.ArgumentParser(description="scatter of a case's boots by clock and host load")
    parser.add_argument("case", nargs="*", metavar="CASE|EXPERIMENT")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--kept", action="store_true", help="the boots in benchmarks/boots.json; nothing is run"
    )
    shown.add_argument("--stored", action="store_true", help="these stored experiments; nothing is run")
    shown.add_argument("--took", action="store_true", help="the seconds that their boots took on the host")
    shown.add_argument(
        "--executed", action="store_true", help="the time in which these stored experiments executed"
    )
    shown.add_argument(
        "--quarters", action="store_true", help="the quarters of phases of these stored experiments"
    )
    parser.add_argument("--metric", help="with --quarters: this one, deciding or not", metavar="NAME")
    parser.add_argument("--boots", type=int, default=8, help="boots of each kernel, 3 or more (8)")
    parser.add_argument("--clock", choices=[clock.value for clock in Clock], help="this clock alone")
    parser.add_argument("--load", choices=LOADS, help="this load alone")
    parser.add_argument("--again", action="store_true", help="a second time, with the same seeds")
    parser.add_argument(
        "--shift", help="the virtual clock with instructions of 2**N ns: 2,3,4", metavar="N,N"
    )
    parser.add_argument("--discard", action="store_true", help="remove the runs afterwards")
    options, words = parser.parse_known_args()
    stored_ones = options.stored or options.took or options.executed or options.quarters
    if words and (options.kept or stored_ones):
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    if options.metric and not options.quarters:
        parser.error("--metric: with --quarters")
    if options.metric and metrics.kind(options.metric) is Kind.TIME:
        parser.error(f"--metric {options.metric}: no time of a part of a phase is recorded")
    if options.kept:
        known = rates.read(rates.BOOTS)
        if unknown := {*options.case} - {one.judged.case_name for one in known}:
            parser.error(f"benchmarks/{rates.BOOTS.name} has no boots of {', '.join(sorted(unknown))}")
        wanted = [
            one
            for one in known
            if (not options.case or one.judged.case_name in options.case)
            and options.clock in (None, one.clock.value)
        ]
        print("\n".join(aligned([KEPT, *kept(wanted)], left=4)))
        return
    if stored_ones:
        if not options.case:
            parser.error("--stored, --took, --executed and --quarters: name stored experiments (lab.py runs)")
        if options.stored:
            head, left = HEAD, 6
            table = [row for name in options.case for row in rows(stored(name), [])]
        elif options.took:
            head, left = TOOK, 2
            table = took(options.case)
        elif options.executed:
            head, left = EXECUTED, 2
            table = [row for name in options.case for row in executed(name)]
        else:
            head, left = QUARTERS, 5
            table = quarters(options.case, options.metric)
        if not table:
            lacks = (
                "instructions that were counted: lab.py run CASE --profile 1"
                if options.executed
                else "boots whose time was recorded"
                if options.took
                else "counts"
            )
            sys.exit(f"error: {', '.join(options.case)}: no {lacks}")
        print("\n".join(aligned([head, *table], left=left)))
        return
    if len(options.case) != 1:
        parser.error("one case at a time, or --stored, --took, --executed, --quarters or --kept")
    if options.boots < effect.LEAST_BOOTS:
        parser.error(f"--boots {options.boots}: {effect.LEAST_BOOTS} or more show scatter")
    (case,) = options.case
    if options.shift:
        done = shifts(case, options.boots, words, [int(value) for value in options.shift.split(",")])
    else:
        chosen = [options.clock] if options.clock else [clock.value for clock in Clock]
        loads = [options.load] if options.load else LOADS
        done = clocks(case, options.boots, words, chosen, loads, options.again)
    for runs in done:
        for run in runs if options.shift or options.discard else ():
            shutil.rmtree(state.folder("runs") / run.id)


if __name__ == "__main__":
    main()
