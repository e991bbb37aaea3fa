# SPDX-License-Identifier: GPL-2.0-only
"""The hypervisor, through libvirt: the only module that imports libvirt.

A domain without the lab's mark in its metadata is never listed and never touched. Domains are transient: one
that ended leaves nothing in libvirt. Not here: domain XML (domain), files on the hypervisor (remote).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import libvirt
import libvirt_qemu
from lxml import etree

from numalab.core import packages, state
from numalab.core.errors import Cancelled, CommandFailed, DeadlinePassed, HostError
from numalab.core.process import POLL_SECONDS, Deadline, run
from numalab.host import subreaper
from numalab.host.domain import (
    PREFIX,
    Mark,
    disk_files,
    domain_name,
    has_huge_pages,
    pinned_cpus,
    read_mark,
)
from numalab.host.machine import qemu_process
from numalab.host.remote import Where, of_uri
from numalab.model.units import KIB, MIB

ANSWER_SECONDS = 20.0
"""Time limit for an answer of libvirt."""
START_SECONDS = 60.0
"""Time limit for starting a domain."""
TRANSFER_SECONDS = 180.0
"""Time limit for saving or restoring a domain: all the memory that the guest has touched."""
LIBVIRTD_SECONDS = 10.0
"""Time limit for a libvirtd that we started to listen."""
SOCKETS = (Path("/run/libvirt/libvirt-sock"), Path("/run/libvirt/virtqemud-sock"))
"""Where libvirt listens: its one daemon, libvirtd, or of several virtqemud."""
DAEMON_PATH = "/usr/sbin:/usr/bin"
GONE = (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID)
"""libvirt's errors for a domain that has ended: not found, or not running."""
QEMU_LOG_BYTES = 16 * KIB
"""How much of the end of libvirt's log of a domain is read; QEMU's command line in it has some 6 KiB."""
LOG_SECONDS = 2.0
"""How long libvirt's log of a domain that is gone may lack its end."""
ASSERTION = re.compile(r"\bassertion\b.*\bfailed\b|assertion failed|should not be reached", re.IGNORECASE)
"""A failed assertion in QEMU's output: of libc's assert(), g_assert() and g_assert_not_reached()."""
REGISTERS = re.compile(r"^CPU#(\d+)$.*?^[RE]IP=([0-9a-f]+) .*?\bHLT=([01])", re.MULTILINE | re.DOTALL)
"""A CPU in QEMU's `info registers -a`: its number, its next instruction, whether it waits."""
MEMINFO, MEMINFO_BYTES = Path("/proc/meminfo"), 64 * KIB
HEADROOM = 512 * MIB
"""Host memory that admission leaves to QEMU itself and to everything else."""

T = TypeVar("T")
libvirt.registerErrorHandler(lambda _context, _error: None, None)  # errors are raised; nothing is printed


def default_uri() -> str:
    """The user's own session; for root, which has none in libvirt, the system instance."""
    return "qemu:///system" if os.geteuid() == 0 else "qemu:///session"


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What libvirt says of a host."""

    emulator: str
    """The QEMU that it starts for x86_64."""
    machines: frozenset[str]
    """QEMU's machine types, under all their names."""
    confined_by: tuple[str, ...]
    """What confines each QEMU by a profile: apparmor or selinux."""


