# SPDX-License-Identifier: GPL-2.0-only
"""Programs on the host: run to their end, however they end, with nothing left of them."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from numalab.core import process
from numalab.core.errors import Cancelled, CommandFailed, DeadlinePassed, HostError
from numalab.core.process import Deadline, need, run
from numalab.core.state import alive
from tests.unit.makers import Written

FAMILY = "echo $$ >> pids; sh -c 'echo $$ >> pids; exec sleep 1000' & wait"
"""A shell with a child; both write their ids."""
STUBBORN = "echo $$ >> pids; sh -c 'trap \"\" TERM; echo $$ >> pids; exec sleep 1000' & wait"
"""The same, with a child that ignores SIGTERM."""


class Stop(Exception):
    """Raised by the tests' watches."""


def gone(place: Path) -> bool:
    """Whether the two processes that wrote their ids have ended, or do so shortly."""
    pids = [int(word) for word in (place / "pids").read_text().split()]
    assert len(pids) == 2
    end = time.monotonic() + 5
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return not left


def until_both(place: Path, then: Callable[[], None]) -> Callable[[], None]:
    """A watch that acts once both processes run."""

    def watch() -> None:
        if (place / "pids").exists() and len((place / "pids").read_text().split()) == 2:
            then()

    return watch


def stop() -> None:
    raise Stop


def test_status_and_streams(deadline: Deadline) -> None:
    result = run(["sh", "-c", "echo out; echo err >&2; exit 3"], deadline=deadline, check=False)
    assert (result.status, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert result.argv == ("sh", "-c", "echo out; echo err >&2; exit 3")
    assert run(["sh", "-c", "kill -9 $$"], deadline=deadline, check=False).status == -9


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo first >&2; echo why >&2; echo >&2; exit 3", "exit status 3: why"),
        ("echo only out; exit 1", "exit status 1: only out"),
        ("exit 2", "exit status 2: no output"),
    ],
)
def test_a_failure_says_why(script: str, said: str, deadline: Deadline) -> None:
    with pytest.raises(CommandFailed, match=f"{said}$") as caught:
        run(["sh", "-c", script], deadline=deadline)
    assert str(caught.value).startswith("sh -c ")
    assert "\n" not in str(caught.value)


def test_a_long_command_is_not_said_in_full(deadline: Deadline) -> None:
    with pytest.raises(CommandFailed) as caught:
        run(["sh", "-c", f"exit 1 # {'x' * 9999}"], deadline=deadline)
    assert str(caught.value).startswith("sh -c 'exit 1 # xxx")
    assert len(str(caught.value)) < 400


def test_input_environment_and_folder(tmp_path: Path, deadline: Deadline) -> None:
    result = run(
        ["sh", "-c", "cat; echo $COLOUR; pwd"],
        deadline=deadline,
        input=b"fed\n",
        env={"COLOUR": "blue"},
        cwd=tmp_path,
    )
    assert result.stdout == f"fed\nblue\n{tmp_path.resolve()}\n"
    assert run(["cat"], deadline=deadline).stdout == "", "without input, a program reads none of ours"


def test_much_output(deadline: Deadline) -> None:
    """More than a pipe holds, on both streams at once; invalid UTF-8 is still text."""
    script = (
        "import sys; [(sys.stdout.write('o' * 9999), sys.stderr.write('e' * 9999)) for _ in range(300)];"
        " sys.stdout.buffer.write(b'\\xff')"
    )
    result = run([sys.executable, "-c", script], deadline=deadline)
    assert (len(result.stdout), len(result.stderr)) == (2999701, 2999700)
    assert result.stdout.endswith("\ufffd")


@pytest.fixture
def little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "KEEP_BYTES", 1000)


@pytest.mark.usefixtures("little_is_kept")
def test_the_end_of_what_is_too_much_is_kept(deadline: Deadline) -> None:
    result = run([sys.executable, "-c", "print('o' * 500000, 'end', end='')"], deadline=deadline, check=False)
    assert (result.stdout, result.stdout_cut, result.stderr, result.stderr_cut) == (
        "o" * 996 + " end",
        500004 - 1000,
        "",
        0,
    )
    result = run([sys.executable, "-c", "import sys; sys.stderr.write('e' * 5000)"], deadline=deadline)
    assert (result.stderr, result.stderr_cut) == ("e" * 1000, 4000)
    with pytest.raises(CommandFailed, match="printed more than the 1000 bytes that the lab keeps"):
        run([sys.executable, "-c", "print('o' * 1001)"], deadline=deadline)
    assert run([sys.executable, "-c", "print('o' * 999)"], deadline=deadline).stdout_cut == 0


