# SPDX-License-Identifier: GPL-2.0-only
"""Domain XML against golden files, whose diff shows the effect of a change."""

from __future__ import annotations

import subprocess
from itertools import pairwise

import pytest
from lxml import etree

from numalab.guest.slow_disks import timed
from numalab.host.domain import LAB, Mark, domain_xml, has_huge_pages, mark, pinned_cpus, read_mark
from numalab.model import catalog
from numalab.model.binding import Binding
from numalab.model.guest import Boot, Emulator, GuestSpec
from numalab.model.topology import Disk, Topology
from numalab.model.units import MIB
from numalab.model.values import Accel, Clock
from tests.unit.makers import BOOT, GOLDEN, spec

# Emulated guests are a session's; the others are the system instance's, with an owner for their files.
CASES = {
    f"{name}-{accel}": spec(name, accel=accel, owner=(1000, 1001) if accel is Accel.KVM else None)
    for name in catalog.names("topologies")
    for accel in Accel
}
STICK = Disk.model_validate({"name": "stick", "size": "16GiB", "bus": "usb", "mibs_per_second": 12})
CASES["stick-tcg"] = spec(catalog.topology("uma-2g").model_copy(update={"disks": (STICK,)}))
CASES["stickvirtual-tcg"] = CASES["stick-tcg"].model_copy(
    update={"clock": Clock.VIRTUAL, "disks": timed(CASES["stick-tcg"].disks, Clock.VIRTUAL)}
)
CASES["virtual-tcg"] = spec("4socket").model_copy(update={"clock": Clock.VIRTUAL})
CASES["seeded-tcg"] = CASES["virtual-tcg"].model_copy(update={"seed": 4711})
PARTS = Binding(nodes=(0, 1, 0, 1), vcpus=tuple(range(0, 64, 4)), emulator=(1, 2, 3, 65))
CASES["bound-kvm"] = CASES["4socket-kvm"].model_copy(update={"binding": PARTS, "huge_page": 2 * MIB})
CASES["bounduma-tcg"] = spec("uma-2g").model_copy(
    update={"binding": Binding(nodes=(1,), vcpus=(8, 9), emulator=(10, 11))}
)
CASES["qemu11-tcg"] = CASES["memoryless-tcg"].model_copy(
    update={"emulator": Emulator(path="/state/emulator/qemu-0", confined_by=("apparmor",))}
)
CASES["counted-tcg"] = CASES["virtual-tcg"].model_copy(update={"instructions": "/state/emulator/a,b.so"})
CASES["grub-tcg"] = spec("uma-2g", boot=Boot(name="own"))
CASES["noinitrd-tcg"] = spec("uma-2g", boot=BOOT.model_copy(update={"initrd": None}))


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, pytestconfig: pytest.Config) -> None:
    path, text = GOLDEN / f"{name}.xml", domain_xml(CASES[name])
    if pytestconfig.getoption("--rewrite-golden"):
        path.write_text(text)
    assert path.exists(), "a new topology: pytest --rewrite-golden, and read what it wrote"
    assert text == path.read_text(), "if this is meant: pytest --rewrite-golden, and read the diff"


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.xml")} == set(CASES)


