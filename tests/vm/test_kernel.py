# SPDX-License-Identifier: GPL-2.0-only
"""Kernels built here and booted: the requested one runs, is provisioned once, and shows a patch's effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from numalab.core.errors import CommandFailed, GuestError
from numalab.core.process import Deadline
from numalab.guest import provision
from numalab.guest.guest import Guest
from numalab.host import ssh
from numalab.kernel import build, compiled, kconfig, recipe
from numalab.model import catalog, topology
from numalab.pytest_plugin import Lab

SMALL = topology.scale(catalog.topology("uma-2g"), memory=512 << 20, vcpus=1)
ORDER = provision.Order(
    sysctls={"kernel.numa_balancing": "0", "vm.watermark_scale_factor": "1000"},
    knobs={
        "scan_delay_ms": "100",
        "scan_period_min_ms": "100",
        "scan_period_max_ms": "5000",
        "scan_size_mb": "256",
    },
)


def built(name: str) -> build.Built:
    """A kernel; the first of a series takes minutes."""
    return build.build(recipe.load(name), None, Deadline.after(40 * 60))


def printed(guest: Guest, command: str) -> str:
    return ssh.succeed(guest, command, deadline=Deadline.after(120))


@pytest.mark.minutes(60)
def test_the_files_of_a_first_build_are_as_measured() -> None:
    """What a lab without kernels shows as the total. Only where this one was built in a fresh tree."""
    kernel = built("6.1")
    options = compiled.options(kernel.file("config").read_text())
    files = compiled.files(kernel.file("build.log").read_bytes())
    measured, of = compiled.MEASURED["6.1"]
    assert files < options or files / options == pytest.approx(measured / of, rel=0.05)


@pytest.mark.minutes(60)
def test_the_lean_kernel_and_a_guest_in_order(lab: Lab, deadline: Deadline) -> None:
    expected = built("6.1")
    with lab.up(SMALL, "uma-2g", deadline, kernel="6.1") as guest:
        assert printed(guest, "uname -r").strip() == expected.release
        assert expected.key in printed(guest, "cat /proc/version")
        assert (
            kconfig.lost(
                recipe.fragments(recipe.load("6.1")),
                printed(guest, "zcat /proc/config.gz"),
            )
            == []
        )
        assert printed(guest, "lsmod").count("\n") == 1, "a module was loaded"

        assert provision.tune(guest, ORDER, deadline).changed == 1
        assert provision.tune(guest, ORDER, deadline).changed == 0
        assert printed(
            guest, "cat /proc/sys/kernel/numa_balancing /sys/kernel/debug/sched/numa_balancing/scan_size_mb"
        ).split() == ["0", "256"]
        for way in (provision.tune, provision.apply):
            with pytest.raises(CommandFailed, match=r"sysctl vm\.swappiness: 1000 is refused"):
                way(guest, provision.Order(sysctls={"vm.swappiness": "1000"}), deadline)
        provision.apply(guest, provision.Order(knobs={"scan_size_mb": "128"}), deadline)
        assert printed(guest, "cat /sys/kernel/debug/sched/numa_balancing/scan_size_mb") == "128\n"

        assert provision.own_kernel(guest, recipe.load(guest.record.spec.boot.name), deadline) > 0
        assert printed(guest, "uname -r").strip() == expected.release
        assert "BOOT_IMAGE=/boot/vmlinuz" in printed(guest, "cat /proc/cmdline")
        assert provision.own_kernel(guest, recipe.load(guest.record.spec.boot.name), deadline) == 0

        boot = guest.record.spec.boot.model_copy(update={"release": "6.1.0-another"})
        guest.record = guest.record.model_copy(
            update={"spec": guest.record.spec.model_copy(update={"boot": boot})}
        )
        with pytest.raises(GuestError, match=f"runs kernel {expected.release}, but 6.1 is 6.1.0-another"):
            guest.verify(deadline)


@pytest.mark.minutes(60)
def test_modules_that_depmod_has_not_seen(lab: Lab, deadline: Deadline, tmp_path: Path) -> None:
    """modprobe finds them, by direct boot and by GRUB, and a second run changes nothing."""
    expected = built("6.1")
    (tmp_path / "modules/kernel").mkdir(parents=True)
    for name in ("modules.order", "modules.builtin"):
        (tmp_path / "modules" / name).touch()
    path = tmp_path / "mine.yml"
    path.write_text(
        f"description: d\nsource: {{prebuilt: {{bzimage: {expected.file('bzImage')}, modules:"
        f" {tmp_path}/modules}}}}\n"
    )
    with lab.up(SMALL, "uma-2g", deadline, kernel=str(path)) as guest:
        assert "modules.dep.bin" in printed(guest, "ls /lib/modules/$(uname -r)")
        assert provision.own_kernel(guest, recipe.load(guest.record.spec.boot.name), deadline) > 0
        assert provision.own_kernel(guest, recipe.load(guest.record.spec.boot.name), deadline) == 0


@pytest.mark.minutes(40)
def test_fairzone_counts(lab: Lab, deadline: Deadline) -> None:
    built("6.1-fairzone-before")
    with lab.up(SMALL, "uma-2g", deadline, kernel="6.1-fairzone-before") as guest:
        before, after = (
            {line.split()[0]: int(line.split()[1]) for line in text.splitlines()}
            for text in (
                printed(guest, "cat /proc/vmstat"),
                printed(guest, "cat /dev/vda > /dev/null & sleep 5; kill $!; cat /proc/vmstat"),
            )
        )
        new = {counter for counter in after if counter.startswith("fairzone_")}
        assert new == {
            f"fairzone_{name}"
            for name in ("scanned", "remote", "depleted", "unfair_scanned", "reset", "zones_reset")
        }
        assert after["fairzone_scanned"] > before["fairzone_scanned"]
        assert after["fairzone_reset"] > before["fairzone_reset"]
        assert after["fairzone_remote"] == 0, "there is but one node"
