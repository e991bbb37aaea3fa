# SPDX-License-Identifier: GPL-2.0-only
"""How core.log's steps look: a live line for each running step on a terminal, plain lines in a pipe, where a
step that takes long has a line each minute. rich is imported with the first step: many commands have none."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from numalab.cli.terminal import as_called, visible
from numalab.core import log

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.table import Table

STILL_SECONDS = 60.0
"""How often a step that is not over yet is told in a pipe."""


def tell_what_runs(ended: threading.Event, show: Callable[[str], None]) -> None:
    """Until `ended`, `show` a line a minute for each step that has run for a minute."""
    while not ended.wait(STILL_SECONDS):
        for one in log.running():
            if one.seconds >= STILL_SECONDS:
                words = [word for word in (one.who, one.what, one.moving) if word]
                show(f"… {one.seconds:8.0f} s  {as_called(visible(': '.join(words)))}")


class Progress(logging.Handler):
    """Shows the steps of the logger "numalab" on standard error while it is entered."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._begun = False
        self._ended = threading.Event()
        self._before = (logging.NOTSET, True)

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(stderr=True, highlight=False, soft_wrap=True)

    @cached_property
    def _live(self) -> Live | None:
        from rich.live import Live

        if not self._console.is_terminal:
            return None
        # A verdict is printed while other cases run: above the steps on a terminal, else where it belongs.
        return Live(
            self,
            console=self._console,
            transient=True,
            refresh_per_second=8,
            redirect_stdout=sys.stdout.isatty(),
        )

    @cached_property
    def _spinner(self) -> Spinner:
        from rich.spinner import Spinner

        return Spinner("dots")

    def __enter__(self) -> Self:
        logger = logging.getLogger("numalab")
        self._before = (logger.level, logger.propagate)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        logger = logging.getLogger("numalab")
        logger.removeHandler(self)
        logger.level, logger.propagate = self._before
        if self._begun and self._live and self._live.is_started:
            self._live.stop()

    def emit(self, record: logging.LogRecord) -> None:
        """Show the begin or end of a step, or a note. One thread at a time (logging.Handler.handle)."""
        from rich.text import Text

        if not self._begun:
            self._begun = True
            if self._live is None:
                shown = (self._ended, lambda line: self._console.print(Text(line)))
                threading.Thread(target=tell_what_runs, args=shown, daemon=True).start()
        fields = {"step": record.getMessage(), "who": "", "state": "note", "seconds": 0.0} | vars(record)
        subject, message, state = (
            visible(str(fields["who"])),
            as_called(visible(str(fields["step"]))),
            str(fields["state"]),
        )
        busy = bool(log.running())
        if self._live and busy != self._live.is_started:
            self._live.start() if busy else self._live.stop()
        if state not in ("begin", "moving"):
            mark = {
                "done": ("✓", "green"),
                "failed": ("✗", "red"),
                "note": ("!", "yellow"),
                "message": (" ", ""),
            }[state]
            seconds = f"{fields['seconds']:8.1f} s  " if state in ("done", "failed") else " " * 12
            self._console.print(
                Text.assemble(mark, f" {seconds}{subject + ': ' if subject else ''}{message}")
            )

    def __rich__(self) -> Table:
        """The running steps, each with its seconds so far."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1))
        for one in log.running():
            # As Text: in a plain string rich would take brackets for its own markup.
            words = f"{one.who + ': ' if one.who else ''}{one.what}"
            table.add_row(self._spinner, f"{one.seconds:8.0f} s ", Text(as_called(visible(words))))
            if one.moving:
                table.add_row("", "", Text(visible(one.moving), style="dim"))
        return table
