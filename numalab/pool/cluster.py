# SPDX-License-Identifier: GPL-2.0-only
"""The pool of hypervisors that is up: its record, its keys, its hosts; and how it is started, reached, ended.

One process here, the server, has the scheduler and holds a connection to a worker on each host. A worker
lives as long as its connection, and a connection as long as the server, after a kill -9 too. Not here: the
server itself (server), the worker on a host (host), what the pool is used for (driver).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from numalab.core import log, paths, state
from numalab.core.errors import DeadlinePassed, HostError, InputError
from numalab.core.process import Deadline, need, run
from numalab.core.state import Process
from numalab.host import ansible
from numalab.model.values import Stored, Value

if TYPE_CHECKING:
    import distributed

GROUP = "hypervisors"
LOOPBACK = "127.0.0.1"
ELSEWHERE = "the pool of this state directory was started on another machine"
CONNECT_SECONDS = 30.0
"""How long the scheduler may take for an answer."""
KILL_SECONDS = 10.0
"""How long a process may take to end after SIGKILL: it may be in a system call that cannot be interrupted."""
END_SECONDS = 60.0
"""How long a worker may take to end the round that runs, which removes its guest."""
FILES = ("pool.json", "cert.pem", "key.pem")
"""The files of a pool that is up, in the state directory's folder pool."""
DAYS = 3650
"""How long a pool's certificate is valid: as long as the pool is up."""
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
}
"""Dask's settings for scheduler and workers. With its own (a profile's sample every 10 ms, a tick every
20 ms) a worker that waits takes 3 % of a CPU from the host on which it measures; with these 0.2 %."""
SSH = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ExitOnForwardFailure=yes"),
    # ssh ends 15 s after its host stopped to answer; the worker there ends by itself (host.SILENCE_SECONDS).
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
    # A shared connection would outlive us. The port that sshd chooses is told at this level (server).
    *("-o", "ControlMaster=no", "-o", "ControlPath=none", "-o", "LogLevel=INFO"),
)


class State(StrEnum):
    """What the server knows of a connection."""

    STARTING = "starting"
    UP = "up"
    LOST = "lost"


class Target(Value):
    """What a worker is started on: a host of the inventory, or what a launcher has."""

    name: str
    ssh: tuple[str, ...] = ()
    """ssh's words for the host: options and [user@]host. None: a process of this machine."""
    launcher: tuple[str, ...] = ()
    """A program and its words, to which the worker's are added: srun …"""
    directory: str = ""
    """The checkout there; relative to the home directory. '': this machine's lab, which is installed."""
    state: str = ""
    """LAB_STATE there; '': what the host has."""

    def argv(self, scheduler: int, port: int) -> list[str]:
        """The words that start the worker; over SSH with both ports forwarded, loopback to loopback. The port
        of the scheduler there is sshd's choice, that of the worker is the same on both sides."""
        setting = ["env", f"LAB_STATE={self.state}"] if self.state else []
        lab = [f"{self.directory}/lab.py"] if self.directory else program()
        worker = [*setting, *lab, "pool", "worker"]
        if not self.ssh:
            return [*self.launcher, *worker]
        return [
            need("ssh", "openssh-client"),
            *SSH,
            *("-R", f"{LOOPBACK}:0:{LOOPBACK}:{scheduler}"),
            *("-L", f"{LOOPBACK}:{port}:{LOOPBACK}:{port}"),
            *self.ssh,
            shlex.join(worker),
        ]


def program() -> list[str]:
    """The words that call this lab, whatever the working directory."""
    return [sys.executable, *([str(paths.ROOT / "lab.py")] if paths.CHECKOUT else ["-m", "numalab"])]


class Connection(Stored):
    """A target, and the process here through which its worker lives: ssh, the launcher or the worker."""

    name: str
    state: State = State.STARTING
    why: str = ""
    """The last error; '' for none."""
    process: str = ""
    """A state.Process as text; '' while there is none."""
    worker: int = 0
    """The worker's process id on its host."""


