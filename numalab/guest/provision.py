# SPDX-License-Identifier: GPL-2.0-only
"""Provision a guest with playbooks/provision.yml: sysctls, NUMA balancing knobs, modules, its own kernel in
GRUB.

`up` is launch.up plus what the kernel needs inside the guest: its modules, if it has any, and with GRUB the
kernel itself. Not here: booting a guest (launch), running Ansible (host.ansible).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from numalab.core import state
from numalab.core.errors import InputError
from numalab.core.log import step
from numalab.core.process import Deadline
from numalab.guest import guest as guests
from numalab.guest import launch
from numalab.guest.guest import Guest
from numalab.host import ansible, image, ssh
from numalab.host.hypervisor import Host
from numalab.kernel import boot as kernel_boot
from numalab.model.case import Setting, SettingName
from numalab.model.guest import BootWay, GuestRequest
from numalab.model.values import Value

KNOBS = ("scan_delay_ms", "scan_period_min_ms", "scan_period_max_ms", "scan_size_mb")
"""Settings of automatic NUMA balancing: /sys/kernel/debug/sched/numa_balancing since 5.13, sysctls before."""
SHUTDOWN_SECONDS = 60.0


class Order(Value):
    """Requested sysctls and knobs: name -> value, as text."""

    sysctls: dict[SettingName, Setting] = Field(default_factory=dict)
    knobs: dict[SettingName, Setting] = Field(default_factory=dict)


def pairs(field: str, texts: Sequence[str]) -> dict[str, str]:
    """Parse NAME=VALUE texts; `field` says what they set: sysctl or knob. Raises InputError."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if (
            not equals
            or not re.fullmatch(r"[a-zA-Z0-9_][a-zA-Z0-9_./-]*", name)
            or not re.fullmatch(r"[^\n'\"\\]+", value)
        ):
            raise InputError(f"{field} {text}: is not NAME=VALUE", field=field)
        if field == "knob" and name not in KNOBS:
            raise InputError(f"knob {text}: {name} is none of {', '.join(KNOBS)}", field=field)
        found[name] = " ".join(value.split())
    return found


def tune(guest: Guest, asked: Order, deadline: Deadline) -> ansible.Recap:
    """Set what differs, then verify everything by reading it back. CommandFailed names what was refused."""
    with guests.hold(guest.name, deadline):
        return _play(guest, {"tuning_sysctls": asked.sysctls, "tuning_knobs": asked.knobs}, deadline)


def up(request: GuestRequest, host: Host, deadline: Deadline) -> Guest:
    """launch.up, then modules and boot loader as kernel and request need. On any error, nothing is left."""
    # Before `hold`, which would wait for another lab.py that works on the guest.
    if (state.folder("guests") / request.name).exists():
        raise launch.taken(request.name)
    with guests.hold(request.name, deadline):
        return _up(request, host, deadline)


def _up(request: GuestRequest, host: Host, deadline: Deadline) -> Guest:
    guest = launch.up(request, host, deadline)
    with guests.ending(guest, only_on_error=True):
        if request.boot is BootWay.GRUB:
            own_kernel(guest, deadline, request)
            return guest
        with tempfile.TemporaryDirectory(prefix="numalab-") as scratch:
            archive = kernel_boot.modules(guest.record.spec.boot, Path(scratch))
            if archive:
                with step("modules installed in the guest", who=guest.name):
                    _play(
                        guest,
                        {
                            "bootloader_release": guest.record.spec.boot.release,
                            "bootloader_modules": str(archive),
                        },
                        deadline,
                    )
    return guest


def own_kernel(guest: Guest, deadline: Deadline, request: GuestRequest | None = None) -> int:
    """Install the guest's kernel in the guest, select it in GRUB and reboot; returns the number of changes.

    A guest that GRUB started already, with nothing changed, is not restarted.
    """
    with guests.hold(guest.name, deadline):
        return _own_kernel(guest, deadline, request)


def _own_kernel(guest: Guest, deadline: Deadline, request: GuestRequest | None) -> int:
    spec = guest.record.spec
    boot = kernel_boot.resolve(spec.boot.name, image.pinned(guest.record.image, guest.record.image_id))
    words = spec.boot.cmdline.split()
    with (
        tempfile.TemporaryDirectory(prefix="numalab-") as scratch,
        step("kernel installed in the guest", who=guest.name),
    ):
        archive = kernel_boot.modules(boot, Path(scratch))
        changed = _play(
            guest,
            {
                "bootloader_release": boot.release,
                "bootloader_kernel": boot.kernel,
                "bootloader_modules": str(archive or ""),
                # GRUB adds the root by itself.
                "bootloader_cmdline": " ".join(
                    word for word in words if not word.startswith("root=") and word != "rw"
                ),
            },
            deadline,
        ).changed
    if not changed and spec.boot.kernel is None:
        return 0
    with step("restarted by its own GRUB", who=guest.name):
        ssh.succeed(guest, "sync", deadline=deadline)
        guest.ssh.disconnect(deadline)
        guest.host.stop(guest.mark, deadline.within(SHUTDOWN_SECONDS + 30), grace=SHUTDOWN_SECONDS)
        # Everything else of the boot stays, such as its era's environment.
        own = spec.boot.model_copy(update={"kernel": None, "initrd": None, "release": boot.release})
        fresh = spec.model_copy(update={"boot": own})
        guest.update(spec=fresh, kernel_hash=kernel_boot.digest(boot))  # the current build of that name
        launch.start(
            guest,
            request or GuestRequest(name=spec.name, topology_name=spec.topology_name, shape=spec.topology),
            deadline,
        )
        guest.reach(deadline)
    guest.verify(deadline)
    return changed


def _play(guest: Guest, variables: dict[str, object], deadline: Deadline) -> ansible.Recap:
    """Run playbooks/provision.yml on one guest."""
    inventory = ansible.write_inventory([guest.ssh], guest.directory / "inventory.yml")
    log = state.folder("logs") / f"provision-{guest.name}.log"
    return ansible.playbook(
        "provision.yml",
        inventories=[inventory],
        limit=guest.name,
        variables=variables,
        deadline=deadline,
        log=log,
        watch=guest.watch,
    )
