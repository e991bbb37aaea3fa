# SPDX-License-Identifier: GPL-2.0-only
"""The XML in a file that libvirt saved: read, replaced in its room, and nothing else changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from numalab.core.errors import HostError
from numalab.host import saved
from numalab.host.domain import domain_xml, restored_xml
from numalab.model.values import Accel
from tests.unit.makers import spec

COOKIE = b"<cookie><slirpHelper/></cookie>\0"
STREAM = b"QEVM" + bytes(range(256)) * 8
ROOM = 65536


def write(path: Path, xml: bytes, cookie: bytes = COOKIE) -> Path:
    """A file as libvirt 9.0 writes it."""
    words = [2, ROOM, 1, 0, len(xml) + 1 if cookie else 0, *[0] * 14]
    front = (xml + b"\0" + cookie).ljust(ROOM, b"\0")
    path.write_bytes(saved.HEADER.pack(saved.MAGIC, *words) + front + STREAM)
    return path


@pytest.mark.parametrize("cookie", [COOKIE, b""])
@pytest.mark.parametrize("xml", ["<domain/>", f"<domain>{'x' * 500}</domain>"])
def test_the_xml_is_replaced_and_the_rest_stays(tmp_path: Path, cookie: bytes, xml: str) -> None:
    path = write(tmp_path / "memory", b"<domain>before</domain>", cookie)
    assert saved.domain_xml(path) == "<domain>before</domain>"
    size = path.stat().st_size
    saved.replace_xml(path, xml)
    assert path.read_bytes() == write(tmp_path / "other", xml.encode(), cookie).read_bytes()
    assert path.stat().st_size == size


def test_no_room(tmp_path: Path) -> None:
    path = write(tmp_path / "memory", b"<domain/>")
    before = path.read_bytes()
    with pytest.raises(HostError, match=r"memory: no room for 70001 bytes of XML: libvirt left 65536"):
        saved.replace_xml(path, "x" * 70000)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "shorter than the header"),
        (b"QEVM" * 100, "not a domain that libvirt saved in format 2"),
        (saved.HEADER.pack(saved.MAGIC, 3, 10, *[0] * 17) + bytes(10), "format 2"),
        (saved.HEADER.pack(saved.MAGIC, 2, 1 << 31, *[0] * 17), "format 2"),
        (saved.HEADER.pack(saved.MAGIC, 2, 100, *[0] * 17) + bytes(99), "ends within its XML"),
    ],
)
def test_damaged(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "memory").write_bytes(content)
    with pytest.raises(HostError, match=why):
        saved.domain_xml(tmp_path / "memory")


def test_a_saved_domain_goes_on_as_another_guest() -> None:
    """What libvirt added stays; what belongs to one guest is the new one's."""
    first = spec("4socket", name="first", directory="/lab/guests/first")
    added = "<alias name='added'/>"
    old = (
        domain_xml(first)
        .replace('machine="q35"', 'machine="pc-q35-10.0"')
        .replace('bus="virtio"/>', f'bus="virtio"/>{added}')
    )
    assert added in old
    second = spec("4socket", name="second", directory="/lab/guests/second").model_copy(
        update={"uuid": "6e756d61-6c61-4b00-8000-00000000aaaa", "ssh_port": 4711}
    )
    disks = tuple(
        disk.model_copy(update={"path": disk.path.replace(".raw", ".qcow2"), "format": "qcow2"})
        for disk in second.disks
    )
    new = restored_xml(old, domain_xml(second.model_copy(update={"disks": disks})))
    assert "first" not in new
    assert second.uuid in new
    assert first.uuid not in new
    assert "127.0.0.1:4711-:22" in new
    assert all(f'file="{disk.path}"' in new for disk in disks)
    assert 'type="raw"' not in new
    assert 'machine="pc-q35-10.0"' in new
    assert new.count('<alias name="added"/>') == len(disks)


def test_a_domain_with_other_devices_is_refused() -> None:
    with pytest.raises(ValueError, match="disk"):
        restored_xml(domain_xml(spec("4socket")), domain_xml(spec("uma-2g")).replace("vdb", "vdz"))


@pytest.mark.parametrize("cut", [0, 1, 100, -20])
def test_xml_that_is_cut_is_refused(cut: int) -> None:
    """As by a write that was cut short."""
    whole = domain_xml(spec("uma-2g"))
    with pytest.raises(ValueError, match=r"line|empty"):
        restored_xml(whole[:cut], whole)


def test_a_guest_that_is_saved_has_a_cpu_that_can_be() -> None:
    plain = spec("uma-2g", accel=Accel.KVM)
    assert 'migratable="off"' in domain_xml(plain)
    assert 'migratable="on"' in domain_xml(plain.model_copy(update={"savable": True}))
