# SPDX-License-Identifier: GPL-2.0-only
"""The state directory: its place, its permissions, its locks, and half-made things."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from numalab.core import state
from numalab.core.errors import DeadlinePassed, HostError
from numalab.core.process import Deadline

HOLDER = """
from numalab.core import state
from numalab.core.process import Deadline
with state.lock("one", Deadline.after(60)):
    print("held", flush=True)
    input()
"""


def dead_pid() -> int:
    """The id of a process that has just ended."""
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def test_lab_state_is_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_STATE", str(tmp_path / "a" / "b"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state.directory() == tmp_path / "a" / "b"
    assert state.directory().stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "xdg").exists()


def test_then_xdg_then_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_STATE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state.directory() == tmp_path / "xdg" / "numalab"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state.directory() == tmp_path / "home" / ".local" / "state" / "numalab"


def test_a_relative_one_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_STATE", "here")
    assert state.directory() == tmp_path / "here"


def test_one_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LAB_STATE", str(tmp_path / "file" / "state"))
    with pytest.raises(HostError, match="set LAB_STATE to one that can be written"):
        state.directory()


@pytest.mark.parametrize("odd", [" ", "&", ";", "$", ",", "#", "(", "*"])
def test_one_that_a_command_cannot_carry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    """A builder's folders are made by a shell, and QEMU's options have commas between them."""
    monkeypatch.setenv("LAB_STATE", str(tmp_path / f"a{odd}b"))
    with pytest.raises(HostError, match="set LAB_STATE to another"):
        state.directory()
    assert not (tmp_path / f"a{odd}b").exists()


def test_folder(lab_state: Path) -> None:
    assert state.folder("a", "b") == lab_state / "a" / "b"
    assert state.folder("a", "b").is_dir()


def test_lock_excludes_another_process(lab_state: Path, deadline: Deadline) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with state.lock("other", deadline):
                pass
            with (
                pytest.raises(DeadlinePassed, match=r"another lab.py that holds .*/locks/one"),
                state.lock("one", Deadline.after(0)),
            ):
                pass
        finally:
            holder.kill()
            holder.wait()
        with state.lock("one", deadline):  # kill -9 lets go of it
            pass


def test_lock_is_let_go_after_an_error(deadline: Deadline) -> None:
    with pytest.raises(KeyError), state.lock("one", deadline):
        raise KeyError
    with state.lock("one", Deadline.after(0)):
        pass


def test_making(lab_state: Path) -> None:
    place = lab_state / "images" / "x"
    with state.making(place) as scratch:
        (scratch / "file").write_text("new")
        assert not place.exists()
        assert scratch.parent == place.parent, "or the rename could not be atomic"
    assert (place / "file").read_text() == "new"
    assert list(place.parent.iterdir()) == [place]


def test_what_is_made_again_replaces_the_old(lab_state: Path) -> None:
    place = lab_state / "images" / "x"
    for name in ("old", "new"):
        with state.making(place) as scratch:
            (scratch / name).touch()
    assert [path.name for path in place.iterdir()] == ["new"]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit])
def test_what_fails_is_not_made(error: type[BaseException], lab_state: Path) -> None:
    place = lab_state / "images" / "x"
    place.mkdir(parents=True)
    (place / "file").write_text("old")

    def make() -> None:
        with state.making(place) as scratch:
            (scratch / "file").write_text("half")
            raise error

    with pytest.raises(error):
        make()
    assert (place / "file").read_text() == "old"
    assert list(place.parent.iterdir()) == [place]


def test_a_full_disk_is_the_hosts_error(lab_state: Path) -> None:
    with (
        pytest.raises(HostError, match=r"images/x: .*No space left"),
        state.making(lab_state / "images" / "x"),
    ):
        raise OSError(28, "No space left on device")


def test_abandoned(lab_state: Path) -> None:
    me = state.this_process()
    mine, elsewhere, dead = (
        lab_state / "images" / f".making-{one}-7-x"
        for one in (me, replace(me, machine="abcdef"), replace(me, pid=dead_pid()))
    )
    earlier = [lab_state / "images" / f".making-{pid}-x" for pid in (os.getpid(), dead_pid(), dead_pid())]
    for path in (mine, elsewhere, dead, *earlier):
        path.mkdir(parents=True)
    for path in earlier[:2]:  # the third may be another machine's, which is at it
        os.utime(path, (time.time() - 2 * state.DAY,) * 2)
    links = [state.sockets() / name for name in ("live", "dead", "gone")]
    for link, place in zip(links, (mine, dead, lab_state / "gone"), strict=True):
        link.symlink_to(place)
    assert state.abandoned() == sorted([dead, earlier[1], *links[1:]])


def test_what_goes_while_we_look(lab_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another lab.py renames and removes folders all the time."""
    scratch = f".making-{replace(state.this_process(), pid=dead_pid())}-7-x"
    for name in ("a", "b"):
        (lab_state / "runs" / name / scratch).mkdir(parents=True)
    scandir = os.scandir

    def late(place: Path) -> Any:
        if place == lab_state / "runs/a":
            shutil.rmtree(place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", late)
    (state.sockets() / "socket").touch()
    (lab_state / "runs/loop").symlink_to("loop")
    assert state.abandoned() == [lab_state / "runs/b" / scratch]


def test_a_short_name_of_a_folder(lab_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With it there is room for the 32 characters that Python's multiprocessing adds for a socket."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    place = lab_state / ("long-" * 40)
    place.mkdir()
    with state.short(place) as short:
        assert short.samefile(place)
        assert len(str(short)) + 32 <= 107
    assert not short.is_symlink()
    assert place.is_dir()


def test_a_process_is_told_from_every_other() -> None:
    me = state.this_process()
    assert state.Process.parse(str(me)) == me
    assert me.lives
    assert not me.elsewhere
    for other in (
        replace(me, pid=dead_pid()),
        replace(me, started=me.started + 1),
        replace(me, boot="abcdef"),
    ):
        assert not other.lives
    far = replace(me, machine="abcdef", pid=dead_pid())
    assert far.elsewhere
    assert far.lives, "who cannot be asked may live"
    for text in (
        "",
        f"{os.getpid()} {state.started(os.getpid())}",
        "x",
        "1",
        "aaaaaa.bbbbbb.1",
        "AAAAAA.bbbbbb.1.2",
    ):
        assert state.Process.parse(text) is None


def test_a_lock_is_its_threads_own(lab_state: Path) -> None:
    """The holder may take it again at once; another thread gets it only after its release."""

    def taken() -> bool:
        try:
            with state.lock("x", Deadline.after(0)):
                return True
        except DeadlinePassed:
            return False

    with state.lock("x", Deadline.after(60)):
        assert taken()
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(taken).result()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(taken).result()


def test_a_machine_has_one_lock(lab_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent of the state directory."""
    with state.machine_lock(f"test-{os.getpid()}", Deadline.after(60)):
        monkeypatch.setenv("LAB_STATE", str(tmp_path / "other"))
        with (
            pytest.raises(DeadlinePassed, match=r"another lab.py on this machine"),
            state.machine_lock(f"test-{os.getpid()}", Deadline.after(0.1)),
        ):
            pass
    with state.machine_lock(f"test-{os.getpid()}", Deadline.after(0.1)):
        pass


def share(name: str, total: int, wanted: int, seconds: float = 30) -> AbstractContextManager[None]:
    return state.machine_share(f"test {name} {os.getpid()}", total, wanted, Deadline.after(seconds))


def test_parts_of_a_machine() -> None:
    """As many hold parts as there are; whoever wants all waits until the last is free."""
    with share("CPUs", 3, 1), share("CPUs", 3, 2):
        with pytest.raises(DeadlinePassed, match=r"^waiting for test CPUs \d+ that others use"):
            share("CPUs", 3, 1, seconds=0.1).__enter__()
        with share("other CPUs", 1, 1):
            pass
    with share("CPUs", 3, 3), pytest.raises(DeadlinePassed):
        share("CPUs", 3, 1, seconds=0.1).__enter__()
    with share("CPUs", 3, 9):  # more than there are is all
        pass


def test_two_that_want_all_parts_get_them_in_turn() -> None:
    """Each would hold half, and wait for the other's half, if both collected at once."""
    together = threading.Lock()

    def work() -> bool:
        with share("CPUs", 4, 4):
            alone = together.acquire(blocking=False)
            time.sleep(0.05)
            together.release()
            return alone

    with ThreadPoolExecutor(4) as pool:
        assert all(future.result(30) for future in [pool.submit(work) for _ in range(4)])


def test_what_is_needed_is_not_discarded(lab_state: Path) -> None:
    """`needed` is called when nobody can start to use the folder any more."""
    place = state.folder("images", "x")

    def needed() -> bool:
        with pytest.raises(BlockingIOError), (lab_state / "locks" / "using-images-x").open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True

    assert not state.discard(place, needed)
    assert place.exists()


def test_what_is_used_is_not_discarded(lab_state: Path) -> None:
    place = state.folder("images", "x")
    with state.using(place), state.using(place):
        assert not state.discard(place)
        assert place.exists()
    assert state.discard(place)
    assert not place.exists()
    assert not state.discard(place)
    assert list(place.parent.iterdir()) == []
    with (
        pytest.raises(HostError, match=f"{place}: another lab.py has removed it: try again"),
        state.using(place),
    ):
        pass


def test_an_identity_is_of_one_state_directory(
    lab_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stable; different for an empty folder in its place, and for a copy."""
    first = state.identity()
    assert state.identity() == first
    shutil.copytree(lab_state, tmp_path / "copy")
    monkeypatch.setenv("LAB_STATE", str(tmp_path / "copy"))
    assert state.identity() != first
    monkeypatch.setenv("LAB_STATE", str(lab_state))
    lab_state.rename(tmp_path / "away")
    assert state.identity() != first


def test_alive_and_started() -> None:
    assert state.alive(os.getpid())
    assert state.started(os.getpid()) >= state.started(os.getppid()) > 0
    gone = dead_pid()
    assert (state.alive(gone), state.started(gone)) == (False, 0)
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert not state.alive(zombie.pid)
    zombie.wait()


def test_ssh_key_is_made_once(
    lab_state: Path, program: Callable[[str, str], Path], deadline: Deadline
) -> None:
    program("ssh-keygen", 'for word; do last=$word; done; echo made >> "$last"')
    assert state.ssh_key(deadline).read_text() == "private\n", "the one that is there is kept"
    (lab_state / "ssh" / "id_ed25519").unlink()
    for _ in range(2):
        assert state.ssh_key(deadline).read_text() == "made\n"


@pytest.mark.parametrize("runtime", ["", "/no/such/folder"])
def test_sockets_without_a_runtime_folder(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sudo -E and containers leave XDG_RUNTIME_DIR set to a folder that does not exist."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert state.sockets() == tmp_path / f"numalab-{os.getuid()}"
    assert state.sockets().stat().st_mode & 0o777 == 0o700


def test_sockets_are_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    with pytest.raises(HostError, match="belongs to somebody else"):
        state.sockets()


def test_stamp() -> None:
    assert len(state.stamp()) == 15
    assert state.stamp()[8] == "T"


def test_many_write_one_file(tmp_path: Path) -> None:
    """Also threads of one process: every write is complete, the last one stays, no scratch file is left."""
    target = tmp_path / "memory.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: state.write(target, f"{number}" * 5000), range(8)))
    text = target.read_text()
    assert len(text) == 5000
    assert len(set(text)) == 1
    assert not list(tmp_path.glob(".making-*"))


def test_what_is_written_is_on_the_disk_before_it_has_its_name(
    lab_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, a renamed file that was not synced would exist and be empty."""
    target, place = lab_state / "memory.json", lab_state / "kernels/k"
    seen: list[tuple[int, bool, bool]] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        seen.append((os.fstat(handle).st_ino, target.exists(), place.exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    state.write(target, "text")
    assert seen == [(target.stat().st_ino, False, False), (lab_state.stat().st_ino, True, False)]
    seen.clear()
    with state.making(place) as scratch:
        (scratch / "modules").mkdir()
        (scratch / "modules/m.ko").write_text("module")
    inside = {
        (path.stat().st_ino, True, False) for path in (place, place / "modules", place / "modules/m.ko")
    }
    assert set(seen) == {*inside, (place.parent.stat().st_ino, True, True)}
    assert seen[-1][0] == place.parent.stat().st_ino


def test_nobody_else_reads_what_the_lab_makes(lab_state: Path) -> None:
    """The state directory itself may be open (qemu_user)."""
    place = state.folder("images", "debian12")
    state.write(place / "file", "text")
    assert [path.stat().st_mode & 0o777 for path in (place.parent, place, place / "file")] == [
        0o700,
        0o700,
        0o600,
    ]
