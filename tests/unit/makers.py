"""Values and fakes that several tests need."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

from numalab import catalog, state
from numalab.domain import read_mark
from numalab.guest import Record
from numalab.host import Host
from numalab.model import GIB, Accel, Boot, DiskFile, GuestSpec, Topology
from numalab.proc import Deadline, Result
from numalab.where import HERE as THIS_MACHINE

TESTS = Path(__file__).resolve().parent.parent
RECORDED = TESTS / "recorded"
GOLDEN = TESTS / "golden"
BOOT = Boot(name="debian", kernel="/lab/images/vmlinuz", initrd="/lab/images/initrd.img", cmdline="root=/dev/vda2 rw console=ttyS0,115200")


def recorded(name: str) -> str:
    """A text that a kernel once printed; tests/recorded/README.md says which."""
    return (RECORDED / name).read_text()


def spec(
    topology: str | Topology = "4socket", *, name: str = "golden", accel: Accel = Accel.TCG, boot: Boot = BOOT,
    owner: tuple[int, int] | None = None, directory: str = "/lab/guests/golden",
) -> GuestSpec:
    """A guest of a topology, the same every time."""
    shape = catalog.topology(topology) if isinstance(topology, str) else topology
    root = DiskFile(path=f"{directory}/root.qcow2", format="qcow2", serial="root", direct=True)
    data = [
        DiskFile(path=f"{directory}/{disk.name}.raw", format="raw", serial=disk.name, direct=False, bus=disk.bus, mibs_per_second=disk.mibs_per_second)
        for disk in shape.disks
    ]
    return GuestSpec(
        name=name, uuid="6e756d61-6c61-4b00-8000-0000000000ff", topology=shape, accel=accel, boot=boot, disks=(root, *data),
        topology_name=topology if isinstance(topology, str) else "mine", ssh_port=2222, directory=directory, owner=owner,
    )


def record(name: str, *, ready: bool = True, uri: str = "test:///fake", maker: int | None = None, image_id: str = "0" * 16) -> Record:
    """The record of a guest whose folder is in the test's state directory."""
    maker = os.getpid() if maker is None else maker
    return Record(
        spec=spec(name=name, directory=str(state.folder("guests") / name)), uri=uri, image="debian12", image_id=image_id,
        kernel_hash="1" * 16, accel_reason="asked for", created="20150307T152000", ready=ready, maker=maker, maker_started=state.started(maker),
    )


class FakeShell:
    """A guest that answers as a function says: command -> (status, stdout, stderr)."""

    def __init__(self, says: Callable[[str, bytes | None], tuple[int, str, str]]) -> None:
        self.says = says
        self.asked: list[str] = []

    def execute(self, command: str, *, deadline: Deadline, input: bytes | None = None, tell: Callable[[str], None] | None = None) -> Result:
        """See numalab.shell.Shell."""
        self.asked.append(command)
        status, out, err = self.says(command, input)
        return Result((command,), status, out, err, 0.0)


class FakeHost:
    """A hypervisor that starts nothing: domains are marks in a dict."""

    uri = "test:///fake"
    where = THIS_MACHINE

    def __init__(self, free: int = 64 * GIB) -> None:
        self.free = free
        self.domains: dict[str, dict[str, str]] = {}
        self.stopped: list[str] = []
        self.refuses: Exception | None = None
        self.full = ""

    def owner(self, deadline: Deadline) -> None:
        """As under a session."""

    def guests(self) -> dict[str, dict[str, str]]:
        """The lab's domains."""
        return dict(self.domains)

    def create(self, xml: str) -> None:
        """Start one, or refuse."""
        if self.refuses:
            raise self.refuses
        mark = read_mark(xml)
        assert mark is not None
        self.domains[mark["name"]] = mark

    def running(self, guest: str) -> bool:
        """Whether it is there."""
        return guest in self.domains

    def full_disk(self, guest: str) -> str:
        """The file that there was no room for."""
        return self.full

    def cpu_seconds(self, guest: str) -> float:
        """Next to nothing: it hangs."""
        return 3.0

    def stop(self, guest: str, deadline: Deadline, *, grace: float = 0.0) -> None:
        """End it."""
        self.stopped.append(guest)
        self.domains.pop(guest, None)

    def free_memory(self) -> int:
        """Bytes."""
        return self.free

    def version(self) -> str:
        """Of libvirt."""
        return "9.0.0"

    def real(self) -> Host:
        """For the type checker, a Host."""
        return cast(Host, self)
