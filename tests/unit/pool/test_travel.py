# SPDX-License-Identifier: GPL-2.0-only
"""What travels to a host: over real Dask workers that die in the middle, pieces that are damaged, a full disk."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numalab.core import state
from numalab.core.errors import Cancelled, HostError
from numalab.core.process import Deadline
from numalab.host import image
from numalab.host.image import Image
from numalab.kernel import boot as kernel_boot
from numalab.kernel import build, recipe
from numalab.kernel.build import Built
from numalab.model.values import jsonable
from numalab.pool import travel, unit
from numalab.pool.travel import Item, Lost, Refused
from tests.unit.makers import until
from tests.unit.pool.fakes import Pool

PIECE = 1000
SECRET = "-----BEGIN OPENSSH PRIVATE KEY----- not one"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(travel, "PIECE_BYTES", PIECE)


def made_image(lab: Path, id: str, inputs: dict[str, str]) -> Path:
    """An image in a state directory, as a build leaves it."""
    place = lab / "images" / "debian12" / id
    place.mkdir(parents=True)
    for name in (*image.FILES, "config"):
        (place / name).write_bytes(f"{name} of {id}".encode() * 200)
    size = (place / "disk.qcow2").stat().st_size
    about = Image(name="debian12", id=id, directory="", root="PARTUUID=1", disk_bytes=size, inputs=inputs)
    (place / "manifest.json").write_text(json.dumps(jsonable(about)))
    return place


@pytest.fixture
def files(lab_state: Path, deadline: Deadline) -> dict[str, Path]:
    """The files of this machine's image, and the key of its guests."""
    (lab_state / "ssh" / "id_ed25519").write_text(SECRET)
    place = made_image(lab_state, "a" * 16, image.inputs("debian12", None, deadline))
    return {path.name: path for path in place.iterdir()} | {state.SSH_KEY: lab_state / "ssh" / "id_ed25519"}


@pytest.fixture
def one(files: dict[str, Path]) -> Item:
    return travel.item("image", "debian12", "a" * 16, files)


class Host:
    """A host without Dask: its half runs here, with a state directory of its own and another key."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self._monkeypatch = place, monkeypatch
        (place / "ssh").mkdir(parents=True)
        (place / "ssh" / "id_ed25519").write_text("the host's own\n")
        (place / "ssh" / "id_ed25519.pub").write_text("the host's own, public\n")
        self.puts: list[tuple[str, int, int]] = []
        self.before: Callable[[str, list[Any]], None] = lambda _name, _words: None

    def __call__(self, function: Callable[..., Any], *words: Any) -> dict[str, Any]:
        told = list(words)
        self.before(function.__name__, told)
        if function is travel.put:
            self.puts.append((told[1], told[2], len(told[3])))
        with self.there():
            answer: dict[str, Any] = asyncio.run(function(*told))
        return answer

    def there(self) -> Any:
        """Within this block, LAB_STATE is the host's."""
        here = self._monkeypatch.context()

        class Block:
            def __enter__(self) -> None:
                here.__enter__().setenv("LAB_STATE", str(place))

            def __exit__(self, *_: object) -> None:
                here.__exit__(None, None, None)

        place = self.place
        return Block()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path / "host", monkeypatch)


def send(one: Item, files: dict[str, Path], call: travel.Call, *, exact: bool = False) -> str:
    return travel.send(one, files, call, "h0", threading.Event(), checkout=unit.checkout(), exact=exact)


def test_an_image_arrives_whole_with_its_key(
    one: Item, files: dict[str, Path], host: Host, deadline: Deadline
) -> None:
    assert send(one, files, host) == "a" * 16
    with host.there():
        came = image.require("debian12", deadline)
        assert (came.id, came.received) == ("a" * 16, True)
        key = state.guest_key("debian12", came.id)
    assert key.read_text() == SECRET
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    for name, path in files.items():
        assert came.file(name).read_bytes() == path.read_bytes()
    assert max(size for _, _, size in host.puts) == PIECE


