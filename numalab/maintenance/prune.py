# SPDX-License-Identifier: GPL-2.0-only
"""Kernels, build trees, sources and containers that no file in kernels/ leads to any more: what may go.

A recipe elsewhere or another checkout may lead to them, so nothing is removed but on a person's word.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from numalab.core import state
from numalab.core.errors import DeadlinePassed, LabError
from numalab.core.log import note
from numalab.core.process import Deadline, run
from numalab.guest import guest
from numalab.host.image import Image
from numalab.kernel import build, era, recipe
from numalab.kernel.recipe import DISTRIBUTION, KernelRecipe
from numalab.model import catalog
from numalab.model.guest import GuestRecord

_ID = re.compile(r"(debian-[\d.]+-|git-|tar-)[0-9a-f]{16}")
"""The source's id at the beginning of the name of a source, a build tree or a configuration."""
LOCK_SECONDS = 1.0


@dataclass
class Kept:
    """Names that recipes lead to."""

    kernels: set[str] = field(default_factory=set)
    builds: set[str] = field(default_factory=set)
    sources: set[str] = field(default_factory=set)
    downloads: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """Names of kernels whose key is not known just now: all that carry the name are kept."""
    beginnings: tuple[str, ...] = ()
    """Beginnings of the ids of their sources."""

    def source(self, name: str) -> bool:
        """Whether a source, by its id, is kept."""
        return name in self.sources or name.startswith(self.beginnings)


def candidates(image: Image | None, deadline: Deadline) -> list[Path]:
    """What may go: whole folders and files, by kind and name."""
    kept = _kept(image, deadline)
    containers = {era.container(name).id(name) for name in catalog.names("kernels/containers")}
    records, unknown = guest.records()
    if unknown:
        note(f"no kernel is listed: which one guest {unknown[0]} stands on cannot be read")
    booted = _booted(records)
    found = [
        path
        for path in _there("kernels")
        if not (
            unknown
            or path.name in kept.kernels | booted
            or path.name.rpartition("-")[0] in kept.names | booted
        )
    ]
    for kind in ("builds", "configs"):
        found += [
            path
            for path in _there(kind)
            if not (
                path.name in kept.builds or (_source(path) not in kept.sources and kept.source(_source(path)))
            )
        ]
    found += [path for path in _there("sources") if not kept.source(_source(path))]
    found += [
        path
        for path in _there("downloads")
        if not (path.name in kept.downloads or path.name.startswith(kept.beginnings))
    ]
    found += [path for path in _there("containers") if path.name.removesuffix(".lock") not in containers]
    return found


def size(path: Path, deadline: Deadline) -> int:
    """Bytes on disk."""
    return int(run(["du", "-s", "-B1", path], deadline=deadline).stdout.split()[0])


def remove(path: Path) -> bool:
    """Remove one of the candidates; False, with a word to the user, when somebody builds from it just now."""
    try:
        with state.lock(f"kernel-{_source(path)}", Deadline.after(LOCK_SECONDS)):
            if not path.is_dir():
                path.unlink(missing_ok=True)
                return True
            if state.discard(path, partial(_needed, path)):
                return True
    except DeadlinePassed:
        pass
    note(f"{path} is in use")
    return False


def _booted(records: Iterable[GuestRecord]) -> set[str]:
    """Folders of the kernels that guests run; of a guest that GRUB started, the name of its kernel."""
    return {
        Path(record.spec.boot.kernel).parent.name if record.spec.boot.kernel else record.spec.boot.name
        for record in records
    }


def _needed(path: Path) -> bool:
    """Whether a candidate is a kernel that a guest may stand on: one whose record cannot be read may stand on
    any."""
    if path.parent.name != "kernels":
        return False
    records, unknown = guest.records()
    return bool(unknown) or bool({path.name, path.name.rpartition("-")[0]} & _booted(records))


def _there(kind: str) -> Iterator[Path]:
    return (path for path in sorted(state.folder(kind).iterdir()) if not path.name.startswith("."))


def _source(path: Path) -> str:
    """The id of the source that a path belongs to, or its own name."""
    match = _ID.match(path.name)
    return match[0] if match else path.name


def _kept(image: Image | None, deadline: Deadline) -> Kept:
    """What the files in kernels/ lead to."""
    kept = Kept()
    for name in catalog.names("kernels"):
        what = recipe.recipe(name)
        if not what.built:
            continue
        asked = None
        with contextlib.suppress(
            LabError
        ):  # no git tree given, no image built: all that may be its own is kept
            asked = build.make_plan(
                name, image if DISTRIBUTION in what.config else None, deadline, fetch=False
            )
        if asked is None:
            kept.names.add(name)
            kept.beginnings += (_beginning(what),)
            continue
        kept.kernels.add(f"{asked.name}-{asked.key}")
        kept.builds.add(asked.build)
        kept.sources.add(asked.tree.id)
        kept.downloads |= {Path(asked.tree.tarball).name, Path(asked.tree.tarball).parent.name}
    return kept


def _beginning(what: KernelRecipe) -> str:
    """With what the id of a recipe's source begins, as far as the recipe tells."""
    source = what.source
    if source.debian_source:
        return f"debian-{source.debian_source}-"
    if source.tarball:
        return f"tar-{(source.tarball.sha256 or '')[:16]}"
    return f"git-{(source.git.commit or '')[:16] if source.git else ''}"
