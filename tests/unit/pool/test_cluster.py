# SPDX-License-Identifier: GPL-2.0-only
"""The pool's record, keys, command lines and connections; ssh is a script, and no worker runs."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dask.config
import pytest

from numalab.cli import pool as pool_commands
from numalab.core import paths, state
from numalab.core.errors import HostError, InputError
from numalab.core.process import Deadline
from numalab.core.state import Process
from numalab.host import ansible
from numalab.host.remote import free_port
from numalab.pool import cluster, host, server, travel, worker
from numalab.pool.cluster import Connection, Order, Pool, State, Target
from tests.unit.cli.conftest import LabPy, lab_py
from tests.unit.makers import until

__all__ = ["lab_py"]

Program = Callable[[str, str], Path]
HERE = Path("inventory.ini")


def limit() -> Deadline:
    return Deadline.after(60)


def living() -> Process:
    return state.this_process()


def gone(process: Process) -> Process:
    """Another process of the same id, which has ended."""
    return Process(process.machine, process.boot, process.pid, process.started - 1)


def write(server: Process, *connections: Connection) -> None:
    certificate, key = cluster.make_keys(limit())
    pool = Pool(
        server=str(server),
        address="tls://127.0.0.1:1",
        certificate=certificate,
        key=key,
        connections=connections,
    )
    state.write(cluster.record(), pool.model_dump_json())


def test_the_ssh_command_forwards_loopback_to_loopback(program: Program) -> None:
    ssh = program("ssh", "")
    words = Target(name="far", ssh=("-p", "22", "root@far"), directory="numalab", state="/x/y").argv(100, 200)
    assert words[0] == str(ssh)
    assert words[words.index("-R") + 1] == "127.0.0.1:0:127.0.0.1:100"
    assert words[words.index("-L") + 1] == "127.0.0.1:200:127.0.0.1:200"
    assert words[-4:] == ["-p", "22", "root@far", "env LAB_STATE=/x/y numalab/lab.py pool worker"]
    assert "ExitOnForwardFailure=yes" in words


def test_the_other_command_lines() -> None:
    local = Target(name="here", directory="/lab", state="/x")
    assert local.argv(1, 2) == ["env", "LAB_STATE=/x", "/lab/lab.py", "pool", "worker"]
    words = cluster.launched("srun -N 2 env A=b").argv(1, 0)
    assert words[:5] == ["srun", "-N", "2", "env", "A=b"]
    assert words[-2:] == ["pool", "worker"]
    for launcher in ("", "srun '"):
        with pytest.raises(InputError, match="launch"):
            cluster.launched(launcher)


def test_variables_of_a_host(lab_state: Path) -> None:
    far = cluster.target(
        HERE,
        "far",
        {
            "ansible_host": "10.0.0.1",
            "ansible_port": 2222,
            "ansible_user": "lab",
            "ansible_ssh_common_args": "-o 'A b'",
        },
    )
    assert far.ssh == ("-o", "A b", "-p", "2222", "lab@10.0.0.1")
    assert (far.directory, far.state) == ("numalab", "")
    local = cluster.target(HERE, "localhost", {"ansible_connection": "local"})
    assert (local.ssh, local.state) == ((), str(lab_state / "pool/local"))
    home = {"lab_directory": "~/work/numalab"}
    assert cluster.target(HERE, "far", home).argv(1, 0)[-1] == "work/numalab/lab.py pool worker"
    here = cluster.target(HERE, "localhost", {"ansible_connection": "local", **home})
    assert here.directory == str(Path("~/work/numalab").expanduser())
    with pytest.raises(InputError, match=r"inventory\.ini: host far: lab_state: a template"):
        cluster.target(HERE, "far", {"lab_state": "{{ home }}/x"})
    with pytest.raises(InputError, match="begins with -"):
        cluster.target(HERE, "far", {"ansible_host": "-oProxyCommand=x"})
    with pytest.raises(InputError, match=r"host far: ansible_ssh_common_args: No closing quotation"):
        cluster.target(HERE, "far", {"ansible_ssh_common_args": "-i /home/o'neil/key"})


def test_hosts_of_an_inventory(tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text(
        "[hypervisors]\nnode[1:2] lab_state=/s\n[hypervisors:children]\nmore\n[more]\nnode3\n[builders]\nb\n"
    )
    hosts = ansible.hosts(path, "hypervisors", limit())
    assert {name: about.get("lab_state") for name, about in hosts.items()} == {
        "node1": "/s",
        "node2": "/s",
        "node3": None,
    }
    with pytest.raises(InputError, match="no such inventory"):
        ansible.hosts(tmp_path / "none.ini", "hypervisors", limit())
    path.write_text("[builders]\nb\n")
    with pytest.raises(InputError, match=r"group \[hypervisors\] has no host"):
        cluster.targets(path, limit())


def test_keys_are_the_users_own(lab_state: Path) -> None:
    for path in cluster.make_keys(limit()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.folder("pool").stat().st_mode) == 0o700


def test_no_pool(lab_py: LabPy, lab_state: Path) -> None:
    assert lab_py("pool", "status") == (2, "", "lab.py: error: no pool is up: lab.py pool up\n")
    assert lab_py("pool", "down") == (0, "no pool is up\n", "")
    with pytest.raises(HostError, match=r"no pool is up: lab\.py pool up"):
        cluster.connect()


def test_a_server_that_was_killed(lab_state: Path) -> None:
    """Its connections are ended, those that are still its own, and its files are removed."""
    ours, other = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    try:
        here = living()
        left, reused = (
            Process(here.machine, here.boot, child.pid, state.started(child.pid) + more)
            for child, more in ((ours, 0), (other, 1))
        )
        write(gone(here), Connection(name="a", process=str(left)), Connection(name="b", process=str(reused)))
        with pytest.raises(HostError, match="no pool is up"):
            cluster.current()
        assert cluster.sweep() == [
            f"a: process {ours.pid}: ended",
            "pool: pool.json",
            "pool: cert.pem",
            "pool: key.pem",
        ]
        assert ours.wait(10) < 0
        assert other.poll() is None
        assert cluster.sweep() == []
    finally:
        for child in (ours, other):
            child.kill()
            child.wait()


def test_a_pool_that_is_up_is_left_alone(lab_state: Path) -> None:
    write(living())
    assert cluster.sweep() == []
    assert cluster.current().address == "tls://127.0.0.1:1"
    with pytest.raises(HostError, match="a pool is up already"):
        cluster.up([], cluster.LOOPBACK, limit())


def test_gc_leaves_a_pool_that_starts_alone(lab_state: Path) -> None:
    """It has keys, and no record yet."""
    keys = cluster.make_keys(limit())
    done = list[list[str]]()
    with state.lock("pool", limit()):  # in another thread: a thread may take its own lock again
        thread = threading.Thread(target=lambda: done.append(cluster.sweep_idle()))
        thread.start()
        thread.join(60)
    assert done == [[]]
    assert all(key.exists() for key in keys)
    assert cluster.sweep_idle() == ["pool: cert.pem", "pool: key.pem"]


def test_end_returns_when_the_process_has_ended() -> None:
    child = subprocess.Popen(["sh", "-c", "trap '' TERM; echo; exec sleep 600"], stdout=-1)
    assert child.stdout
    child.stdout.readline()
    here = living()
    process = Process(here.machine, here.boot, child.pid, state.started(child.pid))
    cluster.end(process, Deadline.after(0.3))
    assert not process.lives
    assert child.wait(0) < 0
    child.stdout.close()


def test_the_server_has_the_state_directory_s_whole_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It works in /, where a relative LAB_STATE would be another."""
    seen: list[tuple[list[str], str]] = []

    def popen(words: list[str], *, env: dict[str, str], **_: object) -> None:
        seen.append((words, env["LAB_STATE"]))
        raise OSError("enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_STATE", "relative")
    monkeypatch.setattr(cluster, "make_keys", lambda _: (Path("cert"), Path("key")))
    monkeypatch.setattr(subprocess, "Popen", popen)
    for is_checkout in (True, False):
        monkeypatch.setattr(paths, "CHECKOUT", is_checkout)
        with pytest.raises(OSError, match="enough"):
            cluster.up([], cluster.LOOPBACK, limit())
    assert seen == [
        ([sys.executable, str(paths.ROOT / "lab.py"), "pool", "serve"], str(tmp_path / "relative")),
        ([sys.executable, "-m", "numalab", "pool", "serve"], str(tmp_path / "relative")),
    ]
    assert cluster.launched("srun").argv(1, 0) == ["srun", *seen[1][0][:3], "pool", "worker"]


