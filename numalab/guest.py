"""A guest's life: up (made, booted, reached, verified), used, down; and `gc` for what died on the way.

A guest is a folder guests/NAME in the state directory and a domain with the lab's mark. Whatever ends
`up` early, both are gone afterwards; after a kill -9, `collect` finds and removes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from numalab import accel, console, image, kernel, shell, state, storage, topology
from numalab.domain import domain_xml
from numalab.errors import BootHung, DeadlinePassed, GuestError, GuestLost, HostError, InputError, LabError, TopologyMismatch
from numalab.host import Host
from numalab.log import note, step
from numalab.model import MIB, Accel, Boot, GuestSpec, Name, Topology, Value, check_name, jsonable, show_size
from numalab.proc import Deadline, Result
from numalab.where import HERE, Where, of_uri

UP_SECONDS = 300.0
"""From nothing to verified; the slowest seen under emulation on two cores, 16 vCPUs and Debian's kernel, took 75 s."""
PORT_TRIES = 3
BOOT_TRIES = 3
HUNG_SECONDS = 90.0
"""A boot under emulation that has printed nothing for so long, and does not answer, hangs: QEMU before 8.1 may keep the
translation of an instruction that another vCPU has just patched (Linux patches static keys while all CPUs run), and
executes a breakpoint for ever that is no longer there. Seen on QEMU 7.2 in 2 or 3 of 100 boots. The kernel has no part
in it, so such a boot is begun again; one under KVM is not, for there a hang is the kernel's."""


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
        self._console()
        if self._booting and self._hangs():
            last = self.console_text().splitlines()[-1].strip()
            raise BootHung(
                f"guest {self.name}: hung in its boot under emulation, nothing new on its console for {HUNG_SECONDS:.0f} s; last: {last}",
                evidence=self.console_tail(),
            )
        if not self.host.running(self.name):
            self._console(last=True)
            raise GuestLost(f"guest {self.name}: its domain is gone: QEMU ended, or somebody destroyed it", evidence=self.console_tail())

    def _hangs(self) -> bool:
        """Whether a boot under emulation has stopped, of which something was seen and more was to be expected."""
        spec = self.record.spec
        told = spec.accel is Accel.TCG and "quiet" not in spec.boot.cmdline.split()
        return told and time.monotonic() - self._console.grew > HUNG_SECONDS and bool(self.console_text().strip())

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
        found, asked = shell.succeed(self, "uname -r", deadline=deadline).strip(), self.record.spec.boot.release
        if asked and found != asked:
            raise GuestError(f"guest {self.name}: runs kernel {found}, but {self.record.spec.boot.name} is {asked}")

    def down(self, deadline: Deadline) -> None:
        """Stop the guest and remove all that it had. Safe to call in any state, and twice."""
        with contextlib.suppress(LabError):
            self.ssh.disconnect(deadline)
        self.host.stop(self.name, deadline.grace(20))
        self.ssh.control.unlink(missing_ok=True)
        _remove(self.directory, self.host, deadline.grace(20))

    def save(self) -> None:
        """Write the record, whole or not at all."""
        fresh = self.directory / "guest.json.new"
        fresh.write_text(json.dumps(jsonable(self.record), indent=1))
        fresh.replace(self.directory / "guest.json")


def up(request: Request, host: Host, deadline: Deadline) -> Guest:
    """Make, boot, reach and verify a guest. On any error, nothing of it is left.

    A boot that hangs under emulation is begun again, from fresh disks: said, and counted in the record.
    """
    for hung in range(BOOT_TRIES - 1):
        try:
            return _up(request, host, deadline, hung)
        except BootHung as error:
            console_log = state.folder("logs") / f"hung-{request.name}-{hung + 1}.log"
            console_log.write_text(error.evidence)
            note(f"{error}; begun again (the end of its console: {console_log})")
    return _up(request, host, deadline, BOOT_TRIES - 1)