def test_what_never_ends_is_watched_and_takes_no_memory(deadline: Deadline) -> None:
    """The program prints all the time, so only the clock triggers the watch."""

    def most() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before, end = most(), time.monotonic() + 3

    def watch() -> None:
        if time.monotonic() > end:
            raise Stop

    with pytest.raises(Stop):
        run(["cat", "/dev/zero"], deadline=deadline, watch=watch)
    assert (most() - before) * 1024 < 8 * process.KEEP_BYTES


@pytest.mark.usefixtures("little_is_kept")
def test_streams_pass_through_as_they_come(tmp_path: Path, deadline: Deadline) -> None:
    """The program waits until somebody has seen its first line, on each stream."""
    script = "echo out; echo err >&2; until [ -e go ]; do sleep 0.02; done; head -c 100000 /dev/zero; exit 3"
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:

        def watch() -> None:
            if (tmp_path / "out").read_bytes() == b"out\n" and (tmp_path / "err").read_bytes() == b"err\n":
                (tmp_path / "go").touch()

        result = run(
            ["sh", "-c", script], deadline=deadline, cwd=tmp_path, watch=watch, out=out, err=err, check=False
        )
    assert (tmp_path / "out").read_bytes() == b"out\n" + bytes(100000)
    assert (result.status, len(result.stdout), result.stdout_cut, result.stderr) == (3, 1000, 99004, "err\n")


def test_a_buffer_gets_a_stream_too(deadline: Deadline) -> None:
    out, err = io.BytesIO(), io.BytesIO()
    run(["sh", "-c", "echo out; echo err >&2"], deadline=deadline, out=out, err=err)
    assert (out.getvalue(), err.getvalue()) == (b"out\n", b"err\n")


@pytest.fixture
def pipe() -> Iterator[tuple[int, IO[bytes]]]:
    """Both ends of a pipe: a descriptor to read, a file to write."""
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb", buffering=0) as writer:
        yield ours, writer
    with contextlib.suppress(OSError):
        os.close(ours)


def test_who_reads_slowly_does_not_hold_up_the_deadline(pipe: tuple[int, IO[bytes]]) -> None:
    with pytest.raises(DeadlinePassed):
        run(["cat", "/dev/zero"], deadline=Deadline.after(1), out=pipe[1])


def test_a_reader_that_goes_away_is_the_programs_to_mind(
    pipe: tuple[int, IO[bytes]], deadline: Deadline
) -> None:
    """As in a pipeline: SIGPIPE for a program that goes on writing; another ends with its own status."""
    os.close(pipe[0])
    assert run(["cat", "/dev/zero"], deadline=deadline, out=pipe[1], check=False).status == -signal.SIGPIPE
    assert run(["sh", "-c", "echo out; exit 3"], deadline=deadline, out=pipe[1], check=False).status == 3


