# SPDX-License-Identifier: GPL-2.0-only
"""benchmarks/clock.py: the rows of its table, and that its load ends with it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from benchmarks import clock
from numalab.core.errors import InputError
from numalab.host import domain
from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.model.values import Clock
from numalab.runs import index, record
from tests.unit.analysis.test_error_rates import AFTER, BEFORE, boots, named
from tests.unit.makers import on_virtual_clock, running


def test_rows() -> None:
    lines = clock.rows(boots("a", (BEFORE, AFTER), 3), [])
    before, after = (
        next(line for line in lines if line[3:6] == ("numa_pte_updates", "repair-*", arm))
        for arm in ("before", "after")
    )
    assert before[:3] == ("xfsrepair", "host", "-")
    assert before[6] == "3"
    assert {line[4] for line in lines} == {"repair-*"}, "no time decides on this clock"
    # The standard deviation of the logarithms of 1,557,000, 1,721,000 and 1,590,000; of 98,001 to 98,501.
    assert (before[8], after[8]) == ("5.3%", "0.3%")
    assert (before[9], after[9]) == ("-", "-"), "nothing was done again"


def test_a_boot_that_was_taken_again_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its share of the host nor its seed: here the first run of the first boot before."""
    runs = [on_virtual_clock(run, seed=number) for number, run in enumerate(boots("a", (BEFORE, AFTER), 3))]
    first = next(run for run in runs if run.place and run.place.arm is Arm.BEFORE)
    taken_again = first.model_copy(update={"id": "first", "error": "taken again"})
    other_value = on_virtual_clock(runs[-1], seed=first.guest.spec.seed).model_copy(update={"error": "x"})
    monkeypatch.setattr(clock, "busy", lambda side: f"{sum(bool(run.error) for run in side)} broken")
    assert clock.rows([taken_again, *runs], [taken_again]) == clock.rows(runs, [])
    assert clock.rows(runs, runs)[0][9] == clock.rows(runs, [*runs, other_value])[0][9] == "0.0%"


def test_boots_with_one_seed() -> None:
    """Each boot beside the one with its seed: no difference, although boots differ among themselves."""
    runs = [on_virtual_clock(run, seed=number) for number, run in enumerate(boots("a", (BEFORE, AFTER), 3))]
    (before, *_) = clock.rows(runs, runs[::-1])
    assert (before[8], before[9]) == ("5.3%", "0.0%")
    shifted = [on_virtual_clock(run, seed=(number + 1) % 6) for number, run in enumerate(runs)]
    assert clock.rows(runs, shifted)[0][9] not in ("-", "0.0%")


def test_the_time_that_boots_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """By case and clock, against what the case allows, on a virtual clock twice; broken and older runs, and
    those of no case, have none."""
    seconds = (30.0, 50.4, 70.0, 44.0, 999.0, None, 999.0)
    kinds = (
        Clock.VIRTUAL,
        Clock.VIRTUAL,
        Clock.VIRTUAL,
        Clock.HOST,
        Clock.VIRTUAL,
        Clock.VIRTUAL,
        Clock.HOST,
    )
    runs = [
        (on_virtual_clock(run) if kind is Clock.VIRTUAL else run).model_copy(update={"host_seconds": taken})
        for run, kind, taken in zip(boots("a", (BEFORE, AFTER), 4), kinds, seconds, strict=False)
    ]
    runs[4] = runs[4].model_copy(update={"error": "x"})
    runs[6] = runs[6].model_copy(update={"place": None})
    assert runs[0].place
    minutes = runs[0].place.case.sizes[runs[0].size].minutes
    monkeypatch.setattr(clock, "stored", {"a": runs[:3], "b": runs[3:]}.__getitem__)
    assert clock.took(["a", "b"]) == [
        ("xfsrepair", "virtual", "-", "3", "50", "70", f"{120 * minutes:.0f}"),
        ("xfsrepair", "host", "-", "1", "44", "44", f"{60 * minutes:.0f}"),
    ]


