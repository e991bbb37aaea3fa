# SPDX-License-Identifier: GPL-2.0-only
"""The machine with KVM, made once for all tests here, and again where it crashes; see outer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from numalab.core.process import Deadline
from tests.kvm.outer import Outer, OuterCrashed, machine

KERNELS = ("6.1", "6.1-savedwrite-before")
"""Kernels of this host that are there: by name, or as {KERNELS}/NAME.yml."""
MOST_CRASHES = 2
"""A test whose machine crashed so often fails with the next crash."""
CONSOLE_END = 3000
"""How much of the machine's console a failed test shows, in characters."""


class Machines:
    """One machine at a time."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.last: Outer | None = None

    def running(self) -> Outer:
        """The machine; another where it has crashed."""
        if self.last is None or not self.last.alive:
            self.stack.close()
            self.last = self.stack.enter_context(machine(KERNELS, Deadline.after(3600)))
        return self.last


@pytest.fixture(scope="session")
def machines() -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(stack)


@pytest.fixture
def outer(machines: Machines) -> Outer:
    return machines.running()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run a test again on a new machine where its machine crashed, and say so. A failure shows the end of the
    machine's console."""
    machines = pyfuncitem.funcargs["machines"]
    assert isinstance(machines, Machines)
    for _ in range(MOST_CRASHES):
        try:
            _run(pyfuncitem, machines.running())
        except OuterCrashed as crash:
            pyfuncitem.warn(pytest.PytestWarning(f"{crash}\nbegun again on a new machine"))
        else:
            return True
    _run(pyfuncitem, machines.running())
    return True


def _run(pyfuncitem: pytest.Function, outer: Outer) -> None:
    try:
        pyfuncitem.obj(outer)
    except OuterCrashed:
        raise  # its message has it
    except Exception as error:
        error.add_note(f"the machine's console:\n{outer.console[-CONSOLE_END:]}")
        raise
