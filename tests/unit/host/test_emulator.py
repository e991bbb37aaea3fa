# SPDX-License-Identifier: GPL-2.0-only
"""The program that stands for QEMU where a node has no memory: when it does, and what it leaves out."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from lxml import etree

from numalab.core.process import Deadline
from numalab.host import emulator
from numalab.host.domain import domain_xml
from numalab.host.hypervisor import Capabilities
from numalab.model import catalog
from numalab.model.guest import Emulator
from tests.unit.makers import FakeHost, spec

Program = Callable[[str, str], Path]
MEMORY = '{"qom-type":"memory-backend-ram","id":"ram-node%d","size":%d}'
BOUND = '{"qom-type":"memory-backend-memfd","id":"ram-node2","size":0,"host-nodes":[0],"policy":"bind"}'


class Qemu(FakeHost):
    """A host with a QEMU of these machine types."""

    def __init__(self, qemu: Path, *machines: str, confined_by: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.can = Capabilities(emulator=str(qemu), machines=frozenset(machines), confined_by=confined_by)

    def capabilities(self, deadline: Deadline) -> Capabilities:
        """What libvirt says."""
        return self.can


@pytest.fixture
def qemu(program: Program) -> Path:
    """A QEMU that prints its words, one a line."""
    return program("qemu", 'for word; do echo "$word"; done')


def empty_nodes(qemu: Path, deadline: Deadline) -> Emulator:
    """The program for an empty node, on a host with that QEMU 11."""
    made = emulator.program(Qemu(qemu, "q35").real(), catalog.topology("memoryless"), deadline)
    assert made is not None
    return made


def words(made: Emulator, *given: str) -> list[str]:
    """What QEMU gets of the words that libvirt gives."""
    done = subprocess.run([made.path, *given], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


@pytest.mark.usefixtures("lab_state")
def test_only_an_empty_node_without_an_old_machine_type_needs_it(qemu: Path, deadline: Deadline) -> None:
    memoryless, full = catalog.topology("memoryless"), catalog.topology("4socket")
    old, new = Qemu(qemu, "q35", "pc-q35-5.0").real(), Qemu(qemu, "q35", "pc-q35-11.1").real()
    assert emulator.program(old, memoryless, deadline) is None
    assert emulator.program(new, full, deadline) is None
    made = emulator.program(new, memoryless, deadline)
    assert made is not None
    assert os.access(made.path, os.X_OK)
    before = Path(made.path).stat().st_mtime_ns
    assert emulator.program(new, memoryless, deadline) == made
    assert Path(made.path).stat().st_mtime_ns == before, "libvirt would query it again"


@pytest.mark.usefixtures("lab_state")
def test_backends_of_empty_nodes_are_left_out(qemu: Path, deadline: Deadline) -> None:
    """As libvirt writes them; everything else reaches QEMU as it was, empty words and quotes too."""
    kept = ["-name", "a b", "", '-"x"', "*", "-m", "size=1024k"]
    given = [
        *kept,
        *("-object", MEMORY % (0, 1073741824), "-numa", "node,nodeid=0,cpus=0-1,memdev=ram-node0"),
        *("-object", MEMORY % (1, 0), "-numa", "node,nodeid=1,cpus=2,cpus=4,memdev=ram-node1"),
        *("-object", BOUND, "-numa", "node,nodeid=2,cpus=3,initiator=0,memdev=ram-node2"),
        *("-object", MEMORY % (10, 4096), "-numa", "node,nodeid=10,memdev=ram-node10"),
        *("-object", '{"qom-type":"rng-builtin","id":"size","x":0}'),
    ]
    assert words(empty_nodes(qemu, deadline), *given) == [
        *kept,
        *("-object", MEMORY % (0, 1073741824), "-numa", "node,nodeid=0,cpus=0-1,memdev=ram-node0"),
        *("-numa", "node,nodeid=1,cpus=2,cpus=4"),
        *("-numa", "node,nodeid=2,cpus=3,initiator=0"),
        *("-object", MEMORY % (10, 4096), "-numa", "node,nodeid=10,memdev=ram-node10"),
        *("-object", '{"qom-type":"rng-builtin","id":"size","x":0}'),
    ]
    assert words(empty_nodes(qemu, deadline)) == []


@pytest.mark.usefixtures("lab_state")
def test_qemu_may_be_anywhere_and_its_status_is_the_answer(program: Program, deadline: Deadline) -> None:
    odd = program("a qemu's", "exit 3")
    assert subprocess.run([empty_nodes(odd, deadline).path], check=False, timeout=60).returncode == 3


@pytest.mark.usefixtures("lab_state")
def test_a_profile_that_does_not_know_it_is_left_out(qemu: Path, deadline: Deadline) -> None:
    """libvirt's AppArmor profile lets a domain start QEMU alone."""
    host = Qemu(qemu, "q35", confined_by=("apparmor",)).real()
    made = emulator.program(host, catalog.topology("memoryless"), deadline)
    guest = spec("memoryless").model_copy(update={"emulator": made})
    root = etree.fromstring(domain_xml(guest).encode())
    assert made is not None
    assert root.findtext("devices/emulator") == made.path
    assert [(label.get("type"), label.get("model")) for label in root.findall("seclabel")] == [
        ("none", "apparmor")
    ]
    machine = root.find("os/type")
    assert machine is not None
    assert machine.get("machine") == "q35"
