"""Ctrl-C for the whole command line: one event that every deadline of this process shares."""

from __future__ import annotations

import signal
from types import FrameType

from numalab.proc import Deadline

cancel = Deadline.after(0).cancel


def limit(seconds: float) -> Deadline:
    """A deadline that Ctrl-C ends at once."""
    return Deadline.after(seconds, cancel)


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    """First Ctrl-C: every wait ends, everything is cleaned up. The second is Python's own."""
    cancel.set()
    signal.signal(signal.SIGINT, signal.default_int_handler)
