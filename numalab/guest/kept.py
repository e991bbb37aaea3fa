# SPDX-License-Identifier: GPL-2.0-only
"""What guests begin on and the lab keeps by key, a folder each: ready states (ready) and prepared disks
(prepared). Here is how both age, and how a guest's record keeps them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from numalab.core import state
from numalab.core.errors import LabError
from numalab.core.process import Deadline
from numalab.guest import guest as guests
from numalab.host import image
from numalab.model.guest import DiskFile, GuestRecord

UNUSED_SECONDS = 14 * state.DAY


def places(kind: str) -> list[Path]:
    """All that are kept in this folder of the state directory."""
    return sorted(path for path in state.folder(kind).iterdir() if not path.name.startswith("."))


def needed(uses: Callable[[GuestRecord], bool]) -> bool:
    """Whether a guest uses it. A guest whose record cannot be read may use any."""
    records, unknown = guests.records()
    return bool(unknown) or any(uses(record) for record in records)


def disks(recorded: Iterable[DiskFile], place: Path) -> tuple[DiskFile, ...]:
    """The disks of a record with their paths in this folder. OSError for one that is not there."""
    here = tuple(disk.model_copy(update={"path": str(place / disk.path)}) for disk in recorded)
    for disk in here:
        Path(disk.path).stat()
    return here


def unused(record: Path) -> str:
    """Says that nobody used it for long, by the age of its record; '' where somebody has. Raises OSError."""
    if time.time() - record.stat().st_mtime > UNUSED_SECONDS:
        return f"not used for {UNUSED_SECONDS / state.DAY:.0f} days"
    return ""


def outdated(name: str, image_id: str, deadline: Deadline) -> str:
    """Says that the image has a newer build; '' where it has none, or where that cannot be known."""
    with contextlib.suppress(LabError):
        current = image.current(name, deadline)
        if current and image_id not in current:
            return "made of an image that is no longer current"
    return ""
