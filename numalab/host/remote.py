# SPDX-License-Identifier: GPL-2.0-only
"""Where a command runs and a file is: on this machine, or on a hypervisor that is reached by SSH.

All commands and files on a hypervisor go through a Where, so one code path makes guests on any host. A folder
of the state directory has the same path on both sides. Not here: commands inside guests (ssh).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import random
import shlex
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from numalab.core import checksum, state
from numalab.core.errors import CommandFailed, HostError, InputError, LabError
from numalab.core.process import Deadline, Result, need, run

CONNECT_SECONDS = 15
GRACE_SECONDS = 3
"""How much longer than our deadline a program on another machine may run before it is ended there."""

SUMS = """
for path; do
    memory=${path%/*}/.${path##*/}.sha256
    if ! stamp=$(stat -c '%s %y %z %i' -- "$path" 2>/dev/null); then
        echo
    elif [ "$(sed -n 1p "$memory" 2>/dev/null)" = "$stamp" ] && [ -n "$(sed -n 2p "$memory")" ]; then
        sed -n 2p "$memory"
    else
        sum=$(sha256sum <"$path") && sum=${sum%% *} || sum=
        { printf '%s\\n' "$stamp" "$sum" >"$memory.$$" && mv "$memory.$$" "$memory"; } 2>/dev/null
        echo "$sum"
    fi
done
"""
"""sh -c, with paths: prints a line with the SHA-256 of each. The sum is cached beside the file, by size,
inode, mtime and ctime (cp -p and rsync -t set %y; nobody sets %z): an image of some GB is read once."""
ARRIVED = """
sum=$(sha256sum <"$1") && [ "${sum%% *}" = "$3" ] && chmod "$4" "$1" && sync "$1" && mv -T "$1" "$2"
"""
"""sh -c, with the file that was sent, its final name, its SHA-256 and its mode."""
SWEEP = """
for folder in cache guests images kernels pushed; do
    test ! -d "$1/$folder" ||
        find "$1/$folder" -maxdepth 3 -name "$2*" -mmin +1440 -prune -print -exec rm -rf -- {} +
