# SPDX-License-Identifier: GPL-2.0-only
"""Which ready states gc removes, and what none can serve."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from numalab.core import state
from numalab.core.errors import HostError, InputError
from numalab.core.process import Deadline
from numalab.guest import ready
from numalab.guest.launch import GuestRequest
from numalab.kernel import recipe
from numalab.maintenance import gc
from numalab.model import catalog
from numalab.model.guest import BootWay, DiskFile, DiskForm, ReadyState
from numalab.model.values import Clock, jsonable
from tests.unit.makers import FakeHost, record

KEY = "0123456789abcdef"


def put(lab_state: Path, **changes: object) -> Path:
    """A whole state, of this machine and hypervisor."""
    place = state.folder("ready") / KEY
    place.mkdir()
    kernel = lab_state / "bzImage"
    kernel.touch()
    (place / "memory").write_bytes(b"saved")
    (place / "root.qcow2").touch()
    saved = ReadyState(
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
    (place / "state.json").write_text(json.dumps(jsonable(saved)))
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
    ],
)
def test_what_no_state_can_serve(
    lab_state: Path, deadline: Deadline, changes: dict[str, object], option: str
) -> None:
    shape = catalog.topology("uma-2g")
    request = GuestRequest(
        name="one", topology_name="uma-2g", shape=shape, kernel=recipe.load("debian")
    ).model_copy(update=changes)
    with pytest.raises(InputError, match=f"^ready: not with {option}: "):
        ready.up(request, FakeHost().real(), deadline)
    assert not list(state.folder("guests").iterdir())
