# SPDX-License-Identifier: GPL-2.0-only
"""The hypervisor, through libvirt: the only module that imports it.

A domain without the lab's mark in its metadata is not ours: never listed, never touched. Domains are
transient, so one that ended has left nothing behind in libvirt.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import libvirt

from numalab.core.errors import Cancelled, HostError
from numalab.core.process import POLL_SECONDS, Deadline, run
from numalab.host.domain import PREFIX, Mark, disk_files, domain_name, read_mark
from numalab.host.remote import Where, of_uri
from numalab.model.units import KIB, MIB

ANSWER_SECONDS = 20.0
"""A libvirt that has not answered by then does not answer."""
START_SECONDS = 60.0
"""Likewise, to start a domain."""
GONE = (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID)
"""What libvirt says of a domain that has ended: not there, or (just now) not running."""
HEADROOM = 512 * MIB
"""Host memory left to QEMU itself and to everything else when a guest is admitted."""

T = TypeVar("T")
libvirt.registerErrorHandler(lambda _context, _error: None, None)  # errors are raised; nothing is printed


def default_uri() -> str:
    """Rootless: the user's own session. root has no session of its own in libvirt, only the system
    instance."""
    return "qemu:///system" if os.geteuid() == 0 else "qemu:///session"


@dataclass(frozen=True)
class Host:
    """A connection to one hypervisor."""

    uri: str
    connection: Any

    @property
    def where(self) -> Where:
        """The machine that guests run on."""
        return of_uri(self.uri)

    def owner(self, deadline: Deadline) -> tuple[int, int] | None:
        """Under the system instance QEMU runs as whoever owns the lab's files, so that these stay theirs."""
        return self.where.owner(deadline) if urlsplit(self.uri).path == "/system" else None

    def marks(self) -> list[Mark]:
        """Running guests of all labs, ours and others'."""
        return [mark for _, mark in self._ask(self._marked)]

    def create(self, xml: str, deadline: Deadline) -> None:
        """Start a transient domain. Raises HostError with libvirt's or QEMU's last line."""
        try:
            answer(self.uri, lambda: self.connection.createXML(xml, 0), deadline, seconds=START_SECONDS)
        except libvirt.libvirtError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise HostError(f"libvirt does not start the guest: {lines[-1]}", evidence=str(error)) from error

    def running(self, guest: Mark) -> bool:
        """Whether the guest's domain is there."""
        return self._domain(guest) is not None

    def paused_by(self, guest: Mark) -> str | None:
        """The file that QEMU could not write for want of space on the host, for which it has paused the
        guest; '' while the guest runs, None when its domain is gone. One call: it is asked several times a
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
        """The guest's QEMU among this machine's processes, whatever libvirt knows: a session's libvirtd is
        another one where XDG_RUNTIME_DIR is, and a libvirtd that died may have forgotten. None where there is
        none, or on another machine."""
        for process in Path("/proc").glob("[0-9]*/cmdline") if not self.where.ssh else ():
            with contextlib.suppress(OSError):
                words = process.read_bytes().split(b"\0")
                if b"qemu" in words[0] and guest.uuid.encode() in words:
                    return int(process.parent.name)
        return None

    def cpu_seconds(self, guest: Mark) -> float:
        """Processor time that the guest has used so far; 0 when it is gone."""
        domain = self._domain(guest)
        info = self._ask_domain(domain.info) if domain else None
        return float(info[4]) / 1e9 if info else 0.0

    def stop(self, guest: Mark, deadline: Deadline, *, grace: float = 0.0) -> None:
        """End a guest: asked (ACPI power button) for `grace` seconds, then made to. No error if it is gone.

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

    def free_memory(self, deadline: Deadline) -> int:
        """Bytes that a new guest may have: what the host has free or can free, less what running guests
        were promised and have not touched yet, less HEADROOM."""

        def promised() -> int:
            """KiB."""
            total = 0
            for domain, _ in self._marked():
                with contextlib.suppress(libvirt.libvirtError):  # it ended while we looked
                    total += max(0, domain.maxMemory() - domain.memoryStats().get("rss", 0))
            return total

        stats = self._ask(
            lambda: self.connection.getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS), deadline
        )
        free = (
            stats["free"] + stats.get("cached", 0) + stats.get("buffers", 0) - self._ask(promised, deadline)
        )
        return max(0, int(free) * KIB - HEADROOM)

    def version(self) -> str:
        """libvirt's version, '9.0.0'."""
        number = int(self._ask(self.connection.getLibVersion))
        return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"

    def console_argv(self, guest: Mark) -> list[str]:
        """The virsh words that open a guest's interactive console (hvc0)."""
        return ["virsh", "-c", self.uri, "console", "--devname", "console1", guest.uuid]

    def _domain(self, guest: Mark, deadline: Deadline | None = None) -> Any:
        """The guest's domain, or None. Its UUID finds it, and its mark must be the guest's: any other is not
        ours."""

        def look() -> Any:
            domain = self.connection.lookupByUUIDString(guest.uuid)
            return domain if read_mark(domain.XMLDesc()) == guest else None

        return self._ask_domain(look, deadline)

    def _marked(self) -> list[tuple[Any, Mark]]:
        """Domains that carry the mark of a lab."""
        pairs = []
        for domain in self.connection.listAllDomains():
            with contextlib.suppress(libvirt.libvirtError):  # it ended while we looked
                mark = read_mark(domain.XMLDesc())
                if mark and domain.name() in (
                    domain_name(mark),
                    PREFIX + mark.name,
                ):  # the latter: a lab before 2026-11
                    pairs.append((domain, mark))
        return pairs

    def _ask(self, call: Callable[[], T], deadline: Deadline | None = None) -> T:
        """What a libvirt call returns. Raises HostError."""
        try:
            return answer(self.uri, call, deadline or Deadline.after(ANSWER_SECONDS))
        except libvirt.libvirtError as error:
            raise HostError(f"libvirt at {self.uri}: {error}") from error

    def _ask_domain(self, call: Callable[[], T], deadline: Deadline | None = None) -> T | None:
        """The same of a call about a domain; None when that has ended."""

        def gone_or_not() -> T | None:
            try:
                return call()
            except libvirt.libvirtError as error:
                if error.get_error_code() in GONE:
                    return None
                raise

        return self._ask(gone_or_not, deadline)


