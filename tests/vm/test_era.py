# SPDX-License-Identifier: GPL-2.0-only
"""An old tree, built in a container by its compiler, and booted; and a kernel that hangs without output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from numalab.core import state
from numalab.core.errors import InputError
from numalab.core.process import Deadline
from numalab.host import ssh
from numalab.kernel import build, kconfig, recipe
from numalab.kernel import era as kernel_era
from numalab.model import catalog, topology
from numalab.pytest_plugin import Lab
from tests.vm.conftest import Command

FIVE_TEN = pytest.mark.xdist_group("5.10")
"""Both wait for one build, on one worker: the other has the rest meanwhile."""
SMALL = topology.scale(catalog.topology("2socket"), memory=1 << 30, vcpus=2).model_copy(update={"disks": ()})


@FIVE_TEN
@pytest.mark.minutes(60)
def test_5_10_from_bullseye(lab: Lab, deadline: Deadline) -> None:
    """Source package, container and era; automatic NUMA balancing with the sysctls before 5.13."""
    kernel = recipe.load("5.10")
    built = build.build(kernel, None, Deadline.after(40 * 60))
    assert built.compiler.startswith("gcc (Debian 10.2.1")
    assert build.build(kernel, None, Deadline.after(60)) == built
    inside = state.directory() / "containers" / kernel_era.container("bullseye").id("bullseye")
    assert not any(
        path.is_mount() for path in (inside / "proc", inside / "dev", Path(f"{inside}{state.directory()}"))
    ), "a mount outlived the build"
    with lab.up(SMALL, "2socket", deadline, kernel="5.10") as guest:

        def said(command: str) -> str:
            return ssh.succeed(guest, command, deadline=Deadline.after(120))

        assert said("uname -r").strip() == built.release
        assert f"{built.key}@numalab) (gcc (Debian 10.2.1" in said("cat /proc/version")
        _, lost = kernel_era.forgiven(
            kernel.era, kconfig.lost(recipe.fragments(kernel), said("zcat /proc/config.gz"))
        )
        assert lost == []
        assert int(said("cat /proc/sys/kernel/numa_balancing_scan_size_mb")) > 0
        said(
            "truncate -s 1G /x && mkfs.xfs -q -f ${LAB_MKFS_XFS:-} /x && mount -o loop /x /mnt && umount /mnt"
        )


@FIVE_TEN
@pytest.mark.minutes(50)
def test_a_git_source_made_from_the_package(tmp_path: Path) -> None:
    """The part of the tree that configuring needs, committed: its configuration is the package's."""
    built = build.build(recipe.load("5.10"), None, Deadline.after(40 * 60))
    place = tmp_path / "linux"
    place.mkdir()
    parts = (
        r"find . \( -name 'Kconfig*' -o -path './scripts/*' -o -path './arch/x86/*Makefile*' -o -path"
        r" ./Makefile -o -path './include/linux/*' \) -type f"
    )
    subprocess.run(
        f"cd {state.folder('sources')}/{built.source} && {parts} -print0 | tar -c --null -T - | tar -xC"
        f" {place}",
        shell=True,
        check=True,
    )
    # The same commit each time, so that the state directory gets only one such source.
    fixed = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "x"), ("EMAIL", "x@x"), ("DATE", "1970-01-02T00:00Z"))
    }

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", place, *words],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, **fixed},
        ).stdout.strip()

    git("init", "-q")
    git("add", "-Af")
    git("commit", "-qm", "from the package")
    git("tag", "v5.10")
    path = tmp_path / "mine.yml"
    path.write_text(
        f"description: d\nsource: {{git: {{url: {place}, rev: v5.10, commit: {git('rev-parse', 'HEAD')}}}}}\n"
        'config: [base, "5.10"]\nera: bullseye\n'
    )
    asked = build.make_plan(recipe.load(str(path)), None, Deadline.after(300), fetch=True)
    assert asked is not None
    assert asked.tree.series == "5.10"
    assert kconfig.options(build.configure(asked, Deadline.after(300))) == kconfig.options(
        built.file("config").read_text()
    )
    git("commit", "-q", "--allow-empty", "-m", "another")
    git("tag", "-f", "v5.10")
    with pytest.raises(InputError, match="was the tag moved"):
        build.make_plan(recipe.load(str(path)), None, Deadline.after(60), fetch=True)


def test_a_silent_boot(lab_py: Command, tmp_path: Path) -> None:
    """A kernel whose first instruction after the boot sector halts for ever: no output, no processor time."""
    vmlinuz = next((lab_py.state / "images").glob("*/*/vmlinuz"))
    image = bytearray(vmlinuz.read_bytes())
    start = (image[0x1F1] + 1) * 512  # setup_sects: Documentation/arch/x86/boot.rst
    cli, hlt, again = 0xFA, 0xF4, (0xEB, 0xFD)
    image[start : start + 4] = bytes((cli, hlt, *again))
    (tmp_path / "bzImage").write_bytes(image)
    (tmp_path / "hangs.yml").write_text(
        f"description: hangs\nsource: {{prebuilt: {{bzimage: {tmp_path}/bzImage}}}}\n"
    )
    done = lab_py(
        "up",
        "-t",
        "uma-2g",
        "--memory",
        "512M",
        "--vcpus",
        "1",
        "--accel",
        "tcg",
        "--kernel",
        f"{tmp_path}/hangs.yml",
        "--timeout",
        "40",
    )
    assert done.returncode == 2
    assert "its kernel printed nothing and used only" in done.stderr
    assert "-Wa,-mshared" in done.stderr
    assert not lab_py.left()