def test_the_time_in_which_a_guest_executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Instructions of 8 ns against the phase's seconds; runs that were not counted have no row."""
    bare, *runs = [on_virtual_clock(run, seed=number) for number, run in enumerate(boots("a", (BEFORE,), 3))]
    folders = {tmp_path / "bare": bare}
    for run, instructions in zip(runs, (1e9, 1.5e9), strict=True):
        spec = run.guest.spec.model_copy(update={"instructions": "/plugin.so"})
        run = run.model_copy(update={"guest": run.guest.model_copy(update={"spec": spec})})
        folders[tmp_path / run.id] = run
        (number,) = (i for i, result in enumerate(run.phases) if result.phase.measured)
        place = record.phase_folder(tmp_path / run.id, number, run.phases[number].phase.name)
        place.mkdir(parents=True)
        (place / record.PROFILE).write_text(
            f"swapper;rest {int(instructions / 4)}\nuser {int(0.75 * instructions)}\n"
        )
    monkeypatch.setattr(index, "choose", lambda _: list(folders))
    monkeypatch.setattr(record, "read", folders.__getitem__)
    elapsed = next(result.elapsed for result in bare.phases if result.phase.measured)
    (row,) = clock.executed("a")
    assert row == ("xfsrepair", row[1], "2 + 0", f"{8 / elapsed:.0%} to {12 / elapsed:.0%}", "-")