def answer(uri: str, call: Callable[[], T], deadline: Deadline, *, seconds: float = ANSWER_SECONDS) -> T:
    """What a libvirt call returns. HostError when it has not after so many seconds: a stopped libvirtd
    answers nobody. DeadlinePassed when the caller's own limit comes first.

    The call may still take effect later: there is no way to take it back.
    """
    limit = deadline.within(seconds)
    box: list[T | BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            box.append(call())
        except BaseException as error:  # handed to the caller below
            box.append(error)
        done.set()

    threading.Thread(target=work, daemon=True).start()
    while not done.wait(min(POLL_SECONDS, limit.remaining())):
        deadline.check(f"waiting for libvirt at {uri}")
        if not limit.remaining():
            raise HostError(f"libvirt at {uri} does not answer: is its libvirtd stopped or overloaded?")
    if isinstance(box[0], BaseException):
        raise box[0]
    return box[0]


def connect(uri: str | None, deadline: Deadline) -> Host:
    """Open a connection; where root has no init that runs libvirtd, start it. Raises HostError."""
    uri = uri or default_uri()
    local_system = uri == "qemu:///system" and os.geteuid() == 0
    if (
        local_system
        and not Path("/run/systemd/system").exists()
        and not Path("/run/libvirt/libvirt-sock").exists()
    ):
        _start_daemons(deadline)

    def open_it() -> Any:
        return libvirt.open(uri)

    try:
        return Host(uri, answer(uri, open_it, deadline))
    except libvirt.libvirtError as error:
        if local_system and not Path("/run/systemd/system").exists() and "Connection refused" in str(error):
            _start_daemons(deadline)  # the socket of one that was killed
            return Host(uri, answer(uri, open_it, deadline))
        hint = (
            "usermod -aG libvirt YOU, or use qemu:///session"
            if "denied" in str(error)
            else "lab.py doctor tells more"
        )
        raise HostError(f"libvirt at {uri}: {error}: {hint}") from error


def _start_daemons(deadline: Deadline) -> None:
    """virtlogd writes the console logs, libvirtd does the rest; both stay, as an init would have them."""
    Path("/run/libvirt").mkdir(exist_ok=True)
    _kvm_for_qemu()
    for daemon, pid in (("virtlogd", "/run/virtlogd.pid"), ("libvirtd", "/run/libvirtd.pid")):
        path = shutil.which(daemon, path="/usr/sbin:/usr/bin")
        if not path:
            raise HostError(f"{daemon} is not installed: apt-get install libvirt-daemon-system")
        if not _lives(Path(pid)):
            run([path, "-d"], deadline=deadline)
    until = time.monotonic() + 10
    while not Path("/run/libvirt/libvirt-sock").exists() and time.monotonic() < until:
        deadline.pause(0.1)


def _kvm_for_qemu() -> None:
    """Let libvirt's QEMU user open /dev/kvm, where no udev runs that would give the device its group.

    libvirtd (root) can open it anyway, the QEMU that it asks cannot; libvirt 9.0 takes that for KVM having
    come or gone and asks QEMU again at every look-up, 3 s each, twenty and more a domain.
    """
    device, name = Path("/dev/kvm"), "libvirt-qemu"
    with contextlib.suppress(OSError, LookupError):
        user, status = pwd.getpwnam(name), device.stat()
        groups = os.getgrouplist(name, user.pw_gid)
        mode = status.st_mode >> (6 if status.st_uid == user.pw_uid else 3 if status.st_gid in groups else 0)
        if mode & 0o6 != 0o6:
            shutil.chown(device, user=name)


def _lives(pid_file: Path) -> bool:
    """Whether the daemon that wrote this PID file still runs."""
    try:
        return Path(f"/proc/{int(pid_file.read_text())}").exists()
    except (OSError, ValueError):
        return False
