"""Runs -> text. Later: tables of several kernels, mail, HTML; the raw values stay with the runs."""

from __future__ import annotations

from numalab import counters
from numalab.runs import Run

ABSENT = "-"


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