class Pool(Stored):
    """pool.json: the pool that is up, as its server wrote it."""

    server: str
    """The server's state.Process as text."""
    address: str
    """The scheduler's: tls://127.0.0.1:PORT."""
    certificate: Path
    key: Path
    dashboard: str = ""
    connections: tuple[Connection, ...] = ()

    @property
    def process(self) -> Process | None:
        """The server."""
        return Process.parse(self.server)


class Row(Value):
    """A host in `status`."""

    name: str
    state: str
    memory: int = 0
    """Bytes free for guests when the worker began."""
    cpus: int = 0
    accel: str = ""
    running: tuple[str, ...] = ()
    """Keys of the tasks that run there."""
    version: str = ""
    software: str = ""
    note: str = ""


def record() -> Path:
    """The path of pool.json."""
    return state.folder("pool") / "pool.json"


def read() -> Pool | None:
    """The recorded pool, whether it lives or not; None when there is none. HostError for a damaged file."""
    try:
        return Pool.model_validate_json(record().read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise HostError(f"{record()}: cannot be read: lab.py pool down removes it") from error


def current() -> Pool:
    """The pool that is up. HostError when none is."""
    pool = read()
    process = pool.process if pool else None
    if pool is None or process is None or not process.lives:
        raise HostError("no pool is up: lab.py pool up")
    if process.elsewhere:
        raise HostError(f"{ELSEWHERE}: run lab.py there, or, if it is no more, remove {record()}")
    return pool


def need_dask() -> None:
    """HostError when Dask, which only a pool needs, is not installed."""
    if importlib.util.find_spec("distributed") is None:
        command = ".venv/bin/pip install -e '.[pool]'" if paths.CHECKOUT else "pip install 'numalab[pool]'"
        raise HostError(f"Dask is not installed: {command}")


def workers(client: distributed.Client) -> dict[str, dict[str, Any]]:
    """Address -> what the scheduler knows of the worker there. HostError without an answer."""
    try:
        scheduler: Any = client.scheduler
        # scheduler_info() of late releases shows five workers only.
        identity = client.sync(scheduler.identity, n_workers=-1, callback_timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, AttributeError, RuntimeError, TypeError) as error:
        why = str(error) or f"within {CONNECT_SECONDS:g} s"
        raise HostError(f"the pool's scheduler does not answer any more ({why})") from error
    known: dict[str, dict[str, Any]] = identity["workers"]
    return known


def connect() -> distributed.Client:
    """A client of the pool that is up. HostError when none is, or its scheduler does not answer."""
    pool = current()
    need_dask()
    import distributed

    try:
        return distributed.Client(
            pool.address,
            security=security(str(pool.certificate), str(pool.key)),
            timeout=CONNECT_SECONDS,
            set_as_default=False,
        )
    except (OSError, TimeoutError) as error:
        raise HostError(f"the pool's scheduler at {pool.address} does not answer: {error}") from error


def security(certificate: str, key: str) -> distributed.Security:
    """TLS with a pool's only certificate, which both sides have to show. Paths, or the texts themselves."""
    from distributed import Security

    return Security(
        require_encryption=True,
        tls_ca_file=certificate,
        **{f"tls_{role}_cert": certificate for role in ("client", "scheduler", "worker")},
        **{f"tls_{role}_key": key for role in ("client", "scheduler", "worker")},
    )


def make_keys(deadline: Deadline) -> tuple[Path, Path]:
    """A new certificate, which is its own authority, and its key (both 0600)."""
    certificate, key = (state.folder("pool") / name for name in ("cert.pem", "key.pem"))
    for path in (certificate, key):
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
    run(
        [
            *(
                need("openssl", "openssl"),
                "req",
                "-x509",
                "-nodes",
                "-days",
                str(DAYS),
                "-subj",
                "/CN=numalab",
            ),
            *(
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-keyout",
                key,
                "-out",
                certificate,
            ),
        ],
        deadline=deadline,
    )
    return certificate, key


def targets(inventory: Path, deadline: Deadline) -> list[Target]:
    """The hosts of [hypervisors]. InputError when there are none, or a variable cannot be used."""
    hosts = ansible.hosts(inventory, GROUP, deadline)
    if not hosts:
        raise InputError(f"{inventory}: the group [{GROUP}] has no host")
    return [target(inventory, name, variables) for name, variables in hosts.items()]


def target(inventory: Path, name: str, variables: dict[str, Any]) -> Target:
    """A host of the inventory as a target."""

    def value(key: str) -> str:
        text = str(variables.get(key, ""))
        if "{{" in text:
            raise InputError(f"{inventory}: host {name}: {key}: a template; write the value itself")
        return text

    if value("ansible_connection") == "local":
        # A worker that used this state directory would bring its runs home to themselves.
        place = value("lab_state") or str(state.folder("pool", "local"))
        directory = value("lab_directory") or _checkout()
        return Target(name=name, directory=str(Path(directory).expanduser()), state=place)
    try:
        words = shlex.split(value("ansible_ssh_common_args"))
    except ValueError as error:
        raise InputError(f"{inventory}: host {name}: ansible_ssh_common_args: {error}") from error
    for option, key in (("-p", "ansible_port"), ("-i", "ansible_ssh_private_key_file")):
        words += [option, value(key)] if value(key) else []
    user = f"{value('ansible_user')}@" if value("ansible_user") else ""
    host = value("ansible_host") or name
    if host.startswith("-") or user.startswith("-"):
        raise InputError(f"{inventory}: host {name}: ansible_host: {user}{host} begins with -")
    # A shell expands no quoted ~, and SSH begins in the home directory.
    directory = value("lab_directory").removeprefix("~/") or "numalab"
    return Target(name=name, ssh=(*words, f"{user}{host}"), directory=directory, state=value("lab_state"))


def launched(launcher: str) -> Target:
    """What a launcher such as srun starts: workers of this checkout, which take their nodes' names."""
    try:
        words = tuple(shlex.split(launcher))
    except ValueError as error:
        raise InputError(f"launch {launcher}: {error}", field="launch") from error
    if not words:
        raise InputError("launch: no program", field="launch")
    return Target(name="launch", launcher=words, directory=_checkout())


def _checkout() -> str:
    return str(paths.ROOT) if paths.CHECKOUT else ""


class Order(Value):
    """What the server is to serve; it reads it from its standard input."""

    targets: tuple[Target, ...]
    listen: str = LOOPBACK
    certificate: Path
    key: Path


def up(wanted: Sequence[Target], listen: str, deadline: Deadline) -> Pool:
    """Start the server, and wait until each host is up or has failed once. HostError when a pool is up
    already, or the server ends."""
    need_dask()
    with state.lock("pool", deadline):
        old = read()
        if old and old.process and old.process.elsewhere:
            raise HostError(f"{ELSEWHERE}: run lab.py there, or, if it is no more, remove {record()}")
        if old and old.process and old.process.lives:
            raise HostError("a pool is up already: lab.py pool status, or lab.py pool down first")
        sweep()
        certificate, key = make_keys(deadline)
        order = Order(targets=tuple(wanted), listen=listen, certificate=certificate, key=key)
        with log_path().open("ab") as out, tempfile.TemporaryFile() as feed:
            feed.write(order.model_dump_json().encode())
            feed.seek(0)
            server = subprocess.Popen(
                [*program(), "pool", "serve"],
                stdin=feed,
                stdout=out,
                stderr=out,
                cwd="/",
                env={**os.environ, "LAB_STATE": str(state.directory())},  # it may be relative here
                start_new_session=True,
            )
        try:
            return _started(server, deadline)
        except BaseException:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(END_SECONDS)
            server.kill()
            sweep()
            raise


def log_path() -> Path:
    """What the server, ssh and the workers print."""
    path = state.folder("logs") / "pool.log"
    path.touch(mode=0o600)
    return path


def _started(server: subprocess.Popen[bytes], deadline: Deadline) -> Pool:
    """The pool of a server when nothing starts any more."""
    while True:
        pool = read()
        if pool and pool.process and pool.process.pid == server.pid and pool.connections:
            if all(one.state is not State.STARTING for one in pool.connections) or not deadline.remaining():
                return pool
        elif server.poll() is not None:
            tail = log_path().read_text(errors="replace")[-4000:]
            last = (tail.strip().splitlines() or ["no output"])[-1]
            raise HostError(f"the pool's server ended: {last} (all of it: {log_path()})", evidence=tail)
        if deadline.cancel.is_set() or not pool:
            deadline.check("waiting for the pool's server")
        deadline.pause(0.2)


def down(deadline: Deadline) -> list[str]:
    """End the pool of this state directory, if there is one; returns a line for each thing ended."""
    with state.lock("pool", deadline):
        try:
            pool = read()
        except HostError:
            pool = None
        process = pool.process if pool else None
        if process and process.elsewhere:
            raise HostError(
                f"{ELSEWHERE}: run lab.py pool down there, or, if it is no more, remove {record()}"
            )
        done = []
        if process and process.lives:
            end(process, deadline.within(END_SECONDS + CONNECT_SECONDS))
            done.append(f"server {process.pid}: ended")
        return done + sweep()


def sweep() -> list[str]:
    """Remove what a server that was killed left here; nothing while one lives. A line for each removal.

    What it left on other machines ends by itself: a worker lives no longer than its connection.
    """
    try:
        pool = read()
    except HostError:
        pool = None
    process = pool.process if pool else None
    if process and process.lives:
        return []
    done = []
    for one in pool.connections if pool else ():
        left = Process.parse(one.process)
        if left and not left.elsewhere and left.lives:
            end(left, Deadline.after(END_SECONDS))
            done.append(f"{one.name}: process {left.pid}: ended")
    for name in FILES:
        path = state.folder("pool") / name
        if path.exists():
            path.unlink()
            done.append(f"pool: {name}")
    return done


def sweep_idle() -> list[str]:
    """`sweep`, unless another lab.py starts or ends the pool: one that starts has keys and no record yet."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(state.lock("pool", Deadline.after(0)))
        except DeadlinePassed:
            log.note("pool: left alone: another lab.py starts or ends it")
            return []
        # Outside of the try: a DeadlinePassed of the sweep is not about the lock.
        return sweep()


def end(process: Process, deadline: Deadline) -> None:
    """End a process of this machine, if it is the one that was recorded: SIGTERM, and SIGKILL in the end."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            if (
                process.elsewhere or not process.lives
            ):  # the id may be another's by now; from here on it is not
                return
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            with contextlib.suppress(DeadlinePassed):
                while process.lives:
                    deadline.check(f"waiting for process {process.pid} to end")
                    time.sleep(0.1)
                return
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [], KILL_SECONDS)  # readable when it has ended (pidfd_open(2))
        finally:
            os.close(handle)


