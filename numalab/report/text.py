# SPDX-License-Identifier: GPL-2.0-only
"""Runs and verdicts -> text for a terminal. Not here: tables of several kernels (comparison), mail, HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import zip_longest

from numalab.analysis import effect, metrics
from numalab.analysis.calibration import Calibration
from numalab.model.case import Case, Expectation
from numalab.model.run import Run
from numalab.model.units import show_size
from numalab.model.values import Phase, accel_label, caveat, times_are
from numalab.model.verdict import Finding, Verdict
from numalab.runs import counters

ABSENT = "-"
UNITS = (("k", 1e3), ("M", 1e6), ("G", 1e9))
COUNTER = re.compile(r"\b(?:numa|nr|pg|fairzone)_?\w+")
"""Names in a metric's formula that are counters of /proc/vmstat, or prefixes of several (pgalloc_*)."""


def short(number: float) -> str:
    """147213 -> '147k'; numbers below 10000 are not cut, fractions keep three digits."""
    if abs(number) < 9999.5:
        return f"{number:.3g}" if number % 1 and abs(number) < 999.5 else f"{number:.0f}"
    unit, scale = next(((unit, scale) for unit, scale in UNITS if abs(number) < 999.5 * scale), UNITS[-1])
    return f"{number / scale:.3g}{unit}" if abs(number) < 999.5 * scale else f"{number / scale:.0f}{unit}"


def summary(run: Run) -> str:
    """One run's measured phases as columns: times, then the seeds' NUMA block from /proc/vmstat."""
    phases = run.measured
    spec = run.guest.spec
    head = [
        (
            f"{run.workload} ({run.size}) on {spec.topology_name}: {spec.topology.vcpus} vCPUs,"
            f" {show_size(spec.topology.memory)}, kernel {run.kernel} {run.release}, {spec.runs_on}"
            + (f", seed {spec.seed}" if spec.seed is not None else "")
        ),
    ]
    if spec.caveat:
        head.append(spec.caveat)
    if run.guest.ready_state:
        head.append(f"began from ready state {run.guest.ready_state}: not a boot of its own")
    if run.prepared and run.guest.prepared:
        head.append(f"on prepared disks {run.guest.prepared.key}: without {', '.join(run.prepared)}")
    if run.host_seconds is not None:
        head.append(f"the boot took {run.host_seconds:.0f} s of the host's, to the end of its last phase")
    if run.error:
        head.append(f"BROKEN, not a result: {run.error}")
    head += [f"console: {line}" for line in run.console_warnings]
    rows = [("", *(result.phase.name for result in phases))]
    for title, field in (("User", "user"), ("System", "system"), ("Elapsed", "elapsed")):
        rows.append((title, *(f"{getattr(result, field):.2f}" for result in phases)))
    for title, key in counters.NUMA_ROWS:
        values = [
            {**result.counters.get("vmstat", {}), **counters.derived(result.counters.get("vmstat", {}))}.get(
                key
            )
            for result in phases
        ]
        # Cut off, not rounded, as in the seeds' tables (37.7 % local is 37).
        rows.append((title, *(ABSENT if value is None else f"{int(value)}" for value in values)))
    return "\n".join([*head, "", *aligned(rows)])


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Rows of equal length as aligned columns: the first `left` to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{text:{width}}" if i < left else f"{text:>{width}}"
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def verdict(judged: Verdict) -> str:
    """A verdict: the answer, then each finding with values, effect and reason, deciding ones first."""
    lines = [
        (
            f"{judged.case_name} ({judged.size}) on {judged.topology},"
            f" {accel_label(judged.accel, judged.clock)}: {judged.before} against {judged.after},"
            f" {judged.boots[0]} and {judged.boots[1]} boots: {judged.words.upper()}"
        ),
    ]
    beside = [one for one in judged.findings if not one.decides]
    for one in judged.findings:
        if one.decides:
            lines += _finding(one, judged)
    if beside:
        lines.append("  no part of the verdict:")
    for one in beside:
        lines += [f"  {line}" for line in _finding(one, judged)]
    lines += [f"  {judged.varied}"] if judged.varied else []
    lines += [f"  doubt: {doubt}" for doubt in judged.doubts]
    if note := caveat(judged.accel, judged.clock):
        timed = any(
            one.decides and metrics.kind(one.expectation.metric) is metrics.Kind.TIME
            for one in judged.findings
        )
        lines.append(f"  {note}{'' if timed else ', and no time decided this'}")
    return "\n".join(lines)


