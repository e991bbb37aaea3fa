# SPDX-License-Identifier: GPL-2.0-only
"""Commands in a guest: the functions over a fake Shell, and Ssh's arguments and results with a fake ssh."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from numalab.core.errors import Cancelled, CommandFailed, DeadlinePassed, GuestLost, KernelOops
from numalab.core.process import Deadline
from numalab.host import ssh as ssh_module
from numalab.host.ssh import Ssh, quote, succeed
from tests.unit.makers import FakeShell

SOCKET_PATH = 107
"""unix(7): sun_path without its terminating zero."""
SSH_SUFFIX = len(".") + 16
"""What OpenSSH appends while it makes the socket (mux.c: muxserver_listen)."""
Program = Callable[[str, str], Path]


def says(status: int, out: str = "", err: str = "") -> FakeShell:
    return FakeShell(lambda _command, _input: (status, out, err))


@pytest.fixture
def ssh(tmp_path: Path, program: Program) -> Ssh:
    program("ssh", "echo 'no test has said what to do' >&2; exit 255")
    return Ssh(guest="g", port=2222, key=tmp_path / "key", known_hosts=tmp_path / "known_hosts")


def test_quote() -> None:
    assert quote("a | b") == "a | b"
    assert quote(["echo", "a b", "$c"]) == "echo 'a b' '$c'"


def test_succeed(deadline: Deadline) -> None:
    shell = FakeShell(lambda command, input: (0, f"{command} {input!r}", "noise"))
    assert succeed(shell, ["cat", "a b"], deadline=deadline, input=b"x") == "cat 'a b' b'x'"


@pytest.mark.parametrize(
    ("out", "err", "last_line"),
    [("out\n", "first\nwhy\n", "why"), ("a\nb\n", "", "b"), ("", "\n", "no output")],
)
def test_succeed_that_does_not(out: str, err: str, last_line: str, deadline: Deadline) -> None:
    with pytest.raises(CommandFailed, match=f"^in the guest: false: exit status 7: {last_line}$") as caught:
        succeed(says(7, out, err), "false", deadline=deadline)
    assert caught.value.evidence == err


def test_options(ssh: Ssh) -> None:
    words = ssh.options()
    assert words[::2] == ["-o"] * (len(words) // 2)
    pairs = dict(word.split("=", 1) for word in words[1::2])
    assert (
        pairs
        | {
            "IdentityFile": str(ssh.key),
            "UserKnownHostsFile": str(ssh.known_hosts),
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "ControlPath": str(ssh.control),
            "User": "root",
            "IdentitiesOnly": "yes",
        }
        == pairs
    )
    assert "ProxyCommand" not in pairs
    hop = next(
        word
        for word in Ssh(
            guest="g", port=1, key=ssh.key, known_hosts=ssh.known_hosts, via="me@hop:23"
        ).options()
        if word.startswith("ProxyCommand=")
    )
    assert hop.endswith(" -p 23 -W %h:%p me@hop")


def test_argv(ssh: Ssh) -> None:
    words = ssh.argv("-T", ssh.host, "true")
    assert Path(words[0]).name == "ssh"
    assert words[1:3] == ["-F", "none"], "a person's own configuration has no say"
    assert words[-5:] == ["-p", "2222", "-T", "127.0.0.1", "true"]


def test_the_control_socket_is_private_and_short(ssh: Ssh, tmp_path: Path) -> None:
    inside = ssh.control.relative_to(os.environ["XDG_RUNTIME_DIR"])
    assert len(f"/run/user/4294967295/{inside}") + SSH_SUFFIX <= SOCKET_PATH
    assert ssh.control.parent.stat().st_mode & 0o777 == 0o700
    others = [
        Ssh(guest="g", port=port, key=ssh.key, known_hosts=hosts)
        for port, hosts in ((2223, ssh.known_hosts), (2222, tmp_path / "other"))
    ]
    assert len({ssh.control, *(other.control for other in others)}) == 3


def test_execute(ssh: Ssh, program: Program, deadline: Deadline) -> None:
    program("ssh", 'cat; for word; do last=$word; done; echo "$last"; echo err >&2; exit 7')
    result = ssh.execute("echo 'a b'", deadline=deadline, input=b"fed ")
    assert result.stdout.startswith("fed exec timeout -k 5 ")
    assert result.stdout.endswith(""" sh -c 'echo '"'"'a b'"'"''\n""")
    assert (result.status, result.stderr) == (7, "err\n")


@pytest.mark.parametrize("status", [0, 7, 124, 137])
def test_a_status_is_the_commands_own(status: int, ssh: Ssh, program: Program, deadline: Deadline) -> None:
    """Even timeout(1)'s 124 and a killed command's 137, as long as there was time left."""
    program("ssh", f"exit {status}")
    assert ssh.execute("x", deadline=deadline).status == status


@pytest.mark.parametrize("status", [124, 137])
def test_the_guests_timeout_ended_it(status: int, ssh: Ssh, program: Program) -> None:
    """124 from timeout(1), or 137 when the command only reacted to SIGKILL (-k)."""
    program("ssh", f"exit {status}")
    with pytest.raises(DeadlinePassed, match="guest g: sleep 9: the time limit passed"):
        ssh.execute("sleep 9", deadline=Deadline.after(0))


def test_a_guest_that_does_not_end_it_in_time(
    ssh: Ssh, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a virtual clock a minute of the guest may be many of the host's. The error names guest and command."""
    program("ssh", "exec sleep 60")
    monkeypatch.setattr(ssh_module, "GRACE_SECONDS", 0.1)
    with pytest.raises(
        DeadlinePassed, match=r"^guest g: xfs_repair: the time limit passed, and it may go on"
    ):
        ssh.execute("xfs_repair", deadline=Deadline.after(0.1))


