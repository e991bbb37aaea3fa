# SPDX-License-Identifier: GPL-2.0-only
"""Disks of a certain speed (Disk.mibs_per_second) on the virtual clock.

On the host's clock QEMU holds a slow disk back, as a device would be slow (host.domain). It has no other
clock for that (block/throttle-groups.c): to a guest on the virtual one, such a disk is faster the busier the
host is. There the guest's own kernel holds a virtio disk back: blk-throttle, through the root group of the
first version of control groups, since the second has no limits for its root.

That is above the queue of requests, and of a USB stick the queue is what matters: who writes waits until one
of its two requests is free, and meanwhile pages stay dirty. So a stick is slow by its controller, EHCI, whose
QEMU model looks for work by a timer of the guest's clock (hcd-ehci.c): a request takes about a millisecond,
for its three transfers, and its size decides how much that comes to.
"""

from __future__ import annotations

from collections.abc import Sequence

from numalab.core import paths
from numalab.core.errors import InputError
from numalab.core.log import step
from numalab.core.process import Deadline
from numalab.guest.guest import Guest
from numalab.host import ssh
from numalab.model.guest import DiskFile
from numalab.model.topology import Bus, Disk
from numalab.model.units import MIB
from numalab.model.values import Clock

USB_MIBS = range(4, 121)
"""A stick's speeds: about a thousand requests a second, of a page to 120 KiB, usb-storage's largest."""
PAGE_KIB = 4


def check(disks: Sequence[Disk], clock: Clock) -> None:
    """InputError for a speed that a disk cannot have on this clock."""
    for disk in disks:
        speed = disk.mibs_per_second
        if clock is Clock.VIRTUAL and disk.bus is Bus.USB and speed and speed not in USB_MIBS:
            raise InputError(
                f"disk {disk.name}: mibs_per_second of a USB disk is {USB_MIBS.start} to {USB_MIBS.stop - 1}"
                f" on the virtual clock, not {speed}: choose another speed, or the host's clock",
                field="mibs_per_second",
            )


def timed(disks: Sequence[DiskFile], clock: Clock) -> tuple[DiskFile, ...]:
    """The disks with the clock by which their speeds are kept: the guest's."""
    return tuple(
        disk.model_copy(update={"speed_clock": clock}) if disk.mibs_per_second else disk for disk in disks
    )


def slow_down(guest: Guest, deadline: Deadline) -> None:
    """Give a guest's disks their speeds, in each boot anew. CommandFailed names what is wrong."""
    if words := settings(guest.record.spec.disks):
        with step("disks slowed down", who=guest.name):
            script = paths.SLOW_DISKS.read_bytes()
            ssh.succeed(guest, ["sh", "-s", "--", *words], deadline=deadline, input=script)


def settings(disks: Sequence[DiskFile]) -> list[str]:
    """What the guest's kernel is to set, as words for slow_disks.sh."""
    return [
        f"request_kib:{disk.serial}:{speed // PAGE_KIB * PAGE_KIB}"
        if disk.bus is Bus.USB
        else f"bytes_per_second:{disk.serial}:{speed * MIB}"
        for disk in disks
        if (speed := disk.mibs_per_second) and disk.speed_clock is Clock.VIRTUAL
    ]