@pytest.mark.usefixtures("little_is_kept")
def test_a_line_without_an_end_is_told_in_parts(monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    monkeypatch.setattr(process, "LINE_BYTES", 1000)
    seen: list[str] = []
    run(
        [sys.executable, "-c", "import sys; sys.stderr.write('e' * 5000000 + '\\nlast\\n')"],
        deadline=deadline,
        tell=seen.append,
    )
    assert "".join(seen) == "e" * 5000000 + "last"
    assert max(map(len, seen)) <= 1000 + (1 << 16)


def test_what_the_background_prints_is_not_waited_for(tmp_path: Path, deadline: Deadline) -> None:
    """It holds the program's pipes and writes to them for ever."""
    result = run(["sh", "-c", "yes & echo $! > pid; echo first"], deadline=deadline, cwd=tmp_path)
    assert "first" in result.stdout.splitlines()
    until = time.monotonic() + 10
    while alive(int((tmp_path / "pid").read_text())):
        assert time.monotonic() < until, "nobody reads it any more"
        time.sleep(0.01)


def test_log(tmp_path: Path, deadline: Deadline) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    result = run(["sh", "-c", "echo out; echo err >&2"], deadline=deadline, log=log)
    assert log.read_text() == "before\nout\nerr\n"
    assert (result.stdout, result.stderr) == ("", "")
    with pytest.raises(CommandFailed, match=f"exit status 1: why .all of it: {log}") as caught:
        run(["sh", "-c", "echo why; exit 1"], deadline=deadline, log=log)
    assert caught.value.evidence.endswith("err\nwhy\n")


def test_a_missing_program(monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(HostError, match="no-such-program is not installed"):
        run(["no-such-program"], deadline=deadline)
    with pytest.raises(HostError, match="no-such-program is not installed: apt-get install a-package"):
        need("no-such-program", "a-package")
    assert Path(need("sh", "dash")).is_absolute()


def test_a_missing_folder_is_no_missing_program(tmp_path: Path, deadline: Deadline) -> None:
    with pytest.raises((HostError, OSError)) as caught:
        run(["true"], deadline=deadline, cwd=tmp_path / "gone")
    assert "not installed" not in str(caught.value)


@pytest.mark.parametrize("script", [FAMILY, STUBBORN], ids=["family", "stubborn"])
def test_watch_ends_all(script: str, tmp_path: Path, deadline: Deadline) -> None:
    with pytest.raises(Stop):
        run(["sh", "-c", script], deadline=deadline, cwd=tmp_path, watch=until_both(tmp_path, stop))
    assert gone(tmp_path)


def test_cancel_ends_all(tmp_path: Path, deadline: Deadline) -> None:
    with pytest.raises(Cancelled, match=r"sh -c .*: cancelled"):
        run(
            ["sh", "-c", FAMILY],
            deadline=deadline,
            cwd=tmp_path,
            watch=until_both(tmp_path, deadline.cancel.set),
        )
    assert gone(tmp_path)


def test_the_deadline_ends_all(tmp_path: Path) -> None:
    with pytest.raises(DeadlinePassed, match=r"sh -c .*: the time limit passed"):
        run(["sh", "-c", FAMILY], deadline=Written.to(tmp_path / "pids", words=2), cwd=tmp_path)
    assert gone(tmp_path)


def test_what_an_ended_program_left_in_the_background_stays(tmp_path: Path, deadline: Deadline) -> None:
    """ssh's shared connection (ControlPersist) is such a process; nobody waits for it."""
    run(["sh", "-c", "sleep 1000 & echo $! > pid"], deadline=deadline, cwd=tmp_path)
    pid = int((tmp_path / "pid").read_text())
    try:
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_passed_deadline_starts_no_wait(deadline: Deadline) -> None:
    with pytest.raises(DeadlinePassed):
        run(["sleep", "1000"], deadline=Deadline.after(0))
    deadline.cancel.set()
    with pytest.raises(Cancelled):
        run(["sleep", "1000"], deadline=deadline)


def test_deadlines() -> None:
    far, passed = Deadline.after(1000), Deadline.after(-1)
    assert 900 < far.remaining() <= 1000
    assert passed.remaining() == 0
    assert far.within(10).remaining() <= 10
    assert far.within(5000).at == far.at
    assert far.grace(10).at == far.at + 10
    assert 9 < passed.grace(10).remaining() <= 10
    assert all(other.cancel is far.cancel for other in (far.within(1), far.grace(1)))
    far.check("this")
    passed.pause(1000)  # returns at once, or this test never ends
    with pytest.raises(DeadlinePassed, match="that: the time limit passed"):
        passed.check("that")
    far.cancel.set()
    far.pause(1000)
    with pytest.raises(Cancelled, match="this: cancelled"):
        far.check("this")


def test_cancel_is_shared() -> None:
    cancel = threading.Event()
    assert Deadline.after(1, cancel).cancel is cancel
    assert Deadline.after(1).cancel is not Deadline.after(1).cancel


def test_lines_are_told_while_the_program_runs(tmp_path: Path, deadline: Deadline) -> None:
    """The program waits for what we do after a line, so it cannot have ended before."""
    seen: list[str] = []

    def tell(line: str) -> None:
        seen.append(line)
        (tmp_path / f"go{len(seen)}").touch()

    script = (
        "echo one >&2; until [ -e go1 ]; do sleep 0.02; done; printf tw >&2; sleep 0.6; [ ! -e go2 ] &&"
        " printf 'o\\n\\nthree\\n' >&2"
    )
    result = run(["sh", "-c", script], deadline=deadline, cwd=tmp_path, tell=tell)
    assert seen == ["one", "two", "", "three"], "half a line waits for its other half"
    assert result.stderr == "one\ntwo\n\nthree\n", "and all of it is in the result"


def test_only_standard_error_is_told(deadline: Deadline) -> None:
    seen: list[str] = []
    run(["sh", "-c", "echo out"], deadline=deadline, tell=seen.append)
    assert not seen
    run(["sh", "-c", "printf half >&2"], deadline=deadline, tell=seen.append)
    assert not seen, "what never became a line"
    run(["sh", "-c", "printf 'a\\377b\\n' >&2; echo last >&2"], deadline=deadline, tell=seen.append)
    assert seen == ["a\ufffdb", "last"], "also what comes right before the end"


def test_who_is_told_may_stop_it(tmp_path: Path, deadline: Deadline) -> None:
    def tell(_: str) -> None:
        raise Stop

    family = "echo $$ >> pids; sh -c 'echo $$ >> pids; echo go >&2; exec sleep 1000' & wait"
    with pytest.raises(Stop):
        run(["sh", "-c", family], deadline=deadline, cwd=tmp_path, tell=tell)
    assert gone(tmp_path)
