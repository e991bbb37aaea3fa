# SPDX-License-Identifier: GPL-2.0-only
"""A guest's life by the command line: up, used, down; interrupted, killed, panicked and hung."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from numalab.core.paths import ROOT
from numalab.core.process import Deadline
from numalab.host.ansible import ansible
from numalab.host.machine import VCPU, host_nodes, qemu_process
from numalab.host.remote import HERE
from tests.vm.conftest import PATIENCE, Command, interrupt, until

SMALL = ("--topology", "uma-2g", "--memory", "512M", "--vcpus", "1")
LEAN = (*SMALL, "--kernel", "6.1")
"""The same with a kernel that boots faster, for tests of any kernel."""


def up(lab_py: Command, name: str) -> None:
    """For a test of a guest that is up, however it came up: from a ready state, as all these tests' are."""
    result = lab_py("up", *LEAN, "--ready", "--name", name)
    assert result.returncode == 0, result.stderr


def test_used_as_a_person_would(lab_py: Command, tmp_path: Path) -> None:
    result = lab_py("up", *SMALL, "--name", "one", "--append", "numalab.word=yes")
    assert result.returncode == 0, result.stderr
    assert "one" in lab_py("list").stdout
    assert "topology" in lab_py("status", "one").stdout
    told = json.loads(
        lab_py("exec", "one", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 7").stdout
    )
    assert (told["status"], told["stdout"], told["stderr"], told["timed_out"]) == (7, "out\n", "err\n", False)
    assert lab_py("exec", "one", "--", "sh", "-c", "exit 255").returncode == 255
    ended = lab_py("exec", "one", "--timeout", "20", "--", "sh", "-c", "echo up; exec sleep 1000")
    assert (ended.returncode, ended.stdout) == (124, "up\n")
    assert lab_py("exec", "one", "--", "pgrep", "sleep").returncode == 1, (
        "the command outlived its time limit"
    )
    assert "numalab.word=yes" in lab_py("exec", "one", "--", "cat", "/proc/cmdline").stdout
    assert "Linux version" in lab_py("console", "one", "--log").stdout
    loads_a_module = lab_py("exec", "one", "--", "test", "-c", "/dev/loop-control")
    assert loads_a_module.returncode == 0, "a kernel with modules has nodes of those that are not loaded"

    (tmp_path / "to").write_text("there and back")
    assert lab_py("put", "one", str(tmp_path / "to"), "/root/to").returncode == 0
    assert lab_py("get", "one", "/root/to", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back").read_text() == "there and back"

    inventory = lab_py("inventory").stdout.strip()
    ping = subprocess.run(
        [ansible("ansible"), "-i", "inventory.ini", "-i", inventory, "guests", "-m", "ansible.builtin.ping"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ping.returncode == 0, ping.stdout + ping.stderr
    assert "one | SUCCESS" in ping.stdout

    private = [*(lab_py.state / "guests/one").glob("known_hosts"), *(lab_py.state / "ssh").glob("id_ed25519")]
    assert [path.name for path in private] == ["known_hosts", "id_ed25519"]
    for path in private:
        assert path.stat().st_mode & 0o077 == 0, path
    assert lab_py("down", "one").returncode == 0
    assert not lab_py.left()


INSIDE = """
cat /proc/1/comm
readlink -f /dev/disk/by-id/virtio-root
for place in /dev/pts /dev/shm /dev/hugepages /run /sys/fs/cgroup /sys/kernel/debug /sys/kernel/tracing; do
    mountpoint -q $place || echo $place is not mounted
done
sh -c '(sleep 0.1; exit) &' # its parent ends first
sleep 2
ps -eo stat,comm | grep '^Z'
ip -o -4 address show eth0 | grep -o 'inet [0-9./]*'
cat /proc/sys/kernel/hostname
df -BG --output=size / | tail -n 1 # of a disk of 16 GiB, less inodes and journal
"""


@pytest.mark.parametrize("init", ["lab", "systemd"])
def test_what_runs_first(lab_py: Command, init: str) -> None:
    """Either way a guest has the same mounts, disks' names, address, host name and root, and no zombies."""
    result = lab_py("up", *LEAN, "--name", "one", "--init", init)
    assert result.returncode == 0, result.stderr
    comm = {"lab": "lab-init", "systemd": "systemd"}[init]
    seen = lab_py("exec", "one", "--", "sh", "-c", INSIDE).stdout.split("\n")
    assert [line.strip() for line in seen] == [comm, "/dev/vda", "inet 10.0.2.15/24", "one", "16G", ""]


def test_streams_pass_through(lab_py: Command) -> None:
    """With any amount of output: it arrives as it comes, the reader may leave, and the time limit holds."""
    up(lab_py, "one")
    child = subprocess.Popen(
        [ROOT / "lab.py", "exec", "one", "--", "sh", "-c", "echo first; exec sleep 1000"],
        env=lab_py.env,
        stdout=subprocess.PIPE,
    )
    assert child.stdout
    assert child.stdout.readline() == b"first\n", "it came while the command ran"
    interrupt_quietly(child)
    child = subprocess.Popen(
        [ROOT / "lab.py", "exec", "one", "--", "cat", "/dev/zero"], env=lab_py.env, stdout=subprocess.PIPE
    )
    assert child.stdout
    assert child.stdout.read(50_000_000) == bytes(50_000_000)
    child.stdout.close()
    assert child.wait(60) == 128 + signal.SIGPIPE, "as in a pipeline"
    assert lab_py("exec", "one", "--", "pgrep", "cat").returncode == 1, "the command outlived its reader"
    told = json.loads(
        lab_py("exec", "one", "--json", "--", "sh", "-c", "head -c 17000000 /dev/zero | tr '\\0' x").stdout
    )
    assert (told["status"], len(told["stdout"]), told["stdout_cut"]) == (0, 16 << 20, 17_000_000 - (16 << 20))


def interrupt_quietly(child: subprocess.Popen[bytes]) -> None:
    """End it as Ctrl-C does."""
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)


REACH = "import socket, sys; socket.create_connection(('10.0.2.2', int(sys.argv[1])), 10)"
"""Runs in a guest: connects to a port of the host's loopback, through QEMU's user network."""


@pytest.mark.parametrize("network", [False, True])
def test_network(lab_py: Command, network: bool) -> None:
    """A guest reaches services on the host's loopback only on request; SSH always works."""
    result = lab_py("up", *LEAN, "--name", "one", *(["--network"] if network else []))
    assert result.returncode == 0, result.stderr
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = lab_py("exec", "one", "--", "python3", "-c", REACH, str(server.getsockname()[1]))
    assert (result.returncode == 0) is network, result.stderr
    assert (
        f"network       {'reaches the host' if network else 'none but SSH'}" in lab_py("status", "one").stdout
    )
    assert lab_py("provision", "one", "--set", "vm.swappiness=7").stdout == "one: changed=1\n"


def test_two_at_once_each_with_a_core_of_the_host(lab_py: Command) -> None:
    """A third one, for which no core is left, is refused."""
    nodes = host_nodes(HERE, Deadline.after(PATIENCE))
    if not nodes or len(nodes[0].cores) < 2:
        pytest.skip("node 0 of this host has fewer than two cores")
    result = lab_py("up", "-t", "uma-2g", *LEAN, "--pin", "0=0")
    assert result.returncode == 0, result.stderr
    assert lab_py.domains() == {"uma-2g", "uma-2g-2"}
    cores = {affinity(lab_py, name) for name in lab_py.domains()}
    assert len(cores) == 2
    assert all("-" not in core and "," not in core for core in cores)
    if len(nodes[0].cores) == 2:
        third = lab_py("up", *LEAN, "--name", "three", "--pin", "0=0")
        assert third.returncode == 2
        assert "--pin 0=0: node 0 of the guest needs 1 free cores" in third.stderr
    assert lab_py("down", "--all").returncode == 0
    assert not lab_py.left()


def affinity(lab_py: Command, name: str) -> str:
    """The host's CPUs on which the guest's vCPU 0 may run, as its thread's status has them (proc(5))."""
    ident = json.loads((lab_py.state / "guests" / name / "guest.json").read_text())["spec"]["uuid"]
    qemu = qemu_process(ident)
    vcpus = [
        task for task in Path(f"/proc/{qemu}/task").iterdir() if VCPU.fullmatch((task / "comm").read_text())
    ]
    (line,) = [line for line in (vcpus[0] / "status").read_text().splitlines() if "Cpus_allowed_list" in line]
    return line.split()[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="sets huge pages aside: needs root")
def test_memory_of_huge_pages(lab_py: Command) -> None:
    """They are used, and back when the guest is gone; without enough of them nothing is started."""
    pages = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
    words = ("up", *LEAN, "--name", "one", "--huge-pages", "2MiB")
    before = (pages / "nr_hugepages").read_text()
    if int((pages / "free_hugepages").read_text()) >= 256:
        pytest.skip("this host has huge pages to spare: nothing is refused")
    refused = lab_py(*words)
    assert refused.returncode == 2
    assert "256 pages of 2MiB wanted, " in refused.stderr
    try:
        Path("/proc/sys/vm/compact_memory").write_text("1\n")
        (pages / "nr_hugepages").write_text(f"{int(before) + 256}\n")
        if int((pages / "nr_hugepages").read_text()) < int(before) + 256:
            pytest.skip("this host's memory is too fragmented for 256 huge pages")
        result = lab_py(*words)
        assert result.returncode == 0, result.stderr
        assert int((pages / "free_hugepages").read_text()) < 256, "the guest has some"
        assert lab_py("down", "one").returncode == 0
        assert int((pages / "free_hugepages").read_text()) >= 256
    finally:
        (pages / "nr_hugepages").write_text(before)
    assert not lab_py.left()


def test_interrupted_up_leaves_nothing(lab_py: Command) -> None:
    child = lab_py.start("up", *SMALL, "--name", "one")
    until(lab_py.domains, "the domain runs")
    code, said = interrupt(child, signal.SIGINT)
    assert code == 130
    assert "cancelled" in said
    assert "Traceback" not in said
    assert not lab_py.left()


def test_killed_up_is_mended_by_gc(lab_py: Command) -> None:
    child = lab_py.start("up", *SMALL, "--name", "one")
    until(lab_py.domains, "the domain runs")
    interrupt(child, signal.SIGKILL)
    assert lab_py.domains() == {"one"}
    result = lab_py("gc")
    assert result.returncode == 0
    assert "guest one" in result.stdout
    assert not lab_py.left()


@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_ended_image_build_leaves_nothing(lab_py: Command, kind: signal.Signals, code: int) -> None:
    """Ctrl-C cleans up; after a kill -9 the tools end too, and gc removes what they made."""
    shutil.rmtree(lab_py.state / "images")
    (lab_py.state / "bases").unlink(missing_ok=True)
    child = lab_py.start("image", "build")
    until(lambda: any("mmdebstrap" in words for words in lab_py.processes()), "mmdebstrap runs")
    status, said = interrupt(child, kind)
    assert status == code, said
    until(lambda: not lab_py.processes(), "all tools have ended", 60)
    if kind is signal.SIGKILL:
        assert "half-made" in lab_py("gc").stdout
    assert not [
        path for shared in ("images", "bases") for path in (lab_py.state / shared).glob("**/.making-*")
    ]


def test_gc_leaves_a_running_guest_alone(lab_py: Command) -> None:
    up(lab_py, "one")
    assert "one" not in lab_py("gc").stdout
    assert lab_py("exec", "one", "--", "true").returncode == 0


def test_panic_is_a_finding_with_the_console(lab_py: Command) -> None:
    up(lab_py, "one")
    result = lab_py("exec", "one", "--", "sh", "-c", "sleep 1; echo c > /proc/sysrq-trigger; sleep 1000")
    assert result.returncode == 125
    assert "its kernel says" in result.stderr
    assert "sysrq" in result.stderr.lower()


def test_panic_after_much_on_the_console(lab_py: Command) -> None:
    """3 MB are more than libvirt's log daemon keeps in a file: all of it is kept, and the panic is seen."""
    up(lab_py, "one")
    # printk's own limit for /dev/kmsg would drop most of it; a line of 900 bytes at a time.
    script = (
        "echo on > /proc/sys/kernel/printk_devkmsg; echo 8 > /proc/sys/kernel/printk; line=$(head -c 900"
        " /dev/zero | tr '\\0' x); for i in $(seq 3500); do echo \"word $i $line\" > /dev/kmsg; done; echo c"
        " > /proc/sysrq-trigger; sleep 1000"
    )
    result = lab_py("exec", "one", "--", "sh", "-c", script)
    assert "its kernel says" in result.stderr, result.stderr
    assert result.returncode == 125
    log = (lab_py.state / "guests" / "one" / "console.log").read_text(errors="replace")
    assert len(log) > 3_000_000
    assert "Linux version" in log
    assert [int(number) for number in re.findall(r"word (\d+) x{900}", log)] == list(range(1, 3501)), (
        "lines are lost"
    )
    assert log == lab_py("console", "one", "--log").stdout


def test_dead_qemu_is_a_lost_guest(lab_py: Command) -> None:
    up(lab_py, "one")
    child = lab_py.start("exec", "one", "--", "sh", "-c", "echo up; exec sleep 1000")
    assert child.stdout
    assert child.stdout.readline() == "up\n"
    os.kill(_qemu(lab_py), signal.SIGKILL)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 125
    assert "its domain is gone" in said or "SSH is lost" in said
    assert "lost" in lab_py("list").stdout
    assert "guest one: it was lost" in lab_py("gc").stdout
    assert not lab_py.left()


def test_hung_guest_is_lost(lab_py: Command) -> None:
    up(lab_py, "one")
    child = lab_py.start("exec", "one", "--", "sh", "-c", "echo up; exec sleep 1000")
    assert child.stdout
    assert child.stdout.readline() == "up\n"
    os.kill(_qemu(lab_py), signal.SIGSTOP)
    try:
        _, said = child.communicate(timeout=120)
    finally:
        os.kill(_qemu(lab_py), signal.SIGCONT)
    assert child.returncode == 125
    assert "SSH is lost" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk: needs root")
def test_full_disk_of_the_host(lab_py: Command) -> None:
    """QEMU pauses a guest whose disk cannot grow: reported as that, and soon."""
    place = lab_py.state / "guests"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3g", "tmpfs", place], check=True)
    try:
        result = lab_py("up", *LEAN, "--name", "one")  # booted: its data disk is a raw file
        assert result.returncode == 0, result.stderr
        room = shutil.disk_usage(place).used + (1 << 20)
        subprocess.run(["mount", "-o", f"remount,size={room}", place], check=True)
        result = lab_py(
            "exec", "one", "--", "dd", "if=/dev/zero", "of=/dev/vdb", "bs=1M", "count=64", "oflag=direct"
        )
        assert result.returncode == 125
        # Whichever disk QEMU writes first: the guest's journal, on the other one, may come before dd.
        said = f"guest one: its disk on the host is full: QEMU could not write {place}/one/"
        assert said in result.stderr
        assert lab_py("down", "one").returncode == 0
        assert not lab_py.left()
    finally:
        lab_py("down", "--all")
        subprocess.run(["umount", place], check=True)


def test_wrong_topology_fails_up(lab_py: Command) -> None:
    """mem=256M hides memory: `up` must detect that in the guest, and show both sides."""
    result = lab_py("up", *LEAN, "--name", "one", "--append", "mem=256M")
    assert result.returncode == 2
    assert "not the topology that was asked for: node 0 memory" in result.stderr
    assert "512 MiB" in result.stderr
    assert not lab_py.left()


@pytest.mark.parametrize(
    ("kernel", "says"), [(LEAN, "Unable to mount root"), (SMALL, "initrd: no root file system")]
)
def test_kernel_that_panics_at_boot(lab_py: Command, kernel: tuple[str, ...], says: str) -> None:
    """Without a root the kernel panics: `up` ends at once, with the end of the console. The initrd of the
    image's own kernel waits half a minute for it."""
    result = lab_py("up", *kernel, "--name", "one", "--append", "root=/dev/nowhere")
    assert result.returncode == 4, result.stderr
    assert "Kernel panic" in result.stderr
    assert says in result.stderr
    assert not lab_py.left()


def test_guest_that_never_answers(lab_py: Command) -> None:
    """Its init reads a console that nobody writes to."""
    result = lab_py("up", *LEAN, "--name", "one", "--append", "init=/usr/bin/cat", "--timeout", "60")
    assert result.returncode == 2, result.stderr
    assert "waiting for SSH" in result.stderr
    assert "Run /usr/bin/cat as init process" in result.stderr, "the console's end is not shown"
    assert not lab_py.left()


def test_console_is_a_login_on_hvc0(lab_py: Command) -> None:
    """In a terminal: a prompt without a password, a command, and Ctrl-] to leave."""
    up(lab_py, "one")
    ours, theirs = os.openpty()
    child = subprocess.Popen(
        [ROOT / "lab.py", "console", "one"],
        env=lab_py.env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    seen = b""

    def shows(word: bytes, typed: bytes) -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(ours, 65536)
        if word not in seen:
            os.write(ours, typed)
            time.sleep(1)
        return word in seen

    try:
        until(lambda: shows(b"root@one", b"\r"), "a prompt", 60)
        until(lambda: shows(b"is 42.", b"echo is $((6*7)).\r"), "the command's output", 60)
        os.write(ours, b"\x1d")
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def _qemu(lab_py: Command) -> int:
    """The QEMU process of the test's only guest."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if b"qemu-system" in words.split(b"\0")[0] and str(lab_py.state).encode() in words:
            return int(path.parent.name)
    raise AssertionError("no QEMU runs for this test")
