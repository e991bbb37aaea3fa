# SPDX-License-Identifier: GPL-2.0-only
"""A GuestSpec -> libvirt domain XML. Pure; golden files in tests/golden have the result.

Format: https://libvirt.org/formatdomain.html. What libvirt 9.0 cannot express goes through its QEMU
namespace: the forwarded SSH port of QEMU's user network (libvirt's passt backend is absent before 9.0 and
unusable on Debian 12), with the card on a PCI slot of its own, and the writer of the console log. Not here:
calls to libvirt (hypervisor).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lxml import etree
from lxml.builder import E as _E
from lxml.builder import ElementMaker

from numalab.model.guest import DiskFile, GuestSpec
from numalab.model.topology import Bus, Node, Topology
from numalab.model.units import KIB, MIB, parse_cpus, show_cpus
from numalab.model.values import Accel, Clock

LAB = "urn:numalab:guest:1"
"""The namespace of the lab's mark in a domain's metadata. A domain without the mark is not the lab's."""
QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
PREFIX = "numalab-"
"""The prefix of all domain names, for a person who reads virsh's list; see domain_name."""
LAB_DIGITS = 8
"""Digits of a lab's identity in its domains' names: two labs may both have a guest `migratefail`."""
TCG_MODEL = "Nehalem"
"""The fastest to boot under TCG of those measured (docs/clock.md); it has x2APIC."""
ICOUNT_SHIFT = 3
"""On the virtual clock an instruction takes 2**3 ns (others: docs/clock.md)."""
WITHOUT_BACKENDS = {"q35": "pc-q35-5.0", "pc": "pc-i440fx-5.0"}
"""QEMU's last machine types with -numa node,mem=. For later ones libvirt writes a memory backend for each
node, of size 0 for an empty one, which QEMU refuses (see emulator)."""
ROOT_BUS_SLOTS = range(0x02, 0x1B)
"""Slots of q35's root bus that neither its chipset, nor the card, nor libvirt's first root ports take."""
INSTRUCTION_FILES = ("symbols", "profile")
"""Files in the folder of a guest whose instructions are counted: what the plugin reads when counting begins,
and what it writes at the end. The plugin's words for them are their names."""
CMDLINE = "console=ttyS0,115200 net.ifnames=0 no_timer_check"
"""Words for every kernel. no_timer_check: a kernel that sees no KVM waits a moment for its timer to tick, and
panics when a busy host held up QEMU's main thread for that long (seen; reproduced by stopping that thread for
0.1 s at a time). Under KVM a kernel with CONFIG_KVM_GUEST does not check (arch/x86/kernel/kvm.c)."""
INIT = "/usr/local/sbin/lab-init"
"""The lab's init, in a guest. It sets up addresses of QEMU's user network."""
INIT_WORD, ROUTE_WORD = f"init={INIT}", "numalab.route"
"""The words on the kernel command line that have it run, and have it set up a default route."""
VIRTUAL_CMDLINE = "initcall_blacklist=trace_eval_init"
"""A word for the virtual clock, where each instruction takes its time: 2.3 s of a boot would go through the
formats of 1,371 tracepoints (XFS has 561) and replace names of enums by their values. Nobody needs it but
programs that decode a format by themselves (perf script, trace-cmd)."""
SEEDED_CMDLINE = "page_alloc.shuffle=1"
"""A word for a boot with a seed: the kernel shuffles its lists of free pages (CONFIG_SHUFFLE_PAGE_ALLOCATOR,
since 5.2), so that two boots do not hand out the same pages in the same order."""

# lxml's builder has an attribute for every element name, which stubs cannot type.
E: Any = _E
_Lab: Any = ElementMaker(namespace=LAB, nsmap={"numalab": LAB})
_Qemu: Any = ElementMaker(namespace=QEMU)
Element = etree._Element


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Identifies a domain of the lab: a guest's, when every field equals the guest's record."""

    uuid: str
    name: str
    """The guest's name."""
    lab: str
    directory: str


def mark(spec: GuestSpec) -> Mark:
    """The mark of a guest's domain."""
    return Mark(uuid=spec.uuid, name=spec.name, lab=spec.lab, directory=spec.directory)


