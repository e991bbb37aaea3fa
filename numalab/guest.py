"""A guest: its record, how it is reached, used and ended. `launch` makes one.

A guest is a folder guests/NAME in the state directory and a domain with the lab's mark.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from numalab import console, shell, state, storage, topology
from numalab.errors import BootHung, DeadlinePassed, GuestError, GuestLost, HostError, InputError, KernelOops, LabError, TopologyMismatch
from numalab.host import Host
from numalab.model import Accel, GuestSpec, Name, Topology, Value, check_name, jsonable
from numalab.proc import Deadline, Result
from numalab.where import of_uri

OOPS_SECONDS = 1.0
"""Until an oops stands on the console as a whole."""
HUNG_SECONDS = 90.0
"""A boot under emulation that has printed nothing new for so long, and does not answer, hangs: QEMU before 8.1 may keep the
translation of an instruction that another vCPU has just patched (Linux patches static keys while all CPUs run), and
executes a breakpoint for ever that is no longer there. So one guest's registers said, on QEMU 7.2, where 2 or 3 of 100
boots hang, not all in that place. Such a boot is begun again and counted; one under KVM is not, for there a hang is
the kernel's."""


class BootWay(StrEnum):
    """Who starts the kernel: QEMU, from the host's files, or the guest's own GRUB."""

    DIRECT = "direct"
    GRUB = "grub"


class Request(Value):
    """What a person asks of `up`."""

    name: Name
    topology_name: str
    shape: Topology
    kernel_name: str = "debian"
    boot: BootWay = BootWay.DIRECT
    image_name: str = "debian12"
    append: str = ""
    wish: str = "auto"
    form: storage.Form = storage.Form.AUTO
    ssh_port: int | None = None


class Record(Value):
    """guests/NAME/guest.json: enough to reach the guest from another process, and to clean up after one."""

    spec: GuestSpec
    uri: str
    image: str
    image_id: str
    kernel_hash: str
    accel_reason: str
    created: str
    ready: bool
    maker: int
    maker_started: int
    hung: int = 0
    """How many boots hung under emulation before this one."""


def check_release(record: Record, release: str) -> None:
    """GuestError when a guest's `uname -r` is not that of its record's kernel, where that is known."""
    boot = record.spec.boot
    if boot.release and release != boot.release:
        raise GuestError(f"guest {record.spec.name}: runs kernel {release}, but {boot.name} is {boot.release}")


def ssh_to(record: Record, watch: Callable[[], None] | None = None) -> shell.Ssh:
    """SSH to the guest of a record."""
    return shell.Ssh(
        guest=record.spec.name, port=record.spec.ssh_port, key=state.folder("ssh") / "id_ed25519",
        known_hosts=Path(record.spec.directory) / "known_hosts", via=of_uri(record.uri).ssh, watch=watch,
    )