def test_libvirts_schema_takes_every_golden() -> None:
    for path in sorted(GOLDEN.glob("*.xml")):
        done = subprocess.run(
            ["virt-xml-validate", path, "domain"], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_others_have_is_read_back() -> None:
    assert pinned_cpus(domain_xml(CASES["bound-kvm"])) == set(range(0, 64, 4))
    assert pinned_cpus(domain_xml(CASES["4socket-kvm"])) == set()
    assert has_huge_pages(domain_xml(CASES["bound-kvm"]))
    assert not has_huge_pages(domain_xml(CASES["bounduma-tcg"]))
    foreign = "<domain><cputune><vcpupin vcpu='0' cpuset='0-5,^2,^4,9'/></cputune></domain>"
    assert pinned_cpus(foreign) == {0, 1, 3, 5, 9}


def find(guest_spec: GuestSpec, path: str) -> list[dict[str, str]]:
    """The attributes of all elements at a path."""
    return [
        {str(key): str(value) for key, value in node.attrib.items()}
        for node in etree.fromstring(domain_xml(guest_spec).encode()).findall(path)
    ]


def test_emulated_and_not() -> None:
    assert find(CASES["4socket-tcg"], ".") == [{"type": "qemu"}]
    assert find(CASES["4socket-kvm"], ".") == [{"type": "kvm"}]
    assert find(CASES["4socket-kvm"], "cpu")[0]["mode"] == "host-passthrough"
    assert find(CASES["4socket-tcg"], "cpu")[0]["mode"] == "custom"


def test_a_seed_is_qemus_under_emulation_only() -> None:
    """Under KVM the processor's own RDRAND answers."""
    seeded = {"seed": 4711}
    kvm = CASES["4socket-kvm"]
    assert domain_xml(kvm.model_copy(update=seeded)) == domain_xml(kvm)
    host_clock = domain_xml(CASES["4socket-tcg"].model_copy(update=seeded))
    assert "rdrand" in host_clock
    assert "4711" in host_clock
    assert "icount" not in host_clock


def test_distances() -> None:
    want = [str(value) for row in catalog.topology("4socket").distances for value in row]
    assert [
        sibling["value"] for sibling in find(CASES["4socket-tcg"], "cpu/numa/cell/distances/sibling")
    ] == want


def test_tiers() -> None:
    entries = find(CASES["tiers-tcg"], "cpu/numa/interconnects/latency")
    assert [(entry["initiator"], entry["target"], entry["value"]) for entry in entries] == [
        ("0", "0", "80"),
        ("0", "1", "250"),
    ]


def test_two_initiators() -> None:
    """libvirt refuses links in both directions: nodes with CPUs are their own initiators, others have all."""
    common = {"latency_ns": 80, "bandwidth_mibs": 1024, "memory": "1GiB"}
    shape = Topology.model_validate(
        {
            "description": "two initiators",
            "vcpus": 2,
            "memory": "3GiB",
            "nodes": [common | {"cpus": "0"}, common | {"cpus": "1"}, common | {"latency_ns": 250}],
        }
    )
    entries = find(spec(shape), "cpu/numa/interconnects/latency")
    assert [(entry["initiator"], entry["target"], entry["value"]) for entry in entries] == [
        ("0", "0", "80"),
        ("0", "2", "250"),
        ("1", "1", "80"),
        ("1", "2", "250"),
    ]


def test_disks() -> None:
    guest_spec = CASES["fakenuma-tcg"]
    assert [attributes["dev"] for attributes in find(guest_spec, "devices/disk/target")] == [
        "vda",
        "vdb",
        "vdc",
        "vdd",
    ]
    assert [attributes["cache"] for attributes in find(guest_spec, "devices/disk/driver")] == [
        "none",
        "writeback",
        "writeback",
        "writeback",
    ]
    serials = [
        element.text
        for element in etree.fromstring(domain_xml(guest_spec).encode()).findall("devices/disk/serial")
    ]
    assert serials == ["root", "test", "scratch", "500TB"]


def test_ssh_is_forwarded_on_loopback_only() -> None:
    assert "hostfwd=tcp:127.0.0.1:2222-:22" in domain_xml(CASES["4socket-tcg"])


@pytest.mark.parametrize(("network", "restrict"), [(False, "on"), (True, "off")])
def test_guests_reach_nobody_unless_they_are_to(network: bool, restrict: str) -> None:
    guest_spec = CASES["4socket-tcg"].model_copy(update={"network": network})
    assert f"user,id=lab0,restrict={restrict},hostfwd=" in domain_xml(guest_spec)


def test_qemu_appends_to_the_console_log_itself() -> None:
    """Through virtlogd, libvirt's default, all but the last megabytes would be removed."""
    guest_spec = CASES["4socket-tcg"]
    words = [attributes["value"] for attributes in find(guest_spec, "{*}commandline/{*}arg")]
    assert ("-set", f"chardev.charserial0.path={guest_spec.directory}/console.log") in pairwise(words)
    assert find(guest_spec, "devices/serial/source") == [
        {"path": f"{guest_spec.directory}/console.log", "append": "on"}
    ]
    assert not find(guest_spec, "devices/serial/log")


@pytest.mark.parametrize(
    ("machine", "place"), [("pc", "bus=pci.0,addr=0x1f"), ("q35", "bus=pcie.0,addr=0x1c")]
)
def test_the_card_is_on_a_slot_that_no_disk_gets(machine: str, place: str) -> None:
    """With 25 disks libvirt assigned slot 0x1c of pc to one, and QEMU failed."""
    assert place in domain_xml(spec(catalog.topology("uma-2g").model_copy(update={"machine": machine})))


@pytest.mark.parametrize("disks", [1, 30])
def test_devices_are_on_the_root_bus_of_q35_while_there_are_slots(disks: int) -> None:
    """libvirt gives the others root ports."""
    guest_spec = spec("4socket")
    many = tuple(guest_spec.disks[0].model_copy(update={"serial": f"d{n}"}) for n in range(disks))
    places = find(guest_spec.model_copy(update={"disks": many}), "devices//address")
    slots = [int(place["slot"], 16) for place in places]
    assert len(slots) == min(disks + 2, 25), "and a console and a random source"
    assert len({*slots}) == len(slots)
    assert not {0x00, 0x01, 0x1B, 0x1C, 0x1D, 0x1F} & {*slots}
    assert not find(spec("uma-2g"), "devices//address"), "pc has no root ports"


def test_owner() -> None:
    assert [find(CASES[name], "seclabel") for name in ("4socket-tcg", "4socket-kvm")] == [
        [],
        [{"type": "static", "model": "dac", "relabel": "no"}],
    ]


def test_mark() -> None:
    guest_spec = CASES["4socket-tcg"]
    assert (
        read_mark(domain_xml(guest_spec))
        == mark(guest_spec)
        == Mark(uuid=guest_spec.uuid, name="golden", lab="0123456789abcdef", directory="/lab/guests/golden")
    )
    assert "<name>numalab-01234567-golden</name>" in domain_xml(guest_spec)


@pytest.mark.parametrize(
    "xml",
    [
        "<domain><name>numalab-mine</name></domain>",
        "<domain><metadata/></domain>",
        "<domain><metadata><guest name='a'/></metadata></domain>",
        "<domain><metadata><x:guest xmlns:x='urn:other' name='a'/></metadata></domain>",
        f"<domain><numalab:guest xmlns:numalab='{LAB}' name='a'/></domain>",
        "<?xml version='1.0' encoding='UTF-8'?><domain/>",
    ],
)
def test_no_mark(xml: str) -> None:
    assert read_mark(xml) is None


@pytest.mark.parametrize("name", ["<name/>", "a&b", 'a"b', "a/b", "a b", "a'"])
def test_xml_in_a_name_does_not_get_in(name: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        spec(name=name)


def test_xml_in_other_texts_stays_text() -> None:
    shape = catalog.topology("uma-2g").model_copy(update={"description": "</description><x/>&"})
    boot = BOOT.model_copy(update={"cmdline": "a=\"<b>\" & 'c'", "name": '"><x/>'})
    guest_spec = spec(shape, boot=boot, directory="/a&b/<c>")
    root = etree.fromstring(domain_xml(guest_spec).encode())
    assert not root.findall(".//x")
    assert root.findtext("os/cmdline") == boot.cmdline
    assert read_mark(domain_xml(guest_spec)) == mark(guest_spec)
