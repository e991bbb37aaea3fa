# SPDX-License-Identifier: GPL-2.0-only
"""Runs on disk: what was written is read back, with differences computed from the raw snapshots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from numalab.analysis import metrics
from numalab.core.errors import InputError
from numalab.model.run import Memory, PhaseResult, Run
from numalab.model.values import Phase, SizeClass
from numalab.runs import counters, record
from tests.unit.makers import record_of, spec

BEFORE = {"/proc/vmstat": "numa_hit 5\nold 1\n", "/sys/devices/system/node/node0/vmstat": "nr_free_pages 9\n"}
AFTER = {"/proc/vmstat": "numa_hit 8\nnew 1\n", "/sys/devices/system/node/node0/vmstat": "nr_free_pages 4\n"}
RAW = {"vmstat": {"numa_hit": 3}, "node0.vmstat": {"nr_free_pages": -5}}


def result(name: str) -> PhaseResult:
    return PhaseResult(
        phase=Phase(name=name, command="true", limit_seconds=60),
        status=0,
        elapsed=1.5,
        user=0.5,
        system=0.25,
        counters=RAW,
        guest_load=1,
        host_load=2,
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of two phases, written to tmp_path."""
    made = Run(
        id="r",
        workload="w",
        size=SizeClass.QUICK,
        params={"files": 3},
        started="20150307T152000",
        host={"cpu": "x"},
        guest=record_of(spec()),
        release="6.1",
        cmdline="quiet",
        phases=(result("first"), result("second")),
        console_warnings=("WARNING: CPU",),
    )
    for index, phase in enumerate(made.phases):
        record.write_phase(
            tmp_path,
            index,
            phase.phase.name,
            {"before": BEFORE, "after": AFTER},
            {"stdout": "out\n", "stderr": ""},
        )
    record.write(made, tmp_path)
    return made


def test_round_trip(run: Run, tmp_path: Path) -> None:
    assert record.read(tmp_path) == run
    assert sorted(
        str(path.relative_to(tmp_path))
        for path in (tmp_path / "phases" / "00-first").rglob("*")
        if path.is_file()
    ) == [
        "phases/00-first/after/node0.vmstat",
        "phases/00-first/after/vmstat",
        "phases/00-first/before/node0.vmstat",
        "phases/00-first/before/vmstat",
        "phases/00-first/stderr",
        "phases/00-first/stdout",
    ]
    assert not list(tmp_path.glob("*.new"))


def test_differences_are_made_anew(run: Run, tmp_path: Path) -> None:
    text = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(text.replace('"numa_hit": 3', '"numa_hit": 77'))
    assert "77" in (tmp_path / "run.json").read_text()
    (tmp_path / "phases" / "01-second" / "after" / "vmstat").write_text("numa_hit 105\n")
    again = record.read(tmp_path)
    assert again.phase("first").counters == RAW
    assert again.phase("second").counters == RAW | {"vmstat": {"numa_hit": 100}}


def break_json(folder: Path) -> None:
    (folder / "run.json").write_text("{")


def break_key(folder: Path) -> None:
    (folder / "run.json").write_text((folder / "run.json").read_text().replace('"workload"', '"werk"'))


def lose_json(folder: Path) -> None:
    (folder / "run.json").unlink()


def lose_edge(folder: Path) -> None:
    for path in (folder / "phases" / "01-second" / "after").iterdir():
        path.unlink()
    (folder / "phases" / "01-second" / "after").rmdir()


def spoil(folder: Path) -> None:
    (folder / "phases" / "00-first" / "before" / "vmstat").write_bytes(b"\xff")


@pytest.mark.parametrize("harm", [break_json, break_key, lose_json, lose_edge, spoil])
def test_a_broken_folder_is_no_run(harm: object, run: Run, tmp_path: Path) -> None:
    assert callable(harm)
    harm(tmp_path)
    with pytest.raises(InputError, match=f"^{tmp_path}: not a run: "):
        record.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"spec": {}}, "guest.spec.name: Field required"),
        ({"accel_reason": None}, "guest.accel_reason: Input should be a valid string"),
        ({"hung": "often"}, "guest.hung: Input should be a valid integer"),
        ({"colour": "red"}, "guest.colour: Extra inputs are not permitted"),
        ({"format": 99}, "guest: format 99: a newer numalab wrote it; this one reads formats up to 2"),
    ],
)
def test_a_guest_that_is_none(change: dict[str, object], why: str, run: Run, tmp_path: Path) -> None:
    """One line names the file and the field; the file stays unchanged."""
    about = json.loads((tmp_path / "run.json").read_text())
    text = json.dumps({**about, "guest": {**about["guest"], **change}})
    (tmp_path / "run.json").write_text(text)
    for reader in (record.read, record.summary):
        with pytest.raises(InputError) as refused:
            reader(tmp_path)
        assert str(refused.value).startswith(f"{tmp_path}: not a run: run.json: {why}")
        assert "\n" not in str(refused.value)
    assert (tmp_path / "run.json").read_text() == text


