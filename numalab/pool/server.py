# SPDX-License-Identifier: GPL-2.0-only
"""The pool's server on this machine: Dask's scheduler, and a connection to the worker of each host.

Each connection is one program (ssh, a launcher, or the worker itself) whose standard input is a pipe from
here. A connection that ends is made again after a pause. When this process dies, all pipes close, and each
worker ends by itself. Not here: what workers do with the pipe (host), what a user sees (cluster).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import dask.config
import distributed
from pydantic import ValidationError

from numalab.core import state
from numalab.core.errors import HostError
from numalab.core.state import Process
from numalab.host.remote import free_port
from numalab.pool import cluster
from numalab.pool.cluster import Connection, Order, Pool, State, Target
from numalab.pool.host import BEAT_SECONDS, Answer, Greeting

FORWARD_SECONDS = 60.0
"""Limit of ssh's connection and its forwardings."""
PAUSES = (2.0, 5.0, 15.0, 30.0)
"""Seconds before a connection is made again; the last one from then on."""
ALLOCATED = re.compile(r"Allocated port (\d+) for remote forward")
"""sshd chooses the scheduler's port on the host; ssh prints it (ssh.c, ssh_confirm_remote_forward)."""
SETTINGS = {
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.worker-ttl": "120 s",
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.comm.require-encryption": True,
}
"""A frozen worker is noticed after worker-ttl. What a task is and where it runs is the driver's to decide."""


