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
from collections.abc import Sequence
from itertools import count, takewhile
from pathlib import Path, PurePosixPath

from numalab.core import state
from numalab.core.errors import HostError, LabError
from numalab.model.run import Run
from numalab.pool.unit import Unit
from numalab.runs import index, record

Places = dict[str, list[Path]]
"""Experiment -> the folders of its runs, broken ones too."""


class NotWhole(HostError):
    """What came home is not the round."""


MOST_BYTES = 1 << 30
"""The most bytes of a round, compressed: it is in the memory of worker, scheduler and this process."""


ALL_BOOTS = range(sys.maxsize)


def places() -> Places:
    """The places of all runs in the store. A query of the index looks at every run: a night makes one, and
    hands the answer to the functions below (`among`), which keep it up to date. Else they make their own."""
    folders_of: Places = {}
    for entry in index.find():
        if entry.experiment:
            folders_of.setdefault(entry.experiment, []).append(entry.folder)
    return folders_of


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


def add(unit: Unit, data: bytes, expected: str, among: Places | None = None) -> list[Run]:
    """Put a round's runs into the store; returns those that count, by boot.

    All are checked before the first is added: one whole run for each boot of the round, of its experiment.
    Raises LabError; then the caller voids the round (`void`).
    """
    _check(unit, data, expected)
    with state.temporary() as text:
        scratch = Path(text)
        _unpack(unit, data, scratch)
        here = sorted(scratch.iterdir())
        runs = [record.summary(place) for place in here]
        if odd := next((run for run in runs if not _belongs(run, unit)), None):
            raise NotWhole(
                f"{unit.experiment}, round {unit.number}: run {odd.id} came home and is of another"
            )
        counted = sorted((run for run in runs if not run.error), key=_boot)
        if (boots := [_boot(run) for run in counted]) != list(unit.boots):
            raise NotWhole(
                f"{unit.experiment}, round {unit.number}: boots {boots} came home, not {list(unit.boots)}"
            )
        for place, run in zip(here, runs, strict=True):
            _add(place, run, unit.experiment, among)
    return counted


def keep(unit: Unit, data: bytes, expected: str, among: Places | None = None) -> None:
    """Keep the runs of a round whose kernel crashed, as far as they are whole: evidence."""
    _check(unit, data, expected)
    with state.temporary() as text:
        _unpack(unit, data, Path(text))
        for place in sorted(Path(text).iterdir()):
            if _belongs(run := record.summary(place), unit):
                _add(place, run, unit.experiment, among)


def _add(place: Path, run: Run, experiment: str, among: Places | None) -> None:
    folder = state.folder("runs") / run.id
    # A run of an earlier try may be here, void for another reason than there.
    if not (run.error and folder.exists()):
        index.add(place)
    if among is not None and folder not in among.setdefault(experiment, []):
        among[experiment].append(folder)


def _check(unit: Unit, data: bytes, expected: str) -> None:
    if digest(data) != expected:
        raise NotWhole(f"{unit.experiment}, round {unit.number}: the checksum of what came home is wrong")


def _unpack(unit: Unit, data: bytes, scratch: Path) -> None:
    """Unpack plain files and folders, and nothing outside of `scratch`. Raises NotWhole.

    Not by tarfile's filter: Debian 12's Python 3.11.2 has none. Later ones want a word on it.
    """
    where = f"{unit.experiment}, round {unit.number}"
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            members = tar.getmembers()
            for member in members:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
                    raise NotWhole(f"{where}: {member.name}: is not of a run")
            tar.extraction_filter = lambda member, _: member
            tar.extractall(scratch, members)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise NotWhole(f"{where}: what came home is not whole: {error}") from error


def rounds(experiment: str, kernels: int, first: int = 0, *, among: Places | None = None) -> int:
    """The number of an experiment's rounds from `first` on that are in the store with every boot."""
    boots = {_boot(run) for run in runs(experiment, among) if not run.error}
    whole = (boots.issuperset(range(i * kernels, (i + 1) * kernels)) for i in count(first))
    return sum(takewhile(bool, whole))


def void(experiment: str, why: str, boots: range = ALL_BOOTS, *, among: Places | None = None) -> int:
    """Mark an experiment's runs of these boots as runs that do not count; returns how many."""
    voided = 0
    for folder, run in _runs(experiment, among):
        if not run.error and _boot(run) in boots:
            record.write(run.model_copy(update={"error": f"void: {why}"}), folder)
            voided += 1
    return voided


def runs(experiment: str, among: Places | None = None) -> list[Run]:
    """The runs of an experiment in the store, broken ones too."""
    return [run for _, run in _runs(experiment, among)]


def _runs(experiment: str, among: Places | None = None) -> list[tuple[Path, Run]]:
    if among is None:
        places = [entry.folder for entry in index.find(experiment=experiment)]
    else:  # one may have been removed since
        places = [place for place in among.get(experiment, []) if (place / "run.json").exists()]
    return [(place, record.summary(place)) for place in places]


def _belongs(run: Run, unit: Unit) -> bool:
    return bool(run.place and run.place.experiment == unit.experiment and run.place.boot in unit.boots)


def _boot(run: Run) -> int:
    if run.place is None:
        raise LabError(f"run {run.id} belongs to no experiment")
    return run.place.boot
