# SPDX-License-Identifier: GPL-2.0-only
"""Prepared disks as they are kept: data disks with what a workload's first phases left on them, for guests to
begin on.

Not here: making them, and what they are made of (measure.preparation).
"""

from __future__ import annotations

import json
from pathlib import Path

from numalab.core.errors import HostError
from numalab.core.process import Deadline
from numalab.guest import kept
from numalab.model.guest import PreparedDisks
from numalab.model.values import first_line, jsonable

RECORD = "disks.json"


def write(disks: PreparedDisks, folder: Path) -> None:
    """Write the record of disks that are in the folder."""
    (folder / RECORD).write_text(json.dumps(jsonable(disks), indent=1))


def read(place: Path) -> PreparedDisks:
    """The disks in a folder. HostError when they are not whole."""
    try:
        known = PreparedDisks.from_json((place / RECORD).read_text())
        disks = kept.disks(known.disks, place)
    except (OSError, ValueError) as error:
        raise HostError(
            f"{place}: these prepared disks are damaged, or a newer lab's: remove them, or use that lab"
            f" ({first_line(error)})"
        ) from error
    return known.model_copy(update={"directory": str(place), "disks": disks})


def touch(place: Path) -> None:
    """Note that they are used now: gc goes by that."""
    (place / RECORD).touch()


def places() -> list[Path]:
    """The folders of all prepared disks."""
    return kept.places("disks")


def needed(key: str) -> bool:
    """Whether a guest's disks stand on these."""
    return kept.needed(lambda record: record.prepared is not None and record.prepared.key == key)


def stale(place: Path, deadline: Deadline) -> str:
    """Why no guest will begin on these disks any more; '' when one may. Those of a newer lab, and those whose
    image's newest build cannot be told, go by their age alone."""
    try:
        if why := kept.unused(place / RECORD):
            return why
        known = read(place)
    except (HostError, OSError) as error:
        return "" if isinstance(error.__cause__, ValueError) else "not whole"
    return kept.outdated(known.image, known.image_id, deadline)
