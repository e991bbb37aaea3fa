# SPDX-License-Identifier: GPL-2.0-only
"""The version of package and checkout; the ways to start the command line; completion in bash."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from numalab.core import paths, version
from numalab.core.errors import HostError
from numalab.core.paths import ROOT

LAB = ([sys.executable, "-m", "numalab"], [sys.executable, str(ROOT / "lab.py")])


def git(place: Path, *words: str) -> str:
    argv = ["git", "-C", str(place), "-c", "user.name=n", "-c", "user.email=e", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository in place of ours, with one commit."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (tmp_path / "file").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def test_a_checkout_has_a_commit(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "--short=12", "HEAD")
    package = metadata.version("numalab")
    assert version.version() == f"{package} (commit {commit})"
    (checkout / "file").write_text("2")
    assert version.version() == f"{package} (commit {commit}-dirty)"


def test_a_folder_within_somebody_elses_checkout_has_none(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "site-packages").mkdir()
    monkeypatch.setattr(paths, "ROOT", checkout / "site-packages")
    assert version.version() == metadata.version("numalab")


def test_no_git_and_no_commit_are_no_errors(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise HostError("git: No such file or directory")

    (checkout / ".git/HEAD").write_text("")
    assert version.version() == metadata.version("numalab")
    monkeypatch.setattr(version, "run", absent)
    assert version.version() == metadata.version("numalab")


@pytest.mark.parametrize("start", LAB)
def test_both_ways_to_start_it(start: list[str]) -> None:
    done = subprocess.run([*start, "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"numalab {metadata.version('numalab')}")
    assert subprocess.run([*start, "nosuch"], capture_output=True, timeout=60, check=False).returncode == 2


def test_modules_that_do_not_load_are_an_error_of_the_lab(tmp_path: Path) -> None:
    """Python's own status for an error is 1: "does not hold"."""
    (tmp_path / "typer.py").write_text("raise ImportError('half installed')\n")
    done = subprocess.run(
        [sys.executable, "-m", "numalab"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "half installed" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("./lab.py verd", ["verdict"]),
        ("./lab.py kernel im", ["import"]),
        ("./lab.py up --topo", ["--topology"]),
        ("./lab.py --vers", ["--version"]),
    ],
)
def test_completion_in_bash(line: str, words: list[str]) -> None:
    script = f"""
        eval "$(./lab.py --show-completion)"
        [[ $(complete -p lab.py) =~ -F\\ ([a-z_]+) ]]
        COMP_WORDS=({line}) COMP_CWORD={len(line.split()) - 1}
        "${{BASH_REMATCH[1]}}" ./lab.py
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash"], input=script, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.split(), done.stderr) == (words, "")
