# SPDX-License-Identifier: GPL-2.0-only
"""Provision a guest with playbooks/provision.yml: sysctls, NUMA balancing knobs, modules, its own kernel in
GRUB.

Not here: making and booting a guest (launch), running Ansible (host.ansible).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pydantic import Field

from numalab.core import checksum, paths, state
from numalab.core.errors import BootHung, GuestError, InputError, LabError
from numalab.core.log import note, step
from numalab.core.process import Deadline
from numalab.guest import guest as guests
from numalab.guest.guest import Guest
from numalab.guest.settings import KNOBS
from numalab.guest.slow_disks import slow_down
from numalab.guest.start import BOOT_TRIES, keep_hang, start
from numalab.host import ansible, image, ssh
from numalab.host.domain import INIT_WORD, ROUTE_WORD
from numalab.kernel import boot as kernel_boot
from numalab.kernel.recipe import Kernel
from numalab.model.case import Setting, SettingName
from numalab.model.guest import BootWay
from numalab.model.values import Value

TUNE = "playbooks/roles/tuning/files/tune.sh"
"""Relative to paths.ROOT."""
SHUTDOWN_SECONDS = 60.0
HOSTNAME = "systemd.hostname="
"""The word on the kernel command line that has a guest's name; the lab's init reads it too."""


class Order(Value):
    """Requested sysctls and knobs: name -> value, as text."""

    sysctls: dict[SettingName, Setting] = Field(default_factory=dict)
    knobs: dict[SettingName, Setting] = Field(default_factory=dict)
    instead: dict[SettingName, dict[SettingName, Setting]] = Field(default_factory=dict)
    """A name in `sysctls` -> what is set instead where the kernel lacks it."""


def pairs(field: str, texts: Sequence[str]) -> dict[str, str]:
    """Parse NAME=VALUE texts; `field` says what they set: sysctl or knob. Raises InputError."""
    settings: dict[str, str] = {}
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
        settings[name] = " ".join(value.split())
    return settings


def apply(guest: Guest, order: Order, deadline: Deadline) -> dict[str, str]:
    """Set what differs, then verify everything by reading it back; returns what is set, knobs included.
    CommandFailed names what was refused.

    One command over SSH, with the script of the role that `tune` plays: Ansible takes a dozen seconds of an
    emulated guest, and would in each boot of an experiment.
    """
    words = [
        f"{'optional' if name in order.instead else 'sysctl'}:{name}={value}"
        for name, value in order.sysctls.items()
    ]
    words += [
        f"instead:{lacked}:{name}={value}"
        for lacked, others in order.instead.items()
        for name, value in others.items()
    ]
    words += [f"knob:{name}={value}" for name, value in order.knobs.items()]
    script = (paths.ROOT / TUNE).read_bytes()
    output = ssh.succeed(guest, ["sh", "-s", "--", *words], deadline=deadline, input=script)
    lacked = {line.split()[1] for line in output.splitlines() if line.startswith("lacks ")}
    settings = {name: value for name, value in order.sysctls.items() if name not in lacked}
    for name in lacked:
        settings |= order.instead[name]
    return settings | order.knobs


@contextmanager
def _changing(guest: Guest, deadline: Deadline) -> Iterator[None]:
    """Hold a guest that still is the one of its record, and that nobody measures."""
    with guests.hold(guest.name, deadline), guests.alone_in(guest):
        guest.check_current()
        yield


def tune(guest: Guest, order: Order, deadline: Deadline) -> ansible.Recap:
    """Do as `apply` does, by a playbook, which tells what it changed."""
    with _changing(guest, deadline):
        return _play(guest, {"tuning_sysctls": order.sysctls, "tuning_knobs": order.knobs}, deadline)


def after_boot(
    guest: Guest, kernel: Kernel, boot: BootWay, deadline: Deadline, *, ssh_port: int | None = None
) -> None:
    """Give a guest that is up what its kernel needs inside: its modules, if it has any, with GRUB the kernel
    itself, and the speed of its disks."""
    if boot is BootWay.GRUB:
        # launch begins the whole guest again.
        own_kernel(guest, kernel, deadline, ssh_port=ssh_port, tries=1)
        return
    with state.temporary() as scratch:
        archive = kernel_boot.modules(kernel, guest.record.spec.boot, Path(scratch))
        if archive:
            release = guest.record.spec.boot.release
            with step("modules installed in the guest", who=guest.name):
                _play(guest, {"bootloader_release": release, **_modules(archive)}, deadline)
    slow_down(guest, deadline)


def own_kernel(
    guest: Guest,
    kernel: Kernel,
    deadline: Deadline,
    *,
    ssh_port: int | None = None,
    tries: int = BOOT_TRIES,
) -> int:
    """Install the guest's kernel in the guest, select it in GRUB and reboot; returns the number of changes.

    A guest that GRUB started already, with nothing changed, is not restarted. A restart that hangs under
    emulation is tried as many times as `tries` says. `ssh_port`: see start.
    """
    with _changing(guest, deadline):
        return _own_kernel(guest, kernel, deadline, ssh_port, tries)


def _own_kernel(guest: Guest, kernel: Kernel, deadline: Deadline, ssh_port: int | None, tries: int) -> int:
    spec = guest.record.spec
    boot = kernel_boot.resolve(kernel, image.pinned(guest.record.image, guest.record.image_id))
    # What GRUB boots is a distribution, with its systemd.
    words = [word for word in spec.boot.cmdline.split() if word not in (INIT_WORD, ROUTE_WORD)]
    # Where the guest began from a ready state, the word has another guest's name.
    words = [HOSTNAME + spec.name if word.startswith(HOSTNAME) else word for word in words]
    with (
        state.temporary() as scratch,
        step("kernel installed in the guest", who=guest.name),
    ):
        archive = kernel_boot.modules(kernel, boot, Path(scratch))
        changed = _play(
            guest,
            {
                "bootloader_release": boot.release,
                "bootloader_kernel": boot.kernel,
                **_modules(archive),
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
        # The lab's init does not hear the power button. sync(2) has written all there is, metadata too.
        grace = 0.0 if INIT_WORD in spec.boot.cmdline.split() else SHUTDOWN_SECONDS

        def stop() -> None:
            guest.host.stop(guest.mark, deadline.within(SHUTDOWN_SECONDS + 30), grace=grace)

        # Everything else of the boot stays, such as its era's environment.
        own = spec.boot.model_copy(
            update={"kernel": None, "initrd": None, "release": boot.release, "cmdline": " ".join(words)}
        )
        fresh = spec.model_copy(update={"boot": own})
        # The current build of that name.
        guest.update(spec=fresh, kernel_hash=kernel_boot.digest(kernel, boot))
        _restart(guest, stop, deadline, ssh_port, tries)
    guest.verify(deadline)
    slow_down(guest, deadline)
    return changed


def _restart(
    guest: Guest, stop: Callable[[], None], deadline: Deadline, ssh_port: int | None, tries: int
) -> None:
    """End a guest by `stop`, and boot it from its own disk until SSH connects."""
    for left in reversed(range(tries)):
        try:
            start(guest, deadline, ssh_port=ssh_port, instead_of=stop)
        except LabError as error:
            if guest.host.running(guest.mark):
                raise
            raise GuestError(
                f"guest {guest.name}: was ended for its own GRUB to start it, and does not start again:"
                f" {error}: its disks are in {guest.directory} until lab.py gc or lab.py down {guest.name}"
                " removes them",
                evidence=error.evidence,
            ) from error
        try:
            guest.reach(deadline)
            return
        except BootHung as error:
            if not left:
                raise
            hung = guest.record.hung + 1
            guest.update(hung=hung)
            note(f"{error}; begun again (the end of its console: {keep_hang(error, guest.name, hung)})")
        # A guest that hangs does not hear the power button.
        stop = partial(guest.host.stop, guest.mark, deadline)


def _modules(archive: Path | None) -> dict[str, object]:
    """The role's variables about a kernel's modules."""
    if archive is None:
        return {}
    return {"bootloader_modules": str(archive), "bootloader_build": checksum.sha256(archive)[:16]}


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
