# SPDX-License-Identifier: GPL-2.0-only
"""Two labs on one libvirt, and one of them is always being killed.

Each round picks a lab, a command and a fault from a printed seed. The fault happens at a random moment of the
command: a signal to lab.py, a full disk, a libvirtd that is stopped or killed. Then `gc` cleans up after a
kill, and:

* that lab has no guest, process, scratch file or lock that nobody owns;
* nothing of the other lab has changed, in particular its running guest;
* every run that has a run.json is complete.

`make chaos` runs 200 rounds; CI a few. SEED and ROUNDS select them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from numalab.core import state
from numalab.core.process import Deadline
from numalab.guest import guest as guests
from numalab.host.domain import mark
from numalab.host.hypervisor import connect
from numalab.runs import record
from tests.vm.conftest import PATIENCE, Command, until

SMALL = ("--topology", "uma-2g", "--memory", "512M", "--vcpus", "1", "--accel", "tcg")
LEAN = (*SMALL, "--kernel", "6.1")
DISK_GIB = 6
"""The size of a lab's own disk (a tmpfs), which can be full without affecting others."""
NAMES = ("one", "two")
KERNEL = """description: never built to its end
source: {debian-source: '6.1'}
config: [base, '6.1']
apply: [nodirty, stagger]
"""
CASE = """description: threads on one CPU, for the chaos test
source: ours
workload: threads
before: "6.1"
after: "6.1"
sizes:
  quick:
    source: the least that there is
    machines: [{topology: uma-2g, memory: 512MiB, vcpus: 1}]
    params: {threads: 1, mib: 1, seconds: 1, rounds: 1}
    minutes: 4
expect:
  - {metric: pgfault, phase: touch, direction: falls, by: 2}
"""


