# SPDX-License-Identifier: GPL-2.0-only
"""Tests with a real libvirt, each in a state directory of its own that links the built images."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from numalab.core import state
from numalab.core.paths import ROOT
from numalab.core.process import Deadline
from numalab.host.hypervisor import connect

PATIENCE = 240.0
"""Seconds after which a test gives up; none should take nearly as long."""

GUEST_BYTES = 6 << 30
"""The largest guest of a test here (test_shapes.SMALL_MEMORY)."""


@dataclass
class Command:
    """lab.py as a user types it, with this test's state directory."""

    state: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "LAB_STATE": str(self.state), "COLUMNS": "200"}

    def __call__(self, *words: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "lab.py", *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [ROOT / "lab.py", *words], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(child)
        return child

    def guests(self) -> set[str]:
        """Guests that have a folder in this test's state."""
        return {path.name for path in (self.state / "guests").glob("*")}

    def domains(self) -> set[str]:
        """Running domains with a folder in this test's state."""
        deadline = Deadline.after(60)
        marks = connect(None, deadline).marks(deadline)
        return {mark.name for mark in marks if Path(mark.directory).is_relative_to(self.state)}

    def processes(self) -> list[str]:
        """Command lines of QEMU and build tools that contain this test's state directory."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self.state) in words and (
                "qemu" in words or "packer" in words or "mmdebstrap" in words or "ssh" in words
            ):
                found.append(words)
        return found

    def left(self) -> list[str]:
        """Whatever is left of guests: folders, domains, processes."""
        return [*self.guests(), *self.domains(), *self.processes()]


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: three tests for two CPUs, since some wait for a limit, as far as memory goes. Most guests here
    are of one CPU and 512 MiB."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)) * 3 // 2, memory // GUEST_BYTES))


@pytest.fixture(scope="session")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The accelerator's probes, passed on from test to test: where KVM hangs, each takes seconds."""
    memory = tmp_path_factory.mktemp("probes") / "accel.json"
    known = state.directory() / "cache" / "accel.json"
    if known.exists():
        shutil.copy(known, memory)
    return memory


@pytest.fixture(scope="session")
def ready_states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The session's ready states: one is made for all tests that take such a guest."""
    place = tmp_path_factory.mktemp("ready")
    yield place
    shutil.rmtree(place)  # hundreds of MB


@pytest.fixture
def lab_py(tmp_path: Path, probes: Path, ready_states: Path) -> Iterator[Command]:
    """lab.py with a fresh state directory; guests left by a failed test are ended afterwards."""
    real = state.directory()
    place = tmp_path / "state"
    place.mkdir()
    for shared in ("ssh", "bases", "kernels", "downloads"):
        if (real / shared).exists():
            (place / shared).symlink_to(real / shared)
    # Images one by one: gc in this state must not remove images of the real one that another checkout uses.
    for image in (real / "images").glob("*/[!.]*"):
        (place / "images" / image.parent.name).mkdir(parents=True, exist_ok=True)
        (place / "images" / image.parent.name / image.name).symlink_to(image)
    (place / "ready").symlink_to(ready_states)
    own = place / "cache" / "accel.json"
    if probes.exists():
        own.parent.mkdir(mode=0o700)
        shutil.copy(probes, own)
    command = Command(place)
    yield command
    if own.exists():
        shutil.copy(own, probes)
    for child in command.started:
        if child.poll() is None:
            child.kill()
        child.communicate()
    command("down", "--all")
    command("gc")


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.2)


def interrupt(child: subprocess.Popen[str], kind: signal.Signals) -> tuple[int, str]:
    """Send a signal; returns exit status and standard error."""
    child.send_signal(kind)
    _, said = child.communicate(timeout=PATIENCE)
    return child.returncode, said
