# SPDX-License-Identifier: GPL-2.0-only
"""What every file of the project has: a licence line; what a checkout has beside the package."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from numalab.catalog import ROOT

SPDX = "# SPDX-License-Identifier: GPL-2.0-only"
SOURCES = ("lab.py", "Makefile", "pyproject.toml", ".ci/run", "numalab/**/*.py", "tests/**/*.py", "benchmarks/**/*.py", "tools/**/*.py",
           "testcases/test_*.py", "playbooks/**/*.yml", "playbooks/**/*.sh")
HASHED = ("playbooks/guest.yml", "playbooks/roles/guest/", "playbooks/roles/kernel/files/", "numalab/inside.py", "numalab/workload.py")
"""An image, a kernel or a stored run is known by the hash of these: a line more would make each of them another one."""


def sources() -> list[str]:
    names = {str(path.relative_to(ROOT)) for pattern in SOURCES for path in ROOT.glob(pattern)}
    return sorted(name for name in names if not name.startswith(HASHED))


def first_comment(path: Path) -> str:
    lines = path.read_text().splitlines()
    return next((line for line in lines if not line.startswith("#!")), "")


@pytest.mark.parametrize("name", sources())
def test_a_source_file_begins_with_its_licence(name: str) -> None:
    assert first_comment(ROOT / name) == SPDX, f"{name}: the first line (after #!) is to be: {SPDX}"


def test_the_sources_are_seen() -> None:
    assert {"lab.py", "numalab/cli.py", "tests/conftest.py", "playbooks/roles/tuning/files/tune.sh"} <= set(sources())
    for name in HASHED:
        assert (ROOT / name).exists(), f"{name} is gone: take it out of HASHED"


def test_the_licence_is_there_in_full() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "GNU GENERAL PUBLIC LICENSE\n                       Version 2, June 1991" in text
    assert "END OF TERMS AND CONDITIONS" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("GPL-2.0-only", ["LICENSE"])
