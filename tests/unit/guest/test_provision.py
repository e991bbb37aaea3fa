# SPDX-License-Identifier: GPL-2.0-only
"""Settings of a guest, by the script that a guest runs: here on this machine, with settings that it has already,
so that nothing is written."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from numalab.core import state
from numalab.core.errors import BootHung, CommandFailed, GuestError
from numalab.core.process import Deadline
from numalab.guest import guest, provision
from numalab.guest.guest import Guest
from numalab.guest.provision import Order
from numalab.host import ansible, image, ssh
from numalab.host.domain import domain_xml
from numalab.kernel import boot as kernel_boot
from numalab.kernel import recipe
from numalab.model.guest import BootWay
from tests.unit import makers
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


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Guest:
    """A person's guest that runs, into which Ansible installs a kernel."""
    one = Guest(makers.record("dave"), makers.FakeHost().real())
    state.folder("guests", "dave")
    one.save()
    one.host.create(domain_xml(one.record.spec), Deadline.after(1))
    monkeypatch.setattr(image, "pinned", lambda *_: None)
    monkeypatch.setattr(kernel_boot, "resolve", lambda *_: one.record.spec.boot)
    monkeypatch.setattr(kernel_boot, "modules", lambda *_: None)
    monkeypatch.setattr(kernel_boot, "digest", lambda *_: "2" * 16)
    monkeypatch.setattr(ssh, "succeed", lambda *_, **__: "")
    monkeypatch.setattr(provision, "_play", lambda *_: ansible.Recap(ok=1, changed=1, log=Path("log")))
    monkeypatch.setattr(Guest, "reach", lambda *_: None)
    monkeypatch.setattr(Guest, "verify", lambda *_: [])
    return one


def own_kernel(one: Guest) -> int:
    return provision.own_kernel(one, recipe.load("debian"), Deadline.after(10))


def tune(one: Guest) -> object:
    return provision.tune(one, Order(), Deadline.after(10))


def test_its_memory_is_nobody_elses_while_a_guest_restarts(
    mine: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its domain ends under the lock under which all guests are admitted."""
    held: list[str] = []
    ended: list[tuple[str, ...]] = []

    @contextmanager
    def lock(name: str, _deadline: Deadline) -> Iterator[None]:
        held.append(name)
        yield
        held.remove(name)

    stop = mine.host.stop

    def noted_stop(*words: Any, **options: Any) -> None:
        ended.append((*held,))
        stop(*words, **options)

    monkeypatch.setattr(state, "machine_lock", lock)
    monkeypatch.setattr(mine.host, "stop", noted_stop)
    assert own_kernel(mine) == 1
    assert ended == [("admission",)]
    assert mine.host.running(mine.mark)


def test_a_guest_that_does_not_start_again_says_where_its_disks_are(mine: Guest) -> None:
    cast(makers.FakeHost, mine.host).free = 0
    with pytest.raises(
        GuestError,
        match=r"guest dave: was ended .* does not start again: .* requested.*: its disks are in /.*/dave",
    ):
        own_kernel(mine)


@pytest.mark.parametrize("hangs", [1, 2, 3])
def test_a_restart_that_hangs_is_begun_again(
    mine: Guest, hangs: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice; a third hang is the error, and the guest is left as it is."""
    left = [BootHung("guest dave: hung", evidence="last words")] * hangs
    graces: list[float] = []
    stop = mine.host.stop

    def noted_stop(*words: Any, grace: float = 0.0) -> None:
        graces.append(grace)
        stop(*words, grace=grace)

    def reach(*_: object) -> None:
        if left:
            raise left.pop()

    monkeypatch.setattr(mine.host, "stop", noted_stop)
    monkeypatch.setattr(Guest, "reach", reach)
    if hangs < 3:
        assert own_kernel(mine) == 1
    else:
        with pytest.raises(BootHung, match="guest dave: hung"):
            own_kernel(mine)
    again = min(hangs, 2)
    assert guest.read("dave").hung == again
    assert graces == [provision.SHUTDOWN_SECONDS, *[0.0] * again]
    logs = sorted(state.folder("logs").glob("hung-*-dave-*.log"))
    assert [log.read_text() for log in logs] == ["last words\nguest dave: hung\n"] * again
    assert [record.getMessage() for record in caplog.records if "begun again" in record.getMessage()] == [
        f"guest dave: hung; begun again (the end of its console: {log})" for log in logs
    ]
    assert mine.host.running(mine.mark)


def test_a_new_guest_whose_restart_hangs_is_not_restarted(
    mine: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` makes another one: three times three boots would pass its limit."""
    reached: list[Guest] = []

    def reach(one: Guest, *_: object) -> None:
        reached.append(one)
        raise BootHung("guest dave: hung")

    monkeypatch.setattr(Guest, "reach", reach)
    with pytest.raises(BootHung):
        provision.after_boot(mine, recipe.load("debian"), BootWay.GRUB, Deadline.after(10))
    assert len(reached) == 1


@pytest.mark.parametrize("change", [own_kernel, tune])
def test_another_guest_of_its_name_is_left_alone(mine: Guest, change: Callable[[Guest], object]) -> None:
    spec = mine.record.spec.model_copy(update={"uuid": "another"})
    Guest(mine.record.model_copy(update={"spec": spec}), mine.host).save()
    with pytest.raises(GuestError, match="guest dave: was ended meanwhile, and another one has its name"):
        change(mine)
    assert guest.read("dave").spec.uuid == "another"


@pytest.mark.parametrize("change", [own_kernel, tune])
def test_a_guest_that_is_measured_is_not_changed(mine: Guest, change: Callable[[Guest], object]) -> None:
    with (
        ThreadPoolExecutor(1) as other,
        guest.alone_in(mine),
        pytest.raises(GuestError, match=r"guest dave: another lab\.py measures it, or changes"),
    ):
        other.submit(change, mine).result()
