# SPDX-License-Identifier: GPL-2.0-only
"""The user that QEMU runs as: libvirt's own where it may enter the state directory, and what it may read."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.cli import guest as guest_commands
from numalab.core import state
from numalab.core.errors import HostError
from numalab.core.process import Deadline
from numalab.guest import launch
from numalab.host import qemu_user
from numalab.host.hypervisor import Capabilities
from numalab.host.remote import Where
from numalab.maintenance import doctor
from numalab.model.guest import DiskFile
from tests.unit import makers
from tests.unit.guest import test_guest
from tests.unit.guest.test_guest import request
from tests.unit.makers import FakeHost, record

host = test_guest.host
ME = (os.getuid(), os.getgid())
OTHER = (ME[0] + 4711, ME[1] + 4711)
"""libvirt's user. Only root can give files away, so chown is recorded and not done."""
GROUP = 4712
TRY = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
"""A setpriv that runs the program as the same user."""


class RootHost(FakeHost):
    """The system instance of this machine, used by root."""

    def owner(self, deadline: Deadline) -> tuple[int, int]:  # type: ignore[override]
        """The owner, as under the system instance."""
        return 0, 0

    def capabilities(self, deadline: Deadline) -> Capabilities:
        """What runs a guest there."""
        return Capabilities(emulator="/usr/bin/qemu-system-x86_64", machines=frozenset(), confined_by=())


class Given(dict[Path, tuple[int, int]]):
    """Recorded calls of chown."""

    def mode(self, path: Path) -> tuple[int | None, str]:
        """A path's new group, and its mode."""
        return self.get(path, (0, None))[1], f"{path.stat().st_mode & 0o777:o}"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, program: Callable[[str, str], Path], tmp_path: Path) -> Given:
    """A host with libvirt's user for QEMU, and setpriv."""
    program("setpriv", TRY)
    given = Given()
    user = pwd.struct_passwd(("libvirt-qemu", "x", *OTHER, "", "/", "/bin/false"))
    monkeypatch.setattr(pwd, "getpwnam", {"libvirt-qemu": user}.__getitem__)
    monkeypatch.setattr(
        pwd,
        "getpwuid",
        {OTHER[0]: user, 0: pwd.struct_passwd(("root", "x", 0, 0, "", "/root", "/bin/sh"))}.__getitem__,
    )
    monkeypatch.setattr(grp, "getgrnam", lambda name: grp.struct_group((name, "x", GROUP, [])))
    monkeypatch.setattr(os, "getgrouplist", lambda name, group: [group, GROUP])

    def chown(path: Path, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        given[Path(path)] = (uid, gid)

    monkeypatch.setattr(os, "chown", chown)
    return given


def files() -> list[Path]:
    """An image's disk and a kernel in the state directory, readable as their programs made them."""
    paths = [state.folder("images", "i", "1") / "disk.qcow2", state.folder("kernels", "k") / "bzImage"]
    for path in paths:
        path.write_text("x")
        path.chmod(0o644)
    return paths


def test_libvirts_user_is_taken(given: Given, deadline: Deadline) -> None:
    disk, kernel = files()
    state.folder("runs").chmod(0o755)
    (state.directory() / "lab-id").touch()
    (state.directory() / "lab-id").chmod(0o644)
    chosen = qemu_user.let_in(RootHost().real(), [disk, kernel], deadline)
    assert (chosen.owner, chosen.name, chosen.avoidable) == (OTHER, "libvirt-qemu", False)
    for folder in (
        disk.parent,
        disk.parent.parent,
        disk.parent.parent.parent,
        kernel.parent,
        kernel.parent.parent,
    ):
        assert given.mode(folder) == (GROUP, "710"), folder
    assert given.mode(disk) == given.mode(kernel) == (GROUP, "640")
    assert given.mode(state.folder("runs")) == (
        None,
        "700",
    ), "nothing else is opened, and what stood open is closed"
    assert given.mode(state.directory() / "lab-id") == (None, "600")
    assert state.directory() not in given, "whether that is open is the person's choice"


def test_a_program_can_be_run(given: Given, deadline: Deadline) -> None:
    """That of a guest with an empty node."""
    path = state.folder("emulator") / "qemu-0"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o700)
    assert qemu_user.let_in(RootHost().real(), [path], deadline).owner == OTHER
    assert given.mode(path) == (GROUP, "750")


def test_a_disk_in_the_pool_is_handed_over(given: Given) -> None:
    """The pool's folder contains the machine's name."""
    place = state.folder(f"pool-{state.this_machine()}", "g")
    disk = place / "500TB.raw"
    disk.touch()
    (place / "console.log").touch()
    given_disk = DiskFile(path=str(disk), format="raw", serial="500TB", direct=False)
    guest_spec = makers.spec(directory=str(place)).model_copy(update={"owner": OTHER, "disks": (given_disk,)})
    qemu_user.hand_over(guest_spec, RootHost().real())
    assert given[disk] == OTHER
    assert given.mode(place) == given.mode(place.parent) == (GROUP, "710")


def test_who_chooses_changes_nothing(given: Given, deadline: Deadline) -> None:
    disk, _ = files()
    assert qemu_user.choose(RootHost().real(), deadline).owner == OTHER
    assert not given
    assert given.mode(disk) == (None, "644")


