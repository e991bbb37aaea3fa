# SPDX-License-Identifier: GPL-2.0-only
"""What tests of the pool share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.pool.fakes import Pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """A Dask scheduler, to which a test adds hosts with fake guests."""
    place = tmp_path / "pool"
    place.mkdir()
    with Pool(place) as made:
        yield made
