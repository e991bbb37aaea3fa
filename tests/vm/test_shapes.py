# SPDX-License-Identifier: GPL-2.0-only
"""Generated topologies: each is refused with one line, or libvirt and QEMU accept it.

`make shapes` uses 1,000 from a random seed, starts all that are possible, and boots 30; this is the short
form, with fixed seeds. Numbers of the long form come from the environment: SEED, COUNT, STARTS, BOOTS.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libvirt
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from lxml import etree

from numalab.core.errors import InputError
from numalab.core.process import Deadline
from numalab.host import hypervisor
from numalab.host.domain import domain_xml
from numalab.host.remote import free_port
from numalab.model import catalog, topology, verification
from numalab.model.guest import Boot, GuestSpec
from numalab.model.topology import Topology
from numalab.model.units import GIB, MIB
from numalab.model.values import jsonable
from tests.shapes import files, scales, written
from tests.unit.makers import GOLDEN, spec
from tests.vm.conftest import Command

SEED = os.environ.get("SEED", "1")
COUNT = int(os.environ.get("COUNT", "60"))
STARTS = int(os.environ.get("STARTS", "10"))
"""How many of the possible ones are started in QEMU, paused."""
BOOTS = int(os.environ.get("BOOTS", "1"))
"""How many of the small ones are booted and verified."""
SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
pytestmark = pytest.mark.xdist_group("shapes")  # they share what takes long to make
SMALL_VCPUS, SMALL_MEMORY = 8, 6 * GIB
"""The largest machine that boots under emulation in a minute."""
REFUSED = re.compile(
    rf"[^\n]*/made\.yml:[1-9]\d*: ({'|'.join(Topology.model_fields)}|colour)(\.[\w.]+)?: [^\n]+"
)
SCALING_REFUSED = re.compile(r"(memory|vcpus|this topology cannot be scaled)[^\n]+")


@dataclass(frozen=True)
class Made:
    """One file, values of --memory and --vcpus, and the result: a topology, or the line that refuses it."""

    text: str
    mib: int | None
    vcpus: int | None
    shape: Topology | None
    refusal: str


@pytest.fixture(scope="session")
def made() -> list[Made]:
    """COUNT different ones, in blocks with their own seeds: hypothesis varies what it has in a longer row."""
    texts: dict[tuple[str, int | None, int | None], None] = {}
    for block in range(COUNT):

        @seed(f"{SEED}-{block}")
        @settings(
            max_examples=20,
            database=None,
            deadline=None,
            derandomize=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(files(), scales())
        def collect(text: str, size: tuple[int | None, int | None]) -> None:
            texts[(text, *size)] = None

        collect()
        if len(texts) >= COUNT:
            break
    return [load(*each) for each in list(texts)[:COUNT]]


def load(text: str, mib: int | None, vcpus: int | None) -> Made:
    """Load a file as the lab does."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "made.yml"
        path.write_text(text)
        try:
            shape = topology.scale(
                catalog.topology(str(path)), memory=None if mib is None else mib * MIB, vcpus=vcpus
            )
        except InputError as error:
            return Made(text, mib, vcpus, None, str(error))
    return Made(text, mib, vcpus, shape, "")


def possible(made: list[Made]) -> Iterator[tuple[Made, Topology]]:
    """Those that were not refused."""
    return ((each, each.shape) for each in made if each.shape)


def test_each_is_refused_with_one_line_or_valid(made: list[Made]) -> None:
    assert len(made) == COUNT
    schema = etree.RelaxNG(etree.parse(SCHEMA))
    wrong = [
        f"{each.refusal!r}\n{each.text}"
        for each in made
        if not each.shape
        and not REFUSED.fullmatch(each.refusal)
        and not SCALING_REFUSED.fullmatch(each.refusal)
    ]
    for each, shape in possible(made):
        assert verification.expected_layout(shape).nodes
        if not schema.validate(etree.fromstring(domain_xml(spec(shape)).encode())):
            wrong.append(f"{schema.error_log.last_error}\n{each}")
    count = len(list(possible(made)))
    print(f"seed {SEED}: {COUNT} topologies, {COUNT - count} refused, {count} valid")
    assert not wrong, f"{len(wrong)} of {COUNT}, seed {SEED}:\n" + "\n".join(wrong)
    assert COUNT // 3 < count < COUNT, "hardly any is possible, or none is refused: this tests nothing"


