# SPDX-License-Identifier: GPL-2.0-only
"""Run programs on the host: `run` takes an argv and a deadline, and raises one error that names the command.

Never a shell string. Not here: commands in a guest (host.ssh), programs on another machine (host.remote).
"""

from __future__ import annotations

import contextlib
import fcntl
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
from typing import IO

from numalab.core import packages
from numalab.core.errors import Cancelled, CommandFailed, DeadlinePassed, HostError

POLL_SECONDS = 0.25
"""How often `watch` is called while a program runs; the end of the program wakes us at once."""
KEEP_BYTES = 16 << 20
"""How much of the end of each stream is kept: a command in a guest can print without end."""
LINE_BYTES = 1 << 20
"""A longer line is passed on in parts of this size."""


@dataclass(frozen=True)
class Deadline:
    """A point in time after which nobody waits any longer. Functions hand it down instead of nesting
    timeouts.

    `cancel` is set from outside (Ctrl-C while several guests boot) and ends every wait at once.
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
        """A deadline this much later: for clean-up that must outlive this one."""
        return Deadline(max(self.at, time.monotonic()) + seconds, self.cancel)

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def check(self, what: str) -> None:
        """Raise Cancelled or DeadlinePassed; `what` names the wait."""
        if self.cancel.is_set():
            raise Cancelled(f"{what}: cancelled")
        if not self.remaining():
            raise DeadlinePassed(f"{what}: the time limit passed")

    def pause(self, seconds: float) -> None:
        """Sleep, but no longer than the deadline, and not at all once cancelled."""
        self.cancel.wait(min(seconds, self.remaining()))


@dataclass(frozen=True)
class Result:
    """How a program ended: its exit status (negative: the signal that ended it) and its two streams."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    seconds: float
    stdout_cut: int = 0
    """Bytes dropped from its beginning."""
    stderr_cut: int = 0


def need(program: str, package: str) -> str:
    """The path of a program, or a HostError that tells how to install it; `package` is by its Debian name."""
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if not path:
        raise HostError(f"{program} is not installed: {packages.mend(package)}")
    return path


def ends_with_us(argv: Sequence[str | Path]) -> list[str | Path]:
    """The argv of a program that gets SIGTERM when this process dies, even by kill -9.

    For programs that end their own children on SIGTERM. The kernel ties this to the thread that started the
    program.
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
    out: IO[bytes] | None = None,
    err: IO[bytes] | None = None,
) -> Result:
    """Run a program to its end.

    Both streams go to `log`, if given; else each is passed on to `out` and `err` as it comes, and its last
    KEEP_BYTES are in the result. `watch` is called every POLL_SECONDS and may raise. `tell` gets each line of
    standard error as it comes. When the wait ends early, the program and its children are ended too. Raises
    CommandFailed (unless `check` is false; also when standard output was cut), DeadlinePassed, Cancelled,
    HostError.
    """
    words = tuple(str(word) for word in argv)
    shown = shlex.join(words)
    shown = shown if len(shown) < 300 else shown[:300] + " …"
    with contextlib.ExitStack() as streams, tempfile.TemporaryFile() as feed:
        feed.write(input or b"")
        feed.seek(0)
        sink = log.open("ab") if log else None
        start = time.monotonic()
        try:
            child = subprocess.Popen(
                words,
                stdin=feed,
                stdout=sink or subprocess.PIPE,
                stderr=sink or subprocess.PIPE,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        except OSError as error:
            what = (
                f"{words[0]} is not installed"
                if isinstance(error, FileNotFoundError) and error.filename == words[0]
                else str(error)
            )
            raise HostError(f"{shown}: {what}") from error
        finally:
            if sink:
                sink.close()

        def look() -> None:
            deadline.check(shown)
            if watch:
                watch()

        both = [_Stream(pipe, to, look) for pipe, to in ((child.stdout, out), (child.stderr, err)) if pipe]
        for stream in both:
            streams.callback(stream.close)
        if tell and both:
            both[1].lines = _Lines(tell)
        try:
            _wait(child, deadline, look, both)
        finally:
            _end(child, both)
        (stdout, stdout_cut), (stderr, stderr_cut) = [stream.text() for stream in both] or [("", 0)] * 2
        result = Result(
            words, child.returncode, stdout, stderr, time.monotonic() - start, stdout_cut, stderr_cut
        )
    if check and result.stdout_cut:
        raise CommandFailed(
            f"{shown}: printed more than the {KEEP_BYTES} bytes that the lab keeps",
            evidence=result.stdout[-4000:],
        )
    if check and result.status:
        tail = log.read_text(errors="replace")[-4000:] if log else result.stderr or result.stdout
        last = next((line for line in reversed(tail.splitlines()) if line.strip()), "no output")
        where = f" (all of it: {log})" if log else ""
        raise CommandFailed(f"{shown}: exit status {result.status}: {last.strip()}{where}", evidence=tail)
    return result


class _Lines:
    """Splits a stream into lines as they come."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell, self.half = tell, b""

    def __call__(self, data: bytes) -> None:
        data = self.half + data
        whole = data if len(data) >= LINE_BYTES else data[: data.rfind(b"\n") + 1]
        self.half = data[len(whole) :]
        for line in whole.decode(errors="replace").splitlines():
            self.tell(line)


