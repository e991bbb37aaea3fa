#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Print lab.py(1), made from the help texts: `make man`.

click-man does this for click, but does not support the copy of click in typer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import typer.main

from numalab.cli.main import app
from numalab.core.paths import ROOT

Command = Any
"""A command of typer's copy of click, which has no public name."""


def page() -> str:
    """The whole page, in man(7)'s macros."""
    command: Command = typer.main.get_command(app)
    context = command.make_context("lab.py", ["list"], resilient_parsing=True)
    lines = [
        f'.TH LAB.PY 1 "" "numalab {metadata.version("numalab")}" "User Commands"',
        ".SH NAME",
        rf"lab.py \- {_text(command.help)}",
        ".SH SYNOPSIS",
        ".B lab.py",
        r"[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGS\fR]...",
        ".SH OPTIONS",
        *_parameters(command, context),
        ".SH COMMANDS",
        *_commands(command, context),
        ".SH EXIT STATUS",
        *_statuses(),
    ]
    return "\n".join(lines) + "\n"


def _commands(group: Command, context: Any) -> Iterator[str]:
    """Every command below a group, in the order of --help."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command.hidden:
            continue
        inner = type(context)(command, info_name=name, parent=context)
        if hasattr(command, "list_commands"):
            yield from _commands(command, inner)
            continue
        yield (
            f".SS {_text(inner.command_path.removeprefix('lab.py '))}"
            f" {_text(' '.join(command.collect_usage_pieces(inner)))}"
        )
        yield _text(command.help)
        yield from _parameters(command, inner)


def _parameters(command: Command, context: Any) -> Iterator[str]:
    """Arguments and options that have a help text, without each command's --help."""
    records = (
        parameter.get_help_record(context)
        for parameter in command.get_params(context)
        if parameter.name != "help"
    )
    for words, text in filter(None, records):
        yield from (".TP", rf"\fB{_text(words)}\fR", _text(text) or r"\&")


def _statuses() -> Iterator[str]:
    """The table of docs/verdicts.md."""
    table = (ROOT / "docs/verdicts.md").read_text().partition("## Exit statuses")[2].partition("\n## ")[0]
    for line in table.splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        if len(cells) == 2 and cells[0].isdecimal():
            yield from (".TP", rf"\fB{cells[0]}\fR", _text(cells[1]))


def _text(text: str | None) -> str:
    """One line of roff that prints the text literally, with its paragraphs joined."""
    line = (
        " ".join((text or "").split())
        .replace("\\", r"\e")
        .replace("-", r"\-")
        .replace("^", r"\(ha")
        .replace("~", r"\(ti")
    )
    # troff reads Latin-1
    line = "".join(char if char.isascii() else rf"\[u{ord(char):04X}]" for char in line)
    return rf"\&{line}" if line.startswith((".", "'")) else line


if __name__ == "__main__":
    sys.stdout.write(page())
