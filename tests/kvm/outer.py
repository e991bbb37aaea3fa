# SPDX-License-Identifier: GPL-2.0-only
"""A machine with KVM on a host that has none: QEMU's TCG emulates AMD's SVM with nested paging.

Its root file system is a Debian made by mmdebstrap, with the lab's packages and Python environment. It is
kept in cache/outer-KEY, by what it is made from, and is only ever read. A second disk, made for each
start, has the checkout and the state directory: the lab's key, image and kernels of this host. So nothing is
built inside. Commands run in it over SSH.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from numalab.core import state
from numalab.core.errors import HostError
from numalab.core.log import step
from numalab.core.paths import ROOT
from numalab.core.process import Deadline, need, run
from numalab.host import image
from numalab.host.accelerator import QEMU, qemu_version
from numalab.host.remote import free_port
from numalab.kernel import boot, recipe

SUITE, IMAGE = "bookworm", "debian12"
OWN_PACKAGES = ("linux-image-amd64", "openssh-server", "iproute2", "ca-certificates", "procps", "apparmor")
"""Packages of the machine itself, beside those that run the lab."""
GROUPS = ("python", "guests")
"""Groups of the set-up's packages; the others lint, or build images and kernels."""
NOT_NEEDED = re.compile(r"xfsprogs|libxml2-utils|git")
"""Packages of these groups that no test in the machine takes."""
CPU = "EPYC-v4,+svm,+npt,+vgif"
VCPUS, MEMORY_MIB = 4, 9 * 1024
NODES = 2
"""They share CPUs and memory equally. Two, so that there is something to bind guests to."""
LEAST_QEMU = 8
"""With 10.0.2 the lab was seen to run; 7.2 has no vGIF."""
NO_SSH = 255
"""ssh's own exit status."""
BOOT_SECONDS = 600.0
"""Until sshd answers: 47 s on a busy host of two cores."""
PATIENCE = 3600.0
"""Seconds after which a command in the machine is given up. It is about ten times slower than its host."""
DISK = "12G"
CHECKOUT, STATE = "/lab", "/data/state"
KERNELS = "/data/kernels"
"""A recipe NAME.yml for each kernel, whose source is the host's bzImage: no tool chain has a say in it."""
INIT = f"""#!/bin/sh
# The first process of the machine: mounts, network, KVM, an SSH server.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p /dev/pts /dev/shm /data
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
for place in /dev/shm /run /tmp; do mount -t tmpfs tmpfs $place; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
modprobe virtio_net
modprobe kvm_amd
hostname outer
ip link set lo up
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
mount -t ext4 /dev/vdb /data
ln -sfn /opt/venv /data/checkout/.venv
mount --bind /data/checkout {CHECKOUT}
mkdir -p /run/sshd /run/lock
/usr/sbin/sshd -D
"""
INITRD = {
    "etc/initramfs-tools/conf.d/lab": "MODULES=list\nCOMPRESS=lz4\n",
    "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
}


def packages() -> list[str]:
    """What is installed in the machine: the set-up's packages that run the lab, and its own."""
    listed = YAML(typ="safe").load(ROOT / "playbooks/roles/hypervisor/vars/Debian.yml")["hypervisor_packages"]
    words = {name for group in GROUPS for name in listed[group]}
    return sorted({*(word for word in words if not NOT_NEEDED.fullmatch(word)), *OWN_PACKAGES})