def test_a_host_s_own_key_opens_its_own_image(host: Host, deadline: Deadline) -> None:
    with host.there():
        made_image(host.place, "b" * 16, image.inputs("debian12", None, deadline))
        assert state.guest_key("debian12", "b" * 16) == host.place / "ssh" / "id_ed25519"


def test_what_is_there_is_not_sent_again(one: Item, files: dict[str, Path], host: Host) -> None:
    send(one, files, host)
    count = len(host.puts)
    assert send(one, files, host) == "a" * 16
    assert len(host.puts) == count


def test_a_host_keeps_its_own_image(
    one: Item, files: dict[str, Path], host: Host, deadline: Deadline
) -> None:
    with host.there():
        made_image(host.place, "b" * 16, image.inputs("debian12", None, deadline))
    assert send(one, files, host) == "b" * 16
    assert host.puts == []


def test_in_a_spread_experiment_all_hosts_have_home_s_image(
    one: Item, files: dict[str, Path], host: Host, deadline: Deadline
) -> None:
    with host.there():
        made_image(host.place, "b" * 16, image.inputs("debian12", None, deadline))
    assert send(one, files, host, exact=True) == "a" * 16


def test_an_image_of_other_inputs_is_not_the_host_s_own(
    one: Item, files: dict[str, Path], host: Host, deadline: Deadline
) -> None:
    with host.there():
        made_image(host.place, "b" * 16, image.inputs("debian12", None, deadline) | {"format": "0"})
    assert send(one, files, host) == "a" * 16


def test_a_newer_image_from_home_goes_before_one_that_was_received(
    one: Item, files: dict[str, Path], host: Host, lab_state: Path, deadline: Deadline
) -> None:
    send(one, files, host)
    place = made_image(lab_state, "c" * 16, image.inputs("debian12", None, deadline))
    newer = {path.name: path for path in place.iterdir()} | {state.SSH_KEY: files[state.SSH_KEY]}
    assert send(travel.item("image", "debian12", "c" * 16, newer), newer, host) == "c" * 16


@pytest.mark.parametrize("times", [1, travel.TRIES])
def test_a_damaged_piece_comes_again(one: Item, files: dict[str, Path], host: Host, times: int) -> None:
    left = [times]

    def damage(name: str, words: list[Any]) -> None:
        if name == "put" and words[1] == "vmlinuz" and words[2] == PIECE and left[0]:
            left[0] -= 1
            words[3] = b"x" * len(words[3])

    host.before = damage
    if times == travel.TRIES:
        with pytest.raises(Refused, match=r"image debian12 a+: vmlinuz: the piece at 1000 arrived damaged"):
            send(one, files, host)
        assert not (host.place / "images" / "debian12" / ("a" * 16)).exists()
    else:
        send(one, files, host)
    assert host.puts.count(("vmlinuz", PIECE, PIECE)) == times + (times == 1)


@pytest.mark.parametrize("times", [1, travel.TRIES])
def test_a_file_that_is_damaged_on_the_host_comes_again(
    one: Item, files: dict[str, Path], host: Host, times: int
) -> None:
    left = [times]

    def damage(name: str, _words: list[Any]) -> None:
        if name == "settle" and left[0]:
            left[0] -= 1
            (came,) = host.place.glob("images/debian12/.coming-*/disk.qcow2")
            came.write_bytes(b"x" * came.stat().st_size)

    host.before = damage
    if times == travel.TRIES:
        with pytest.raises(Refused, match=r"disk\.qcow2: arrived damaged 3 times"):
            send(one, files, host)
        assert not (host.place / "images" / "debian12" / ("a" * 16)).exists()
    else:
        send(one, files, host)
    assert host.puts.count(("disk.qcow2", 0, PIECE)) == times + (times == 1)


