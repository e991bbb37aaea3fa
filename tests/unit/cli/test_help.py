# SPDX-License-Identifier: GPL-2.0-only
"""The lists of commands: a line each, which says what the command does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from numalab.cli.main import app


@pytest.mark.parametrize("group", ["", "image", "kernel", "pool"])
def test_no_summary_is_cut(group: str) -> None:
    """On a terminal of 80 columns, click ends a first sentence that is too long in an ellipsis."""
    result = CliRunner().invoke(app, [*group.split(), "--help"], env={"COLUMNS": "80"})
    lines = result.stdout.partition("Commands:\n")[2].splitlines()
    assert len(lines) >= 2
    assert [line for line in lines if not line.endswith(".") or line.endswith("...")] == []


def commands(command: Any, name: str = "lab.py") -> Iterator[tuple[str, Any]]:
    """A command and those below it."""
    yield name, command
    for below, one in getattr(command, "commands", {}).items():
        yield from commands(one, f"{name} {below}")


def test_every_option_and_argument_says_what_it_is() -> None:
    silent = [
        f"{name} {parameter.opts[0]}"
        for name, command in commands(typer.main.get_command(app))
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert not silent
