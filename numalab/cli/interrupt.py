# SPDX-License-Identifier: GPL-2.0-only
"""Ctrl-C, kill(1) and a closed terminal: the first SIGINT, SIGTERM or SIGHUP ends every wait, and clean-up
follows.

Later signals do nothing: a person who presses Ctrl-C twice, or then closes the terminal, would otherwise end
the clean-up, and guests would stay. The waits of a clean-up have deadlines. Not here: the clean-up itself,
which is in the functions that make something.
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
    """A deadline that a signal ends at once."""
    return Deadline.after(seconds, cancel)


def cancel_waits() -> None:
    """End every wait of this process."""
    # In another thread: this one may be inside cancel.wait() and hold the event's lock. Not threading.Thread,
    # which has locks too.
    _thread.start_new_thread(cancel.set, ())


def once(action: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
    """A signal handler that runs `action` on the first signal only."""
    received = False

    def handler(_signal: int, _frame: FrameType | None) -> None:
        nonlocal received
        if not received:
            received = True
            action()

    return handler


def install(action: Callable[[], None] = cancel_waits) -> Callable[[], None]:
    """Run `action` on the first of SIGNALS; returns a function that restores the handlers. Main thread only.

    A SIGHUP that is ignored stays ignored: nohup(1) needs that.
    """
    handler = once(action)
    kinds = [
        kind for kind in SIGNALS if kind is not signal.SIGHUP or signal.getsignal(kind) is not signal.SIG_IGN
    ]
    before = [(kind, signal.signal(kind, handler)) for kind in kinds]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # lab.py had blocked them

    def restore() -> None:
        for kind, old in before:
            signal.signal(kind, old)

    return restore
