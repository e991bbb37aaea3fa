# SPDX-License-Identifier: GPL-2.0-only
"""A program is compiled once for each image and command; other guests are given the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numalab.core import state
from numalab.core.errors import CommandFailed
from numalab.core.process import Deadline
from numalab.maintenance import gc
from numalab.measure import programs
from numalab.model.values import Phase
from tests.unit.makers import FakeShell

PHASE = Phase(
    name="compile-x", command="gcc -o /root/nas/x", limit_seconds=10, measured=False, makes="/root/nas/x"
)
Answer = Callable[..., tuple[int, str, str]]


def guest(image_id: str = "a" * 16, answer: Answer = lambda *_: (0, "", ""), *, kept: bool = False) -> Any:
    shell: Any = FakeShell(answer)
    shell.name, shell.record = "g", SimpleNamespace(image_id=image_id, kept=kept)
    shell.ssh = SimpleNamespace(copy=lambda *, source, target, deadline: Path(target).write_text(source))
    return shell


def test_compiled_once(deadline: Deadline) -> None:
    first, second, other = guest(), guest(), guest("b" * 16)
    programs.give(first, PHASE, deadline)
    programs.give(second, PHASE, deadline)
    programs.give(other, PHASE, deadline)
    assert first.commands == other.commands == [f"mkdir -p /root/nas && {PHASE.command}"]
    assert second.commands == ["mkdir -p /root/nas && cat > /root/nas/x && chmod 755 /root/nas/x"]
    assert programs.kept("a" * 16, PHASE).read_text() == "guest:/root/nas/x"
    changed = PHASE.model_copy(update={"command": "gcc -O3 -o /root/nas/x"})
    measured = Phase(name="touch", command="/root/nas/x", limit_seconds=10)
    assert programs.missing("a" * 16, [PHASE, changed, measured]) == [changed]


def test_nothing_is_kept_of_a_program_that_does_not_compile(deadline: Deadline) -> None:
    with pytest.raises(CommandFailed, match="no main"):
        programs.give(guest(answer=lambda *_: (1, "", "no main")), PHASE, deadline)
    assert list(state.folder("programs").iterdir()) == []


def test_what_a_persons_guest_compiles_is_not_kept(deadline: Deadline) -> None:
    """Its compiler may be another by now. What is kept already is good for it too."""
    theirs = guest(kept=True)
    programs.give(theirs, PHASE, deadline)
    assert programs.missing("a" * 16, [PHASE]) == [PHASE]
    programs.give(guest(), PHASE, deadline)
    programs.give(theirs, PHASE, deadline)
    assert [command.split(" && ")[1].split()[0] for command in theirs.commands] == ["gcc", "cat"]


def test_programs_of_an_image_that_is_gone_are_removed(deadline: Deadline) -> None:
    state.folder("images", "debian12", "a" * 16)
    for image_id in ("a" * 16, "b" * 16):
        programs.give(guest(image_id), PHASE, deadline)
    being_made = state.scratch(programs.kept("c" * 16, PHASE))
    being_made.touch()
    gone = programs.kept("b" * 16, PHASE)
    assert list(gc._unused_programs()) == [f"program {gone.name}: its image is gone"]
    assert not gone.exists()
    assert programs.kept("a" * 16, PHASE).exists()
    assert being_made.exists(), "another lab.py is copying it"
