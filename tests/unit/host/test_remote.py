# SPDX-License-Identifier: GPL-2.0-only
"""Commands and files on a hypervisor that is reached by SSH, with a fake ssh."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from numalab.core import process as core_process
from numalab.core import state
from numalab.core.errors import Cancelled, CommandFailed, DeadlinePassed, HostError, InputError
from numalab.core.process import Deadline
from numalab.guest import guest, launch
from numalab.host import remote
from numalab.host.remote import HERE, Where, of_uri
from tests.unit.makers import FakeHost

Program = Callable[[str, str], Path]
THERE = Where("me@there:2022")
ASIDE = 'for word; do last=$word; done; exec sh -c "$last"'
"""An ssh that runs the command on this machine."""


@pytest.mark.parametrize(
    ("uri", "ssh"),
    [
        ("qemu:///system", ""),
        ("qemu:///session", ""),
        ("test:///fake", ""),
        ("qemu+unix:///system?socket=/x", ""),
        ("qemu+ssh://there/system", "there"),
        ("qemu+ssh://me@there:2022/system", "me@there:2022"),
    ],
)
def test_of_uri(uri: str, ssh: str) -> None:
    assert of_uri(uri) == Where(ssh)


@pytest.mark.parametrize("uri", ["qemu+tls://there/system", "qemu+tcp://there/system", "qemu://there/system"])
def test_only_ssh_leads_elsewhere(uri: str) -> None:
    with pytest.raises(
        InputError, match=r"^uri .*: guests' disks are made over SSH: use qemu\+ssh://there/system"
    ):
        of_uri(uri)


def test_argv(program: Program) -> None:
    program("ssh", "exit 255")
    assert HERE.argv(["a b", Path("/c")]) == ["a b", "/c"]
    words = THERE.argv(["a b", Path("/c")])
    assert words[-4:] == ["-p", "2022", "me@there", "'a b' /c"]
    assert THERE.tunnel()[-5:] == ["-p", "2022", "-W", "%h:%p", "me@there"]
    assert "-p" not in Where("there").argv(["true"])


def test_run(program: Program, deadline: Deadline) -> None:
    program("ssh", ASIDE)
    assert THERE.run(["echo", "a  b"], deadline=deadline).stdout == "a  b\n"
    assert THERE.run(["sh", "-c", "exit 3"], deadline=deadline, check=False).status == 3
    with pytest.raises(CommandFailed, match=r"on me@there:2022: sh -c .*: exit status 3: why"):
        THERE.run(["sh", "-c", "echo why >&2; exit 3"], deadline=deadline)
    with pytest.raises(CommandFailed):
        HERE.run(["false"], deadline=deadline)


def test_what_outlives_ssh_ends_there_too(
    program: Program, tmp_path: Path, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sshd leaves it: the client is gone, the program goes on in its own session."""
    monkeypatch.setattr(remote, "GRACE_SECONDS", 0)
    program("ssh", 'for word; do last=$word; done; setsid sh -c "$last" & exec sleep 60')
    with pytest.raises(DeadlinePassed):
        THERE.run(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"], deadline=deadline.within(3))
    process = Path("/proc") / (tmp_path / "pid").read_text().strip()
    ending = deadline.within(30)
    while process.exists():
        ending.check("the program's end")
        ending.pause(0.05)


def test_not_reached(program: Program, deadline: Deadline) -> None:
    program("ssh", "echo 'No route to host' >&2; exit 255")
    with pytest.raises(HostError, match="me@there:2022: not reached by SSH: No route to host"):
        THERE.run(["true"], deadline=deadline, check=False)


@pytest.mark.parametrize("place", [HERE, THERE], ids=["here", "there"])
@pytest.mark.parametrize("body", [b"", b"one\ntwo\n", b"\xff\xfe\nthree\n"])
def test_read(place: Where, body: bytes, tmp_path: Path, program: Program, deadline: Deadline) -> None:
    """Exact bytes: the console watch counts them."""
    program("ssh", ASIDE)
    path = tmp_path / "log"
    assert (place.read(path, 0, deadline, 100), place.size(path, deadline)) == (b"", 0)
    path.write_bytes(body)
    assert place.size(path, deadline) == len(body)
    for offset in (0, 1, len(body), len(body) + 9):
        assert place.read(path, offset, deadline, 100) == body[offset:]
        assert place.read(path, offset, deadline, 3) == body[offset : offset + 3]


@pytest.mark.parametrize("place", [HERE, THERE], ids=["here", "there"])
def test_touch(place: Where, tmp_path: Path, program: Program, deadline: Deadline) -> None:
    program("ssh", ASIDE)
    path = tmp_path / "log"
    place.touch(path, deadline)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"", 0o600)
    path.write_bytes(b"kept")
    place.touch(path, deadline)
    assert path.read_bytes() == b"kept"