def test_the_quarters_of_a_phase(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Samples surround the borders in a phase of 40 s; what no sample has, and a broken boot, have no row."""
    folders = {}
    counts = [(10, 20, 30, 40), (20, 20, 40, 40), (30, 20, 50, 40), (40, 20, 60, 40), (0, 0, 0, 0)]
    side = [run for run in boots("a", (BEFORE, AFTER), 4) if run.place and run.place.arm is Arm.BEFORE]
    side.append(side[0].model_copy(update={"id": "broken"}))
    for run, parts in zip(side, counts, strict=True):
        results = []
        sums = list(accumulate(parts))
        for number, result in enumerate(run.phases):
            place = record.phase_folder(tmp_path / run.id, number, result.phase.name)
            (place / "before").mkdir(parents=True)
            (place / "before" / "vmstat").write_text("numa_pte_updates 7\nnuma_hint_faults 7\n")
            lines = [
                {"t": t, "vmstat": {"numa_pte_updates": 7 + count}}
                for border, whole in zip((10, 20, 30), sums, strict=False)
                for t, count in ((border - 1, whole - 1), (border + 1, whole + 1))
            ]
            lines.append({"t": 41, "vmstat": {"numa_pte_updates": 9e9}})
            (place / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
            whole = {"vmstat": {"numa_pte_updates": sums[-1], "numa_hint_faults": 5}}
            results.append(result.model_copy(update={"elapsed": 40.0, "counters": whole}))
        error = "" if sums[-1] else "x"
        folders[tmp_path / run.id] = run.model_copy(update={"phases": tuple(results), "error": error})
    monkeypatch.setattr(index, "choose", lambda _: list(folders))
    monkeypatch.setattr(record, "read", folders.__getitem__)
    quarters = clock.quarter(*next(iter(folders.items())))
    assert [quarter.measured[0].counters for quarter in quarters] == [
        {"vmstat": {"numa_pte_updates": count}} for count in counts[0]
    ]
    (row,) = clock.quarters(["a"])
    assert len(row) == len(clock.QUARTERS)
    assert row[:3] == ("xfsrepair", "host", "numa_pte_updates")
    assert row[4:6] == ("before", "4")
    # Boots of 100, 120, 140 and 160. Two quarters are the same in each boot: they have no correlation.
    assert row[6:] == ("19.9%", "-", "-")
    assert clock.quarters(["a"], "numa_hint_faults") == [], "no sample has it"
    (named_row,) = clock.quarters(["a"], "numa_pte_updates")
    assert named_row == row


def test_how_quarters_go_together() -> None:
    rising = [(10.0, 1.0, 1.0, 4.0, 4.0), (14.0, 2.0, 3.0, 3.0, 6.0), (18.0, 3.0, 5.0, 2.0, 8.0)]
    boots_, scatter, neighbours, apart = clock._quarters([rising])
    assert (boots_, scatter) == ("3", "28.6%")
    assert neighbours == "-0.33", "+1, -1 and -1"
    assert apart == "-", "three boots tell no correlation"
    both = clock._quarters([rising, [*rising, (10.0, 3.0, 1.0, 2.0, 4.0)]])
    assert both == (
        "7",
        "29.0%",
        "-0.23",
        "+0.68 (-0.29 to +0.96)",
    )  # tanh(atanh(0.68) ± 1.96 / sqrt(7 - 2 - 2))


def test_kept_boots() -> None:
    """Pooled over the experiments that were judged as the newest; a name sorts by its time."""
    old, *rest = named("abc")
    (expected,) = old.judged.expect
    other = old.judged.model_copy(update={"expect": (expected.model_copy(update={"phase": "other"}),)})
    old = old.model_copy(update={"judged": other})
    rest[0] = rest[0].model_copy(
        update={
            "judged": other.model_copy(
                update={"expect": (expected.model_copy(update={"by": 9.0}),), "boots": 9}
            )
        }
    )
    busy, half = (
        one.model_copy(update={"others": others}) for one, others in zip(rest, (0.75, 0.5), strict=True)
    )
    before, after = clock.kept([old, busy, half])
    assert len(before) == len(clock.KEPT)
    assert before[:4] == ("xfsrepair", "before", "numa_pte_updates", "repair-*")
    assert before[4:9] == ("-", "-", "-", "-", "1.62M 5.3% (6)"), "the same three values twice"
    assert before[9:] == ("-", "3", "-", "1.5"), "nothing on the virtual clock; the newest asks"
    assert after[8] == "98.2k 0.3% (6)"
    virtual = half.model_copy(update={"clock": Clock.VIRTUAL})
    (before, _) = clock.kept([busy, virtual, named("d")[0]])
    assert before[4:9] == ("-", "1.62M 5.3% (3)", "-", "-", "1.62M 5.3% (3)")
    assert float(before[11]) > 1.1
    assert clock.kept(named("a")) == [], "the host's load was not recorded"


def test_whether_load_changes_a_count() -> None:
    assert float(clock._by_chance([[10.0, 11.0], [12.0]], [[30.0, 33.0, 31.0]])) < 0.01
    assert float(clock._by_chance([[10.0, 30.0], [12.0]], [[12.0, 33.0, 11.0]])) > 0.5
    for quiet, loaded in (
        ([[0.0, 3.0]], [[3.0, 3.0]]),
        ([[3.0]], [[3.0, 4.0]]),
        ([], []),
        ([[1.0] * 2], [[1.0] * 2]),
    ):
        assert clock._by_chance(quiet, loaded) == "-"


def test_boots_with_the_disks_of_old_are_left_out() -> None:
    (one,) = named("a")
    judged = one.judged.model_copy(update={"case_name": "writeback-node"})
    old = one.model_copy(
        update={"judged": judged, "others": 0.1, "clock": Clock.VIRTUAL, "name": "20261126T120000"}
    )
    assert clock.kept([old]) == []
    assert clock.kept([old.model_copy(update={"name": "20261127T120000"})])
    assert clock.kept([old.model_copy(update={"clock": Clock.HOST})]), "those had their speed by that clock"


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--executed"], 2, "name stored experiments"),
        (["--executed", "a"], "error: a: no instructions that were counted: lab.py run CASE --profile 1", ""),
        (["--took", "a"], "error: a: no boots whose time was recorded", ""),
        (["--quarters", "a"], "error: a: no counts", ""),
        (["--quarters", "--executed", "a"], 2, "not allowed with argument"),
        (["--kept", "--halves", "a"], 2, "unrecognized arguments: --halves"),
        (["--kept", "--metric", "pgfault"], 2, "--metric: with --quarters"),
        (["--quarters", "--metric", "system", "a"], 2, "no time of a part of a phase is recorded"),
    ],
)
def test_nothing_to_show(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    status: object,
    message: str,
) -> None:
    """One line that says what is missing, and no bare heading."""
    monkeypatch.setattr(index, "choose", lambda _: [])
    monkeypatch.setattr(sys, "argv", ["clock.py", *words])
    with pytest.raises(SystemExit) as ended:
        clock.main()
    assert ended.value.code == status
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_kept_boots_of_an_unknown_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["clock.py", "--kept", "nosuch"])
    with pytest.raises(SystemExit):
        clock.main()
    assert "boots.json has no boots of nosuch" in capsys.readouterr().err


def test_shifts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each shift and kernel; the runs, which nothing else can be compared with, are gone."""
    monkeypatch.setenv("LAB_STATE", str(tmp_path))
    given = []

    def experiment(case: str, boots_: int, clock_: str, words: list[str], lab: list[str]) -> list[Run]:
        given.append((case, boots_, clock_, words, shift := int(lab[-1])))
        runs = boots(f"shift{shift}", (BEFORE, AFTER), 3)
        for run in runs:
            (tmp_path / "runs" / run.id).mkdir(parents=True, exist_ok=True)
        return runs

    monkeypatch.setattr(clock, "experiment", experiment)
    monkeypatch.setattr(
        sys, "argv", ["clock.py", "xfsrepair", "--boots", "3", "--shift", "2,4", "--vcpus", "4"]
    )
    clock.main()
    assert given == [("xfsrepair", 3, "virtual", ["--vcpus", "4"], shift) for shift in (2, 4)]
    last = capsys.readouterr().out.splitlines()[-4:]
    assert [line.split()[1] for line in last] == ["2", "2", "4", "4"]
    assert not list((tmp_path / "runs").iterdir())


def test_runs_with_another_shift_go_even_if_their_table_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of an experiment's boots may have broken."""
    monkeypatch.setenv("LAB_STATE", str(tmp_path))

    def experiment(*_: object) -> list[Run]:
        runs = [run.model_copy(update={"error": "x"}) for run in boots("broken", (BEFORE, AFTER), 3)]
        for run in runs:
            (tmp_path / "runs" / run.id).mkdir(parents=True, exist_ok=True)
        return runs

    monkeypatch.setattr(clock, "experiment", experiment)
    monkeypatch.setattr(sys, "argv", ["clock.py", "xfsrepair", "--shift", "2"])
    with pytest.raises(SystemExit, match="error: a calibration needs 3 boots"):
        clock.main()
    assert not list((tmp_path / "runs").iterdir())


def test_fewer_than_three_boots_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clock, "experiment", lambda *_: pytest.fail("it was begun"))
    monkeypatch.setattr(sys, "argv", ["clock.py", "xfsrepair", "--boots", "2"])
    with pytest.raises(SystemExit):
        clock.main()
    assert "--boots 2: 3 or more show scatter" in capsys.readouterr().err


