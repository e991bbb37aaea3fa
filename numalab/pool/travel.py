# SPDX-License-Identifier: GPL-2.0-only
"""An image or a built kernel on its way to a host: asked for by id, sent in pieces, checked, put in place.

The host's half runs in its Dask worker, beside a round; every call has its own answer, and what has arrived
is the host's to say. So a transfer goes on where another one ended, two at once share the work (but for a
piece of a file), and at no time is more than a piece for each host in anybody's memory. What arrives stands
beside its place as `.coming-…` and is renamed when all of it has its SHA-256. The calls travel through the
pool's TLS.

The private key of an image's guests is one of its files. Nothing here may raise into Dask, whose log would
show what was sent. Not here: what a round needs (supply), when it is sent (driver).
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from numalab.core import checksum, log, state
from numalab.core.errors import Cancelled, HostError, LabError
from numalab.core.process import Deadline
from numalab.host import image
from numalab.kernel import build
from numalab.model.units import MIB, show_part
from numalab.model.values import Value
from numalab.pool import unit

PIECE_BYTES = 8 * MIB
TRIES = 3
"""How often a piece, and then a whole file, may arrive damaged."""
LOOK_SECONDS = 60.0
"""Limit of the host's look for what it has, and of its wait for another transfer's piece."""

Part = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")]
"""One name in a path."""
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class File(Value):
    """A file of an item."""

    name: Part
    size: Annotated[int, Field(ge=0)]
    sha256: Digest


class Item(Value):
    """A finished image or kernel: a folder of the state directory, at home and on a host."""

    kind: Literal["image", "kernel"]
    name: Part
    id: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    """The image's id or the kernel's key."""
    files: tuple[File, ...]

    @property
    def place(self) -> Path:
        """Its folder in this machine's state directory."""
        if self.kind == "image":
            return state.folder("images", self.name) / self.id
        return state.folder("kernels") / f"{self.name}-{self.id}"

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.id}"


image_came = threading.Event()
"""Set on a host when an image has arrived: now it can try whether a kernel boots under KVM."""
_hashing = threading.Lock()


def item(kind: Literal["image", "kernel"], name: str, id: str, files: dict[str, Path]) -> Item:
    """An item of these files, which are read once: their checksums are cached. Raises HostError."""
    try:
        with _hashing:  # several hosts may want the same at once
            listed = tuple(
                File(name=file, size=path.stat().st_size, sha256=checksum.sha256(path))
                for file, path in sorted(files.items())
            )
    except OSError as error:
        raise HostError(f"{kind} {name} {id}: {error}") from error
    return Item(kind=kind, name=name, id=id, files=listed)


# The host's half. Answers are plain values; a lab error is one of them.


async def look(text: str, checkout: str, exact: bool) -> dict[str, Any]:
    """What this host has of an Item (JSON): `id` of what it will use, or `sizes` of the files that came.

    With `exact` an image that it has built itself is not used instead.
    """
    return await asyncio.to_thread(_answer, _look, text, checkout, exact)


async def put(text: str, name: str, offset: int, data: bytes, digest: str) -> dict[str, Any]:
    """Take a piece of a file; `size` is what has arrived of it. A piece that is damaged, or not the next one,
    is not taken."""
    return await asyncio.to_thread(_answer, _put, text, name, offset, data, digest)


async def settle(text: str) -> dict[str, Any]:
    """Put an item that has arrived in its place; or `damaged`, the files that have to come again."""
    return await asyncio.to_thread(_answer, _settle, text)


def _answer(call: Callable[..., dict[str, Any]], text: str, *words: Any) -> dict[str, Any]:
    try:
        return call(Item.model_validate_json(text), *words)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return {"error": f"{error}{': make room on this host' if full else ''}"}
    except LabError as error:
        return {"error": str(error)}
    except ValueError:  # pydantic's, whose text has the input in it
        return {"error": "what was sent cannot be read: it is of another version of the lab"}
    except Exception as error:
        return {"error": f"{type(error).__name__} while something is received"}


def _coming(one: Item) -> Path:
    return one.place.with_name(f"{state.COMING}{one.place.name}")


def _look(one: Item, checkout: str, exact: bool) -> dict[str, Any]:
    if (here := unit.checkout()) != checkout:
        raise HostError(
            f"this host's checkout is another ({here}; {checkout} is wanted): lab.py pool down, then up"
        )
    deadline = Deadline.after(LOOK_SECONDS)
    if one.kind == "image":
        own = image.existing(one.name, deadline)
        if own and (own.id == one.id or not (own.received or exact)):
            return {"id": own.id}
        if one.place.exists():
            return {"id": image.pinned(one.name, one.id).id}
    elif build.at(one.place):
        return {"id": one.id}
    sizes = {}
    for file in one.files:
        path = _coming(one) / file.name
        if path.exists():
            sizes[file.name] = path.stat().st_size
    lacking = one.bytes - sum(sizes.values())
    if (free := shutil.disk_usage(one.place.parent).free) < lacking:
        raise HostError(
            f"{one.place}: {lacking / MIB:,.0f} MiB are to come and {free / MIB:,.0f} MiB are free: make room"
            " on this host"
        )
    return {"sizes": sizes}


