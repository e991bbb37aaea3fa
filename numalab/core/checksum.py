# SPDX-License-Identifier: GPL-2.0-only
"""SHA-256 of texts, and of files, remembered for as long as a file does not change: images and kernel sources
are large.

Not here: what a checksum is compared with (source, where).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from numalab.core import state

FORMAT = 2
"""The format of checksums.json; 1 had no number in it."""


def of_texts(*texts: str) -> str:
    """The SHA-256 of texts in this order, in hexadecimal. The keys of kernels and the names of cached files
    begin with it."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def sha256(path: Path) -> str:
    """A file's SHA-256 in hexadecimal; remembered by size, inode and both times. Raises OSError."""
    about = path.stat()
    # cp -p and rsync -t set the time of the content; that of the inode nobody sets.
    stamp = [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]
    memory = state.folder("cache") / "checksums.json"
    known = _read(memory)
    if known.get(str(path), [])[:-1] == stamp:
        return str(known[str(path)][-1])
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    here = {name: entry for name, entry in known.items() if Path(name).exists()}
    state.write(memory, json.dumps({"format": FORMAT, "files": {**here, str(path): [*stamp, digest]}}))
    return digest


def _read(memory: Path) -> dict[str, list[object]]:
    """What is remembered; empty when it is damaged or of another format, since each entry can be computed
    again."""
    try:
        text = json.loads(memory.read_text())
    except (OSError, ValueError):
        return {}
    known = text.get("files") if isinstance(text, dict) and text.get("format") == FORMAT else None
    if not isinstance(known, dict):
        return {}
    return {name: entry for name, entry in known.items() if isinstance(entry, list) and len(entry) == 5}