def serve(order: Order, say: Callable[[str], None], cancel: threading.Event) -> None:
    """Serve until `cancel` is set; then end all workers. `say` gets a line for the log."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # 1024 are usual, and a host takes six or seven: three pipes, and the scheduler's sockets.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with (
        state.temporary() as scratch,
        dask.config.set({**cluster.QUIET, **SETTINGS, "temporary-directory": scratch}),
    ):
        asyncio.run(_Server(order, say).run(cancel))


class _Server:
    """The connections, and pool.json, which is written at each change."""

    def __init__(self, order: Order, say: Callable[[str], None]) -> None:
        self.order, self._log = order, say
        self.connections = {one.name: Connection(name=one.name) for one in order.targets}
        self.address = self.dashboard = ""
        self.behind = False
        self.ending = asyncio.Event()

    async def run(self, cancel: threading.Event) -> None:
        security = cluster.security(str(self.order.certificate), str(self.order.key))
        try:
            scheduler = await distributed.Scheduler(
                host=self.order.listen,
                port=0,
                protocol="tls",
                security=security,
                dashboard_address=f"{cluster.LOOPBACK}:0",
            )
        except (OSError, ValueError) as error:
            raise HostError(f"the scheduler cannot listen on {self.order.listen}: {error}") from error
        self.address = scheduler.address
        self.dashboard = f"http://{cluster.LOOPBACK}:{scheduler.http_server.port}/status"
        self._write()
        keepers = [asyncio.create_task(self._keep(one)) for one in self.order.targets]
        while not cancel.is_set():  # set by a signal, in another thread
            await asyncio.sleep(0.2)
            if self.behind:
                self._try_to_write()
        self.ending.set()
        await asyncio.gather(*keepers, return_exceptions=True)
        await scheduler.close()
        for name in cluster.FILES:
            (state.folder("pool") / name).unlink(missing_ok=True)

    def say(self, line: str) -> None:
        """A line for the log; none where that cannot be written: connections matter more."""
        with contextlib.suppress(OSError):
            self._log(line)

    def _write(self) -> None:
        pool = Pool(
            server=str(state.this_process()),
            address=self.address,
            certificate=self.order.certificate,
            key=self.order.key,
            dashboard=self.dashboard,
            connections=tuple(self.connections.values()),
        )
        state.write(cluster.record(), pool.model_dump_json(indent=1))

    def _try_to_write(self) -> None:
        """Write pool.json, or do it later: a full disk ends no connection."""
        try:
            self._write()
        except OSError as error:
            if not self.behind:
                self.say(f"{cluster.record()}: {error.strerror}: tried again until it is written")
            self.behind = True
        else:
            self.behind = False

    def _set(self, name: str, **changes: object) -> None:
        before = self.connections[name]
        self.connections[name] = after = before.model_copy(update=changes)
        if after != before:
            self._try_to_write()
        if after.state is not before.state or after.why != before.why:
            self.say(f"{name}: {after.state}{f': {after.why}' if after.why else ''}")

    async def _keep(self, target: Target) -> None:
        """Hold a connection until the server ends."""
        failures = 0
        while not self.ending.is_set():
            try:
                was_up = await self._connection(target)
            except (OSError, HostError) as error:
                self._set(target.name, state=State.LOST, why=str(error), process="", worker=0)
                was_up = False
            failures = 0 if was_up else failures + 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), PAUSES[min(failures, len(PAUSES) - 1)])

    async def _connection(self, target: Target) -> bool:
        """One connection from its start to its end; whether its worker came up."""
        # Another process may take it first: ssh, or the worker, then ends, and the next try has another.
        port = 0 if target.launcher else free_port()
        program = await asyncio.create_subprocess_exec(
            *target.argv(int(self.address.rpartition(":")[2]), port),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=Path.home(),
            start_new_session=True,
        )
        here = state.this_process()
        process = Process(here.machine, here.boot, program.pid, state.started(program.pid))
        self._set(target.name, process=str(process))
        talk = _Talk(self, target, program, port)
        tasks = [asyncio.create_task(one) for one in (talk.greet(), talk.hear(), talk.log())]
        ended = asyncio.create_task(program.wait())
        ending = asyncio.create_task(self.ending.wait())
        await asyncio.wait([ended, ending], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await self._end(program, ended)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*tasks[1:], return_exceptions=True), 2.0)
        for task in (*tasks, ending):
            task.cancel()
        if not self.ending.is_set():
            why = talk.error or talk.last or f"ended with status {program.returncode}"
            self._set(target.name, state=State.LOST, why=why, process="", worker=0)
        return talk.came_up

    async def _end(self, program: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
        """Close the pipe, at which the worker ends, and end the program when it does not."""
        assert program.stdin
        program.stdin.close()
        for seconds, kind in ((cluster.END_SECONDS, signal.SIGTERM), (5.0, signal.SIGKILL)):
            done, _ = await asyncio.wait([ended], timeout=seconds)
            if done:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, kind)
        await ended


class _Talk:
    """The three streams of a connection's program."""

    def __init__(
        self, server: _Server, target: Target, program: asyncio.subprocess.Process, port: int
    ) -> None:
        self.server, self.target, self.program, self.port = server, target, program, port
        self.forwarded: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.came_up, self.error, self.last = False, "", ""

    async def greet(self) -> None:
        """Say what the worker needs to know, then a line every BEAT_SECONDS."""
        assert self.program.stdin
        address = self.server.address
        if self.target.ssh:
            try:
                there = await asyncio.wait_for(self.forwarded, FORWARD_SECONDS)
            except TimeoutError:
                self.error = f"ssh forwards no port within {FORWARD_SECONDS:.0f} s"
                self.program.terminate()
                return
            address = f"tls://{cluster.LOOPBACK}:{there}"
        greeting = Greeting(
            scheduler=address,
            name="" if self.target.launcher else self.target.name,
            port=self.port,
            certificate=self.server.order.certificate.read_text(),
            key=self.server.order.key.read_text(),
        )
        with contextlib.suppress(ConnectionError):
            self.program.stdin.write(greeting.model_dump_json().encode() + b"\n")
            while True:
                await self.program.stdin.drain()
                await asyncio.sleep(BEAT_SECONDS)
                self.program.stdin.write(b"\n")

    async def hear(self) -> None:
        """Take the worker's answers; whatever else a shell prints there is passed over."""
        assert self.program.stdout
        async for line in self.program.stdout:
            try:
                answer = Answer.model_validate_json(line)
            except ValidationError:
                continue
            self.error = answer.error
            if not answer.error:
                self.came_up = True
                self.server._set(self.target.name, state=State.UP, why="", worker=answer.process)

    async def log(self) -> None:
        """Pass on what ssh and the worker print; keep the last line."""
        assert self.program.stderr
        async for line in self.program.stderr:
            text = line.decode(errors="replace").rstrip()
            if match := ALLOCATED.match(text):
                if not self.forwarded.done():
                    self.forwarded.set_result(int(match[1]))
                continue
            self.last = text or self.last
            self.server.say(f"{self.target.name}: {text}")
