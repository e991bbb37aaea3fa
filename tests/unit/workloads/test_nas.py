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
from typing import Literal, get_args

import pytest

from numalab.core import paths
from numalab.core.errors import InputError
from numalab.measure import runner
from numalab.model.values import SizeClass
from numalab.runs import counters

Mode = Literal["w", "w:gz", "w:bz2", "w:xz"]
SOURCES = paths.ROOT / paths.WORKLOADS
OURS = ("cg", "ep", "is", "lu", "mg")
RANDOM = ("cg", "ep", "is", "mg")
"""Those that draw random numbers."""


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
    """A folder with all of them, unchanged."""
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
        ("lu", r"1\.6196343210976702e", "1.6196344210976702e"),
        ("lu", r"5\.8588269616485186e", "5.8588279616485186e"),
        ("lu", r"7\.8418928865937083", "7.8418938865937083"),
        ("lu", r"OMEGA = 1\.2", "OMEGA = 1.1"),
        ("mg", r"0\.5307707005734e", "0.5307708005734e"),
        *((program, r"FIVE_13 = 1220703125", "FIVE_13 = 1220703117") for program in RANDOM),
    ],
    ids=lambda text: re.sub(r"\W+", "-", text),
)
def test_a_wrong_result_ends_with_a_status(program: str, pattern: str, wrong: str, tmp_path: Path) -> None:
    """Published values that are not met, other steps, and random numbers that differ from the report's."""
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
    assert asked(ours, programs=None)[-5:] == ["cg", "ep", "is", "lu", "mg"]
    for over, reason in (
        ({"programs": ("cg", "bt")}, "bt is none of ours .*LAB_NPB"),
        ({"mapped": True}, "needs data"),
    ):
        with pytest.raises(InputError, match=reason):
            asked(ours, **over)
    tarball = npb(tmp_path, "SUCCESSFUL")
    theirs = load(monkeypatch, tarball)
    assert theirs.files(theirs.PARAMS[SizeClass.QUICK]) == {"/root/npb.tar": tarball}
    assert asked(theirs, programs=None)[-8:] == ["bt", "cg", "ep", "is", "lu", "mg", "sp", "ua"]
    assert "base-pages" in asked(theirs, programs=("bt",))
    assert "base-pages" not in asked(theirs, programs=("bt",), huge=True)
    gone = load(monkeypatch, tmp_path / "gone")
    with pytest.raises(InputError, match="there is no such file"):
        gone.files(gone.PARAMS[SizeClass.QUICK])


MAKEFILE = """\
include config/make.def
%:
\tprintf '#!/bin/sh\\ncat <<E\\n Time in seconds =    1.50\\n Mop/s total     =   200.25\\n Verification    =   $(SAYS)\\nE\\n' > bin/$@.$(CLASS).x
\t[ '$(FC) $(CC) $(lastword $(FFLAGS))' = 'gfortran gcc -fallow-invalid-boz' ] && chmod +x bin/$@.$(CLASS).x
"""


def npb(place: Path, says: str, mode: Mode = "w:gz") -> Path:
    """A tarball with NPB's layout and fake programs: NPB's own source is in no registry."""
    source = place / "NPB3.4.2" / "NPB3.4-OMP"
    (source / "config").mkdir(parents=True)
    (source / "Makefile").write_text(MAKEFILE.replace("$(SAYS)", says))
    with tarfile.open(place / "npb.tar", mode) as tar:
        tar.add(place / "NPB3.4.2", "NPB3.4.2")
    return place / "npb.tar"


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_tarball_that_is_cut_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: Mode) -> None:
    """It is refused where a plan asks for the phases, before there is a guest."""
    tarball = npb(tmp_path, "SUCCESSFUL", mode)
    module = load(monkeypatch, tarball)
    assert asked(module, programs=("lu",))[-1] == "lu", "it is whole"
    whole = tarball.read_bytes()
    ends = [0, 10, len(whole) // 2, len(whole) - 1]
    if (
        mode == "w"
    ):  # within a member, at its end, and with a part of what ends an archive; zeros fill the rest
        ends = [0, 10, 600, 1024, 2048, len(whole.rstrip(b"\0")) - 1]
    for end in ends:
        tarball.write_bytes(whole[:end])
        with pytest.raises(
            InputError, match=r"LAB_NPB=.*npb.tar: it is no whole tar archive \(.+\): get it again"
        ):
            asked(module, programs=("lu",))


def test_a_tarball_without_npb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "NPB3.4-MPI").mkdir()
    with tarfile.open(tmp_path / "npb.tar", "w:gz") as tar:
        tar.add(tmp_path / "NPB3.4-MPI", "NPB3.4.2/NPB3.4-MPI")
    with pytest.raises(InputError, match=r"no folder NPB3\.x-OMP"):
        asked(load(monkeypatch, tmp_path / "npb.tar"))


@pytest.mark.parametrize(("says", "status"), [("SUCCESSFUL", 0), ("UNSUCCESSFUL", 1), ("NOT PERFORMED", 1)])
def test_a_users_npb(
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[[str, str], Path],
    tmp_path: Path,
    says: str,
    status: int,
) -> None:
    """Its words decide, and its Makefile has our make.def; 3.3.1 needs what -fallow-invalid-boz allows."""
    program("gfortran", "exit 1")
    module = load(monkeypatch, npb(tmp_path, says))
    params = runner.parameters(module, SizeClass.QUICK, {"programs": ("bt",), "nas_class": "S", "huge": True})
    script = "".join(f"({phase.command}\n) || exit\n" for phase in module.phases(params)).replace(
        "/root/", f"{tmp_path}/"
    )
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert counters.workload_numbers(done.stdout) == (
        {} if status else {"mops_per_second": 200.25, "timed_seconds": 1.5}
    )
    assert ("not verified" in done.stderr) is bool(status)