def test_a_pool_of_another_machine(lab_state: Path) -> None:
    here = living()
    write(Process("0" * 6 if here.machine != "0" * 6 else "1" * 6, here.boot, here.pid, here.started))
    with pytest.raises(HostError, match="another machine"):
        cluster.current()
    for call in (lambda: cluster.down(limit()), lambda: cluster.up([], cluster.LOOPBACK, limit())):
        with pytest.raises(HostError, match=f"another machine: .*, remove {cluster.record()}"):
            call()


def test_a_damaged_record(lab_state: Path) -> None:
    cluster.record().write_text("{")
    with pytest.raises(HostError, match=r"pool\.json: cannot be read"):
        cluster.current()
    assert cluster.down(limit()) == ["pool: pool.json"]


def test_a_row_for_each_host() -> None:
    facts = {
        "name": "far",
        "resources": {"memory": 3 << 30, "cpus": 8, "tcg": 1, "kvm": 1},
        "numalab": {"version": "0.1 (commit a)", "software": "QEMU 10"},
    }
    rows = [
        cluster.row(facts, ("task",), "0.1 (commit b)"),
        cluster.Row(name="gone", state=State.LOST, note="Connection refused"),
    ]
    assert pool_commands.table(rows) == [
        "HOST  STATE  FREE  CPUS  ACCEL  RUNS  LAB             SOFTWARE",
        "far   up     3.0G  8     kvm    task  0.1 (commit a)  QEMU 10",
        "    another lab: 0.1 (commit a); here 0.1 (commit b)",
        "gone  lost   -     -     -      -     -               -",
        "    Connection refused",
    ]
    assert cluster.row(facts, (), "0.1 (commit a)").note == ""


