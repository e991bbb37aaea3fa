# SPDX-License-Identifier: GPL-2.0-only
"""What a host does for the pool: one round, through its own libvirt, in its own checkout and state directory.

Everything that Dask calls here takes and returns plain text, numbers and bytes. An error of the lab is part
of the answer: what Dask raises at the other end is a fault of the transport. Not here: Dask itself (driver).
"""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from numalab.core import log, state
from numalab.core.errors import BuildsGone, Cancelled, HostError, InputError, KernelOops, LabError
from numalab.core.process import Deadline
from numalab.experiment import run as experiment
from numalab.host.hypervisor import connect
from numalab.maintenance import gc
from numalab.pool import store, unit
from numalab.pool.queue import Cause
from numalab.pool.unit import Unit

CONNECT_SECONDS = 60.0
SWEEP_SECONDS = 300.0
"""Limit of a look for what a killed worker left: its guests would take the processor from the next."""
KEEP_SERIALS_SECONDS = 30 * state.DAY

_cancel = threading.Event()
"""Ends the round that runs; the next one clears it."""
_closing = threading.Event()
"""No round begins any more. Never cleared: a process has one worker."""

Measure = Callable[[Unit, Callable[[float], Deadline]], str]
"""Runs a round; its runs are then in this machine's store. Returns what later rounds need (Unit.settled)."""


def perform(text: str, checkout: str) -> dict[str, Any]:
    """Run a Unit (as JSON) on this host. The answer, a dict of plain values:

    `cause` '' and `tar`, `sha256`, `settled` for a round that was measured; else a queue.Cause and `error`,
    and for a kernel's crash also `tar` and `sha256`, unless its runs cannot be packed.
    """
    return perform_with(text, checkout, measure)


def perform_with(text: str, checkout: str, measured: Measure) -> dict[str, Any]:
    """`perform`, with another way to measure: a test's."""
    _cancel.clear()
    try:
        # After the line above: what sets both has this round not begin, or ends it.
        if _closing.is_set():
            raise Cancelled("this worker is ending")
        if (here := unit.checkout()) != checkout:
            raise HostError(
                f"this host's checkout is another ({here}; {checkout} is wanted): lab.py pool down, then up"
            )
        one = Unit.model_validate_json(text)
        if one.home == state.identity():
            raise HostError(
                f"{state.directory()}: is the state directory that runs come home to: start this host's"
                " worker with another LAB_STATE"
            )
        _begin_once(one)
        # Of an earlier try of this round, whole boots may be here.
        store.void(one.experiment, "an earlier try of the round", range(one.boots.start, sys.maxsize))
        settled = measured(one, lambda seconds: Deadline.after(seconds, _cancel))
        return {"cause": "", "settled": settled, **_packed(one)}
    except KernelOops as error:
        return {**_failed(Cause.CRASH, error), **_as_far_as_packed(one)}
    except Cancelled as error:
        return _failed(Cause.STOPPED, error)
    except InputError as error:
        return _failed(Cause.INPUT, error)
    except BuildsGone as error:
        return _failed(Cause.GONE, error)
    except LabError as error:
        return _failed(Cause.LAB, error)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return _failed(Cause.LAB, HostError(f"{error}{': make room on this host' if full else ''}"))
    except ValueError as error:  # pydantic's: a unit of another version
        return _failed(Cause.LAB, HostError(f"the unit cannot be read: {error}"))


def end_all() -> bool:
    """End what runs here; its answer is Cause.STOPPED. Runs beside it, in the worker's event loop."""
    _cancel.set()
    return True


def close() -> None:
    """End what runs here, and begin nothing any more: this process is ending."""
    _closing.set()
    _cancel.set()


def sweep(seconds: float = SWEEP_SECONDS) -> None:
    """Remove what killed workers of this host left, guests above all. Raises HostError."""
    gc.collect(connect(None, Deadline.after(CONNECT_SECONDS)), Deadline.after(seconds))


def measure(one: Unit, limit: Callable[[float], Deadline]) -> str:
    """One round through this host's libvirt."""
    host = connect(None, limit(CONNECT_SECONDS))
    gc.collect(host, limit(SWEEP_SECONDS))
    settled = experiment.Settled.model_validate_json(one.settled) if one.settled else None
    plan = unit.plan(one.order).model_copy(update={"seed": one.seed})
    return experiment.one_round(
        plan,
        host,
        one.number,
        experiment=one.experiment,
        rounds=one.rounds,
        looks=len(one.order.looks),
        block=one.block,
        settled=settled,
        given=one.builds,
        limit=limit,
    ).model_dump_json()


def _packed(one: Unit) -> dict[str, Any]:
    tar = store.pack(store.folders(one))
    return {"tar": tar, "sha256": store.digest(tar)}


def _as_far_as_packed(one: Unit) -> dict[str, Any]:
    """A crash stands without its runs too."""
    try:
        return _packed(one)
    except (LabError, OSError) as error:
        log.note(f"{one.experiment}, round {one.number}: the runs of the crash stay here: {error}")
        return {}


def _failed(cause: Cause, error: LabError) -> dict[str, Any]:
    return {"cause": cause.value, "error": str(error)}


def _begin_once(one: Unit) -> None:
    """HostError when a worker of this host began the unit before: Dask runs it again when that one died."""
    begun = state.folder("pool", "begun")
    for old in begun.iterdir():
        if time.time() - old.stat().st_mtime > KEEP_SERIALS_SECONDS:
            old.unlink(missing_ok=True)
    try:
        (begun / one.serial).touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        raise HostError(
            f"{one.experiment}, round {one.number}: a worker of this host began it and died"
        ) from None
