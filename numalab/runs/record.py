# SPDX-License-Identifier: GPL-2.0-only
"""The folder of a run: readable without the lab, and judged again without a guest.

    run.json            the Run                      domain.xml    as libvirt was given it
    console.log         all of it                    phases/NN-NAME/{before,after}/vmstat, node0.vmstat, …
    topology.txt        requested and observed                      stdout, stderr,
    kernel.config       of the running kernel                       samples.jsonl, profile.folded

`run.json`'s counter differences are derived from the snapshots; `read` computes them again. A line of
samples.jsonl is one sample of the phase: {"t": seconds since its start, "vmstat": {counter: absolute value},
"node0.vmstat": {…}, "trace": {event: count}, …}. Not here: finding runs (index), comparing them
(compatibility).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from numalab.core import state
from numalab.core.errors import InputError
from numalab.model.run import Memory, PhaseResult, Run
from numalab.model.values import first_line, jsonable
from numalab.runs import counters
from numalab.runs import profile as runs_profile
from numalab.runs import samples as runs_samples

PROFILE = "profile.folded"
"""The file in a phase's folder, when a profile was taken; see runs.profile."""
KERNEL_CONFIG = "kernel.config"
"""The configuration of the kernel that ran; absent when the guest has none."""
LEAST_SHARE = 0.005
"""The least share of a profile's samples that becomes one of the run's numbers. Smaller functions, and frames
that perf has no name for, are in PROFILE only."""


def write(run: Run, folder: Path) -> None:
    """Write run.json, completely or not at all, after the rest of the folder is on the disk."""
    state.sync(*state.everything(folder))
    state.write(folder / "run.json", json.dumps(jsonable(run), indent=1))


def write_samples(folder: Path, index: int, name: str, lines: Sequence[str]) -> None:
    """Write a phase's samples.jsonl, if there are samples."""
    if lines:
        phase_folder(folder, index, name).mkdir(parents=True, exist_ok=True)
        (phase_folder(folder, index, name) / "samples.jsonl").write_text(
            "".join(line + "\n" for line in lines)
        )


def write_phase(
    folder: Path, index: int, name: str, edges: Mapping[str, Mapping[str, str]], streams: Mapping[str, str]
) -> None:
    """Write the raw data of a phase: both snapshots, both streams."""
    place = phase_folder(folder, index, name)
    for edge, texts in edges.items():
        (place / edge).mkdir(parents=True)
        for path, text in texts.items():
            (place / edge / counters.short(path)).write_text(text)
    for stream, text in streams.items():
        (place / stream).write_text(text)


def read(folder: Path) -> Run:
    """A run, with its differences computed from the raw snapshots. Raises InputError."""
    try:
        run = Run.from_json((folder / "run.json").read_text())
        return run.model_copy(
            update={
                "phases": tuple(_again(folder, i, result, run.release) for i, result in enumerate(run.phases))
            }
        )
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: not a run: {_why(error)}") from error


def summary(folder: Path) -> Run:
    """A run from run.json alone, with its differences as stored: fast, for many runs. Raises InputError."""
    try:
        return Run.from_json((folder / "run.json").read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: not a run: {_why(error)}") from error


def samples(folder: Path, index: int, name: str) -> list[dict[str, Any]]:
    """The samples of a phase, in order; empty when none were taken. Raises InputError."""
    path = phase_folder(folder, index, name) / "samples.jsonl"
    try:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error


def profile(folder: Path, index: int, name: str) -> runs_profile.Stacks:
    """A phase's stacks, without idle CPUs; empty when no profile was taken. Raises InputError."""
    path = phase_folder(folder, index, name) / PROFILE
    try:
        return runs_profile.busy(runs_profile.parse(path.read_text())) if path.exists() else {}
    except (InputError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from error


def phase_folder(folder: Path, index: int, name: str) -> Path:
    """The folder of a phase's raw data; `index` counts all phases of the run, measured or not."""
    return folder / "phases" / f"{index:02}-{name}"


def _why(error: OSError | ValueError) -> str:
    return f"run.json: {first_line(error)}" if isinstance(error, ValidationError) else str(error)


def output(folder: Path, index: int, name: str) -> dict[str, float]:
    """A workload's own numbers in a phase, each tracepoint's rate in its steady part (per_10_s.SYSTEM.EVENT,
    and its error and windows), and each function's profile share: profile_percent.FUNCTION."""
    numbers = counters.workload_numbers((phase_folder(folder, index, name) / "stdout").read_text())
    # Samples come from the guest as they are.
    with contextlib.suppress(InputError, KeyError, TypeError, ValueError):
        numbers |= _rates(samples(folder, index, name))
    shares = runs_profile.shares(profile(folder, index, name))
    return numbers | {
        f"{counters.PROFILE}{share.function}": 100 * share.total
        for share in shares
        if share.total >= LEAST_SHARE and re.fullmatch(r"[\w.-]+", share.function)
    }


def _rates(of: Sequence[runs_samples.Sample]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for event, rate in runs_samples.rates(of).items():
        metric = f"{counters.RATE}{event.replace(':', '.')}"
        numbers |= {metric: rate.mean, f"{metric}.windows": rate.windows}
        numbers |= {} if rate.error_percent is None else {f"{metric}.error_percent": rate.error_percent}
    return numbers


def memory(folder: Path, index: int, name: str, release: str) -> Memory | None:
    """What the guest's memory was made of in a phase when there was the most of it."""
    place = phase_folder(folder, index, name)
    moments: list[Mapping[str, int]] = []
    with contextlib.suppress(InputError):  # samples come from the guest as they are; the edges say enough
        vmstats = [sample.get("vmstat") for sample in samples(folder, index, name)]
        moments += [vmstat for vmstat in vmstats if isinstance(vmstat, dict)]
    for edge in ("before", "after"):
        with contextlib.suppress(FileNotFoundError):
            moments.append(counters.parse((place / edge / counters.short(counters.VMSTAT)).read_text()))
    return runs_samples.fullest(moments, release)


def _again(folder: Path, index: int, result: PhaseResult, release: str) -> PhaseResult:
    place = phase_folder(folder, index, result.phase.name)
    sides = {
        edge: {path.name: path.read_text() for path in (place / edge).iterdir()}
        for edge in ("before", "after")
    }
    return result.model_copy(
        update={
            "counters": counters.phase(sides["before"], sides["after"]),
            "output": output(folder, index, result.phase.name),
            "memory": memory(folder, index, result.phase.name, release),
        }
    )
