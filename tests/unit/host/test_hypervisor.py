# SPDX-License-Identifier: GPL-2.0-only
"""The hypervisor over a fake connection: only domains with the lab's mark are seen; silence is an error."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import libvirt
import libvirt_qemu
import pytest

from numalab.core import state
from numalab.core.errors import Cancelled, DeadlinePassed, HostError
from numalab.core.process import Deadline
from numalab.host import hypervisor
from numalab.host.domain import domain_name, domain_xml, mark
from numalab.host.hypervisor import HEADROOM, Host, answer, connect
from numalab.model.guest import GuestSpec
from numalab.model.units import GIB, KIB
from tests.unit.makers import spec

Program = Callable[[str, str], Path]


class Domain:
    """A running domain."""

    def __init__(self, name: str, xml: str, *, rss: int = 0) -> None:
        self._name, self._xml, self._rss = name, xml, rss
        self.did: list[str] = []
        self.life = [libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED]
        self.broken: dict[str, int] = {}

    def name(self) -> str:
        return self._name

    def XMLDesc(self) -> str:
        return self._xml

    def destroy(self) -> None:
        self.did.append("destroy")

    def shutdown(self) -> None:
        self.did.append("shutdown")

    def maxMemory(self) -> int:
        return 4 * GIB // KIB

    def state(self) -> list[int]:
        return self.life

    def diskErrors(self) -> dict[str, int]:
        return self.broken

    def memoryStats(self) -> dict[str, int]:
        return {"rss": self._rss // KIB}


class NoDomain(libvirt.libvirtError):  # type: ignore[misc]
    """libvirt's error for a missing domain."""

    def get_error_code(self) -> int:
        return int(libvirt.VIR_ERR_NO_DOMAIN)


CAPABILITIES = """
<capabilities>
  <host>
    <secmodel><model>apparmor</model><doi>0</doi></secmodel>
    <secmodel><model>dac</model><doi>0</doi></secmodel>
  </host>
  <guest>
    <os_type>hvm</os_type>
    <arch name='i686'><emulator>/usr/bin/qemu-system-i386</emulator><machine>isapc</machine></arch>
  </guest>
  <guest>
    <os_type>hvm</os_type>
    <arch name='x86_64'>
      <wordsize>64</wordsize>
      <emulator>/usr/bin/qemu-system-x86_64</emulator>
      <machine maxCpus='4096'>pc-q35-11.1</machine>
      <machine canonical='pc-q35-11.1' maxCpus='4096'>q35</machine>
      <domain type='qemu'/>
      <domain type='kvm'><machine>pc-i440fx-11.1</machine></domain>
    </arch>
  </guest>
</capabilities>
"""


class Connection:
    """The part of libvirt's connection that Host uses."""

    def __init__(self, *domains: Domain) -> None:
        self.domains = list(domains)
        self.capabilities = CAPABILITIES

    def listAllDomains(self) -> list[Domain]:
        return self.domains

    def lookupByUUIDString(self, uuid: str) -> Domain:
        for domain in self.domains:
            if f"<uuid>{uuid}</uuid>" in domain.XMLDesc():
                return domain
        raise NoDomain(uuid)

    def getLibVersion(self) -> int:
        return 11_002_003

    def getCapabilities(self) -> str:
        return self.capabilities


def guest(name: str) -> GuestSpec:
    return spec(name=name).model_copy(update={"lab": "0123456789abcdef", "uuid": f"uuid-of-{name}"})


def ours(name: str, *, rss: int = 0) -> Domain:
    return Domain(domain_name(mark(guest(name))), domain_xml(guest(name)), rss=rss)


def host(*domains: Domain) -> Host:
    return Host("test:///fake", Connection(*domains))


def test_only_marked_domains_are_guests(deadline: Deadline) -> None:
    copy = Domain("copy", domain_xml(guest("a")))
    there = host(ours("a"), Domain("numalab-b", "<domain/>"), Domain("web", "<domain/>"), copy)
    assert there.marks(deadline) == [mark(guest("a"))]
    earlier = Domain("numalab-a", domain_xml(guest("a")))
    assert host(earlier).marks(deadline) == [mark(guest("a"))], "as labs before 2026-11 called them"


