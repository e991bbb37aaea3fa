# SPDX-License-Identifier: GPL-2.0-only
"""The README says what is so: files that it shows in full, commands and targets that it tells people to type."""

from __future__ import annotations

import re

import pytest
import typer.main

from numalab.cli.main import app
from numalab.core import paths

PATH = paths.ROOT / "README.md"
SHOWN = re.compile(r"[Tt]his is\s+all of `([^`]+)`[^\n]*:\n\n((?:    [^\n]*\n|\n+(?=    ))+)")
FILES = ("kernels/6.1-slowscan-before.yml", "topologies/unequal.yml", "testcases/workloads/threads.py", "testcases/threads.yml")


def indented(text: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())


@pytest.mark.parametrize("name", FILES)
def test_files_shown_in_full(name: str, pytestconfig: pytest.Config) -> None:
    readme = PATH.read_text()
    shown = next(match for match in SHOWN.finditer(readme) if match[1] == name)
    want = indented((paths.ROOT / name).read_text())
    if pytestconfig.getoption("--rewrite-golden"):
        PATH.write_text(readme[: shown.start(2)] + want + readme[shown.end(2):])
        return
    assert shown[2] == want, "pytest tests/unit --rewrite-golden copies the file into the README"


def test_commands() -> None:
    command = typer.main.get_command(app)
    known = set(command.commands) | {"--help"}  # type: ignore[attr-defined]
    typed = set(re.findall(r"\./lab\.py ([a-z-]+)", PATH.read_text()))
    assert typed
    assert typed <= known


def test_targets() -> None:
    targets = set(re.findall(r"^([a-z]+):", (paths.ROOT / "Makefile").read_text(), re.MULTILINE))
    typed = set(re.findall(r"(?:^    |`)make ([a-z]+)", PATH.read_text(), re.MULTILINE))
    assert {"demo", "test"} <= typed <= targets
