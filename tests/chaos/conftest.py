# SPDX-License-Identifier: GPL-2.0-only
"""Options of the chaos test; its labs are those of tests/vm."""

from __future__ import annotations

import os
import random

import pytest


@pytest.fixture(scope="session")
def seed() -> int:
    """SEED, or a random one: the same seed repeats the rounds."""
    return int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))


@pytest.fixture(scope="session")
def rounds() -> int:
    """The number of rounds: ROUNDS."""
    return int(os.environ.get("ROUNDS") or 20)
