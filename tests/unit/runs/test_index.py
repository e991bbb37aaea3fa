# SPDX-License-Identifier: GPL-2.0-only
"""Runs are folders, and the index follows them: damage, concurrency, and runs from other machines."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from numalab.core import state
from numalab.core.errors import HostError, InputError
from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.runs import index as run_index
from numalab.runs import record
from tests.unit.synthetic import phase, run

BEFORE, AFTER = "6.1-slowscan-before", "6.1"
EDGES = {"before": {"/proc/vmstat": "numa_hit 5\n"}, "after": {"/proc/vmstat": "numa_hit 8\n"}}


def keep(made: Run, under: Path | None = None) -> Path:
    """Write a run as a complete folder."""
    folder = (under or state.folder("runs")) / made.id
    folder.mkdir(parents=True)
    for index, result in enumerate(made.phases):
        record.write_phase(folder, index, result.phase.name, EDGES, {"stdout": "", "stderr": ""})
    record.write(made, folder)
    return folder


def made(kernel: str = AFTER, boot: int = 0, arm: Arm = Arm.AFTER, **changes: Any) -> Run:
    return run(kernel, phase("p", vmstat={"numa_hit": 3}), boot=boot, arm=arm, **changes)


@pytest.fixture
def four() -> list[Run]:
    """Two experiments of xfsrepair and a single run; the newer experiment has two boots."""
    runs = [
        made(BEFORE, 1, Arm.BEFORE, experiment="old"),
        made(AFTER, 12, experiment="new"),
        made(BEFORE, 11, Arm.BEFORE, experiment="new"),
        run("debian", phase("p"), boot=20, topology="uma-4g"),
    ]
    for one in runs:
        keep(one)
    return runs


def index_file() -> Path:
    return state.folder("cache") / "runs.sqlite3"


def ids(found: list[run_index.Entry]) -> list[str]:
    return [entry.id[-2:].strip("-") for entry in found]


def test_find(four: list[Run]) -> None:
    assert ids(run_index.find()) == ["1", "11", "12", "20"], "oldest first"
    assert ids(run_index.find(case="xfsrepair")) == ["1", "11", "12"]
    assert ids(run_index.find(case="xfsrepair", kernel=BEFORE)) == ["1", "11"]
    assert ids(run_index.find(experiment="new")) == ["11", "12"]
    assert ids(run_index.find(since="20261121T120012")) == ["12", "20"]
    assert ids(run_index.find(topology="uma-4g")) == ids(run_index.find(kernel="debian")) == ["20"]
    assert run_index.find(case="x' OR '1'='1") == []
    first, *_ = run_index.find()
    assert first == run_index.Entry(
        id=four[0].id,
        started="20261121T120001",
        workload="xfsrepair",
        size="quick",
        kernel=BEFORE,
        topology="4socket",
        accel="tcg",
        clock="host",
        case_name="xfsrepair",
        experiment="old",
        arm="before",
    )
    assert first.folder == state.folder("runs") / four[0].id


def test_the_index_follows_the_folders(four: list[Run]) -> None:
    assert len(run_index.find()) == 4
    place = state.folder("runs") / four[0].id
    record.write(four[0].model_copy(update={"error": "guest lost"}), place)
    keep(made(AFTER, 30, experiment="new"))
    shutil.rmtree(state.folder("runs") / four[3].id)
    (state.folder("runs") / "going-on").mkdir()
    (state.folder("runs") / ".making-1-x").mkdir()
    (state.folder("runs") / "a-file").write_text("")
    assert ids(run_index.find()) == ["1", "11", "12", "30"]
    assert run_index.find()[0].error == "guest lost"


def test_only_what_changed_is_read(four: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run_index.find()
    read: list[str] = []
    whole = run_index._row

    def watched(name: str) -> tuple[str, ...]:
        read.append(name)
        return whole(name)

    monkeypatch.setattr(run_index, "_row", watched)
    assert len(run_index.find()) == 4
    assert read == []
    os.utime(state.folder("runs") / four[1].id / "run.json", ns=(1, 1))
    run_index.find()
    assert read == [four[1].id]


@pytest.mark.parametrize("harm", [b"", b"not a database", b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_damaged_index_is_made_anew(harm: bytes, four: list[Run]) -> None:
    run_index.find()
    index_file().write_bytes(harm)
    assert len(run_index.find()) == 4
    assert index_file().read_bytes()[:15] == b"SQLite format 3"


def test_a_spoilt_page_is_damage(four: list[Run]) -> None:
    run_index.find()
    content = bytearray(index_file().read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    index_file().write_bytes(content)
    assert len(run_index.find()) == 4


def test_an_index_of_another_form_is_made_anew(four: list[Run]) -> None:
    with sqlite3.connect(index_file()) as other:
        other.execute("CREATE TABLE runs (core TEXT)")
        other.execute("PRAGMA user_version = 99")
    assert len(run_index.find()) == 4
    with sqlite3.connect(index_file()) as other:
        other.execute("ALTER TABLE runs RENAME COLUMN kernel TO core")
    assert len(run_index.find(kernel=AFTER)) == 1


def test_an_index_that_cannot_be_written_is_an_error(four: list[Run]) -> None:
    index_file().mkdir()
    with pytest.raises(HostError, match=r"runs\.sqlite3: .*it is only an index, and may be removed"):
        run_index.find()


def test_who_only_looks_waits_for_nobody(four: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process writes, a current index is read; an outdated one waits, with a message."""
    run_index.find()
    monkeypatch.setattr(run_index, "WAIT_SECONDS", 0.1)
    with closing(sqlite3.connect(index_file(), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert len(run_index.find()) == 4
        keep(made(AFTER, 50))
        with pytest.raises(HostError, match=r"runs\.sqlite3: database is locked"):
            run_index.find()
        other.execute("ROLLBACK")
    assert len(run_index.find()) == 5


def _count(number: int) -> int:
    return len(run_index.find())


def test_many_at_once(four: list[Run]) -> None:
    """Eight processes without an index: each finds all runs."""
    with ProcessPoolExecutor(8) as pool:
        assert list(pool.map(_count, range(24))) == [4] * 24


@pytest.mark.parametrize(
    ("text", "damage"),
    [
        ("{", "run.json cannot be read"),
        ("[]", "run.json cannot be read"),
        ('{"id": "x"}', "run.json cannot be read: 'guest'"),
        ("", "run.json cannot be read"),
    ],
)
def test_a_damaged_run_is_shown_as_such(text: str, damage: str, four: list[Run]) -> None:
    (state.folder("runs") / four[0].id / "run.json").write_text(text)
    (entry,) = (entry for entry in run_index.find() if entry.damage)
    assert entry.id == four[0].id
    assert entry.damage.startswith(damage)
    assert ids(run_index.find(case="xfsrepair")) == ["11", "12"]
    with pytest.raises(InputError, match=f"^{entry.folder}: not a run: "):
        record.summary(entry.folder)


def test_a_copy_beside_the_run_is_not_counted_twice(four: list[Run]) -> None:
    shutil.copytree(state.folder("runs") / four[1].id, state.folder("runs") / "copy")
    assert ids(run_index.find(experiment="new")) == ["11", "12"]
    assert [entry.damage for entry in run_index.find() if entry.id == "copy"] == [
        f"run.json is that of {four[1].id}: a copy?"
    ]


def test_a_summary_reads_run_json_alone(four: list[Run]) -> None:
    shutil.rmtree(state.folder("runs") / four[1].id / "phases")
    assert record.summary(run_index.find(kernel=AFTER)[0].folder) == four[1]


# Choosing.


def test_choose(four: list[Run], tmp_path: Path) -> None:
    runs = state.folder("runs")
    elsewhere = keep(made(AFTER, 40), tmp_path / "usb stick")
    assert run_index.choose([four[0].id, str(runs / four[0].id), str(elsewhere)]) == [
        runs / four[0].id,
        elsewhere,
    ]
    assert run_index.choose(["old"]) == [runs / four[0].id]
    newest = [runs / four[2].id, runs / four[1].id]
    assert (
        run_index.choose(["xfsrepair"])
        == run_index.choose(["testcases/xfsrepair.yml"])
        == run_index.choose(["new"])
        == newest
    )
    assert run_index.choose(["xfsrepair", "old"]) == [runs / four[2].id, runs / four[1].id, runs / four[0].id]
    assert run_index.choose([]) == []


def test_a_case_stands_for_its_newest_experiment_not_for_a_calibration(four: list[Run]) -> None:
    """The doubt that a case is not calibrated leads to one, and `verdict CASE` is still of the effect."""
    for arm, number in ((Arm.BEFORE, 31), (Arm.AFTER, 32)):
        keep(made(AFTER, number, arm, experiment="calibration"))
    assert ids(run_index.find(case="xfsrepair"))[-2:] == ["31", "32"]
    assert run_index.choose(["xfsrepair"]) == run_index.choose(["new"])
    for entry in run_index.find(case="xfsrepair"):
        if entry.experiment != "calibration":
            shutil.rmtree(entry.folder)
    assert run_index.choose(["xfsrepair"]) == run_index.choose(["calibration"]) != []


def test_one_arm_of_an_experiment_is_no_calibration(four: list[Run]) -> None:
    """Its other boots may have been cut off."""
    keep(made(AFTER, 41, experiment="cut"))
    assert run_index.choose(["xfsrepair"]) == run_index.choose(["cut"])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("nobody", r"nobody: is no run, no experiment and no case: lab\.py runs shows what there is"),
        ("../../etc", r"\.\./\.\./etc: is no run"),
        ("autonuma", r"there is no run of case autonuma, size full: lab\.py run autonuma --size full$"),
        ("xfsrepair", r"there is no run of case xfsrepair, size full: lab\.py run xfsrepair --size full$"),
    ],
)
def test_choose_says_what_is_not_there(word: str, said: str, four: list[Run]) -> None:
    with pytest.raises(InputError, match=said):
        run_index.choose([word], size="full")


