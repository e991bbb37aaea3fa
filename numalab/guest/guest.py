# SPDX-License-Identifier: GPL-2.0-only
"""A guest that exists: reaching it, watching it, ending it, and its files on the host.

A guest is a folder guests/NAME in the state directory and a domain with the guest's mark. Whoever makes,
changes or ends it holds its lock (`hold`), and checks its state again under the lock. Not here: making one
(launch), changing settings inside it (provision).
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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
from numalab.core.log import note
from numalab.core.process import Deadline, Result
from numalab.host import console, disks, ssh
from numalab.host.domain import INIT_WORD, Mark, mark
from numalab.host.hypervisor import Host
from numalab.host.remote import of_uri
from numalab.model import verification
from numalab.model.guest import GuestRecord
from numalab.model.values import MOST_NAME, Accel, Clock, Stored, check_name, first_line, jsonable

OOPS_SECONDS = 1.0
"""Time for an oops to appear on the console completely."""
VIRTUAL_PACE = 10.0
"""A virtual clock may be faster than the host's: 8 ns an instruction is 125 million a second."""
HUNG_SECONDS = 90.0
"""A boot under emulation that has printed nothing new for so long, and does not answer, hangs. QEMU before
8.1 may keep the translation of an instruction that another vCPU has just patched (Linux patches static keys
while all CPUs run), and executes for ever a breakpoint that is no longer in memory. One guest's registers
showed this, on QEMU 7.2, where 2 or 3 of 100 boots hang, not all in that place. Such a boot is started again
and counted. A boot under KVM is not: there a hang is the kernel's."""
HALTED_SECONDS = 25.0
"""The same, when all its CPUs are halted at each of LOOKS looks from then on, LOOK_SECONDS apart: such a
guest waits for an interrupt that QEMU lost (docs/decisions.md), and executes nothing."""
LOOKS = 3
LOOK_SECONDS = 2.0


class Maker(Stored):
    """guests/NAME/maker: the process that made the guest, and where its domain will be."""

    process: str
    """state.Process, as text."""
    node: str
    """The maker's machine, by name, for messages."""
    uri: str

    @property
    def parsed(self) -> state.Process | None:
        """The process; None when an earlier lab wrote the file, which did not record the machine."""
        return state.Process.parse(self.process)


@contextmanager
def hold(name: str, deadline: Deadline) -> Iterator[None]:
    """Hold a guest's lock. DeadlinePassed when another process keeps it until the deadline."""
    with state.lock(f"guest-{name}", deadline):
        yield


@contextmanager
def alone_in(guest: Guest) -> Iterator[None]:
    """For who measures a guest, or changes its settings: its counters are the whole guest's. GuestError at
    once when another lab.py does either."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(state.lock(f"measured-{guest.name}", Deadline.after(0)))
        except DeadlinePassed as error:
            raise GuestError(
                f"guest {guest.name}: another lab.py measures it, or changes its settings: one at a time,"
                " since counters are those of the whole guest"
            ) from error
        yield


def check_release(record: GuestRecord, release: str) -> None:
    """GuestError when the guest's `uname -r` is not the one that its record expects; '' expects nothing."""
    boot = record.spec.boot
    if boot.release and release != boot.release:
        raise GuestError(
            f"guest {record.spec.name}: runs kernel {release}, but {boot.name} is {boot.release}"
        )


def ssh_to(record: GuestRecord, watch: Callable[[], None] | None = None) -> ssh.Ssh:
    """SSH to the guest of a record."""
    return ssh.Ssh(
        guest=record.spec.name,
        port=record.spec.ssh_port,
        key=state.guest_key(record.image, record.image_id),
        known_hosts=Path(record.spec.directory) / "known_hosts",
        via=of_uri(record.uri).ssh,
        watch=watch,
        pace=VIRTUAL_PACE if record.spec.clock is Clock.VIRTUAL else 1.0,
    )


DOWN_SECONDS = 60.0
"""Time limit for ending a guest, independent of the deadline of what it was used for."""


