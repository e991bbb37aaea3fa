# SPDX-License-Identifier: GPL-2.0-only
"""lab.py kernel."""

from __future__ import annotations

import json

import pytest

from numalab.cli import kernel as kernel_commands
from numalab.kernel import build
from tests.unit.cli.conftest import LabPy


def test_show_says_what_it_lacks(lab_py: LabPy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose source or patches were never fetched, or that lacks its compiler, has no key."""
    monkeypatch.setattr(kernel_commands, "_image", lambda *_: None)
    monkeypatch.setattr(build, "make_plan", lambda *_, **__: None)
    status, out, err = lab_py("kernel", "show", "6.12")
    assert status == 0
    assert "key" not in json.loads(out)
    assert "kernel 6.12: not all that a build needs is here" in err
    assert lab_py("kernel", "show", "debian")[2] == "", "nothing is built of it"