def test_it_goes_on_where_it_was_interrupted(one: Item, files: dict[str, Path], host: Host) -> None:
    def die(name: str, words: list[Any]) -> None:
        if name == "put" and words[1] == "disk.qcow2" and words[2] == 2 * PIECE:
            raise Lost("the connection broke")

    host.before = die
    with pytest.raises(Lost):
        send(one, files, host)
    assert not (host.place / "images" / "debian12" / ("a" * 16)).exists()
    host.before = lambda _name, _words: None
    send(one, files, host)
    places = [(name, offset) for name, offset, _ in host.puts]
    assert len(places) == len(set(places))


def test_two_at_once_send_a_piece_of_a_file_twice_at_most(
    one: Item, files: dict[str, Path], host: Host
) -> None:
    """In the middle of one, another whole transfer runs."""
    second: list[str] = []

    def other(name: str, words: list[Any]) -> None:
        if name == "put" and words[2] == 2 * PIECE and not second:
            second.append("")
            second[0] = send(one, files, host)

    host.before = other
    assert send(one, files, host) == "a" * 16
    assert second == ["a" * 16]
    sent = sum(size for _, _, size in host.puts)
    assert sent <= one.bytes + PIECE * len(files)


def test_a_full_disk_names_the_file(
    one: Item, files: dict[str, Path], host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Refused, match=r"No space left on device: '.*/\.coming-a+/config': make room on this"):
        send(one, files, host)


def test_a_disk_that_will_not_hold_it_is_seen_before(
    one: Item, files: dict[str, Path], host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.raises(Refused, match=r"images/debian12/a+: 0 MiB are to come and 0 MiB are free: make room"):
        send(one, files, host)
    assert host.puts == []


def test_another_checkout_gets_nothing(
    one: Item, files: dict[str, Path], host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit, "checkout", iter(["here", "there"]).__next__)
    with pytest.raises(Refused, match="this host's checkout is another"):
        send(one, files, host)


def test_it_can_be_ended(one: Item, files: dict[str, Path], host: Host) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled, match="no longer sent"):
        travel.send(one, files, host, "h0", cancel, checkout=unit.checkout())


def test_a_file_that_changes_here_is_an_error_of_this_machine(
    one: Item, files: dict[str, Path], host: Host
) -> None:
    files["disk.qcow2"].write_bytes(b"short")
    with pytest.raises(HostError, match=r"disk\.qcow2: has changed while it was sent") as raised:
        send(one, files, host)
    assert not isinstance(raised.value, Refused)


def test_no_answer_has_what_was_sent() -> None:
    answer = asyncio.run(travel.put(f"not an item: {SECRET}", "x", 0, SECRET.encode(), ""))
    assert answer.keys() == {"error"}
    assert SECRET not in answer["error"]


def test_no_file_lands_elsewhere(one: Item, host: Host) -> None:
    text = one.model_dump_json().replace("vmlinuz", "../vmlinuz")
    assert "another version" in host(travel.look, text, unit.checkout(), False)["error"]
    answer = host(travel.put, one.model_dump_json(), "../x", 0, b"", hashlib.sha256(b"").hexdigest())
    assert "error" in answer
    assert list(host.place.rglob("x")) == []


def made_kernel(lab: Path) -> tuple[Item, dict[str, Path]]:
    """A built kernel in a state directory."""
    place = lab / "kernels" / f"6.1-{'d' * 16}"
    place.mkdir(parents=True)
    (place / "bzImage").write_bytes(b"kernel" * 1000)
    (place / "modules.tar").write_bytes(b"modules" * 1000)
    (place / "build.log").touch()
    about = Built(
        name="6.1",
        key="d" * 16,
        directory=str(place),
        release="6.1.1-numalab-6.1",
        seconds=1,
        patches=(),
        source="debian-6.1",
        compiler="gcc",
        bzimage_bytes=6000,
        modules=True,
    )
    (place / "manifest.json").write_text(json.dumps(jsonable(about)))
    files = {path.name: path for path in place.iterdir()}
    return travel.item("kernel", "6.1", "d" * 16, files), files


