# SPDX-License-Identifier: GPL-2.0-only
"""Terminals, readers that go away, and signals, with lab.py as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from numalab.cli import guest as guest_commands
from numalab.cli import measure, terminal
from numalab.cli.progress import Progress
from numalab.core import paths, state
from numalab.core.errors import GuestError
from numalab.core.log import note
from numalab.model.case import Arm
from numalab.runs import record
from tests.unit import synthetic
from tests.unit.cli.conftest import LabPy
from tests.unit.makers import pytest_argv

CASE = synthetic.CASE.model_copy(
    update={"expect": (synthetic.CASE.expect[0].model_copy(update={"phase": "touch"}),)}
)
ESCAPES = "\x1b]0;mine\x07\x1b[2J\x9b31m\u202eevil"
SHOWN = r"\x1b]0;mine\x07\x1b[2J\x9b31m\u202eevil"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ×3 ✓ …", "plain ×3 ✓ …"),
        ("a\tb\nc\n", "a\tb\nc\n"),
        (ESCAPES, SHOWN),
        ("a\r\nb\r\r\n", "a\nb\n"),
        ("over\rwritten\b\x7f", r"over\rwritten\x08\x7f"),
        ("\udc80", r"\udc80"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert terminal.visible(text) == shown


def kept(case_name: str = "mine", **changes: object) -> None:
    """Store an experiment whose verdict holds."""
    for number, (arm, count) in enumerate(
        zip(
            [Arm.BEFORE, Arm.AFTER, Arm.AFTER, Arm.BEFORE, Arm.BEFORE, Arm.AFTER],
            [90, 10, 11, 95, 93, 12],
            strict=True,
        )
    ):
        kernel = {Arm.BEFORE: CASE.before, Arm.AFTER: CASE.after}[arm]
        run = synthetic.run(
            kernel,
            synthetic.phase("touch", vmstat={"numa_pte_updates": count * 1000}),
            boot=number,
            arm=arm,
            case=CASE,
            case_name=case_name,
        )
        folder = state.folder("runs") / run.id
        folder.mkdir()
        for edge, value in (("before", 0), ("after", count * 1000)):
            place = record.phase_folder(folder, 0, "touch") / edge
            place.mkdir(parents=True)
            (place / "vmstat").write_text(f"numa_pte_updates {value}\n")
        (record.phase_folder(folder, 0, "touch") / "stdout").write_text("")
        record.write(run.model_copy(update=changes), folder)


def test_errors_and_their_evidence(lab_py: LabPy, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise GuestError(f"guest g: {ESCAPES}", evidence=f"[ 1.0] {ESCAPES}\r\n[ 2.0] end")

    monkeypatch.setattr(measure, "reach", broken)
    _, _, err = lab_py("measure", "remote", "--on", "g")
    assert err == f"lab.py: error: guest g: {SHOWN}\n    [ 1.0] {SHOWN}\n    [ 2.0] end\n"


@pytest.mark.parametrize("words", [("runs",), ("show", "RUN"), ("verdict", "mine")])
def test_records(lab_py: LabPy, words: tuple[str, ...]) -> None:
    kept(error=ESCAPES)
    folder = str(next(state.folder("runs").iterdir()))
    _, out, _ = lab_py(*(folder if word == "RUN" else word for word in words))
    assert "evil" in out
    assert not set(out) & set("\x1b\x07\x9b\u202e")


def test_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress():
        note(ESCAPES, who="g")
    assert SHOWN in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_console_log(lab_py: LabPy, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    """A file gets the log unchanged."""

    class Guest:
        def console_pieces(self) -> list[str]:
            return [f"{ESCAPES}\r\n"]

    monkeypatch.setattr(guest_commands, "open_guest", lambda _: Guest())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert lab_py("console", "g", "--log")[1] == (f"{SHOWN}\n" if is_terminal else f"{ESCAPES}\r\n")


def process(script: str, **streams: object) -> subprocess.Popen[str]:
    """A Python process, as lab.py is one."""
    return subprocess.Popen([sys.executable, "-c", script], text=True, **streams)  # type: ignore[call-overload, no-any-return]


def lab(*words: str) -> str:
    """The script of a lab.py with these words."""
    return f"import sys; sys.argv = {['lab.py', *words]!r}\nfrom numalab.cli import main\nmain.main()"


@contextmanager
def nobody() -> Iterator[int]:
    """The writing end of a pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


@pytest.mark.parametrize("stream", ["stdout", "stderr", "both"])
def test_a_verdict_that_nobody_reads(stream: str) -> None:
    """`lab.py verdict CASE | true` exits with the verdict's status."""
    kept()
    with nobody() as pipe:
        streams = {name: pipe for name in ("stdout", "stderr") if stream in (name, "both")}
        assert process(lab("verdict", "mine"), **streams).wait(60) == 0