@dataclass
class Guest:
    """A guest that is up, or about to be. It implements ssh.Shell."""

    record: GuestRecord
    host: Host

    def __post_init__(self) -> None:
        self._begin()

    def update(self, **changes: object) -> None:
        """Change fields of the record, also on disk; then connect and watch the console from the start."""
        self.record = self.record.model_copy(update=changes)
        self.save()
        self._begin()

    def _begin(self) -> None:
        """Reset the connection and the console watch for a new boot."""
        self._console = console.Watch(self.console_log, self.name, self._more_console)
        self.ssh = ssh_to(self.record, self.watch)
        self._booting = False
        self._looked = -math.inf
        """When it last looked at the CPUs (time.monotonic)."""
        self._halts = 0
        """At how many looks in a row all of them were halted."""

    @property
    def name(self) -> str:
        """The guest's name."""
        return self.record.spec.name

    @property
    def mark(self) -> Mark:
        """What tells its domain from all others."""
        return mark(self.record.spec)

    @property
    def directory(self) -> Path:
        """Its folder on the host."""
        return Path(self.record.spec.directory)

    @property
    def console_log(self) -> Path:
        """Everything that its kernel printed."""
        return self.directory / "console.log"

    def _more_console(self, offset: int) -> bytes:
        return self.host.where.read(self.console_log, offset, Deadline.after(60), console.CHUNK)

    def console_size(self) -> int:
        """Bytes of the console log so far."""
        return self.host.where.size(self.console_log, Deadline.after(60))

    def console_pieces(self, offset: int = 0) -> Iterator[str]:
        """The console log from an offset in bytes on, in pieces of whole lines."""
        return console.pieces(self._more_console, offset)

    def console_tail(self) -> str:
        """The end of the console log, for an error's evidence; '' when the hypervisor does not answer."""
        with contextlib.suppress(LabError):
            return console.last_lines(self._more_console(max(0, self.console_size() - console.TAIL_BYTES)))
        return ""

    def watch(self, *, last: bool = False) -> None:
        """Raise KernelOops when the console shows one, HostError when a full disk of the host paused the
        guest, GuestLost when the domain is gone, BootHung when a boot hangs or breaks QEMU. `last`: an
        incomplete last line counts too."""
        try:
            self._console(last=last)
        except KernelOops as error:
            if self.record.spec.accel is Accel.TCG and "int3: " in str(error):
                self._check_oops(error)
            raise
        paused_by = self.host.paused_by(self.mark)
        if paused_by:
            raise HostError(
                f"guest {self.name}: its disk on the host is full: QEMU could not write {paused_by} and has"
                f" paused the guest: lab.py down {self.name}, and make room before the next one",
                evidence=self.console_tail(),
            )
        if self._booting:
            self._check_boot()
        if paused_by is None:
            self._console(last=True)
            assertion = self.host.failed_assertion(self.mark, Deadline.after(60))
            why = f"QEMU ended itself: {assertion}" if assertion else "QEMU ended, or somebody destroyed it"
            repeat = assertion and self._booting and self.record.spec.accel is Accel.TCG
            raise (BootHung if repeat else GuestLost)(
                f"guest {self.name}: its domain is gone: {why}", evidence=self.console_tail()
            )

    def _check_oops(self, error: KernelOops) -> None:
        """Raise BootHung (in a boot, which can be repeated) or GuestError for the emulator's oops."""
        time.sleep(OOPS_SECONDS)
        if console.stale_breakpoint(self._more_console(self._console.seen).decode(errors="replace")):
            raise (BootHung if self._booting else GuestError)(
                f"guest {self.name}: oopsed under emulation at a breakpoint that its memory does not have"
                " (QEMU ran an old translation)",
                evidence=self.console_tail(),
            ) from error

    def _check_boot(self) -> None:
        """Raise BootHung when a boot under emulation printed something and then nothing for HUNG_SECONDS, or
        for HALTED_SECONDS and its CPUs stay halted."""
        spec = self.record.spec
        if spec.accel is not Accel.TCG or "quiet" in spec.boot.cmdline.split():
            return
        silent = time.monotonic() - self._console.grew
        if silent <= HUNG_SECONDS and not (silent > HALTED_SECONDS and self._stands_still()):
            return
        if tail := self.console_tail().strip():
            where = self._cpus()
            runs = where.count(" runs ")
            cpus = f"{runs} of its CPUs run" if runs else "all its CPUs halted" if where else "CPUs not seen"
            raise BootHung(
                f"guest {self.name}: hung in its boot under emulation, nothing new on its console for"
                f" {silent:.0f} s; {cpus}; last: {tail.splitlines()[-1]}",
                evidence=f"{tail}\n{where}".strip(),
            )

    def _cpus(self) -> str:
        """See Host.registers; '' also when the hypervisor does not answer: a hang is the error to report."""
        with contextlib.suppress(LabError):
            return self.host.registers(self.mark, Deadline.after(60))
        return ""

    def _stands_still(self) -> bool:
        """Whether all CPUs were halted at each of the last LOOKS looks. Looks again, if it is time to."""
        now = time.monotonic()
        if self._looked < self._console.grew:
            self._halts = 0
        if now - self._looked >= LOOK_SECONDS:
            where = self._cpus()
            self._halts = self._halts + 1 if where and " runs " not in where else 0
            self._looked = now
        return self._halts >= LOOKS

    def execute(
        self,
        command: str,
        *,
        deadline: Deadline,
        input: bytes | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> Result:
        """See ssh.Shell."""
        with self._console_in_evidence():
            return self.ssh.execute(
                self._with_environment(command), deadline=deadline, input=input, tell=tell
            )

    def stream(
        self, command: str, *, deadline: Deadline, out: IO[bytes] | None, err: IO[bytes] | None
    ) -> Result:
        """Like execute, but passes the command's streams on as they come."""
        with self._console_in_evidence():
            return self.ssh.stream(self._with_environment(command), deadline=deadline, out=out, err=err)

    def _with_environment(self, command: str) -> str:
        environment = self.record.spec.boot.environment
        return (
            "".join(f"export {name}={shlex.quote(value)}; " for name, value in environment.items()) + command
        )

    @contextlib.contextmanager
    def _console_in_evidence(self) -> Iterator[None]:
        """Add the end of the console to a GuestLost."""
        try:
            yield
        except GuestLost as error:
            error.evidence = error.evidence or self.console_tail()
            raise

    def verify(self, deadline: Deadline, *, first: str = "") -> list[verification.LayoutRow]:
        """Compare the kernel's release and the topology with what the guest shows. GuestError for another
        kernel, TopologyMismatch when the topologies differ.

        `first` is a shell command that is run before, as a part of the same command: each takes an emulated
        guest a third of a second.
        """
        probe = f"{first} && {{ {verification.PROBE}; }}" if first else verification.PROBE
        shown = ssh.succeed(self, probe, deadline=deadline)
        check_release(self.record, verification.observed_release(shown) or "unknown")
        topology = self.record.spec.topology
        seen = verification.observed_layout(shown)
        rows = verification.compare_layouts(
            verification.expected_layout(topology), seen, fake=bool(topology.fake)
        )
        wrong = [row.what for row in rows if not row.agrees]
        if wrong:
            raise TopologyMismatch(
                f"guest {self.name}: not the topology that was asked for: {', '.join(wrong)}",
                evidence=verification.layout_table(rows),
            )
        return rows

    def reach(self, deadline: Deadline) -> None:
        """Wait until SSH connects."""
        self._console.grew, self._booting = time.monotonic(), True
        try:
            words = self.record.spec.boot.cmdline.split()
            says = INIT_WORD in words and "quiet" not in words
            self.ssh.wait(deadline, listens=(lambda: self._console.listens) if says else None)
        except DeadlinePassed as error:
            if not any(piece.strip() for piece in self.console_pieces()):
                raise GuestError(console.silence(self.name, self.host.cpu_seconds(self.mark))) from error
            raise
        finally:
            self._booting = False

    def down(self, deadline: Deadline) -> None:
        """Stop the guest and remove everything that belongs to it. Works in any state, and more than once."""
        with hold(self.name, deadline):
            if self._replaced():
                return
            with contextlib.suppress(LabError):
                self.ssh.disconnect(deadline)
            self.host.stop(self.mark, deadline.grace(20))
            if process := self.host.qemu(self.mark):
                raise HostError(
                    f"guest {self.name}: its QEMU (process {process}) runs, but libvirt at {self.host.uri}"
                    f" does not know it: end that process, then lab.py down {self.name}"
                )
            self.ssh.control.unlink(missing_ok=True)
            remove(self.directory, self.host, deadline.grace(20))

    def _replaced(self) -> bool:
        """Whether somebody ended this guest and made another one of its name. HostError if unknown."""
        try:
            return read(self.name).spec.uuid != self.record.spec.uuid
        except InputError:  # no folder, or half of one: remove what is left of this guest
            return False

    def check_current(self) -> None:
        """For who holds its lock: InputError when it was ended meanwhile, GuestError when another guest has
        its name."""
        if read(self.name).spec.uuid != self.record.spec.uuid:
            raise GuestError(f"guest {self.name}: was ended meanwhile, and another one has its name")

    def save(self) -> None:
        """Write the record, completely or not at all."""
        state.write(self.directory / "guest.json", json.dumps(jsonable(self.record), indent=1))


def crash(guest: Guest) -> KernelOops | None:
    """The kernel's crash, if the console shows one by now: a program that an oops killed may end before the
    next regular look."""
    try:
        guest.watch(last=True)
    except KernelOops as oops:
        return oops
    except LabError:
        pass
    return None


@contextmanager
def ending(guest: Guest, *, only_on_error: bool = False) -> Iterator[None]:
    """Take the guest down at the end of the block. If the block raised, an error of that is only logged."""
    try:
        yield
    except BaseException:
        try:
            guest.down(Deadline.after(DOWN_SECONDS))
        except (LabError, OSError) as error:
            note(f"not all is cleaned up ({error}): lab.py gc", who=guest.name)
        raise
    if not only_on_error:
        guest.down(Deadline.after(DOWN_SECONDS))


def remove(place: Path, host: Host, deadline: Deadline) -> None:
    """Remove all files of a guest, here and, where they have this lab's mark (see launch), on its hypervisor.

    The local ones go last: without the record nobody would know of the others. Raises HostError,
    CommandFailed.
    """
    disks.drop_pool_disks(place.name)
    if host.where.ssh:
        script = 'if [ "$(cat "$1/lab" 2>/dev/null)" = "$2" ]; then rm -rf -- "$1"; fi'
        host.where.run(["sh", "-c", script, "sh", place, state.identity()], deadline=deadline)
    try:
        shutil.rmtree(place)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise HostError(f"{place}: cannot be removed: {error}") from error


def names() -> list[str]:
    """The names of all guests that have a folder, running or not."""
    return sorted(path.name for path in state.folder("guests").iterdir() if not path.name.startswith("."))


def fresh_name(wanted: str, besides: AbstractSet[str] = frozenset()) -> str:
    """A free guest name: the one wanted (a topology's or its file's), or that with the first free number."""
    stem = Path(wanted).name.removesuffix(".yml")[: MOST_NAME - len("-999")]
    taken = {*names(), *besides}
    return next(name for name in [stem, *(f"{stem}-{n}" for n in range(2, 1000))] if name not in taken)


def read(name: str) -> GuestRecord:
    """A guest's record. InputError when there is no such guest, HostError when its record cannot be read."""
    try:
        check_name(name)
    except ValueError as error:
        raise InputError(str(error)) from error
    place = state.folder("guests") / name
    try:
        return GuestRecord.from_json((place / "guest.json").read_text())
    except FileNotFoundError:
        if place.exists():
            raise InputError(
                f"guest {name} is half made: its up did not end; lab.py gc removes what is left of it"
            ) from None
        known = ", ".join(names()) or "none"
        raise InputError(f"there is no guest {name} (there are: {known})") from None
    except (OSError, ValueError) as error:
        raise HostError(f"{place / 'guest.json'}: not a guest's record: {first_line(error)}") from error


def records() -> tuple[list[GuestRecord], list[str]]:
    """All guests' records, and the names of guests with an unreadable one. Half-made guests have none."""
    known, unknown = [], []
    for name in names():
        try:
            known.append(read(name))
        except InputError:
            continue
        except HostError:
            unknown.append(name)
    return known, unknown


def maker(name: str) -> Maker | None:
    """The maker of a guest; None when the file is absent. HostError when it cannot be read."""
    path = state.folder("guests") / name / "maker"
    try:
        text = path.read_text()
        if re.fullmatch(r"\d+ \d+", text):  # labs before 2026-11 wrote this
            return Maker(process=text, node="", uri="")
        known = Maker.from_json(text)
        if known.parsed is None:
            raise ValueError(f"process: {known.process!r} names none")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise HostError(f"{path}: not a guest's maker: {first_line(error)}") from error
    return known


def made_by_us() -> list[str]:
    """Guests that this process made and that still exist, up or half made."""
    me, ours = state.this_process(), []
    for name in names():
        with contextlib.suppress(HostError):
            known = maker(name)
            ours += [name] if known and known.parsed == me else []
    return ours


def ours(record: GuestRecord) -> bool:
    """Whether this lab made the guest: a copy of its state directory has the record too."""
    if record.spec.lab in ("", state.identity()):
        return True
    try:  # the same state directory by another path is another lab too
        return Path(record.spec.directory).samefile(state.folder("guests") / record.spec.name)
    except OSError:
        return False


def copied(record: GuestRecord) -> str:
    """Where a guest that is not `ours` belongs, in words."""
    home = Path(record.spec.directory).parent.parent
    return f"it is a guest of the lab in {home}, of which {state.directory()} is a copy, or was moved"


def elsewhere(record: GuestRecord) -> str:
    """The name of the machine that the guest runs on, when that shares our state directory; else ''.
    HostError when that cannot be read: the guest may run there."""
    known = maker(record.spec.name)
    process = known.parsed if known else None
    return known.node if known and process and process.elsewhere and not of_uri(record.uri).ssh else ""
