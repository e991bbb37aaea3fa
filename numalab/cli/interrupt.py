# SPDX-License-Identifier: GPL-2.0-only
"""SIGINT, SIGTERM and SIGHUP are one thing: the first ends every wait, and what was made is removed.

Later ones change nothing: a person who presses Ctrl-C twice, or closes the terminal after it, would else end
the clean-up, and guests would stay. What a clean-up waits for has a deadline.
"""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable
from types import FrameType

from numalab.core.process import Deadline

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

cancel = Deadline.after(0).cancel
"""Shared by every deadline of this process."""


def limit(seconds: float) -> Deadline:
    """A deadline that an interrupt ends at once."""
    return Deadline.after(seconds, cancel)


def cancel_waits() -> None:
    """End every wait of this process."""
    # By another thread: this one may be inside cancel.wait(), with the event's lock held. threading.Thread
    # has locks too.
    _thread.start_new_thread(cancel.set, ())


def once(action: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
    """A signal handler that acts on the first signal alone."""
    received = False

    def handler(_signal: int, _frame: FrameType | None) -> None:
        nonlocal received
        if not received:
            received = True
            action()

    return handler


def install(action: Callable[[], None] = cancel_waits) -> Callable[[], None]:
    """Let the first of SIGNALS act; returns what sets them back. Only the main thread may.

    A SIGHUP that is ignored stays so: nohup(1) wants it.
    """
    handler = once(action)
    kinds = [
        kind for kind in SIGNALS if kind is not signal.SIGHUP or signal.getsignal(kind) is not signal.SIG_IGN
    ]
    before = [(kind, signal.signal(kind, handler)) for kind in kinds]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # lab.py has had them wait

    def restore() -> None:
        for kind, old in before:
            signal.signal(kind, old)

    return restore
