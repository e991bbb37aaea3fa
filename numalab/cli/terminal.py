# SPDX-License-Identifier: GPL-2.0-only
"""What a terminal does to a command: it prints, its reader goes away, and it sends signals.

Output of guests, and records from other machines, may hold any bytes, and some are commands to a terminal. So
all text of the command line goes through `echo`. Not here: running steps (progress), whose text goes through
`visible` too.

The first SIGINT, SIGTERM or SIGHUP ends every wait, and clean-up follows. Later signals do nothing: a person
who presses Ctrl-C twice, or then closes the terminal, would otherwise end the clean-up, and guests would
stay. The waits of a clean-up have deadlines. Not here: the clean-up, which is in the functions that make
something.
"""

from __future__ import annotations

import _thread
import errno
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING

import typer

from numalab.core import paths
from numalab.core.process import Deadline

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

GONE = (errno.EPIPE, errno.EIO)
"""The errors of a stream without a reader: of a pipe, and of a closed terminal."""
KEPT = "\n\t"


def visible(text: str) -> str:
    r"""Text with visible control characters: ESC becomes \x1b. Newlines and tabs stay.

    The C1 controls (0x9b begins a sequence as ESC [ does) and the characters that change the direction of
    writing become visible too. The serial console ends its lines with CR LF, which becomes a newline.
    """
    text = re.sub(r"\r+\n", "\n", text)
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in KEPT else letter.encode("unicode_escape").decode()
        for letter in text
    )


def as_called(text: str) -> str:
    """A hint with the lab's commands as a person calls them: where it is installed, lab.py is numalab."""
    return text if paths.CHECKOUT else re.sub(r"(?<![\w/.])(?:\./)?lab\.py\b", paths.COMMAND, text)


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text for a person, with a newline. Above running steps (progress), which replace the streams."""
    typer.echo(visible(str(text)), file=sys.stderr if err else sys.stdout, nl=nl)


def error_line(error: BaseException, options: Mapping[str, str]) -> str:
    """An error's line. When an option sets its field, the option replaces the field, or follows the line."""
    line, field = str(error), getattr(error, "field", "")
    if field not in options:
        return line
    words = field.replace("_", " ")
    return (
        options[field] + line.removeprefix(words) if line.startswith(words) else f"{line} ({options[field]})"
    )


def outlive_readers() -> None:
    """From now on a reader of standard output or standard error that goes away only stops the printing.

    Otherwise `run | head -1` would end an experiment, and click would exit with status 1: "does not hold".
    """
    # In a test the streams are pytest's.
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _outliving(sys.stdout)
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _outliving(sys.stderr)


def _outliving(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(_Outliving(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Outliving(io.FileIO):
    """A file whose descriptor becomes /dev/null when it cannot be written to. An error other than a lost
    reader is raised once.

    Once only: Python flushes again at its exit, and would exit with a status of its own (120).
    """

    def write(self, data: ReadableBuffer, /) -> int:
        """See io.FileIO."""
        try:
            return super().write(data)
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if error.errno not in GONE:
                raise
            return memoryview(data).nbytes


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


def _install(handler: Callable[[int, FrameType | None], None]) -> Callable[[], None]:
    """Have `handler` take SIGNALS, but for a SIGHUP that is ignored: nohup(1) needs that. Returns a function
    that restores the handlers."""
    heeded = [
        kind for kind in SIGNALS if kind is not signal.SIGHUP or signal.getsignal(kind) is not signal.SIG_IGN
    ]
    before = [(kind, signal.signal(kind, handler)) for kind in heeded]

    def restore() -> None:
        for kind, old in before:
            signal.signal(kind, old)

    return restore


def on_signals(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    """From now on the first of SIGNALS runs `first`, the next one `second`, later ones nothing; returns a
    function that restores the handlers. A SIGHUP that is ignored stays so. Main thread only."""
    actions = [first, second]

    def handler(_signal: int, _frame: FrameType | None) -> None:
        if actions:
            _thread.start_new_thread(actions.pop(0), ())

    return _install(handler)


def handle_signals(action: Callable[[], None] = cancel_waits) -> Callable[[], None]:
    """Run `action` on the first of SIGNALS; returns a function that restores the handlers. A SIGHUP that is
    ignored stays so. Main thread only."""
    restore = _install(once(action))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # lab.py had blocked them
    return restore
