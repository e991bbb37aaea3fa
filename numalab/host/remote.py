# SPDX-License-Identifier: GPL-2.0-only
"""Where a command runs and a file lies: on this machine, or on a hypervisor that is reached by SSH.

Everything that the edges do on a hypervisor goes through a Where, so that a guest on another host is made
by the same code. A folder of the state directory has the same path on both sides.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from numalab.core import checksum, state
from numalab.core.errors import CommandFailed, HostError, InputError, LabError
from numalab.core.process import Deadline, Result, need, run

CONNECT_SECONDS = 15
GRACE_SECONDS = 3
"""How much longer than here a program may take on another machine before it is ended there."""

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
"""sh -c, with paths: a line with the SHA-256 of each. Remembered there beside the file, by size, inode and
both times: cp -p and rsync -t set the one of the content (%y), nobody sets the one of the inode (%z). An
image of some GB is read once."""
ARRIVED = """
sum=$(sha256sum <"$1") && [ "${sum%% *}" = "$3" ] && chmod "$4" "$1" && sync "$1" && mv -T "$1" "$2"
"""
"""sh -c, with the file that was sent, its real name, its SHA-256 and its mode."""
SWEEP = """
for folder in cache guests images kernels pushed; do
    test ! -d "$1/$folder" || find "$1/$folder" -maxdepth 3 -name "$2*" -mmin +1440 -prune -print -exec rm -rf -- {} +
done
"""
"""sh -c, with the state directory and how our parts are called: removes those older than a day, a line for
each."""


@dataclass(frozen=True)
class Where:
    """A machine: `ssh` is its [user@]host[:port], '' is this one."""

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
        """The argv to run here for a program there."""
        plain = [str(word) for word in words]
        return [*self._ssh("ssh"), self.host, shlex.join(plain)] if self.ssh else plain

    def tunnel(self) -> list[str]:
        """ssh's ProxyCommand: its standard streams become a connection to %h:%p as seen from there."""
        return [*self._ssh("ssh"), "-W", "%h:%p", self.host]

    def run(
        self,
        words: Sequence[str | Path],
        *,
        deadline: Deadline,
        check: bool = True,
        watch: Callable[[], None] | None = None,
    ) -> Result:
        """Run a program there; see proc.run. sshd does not end what it started when its client goes (a QEMU
        whose guest hangs would run for ever), so a program on another machine takes its time limit along, a
        little later than ours."""
        bounded = (
            ["timeout", "--kill-after=2", f"{deadline.remaining() + GRACE_SECONDS:.0f}", *words]
            if self.ssh
            else words
        )
        result = run(self.argv(bounded), deadline=deadline, check=check and not self.ssh, watch=watch)
        if self.ssh and result.status == 255:
            raise HostError(f"{self.ssh}: not reached by SSH: {result.stderr.strip() or 'no answer'}")
        if check and result.status:
            said = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
            raise CommandFailed(
                f"on {self.ssh}: {shlex.join(str(word) for word in words)[:200]}: exit status {result.status}: {said}",
                evidence=result.stderr,
            )
        return result

    def program(self, name: str, package: str) -> str:
        """A program's name there; here, its path or a HostError with the package."""
        return name if self.ssh else need(name, package)

    def push(self, paths: Iterable[Path], deadline: Deadline) -> dict[Path, Path]:
        """Make sure that files are there, with the same content; returns the path that each has there. Raises
        HostError.

        A file of the state directory has the same path there. At the path of any other a person may keep a
        file of his own there (the bzImage of a kernel tree), so it gets a place that is named by its content.
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
            with state.lock(f"push-{name}", deadline):  # threads and processes bring up guests of one image
                if self._sums([target], deadline)[target] != sums[path]:
                    self._send(path, target, sums[path], deadline)
        return targets

    def sweep(self, deadline: Deadline) -> list[Path]:
        """Remove (and return) what pushes and claims of this lab that were killed left there more than a day
        ago."""
        if not self.ssh:
            return []
        done = self.run(["sh", "-c", SWEEP, "sh", state.directory(), part_prefix()], deadline=deadline)
        return [Path(line) for line in done.stdout.splitlines()]

    def _sums(self, paths: Sequence[Path], deadline: Deadline) -> dict[Path, str]:
        """The SHA-256 of files there, '' for one that is not there; in one round trip."""
        if not paths:
            return {}
        lines = self.run(["sh", "-c", SUMS, "sh", *paths], deadline=deadline).stdout.splitlines()
        if len(lines) != len(paths):
            raise HostError(f"{self.ssh}: does not print the checksums of {', '.join(map(str, paths))}")
        return dict(zip(paths, lines, strict=True))

    def _send(self, path: Path, target: Path, digest: str, deadline: Deadline) -> None:
        """Copy a file to a name of its own there; it becomes `target` when it has arrived whole."""
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
                # Not a grace of the caller's deadline: after Ctrl-C that is cancelled, and ends every wait at
                # once.
                self.run(["rm", "-f", part], deadline=Deadline.after(CONNECT_SECONDS))
            raise

    def read(self, path: Path, offset: int, deadline: Deadline, most: int) -> bytes:
        """A file's bytes from an offset on, `most` of them at most; b'' when it is not there (yet)."""
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
        """A file's size in bytes; 0 when it is not there (yet)."""
        if self.ssh:
            return int(
                self.run(["stat", "-c", "%s", path], deadline=deadline, check=False).stdout.strip() or 0
            )
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def touch(self, path: Path, deadline: Deadline) -> None:
        """Make an empty file of ours (0600) unless it is there."""
        if self.ssh:
            self.run(["sh", "-c", 'umask 077; : >> "$1"', "sh", path], deadline=deadline)
        else:
            path.touch(mode=0o600)

    def owner(self, deadline: Deadline) -> tuple[int, int]:
        """uid and gid of whoever we are there."""
        if not self.ssh:
            return os.getuid(), os.getgid()
        uid, gid = self.run(["sh", "-c", "id -u; id -g"], deadline=deadline).stdout.split()
        return int(uid), int(gid)


HERE = Where()


def part_prefix() -> str:
    """How the names begin of what this lab has half made on another machine.

    Not as those of state.scratch: a lab on that machine, with the same state directory, takes such for its
    own.
    """
    return f".part-{state.identity()}-"


def _target(path: Path, digest: str) -> Path:
    """The path that a file with this SHA-256 has on another machine."""
    home = state.directory()
    return path if path.is_relative_to(home) else home / "pushed" / digest / path.name


def of_uri(uri: str) -> Where:
    """The machine of a libvirt URI. A guest's disks must get there, so only SSH leads to another one."""
    parts = urlsplit(uri)
    transport = parts.scheme.partition("+")[2]
    if not parts.hostname or transport == "unix":
        return HERE
    if transport != "ssh":
        raise InputError(
            f"uri {uri}: guests' disks are made over SSH: use qemu+ssh://{parts.netloc}/system", field="uri"
        )
    return Where(parts.netloc)
