# SPDX-License-Identifier: GPL-2.0-only
"""QEMU's plugin: compiled once for each interface of QEMU's, and where it is not to be had."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.core.process import Deadline
from numalab.host import instructions
from numalab.host.hypervisor import Capabilities
from numalab.host.remote import Where
from tests.unit.makers import FakeHost


class Qemu(FakeHost):
    """A host with that program as QEMU."""

    def __init__(self, qemu: str, ssh: str = "", confined_by: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.where = Where(ssh)
        self.can = Capabilities(emulator=qemu, machines=frozenset(), confined_by=confined_by)

    def capabilities(self, deadline: Deadline) -> Capabilities:
        """What libvirt says."""
        return self.can


@pytest.mark.usefixtures("lab_state")
@pytest.mark.parametrize(
    ("host", "why"),
    [
        (Qemu("/bin/true", ssh="root@far"), "root@far is another machine"),
        (Qemu("/bin/true", confined_by=("apparmor",)), "apparmor does not let QEMU load programs"),
        (Qemu("/bin/false"), "exit status 1"),
    ],
)
def test_not_to_be_had(host: Qemu, why: str, deadline: Deadline, caplog: pytest.LogCaptureFixture) -> None:
    assert instructions.plugin(host.real(), deadline) == ""
    (line,) = caplog.messages
    assert "instructions are not counted" in line
    assert why in line


@pytest.mark.usefixtures("lab_state")
def test_a_qemu_that_hangs(
    deadline: Deadline,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    program: Callable[[str, str], Path],
) -> None:
    monkeypatch.setattr(instructions, "TRY_SECONDS", 0.5)
    host = Qemu(str(program("qemu", "exec sleep 60"))).real()
    assert instructions.plugin(host, deadline) == ""
    assert "did not load it" in caplog.text


@pytest.mark.usefixtures("lab_state")
def test_a_host_without_a_compiler(
    deadline: Deadline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert instructions.plugin(Qemu("/bin/true").real(), deadline) == ""
    assert "no C compiler" in caplog.text


def test_compiled_once(lab_state: Path, deadline: Deadline) -> None:
    host = Qemu("/bin/true").real()
    first = Path(instructions.plugin(host, deadline))
    made = first.stat().st_mtime_ns
    assert Path(instructions.plugin(host, deadline)) == first
    assert first.stat().st_mtime_ns == made
    assert first.is_relative_to(lab_state / "emulator")


@pytest.mark.usefixtures("lab_state")
@pytest.mark.parametrize(("newest", "loaded"), [(7, 7), (6, 3)])
def test_the_newest_interface_that_qemu_has(
    deadline: Deadline, program: Callable[[str, str], Path], newest: int, loaded: int
) -> None:
    """QEMU refuses a plugin of an interface newer than its own, and one that it has no longer."""
    refuses = f'case "$*" in *instructions-{loaded}-*) ;; *) echo "supports {newest}" >&2; exit 1;; esac'
    path = Path(instructions.plugin(Qemu(str(program("qemu", refuses))).real(), deadline))
    symbols = ctypes.CDLL(str(path), mode=os.RTLD_LAZY)
    assert ctypes.c_int.in_dll(symbols, "qemu_plugin_version").value == loaded


@pytest.mark.usefixtures("lab_state")
def test_each_refusal_is_shown(
    deadline: Deadline, program: Callable[[str, str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    refuses = 'case "$*" in *instructions-7-*) echo "only up to 2";; *) echo "at least 9";; esac >&2; exit 1'
    assert instructions.plugin(Qemu(str(program("qemu", refuses))).real(), deadline) == ""
    assert "only up to 2; at least 9" in caplog.text
