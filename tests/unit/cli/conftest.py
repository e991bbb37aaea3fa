# SPDX-License-Identifier: GPL-2.0-only
"""lab.py in this process, without a hypervisor."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.cli import main
from numalab.host import hypervisor
from tests.unit.makers import FakeHost

LabPy = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lab_py(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> LabPy:
    """lab_py(WORD…) -> exit status, standard output, standard error of lab.py."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(hypervisor, "connect", lambda *_: FakeHost())

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lab.py", *words])
        with pytest.raises(SystemExit) as done:
            main.main()
        printed = capsys.readouterr()
        return int(str(done.value.code)), printed.out, printed.err

    return call


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path of a case's file, with the text that the test's module has as CASE."""
    path = tmp_path / "mine.yml"
    path.write_text(request.module.CASE)
    return str(path)