class _Stream:
    """One of a program's two streams: passed on as it comes; its end is kept."""

    def __init__(self, pipe: IO[bytes], to: IO[bytes] | None, look: Callable[[], None]) -> None:
        """`look` is called during waits for a slow reader of `to`, and may raise."""
        self.pipe, self.to, self.look = pipe, to, look
        self.lines: _Lines | None = None
        self.kept, self.cut = bytearray(), 0
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> int:
        """Read what is available; returns the number of bytes. Closes the stream at its end."""
        try:
            data = b"" if self.pipe.closed else os.read(self.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return 0
        if not data:
            self.close()
            return 0
        self.kept += data
        if len(self.kept) > 2 * KEEP_BYTES:
            self._trim()
        if self.lines:
            self.lines(data)
        if self.to:
            self._pass_on(self.to, data)
        return len(data)

    def rest(self) -> None:
        """Read what an ended program left in the pipe. Its background processes may go on writing."""
        left = 0 if self.pipe.closed else fcntl.fcntl(self.pipe.fileno(), fcntl.F_GETPIPE_SZ)
        while left > 0 and (took := self.read()):
            left -= took

    def text(self) -> tuple[str, int]:
        """The kept text, and the number of bytes dropped before it."""
        self._trim()
        return self.kept.decode(errors="replace"), self.cut

    def close(self) -> None:
        """Close our end: a process that still writes gets SIGPIPE."""
        self.pipe.close()

    def _trim(self) -> None:
        more = max(0, len(self.kept) - KEEP_BYTES)
        del self.kept[:more]
        self.cut += more

    def _pass_on(self, to: IO[bytes], data: bytes) -> None:
        """Write all of it at the reader's pace; when the reader goes away, close our end."""
        try:
            file = to.fileno()
        except OSError:  # no file descriptor: a test's buffer
            to.write(data)
            return
        poller = select.poll()
        poller.register(file, select.POLLOUT)
        view = memoryview(data)
        try:
            while view:
                if poller.poll(1000 * POLL_SECONDS):
                    # A pipe that is ready takes this much without blocking.
                    with contextlib.suppress(BlockingIOError):
                        view = view[os.write(file, view[: select.PIPE_BUF]) :]
                else:
                    self.look()
        except BrokenPipeError:
            self.close()


def _wait(
    child: subprocess.Popen[bytes], deadline: Deadline, look: Callable[[], None], streams: Sequence[_Stream]
) -> None:
    """Wait until the child has ended; `look` runs every POLL_SECONDS, however much the child prints."""
    end = os.pidfd_open(child.pid)
    try:
        poller = select.poll()
        poller.register(end, select.POLLIN)
        files = {stream.pipe.fileno(): stream for stream in streams}
        for file in files:
            poller.register(file, select.POLLIN)
        looked = time.monotonic()
        while end not in (
            ready := [file for file, _ in poller.poll(1000 * min(POLL_SECONDS, deadline.remaining()))]
        ):
            for file in ready:
                files[file].read()
                if files[file].pipe.closed:
                    poller.unregister(file)
            if not ready or time.monotonic() - looked > POLL_SECONDS:
                look()
                looked = time.monotonic()
        child.wait()
        for stream in streams:
            stream.rest()
    finally:
        os.close(end)


def _end(child: subprocess.Popen[bytes], streams: Sequence[_Stream]) -> None:
    """End a child that still runs, and its process group: SIGTERM first, then SIGKILL.

    What a child that ended by itself left in the background stays: ssh's shared connection is such a process.
    """
    if child.returncode is not None:
        return
    os.killpg(child.pid, signal.SIGTERM)
    until = time.monotonic() + 10
    while child.poll() is None and time.monotonic() < until:
        for stream in streams:
            stream.to, stream.lines = None, None  # drain what it still prints, or it would block
            stream.read()
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
