# SPDX-License-Identifier: GPL-2.0-only
"""Ready states: made once, by their inputs; thrown away when they are of no use; removed by gc."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from numalab.core import state
from numalab.core.errors import BadReadyState, HostError, InputError
from numalab.core.process import Deadline, Result
from numalab.guest import launch, ready, renewed
from numalab.guest.guest import Guest
from numalab.guest.launch import GuestRequest
from numalab.host import disks, image, saved, ssh
from numalab.host.domain import Mark, read_mark
from numalab.kernel import recipe
from numalab.maintenance import gc
from numalab.model import catalog, topology, verification
from numalab.model.guest import Boot, BootWay, DiskFile, DiskForm, ReadyState
from numalab.model.topology import Disk
from numalab.model.values import Clock, jsonable
from tests.unit.guest.test_guest import host as host
from tests.unit.guest.test_guest import request
from tests.unit.host.test_saved import write
from tests.unit.makers import FakeHost, record

KEY = "0123456789abcdef"
SHAPE = catalog.topology("uma-2g")


def put(lab_state: Path, **changes: object) -> Path:
    """A whole state, of this machine and hypervisor."""
    place = state.folder("ready") / KEY
    place.mkdir()
    kernel = lab_state / "bzImage"
    kernel.touch()
    (place / "memory").write_bytes(b"saved")
    (place / "root.qcow2").touch()
    known = ReadyState(
        key=KEY,
        directory=str(place),
        name="ready-0123",
        image="debian12",
        image_id="0" * 16,
        kernel=str(kernel),
        disks=(DiskFile(path="root.qcow2", format="qcow2", serial="root", direct=False),),
        memory_bytes=5,
        machine=state.this_machine(),
        hypervisor="QEMU 10000002, libvirt 9000000",
        made="20261123T200000",
    ).model_copy(update=changes)
    (place / "state.json").write_text(json.dumps(jsonable(known)))
    return place


def test_one_that_may_be_used_stays(lab_state: Path, deadline: Deadline) -> None:
    place = put(lab_state)
    assert ready.read(place).disks[0].path == str(place / "root.qcow2")
    assert gc.collect(FakeHost().real(), deadline) == []
    assert place.exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kernel": "/nowhere"}, "its kernel is gone"),
        ({"hypervisor": "QEMU 7002000, libvirt 9000000"}, "made by QEMU 7002000, libvirt 9000000"),
        ({"memory_bytes": 6}, "not whole"),
    ],
)
def test_one_that_no_guest_can_use_goes(
    lab_state: Path, deadline: Deadline, changes: dict[str, object], why: str
) -> None:
    place = put(lab_state, **changes)
    assert gc.collect(FakeHost().real(), deadline) == [f"ready state {KEY}: {why}"]
    assert not place.exists()


def age(place: Path) -> None:
    """As if it had last been used a month ago."""
    os.utime(place / "state.json", (time.time() - 31 * state.DAY,) * 2)


def test_an_old_one_goes_unless_a_guest_stands_on_it(lab_state: Path, deadline: Deadline) -> None:
    place = put(lab_state)
    age(place)
    guest = state.folder("guests") / "one"
    guest.mkdir()
    (guest / "guest.json").write_text(
        json.dumps(jsonable(record("one", uri="test:///other").model_copy(update={"ready_state": KEY})))
    )
    assert gc.collect(FakeHost().real(), deadline) == []
    (guest / "guest.json").unlink()
    with state.using(place):
        assert not [line for line in gc.collect(FakeHost().real(), deadline) if "ready state" in line]
    assert gc.collect(FakeHost().real(), deadline) == [f"ready state {KEY}: not used for 14 days"]


def test_another_machines_goes_by_its_age_alone(lab_state: Path, deadline: Deadline) -> None:
    place = put(lab_state, machine="abcdef", kernel="/nowhere", hypervisor="QEMU 1")
    assert gc.collect(FakeHost().real(), deadline) == []
    age(place)
    assert gc.collect(FakeHost().real(), deadline) == [f"ready state {KEY}: not used for 14 days"]


def test_a_newer_labs_goes_by_its_age_alone(lab_state: Path, deadline: Deadline) -> None:
    place = put(lab_state)
    known = json.loads((place / "state.json").read_text())
    (place / "state.json").write_text(json.dumps({**known, "format": 99}))
    assert gc.collect(FakeHost().real(), deadline) == []
    age(place)
    assert gc.collect(FakeHost().real(), deadline) == [f"ready state {KEY}: not used for 14 days"]


@pytest.mark.parametrize("release", ["3.19.0", "4.17.0-rc1", "5.4.290"])
def test_kernels_without_new_random_numbers(release: str) -> None:
    with pytest.raises(InputError, match=f"not with kernel {release}: before 5.10"):
        ready._check_release(Boot(name="old", release=release))


@pytest.mark.parametrize("release", ["", "5.10.0", "6.1.170-numalab", "7.2"])
def test_kernels_with_new_random_numbers(release: str) -> None:
    ready._check_release(Boot(name="new", release=release))


def test_a_truncated_one_is_refused(lab_state: Path) -> None:
    place = put(lab_state)
    (place / "memory").write_bytes(b"save")
    with pytest.raises(HostError, match="memory has 4 bytes, not 5"):
        ready.read(place)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"boot": BootWay.GRUB}, "boot grub"),
        ({"clock": Clock.VIRTUAL}, "another clock"),
        ({"seed": 7}, "a seed"),
        ({"form": DiskForm.POOL}, "storage pool"),
        ({"pin": "0=0"}, "pin or huge pages"),
        ({"huge_page": 2 << 20}, "pin or huge pages"),
        (
            {
                "shape": SHAPE.model_copy(
                    update={"disks": (Disk.model_validate({"name": "big", "size": "3000T"}),)}
                )
            },
            "a disk of more than 2PiB",
        ),
    ],
)
def test_what_no_state_can_serve(
    lab_state: Path, deadline: Deadline, changes: dict[str, object], option: str
) -> None:
    wanted = GuestRequest(
        name="one", topology_name="uma-2g", shape=SHAPE, kernel=recipe.load("debian")
    ).model_copy(update=changes)
    with pytest.raises(InputError, match=f"^ready: not with {option}: "):
        ready.up(wanted, FakeHost().real(), deadline)
    assert not list(state.folder("guests").iterdir())


class SavingHost(FakeHost):
    """A hypervisor that saves a domain's XML, and restores the domain of the XML in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[str] = []
        self.restored: list[str] = []
        self.breaks = False
        self.answer = renewed.DONE
        """What the process that waits in a restored guest answers."""

    def save(self, guest: Mark, path: Path, deadline: Deadline) -> None:
        write(path, (Path(guest.directory) / "domain.xml").read_bytes())
        self.saved.append(guest.name)
        self.stop(guest, deadline)

    def restore(self, path: Path, deadline: Deadline) -> None:
        if self.breaks:
            raise HostError("libvirt does not restore the guest: Unknown savevm section")
        xml = saved.domain_xml(path)
        self.create(xml, deadline)
        known = read_mark(xml)
        assert known
        self.restored.append(known.name)