def _up(request: Request, host: Host, deadline: Deadline, hung: int) -> Guest:
    """One try."""
    place = _claim(request.name)
    guest = None
    try:
        guest = _prepare(request, host, place, deadline)
        guest.record = guest.record.model_copy(update={"hung": hung})
        start(guest, request, deadline)
        with step("boot", who=request.name):
            guest.reach(deadline)
        with step("topology verified from inside", who=request.name):
            guest.verify(deadline)
        guest.record = guest.record.model_copy(update={"ready": True})
        guest.save()
        return guest
    except BaseException as error:
        if isinstance(error, LabError) and not error.evidence:
            error.evidence = guest.console_tail() if guest else ""
        try:
            if guest is not None:
                guest.down(Deadline.after(60))
            _remove(place, host, Deadline.after(60))
        except LabError as also:  # why it failed matters more
            note(f"not all is cleaned up ({also}): lab.py gc", who=request.name)
        raise


def _remove(place: Path, host: Host, deadline: Deadline) -> None:
    """All files of a guest, here and on its hypervisor."""
    storage.drop_pool_disks(place.name)
    if host.where.ssh:
        with contextlib.suppress(LabError):
            host.where.run(["rm", "-rf", "--", place], deadline=deadline, check=False)
    shutil.rmtree(place, ignore_errors=True)


def _claim(name: str) -> Path:
    """The guest's folder, ours alone: making it is what makes a name taken."""
    place = state.folder("guests") / name
    # It appears with its maker's name in it, so that no gc ever takes it for abandoned.
    scratch = Path(tempfile.mkdtemp(prefix=".claim-", dir=place.parent))
    (scratch / "maker").write_text(f"{os.getpid()} {state.started(os.getpid())}")
    try:
        scratch.rename(place)
    except OSError:
        shutil.rmtree(scratch)
        raise InputError(f"a guest called {name} is there: lab.py down {name}, or another --name") from None
    return place


def _prepare(request: Request, host: Host, place: Path, deadline: Deadline) -> Guest:
    """Everything short of starting it: image, kernel, accelerator, disks."""
    where = host.where
    request = request.model_copy(update={"shape": kernel.fitted(request.kernel_name, request.shape)})
    base = image.require(request.image_name, deadline)
    boot = kernel.resolve(request.kernel_name, base)
    if not boot.kernel:
        raise HostError(f"kernel {request.kernel_name}: nothing to boot")
    probe = accel.choose(request.wish, Path(boot.kernel), deadline, where)
    if where.ssh:
        where.run(["mkdir", "-p", "-m", "700", place], deadline=deadline)
        with step(f"files to {where.ssh}", who=request.name):
            where.push([base.file("disk.qcow2"), *(Path(path) for path in (boot.kernel, boot.initrd) if path)], deadline)
    storage.check_room(place, where)
    for disk in request.shape.disks:
        storage.check_size(disk, place, request.form, where)
    words = [f"root={base.root} rw console=ttyS0,115200 net.ifnames=0 systemd.hostname={request.name}"]
    words += [f"numa=fake={request.shape.fake}"] if request.shape.fake else []
    words += [boot.cmdline] if boot.cmdline else []
    words += [request.append] if request.append else []
    disks = [storage.overlay(base.file("disk.qcow2"), place / "root.qcow2", deadline, where)]
    disks += [storage.create(disk, place, request.form, deadline, where) for disk in request.shape.disks]
    spec = GuestSpec(
        name=request.name, uuid=str(uuid.uuid4()), topology=request.shape, topology_name=request.topology_name,
        accel=probe.accel, boot=Boot(**boot.model_dump() | {"cmdline": " ".join(words)}), disks=tuple(disks),
        ssh_port=request.ssh_port or free_port(where), directory=str(place), lab=state.identity(), owner=host.owner(deadline),
    )
    record = Record(
        spec=spec, uri=host.uri, image=base.name, image_id=base.id, kernel_hash=kernel.digest(boot),
        accel_reason=probe.reason, created=state.stamp(), ready=False, maker=os.getpid(), maker_started=state.started(os.getpid()),
    )
    if probe.accel.value == "tcg":
        note(f"emulated (TCG: {probe.reason}); counters are faithful, times are not", who=request.name)
    (place / "known_hosts").write_text(f"numalab {base.file('host_key.pub').read_text()}")
    (place / "known_hosts").chmod(0o600)
    guest = Guest(record, host)
    guest.save()
    return guest


