# SPDX-License-Identifier: GPL-2.0-only
"""Run by root, with a state directory that libvirt's user may enter: QEMU runs as that user."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from numalab.core import state
from numalab.core.process import Deadline
from numalab.host import image
from numalab.host.qemu_user import OPENED
from numalab.kernel import boot, recipe
from tests.vm.conftest import Command

LEAN = (
    "--topology",
    "fakenuma",
    "--memory",
    "512M",
    "--vcpus",
    "1",
    "--disk",
    "500TB=1G",
    "--kernel",
    "6.1",
    "--name",
    "one",
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="QEMU is the user's own where that is not root")


@pytest.fixture
def lab_py() -> Iterator[Command]:
    """lab.py with copies of image and kernel in an open state directory; pytest's folders are closed."""
    place = Path(tempfile.mkdtemp(prefix="numalab-", dir="/var/tmp"))
    place.chmod(0o711)
    used = image.require("debian12", Deadline.after(60))
    shutil.copytree(state.folder("ssh"), place / "ssh")
    for folder in (Path(used.directory), Path(boot.resolve(recipe.load("6.1"), used).kernel or "").parent):
        shutil.copytree(folder, place / folder.relative_to(state.directory()))
    (place / "downloads").symlink_to(state.folder("downloads"))
    (place / "cache").symlink_to(state.folder("cache"))
    command = Command(place)
    try:
        yield command
        command("down", "--all")
        command("gc")
    finally:
        shutil.rmtree(place)


def qemu_uids(place: Path) -> list[int]:
    """The uids of the QEMU processes with files in a state directory: real, effective, saved, file system."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (
                "qemu-system" in (path / "cmdline").read_text()
                and f"{place}/guests" in (path / "cmdline").read_text()
            ):
                lines = (path / "status").read_text().splitlines()
                return [int(uid) for line in lines if line.startswith("Uid:") for uid in line.split()[1:]]
        except OSError:
            continue
    return []


def test_qemu_is_not_root(lab_py: Command, tmp_path: Path) -> None:
    uid = pwd.getpwnam("libvirt-qemu").pw_uid
    assert "QEMU user" in (told := lab_py("doctor").stdout)
    assert f"libvirt-qemu: it may enter {lab_py.state}" in told
    result = lab_py("up", *LEAN)
    assert result.returncode == 0, result.stderr
    assert qemu_uids(lab_py.state) == [uid] * 4
    assert "QEMU user     libvirt-qemu" in lab_py("status", "one").stdout

    assert "Linux version" in lab_py("console", "one", "--log").stdout
    (tmp_path / "to").write_text("there and back")
    assert lab_py("put", "one", str(tmp_path / "to"), "/root/to").returncode == 0
    script = "cat /root/to; dd if=/root/to of=/dev/disk/by-id/virtio-500TB oflag=sync"
    assert lab_py("exec", "one", "--", "sh", "-c", script).stdout == "there and back"
    # QEMU writes the guest's console to a file that belongs to its user.
    assert lab_py("exec", "one", "--", "sh", "-c", "echo from the guest >/dev/kmsg").returncode == 0
    assert "from the guest" in lab_py("console", "one", "--log").stdout

    top = [path for path in lab_py.state.iterdir() if not path.is_symlink()]
    assert not [path for path in top if path.stat().st_mode & 0o007], "the world sees nothing of it"
    assert not [path for path in top if path.name not in OPENED and path.stat().st_mode & 0o077]

    assert lab_py("down", "one").returncode == 0
    assert not lab_py.left()


def test_a_state_directory_that_is_closed(lab_py: Command) -> None:
    lab_py.state.chmod(0o700)
    result = lab_py("up", *LEAN)
    assert result.returncode == 0, result.stderr
    assert qemu_uids(lab_py.state) == [0] * 4
    assert f"root: libvirt-qemu may not enter {lab_py.state}" in lab_py("doctor").stdout
    assert "QEMU user     root" in lab_py("status", "one").stdout
    assert lab_py("down", "one").returncode == 0
    assert not lab_py.left()
