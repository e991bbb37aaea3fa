"""Programs on the host: one `run`, with an argv, a deadline and one error that names the command.

Never a shell string. Not here: commands inside a guest (shell).
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from numalab.errors import Cancelled, CommandFailed, DeadlinePassed, HostError

POLL_SECONDS = 0.25
"""How often a `watch` is asked while a program runs; the program's end itself is an event."""


@dataclass(frozen=True)
class Deadline:
    """A moment after which nobody waits any longer; handed down, never nested.

    `cancel` is set from outside (Ctrl-C while several guests come up) and ends every wait at once.
    """

    at: float
    cancel: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def after(cls, seconds: float, cancel: threading.Event | None = None) -> Deadline:
        """A deadline `seconds` from now."""
        return cls(time.monotonic() + seconds, cancel or threading.Event())

    def within(self, seconds: float) -> Deadline:
        """The same deadline, or an earlier one `seconds` from now."""
        return Deadline(min(self.at, time.monotonic() + seconds), self.cancel)

    def grace(self, seconds: float) -> Deadline:
        """A little later: for whoever must outlive this deadline to clean up after it."""
        return Deadline(max(self.at, time.monotonic()) + seconds, self.cancel)

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def check(self, what: str) -> None:
        """Raise Cancelled or DeadlinePassed, naming what was waited for."""
        if self.cancel.is_set():
            raise Cancelled(f"{what}: cancelled")
        if not self.remaining():
            raise DeadlinePassed(f"{what}: the time limit passed")

    def pause(self, seconds: float) -> None:
        """Sleep, but no longer than the deadline, and not at all once cancelled."""
        self.cancel.wait(min(seconds, self.remaining()))


@dataclass(frozen=True)
class Result:
    """What a program did: its exit status (negative: the signal that ended it) and its two streams."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    seconds: float


def need(program: str, package: str) -> str:
    """The path of a program, or a HostError that names the Debian package that has it."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if not found:
        raise HostError(f"{program} is not installed: apt-get install {package}")
    return found


def ends_with_us(argv: Sequence[str | Path]) -> list[str | Path]:
    """The argv of a program that gets SIGTERM when this process is gone, by a kill -9 too.

    For programs that end their own children on SIGTERM. To the kernel "this process" is the thread that started it.
    """
    return [need("setpriv", "util-linux"), "--pdeathsig", "TERM", "--", *argv]


def run(
    argv: Sequence[str | Path],
    *,
    deadline: Deadline,
    check: bool = True,
    input: bytes | None = None,
    log: Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    watch: Callable[[], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> Result:
    """Run a program to its end.

    Its streams go to files (to `log`, both, if given), so that no pipe can fill up. `watch` is called
    every POLL_SECONDS and may raise; `tell` gets each line of standard error about when it comes. A wait
    that ends early takes the program and its children along.
    Raises CommandFailed (unless `check` is false), DeadlinePassed, Cancelled, HostError.
    """
    words = tuple(str(word) for word in argv)
    shown = shlex.join(words)
    shown = shown if len(shown) < 300 else shown[:300] + " …"
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as feed:
        feed.write(input or b"")
        feed.seek(0)
        sink = log.open("ab") if log else None
        start = time.monotonic()
        try:
            child = subprocess.Popen(
                words, stdin=feed, stdout=sink or out, stderr=sink or err, cwd=cwd,
                env={**os.environ, **(env or {})}, start_new_session=True,
            )
        except OSError as error:
            what = f"{words[0]} is not installed" if isinstance(error, FileNotFoundError) and error.filename == words[0] else str(error)
            raise HostError(f"{shown}: {what}") from error
        finally:
            if sink:
                sink.close()
        lines = _Lines(err.fileno(), tell) if tell else None
        try:
            _wait(child, shown, deadline, watch, lines)
        finally:
            _end(child)
        if lines:
            lines()
        out.seek(0)
        err.seek(0)
        result = Result(
            words, child.returncode, out.read().decode(errors="replace"), err.read().decode(errors="replace"),
            time.monotonic() - start,
        )
    if check and result.status:
        tail = log.read_text(errors="replace")[-4000:] if log else result.stderr or result.stdout
        last = next((line for line in reversed(tail.splitlines()) if line.strip()), "no output")
        where = f" (all of it: {log})" if log else ""
        raise CommandFailed(f"{shown}: exit status {result.status}: {last.strip()}{where}", evidence=tail)
    return result


class _Lines:
    """What a growing file got since the last look, line by line; the program keeps its own place in it."""

    def __init__(self, file: int, tell: Callable[[str], None]) -> None:
        self.file, self.tell, self.seen = file, tell, 0

    def __call__(self) -> None:
        while more := os.pread(self.file, 1 << 20, self.seen):
            whole = more[: more.rfind(b"\n") + 1]
            if not whole:
                return
            self.seen += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                self.tell(line)


def _wait(
    child: subprocess.Popen[bytes], shown: str, deadline: Deadline, watch: Callable[[], None] | None, lines: Callable[[], None] | None,
) -> None:
    """Until the child has ended: its end wakes us, `watch` and the deadline are looked at in between."""
    end = os.pidfd_open(child.pid)
    try:
        poller = select.poll()
        poller.register(end, select.POLLIN)
        while not poller.poll(1000 * min(POLL_SECONDS, deadline.remaining())):
            deadline.check(shown)
            if lines:
                lines()
            if watch:
                watch()
        child.wait()
    finally:
        os.close(end)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child that still runs, and all of its process group: asked first, then told.

    What a child that ended by itself left in the background stays: ssh's shared connection is such.
    """
    if child.returncode is not None:
        return
    os.killpg(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