@dataclass
class Guest:
    """A guest that is up, or about to be. It is a Shell."""

    record: Record
    host: Host

    def __post_init__(self) -> None:
        self._console = console.Watch(self.console_log, self.name, self._more_console)
        self.ssh = ssh_to(self.record, self.watch)
        self._booting = False

    @property
    def name(self) -> str:
        """The guest's name."""
        return self.record.spec.name

    @property
    def directory(self) -> Path:
        """Its folder on the host."""
        return Path(self.record.spec.directory)

    @property
    def console_log(self) -> Path:
        """All that its kernel printed."""
        return self.directory / "console.log"

    def _more_console(self, offset: int) -> bytes:
        return self.host.where.read(self.console_log, offset, Deadline.after(60))

    def console_text(self) -> str:
        """The console log so far."""
        return self._more_console(0).decode(errors="replace")

    def console_tail(self) -> str:
        """Its end, for an error's evidence; '' when its machine cannot be asked any more."""
        with contextlib.suppress(LabError):
            return "\n".join(self.console_text().splitlines()[-console.TAIL_LINES:])
        return ""

    def watch(self) -> None:
        """Raise KernelOops when the console shows one, GuestLost when the domain is gone, BootHung in a boot that hangs."""
        try:
            self._console()
        except KernelOops as error:
            if self.record.spec.accel is Accel.TCG and "int3: " in str(error):
                self._check_oops(error)
            raise
        if self._booting:
            self._check_boot()
        if not self.host.running(self.name):
            self._console(last=True)
            raise GuestLost(f"guest {self.name}: its domain is gone: QEMU ended, or somebody destroyed it", evidence=self.console_tail())

    def _check_oops(self, error: KernelOops) -> None:
        """GuestError when an oops under emulation is the emulator's and no finding: BootHung in a boot, which can be begun again."""
        time.sleep(OOPS_SECONDS)
        if console.stale_breakpoint(self.console_text()):
            raise (BootHung if self._booting else GuestError)(
                f"guest {self.name}: oopsed under emulation at a breakpoint that its memory does not have (QEMU ran an old translation)",
                evidence=self.console_tail(),
            ) from error

    def _check_boot(self) -> None:
        """BootHung when a boot under emulation has stopped, of which something was seen and more was to be expected."""
        spec = self.record.spec
        if spec.accel is not Accel.TCG or "quiet" in spec.boot.cmdline.split() or time.monotonic() - self._console.grew <= HUNG_SECONDS:
            return
        if tail := self.console_tail().strip():
            raise BootHung(
                f"guest {self.name}: hung in its boot under emulation, nothing new on its console for {HUNG_SECONDS:.0f} s; "
                f"last: {tail.splitlines()[-1]}", evidence=tail,
            )

    def execute(self, command: str, *, deadline: Deadline, input: bytes | None = None, tell: Callable[[str], None] | None = None) -> Result:
        """See Shell."""
        given = self.record.spec.boot.environment
        command = "".join(f"export {name}={shlex.quote(value)}; " for name, value in given.items()) + command
        try:
            return self.ssh.execute(command, deadline=deadline, input=input, tell=tell)
        except GuestLost as error:
            error.evidence = error.evidence or self.console_tail()
            raise

    def verify(self, deadline: Deadline) -> list[topology.Row]:
        """Everything asked of the topology beside everything found; TopologyMismatch when it differs."""
        asked = self.record.spec.topology
        seen = topology.found(shell.succeed(self, topology.PROBE, deadline=deadline))
        rows = topology.compare(topology.asked(asked), seen, fake=bool(asked.fake))
        wrong = [row.what for row in rows if not row.agrees]
        if wrong:
            raise TopologyMismatch(f"guest {self.name}: not the topology that was asked for: {', '.join(wrong)}", evidence=topology.table(rows))
        return rows

    def reach(self, deadline: Deadline) -> None:
        """Wait until a first command ran over SSH: on the kernel that was asked for, or GuestError."""
        self._console.grew, self._booting = time.monotonic(), True
        try:
            self.ssh.wait(deadline)
        except DeadlinePassed as error:
            if not self.console_text().strip():
                raise GuestError(console.silence(self.name, self.host.cpu_seconds(self.name))) from error
            raise
        finally:
            self._booting = False
        check_release(self.record, shell.succeed(self, "uname -r", deadline=deadline).strip())

    def down(self, deadline: Deadline) -> None:
        """Stop the guest and remove all that it had. Safe to call in any state, and twice."""
        with contextlib.suppress(LabError):
            self.ssh.disconnect(deadline)
        self.host.stop(self.name, deadline.grace(20))
        self.ssh.control.unlink(missing_ok=True)
        remove(self.directory, self.host, deadline.grace(20))

    def save(self) -> None:
        """Write the record, whole or not at all."""
        state.write(self.directory / "guest.json", json.dumps(jsonable(self.record), indent=1))


def remove(place: Path, host: Host, deadline: Deadline) -> None:
    """All files of a guest, here and on its hypervisor."""
    storage.drop_pool_disks(place.name)
    if host.where.ssh:
        with contextlib.suppress(LabError):
            host.where.run(["rm", "-rf", "--", place], deadline=deadline, check=False)
    shutil.rmtree(place, ignore_errors=True)


def names() -> list[str]:
    """Guests that have a folder, whether they run or not."""
    return sorted(path.name for path in state.folder("guests").iterdir() if not path.name.startswith("."))


def fresh_name(wish: str, besides: AbstractSet[str] = frozenset()) -> str:
    """The wished name (a topology's, or its file's), or with the first number that makes it free."""
    stem = Path(wish).name.removesuffix(".yml")
    taken = {*names(), *besides}
    return next(name for name in [stem, *(f"{stem}-{n}" for n in range(2, 1000))] if name not in taken)


def read(name: str) -> Record:
    """A guest's record; InputError when there is no such guest."""
    try:
        check_name(name)
    except ValueError as error:
        raise InputError(str(error)) from error
    path = state.folder("guests") / name / "guest.json"
    try:
        return Record.model_validate_json(path.read_text())
    except FileNotFoundError:
        known = ", ".join(names()) or "none"
        raise InputError(f"there is no guest {name} (there are: {known})") from None
    except ValueError as error:
        raise HostError(f"{path}: not a guest's record: {error}") from error
