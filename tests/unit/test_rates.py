# SPDX-License-Identifier: GPL-2.0-only
"""benchmarks/rates.py: the file of boots, what is read from the state directory, and the tables."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import rates
from numalab.analysis import error_rates
from numalab.core import state
from numalab.core.errors import InputError
from numalab.model import catalog
from numalab.model.values import Clock, SizeClass
from numalab.model.verdict import Answer
from numalab.runs import record
from tests.unit.analysis.test_error_rates import AFTER, BEFORE, boots, named, one


def test_saved_and_read(tmp_path: Path) -> None:
    """What is read is what was saved; boots without a value too."""
    (found,) = named("a")
    lacking = found.kernels[AFTER][0].model_copy(update={"values": (None,)})
    other = found.model_copy(
        update={
            "name": "b",
            "seed": 7,
            "kernels": {**found.kernels, AFTER: (lacking, *found.kernels[AFTER][1:])},
        }
    )
    (tmp_path / "boots.json").write_text(rates.text([other, found]))
    assert rates.read(tmp_path / "boots.json") == [found, other]
    assert rates.text([found, other]) == rates.text([other, found])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"format": 1', '"format": 2', "format 2"),
        ('"by": 1.5', '"by": 1.1', "was edited"),
        ('"4socket"', "4", "topology"),
        ("[0, 1557000]", "3", "cannot unpack|not iterable"),
        ("[0, 1557000]", '[0, "many"]', "values"),
        ('"experiments"', '"else"', "experiments"),
        ("{", "", "Expecting|Extra data"),
        ("numa_pte_updates", "\ud800", "can't decode"),
    ],
)
def test_a_damaged_file(tmp_path: Path, old: str, new: str, said: str) -> None:
    good = rates.text(named("a"))
    assert old in good
    (tmp_path / "boots.json").write_bytes(good.replace(old, new).encode(errors="surrogatepass"))
    with pytest.raises(InputError, match=rf"boots\.json: (?s:.*)({said})"):
        rates.read(tmp_path / "boots.json")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        rates.read(tmp_path / "boots.json")


def test_the_file_in_the_repository() -> None:
    """It can be read, and every experiment in it can be judged."""
    found = rates.read(rates.BOOTS)
    assert len(found) >= 50
    for experiment in found:
        sides = [experiment.kernels[name] for name in experiment.kernels]
        assert error_rates.findings(experiment.judged, sides[0], sides[-1])


def test_company_changes_no_verdict() -> None:
    """No case holds in one experiment on the virtual clock and is denied in another, be the host else idle, with
    another guest on it, or with more. (Some cannot tell, wherever.)"""
    answers = rates.company(rates.read(rates.BOOTS))
    assert len(answers) >= 10
    whole: dict[str, Counter[Answer]] = {case: sum(row, Counter()) for case, row in answers.items()}
    for case, every in whole.items():
        assert not every[Answer.HOLDS] or not every[Answer.DOES_NOT_HOLD], case
    bands = zip(*(row for case, row in answers.items() if whole[case][Answer.HOLDS]), strict=True)
    for parts in bands:
        band: Counter[Answer] = sum(parts, Counter())
        assert band[Answer.HOLDS] > 0.95 * band.total()


def test_company() -> None:
    """By what others took, where that is known; on the virtual clock; with boots enough; cases in two bands."""
    calm, half, busy, unknown, on_host, small, swapped = (
        one.model_copy(update={"clock": Clock.VIRTUAL, "others": others})
        for one, others in zip(named("abcdefg"), (0.19, 0.2, 0.55, None, 0.5, 0.5, 0.6), strict=True)
    )
    on_host = on_host.model_copy(update={"clock": Clock.HOST})
    small = small.model_copy(update={"kernels": {name: side[:2] for name, side in small.kernels.items()}})
    turned = {swapped.judged.before: swapped.judged.after, swapped.judged.after: swapped.judged.before}
    swapped = swapped.model_copy(
        update={"kernels": {name: swapped.kernels[other] for name, other in turned.items()}}
    )
    every = [calm, half, busy, unknown, on_host, small, swapped]
    assert rates.company(every) == {
        "xfsrepair": ({Answer.HOLDS: 1}, {Answer.HOLDS: 1}, {Answer.HOLDS: 1, Answer.DOES_NOT_HOLD: 1})
    }
    assert rates.company([half, small]) == {}
    repeated = calm.model_copy(update={"name": "h", "others": 0.6, "seed": 7})
    (row,) = rates.company([calm.model_copy(update={"seed": 7}), half, repeated]).values()
    assert row[2] == {}, "the same boots, seed for seed"


def test_stored_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Damaged ones, files, empty folders, kernels given by a path and ready states are skipped."""
    monkeypatch.setenv("LAB_STATE", str(tmp_path))
    folder = state.folder("runs")
    runs = [run.model_copy(update={"phases": ()}) for run in boots()]
    place = runs[0].place
    assert place
    case = place.case.model_copy(update={"before": "/home/me/4.0.yml"})
    own = runs[0].model_copy(update={"id": "own", "place": place.model_copy(update={"case": case})})
    guest = runs[0].guest
    boot = guest.spec.boot.model_copy(update={"name": "/home/me/4.0.yml"})  # as by --kernels
    spec = guest.spec.model_copy(update={"boot": boot})
    given = runs[0].model_copy(update={"id": "given", "guest": guest.model_copy(update={"spec": spec})})
    state_of = guest.model_copy(update={"ready_state": "a1"})
    restored = runs[0].model_copy(update={"id": "restored", "guest": state_of})
    for run in (*runs, own, given, restored):
        (folder / run.id).mkdir()
        record.write(run, folder / run.id)
    (folder / "empty").mkdir()
    (folder / "a file").write_text("x")
    for name, content in (("torn", b"{"), ("binary", b"\xff\xfe"), ("other", b"[]"), ("null", b"null")):
        (folder / name).mkdir()
        (folder / name / "run.json").write_bytes(content)
    (folder / "later").mkdir()
    (folder / "later" / "run.json").write_text(json.dumps({"format": 99}))
    assert {run.id for run in rates.stored()} == {run.id for run in runs}


