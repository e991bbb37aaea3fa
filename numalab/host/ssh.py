# SPDX-License-Identifier: GPL-2.0-only
"""Commands in a guest: the protocol Shell with its one primitive `execute`, and SSH, which implements it.

`succeed` is a function over the primitive, so that a fake in a unit test needs only the primitive. Not here:
commands on a hypervisor (remote), what a lost guest means (guest).
"""

from __future__ import annotations

import hashlib
import math
import re
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from numalab.core import state
from numalab.core.errors import CommandFailed, DeadlinePassed, GuestError, GuestLost
from numalab.core.process import KEEP_BYTES, Deadline, Result, need, run
from numalab.host.remote import Where

ALIVE_SECONDS, ALIVE_COUNT = 5, 12
"""A guest that answers no SSH keep-alive for a minute is lost; an emulated guest of 4 vCPUs beside five busy
processes on two CPUs was seen to take more than 20 s. A guest whose domain ends is seen at once (watch)."""
GRACE_SECONDS = 10.0
BLIND_SECONDS = 10.0
"""How often sshd is tried that has not said that it listens: the console may show nothing."""
SSH_FAILED = 255
EVIDENCE_BYTES = 4000
"""How much of the end of a command's output an error shows."""
TIMED_OUT = (124, 137)
"""timeout(1)'s own status, and its status when it had to kill the command."""


