# SPDX-License-Identifier: GPL-2.0-only
"""lab.py(1) has every command, option and exit status, with the help texts as valid roff."""

from __future__ import annotations

import re

import pytest
import typer.main

from numalab.cli.main import app
from numalab.core.errors import Exit
from tools import manpage

MACROS = {"TH", "SH", "SS", "TP", "B"}


@pytest.fixture(scope="module")
def page() -> str:
    return manpage.page()


def test_every_command(page: str) -> None:
    top = typer.main.get_command(app)
    names = {
        f"{name} {inner}".strip()
        for name, command in top.commands.items()  # type: ignore[attr-defined]
        for inner, own in getattr(command, "commands", {"": command}).items()
        if not own.hidden
    }
    headings = {
        line.removeprefix(".SS ").partition(" [")[0] for line in page.splitlines() if line.startswith(".SS ")
    }
    assert {"up", "kernel build", "image list"} <= names
    assert headings == {name.replace("-", r"\-") for name in names}


def test_options_and_their_texts(page: str) -> None:
    assert ".TP\n\\fB\\-\\-vcpus N\\fR\nscale to this many, keeping the shape\n" in page
    assert ".TP\n\\fB\\-\\-version\\fR\nShow the version and exit.\n" in page


def test_every_exit_status(page: str) -> None:
    statuses = page.partition(".SH EXIT STATUS")[2]
    assert [int(status) for status in re.findall(r"^\\fB(\d+)\\fR$", statuses, re.MULTILINE)] == sorted(Exit)


def test_no_text_is_a_macro_or_an_escape(page: str) -> None:
    assert page.isascii()
    assert set(re.findall(r"^[.'](\w*)", page, re.MULTILINE)) == MACROS
    assert set(re.findall(r"\\(\[u|.)", page)) <= {"f", "-", "&", "e", "(", "[u"}


@pytest.mark.parametrize(
    ("text", "roff"),
    [
        (".so /etc/passwd", r"\&.so /etc/passwd"),
        ("'br", r"\&'br"),
        ("a\\b", r"a\eb"),
        ("K-1\n  two  words", r"K\-1 two words"),
        ("×…", r"\[u00D7]\[u2026]"),
        (None, ""),
    ],
)
def test_text(text: str | None, roff: str) -> None:
    assert manpage._text(text) == roff