@pytest.mark.parametrize("command", ["cases | true", "cases 2>&1 | head -1", "kernel list | head -1"])
def test_a_command_that_nobody_reads(command: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; ./lab.py {command}"],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


STEPS = """
import sys, time
from pathlib import Path
sys.argv = ["lab.py", "cases"]
from numalab.cli import main
from numalab.model import catalog
from numalab.core.log import note
def names(_):
    for number in range(50):
        note(f"step {number}")
        print("and on standard output", flush=True)
    Path("done").touch()
    return []
catalog.names = names
main.main()
"""


def test_an_experiment_goes_on_without_a_reader(tmp_path: Path) -> None:
    """`run 2>&1 | head -1`: both streams are one pipe, whose reader exits after a line."""
    with process(STEPS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path) as child:
        assert child.stdout
        child.stdout.readline()
        child.stdout.close()
        assert child.wait(60) == 0
    assert (tmp_path / "done").exists()


def test_a_full_disk_is_an_error_of_ours() -> None:
    """Neither Python's own 120 at its exit, nor success."""
    with Path("/dev/full").open("w") as full:
        child = process(lab("cases"), stdout=full, stderr=subprocess.PIPE)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, "No space left on device" in err) == (2, True)
    buffered = (
        "import sys\nfrom numalab.model import catalog\ncatalog.names = lambda _: sys.stdout.write('x') and"
        f" []\n{lab('cases')}"
    )
    with Path("/dev/full").open("w") as full:
        child = process(buffered, stdout=full, stderr=subprocess.PIPE)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, "No space left on device" in err) == (2, True)


WAITS = """
import sys, time
from pathlib import Path
sys.argv = ["lab.py", "cases"]
from numalab.cli import main, terminal
from numalab.model import catalog
from numalab.core.log import note, step
def names(_):
    Path("guest").touch()
    try:
        with step("boot"):
            Path("ready").touch()
            deadline = terminal.limit(60)
            deadline.pause(60)
            deadline.check("boot")
    finally:
        Path("cleaning").touch()
        for number in range(8):
            note(f"step {number} of the clean-up")
            time.sleep(0.1)
        Path("guest").unlink()
catalog.names = names
main.main()
"""


def wait_for(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGHUP),
        (signal.SIGHUP, signal.SIGTERM),
    ],
)
def test_a_second_signal_changes_nothing(
    first: signal.Signals, later: signal.Signals, tmp_path: Path
) -> None:
    child = process(WAITS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    wait_for(tmp_path / "ready")
    child.send_signal(first)
    wait_for(tmp_path / "cleaning")
    for _ in range(3):
        child.send_signal(later)
        time.sleep(0.05)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, "cancelled" in err, "Traceback" in err) == (130, True, False)
    assert not (tmp_path / "guest").exists()


def in_a_terminal(argv: list[str], place: Path, ready: Path) -> int:
    """Run a program in a terminal that is closed once `ready` exists: SIGHUP, and EIO for later writes."""
    child, master = os.forkpty()
    if not child:
        os.chdir(place)
        os.execv(argv[0], argv)
    os.set_blocking(master, False)
    end = time.monotonic() + 60
    while not ready.exists():
        assert time.monotonic() < end
        with suppress(BlockingIOError):
            os.read(master, 65536)
        time.sleep(0.02)
    os.close(master)
    status = 0
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("it did not end")


def test_a_closed_terminal(tmp_path: Path) -> None:
    assert in_a_terminal([sys.executable, "-c", WAITS], tmp_path, tmp_path / "ready") == 130
    assert (tmp_path / "cleaning").exists()
    assert not (tmp_path / "guest").exists()


def test_nohup_goes_on(tmp_path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    child = process(WAITS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, preexec_fn=ignore)
    wait_for(tmp_path / "ready")
    child.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert not (tmp_path / "cleaning").exists()
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 130


PYTEST_WAITS = """
import contextlib, pathlib, time

@contextlib.contextmanager
def guest():
    pathlib.Path("guest").touch()
    try:
        yield
    finally:
        pathlib.Path("cleaning").touch()
        for number in range(8):
            print("clean-up", flush=True)
            time.sleep(0.1)
        pathlib.Path("guest").unlink()

def test_waits():
    with guest():
        pathlib.Path("ready").touch()
        time.sleep(60)
"""


def test_a_closed_terminal_of_pytest(tmp_path: Path) -> None:
    assert in_a_terminal(pytest_argv(tmp_path, PYTEST_WAITS), tmp_path, tmp_path / "ready")
    assert (tmp_path / "cleaning").exists()
    assert not (tmp_path / "guest").exists()


@pytest.mark.parametrize("later", [signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_to_pytest(later: signal.Signals, tmp_path: Path) -> None:
    child = subprocess.Popen(
        pytest_argv(tmp_path, PYTEST_WAITS),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(tmp_path / "ready")
    child.send_signal(signal.SIGINT)
    wait_for(tmp_path / "cleaning")
    child.send_signal(later)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == pytest.ExitCode.INTERRUPTED, out
    assert not (tmp_path / "guest").exists()


@pytest.mark.parametrize("hangup", [signal.SIG_IGN, signal.SIG_DFL])
def test_on_signals_leaves_an_ignored_hangup_alone(hangup: signal.Handlers) -> None:
    before = signal.signal(signal.SIGHUP, hangup)
    try:
        restore = terminal.on_signals(lambda: None, lambda: None)
        assert (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) == (hangup is signal.SIG_IGN)
        restore()
        assert signal.getsignal(signal.SIGHUP) is hangup
    finally:
        signal.signal(signal.SIGHUP, before)