@dataclass(frozen=True)
class Host:
    """A connection to one hypervisor."""

    uri: str
    connection: Any

    @property
    def where(self) -> Where:
        """The machine that runs the guests."""
        return of_uri(self.uri)

    def owner(self, deadline: Deadline) -> tuple[int, int] | None:
        """uid and gid for QEMU under the system instance: those of the lab's files, which keep it."""
        return self.where.owner(deadline) if urlsplit(self.uri).path == "/system" else None

    def marks(self, deadline: Deadline) -> list[Mark]:
        """Marks of all running guests, of this lab and of others."""
        return [mark for _, mark in self._ask(self._marked, deadline)]

    def create(self, xml: str, deadline: Deadline) -> None:
        """Start a transient domain. Raises HostError with the last line of libvirt or QEMU."""
        try:
            answer(self.uri, lambda: self.connection.createXML(xml, 0), deadline, seconds=START_SECONDS)
        except libvirt.libvirtError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise HostError(f"libvirt does not start the guest: {lines[-1]}", evidence=str(error)) from error

    def save(self, guest: Mark, path: Path, deadline: Deadline) -> None:
        """Write the state of a guest to a file and end it. Its disks stay as they are. Raises HostError."""
        domain = self._domain(guest, deadline)
        if domain is None:
            raise HostError(f"guest {guest.name}: its domain is gone: there is nothing to save")
        self._transfer(lambda: domain.saveFlags(str(path), None, 0), "save the guest", deadline)

    def restore(self, path: Path, deadline: Deadline) -> None:
        """Start a domain from a file of `save`. Raises HostError."""
        flags = libvirt.VIR_DOMAIN_SAVE_RUNNING
        self._transfer(
            lambda: self.connection.restoreFlags(str(path), None, flags), "restore the guest", deadline
        )

    def _transfer(self, call: Callable[[], object], what: str, deadline: Deadline) -> None:
        """A call that reads or writes all memory of a guest."""
        try:
            answer(self.uri, call, deadline, seconds=TRANSFER_SECONDS)
        except libvirt.libvirtError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise HostError(f"libvirt does not {what}: {lines[-1]}", evidence=str(error)) from error

    def running(self, guest: Mark, deadline: Deadline | None = None) -> bool:
        """Whether the guest's domain exists."""
        return self._domain(guest, deadline) is not None

    def paused_by(self, guest: Mark) -> str | None:
        """The file that QEMU could not write because the host's disk is full, so that it paused the guest; ''
        while the guest runs, None when its domain is gone. One libvirt call, since it runs several times a
        second."""

        def look() -> str | None:
            domain = self.connection.lookupByUUIDString(guest.uuid)
            xml = domain.XMLDesc()
            if read_mark(xml) != guest:
                return None
            if domain.state() != [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR]:
                return ""
            files = disk_files(xml)
            return (
                ", ".join(files.get(disk, disk) for disk in sorted(domain.diskErrors())) or "one of its disks"
            )

        return self._ask_domain(look)

    def qemu(self, guest: Mark) -> int | None:
        """The id of the guest's QEMU process on this machine, independent of libvirt: a session has another
        libvirtd where XDG_RUNTIME_DIR differs, and a libvirtd that died may have lost the domain. None when
        there is none, or when guests run on another machine."""
        return None if self.where.ssh else qemu_process(guest.uuid)

    def failed_assertion(self, guest: Mark, deadline: Deadline) -> str:
        """The assertion that ended the guest's QEMU, as QEMU printed it; '' for none, and where libvirt's log
        cannot be read: under the system instance it belongs to root."""
        system = urlsplit(self.uri).path == "/system"
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = Path("/var/log/libvirt/qemu") if system else cache / "libvirt/qemu/log"
        log = folder / f"{domain_name(guest)}.log"
        until = time.monotonic() + LOG_SECONDS
        while True:
            try:
                size = self.where.size(log, deadline)
                text = self.where.read(log, max(0, size - QEMU_LOG_BYTES), deadline, QEMU_LOG_BYTES)
            except (OSError, ValueError, CommandFailed, DeadlinePassed, HostError):
                return ""  # the loss of the guest is the error to report
            # libvirt appends: the guest's own part is the last.
            last = re.split(r"^\S+ \S+: starting up ", text.decode(errors="replace"), flags=re.MULTILINE)[-1]
            if line := next((line for line in last.splitlines() if ASSERTION.search(line)), ""):
                return line.strip().rstrip(".")
            # virtlogd may still have QEMU's last words in its pipe.
            if not text or ": shutting down" in last or time.monotonic() > until:
                return ""
            deadline.pause(POLL_SECONDS)

    def registers(self, guest: Mark, deadline: Deadline) -> str:
        """Where each of the guest's CPUs stands, one a line: `CPU 0 halted at ADDRESS`. '' when the domain is
        gone."""
        domain = self._domain(guest, deadline)
        if domain is None:
            return ""
        words, hmp = "info registers -a", libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP
        text = self._ask_domain(lambda: libvirt_qemu.qemuMonitorCommand(domain, words, hmp), deadline) or ""
        return "\n".join(
            f"CPU {cpu} {'halted' if halted == '1' else 'runs'} at {address}"
            for cpu, address, halted in REGISTERS.findall(text.replace("\r", ""))
        )

    def cpu_seconds(self, guest: Mark) -> float:
        """Processor time used by the guest so far; 0 when it is gone."""
        domain = self._domain(guest)
        info = self._ask_domain(domain.info) if domain else None
        return float(info[4]) / 1e9 if info else 0.0

    def stop(self, guest: Mark, deadline: Deadline, *, grace: float = 0.0) -> None:
        """End a guest: press its ACPI power button and wait `grace` seconds, then destroy it. No error if it
        is gone.

        Raises HostError when libvirt fails or does not answer.
        """
        domain = self._domain(guest, deadline)
        if domain is None:
            return
        if grace:
            self._ask_domain(domain.shutdown, deadline)
            soon = deadline.within(grace)
            while soon.remaining() and self._domain(guest, deadline):
                if soon.cancel.is_set():
                    raise Cancelled(f"guest {guest.name}: waiting for its shutdown: cancelled")
                soon.pause(0.2)
        if self._domain(guest, deadline):
            self._ask_domain(domain.destroy, deadline)

    def free_memory(self, deadline: Deadline, *, besides: Collection[str] = ()) -> int:
        """Bytes for a new guest: the memory that the host's kernel calls available (not tmpfs, which libvirt
        counts as cached), less what guests may still take and HEADROOM.

        Guests may take the memory that they were given and have not touched yet. What this lab's guests of
        the names `besides` have counts as free.
        """

        def promised() -> int:
            """KiB that running guests may still allocate. Huge pages are set aside already."""
            total, lab = 0, state.identity()
            for domain, guest in self._marked():
                with contextlib.suppress(libvirt.libvirtError):  # it ended while we looked
                    if has_huge_pages(domain.XMLDesc()):
                        continue
                    rss = domain.memoryStats().get("rss", 0)
                    ends = guest.lab == lab and guest.name in besides
                    total += -rss if ends else max(0, domain.maxMemory() - rss)
            return total

        available = self._meminfo("MemAvailable", deadline)
        return max(0, available - self._ask(promised, deadline) * KIB - HEADROOM)

    def memory(self, deadline: Deadline) -> int:
        """Bytes that it has, used or not."""
        return self._meminfo("MemTotal", deadline)

    def _meminfo(self, name: str, deadline: Deadline) -> int:
        """Bytes, by a line of the host's /proc/meminfo."""
        text = self.where.read(MEMINFO, 0, deadline, MEMINFO_BYTES).decode()
        line = re.search(rf"^{name}: +(\d+) kB$", text, re.MULTILINE)
        if not line:
            raise HostError(f"{MEMINFO} of {self.uri} has no {name}")
        return int(line[1]) * KIB

    def cpus(self, deadline: Deadline) -> int:
        """How many CPUs it has."""
        return int(self._ask(self.connection.getInfo, deadline)[2])

    def capabilities(self, deadline: Deadline) -> Capabilities:
        """Its QEMU and what confines it. Raises HostError."""
        root = etree.fromstring(self._ask(self.connection.getCapabilities, deadline).encode())
        arch = root.find("guest[os_type='hvm']/arch[@name='x86_64']")
        if arch is None:
            raise HostError(f"libvirt at {self.uri}: knows no QEMU for x86_64: lab.py doctor")
        names = [
            name for machine in arch.iter("machine") for name in (machine.text, machine.get("canonical"))
        ]
        models = {model.text or "" for model in root.findall("host/secmodel/model")}
        return Capabilities(
            emulator=arch.findtext("emulator", ""),
            machines=frozenset(name for name in names if name),
            confined_by=tuple(sorted(models & {"apparmor", "selinux"})),
        )

    def pinned_cpus(self, deadline: Deadline) -> set[int]:
        """Its CPUs to which vCPUs of running domains are pinned, of this lab and of anybody."""

        def look() -> set[int]:
            pinned = set[int]()
            for domain in self.connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
                with contextlib.suppress(libvirt.libvirtError):  # it ended while we looked
                    pinned |= pinned_cpus(domain.XMLDesc())
            return pinned

        return self._ask(look, deadline)

    def version(self) -> str:
        """libvirt's version, '9.0.0'."""
        number = int(self._ask(self.connection.getLibVersion))
        return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"

    def hypervisor(self) -> str:
        """The versions that a saved state depends on: 'QEMU 10000002, libvirt 9000000', as libvirt counts."""
        qemu, own = self._ask(self.connection.getVersion), self._ask(self.connection.getLibVersion)
        return f"QEMU {qemu}, libvirt {own}"

    def console_argv(self, guest: Mark) -> list[str]:
        """The virsh words that open a guest's interactive console (hvc0)."""
        return ["virsh", "-c", self.uri, "console", "--devname", "console1", guest.uuid]

    def _domain(self, guest: Mark, deadline: Deadline | None = None) -> Any:
        """The guest's domain, found by UUID; None when it is gone, or when its mark is not the guest's."""

        def look() -> Any:
            domain = self.connection.lookupByUUIDString(guest.uuid)
            return domain if read_mark(domain.XMLDesc()) == guest else None

        return self._ask_domain(look, deadline)

    def _marked(self) -> list[tuple[Any, Mark]]:
        """All domains that have a lab's mark."""
        pairs = []
        for domain in self.connection.listAllDomains():
            with contextlib.suppress(libvirt.libvirtError):  # it ended while we looked
                mark = read_mark(domain.XMLDesc())
                # PREFIX + name: labs before 2026-11
                if mark and domain.name() in (domain_name(mark), PREFIX + mark.name):
                    pairs.append((domain, mark))
        return pairs

    def _ask(self, call: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Call libvirt and return the result. Raises HostError."""
        try:
            return answer(self.uri, call, deadline)
        except libvirt.libvirtError as error:
            raise HostError(f"libvirt at {self.uri}: {error}") from error

    def _ask_domain(self, call: Callable[[], T], deadline: Deadline | None = None) -> T | None:
        """Call libvirt about a domain; None when the domain has ended."""

        def gone_or_not() -> T | None:
            try:
                return call()
            except libvirt.libvirtError as error:
                if error.get_error_code() in GONE:
                    return None
                raise

        return self._ask(gone_or_not, deadline)


def answer(
    uri: str, call: Callable[[], T], deadline: Deadline | None, *, seconds: float = ANSWER_SECONDS
) -> T:
    """Call libvirt and return the result. HostError when it does not answer within `seconds`, as a stopped
    libvirtd does not; DeadlinePassed when the deadline, if there is one, comes first.

    The call may still take effect later: it cannot be revoked.
    """
    limit = deadline.within(seconds) if deadline else Deadline.after(seconds)
    box: list[T | BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            box.append(call())
        except BaseException as error:  # raised in the caller's thread below
            box.append(error)
        done.set()

    threading.Thread(target=work, daemon=True).start()
    while not done.wait(min(POLL_SECONDS, limit.remaining())):
        if deadline:
            deadline.check(f"waiting for libvirt at {uri}")
        if not limit.remaining():
            raise HostError(f"libvirt at {uri} does not answer: is its libvirtd stopped or overloaded?")
    if isinstance(box[0], BaseException):
        raise box[0]
    return box[0]


def connect(uri: str | None, deadline: Deadline) -> Host:
    """Open a connection. Starts libvirt's daemons where root has no init that does so. Raises HostError."""
    uri = uri or default_uri()
    there = of_uri(uri).ssh  # InputError for a transport that carries no files
    ours_to_start = uri == "qemu:///system" and os.geteuid() == 0 and not Path("/run/systemd/system").exists()
    if ours_to_start and not _listens():
        _start_daemons(deadline)

    def open_it() -> Any:
        return libvirt.open(uri)

    until = time.monotonic() + LIBVIRTD_SECONDS
    while True:
        try:
            return Host(uri, answer(uri, open_it, deadline))
        except libvirt.libvirtError as error:
            # A killed libvirtd leaves its socket. It may still be ending, or another lab.py be starting it.
            if ours_to_start and "Connection refused" in str(error) and time.monotonic() < until:
                _start_daemons(deadline)
                deadline.pause(0.1)
                continue
            hint = (
                "usermod -aG libvirt YOU, or use qemu:///session"
                if "denied" in str(error) and not there
                else "lab.py doctor tells more"
            )
            raise HostError(f"libvirt at {uri}: {error}: {hint}") from error


def _start_daemons(deadline: Deadline) -> None:
    """Start virtlogd, which writes console logs, and libvirtd; where there is none, virtqemud, and for
    storage pools virtstoraged. They stay, as under an init."""
    Path("/run/libvirt").mkdir(exist_ok=True)
    _make_lock_directory(Path("/var/lock"))
    _kvm_for_qemu()
    for daemon, path in _daemons().items():
        if not path:
            raise HostError(f"{daemon} is not installed: {packages.mend('libvirt-daemon-system')}")
        pid_file = Path(f"/run/{daemon}.pid")
        if daemon in ("libvirtd", "virtqemud") and not _runs(daemon, pid_file):
            _forget_unstarted(Path("/run/libvirt/qemu"))
        _start_daemon(path, pid_file, deadline)
    until = time.monotonic() + LIBVIRTD_SECONDS
    while not _listens() and time.monotonic() < until:
        deadline.pause(0.1)


def _forget_unstarted(folder: Path) -> None:
    """Remove libvirt's state of guests that it was killed while starting, before they had a QEMU. A libvirt
    (9.0) that finds it again waits for that QEMU for ever, and nobody can end such a guest."""
    for path in folder.glob("numalab-*.xml"):
        with contextlib.suppress(OSError):
            if re.search(r"<domstatus [^>]*\bpid='0'", path.read_text(errors="replace")):
                path.unlink()


def _make_lock_directory(path: Path) -> None:
    """Make the directory in which libvirt locks consoles. In Debian a link, to one that an init makes."""
    if not (real := path.resolve()).exists():
        real.mkdir()
        real.chmod(0o1777)  # as systemd-tmpfiles does, for all programs


def _listens() -> bool:
    return any(socket.exists() for socket in SOCKETS)


def _daemons() -> dict[str, str | None]:
    """The daemons that a guest takes, in order, with their programs' paths; None for one that is missing."""
    paths = {
        name: shutil.which(name, path=DAEMON_PATH)
        for name in ("virtlogd", "libvirtd", "virtqemud", "virtstoraged")
    }
    several = paths["virtqemud"] and not paths["libvirtd"]
    names = ["virtlogd", "virtqemud"] if several else ["virtlogd", "libvirtd"]
    names += ["virtstoraged"] if several and paths["virtstoraged"] else []
    return {name: paths[name] for name in names}


def _start_daemon(path: str, pid_file: Path, deadline: Deadline) -> None:
    """Start a daemon that does not run. A killed one that has not ended yet still holds its PID file.

    What it leaves behind is reaped by a subreaper: where root has no init, nobody else does so in time.
    """
    until = time.monotonic() + LIBVIRTD_SECONDS
    while not _runs(Path(path).name, pid_file):
        result = run([sys.executable, "-IS", subreaper.__file__, path, "-d"], deadline=deadline, check=False)
        if not result.status:
            return
        if time.monotonic() >= until:
            reason = result.stderr.strip().splitlines() or [f"exit status {result.status}"]
            raise HostError(f"{path} does not start: {reason[-1]}")
        deadline.pause(0.1)


def _kvm_for_qemu() -> None:
    """Let libvirt's QEMU user open /dev/kvm, where no udev gives the device its group.

    libvirtd (root) can open it anyway, but the QEMU that it queries cannot. libvirt 9.0 then takes KVM to
    have appeared or vanished and queries QEMU again at every look-up: 3 s each, twenty and more for a domain.
    """
    device, name = Path("/dev/kvm"), "libvirt-qemu"
    with contextlib.suppress(OSError, LookupError):
        user, status = pwd.getpwnam(name), device.stat()
        groups = os.getgrouplist(name, user.pw_gid)
        mode = status.st_mode >> (6 if status.st_uid == user.pw_uid else 3 if status.st_gid in groups else 0)
        if mode & 0o6 != 0o6:
            shutil.chown(device, user=name)


def _runs(daemon: str, pid_file: Path) -> bool:
    """Whether the process that wrote this PID file is this daemon and has not ended (a zombie has no
    executable)."""
    try:
        return Path(f"/proc/{int(pid_file.read_text())}/exe").readlink().name.startswith(daemon)
    except (OSError, ValueError):
        return False
