# SPDX-License-Identifier: GPL-2.0-only
"""No unit test uses the user's state directory, and none is random."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("lab", derandomize=True, deadline=None, database=None)
settings.load_profile("lab")


@pytest.fixture(autouse=True)
def lab_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of the test's own, with a key pair that opens nothing, and one for sockets, whose
    path is short."""
    place = tmp_path / "state"
    (place / "ssh").mkdir(parents=True)
    (place / "ssh" / "id_ed25519").write_text("private\n")
    (place / "ssh" / "id_ed25519.pub").write_text("public\n")
    monkeypatch.setenv("LAB_STATE", str(place))
    with tempfile.TemporaryDirectory() as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield place


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """program(NAME, SCRIPT): a shell script that precedes any real program of that name on PATH."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", str(place), prepend=":")

    def make(name: str, script: str) -> Path:
        path = place / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return make
