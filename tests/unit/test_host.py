"""The hypervisor's edge on a connection of ours: only what carries the lab's mark is seen, and silence is an error."""

from __future__ import annotations

import threading

import libvirt
import pytest

from numalab.domain import domain_xml
from numalab.errors import HostError
from numalab.host import HEADROOM, Host, answer
from numalab.model import GIB, KIB
from numalab.proc import Deadline
from tests.unit.makers import spec


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
    """As libvirt says that there is none."""

    def get_error_code(self) -> int:
        return int(libvirt.VIR_ERR_NO_DOMAIN)


class Connection:
    """libvirt's, as far as Host asks."""

    def __init__(self, *domains: Domain) -> None:
        self.domains = list(domains)

    def listAllDomains(self) -> list[Domain]:
        return self.domains

    def lookupByName(self, name: str) -> Domain:
        for domain in self.domains:
            if domain.name() == name:
                return domain
        raise NoDomain(name)

    def getMemoryStats(self, _cells: int) -> dict[str, int]:
        return {"total": 32 * GIB // KIB, "free": 8 * GIB // KIB, "cached": 3 * GIB // KIB, "buffers": GIB // KIB}

    def getLibVersion(self) -> int:
        return 11_002_003


def ours(name: str, *, rss: int = 0) -> Domain:
    return Domain(f"numalab-{name}", domain_xml(spec(name=name)), rss=rss)


def host(*domains: Domain) -> Host:
    return Host("test:///fake", Connection(*domains))


def test_only_marked_domains_are_guests() -> None:
    found = host(ours("a"), Domain("numalab-b", "<domain/>"), Domain("web", "<domain/>"), Domain("copy", domain_xml(spec(name="a")))).guests()
    assert list(found) == ["a"]
    assert found["a"]["topology"] == "4socket"


def test_stop(deadline: Deadline) -> None:
    mine = ours("a")
    host(mine).stop("a", deadline)
    assert mine.did == ["destroy"]


def test_stop_asks_first(deadline: Deadline) -> None:
    class Obedient(Domain):
        def shutdown(self) -> None:
            super().shutdown()
            there.connection.domains.clear()

    mine = Obedient("numalab-a", domain_xml(spec(name="a")))
    there = host(mine)
    there.stop("a", deadline, grace=60)
    assert mine.did == ["shutdown"]
    stubborn = ours("b")
    host(stubborn).stop("b", deadline, grace=0.1)
    assert stubborn.did == ["shutdown", "destroy"]
    host().stop("gone", deadline)


def test_what_is_not_marked_is_not_stopped(deadline: Deadline) -> None:
    theirs = Domain("numalab-a", "<domain/>")
    with pytest.raises(HostError, match="domain numalab-a does not carry the lab's mark: not touched"):
        host(theirs).stop("a", deadline)
    assert theirs.did == []


def test_full_disk() -> None:
    mine = ours("a")
    there = host(mine)
    assert there.full_disk("gone") == there.full_disk("a") == ""
    mine.life = [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER]
    assert there.full_disk("a") == "", "a person paused it"
    mine.life = [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR]
    assert there.full_disk("a") == "one of its disks"
    mine.broken = {"vda": libvirt.VIR_DOMAIN_DISK_ERROR_NO_SPACE}
    assert there.full_disk("a") == "/lab/guests/golden/root.qcow2"


def test_free_memory() -> None:
    """12 GiB free or to be freed; a guest of 4 GiB that has touched 1 still has 3 to come, a foreign one is its owner's."""
    assert host().free_memory() == 12 * GIB - HEADROOM
    assert host(ours("a", rss=GIB), Domain("web", "<domain/>")).free_memory() == 9 * GIB - HEADROOM
    assert host(*(ours(name) for name in "abcd")).free_memory() == 0


def test_version() -> None:
    assert host().version() == "11.2.3"


def test_answer() -> None:
    assert answer("x", lambda: 7) == 7
    with pytest.raises(KeyError, match="why"):
        answer("x", lambda: dict[str, int]()["why"])


def test_silence_is_an_error() -> None:
    never = threading.Event()
    with pytest.raises(HostError, match="libvirt at qemu:///x does not answer"):
        answer("qemu:///x", never.wait, seconds=0.05)
    never.set()
