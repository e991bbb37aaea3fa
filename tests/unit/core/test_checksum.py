# SPDX-License-Identifier: GPL-2.0-only
"""Checksums are cached until a file changes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from numalab.core import checksum


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def test_remembered(lab_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    assert checksum.sha256(path) == digest(b"one")
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert checksum.sha256(path) == digest(b"one")


def test_a_change_whose_time_was_set_back(lab_state: Path, tmp_path: Path) -> None:
    """As by cp -p, or rsync --inplace -t: same size, inode and mtime."""
    path = tmp_path / "file"
    path.write_bytes(b"one")
    about = path.stat()
    assert checksum.sha256(path) == digest(b"one")
    path.write_bytes(b"two")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert checksum.sha256(path) == digest(b"two")


@pytest.mark.parametrize("number", [None, 1, 99])
def test_a_memory_of_another_format_is_made_anew(number: int | None, lab_state: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    checksum.sha256(path)
    memory = lab_state / "cache/checksums.json"
    known = json.loads(memory.read_text())
    entries = {str(path): [*known["files"][str(path)][:-1], digest(b"of another meaning")]}
    memory.write_text(json.dumps(entries if number is None else {"format": number, "files": entries}))
    assert checksum.sha256(path) == digest(b"one")
    assert json.loads(memory.read_text()) == known


def test_a_file_that_cannot_be_looked_at_any_more(
    lab_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a home directory that was closed meanwhile, say: other files' checksums are made all the same."""
    paths = [tmp_path / "closed", tmp_path / "file"]
    for path in paths:
        path.write_bytes(path.name.encode())
    checksum.sha256(paths[0])
    stat = os.stat

    def closed(path: Any, **words: Any) -> Any:
        if str(path) == str(paths[0]):
            raise PermissionError(13, "Permission denied")
        return stat(path, **words)

    monkeypatch.setattr(os, "stat", closed)
    assert checksum.sha256(paths[1]) == digest(b"file")
