# SPDX-License-Identifier: GPL-2.0-only
"""State directories that earlier code wrote: everything in them can be read, and their runs have the same
verdicts.

tests/recorded/runs/README.md says how they were made.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from numalab.analysis import calibration
from numalab.core import state
from numalab.core.errors import InputError
from numalab.experiment import judging
from numalab.guest import guest
from numalab.host import accelerator, image
from numalab.kernel import build
from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.model.values import Accel, jsonable
from numalab.runs import index as run_index
from numalab.runs import record
from tests.unit.makers import RECORDED

RUNS = RECORDED / "runs"
COMMITS = sorted(path.name.removesuffix(".tar.xz") for path in RUNS.glob("*.tar.xz"))
EXPERIMENTS = ("auto", "broken", "cannot-tell", "does-not-hold", "holds", "hung")
ZEROS, ONES = "0" * 16, "1" * 16


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COMMIT/state for each commit, unpacked once; no test changes a record there."""
    place = tmp_path_factory.mktemp("recorded")
    for name in COMMITS:
        with tarfile.open(RUNS / f"{name}.tar.xz") as archive:
            archive.extractall(place / name)
    return place


@pytest.fixture(params=COMMITS)
def commit(request: pytest.FixtureRequest, unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A commit whose state directory is this test's."""
    name = str(request.param)
    monkeypatch.setenv("LAB_STATE", str(unpacked / name / "state"))
    return name


def runs_of(case: str) -> list[Run]:
    """All runs of a case, from their folders."""
    return [record.read(entry.folder) for entry in run_index.find(case=case)]


def rounded(text: str) -> str:
    """JSON with numbers rounded to 9 digits: another release of scipy may differ in the last one."""
    return json.dumps(json.loads(text, parse_float=lambda number: float(f"{float(number):.9g}")))


def test_archives_of_both_ages_are_here() -> None:
    assert {"1844388", "1dc3791"} <= set(COMMITS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_judged_alike(name: str, commit: str, pytestconfig: pytest.Config) -> None:
    text = json.dumps([jsonable(verdict) for verdict in judging.verdicts(runs_of(name))], indent=1) + "\n"
    path = RUNS / commit / f"{name}.verdict.json"
    if pytestconfig.getoption("--rewrite-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert rounded(path.read_text()) == rounded(text), (
        "stored runs are judged otherwise; if this is meant: pytest --rewrite-golden, and read the diff"
    )


def test_no_verdict_is_left_over() -> None:
    assert {str(path.relative_to(RUNS)) for path in RUNS.glob("*/*")} == {
        f"{age}/{name}.verdict.json" for age in COMMITS for name in EXPERIMENTS
    }


def test_every_run_is_listed_and_whole(commit: str) -> None:
    entries = run_index.find()
    assert len(entries) == 41
    assert [entry.damage for entry in entries if entry.damage] == []
    assert [entry.case_name for entry in entries if entry.error] == ["broken"]
    for entry in entries:
        run = record.read(entry.folder)
        assert record.summary(entry.folder) == run, "the differences were derived alike"
        assert len(run.phases) == (1 if run.error else 2)
        for index, name in enumerate(("prepare", "work")):
            assert [sample["t"] for sample in record.samples(entry.folder, index, name)] == [0, 1, 2]


def test_the_guest_of_a_run_is_its_record(commit: str) -> None:
    """Every stored fact is unchanged; a missing one has the record's default."""
    record_later: dict[str, object] = {"ready_state": "", "prepared": None}
    record_later |= {"format": 2, "kept": True} if commit == "1844388" else {}
    spec_later: dict[str, object] = {"clock": "host", "seed": None, "savable": False}
    spec_later |= {
        "binding": None,
        "huge_page": None,
        "emulator": None,
        "instructions": "",
        "icount_shift": 3,
    }
    spec_later |= {"network": False} if commit == "1844388" else {}
    for entry in run_index.find():
        stored = json.loads((entry.folder / "run.json").read_text())["guest"]
        facts = {key: value for key, value in stored.items() if key not in ("maker", "maker_started")}
        disks = [{**disk, "speed_clock": "host"} for disk in stored["spec"]["disks"]]
        assert jsonable(record.read(entry.folder).guest) == {
            **facts,
            **record_later,
            "spec": {**stored["spec"], **spec_later, "disks": disks},
        }


def test_a_run_of_no_case(commit: str) -> None:
    (entry,) = (entry for entry in run_index.find() if not entry.case_name)
    assert record.profile(entry.folder, 1, "work") == {
        ("work", "main", "do_page_fault"): 90,
        ("work", "main"): 10,
    }
    result = record.read(entry.folder).phase("work")
    assert (result.counters["vmstat"]["numa_pte_updates"], result.output["rate"]) == (700, 1428.571)


def test_two_ages_of_one_machine_and_input_may_be_judged_together(commit: str) -> None:
    """Fields added to the record since (machine id, format, planned) do not make an older run different."""
    runs = runs_of("holds")
    newer = [
        run.model_copy(
            update={
                "id": f"{run.id}-newer",
                "host": {**run.host, "machine id": "0123456789abcdef0123456789abcdef"},
                "place": (
                    run.place.model_copy(update={"planned": 12, "boot": run.place.boot + 6})
                    if run.place
                    else None
                ),
            }
        )
        for run in runs
    ]
    (verdict,) = judging.verdicts([*runs, *newer])
    assert verdict.boots == (6, 6)


def test_a_guest(commit: str) -> None:
    known = guest.read("g")
    assert (known.spec.boot.name, known.spec.topology_name, known.ready) == ("debian", "uma-4g", True)
    assert guest.records() == ([known], [])
    made = guest.maker("g")
    assert made is not None
    assert made.process.endswith(("4242 77", ".4242.77"))


def test_manifests(commit: str) -> None:
    place = state.folder("images", "debian12", ZEROS)
    assert image.manifest(place) == image.Image(
        name="debian12",
        id=ZEROS,
        directory=str(place),
        root="/dev/vda2",
        disk_bytes=6,
        inputs={"base": "debian"},
    )

    class Asked:
        """The part of a plan that `existing` uses."""

        name, key = "6.1", ONES

    built = build.existing(Asked())  # type: ignore[arg-type]
    assert built is not None
    assert (built.release, built.patches, built.file("bzImage").read_text()) == (
        "6.1.1-numalab",
        ("a.patch",),
        "bzImage",
    )


def test_calibration(commit: str) -> None:
    before = [run for run in runs_of("holds") if run.place and run.place.arm is Arm.BEFORE]
    known = calibration.load(calibration.site(before[0]))
    assert known is not None
    assert known.runs == tuple(run.id for run in before)
    assert known.spreads == calibration.of(before).spreads


def test_accelerator(commit: str) -> None:
    """The recorded probe is not made again."""
    probes = accelerator._read(state.folder("cache") / "accel.json", accelerator.Probe)
    assert [(probe.accel, probe.reason) for probe in probes.values()] == [(Accel.TCG, "there is no /dev/kvm")]


def test_a_record_of_a_newer_lab_is_refused(commit: str, tmp_path: Path) -> None:
    """Otherwise the tests above would prove nothing."""
    folder = shutil.copytree(run_index.find(case="holds")[0].folder, tmp_path / "run")
    known = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**known, "format": 99}))
    with pytest.raises(InputError, match="a newer numalab wrote it"):
        record.read(folder)