@pytest.fixture
def saving(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> SavingHost:
    """Where every step of `up` works, for a guest that is restored too."""
    base = image.require("debian12", Deadline.after(1))  # the fixture's
    monkeypatch.setattr(image, "pinned", lambda *_: base)
    monkeypatch.setattr(ssh.Ssh, "connect", lambda *_: None)
    monkeypatch.setattr(ssh.Ssh, "disconnect", lambda *_: None)

    def over(_: Path, target: Path, *_rest: object, over: str = "qcow2") -> DiskFile:
        target.touch()
        return DiskFile(path=str(target), format="qcow2", serial="root", direct=False)

    fake, there = ssh.Ssh.execute, SavingHost()

    def execute(self: ssh.Ssh, command: str, **options: Any) -> Result:
        if renewed.REQUEST in command:
            assert verification.PROBE in command
            if there.answer != renewed.DONE:
                return Result((command,), 1, "", f"not renewed: {there.answer}\n", 0.0)
            command = verification.PROBE
        return fake(self, command, **options)

    monkeypatch.setattr(ssh.Ssh, "execute", execute)
    monkeypatch.setattr(disks, "overlay", over)
    return there


def test_made_once_and_by_its_inputs(saving: SavingHost, deadline: Deadline) -> None:
    first = ready.up(request(name="one"), saving.real(), deadline)
    second = ready.up(request(name="two"), saving.real(), deadline)
    assert saving.names == saving.restored == ["one", "two"]
    (maker,) = saving.saved
    assert first.record.ready_state == second.record.ready_state != ""
    for guest in (first, second):
        assert f"systemd.hostname={maker} " in f"{guest.record.spec.boot.cmdline} ", "the kernel's own line"
        assert Path(guest.record.spec.disks[0].path).parent == guest.directory
    assert not (state.folder("guests") / maker).exists()


@pytest.mark.parametrize("part", ["append", "network", "shape", "form", "image", "kernel", "hypervisor"])
def test_another_state_for_another_guest(
    saving: SavingHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """What of a guest, of its files or of its host differs makes another state, and only that."""
    first = ready.up(request(name="one"), saving.real(), deadline)
    wanted = request(name="two")
    base = image.require("debian12", deadline)
    if part == "image":
        other = base.model_copy(update={"id": "1" * 16})
        monkeypatch.setattr(image, "require", lambda *_: other)
        monkeypatch.setattr(image, "pinned", lambda *_: other)
    elif part == "kernel":
        base.file("vmlinuz").write_text("another build")
    elif part == "hypervisor":
        monkeypatch.setattr(saving, "hypervisor", lambda: "QEMU 11000000, libvirt 9000000")
    else:
        change = {
            "append": "quiet",
            "network": True,
            "shape": topology.scale(wanted.shape, memory=2 * wanted.shape.memory),
            "form": DiskForm.QCOW2,
        }[part]
        wanted = wanted.model_copy(update={part: change})
    if part == "shape":  # whose topology the fixture's probe would not show
        monkeypatch.setattr(Guest, "verify", lambda *_, **__: None)
    second = ready.up(wanted, saving.real(), deadline)
    assert second.record.ready_state not in ("", first.record.ready_state)
    assert len(saving.saved) == len(ready.places()) == 2


@pytest.mark.parametrize("answer", [renewed.DONE, "[Errno 1] Operation not permitted", ""])
def test_the_command_that_renews_a_guest(
    saving: SavingHost, deadline: Deadline, tmp_path: Path, answer: str
) -> None:
    """One line goes to the process that waits; what it answers decides, also when it ends without a word."""
    guest = ready.up(request(name="one"), saving.real(), deadline)
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    for fifo in (asked, answered):
        os.mkfifo(fifo)
    command = (
        launch._renewal(guest).replace(renewed.ANSWER, str(answered)).replace(renewed.REQUEST, str(asked))
    )
    waits = f"read -r line <{asked}; printf '%s' {shlex.quote(answer and answer + chr(10))} >{answered}; echo $line"
    other = subprocess.Popen(["sh", "-c", waits], stdout=subprocess.PIPE, text=True)
    done = subprocess.run(["sh", "-c", f"{command} && echo on"], capture_output=True, text=True)
    line, _ = other.communicate()
    _now, name, machine_id, entropy = line.split()
    assert (name, machine_id) == ("one", guest.record.spec.uuid.replace("-", ""))
    assert len(bytes.fromhex(entropy)) == launch.ENTROPY_BYTES
    if answer == renewed.DONE:
        assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert not answer or done.stderr == f"not renewed: {answer}\n"


@pytest.mark.parametrize("how", ["refused", "truncated", "another format", "not renewed"])
def test_one_of_no_use_is_thrown_away_and_the_guest_boots(
    saving: SavingHost, deadline: Deadline, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    ready.up(request(name="one"), saving.real(), deadline).down(deadline)
    (place,) = ready.places()
    memory = place / "memory"
    if how == "refused":
        saving.breaks = True
    elif how == "truncated":
        memory.write_bytes(memory.read_bytes()[:-1])
    elif how == "not renewed":
        saving.answer = "[Errno 1] Operation not permitted"
    else:
        memory.write_bytes(bytes(memory.stat().st_size))
    guest = ready.up(request(name="two"), saving.real(), deadline)
    assert guest.record.ready_state == ""
    assert not guest.record.spec.savable
    assert saving.names == ["two"]
    lines = [line for line in caplog.messages if "of no use" in line]
    assert len(lines) == 1
    assert place.name in lines[0]
    assert not place.exists()


def test_one_of_no_use_for_a_guest_that_is_compared_with_others(
    saving: SavingHost, deadline: Deadline
) -> None:
    """It does not boot: it would be compared with guests that did not. The next one makes another state."""
    ready.up(request(name="one"), saving.real(), deadline).down(deadline)
    saving.breaks = True
    with pytest.raises(BadReadyState, match="Unknown savevm section"):
        ready.up(request(name="two"), saving.real(), deadline, or_boot=False)
    assert ready.places() == []
    assert list(state.folder("guests").iterdir()) == []
    saving.breaks = False
    assert ready.up(request(name="two"), saving.real(), deadline, or_boot=False).record.ready_state


@pytest.mark.parametrize("refused", ["libvirt", "file system"])
def test_a_save_that_fails_leaves_a_fresh_boot_and_nothing_else(
    refused: str, saving: SavingHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libvirt will not have it; or its file cannot be read by us, or has no room."""

    def refuse(*_: object) -> None:
        if refused == "libvirt":
            raise HostError("libvirt does not save the guest: State blocked")
        raise PermissionError(13, "Permission denied", "memory")

    monkeypatch.setattr(saving, "save", refuse)
    guest = ready.up(request(name="one"), saving.real(), deadline)
    assert guest.record.ready_state == ""
    assert saving.names == ["one"]
    assert list(state.folder("ready").iterdir()) == []
    assert [path.name for path in state.folder("guests").iterdir()] == ["one"]