@pytest.fixture
def other(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hypervisor in a folder: our state directory at /here/… is /there/… on it."""
    monkeypatch.setenv("LAB_STATE", str(tmp_path / "here"))
    move = f"s#{tmp_path}/here#{tmp_path}/there#g"
    program(
        "ssh",
        f'for word; do last=$word; done; echo "$last" >> {tmp_path}/asked; exec sh -c "$(printf %s "$last" |'
        f' sed "{move}")"',
    )
    program(
        "scp",
        "for word; do before=$last; last=$word; done; "
        f'echo "$*" >> {tmp_path}/copied; cat "$before" > "${{last#*:}}"',
    )
    (tmp_path / "here").mkdir()
    return tmp_path / "there"


def copied(tmp_path: Path) -> list[str]:
    """The files that scp was called with, in order."""
    log = tmp_path / "copied"
    return [line.split()[-2] for line in log.read_text().splitlines()] if log.exists() else []


def test_push(other: Path, tmp_path: Path, deadline: Deadline) -> None:
    path = tmp_path / "here/file"
    path.write_bytes(b"one")
    path.chmod(0o644)
    assert HERE.push([path], deadline) == {path: path}
    assert not other.exists()
    assert THERE.push([path], deadline) == {path: path}
    assert (other / "file").read_bytes() == b"one"
    assert (other / "file").stat().st_mode & 0o777 == 0o644
    THERE.push([path], deadline)
    assert copied(tmp_path) == [str(path)], "what is there is sent again"
    assert list(other.glob(".part-*")) == []


def test_push_leaves_a_persons_files_alone(other: Path, tmp_path: Path, deadline: Deadline) -> None:
    """`kernel import` of a bzImage in a kernel tree: the other machine may have another one at that path."""
    theirs, ours = tmp_path / "tree/bzImage", tmp_path / "tree/bzImage of mine"
    theirs.parent.mkdir()
    for path in (theirs, ours):
        path.write_text(path.name)
    pushed = THERE.push([theirs, ours], deadline)
    for path, target in pushed.items():
        digest = hashlib.sha256(path.name.encode()).hexdigest()
        assert target == tmp_path / "here/pushed" / digest / path.name
        assert (other / "pushed" / digest / path.name).read_text() == path.name
    assert {path.name for path in theirs.parent.iterdir()} == {
        theirs.name,
        ours.name,
    }, "the fake ssh runs here: nothing is written"
    theirs.write_text("another build")
    assert THERE.push([theirs], deadline)[theirs] != pushed[theirs], "a guest may run the first"
    assert (other / pushed[theirs].relative_to(tmp_path / "here")).read_text() == "bzImage"


@pytest.mark.parametrize("side", ["here", "there"])
def test_push_sees_a_change_whose_time_was_set_back(
    other: Path, tmp_path: Path, deadline: Deadline, side: str
) -> None:
    """As by cp -p, or rsync --inplace -t: same size, inode and mtime."""
    path = tmp_path / "here/file"
    path.write_bytes(b"one")
    for _ in range(2):  # the second call has the checksum cached
        THERE.push([path], deadline)
    changed = tmp_path / side / "file"
    stat = changed.stat()
    changed.write_bytes(b"two")
    os.utime(changed, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    THERE.push([path], deadline)
    assert (other / "file").read_bytes() == path.read_bytes()


def test_push_that_is_cancelled_leaves_nothing(other: Path, tmp_path: Path, program: Program) -> None:
    """Ctrl-C while a disk is sent: from then on the caller's deadline ends every wait."""
    path = tmp_path / "here/file"
    path.write_bytes(b"one")
    program("scp", f"touch {tmp_path}/sending; exec sleep 60")
    deadline = Deadline.after(30)

    def cancel() -> None:
        while not (tmp_path / "sending").exists():
            time.sleep(0.02)
        assert list(other.glob(".part-*"))
        ssh = tmp_path / "bin/ssh"  # from now on slower than the interval at which waits check their deadline
        ssh.write_text(ssh.read_text().replace("\n", f"\nsleep {4 * core_process.POLL_SECONDS}\n", 1))
        deadline.cancel.set()

    with ThreadPoolExecutor(1) as pool:
        watcher = pool.submit(cancel)
        with pytest.raises(Cancelled):
            THERE.push([path], deadline)
        watcher.result()
    assert list(other.glob(".part-*")) == []


def test_sweep(other: Path, tmp_path: Path, deadline: Deadline) -> None:
    """What a killed push or claim left there is removed after a day; complete files and other labs' stay."""
    ours = remote.part_prefix()
    old = [
        f"images/debian12/{'0' * 16}/{ours}aaaaaaaa-disk.qcow2",
        f"pushed/{'1' * 64}/{ours}aaaaaaaa-bzImage",
        f"cache/{ours}a-probe.cpio",
    ]
    claim = f"guests/{ours}aaaaaaaa"
    kept = [
        f"kernels/6.1-k/{ours}bbbbbbbb-bzImage",
        "kernels/6.1-k/bzImage",
        f"kernels/6.1-k/.part-{'f' * 16}-aaaaaaaa-bzImage",
    ]
    for name in [*old, *kept, f"{claim}/lab"]:
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).touch()
    for name in [*old, claim, *kept[1:]]:
        os.utime(other / name, (time.time() - 25 * 3600,) * 2)
    assert sorted(THERE.sweep(deadline)) == sorted(other / name for name in [*old, claim])
    assert sorted(str(path.relative_to(other)) for path in other.rglob("*") if path.is_file()) == sorted(kept)
    assert THERE.sweep(deadline) == []
    assert HERE.sweep(deadline) == []


