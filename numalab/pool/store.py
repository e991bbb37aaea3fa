# SPDX-License-Identifier: GPL-2.0-only
"""Rounds come home: a round's run folders as one tar with its checksum, checked, then added to the store.

Not here: what a run's folder holds (runs.record), how one is added (runs.index.add), how bytes travel
(driver).
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from numalab.core import state
from numalab.core.errors import HostError, LabError
from numalab.model.run import Run
from numalab.pool.unit import Unit
from numalab.runs import index, record


class NotWhole(HostError):
    """What came home is not the round."""


MOST_BYTES = 1 << 30
"""The most bytes of a round, compressed: it is in the memory of worker, scheduler and this process."""


ALL_BOOTS = range(sys.maxsize)


def folders(unit: Unit) -> list[Path]:
    """The folders in this machine's store of a round's runs, broken ones too."""
    return [folder for folder, run in _runs(unit.experiment) if run.place and run.place.boot in unit.boots]


def pack(places: Sequence[Path]) -> bytes:
    """A compressed tar of run folders. Raises HostError for more than MOST_BYTES."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=4) as tar:
        for place in places:
            tar.add(place, arcname=place.name)
    if buffer.tell() > MOST_BYTES:
        names = ", ".join(place.name for place in places)
        raise HostError(f"runs {names}: {buffer.tell() >> 20} MiB compressed, more than a pool carries")
    return buffer.getvalue()


def digest(data: bytes) -> str:
    """The checksum under which a tar travels."""
    return hashlib.sha256(data).hexdigest()


def add(unit: Unit, data: bytes, expected: str) -> list[Run]:
    """Put a round's runs into the store; returns those that count, by boot.

    All are checked before the first is added: one whole run for each boot of the round, of its experiment.
    Raises LabError; then the caller voids the round (`void`).
    """
    _check(unit, data, expected)
    with state.temporary() as text:
        scratch = Path(text)
        _unpack(unit, data, scratch)
        places = sorted(scratch.iterdir())
        runs = [record.summary(place) for place in places]
        if odd := next((run for run in runs if not _belongs(run, unit)), None):
            raise NotWhole(
                f"{unit.experiment}, round {unit.number}: run {odd.id} came home and is of another"
            )
        counted = sorted((run for run in runs if not run.error), key=_boot)
        if (boots := [_boot(run) for run in counted]) != list(unit.boots):
            raise NotWhole(
                f"{unit.experiment}, round {unit.number}: boots {boots} came home, not {list(unit.boots)}"
            )
        for place, run in zip(places, runs, strict=True):
            _add(place, run)
    return counted


def keep(unit: Unit, data: bytes, expected: str) -> None:
    """Keep the runs of a round whose kernel crashed, as far as they are whole: evidence."""
    _check(unit, data, expected)
    with state.temporary() as text:
        _unpack(unit, data, Path(text))
        for place in sorted(Path(text).iterdir()):
            if _belongs(run := record.summary(place), unit):
                _add(place, run)


def _add(place: Path, run: Run) -> None:
    # A run of an earlier try may be here, void for another reason than there.
    if not (run.error and (state.folder("runs") / run.id).exists()):
        index.add(place)


def _check(unit: Unit, data: bytes, expected: str) -> None:
    if digest(data) != expected:
        raise NotWhole(f"{unit.experiment}, round {unit.number}: the checksum of what came home is wrong")


def _unpack(unit: Unit, data: bytes, scratch: Path) -> None:
    """Unpack plain files and folders, and nothing outside of `scratch`. Raises NotWhole.

    Not tarfile's filter: Debian 12's Python 3.11.2 has none.
    """
    where = f"{unit.experiment}, round {unit.number}"
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            members = tar.getmembers()
            for member in members:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
                    raise NotWhole(f"{where}: {member.name}: is not of a run")
            tar.extractall(scratch, members)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise NotWhole(f"{where}: what came home is not whole: {error}") from error


def rounds(experiments: Collection[str], kernels: int, first: int = 0) -> dict[str, int]:
    """Experiment -> the number of its rounds from `first` on that are in the store with every boot."""
    boots: dict[str, set[int]] = {name: set() for name in experiments}
    for entry in index.find():
        if entry.experiment in boots and not entry.error:
            run = record.summary(entry.folder)
            boots[entry.experiment].add(_boot(run))
    done = {}
    for name, numbers in boots.items():
        count = 0
        while set(range((first + count) * kernels, (first + count + 1) * kernels)) <= numbers:
            count += 1
        done[name] = count
    return done


def void(experiment: str, why: str, boots: range = ALL_BOOTS) -> int:
    """Mark an experiment's runs of these boots as runs that do not count; returns how many."""
    count = 0
    for folder, run in _runs(experiment):
        if not run.error and _boot(run) in boots:
            record.write(run.model_copy(update={"error": f"void: {why}"}), folder)
            count += 1
    return count


def runs(experiment: str) -> list[Run]:
    """The runs of an experiment in the store, broken ones too."""
    return [run for _, run in _runs(experiment)]


def _runs(experiment: str) -> list[tuple[Path, Run]]:
    return [(entry.folder, record.summary(entry.folder)) for entry in index.find(experiment=experiment)]


def _belongs(run: Run, unit: Unit) -> bool:
    return bool(run.place and run.place.experiment == unit.experiment and run.place.boot in unit.boots)


def _boot(run: Run) -> int:
    if run.place is None:
        raise LabError(f"run {run.id} belongs to no experiment")
    return run.place.boot
