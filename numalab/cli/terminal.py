# SPDX-License-Identifier: GPL-2.0-only
"""Standard output and standard error: what may be printed there, and readers that go away.

Output of guests, and records from other machines, may hold any bytes, and some are commands to a terminal. So
all text of the command line goes through `echo`. Not here: running steps (progress), whose text goes through
`visible` too.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

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


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text for a person, with a newline."""
    typer.echo(visible(str(text)), err=err, nl=nl)


def told(error: BaseException, options: Mapping[str, str]) -> str:
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
