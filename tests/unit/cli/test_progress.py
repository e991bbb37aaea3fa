# SPDX-License-Identifier: GPL-2.0-only
"""Steps on a terminal, from several threads: drawing takes no lock that another drawing waits for."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import rich.console
from rich.console import Console

from numalab.cli import progress, terminal
from numalab.core.log import moving, note, step


@pytest.mark.parametrize("terminal", [True, False])
def test_steps_of_several_guests(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(
        rich.console, "Console", lambda **_: Console(file=out, force_terminal=terminal, width=100)
    )

    def work(name: str) -> None:
        for _ in range(20):
            with step("boot", who=name):
                note("emulated", who=name)

    def all_of_it() -> None:
        with progress.Progress(), ThreadPoolExecutor(4) as pool:
            list(pool.map(work, "abcd"))

    thread = threading.Thread(target=all_of_it, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "drawing waits for ever"
    for name in "abcd":
        assert len(re.findall(rf"✓\S*\s+[\d.]+ s  {name}: boot", out.getvalue())) == 20
        assert out.getvalue().count(f"{name}: emulated") == 20


@pytest.mark.parametrize("on_a_terminal", [True, False])
def test_output_beside_running_steps(
    on_a_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A verdict is printed while other cases run: on a terminal above their steps, which are drawn again, else
    where standard output goes."""
    out = io.StringIO()
    monkeypatch.setattr(
        rich.console, "Console", lambda **_: Console(file=out, force_terminal=True, width=100)
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_a_terminal)
    with progress.Progress(), step("boot", who="b"):
        terminal.echo("a: HOLDS")
    drawn, printed = out.getvalue(), capsys.readouterr().out
    assert (printed, "a: HOLDS\n" in drawn) == (("", True) if on_a_terminal else ("a: HOLDS\n", False))


def test_a_long_step_has_a_line_now_and_then_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(rich.console, "Console", lambda **_: Console(file=out, width=100))
    monkeypatch.setattr(progress, "STILL_SECONDS", 0.05)
    with progress.Progress(), step("built", who="kernel 6.1"):
        moving("812 files compiled")
        deadline = time.monotonic() + 30
        while out.getvalue().count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    lines = out.getvalue().splitlines()
    assert re.fullmatch(r"… +\d+ s  kernel 6.1: built: 812 files compiled", lines[0])
    assert lines[-1].startswith("✓")
    ended = out.getvalue()
    time.sleep(0.2)
    assert out.getvalue() == ended
