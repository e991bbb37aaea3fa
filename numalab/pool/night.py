# SPDX-License-Identifier: GPL-2.0-only
"""A night on disk: its orders, and a journal of which attempts were begun, are void, have ended.

    pool/nights/NAME/orders.json       never changed       pool/nights/NAME/journal.jsonl     only added to

What is measured is not here: that is the runs in the store (store.rounds). An attempt is in the journal
before its first round is sent. A journal's last line may be half, after a power cut; it is ignored.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numalab.core import state
from numalab.core.errors import DeadlinePassed, InputError
from numalab.core.process import Deadline
from numalab.model.values import Name, Seed, Stored, Value, check_name, first_line
from numalab.pool.queue import Cause
from numalab.pool.unit import Order


class Orders(Stored):
    """All orders of a night."""

    orders: tuple[Order, ...]


class Attempt(Value):
    """An experiment that was begun on a host."""

    order: Name
    number: int
    host: str
    experiment: str
    seed: Seed
    memory: int
    """The host's, in bytes."""
    accels: tuple[str, ...]
    checkout: str = ""
    """The digest (unit.checkout) of the checkout that measures it."""


class Void(Value):
    """An attempt that does not count."""

    order: Name
    number: int
    why: str


class Settled(Value):
    """What round 0 of an attempt settled."""

    order: Name
    number: int
    settled: str


class Planned(Value):
    """The number of rounds that an order without a fixed one has now."""

    order: Name
    rounds: int


class Ended(Value):
    """An order that ended; `cause` is null when it has its verdict."""

    order: Name
    cause: Cause | None
    why: str


Line = Attempt | Void | Settled | Planned | Ended
KINDS: dict[str, type[Line]] = {kind.__name__: kind for kind in (Attempt, Void, Settled, Planned, Ended)}


class Night:
    """A night's folder, opened by one process at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = _folder(name)
        try:
            self.orders = Orders.from_json((self.folder / "orders.json").read_bytes()).orders
        except FileNotFoundError:
            nights = ", ".join(names()) or "none"
            raise InputError(f"there is no night {name} here: there are {nights}", field="resume") from None
        except ValueError as error:
            raise InputError(f"{self.folder / 'orders.json'}: {first_line(error)}") from error
        self._journal = self.folder / "journal.jsonl"

    def lines(self) -> Iterator[Line]:
        """The journal, in order. Raises InputError for a damaged line that is not the last."""
        try:
            text = self._journal.read_text()
        except FileNotFoundError:
            return
        whole, _, _half = text.rpartition("\n")
        for number, line in enumerate(filter(None, whole.split("\n")), 1):
            try:
                data: dict[str, Any] = json.loads(line)
                yield KINDS[data.pop("kind")].model_validate(data)
            except (ValueError, KeyError, AttributeError) as error:
                raise InputError(f"{self._journal}, line {number}: {error}") from error

    def add(self, line: Line) -> None:
        """Add a line to the journal; it is on the disk when this returns. Raises OSError."""
        text = json.dumps({"kind": type(line).__name__, **line.model_dump(mode="json")})
        handle = os.open(self._journal, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            whole = size == 0 or os.pread(handle, 1, size - 1) == b"\n"
            if not whole:  # a line that a power cut halved
                os.ftruncate(handle, _end_of_last_line(handle, size))
            data = f"{text}\n".encode()
            if os.write(handle, data) < len(data):  # no error: the disk had room for a part
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._journal))
            os.fsync(handle)
        finally:
            os.close(handle)


def _end_of_last_line(handle: int, size: int) -> int:
    return os.pread(handle, size, 0).rfind(b"\n") + 1


def make(orders: Sequence[Order]) -> Night:
    """A new night with these orders. Raises InputError when there are none."""
    if not orders:
        raise InputError("there is nothing to run: no case has what was asked for")
    base = f"{state.stamp().lower()}-{os.getpid()}"
    name, number = base, 1
    while (folder := _folder(name)).exists():  # this process made one in the same second
        number += 1
        name = f"{base}-{number}"
    folder.mkdir(parents=True, mode=0o700)
    state.write(folder / "orders.json", Orders(orders=tuple(orders)).model_dump_json(indent=1))
    state.sync(folder.parent)
    return Night(name)


def names() -> list[str]:
    """The nights of this state directory, oldest first."""
    return sorted(path.parent.name for path in state.folder("pool").glob("nights/*/orders.json"))


@contextmanager
def held(night: Night) -> Iterator[None]:
    """One night at a time runs from this state directory: a pool is one. InputError when another does."""
    try:
        with state.lock("pool-driver", Deadline.after(0)):
            yield
    except DeadlinePassed as error:
        raise InputError(f"night {night.name}: another lab.py runs a night on the pool") from error


def _folder(name: str) -> Path:
    try:
        return state.folder("pool") / "nights" / check_name(name)
    except ValueError as error:
        raise InputError(f"night {error}", field="resume") from error
