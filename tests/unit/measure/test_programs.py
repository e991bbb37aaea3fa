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

PHASE = Phase(name="compile-x", command="gcc -o /root/x", limit_seconds=10, measured=False, makes="/root/x")
Answer = Callable[..., tuple[int, str, str]]


def guest(image_id: str = "a" * 16, answer: Answer = lambda *_: (0, "", "")) -> Any:
    shell: Any = FakeShell(answer)
    shell.name, shell.record = "g", SimpleNamespace(image_id=image_id)
    shell.ssh = SimpleNamespace(copy=lambda *, source, target, deadline: Path(target).write_text(source))
    return shell


def test_compiled_once(deadline: Deadline) -> None:
    first, second, other = guest(), guest(), guest("b" * 16)
    programs.give(first, PHASE, deadline)
    programs.give(second, PHASE, deadline)
    programs.give(other, PHASE, deadline)
    assert first.commands == other.commands == [PHASE.command]
    assert second.commands == ["cat > /root/x && chmod 755 /root/x"]
    assert programs.kept("a" * 16, PHASE).read_text() == "guest:/root/x"
    changed = PHASE.model_copy(update={"command": "gcc -O3 -o /root/x"})
    measured = Phase(name="touch", command="/root/x", limit_seconds=10)
    assert programs.missing("a" * 16, [PHASE, changed, measured]) == [changed]


def test_nothing_is_kept_of_a_program_that_does_not_compile(deadline: Deadline) -> None:
    with pytest.raises(CommandFailed, match="no main"):
        programs.give(guest(answer=lambda *_: (1, "", "no main")), PHASE, deadline)
    assert list(state.folder("programs").iterdir()) == []


def test_programs_of_an_image_that_is_gone_are_removed(deadline: Deadline) -> None:
    state.folder("images", "debian12", "a" * 16)
    for image_id in ("a" * 16, "b" * 16):
        programs.give(guest(image_id), PHASE, deadline)
    assert gc._unused_programs() == [programs.kept("b" * 16, PHASE)]
    assert programs.kept("a" * 16, PHASE).exists()
