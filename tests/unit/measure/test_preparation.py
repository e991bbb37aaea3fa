# SPDX-License-Identifier: GPL-2.0-only
"""Prepared disks: made once by what goes into them, whole or not at all, and kept while a guest stands on
them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numalab.core import state
from numalab.core.errors import CommandFailed, HostError, InputError
from numalab.core.process import Deadline, Result
from numalab.guest import guest as guests
from numalab.guest import launch, prepared, provision, ready
from numalab.guest.guest import Guest
from numalab.guest.launch import GuestRequest
from numalab.host import disks as host_disks
from numalab.host import image, ssh
from numalab.host.remote import Where
from numalab.kernel import boot as kernel_boot
from numalab.maintenance import gc
from numalab.measure import preparation, programs, runner
from numalab.measure.preparation import Work
from numalab.model.guest import DiskFile, PreparedDisks
from numalab.model.values import Phase, SizeClass, Value, jsonable
from tests.unit import synthetic
from tests.unit.guest.test_guest import host as host
from tests.unit.guest.test_guest import request
from tests.unit.makers import FakeHost, record

MKFS = Phase(name="mkfs", command="mkfs.xfs /dev/vdb", limit_seconds=9, measured=False, prepares=True)
MARK = Phase(name="fsmark", command="fs_mark -n 9", limit_seconds=9, prepares=True)
COMPILE = Phase(name="compile", command="gcc", limit_seconds=9, measured=False, makes="/root/x")
REPAIR = Phase(name="repair", command="xfs_repair /dev/vdb", limit_seconds=9)
WORK = Work(workload="mine", size=SizeClass.QUICK)
KEY = "0123456789abcdef"


class Params(Value):
    """The workload's parameters."""

    files: int = 9
    bhash: int = 7


def workload(phases: Sequence[Phase] = (MKFS, MARK, REPAIR)) -> Any:
    """A module whose fs_mark and repair have parameters."""

    def made(params: Params) -> tuple[Phase, ...]:
        commands = {"fsmark": f"fs_mark -n {params.files}", "repair": f"xfs_repair -o bhash={params.bhash}"}
        return tuple(
            phase.model_copy(update={"command": commands.get(phase.name, phase.command)}) for phase in phases
        )

    return SimpleNamespace(__file__="mine.py", PARAMS={SizeClass.QUICK: Params()}, phases=made)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, host: FakeHost) -> list[tuple[str, str]]:
    """(guest, command) of what guests are told; disks have what their guest was told."""
    told: list[tuple[str, str]] = []
    before = ssh.Ssh.execute

    def execute(self: ssh.Ssh, command: str, **rest: Any) -> Result:
        told.append((self.guest, command))
        return before(self, command, **rest)

    def over(below: Path, target: Path, *_: object, over: str = "qcow2") -> DiskFile:
        target.write_text(f"over {below}")
        return DiskFile(path=str(target), format="qcow2", serial="root", direct=False)

    base = image.require("debian12", Deadline.after(1))  # the fixture's
    monkeypatch.setattr(image, "pinned", lambda *_: base)
    monkeypatch.setattr(ssh.Ssh, "execute", execute)
    monkeypatch.setattr(ssh.Ssh, "disconnect", lambda *_: None)
    monkeypatch.setattr(host_disks, "overlay", over)
    monkeypatch.setattr(runner, "load", lambda _: workload())
    return told


def made(host: FakeHost, wanted: GuestRequest | None = None, work: Work = WORK) -> PreparedDisks:
    with preparation.disks(wanted or request(), work, host.real(), Deadline.after) as disks:
        return disks


def test_the_phases_that_prepare_are_the_first_ones() -> None:
    later = MKFS.model_copy(update={"name": "later"})
    assert preparation.phases([MKFS, COMPILE, MARK, REPAIR, later]) == (MKFS, MARK)
    assert preparation.phases([REPAIR, MKFS]) == preparation.phases([COMPILE]) == ()


def test_made_once(host: FakeHost, said: list[tuple[str, str]]) -> None:
    """By a guest of their own, which is gone then; their phases alone, and all is on the disk at the end."""
    disks = made(host)
    ours = [command for _, command in said if command in (MKFS.command, MARK.command, preparation.FLUSH)]
    assert ours == [MKFS.command, MARK.command, preparation.FLUSH]
    assert (disks.phases, disks.workload, disks.kernel) == (("mkfs", "fsmark"), "mine", "debian")
    (disk,) = disks.disks
    assert (disk.serial, Path(disk.path).parent) == ("500TB", state.folder("disks") / disks.key)
    assert Path(disk.path).stat().st_mode & 0o777 == 0o600
    assert guests.names() == []
    assert host.domains == {}
    assert host.stopped == [f"disks-{disks.key[:8]}"], "no guest writes to them any more"
    said.clear()
    assert made(host) == disks
    assert said == []


