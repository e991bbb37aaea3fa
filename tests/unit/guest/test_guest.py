# SPDX-License-Identifier: GPL-2.0-only
"""A guest's life on a fake hypervisor: complete or not at all; gc removes only what nobody owns."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from numalab.cli import guest as guest_commands
from numalab.cli import options
from numalab.core import state
from numalab.core.errors import (
    BootHung,
    DeadlinePassed,
    GuestError,
    GuestLost,
    HostError,
    InputError,
    KernelOops,
    LabError,
    TopologyMismatch,
)
from numalab.core.process import Deadline, Result
from numalab.guest import guest, launch, provision, start
from numalab.guest.guest import Guest
from numalab.guest.launch import GuestRequest
from numalab.host import accelerator, disks, domain, hypervisor, image, machine, ssh
from numalab.host.domain import Mark
from numalab.host.image import Image
from numalab.host.remote import Where
from numalab.kernel import recipe
from numalab.model import catalog, topology, verification
from numalab.model.binding import HostNode
from numalab.model.guest import Boot, BootWay, DiskFile, Init
from numalab.model.topology import Topology
from numalab.model.units import GIB, MIB
from numalab.model.values import Accel, Clock, check_name, jsonable
from tests.unit import makers
from tests.unit.makers import FakeHost, record, recorded

SHAPE = topology.scale(catalog.topology("4socket"), memory=4 * GIB, vcpus=8)
Break = Callable[[pytest.MonkeyPatch, FakeHost], None]


def request(
    name: str = "g", *, shape: Topology = SHAPE, append: str = "", ssh_port: int | None = None
) -> GuestRequest:
    return GuestRequest(
        name=name,
        topology_name="4socket",
        shape=shape,
        kernel=recipe.load("debian"),
        accel="tcg",
        append=append,
        ssh_port=ssh_port,
    )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """A host with an image, on which every step of `up` works."""
    place = tmp_path / "image"
    place.mkdir()
    for name in ("disk.qcow2", "vmlinuz", "initrd.img", "host_key.pub"):
        (place / name).write_text(f"{name}\n")
    base = Image(
        name="debian12", id="0" * 16, directory=str(place), root="PARTUUID=1", disk_bytes=1, inputs={}
    )

    def overlay(_image: Path, target: Path, *_: object) -> DiskFile:
        target.touch()
        return DiskFile(path=str(target), format="qcow2", serial="root", direct=False)

    def execute(
        self: ssh.Ssh,
        command: str,
        *,
        deadline: Deadline,
        input: bytes | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> Result:
        return Result(
            (command,), 0, recorded("probe-4socket-6.1.txt") if command == verification.PROBE else "", "", 0.0
        )

    monkeypatch.setattr(image, "require", lambda *_: base)
    monkeypatch.setattr(disks, "largest_file", lambda *_: 1 << 60)
    monkeypatch.setattr(disks, "check_room", lambda *_: None)
    monkeypatch.setattr(disks, "overlay", overlay)
    monkeypatch.setattr(
        disks,
        "create",
        lambda disk, place, *_: overlay(place, place / f"{disk.name}.raw").model_copy(
            update={"serial": disk.name}
        ),
    )
    monkeypatch.setattr(ssh.Ssh, "wait", lambda *_, **__: None)
    monkeypatch.setattr(ssh.Ssh, "execute", execute)
    return FakeHost()


def raises(error: BaseException) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise error

    return call


def test_up_and_down(host: FakeHost, deadline: Deadline) -> None:
    made = launch.up(request(append="quiet"), host.real(), deadline)
    known = guest.read("g")
    assert known == made.record
    assert (known.ready, known.spec.accel, known.image_id) == (True, Accel.TCG, "0" * 16)
    assert (maker := guest.maker("g")) is not None
    assert (maker.parsed, maker.uri) == (state.this_process(), host.uri)
    assert known.spec.boot.cmdline.startswith("root=PARTUUID=1 rw ")
    assert known.spec.boot.cmdline.endswith(" systemd.hostname=g quiet")
    assert "no_timer_check" in known.spec.boot.cmdline.split(), "a busy host may make the guest panic"
    assert [disk.serial for disk in known.spec.disks] == ["root", "500TB"]
    assert (made.directory / "known_hosts").read_text() == "numalab host_key.pub\n"
    assert (made.directory / "known_hosts").stat().st_mode & 0o777 == 0o600
    assert 'name="g"' in (made.directory / "domain.xml").read_text()
    assert host.names == ["g"]
    made.down(deadline)
    made.down(deadline)
    assert (guest.names(), host.domains, made.directory.exists()) == ([], {}, False)


def test_another_shift(host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/clock.py --shift boots so."""
    monkeypatch.setattr(domain, "ICOUNT_SHIFT", 5)
    assert launch.up(request(), host.real(), deadline).record.spec.icount_shift == 5


