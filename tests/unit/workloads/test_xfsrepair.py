# SPDX-License-Identifier: GPL-2.0-only
"""xfs_repair's cache statistics become the workload's own numbers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.measure import preparation, runner
from numalab.model.values import SizeClass
from numalab.runs import counters

SAID = """\
libxfs_bcache: 0x67e110
Hits = 1
Hash buckets with   7 entries      5 ( 50%)
Phase 7 - verify and correct link counts...
Hits = 9
libxfs_bcache: 0x67e110
Max supported entries = 2048
Max utilized entries = 2048
Misses = 10990
Hit ratio = 54.35
MRU 0 entries =   4667 (  0%)
Hash buckets with   8 entries  14387 ( 14%)
Hash buckets with >24 entries      2 (  0%)
done
"""


def test_the_statistics_of_its_last_phase(tmp_path: Path, program: Callable[[str, str], Path]) -> None:
    module = runner.load("xfsrepair")
    repair = next(
        phase.command
        for phase in module.phases(module.PARAMS[SizeClass.QUICK])
        if phase.name == "repair-bhash"
    )
    script = repair.replace("/root/", f"{tmp_path}/")
    (tmp_path / "said").write_text(SAID)
    program("xfs_repair", f"cat {tmp_path}/said")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    told = counters.workload_numbers(done.stdout)
    assert told.pop("tlb_shootdowns") >= 0
    assert told == {
        "bcache.max_supported_entries": 2048,
        "bcache.max_utilized_entries": 2048,
        "bcache.misses": 10990,
        "bcache.hit_ratio": 54.35,
        "bcache.mru_0_entries": 4667,
        "bcache.hash_buckets_with_8_entries": 14387,
        "bcache.hash_buckets_with_over_24_entries": 2,
    }


@pytest.mark.parametrize("misses", ["Misses = 2047", "Max utilized entries = 2047", ""])
def test_a_cache_that_does_not_recycle_is_no_data_point(
    tmp_path: Path, program: Callable[[str, str], Path], misses: str
) -> None:
    """Never full, full but never recycled, or without statistics: an error, in the configurations with bhash alone."""
    said = f"{SAID}libxfs_bcache: 0x67e110\nMax supported entries = 2048\nMax utilized entries = 2048\n"
    (tmp_path / "said").write_text(f"{said}{misses}\n" if misses else "done\n")
    program("xfs_repair", f"cat {tmp_path}/said")
    module = runner.load("xfsrepair")
    every = {phase.name: phase for phase in module.phases(module.PARAMS[SizeClass.QUICK])}
    for name, status in {
        "repair-bhash": 1,
        "repair-agstride-bhash": 1,
        "repair-defaults": 0,
        "mmtests-repair": 0,
    }.items():
        script = every[name].command.replace("/root/", f"{tmp_path}/")
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, name
        assert ("its cache did not recycle" in done.stderr) == bool(status)


@pytest.mark.parametrize(
    ("configurations", "names"),
    [
        (("bhash", "mmtests"), ["mkfs", "fsmark", "umount"]),
        (("mmtests",), ["mmtests-mkfs", "mmtests-fsmark", "mmtests-umount"]),
    ],
)
def test_what_may_be_prepared(configurations: tuple[str, ...], names: list[str]) -> None:
    """The first file system, up to the caches that are dropped; a second one comes after the first's repair."""
    module = runner.load("xfsrepair")
    phases = module.phases(
        runner.parameters(module, SizeClass.QUICK, {"configurations": list(configurations)})
    )
    assert [phase.name for phase in preparation.phases(phases)] == names
    assert phases[3].name.startswith("drop-")


def test_a_repair_that_fails(tmp_path: Path, program: Callable[[str, str], Path]) -> None:
    module = runner.load("xfsrepair")
    every = {phase.name: phase for phase in module.phases(module.PARAMS[SizeClass.QUICK])}
    script = every["repair-bhash"].command.replace("/root/", f"{tmp_path}/")
    program("xfs_repair", "echo 'fatal error' >&2; exit 4")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (4, "", "fatal error\n")


def test_mel_gormans_configuration() -> None:
    """A file system of its own, and phases that no pattern for Dave Chinner's configurations matches."""
    module = runner.load("xfsrepair")
    every = {phase.name: phase for phase in module.phases(module.PARAMS[SizeClass.FULL])}
    measured = [name for name, phase in every.items() if phase.measured]
    assert measured[0] == "fsmark"
    assert measured[-2:] == ["mmtests-fsmark", "mmtests-repair"]
    assert every["mmtests-fsmark"].command == (
        "fs_mark -D 10000 -S0 -n 125000 -s 0 -L 100 " + " ".join(f"-d /mnt/scratch/{n}" for n in range(4))
    )
    assert "xfs_repair -vv -o bhash=32768 -o ag_stride=4 /dev/" in every["mmtests-repair"].command
    own = module.PARAMS[SizeClass.QUICK].model_copy(
        update={"configurations": (module.Configuration.MMTESTS,)}
    )
    assert [phase.name for phase in module.phases(own) if phase.measured] == [
        "mmtests-fsmark",
        "mmtests-repair",
    ]
