# SPDX-License-Identifier: GPL-2.0-only
"""Kernels, build trees, sources and containers that no file in kernels/ leads to any more, and may be
removed.

A recipe elsewhere or another checkout may still lead to them, so only a person's command removes them. Not
here: what nobody owns at all (gc).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from numalab.core import state
from numalab.core.errors import DeadlinePassed, InputError, LabError
from numalab.core.log import note
from numalab.core.process import Deadline, run
from numalab.guest import guest
from numalab.host.image import Image
from numalab.kernel import build, era, recipe, source, toolchain
from numalab.kernel.recipe import Source
from numalab.kernel.source import Tree
from numalab.model import catalog
from numalab.model.guest import GuestRecord

_ID = re.compile(r"(debian-[\d.]+-|git-|tar-)[0-9a-f]{16}")
"""The source's id at the start of the name of a source, a build tree or a configuration."""
_LAYOUT = re.compile(r"\+ layout (\d+)")
LOCK_SECONDS = 1.0


@dataclass
class Kept:
    """The names that recipes lead to."""

    kernels: set[str] = field(default_factory=set)
    builds: set[str] = field(default_factory=set)
    sources: set[str] = field(default_factory=set)
    downloads: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """Kernels whose key is not known now: everything with their name is kept."""
    beginnings: tuple[str, ...] = ()
    """Prefixes of the ids of their sources."""

    def source(self, name: str) -> bool:
        """Whether a source is kept, by its id."""
        return name in self.sources or name.startswith(self.beginnings)

    def keep(self, tree: Tree) -> None:
        """Keep a source, and what was downloaded for it."""
        self.sources.add(tree.id)
        self.downloads |= {Path(tree.tarball).name, Path(tree.tarball).parent.name}


def candidates(image: Image | None, deadline: Deadline) -> list[Path]:
    """Folders and files that may be removed, by kind and name."""
    kept = _kept(image, deadline)
    containers = {era.container(name).id(name) for name in catalog.names("kernels/containers")}
    records, unknown = guest.records()
    if unknown:
        note(f"no kernel is listed: which one guest {unknown[0]} stands on cannot be read")
    booted = _booted(records)
    unused = [
        path
        for path in _there("kernels")
        if not (
            unknown
            or path.name in kept.kernels | booted
            or path.name.rpartition("-")[0] in kept.names | booted
        )
    ]
    for kind in ("builds", "configs"):
        unused += [
            path
            for path in _there(kind)
            if not (
                path.name in kept.builds or (_source(path) not in kept.sources and kept.source(_source(path)))
            )
        ]
    unused += [path for path in _there("sources") if not kept.source(_source(path))]
    unused += [
        path
        for path in _there("downloads")
        if not (path.name in kept.downloads or path.name.startswith(kept.beginnings))
    ]
    unused += [path for path in _there("containers") if path.name.removesuffix(".lock") not in containers]
    return unused


def size(path: Path, deadline: Deadline) -> int:
    """Bytes on disk."""
    return int(run(["du", "-s", "-B1", path], deadline=deadline).stdout.split()[0])


def remove(path: Path) -> bool:
    """Remove a candidate; False, with a warning, when a build is using it."""
    try:
        with contextlib.ExitStack() as held:
            for suffix in _suffixes():
                held.enter_context(
                    state.lock(f"kernel-{_source(path)}{suffix}", Deadline.after(LOCK_SECONDS))
                )
            if path.suffix == ".lock" and path.with_suffix("").exists():
                return False  # it goes with its folder, which is in use
            if not path.is_dir():
                path.unlink(missing_ok=True)
                return True
            if state.discard(path, partial(_needed, path)):
                return True
    except DeadlinePassed:
        pass
    note(f"{path} is in use")
    return False


def _suffixes() -> list[str]:
    """What the locks of builders end with; several may work from one source at the same time."""
    try:
        return [toolchain.suffix(one) for one in toolchain.builders()]
    except InputError:
        return [""]


def _booted(records: Iterable[GuestRecord]) -> set[str]:
    """Folders of the kernels that guests run; for a guest started by GRUB, its kernel's name."""
    return {
        Path(record.spec.boot.kernel).parent.name if record.spec.boot.kernel else record.spec.boot.name
        for record in records
    }


def _needed(path: Path) -> bool:
    """Whether a guest may need this kernel. A guest whose record cannot be read may need any."""
    if path.parent.name != "kernels":
        return False
    records, unknown = guest.records()
    return bool(unknown) or bool({path.name, path.name.rpartition("-")[0]} & _booted(records))


def _there(kind: str) -> Iterator[Path]:
    return (path for path in sorted(state.folder(kind).iterdir()) if not path.name.startswith("."))


def _source(path: Path) -> str:
    """The id of the source that a path is made from, or the path's own name."""
    match = _ID.match(path.name)
    return match[0] if match else path.name


def _kept(image: Image | None, deadline: Deadline) -> Kept:
    """What the files in kernels/ lead to."""
    kept = Kept()
    for name in catalog.names("kernels"):
        kernel = recipe.load(name)
        if not kernel.recipe.built:
            continue
        plan = None
        # Without its git tree or the image there is no key: everything that may be the kernel's is kept.
        with contextlib.suppress(LabError):
            plan = build.make_plan(kernel, image if kernel.needs_image else None, deadline, fetch=False)
        if plan is None:
            kept.names.add(name)
            kept.beginnings += (_beginning(kernel.recipe.source),)
            with contextlib.suppress(LabError):  # testing has moved on: its package is not to be had again
                if tree := source.tree(kernel, deadline, fetch=False):
                    kept.keep(tree)
            continue
        kept.kernels.add(f"{plan.name}-{plan.key}")
        for number in _layouts(plan.name):
            laid_out = kernel.model_copy(update={"layout": number})
            with contextlib.suppress(LabError):
                other = build.make_plan(
                    laid_out, image if kernel.needs_image else None, deadline, fetch=False
                )
                if other:
                    kept.kernels.add(f"{other.name}-{other.key}")
        kept.builds.add(plan.build)
        kept.keep(plan.tree)
    return kept


def _layouts(name: str) -> set[int]:
    """The numbers of a kernel's builds that differ in layout only and are there (run --builds)."""
    numbers = set()
    for place in state.folder("kernels").glob(f"{name}-*"):
        with contextlib.suppress(LabError):
            built = build.at(place)
            matches = (_LAYOUT.fullmatch(label) for label in built.patches) if built else ()
            numbers |= {int(match[1]) for match in matches if match}
    return numbers


def _beginning(source: Source) -> str:
    """The prefix of a source's id, as far as the recipe determines it."""
    if source.debian_source:
        return f"debian-{source.debian_source}-"
    if source.tarball:
        return f"tar-{(source.tarball.sha256 or '')[:16]}"
    return f"git-{(source.git.commit or '')[:16] if source.git else ''}"
