# SPDX-License-Identifier: GPL-2.0-only
"""Records of guests: what an earlier numalab made is read, whatever rules have come since."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from numalab.model.guest import GuestRecord
from numalab.model.values import jsonable
from tests.unit.makers import record_of, spec


def stored(**topology: Any) -> str:
    """guest.json of a guest with such a topology."""
    data = jsonable(record_of(spec("2socket")))
    data["spec"]["topology"] |= topology
    return json.dumps(data)


@pytest.mark.parametrize(
    "topology",
    [
        {"vcpus": 2, "nodes": [{"cpus": "1", "memory": "1GiB"}, {"cpus": "0", "memory": "1GiB"}]},
        {"vcpus": 2, "nodes": [{"cpus": "", "memory": "1GiB"}, {"cpus": "0-1", "memory": "1GiB"}]},
        {"vcpus": 240, "sockets": 12, "nodes": []},
    ],
)
def test_a_rule_that_was_added_since_makes_no_record_unreadable(topology: dict[str, Any]) -> None:
    text = stored(**{"sockets": 1, "memory": "2GiB", "distances": [], **topology})
    assert GuestRecord.from_json(text).spec.topology.vcpus == topology["vcpus"]
    with pytest.raises(ValidationError, match=r"spec\.topology"):
        GuestRecord.model_validate_json(text)


def test_a_record_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValidationError, match="vCPU 0 is in node 0 and again in node 1"):
        GuestRecord.from_json(
            stored(nodes=[{"cpus": "0", "memory": "1GiB"}, {"cpus": "0", "memory": "1GiB"}])
        )
