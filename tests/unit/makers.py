# SPDX-License-Identifier: GPL-2.0-only
"""Values and fakes that several tests use."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from numalab.core import state
from numalab.core.errors import HostError
from numalab.core.process import Deadline, Result
from numalab.experiment.plan import Plan
from numalab.host.domain import Mark, domain_name, read_mark
from numalab.host.hypervisor import Host
from numalab.host.remote import HERE as THIS_MACHINE
from numalab.model import catalog
from numalab.model.guest import Boot, DiskFile, GuestRecord, GuestSpec
from numalab.model.run import Run
from numalab.model.topology import Disk, Topology
from numalab.model.units import GIB
from numalab.model.values import Accel, Clock

TESTS = Path(__file__).resolve().parent.parent
RECORDED = TESTS / "recorded"
GOLDEN = TESTS / "golden"
BOOT = Boot(
    name="debian",
    kernel="/lab/images/vmlinuz",
    initrd="/lab/images/initrd.img",
    cmdline="root=/dev/vda2 rw console=ttyS0,115200",
)


def recorded(name: str) -> str:
    """A recorded text of a kernel; tests/recorded/README.md says of which one."""
    return (RECORDED / name).read_text()


def disk_file(disk: Disk, directory: str = "/lab/guests/golden") -> DiskFile:
    """The raw file of a data disk."""
    return DiskFile(
        path=f"{directory}/{disk.name}.raw",
        format="raw",
        serial=disk.name,
        direct=False,
        bus=disk.bus,
        mibs_per_second=disk.mibs_per_second,
    )


def spec(
    topology: str | Topology = "4socket",
    *,
    name: str = "golden",
    accel: Accel = Accel.TCG,
    boot: Boot = BOOT,
    owner: tuple[int, int] | None = None,
    directory: str = "/lab/guests/golden",
) -> GuestSpec:
    """A guest's specification, the same every time."""
    shape = catalog.topology(topology) if isinstance(topology, str) else topology
    root = DiskFile(path=f"{directory}/root.qcow2", format="qcow2", serial="root", direct=True)
    data = [disk_file(disk, directory) for disk in shape.disks]
    return GuestSpec(
        name=name,
        uuid="6e756d61-6c61-4b00-8000-0000000000ff",
        topology=shape,
        accel=accel,
        boot=boot,
        disks=(root, *data),
        topology_name=topology if isinstance(topology, str) else "mine",
        ssh_port=2222,
        directory=directory,
        owner=owner,
        lab="0123456789abcdef",
    )


def record_of(
    made: GuestSpec,
    *,
    ready: bool = True,
    uri: str = "test:///fake",
    image_id: str = "0" * 16,
    kernel_hash: str = "1" * 16,
    accel_reason: str = "asked for",
    hung: int = 0,
) -> GuestRecord:
    """The record of a guest with this specification."""
    return GuestRecord(
        spec=made,
        uri=uri,
        image="debian12",
        image_id=image_id,
        kernel_hash=kernel_hash,
        accel_reason=accel_reason,
        created="20150307T152000",
        ready=ready,
        hung=hung,
    )


def record(
    name: str, *, ready: bool = True, uri: str = "test:///fake", image_id: str = "0" * 16
) -> GuestRecord:
    """The record of a guest with a folder in the test's state directory."""
    made = spec(name=name, directory=str(state.folder("guests") / name)).model_copy(
        update={"lab": state.identity(), "uuid": f"uuid of {name}"}
    )
    return record_of(made, ready=ready, uri=uri, image_id=image_id)


@dataclass(frozen=True)
class Written(Deadline):
    """A deadline that passes once a file has so many words, and after a minute anyway. A test of a time limit that waits
    for a fixed time has nothing to end where a busy host did not come to it."""

    path: Path = Path()
    words: int = 1

    @classmethod
    def to(cls, path: Path, words: int = 1) -> Written:
        """The deadline for a file."""
        return cls(time.monotonic() + 60, path=path, words=words)

    def remaining(self) -> float:
        """See Deadline."""
        text = self.path.read_text() if self.path.exists() else ""
        written = text.endswith("\n") and len(text.split()) >= self.words
        return 0.0 if written else super().remaining()