def _put(one: Item, name: str, offset: int, data: bytes, digest: str) -> dict[str, Any]:
    file = next(file for file in one.files if file.name == name)
    with state.lock(f"coming-{one.kind}-{one.id}", Deadline.after(LOOK_SECONDS)):
        if one.place.exists():  # another transfer was faster
            return {"size": file.size}
        _coming(one).mkdir(exist_ok=True, mode=0o700)
        handle = os.open(
            _coming(one) / name, os.O_WRONLY | os.O_CREAT, 0o600 if name == state.SSH_KEY else 0o644
        )
        try:
            size = os.fstat(handle).st_size
            whole = hashlib.sha256(data).hexdigest() == digest
            if size > file.size:
                os.ftruncate(handle, 0)
                size = 0
            elif size == offset and whole and size + len(data) <= file.size:
                try:
                    os.lseek(handle, offset, os.SEEK_SET)
                    while data:
                        data = data[os.write(handle, data) :]
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(_coming(one) / name)) from None
                size = os.fstat(handle).st_size
        finally:
            os.close(handle)
    return {"size": size}


def _settle(one: Item) -> dict[str, Any]:
    with state.lock(f"coming-{one.kind}-{one.id}", Deadline.after(LOOK_SECONDS)):
        if one.place.exists():
            return {}
        damaged = []
        for file in one.files:
            path = _coming(one) / file.name
            if not path.exists():
                damaged.append(file.name)
                continue
            with path.open("rb") as handle:
                digest = hashlib.file_digest(handle, "sha256").hexdigest()
            if digest != file.sha256:
                path.unlink()
                damaged.append(file.name)
        if not damaged:
            state.sync(*state.everything(_coming(one)))
            _coming(one).rename(one.place)
            state.sync(one.place.parent)
            if one.kind == "image":
                image_came.set()
    return {"damaged": damaged} if damaged else {}


# The half of this machine.


class Call(Protocol):
    """Calls an async function of the host's half; returns its answer. Raises Lost without one."""

    def __call__(self, function: Callable[..., Any], *words: Any) -> dict[str, Any]:
        """The answer."""
        ...


class Lost(Exception):
    """A host does not answer."""


class Refused(HostError):
    """A host does not take what it is sent: by a fault of its own, or of the way there."""


def send(
    one: Item,
    files: dict[str, Path],
    call: Call,
    host: str,
    cancel: threading.Event,
    *,
    checkout: str,
    exact: bool = False,
) -> str:
    """Have an item on a host that has this checkout; returns the id of what the host will use: its own image,
    if it has one and not `exact`.

    Raises Refused, Lost and Cancelled; HostError and OSError for files of this machine.
    """
    text = one.model_dump_json()
    answer = _asked(call, look, text, checkout, exact)
    if "id" in answer:
        return str(answer["id"])
    sizes: dict[str, int] = answer["sizes"]
    came = sum(sizes.values())
    more = f", {came / MIB:,.0f} MiB of them are there" if came else ""
    with log.step(f"{one} sent: {one.bytes / MIB:,.0f} MiB{more}", who=host):
        for _ in range(TRIES):
            for file in one.files:
                others = sum(sizes.get(other.name, 0) for other in one.files if other is not file)

                def moved(size: int, others: int = others) -> None:
                    log.moving(show_part(others + size, one.bytes))

                _send_file(one, file, files[file.name], sizes.get(file.name), call, cancel, moved)
                sizes[file.name] = file.size
            damaged = _asked(call, settle, text).get("damaged", ())
            if not damaged:
                return one.id
            for name in damaged:
                del sizes[name]
    raise Refused(f"{one}: {', '.join(damaged)}: arrived damaged {TRIES} times")


def _send_file(
    one: Item,
    file: File,
    path: Path,
    arrived: int | None,
    call: Call,
    cancel: threading.Event,
    moved: Callable[[int], None],
) -> None:
    text, failed = one.model_dump_json(), 0
    with path.open("rb") as source:
        while arrived is None or arrived != file.size:
            if cancel.is_set():
                raise Cancelled(f"{one}: no longer sent")
            offset = min(arrived or 0, file.size)
            source.seek(offset)
            data = source.read(min(PIECE_BYTES, file.size - offset))
            if not data and offset < file.size:
                raise HostError(f"{path}: has changed while it was sent")
            answer = _asked(call, put, text, file.name, offset, data, hashlib.sha256(data).hexdigest())
            size = int(answer["size"])
            failed = failed + 1 if arrived is not None and size <= arrived else 0
            if failed >= TRIES:
                raise Refused(f"{one}: {file.name}: the piece at {offset} arrived damaged {TRIES} times")
            arrived = size
            moved(size)


def _asked(call: Call, function: Callable[..., Any], *words: Any) -> dict[str, Any]:
    answer = call(function, *words)
    if "error" in answer:
        raise Refused(str(answer["error"]))
    return answer