def test_a_run_or_an_experiment_is_of_the_size_and_topology_that_are_wanted(four: list[Run]) -> None:
    size, topology = four[0].size.value, four[0].guest.spec.topology_name
    for word in (four[0].id, "old"):
        assert run_index.choose([word], size=size, topology=topology) == run_index.choose([word])
        with pytest.raises(InputError, match=f"^size full: {word} has size quick$"):
            run_index.choose([word], size="full")
        with pytest.raises(InputError, match=f"^topology memoryless: {word} has topology {topology}$"):
            run_index.choose([word], topology="memoryless")
    with pytest.raises(InputError, match=r"^size: 'huge' is none of quick, full$"):
        run_index.choose(["old"], size="huge")


@pytest.mark.parametrize(
    ("text", "stamp"),
    [
        ("2026-11-21", "20261121"),
        ("20261121", "20261121"),
        ("20261121T1430", "20261121T1430"),
        ("2026-11-21 14:30:05", "20261121T143005"),
        ("90m", "20261121T103000"),
        ("12h", "20261121T000000"),
        ("7d", "20261114T120000"),
        ("2w", "20261107T120000"),
    ],
)
def test_moment(text: str, stamp: str) -> None:
    assert run_index.moment(text, datetime(2026, 11, 21, 12, tzinfo=UTC)) == stamp


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "7",
        "7y",
        "2026",
        "-1d",
        "99999d",
        "2026-13-01",
        "20261121T2530",
        "2026-11-21; DROP TABLE runs",
    ],
)
def test_no_moment(text: str) -> None:
    with pytest.raises(InputError, match=r"^since .*: write a day"):
        run_index.moment(text)


