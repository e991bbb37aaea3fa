# SPDX-License-Identifier: GPL-2.0-only
"""What is copied from a run's folder into a report: the whole folder as an archive, and its readable files as
plain text.

The archive is the run as the lab reads it (`lab.py show`). The texts end in .txt and .json, whatever a
workload printed: a browser would show a file without an extension as the HTML that it looks like. Links in a
run's folder are not followed, since it may come from another machine.
"""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

from numalab.core.errors import InputError
from numalab.model.run import Run
from numalab.model.units import show_size
from numalab.model.values import Value
from numalab.report.section_charts import Link
from numalab.runs import record

LARGEST = 16 << 20
"""The largest file that is copied; a larger one (a perf.data) is only named in the report."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


class Kept(Value):
    """A report's files of a run, and the names of files that were too large."""

    links: tuple[Link, ...]
    left: tuple[str, ...]


def copy(run: Run, source: Path, target: Path) -> Kept:
    """Copy a run's folder to TARGET/runs/ID. Raises OSError, or InputError for an id that is no name."""
    if not _ID.fullmatch(run.id):
        raise InputError(f"{source}: run.json: id: {run.id!r} cannot name a folder")
    place = target / "runs" / run.id
    place.mkdir(parents=True)
    files = sorted(path for path in source.rglob("*") if path.is_file() and not _through_link(path, source))
    small = [path for path in files if path.stat().st_size <= LARGEST]
    archive = place / f"{run.id}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for path in small:
            tar.add(path, arcname=f"{run.id}/{path.relative_to(source)}", recursive=False, filter=_nobodys)
    links = [_link("everything", archive, target)]
    for name, path in _readable(run, source).items():
        if path in small:
            copied = place / name
            copied.write_bytes(path.read_bytes())
            links.append(_link(name, copied, target))
    return Kept(
        links=tuple(links),
        left=tuple(f"{path} ({show_size(path.stat().st_size)})" for path in files if path not in small),
    )


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the owner from an archive member: reports are shown to others."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _through_link(path: Path, root: Path) -> bool:
    return any(
        part.is_symlink() for part in (path, *path.parents) if part.is_relative_to(root) and part != root
    )


def _readable(run: Run, source: Path) -> dict[str, Path]:
    """Name in the report -> file of the run, in the order of interest, without empty files."""
    files = {
        "run.json": source / "run.json",
        "console.txt": source / "console.log",
        "topology.txt": source / "topology.txt",
    }
    for index, result in enumerate(run.phases):
        for stream in ("stdout", "stderr"):
            files[f"{index:02}-{result.phase.name}.{stream}.txt"] = (
                record.phase_folder(source, index, result.phase.name) / stream
            )
    return {name: path for name, path in files.items() if path.is_file() and path.stat().st_size}


def _link(text: str, path: Path, target: Path) -> Link:
    size = path.stat().st_size
    return Link(
        text=text,
        href=path.relative_to(target).as_posix(),
        size=f"{size} B" if size < 1024 else f"{size / 1024:.0f} KiB",
    )