@pytest.mark.parametrize("there", [b"two", b"", b"longer"])
def test_push_compares_content(other: Path, tmp_path: Path, deadline: Deadline, there: bytes) -> None:
    """A rebuilt kernel may have the same size."""
    path = tmp_path / "here/file"
    path.write_bytes(b"one")
    THERE.push([path], deadline)
    (other / "file").write_bytes(there)
    THERE.push([path], deadline)
    assert (other / "file").read_bytes() == b"one"
    path.write_bytes(b"six")
    THERE.push([path], deadline)
    assert (other / "file").read_bytes() == b"six"


def test_push_looks_at_all_files_in_one_round_trip(other: Path, tmp_path: Path, deadline: Deadline) -> None:
    paths = [tmp_path / f"here/{name}" for name in ("disk", "kernel of mine", "initrd")]
    for path in paths:
        path.write_text(path.name)
    THERE.push(paths, deadline)
    (tmp_path / "asked").unlink()
    THERE.push(paths, deadline)
    assert (tmp_path / "asked").read_text().count("timeout") == 1
    assert len(copied(tmp_path)) == 3


def test_push_of_many_at_once(other: Path, tmp_path: Path, deadline: Deadline) -> None:
    path = tmp_path / "here/file"
    path.write_bytes(b"x" * 5000)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: THERE.push([path], deadline), range(4)))
    assert (other / "file").read_bytes() == path.read_bytes()
    assert copied(tmp_path) == [str(path)]


