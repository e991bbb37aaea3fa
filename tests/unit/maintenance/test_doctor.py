# SPDX-License-Identifier: GPL-2.0-only
"""What doctor says of the accelerator and the virtual clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from numalab.core.errors import DeadlinePassed, HostError
from numalab.core.process import Deadline
from numalab.host import accelerator, image
from numalab.host.accelerator import ClockProbe, Probe
from numalab.maintenance import doctor
from numalab.maintenance.doctor import Fact
from numalab.model.values import Accel

IMAGE = image.Image(name="debian12", id="0" * 16, directory="/i", root="/dev/vda", disk_bytes=1, inputs={})


def facts(
    monkeypatch: pytest.MonkeyPatch, deadline: Deadline, accel: Accel, clock: ClockProbe | Exception
) -> dict[str, Fact]:
    def try_clock(*_: object) -> ClockProbe:
        if isinstance(clock, Exception):
            raise clock
        return clock

    monkeypatch.setattr(image, "existing", lambda *_: IMAGE)
    monkeypatch.setattr(accelerator, "choose", lambda *_: Probe(accel=accel, reason="tried", key=""))
    monkeypatch.setattr(accelerator, "virtual_clock", try_clock)
    return {fact.name: fact for fact in doctor._accel("auto", deadline)}


def test_the_virtual_clock(monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    works = ClockProbe(works=True, reason="8 CPUs reached user space in 8.0 s")
    fact = facts(monkeypatch, deadline, Accel.TCG, works)["virtual clock"]
    assert (fact.value, fact.good) == (works.reason, True)
    lacks = facts(monkeypatch, deadline, Accel.TCG, ClockProbe(works=False, reason="QEMU 7.2"))
    assert (lacks["virtual clock"].good, lacks["virtual clock"].needed) == (False, False)
    assert "virtual clock" not in facts(monkeypatch, deadline, Accel.KVM, works), "KVM has the host's only"


@pytest.mark.parametrize("error", [DeadlinePassed("probing: the time limit passed"), HostError("no busybox")])
def test_a_clock_that_cannot_be_tried_is_no_fault_of_the_accelerator(
    monkeypatch: pytest.MonkeyPatch, deadline: Deadline, error: Exception
) -> None:
    """Guests start without it."""
    shown = facts(monkeypatch, deadline, Accel.TCG, error)
    assert not shown["accelerator"].needed
    assert (shown["virtual clock"].value, shown["virtual clock"].needed) == (str(error), False)


def test_another_qemu_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes boot the one in PATH, and guests get libvirt's."""
    for folder in ("usr", "mine", "link"):
        (tmp_path / folder).mkdir()
    for folder in ("usr", "mine"):
        (tmp_path / folder / "qemu-system-x86_64").touch(mode=0o755)
    theirs = tmp_path / "usr/qemu-system-x86_64"
    (tmp_path / "link/qemu-system-x86_64").symlink_to(theirs)
    for folder, good in (("usr", True), ("link", True), ("mine", False), ("none", True)):
        monkeypatch.setenv("PATH", str(tmp_path / folder))
        found = [fact.value for fact in doctor._other_qemu(str(theirs))]
        assert found == [f"{tmp_path / folder}/qemu-system-x86_64, but libvirt starts {theirs}"] * (not good)


def test_what_spoils_times() -> None:
    (good,) = doctor._order({"nodes": "2", "cores": "8", "swap": "off"})
    assert (good.value, good.good) == ("2 nodes, 8 cores; nothing spoils them", True)
    (bad,) = doctor._order({"nodes": "2", "cores": "8", "swap": "on"})
    assert bad.value == "2 nodes, 8 cores; swap is on: a guest's memory may be on a disk: swapoff -a"
    assert (bad.good, bad.needed) == (False, False)
