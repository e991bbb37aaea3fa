# SPDX-License-Identifier: GPL-2.0-only
"""Patch files -> values: their headers, the files that they touch, and which hunk did not apply.

Pure: text -> values. Patches are applied by the builder (playbooks/roles/kernel).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from numalab.core.errors import InputError
from numalab.model.values import Name, Value

HEADER = ("Subject", "Set", "Mirrors", "Moves")
_COUNTER = re.compile(r"[a-z][a-z0-9_]*")


class Move(StrEnum):
    """The expected effect of a patch on a counter."""

    UP = "up"
    DOWN = "down"
    UNKNOWN = "unknown"
    """Worth comparing, but no effect is promised."""
    NEW = "new"
    """The patch adds the counter."""


class Header(Value):
    """The header of a patch in a patch set; see kernels/patches/README.md."""

    subject: Annotated[str, Field(min_length=1)]
    set: Name
    mirrors: Annotated[str, Field(min_length=1)]
    moves: dict[str, Move]
    """Empty for `none`: the patch is there so that a tree builds."""


class Patch(Value):
    """One patch for the builder; `label` names it in errors."""

    label: str
    text: str
    reverse: bool = False


def header(text: str, label: str) -> Header:
    """Parse the header of a patch. InputError names the patch and the field."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            break
        key, colon, value = line.partition(":")
        if line[:1].isspace() and fields:
            fields[list(fields)[-1]] += f" {line.strip()}"
        elif colon and key in HEADER and key not in fields:
            fields[key] = value.strip()
        else:
            raise InputError(
                f"{label}: header: {line!r} is no line of a header: it has {', '.join(HEADER)}, each once,"
                " then an empty line, in place of git's header (kernels/patches/README.md)"
            )
    if missing := [key for key in HEADER if not fields.get(key)]:
        raise InputError(f"{label}: header: {missing[0]} is missing")
    moves: dict[str, Move] = {}
    for part in fields["Moves"].split(",") if fields["Moves"] != "none" else ():
        counter, _, way = part.strip().partition(" ")
        if not _COUNTER.fullmatch(counter) or way.strip() not in list(Move):
            raise InputError(
                f"{label}: header: Moves: {part.strip()!r} is not a counter and one of {', '.join(Move)}"
            )
        moves[counter] = Move(way.strip())
    try:
        return Header(subject=fields["Subject"], set=fields["Set"], mirrors=fields["Mirrors"], moves=moves)
    except ValueError as error:
        raise InputError(f"{label}: header: Set: {fields['Set']!r} is not a name") from error


def touched(text: str) -> tuple[str, ...]:
    """The files that a patch changes, adds or removes, sorted; paths are relative to the tree."""
    files: set[str] = set()
    for old, new in re.findall(r"^--- (\S+).*\n\+\+\+ (\S+)", text, re.MULTILINE):
        files |= {path.partition("/")[2] for path in (old, new) if path != "/dev/null"}
    for match in re.finditer(
        r"^(?:rename|copy) (?:from|to) (.+)$|^diff --git a/(\S+) b/(\S+)$", text, re.MULTILINE
    ):
        files |= {path for path in match.groups() if path}
    if bad := [path for path in files if path.startswith("/") or ".." in path.split("/")]:
        raise InputError(f"a patch leads out of the tree: {bad[0]}")
    return tuple(sorted(files))


def refusal(output: str, patch: Patch) -> str | None:
    """The file and hunk of a patch that do not apply, from `git apply`'s output; None when it names none."""
    match = re.search(r"error: patch failed: (.+):(\d+)", output)
    if match:
        path, line = match[1], int(match[2])
        starts = _hunks(patch, path)
        hunk = f"hunk {starts.index(line) + 1} of {len(starts)}" if line in starts else "the hunk"
        return (
            f"{patch.label}: {hunk} (line {line}) of {path} does not"
            f" {'reverse' if patch.reverse else 'apply'}"
        )
    match = re.search(
        r"error: (.+?): (No such file or directory|already exists in working directory|does not exist in"
        r" index)",
        output,
    )
    if match:
        return (
            f"{patch.label}: all of {match[1]} does not {'reverse' if patch.reverse else 'apply'}: {match[2]}"
        )
    match = re.search(r"error: (corrupt patch .*|.*unrecognized input.*|No valid patches in input.*)", output)
    return f"{patch.label}: not a patch: {match[1]}" if match else None


def _hunks(patch: Patch, path: str) -> list[int]:
    """The line numbers at which the hunks of one file begin, on the side that must match."""
    starts: list[int] = []
    current = ""
    for line in patch.text.splitlines():
        if match := re.match(r"^(?:---|\+\+\+) \S+?/(\S+)", line):
            current = match[1]
        elif (match := re.match(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@", line)) and current == path:
            starts.append(int(match[2 if patch.reverse else 1]))
    return starts
