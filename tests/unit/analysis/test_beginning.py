# SPDX-License-Identifier: GPL-2.0-only
"""How runs began, in words."""

from __future__ import annotations

from numalab.analysis import beginning
from numalab.model.run import Run
from tests.unit import synthetic


def begun(state: str) -> Run:
    run = synthetic.run("6.1")
    return run.model_copy(update={"guest": run.guest.model_copy(update={"ready_state": state})})


def test_boots_need_no_word() -> None:
    assert beginning.restored([begun(""), begun("")]) == ""


def test_the_states_are_named_once_each() -> None:
    assert beginning.restored([begun("a1"), begun("b2"), begun("a1"), begun("")]) == (
        "3 of 4 boots are none: their guests began from 2 saved states (ready state a1, b2); those of one state"
        " share its boot: kernel addresses, and where memory was by then"
    )
    assert "began from one saved state (ready state a1)" in beginning.restored([begun("a1")])