def dependencies() -> list[str]:
    """The lab's Python packages. The lab itself runs from the checkout, which comes on the second disk."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["dependencies"])


def root_file_system(deadline: Deadline) -> Path:
    """The folder with root.qcow2, vmlinuz and initrd.img; made when its inputs changed."""
    inputs = [
        SUITE,
        *packages(),
        INIT,
        *INITRD.values(),
        *dependencies(),
        state.ssh_key(deadline).with_suffix(".pub").read_text(),
    ]
    key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    place = state.folder("cache") / f"outer-{key}"
    with state.lock("outer", deadline):
        if not place.exists():
            with state.making(place) as scratch:
                _make_root(scratch, deadline)
            for former in set(place.parent.glob("outer-*")) - {place}:
                shutil.rmtree(former)
    return place


def _make_root(scratch: Path, deadline: Deadline) -> None:
    overlay, tar, tree, raw = (scratch / name for name in ("overlay", "root.tar", "tree", "root.raw"))
    public = state.ssh_key(deadline).with_suffix(".pub").read_text()
    files = {**INITRD, "sbin/outer-init": INIT, "root/.ssh/authorized_keys": public}
    # A lab behind a proxy of its own has its certificates and pip's settings there.
    for path in map(
        Path, ("/etc/pip.conf", "/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt")
    ):
        if path.exists():
            files[f"lab-host{path}"] = path.read_text()
    files["lab/requirements"] = "".join(f"{one}\n" for one in dependencies())
    for name, text in files.items():
        path = overlay / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (overlay / "sbin").rename(overlay / "usr-sbin")
    with step(f"outer machine: mmdebstrap {SUITE}, {len(packages())} packages"):
        run(
            [
                need("mmdebstrap", "mmdebstrap"),
                "--variant=minbase",
                "--format=tar",
                "--skip=output/dev",
                '--aptopt=Acquire::Languages "none"',
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                f"--include={','.join(packages())}",
                f"--essential-hook=cp -r {overlay}/etc/. $1/etc/",
                f"--customize-hook=mkdir -p $1/root/.ssh $1/lab $1/opt && cp {overlay}/root/.ssh/authorized_keys"
                f" $1/root/.ssh/ && cp -r {overlay}/lab/. $1/lab/ && install {overlay}/usr-sbin/outer-init"
                " $1/usr/sbin/ && chmod -R go-w $1/root && chmod 700 $1/root/.ssh",
                f"--customize-hook=cp -r {overlay}/lab-host/etc/. $1/etc/",
                "--customize-hook=chroot $1 /usr/bin/python3 -m venv /opt/venv",
                "--customize-hook=chroot $1 /opt/venv/bin/pip install -q --disable-pip-version-check -r"
                " /lab/requirements",
                SUITE,
                tar,
            ],
            deadline=deadline,
            log=state.folder("logs") / "outer.log",
        )
    with step("outer machine: its disk"):
        fake: list[str | Path] = []
        if os.geteuid() != 0:
            fake = [need("fakeroot", "fakeroot"), "-i", scratch / "fake", "-s", scratch / "fake", "--"]
        (scratch / "fake").touch()
        tree.mkdir(mode=0o755)
        run([*fake, "tar", "-C", tree, "--numeric-owner", "-xf", tar], deadline=deadline)
        (tree / "dev").mkdir()
        _ext4(tree, raw, deadline, fake)
        run(
            [need("qemu-img", "qemu-utils"), "convert", "-O", "qcow2", raw, scratch / "root.qcow2"],
            deadline=deadline,
        )
        for kind in ("vmlinuz", "initrd.img"):
            (boot,) = (tree / "boot").glob(f"{kind}-*")
            shutil.copy(boot, scratch / kind)
        for folder in (tree, overlay):
            shutil.rmtree(folder)
        for file in (tar, raw, scratch / "fake"):
            file.unlink()


def _ext4(tree: Path, raw: Path, deadline: Deadline, fake: list[str | Path] | None = None) -> None:
    run(
        [*(fake or []), need("mke2fs", "e2fsprogs"), "-q", "-F", "-t", "ext4", "-d", tree, raw, DISK],
        deadline=deadline,
    )


def _data(place: Path, kernels: Sequence[str], deadline: Deadline) -> Path:
    """A disk with the checkout as it stands, and with this host's key, image and kernels. HostError when one
    is not built."""
    tree, raw = place / "data", place / "data.raw"
    guest_image = image.require(IMAGE, deadline)
    files = run(["git", "-C", ROOT, "ls-files", "-z"], deadline=deadline).stdout.split("\0")
    copies = {tree / "checkout" / name: ROOT / name for name in files if name and (ROOT / name).is_file()}
    real, kept = state.directory(), tree / "state"
    for folder in (real / "ssh", Path(guest_image.directory)):
        for path in folder.rglob("*"):
            copies[kept / path.relative_to(real)] = path
    recipes = tree / Path(KERNELS).name
    for name in kernels:
        copies[recipes / f"{name}.bzImage"] = Path(boot.resolve(recipe.load(name), guest_image).kernel or "")
    for target, source in copies.items():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copy2(source, target)
    for name in kernels:
        text = f"source: {{prebuilt: {{bzimage: {KERNELS}/{name}.bzImage}}}}\n"
        (recipes / f"{name}.yml").write_text(f"description: {name} of the host\n{text}")
    with step("outer machine: checkout, image and kernels"):
        _ext4(tree, raw, deadline)
    shutil.rmtree(tree)
    return raw


class OuterCrashed(HostError):
    """The machine's own kernel is gone, which says nothing of the lab. By its oops (2026-11-25), QEMU 10.0.2
    delivered an interrupt right after a VMRUN, where GIF should be 0, before KVM had loaded the host's GS. With
    oops=panic: an oops that ends one of its processes only would leave, say, a libvirtd that never answers."""


@dataclass
class Outer:
    """A machine that runs, and its SSH server."""

    port: int
    place: Path
    qemu: subprocess.Popen[bytes]
    boot_seconds: float = 0.0

    @property
    def alive(self) -> bool:
        """Whether its QEMU runs. It ends with the machine's kernel."""
        return self.qemu.poll() is None

    @property
    def console(self) -> str:
        """What its kernel printed."""
        return (self.place / "console.log").read_text(errors="replace")

    def _ssh(self) -> list[str]:
        return [
            need("ssh", "openssh-client"),
            *("-i", str(state.folder("ssh") / "id_ed25519"), "-p", str(self.port)),
            *("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
            *("-o", "LogLevel=ERROR", "-o", "ConnectTimeout=60", "-o", "IdentitiesOnly=yes"),
            *("-o", "ControlMaster=auto", "-o", "ControlPersist=600", "-o", f"ControlPath={self.place}/ssh"),
            "root@127.0.0.1",
        ]

    def run(self, script: str, *, seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run a shell script in the machine's checkout."""
        whole = f"export LAB_STATE={STATE} LANG=C.UTF-8 COLUMNS=200; cd {CHECKOUT} && {{ {script}\n}}"
        done = subprocess.run(
            [*self._ssh(), whole],
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode == NO_SSH:
            time.sleep(1)  # QEMU ends a little after the connection
        if not self.alive:
            raise OuterCrashed(f"the outer machine crashed:\n{self.console[-3000:]}")
        return done

    def lab(self, words: str) -> subprocess.CompletedProcess[str]:
        """Run lab.py in the machine."""
        return self.run(f"./lab.py {words}")


def _numa() -> Iterator[str]:
    """QEMU's words for the machine's CPUs, memory and nodes."""
    yield from ("-smp", f"{VCPUS},sockets={NODES}", "-m", f"{MEMORY_MIB}M")
    cpus = VCPUS // NODES
    for node in range(NODES):
        yield from ("-object", f"memory-backend-ram,id=m{node},size={MEMORY_MIB // NODES}M")
        yield from ("-numa", f"node,nodeid={node},cpus={node * cpus}-{node * cpus + cpus - 1},memdev=m{node}")


@contextmanager
def machine(kernels: Sequence[str], deadline: Deadline) -> Iterator[Outer]:
    """The machine, up and reached; ended afterwards with all that is in it."""
    version = qemu_version(deadline)
    if int(version.split(".")[0]) < LEAST_QEMU:
        raise HostError(f"QEMU {version} emulates no SVM that runs the lab: make setup QEMU=backports")
    root = root_file_system(deadline)
    place = state.scratch(state.folder("cache") / "outer")
    place.mkdir(mode=0o700)
    child = None
    try:
        data, port = _data(place, kernels, deadline), free_port()
        with (place / "console.log").open("wb") as console:
            child = subprocess.Popen(
                [
                    *("nice", "-n", "10", need(*QEMU)),
                    *("-accel", "tcg,thread=multi", "-machine", "q35,sata=off", "-cpu", CPU),
                    *_numa(),
                    *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"),
                    *("-kernel", root / "vmlinuz", "-initrd", root / "initrd.img", "-append"),
                    "root=/dev/vda rw console=ttyS0 net.ifnames=0 init=/usr/sbin/outer-init no_timer_check mitigations=off oops=panic panic=-1",
                    *("-drive", f"file={root}/root.qcow2,if=virtio,format=qcow2,snapshot=on,cache=unsafe"),
                    *("-drive", f"file={data},if=virtio,format=raw,cache=unsafe"),
                    *("-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22"),
                    *("-device", "virtio-net-pci,netdev=net,romfile="),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
            )
        outer = Outer(port, place, child)
        with step("outer machine: boot"):
            begin = time.monotonic()
            while outer.run("true", seconds=120).returncode:
                if time.monotonic() - begin > BOOT_SECONDS:
                    raise HostError(f"the outer machine does not come up:\n{outer.console[-3000:]}")
                time.sleep(1)
            outer.boot_seconds = time.monotonic() - begin
        yield outer
    finally:
        if child:
            child.kill()
            child.wait()
        shutil.rmtree(place, ignore_errors=True)