def test_merged() -> None:
    """The stored one wins where both have an experiment; the file keeps those of other machines."""
    kept, here = named("ab"), named("bc", topology="here")
    found = rates.merged(kept, here)
    assert [(each.name, each.topology) for each in found] == [("a", "4socket"), ("b", "here"), ("c", "here")]


def test_tables() -> None:
    lines = rates.tables([*named("ab"), *named("c", rounds=6)])
    assert lines[0] == "3 experiments (3 on the host clock), 24 boots"
    (row,) = (line for line in lines if line.startswith("xfsrepair"))
    assert " ".join(row.split()) == "xfsrepair host 3 100 0 0 4 / 402 0 100 0 2 / 40 0 100 0 2 / 40"
    of_one = [line for line in lines if "  one experiment" in line]
    assert of_one[0].endswith("does not hold: false       3  4 / 402  0.0 %  0.0 to 0.0   52.7 %")
    assert sum("  several experiments" in line for line in lines) == 6
    assert lines[-4].startswith("An effect denied: at most 55.33 % at 95 %, whenever one stops, by 4 trials")
    assert lines[-3] == "  Less than 1 % is not shown: that takes 328 more, none of them wrong."


def test_tables_of_nothing() -> None:
    assert rates.tables([]) == ["no experiment"]
    assert len(rates.tables([one(boots(kernels=(BEFORE, AFTER), rounds=2))])) == 1


