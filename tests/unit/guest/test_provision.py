# SPDX-License-Identifier: GPL-2.0-only
"""Settings of a guest, by the script that a guest runs: here on this machine, with settings that it has already,
so that nothing is written."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from numalab.core.errors import CommandFailed
from numalab.core.process import Deadline
from numalab.guest import provision
from numalab.guest.guest import Guest
from numalab.guest.provision import Order
from tests.unit.makers import FakeShell

OSTYPE = {"kernel.ostype": "Linux"}


def here(command: str, input: bytes | None) -> tuple[int, str, str]:
    """A command of the guest, on this machine."""
    done = subprocess.run(["sh", "-c", command], input=input, capture_output=True, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def apply(**words: Any) -> dict[str, str]:
    return provision.apply(cast(Guest, FakeShell(here)), Order(**words), Deadline.after(10))


def test_what_is_set_is_returned() -> None:
    assert apply(sysctls=OSTYPE) == OSTYPE


def test_a_sysctl_that_the_kernel_lacks_is_replaced() -> None:
    """The record has what was set, not what was asked for."""
    lacked = {"vm.no_such_setting": "1000"}
    assert apply(sysctls=lacked, instead={"vm.no_such_setting": OSTYPE}) == OSTYPE


def test_a_sysctl_that_the_kernel_lacks_may_be_left_out() -> None:
    """Then it is not in the record either."""
    lacked = {"vm.no_such_setting": "1000"}
    assert apply(sysctls=lacked | OSTYPE, instead={"vm.no_such_setting": {}}) == OSTYPE


def test_a_sysctl_that_the_kernel_has_is_not_replaced() -> None:
    other = {"kernel.ostype": {"vm.no_such_setting": "1"}}
    assert apply(sysctls=OSTYPE, instead=other) == OSTYPE


def test_without_another_a_missing_sysctl_is_an_error() -> None:
    release = Path("/proc/sys/kernel/osrelease").read_text().strip()
    with pytest.raises(CommandFailed, match=rf"{release} has no sysctl vm\.no_such_setting"):
        apply(sysctls={"vm.no_such_setting": "1"})


def test_the_replacement_must_be_there() -> None:
    with pytest.raises(CommandFailed, match=r"has no sysctl vm\.nor_this_one"):
        apply(sysctls={"vm.no_such_setting": "1"}, instead={"vm.no_such_setting": {"vm.nor_this_one": "1"}})


def test_modules_are_known_by_their_build(tmp_path: Path) -> None:
    """A kernel that is built anew from other patches has the same release."""
    archive = tmp_path / "modules.tar"
    builds = set()
    for content in ("one", "two"):
        archive.write_text(content)
        builds.add(provision._modules(archive)["bootloader_build"])
    assert len(builds) == 2
    assert provision._modules(None) == {}
