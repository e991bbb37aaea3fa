# SPDX-License-Identifier: GPL-2.0-only
"""SHA-256 of texts and of files. A file's is cached until the file changes, since images and kernel sources
are large.

Not here: what a checksum is compared with (kernel.source, host.remote).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from numalab.core import state

FORMAT = 2
"""The format of checksums.json; format 1 had no number in it."""


def of_texts(*texts: str) -> str:
    """The SHA-256 of texts in this order, in hexadecimal. Kernel keys and cache file names begin with it."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def sha256(path: Path) -> str:
    """A file's SHA-256 in hexadecimal, cached by size, inode, mtime and ctime. Raises OSError."""
    about = path.stat()
    # cp -p and rsync -t set the mtime; nobody sets the ctime.
    stamp = [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]
    memory = state.folder("cache") / "checksums.json"
    known = _read(memory)
    if known.get(str(path), [])[:-1] == stamp:
        return str(known[str(path)][-1])
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    here = {name: entry for name, entry in known.items() if os.path.exists(name)}  # noqa: PTH110 - False where Path.exists() raises
    state.write(memory, json.dumps({"format": FORMAT, "files": {**here, str(path): [*stamp, digest]}}))
    return digest


def _read(memory: Path) -> dict[str, list[object]]:
    """The cached checksums; empty when the file is damaged or of another format."""
    try:
        text = json.loads(memory.read_text())
    except (OSError, ValueError):
        return {}
    known = text.get("files") if isinstance(text, dict) and text.get("format") == FORMAT else None
    if not isinstance(known, dict):
        return {}
    return {name: entry for name, entry in known.items() if isinstance(entry, list) and len(entry) == 5}