def test_what_memory_was_made_of(run: Run, tmp_path: Path) -> None:
    """By samples and edges; from the folder, so that runs of earlier versions have it too."""
    assert record.read(tmp_path).phase("first").memory is None, "absent is absent"
    place = record.phase_folder(tmp_path, 0, "first")
    text = "nr_anon_pages {}\nnr_anon_transparent_hugepages {}\n"
    (place / "before" / "vmstat").write_text(text.format(500, 0))
    (place / "after" / "vmstat").write_text(text.format(700, 1))
    assert record.read(tmp_path).phase("first").memory == Memory(anonymous=700, huge=512)
    levels = {"nr_anon_pages": 9000, "nr_anon_transparent_hugepages": 2}
    record.write_samples(tmp_path, 0, "first", [json.dumps({"t": 1, "vmstat": levels}), '{"t": 2}'])
    assert record.read(tmp_path).phase("first").memory == Memory(anonymous=9000, huge=1024)
    assert record.read(tmp_path).phase("second").memory is None
    (place / "samples.jsonl").write_text('{"t": 1, "vmst')
    assert record.read(tmp_path).phase("first").memory == Memory(anonymous=700, huge=512), (
        "the edges say that"
    )


def test_meminfo_is_kept_and_counts_nothing() -> None:
    assert counters.MEMINFO in counters.FILES
    text = {"/proc/meminfo": "AnonHugePages:  2048 kB\nHugePages_Total:  3\nnot_theirs 5\n"}
    assert counters.phase({**BEFORE, **text}, {**AFTER, **text}) == RAW


def test_what_a_phase_told(run: Run, tmp_path: Path) -> None:
    place = record.phase_folder(tmp_path, 0, "first")
    (place / "stdout").write_text("numalab: passes 3\nother\n")
    (place / "profile.folded").write_text(
        "sh;do_fault;flush_tlb_mm_range 30\nsh;do_fault 69\nsh;rare 1\ninit;idle 880\nsh;[unknown] 20\n"
    )
    told = record.read(tmp_path).phase("first").output
    assert told["passes"] == 3
    assert told["profile_percent.flush_tlb_mm_range"] == pytest.approx(3.0)
    assert told["profile_percent.do_fault"] == pytest.approx(9.9)
    assert "profile_percent.rare" not in told, "0.1 %: in profile.folded only"
    assert not any("unknown" in name for name in told), "what perf has no name for is no metric"
    assert metrics.kind("output:profile_percent.do_fault") is metrics.Kind.TIME


def test_rates_of_tracepoints(run: Run, tmp_path: Path) -> None:
    """Steady from the first sample on: 100 hits in each of two windows of 10 s."""
    taken = [
        json.dumps({"t": t, "vmstat": {"nr_anon_pages": 9000}, "trace": {"migrate:mm_migrate_pages": 10 * t}})
        for t in range(2, 26, 2)
    ]
    record.write_samples(tmp_path, 0, "first", taken)
    told = record.read(tmp_path).phase("first").output
    assert {name: number for name, number in told.items() if name.startswith(counters.RATE)} == {
        "per_10_s.migrate.mm_migrate_pages": 100.0,
        "per_10_s.migrate.mm_migrate_pages.windows": 2,
        "per_10_s.migrate.mm_migrate_pages.error_percent": 0.0,
    }
    assert metrics.known("output:per_10_s.migrate.mm_migrate_pages")
    place = record.phase_folder(tmp_path, 0, "first")
    (place / "samples.jsonl").write_text('{"vmstat": {"nr_anon_pages": 9000}, "trace": 5}')
    record.read(tmp_path)