# Runs from elsewhere.


def test_add(tmp_path: Path) -> None:
    there = keep(made(), tmp_path)
    entry = run_index.add(there)
    assert entry.folder.parent == state.folder("runs")
    assert record.read(entry.folder) == record.read(there)
    assert run_index.find() == [entry]
    assert run_index.add(there) == entry, "the same once more is no harm"
    assert run_index.add(entry.folder) == entry
    assert sorted(path.name for path in state.folder("runs").iterdir()) == [entry.id]


def test_another_run_of_that_id_is_refused(tmp_path: Path) -> None:
    run_index.add(keep(made(), tmp_path / "a"))
    other = keep(made(release="6.1-other"), tmp_path / "b")
    with pytest.raises(InputError, match=f"^{other}: there is another run {made().id} here: "):
        run_index.add(other)
    assert record.summary(run_index.find()[0].folder).release == made().release


@pytest.mark.parametrize("bad", ["../evil", "..", ".hidden", "a/b", "", "/etc", "x" * 300, "a\nb"])
def test_an_id_is_never_a_path(bad: str, tmp_path: Path) -> None:
    folder = keep(made(), tmp_path)
    told = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**told, "id": bad}))
    with pytest.raises(InputError, match="is not a run's id"):
        run_index.add(folder)
    assert list(state.folder("runs").iterdir()) == []


def test_links_are_refused(tmp_path: Path) -> None:
    folder = keep(made(), tmp_path)
    (folder / "console.log").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match=r"console\.log: is a link or a device"):
        run_index.add(folder)


@pytest.mark.parametrize("harm", ["run.json", "phases"])
def test_what_is_no_run_is_refused(harm: str, tmp_path: Path) -> None:
    folder = keep(made(), tmp_path)
    if harm == "phases":
        shutil.rmtree(folder / harm)
    else:
        (folder / harm).write_text('{"id": 3}')
    with pytest.raises(InputError, match=f"^{folder}: not a run: ") as caught:
        run_index.add(folder)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="not a run"):
        run_index.add(tmp_path / "nowhere")
