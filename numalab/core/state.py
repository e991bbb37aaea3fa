# SPDX-License-Identifier: GPL-2.0-only
"""The state directory: images, guests, runs, caches; and the locks on them.

    images/NAME/HASH/     finished images      guests/NAME/   running guests: overlays, console, XML
    runs/ID/              run records          cache/         probes     ssh/   the lab's key pair
    kernels/NAME-KEY/     finished kernels     sources/ID/    kernel trees     builds/ID/  what make left
    downloads/, git/      kernel sources       configs/ID     checked .config of a build tree
    containers/ID/        tool chains of old releases    jobs/      what a builder works on now
    programs/IMAGE-HASH   what workloads compiled    ready/KEY/  saved states of booted guests
    disks/KEY/            data disks that a workload's first phases have prepared
    tools/                programs that the host lacks: packer, java
    emulator/             QEMU for nodes without memory, its plugin
    bases/ID/             Debian systems that images begin from    pushed/  files that another lab sent
    calibration/          scatter of cases' boots        inventory/    Ansible's, of the guests
    pool/                 a Dask pool that is up         logs/, locks/    lab-id: the lab's identity
    pool-MACHINE(.xfs)    an XFS on a loop device, for --storage pool

What is being made stands in a folder `.making-PROCESS-…` beside its place and is renamed when it is complete.
So a half-made thing is never used, and `gc` sees by the process whether its maker still runs. Several
machines (over a network file system) and several checkouts may share a state directory.

Not here: the format of what is kept in it, which belongs to the module that writes it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import platform
import re
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from numalab.core.errors import HostError
from numalab.core.log import tell
from numalab.core.process import Deadline, need, run

SSH_KEY = "id_ed25519"
"""The private key of guests: the lab's, and in the folder of an image that another lab made (pool.travel)."""


def directory() -> Path:
    """LAB_STATE, or numalab under XDG_STATE_HOME; created (0700) when absent."""
    text = os.environ.get("LAB_STATE") or f"{os.environ.get('XDG_STATE_HOME') or '~/.local/state'}/numalab"
    path = Path(text).expanduser().absolute()
    if odd := re.search(r"[\s%\"'\\&;|<>()$`*?\[\]{}#,]", str(path)):
        raise HostError(
            f"state directory {str(path)!r}: has {odd[0]!r} in it, which not all commands can carry: set"
            " LAB_STATE to another"
        )
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise HostError(
            f"state directory {path}: {error.strerror}: set LAB_STATE to one that can be written"
        ) from error
    return path


