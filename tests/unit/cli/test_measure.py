# SPDX-License-Identifier: GPL-2.0-only
"""lab.py measure: the guest that a workload gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from numalab.core import state
from numalab.core.process import Deadline
from numalab.guest import launch, ready
from numalab.guest.launch import GuestRequest
from numalab.measure import preparation, runner
from numalab.model.guest import PreparedDisks
from numalab.model.run import Run
from numalab.model.values import Clock, SizeClass
from tests.unit import synthetic
from tests.unit.cli.conftest import LabPy


class Lab:
    """Replaces what brings guests up, and the runner."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.request: GuestRequest | None = None
        self.options: runner.Options | None = None

    def _up(self, how: str, request: GuestRequest) -> Any:
        self.happened.append(how)
        self.request = request
        lab = self

        class Guest:
            name = request.name

            def down(self, deadline: Deadline) -> None:
                lab.happened.append("down")

        return Guest()

    def booted(self, request: GuestRequest, host: object, deadline: Deadline) -> Any:
        """See launch.up."""
        return self._up("boot", request)

    def restored(self, request: GuestRequest, host: object, deadline: Deadline) -> Any:
        """See ready.up."""
        return self._up("restored", request)

    @contextmanager
    def disks(self, request: GuestRequest, work: preparation.Work, *_: object) -> Iterator[PreparedDisks]:
        """See preparation.disks."""
        self.happened.append(f"disks of {work.workload}")
        yield synthetic.disks_of("a1")
        self.happened.append("disks free")

    def run(
        self, guest: object, workload: str, size: SizeClass, deadline: Deadline, options: runner.Options
    ) -> tuple[Run, Path]:
        """See runner.run."""
        self.options = options
        return synthetic.run("6.1", synthetic.phase("repair-bhash")), state.folder("runs") / "it"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab()
    monkeypatch.setattr(launch, "up", made.booted)
    monkeypatch.setattr(ready, "up", made.restored)
    monkeypatch.setattr(preparation, "disks", made.disks)
    monkeypatch.setattr(runner, "run", made.run)
    return made


def test_in_a_fresh_guest(lab_py: LabPy, lab: Lab) -> None:
    assert lab_py("measure", "xfsrepair")[0] == 0
    assert lab.happened == ["boot", "down"]
    assert lab.request
    assert (lab.request.clock, lab.request.pin, lab.request.prepared) == (None, "auto", None)
    assert lab.request.seed is not None
    assert lab.options == runner.Options()


def test_from_a_ready_state(lab_py: LabPy, lab: Lab) -> None:
    """With what such a state has, where nothing else is asked for."""
    assert lab_py("measure", "remote", "--ready")[0] == 0
    assert lab.happened == ["restored", "down"]
    assert lab.request
    assert (lab.request.clock, lab.request.pin, lab.request.seed) == (Clock.HOST, "off", None)
    lab_py("measure", "remote", "--ready", "--clock", "virtual", "--seed", "7", "--pin", "0=0")
    assert (lab.request.clock, lab.request.pin, lab.request.seed) == (Clock.VIRTUAL, "0=0", 7), (
        "refused there"
    )


def test_on_prepared_disks(lab_py: LabPy, lab: Lab) -> None:
    """They are kept until the guest is gone."""
    assert lab_py("measure", "xfsrepair", "--prepared-disks")[0] == 0
    assert lab.happened == ["disks of xfsrepair", "boot", "down", "disks free"]
    assert lab.request
    assert lab.request.prepared == synthetic.disks_of("a1")
    assert lab.options == runner.Options(prepared=True)


@pytest.mark.parametrize(
    "words",
    [
        ["--ready"],
        ["--prepared-disks"],
        ["--kernel", "6.12"],
        ["--memory", "4G"],
        ["--seed", "5"],
        ["-t", "tiers"],
    ],
)
def test_a_guest_that_is_up_has_begun(lab_py: LabPy, lab: Lab, words: list[str]) -> None:
    code, _, err = lab_py("measure", "xfsrepair", "--on", "g", *words)
    assert code == 2
    assert f"error: {words[0].replace('-t', '--topology')}: guest g is up already" in err


def test_an_empty_name_is_no_fresh_guest(lab_py: LabPy, lab: Lab) -> None:
    """As from a variable of the shell that is not set."""
    code, _, err = lab_py("measure", "xfsrepair", "--on", "")
    assert (code, lab.happened) == (2, [])
    assert "'' is not a name" in err


def test_a_state_has_its_own_disks(lab_py: LabPy, lab: Lab) -> None:
    """Said before any are prepared, which may take hours."""
    code, _, err = lab_py("measure", "xfsrepair", "--ready", "--prepared-disks")
    assert (code, lab.happened) == (2, [])
    assert "error: --ready: not with --prepared-disks" in err