def test_a_worker_without_a_greeting() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    with os.fdopen(reader, "rb") as stream, pytest.raises(HostError, match="no greeting"):
        host.serve(stream, lambda _: None, threading.Event())


def test_kvm_is_tried_again_when_an_image_has_come(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    """Until then /dev/kvm that opens is all that a host without an image can show."""
    cancel, up = threading.Event(), list[str]()
    opens = host.Resources(memory=1, cpus=1, kvm=True, software="")

    def probed(_: Deadline) -> host.Resources:
        return opens.model_copy(update={"kvm": False})

    program("waits", "exec cat >/dev/null")
    with serving([Target(name="other", launcher=("waits",))], monkeypatch):
        pool = wait_for(lambda now: bool(now.address))
        greeting = host.Greeting(
            scheduler=pool.address,
            name="h0",
            port=free_port(),
            certificate=pool.certificate.read_text(),
            key=pool.key.read_text(),
        )
        thread = threading.Thread(
            target=lambda: asyncio.run(host._work(greeting, opens, up.append, cancel, probed))
        )
        monkeypatch.setattr(worker, "close", lambda: None)  # it would close this process's
        thread.start()
        try:
            with cluster.connect() as client:
                until(lambda: cluster.workers(client))

                def kvm() -> float:
                    (facts,) = cluster.workers(client).values()
                    return float(facts["resources"]["kvm"])

                assert kvm() == 1
                travel.image_came.set()
                until(lambda: kvm() == 0)
                assert not travel.image_came.is_set()
        finally:
            cancel.set()
            thread.join(60)


def test_a_worker_removes_what_killed_ones_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its memory is counted, which a guest that was left takes from it, and at its end."""
    seen = list[str]()

    def probed(_: Deadline) -> host.Resources:
        seen.append("probe")
        return host.Resources(memory=1, cpus=1, kvm=False, software="")

    async def work(*_: object) -> None:
        seen.append("work")
        assert dask.config.get("distributed.worker.profile.enabled") is False, "the host is left alone"

    monkeypatch.setattr(host, "_work", work)
    reader, writer = os.pipe()
    try:
        greeting = host.Greeting(scheduler="tls://127.0.0.1:1", certificate="", key="")
        os.write(writer, f"{greeting.model_dump_json()}\n".encode())
        with os.fdopen(reader, "rb") as stream:
            cancel = threading.Event()
            monkeypatch.setattr(host, "_listen", lambda *_: None)  # it would set this process's alarm
            host.serve(stream, lambda _: None, cancel, probed, lambda _: seen.append("sweep"))
    finally:
        os.close(writer)
    assert seen == ["sweep", "probe", "work", "sweep"]


FAR = """
echo "Allocated port 4711 for remote forward to 127.0.0.1:1" >&2
read -r line && printf '%s' "$line" >"$FAR_GREETING"
echo "Welcome to this host"
echo '{"process": 7}'
exec cat >/dev/null
"""
"""An ssh, and the worker behind it."""


@contextmanager
def serving(targets: list[Target], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(server, "PAUSES", (0.05,))
    certificate, key = cluster.make_keys(limit())
    order = Order(targets=tuple(targets), certificate=certificate, key=key)
    cancel = threading.Event()
    thread = threading.Thread(target=server.serve, args=(order, lambda _: None, cancel))
    thread.start()
    try:
        yield
    finally:
        cancel.set()
        thread.join(60)
    assert not thread.is_alive()
    assert not list(state.folder("pool").iterdir())


def wait_for(condition: Callable[[Pool], bool]) -> Pool:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        pool = cluster.read()
        if pool and condition(pool):
            return pool
        time.sleep(0.02)
    raise AssertionError(f"never happened: {cluster.read()}")


def test_connections(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One host answers; the other refuses. Each is told apart, and strangers get no answer."""
    program("ssh", f'case " $* " in *" bad "*) echo "Connection refused" >&2; exit 255;; esac\n{FAR}')
    monkeypatch.setenv("FAR_GREETING", str(tmp_path / "greeting"))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, most))
    with serving([Target(name="far", ssh=("far",)), Target(name="bad", ssh=("bad",))], monkeypatch):
        pool = wait_for(lambda now: [one.state for one in now.connections] == [State.UP, State.LOST])
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most), "each host takes some files"
        assert stat.S_IMODE(cluster.record().stat().st_mode) == 0o600
        far, bad = pool.connections
        assert (far.worker, far.why, bad.why) == (7, "", "Connection refused")
        greeting = host.Greeting.model_validate_json((tmp_path / "greeting").read_text())
        assert (greeting.scheduler, greeting.name) == ("tls://127.0.0.1:4711", "far")
        process = Process.parse(far.process)
        assert process
        assert process.lives
        assert not answers(pool.address, None)
        assert not answers(pool.address, another(tmp_path))
        assert answers(pool.address, (pool.certificate, pool.key))
    assert not process.lives