@pytest.mark.parametrize("left", [4.849, 4.81, 1.0])
def test_the_guests_timeout_is_no_shorter_than_the_deadline(
    left: float, ssh: Ssh, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its 124 would come while there is time left, and pass for the command's own."""
    program("ssh", 'for word; do last=$word; done; echo "$last"')
    monkeypatch.setattr(Deadline, "remaining", lambda _: left)
    words = ssh.execute("x", deadline=Deadline.after(60)).stdout.split()
    assert left <= float(words[words.index("5") + 1]) < left + 0.1


def test_ssh_is_lost(ssh: Ssh, program: Program, deadline: Deadline) -> None:
    program("ssh", "echo 'Connection reset' >&2; exit 255")
    with pytest.raises(GuestLost, match="guest g: SSH is lost: Connection reset"):
        ssh.execute("x", deadline=deadline)


def test_ssh_is_lost_from_a_command_that_tells(ssh: Ssh, program: Program, deadline: Deadline) -> None:
    """Samples on standard error are not taken for ssh's reason."""
    program("ssh", "echo '{\"t\": 2.0}' >&2; exit 255")
    lines: list[str] = []
    with pytest.raises(GuestLost, match=r"guest g: SSH is lost: the connection ended$"):
        ssh.execute("x", deadline=deadline, tell=lines.append)
    assert lines == ['{"t": 2.0}']


def test_255_is_the_commands_own_while_the_connection_stands(
    ssh: Ssh, program: Program, deadline: Deadline
) -> None:
    program("ssh", 'case "$*" in *"-O check"*) exit 0;; esac; exit 255')
    assert ssh.execute("x", deadline=deadline).status == 255


def test_an_oops_is_why_ssh_is_lost(tmp_path: Path, program: Program, deadline: Deadline) -> None:
    def watch() -> None:
        raise KernelOops("oops")

    program("ssh", "exit 255")
    with pytest.raises(KernelOops):
        Ssh(guest="g", port=1, key=tmp_path, known_hosts=tmp_path, watch=watch).execute(
            "x", deadline=deadline
        )


def test_cancel_ends_a_command(tmp_path: Path, program: Program, deadline: Deadline) -> None:
    program("ssh", "exec sleep 1000")
    with pytest.raises(Cancelled):
        Ssh(guest="g", port=1, key=tmp_path, known_hosts=tmp_path, watch=deadline.cancel.set).execute(
            "x", deadline=deadline
        )


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("/a", "guest:/b c", "/a 127.0.0.1:/b c"),
        ("guest:/a", "/b", "127.0.0.1:/a /b"),
        ("my-guest:x", "guest:guest:y", f"{Path.cwd()}/my-guest:x 127.0.0.1:guest:y"),
    ],
)
def test_copy(
    source: str, target: str, words: str, ssh: Ssh, program: Program, tmp_path: Path, deadline: Deadline
) -> None:
    program("scp", f'echo "$*" > {tmp_path}/words')
    ssh.copy(source=source, target=target, deadline=deadline)
    argv = (tmp_path / "words").read_text()
    assert argv.startswith("-F none -q -r -o ")
    assert argv.endswith(f" -P 2222 {words}\n")


def test_copy_fails(ssh: Ssh, program: Program, deadline: Deadline) -> None:
    program("scp", "echo 'No such file' >&2; exit 1")
    with pytest.raises(CommandFailed, match="exit status 1: No such file"):
        ssh.copy(source="a", target="guest:/b", deadline=deadline)


