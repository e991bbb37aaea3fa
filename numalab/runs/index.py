# SPDX-License-Identifier: GPL-2.0-only
"""Finding runs: by case, kernel or age among ten thousand; and adding runs from other machines.

A run is its folder, runs/ID in the state directory, and nothing else: folders can be copied, mailed and
removed by hand. cache/runs.sqlite3 is an index over their run.json files. Every query updates it first (a
stat of each run.json; only changed ones are read). A damaged index is made again, and it may be removed at
any time. Not here: the files of a run (record).
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from numalab.core import state
from numalab.core.errors import HostError, InputError
from numalab.model import catalog
from numalab.model.values import Clock, SizeClass, Value
from numalab.runs import record

VERSION = 2
"""The version of the index's schema: an index of another version is made again."""
WAIT_SECONDS = 60.0
"""How long to wait for another lab.py that writes the index."""
DAMAGE = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
"""Errors of a file that is no index of ours; not a full disk or a lock, where removing it is no help."""
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._,+=@ -]{0,199}")
_AGE = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Entry(Value):
    """A run in the index. `started` is UTC, as in 20150307T152000."""

    id: str
    started: str = ""
    workload: str = ""
    size: str = ""
    kernel: str = ""
    topology: str = ""
    accel: str = ""
    clock: str = ""
    case_name: str = ""
    experiment: str = ""
    arm: str = ""
    error: str = ""
    """Why the run broke."""
    damage: str = ""
    """Why its run.json cannot be read; then every other field is empty."""

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return state.folder("runs") / self.id


_FIELDS = tuple(Entry.model_fields)
_TABLE = (
    "CREATE TABLE runs (folder TEXT PRIMARY KEY, stamp TEXT,"
    f" {', '.join(f'{field} TEXT' for field in _FIELDS)})"
)


def find(
    *,
    case: str | None = None,
    kernel: str | None = None,
    since: str | None = None,
    experiment: str | None = None,
    workload: str | None = None,
    size: str | None = None,
    topology: str | None = None,
    accel: str | None = None,
    clock: str | None = None,
) -> list[Entry]:
    """The runs that match all arguments, oldest first; damaged ones only without any. `since`: see moment."""
    exact = {
        "case_name": case,
        "kernel": kernel,
        "experiment": experiment,
        "workload": workload,
        "size": size,
        "topology": topology,
        "accel": accel,
        "clock": clock,
    }
    wanted = {field: text for field, text in exact.items() if text is not None}
    conditions = [f"{field} = ?" for field in wanted]
    values = list(wanted.values())
    if since is not None:
        conditions.append("started >= ?")
        values.append(moment(since))
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = _ask(f"SELECT {', '.join(_FIELDS)} FROM runs{where} ORDER BY started, id", values)
    return [Entry(**dict(zip(_FIELDS, row, strict=True))) for row in rows]


def choose(words: Sequence[str], *, size: str | None = None, topology: str | None = None) -> list[Path]:
    """The folders of the runs that `words` name: a run (id or folder), an experiment, or a case, which stands
    for its newest experiment; for a calibration, which compares a kernel with itself, if there is no other.

    `size` and `topology` select among a case's experiments. Raises InputError for any other word, and for a
    run or an experiment of another size or on another topology.
    """
    if size is not None and size not in list(SizeClass):
        raise InputError(f"size: {size!r} is none of {', '.join(SizeClass)}", field="size")
    folders: list[Path] = []
    for word in words:
        if one := place(word):
            if size or topology:
                run = record.summary(one)
                _check(word, size, run.size, topology, run.guest.spec.topology_name)
            folders.append(one)
        else:
            folders += [entry.folder for entry in _experiment(word, size, topology)]
    return list(dict.fromkeys(folder.resolve() for folder in folders))


def _check(word: str, size: str | None, own_size: str, topology: str | None, own_topology: str) -> None:
    """InputError when a run or experiment is not of the size or on the topology that is wanted."""
    for what, wanted, own in (("size", size, own_size), ("topology", topology, own_topology)):
        if wanted is not None and wanted != own:
            raise InputError(f"{what} {wanted}: {word} has {what} {own}", field=what)


def place(word: str) -> Path | None:
    """The folder of a run, by its id or by its folder; None when there is none."""
    places = [Path(word), *([state.folder("runs") / word] if _ID.fullmatch(word) else [])]
    return next((place for place in places if (place / "run.json").is_file()), None)


def _experiment(word: str, size: str | None, topology: str | None) -> list[Entry]:
    if entries := find(experiment=word):
        _check(word, size, entries[0].size, topology, entries[0].topology)
        return entries
    name = Path(word).name.removesuffix(".yml")
    if every := find(case=name, size=size, topology=topology):
        experiments: dict[str, list[Entry]] = {}
        for entry in every:
            experiments.setdefault(entry.experiment, []).append(entry)
        newest = [experiments[name] for name in dict.fromkeys(entry.experiment for entry in reversed(every))]
        return next((one for one in newest if not _calibrates(one)), newest[0])
    wanted = [(what, text) for what, text in (("size", size), ("topology", topology)) if text]
    if name in catalog.names("testcases"):
        selection = "".join(f", {what} {text}" for what, text in wanted)
        options = "".join(f" --{what} {text}" for what, text in wanted)
        raise InputError(f"there is no run of case {name}{selection}: lab.py run {name}{options}")
    raise InputError(f"{word}: is no run, no experiment and no case: lab.py runs shows what there is")


def _calibrates(experiment: Sequence[Entry]) -> bool:
    """Whether it compares a kernel with itself."""
    return len({entry.kernel for entry in experiment}) == 1 and len({entry.arm for entry in experiment}) > 1


