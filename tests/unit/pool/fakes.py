# SPDX-License-Identifier: GPL-2.0-only
"""A guest that sleeps and counts, and a pool of processes on this machine: no libvirt, no emulated boot.

A host is a Dask worker with a state directory of its own. What it does is decided by files there: while
`hold` (or `hold-ROUND`) exists, a round waits; `error` is a lab error's text, `crash` a kernel's. It writes `began-ORDER-ROUND`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import dask
import distributed

from numalab.core import state
from numalab.core.errors import GuestError, KernelOops
from numalab.core.process import Deadline
from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.model.units import GIB
from numalab.model.values import SizeClass
from numalab.pool import cluster, worker
from numalab.pool.unit import Order, Unit
from numalab.runs import record
from tests.unit import synthetic
from tests.unit.makers import until

LIMIT_SECONDS = 300.0
FORKS = multiprocessing.get_context("forkserver")
"""Schedulers and hosts are forked from one process of this test session, which has imported what they need:
that takes each of them 0.8 s of processor time."""
FORKS.set_forkserver_preload(
    ["distributed.cli.dask_scheduler", "distributed.cli.dask_worker", "tests.unit.pool.test_supply"]
)


def order(number: int, rounds: int, *, seconds: float = 500.0, spread: int = 1, accel: str = "auto") -> Order:
    """An order of `rounds` rounds of two kernels."""
    return Order(
        id=f"{number:05}-fake",
        case="fake",
        size=SizeClass.QUICK,
        kernels=("before", "after"),
        topology="4socket",
        rounds=rounds,
        looks=(rounds,),
        needs_memory=GIB,
        round_seconds=seconds,
        spread=spread,
        accel=accel,
    )


def perform(text: str, checkout: str) -> dict[str, Any]:
    """numalab.pool.worker.perform with the fake guest."""
    return worker.perform_with(text, checkout, measure)


def measure(unit: Unit, limit: Callable[[float], Deadline]) -> str:
    """Write a small run for each boot of the round."""
    place, deadline = state.directory(), limit(LIMIT_SECONDS)
    (place / f"began-{unit.order.id}-{unit.number}").touch()
    holds = [place / "hold", place / f"hold-{unit.number}"]
    while any(hold.exists() for hold in holds):
        deadline.check("the fake guest")
        deadline.pause(0.02)
    if (place / "error").exists():
        raise GuestError((place / "error").read_text())
    for position, boot in enumerate(unit.boots):
        if position and (place / "crash").exists():
            raise KernelOops((place / "crash").read_text())
        arm = Arm.AFTER if position else Arm.BEFORE
        run = _run(unit.order.kernels[position], arm)
        assert run.place
        fresh = run.model_copy(
            update={
                "id": f"{unit.experiment}-{boot}-{secrets.token_hex(4)}",
                "host": {**run.host, "machine": place.name},
                "place": run.place.model_copy(
                    update={"experiment": unit.experiment, "boot": boot, "block": unit.block}
                ),
            }
        )
        with state.making(state.folder("runs") / fresh.id) as folder:
            record.write(fresh, folder)
    return unit.settled or f"settled by {place.name}"


@cache
def _run(kernel: str, arm: Arm) -> Run:
    """What all runs of a kernel have: that of its topology's file takes longer than all else here."""
    return synthetic.run(kernel, arm=arm)


class Pool:
    """A scheduler and hosts, each a process; all are ended with the block. `tls`: as a real pool's."""

    def __init__(self, place: Path, *, ttl: str = "300s", tls: bool = False) -> None:
        self.place, self.ttl = place, ttl
        self._keys = tuple(map(str, cluster.make_keys(Deadline.after(LIMIT_SECONDS)))) if tls else ()
        self._stack = ExitStack()
        self._processes: dict[str, BaseProcess] = {}
        self._file = place / "scheduler.json"

    def __enter__(self) -> Self:
        self.start_scheduler()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        for name in list(self._processes):
            self.kill(name)

    def start_scheduler(self) -> None:
        """Start a scheduler, also instead of a killed one."""
        self._file.unlink(missing_ok=True)
        self._start(
            "scheduler",
            f"scheduler --host 127.0.0.1 --port 0 --no-dashboard --no-jupyter --scheduler-file {self._file}",
        )
        until(lambda: self._file.exists() and self._file.read_text().rstrip().endswith("}"), LIMIT_SECONDS)

    def start(self, name: str, folder: Path | None = None) -> Path:
        """Start a host's worker; returns the host's state directory."""
        folder = folder or self.state(name)
        folder.mkdir(exist_ok=True)
        resources = f"memory={8 * GIB} cpus=2 tcg=1"
        self._start(
            name,
            f"worker {self.address} --name {name} --host 127.0.0.1 --nthreads 1 --memory-limit 0 --no-nanny"
            f" --no-dashboard --local-directory {self.place / 'dask'}",
            "--resources",
            resources,
            LAB_STATE=str(folder),
        )
        return folder

    def state(self, name: str) -> Path:
        """A host's state directory."""
        return self.place / name

    @property
    def address(self) -> str:
        """The scheduler's."""
        return str(json.loads(self._file.read_text())["address"])

    def client(self) -> distributed.Client:
        """A new client, closed with the pool."""
        security = cluster.security(*self._keys) if self._keys else None
        client = distributed.Client(self.address, security=security, timeout=10, set_as_default=False)
        self._stack.callback(client.close, timeout=2)
        return client

    def pid(self, name: str) -> int:
        """The process of a host, or of the scheduler."""
        number = self._processes[name].pid
        assert number
        return number

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self._processes.pop(name)
        if process.is_alive():  # else its number may be another's by now
            process.kill()
        process.join()

    def freeze(self, name: str) -> None:
        """Stop a process until `thaw`."""
        os.kill(self.pid(name), signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let it go on."""
        os.kill(self.pid(name), signal.SIGCONT)

    def _start(self, name: str, words: str, *more: str, **environment: str) -> None:
        program, *rest = words.split()
        certificate, key = self._keys or ("", "")
        tls = ["--tls-ca-file", certificate, "--tls-cert", certificate, "--tls-key", key, "--protocol", "tls"]
        settings = {
            "distributed.scheduler.allowed-failures": 0,
            "distributed.scheduler.work-stealing": False,
            "distributed.scheduler.worker-ttl": self.ttl,
            **cluster.QUIET,
        }
        process = FORKS.Process(
            target=_serve,
            args=(
                program,
                [*rest, *(tls if key else ()), *more],
                {**os.environ, **environment},
                settings,
                self.place / f"{name}.log",
            ),
            daemon=True,  # pytest does not wait for one whose test was interrupted
        )
        process.start()
        self._processes[name] = process


def _serve(
    program: str, words: list[str], environment: dict[str, str], settings: dict[str, Any], log: Path
) -> None:
    """`python -m distributed.cli.dask_PROGRAM`, in a process that was forked: it ends with pytest."""
    os.setsid()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    dask.config.refresh()
    dask.config.set(settings)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import_module(f"distributed.cli.dask_{program}").main(words)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


def alive(pool: Pool, name: str) -> bool:
    """Whether a process of the pool still runs."""
    return state.alive(pool.pid(name))