def status(version: str) -> list[Row]:
    """The hosts of the pool that is up. `version` is the lab's here: another is noted."""
    pool = current()
    with connect() as client:
        known = workers(client)
        try:
            scheduler: Any = client.scheduler
            tasks: Any = client.sync(scheduler.processing, workers=None, callback_timeout=CONNECT_SECONDS)
        except (OSError, TimeoutError, RuntimeError) as error:
            raise HostError(f"the pool's scheduler at {pool.address} does not answer: {error}") from error
    rows = {
        str(facts["name"]): row(facts, tuple(map(str, tasks.get(address, ()))), version)
        for address, facts in known.items()
    }
    for one in pool.connections:
        if one.name not in rows and not (one.name == "launch" and one.state is State.UP):
            shown = State.STARTING if one.state is State.STARTING else State.LOST
            rows[one.name] = Row(name=one.name, state=shown, note=one.why)
    return [rows[name] for name in sorted(rows)]


def row(facts: dict[str, Any], running: tuple[str, ...], version: str) -> Row:
    """A worker's row, from what the scheduler knows of it."""
    resources, about = facts.get("resources", {}), facts.get("numalab", {})
    theirs = str(about.get("version", ""))
    return Row(
        name=str(facts["name"]),
        state=State.UP,
        memory=int(resources.get("memory", 0)),
        cpus=int(resources.get("cpus", 0)),
        accel="kvm" if resources.get("kvm") else "tcg",
        running=running,
        version=theirs,
        software=str(about.get("software", "")),
        note=f"another lab: {theirs or 'unknown'}; here {version}" if theirs != version else "",
    )
