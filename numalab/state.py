"""The state directory: images, guests, runs, caches; and the locks on them.

    images/NAME/HASH/     finished images      guests/NAME/   running guests: overlays, console, XML
    runs/ID/              run records          cache/         probes     ssh/   the lab's key pair
    kernels/NAME-KEY/     finished kernels     sources/ID/    kernel trees     builds/ID/  what make left
    downloads/, git/      kernel sources       configs/ID     checked .config of a build tree
    containers/ID/        tool chains of another time    jobs/      what a builder works on just now

What is being made stands in a folder `.making-PID-…` beside its place and is renamed when whole, so a
half-made thing is never used, and `gc` knows by the PID whether its maker lives.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from numalab.errors import HostError
from numalab.proc import Deadline, need, run


def directory() -> Path:
    """LAB_STATE, or numalab under XDG_STATE_HOME; made (0700) when absent."""
    text = os.environ.get("LAB_STATE") or f"{os.environ.get('XDG_STATE_HOME') or '~/.local/state'}/numalab"
    path = Path(text).expanduser().absolute()
    if odd := re.search(r"[\s%\"'\\]", str(path)):
        raise HostError(f"state directory {str(path)!r}: has {odd[0]!r} in it, which ssh's options cannot carry: set LAB_STATE to another")
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise HostError(f"state directory {path}: {error.strerror}: set LAB_STATE to one that can be written") from error
    return path


def identity() -> str:
    """Which lab this is, among all that may share a hypervisor: this machine and this state directory."""
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return hashlib.sha256(f"{machine or platform.node()} {directory()}".encode()).hexdigest()[:16]


def folder(*parts: str) -> Path:
    """A folder in the state directory, made when absent."""
    path = directory().joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


@contextmanager
def lock(name: str, deadline: Deadline) -> Iterator[None]:
    """Held by one process at a time; the kernel lets go of it when its holder dies, however that was."""
    with (folder("locks") / name).open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                deadline.check(f"waiting for another lab.py that holds {handle.name}")
                deadline.pause(0.2)
        yield


def write(path: Path, text: str) -> None:
    """A file, whole or not at all, after a power cut too; threads and processes that write it at once do not meet."""
    fresh = path.with_name(f".making-{os.getpid()}-{threading.get_ident()}-{path.name}")
    try:
        fresh.write_text(text)
        sync(fresh)
        fresh.replace(path)
        sync(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def sync(*paths: Path) -> None:
    """Wait until files, or the entries of folders, are on the disk.

    A rename may reach the disk before what was written: after a power cut the file is there then, and empty.
    """
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def everything(place: Path) -> list[Path]:
    """The files and folders of a folder, itself last: what `sync` can wait for."""
    return [path for path in place.rglob("*") if not path.is_symlink() and (path.is_dir() or path.is_file())] + [place]


@contextmanager
def making(place: Path) -> Iterator[Path]:
    """A scratch folder that becomes `place` when the block ends well, and vanishes when it does not."""
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = place.parent / f".making-{os.getpid()}-{place.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    try:
        yield scratch
        sync(*everything(scratch))
        if place.exists():
            shutil.rmtree(place)
        scratch.rename(place)
        sync(place.parent)
    except OSError as error:
        raise HostError(f"{place}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def abandoned() -> list[Path]:
    """Scratch folders and files whose maker is gone."""
    # Not **: kernel trees lie deeper, a hundred thousand files of them.
    places = (path for pattern in ("*/.making-*", "*/*/.making-*") for path in directory().glob(pattern))
    found = ((path, re.match(r"\.making-(\d+)-", path.name)) for path in places)
    return [path for path, match in found if match and not alive(int(match[1]))]


def alive(pid: int) -> bool:
    """Whether a process with this id exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def started(pid: int) -> int:
    """When a process began, in clock ticks since boot: with its id, who it is. 0 when there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def ssh_key(deadline: Deadline) -> Path:
    """The lab's private key; made once. The public half stands beside it with .pub."""
    path = folder("ssh") / "id_ed25519"
    with lock("ssh-key", deadline):
        if not path.exists():
            run([need("ssh-keygen", "openssh-client"), "-q", "-t", "ed25519", "-N", "", "-C", "numalab", "-f", path], deadline=deadline)
    return path


def sockets() -> Path:
    """A short, private folder for sockets: a socket's path ends at 107 characters."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(runtime if Path(runtime).is_dir() and runtime else tempfile.gettempdir()) / f"numalab-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.stat().st_uid != os.getuid():
        raise HostError(f"{base}: belongs to somebody else: set XDG_RUNTIME_DIR to a folder of your own")
    return base


def stamp() -> str:
    """UTC, sortable, fit for a file name: 20261121T121005."""
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime())
