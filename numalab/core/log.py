# SPDX-License-Identifier: GPL-2.0-only
"""Steps: what the lab is doing, how long it took, and for which guest.

A step is logged to the logger "numalab"; the command line and the pytest plugin decide how it looks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("numalab")


@contextmanager
def step(what: str, *, who: str = "") -> Iterator[None]:
    """One thing that takes time. Logs its begin (DEBUG) and its end with seconds (INFO), failed or not."""
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
    """Something that a person should read once."""
    logger.warning("%s%s", f"{who}: " if who else "", what, extra={"step": what, "who": who, "state": "note"})


def tell(what: str, *, who: str = "") -> None:
    """What came out so far: a line for everybody, without a mark."""
    logger.info("%s%s", f"{who}: " if who else "", what, extra={"step": what, "who": who, "state": "told"})


def moving(what: str) -> None:
    """What moves in the step under way: only for who watches a terminal; '' ends it."""
    logger.debug("%s", what, extra={"step": what, "who": "", "state": "moving"})