def test_capabilities(deadline: Deadline) -> None:
    can = host().capabilities(deadline)
    assert can.emulator == "/usr/bin/qemu-system-x86_64"
    assert can.machines == {"pc-q35-11.1", "q35", "pc-i440fx-11.1"}
    assert can.confined_by == ("apparmor",), "dac is the user that QEMU runs as"
    connection = Connection()
    connection.capabilities = "<capabilities><host/></capabilities>"
    with pytest.raises(HostError, match="knows no QEMU for x86_64"):
        Host("test:///fake", connection).capabilities(deadline)


MONITOR = """\r
CPU#0\r
RAX=0000000000000000 RBX=0000000000000000 RCX=0000000000000000 RDX=0000000000000000\r
RIP=ffffffff81a2b3c4 RFL=00000246 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=1\r
CPU#1\r
EIP=0000fff0 EFL=00000002 [-------] CPL=0 II=0 A20=1 SMM=0 HLT=0\r
ES =0000 00000000 0000ffff 00009300\r
"""


def test_where_cpus_stand(monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    """As QEMU 10.0.2 prints them: one CPU in Linux, and one that has not begun."""
    asked = []

    def monitor(_domain: object, words: str, _flags: int) -> str:
        asked.append(words)
        return MONITOR

    monkeypatch.setattr(libvirt_qemu, "qemuMonitorCommand", monitor)
    stand = host(ours("a")).registers(mark(guest("a")), deadline)
    assert stand == "CPU 0 halted at ffffffff81a2b3c4\nCPU 1 runs at 0000fff0"
    assert asked == ["info registers -a"]
    assert host().registers(mark(guest("a")), deadline) == "", "it is gone"


LIBC = "qemu-system-x86_64: system/physmem.c:2678: iotlb_to_section: Assertion `index < d->nb' failed"
GLIB = "ERROR:../hw/core/cpu.c:120:cpu_reset: assertion failed: (cpu->halted)"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (None, ""),
        ("", ""),
        (f"LC_ALL=C \\\n-msg timestamp=on\n{LIBC}.\n2026-11-23 15:13:41.763+0000: shutting down\n", LIBC),
        (f"-msg timestamp=on\n**\n{GLIB}\nBail out! {GLIB}\n", GLIB),
        (
            "qemu-system-x86_64: terminating on signal 15 from pid 1\n2026-11-23 15:13:41.7: shutting down\n",
            "",
        ),
    ],
)
@pytest.mark.parametrize(
    "before", ["", f"2026-11-22 10:00:00.1+0000: starting up libvirt\n{LIBC[::-1]}\n{LIBC}\n"]
)
def test_a_failed_assertion_of_qemu(
    log: str | None,
    line: str,
    before: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    deadline: Deadline,
) -> None:
    """Read from libvirt's log: from the guest's own part, not from that of an earlier guest of this name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "libvirt/qemu/log" / f"{domain_name(mark(guest('a')))}.log"
    path.parent.mkdir(parents=True)
    if log is not None:
        path.write_text(f"{before}2026-11-23 10:00:00.000+0000: starting up libvirt version: 9.0.0\n{log}")
    session = Host("qemu:///session", Connection())
    assert session.failed_assertion(mark(guest("a")), deadline) == line
    if log is not None:  # what cannot be read, by root either
        path.unlink()
        path.mkdir()
        assert session.failed_assertion(mark(guest("a")), deadline) == ""


def test_stop(deadline: Deadline) -> None:
    mine = ours("a")
    host(mine).stop(mark(guest("a")), deadline)
    assert mine.did == ["destroy"]


def test_stop_asks_first(deadline: Deadline) -> None:
    class Obedient(Domain):
        def shutdown(self) -> None:
            super().shutdown()
            there.connection.domains.clear()

    mine = Obedient("numalab-a", domain_xml(guest("a")))
    there = host(mine)
    there.stop(mark(guest("a")), deadline, grace=60)
    assert mine.did == ["shutdown"]
    stubborn = ours("b")
    host(stubborn).stop(mark(guest("b")), deadline, grace=0.1)
    assert stubborn.did == ["shutdown", "destroy"]
    host().stop(mark(guest("gone")), deadline)


@pytest.mark.parametrize(
    "other", [{"lab": "fedcba9876543210"}, {"directory": "/another/lab/guests/a"}, {"uuid": "another"}, None]
)
def test_what_is_not_this_very_guests_is_not_stopped(
    other: dict[str, str] | None, deadline: Deadline
) -> None:
    """An equal name is not enough: UUID, lab and directory must be those of the record."""
    xml = (
        "<domain><uuid>uuid-of-a</uuid></domain>"
        if other is None
        else domain_xml(guest("a").model_copy(update=other))
    )
    theirs = Domain("numalab-01234567-a", xml)
    there = host(theirs)
    assert not there.running(mark(guest("a")))
    there.stop(mark(guest("a")), deadline)
    assert theirs.did == []


def test_full_disk() -> None:
    mine = ours("a")
    there = host(mine)
    assert there.paused_by(mark(guest("gone"))) is None
    assert there.paused_by(mark(guest("a"))) == ""
    mine.life = [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER]
    assert there.paused_by(mark(guest("a"))) == "", "a person paused it"
    mine.life = [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR]
    assert there.paused_by(mark(guest("a"))) == "one of its disks"
    mine.broken = {"vda": libvirt.VIR_DOMAIN_DISK_ERROR_NO_SPACE}
    assert there.paused_by(mark(guest("a"))) == "/lab/guests/golden/root.qcow2"


@pytest.mark.parametrize("call", ["XMLDesc", "destroy", "shutdown"])
def test_libvirts_errors_are_the_hosts(
    call: str, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """A raw libvirtError in a clean-up would hide the error before it."""

    def broken(_: Domain) -> None:
        raise libvirt.libvirtError("Connection reset by peer")

    monkeypatch.setattr(Domain, call, broken)
    with pytest.raises(HostError, match="libvirt at test:///fake: Connection reset by peer"):
        host(ours("a")).stop(mark(guest("a")), deadline, grace=0.1)


@pytest.mark.parametrize("call", ["XMLDesc", "destroy"])
def test_stop_has_a_deadline(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(Domain, call, lambda _: never.wait())
    with pytest.raises(DeadlinePassed, match="waiting for libvirt at test:///fake"):
        host(ours("a")).stop(mark(guest("a")), Deadline.after(0.1))
    never.set()


@pytest.fixture
def meminfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 32 GiB with 20 in use: 4 of these are a tmpfs, which libvirt's "cached" has too."""
    path = tmp_path / "meminfo"
    path.write_text(
        f"MemTotal: {32 << 20:12} kB\nMemFree: {8 << 20:13} kB\nMemAvailable: {12 << 20:8} kB\n"
        f"Buffers: {1 << 20:13} kB\nCached: {7 << 20:14} kB\nShmem: {4 << 20:15} kB\n"
    )
    monkeypatch.setattr(hypervisor, "MEMINFO", path)
    return path


