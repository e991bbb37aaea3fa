# SPDX-License-Identifier: GPL-2.0-only
"""Starting a guest's domain: admission by free memory and CPUs, one at a time, on a free SSH port.

Not here: what comes before and after (launch), a restart by the guest's own GRUB (provision).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from numalab.core import state
from numalab.core.errors import BootHung, HostError, InputError, NoRoom
from numalab.core.log import note, step
from numalab.core.process import Deadline
from numalab.guest.guest import Guest
from numalab.host import machine, qemu_user
from numalab.host.domain import domain_xml
from numalab.host.hypervisor import Host
from numalab.host.remote import free_port
from numalab.model import binding, topology
from numalab.model.topology import Topology
from numalab.model.units import MIB, show_size
from numalab.model.values import Accel, Clock

BOOT_TRIES = 3
"""How often a boot that hangs under emulation is begun."""
PORT_TRIES = 3


def start(
    guest: Guest,
    deadline: Deadline,
    *,
    ssh_port: int | None = None,
    pin: str | None = None,
    create: Callable[[str], None] | None = None,
    instead_of: Callable[[], None] | None = None,
) -> None:
    """Create the domain. One at a time on the host, so that no two guests count the same free memory.

    `pin` (binding.Pin) chooses the host's nodes and CPUs for it; None leaves those of its record.
    `create` starts the domain of an XML in another way than by booting it (ready).
    `instead_of` ends the domain that this one replaces: nobody else may take its memory in between.

    With `ssh_port` the record's port must be free; otherwise another one is taken if it is not.
    """
    where = guest.host.where
    for path in qemu_user.written(guest.record.spec):
        where.touch(path, deadline)  # before libvirt's log daemon creates the console log as root
    qemu_user.hand_over(guest.record.spec, guest.host)
    with state.machine_lock("admission", deadline), step("start", who=guest.name):
        if instead_of:
            instead_of()
        if ssh_port and not where.ssh and not _port_free(ssh_port):
            raise InputError(
                f"ssh port {ssh_port}: the port is taken; choose another or leave it out",
                field="ssh_port",
            )
        _place(guest, pin, deadline)
        for tries in range(PORT_TRIES):
            xml = domain_xml(guest.record.spec)
            (guest.directory / "domain.xml").write_text(xml)
            try:
                if create:
                    create(xml)
                else:
                    guest.host.create(xml, deadline)
                return
            except HostError as error:
                # Another process may take the port between our check and QEMU's bind.
                port_taken = "host forwarding rule" in error.evidence
                if not port_taken or ssh_port or tries == PORT_TRIES - 1:
                    raise
            spec = guest.record.spec.model_copy(update={"ssh_port": free_port(where)})
            guest.update(spec=spec)


def keep_hang(error: BootHung, name: str, number: int) -> Path:
    """Write the end of a hung boot's console to a log, and return its path. `number`: from 1."""
    kept = state.folder("logs") / f"hung-{state.stamp()}-{name}-{number}.log"
    with contextlib.suppress(OSError):
        kept.write_text(f"{error.evidence}\n{error}\n")
    return kept


def _place(guest: Guest, pin: str | None, deadline: Deadline) -> None:
    """Choose the guest's parts of the host, and see that it has the memory. Under the lock, since other
    guests' CPUs and pages are left alone. Raises InputError, HostError."""
    spec, where = guest.record.spec, guest.host.where
    pin = pin or binding.OFF
    if pin == binding.AUTO and (
        spec.accel is Accel.TCG or not all(node.memory for node in spec.topology.nodes)
    ):
        pin = binding.OFF  # emulated, its times are no evidence
    if pin != binding.OFF and spec.clock is Clock.VIRTUAL:
        raise InputError("pin: on the virtual clock all vCPUs are one thread of the host's", field="pin")
    nodes = machine.host_nodes(where, deadline) if pin != binding.OFF or spec.huge_page else []
    if pin != binding.OFF:
        taken = guest.host.pinned_cpus(deadline)
        try:
            bound = binding.bind(spec.topology, nodes, pin, taken, spec.huge_page)
            guest.update(spec=spec.model_copy(update={"binding": bound}))
        except ValueError as error:
            if pin != binding.AUTO:
                raise InputError(f"pin {pin}: {error}", field="pin") from error
            note(f"its vCPUs and memory are not bound to the host's: {error}", who=guest.name)
    elif spec.binding and (lost := guest.host.pinned_cpus(deadline) & {*spec.binding.vcpus}):
        numbers = ", ".join(map(str, sorted(lost)))
        raise HostError(
            f"its CPUs of the host were bound to another guest while it was down ({numbers}): lab.py down"
            f" {guest.name}, and bring it up anew"
        )
    if not spec.huge_page:
        admit(spec.topology, guest.host, deadline)
        return
    try:
        binding.check_huge_pages(spec.topology, nodes, spec.huge_page, guest.record.spec.binding)
    except ValueError as error:
        raise HostError(f"huge pages of {guest.host.where.ssh or 'this machine'}: {error}") from error


def admit(requested: Topology, host: Host, deadline: Deadline) -> None:
    """NoRoom when the host lacks memory for this topology; names the largest of its shape that fits."""
    free = host.free_memory(deadline)
    if requested.memory > free:
        fits = topology.largest(requested, free)
        most = (
            f"{fits.memory // MIB}M is the largest of this shape that fits"
            if fits
            else "not even the smallest of this shape fits"
        )
        raise NoRoom(
            f"{show_size(requested.memory)} of memory requested, {free // MIB}MiB free on the host: {most}",
            field="memory" if fits else "",
        )


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