def start(guest: Guest, request: Request, deadline: Deadline) -> None:
    """Create the domain. One at a time over the whole host, so that two never count the same free memory."""
    where = guest.host.where
    if request.ssh_port and not where.ssh and not _port_free(request.ssh_port):
        raise InputError(f"--ssh-port {request.ssh_port}: the port is taken; choose another or leave it out")
    with state.lock("admission", deadline), step("start", who=request.name):
        admit(request.shape, guest.host)
        for tries in range(PORT_TRIES):
            xml = domain_xml(guest.record.spec)
            (guest.directory / "domain.xml").write_text(xml)
            try:
                guest.host.create(xml)
                return
            except HostError as error:
                # Between our look and QEMU's bind somebody else may take the port.
                if "host forwarding rule" not in error.evidence or request.ssh_port or tries == PORT_TRIES - 1:
                    raise
            spec = guest.record.spec.model_copy(update={"ssh_port": free_port(where)})
            guest.record = guest.record.model_copy(update={"spec": spec})
            guest.save()
            guest.__post_init__()


def admit(asked: Topology, host: Host) -> None:
    """HostError when the host cannot hold this topology, with the largest of its shape that would fit."""
    free = host.free_memory()
    if asked.memory > free:
        fits = topology.largest(asked, free)
        most = f"--memory {fits.memory // MIB}M is the largest of this shape that fits" if fits else "not even the smallest of this shape fits"
        raise HostError(f"{show_size(asked.memory)} of memory asked, {free // MIB}MiB free on the host: {most}")


def free_port(where: Where = HERE) -> int:
    """A loopback port that nobody listens on just now; on another machine any one, which QEMU will refuse if it is taken."""
    if where.ssh:
        return random.randrange(20000, 32768)  # below the ports that the kernel hands out by itself
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


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


def collect(host: Host, deadline: Deadline) -> list[str]:
    """Remove what nobody owns any more; returns one line for each thing removed. Touches nothing else."""
    removed = []
    running = host.guests()
    for name in names():
        place = state.folder("guests") / name
        if _maker_lives(place):
            continue
        try:
            record = read(name)
        except LabError:
            record = None
        if record is not None and record.uri != host.uri:
            continue
        if record is not None and record.ready and name in running:
            continue
        if running.get(name, {}).get("directory") == str(place):
            host.stop(name, deadline)
            del running[name]
        _remove(place, host, deadline)
        removed.append(f"guest {name}: " + ("it was lost" if record and record.ready else "its up did not end"))
    for name, mark in running.items():
        if mark.get("lab") == state.identity() and not Path(mark["directory"]).exists():
            host.stop(name, deadline)
            removed.append(f"domain of {name}: its folder is gone")
    for path in state.abandoned():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed.append(f"half-made {path.name.split('-', 2)[2]}")
    removed += [f"image {path.parent.name}/{path.name}: no longer current, and no guest uses it" for path in _stale_images(deadline)]
    if storage.release_pool(deadline):
        removed.append("storage pool: empty")
    return removed


def _maker_lives(place: Path) -> bool:
    """Whether the `up` that made this folder still runs."""
    try:
        pid, began = (int(word) for word in (place / "maker").read_text().split())
    except (OSError, ValueError):
        return False
    ready = (place / "guest.json").exists() and '"ready": true' in (place / "guest.json").read_text()
    return not ready and state.alive(pid) and state.started(pid) == began


def _stale_images(deadline: Deadline) -> list[Path]:
    """Remove (and return) images that no inputs lead to and no guest stands on."""
    used = set()
    for name in names():
        with contextlib.suppress(LabError):
            used.add(read(name).image_id)
    gone = []
    for folder in state.folder("images").iterdir():
        with contextlib.suppress(LabError):
            current = {built.id for built in image.valid(folder.name, deadline)}
            for place in folder.iterdir():
                if current and place.name not in current | used and not place.name.startswith("."):
                    shutil.rmtree(place, ignore_errors=True)
                    gone.append(place)
    return gone