def domain_name(of: Mark) -> str:
    """The domain's name in libvirt: numalab-1a2b3c4d-NAME."""
    return f"{PREFIX}{of.lab[:LAB_DIGITS]}-{of.name}"


def domain_xml(spec: GuestSpec) -> str:
    """A guest's domain, as text that `virt-xml-validate` accepts."""
    topology = spec.topology
    root = etree.Element("domain", type="kvm" if spec.accel is Accel.KVM else "qemu", nsmap={"qemu": QEMU})
    root.extend(
        [
            E.name(domain_name(mark(spec))),
            E.uuid(spec.uuid),
            E.description(f"numalab guest {spec.name}: {topology.description}"),
            E.metadata(_mark(spec)),
            E.memory(str(topology.memory // KIB), unit="KiB"),
            E.vcpu(str(topology.vcpus), placement="static"),
            _os(spec),
            E.features(E.acpi(), E.apic()),
            _cpu(spec),
            _clock(spec),
            *_binding(spec),
            E.on_poweroff("destroy"),
            E.on_reboot("restart"),
            E.on_crash("destroy"),
            _devices(spec),
        ]
    )
    for model in spec.emulator.confined_by if spec.emulator else ():
        root.append(E.seclabel(type="none", model=model))
    if spec.owner:
        label = "+{}:+{}".format(*spec.owner)
        root.append(E.seclabel(E.label(label), type="static", model="dac", relabel="no"))
    words = (
        *_without_sata(spec),
        *_network(spec),
        *_console_log(spec),
        *_time_and_chance(spec),
        *_instructions(spec),
    )
    root.append(_Qemu.commandline(*(_Qemu.arg(value=word) for word in words)))
    return etree.tostring(root, pretty_print=True, encoding="unicode")


def _mark(spec: GuestSpec) -> Element:
    return _Lab.guest(
        name=spec.name,
        topology=spec.topology_name,
        kernel=spec.boot.name,
        accel=spec.accel.value,
        directory=spec.directory,
        port=str(spec.ssh_port),
        lab=spec.lab,
    )


def _machine(spec: GuestSpec) -> str:
    """QEMU's machine type. With a memoryless node it is one WITHOUT_BACKENDS, or else the emulator leaves the
    backend out."""
    topology = spec.topology
    if spec.emulator or all(node.memory for node in topology.nodes):
        return topology.machine
    return WITHOUT_BACKENDS[topology.machine]


def _without_sata(spec: GuestSpec) -> tuple[str, ...]:
    """q35 has a SATA controller whose six empty ports are waited for. Probing them was also seen to hang for
    good under TCG (ata_port_wait_eh(), 6.1 and QEMU 10.0). libvirt has no word for leaving it out."""
    return ("-machine", "sata=off") if spec.topology.machine == "q35" else ()


def _binding(spec: GuestSpec) -> list[Element]:
    """The guest's parts of the host: huge pages, a CPU for each vCPU, a node for each node's memory."""
    parts = list[Element]()
    if spec.huge_page:
        # memfd: no mount of hugetlbfs is needed, and a session has huge pages too.
        page = E.page(size=str(spec.huge_page // KIB), unit="KiB")
        parts.append(E.memoryBacking(E.hugepages(page), E.source(type="memfd")))
    if bound := spec.binding:
        pins = (E.vcpupin(vcpu=str(vcpu), cpuset=str(cpu)) for vcpu, cpu in enumerate(bound.vcpus))
        parts.append(E.cputune(*pins, E.emulatorpin(cpuset=show_cpus(bound.emulator))))
        cells = bound.nodes if spec.topology.nodes else ()
        tune = E.numatune(E.memory(mode="strict", nodeset=show_cpus(tuple(set(bound.nodes)))))
        tune.extend(
            E.memnode(cellid=str(cell), mode="strict", nodeset=str(node)) for cell, node in enumerate(cells)
        )
        parts.append(tune)
    return parts


def _clock(spec: GuestSpec) -> Element:
    """The real-time clock. On a virtual clock it follows that clock too."""
    clock = E.clock(offset="utc")
    if spec.clock is Clock.VIRTUAL:
        clock.append(E.timer(name="rtc", track="guest"))
    return clock


def icount(shift: int) -> tuple[str, str]:
    """QEMU's words for the virtual clock, which libvirt (as of 12) does not know. While all CPUs are idle,
    the clock runs as the host's does, for SSH."""
    return ("-icount", f"shift={shift},sleep=on")


def _time_and_chance(spec: GuestSpec) -> tuple[str, ...]:
    """QEMU's words for the virtual clock and for a seeded RDRAND, which libvirt does not know."""
    words = icount(spec.icount_shift) if spec.clock is Clock.VIRTUAL else ()
    return (*words, *(("-seed", str(spec.seed)) if _seeded(spec) else ()))


def _instructions(spec: GuestSpec) -> tuple[str, ...]:
    """QEMU's words for the plugin that counts instructions, which libvirt does not know."""
    return ("-plugin", plugin_option(spec.instructions, spec.directory)) if spec.instructions else ()


def plugin_option(plugin: str, directory: str) -> str:
    """The value of QEMU's -plugin for the one that counts instructions, with its files in this folder."""
    words = {"file": plugin, **{name: f"{directory}/{name}" for name in INSTRUCTION_FILES}}
    return ",".join(f"{name}={path.replace(',', ',,')}" for name, path in words.items())


def _seeded(spec: GuestSpec) -> bool:
    """Whether QEMU draws the guest's random numbers from its seed; under KVM the processor draws them."""
    return spec.seed is not None and spec.accel is Accel.TCG


def _os(spec: GuestSpec) -> Element:
    os = E.os(E.type("hvm", arch="x86_64", machine=_machine(spec)))
    if spec.boot.kernel:
        os.append(E.kernel(spec.boot.kernel))
        if spec.boot.initrd:
            os.append(E.initrd(spec.boot.initrd))
        os.append(E.cmdline(spec.boot.cmdline))
    else:
        os.append(E.boot(dev="hd"))
    return os


def _cpu(spec: GuestSpec) -> Element:
    topology = spec.topology
    if spec.accel is Accel.KVM:
        cpu = E.cpu(mode="host-passthrough", check="none", migratable="on" if spec.savable else "off")
    else:
        cpu = E.cpu(E.model(TCG_MODEL, fallback="forbid"), mode="custom", match="exact", check="none")
    cpu.append(
        E.topology(sockets=str(topology.sockets), cores=str(topology.vcpus // topology.sockets), threads="1")
    )
    if _seeded(spec):
        # Nehalem has none, and it is all of the guest that -seed decides.
        cpu.append(E.feature(policy="require", name="rdrand"))
    if topology.nodes:
        numa = E.numa(*(_cell(topology, index, node) for index, node in enumerate(topology.nodes)))
        if any(node.latency_ns for node in topology.nodes):
            numa.append(_interconnects(topology))
        cpu.append(numa)
    return cpu


def _cell(topology: Topology, index: int, node: Node) -> Element:
    cell = E.cell(id=str(index), memory=str(node.memory // KIB), unit="KiB")
    if node.cpus:
        cell.set("cpus", show_cpus(node.cpus))
    if topology.distances:
        siblings = (
            E.sibling(id=str(j), value=str(value)) for j, value in enumerate(topology.distances[index])
        )
        cell.append(E.distances(*siblings))
    return cell


def _interconnects(topology: Topology) -> Element:
    """The HMAT: each node's memory is reached from its own CPUs, or if it has none, from every node with
    CPUs.

    libvirt refuses links in both directions ("Link already defined"), so two nodes with CPUs have no entry
    for each other. The kernel shows a node's latency and bandwidth from its best initiator, which such an
    entry would not change.
    """
    entries = []
    for initiator, source in enumerate(topology.nodes):
        for target, node in enumerate(topology.nodes):
            if source.cpus and node.memory and (initiator == target or not node.cpus):
                attributes = {"initiator": str(initiator), "target": str(target), "type": "access"}
                entries.append(E.latency(value=str(node.latency_ns), **attributes))
                entries.append(
                    E.bandwidth(value=str((node.bandwidth_mibs or 0) * MIB // KIB), unit="KiB", **attributes)
                )
    entries.sort(key=lambda entry: str(entry.tag), reverse=True)  # the schema wants latencies first
    return E.interconnects(*entries)


def _devices(spec: GuestSpec) -> Element:
    """Disks, two consoles, a random source. No graphics and no balloon; USB only when a disk needs it."""
    log = {"path": _log_path(spec), "append": "on"}
    devices = E.devices(
        *((E.emulator(spec.emulator.path),) if spec.emulator else ()),
        *(_disk(index, disk) for index, disk in enumerate(spec.disks)),
        E.controller(type="usb", model=_usb_controller(spec.disks)),
        E.controller(type="virtio-serial", index="0"),
        # ttyS0 is the kernel's alone and read-only; the interactive console and getty are on hvc0.
        E.serial(E.source(**log), E.target(port="0"), type="file"),
        E.console(E.source(**log), E.target(type="serial", port="0"), type="file"),
        E.console(E.target(type="virtio", port="1"), type="pty"),
        E.input(type="keyboard", bus="ps2"),
        E.input(type="mouse", bus="ps2"),
        E.memballoon(model="none"),
        E.rng(E.backend(model="builtin"), model="virtio"),
    )
    if spec.topology.machine == "q35":
        _without_root_ports(devices)
    return devices


def _without_root_ports(devices: Element) -> None:
    """Put the devices on q35's root bus, while there are slots.

    libvirt gives each a root port of its own. The kernel sizes the registers of each port and each device by
    moving them, which takes an emulated boot some 20 ms each, and while that happens QEMU 10.0 may fail an
    assertion (docs/decisions.md).
    """
    places = [
        *(disk for disk in devices.findall("disk") if disk.find("target[@bus='virtio']") is not None),
        *(one for one in devices.findall("controller") if one.get("model") != "none"),
        *devices.findall("rng"),
    ]
    for device, slot in zip(places, ROOT_BUS_SLOTS, strict=False):
        device.append(E.address(type="pci", domain="0x0000", bus="0x00", slot=f"{slot:#04x}", function="0x0"))


def _usb_controller(disks: tuple[DiskFile, ...]) -> str:
    """EHCI holds back a stick whose speed is by the guest's clock (guest.slow_disks)."""
    sticks = [disk for disk in disks if disk.bus is Bus.USB]
    if not sticks:
        return "none"
    return "ehci" if any(disk.speed_clock is Clock.VIRTUAL for disk in sticks) else "qemu-xhci"


def _disk(index: int, disk: DiskFile) -> Element:
    driver = {"name": "qemu", "type": disk.format, "discard": "unmap"}
    driver["cache"] = "none" if disk.direct else "writeback"
    usb = disk.bus is Bus.USB
    parts = [
        E.driver(**driver),
        E.source(file=disk.path),
        E.target(dev=f"{'sd' if usb else 'vd'}{chr(ord('a') + index)}", bus=disk.bus.value),
    ]
    if disk.mibs_per_second and disk.speed_clock is Clock.HOST:
        parts.append(E.iotune(E.total_bytes_sec(str(disk.mibs_per_second * MIB))))
    return E.disk(*parts, E.serial(disk.serial), type="file", device="disk")


def _console_log(spec: GuestSpec) -> tuple[str, ...]:
    """Let QEMU append to the console log itself. libvirt would give it a pipe to virtlogd, which starts a new
    file every 2 MiB and removes old ones (virtlogd.conf: max_size, max_backups). The file is in the XML too,
    so that the guest's AppArmor profile allows it (virt-aa-helper)."""
    return "-set", f"chardev.charserial0.path={_log_path(spec)}"


def _log_path(spec: GuestSpec) -> str:
    return f"{spec.directory}/console.log"


def _network(spec: GuestSpec) -> tuple[str, ...]:
    # libvirt does not know of this card. On pc it assigns slots from the low end, up to 0x1d with 25 disks.
    # On q35 the card's is none of ROOT_BUS_SLOTS, and 0x1f is taken.
    bus, slot = ("pcie.0", "0x1c") if spec.topology.machine == "q35" else ("pci.0", "0x1f")
    # When restricted, QEMU still answers DHCP, without a router or a name server, so nothing waits for one.
    restrict = "off" if spec.network else "on"
    return (
        "-netdev",
        f"user,id=lab0,restrict={restrict},hostfwd=tcp:127.0.0.1:{spec.ssh_port}-:22",
        "-device",
        f"virtio-net-pci,netdev=lab0,id=labnet0,bus={bus},addr={slot},romfile=",
    )


def restored_xml(saved: str, fresh: str) -> str:
    """The XML with which a saved domain begins again as another guest.

    It is the saved one, with all that libvirt added, such as addresses and the machine type's version; what
    belongs to one guest (name, UUID, mark, files, QEMU's own words) comes from `fresh`, a domain_xml with the
    same devices. ValueError when `saved` is no XML, or of other devices.
    """
    try:
        old, new = etree.fromstring(saved.encode()), etree.fromstring(fresh.encode())
    except etree.XMLSyntaxError as error:
        raise ValueError(str(error)) from error
    for path in (
        "name",
        "uuid",
        "description",
        "metadata",
        "os/kernel",
        "os/initrd",
        f"{{{QEMU}}}commandline",
    ):
        _replace(old.find(path), new.find(path))
    disks = {_target(disk): disk for disk in new.findall("devices/disk")}
    for disk in old.findall("devices/disk"):
        if (other := disks.get(_target(disk))) is None:
            raise ValueError(f"the saved domain has a disk {_target(disk)}, which the guest has not")
        for part in ("driver", "source"):
            _replace(disk.find(part), other.find(part))
        for chain in disk.findall("backingStore"):
            disk.remove(chain)  # of the file that was there before
    for kind in ("serial", "console"):
        for one, other in zip(old.findall(f"devices/{kind}"), new.findall(f"devices/{kind}"), strict=True):
            if other.find("source") is not None:
                _replace(one.find("source"), other.find("source"))
    return etree.tostring(old, encoding="unicode")


def _replace(old: Element | None, new: Element | None) -> None:
    """Put `new` where `old` is. ValueError when only one of them is there."""
    parent = None if old is None else old.getparent()
    if old is not None and new is not None and parent is not None:
        parent.replace(old, new)
    elif old is not None or new is not None:
        raise ValueError("the saved domain has other devices than the one that it is to go on as")


def _target(disk: Element) -> str:
    """A disk's name in the domain (vda)."""
    target = disk.find("target")
    return "" if target is None else str(target.get("dev"))


def read_mark(xml: str) -> Mark | None:
    """The lab's mark in a domain's XML; None when the domain is not a lab's."""
    root = etree.fromstring(xml.encode())
    marks = root.findall(f"metadata/{{{LAB}}}guest")
    if not marks:
        return None
    known = {key: str(marks[0].get(key, "")) for key in ("name", "lab", "directory")}
    return Mark(uuid=root.findtext("uuid", ""), **known)


def pinned_cpus(xml: str) -> set[int]:
    """The host's CPUs to which a domain's vCPUs are pinned, whoever made it."""
    pins = etree.fromstring(xml.encode()).findall("cputune/vcpupin")
    return {cpu for pin in pins for cpu in _cpuset(str(pin.get("cpuset")))}


def has_huge_pages(xml: str) -> bool:
    """Whether a domain's memory is made of the host's huge pages."""
    return etree.fromstring(xml.encode()).find("memoryBacking/hugepages") is not None


def _cpuset(text: str) -> set[int]:
    """libvirt's CPU list, in which ^N takes CPU N out again."""
    words = text.split(",")
    out = {int(word[1:]) for word in words if word.startswith("^")}
    return set(parse_cpus(",".join(word for word in words if not word.startswith("^")))) - out


def disk_files(xml: str) -> dict[str, str]:
    """The disks in a domain's XML: target (vda) -> file."""
    disks = etree.fromstring(xml.encode()).findall("devices/disk")
    pairs = ((disk.find("target"), disk.find("source")) for disk in disks)
    return {
        str(target.get("dev")): str(source.get("file"))
        for target, source in pairs
        if target is not None and source is not None
    }