def test_main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--save adds what is stored to the file; without it the file is judged alone; damage is one line."""
    monkeypatch.setattr(rates, "BOOTS", tmp_path / "boots.json")
    monkeypatch.setattr(rates, "stored", lambda: boots("new"))
    (tmp_path / "boots.json").write_text(rates.text(named("a")))
    for words, experiments in (([], 1), (["--stored"], 2), ([], 1), (["--save"], 2), ([], 2)):
        monkeypatch.setattr(sys, "argv", ["rates.py", *words])
        assert rates.main() == 0
        assert capsys.readouterr().out.startswith(f"{experiments} experiments")
    loads = [named("a", others=others)[0] for others in (0.5, 0.9, None)]
    named_apart = [one.model_copy(update={"name": name}) for one, name in zip(loads, "abc", strict=True)]
    (tmp_path / "boots.json").write_text(rates.text(named_apart))
    for percent, experiments in (("0", 2), ("50", 2), ("60", 1)):
        monkeypatch.setattr(sys, "argv", ["rates.py", "--busy", percent])
        assert rates.main() == 0
        assert capsys.readouterr().out.startswith(f"{experiments} experiments")
    (tmp_path / "boots.json").write_text("{")
    with pytest.raises(SystemExit, match=r"error: .*boots\.json: Expecting"):
        rates.main()


def test_the_next_case_has_the_fewest_trials_and_is_the_cheapest_of_those() -> None:
    cases = {"dear": 30.0, "cheap": 9.0, "enough": 1.0}
    assert rates.next_case({"enough": 2}, cases) == "cheap"
    assert rates.next_case({"enough": 2, "cheap": 1}, cases) == "dear"
    assert rates.next_case({}, cases) == "enough"


def test_collecting_takes_cases_in_turn_and_goes_on_where_it_stopped() -> None:
    """A clock that an experiment moves by an hour; each gives its case a trial of equal kernels."""
    booted: list[tuple[str, int]] = []
    kept = []

    def boot(name: str, rounds: int) -> int:
        booted.append((name, rounds))
        (made,) = [one(boots(f"{len(booted):03}", rounds=6))]
        judged = made.judged.model_copy(update={"case_name": name, "boots": 3})
        kept.append(made.model_copy(update={"judged": judged, "like": name}))
        return 3

    found = rates.collect(4 * 3600, now=lambda: 3600.0 * len(booted), boot=boot, gather=lambda: list(kept))
    names = [name for name, _ in booted]
    assert len(found) == len(set(names)) == 4, "no case twice before each had one"
    assert all(rounds == 2 * catalog.case(name).sizes[SizeClass.QUICK].boots for name, rounds in booted)
    rates.collect(2 * 3600, now=lambda: 3600.0 * len(booted), boot=boot, gather=lambda: list(kept))
    assert len({name for name, _ in booted}) == 6


def test_a_case_that_no_rate_counts_does_not_keep_the_others_waiting() -> None:
    """Such as one whose expectations all decide nothing: it ends with an answer, and is no trial."""
    booted: list[str] = []

    def boot(name: str, _rounds: int) -> int:
        booted.append(name)
        return 3

    rates.collect(4 * 3600, now=lambda: 3600.0 * len(booted), boot=boot, gather=list)
    assert len(set(booted)) == len(booted) == 4


@pytest.mark.parametrize("percent", range(1, 101))
def test_an_experiment_on_a_host_exactly_so_busy_is_busy(percent: int) -> None:
    """0.57 is less than 57 by 100 * 0.57."""
    (some,) = named("a")
    assert rates.busier(some.model_copy(update={"others": percent / 100}), percent)
    assert not rates.busier(some.model_copy(update={"others": (percent - 1) / 100}), percent)
    assert not rates.busier(some.model_copy(update={"others": None}), percent)


def test_collecting_ends_when_nothing_comes_to_a_verdict() -> None:
    booted: list[str] = []

    def broken(name: str, _rounds: int) -> int:
        booted.append(name)
        return 2

    with pytest.raises(InputError, match="3 experiments in a row came to no verdict"):
        rates.collect(3600, now=lambda: 0.0, boot=broken, gather=list)
    assert len(set(booted)) == rates.MOST_FAILED


def test_collecting_ends_when_the_goal_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def boot(_name: str, _rounds: int) -> int:
        raise AssertionError

    assert not rates.shown([])
    effect, planted, unchanged = error_rates.trials([one(boots(rounds=6))])
    assert not rates.shown([effect, planted, unchanged])
    many = [dataclasses.replace(each, disjoint=332) for each in (effect, planted, unchanged)]
    assert rates.shown(many)
    monkeypatch.setattr(error_rates, "trials", lambda _: many)
    assert rates.collect(3600, boot=boot, gather=list) == []
