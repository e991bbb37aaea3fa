# SPDX-License-Identifier: GPL-2.0-only
"""A guest on another hypervisor, which is this machine, reached only by SSH."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from numalab.host.hypervisor import default_uri
from tests.vm.conftest import Command


@dataclass
class Remote(Command):
    """lab.py with an ssh on its PATH that knows the test's server."""

    path: str = ""

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "PATH": f"{self.path}:{os.environ['PATH']}"}


@pytest.fixture
def uri(lab_py: Command, tmp_path: Path) -> Iterator[str]:
    """The URI of an SSH server that runs commands here; its client configuration is in tmp_path/bin."""
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", ""]
    for name in ("host", "user"):
        subprocess.run([*keygen, "-f", tmp_path / name], check=True)
    config = tmp_path / "config"
    config.write_text(
        f"Host 127.0.0.1\n IdentityFile {tmp_path}/user\n StrictHostKeyChecking no\n UserKnownHostsFile"
        " /dev/null\n LogLevel ERROR\n"
    )
    (tmp_path / "bin").mkdir()
    for program in ("ssh", "scp"):
        shim = tmp_path / "bin" / program
        real = shlex.quote(f"/usr/bin/{program}")
        shim.write_text(
            f'#!/bin/sh\ncase " $* " in *" -F none "*) exec {real} "$@";; esac\nexec {real} -F'
            f' {shlex.quote(str(config))} "$@"\n'
        )
        shim.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("sshd.py"), tmp_path / "host", tmp_path / "user.pub"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        yield f"qemu+ssh://root@127.0.0.1:{int(server.stdout.readline())}{default_uri().removeprefix('qemu://')}"
    finally:
        server.kill()
        server.wait()


def test_guest_on_a_hypervisor_over_ssh(lab_py: Command, uri: str, tmp_path: Path) -> None:
    remote = Remote(state=lab_py.state, path=str(tmp_path / "bin"))
    result = remote(
        "up",
        "--topology",
        "uma-2g",
        "--memory",
        "512M",
        "--vcpus",
        "1",
        "--name",
        "far",
        "--disk",
        "500TB=500T",
        "--connect",
        uri,
    )
    assert result.returncode == 0, result.stderr
    try:
        assert "far" in remote("list").stdout
        told = remote("exec", "far", "--", "sh", "-c", "echo there; exit 7")
        assert (told.returncode, told.stdout) == (7, "there\n")
        assert "Linux version" in remote("console", "far", "--log").stdout
        collected = remote("gc", "--connect", uri)
        assert collected.returncode == 0, collected.stderr
        # A machine may have an earlier build of the image, too.
        lines = [line for line in collected.stdout.splitlines() if not line.startswith("image ")]
        assert lines in ([], ["nothing to remove"])
    finally:
        down = remote("down", "far")
    assert down.returncode == 0, down.stderr
    assert not lab_py.left()


def test_unreachable_hypervisor(lab_py: Command) -> None:
    result = lab_py("up", "--topology", "uma-2g", "--connect", "qemu+ssh://root@127.0.0.1:1/system")
    assert result.returncode == 2
    assert "libvirt at qemu+ssh://root@127.0.0.1:1/system" in result.stderr
    assert "Traceback" not in result.stderr
    assert not lab_py.left()


def test_transport_that_carries_no_files(lab_py: Command) -> None:
    result = lab_py("up", "--topology", "uma-2g", "--connect", "qemu+tcp://127.0.0.1:1/system")
    assert result.returncode == 2
    assert "guests' disks are made over SSH: use qemu+ssh://127.0.0.1:1/system" in result.stderr
    assert not lab_py.left()