def test_disconnect(ssh: Ssh, program: Program, tmp_path: Path, deadline: Deadline) -> None:
    program("ssh", f'echo "$*" > {tmp_path}/words; exit 255')
    ssh.disconnect(deadline)
    assert not (tmp_path / "words").exists(), "there was no connection"
    ssh.control.touch()
    ssh.disconnect(deadline)
    assert "-O exit 127.0.0.1" in (tmp_path / "words").read_text()


@pytest.mark.parametrize(
    ("greeting", "answers"),
    [(b"SSH-2.0-OpenSSH_9.2p1\r\n", True), (b"HTTP/1.1 400\r\n", False), (b"", False)],
)
def test_wait_is_for_the_greeting(greeting: bytes, answers: bool, tmp_path: Path, program: Program) -> None:
    """That the port accepts a connection means nothing: QEMU does so long before there is an sshd."""
    program("ssh", "exit 0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        waiting = Ssh(guest="g", port=server.getsockname()[1], key=tmp_path, known_hosts=tmp_path)

        def greet() -> None:
            # On a busy host the client may have left.
            with suppress(OSError), server.accept()[0] as connection:
                server.close()
                connection.sendall(greeting)

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        if answers:
            waiting.wait(Deadline.after(60))
        else:
            with pytest.raises(DeadlinePassed):
                waiting.wait(Deadline.after(0.3))
        thread.join(60)


@pytest.mark.parametrize(
    ("message", "again"),
    [
        ("kex_exchange_identification: Connection closed by remote host", True),
        ("Connection reset by 127.0.0.1 port 2222", True),
        ("Connection timed out during banner exchange", True),
        ("Connection to 127.0.0.1 port 2222 timed out", True),
        ("mux_client_request_session: read from master failed: Broken pipe", True),
        ("", True),
        ("root@127.0.0.1: Permission denied (publickey).", False),
    ],
)
def test_wait_when_sshd_turns_the_first_away(
    message: str, again: bool, tmp_path: Path, program: Program, deadline: Deadline
) -> None:
    tries = tmp_path / "tries"
    program(
        "ssh",
        f'echo "$*" >> {tries}; grep -c -- -fN {tries} | grep -q 1 || case "$*" in *-fN*) exit 0;; esac;'
        f' echo "{message}" >&2; exit 255',
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        waiting = Ssh(guest="g", port=server.getsockname()[1], key=tmp_path, known_hosts=tmp_path)

        def greet() -> None:
            for _ in range(2):
                # A refusal accepts only once; then the server is closed.
                with suppress(OSError), server.accept()[0] as connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")

        threading.Thread(target=greet, daemon=True).start()
        if again:
            waiting.wait(deadline)
            assert tries.read_text().count("-fN") == 2
        else:
            with pytest.raises(GuestLost, match="Permission denied"):
                waiting.wait(deadline)


def test_wait_is_for_what_the_guest_says(
    tmp_path: Path, program: Program, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is tried before, and no greeting afterwards: each would cost an emulated sshd a process. A
    guest that says nothing is tried now and then."""
    program("ssh", "exit 0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        waiting = Ssh(guest="g", port=server.getsockname()[1], key=tmp_path, known_hosts=tmp_path)
        says = iter([False, False, True])
        waiting.wait(deadline, listens=lambda: next(says))
        assert next(says, None) is None
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
        monkeypatch.setattr(ssh_module, "BLIND_SECONDS", 0.1)
        with pytest.raises(DeadlinePassed):
            waiting.wait(Deadline.after(0.5), listens=lambda: False)
        server.accept()[0].close()


def test_a_connection_is_made_once(ssh: Ssh, program: Program, tmp_path: Path, deadline: Deadline) -> None:
    """A second ssh -fN would be a client of the first and stay."""
    tries = tmp_path / "tries"
    program("ssh", f'echo "$*" >> {tries}')
    ssh.connect(deadline)
    assert "-O check" not in tries.read_text(), "a boot's first connection takes one ssh"
    assert "-fN" in tries.read_text()
    tries.unlink()
    ssh.control.touch()
    ssh.connect(deadline)
    assert "-O check" in tries.read_text()
    assert "-fN" not in tries.read_text()


def test_wait_ends_with_the_watch(tmp_path: Path, deadline: Deadline) -> None:
    def watch() -> None:
        raise GuestLost("gone")

    with pytest.raises(GuestLost):
        Ssh(guest="g", port=1, key=tmp_path, known_hosts=tmp_path, watch=watch).wait(deadline)
    with pytest.raises(DeadlinePassed, match="guest g: waiting for SSH on port 1"):
        Ssh(guest="g", port=1, key=tmp_path, known_hosts=tmp_path).wait(Deadline.after(0))
