"""Values and fakes that several tests need."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from numalab import catalog, state
from numalab.guest import Record
from numalab.model import Accel, Boot, DiskFile, GuestSpec, Topology
from numalab.proc import Deadline, Result

HERE = Path(__file__).resolve().parent
RECORDED = HERE.parent / "recorded"
GOLDEN = HERE.parent / "golden"
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
    data = [DiskFile(path=f"{directory}/{disk.name}.raw", format="raw", serial=disk.name, direct=False) for disk in shape.disks]
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

    def execute(self, command: str, *, deadline: Deadline, input: bytes | None = None) -> Result:
        """See numalab.shell.Shell."""
        self.asked.append(command)
        status, out, err = self.says(command, input)
        return Result((command,), status, out, err, 0.0)
