# SPDX-License-Identifier: GPL-2.0-only
"""README.md and docs/ are true: files that they show in full, commands to type, links."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from numalab.cli.main import app
from numalab.core import paths

ROOT = paths.ROOT
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
LINKED = (*PAGES, "CONTRIBUTING.md", "kernels/patches/README.md")
MOST_WORDS = {"README.md": 900, "docs/verdicts.md": 1500}
"""The most words of pages that a newcomer should read to the end."""
SHOWN = re.compile(r"[Tt]his is\s+all of `([^`]+)`[^\n]*:\n\n((?:    [^\n]*\n|\n+(?=    ))+)")
FILES = (
    "kernels/6.1-slowscan-before.yml",
    "topologies/unequal.yml",
    "testcases/workloads/threads.py",
    "testcases/threads.yml",
)
PLACEHOLDER = re.compile(r"NAME|SET|LAB_|CASE|HOST|^[~/]|[*…]")
"""In a path: a part that a reader is to replace, or a path outside of the checkout."""


def read(page: str) -> str:
    return (ROOT / page).read_text()


def indented(text: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())


@pytest.mark.parametrize("name", FILES)
def test_files_shown_in_full(name: str, pytestconfig: pytest.Config) -> None:
    shown = [(page, match) for page in PAGES for match in SHOWN.finditer(read(page)) if match[1] == name]
    assert len(shown) == 1, f"{name} is shown once, in one page"
    page, match = shown[0]
    want = indented(read(name))
    if pytestconfig.getoption("--rewrite-golden"):
        text = read(page)
        (ROOT / page).write_text(text[: match.start(2)] + want + text[match.end(2) :])
        return
    assert match[2].rstrip("\n") == want.rstrip("\n"), (
        f"pytest tests/unit --rewrite-golden copies the file into {page}"
    )


def test_no_other_file_is_shown_in_full() -> None:
    """A file that is missing in the list would not be compared."""
    assert sorted(match[1] for page in PAGES for match in SHOWN.finditer(read(page))) == sorted(FILES)
    assert sum(len(re.findall(r"\ball\s+of\s+`", read(page))) for page in PAGES) == len(FILES)


@pytest.mark.parametrize("page", MOST_WORDS)
def test_short_pages_are_short(page: str) -> None:
    assert len(read(page).split()) <= MOST_WORDS[page]


def test_the_picture_is_small() -> None:
    assert 0 < (ROOT / "docs/report.png").stat().st_size <= 200_000


def commands(text: str) -> Iterator[str]:
    """Each `./lab.py …` of a page, in indented code and between backticks."""
    for line in text.splitlines():
        for piece in [line] if line.startswith("    ") else re.findall(r"`([^`]*)`", line):
            for words in re.findall(r"\./lab\.py ([^;#|\n]*)", piece):
                yield words.partition(')"')[0].strip()


COMMANDS = [
    pytest.param(words, id=f"{page}: {words}")
    for page in PAGES
    for words in dict.fromkeys(commands(read(page)))
]


@functools.cache
def lab_py() -> Any:
    """The whole command, which Typer takes 50 ms to build."""
    return typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Parse as lab.py would, without running. An unknown option, or a wrong number of arguments, is an error.

    A bare name of a command is one that a sentence mentions.
    """
    command = lab_py()
    while hasattr(command, "commands") and words[0] != "--help":
        name, *words = words
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    if words and "--help" not in words:
        command.make_context("lab.py", list(words))


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_parses(words: str) -> None:
    parse(shlex.split(words))


@pytest.mark.parametrize(
    "words",
    [
        "nosuch",
        "up --no-such-option",
        "kernel build --no-such-option 6.1",
        "kernel nosuch",
        "ssh --network",
        "show a b",
    ],
)
def test_a_command_that_does_not_parse(words: str) -> None:
    with pytest.raises(Exception, match=r"no command|[Nn]o such option|unexpected extra argument"):
        parse(shlex.split(words))


def test_the_commands_are_seen() -> None:
    typed = {words.split()[0] for page in PAGES for words in commands(read(page))}
    assert typed >= {"up", "run", "report", "kernel", "gc", "exec", "doctor"}


@pytest.mark.parametrize("page", LINKED)
def test_options_of_pytest(page: str, pytestconfig: pytest.Config) -> None:
    for name in re.findall(r"--lab-[a-z-]*[a-z]", read(page)):
        pytestconfig.getoption(name)  # ValueError when there is none


def test_targets() -> None:
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    typed = {
        name for page in PAGES for name in re.findall(r"(?:^    |`)make ([a-z]+)", read(page), re.MULTILINE)
    }
    assert {"demo", "test", "picture"} <= typed <= targets


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: str, text: str) -> list[str]:
    """The links of a page to files and headings that do not exist."""
    bad = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            bad.append(link)
    return bad


@pytest.mark.parametrize("page", LINKED)
def test_links(page: str) -> None:
    assert broken(page, read(page)) == []


def test_a_broken_link_is_seen() -> None:
    text = (
        "[a](guests.md) [b](nosuch.md) [c](verdicts.md#exit-statuses) [d](verdicts.md#nosuch) [e](#nosuch)"
        " ![f](nosuch.png)"
    )
    assert broken("docs/cases.md", text) == ["nosuch.md", "verdicts.md#nosuch", "#nosuch", "nosuch.png"]


def test_every_page_is_in_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/\w+\.md)\)", read("README.md")))
    assert linked == set(PAGES) - {"README.md"}


@pytest.mark.parametrize("page", PAGES)
def test_files_that_there_are(page: str) -> None:
    prose = "\n".join(line for line in read(page).splitlines() if not line.startswith("    "))
    tops = {path.name for path in ROOT.iterdir()}
    words = {word for piece in re.findall(r"`([^`\n]+)`", prose) for word in piece.split()}
    names = {
        word for word in words if "/" in word and word.split("/")[0] in tops and not PLACEHOLDER.search(word)
    }
    assert sorted(name for name in names if not (ROOT / name).exists()) == []
