# SPDX-License-Identifier: GPL-2.0-only
"""benchmarks/hangs.py without a guest: kinds of hangs from what lab.py says, counts and their bounds."""

from __future__ import annotations

import pytest

from benchmarks import hangs
from numalab.core.errors import BootHung
from numalab.core.process import Deadline
from numalab.guest import launch
from tests.unit.guest import test_guest
from tests.unit.makers import FakeHost

host = test_guest.host


def test_the_kinds_are_those_that_lab_py_tells(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, deadline: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    """From a real `up` over a host whose guests hang: two are begun again, the third is the error."""
    test_guest.boots(monkeypatch, "hang", "hang", "hang")
    with pytest.raises(BootHung) as caught:
        launch.up(test_guest.request(), host.real(), deadline)
    said = "\n".join([*(record.getMessage() for record in caplog.records), f"lab.py: {caught.value}"])
    assert hangs.kinds(said) == ["1 of its CPUs run: sched_clock: Marking stable"] * 3


def test_kinds_of_another_sort() -> None:
    assert hangs.kinds(
        "guest g: its domain is gone: QEMU ended itself: physmem.c:2678: Assertion `a' failed; begun again (x)\n"
        "guest g: oopsed at a breakpoint (QEMU ran an old translation); begun again (y)\n"
        "guest g: up"
    ) == ["physmem.c:N: Assertion `a' failed", "QEMU ran an old translation"]
    assert hangs.kinds("guest g: up") == []


def test_bounds() -> None:
    assert hangs.interval(0, 100) == pytest.approx((0.0, 3.62), abs=0.01)
    assert hangs.interval(3, 5) == pytest.approx((14.7, 94.7), abs=0.1)
    assert hangs.interval(4, 4)[1] == 100.0
    assert hangs.line(97, ["x"] * 3) == "100 boots, 3 hung (0.6 to 8.5 %)"
    assert hangs.line(0, []) == "0 boots, 0 hung (0.0 to 100.0 %)"
