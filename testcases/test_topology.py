# SPDX-License-Identifier: GPL-2.0-only
"""Every topology boots, and the guest shows the expected layout."""

from __future__ import annotations

import pytest

from numalab.core.process import Deadline
from numalab.guest.guest import Guest
from numalab.model import catalog, verification

pytestmark = [pytest.mark.topology(name) for name in catalog.names("topologies")]


@pytest.mark.minutes(5)
def test_topology_is_as_asked(guest: Guest, deadline: Deadline) -> None:
    rows = guest.verify(deadline)
    assert all(row.agrees for row in rows), verification.layout_table(rows)
    assert {
        f"node {node} CPUs" for node in verification.expected_layout(guest.record.spec.topology).nodes
    } <= {row.what for row in rows}
