"""The pytest plugin as a test file of a user's sees it: in a pytest of its own, where no guest is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = """
import pytest
from numalab.errors import GuestLost, KernelOops

@pytest.mark.minutes(30)
def test_long(guest): pass

@pytest.mark.topology("2socket", memory="2G")
@pytest.mark.topology("uma-2g")
@pytest.mark.minutes(5)
def test_two(guest): pass

def test_default(guest): pass

def test_bare(): pass

def test_lost(): raise GuestLost("guest g: SSH is lost", evidence="[ 1.0] its last words")

def test_libvirt_is_not_asked_for():
    import sys
    assert "libvirt" not in sys.modules
"""


def run(place: Path, *words: str) -> str:
    (place / "test_mine.py").write_text(CASES)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(place), *words, str(place / "test_mine.py")]
    return subprocess.run(argv, cwd=place, capture_output=True, text=True, timeout=120, check=False).stdout


@pytest.mark.parametrize(("words", "tests"), [
    ([], ["test_long", "test_two[uma-2g]", "test_two[2socket]", "test_default", "test_bare", "test_lost", "test_libvirt_is_not_asked_for"]),
    (["--at-most", "10", "-k", "long or two or default"], ["test_two[uma-2g]", "test_two[2socket]", "test_default"]),
    (["--topology", "tiers", "--topology", "cpuless", "-k", "two or default or bare"],
     ["test_two[tiers]", "test_two[cpuless]", "test_default[tiers]", "test_default[cpuless]", "test_bare"]),
])
def test_which_tests(words: list[str], tests: list[str], tmp_path: Path) -> None:
    listed = run(tmp_path, "--collect-only", *words)
    assert sorted(line.partition("::")[2] for line in listed.splitlines() if "::" in line) == sorted(tests)


def test_evidence_is_in_the_report(tmp_path: Path) -> None:
    said = run(tmp_path, "-k", "lost or bare or libvirt", "--strict-markers")
    assert "1 failed, 2 passed" in said
    assert "- numalab -" in said
    assert "GuestLost: guest g: SSH is lost\n[ 1.0] its last words" in said