@pytest.mark.parametrize("shown", ["release:6.1.0-56-amd64\n", ""])
def test_a_guest_that_runs_another_kernel(
    host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    made = launch.up(request(), host.real(), deadline)
    layout = recorded("probe-4socket-6.1.txt")
    monkeypatch.setattr(ssh, "succeed", lambda *_, **__: shown + layout)

    def expecting(release: str) -> None:
        boot = made.record.spec.boot.model_copy(update={"release": release})
        spec = made.record.spec.model_copy(update={"boot": boot})
        made.record = made.record.model_copy(update={"spec": spec})

    for release in ("", shown.removeprefix("release:").strip()):
        expecting(release)
        made.verify(deadline)
    expecting("6.12.1")
    with pytest.raises(
        GuestError, match=r"guest g: runs kernel (6\.1\.0-56-amd64|unknown), but debian is 6\.12\.1"
    ):
        made.verify(deadline)


def test_a_guest_is_ready_when_it_has_all_that_it_needs(
    host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gc keeps a ready guest, although what made it was killed: that must not happen before its modules."""
    seen = []
    monkeypatch.setattr(provision, "after_boot", lambda *_, **__: seen.append(guest.read("g").ready))
    launch.up(request(), host.real(), deadline)
    assert (seen, guest.read("g").ready) == ([False], True)


@pytest.mark.parametrize("wanted", ["m" * 60, f"/t/{'m' * 60}.yml"])
def test_a_fresh_name_is_a_name(lab_state: Path, wanted: str) -> None:
    assert check_name(guest.fresh_name(wanted)) == "m" * 36
    assert check_name(guest.fresh_name(wanted, {"m" * 36})) == "m" * 36 + "-2"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["init=/usr/local/sbin/lab-init"]),
        ({"network": True}, ["init=/usr/local/sbin/lab-init", "numalab.route"]),
        ({"init": Init.SYSTEMD, "network": True}, []),
        # What GRUB starts is a distribution; and only systemd credits an old kernel's random seed.
        ({"boot": BootWay.GRUB}, []),
        ({"kernel": recipe.load("3.19")}, []),
        ({"kernel": recipe.load("5.10")}, ["init=/usr/local/sbin/lab-init"]),
    ],
)
def test_what_runs_first(changes: dict[str, Any], words: list[str]) -> None:
    base = Image(
        name="debian12",
        id="0" * 16,
        directory="/i",
        root="PARTUUID=1",
        disk_bytes=1,
        inputs={"playbooks/roles/guest/files/root/usr/local/sbin/lab-init": "1"},
    )
    asked = request().model_copy(update=changes)

    def composed(image: Image) -> list[str]:
        boot = Boot(name="x", cmdline="quiet")
        words = launch.compose_boot(asked, "one", SHAPE, image, boot, {}, Clock.HOST).cmdline.split()
        return [word for word in words if word.startswith(("init=", "numalab."))]

    assert composed(base) == words
    older = base.model_copy(update={"inputs": {}})
    assert composed(older) == [], "an image of before the lab had an init"


@pytest.mark.parametrize(("clock", "left_out"), [(Clock.HOST, False), (Clock.VIRTUAL, True)])
def test_what_a_boot_on_the_virtual_clock_leaves_out(
    host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch, clock: Clock, left_out: bool
) -> None:
    monkeypatch.setattr(accelerator, "choose_clock", lambda *_: clock)
    made = launch.up(request(), host.real(), deadline)
    assert ("initcall_blacklist=trace_eval_init" in made.record.spec.boot.cmdline.split()) is left_out


@pytest.mark.parametrize("seed", [None, 7])
def test_a_boot_with_a_seed_shuffles_its_free_pages(
    host: FakeHost, deadline: Deadline, seed: int | None
) -> None:
    made = launch.up(request().model_copy(update={"seed": seed}), host.real(), deadline)
    assert ("page_alloc.shuffle=1" in made.record.spec.boot.cmdline.split()) is (seed is not None)


def test_a_guest_there_boots_what_was_pushed(
    host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel from a person's tree has another path there: at its own path somebody may have a tree."""
    host.where = Where("there")
    overlays: list[Path] = []
    overlay = disks.overlay

    def over(base: Path, *words: Any) -> DiskFile:
        overlays.append(base)
        return overlay(base, *words)

    monkeypatch.setattr(disks, "overlay", over)
    monkeypatch.setattr(
        Where, "push", lambda _, paths, deadline: {path: Path("/there") / path.name for path in paths}
    )
    monkeypatch.setattr(Where, "run", lambda *_, **__: Result((), 0, "", "", 0.0))
    made = launch.up(request(), host.real(), deadline)
    xml = (made.directory / "domain.xml").read_text()
    assert "<kernel>/there/vmlinuz</kernel>" in xml
    assert "<initrd>/there/initrd.img</initrd>" in xml
    assert overlays == [Path("/there/disk.qcow2")]


def test_fake_nodes_are_the_kernels(
    host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guest, "verify", lambda *_: [])
    made = launch.up(request(shape=catalog.topology("fakenuma")), host.real(), deadline)
    assert "numa=fake=4" in made.record.spec.boot.cmdline.split()


@pytest.mark.parametrize("network", [False, True])
def test_network_is_in_the_record(network: bool, host: FakeHost, deadline: Deadline) -> None:
    made = launch.up(request().model_copy(update={"network": network}), host.real(), deadline)
    assert guest.read("g").spec.network is network
    assert f"restrict={'off' if network else 'on'}" in (made.directory / "domain.xml").read_text()


def test_a_record_from_before_guests_had_a_choice_of_network(host: FakeHost, deadline: Deadline) -> None:
    made = launch.up(request(), host.real(), deadline)
    data = jsonable(made.record)
    del data["spec"]["network"]
    (made.directory / "guest.json").write_text(json.dumps(data))
    assert guest.read("g") == made.record


def nodes(count: int, pages: int = 0) -> list[HostNode]:
    """A host's nodes, of two cores and 8 GiB each."""
    return [
        HostNode(number=one, memory=8 * GIB, cores=((2 * one,), (2 * one + 1,)), huge_pages={2 * MIB: pages})
        for one in range(count)
    ]


def test_a_guest_bound_to_its_host(
    host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a map; what was chosen is in the record and in the domain."""
    monkeypatch.setattr(machine, "host_nodes", lambda *_: nodes(6))
    host.pinned = {0}
    made = launch.up(request().model_copy(update={"pin": "0=5,1=4,2=2,3=1"}), host.real(), deadline)
    bound = guest.read("g").spec.binding
    assert bound is not None
    assert (bound.nodes, bound.vcpus) == ((5, 4, 2, 1), (10, 11, 8, 9, 4, 5, 2, 3))
    assert '<vcpupin vcpu="1" cpuset="11"/>' in (made.directory / "domain.xml").read_text()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"pin": "0=0,1=0,2=0,3=0"}, "pin 0=0,1=0,2=0,3=0: node 0 of the guest needs 2 free cores"),
        ({"pin": "0=0,1=1,2=2,3=3", "clock": Clock.VIRTUAL}, "pin: on the virtual clock all vCPUs are one"),
        ({"huge_page": 2 * MIB}, "huge pages of this machine: 2048 pages of 2MiB wanted, 600 are free: echo"),
    ],
)
def test_a_guest_that_cannot_be_bound(
    host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], line: str
) -> None:
    monkeypatch.setattr(machine, "host_nodes", lambda *_: nodes(6, 100))
    monkeypatch.setattr(accelerator, "choose_clock", lambda clock, *_: clock)
    host.pinned = {0}
    with pytest.raises(LabError) as caught:
        launch.up(request().model_copy(update=change), host.real(), deadline)
    assert line in str(caught.value)
    assert (guest.names(), host.domains) == ([], {})


def test_cpus_that_another_guest_has_taken(
    host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it was down, as for a restart by GRUB."""
    monkeypatch.setattr(machine, "host_nodes", lambda *_: nodes(6))
    made = launch.up(request().model_copy(update={"pin": "0=5,1=4,2=2,3=1"}), host.real(), deadline)
    host.pinned = {2, 8, 20}
    with pytest.raises(HostError, match=r"bound to another guest while it was down \(2, 8\)"):
        start.start(made, deadline)
    host.pinned = {20}
    host.domains.clear()
    start.start(made, deadline)


@pytest.mark.parametrize(("count", "bound"), [(4, True), (3, False)])
def test_under_kvm_auto_binds_where_the_host_suffices(
    host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch, count: int, bound: bool
) -> None:
    monkeypatch.setattr(machine, "host_nodes", lambda *_: nodes(count))
    probe = accelerator.Probe(accel=Accel.KVM, reason="it works", key="")
    made = launch.up(request().model_copy(update={"pin": "auto", "probe": probe}), host.real(), deadline)
    assert (made.record.spec.binding is not None) == bound


def test_an_emulated_guest_is_not_bound_by_itself(
    host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times are no evidence, and the host's nodes are not even read."""
    monkeypatch.setattr(machine, "host_nodes", raises(AssertionError("read")))
    made = launch.up(request().model_copy(update={"pin": "auto"}), host.real(), deadline)
    assert made.record.spec.binding is None


def test_a_guest_of_huge_pages_needs_no_other_memory(
    host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "host_nodes", lambda *_: nodes(1, 2048))
    host.free = 0
    made = launch.up(request().model_copy(update={"huge_page": 2 * MIB}), host.real(), deadline)
    assert '<page size="2048" unit="KiB"/>' in (made.directory / "domain.xml").read_text()


@pytest.mark.parametrize(
    ("target", "name", "error"),
    [
        (image, "require", HostError("image debian12 is not built")),
        (accelerator, "choose", HostError("accelerator kvm")),
        (disks, "check_room", HostError("full")),
        (disks, "overlay", HostError("qemu-img")),
        (disks, "create", InputError("disk too large")),
        (FakeHost, "create", HostError("libvirt does not start the guest")),
        (FakeHost, "free_memory", HostError("libvirt does not answer")),
        (ssh.Ssh, "wait", GuestLost("SSH is lost")),
        (ssh.Ssh, "wait", KernelOops("panic")),
        (ssh.Ssh, "execute", GuestLost("SSH is lost")),
        (Guest, "verify", TopologyMismatch("not the topology", evidence="table")),
        (ssh.Ssh, "wait", KeyboardInterrupt()),
        (Guest, "save", OSError(28, "No space left on device")),
    ],
    ids=lambda value: (
        value
        if isinstance(value, str)
        else getattr(value, "__name__", type(value).__name__).rpartition(".")[2]
    ),
)
def test_up_fails_and_leaves_nothing(
    target: object,
    name: str,
    error: BaseException,
    host: FakeHost,
    monkeypatch: pytest.MonkeyPatch,
    deadline: Deadline,
) -> None:
    monkeypatch.setattr(target, name, raises(error))
    with pytest.raises(type(error)) as caught:
        launch.up(request(), host.real(), deadline)
    assert caught.value is error
    assert (guest.names(), host.domains) == ([], {})
    assert not list(state.folder("guests").iterdir())


@pytest.mark.parametrize("name", ["wait", "execute"])
def test_what_was_started_is_stopped(
    name: str, host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    monkeypatch.setattr(ssh.Ssh, name, raises(GuestLost("lost")))
    with pytest.raises(GuestLost):
        launch.up(request(), host.real(), deadline)
    assert host.stopped == ["g"]


OOPSED = """[ 1.4] sched_clock: Marking stable
[ 1.5] Oops: int3: 0000 [#1] SMP
[ 1.5] RIP: 0010:sched_clock_cpu+0x5/0x170
[ 1.5] Code: 74 a1 eb 97 41 54 55 53 {} <90> e8 c5 d5 f6 ff 48
"""


def boots(monkeypatch: pytest.MonkeyPatch, *outcomes: str, host: FakeHost | None = None) -> list[str]:
    """Boots that print this and nothing more: 'up' answers; 'hang' is watched until it is given up; the
    `host` loses the domain of a 'broken' one."""
    left = list(outcomes)

    def wait(self: ssh.Ssh, _: Deadline, **__: object) -> None:
        outcome = left.pop(0)
        oopses = {
            "stale": OOPSED.format("66"),
            "trap": OOPSED.format("cc"),
            "other": "[ 1.2] kernel BUG at mm/a.c:1!\n" + OOPSED.format("66"),
        }
        text = ({"silent": ""} | oopses).get(outcome, "[ 1.0] fine\n[ 1.6] sched_clock: Marking stable\n")
        (self.known_hosts.parent / "console.log").write_text(text)
        monkeypatch.setattr(guest, "HUNG_SECONDS", -1.0 if outcome in ("hang", "silent") else 90.0)
        if host and outcome == "broken":
            host.domains.clear()
        assert self.watch
        self.watch()

    monkeypatch.setattr(ssh.Ssh, "wait", wait)
    return left


def test_a_hung_boot_is_begun_again(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    boots(monkeypatch, "hang", "hang", "up")
    made = launch.up(request(), host.real(), deadline)
    assert (made.record.hung, guest.read("g").hung, host.stopped, host.names) == (2, 2, ["g", "g"], ["g"])
    log = caplog.text
    assert log.count("guest g: hung in its boot under emulation, nothing new on its console for") == 2
    assert "; 1 of its CPUs run; last: [ 1.6] sched_clock: Marking stable; begun again" in log
    kept = next(state.folder("logs").glob("hung-*-g-2.log")).read_text()
    assert kept.count("Marking stable") == 2
    assert host.cpus_stand in kept


def test_a_hung_boot_that_cannot_be_ended_is_not_begun_again(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    """Its QEMU may still run beside the next one; and the name is taken, which would hide the hang."""
    left = boots(monkeypatch, "hang", "up")
    monkeypatch.setattr(host, "stop", raises(HostError("libvirt does not answer")))
    with pytest.raises(BootHung, match="guest g: hung in its boot under emulation"):
        launch.up(request(), host.real(), deadline)
    assert left == ["up"]
    assert "libvirt does not answer" in caplog.text
    assert guest.names() == ["g"], "for gc"


@pytest.mark.parametrize(
    ("stand", "said"),
    [("CPU 0 halted at ff\nCPU 1 halted at ff", "all its CPUs halted"), ("", "CPUs not seen")],
)
def test_a_hang_says_where_the_cpus_stand(
    stand: str,
    said: str,
    host: FakeHost,
    monkeypatch: pytest.MonkeyPatch,
    deadline: Deadline,
    caplog: pytest.LogCaptureFixture,
) -> None:
    host.cpus_stand = stand
    boots(monkeypatch, "hang", "up")
    launch.up(request(), host.real(), deadline)
    assert f"; {said}; last:" in caplog.text


@pytest.mark.parametrize(
    ("stands", "hung"),
    [
        (["halted"] * 3, 1),
        (["halted", "runs", "halted", "halted", "halted"], 1),
        (["halted", "runs"] * 3, 0),
        (["runs"] * 6, 0),
        (["halted", "halted", "prints", "halted"], 0),
        (["halted", "halted", "unknown", "halted", "halted"], 0),
    ],
)
def test_a_boot_whose_cpus_stay_halted_is_given_up_sooner(
    stands: list[str], hung: int, host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """Not one that runs between two looks, or prints."""
    left: list[str] = []

    def wait(self: ssh.Ssh, _: Deadline, **__: object) -> None:
        console_log = self.known_hosts.parent / "console.log"
        console_log.write_text("[ 1.6] VFS: Mounted root\n")
        assert self.watch
        self.watch()
        while left:
            stand = left.pop(0)
            host.cpus_stand = "" if stand == "unknown" else f"CPU 0 halted at ff\nCPU 1 {stand} at fe"
            if stand == "prints":
                host.cpus_stand = "CPU 0 halted at ff"
                with console_log.open("a") as more:
                    more.write("[ 1.7] fine\n")
            self.watch()

    monkeypatch.setattr(ssh.Ssh, "wait", wait)
    monkeypatch.setattr(guest, "HALTED_SECONDS", -1.0)
    monkeypatch.setattr(guest, "LOOK_SECONDS", 0.0)
    host.cpus_stand = "CPU 0 runs at ff"
    left += stands
    assert launch.up(request(), host.real(), deadline).record.hung == hung


@pytest.mark.parametrize(
    ("outcome", "choice", "again"),
    [
        ("stale", Accel.TCG, True),
        ("trap", Accel.TCG, False),
        ("other", Accel.TCG, False),
        ("stale", Accel.KVM, False),
    ],
)
def test_a_breakpoint_that_is_not_in_memory(
    outcome: str,
    choice: Accel,
    again: bool,
    host: FakeHost,
    monkeypatch: pytest.MonkeyPatch,
    deadline: Deadline,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The emulator's fault, so the boot is repeated. One in memory, or under KVM, is the kernel's."""
    left = boots(monkeypatch, outcome, "up")
    monkeypatch.setattr(guest, "OOPS_SECONDS", 0.0)
    monkeypatch.setattr(
        accelerator, "choose", lambda *_: accelerator.Probe(accel=choice, reason="boots", key="")
    )
    if again:
        assert launch.up(request(), host.real(), deadline).record.hung == 1
        assert (
            "at a breakpoint that its memory does not have (QEMU ran an old translation); begun again"
            in caplog.text
        )
    else:
        with pytest.raises(KernelOops, match="kernel BUG at" if outcome == "other" else "Oops: int3"):
            launch.up(request(), host.real(), deadline)
        assert left == ["up"]


def test_a_breakpoint_that_is_not_in_memory_later(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """In a running guest it is an error of the lab, with its evidence, and says nothing about the kernel."""
    boots(monkeypatch, "up")
    monkeypatch.setattr(guest, "OOPS_SECONDS", 0.0)
    made = launch.up(request(), host.real(), deadline)
    with made.console_log.open("a") as log:
        log.write(OOPSED.format("eb"))
    with pytest.raises(GuestError, match="oopsed under emulation at a breakpoint") as caught:
        made.watch()
    assert not isinstance(caught.value, BootHung)
    assert "Oops: int3" in caught.value.evidence


def test_a_boot_that_always_hangs(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    left = boots(monkeypatch, "hang", "hang", "hang", "up")
    with pytest.raises(BootHung):
        launch.up(request(), host.real(), deadline)
    assert (left, guest.names(), host.domains) == (["up"], [], {})


ASSERTION = "qemu-system-x86_64: system/physmem.c:2678: iotlb_to_section: Assertion `a < b' failed."


@pytest.mark.parametrize("choice", [Accel.TCG, Accel.KVM])
def test_a_boot_that_breaks_qemu(
    choice: Accel, host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """Under emulation it is begun again: the assertion is the emulator's. Under KVM it is an error."""
    probe = accelerator.Probe(accel=choice, reason="test", key="")
    monkeypatch.setattr(accelerator, "choose", lambda *_: probe)
    host.assertion = ASSERTION
    left = boots(monkeypatch, "broken", "up", host=host)
    if choice is Accel.TCG:
        assert launch.up(request(), host.real(), deadline).record.hung == 1
        assert "physmem" in next(state.folder("logs").glob("hung-*-g-1.log")).read_text()
    else:
        with pytest.raises(
            GuestLost, match="g: its domain is gone: QEMU ended itself: qemu-system-x86_64: sys"
        ):
            launch.up(request(), host.real(), deadline)
        assert (left, host.names) == (["up"], [])


def test_a_guest_whose_qemu_breaks_later(host: FakeHost, deadline: Deadline) -> None:
    """What it measured is lost: an error, with QEMU's reason."""
    made = launch.up(request(), host.real(), deadline)
    host.assertion = ASSERTION
    host.domains.clear()
    with pytest.raises(GuestLost, match=r"QEMU ended itself: .*iotlb_to_section"):
        made.watch()


@pytest.mark.parametrize("why", ["kvm", "quiet", "silent"])
def test_a_quiet_boot_is_no_hung_one(
    why: str, host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """Under KVM a hang is the kernel's; and a kernel that prints nothing cannot stop printing."""
    boots(monkeypatch, "silent" if why == "silent" else "hang")
    if why == "kvm":
        monkeypatch.setattr(
            accelerator, "choose", lambda *_: accelerator.Probe(accel=Accel.KVM, reason="boots", key="")
        )
    assert (
        launch.up(request(append="quiet" if why == "quiet" else ""), host.real(), deadline).record.hung == 0
    )


def test_a_guest_that_is_up_may_be_quiet(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    boots(monkeypatch, "up")
    made = launch.up(request(), host.real(), deadline)
    monkeypatch.setattr(guest, "HUNG_SECONDS", -1.0)
    made.watch()


def test_an_error_brings_the_console(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    def wait(self: ssh.Ssh, _: Deadline, **__: object) -> None:
        (self.known_hosts.parent / "console.log").write_text("[ 1.0] its last words\n")
        raise GuestError("no boot")

    monkeypatch.setattr(ssh.Ssh, "wait", wait)
    with pytest.raises(GuestError) as caught:
        launch.up(request(), host.real(), deadline)
    assert caught.value.evidence == "[ 1.0] its last words"


def test_another_machine_than_asked_for(host: FakeHost, deadline: Deadline) -> None:
    with pytest.raises(
        TopologyMismatch, match="guest g: not the topology that was asked for: node 0 CPUs, "
    ) as caught:
        launch.up(request(shape=topology.scale(SHAPE, vcpus=16)), host.real(), deadline)
    assert "! node 0 CPUs" in caught.value.evidence
    assert (guest.names(), host.domains) == ([], {})


def test_why_up_failed_is_said_even_if_cleaning_up_fails(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """A libvirtd that died takes the guest with it: the first error is reported. gc does the rest."""
    monkeypatch.setattr(ssh.Ssh, "wait", raises(GuestLost("its domain is gone")))
    monkeypatch.setattr(FakeHost, "stop", raises(HostError("libvirt does not answer")))
    with pytest.raises(LabError, match="its domain is gone"):
        launch.up(request(), host.real(), deadline)


def test_a_taken_name(host: FakeHost, deadline: Deadline) -> None:
    made = launch.up(request(), host.real(), deadline)
    with pytest.raises(InputError, match=r"a guest called g is there: lab.py down g, or choose another name"):
        launch.up(request(), host.real(), deadline)
    assert (guest.read("g"), host.names, host.stopped) == (made.record, ["g"], [])


def test_a_taken_port(host: FakeHost, deadline: Deadline) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"^ssh port {port}: the port is taken"):
            launch.up(request(ssh_port=port), host.real(), deadline)
    assert (guest.names(), host.domains) == ([], {})


def test_a_port_that_is_taken_meanwhile(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    ports = iter([2001, 2002])
    for module in (launch, start):
        monkeypatch.setattr(module, "free_port", lambda _where: next(ports))
    create = host.create

    def once(xml: str, deadline: Deadline) -> None:
        if 'port="2001"' in xml:
            raise HostError("QEMU", evidence="Could not set up host forwarding rule 'tcp:127.0.0.1:2001-:22'")
        create(xml, deadline)

    monkeypatch.setattr(host, "create", once)
    made = launch.up(request(), host.real(), deadline)
    assert (made.record.spec.ssh_port, made.ssh.port, guest.read("g").spec.ssh_port) == (2002, 2002, 2002)


def test_watch(host: FakeHost, deadline: Deadline) -> None:
    made = launch.up(request(), host.real(), deadline)
    made.watch()
    made.console_log.write_text("[ 1.0] fine\n")
    made.watch()
    host.domains.clear()
    with pytest.raises(GuestLost, match="guest g: its domain is gone") as caught:
        made.watch()
    assert caught.value.evidence == "[ 1.0] fine"
    made.console_log.write_text("[ 1.0] fine\n[ 2.0] Kernel panic - not syncing: why")
    with pytest.raises(KernelOops):  # the reason comes first, even as a half line of a machine that is gone
        made.watch()


def test_a_guest_that_a_full_disk_paused(host: FakeHost, deadline: Deadline) -> None:
    """Not reported as lost SSH, which would follow a minute later. An earlier oops takes precedence."""
    made = launch.up(request(), host.real(), deadline)
    host.full = "/lab/guests/g/root.qcow2"
    with pytest.raises(
        HostError,
        match=(
            r"guest g: its disk on the host is full: QEMU could not write /lab/guests/g/root.qcow2 and has"
            r" paused"
        ),
    ):
        made.watch()
    made.console_log.write_text("[ 2.0] Kernel panic - not syncing: why\n")
    with pytest.raises(KernelOops):
        made.watch()


@pytest.mark.parametrize(
    ("free", "message"),
    [
        (
            16 * GIB - 1,
            "16GiB of memory requested, 16383MiB free on the host: 16128M is the largest of this shape that fits",
        ),
        (
            511 * MIB,
            "16GiB of memory requested, 511MiB free on the host: not even the smallest of this shape fits",
        ),
    ],
)
def test_admit_refuses(free: int, message: str, deadline: Deadline) -> None:
    shape, host = catalog.topology("4socket"), FakeHost(free)
    with pytest.raises(HostError) as caught:
        start.admit(shape, host.real(), deadline)
    assert str(caught.value) == message
    if fits := topology.largest(shape, free):
        start.admit(fits, host.real(), deadline)


def test_admit(deadline: Deadline) -> None:
    start.admit(catalog.topology("4socket"), FakeHost(16 * GIB).real(), deadline)


def test_fresh_name(lab_state: Path) -> None:
    assert guest.fresh_name("4socket") == "4socket"
    assert guest.fresh_name("/some/where/mine.yml") == "mine"
    (lab_state / "guests" / "4socket").mkdir()
    (lab_state / "guests" / "4socket-3").mkdir()
    assert guest.fresh_name("4socket") == "4socket-2"
    assert guest.fresh_name("4socket", {"4socket-2"}) == "4socket-4"


def test_read(lab_state: Path) -> None:
    with pytest.raises(InputError, match=r"there is no guest nobody \(there are: none\)"):
        guest.read("nobody")
    with pytest.raises(InputError, match="is not a name"):
        guest.read("../x")
    (lab_state / "guests" / "a").mkdir()
    with pytest.raises(
        InputError, match=r"guest a is half made: its up did not end; lab.py gc removes what is left of it"
    ):
        guest.read("a")
    (lab_state / "guests" / "a" / "guest.json").write_text(json.dumps(jsonable(record("a"))))
    assert guest.read("a") == record("a")
    (lab_state / "guests" / "a" / "guest.json").write_text("{}")
    with pytest.raises(HostError, match=r"guest\.json: not a guest's record"):
        guest.read("a")


def test_two_labs_on_one_host(
    host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """Guests of one name in two state directories: each lab sees, stops and removes only its own."""
    mine = launch.up(request(), host.real(), deadline)
    monkeypatch.setenv("LAB_STATE", str(tmp_path / "other"))
    (state.folder("ssh") / "id_ed25519.pub").write_text("public\n")
    theirs = launch.up(request(), host.real(), deadline)
    assert host.names == ["g", "g"]
    assert len(host.domains) == 2
    with pytest.raises(InputError, match="a guest called g is there"):
        launch.up(request(), host.real(), deadline)
    theirs.down(deadline)
    assert (host.marks(deadline), mine.directory.exists()) == ([mine.mark], True)
    mine.watch()
    with pytest.raises(GuestLost):
        theirs.watch()


def test_a_failed_up_leaves_another_labs_domain_alone(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """Even when the other lab's domain has the name that ours needs."""
    monkeypatch.setattr(domain, "domain_name", lambda of: f"numalab-{of.name}")
    monkeypatch.setattr(makers, "domain_name", lambda of: f"numalab-{of.name}")
    other = Mark(uuid="theirs", name="g", lab="another", directory="/another/lab/guests/g")
    host.add(other)
    with pytest.raises(HostError, match="already exists"):
        launch.up(request(), host.real(), deadline)
    assert (host.marks(deadline), host.stopped, guest.names()) == ([other], [], [])


def test_down_of_a_guest_that_was_made_again(host: FakeHost, deadline: Deadline) -> None:
    """A Guest object of the first guest must not end the second one of its name."""
    first = launch.up(request(), host.real(), deadline)
    guest.Guest(guest.read("g"), host.real()).down(deadline)
    second = launch.up(request(), host.real(), deadline)
    first.down(deadline)
    assert (host.marks(deadline), second.directory.exists()) == ([second.mark], True)


def test_ending(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    """Down at the end of the block in any case; the first error is raised, even if libvirt died of it."""
    with guest.ending(launch.up(request(), host.real(), deadline)):
        assert host.names == ["g"]
    assert host.names == []
    kept = launch.up(request(), host.real(), deadline)
    with guest.ending(kept, only_on_error=True):
        pass
    assert host.names == ["g"]
    with pytest.raises(KernelOops, match="panic"), guest.ending(kept, only_on_error=True):
        raise KernelOops("panic")
    assert host.names == []
    lost = launch.up(request(), host.real(), deadline)
    monkeypatch.setattr(FakeHost, "stop", raises(HostError("libvirt does not answer")))
    with pytest.raises(KernelOops, match="panic"), guest.ending(lost):
        raise KernelOops("panic")
    assert "not all is cleaned up (libvirt does not answer): lab.py gc" in caplog.text


def test_a_guest_that_another_process_works_on(host: FakeHost, deadline: Deadline) -> None:
    """`down` waits for its lock until the deadline; `up` of the same name fails at once."""
    made = launch.up(request(), host.real(), deadline)
    with held("guest-g"):
        with pytest.raises(DeadlinePassed, match=r"waiting for another lab.py that holds .*/locks/guest-g"):
            made.down(Deadline.after(0.1))
        with pytest.raises(InputError, match="a guest called g is there"):
            launch.up(request(), host.real(), deadline)
    assert host.names == ["g"]


@contextlib.contextmanager
def held(name: str) -> Iterator[None]:
    """A guest's lock, held by another process."""
    script = (
        "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('held',"
        " flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", script, str(state.folder("locks") / name)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        yield


def test_a_record_of_an_earlier_lab(lab_state: Path) -> None:
    """Without a format number, and with its maker in it, as labs before 2026-11 wrote it."""
    place = lab_state / "guests" / "old"
    place.mkdir(parents=True)
    (place / "maker").write_text(f"{os.getpid()} {state.started(os.getpid())}")
    old = jsonable(record("old")) | {"maker": 1, "maker_started": 2}
    del old["format"]
    (place / "guest.json").write_text(json.dumps(old))
    assert guest.read("old") == record("old")
    assert (maker := guest.maker("old")) is not None
    assert maker.parsed is None


def test_a_record_of_a_later_lab(lab_state: Path) -> None:
    place = lab_state / "guests" / "new"
    place.mkdir(parents=True)
    (place / "guest.json").write_text(json.dumps(jsonable(record("new")) | {"format": 99, "colour": "blue"}))
    with pytest.raises(
        HostError, match="format 99: a newer numalab wrote it; this one reads formats up to 2"
    ):
        guest.read("new")
    assert guest.records() == ([], ["new"])


def test_a_guest_of_another_machine(lab_state: Path) -> None:
    """One state directory on two machines, each with a libvirt at qemu:///system."""
    place = lab_state / "guests" / "far"
    place.mkdir(parents=True)
    (place / "guest.json").write_text(json.dumps(jsonable(record("far"))))
    maker = guest.Maker(process="aaaaaa.bbbbbb.1.2", node="iron", uri=FakeHost.uri)
    (place / "maker").write_text(json.dumps(jsonable(maker)))
    with pytest.raises(
        HostError, match=r"guest far is on iron, and test:///fake is another libvirt here: run lab.py there"
    ):
        options.open_guest("far")


def test_down_all_goes_on(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline, capsys: pytest.CaptureFixture[str]
) -> None:
    """A half-made guest and one with an unreadable record do not keep others up."""
    for name in ("a", "m", "z"):
        launch.up(request(name), host.real(), deadline)
    (state.folder("guests") / "m" / "guest.json").write_text('{"format": 99}')
    state.folder("guests", "half")
    monkeypatch.setattr(hypervisor, "connect", lambda *_: host)
    with pytest.raises(InputError, match="guest half is half made"):
        guest_commands.down(everything=True)
    shown = capsys.readouterr()
    assert shown.out == "a is down\nz is down\n"
    assert "guest.json: not a guest's record: format 99: a newer numalab wrote it" in shown.err
    assert host.names == ["m"]


def test_down_of_a_guest_that_a_newer_lab_made_again(host: FakeHost, deadline: Deadline) -> None:
    """A record that cannot be read is not removed."""
    first = launch.up(request(), host.real(), deadline)
    (first.directory / "guest.json").write_text('{"format": 99}')
    with pytest.raises(HostError, match="a newer numalab wrote it"):
        first.down(deadline)
    assert (host.names, first.directory.exists()) == (["g"], True)


def test_down_of_a_guest_that_libvirt_has_forgotten(host: FakeHost, deadline: Deadline) -> None:
    """Its disks are not removed while its QEMU writes to them."""
    made = launch.up(request(), host.real(), deadline)
    host.domains.clear()
    host.forgotten = {made.record.spec.uuid: 77}
    with pytest.raises(
        HostError,
        match=(
            r"guest g: its QEMU \(process 77\) runs, but libvirt at test:///fake does not know it: end that"
            r" process"
        ),
    ):
        made.down(deadline)
    assert made.directory.exists()
    host.forgotten = {}
    made.down(deadline)
    assert not made.directory.exists()


def test_files_that_cannot_be_removed(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    made = launch.up(request(), host.real(), deadline)
    monkeypatch.setattr(disks, "drop_pool_disks", lambda _: None)
    with monkeypatch.context() as patch:  # a fixture's temporary folder is removed by it too
        patch.setattr(shutil, "rmtree", raises(OSError(30, "Read-only file system")))
        with pytest.raises(HostError, match=f"{made.directory}: cannot be removed: .*Read-only file system"):
            made.down(deadline)


def test_up_reads_no_recipe(host: FakeHost, deadline: Deadline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request has the kernel: its files may change, or go, while the guest comes up."""
    requested = request()
    monkeypatch.setattr(catalog, "load", raises(AssertionError("a recipe was read")))
    assert launch.up(requested, host.real(), deadline).record.spec.boot.name == "debian"


def test_a_pinned_kernel(host: FakeHost, deadline: Deadline) -> None:
    """The build with which the experiment began, even if its recipe has changed or is gone."""
    boot = Boot(name="gone", kernel=str(state.directory() / "bzImage"), release="")
    Path(str(boot.kernel)).write_text("kernel")
    made = launch.up(request().model_copy(update={"pinned": boot}), host.real(), deadline)
    assert (made.record.spec.boot.name, made.record.spec.boot.kernel) == ("gone", boot.kernel)
