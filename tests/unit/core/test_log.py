# SPDX-License-Identifier: GPL-2.0-only
"""Steps: begin, end or failure, and the guest; the handler decides how they look."""

from __future__ import annotations

import logging

import pytest

from numalab.core.log import moving, note, step, tell


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, ...]]:
    """Level, whose, what and state of every record."""
    return [
        (record.levelname, *(str(vars(record)[key]) for key in ("who", "step", "state")))
        for record in caplog.records
    ]


def test_a_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "numalab")
    with step("boot", who="g"):
        assert told(caplog) == [("DEBUG", "g", "boot", "begin")]
    assert told(caplog)[1:] == [("INFO", "g", "boot", "done")]
    assert caplog.messages[1].startswith("g: boot: ")
    assert vars(caplog.records[1])["seconds"] >= 0


def test_a_step_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "numalab")
    with pytest.raises(KeyError), step("boot"):
        raise KeyError
    assert told(caplog)[1:] == [("DEBUG", "", "boot", "failed")]


def test_a_note(caplog: pytest.LogCaptureFixture) -> None:
    note("emulated", who="g")
    assert told(caplog) == [("WARNING", "g", "emulated", "note")]
    assert caplog.messages == ["g: emulated"]


def test_what_came_out_is_for_everybody_and_what_moves_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "numalab")
    tell("boot 1 of 6", who="mine")
    moving("numa_pte_updates +5")
    assert told(caplog) == [
        ("INFO", "mine", "boot 1 of 6", "message"),
        ("DEBUG", "", "numa_pte_updates +5", "moving"),
    ]
    assert caplog.messages == ["mine: boot 1 of 6", "numa_pte_updates +5"]
