# SPDX-License-Identifier: GPL-2.0-only
"""Three hypervisors on this machine: each a network, PID, mount and host name space with an sshd, a libvirtd
and a state directory of its own. The root file system is shared."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import distributed
import pytest

from numalab.core.paths import ROOT
from numalab.pool import cluster
from numalab.pool import night as nights
from tests.vm.conftest import until

BEGIN = """
set -e
mount -t tmpfs tmpfs /run
mkdir -m 755 /run/sshd /run/libvirt
for place in /var/lib/libvirt /var/cache/libvirt /var/log/libvirt; do
    mount -t tmpfs -o mode=755 tmpfs $place
done
mkdir -p /var/lib/libvirt/qemu /var/log/libvirt/qemu
chown libvirt-qemu: /var/lib/libvirt/qemu
mount --bind "$1/machine-id" /etc/machine-id
hostname "$2"
exec /usr/sbin/sshd -D -e -f "$1/sshd_config"
"""


@dataclass
class Machine:
    """A hypervisor: its name is that of its network name space, and of our end of its link."""

    number: int
    place: Path
    init: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"fleet{self.number}-{os.getpid() % 100000}"

    @property
    def address(self) -> str:
        return f"{self.net}.2"

    @property
    def net(self) -> str:
        """The network of its link; another one than that of a test run beside this one."""
        return f"10.{128 + os.getpid() % 100}.{self.number}"

    @property
    def state(self) -> Path:
        """Its LAB_STATE."""
        return self.place / "state"

    def begin(self) -> None:
        self.place.mkdir()
        (self.place / "machine-id").write_text(f"{self.number:032x}\n")
        (self.place / "sshd_config").write_text(
            f"ListenAddress {self.address}:22\nHostKey {self.place.parent}/key\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self.place.parent}/key.pub\nStrictModes no\nPermitRootLogin yes\n"
        )
        inside = ("ip", "-n", self.name)
        for words in (
            ("ip", "netns", "add", self.name),
            ("ip", "link", "add", self.name, "type", "veth", "peer", "name", "up0", "netns", self.name),
            ("ip", "address", "add", f"{self.net}.1/24", "dev", self.name),
            ("ip", "link", "set", self.name, "up"),
            (*inside, "address", "add", f"{self.address}/24", "dev", "up0"),
            (*inside, "link", "set", "up0", "up"),
            (*inside, "link", "set", "lo", "up"),
        ):
            subprocess.run(words, check=True)
        self.boot()

    def boot(self) -> None:
        """Start it, the first time or after `kill`."""
        unshare = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
        self.init = subprocess.Popen(
            [
                *("ip", "netns", "exec", self.name, *unshare),
                *("sh", "-c", BEGIN, "sh", self.place, self.name),
            ],
            stderr=(self.place / "sshd.log").open("wb"),
        )
        until(lambda: "Server listening" in (self.place / "sshd.log").read_text(), "sshd listens", 60)

    def kill(self) -> None:
        """End all of its processes: those of its PID name space end with the first."""
        assert self.init
        self.init.kill()
        self.init.wait()

    def link(self, state: str) -> None:
        subprocess.run(["ip", "link", "set", self.name, state], check=True)

    def pids(self, words: str) -> list[int]:
        """Its processes whose command line has these words."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True
        ).stdout.split()
        return [int(pid) for pid in listed if words in command(int(pid))]

    def lab(self, *words: str) -> subprocess.CompletedProcess[str]:
        """lab.py there."""
        (first, *_) = self.pids("sshd: /usr/sbin/sshd")  # in all of its name spaces, unlike what began them
        enter = ("nsenter", "--target", str(first), "--all", "env", f"LAB_STATE={self.state}")
        return subprocess.run(
            [*enter, ROOT / "lab.py", *words], capture_output=True, text=True, timeout=600, check=False
        )

    def end(self) -> None:
        if self.init and self.init.poll() is None:
            self.kill()
        # By itself the link goes with the name space, which takes a while; the next test's has the same name.
        subprocess.run(["ip", "link", "delete", self.name], check=False)
        subprocess.run(["ip", "netns", "delete", self.name], check=False)

    def listening(self) -> set[str]:
        """Addresses (hexadecimal, as /proc/net/tcp has them) on which something listens."""
        words = ["ip", "netns", "exec", self.name, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
        lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        rows = [line.split() for line in lines]
        return {row[1] for row in rows if len(row) > 3 and row[3] == "0A"}


def command(pid: int) -> str:
    """A process's command line; '' when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@dataclass
class Fleet:
    """The three, and lab.py here with a state directory of the test's own."""

    place: Path
    machines: list[Machine] = field(default_factory=list)

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "lab.py", *words], env=self.env, capture_output=True, text=True, timeout=600, check=False
        )

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "LAB_STATE": str(self.place / "state")}

    @property
    def inventory(self) -> str:
        return str(self.place / "inventory.ini")

    def client(self) -> distributed.Client:
        """A client of its scheduler; LAB_STATE is this fleet's."""
        return cluster.connect()

    def begun(self) -> dict[tuple[str, int], str]:
        """Order and number of each attempt of the only night -> its machine."""
        (name,) = nights.names()
        lines = nights.Night(name).lines()
        return {(line.order, line.number): line.host for line in lines if isinstance(line, nights.Attempt)}

    def void(self) -> set[str]:
        """The machines whose attempts are void: given away."""
        (name,) = nights.names()
        lines = [line for line in nights.Night(name).lines() if isinstance(line, nights.Void)]
        return {self.begun()[line.order, line.number] for line in lines}

    def states(self) -> list[str]:
        """The second column of `pool status`, in the order of the machines."""
        rows = dict(
            line.split()[:2] for line in self("pool", "status").stdout.splitlines()[1:] if line[0] != " "
        )
        return [rows.get(machine.name, "absent") for machine in self.machines]

    def left(self) -> list[str]:
        """The pool's processes, here and there, by the state directories that they were given."""
        own = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        marks = ("lab.py pool serve", "lab.py pool worker")
        found = []
        for pid in own:
            words = command(pid)
            if any(mark in words for mark in marks) and str(self.place) in words + environment(pid):
                found.append(words)
        return found


def environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


SRUN = """#!/bin/bash
# srun OPTION… COMMAND…: a task on each of two nodes; standard input goes to all, as srun's does. A node has a disk
# of its own, so that both can be given the same LAB_STATE: here NODE in it is replaced.
while [[ $1 == -* ]]; do shift; done
exec 3>&1
tee >(SLURMD_NODENAME=node2 "${@//NODE/node2}" >&3) | SLURMD_NODENAME=node1 "${@//NODE/node1}"
"""


def stand_in_for_srun(place: Path) -> str:
    """What --launch is given: a program that does with two processes what srun does with two nodes."""
    srun = place / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    return f"{srun} --ntasks-per-node=1 env LAB_STATE={place}/NODE"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    ours = Fleet(tmp_path, [Machine(number, tmp_path / f"machine{number}") for number in (1, 2, 3)])
    ssh = f"-F none -i {tmp_path}/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    lines = [
        f"{machine.name} ansible_host={machine.address} ansible_user=root lab_directory={ROOT}"
        f" lab_state={machine.place}/state ansible_ssh_common_args='{ssh}'"
        for machine in ours.machines
    ]
    Path(ours.inventory).write_text("\n".join(["[hypervisors]", *lines, ""]))
    try:
        for machine in ours.machines:
            machine.begin()
        yield ours
    finally:
        ours("pool", "down")
        for machine in ours.machines:
            machine.end()
        log = tmp_path / "state/logs/pool.log"
        print(log.read_text() if log.exists() else "no pool.log")