def test_another_shift() -> None:
    """What the benchmark runs instead of lab.py is the command line, with another shift."""
    words = [
        sys.executable,
        "-c",
        clock.LAB.replace("main()", "print(domain.ICOUNT_SHIFT, sys.argv)"),
        "5",
        "run",
    ]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, cwd=clock.ROOT).stdout
    assert shown == "5 ['-c', 'run']\n"
    assert domain.icount(5) == ("-icount", "shift=5,sleep=on")


def test_a_busy_host_is_no_reason_to_boot_again() -> None:
    """Under a load made on purpose; else it is."""
    words = [sys.executable, "-c", clock.ONCE.replace("main()", "print(repr(run.verdict.busy(None, set())))")]
    words[-1] = "from numalab.experiment import run; " + words[-1]
    assert subprocess.run(words, capture_output=True, text=True, check=True, cwd=clock.ROOT).stdout == "''\n"


def test_each_load_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def experiment(case: str, boots_: int, clock_: str, words: list[str], lab: list[str]) -> list[Run]:
        given.append(clock.ONCE in lab)
        return boots(f"load{len(given)}", (BEFORE, AFTER), 3)

    monkeypatch.setattr(clock, "experiment", experiment)
    monkeypatch.setattr(clock, "load", lambda kind: contextlib.nullcontext())
    assert len(list(clock.clocks("xfsrepair", 3, [], ["host"], clock.LOADS, False))) == 2
    assert given == [False, True]


def test_too_few_boots() -> None:
    with pytest.raises(InputError, match="a calibration needs 3 boots"):
        clock.rows(boots("a", (BEFORE, AFTER), 2), [])


@pytest.mark.parametrize(("kind", "loops"), [("idle", 0), ("busy", os.cpu_count())])
def test_load(kind: str, loops: int) -> None:
    others = children()
    with clock.load(kind):
        ours = children() - others
        assert len(ours) == loops
    assert not any(running(process) for process in ours)


def children() -> set[int]:
    """The processes that this one started."""
    return {
        int(process)
        for task in Path("/proc/self/task").iterdir()
        for process in (task / "children").read_text().split()
    }
