"""SHA-256 of files, remembered for as long as a file does not change: images and kernel sources are large.

Not here: what a checksum is compared with (source, where).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from numalab import state


def sha256(path: Path) -> str:
    """A file's SHA-256 in hexadecimal; remembered by size, time of change and inode. Raises OSError."""
    about = path.stat()
    stamp = [about.st_size, about.st_mtime_ns, about.st_ino]
    memory = state.folder("cache") / "checksums.json"
    known = _read(memory)
    if known.get(str(path), [])[:-1] == stamp:
        return str(known[str(path)][-1])
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    here = {name: entry for name, entry in known.items() if Path(name).exists()}
    state.write(memory, json.dumps({**here, str(path): [*stamp, digest]}))
    return digest


def _read(memory: Path) -> dict[str, list[object]]:
    """What is remembered; empty when it is damaged, since each entry can be computed again."""
    try:
        known = json.loads(memory.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {name: entry for name, entry in known.items() if isinstance(entry, list) and len(entry) == 4}