done
"""
"""sh -c, with the state directory and the prefix of our partial files: removes and prints those a day old."""


@dataclass(frozen=True)
class Where:
    """A machine: `ssh` is its [user@]host[:port]; '' is this one."""

    ssh: str = ""

    def _ssh(self, program: str) -> list[str]:
        """ssh or scp to the machine, with the user's own configuration, over one shared connection."""
        name = hashlib.sha256(self.ssh.encode()).hexdigest()[:16]
        words = [
            need(program, "openssh-client"),
            "-o",
            "BatchMode=yes",
            "-o",
            f"ConnectTimeout={CONNECT_SECONDS}",
            "-o",
            "ControlMaster=auto",
            "-o",
            "ControlPersist=60",
            "-o",
            f"ControlPath={state.sockets()}/host-{name}",
        ]
        _, _, port = self.ssh.rpartition("@")[2].partition(":")
        return [*words, "-P" if program == "scp" else "-p", port] if port else words

    @property
    def host(self) -> str:
        """[user@]host, without the port."""
        user, at, host = self.ssh.rpartition("@")
        return user + at + host.partition(":")[0]

    def argv(self, words: Sequence[str | Path]) -> list[str]:
        """The local argv that runs a program on the machine."""
        plain = [str(word) for word in words]
        return [*self._ssh("ssh"), self.host, shlex.join(plain)] if self.ssh else plain

    def tunnel(self) -> list[str]:
        """ssh's ProxyCommand: connects standard input and output to %h:%p as seen from the machine."""
        return [*self._ssh("ssh"), "-W", "%h:%p", self.host]

    def run(
        self,
        words: Sequence[str | Path],
        *,
        deadline: Deadline,
        check: bool = True,
        watch: Callable[[], None] | None = None,
        out: IO[bytes] | None = None,
    ) -> Result:
        """Run a program on the machine; see process.run. sshd does not end what it started when its client
        goes away, and a QEMU with a hung guest would run for ever. So on another machine timeout(1) ends the
        program soon after our deadline."""
        bounded = (
            ["timeout", "--kill-after=2", f"{deadline.remaining() + GRACE_SECONDS:.0f}", *words]
            if self.ssh
            else words
        )
        result = run(
            self.argv(bounded), deadline=deadline, check=check and not self.ssh, watch=watch, out=out
        )
        if self.ssh and result.status == 255:
            raise HostError(f"{self.ssh}: not reached by SSH: {result.stderr.strip() or 'no answer'}")
        if check and result.status:
            last_line = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
            raise CommandFailed(
                f"on {self.ssh}: {shlex.join(str(word) for word in words)[:200]}: exit status"
                f" {result.status}: {last_line}",
                evidence=result.stderr,
            )
        return result

    def program(self, name: str, package: str) -> str:
        """A program's name on another machine; on this one its path, or a HostError with the package."""
        return name if self.ssh else need(name, package)

    def push(self, paths: Iterable[Path], deadline: Deadline) -> dict[Path, Path]:
        """Make sure that the machine has the files, with the same content; returns the path of each there.
        Raises HostError.

        A file of the state directory has the same path there. For any other file, such as the bzImage of a
        kernel tree, a person may have a file of their own at that path. So it goes to a path that contains
        its checksum.
        """
        if not self.ssh:
            return {path: path for path in paths}
        sums = {path: checksum.sha256(path) for path in paths}
        targets = {path: _target(path, digest) for path, digest in sums.items()}
        there = self._sums(list(targets.values()), deadline)
        for path, target in targets.items():
            if there[target] == sums[path]:
                continue
            name = hashlib.sha256(f"{self.ssh} {target}".encode()).hexdigest()[:16]
            with state.lock(f"push-{name}", deadline):  # other threads and processes may push the same image
                if self._sums([target], deadline)[target] != sums[path]:
                    self._send(path, target, sums[path], deadline)
        return targets

    def sweep(self, deadline: Deadline) -> list[Path]:
        """Remove and return what killed pushes and claims of this lab left there more than a day ago."""
        if not self.ssh:
            return []
        done = self.run(["sh", "-c", SWEEP, "sh", state.directory(), part_prefix()], deadline=deadline)
        return [Path(line) for line in done.stdout.splitlines()]

    def _sums(self, paths: Sequence[Path], deadline: Deadline) -> dict[Path, str]:
        """The SHA-256 of files there, '' for an absent one; in one round trip."""
        if not paths:
            return {}
        lines = self.run(["sh", "-c", SUMS, "sh", *paths], deadline=deadline).stdout.splitlines()
        if len(lines) != len(paths):
            raise HostError(f"{self.ssh}: does not print the checksums of {', '.join(map(str, paths))}")
        return dict(zip(paths, lines, strict=True))

    def _send(self, path: Path, target: Path, digest: str, deadline: Deadline) -> None:
        """Copy a file under a temporary name; rename it to `target` when it has arrived completely."""
        make = 'mkdir -p -m 700 "$1" && mktemp "--suffix=-$3" "$1/$2XXXXXXXX"'
        words: list[str | Path] = ["sh", "-c", make, "sh", target.parent, part_prefix(), target.name]
        part = self.run(words, deadline=deadline).stdout.strip()
        try:
            run([*self._ssh("scp"), "-q", path, f"{self.host}:{part}"], deadline=deadline)
            mode = f"{path.stat().st_mode & 0o777:o}"
            if self.run(
                ["sh", "-c", ARRIVED, "sh", part, target, digest, mode], deadline=deadline, check=False
            ).status:
                raise HostError(
                    f"{self.ssh}: {path}: what arrived is not what was sent: "
                    "was it written meanwhile, or is the disk there full?"
                )
        except BaseException:
            with contextlib.suppress(LabError):
                # A new deadline: after Ctrl-C the caller's is cancelled and would end this wait at once.
                self.run(["rm", "-f", part], deadline=Deadline.after(CONNECT_SECONDS))
            raise

    def read(self, path: Path, offset: int, deadline: Deadline, most: int) -> bytes:
        """Up to `most` bytes of a file from an offset on; b'' when it is absent."""
        if self.ssh:
            script = f'tail -c "+{offset + 1}" "$1" 2>/dev/null | head -c {most} | base64'
            try:
                return base64.b64decode(self.run(["sh", "-c", script, "sh", path], deadline=deadline).stdout)
            except ValueError as error:
                raise HostError(
                    f"{self.ssh}: {path}: what came is not base64: does the shell there print a greeting?"
                ) from error
        try:
            with path.open("rb") as handle:
                handle.seek(offset)
                return handle.read(most)
        except FileNotFoundError:
            return b""

    def size(self, path: Path, deadline: Deadline) -> int:
        """A file's size in bytes; 0 when it is absent."""
        if self.ssh:
            return int(
                self.run(["stat", "-c", "%s", path], deadline=deadline, check=False).stdout.strip() or 0
            )
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def touch(self, path: Path, deadline: Deadline) -> None:
        """Create an empty file (0600) of ours unless it exists."""
        if self.ssh:
            self.run(["sh", "-c", 'umask 077; : >> "$1"', "sh", path], deadline=deadline)
        else:
            path.touch(mode=0o600)

    def owner(self, deadline: Deadline) -> tuple[int, int]:
        """uid and gid of the user that we are there."""
        if not self.ssh:
            return os.getuid(), os.getgid()
        uid, gid = self.run(["sh", "-c", "id -u; id -g"], deadline=deadline).stdout.split()
        return int(uid), int(gid)


HERE = Where()


def part_prefix() -> str:
    """The prefix of this lab's partial files on another machine.

    Other than state.scratch's: a lab there with the same state directory would take such files for its own.
    """
    return f".part-{state.identity()}-"


def _target(path: Path, digest: str) -> Path:
    """The path on another machine of a file with this SHA-256."""
    home = state.directory()
    return path if path.is_relative_to(home) else home / "pushed" / digest / path.name


def of_uri(uri: str) -> Where:
    """The machine of a libvirt URI. InputError for a remote transport other than SSH."""
    parts = urlsplit(uri)
    transport = parts.scheme.partition("+")[2]
    if not parts.hostname or transport == "unix":
        return HERE
    if transport != "ssh":
        raise InputError(
            f"uri {uri}: guests' disks are made over SSH: use qemu+ssh://{parts.netloc}/system", field="uri"
        )
    return Where(parts.netloc)


def free_port(where: Where = HERE) -> int:
    """A loopback port that is free now; on another machine a random one: QEMU refuses it if it is taken."""
    if where.ssh:
        return random.randrange(20000, 32768)  # below the kernel's ephemeral ports
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
