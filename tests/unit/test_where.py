"""Here or there: what runs on a hypervisor that is reached by SSH, on a fake ssh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from numalab import where
from numalab.errors import CommandFailed, DeadlinePassed, HostError, InputError
from numalab.proc import Deadline
from numalab.where import HERE, Where, of_uri

Program = Callable[[str, str], Path]
THERE = Where("me@there:2022")
ASIDE = 'for word; do last=$word; done; exec sh -c "$last"'
"""An ssh that runs the command here."""


@pytest.mark.parametrize(("uri", "ssh"), [
    ("qemu:///system", ""), ("qemu:///session", ""), ("test:///fake", ""), ("qemu+unix:///system?socket=/x", ""),
    ("qemu+ssh://there/system", "there"), ("qemu+ssh://me@there:2022/system", "me@there:2022"),
])
def test_of_uri(uri: str, ssh: str) -> None:
    assert of_uri(uri) == Where(ssh)


@pytest.mark.parametrize("uri", ["qemu+tls://there/system", "qemu+tcp://there/system", "qemu://there/system"])
def test_only_ssh_leads_elsewhere(uri: str) -> None:
    with pytest.raises(InputError, match=r"guests' disks are made over SSH: use qemu\+ssh://there/system"):
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


def test_what_outlives_ssh_ends_there_too(program: Program, tmp_path: Path, deadline: Deadline, monkeypatch: pytest.MonkeyPatch) -> None:
    """As sshd leaves it: the client is gone, the program goes on in a session of its own."""
    monkeypatch.setattr(where, "GRACE_SECONDS", 0)
    program("ssh", 'for word; do last=$word; done; setsid sh -c "$last" & exec sleep 60')
    with pytest.raises(DeadlinePassed):
        THERE.run(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"], deadline=deadline.within(1))
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
    """Bytes as they are: the console watch counts them."""
    program("ssh", ASIDE)
    path = tmp_path / "log"
    assert (place.read(path, 0, deadline, 100), place.size(path, deadline)) == (b"", 0)
    path.write_bytes(body)
    assert place.size(path, deadline) == len(body)
    for offset in (0, 1, len(body), len(body) + 9):
        assert place.read(path, offset, deadline, 100) == body[offset:]
        assert place.read(path, offset, deadline, 3) == body[offset: offset + 3]


@pytest.mark.parametrize("place", [HERE, THERE], ids=["here", "there"])
def test_touch(place: Where, tmp_path: Path, program: Program, deadline: Deadline) -> None:
    program("ssh", ASIDE)
    path = tmp_path / "log"
    place.touch(path, deadline)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"", 0o600)
    path.write_bytes(b"kept")
    place.touch(path, deadline)
    assert path.read_bytes() == b"kept"


def test_push(program: Program, tmp_path: Path, deadline: Deadline) -> None:
    program("ssh", ASIDE)
    program("scp", f'echo "$*" >> {tmp_path}/copied; for word; do last=$word; done; : > "${{last#*:}}"')
    path = tmp_path / "file"
    path.write_bytes(b"")
    HERE.push([path], deadline)
    THERE.push([path], deadline)
    assert not (tmp_path / "copied").exists(), "a file of that size is there"
    program("ssh", f'case "$*" in *"stat -c"*) echo 7; exit;; esac; {ASIDE}')
    THERE.push([path], deadline)
    assert (tmp_path / "copied").read_text().endswith(f" -P 2022 -q {path} me@there:{path}.part\n")
    assert path.exists()
    assert not path.with_name("file.part").exists()


def test_programs() -> None:
    assert THERE.program("qemu-img", "qemu-utils") == "qemu-img"
    with pytest.raises(HostError, match="no-such-program is not installed: apt-get install some-package"):
        HERE.program("no-such-program", "some-package")
