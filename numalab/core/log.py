# SPDX-License-Identifier: GPL-2.0-only
"""Steps: what the lab is doing, for which guest, and how long it took.

Steps go to the logger "numalab"; `running` has those that are not over yet. Not here: how they are shown
(cli.progress, pytest_plugin).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

logger = logging.getLogger("numalab")


class Running(NamedTuple):
    """A step that is not over yet."""

    who: str
    what: str
    seconds: float
    """So far."""
    moving: str
    """Its live counters; '' for none."""


_lock = threading.Lock()
_running: dict[object, tuple[int, str, str, float]] = {}
"""Thread, who, what and begin of each step, in the order in which they began."""
_moving: dict[int, str] = {}
"""Thread -> live counters of its step."""


def running() -> list[Running]:
    """The steps of this process that are not over yet, in the order in which they began."""
    now = time.monotonic()
    with _lock:
        return [
            Running(who, what, now - since, _moving.get(thread, ""))
            for thread, who, what, since in _running.values()
        ]


@contextmanager
def step(what: str, *, who: str = "") -> Iterator[None]:
    """Log the begin of a step (DEBUG) and its end with the seconds it took (INFO; DEBUG when it failed)."""
    start, key, thread = time.monotonic(), object(), threading.get_ident()
    with _lock:
        _running[key] = (thread, who, what, start)
    about = {"step": what, "who": who, "state": "begin", "seconds": 0.0}
    state = "failed"
    try:
        logger.debug("%s%s", f"{who}: " if who else "", what, extra=about)
        yield
        state = "done"
    finally:
        with _lock:
            del _running[key]
            _moving.pop(thread, None)
        about |= {"state": state, "seconds": time.monotonic() - start}
        level = logging.INFO if state == "done" else logging.DEBUG
        logger.log(level, "%s%s: %.1f s", f"{who}: " if who else "", what, about["seconds"], extra=about)


def note(what: str, *, who: str = "") -> None:
    """Log a warning for the user."""
    logger.warning("%s%s", f"{who}: " if who else "", what, extra={"step": what, "who": who, "state": "note"})


def tell(what: str, *, who: str = "") -> None:
    """Log an intermediate result: a line that is shown on a terminal and in a pipe alike."""
    logger.info("%s%s", f"{who}: " if who else "", what, extra={"step": what, "who": who, "state": "message"})


def moving(what: str) -> None:
    """Log the live counters of this thread's step: on a terminal they change below it, in a pipe its line of
    each minute has them; '' ends them."""
    with _lock:
        _moving[threading.get_ident()] = what
    logger.debug("%s", what, extra={"step": what, "who": "", "state": "moving"})