class Shell(Protocol):
    """Runs command lines in a guest."""

    def execute(
        self,
        command: str,
        *,
        deadline: Deadline,
        input: bytes | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> Result:
        """Run a shell command as root; `tell` gets each line of its standard error as it comes. The result's
        status is the command's own. Raises when the guest is lost, its kernel oopses, or the deadline passes,
        which ends the command in the guest."""
        ...


def quote(command: str | Sequence[str]) -> str:
    """A command line, from a command line or an argv."""
    return command if isinstance(command, str) else shlex.join(command)


def succeed(
    shell: Shell,
    command: str | Sequence[str],
    *,
    deadline: Deadline,
    input: bytes | None = None,
    tell: Callable[[str], None] | None = None,
) -> str:
    """The command's standard output. CommandFailed when its status is not 0."""
    line = quote(command)
    result = shell.execute(line, deadline=deadline, input=input, tell=tell)
    if result.status:
        last_line = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
        raise CommandFailed(
            f"in the guest: {line[:200]}: exit status {result.status}: {last_line}",
            evidence=result.stderr[-EVIDENCE_BYTES:],
        )
    if result.stdout_cut:
        raise GuestError(
            f"in the guest: {line[:200]}: printed more than the {KEEP_BYTES} bytes that the lab keeps"
        )
    return result.stdout


TURNED_AWAY = re.compile(
    r"kex_exchange_identification|Connection (closed|reset) by|timed out|read from master failed|"
    r"SSH is lost: the connection ended$"
)
"""ssh's errors for a server that closes the connection before authentication, or is too busy to answer; it
says nothing where an open session's keep-alives were not answered."""


@dataclass(frozen=True)
class Ssh:
    """SSH to a guest over a forwarded port, through one connection that all commands share.

    `watch` is called several times a second while a command runs, and may raise (console, domain). `via` is
    the hypervisor ([user@]host[:port]) through which a guest on another machine is reached.
    """

    guest: str
    port: int
    key: Path
    known_hosts: Path
    host: str = "127.0.0.1"
    via: str = ""
    watch: Callable[[], None] | None = None
    pace: float = 1.0
    """The most seconds of the guest's clock that go by in one of the host's."""

    @property
    def control(self) -> Path:
        """The shared connection's socket."""
        return state.sockets() / hashlib.sha256(f"{self.known_hosts} {self.port}".encode()).hexdigest()[:16]

    def options(self) -> list[str]:
        """The -o arguments that ssh, scp and Ansible share."""
        pairs = {
            "User": "root",
            "IdentityFile": self.key,
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "HostKeyAlias": "numalab",
            "LogLevel": "ERROR",
            "ConnectTimeout": 20,
            # First of the defaults: OpenSSH 9's sntrup761 takes an emulated guest another third of a second.
            "KexAlgorithms": "^curve25519-sha256",
            "ServerAliveInterval": ALIVE_SECONDS,
            "ServerAliveCountMax": ALIVE_COUNT,
            "ControlMaster": "auto",
            "ControlPath": self.control,
            "ControlPersist": "yes",
        }
        if self.via:
            pairs["ProxyCommand"] = shlex.join(Where(self.via).tunnel())
        return [word for key, value in pairs.items() for word in ("-o", f"{key}={value}")]

    def argv(self, *words: str) -> list[str]:
        """ssh to the guest, followed by `words`: options, then a command line."""
        return [need("ssh", "openssh-client"), "-F", "none", *self.options(), "-p", str(self.port), *words]

    def execute(
        self,
        command: str,
        *,
        deadline: Deadline,
        input: bytes | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> Result:
        """See Shell. timeout(1) in the guest ends the command when the deadline passes; on a virtual clock,
        which may be the faster one, only later."""
        return self._execute(command, deadline, input=input, tell=tell)

    def stream(
        self, command: str, *, deadline: Deadline, out: IO[bytes] | None, err: IO[bytes] | None
    ) -> Result:
        """Like execute, but passes the command's streams on as they come."""
        return self._execute(command, deadline, out=out, err=err)

    def _execute(
        self,
        command: str,
        deadline: Deadline,
        *,
        input: bytes | None = None,
        tell: Callable[[str], None] | None = None,
        out: IO[bytes] | None = None,
        err: IO[bytes] | None = None,
    ) -> Result:
        # Rounded up: a command that ends before the deadline with 124 has ended so by itself.
        limit = math.ceil(10 * max(1.0, deadline.remaining()) * self.pace) / 10
        words = f"exec timeout -k 5 {limit:.1f} sh -c {shlex.quote(command)}"
        too_late = f"guest {self.guest}: {command[:200]}: the time limit passed"
        try:
            result = run(
                self.argv("-T", self.host, words),
                deadline=deadline.grace(GRACE_SECONDS),
                check=False,
                input=input,
                watch=self.watch,
                tell=tell,
                out=out,
                err=err,
            )
        except DeadlinePassed as error:  # a slow virtual clock, or a guest that hangs
            raise DeadlinePassed(
                f"{too_late}, and it may go on in the guest", evidence=error.evidence
            ) from error
        if result.status in TIMED_OUT and not deadline.remaining():
            raise DeadlinePassed(too_late)
        if result.status == SSH_FAILED and not self.connected(deadline):
            # With `tell`, standard error is the command's, and has been passed on already.
            raise self._lost("" if tell else result.stderr)
        return result

    def _lost(self, message: str) -> GuestLost:
        """The error for a connection that is lost, by ssh's message. Raises what `watch` knows better."""
        if self.watch:
            self.watch()
        message = message[-EVIDENCE_BYTES:].strip()
        return GuestLost(f"guest {self.guest}: SSH is lost: {message or 'the connection ended'}")

    def connected(self, deadline: Deadline) -> bool:
        """Whether the shared connection exists."""
        return (
            run(
                self.argv("-O", "check", self.host), deadline=deadline.grace(GRACE_SECONDS), check=False
            ).status
            == 0
        )

    def disconnect(self, deadline: Deadline) -> None:
        """Close the shared connection, if it exists."""
        if self.control.exists():
            run(self.argv("-O", "exit", self.host), deadline=deadline.grace(GRACE_SECONDS), check=False)

    def copy(self, *, source: str, target: str, deadline: Deadline) -> None:
        """scp -r; `guest:` stands for the guest in either path."""
        # scp never takes an absolute path for a host, even with a colon in it.
        words = [
            (
                path.replace("guest:", f"{self.host}:", 1)
                if path.startswith("guest:")
                else str(Path(path).absolute())
            )
            for path in (source, target)
        ]
        run(
            [
                need("scp", "openssh-client"),
                "-F",
                "none",
                "-q",
                "-r",
                *self.options(),
                "-P",
                str(self.port),
                *words,
            ],
            deadline=deadline,
            watch=self.watch,
        )

    def connect(self, deadline: Deadline) -> None:
        """Connect to a guest whose sshd listens already. It is not waited for with tries for its greeting, of
        which each would cost an emulated sshd a process."""
        if not self._connects(deadline):
            self.wait(deadline)

    def wait(self, deadline: Deadline, *, listens: Callable[[], bool] | None = None) -> None:
        """Wait until SSH connects.

        `listens` says whether the guest has said on its console that its sshd listens: then it is connected
        to. Before, every BLIND_SECONDS, or where nobody can say, all the time, sshd's greeting is waited for,
        since QEMU accepts a connection at once and holds it. Later tries get more time each: on a busy host
        an emulated sshd needs seconds to greet.
        """
        began = time.monotonic()
        blind = began + BLIND_SECONDS
        while True:
            deadline.check(f"guest {self.guest}: waiting for SSH on port {self.port}")
            if self.watch:
                self.watch()
            heard = listens is not None and listens()
            if listens is not None and not heard and time.monotonic() < blind:
                deadline.pause(1.0 if self.via else 0.05)  # there `watch` runs a program
                continue
            blind = time.monotonic() + BLIND_SECONDS
            if heard or self._greets(deadline, max(1.0, (time.monotonic() - began) / 10)):
                if self._connects(deadline):
                    return
                deadline.pause(1.0)
            deadline.pause(0.1)

    def _connects(self, deadline: Deadline) -> bool:
        """Make the shared connection; False when sshd, just started, refuses it or does not answer:
        MaxStartups may be used up by connections that were held until it listened (seen under load). No
        command runs, since each costs an emulated guest a third of a second."""
        if self.control.exists() and self.connected(deadline):
            return True
        result = run(
            self.argv("-fN", self.host),
            deadline=deadline.grace(GRACE_SECONDS),
            check=False,
            watch=self.watch,
        )
        if not result.status:
            return True
        lost = self._lost(result.stderr)
        if not TURNED_AWAY.search(str(lost)):
            raise lost
        return False

    def _greets(self, deadline: Deadline, patience: float) -> bool:
        """Whether an SSH server at the other end sends its greeting."""
        if self.via:
            words = Where(self.via).argv(
                ["timeout", str(patience + 1), "bash", "-c", f"head -c 4 < /dev/tcp/{self.host}/{self.port}"]
            )
            return run(words, deadline=deadline, check=False).stdout == "SSH-"
        try:
            with socket.create_connection((self.host, self.port), timeout=patience) as greeting:
                greeting.settimeout(patience)
                return greeting.recv(4) == b"SSH-"
        except OSError:
            return False
