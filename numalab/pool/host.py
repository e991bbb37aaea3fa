# SPDX-License-Identifier: GPL-2.0-only
"""The worker on a host of the pool: what the host has, a Dask worker with one thread, and its end.

Standard input has one line of JSON (Greeting), then a line every BEAT_SECONDS. Without one for
SILENCE_SECONDS, or at its end, the worker ends what runs and then itself: whoever held it is gone, or cannot
reach it. Not here: what the worker does (worker), who starts it (server).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

import dask.config
import distributed

from numalab.core import state
from numalab.core.errors import HostError, LabError
from numalab.core.process import Deadline
from numalab.core.version import version
from numalab.host import accelerator, image
from numalab.host.hypervisor import connect
from numalab.host.remote import HERE
from numalab.model.values import Accel, Stored, Value
from numalab.pool import cluster, travel, worker

BEAT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
"""A busy host was seen to hold back processes for 6 s; ssh gives a host up after 15 s."""
PROBE_SECONDS = 300.0
"""Limit of the look at what the host has: QEMU boots, and libvirtd may have to start."""
START_SECONDS = 60.0
LAST_SWEEP_SECONDS = 20.0
"""Limit of the sweep at the end. What it leaves, the next worker here removes."""
POLL_SECONDS = 0.5


class Greeting(Value):
    """What the server says first."""

    scheduler: str
    name: str = ""
    """'': the node's name."""
    port: int = 0
    """Where the worker listens on loopback. 0: any port of the address by which it reaches the scheduler."""
    certificate: str
    key: str


class Answer(Stored):
    """What the worker prints: once when it is up, or why it cannot be."""

    process: int
    error: str = ""


class Resources(Value):
    """What a host offers."""

    memory: int
    """Bytes free for guests."""
    cpus: int
    kvm: bool
    software: str
    """Versions of QEMU and libvirt."""


def probe(deadline: Deadline) -> Resources:
    """What this host offers. Raises HostError."""
    here = connect(None, deadline)
    if guest_image := image.existing("debian12", deadline):
        chosen = accelerator.choose("auto", guest_image.file("vmlinuz"), deadline)
        kvm = chosen.accel is Accel.KVM
    else:  # there is no kernel to try KVM with: it is tried when an image has come from home
        kvm = accelerator.device(HERE, deadline) == "usable"
    return Resources(
        memory=here.free_memory(deadline),
        cpus=len(os.sched_getaffinity(0)),
        kvm=kvm,
        software=f"QEMU {accelerator.qemu_version(deadline)}, {here.version()}",
    )


def serve(
    stream: BinaryIO,
    say: Callable[[str], None],
    cancel: threading.Event,
    probed: Callable[[Deadline], Resources] = probe,
    swept: Callable[[float], None] = worker.sweep,
) -> None:
    """Work until `stream` ends or is silent, or `cancel` is set. Raises HostError."""
    file = stream.fileno()
    greeting = Greeting.model_validate_json(_first_line(file))
    threading.Thread(target=_listen, args=(file, cancel), daemon=True).start()
    try:
        swept(worker.SWEEP_SECONDS)  # before memory is counted: a killed worker's guests have some
        resources = probed(Deadline.after(PROBE_SECONDS, cancel))
        with dask.config.set(cluster.QUIET):
            asyncio.run(_work(greeting, resources, say, cancel, probed))
        swept(LAST_SWEEP_SECONDS)
    except LabError as error:
        say(Answer(process=os.getpid(), error=str(error)).model_dump_json())
        raise
    finally:
        cancel.set()


def _first_line(file: int) -> bytes:
    """The first line, read byte by byte: what follows is _listen's."""
    line, until = b"", time.monotonic() + SILENCE_SECONDS
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([file], [], [], max(0.0, until - time.monotonic()))
        byte = os.read(file, 1) if ready else b""
        if not byte:
            raise HostError("pool worker: no greeting on standard input: lab.py pool up starts it")
        line += byte
    return line


def _listen(file: int, cancel: threading.Event) -> None:
    """Set `cancel` when nobody holds this worker any more, and see to it that the process ends."""
    while not cancel.is_set():
        ready, _, _ = select.select([file], [], [], SILENCE_SECONDS)
        if not ready or not os.read(file, 4096):
            break
    cancel.set()
    # A round that hangs must not keep the process for ever: SIGALRM ends it then.
    signal.alarm(int(1.5 * cluster.END_SECONDS))


async def _work(
    greeting: Greeting,
    resources: Resources,
    say: Callable[[str], None],
    cancel: threading.Event,
    probed: Callable[[Deadline], Resources],
) -> None:
    """A Dask worker until `cancel` is set, or the scheduler goes away."""
    about = {"version": version(), "software": resources.software, "state": str(state.directory())}

    async def facts(_worker: distributed.Worker) -> dict[str, str]:
        return about

    offered: dict[str, float] = {
        "memory": resources.memory,
        "cpus": resources.cpus,
        "tcg": 1,
        "kvm": int(resources.kvm),
    }
    with state.temporary() as scratch:
        try:
            node = distributed.Worker(
                greeting.scheduler,
                name=greeting.name or os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
                security=cluster.security(greeting.certificate, greeting.key),
                protocol="tls",
                host=cluster.LOOPBACK if greeting.port else None,
                port=greeting.port,
                contact_address=f"tls://{cluster.LOOPBACK}:{greeting.port}" if greeting.port else None,
                nthreads=1,
                memory_limit=0,
                resources=offered,
                local_directory=scratch,
                startup_information={"numalab": facts},
                dashboard_address=f"{cluster.LOOPBACK}:0",
                dashboard=False,
            )
            await asyncio.wait_for(node, START_SECONDS)
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise HostError(f"the worker does not start: {error or 'no answer of the scheduler'}") from error
        say(Answer(process=os.getpid()).model_dump_json())
        while not cancel.is_set() and node.status is distributed.core.Status.running:
            await asyncio.sleep(POLL_SECONDS)
            if travel.image_came.is_set():
                travel.image_came.clear()
                with contextlib.suppress(LabError):  # the next round says so
                    again = await asyncio.to_thread(probed, Deadline.after(PROBE_SECONDS, cancel))
                    await node.set_resources(kvm=int(again.kvm))
        worker.close()
        if node.status is distributed.core.Status.running:
            node.status = distributed.core.Status.paused  # the session sees it, and sends nothing more
        until = time.monotonic() + cluster.END_SECONDS
        while node.state.executing and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(node.close(executor_wait=False, nanny=False), START_SECONDS)
