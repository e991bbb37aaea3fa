# SPDX-License-Identifier: GPL-2.0-only
"""A user's copy of the AutoNUMA benchmark: built with our sizes, or refused before a guest is booted."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from numalab.core.errors import InputError
from numalab.measure import runner
from numalab.model.values import SizeClass

# Lines that the originals have and ours change, and what fills them in; the rest is of no concern.
NUMA01 = "#define SIZE (3UL*1024*1024*1024) \nTHREADS_VAL\n\tint nr = 50;\n\tint nr = 1000;\n"
NUMA02 = "#define SIZE (1UL*1024*1024*1024)\n#define TOTALSIZE (4UL*1024*1024*1024*200)\nCPUNUM\n"
FILL = """\
/available/ { nodes = 2**$2 }
END { while ((getline < file) > 0) { sub(/THREADS_VAL|CPUNUM/, "of " nodes); print } }
"""
NUMACTL = "echo 'available: 4 nodes (0-3)'"
GCC = """\
for word do case $word in *.prep.c) source=$word;; -D*) define=$define$word;; /*) target=$word;; esac; done
{ echo "$define"; cat "$source"; } > "$target"
"""


@pytest.fixture
def tarball(tmp_path: Path) -> Path:
    """The layout of the original."""
    place = tmp_path / "autonuma-benchmark"
    place.mkdir()
    for name, text in (("numa01.c", NUMA01), ("numa02.c", NUMA02), ("preproc.awk", FILL)):
        (place / name).write_text(text)
    return packed(place, tmp_path)


def packed(place: Path, at: Path) -> Path:
    with tarfile.open(at / "autonuma.tar", "w:gz") as tar:
        tar.add(place, place.name)
    return at / "autonuma.tar"


def load(monkeypatch: pytest.MonkeyPatch, tarball: Path) -> ModuleType:
    """The workload with this tarball in the environment."""
    monkeypatch.setenv("LAB_AUTONUMA", str(tarball))
    return runner.load("autonuma")


def build(module: ModuleType, tarball: Path, place: Path) -> subprocess.CompletedProcess[str]:
    """What the phase that builds does, in this folder instead of the guest's; no setting of the host is touched."""
    (phase, *_) = module.phases(runner.parameters(module, SizeClass.QUICK, {"huge": True}))
    command = phase.command.replace(module.FOLDER, str(place)).replace(module.TARBALL, str(tarball))
    return subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False, cwd=place.parent
    )


def test_ours_without_a_tarball(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_AUTONUMA", raising=False)
    module = runner.load("autonuma")
    assert module.files(module.PARAMS[SizeClass.QUICK]) == {}
    assert module.phases(module.PARAMS[SizeClass.QUICK])[0].name == "compile-autonuma"


def test_theirs_with_our_sizes(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[str, str], Path], tarball: Path, tmp_path: Path
) -> None:
    module = load(monkeypatch, tarball)
    params = module.PARAMS[SizeClass.QUICK]
    assert module.files(params) == {module.TARBALL: tarball}
    names = [phase.name for phase in module.phases(params)]
    assert names == ["build-original", "numa01", "numa01-threadlocal", "numa02", "numa02-smt"]
    bin = program("numactl", NUMACTL).parent
    program("gcc", GCC)
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin:/bin")
    place = tmp_path / "guest"
    assert build(module, tarball, place).stderr == ""
    first = (place / "numa01").read_text()
    assert first.splitlines()[0] == "-DNO_BIND_FORCE_SAME_NODE"
    for line in ("#define SIZE (128UL << 20)", "of 16", "\tint nr = 60;", "\tint nr = 150;"):
        assert line in first.splitlines()
    assert (place / "numa01-threadlocal").read_text().startswith("-DNO_BIND_FORCE_SAME_NODE-DTHREAD_ALLOC\n")
    assert "#define TOTALSIZE (SIZE * 300)\n" in (place / "numa02").read_text()
    assert (place / "numa02-smt").read_text().startswith("-DSMT\n")


def test_another_edition_is_not_run_with_its_own_sizes(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[str, str], Path], tarball: Path, tmp_path: Path
) -> None:
    (tmp_path / "autonuma-benchmark" / "numa01.c").write_text(NUMA01.replace("nr = 50", "passes = 50"))
    bin = program("numactl", NUMACTL).parent
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin:/bin")
    other = packed(tmp_path / "autonuma-benchmark", tmp_path)
    done = build(load(monkeypatch, other), other, tmp_path / "guest")
    assert done.returncode == 1
    assert done.stderr == "autonuma: no line 'int nr = 50;' in numa01.c of the tarball\n"


@pytest.mark.parametrize(("name", "why"), [("gone.tar", "no such file"), ("other.tar", r"no numa01\.c")])
def test_a_tarball_that_will_not_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, why: str
) -> None:
    with tarfile.open(tmp_path / "other.tar", "w") as tar:
        tar.add(Path(__file__), "numa02.c")
    module = load(monkeypatch, tmp_path / name)
    with pytest.raises(InputError, match=f"LAB_AUTONUMA=.*{why}"):
        module.phases(module.PARAMS[SizeClass.QUICK])
