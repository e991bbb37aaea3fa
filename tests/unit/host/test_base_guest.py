# SPDX-License-Identifier: GPL-2.0-only
"""A base that the lab boots itself, with programs that stand for QEMU and SSH."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from numalab.core.errors import BootHung, CommandFailed, DeadlinePassed, HostError
from numalab.core.process import Deadline
from numalab.host import ansible, base_guest, console
from tests.unit.makers import Written

Program = Callable[[str, str], Path]


@pytest.fixture
def played(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, Mapping[str, object]]]:
    """A guest that runs until `systemctl poweroff`; returns the plays that were run in it."""
    off, plays = tmp_path / "off", []
    program("setpriv", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    program("qemu-img", f'echo "$@" > {tmp_path}/qemu-img; touch "$5"')
    program(
        "qemu-system-x86_64",
        f'echo "$@" > {tmp_path}/qemu; while [ ! -e {off} ]; do sleep 0.05; done',
    )
    program("ssh-keyscan", 'echo "[127.0.0.1]:1 ssh-ed25519 AAAA"')
    program("ssh", f'case "$*" in *"systemctl poweroff"*) touch {off};; esac')

    def play(name: str, *, variables: Mapping[str, object], inventories: Any, limit: str, **_: Any) -> None:
        assert f"{limit}:" in inventories[0].read_text()
        plays.append((name, variables))

    monkeypatch.setattr(ansible, "playbook", play)
    monkeypatch.setattr(base_guest, "POLL_SECONDS", 0.05)
    return plays


def provision(tmp_path: Path, deadline: Deadline, **change: Any) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words: dict[str, Any] = {
        "name": "debian12",
        "base": tmp_path / "base.qcow2",
        "disk": scratch / "disk.qcow2",
        "boot": [["-append", "root=x"]],
        "accelerator": "tcg",
        "cpu": "Nehalem",
        "key": tmp_path / "key",
        "playbook": "guest.yml",
        "variables": {"guest_out": str(scratch)},
        "seed": None,
        "scratch": scratch,
        "log": tmp_path / "qemu.log",
        "deadline": deadline,
    }
    base_guest.provision(**{**words, **change})


def test_the_base_is_booted_and_provisioned(
    tmp_path: Path, played: list[tuple[str, Mapping[str, object]]], deadline: Deadline
) -> None:
    provision(tmp_path, deadline)
    scratch = tmp_path / "scratch"
    assert played == [("guest.yml", {"guest_out": str(scratch)})]
    assert (tmp_path / "qemu-img").read_text().split()[-2:] == [
        str(tmp_path / "base.qcow2"),
        str(scratch / "disk.qcow2"),
    ]
    qemu = (tmp_path / "qemu").read_text()
    assert f"file={scratch}/disk.qcow2,if=virtio" in qemu
    assert "pc,accel=tcg -cpu Nehalem" in qemu
    assert "-append root=x" in qemu
    assert [path.name for path in scratch.iterdir()] == ["disk.qcow2"], "nothing else goes into the image"


def test_cloud_init_gets_its_seed(tmp_path: Path, played: list[object], deadline: Deadline) -> None:
    """At the address that stands in Packer's template, as the guest sees this host."""
    seed = tmp_path / "seed"
    seed.mkdir()
    boot = [["-smbios", f"s=http://{base_guest.HTTP_ADDRESS}/"]]
    provision(tmp_path, deadline, boot=boot, seed=seed)
    assert f"-smbios s=http://{base_guest.HOST}:" in (tmp_path / "qemu").read_text()
    assert "{{" not in (tmp_path / "qemu").read_text()


def test_the_seed_is_served(tmp_path: Path) -> None:
    (tmp_path / "user-data").write_text("#cloud-config\n")
    with base_guest._served(tmp_path) as address:
        here = address.replace(base_guest.HOST, "127.0.0.1")
        assert urllib.request.urlopen(f"http://{here}/user-data").read() == b"#cloud-config\n"


def test_qemu_that_fails(tmp_path: Path, played: list[object], program: Program, deadline: Deadline) -> None:
    program("qemu-system-x86_64", "exit 1")
    program("ssh-keyscan", "exit 1")
    with pytest.raises(CommandFailed, match="qemu-system-x86_64"):
        provision(tmp_path, deadline)
    assert not played


def test_a_base_that_switches_itself_off(
    tmp_path: Path, played: list[object], program: Program, deadline: Deadline
) -> None:
    program("qemu-system-x86_64", "exit 0")
    program("ssh-keyscan", "exit 1")
    with pytest.raises(HostError, match="image debian12: the base switched itself off"):
        provision(tmp_path, deadline)


@pytest.mark.parametrize("scan", ["exit 1", "exec sleep 600"], ids=["refused", "silent"])
def test_a_base_that_never_answers(scan: str, tmp_path: Path, played: list[object], program: Program) -> None:
    """QEMU is ended with the wait, which is named, wherever the time limit passes."""
    program("qemu-system-x86_64", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    program("ssh-keyscan", f"until test -s {tmp_path}/pid; do sleep 0.2; done; {scan}")
    with pytest.raises(DeadlinePassed, match="waiting for the base to be reached by SSH"):
        provision(tmp_path, Written.to(tmp_path / "pid"))
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("phase", ["boot", "playbook"])
def test_a_guest_that_hangs(
    phase: str,
    tmp_path: Path,
    played: list[object],
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    deadline: Deadline,
) -> None:
    """Is the error, and not what SSH or Ansible say of it."""
    log = tmp_path / "console"
    hang = "INFO: task dpkg:12 blocked for more than 362 seconds.\n"

    def play(*_: Any, watch: Callable[[], None], **__: Any) -> None:
        log.write_text("INFO: task dpkg:12 blocked for more than 120 seconds.\n")
        watch()  # a slow disk is no hang
        with log.open("a") as file:
            file.write(hang)
        watch()
        raise AssertionError("not reached")

    monkeypatch.setattr(ansible, "playbook", play)
    if phase == "boot":
        program("ssh-keyscan", "exit 1")
        log.write_text(hang)
    with pytest.raises(BootHung, match="its task dpkg:12 waits for more than 362 s"):
        provision(tmp_path, deadline, watch=lambda: console.check_stuck(log))