def test_a_full_disk_ends_no_connection(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program("ssh", FAR)
    monkeypatch.setenv("FAR_GREETING", str(tmp_path / "greeting"))
    write, full = state.write, [OSError(28, "No space left on device")] * 3

    def sometimes(path: Path, text: str) -> None:
        if path == cluster.record() and cluster.read() and full:
            raise full.pop()
        write(path, text)

    monkeypatch.setattr(state, "write", sometimes)
    with serving([Target(name="far", ssh=("far",))], monkeypatch):
        wait_for(lambda now: not full and now.connections[0].state is State.UP)


def test_a_port_that_is_taken(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The next try has another port."""
    taken = tmp_path / "taken"
    program("ssh", f'echo "$*" >>{taken}; [ "$(wc -l <{taken})" -gt 1 ] || exit 255\n{FAR}')
    monkeypatch.setenv("FAR_GREETING", str(tmp_path / "greeting"))
    with serving([Target(name="far", ssh=("far",))], monkeypatch):
        wait_for(lambda now: now.connections[0].state is State.UP)
        port = json.loads((tmp_path / "greeting").read_text())["port"]
        first, second = taken.read_text().splitlines()
        assert f":{port} " in second
        assert f":{port} " not in first


def another(place: Path) -> tuple[Path, Path]:
    """A certificate and a key of somebody else."""
    words = ["openssl", "req", "-x509", "-nodes", "-subj", "/CN=numalab", "-newkey", "rsa:2048"]
    pair = place / "other.pem", place / "other.key"
    subprocess.run([*words, "-keyout", pair[1], "-out", pair[0]], check=True, capture_output=True)
    return pair


def answers(address: str, pair: tuple[Path, Path] | None) -> bool:
    """Whether the scheduler speaks with one who shows this certificate, or none."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if pair:
        context.load_cert_chain(*pair)
    name, _, port = address.removeprefix("tls://").rpartition(":")
    with socket.create_connection((name, int(port)), timeout=30) as plain:
        try:
            with context.wrap_socket(plain) as stream:
                return bool(stream.recv(1))
        except (ssl.SSLError, ConnectionError):
            return False
