# SPDX-License-Identifier: GPL-2.0-only
"""Bad input and lacks of the host: one clear line, a non-zero status, nothing left behind."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from numalab.core.paths import ROOT
from tests.vm.conftest import Command

NODES = "nodes:\n  - {cpus: 0-1, memory: 1GiB}\n  - {cpus: 2-3, memory: 1GiB}\n"
GOOD = f"description: two nodes\nvcpus: 4\nmemory: 2GiB\n{NODES}"


def refused(lab_py: Command, result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit status 2, one line that contains the words, no traceback, and nothing left."""
    assert result.returncode == 2, (result.returncode, result.stderr)
    lines = [line for line in result.stderr.splitlines() if line.startswith("lab.py: error: ")]
    assert len(lines) == 1, result.stderr
    for word in words:
        assert word in lines[0]
    assert "Traceback" not in result.stderr
    assert not lab_py.left()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("cpus: 2-3", "cpus: 1-3"), ("bad.yml:4", "vCPU 1", "node 0")),
        (GOOD.replace("cpus: 2-3", "cpus: 2"), ("bad.yml:4", "vCPU 3", "no node")),
        (GOOD + "distances: [[10, 9], [9, 10]]\n", ("bad.yml:7", "distances", "9")),
        (GOOD + "distances: [[10, 20], [10]]\n", ("bad.yml:7", "distances", "2 rows of 2")),
        (GOOD + "colour: blue\n", ("bad.yml:7", "colour")),
        (GOOD.replace("memory: 2GiB", "memory: 2048"), ("bad.yml:3", "memory", "unit")),
    ],
    ids=["overlap", "no-node", "distance", "gap", "unknown-key", "no-unit"],
)
def test_topology_file(lab_py: Command, tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "bad.yml"
    path.write_text(text)
    refused(lab_py, lab_py("up", "--topology", str(path)), *words)


@pytest.mark.parametrize("name", ["a/b", "a b", "<name/>", "../up", "-n", "x" * 41])
def test_name(lab_py: Command, name: str) -> None:
    refused(lab_py, lab_py("up", "--topology", "uma-2g", f"--name={name}"), "--name", "is not a name")


def test_name_taken(lab_py: Command) -> None:
    place = lab_py.state / "guests" / "mine"
    place.mkdir(parents=True)
    (place / "maker").write_text("1 0")
    result = lab_py("up", "--topology", "uma-2g", "--name", "mine")
    assert result.returncode == 2
    assert "a guest called mine is there" in result.stderr
    assert (place / "maker").read_text() == "1 0", "somebody else's guest was touched"
    shutil.rmtree(place)
    assert not lab_py.left()


def test_unknown_topology_and_kernel(lab_py: Command) -> None:
    refused(lab_py, lab_py("up", "--topology", "17socket"), "17socket", "4socket")
    refused(lab_py, lab_py("up", "--topology", "uma-2g", "--kernel", "debain"), "debain", "such as debian")


def test_sizes(lab_py: Command) -> None:
    refused(lab_py, lab_py("up", "--topology", "uma-2g", "--memory", "2048"), "--memory", "unit")
    refused(lab_py, lab_py("up", "--topology", "4socket", "--vcpus", "3"), "--vcpus 3", "4 nodes")
    refused(lab_py, lab_py("up", "--topology", "uma-2g", "--disk", "big"), "--disk big")


def test_disk_larger_than_the_format(lab_py: Command) -> None:
    refused(
        lab_py,
        lab_py("up", "--topology", "uma-2g", "--disk", "big=3000T", "--storage", "qcow2"),
        "big",
        "2PiB",
    )


def test_image_missing(lab_py: Command) -> None:
    shutil.rmtree(lab_py.state / "images")
    refused(lab_py, lab_py("up", "--topology", "uma-2g"), "not built", "lab.py image build")


def test_image_truncated(lab_py: Command) -> None:
    for image in list((lab_py.state / "images").glob("*/*")):
        real = image.resolve()
        image.unlink()
        image.mkdir()
        for path in real.iterdir():
            if path.name != "disk.qcow2":
                (image / path.name).symlink_to(path)
        (image / "disk.qcow2").write_bytes(b"QFI\xfb")
    refused(lab_py, lab_py("up", "--topology", "uma-2g"), "disk.qcow2 has 4 bytes", "image build --force")


def test_libvirt_does_not_answer(lab_py: Command, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        refused(
            lab_py,
            lab_py("up", "--topology", "uma-2g", "--connect", f"qemu+unix:///system?socket={tmp_path}/s"),
            "does not answer",
        )


def test_no_libvirt(lab_py: Command, tmp_path: Path) -> None:
    refused(
        lab_py,
        lab_py("up", "--topology", "uma-2g", "--connect", f"qemu+unix:///system?socket={tmp_path}/none"),
        "libvirt",
        "doctor",
    )


def test_no_memory(lab_py: Command) -> None:
    refused(
        lab_py,
        lab_py("up", "--topology", "4socket", "--memory", "8192G"),
        "memory",
        "--memory",
        "largest of this shape",
    )


def test_no_disk(lab_py: Command, tmp_path: Path) -> None:
    """A state directory on a file system of 64 MiB, in a mount namespace of the test's own."""
    small = tmp_path / "small"
    small.mkdir()
    script = (
        "import os, subprocess, sys\n"
        "small, real, lab = sys.argv[1:4]\n"
        "subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=64m', 'none', small], check=True)\n"
        "for shared in ('images', 'ssh'): os.symlink(f'{real}/{shared}', f'{small}/{shared}')\n"
        "os.environ['LAB_STATE'] = small\n"
        "os.execv(lab, [lab, 'up', '--topology', 'uma-2g'])\n"
    )
    isolate = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    result = subprocess.run(
        [*isolate, sys.executable, "-c", script, str(small), str(lab_py.state), str(ROOT / "lab.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    refused(lab_py, result, "free", "2048MiB", "LAB_STATE")


def test_port_taken(lab_py: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(
            lab_py,
            lab_py("up", "--topology", "uma-2g", "--ssh-port", str(port)),
            f"--ssh-port {port}",
            "taken",
        )


def test_usage(lab_py: Command) -> None:
    refused(lab_py, lab_py("up", "--colour", "blue"), "--colour")
    refused(lab_py, lab_py("fly"), "fly")
    assert lab_py("exec", "nobody", "--", "true").returncode == 125
    refused(lab_py, lab_py("status", "nobody"), "there is no guest nobody")
    refused(lab_py, lab_py("measure", "nothing"), "nothing", "xfsrepair")
