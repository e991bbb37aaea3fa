"""`gc`: what nobody owns any more of guests, half-made files, images and the pool."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from numalab import guest as guests
from numalab import image, state, storage
from numalab.errors import LabError
from numalab.host import Host
from numalab.proc import Deadline


def collect(host: Host, deadline: Deadline) -> list[str]:
    """Remove what nobody owns any more; returns one line for each thing removed. Touches nothing else."""
    removed = []
    running = host.guests()
    for name in guests.names():
        place = state.folder("guests") / name
        if _maker_lives(place):
            continue
        try:
            record = guests.read(name)
        except LabError:
            record = None
        if record is not None and record.uri != host.uri:
            continue
        if record is not None and record.ready and name in running:
            continue
        if running.get(name, {}).get("directory") == str(place):
            host.stop(name, deadline)
            del running[name]
        guests.remove(place, host, deadline)
        removed.append(f"guest {name}: " + ("it was lost" if record and record.ready else "its up did not end"))
    for name, mark in running.items():
        if mark.get("lab") == state.identity() and not Path(mark["directory"]).exists():
            host.stop(name, deadline)
            removed.append(f"domain of {name}: its folder is gone")
    for path in state.abandoned():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed.append(f"half-made {path.name.split('-', 2)[2]}")
    removed += [f"image {path.parent.name}/{path.name}: no longer current, and no guest uses it" for path in _stale_images(deadline)]
    if storage.release_pool(deadline):
        removed.append("storage pool: empty")
    return removed


def _maker_lives(place: Path) -> bool:
    """Whether the `up` that made this folder still runs."""
    try:
        pid, began = (int(word) for word in (place / "maker").read_text().split())
    except (OSError, ValueError):
        return False
    ready = (place / "guest.json").exists() and '"ready": true' in (place / "guest.json").read_text()
    return not ready and state.alive(pid) and state.started(pid) == began


def _stale_images(deadline: Deadline) -> list[Path]:
    """Remove (and return) images that no inputs lead to and no guest stands on."""
    used = set()
    for name in guests.names():
        with contextlib.suppress(LabError):
            used.add(guests.read(name).image_id)
    gone = []
    for folder in state.folder("images").iterdir():
        with contextlib.suppress(LabError):
            current = {built.id for built in image.valid(folder.name, deadline)}
            for place in folder.iterdir():
                if current and place.name not in current | used and not place.name.startswith("."):
                    shutil.rmtree(place, ignore_errors=True)
                    gone.append(place)
    return gone
