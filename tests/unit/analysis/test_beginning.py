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


def on(key: str) -> Run:
    """A run on prepared disks."""
    disks = synthetic.disks_of(key)
    run = synthetic.run("6.1", prepared=disks.phases)
    return run.model_copy(update={"guest": run.guest.model_copy(update={"prepared": disks})})


def test_disks_of_their_own_need_no_word() -> None:
    """A person's guest may stand on such disks, and run all phases."""
    assert beginning.prepared([on("a1").model_copy(update={"prepared": ()})]) == ""


def test_prepared_disks_are_named_and_what_runs_lack() -> None:
    assert beginning.prepared([on("a1"), on("a1"), begun("")]) == (
        "2 of 3 boots began on prepared disks (a1, made with 6.1 6.1-numalab): mkfs, fsmark, umount were done once, in another"
        " guest, and are no part of them"
    )
    assert "(a1, made with 6.1 6.1-numalab; b2, made with" in beginning.prepared([on("a1"), on("b2")])
