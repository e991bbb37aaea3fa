# SPDX-License-Identifier: GPL-2.0-only
"""lab.py image build --kernel: image and kernels at the same time, and an error of either."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numalab.cli import main
from numalab.core import log
from numalab.core.errors import CommandFailed, HostError
from numalab.host import image
from numalab.kernel import build as kernel_build
from numalab.kernel.recipe import Kernel
from tests.unit.cli.conftest import LabPy

SECONDS = 60.0
EARLY = "!             {} (the {} will be finished first)"


def made(name: str) -> SimpleNamespace:
    """What stands for an image or a kernel that is built."""
    return SimpleNamespace(
        id="1", directory="d", name=name, key="k", release="r", file=lambda one: Path("d") / one
    )


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """builds(image=…, kernel=…): the errors of the two builds, each of which waits for the other's begin."""
    begun = {"image": threading.Event(), "kernel": threading.Event()}

    def one(what: str, other: str, name: str, error: Exception | None) -> SimpleNamespace:
        begun[what].set()
        if not begun[other].wait(SECONDS):
            raise AssertionError(f"{other} was not begun while {what} was built")
        if error:
            raise error
        return made(name)

    def use(image_error: Exception | None = None, kernel_error: Exception | None = None) -> None:
        def build_kernel(kernel: Kernel, base: object, _: object) -> SimpleNamespace:
            assert base is None
            return one("kernel", "image", kernel.name, kernel_error)

        monkeypatch.setattr(image, "build", lambda name, **_: one("image", "kernel", name, image_error))
        monkeypatch.setattr(kernel_build, "build", build_kernel)

    return use


BOTH = ("image", "build", "debian12", "--kernel", "6.1,6.1-slowscan-before")


def test_image_and_kernels_at_the_same_time(lab_py: LabPy, builds: Callable[..., None]) -> None:
    builds()
    assert lab_py(*BOTH) == (
        0,
        "debian12 1: d\n6.1 k: r: d/bzImage\n6.1-slowscan-before k: r: d/bzImage\n",
        "",
    )


def test_an_error_of_one_does_not_end_the_other(
    lab_py: LabPy, builds: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown at once, and again at the end."""
    builds(image_error=HostError("no network"))
    build_kernel, shown = kernel_build.build, threading.Event()

    def note(what: str) -> None:
        log.note(what)
        shown.set()

    def build_until_shown(*words: Any) -> object:
        built = build_kernel(*words)
        assert shown.wait(SECONDS)
        return built

    monkeypatch.setattr(main, "note", note)
    monkeypatch.setattr(kernel_build, "build", build_until_shown)
    status, out, err = lab_py(*BOTH)
    assert (status, out) == (2, "6.1 k: r: d/bzImage\n6.1-slowscan-before k: r: d/bzImage\n")
    assert err.splitlines() == [
        EARLY.format("no network", "kernels"),
        "lab.py: error: no network",
    ]


def test_both_errors_are_told(lab_py: LabPy, builds: Callable[..., None]) -> None:
    builds(HostError("no network"), CommandFailed("make: no compiler"))
    status, out, err = lab_py(*BOTH)
    assert (status, out) == (2, "")
    early = [EARLY.format("make: no compiler", "image"), EARLY.format("no network", "kernels")]
    lines = sorted(line for line in err.splitlines() if line not in early)
    assert lines == ["lab.py: error: make: no compiler", "lab.py: error: no network"]


def test_a_kernel_that_needs_the_image(lab_py: LabPy, builds: Callable[..., None]) -> None:
    builds(HostError("not reached"), HostError("not reached"))
    status, _, err = lab_py("image", "build", "--kernel", "6.1,6.1-distribution")
    assert (status, err) == (
        2,
        "lab.py: error: --kernel 6.1-distribution: its configuration is the image's: build it afterwards\n",
    )