def _finding(one: Finding, judged: Verdict) -> list[str]:
    """A finding's lines: expectation, answer, each kernel's values, reason, boots that an answer takes."""
    ratio = "" if one.ratio is None else f", {'odds ' * one.odds}×{one.ratio:.3g}"
    rows = [
        (kernel, *(map(short, values) if values else [ABSENT]))
        for kernel, values in ((judged.before, one.before), (judged.after, one.after))
    ]
    lines = [f"  {_expectation_text(one.expectation)}: {one.words}{ratio}"]
    lines += [f"    {line}" for line in aligned([*zip(*zip_longest(*rows, fillvalue=""), strict=True)])]
    lines.append(f"    {one.reason}")  # for "cannot tell", with the boots that an answer takes
    return lines


def _expectation_text(expected: Expectation) -> str:
    """An expectation in the case's own terms."""
    odds = " in odds" if metrics.kind(expected.metric) is metrics.Kind.SHARE else ""
    by = f" by a factor of {expected.by:g}{odds}" if expected.by > 1 else ""
    to = "" if expected.to is None else f"{',' * bool(by)} to {expected.to:g}"
    return f"{expected.metric}, {expected.phase}: {expected.direction}{by}{to}"


def repro(case: Case, kernel: str, guest: str, phase: Phase, script: str) -> str:
    """Commands and counters for a guest that `repro` prepared up to a case's interesting phase."""
    expectations = [expected for expected in case.expect if fnmatchcase(phase.name, expected.phase)]
    watched = list(
        dict.fromkeys(counter for expected in expectations for counter in _counters(expected.metric))
    )
    lines = [
        f"{guest}: kernel {kernel}, all done up to phase {phase.name} of {case.workload}: {case.description}",
        f"  in the guest:  sh {script}    # {phase.command.splitlines()[0][:80]}",
    ]
    if watched:
        lines.append(f"                 grep -E '^({'|'.join(watched)})' /proc/vmstat    # before and after")
    lines += [
        f"                 perf stat -a -r 6 -e {event} sleep 10    # when it is steady"
        for event in case.tracepoints
    ]
    lines += [
        f"  here:          ./lab.py watch {guest}    # what moves, live",
        f"                 ./lab.py ssh {guest}      # another shell",
        f"                 ./lab.py down {guest}     # when you are done",
        f"  expected of {case.after} against {case.before}:",
    ]
    for expected in expectations:
        where = "" if expected.releases == "*" else f" (in {expected.releases})"
        lines.append(f"    {_expectation_text(expected)}{where}{': ' if expected.why else ''}{expected.why}")
    return "\n".join(lines)


def _counters(metric: str) -> list[str]:
    """The counters of /proc/vmstat behind a metric: itself, or those in its formula."""
    if metric not in metrics.DERIVED:
        return [metric] if metric not in metrics.TIMES and ":" not in metric else []
    formula = metrics.DERIVED[metric].about.partition(": ")[0]
    parts = [
        part
        for word in re.findall(r"\w+", formula)
        if word in metrics.DERIVED and word != metric
        for part in _counters(word)
    ]
    return [*COUNTER.findall(formula), *parts]


def spread(calibration: Calibration) -> str:
    """Each metric's spread over boots of one kernel, and by how much two groups differ by chance."""
    about, least = calibration.site, effect.LEAST_BOOTS
    rows = [("METRIC", "PHASE", "MEAN", "SCATTER", f"{least} BOOTS AGAINST {least}")]
    for one in calibration.spreads:
        times = times_are(about.accel, about.clock)
        timed = times and metrics.kind(one.metric) is metrics.Kind.TIME
        label = f" ({times.partition(':')[0]})" if timed else " (odds)" * one.odds
        rows.append(
            (
                one.metric + label,
                one.phase,
                short(one.mean),
                f"{one.sd:.1%}",
                f"up to ×{one.limit(least):.3g}",
            )
        )
    head = (
        f"{about.case_name} ({about.size}) on {accel_label(about.accel, about.clock)}, {calibration.kernel}"
        f" against itself, {len(calibration.runs)} boots:"
    )
    return "\n".join([head, *(f"  {line}" for line in aligned(rows, left=2))])
