# SPDX-License-Identifier: GPL-2.0-only
"""What comes home is a whole round, or nothing of it is stored; the journal survives a power cut."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from numalab.core import state
from numalab.core.errors import InputError
from numalab.core.process import Deadline
from numalab.pool import night as nights
from numalab.pool import store
from numalab.pool.night import Attempt, Night, Void
from numalab.pool.unit import Unit
from numalab.runs import index
from tests.unit.pool import fakes


@pytest.fixture
def unit(monkeypatch: pytest.MonkeyPatch) -> Unit:
    return Unit(
        order=fakes.order(0, 2),
        experiment="20261121T120000-fake",
        number=1,
        rounds=2,
        home="0" * 16,
        seed=1,
        serial="s",
    )


@pytest.fixture
def tar(unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A round, measured on another machine."""
    with monkeypatch.context() as there:
        there.setenv("LAB_STATE", str(tmp_path / "there"))
        fakes.measure(unit, Deadline.after)
        return store.pack(store.folders(unit))


def test_a_round_is_stored_once(unit: Unit, tar: bytes) -> None:
    for _ in range(2):
        assert [run.place.boot for run in store.add(unit, tar, store.digest(tar)) if run.place] == [2, 3]
    assert len(index.find()) == 2
    assert store.rounds(unit.experiment, 2) == 0, "round 0 is not there"
    assert store.void(unit.experiment, "why", range(3, 9)) == 1
    assert [entry.error for entry in index.find() if entry.error] == ["void: why"]


def test_a_look_at_the_store_is_kept_up_to_date(unit: Unit, tar: bytes) -> None:
    places = store.places()
    assert places == {}
    runs = store.add(unit, tar, store.digest(tar), places)
    assert places == store.places() == {unit.experiment: [entry.folder for entry in index.find()]}
    store.add(unit, tar, store.digest(tar), places)
    assert len(places[unit.experiment]) == 2
    assert store.void(unit.experiment, "why", range(3, 9), among=places) == 1
    assert [bool(run.error) for run in store.runs(unit.experiment, places)] == [False, True]
    shutil.rmtree(state.folder("runs") / runs[0].id)
    assert [run.id for run in store.runs(unit.experiment, places)] == [runs[1].id]
    assert store.rounds(unit.experiment, 2, among=places) == 0


def test_rounds_count_as_far_as_none_is_missing(
    unit: Unit, tar: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = unit.model_copy(update={"number": 0})
    with monkeypatch.context() as there:
        there.setenv("LAB_STATE", str(tmp_path / "other"))
        fakes.measure(first, Deadline.after)
        begin = store.pack(store.folders(first))
    store.add(first, begin, store.digest(begin))
    assert store.rounds(unit.experiment, 2) == 1
    assert store.rounds(unit.experiment, 2, 1) == 0
    assert store.rounds(unit.experiment, 2, among={}) == 0
    store.add(unit, tar, store.digest(tar))
    assert store.rounds(unit.experiment, 2) == store.rounds(unit.experiment, 2, among=store.places()) == 2
    store.void(unit.experiment, "why", range(3, 9))
    assert store.rounds(unit.experiment, 2) == 1


def test_a_crash_s_runs_are_kept_though_earlier_ones_are_here_with_another_error(
    unit: Unit, tar: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host says of its first try "an earlier try of the round", and this machine what happened to it."""
    store.add(unit, tar, store.digest(tar))
    store.void(unit.experiment, "h0 was lost")
    with monkeypatch.context() as there:
        there.setenv("LAB_STATE", str(tmp_path / "there"))
        store.void(unit.experiment, "an earlier try of the round")
        fakes.measure(unit, Deadline.after)
        again = store.pack(store.folders(unit))
    store.keep(unit, again, store.digest(again))
    assert sorted(run.error for run in store.runs(unit.experiment)) == ["", "", *["void: h0 was lost"] * 2]


def repacked(tar: bytes, keep: int, extra: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(tar)) as old, tarfile.open(fileobj=buffer, mode="w:gz") as new:
        names = sorted({member.name.partition("/")[0] for member in old})[:keep]
        for member in old:
            if member.name.partition("/")[0] in names:
                new.addfile(member, old.extractfile(member) if member.isfile() else None)
        if extra:
            new.addfile(tarfile.TarInfo(extra))
    return buffer.getvalue()


def test_what_is_not_whole_is_not_stored(unit: Unit, tar: bytes) -> None:
    other = unit.model_copy(update={"experiment": "another"})
    next_one = unit.model_copy(update={"number": 0})
    half, outside = repacked(tar, 1), repacked(tar, 2, "../outside")
    for which, data, digest, why in (
        (unit, tar, "0" * 64, "checksum"),
        (unit, tar[:-40], store.digest(tar[:-40]), "not whole"),
        (unit, half, store.digest(half), "boots"),
        (unit, outside, store.digest(outside), "not of a run"),
        (other, tar, store.digest(tar), "is of another"),
        (next_one, tar, store.digest(tar), "is of another"),
    ):
        with pytest.raises(store.NotWhole, match=why):
            store.add(which, data, digest)
    assert index.find() == []


def test_a_halved_last_line_of_the_journal_is_ignored() -> None:
    night = nights.make([fakes.order(0, 1)])
    attempt = Attempt(
        order="00000-fake", number=0, host="h0", experiment="e", seed=1, memory=1, accels=("tcg",)
    )
    night.add(attempt)
    journal = state.folder("pool") / "nights" / night.name / "journal.jsonl"
    with journal.open("a") as file:
        file.write('{"kind": "Void", "ord')
    assert list(Night(night.name).lines()) == [attempt]
    void = Void(order="00000-fake", number=0, why="lost")
    night.add(void)
    assert list(Night(night.name).lines()) == [attempt, void]
    journal.write_text("garbage\n" + journal.read_text())
    with pytest.raises(InputError, match="line 1"):
        list(Night(night.name).lines())


def test_a_journal_without_room_for_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """write(2) returns what there was room for, and no error."""
    night = nights.make([fakes.order(0, 1)])
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
    with pytest.raises(OSError, match=f"No space left on device: '.*{night.name}"):
        night.add(Void(order="00000-fake", number=0, why="lost"))
    assert list(Night(night.name).lines()) == []


def test_there_is_no_such_night() -> None:
    nights.make([fakes.order(0, 1)])
    with pytest.raises(InputError, match="there is no night n here: there are 2"):
        Night("n")


def test_two_nights_of_one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "stamp", lambda: "20261128T052357")
    one, *others = (nights.make([fakes.order(0, 1)]).name for _ in range(3))
    assert others == [f"{one}-2", f"{one}-3"]
    assert nights.names() == [one, *others]