@pytest.mark.parametrize(
    ("old", "new", "valid"),
    [("", "", True), ("<uuid>6e", "<uuid>xx", False), ('value="21"', 'value="9"', False)],
)
def test_the_schema_is_what_virt_xml_validate_uses(tmp_path: Path, old: str, new: str, valid: bool) -> None:
    """virt-xml-validate itself would take a process for each."""
    text = (GOLDEN / "4socket-tcg.xml").read_text()
    assert old in text
    (tmp_path / "one.xml").write_text(text.replace(old, new))
    done = subprocess.run(
        ["virt-xml-validate", tmp_path / "one.xml", "domain"], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode == 0) == valid
    assert etree.RelaxNG(etree.parse(SCHEMA)).validate(etree.parse(tmp_path / "one.xml")) == valid


def test_qemu_takes_them(made: list[Made], tmp_path: Path) -> None:
    """Started paused: the machine is built, no instruction runs, and no memory is touched."""
    at = hypervisor.connect(None, Deadline.after(60))
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", tmp_path / "root.qcow2", "1M"], check=True, timeout=60
    )
    chosen = list(possible(made))[:STARTS]
    wrong = []
    for each, shape in chosen:
        try:
            start(at, fitted(shape, at, tmp_path))
        except libvirt.libvirtError as error:
            wrong.append(f"{error}\n{each}")
    print(f"seed {SEED}: {len(chosen)} started, {len(wrong)} not")
    assert not wrong, f"{len(wrong)} of {len(chosen)}, seed {SEED}:\n" + "\n".join(wrong)


def fitted(shape: Topology, at: hypervisor.Host, place: Path) -> GuestSpec:
    """A guest without a kernel, and with small disks."""
    given = spec(
        shape,
        name=f"shape-{os.getpid()}",
        boot=Boot(name="none"),
        owner=at.owner(Deadline.after(60)),
        directory=str(place),
    )
    for disk in given.disks[1:]:
        with Path(disk.path).open("w") as file:
            file.truncate(MIB)
    return given.model_copy(update={"uuid": str(uuid.uuid4()), "ssh_port": free_port()})


def start(at: hypervisor.Host, given: GuestSpec) -> None:
    """Start one, paused, and end it; libvirt ends it if this process dies."""
    xml = domain_xml(given)
    flags = libvirt.VIR_DOMAIN_START_PAUSED | libvirt.VIR_DOMAIN_START_AUTODESTROY
    domain: Any = hypervisor.answer(at.uri, lambda: at.connection.createXML(xml, flags), Deadline.after(600))
    hypervisor.answer(at.uri, domain.destroy, Deadline.after(60))


def test_small_ones_boot(made: list[Made], lab_py: Command, tmp_path: Path) -> None:
    small = [
        shape for _, shape in possible(made) if shape.vcpus <= SMALL_VCPUS and shape.memory <= SMALL_MEMORY
    ]
    chosen = random.Random(SEED).sample(small, min(BOOTS, len(small)))
    assert chosen
    wrong = []
    for number, shape in enumerate(chosen):
        path = tmp_path / f"made{number}.yml"
        path.write_text(written(jsonable(shape)))
        done = lab_py("up", "--topology", str(path), "--kernel", "6.1", "--name", "made")
        if done.returncode:
            wrong.append(f"{path.read_text()}\n{done.stderr}")
            shutil.copy(path, tempfile.gettempdir())
        lab_py("down", "--all")
    print(f"seed {SEED}: {len(chosen)} of {len(small)} small ones booted, {len(wrong)} not as they should")
    assert not wrong, f"{len(wrong)} of {len(chosen)}, seed {SEED}:\n" + "\n".join(wrong)
