# SPDX-License-Identifier: GPL-2.0-only
"""Runs on disk: one folder each, readable without the lab and judged again without a guest.

    run.json            the Run                      domain.xml    as libvirt was given it
    console.log         all of it                    phases/NN-NAME/{before,after}/vmstat, node0.vmstat, …
    topology.txt        asked and found                             stdout, stderr, samples.jsonl,
    profile.folded

`run.json`'s counter differences are derived from the snapshots; `read` makes them anew. A line of
samples.jsonl is a moment of the phase: {"t": seconds since its start, "vmstat": {counter: absolute value},
"node0.vmstat": {…}, …}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from numalab.core import state
from numalab.core.errors import InputError
from numalab.model.run import PhaseResult, Run
from numalab.model.values import first_line, jsonable
from numalab.runs import counters
from numalab.runs import profile as runs_profile

PROFILE = "profile.folded"
"""In a phase's folder, where a profile was taken; see folded."""
LEAST_SHARE = 0.005
"""The least share of a profile's samples that is a number of the run: functions with less, and frames that
perf has no name for, are in PROFILE only."""


def write(run: Run, folder: Path) -> None:
    """run.json, whole or not at all, and only after the rest of the folder is on the disk."""
    state.sync(*state.everything(folder))
    state.write(folder / "run.json", json.dumps(jsonable(run), indent=1))


def write_samples(folder: Path, index: int, name: str, lines: Sequence[str]) -> None:
    """A phase's samples.jsonl, if it was sampled at all."""
    if lines:
        phase_folder(folder, index, name).mkdir(parents=True, exist_ok=True)
        (phase_folder(folder, index, name) / "samples.jsonl").write_text(
            "".join(line + "\n" for line in lines)
        )


def write_phase(
    folder: Path, index: int, name: str, edges: Mapping[str, Mapping[str, str]], streams: Mapping[str, str]
) -> None:
    """The raw side of one phase: both snapshots, both streams."""
    place = phase_folder(folder, index, name)
    for edge, texts in edges.items():
        (place / edge).mkdir(parents=True)
        for path, text in texts.items():
            (place / edge / counters.short(path)).write_text(text)
    for stream, text in streams.items():
        (place / stream).write_text(text)


def read(folder: Path) -> Run:
    """A run, its differences computed from the raw snapshots. Raises InputError."""
    try:
        run = Run.model_validate_json((folder / "run.json").read_text())
        return run.model_copy(
            update={"phases": tuple(_again(folder, i, result) for i, result in enumerate(run.phases))}
        )
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: not a run: {_why(error)}") from error


def summary(folder: Path) -> Run:
    """A run from its run.json alone, its differences as they were written: quick, for many runs. Raises
    InputError."""
    try:
        return Run.model_validate_json((folder / "run.json").read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: not a run: {_why(error)}") from error


def samples(folder: Path, index: int, name: str) -> list[dict[str, Any]]:
    """The moments of a phase, in order; empty when it was not sampled. Raises InputError."""
    path = phase_folder(folder, index, name) / "samples.jsonl"
    try:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error


def profile(folder: Path, index: int, name: str) -> runs_profile.Stacks:
    """A phase's stacks; empty when no profile was taken. Raises InputError."""
    path = phase_folder(folder, index, name) / PROFILE
    try:
        return runs_profile.parse(path.read_text()) if path.exists() else {}
    except (InputError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from error


def phase_folder(folder: Path, index: int, name: str) -> Path:
    """Where a phase's raw side is; index counts all phases of the run, measured or not."""
    return folder / "phases" / f"{index:02}-{name}"


def _why(error: OSError | ValueError) -> str:
    return f"run.json: {first_line(error)}" if isinstance(error, ValidationError) else str(error)


def output(folder: Path, index: int, name: str) -> dict[str, float]:
    """What a phase's workload told of itself; and of a profile, each function's share:
    profile_percent.FUNCTION."""
    told = counters.told((phase_folder(folder, index, name) / "stdout").read_text())
    shares = runs_profile.shares(profile(folder, index, name))
    return told | {
        f"{counters.PROFILE}{share.function}": 100 * share.total
        for share in shares
        if share.total >= LEAST_SHARE and re.fullmatch(r"[\w.-]+", share.function)
    }


def _again(folder: Path, index: int, result: PhaseResult) -> PhaseResult:
    place = phase_folder(folder, index, result.phase.name)
    sides = {
        edge: {path.name: path.read_text() for path in (place / edge).iterdir()}
        for edge in ("before", "after")
    }
    return result.model_copy(
        update={
            "counters": counters.phase(sides["before"], sides["after"]),
            "output": output(folder, index, result.phase.name),
        }
    )
