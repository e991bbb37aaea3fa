# SPDX-License-Identifier: GPL-2.0-only
"""Steps: what the lab is doing, for which guest, and how long it took.

Steps go to the logger "numalab". Not here: how they are shown (cli.progress, pytest_plugin).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("numalab")


@contextmanager
def step(what: str, *, who: str = "") -> Iterator[None]:
    """Log the begin of a step (DEBUG) and its end with the seconds it took (INFO; DEBUG when it failed)."""
    start = time.monotonic()
    about = {"step": what, "who": who, "state": "begin", "seconds": 0.0}
    logger.debug("%s%s", f"{who}: " if who else "", what, extra=about)
    state = "failed"
    try:
        yield
        state = "done"
    finally:
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
    logger.debug("%s", what, extra={"step": what, "who": "", "state": "moving"})
