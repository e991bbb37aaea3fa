"""Runs on disk: one folder each, readable without the lab and judged again without a guest.

    run.json            the Run                      domain.xml    as libvirt was given it
    console.log         all of it                    phases/NN-NAME/{before,after}/vmstat, node0.vmstat, …
    topology.txt        asked and found                             stdout, stderr

`run.json`'s counter differences are derived from the snapshots; `read` makes them anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from numalab import counters
from numalab.errors import InputError
from numalab.model import PhaseResult, Run, jsonable


def write(run: Run, folder: Path) -> None:
    """run.json, whole or not at all."""
    fresh = folder / "run.json.new"
    fresh.write_text(json.dumps(jsonable(run), indent=1))
    fresh.replace(folder / "run.json")


def write_phase(folder: Path, index: int, name: str, edges: Mapping[str, Mapping[str, str]], streams: Mapping[str, str]) -> None:
    """The raw side of one phase: both snapshots, both streams."""
    place = folder / "phases" / f"{index:02}-{name}"
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
        return run.model_copy(update={"phases": tuple(_again(folder, i, result) for i, result in enumerate(run.phases))})
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: not a run: {error}") from error


def _again(folder: Path, index: int, result: PhaseResult) -> PhaseResult:
    place = folder / "phases" / f"{index:02}-{result.phase.name}"
    sides = {edge: {path.name: path.read_text() for path in (place / edge).iterdir()} for edge in ("before", "after")}
    return result.model_copy(update={"counters": counters.phase(sides["before"], sides["after"])})