def test_free_memory(meminfo: Path, deadline: Deadline, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 GiB available; a guest of 4 GiB using 1 may take 3; others' domains do not count."""
    assert host().free_memory(deadline) == 12 * GIB - HEADROOM
    assert host(ours("a", rss=GIB), Domain("web", "<domain/>")).free_memory(deadline) == 9 * GIB - HEADROOM
    assert host(*(ours(name) for name in "abcd")).free_memory(deadline) == 0
    two = host(ours("a", rss=GIB), ours("b", rss=GIB))
    assert two.free_memory(deadline) == 6 * GIB - HEADROOM
    monkeypatch.setattr(state, "identity", lambda: guest("a").lab)
    assert two.free_memory(deadline, besides=["b"]) == 10 * GIB - HEADROOM, "when b has ended"
    monkeypatch.setattr(state, "identity", lambda: "another")
    assert two.free_memory(deadline, besides=["b"]) == 6 * GIB - HEADROOM, "another lab's b"
    meminfo.write_text("MemTotal: 1 kB\n")
    assert host().memory(deadline) == 1024
    with pytest.raises(HostError, match="meminfo of test:///fake has no MemAvailable"):
        host().free_memory(deadline)


def test_free_memory_has_a_deadline(meminfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs under the lock that every start of a guest waits for."""
    never = threading.Event()
    monkeypatch.setattr(Domain, "memoryStats", lambda _: never.wait())
    with pytest.raises(DeadlinePassed, match="waiting for libvirt at test:///fake"):
        host(ours("a")).free_memory(Deadline.after(0.1))
    never.set()


def test_version() -> None:
    assert host().version() == "11.2.3"


def test_answer(deadline: Deadline) -> None:
    assert answer("x", lambda: 7, deadline) == 7
    with pytest.raises(KeyError, match="why"):
        answer("x", lambda: dict[str, int]()["why"], deadline)


@pytest.mark.parametrize("limit", [None, Deadline.after(3600)], ids=["no deadline", "deadline"])
def test_silence_is_an_error(limit: Deadline | None) -> None:
    never = threading.Event()
    with pytest.raises(HostError, match="libvirt at qemu:///x does not answer"):
        answer("qemu:///x", never.wait, limit, seconds=0.05)
    never.set()


@pytest.mark.parametrize(
    "ask",
    [
        lambda there, deadline: there.marks(deadline),
        lambda there, deadline: there.running(mark(guest("a")), deadline),
        lambda there, deadline: there.free_memory(deadline),
    ],
    ids=["marks", "running", "free_memory"],
)
def test_ctrl_c_ends_the_wait_for_libvirt(
    ask: Callable[[Host, Deadline], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    never, deadline = threading.Event(), Deadline.after(60)
    for call in ("listAllDomains", "lookupByUUIDString"):
        monkeypatch.setattr(Connection, call, lambda *_: never.wait())
    threading.Timer(0.1, deadline.cancel.set).start()
    with pytest.raises(Cancelled, match="waiting for libvirt at test:///fake: cancelled"):
        ask(host(), deadline)
    never.set()


@pytest.fixture
def no_init(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Root without an init that starts libvirtd, whose socket is there; returns the programs that are run."""
    started: list[str] = []
    exists = Path.exists
    socket = tmp_path / "libvirt-sock"
    socket.touch()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(Path, "exists", lambda path: str(path) != "/run/systemd/system" and exists(path))
    monkeypatch.setattr(hypervisor, "SOCKETS", (socket,))
    monkeypatch.setattr(hypervisor, "_start_daemons", lambda _deadline: started.append("libvirtd"))
    return started


@pytest.mark.parametrize("refusals", [1, 3])
def test_a_killed_libvirtd_is_started_until_it_listens(
    monkeypatch: pytest.MonkeyPatch, no_init: list[str], deadline: Deadline, refusals: int
) -> None:
    left = ["Failed to connect socket: Connection refused"] * refusals

    def refuse_at_first(_uri: str) -> object:
        if left:
            raise libvirt.libvirtError(left.pop())
        return object()

    monkeypatch.setattr(libvirt, "open", refuse_at_first)
    connect("qemu:///system", deadline)
    assert len(no_init) == refusals


def test_a_libvirtd_that_never_listens_is_an_error_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, no_init: list[str], deadline: Deadline
) -> None:
    def refuse(_uri: str) -> object:
        raise libvirt.libvirtError("Failed to connect socket: Connection refused")

    monkeypatch.setattr(libvirt, "open", refuse)
    monkeypatch.setattr(hypervisor, "LIBVIRTD_SECONDS", 0.3)
    with pytest.raises(HostError, match=r"Connection refused: lab\.py doctor tells more"):
        connect("qemu:///system", deadline)
    assert no_init


@pytest.mark.parametrize(
    ("installed", "started"),
    [
        (("virtlogd", "libvirtd", "virtqemud", "virtstoraged"), ["virtlogd", "libvirtd"]),
        (("virtlogd", "virtqemud", "virtstoraged"), ["virtlogd", "virtqemud", "virtstoraged"]),
        (("virtlogd", "virtqemud"), ["virtlogd", "virtqemud"]),
    ],
)
def test_libvirt_of_one_daemon_or_of_several(
    monkeypatch: pytest.MonkeyPatch,
    program: Program,
    tmp_path: Path,
    installed: tuple[str, ...],
    started: list[str],
) -> None:
    for name in installed:
        program(name, "exit")
    monkeypatch.setattr(hypervisor, "DAEMON_PATH", str(tmp_path / "bin"))
    assert list(hypervisor._daemons()) == started
    assert all(hypervisor._daemons().values())


def test_no_libvirt(monkeypatch: pytest.MonkeyPatch, program: Program, tmp_path: Path) -> None:
    program("virtlogd", "exit")
    monkeypatch.setattr(hypervisor, "DAEMON_PATH", str(tmp_path / "bin"))
    assert hypervisor._daemons()["libvirtd"] is None


def test_the_lock_directory_is_made_where_no_init_did(tmp_path: Path) -> None:
    """/var/lock leads to /run/lock, and /run may be empty: `console` had failed on a bare Debian 13."""
    link, real = tmp_path / "lock", tmp_path / "run-lock"
    link.symlink_to(real)
    hypervisor._make_lock_directory(link)
    assert real.stat().st_mode & 0o7777 == 0o1777
    real.chmod(0o755)
    hypervisor._make_lock_directory(link)
    assert real.stat().st_mode & 0o7777 == 0o755, "one that is there is left alone"


def test_a_daemon_that_ended_does_not_run(tmp_path: Path) -> None:
    """Also when its process is a zombie, or its PID another program's by now."""
    pid_file = tmp_path / "d.pid"
    pid_file.write_text(f"{os.getpid()}\n")
    assert hypervisor._runs("python", pid_file)
    assert not hypervisor._runs("libvirtd", pid_file)
    child = os.posix_spawn("/bin/true", ["true"], os.environ)
    pid_file.write_text(str(child))
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not hypervisor._runs("true", pid_file)
    os.waitpid(child, 0)
    assert not hypervisor._runs("true", pid_file)


def test_a_daemon_is_started_once_its_predecessor_has_ended(
    monkeypatch: pytest.MonkeyPatch, program: Program, tmp_path: Path, deadline: Deadline
) -> None:
    daemon = program("libvirtd", f"test -e {tmp_path}/ended && exit; touch {tmp_path}/ended; exit 1")
    hypervisor._start_daemon(str(daemon), tmp_path / "none.pid", deadline)
    broken = program("virtlogd", "echo 'error: no permission' >&2; exit 1")
    monkeypatch.setattr(hypervisor, "LIBVIRTD_SECONDS", 0.3)
    with pytest.raises(HostError, match=r"virtlogd does not start: error: no permission$"):
        hypervisor._start_daemon(str(broken), tmp_path / "none.pid", deadline)


def test_guests_without_a_qemu_are_forgotten(tmp_path: Path) -> None:
    """What libvirtd 9.0 had written when it was killed right before it started QEMU: it would wait for ever."""
    state = "<!-- -->\n<domstatus state='paused' reason='starting up' pid='{}'>\n  <vcpus>\n  </vcpus>\n</domstatus>\n"
    folder = tmp_path / "qemu"
    folder.mkdir()
    for name, pid in (("numalab-4984e8f9-one", 0), ("numalab-4984e8f9-two", 4711), ("theirs", 0)):
        (folder / f"{name}.xml").write_text(state.format(pid))
    hypervisor._forget_unstarted(folder)
    assert sorted(path.stem for path in folder.iterdir()) == ["numalab-4984e8f9-two", "theirs"]
    hypervisor._forget_unstarted(tmp_path / "none")
