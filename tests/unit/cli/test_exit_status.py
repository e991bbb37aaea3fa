# SPDX-License-Identifier: GPL-2.0-only
"""Each row of the table of exit statuses in docs/verdicts.md, from the command line down to fake guests."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from numalab.cli import case as case_commands
from numalab.cli import guest as guest_commands
from numalab.cli import main, measure, options
from numalab.core import paths
from numalab.core.errors import (
    Cancelled,
    DeadlinePassed,
    Exit,
    GuestError,
    GuestLost,
    HostError,
    InputError,
    KernelOops,
    LabError,
)
from numalab.core.process import Result
from numalab.maintenance import doctor
from numalab.pool import cluster, driver, night
from numalab.pool.queue import Cause
from tests.unit.cli.conftest import LabPy
from tests.unit.experiment.test_run import CASE, CLEAR, NOISE
from tests.unit.experiment.test_run import Lab as FakeLab
from tests.unit.experiment.test_run import lab as fake_lab
from tests.unit.makers import FORWARDS
from tests.unit.pool import fakes

__all__ = ["CASE", "fake_lab"]  # what fixtures take: of the module, and one itself
BEFORE, AFTER = CLEAR
SAME = {BEFORE: CLEAR[BEFORE], AFTER: CLEAR[BEFORE]}
OOPS = KernelOops("guest mine-0: its kernel says: Kernel panic - not syncing", evidence="[ 1.0] RIP: 0")


@pytest.mark.parametrize(
    ("values", "status", "answer"),
    [(CLEAR, 0, "HOLDS"), (SAME, 1, "DOES NOT HOLD: NO CHANGE"), (NOISE, 3, "CANNOT TELL")],
)
def test_a_verdict(
    lab_py: LabPy, case: str, fake_lab: FakeLab, values: dict[str, list[int]], status: int, answer: str
) -> None:
    fake_lab.values = values
    code, out, _ = lab_py("run", case)
    assert (code, f": {answer}\n" in out) == (status, True)


@pytest.mark.parametrize("where", ["up", "tune", "measure"])
@pytest.mark.parametrize(
    ("boot", "arm", "kernel"),
    [(0, "before", BEFORE), (1, "after", AFTER), (2, "after", AFTER), (3, "before", BEFORE)],
)
def test_a_crash_names_its_arm(
    lab_py: LabPy, case: str, fake_lab: FakeLab, where: str, boot: int, arm: str, kernel: str
) -> None:
    """For either arm: a kernel "before" that panics is no regression, and must not end as "does not hold"."""
    fake_lab.breaks[f"{where} {boot}"] = OOPS
    code, out, err = lab_py("run", case, "--seed", str(FORWARDS))
    assert (code, out) == (4, "")
    assert f"error: the {arm} kernel ({kernel}) crashed: guest mine-0: its kernel says: Kernel panic" in err
    assert "    [ 1.0] RIP: 0\n" in err, "the evidence is there too"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (GuestError("phase touch: exit status 1"), 2),
        (GuestLost("guest g: SSH is lost"), 2),
        (DeadlinePassed("boot: the time limit passed"), 2),
        (HostError("no room"), 2),
        (OSError("disk full"), 2),
        (KeyError("spec"), 2),
        (Cancelled("boot: cancelled"), 130),
    ],
)
def test_a_boot_that_breaks(
    lab_py: LabPy, case: str, fake_lab: FakeLab, error: Exception, status: int
) -> None:
    fake_lab.breaks["measure 1"] = error
    code, out, _ = lab_py("run", case)
    assert (code, out) == (status, "")


def test_bad_usage(lab_py: LabPy) -> None:
    assert lab_py("run")[0] == lab_py("nothing")[0] == lab_py("run", "nothing")[0] == 2


def test_a_crash_of_a_single_guest(lab_py: LabPy, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OOPS

    monkeypatch.setattr(measure, "reach", broken)
    assert lab_py("measure", "remote", "--on", "g")[0] == 4


@pytest.mark.parametrize(
    ("does", "status"),
    [
        (7, 7),
        (0, 0),
        (DeadlinePassed("exec: the time limit passed"), 124),
        (OOPS, 125),
        (GuestLost("SSH is lost"), 125),
        (Cancelled("cancelled"), 130),
    ],
)
def test_exec(lab_py: LabPy, monkeypatch: pytest.MonkeyPatch, does: int | LabError, status: int) -> None:
    class Guest:
        def stream(self, command: str, **_: Any) -> Result:
            if isinstance(does, LabError):
                raise does
            return Result((command,), does, "", "", 0.0)

    monkeypatch.setattr(guest_commands, "reach", lambda _: Guest())
    assert lab_py("exec", "g", "--", "true")[0] == status


def test_the_table_has_them_all() -> None:
    table = (
        (paths.ROOT / "docs/verdicts.md").read_text().partition("## Exit statuses")[2].partition("\n## ")[0]
    )
    assert [int(row) for row in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == sorted(Exit)


def test_a_lab_that_is_not_set_up(tmp_path: Path) -> None:
    """Also before numalab is imported: Python's own status for an error is 1."""
    script = tmp_path / "lab.py"
    script.write_bytes((paths.ROOT / "lab.py").read_bytes())

    def ran() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, script, "cases"], capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stderr

    status, err = ran()
    assert (status, "is not set up: make -C" in err) == (2, True)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "numalab.py").write_text("raise ImportError('half installed')\n")
    status, err = ran()
    assert (status, "half installed" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "folder", "known"),
    [
        (("cases",), "testcases", "threads"),
        (("topologies",), "topologies", "4socket"),
        (("kernel", "list"), "kernels", "debian"),
    ],
)
def test_a_list_names_the_files_that_cannot_be_read(
    words: tuple[str, ...],
    folder: str,
    known: str,
    lab_py: LabPy,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """And shows the others all the same."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / f"{known}.yml").write_text(
        (paths.PACKAGE.parent / folder / f"{known}.yml").read_text()
    )
    (tmp_path / folder / "bad.yml").write_text("description: [")
    (tmp_path / folder / "Bad name.yml").write_text("")
    status, out, err = lab_py(*words)
    assert status == 2
    assert known in out
    assert f"{folder}/bad.yml:1: not YAML" in err
    assert f"{folder}/: 'Bad name' is not a name" in err


@pytest.mark.parametrize("words", [("down", "nosuch"), ("verdict", "nosuch"), ("--nonsense",)])
def test_an_error_that_cannot_be_printed(words: tuple[str, ...]) -> None:
    """Standard error on a full disk: a status of 1 would mean "does not hold"."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from numalab.cli.main import main; main()", *words],
            stderr=full,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2