def test_a_kernel_boots_there_though_the_host_has_no_source(
    lab_state: Path, host: Host, tmp_path: Path
) -> None:
    one, files = made_kernel(lab_state)
    send(one, files, host)
    wanted = recipe.load("6.1")
    guest_image = Image(
        name="debian12", id="a" * 16, directory=str(tmp_path), root="", disk_bytes=1, inputs={}
    )
    with host.there():
        came = build.at(one.place)
        assert came is not None
        boot = kernel_boot.resolve(wanted, guest_image, f"6.1-{'d' * 16}")
        assert boot.kernel == str(host.place / "kernels" / f"6.1-{'d' * 16}" / "bzImage")
        assert boot.release == "6.1.1-numalab-6.1"
        modules = kernel_boot.modules(wanted, boot, tmp_path)
        assert modules is not None
        assert modules.read_bytes() == b"modules" * 1000
        with pytest.raises(HostError, match=rf"kernel 6\.1: .*/6\.1-{'e' * 16} is gone"):
            kernel_boot.resolve(wanted, guest_image, f"6.1-{'e' * 16}")


def test_what_did_not_arrive_is_swept_after_a_day(one: Item, files: dict[str, Path], host: Host) -> None:
    def die(name: str, words: list[Any]) -> None:
        if name == "put" and words[2] == PIECE:
            raise Lost("the connection broke")

    host.before = die
    with pytest.raises(Lost):
        send(one, files, host)
    with host.there():
        (came,) = host.place.glob("images/debian12/.coming-*")
        assert state.abandoned() == []
        for path in (came, *came.iterdir()):
            os.utime(path, (0, 0))
        assert state.abandoned() == [came]


# Over Dask.


def start(pool: Pool, name: str) -> Path:
    """A host with a key of its own."""
    place = pool.state(name)
    (place / "ssh").mkdir(parents=True, exist_ok=True)
    (place / "ssh" / "id_ed25519").write_text("the host's own\n")
    (place / "ssh" / "id_ed25519.pub").write_text("the host's own, public\n")
    return pool.start(name, place)


def over(pool: Pool) -> Callable[..., dict[str, Any]]:
    """A travel.Call to the only worker, as the driver's."""
    client = pool.client()
    client.wait_for_workers(1, timeout=60)

    def call(function: Callable[..., Any], *words: Any) -> dict[str, Any]:
        try:
            (address,) = client.scheduler_info(n_workers=-1)["workers"]
            return dict(client.run(function, *words, workers=[address])[address])
        except Exception as error:
            raise Lost(str(error)) from error

    return call


def test_a_host_that_is_killed_in_the_middle(pool: Pool, one: Item, files: dict[str, Path]) -> None:
    place = start(pool, "h0")
    call, sent = over(pool), list[tuple[str, int]]()

    def killed(function: Callable[..., Any], *words: Any) -> dict[str, Any]:
        if function is travel.put:
            if len(sent) == 4:
                pool.kill("h0")
            sent.append((words[1], words[2]))
        return call(function, *words)

    with pytest.raises(Lost):
        send(one, files, killed)
    assert not (place / "images" / "debian12" / one.id).exists()
    start(pool, "h0")
    client = pool.client()
    client.wait_for_workers(1, timeout=60)
    until(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 1)
    again: list[tuple[str, int]] = []

    def noted(function: Callable[..., Any], *words: Any) -> dict[str, Any]:
        if function is travel.put:
            again.append((words[1], words[2]))
        return call(function, *words)

    assert send(one, files, noted) == one.id
    assert again[0] == sent[4]
    assert not set(again[1:]) & set(sent)
    for name, path in files.items():
        assert (place / "images" / "debian12" / one.id / name).read_bytes() == path.read_bytes()
    assert SECRET not in (pool.place / "h0.log").read_text()