def identity() -> str:
    """The id of this lab among all that may share a hypervisor: 16 hexadecimal digits.

    It depends on a random file in the state directory, so an empty folder in its place (a file system that is
    not mounted) is another lab and owns nothing. It depends on the path too, so a copy is another lab.
    """
    path = folder() / "lab-id"
    if not path.exists():
        with lock("lab-id", Deadline.after(60)):
            if not path.exists():
                write(path, uuid.uuid4().hex)
    return hashlib.sha256(f"{path.read_text()} {directory()}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Process:
    """Identifies a process on any machine. As text, in files and their names: MACHINE.BOOT.PID.STARTED."""

    machine: str
    """The machine and its PID namespace, 6 hexadecimal digits."""
    boot: str
    """The machine's boot, 6 hexadecimal digits."""
    pid: int
    started: int
    """When it was started, in clock ticks since boot."""

    def __str__(self) -> str:
        return f"{self.machine}.{self.boot}.{self.pid}.{self.started}"

    @classmethod
    def parse(cls, text: str) -> Process | None:
        """The process that a text identifies; None for any other text."""
        match = re.fullmatch(r"([0-9a-f]{6})\.([0-9a-f]{6})\.(\d+)\.(\d+)", text)
        return cls(match[1], match[2], int(match[3]), int(match[4])) if match else None

    @property
    def elsewhere(self) -> bool:
        """Whether it belongs to another machine, so that we cannot see whether it runs."""
        return self.machine != this_machine()

    @property
    def lives(self) -> bool:
        """Whether it may still run; always true for a process of another machine."""
        return self.elsewhere or (
            self.boot == _boot() and alive(self.pid) and started(self.pid) == self.started
        )


def this_process() -> Process:
    """The calling process."""
    return Process(this_machine(), _boot(), os.getpid(), started(os.getpid()))


def this_machine() -> str:
    """The machine and PID namespace of this process, 6 hexadecimal digits."""
    try:
        name = Path("/etc/machine-id").read_text().strip()
    except OSError:
        name = ""
    return _digest(f"{name} {platform.node()} {Path('/proc/self/ns/pid').readlink()}")


def _boot() -> str:
    return _digest(Path("/proc/sys/kernel/random/boot_id").read_text())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def folder(*parts: str) -> Path:
    """A folder in the state directory; it and its parents are created (0700) when absent."""
    path = directory()
    for part in parts:
        path /= part
        path.mkdir(exist_ok=True, mode=0o700)
    return path


_held = threading.local()
"""`paths`: the locks that this thread holds."""


@contextmanager
def lock(name: str, deadline: Deadline) -> Iterator[None]:
    """A lock held by one thread at a time, reentrant. The kernel releases it when its holder dies."""
    path = folder("locks") / name
    paths: set[Path] = _held.__dict__.setdefault("paths", set())
    if path in paths:
        yield
        return
    with path.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                deadline.check(f"waiting for another lab.py that holds {handle.name}")
                deadline.pause(0.2)
        paths.add(path)
        try:
            yield
        finally:
            paths.discard(path)


@contextmanager
def machine_lock(name: str, deadline: Deadline) -> Iterator[None]:
    """A lock held by one thread at a time on this machine, across users and state directories."""
    with socket.socket(socket.AF_UNIX) as handle:
        while not _bound(handle, name):
            deadline.check(f"waiting for another lab.py on this machine that holds {name}")
            deadline.pause(0.2)
        yield


@contextmanager
def machine_share(name: str, total: int, wanted: int, deadline: Deadline) -> Iterator[None]:
    """Hold `wanted` of the `total` equal parts of something that this machine has, as of its CPUs.

    Across users and state directories, as machine_lock. At least one part is held, at most all.
    """
    with ExitStack() as held:
        # One at a time collects its parts: two that wait for each other's would wait forever.
        with machine_lock(f"{name}-queue", deadline):
            for part in _free_parts(name, total, deadline):
                held.enter_context(part)
                wanted -= 1
                if wanted <= 0:
                    break
        yield


def _free_parts(name: str, total: int, deadline: Deadline) -> Iterator[socket.socket]:
    """The parts, each as soon as nobody holds it."""
    left, waited = list(range(total)), False
    while left:
        for number in list(left):
            handle = socket.socket(socket.AF_UNIX)
            if _bound(handle, f"{name}-{number}"):
                left.remove(number)
                yield handle
            else:
                handle.close()
        if not waited:
            tell(f"waiting for {name}: others use them")
            waited = True
        deadline.check(f"waiting for {name} that others use")
        deadline.pause(0.2)


def _bound(handle: socket.socket, name: str) -> bool:
    """Bind an abstract socket (unix(7)): no file, no owner, nothing to clean up. False if taken."""
    try:
        handle.bind(f"\0numalab-{name}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


@contextmanager
def using(*places: Path) -> Iterator[None]:
    """Keep `discard` from removing these folders during the block. HostError when one of them is gone.

    The lock ends with the process, after a kill -9 too.
    """
    with ExitStack() as stack:
        for place in places:
            fcntl.flock(stack.enter_context(_using_file(place).open("a")), fcntl.LOCK_SH)
            if not place.exists():
                raise HostError(f"{place}: another lab.py has removed it: try again")
        yield


def discard(place: Path, needed: Callable[[], bool] = lambda: False) -> bool:
    """Remove a finished folder unless somebody is `using` it or `needed` returns true; returns whether it was
    removed.

    `needed` is called when nobody can start to use the folder any more: its last user may just have recorded
    that it needs the folder.
    """
    gone = scratch(place)
    with _using_file(place).open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if needed():
                return False
            place.rename(gone)
        except OSError:  # in use, or gone
            return False
    if gone.is_symlink():
        gone.unlink()
    else:
        shutil.rmtree(gone, ignore_errors=True)
    return True


def _using_file(place: Path) -> Path:
    """The file that is locked for a folder: NFS does not lock folders across machines."""
    return folder("locks") / f"using-{place.parent.name}-{place.name}"


def scratch(place: Path) -> Path:
    """The name of `place` while it is made: beside it, unique to this thread, recognized by `abandoned`."""
    return place.with_name(f".making-{this_process()}-{threading.get_native_id()}-{place.name}")


def write(path: Path, text: str) -> None:
    """Write a file (0600) completely or not at all, even across a power cut, with any number of writers."""
    fresh = scratch(path)
    try:
        fresh.touch(mode=0o600)
        fresh.write_text(text)
        sync(fresh)
        fresh.replace(path)
        sync(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def sync(*paths: Path) -> None:
    """Wait until files, or the entries of folders, are on the disk.

    A rename may reach the disk before the data: after a power cut the file would exist and be empty.
    """
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def everything(place: Path) -> list[Path]:
    """All files and folders below a folder, the folder itself last: what `sync` has to wait for."""
    return [
        path for path in place.rglob("*") if not path.is_symlink() and (path.is_dir() or path.is_file())
    ] + [place]


@contextmanager
def making(place: Path) -> Iterator[Path]:
    """A scratch folder that is renamed to `place` when the block succeeds, and removed when it raises."""
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = scratch(place)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    try:
        yield fresh
        sync(*everything(fresh))
        if place.exists():
            shutil.rmtree(place)
        fresh.rename(place)
        sync(place.parent)
    except OSError as error:
        raise HostError(f"{place}: {error}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def temporary() -> tempfile.TemporaryDirectory[str]:
    """A folder (0700) that is removed with its block, or after a kill -9 by gc."""
    place = scratch(folder("cache") / "tmp")
    return tempfile.TemporaryDirectory(prefix=f"{place.name}-", dir=place.parent, ignore_cleanup_errors=True)


@contextmanager
def short(place: Path) -> Iterator[Path]:
    """A link to a folder for the block, short enough for programs that make sockets in the folder."""
    link = sockets() / os.urandom(4).hex()
    link.symlink_to(place)
    try:
        yield link
    finally:
        link.unlink(missing_ok=True)


COMING = ".coming-"
"""How the name of what arrives from another machine begins, beside its place; it outlives its connection."""


def abandoned() -> list[Path]:
    """Scratch folders and files whose maker is gone, and what was to arrive and has not changed for a day."""
    # Not **: kernel trees are below, with a hundred thousand files.
    paths = list(_entries(directory(), 2))
    gone = [path for path in paths if path.name.startswith(".making-") and not _being_made(path)]
    return sorted(
        [
            *gone,
            *(path for path in paths if path.name.startswith(COMING) and unchanged(path, DAY)),
            *(path for path in sockets().iterdir() if _leads_nowhere(path, gone)),
        ]
    )


def _entries(place: Path, below: int) -> Iterator[Path]:
    """What is in a folder, and in folders so many levels below. Another lab.py may remove or rename each of
    them meanwhile (Path.glob then raises)."""
    try:
        with os.scandir(place) as listed:
            entries = list(listed)
    except OSError:
        return
    for entry in entries:
        yield place / entry.name
        try:
            folder = below and entry.is_dir()
        except OSError:  # a link to itself, say
            continue
        if folder:
            yield from _entries(place / entry.name, below - 1)


def _leads_nowhere(link: Path, gone: Collection[Path]) -> bool:
    """Whether it is a link to nothing, or to a scratch folder whose maker is gone."""
    try:
        return link.is_symlink() and (not link.exists() or link.readlink() in gone)
    except OSError:  # removed meanwhile
        return False


def _being_made(path: Path) -> bool:
    """Whether the maker of a scratch path may still run. Before 2026-11 the name held the PID alone."""
    owner = path.name.split("-")[1]
    process = Process.parse(owner)
    return (
        process.lives if process else not owner.isdecimal() or alive(int(owner)) or not unchanged(path, DAY)
    )


DAY = 24 * 3600.0


def unchanged(path: Path, seconds: float) -> bool:
    """Whether nothing in a file or folder has changed for this many seconds."""
    try:
        return time.time() - max(one.lstat().st_mtime for one in (path, *path.rglob("*"))) > seconds
    except OSError:  # removed or changed meanwhile
        return False


def alive(pid: int) -> bool:
    """Whether a process with this id exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def started(pid: int) -> int:
    """A process's start in clock ticks since boot, to tell it from others of its id; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def ssh_key(deadline: Deadline) -> Path:
    """The path of the lab's private key, created once. The public half stands beside it with .pub."""
    path = folder("ssh") / SSH_KEY
    with lock("ssh-key", deadline):
        if not path.exists():
            run(
                [
                    need("ssh-keygen", "openssh-client"),
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    "",
                    "-C",
                    "numalab",
                    "-f",
                    path,
                ],
                deadline=deadline,
            )
    return path


def guest_key(image: str, id: str) -> Path:
    """The private key that opens guests of an image: this lab's, or what came with the image."""
    came = folder("images", image) / id / SSH_KEY
    return came if came.exists() else folder("ssh") / SSH_KEY


def sockets() -> Path:
    """A short, private folder for sockets: a socket's path may have 107 characters."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = (
        Path(runtime if Path(runtime).is_dir() and runtime else tempfile.gettempdir())
        / f"numalab-{os.getuid()}"
    )
    base.mkdir(mode=0o700, exist_ok=True)
    if base.stat().st_uid != os.getuid():
        raise HostError(f"{base}: belongs to somebody else: set XDG_RUNTIME_DIR to a folder of your own")
    return base


def stamp() -> str:
    """The current UTC time for file names, sortable: 20261121T121005."""
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime())
