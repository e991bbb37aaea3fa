"""Runs and verdicts -> text for a terminal. Tables of several kernels: tables; mail, HTML: modules of that name."""

from __future__ import annotations

from fnmatch import fnmatchcase

from numalab import counters
from numalab.calibration import Calibration
from numalab.case import CONFIDENCE, Case, Verdict
from numalab.model import Accel, Phase
from numalab.runs import Run

ABSENT = "-"
UNITS = (("G", 1e9), ("M", 1e6), ("k", 1e3))


def short(number: float) -> str:
    """147213 -> '147k'; small ones and fractions keep three digits."""
    for unit, scale in UNITS:
        if abs(number) >= scale * (10 if unit == "k" else 1):
            return f"{number / scale:.3g}{unit}"
    return f"{number:.3g}" if number % 1 else f"{number:.0f}"


def summary(run: Run) -> str:
    """One run's measured phases in columns: times, then the seeds' NUMA block from /proc/vmstat."""
    phases = [result for result in run.phases if result.phase.measured]
    spec = run.guest["spec"]
    head = [
        f"{run.workload} ({run.size}) on {spec['topology_name']}: {spec['topology']['vcpus']} vCPUs, {spec['topology']['memory']}, "
        f"kernel {spec['boot']['name']} {run.release}, {spec['accel']}",
    ]
    if spec["accel"] == "tcg":
        head.append("emulated: counters are faithful, times are not")
    if run.error:
        head.append(f"BROKEN, not a result: {run.error}")
    head += [f"console: {line}" for line in run.console_warnings]
    rows = [("", *(result.phase.name for result in phases))]
    for title, field in (("User", "user"), ("System", "system"), ("Elapsed", "elapsed")):
        rows.append((title, *(f"{getattr(result, field):.2f}" for result in phases)))
    for title, key in counters.NUMA_ROWS:
        values = [{**result.counters.get("vmstat", {}), **counters.derived(result.counters.get("vmstat", {}))}.get(key) for result in phases]
        # Cut off, not rounded: so the seeds' tables have it (37.7 % local is 37).
        rows.append((title, *(ABSENT if value is None else f"{int(value)}" for value in values)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    body = [f"{row[0]:{widths[0]}}  " + "  ".join(f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True)) for row in rows]
    return "\n".join([*head, "", *(line.rstrip() for line in body)])


def verdict(found: Verdict) -> str:
    """A case judged: the answer, then each expectation with its boots' values, effect, interval and reason."""
    lines = [
        f"{found.case_name} ({found.size}) on {found.topology}, {found.accel}: {found.before} against {found.after}, "
        f"{found.boots[0]} and {found.boots[1]} boots: {found.answer.upper()}",
    ]
    for one in found.findings:
        wanted = one.expectation
        asked = f"{wanted.direction}{f' by {wanted.by:g}' if wanted.by > 1 else ''}{f' to {wanted.to:g}' if wanted.to is not None else ''}"
        effect = ABSENT if one.ratio is None else f"×{one.ratio:.3g}"
        interval = "" if one.low is None or one.high is None else f" ({CONFIDENCE:.0%}: ×{one.low:.3g} to ×{one.high:.3g})"
        lines += [
            f"  {wanted.metric}, {wanted.phase}: {asked}: {one.answer if one.decides else f'no part of the verdict ({one.answer})'}",
            f"    {found.before}: {' '.join(short(value) for value in one.before) or ABSENT}",
            f"    {found.after}: {' '.join(short(value) for value in one.after) or ABSENT}",
            f"    effect {effect}{interval}; {one.reason}",
        ]
    lines += [f"  doubt: {doubt}" for doubt in found.doubts]
    if found.accel == Accel.TCG:
        lines.append("  emulated: counters are faithful, times are not, and no time decided this")
    return "\n".join(lines)


def repro(case: Case, kernel: str, guest: str, phase: Phase, script: str) -> str:
    """What to type and what to watch in a guest that stands before a case's interesting phase."""
    metrics = list(dict.fromkeys(wanted.metric for wanted in case.expect if fnmatchcase(phase.name, wanted.phase)))
    lines = [
        f"{guest}: kernel {kernel}, everything is done up to phase {phase.name}. {case.description}.",
        f"  type:   sh {script}          # the phase: {phase.command.splitlines()[0][:100]}",
        f"  watch:  ./lab.py watch {guest}   # here, in another terminal",
        f"          in the guest: grep -E '{'|'.join(metrics)}' /proc/vmstat",
        "  expected of after against before: " + "; ".join(f"{wanted.metric} {wanted.direction}" for wanted in case.expect if wanted.decides),
        f"  end:    ./lab.py down {guest}",
    ]
    return "\n".join(lines)


def spread(found: Calibration) -> str:
    """How far each metric of a case scatters over boots of one kernel, and what two lots of boots differ by on their own."""
    about = found.site
    lines = [f"{about.case_name} ({about.size}) on {about.accel}, {found.kernel} against itself, {len(found.runs)} boots:"]
    for one in found.spreads:
        lines.append(f"  {one.metric}, {one.phase}: mean {short(one.mean)}, scatter {one.sd:.1%}; 3 boots against 3 differ by up to ×{one.limit(3):.3g}")
    return "\n".join(lines)