def test_exec_without_an_output(lab_py: LabPy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A status of 2 could be the command's own."""

    class Guest:
        def stream(self, command: str, **_: Any) -> Result:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(guest_commands, "reach", lambda _: Guest())
    assert lab_py("exec", "g", "--", "true")[0] == 125
    monkeypatch.setattr(sys, "stdout", None)
    assert lab_py("exec", "g", "--", "true")[0] == 125


@pytest.mark.parametrize(
    ("words", "error", "line"),
    [
        (
            "up",
            HostError("accelerator kvm: QEMU fails; use tcg or auto", field="accelerator"),
            "--accel kvm: QEMU fails; use tcg or auto",
        ),
        (
            "up",
            InputError("ssh port 22: the port is taken", field="ssh_port"),
            "--ssh-port 22: the port is taken",
        ),
        (
            "up",
            InputError("disk data: 500TiB: use a pool for it", field="storage"),
            "disk data: 500TiB: use a pool for it (--storage)",
        ),
        (
            "measure w",
            InputError("disk data: 500TiB: use a pool for it", field="storage"),
            "disk data: 500TiB: use a pool for it",
        ),
        (
            "kernel build 3.19",
            InputError("source tree /x: is no git tree", field="source_tree"),
            "--source /x: is no git tree",
        ),
        (
            "kernel list",
            InputError("source tree /x: is no git tree", field="source_tree"),
            "source tree /x: is no git tree",
        ),
        ("image build", InputError("base /x: No such file", field="base"), "--base /x: No such file"),
        ("exec up -- up --name x", InputError("name: is wrong", field="name"), "name: is wrong"),
        ("no such", InputError("memory: is wrong", field="memory"), "memory: is wrong"),
    ],
)
def test_a_field_is_shown_as_the_option_that_the_command_has(
    words: str, error: LabError, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options.learn_options(typer.main.get_command(main.app), words.split())
    options.show_error(error)
    assert capsys.readouterr().err == f"lab.py: error: {line}\n"


@pytest.mark.parametrize(
    ("errors", "gravest"),
    [
        ((HostError("a"), OOPS), 1),
        ((HostError("a"), OOPS, Cancelled("b")), 2),
        ((HostError("a"), HostError("b")), 0),
    ],
)
def test_the_gravest_of_several_errors_decides(errors: tuple[LabError, ...], gravest: int) -> None:
    with pytest.raises(LabError) as caught:
        options.fail_with(errors)
    assert caught.value is errors[gravest]
    options.fail_with(())


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_lab_py_loads(kind: signal.Signals) -> None:
    """The signal waits until lab.py handles it, and `cases` has no wait to end. Python's own is 1."""
    with subprocess.Popen(
        [paths.ROOT / "lab.py", "cases"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        # Until it runs in its environment, and imports.
        while b".venv/bin/python" not in Path(f"/proc/{child.pid}/cmdline").read_bytes():
            assert child.poll() is None
        child.send_signal(kind)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")


@pytest.mark.parametrize(
    ("error", "status"),
    [(DeadlinePassed("exec: the time limit passed"), 124), (GuestLost("SSH is lost"), 125)],
)
def test_exec_json_of_a_failure(
    lab_py: LabPy, monkeypatch: pytest.MonkeyPatch, error: LabError, status: int
) -> None:
    """A time limit is an outcome of the command, and JSON; what the lab failed to do is neither."""

    def execute(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(guest_commands, "reach", lambda _: SimpleNamespace(execute=execute))
    code, out, _ = lab_py("exec", "g", "--json", "--", "true")
    assert code == status
    assert ([told["status"], told["timed_out"]] if out and (told := json.loads(out)) else out) == (
        [None, True] if status == 124 else ""
    )


@pytest.mark.parametrize("needed", [True, False])
def test_doctor(lab_py: LabPy, monkeypatch: pytest.MonkeyPatch, needed: bool) -> None:
    lack = doctor.Fact("libvirt", "gone", False, "no guest starts", "install it", needed)
    monkeypatch.setattr(doctor, "examine", lambda *_: [lack])
    code, out, _ = lab_py("doctor")
    assert (code, "LACK  libvirt" in out) == (2 if needed else 0, True)


@pytest.mark.parametrize(
    ("causes", "status"),
    [
        ((None, Cause.CRASH), 4),
        ((Cause.LAB, Cause.CRASH), 4),
        ((None, Cause.LAB), 2),
        ((Cause.INPUT,), 2),
    ],
)
def test_a_night(monkeypatch: pytest.MonkeyPatch, causes: tuple[Cause | None, ...], status: int) -> None:
    """A pool's experiments end as those of this machine do: a crash first, then what the lab failed to do."""
    results = [driver.Result(fakes.order(number, 1), cause=cause) for number, cause in enumerate(causes)]
    client = SimpleNamespace(dashboard_link="", close=lambda **_: None)
    monkeypatch.setattr(cluster, "connect", lambda: client)
    monkeypatch.setattr(night, "make", lambda _: SimpleNamespace(name="n", orders=[]))
    monkeypatch.setattr(driver, "Driver", lambda *_, **__: SimpleNamespace(run=lambda _: results))
    monkeypatch.setattr(case_commands, "on_signals", lambda *_: lambda: None)
    with pytest.raises(typer.Exit) as done:
        case_commands._night(None, [])
    assert done.value.exit_code == status
