"""A tree of another time, built in a container by the compiler of its time, booted."""

from __future__ import annotations

from pathlib import Path

import pytest

from numalab import catalog, eras, kconfig, kernelbuild, recipes, shell, state, topology
from numalab.plugin import Lab
from numalab.proc import Deadline

SMALL = topology.scale(catalog.topology("2socket"), memory=1 << 30, vcpus=2).model_copy(update={"disks": ()})


@pytest.mark.minutes(60)
def test_5_10_from_bullseye(lab: Lab, deadline: Deadline) -> None:
    """Source package, container and era; automatic NUMA balancing with the sysctls of before 5.13."""
    about = recipes.recipe("5.10")
    built = kernelbuild.build("5.10", None, Deadline.after(40 * 60))
    assert built.compiler.startswith("gcc (Debian 10.2.1")
    assert kernelbuild.build("5.10", None, Deadline.after(60)) == built
    inside = state.directory() / "containers" / eras.container("bullseye").id("bullseye")
    assert not any(path.is_mount() for path in (inside / "proc", inside / "dev", Path(f"{inside}{state.directory()}"))), "a mount outlived the build"
    with lab.up(SMALL, "2socket", deadline, kernel="5.10") as guest:
        def said(command: str) -> str:
            return shell.succeed(guest, command, deadline=Deadline.after(120))

        assert said("uname -r").strip() == built.release
        assert f"{built.key}@numalab) (gcc (Debian 10.2.1" in said("cat /proc/version")
        era = recipes.era_of(about)
        _, lost = eras.forgiven(era, kconfig.lost(recipes.fragments(about, "5.10"), said("zcat /proc/config.gz")))
        assert lost == []
        assert int(said("cat /proc/sys/kernel/numa_balancing_scan_size_mb")) > 0
        said("truncate -s 1G /x && mkfs.xfs -q -f ${LAB_MKFS_XFS:-} /x && mount -o loop /x /mnt && umount /mnt")
