# SPDX-License-Identifier: GPL-2.0-only
"""Packer: the host's own, or Debian 12's, which is fetched and kept in the state directory.

No Debian from 13 on has a package of it, nor Ubuntu after 22.04. Debian 12's 1.6.6 is one program, with
QEMU's builder and Ansible's provisioner in it; it needs no library but libc.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from numalab.core import checksum, state
from numalab.core.errors import CommandFailed, HostError
from numalab.core.log import note, step
from numalab.core.process import Deadline
from numalab.host import apt

SUITE = "bookworm"


def program() -> Path | None:
    """The host's own Packer, or the one that was fetched before; None when there is neither."""
    own = shutil.which("packer")
    # On Fedora this is the name of a program of cracklib, which writes files where it is started.
    if own and Path(own).resolve().name != "cracklib-packer":
        return Path(own)
    return fetched if (fetched := _place() / "packer").is_file() and _whole(fetched) else None


def fetchable() -> bool:
    """Whether this host has the programs with which Debian's package is fetched."""
    return all(map(shutil.which, ("apt-get", "dpkg-deb")))


def fetch(deadline: Deadline) -> Path:
    """`program`, after fetching Debian 12's if need be. HostError says what else can be done."""
    with state.lock("packer", deadline):
        if here := program():
            return here
        if not fetchable():
            raise HostError(
                "packer is not installed, and without apt-get and dpkg-deb Debian's cannot be fetched:"
                " install it (https://developer.hashicorp.com/packer/install), or build the image without it",
                field="with_packer",
            )
        with step(f"packer: Debian {SUITE}'s, downloaded"), state.making(_place()) as scratch:
            try:
                tree = apt.unpack("packer", apt.lists(SUITE, scratch, deadline), scratch, deadline)
                (tree / "usr/bin/packer").rename(scratch / "packer")
            except (CommandFailed, FileNotFoundError) as error:
                raise HostError(
                    f"packer is not installed, and Debian {SUITE}'s cannot be had from {apt.MIRROR}"
                    f" ({error}): install one, or build the image without it",
                    field="with_packer",
                ) from error
            for path in scratch.iterdir():
                if path.name != "packer":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            state.write(scratch / "packer.sha256", checksum.sha256(scratch / "packer") + "\n")
    return _place() / "packer"


def _place() -> Path:
    return state.folder("tools") / "packer"


def _whole(fetched: Path) -> bool:
    """Whether the program is as it was unpacked, by the checksum beside it."""
    try:
        if fetched.with_name("packer.sha256").read_text().strip() == checksum.sha256(fetched):
            return True
    except (OSError, UnicodeDecodeError):
        pass
    note(f"{fetched} is damaged: it is downloaded again")
    return False