def moment(text: str, now: datetime | None = None) -> str:
    """'2026-11-21', '20261121T1430' or an age (90m, 12h, 7d, 2w) as in `started`. Raises InputError."""
    if match := re.fullmatch(r"(\d{1,4})([mhdw])", text):
        then = (now or datetime.now(UTC)) - timedelta(**{_AGE[match[2]]: int(match[1])})
        return then.strftime("%Y%m%dT%H%M%S")
    if re.fullmatch(r"\d{4}-?\d{2}-?\d{2}([T ]\d{2}(:?\d{2}){0,2})?", text):
        begin = re.sub(r"[-:]", "", text).replace(" ", "T")
        with suppress(ValueError):  # no such day or hour
            datetime.strptime(begin + "20000101T000000"[len(begin) :], "%Y%m%dT%H%M%S")
            return begin
    raise InputError(
        f"since {text}: write a day (2026-11-21), a moment (20261121T1430, UTC) or an age (90m, 12h, 7d, 2w)",
        field="since",
    )


def add(source: Path) -> Entry:
    """Copy a run from another machine into the state directory, unless it is there. Raises InputError."""
    run = record.read(source)
    if not _ID.fullmatch(run.id):
        raise InputError(f"{source}: {run.id!r} is not a run's id, and no folder will be called so")
    odd = next(
        (
            path
            for path in sorted(source.rglob("*"))
            if path.is_symlink() or not (path.is_file() or path.is_dir())
        ),
        None,
    )
    if odd is not None:
        raise InputError(f"{odd}: is a link or a device; a run is plain files and folders")
    place = state.folder("runs") / run.id
    if place.exists():
        if not (place / "run.json").is_file() or record.read(place) != run:
            raise InputError(f"{source}: there is another run {run.id} here: {place}")
    else:
        with state.making(place) as scratch:
            shutil.copytree(source, scratch, dirs_exist_ok=True)
    return _entry(run.id, (place / "run.json").read_bytes())


def _ask(question: str, values: Sequence[str]) -> list[tuple[str, ...]]:
    """Query the updated index. A damaged index is removed and made again, once."""
    path = state.folder("cache") / "runs.sqlite3"
    try:
        try:
            return _answer(path, question, values)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF not in DAMAGE:  # the low byte is the primary code
                raise
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
            return _answer(path, question, values)
    except (sqlite3.Error, OSError) as error:
        raise HostError(f"{path}: {error}: it is only an index, and may be removed") from error


def _answer(path: Path, question: str, values: Sequence[str]) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)) as index:
        _refresh(index)
        return index.execute(question, values).fetchall()


def _refresh(index: sqlite3.Connection) -> None:
    """Update the index.

    Files are read outside of the transaction. Two processes that do this at once write the same rows, and a
    row that is out of date by then has an old stamp, which the next update notices.
    """
    if _version(index) != VERSION:
        with _writing(index):
            if _version(index) != VERSION:  # another process may have made it meanwhile
                index.execute("DROP TABLE IF EXISTS runs")
                index.execute(_TABLE)
                index.execute("CREATE INDEX runs_case ON runs (case_name, started)")
                index.execute(f"PRAGMA user_version = {VERSION}")
    known = dict(index.execute("SELECT folder, stamp FROM runs"))
    here = _stamps()
    gone = [(name,) for name in known if name not in here]
    fresh = [(name, stamp, *_row(name)) for name, stamp in here.items() if known.get(name) != stamp]
    if gone or fresh:
        with _writing(index):
            index.executemany("DELETE FROM runs WHERE folder = ?", gone)
            index.executemany(
                f"INSERT OR REPLACE INTO runs VALUES ({', '.join('?' * (len(_FIELDS) + 2))})", fresh
            )


def _version(index: sqlite3.Connection) -> int:
    return int(index.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def _writing(index: sqlite3.Connection) -> Iterator[None]:
    """A transaction; other writers wait for it."""
    index.execute("BEGIN IMMEDIATE")
    try:
        yield
        index.execute("COMMIT")
    finally:
        if index.in_transaction:
            index.execute("ROLLBACK")


def _stamps() -> dict[str, str]:
    """Folder of each run -> a stamp that changes with its run.json. A run in progress has no run.json yet."""
    stamps = {}
    runs = state.folder("runs")
    for place in runs.iterdir():
        if not place.name.startswith("."):
            try:
                about = (place / "run.json").stat()
            except OSError:
                continue
            stamps[place.name] = f"{about.st_mtime_ns} {about.st_size} {about.st_ino}"
    return stamps


def _row(name: str) -> tuple[str, ...]:
    try:
        entry = _entry(name, (state.folder("runs") / name / "run.json").read_bytes())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        entry = Entry(id=name, damage=f"run.json cannot be read: {str(error) or type(error).__name__}")
    return tuple(str(getattr(entry, field)) for field in _FIELDS)


def _entry(name: str, text: bytes) -> Entry:
    """The index's row for a run.json. Raises the parser's errors for a damaged one."""
    run: dict[str, Any] = json.loads(text)
    spec = run["guest"]["spec"]
    place = run.get("place") or {}
    if run["id"] != name:
        return Entry(id=name, damage=f"run.json is that of {run['id']}: a copy?")
    return Entry(
        id=name,
        started=run["started"],
        workload=run["workload"],
        size=run["size"],
        kernel=spec["boot"]["name"],
        topology=spec["topology_name"],
        accel=spec["accel"],
        clock=spec.get("clock", Clock.HOST),  # older runs had no other
        case_name=place.get("case_name", ""),
        experiment=place.get("experiment", ""),
        arm=place.get("arm", ""),
        error=run.get("error", ""),
    )