def test_push_that_is_cut_short(other: Path, tmp_path: Path, program: Program, deadline: Deadline) -> None:
    """A full disk, or a file that changes meanwhile: the old one stays."""
    path = tmp_path / "here/file"
    path.write_bytes(b"one")
    THERE.push([path], deadline)
    path.write_bytes(b"longer than it was")
    program("scp", 'for word; do last=$word; done; echo half > "${last#*:}"')
    with pytest.raises(HostError, match=rf"me@there:2022: {path}: what arrived is not what was sent"):
        THERE.push([path], deadline)
    assert (other / "file").read_bytes() == b"one"
    assert list(other.glob(".part-*")) == []


def claimed(tmp_path: Path) -> Path:
    """A guest's folder on this machine, with its maker."""
    place = tmp_path / "here/guests/g"
    place.mkdir(parents=True)
    (place / "maker").write_text('{"process": "aaaaaa.bbbbbb.1.2"}')
    return place


@pytest.mark.parametrize("mark", ["ours", "another's", ""])
def test_only_a_folder_with_our_mark_is_removed_there(
    mark: str, other: Path, tmp_path: Path, deadline: Deadline
) -> None:
    """Another lab may have a guest of this name at this path, and one without a mark is nobody's we know."""
    place, there, host = claimed(tmp_path), other / "guests/g", FakeHost()
    there.mkdir(parents=True)
    if mark:
        (there / "lab").write_text(f"{state.identity() if mark == 'ours' else mark}\n")
    host.where = THERE
    guest.remove(place, host.real(), deadline)
    assert (place.exists(), there.exists()) == (False, mark != "ours")


def test_claim_of_a_folder_that_both_machines_share(other: Path, tmp_path: Path, deadline: Deadline) -> None:
    """The folder exists already, and is ours when it has our claim."""
    place, there = claimed(tmp_path), other / "guests/g"
    there.mkdir(parents=True)
    (there / "maker").write_text((place / "maker").read_text())
    launch._claim_there(place, THERE, deadline)
    assert (there / "lab").read_text() == f"{state.identity()}\n"
    (there / "maker").write_text('{"process": "aaaaaa.cccccc.1.2"}')
    with pytest.raises(HostError, match=r"is it another lab's guest of this name\?"):
        launch._claim_there(place, THERE, deadline)


def test_claim_there(other: Path, tmp_path: Path, program: Program, deadline: Deadline) -> None:
    place, there = claimed(tmp_path), other / "guests/g"
    mv = program("mv", "kill -9 $PPID")
    with pytest.raises(HostError):
        launch._claim_there(place, THERE, deadline)
    mv.unlink()
    (part,) = there.parent.iterdir()
    assert part.name.startswith(remote.part_prefix()), "sweep takes it away"
    launch._claim_there(place, THERE, deadline)
    assert [(path.name, path.read_text()) for path in there.iterdir()] == [("lab", f"{state.identity()}\n")]
    assert there.stat().st_mode & 0o777 == 0o700
    (there / "lab").write_text("another")
    with pytest.raises(
        HostError,
        match=rf"me@there:2022:{place}: .*: is it another lab's guest of this name\? Choose another name",
    ):
        launch._claim_there(place, THERE, deadline)
    assert (there / "lab").read_text() == "another"
    assert set(there.parent.iterdir()) == {there, part}


def test_a_folder_that_an_earlier_lab_made_and_did_not_mark(
    other: Path, tmp_path: Path, deadline: Deadline
) -> None:
    (other / "guests/g").mkdir(parents=True)
    launch._claim_there(claimed(tmp_path), THERE, deadline)
    assert (other / "guests/g/lab").read_text() == f"{state.identity()}\n"


def test_programs() -> None:
    assert THERE.program("qemu-img", "qemu-utils") == "qemu-img"
    with pytest.raises(HostError, match="no-such-program is not installed: apt-get install some-package"):
        HERE.program("no-such-program", "some-package")