@pytest.mark.parametrize("case", ["closed", "no user", "no group", "setpriv"])
def test_root_stays(
    case: str,
    given: Given,
    deadline: Deadline,
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[[str, str], Path],
) -> None:
    if case == "closed":
        program("setpriv", "echo /root; exit 1")
    elif case == "setpriv":
        program("setpriv", "echo 'setpriv: no such user' >&2; exit 1")
    elif case == "no user":
        monkeypatch.setattr(pwd, "getpwnam", {}.__getitem__)
    else:
        monkeypatch.setattr(os, "getgrouplist", lambda name, group: [group])
    disk, kernel = files()
    chosen = qemu_user.let_in(RootHost().real(), [disk, kernel], deadline)
    reason = {
        "closed": "libvirt-qemu may not enter /root",
        "setpriv": "libvirt-qemu may not enter anything (setpriv: no such user)",
    }.get(case, "there is no user libvirt-qemu or qemu with a group of its own")
    assert (chosen.owner, chosen.name, chosen.reason) == ((0, 0), "root", reason)
    assert not given
    assert (given.mode(disk)[1], given.mode(kernel.parent)[1]) == ("644", "700"), "all is as it was"


def test_a_persons_own_kernel_stays_as_it_is(
    given: Given,
    deadline: Deadline,
    tmp_path: Path,
    program: Callable[[str, str], Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also when it is in the state directory, or linked from the lab's folders."""
    disk, _ = files()
    outside, inside = tmp_path / "bzImage", state.directory() / "mine"
    for path in (outside, inside):
        path.touch()
        path.chmod(0o600)
    link = state.folder("kernels", "k") / "link"
    link.symlink_to(outside)
    program("setpriv", f'case "$*" in *" -r "*) echo {outside}; exit 1;; esac\n{TRY}')
    chosen = qemu_user.let_in(RootHost().real(), [disk, outside, inside, link], deadline)
    assert (chosen.owner, chosen.reason) == ((0, 0), f"libvirt-qemu may not read {outside}")
    assert f"QEMU runs as root: libvirt-qemu may not read {outside}" in caplog.text
    assert given.mode(outside) == given.mode(inside) == (None, "600")


def test_a_file_system_without_owners(
    given: Given, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(os, "chown", refuse)
    disk, kernel = files()
    chosen = qemu_user.let_in(RootHost().real(), [disk, kernel], deadline)
    assert chosen.owner == (0, 0)
    assert chosen.reason.endswith("Operation not permitted")
    made = makers.spec(owner=OTHER, directory=str(state.folder("guests", "g")))
    (state.folder("guests", "g") / "root.qcow2").touch()
    with pytest.raises(HostError, match=r"guests/g.*: cannot be given to libvirt-qemu: "):
        qemu_user.hand_over(made, RootHost().real())


class Elsewhere(RootHost):
    """The same on another machine."""

    where = Where("root@there")


def test_elsewhere_and_without_root_all_is_as_it_was(
    given: Given, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, kernel = files()
    monkeypatch.setattr(
        pwd, "getpwuid", lambda uid: pwd.struct_passwd(("me", "x", uid, 1, "", "/", "/bin/sh"))
    )
    assert qemu_user.let_in(Elsewhere().real(), [disk, kernel], deadline).owner == (0, 0)
    assert qemu_user.let_in(FakeHost().real(), [disk, kernel], deadline).owner is None
    monkeypatch.setattr(RootHost, "owner", lambda *_: (1000, 1001))
    chosen = qemu_user.let_in(RootHost().real(), [disk, kernel], deadline)
    assert (chosen.owner, chosen.name, chosen.avoidable) == ((1000, 1001), "me", False)
    assert not given


def test_what_a_guest_writes_is_given_to_its_qemu(
    given: Given,
    deadline: Deadline,
    host: FakeHost,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its disks and console log; the record and the inventory, which root's Ansible reads, stay the lab's."""
    at = RootHost()
    made = launch.up(request(), at.real(), deadline)
    assert made.record.spec.owner == OTHER
    assert f"<label>+{OTHER[0]}:+{OTHER[1]}</label>" in (made.directory / "domain.xml").read_text()
    for path in (made.console_log, *(Path(disk.path) for disk in made.record.spec.disks)):
        assert (given[path], f"{path.stat().st_mode & 0o777:o}") == (OTHER, "600"), path
    assert given.mode(made.directory) == given.mode(made.directory.parent) == (GROUP, "710")
    assert {path for path, (uid, _) in given.items() if uid == OTHER[0]} == {
        made.console_log,
        *(Path(disk.path) for disk in made.record.spec.disks),
    }
    monkeypatch.setattr(guest_commands, "reach", lambda _: made)
    guest_commands.status("g")
    assert "QEMU user     libvirt-qemu\n" in capsys.readouterr().out


@pytest.mark.parametrize("closed", [True, False])
def test_doctor(
    closed: bool,
    given: Given,
    deadline: Deadline,
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[[str, str], Path],
) -> None:
    if closed:
        program("setpriv", "echo /root; exit 1")
    monkeypatch.setattr(doctor, "connect", lambda *_: RootHost().real())
    fact = next(fact for fact in doctor._libvirt(None, deadline) if fact.name == "QEMU user")
    opened = f"libvirt-qemu: it may enter {state.directory()} (with mode 700 there, QEMU is root)"
    assert fact.value == ("root: libvirt-qemu may not enter /root" if closed else opened)
    assert (fact.good, fact.needed) == (not closed, False)
    assert "chmod 711 it if it is the lab's, else set LAB_STATE" in fact.mend


def test_what_qemu_writes_in_a_guests_folder() -> None:
    plain = record("g").spec
    assert [path.name for path in qemu_user.written(plain)] == ["console.log"]
    counted = plain.model_copy(update={"instructions": "/lab/emulator/instructions.so"})
    assert [path.name for path in qemu_user.written(counted)] == ["console.log", "symbols", "profile"]
