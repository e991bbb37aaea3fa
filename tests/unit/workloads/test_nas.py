# SPDX-License-Identifier: GPL-2.0-only
"""Our NAS kernels verify their results, and fail on wrong ones; a user's NPB is built and judges itself."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from numalab.core import paths
from numalab.core.errors import InputError
from numalab.measure import runner
from numalab.model.values import SizeClass
from numalab.runs import counters

SOURCES = paths.ROOT / paths.WORKLOADS
OURS = ("cg", "ep", "is", "mg")


def built(program: str, place: Path, *, change: tuple[str, str] | None = None) -> Path:
    """A kernel compiled as in the guest, optionally with one pattern of its sources replaced."""
    texts = {name: (SOURCES / name).read_text() for name in (f"nas.{program}.c", "nas.h", "lab.h")}
    if change:
        changed = {name: re.sub(*change, text) for name, text in texts.items()}
        assert changed != texts, change
        texts = changed
    for name, text in texts.items():
        (place / name).write_text(text)
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-fopenmp"]
    subprocess.run(
        ["gcc", *flags, "-o", place / program, place / f"nas.{program}.c", "-lm"], check=True, timeout=60
    )
    return place / program


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all four, unchanged."""
    place = tmp_path_factory.mktemp("kernels")
    for program in OURS:
        built(program, place)
    return place


def ran(*words: object, threads: int = 2) -> subprocess.CompletedProcess[str]:
    """Run one of them to its end."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )


@pytest.mark.parametrize("program", OURS)
def test_class_s_verifies(program: str, kernels: Path, tmp_path: Path) -> None:
    binary = kernels / program
    for words, threads in (((binary, "S", 0), 3), ((binary, "S", 1, tmp_path / "arrays"), 1)):
        done = ran(*words, threads=threads)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Verification SUCCESSFUL" in done.stdout
        assert counters.workload_numbers(done.stdout).keys() == {"mops_per_second", "timed_seconds"}
    assert (tmp_path / "arrays").exists() is (program != "ep"), "arrays are in the file; EP has none"


@pytest.mark.parametrize(
    ("program", "pattern", "wrong"),
    [
        ("cg", r"8\.5971775078648", "8.5971775178648"),
        ("ep", r"6\.958407078382297", "6.958407278382297"),
        ("is", r"48427, 0,", "48427, 1,"),
        ("is", r"keys\[i - 1\] > keys\[i\]", "keys[i - 1] >= keys[i]"),
        ("mg", r"0\.5307707005734e", "0.5307708005734e"),
        *((program, r"FIVE_13 = 1220703125", "FIVE_13 = 1220703117") for program in OURS),
    ],
    ids=lambda text: re.sub(r"\W+", "-", text),
)
def test_a_wrong_result_ends_with_a_status(program: str, pattern: str, wrong: str, tmp_path: Path) -> None:
    """Published values that are not met, and random numbers that differ from the report's."""
    done = ran(built(program, tmp_path, change=(pattern, wrong)), "S", 0)
    assert done.returncode == 1
    assert "Verification FAILED" in done.stdout
    assert "verification failed" in done.stderr


@pytest.mark.parametrize(
    "words",
    [(), ("S",), ("X", 0), ("SW", 0), ("S", "yes"), ("S", 0, "a", "b"), ("S", 0, "/nonexistent/file")],
)
def test_wrong_words(words: tuple[object, ...], kernels: Path) -> None:
    done = ran(kernels / "is", *words)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(("usage: is ", "is: "))
    assert done.stderr.count("\n") == 1


def load(monkeypatch: pytest.MonkeyPatch, tarball: Path | None) -> ModuleType:
    """The workload with this tarball in the environment, or with none."""
    if tarball:
        monkeypatch.setenv("LAB_NPB", str(tarball))
    else:
        monkeypatch.delenv("LAB_NPB", raising=False)
    return runner.load("nas")


def asked(module: ModuleType, **over: object) -> list[str]:
    """The names of the phases."""
    return [phase.name for phase in module.phases(runner.parameters(module, SizeClass.QUICK, over))]


def test_what_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = load(monkeypatch, None)
    assert ours.files(ours.PARAMS[SizeClass.QUICK]) == {}
    assert asked(ours, programs=None)[-4:] == ["cg", "ep", "is", "mg"]
    for over, reason in (
        ({"programs": ("cg", "lu")}, "lu is none of ours .*LAB_NPB"),
        ({"mapped": True}, "needs data"),
    ):
        with pytest.raises(InputError, match=reason):
            asked(ours, **over)
    tarball = tmp_path / "NPB.tar.gz"
    tarball.write_bytes(b"")
    theirs = load(monkeypatch, tarball)
    assert theirs.files(theirs.PARAMS[SizeClass.QUICK]) == {"/root/npb.tar": tarball}
    assert asked(theirs, programs=None)[-8:] == ["bt", "cg", "ep", "is", "lu", "mg", "sp", "ua"]
    gone = load(monkeypatch, tmp_path / "gone")
    with pytest.raises(InputError, match="there is no such file"):
        gone.files(gone.PARAMS[SizeClass.QUICK])


MAKEFILE = """\
include config/make.def
%:
\tprintf '#!/bin/sh\\ncat <<E\\n Time in seconds =    1.50\\n Mop/s total     =   200.25\\n Verification    =   $(SAYS)\\nE\\n' > bin/$@.$(CLASS).x
\t[ '$(FC) $(CC)' = 'gfortran gcc' ] && chmod +x bin/$@.$(CLASS).x
"""


@pytest.mark.parametrize(("says", "status"), [("SUCCESSFUL", 0), ("UNSUCCESSFUL", 1), ("NOT PERFORMED", 1)])
def test_a_users_npb(
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[[str, str], Path],
    tmp_path: Path,
    says: str,
    status: int,
) -> None:
    """A tarball with NPB's layout and a fake program: NPB's own source is in no registry."""
    program("gfortran", "exit 1")
    source = tmp_path / "NPB3.4.2" / "NPB3.4-OMP"
    (source / "config").mkdir(parents=True)
    (source / "Makefile").write_text(MAKEFILE.replace("$(SAYS)", says))
    with tarfile.open(tmp_path / "npb.tar", "w:gz") as tar:
        tar.add(tmp_path / "NPB3.4.2", "NPB3.4.2")
    module = load(monkeypatch, tmp_path / "npb.tar")
    params = runner.parameters(module, SizeClass.QUICK, {"programs": ("bt",), "nas_class": "S"})
    script = "".join(f"({phase.command}\n) || exit\n" for phase in module.phases(params)).replace(
        "/root/", f"{tmp_path}/"
    )
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert counters.workload_numbers(done.stdout) == (
        {} if status else {"mops_per_second": 200.25, "timed_seconds": 1.5}
    )
    assert ("not verified" in done.stderr) is bool(status)