@pytest.mark.parametrize(
    "part",
    [
        "command",
        "program",
        "settings",
        "append",
        "shape",
        "image",
        "kernel",
        "environment",
        "a later phase",
    ],
)
def test_other_disks_for_other_inputs(
    host: FakeHost,
    said: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    deadline: Deadline,
    part: str,
) -> None:
    """What decides what is on them makes others, and only that: how they are repaired does not."""
    if part == "program":
        monkeypatch.setattr(programs, "give", lambda *_: None)
        monkeypatch.setattr(runner, "load", lambda _: workload([COMPILE, MKFS, MARK, REPAIR]))
    first, wanted, work = made(host), request(), WORK
    base = image.require("debian12", deadline)
    if part == "command":
        work = WORK.model_copy(update={"params": {"files": 10}})
    elif part == "a later phase":
        work = WORK.model_copy(update={"params": {"bhash": 8}})
    elif part == "program":
        other = COMPILE.model_copy(update={"command": "gcc -DOTHER"})
        monkeypatch.setattr(runner, "load", lambda _: workload([other, MKFS, MARK, REPAIR]))
    elif part == "settings":
        work = WORK.model_copy(update={"order": provision.Order(sysctls={"vm.swappiness": "1"})})
        monkeypatch.setattr(provision, "apply", lambda *_: {})
    elif part == "append":
        wanted = request(append="quiet")
    elif part == "shape":
        disks = (*wanted.shape.disks, wanted.shape.disks[0].model_copy(update={"name": "more"}))
        wanted = request(shape=wanted.shape.model_copy(update={"disks": disks}))
    elif part == "image":
        newer = base.model_copy(update={"id": "1" * 16})
        monkeypatch.setattr(image, "require", lambda *_: newer)
        monkeypatch.setattr(image, "pinned", lambda *_: newer)
    elif part == "kernel":
        base.file("vmlinuz").write_text("another build")
    else:
        monkeypatch.setattr(Guest, "verify", lambda *_: None)  # whose commands then have that before them
        resolve = kernel_boot.resolve
        monkeypatch.setattr(
            kernel_boot,
            "resolve",
            lambda *words: resolve(*words).model_copy(update={"environment": {"LAB_MKFS_XFS": "mkfs.xfs"}}),
        )
    assert (made(host, wanted, work).key == first.key) == (part == "a later phase")


def test_what_its_guest_has_for_measurements_makes_no_others(
    host: FakeHost, said: list[tuple[str, str]]
) -> None:
    first = made(host)
    assert made(host, request().model_copy(update={"seed": 7, "profiled": True, "clock": None})) == first


