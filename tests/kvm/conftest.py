# SPDX-License-Identifier: GPL-2.0-only
"""The machine with KVM, made once for all tests here; see outer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from numalab.core.process import Deadline
from tests.kvm.outer import Outer, machine

KERNELS = ("6.1", "6.1-savedwrite-before")
"""Kernels of this host that are there: by name, or as {KERNELS}/NAME.yml."""


@pytest.fixture(scope="session")
def outer() -> Iterator[Outer]:
    with machine(KERNELS, Deadline.after(3600)) as running:
        yield running