class FakeShell:
    """A guest whose answers are a function: command -> (status, stdout, stderr)."""

    def __init__(self, says: Callable[[str, bytes | None], tuple[int, str, str]]) -> None:
        self.says = says
        self.commands: list[str] = []
        self.limits: list[float] = []
        """Each command's limit, in seconds."""

    def execute(
        self,
        command: str,
        *,
        deadline: Deadline,
        input: bytes | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> Result:
        """See numalab.host.ssh.Shell."""
        self.commands.append(command)
        self.limits.append(deadline.remaining())
        status, out, err = self.says(command, input)
        return Result((command,), status, out, err, 0.0)


FORWARDS = 3408
"""An experiment's seed with which two to four kernels are booted in their order in rounds 0 and 2."""


class FakeHost:
    """A hypervisor that starts nothing: domains are names with marks. As in libvirt, names are unique."""

    uri = "test:///fake"
    where = THIS_MACHINE

    def __init__(self, free: int = 64 * GIB) -> None:
        self.free = free
        self.has = 64 * GIB
        self.domains: dict[str, Mark] = {}
        self.stopped: list[str] = []
        self.refuses: Exception | None = None
        self.pinned: set[int] = set()
        self.full = ""
        self.assertion = ""
        self.cpus_stand = "CPU 0 halted at ffffffff81a2b3c4\nCPU 1 runs at ffffffff8100a0b0"
        self.forgotten: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """The names of running guests of all labs."""
        return sorted(mark.name for mark in self.domains.values())

    def add(self, mark: Mark) -> None:
        """Add a running domain."""
        self.domains[domain_name(mark)] = mark

    def owner(self, deadline: Deadline) -> None:
        """None, as under a session."""

    def marks(self, deadline: Deadline) -> list[Mark]:
        """The domains of all labs."""
        return list(self.domains.values())

    def create(self, xml: str, deadline: Deadline) -> None:
        """Start a domain, or refuse."""
        if self.refuses:
            raise self.refuses
        mark = read_mark(xml)
        assert mark is not None
        if domain_name(mark) in self.domains:
            raise HostError(
                f"libvirt does not start the guest: domain '{domain_name(mark)}' already exists with uuid"
                f" {mark.uuid}"
            )
        self.add(mark)

    def running(self, guest: Mark, deadline: Deadline | None = None) -> bool:
        """Whether the domain runs."""
        return guest in self.domains.values()

    def paused_by(self, guest: Mark) -> str | None:
        """The file that could not be written because the disk is full."""
        return self.full if self.running(guest) else None

    def qemu(self, guest: Mark) -> int | None:
        """The process of a guest that libvirt has forgotten."""
        return self.forgotten.get(guest.uuid)

    def failed_assertion(self, guest: Mark, deadline: Deadline) -> str:
        """What ended its QEMU."""
        return self.assertion

    def registers(self, guest: Mark, deadline: Deadline) -> str:
        """Where the CPUs of a guest that hangs stand."""
        return self.cpus_stand

    def cpu_seconds(self, guest: Mark) -> float:
        """Next to nothing, as of a guest that hangs."""
        return 0.7

    def stop(self, guest: Mark, deadline: Deadline, *, grace: float = 0.0) -> None:
        """End the domain."""
        if self.running(guest):
            self.stopped.append(guest.name)
            self.domains = {name: mark for name, mark in self.domains.items() if mark != guest}

    def free_memory(self, deadline: Deadline, *, besides: Collection[str] = ()) -> int:
        """Bytes."""
        return self.free

    def memory(self, deadline: Deadline) -> int:
        """Bytes that it has, used or not."""
        return self.has

    def cpus(self, deadline: Deadline) -> int:
        """Its CPUs."""
        return 2

    def pinned_cpus(self, deadline: Deadline) -> set[int]:
        """Other guests' CPUs."""
        return self.pinned

    def hypervisor(self) -> str:
        """Versions, as libvirt counts."""
        return "QEMU 10000002, libvirt 9000000"

    def version(self) -> str:
        """A version as libvirt's."""
        return "9.0.0"

    def real(self) -> Host:
        """This, typed as a Host."""
        return cast(Host, self)


def running(process: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something that another process does: on a busy machine a killed one takes time to end."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def pytest_argv(place: Path, tests: str, *words: str) -> list[str]:
    """A pytest of its own that runs these tests, from a file in `place`. Without hypothesis, whose plugin takes
    two thirds of such a pytest's processor time."""
    file = place / "test_mine.py"
    file.write_text(tests)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", f"--rootdir={place}"]
    return [sys.executable, "-m", "pytest", *options, *words, str(file)]


def kernel_names(plan: Plan) -> tuple[str, ...]:
    """The names of a plan's kernels."""
    return tuple(kernel.name for kernel in plan.kernels)


def on_virtual_clock(run: Run, **changes: object) -> Run:
    """The run as if its guest had a virtual clock; `changes` of the guest's spec."""
    spec = run.guest.spec.model_copy(update={"clock": Clock.VIRTUAL, **changes})
    return run.model_copy(update={"guest": run.guest.model_copy(update={"spec": spec})})