def test_phases_have_the_names_of_today(
    host: FakeHost, said: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would do a phase again that was renamed since, on disks where it is done."""
    first, renamed = made(host), MKFS.model_copy(update={"name": "make"})
    monkeypatch.setattr(runner, "load", lambda _: workload([renamed, MARK, REPAIR]))
    assert made(host) == first.model_copy(update={"phases": ("make", "fsmark")})


@pytest.mark.parametrize("command", [MARK.command, preparation.FLUSH])
def test_a_phase_that_fails_leaves_nothing(
    host: FakeHost, said: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Neither does a file system that is still mounted at the end."""
    before = ssh.Ssh.execute

    def execute(self: ssh.Ssh, told: str, **rest: Any) -> Result:
        if told == command:
            return Result((told,), 1, "", "no space left", 0.0)
        return before(self, told, **rest)

    monkeypatch.setattr(ssh.Ssh, "execute", execute)
    with pytest.raises(CommandFailed, match="no space left"):
        made(host)
    assert list(state.folder("disks").iterdir()) == []
    assert guests.names() == []
    assert host.domains == {}


def test_cpus_are_held_while_they_are_made(host: FakeHost, said: list[tuple[str, str]]) -> None:
    held: list[str] = []

    @contextmanager
    def cpus() -> Iterator[None]:
        held.append("taken")
        yield
        held.append("given back")

    for _ in range(2):
        with preparation.disks(request(), WORK, host.real(), Deadline.after, while_made=cpus()):
            assert held == ["taken", "given back"]


def test_no_phase_that_prepares(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "load", lambda _: workload([REPAIR]))
    with pytest.raises(InputError, match="workload mine: no phase of it prepares disks"):
        made(host)


def test_damaged_ones_are_not_used(host: FakeHost, said: list[tuple[str, str]]) -> None:
    """Nor made to look whole."""
    place = Path(made(host).directory)
    (place / "disks.json").unlink()
    with pytest.raises(HostError, match="these prepared disks are damaged"):
        made(host)
    assert not (place / "disks.json").exists()


def test_another_machines_guest(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "load", lambda _: workload())
    monkeypatch.setattr(host, "where", Where(ssh="big"), raising=False)
    with pytest.raises(InputError, match="prepared disks: not with another machine's guests"):
        made(host)


def test_a_guest_stands_on_them(host: FakeHost, said: list[tuple[str, str]], deadline: Deadline) -> None:
    """With overlays of its own; gc leaves them alone, however old they are."""
    disks = made(host)
    guest = launch.up(request().model_copy(update={"prepared": disks}), host.real(), deadline)
    assert guest.record.prepared == disks == guests.read("g").prepared
    assert [(disk.serial, disk.format) for disk in guest.record.spec.disks] == [
        ("root", "qcow2"),
        ("500TB", "qcow2"),
    ]
    assert (guest.directory / "500TB.qcow2").read_text() == f"over {disks.disks[0].path}"
    age(Path(disks.directory))
    assert not [line for line in gc.collect(host.real(), deadline) if "prepared" in line]
    guest.down(deadline)
    assert f"prepared disks {disks.key}: not used for 14 days" in gc.collect(host.real(), deadline)
    assert prepared.places() == []


def test_a_disk_that_no_overlay_holds(host: FakeHost, said: list[tuple[str, str]]) -> None:
    shape = request().shape
    large = shape.disks[0].model_copy(update={"size": 4 * host_disks.QCOW2_MOST})
    with pytest.raises(InputError, match="a qcow2 ends at"):
        made(host, request(shape=shape.model_copy(update={"disks": (large,)})))


def test_a_ready_state_has_its_own_disks(
    host: FakeHost, said: list[tuple[str, str]], deadline: Deadline
) -> None:
    with pytest.raises(InputError, match=r"^ready: not with prepared disks: "):
        ready.up(request().model_copy(update={"prepared": made(host)}), host.real(), deadline)


def put() -> Path:
    """Whole prepared disks."""
    place = state.folder("disks") / KEY
    place.mkdir()
    (place / "500TB.raw").touch()
    disk = DiskFile(path="500TB.raw", format="raw", serial="500TB", direct=False)
    prepared.write(synthetic.disks_of(KEY).model_copy(update={"disks": (disk,)}), place)
    return place


def age(place: Path) -> None:
    """As if they had last been used a month ago."""
    os.utime(place / "disks.json", (time.time() - 31 * state.DAY,) * 2)


def test_those_that_may_be_used_stay(lab_state: Path, deadline: Deadline) -> None:
    place = put()
    assert prepared.read(place).disks[0].path == str(place / "500TB.raw")
    assert gc.collect(FakeHost().real(), deadline) == []
    age(place)
    with state.using(place):
        assert gc.collect(FakeHost().real(), deadline) == []
    assert gc.collect(FakeHost().real(), deadline) == [f"prepared disks {KEY}: not used for 14 days"]


def test_those_of_an_image_that_is_not_current(
    lab_state: Path, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    put()
    monkeypatch.setattr(image, "current", lambda *_: ["0" * 16])
    assert gc.collect(FakeHost().real(), deadline) == []
    monkeypatch.setattr(image, "current", lambda *_: ["1" * 16])
    assert gc.collect(FakeHost().real(), deadline) == [
        f"prepared disks {KEY}: made of an image that is no longer current"
    ]


def test_those_that_are_not_whole(lab_state: Path, deadline: Deadline) -> None:
    place = put()
    (place / "500TB.raw").unlink()
    with pytest.raises(HostError, match="these prepared disks are damaged"):
        prepared.read(place)
    assert gc.collect(FakeHost().real(), deadline) == [f"prepared disks {KEY}: not whole"]


def test_a_newer_labs_go_by_their_age_alone(lab_state: Path, deadline: Deadline) -> None:
    place = put()
    known = json.loads((place / "disks.json").read_text())
    (place / "disks.json").write_text(json.dumps({**known, "format": 99}))
    assert gc.collect(FakeHost().real(), deadline) == []
    age(place)
    assert gc.collect(FakeHost().real(), deadline) == [f"prepared disks {KEY}: not used for 14 days"]


def test_half_made_ones_go(lab_state: Path, deadline: Deadline) -> None:
    """What a dead process left half made goes; what a living one makes stays."""
    own = state.scratch(state.folder("disks") / KEY)
    own.mkdir()
    (state.folder("disks") / f".making-{gone()}-7-{KEY}").mkdir()
    assert gc.collect(FakeHost().real(), deadline) == [f"half-made {KEY}"]
    assert own.exists()
    assert prepared.places() == []


def gone() -> str:
    """A process of this machine that has ended."""
    return str(state.Process(state.this_machine(), state._boot(), 2**22 - 1, 1))


def test_a_guest_whose_record_cannot_be_read_may_need_any(lab_state: Path) -> None:
    put()
    assert not prepared.needed(KEY)
    place = state.folder("guests") / "one"
    place.mkdir()
    (place / "guest.json").write_text("{}")
    assert prepared.needed(KEY)
    known = record("one").model_copy(update={"prepared": prepared.read(state.folder("disks") / KEY)})
    (place / "guest.json").write_text(json.dumps(jsonable(known)))
    assert prepared.needed(KEY)
    assert not prepared.needed("f" * 16)