@dataclass
class Lab:
    """A state directory on a disk of its own."""

    name: str
    run: Command
    case: Path
    ballast: list[Path] = field(default_factory=list)

    @property
    def kernel(self) -> Path:
        """The recipe of a kernel that is not there."""
        return self.case.with_name("6.1-chaos.yml")

    @property
    def place(self) -> Path:
        """The state directory."""
        return self.run.state

    def fill(self) -> None:
        """Use up all space on its disk."""
        path = self.place / "ballast"
        self.ballast.append(path)
        with contextlib.suppress(OSError), path.open("wb") as handle:
            os.posix_fallocate(handle.fileno(), 0, max(1, shutil.disk_usage(self.place).free))
            while True:
                handle.seek(0, os.SEEK_END)
                handle.write(bytes(4096))
                handle.flush()

    def empty(self) -> None:
        """Free that space again."""
        while self.ballast:
            self.ballast.pop().unlink(missing_ok=True)

    def marks(self) -> dict[str, str]:
        """UUIDs of the running domains with a folder in this lab -> guest."""
        deadline = Deadline.after(60)
        return {
            found.uuid: found.name
            for found in connect(None, deadline).marks(deadline)
            if Path(found.directory).is_relative_to(self.place)
        }

    def fingerprint(self) -> dict[str, object]:
        """What must not change while the other lab works. A running guest writes to disks and console."""
        files: dict[str, object] = {}
        for folder, _, names in os.walk(self.place):
            for name in names:
                path = Path(folder) / name
                about = path.lstat()
                live = name in ("console.log",) or name.endswith((".qcow2", ".raw"))
                files[str(path.relative_to(self.place))] = (
                    about.st_ino,
                    *([] if live else [about.st_size, about.st_mtime_ns]),
                )
        return files | {"domains": self.marks()}

    def wrong(self) -> list[str]:
        """Everything without an owner, and incomplete runs."""
        with environment(LAB_STATE=str(self.place)):
            host = connect(None, Deadline.after(60))
            known, unknown = guests.records()
            lines = [f"guest {name}: its record cannot be read" for name in unknown]
            lines += [f"guest {one.spec.name}: not ready" for one in known if not one.ready]
            lines += [f"guest {one.spec.name}: its run is gone" for one in known if not one.kept]
            lines += [
                f"guest {one.spec.name}: no domain" for one in known if not host.running(mark(one.spec))
            ]
            lines += [
                f"guest {name}: half made"
                for name in set(guests.names()) - {one.spec.name for one in known} - set(unknown)
            ]
            owned = {one.spec.uuid for one in known}
            lines += [
                f"domain of {name}: no guest" for uuid, name in self.marks().items() if uuid not in owned
            ]
            lines += [
                f"{path}: half made"
                for path in self.place.rglob("*")
                if path.name.startswith((".making-", ".claim-"))
            ]
            lines += [f"{path}: locked" for path in (self.place / "locks").glob("*") if locked(path)]
            for folder in (self.place / "runs").glob("[!.]*"):
                try:
                    record.read(folder)
                except Exception as error:
                    lines.append(f"{folder}: {error}")
        return lines

    def strays(self) -> list[str]:
        """Processes that work on this lab, except QEMU and the shared SSH connections of running guests."""
        allowed = [f"{self.place}/guests/{name}/" for name in set(self.marks().values())]
        lines = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words, folder = (
                    (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                    (process / "cwd").readlink(),
                )
            except OSError:
                continue
            ours = f"{self.place}/" in words or folder.is_relative_to(self.place)
            if ours and int(process.name) != os.getpid() and not any(text in words for text in allowed):
                lines.append(words.strip())
        return lines


def locked(path: Path) -> bool:
    with path.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


@pytest.fixture
def labs(tmp_path: Path) -> Iterator[list[Lab]]:
    """Two labs; their guests are ended with the test."""
    real, made = state.directory(), []
    # Under nohup(1) SIGHUP is ignored, by lab.py too. A signal that is handled here has its default action again
    # in the programs that we start.
    hang_up = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        for name in ("a", "b"):
            place = tmp_path / name
            place.mkdir()
            if os.geteuid() == 0:  # else it shares the user's disk, which is never filled
                subprocess.run(
                    ["mount", "-t", "tmpfs", "-o", f"size={DISK_GIB}g,mode=0700", "none", place], check=True
                )
            for shared in ("ssh", "bases", "downloads"):
                if (real / shared).exists():
                    (place / shared).symlink_to(real / shared)
            for kind in ("images/debian12", "kernels"):
                (place / kind).mkdir(parents=True)
                for thing in (real / kind).glob("[!.]*"):
                    (place / kind / thing.name).symlink_to(thing)
            case = tmp_path / f"{name}.yml"
            case.write_text(CASE)
            made.append(Lab(name, Command(place), case))
            made[-1].kernel.write_text(KERNEL)
        yield made
    finally:
        signal.signal(signal.SIGHUP, hang_up)
        for lab in made:
            lab.empty()
            for child in lab.run.started:
                if child.poll() is None:
                    child.kill()
                child.communicate()
            lab.run("down", "--all")
            lab.run("gc")
        for lab in made:
            if lab.place.is_mount():
                subprocess.run(["umount", "-l", lab.place], check=True)


def commands(dice: random.Random, lab: Lab) -> list[str]:
    """A command line of lab.py."""
    name = dice.choice(NAMES)
    return list(
        dice.choices(
            [
                ("up", *LEAN, "--name", name),
                ("down", name),
                ("down", "--all"),
                ("gc",),
                ("run", str(lab.case), "--boots", "1", "--accel", "tcg"),
                ("kernel", "build", str(lab.kernel)),
                ("image", "build", "--force", "--accel", "tcg"),
            ],
            weights=[8, 3, 1, 2, 4, 2, 2],
        )[0]
    )


def libvirtd() -> int | None:
    """The libvirtd that the lab started itself, where no init does; a person's libvirtd is left alone."""
    if Path("/run/systemd/system").exists() or os.geteuid() != 0:
        return None
    with contextlib.suppress(OSError, ValueError):
        pid = int(Path("/run/libvirtd.pid").read_text())
        if Path(f"/proc/{pid}").exists():
            return pid
    return None


def signal_to(kind: signal.Signals) -> Callable[[Lab, subprocess.Popen[str]], None]:
    return lambda lab, child: child.send_signal(kind) if child.poll() is None else None


def stop_libvirtd(lab: Lab, child: subprocess.Popen[str]) -> None:
    """Stop libvirtd for a while: it does not answer."""
    if pid := libvirtd():
        os.kill(pid, signal.SIGSTOP)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(25)
        finally:
            os.kill(pid, signal.SIGCONT)


def kill_libvirtd(lab: Lab, child: subprocess.Popen[str]) -> None:
    """Kill libvirtd; the next lab.py starts it again. Its guests keep running."""
    if pid := libvirtd():
        os.kill(pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}").exists(), "libvirtd is gone")


def fill_disk(lab: Lab, child: subprocess.Popen[str]) -> None:
    """Fill this lab's disk, if it has one of its own."""
    if lab.place.is_mount():
        lab.fill()


FAULTS: dict[str, Callable[[Lab, subprocess.Popen[str]], None]] = {
    "none": lambda lab, child: None,
    "kill": signal_to(signal.SIGKILL),
    "hang-up": signal_to(signal.SIGHUP),
    "interrupt": signal_to(signal.SIGINT),
    "term": signal_to(signal.SIGTERM),
    "full disk": fill_disk,
    "libvirtd stopped": stop_libvirtd,
    "libvirtd killed": kill_libvirtd,
}
WEIGHTS = [3, 6, 3, 3, 2, 3, 1, 2]
MOMENTS = {"up": 14.0, "down": 1.5, "gc": 1.5, "run": 45.0, "kernel": 25.0, "image": 30.0}
"""The fault happens within so many seconds: about as long as the command takes, to hit any part of it."""
ENDLESS = {"kernel", "image"}
"""Always interrupted: they take minutes, and other tests run them to their end."""


def test_chaos(labs: list[Lab], seed: int, rounds: int, capsys: pytest.CaptureFixture[str]) -> None:
    dice = random.Random(seed)
    with capsys.disabled():
        print(f"\nchaos: SEED={seed} ROUNDS={rounds}", flush=True)
    for lab in labs:
        result = lab.run("up", *LEAN, "--name", "keeper")
        assert result.returncode == 0, result.stderr
    for number in range(rounds):
        begin = time.monotonic()
        lab, other = labs if dice.random() < 0.5 else labs[::-1]
        words = commands(dice, lab)
        name = dice.choices(list(FAULTS), weights=WEIGHTS)[0]
        if words[0] in ENDLESS and name not in ("kill", "hang-up", "interrupt", "term"):
            name = "kill"
        moment = dice.uniform(0, MOMENTS[words[0]])
        line = (
            f"round {number}: lab {lab.name}: {' '.join(words[:2] if words[0] == 'up' else words)}:"
            f" {name} after {moment:.1f} s"
        )
        before = other.fingerprint()
        code, said = one(lab, words, FAULTS[name], moment)
        ended(lab, line)
        mended = lab.run("gc")
        wrong = [*lab.wrong(), *lab.strays(), *other.wrong()]
        with capsys.disabled():
            print(
                f"{line}: exit {code}; gc: {' / '.join(mended.stdout.splitlines())};"
                f" {time.monotonic() - begin:.0f} s",
                flush=True,
            )
        assert mended.returncode == 0, f"{line}: {mended.stderr}"
        assert not wrong, f"{line}: {wrong}\n{said}\ngc: {mended.stderr}"
        assert other.fingerprint() == before, f"{line}: the other lab is not as it was\n{said}"
        # Python's own exit statuses, before lab.py handles signals.
        early = [-signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP]
        assert code in early or "Traceback" not in said, f"{line}: {said}"
        assert code in (0, 2, 3, 130, -signal.SIGKILL, *early), f"{line}: exit {code}\n{said}"
        if "keeper" not in guests_of(lab):  # it was part of `down --all`
            assert lab.run("up", *LEAN, "--name", "keeper").returncode == 0


def ended(lab: Lab, line: str) -> None:
    """Wait until everything that the command started has ended."""
    until(lambda: not lab.strays(), f"{line}: all programs of its have ended", 60)


def guests_of(lab: Lab) -> set[str]:
    return set(lab.marks().values())


def one(
    lab: Lab, words: list[str], fault: Callable[[Lab, subprocess.Popen[str]], None], moment: float
) -> tuple[int, str]:
    """Run a command, cause the fault, wait for the end; returns exit status and standard error."""
    child = lab.run.start(*words)
    lab.run.started.remove(child)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(moment)
        if child.poll() is None:
            fault(lab, child)
        _, said = child.communicate(timeout=PATIENCE)
        return child.returncode, said
    finally:
        lab.empty()
        if child.poll() is None:
            child.kill()
            child.communicate()
