# SPDX-License-Identifier: GPL-2.0-only
"""The user that QEMU runs as, and which parts of the state directory that user may read.

Under the system instance of libvirt, QEMU runs as the user of the lab. Where that is root, a guest that
breaks out of QEMU is root on the host. So the lab takes libvirt's own user where that user may enter the
state directory. The files that QEMU needs, and their folders, get that user's group, which has no other
members: an image holds the guests' private host key.

Not here: the DAC label in the XML (domain), other machines (there QEMU is the user that SSH logs in as).
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from numalab.core import state
from numalab.core.errors import HostError
from numalab.core.log import note
from numalab.core.process import Deadline, need, run
from numalab.host.domain import INSTRUCTION_FILES
from numalab.host.hypervisor import Host
from numalab.model.guest import GuestSpec

NAMES = ("libvirt-qemu", "qemu")
"""The user that libvirt's packages create for QEMU: Debian's, Fedora's."""
OPENED = ("images", "kernels", "guests", "ready", "disks", "pool", "emulator")
"""Folders of the state directory in which QEMU reads or writes files, or has a program. pool-MACHINE, the
storage pool, counts as pool."""
CLOSED = (
    "bases",
    "builds",
    "cache",
    "calibration",
    "configs",
    "containers",
    "downloads",
    "git",
    "inventory",
    "jobs",
    "locks",
    "logs",
    "programs",
    "runs",
    "sources",
    "ssh",
    "tools",
    "lab-id",
)
"""All other folders. They may be readable, since the state directory itself was closed."""


@dataclass(frozen=True, kw_only=True)
class QemuUser:
    """The user that QEMU runs as."""

    owner: tuple[int, int] | None
    """uid and gid for the domain's label; None under libvirt's session, which has one user."""
    name: str
    reason: str
    group: int | None = None
    """The group that gets access; None where QEMU runs as the user of the lab."""
    avoidable: bool = False
    """Whether QEMU is root although the host has an unprivileged user for it."""


def choose(host: Host, deadline: Deadline) -> QemuUser:
    """The user that QEMU would run as. Changes nothing."""
    owner = host.owner(deadline)
    if owner is None:
        return QemuUser(owner=None, name=_name(os.getuid()), reason="libvirt's session is its own")
    if host.where.ssh:
        return QemuUser(owner=owner, name=f"uid {owner[0]}", reason=f"the user of {host.where.ssh}")
    root = QemuUser(owner=owner, name=_name(owner[0]), reason="the lab's files are its own")
    if owner[0] != 0:
        return root
    user = _of_libvirt()
    if user is None:
        return replace(root, reason=f"there is no user {' or '.join(NAMES)} with a group of its own")
    place = state.directory().resolve()
    if closed := _refused(user, "-x", [*reversed(place.parents), place], deadline):
        return replace(root, reason=f"{user.pw_name} may not enter {closed}", avoidable=True)
    return QemuUser(
        owner=(user.pw_uid, user.pw_gid),
        name=user.pw_name,
        group=grp.getgrnam(user.pw_name).gr_gid,
        reason=f"it may enter {place} (with mode 700 there, QEMU is root)",
    )


def let_in(host: Host, files: Sequence[Path], deadline: Deadline) -> QemuUser:
    """The QEMU user for a guest that reads these files; those of the lab are opened to it.

    A person's own file is not changed; if libvirt's user cannot read it, QEMU stays root, with a warning.
    """
    chosen = choose(host, deadline)
    if chosen.group is None or chosen.owner is None:
        return chosen
    try:
        _close()
        for path in files:
            _open(path, chosen.group)
        closed = _refused(pwd.getpwuid(chosen.owner[0]), "-r", files, deadline)
    except OSError as error:  # a file system without owners
        closed = f"{error.filename}: {error.strerror}"
    if not closed:
        return chosen
    note(f"QEMU runs as root: {chosen.name} may not read {closed}")
    return QemuUser(
        owner=host.owner(deadline),
        name=_name(0),
        reason=f"{chosen.name} may not read {closed}",
        avoidable=True,
    )


def hand_over(spec: GuestSpec, host: Host) -> None:
    """Give the files that a guest writes (disks, console log) to its QEMU's user. Raises HostError."""
    if spec.owner is None or host.where.ssh or spec.owner[0] == os.getuid():
        return
    group = grp.getgrnam(_name(spec.owner[0])).gr_gid
    try:
        for path in (*(Path(disk.path) for disk in spec.disks), *written(spec)):
            _open(path, group)
            os.chown(path, *spec.owner, follow_symlinks=False)
            path.chmod(0o600)
    except OSError as error:
        raise HostError(
            f"{error.filename}: cannot be given to {_name(spec.owner[0])}: {error.strerror}"
        ) from error


def written(spec: GuestSpec) -> list[Path]:
    """The files in a guest's folder that its QEMU writes or reads beside its disks."""
    return [
        Path(spec.directory) / name
        for name in ("console.log", *(INSTRUCTION_FILES if spec.instructions else ()))
    ]


def shown(spec: GuestSpec, host: Host) -> str:
    """The user of a guest's QEMU, as text for a person."""
    if spec.owner is None:
        return "the user of libvirt's session"
    if host.where.ssh:
        return f"uid {spec.owner[0]} of {host.where.ssh}"
    return _name(spec.owner[0])


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _of_libvirt() -> pwd.struct_passwd | None:
    """libvirt's user for QEMU, if it has a group of its own name; else None."""
    for name in NAMES:
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            if grp.getgrnam(name).gr_gid in os.getgrouplist(name, user.pw_gid):
                return user
    return None


def _refused(user: pwd.struct_passwd, access: str, paths: Sequence[Path], deadline: Deadline) -> str:
    """The first path to which a user has no access (-x, -r: as in test(1)), tried as that user; else ''."""
    script = 'access=$1; shift; for path; do test "$access" "$path" || { echo "$path"; exit 1; }; done'
    words = [
        need("setpriv", "util-linux"),
        "--reuid",
        str(user.pw_uid),
        "--regid",
        str(user.pw_gid),
        "--init-groups",
        "--",
    ]
    result = run(
        [*words, "sh", "-c", script, "sh", access, *paths], deadline=deadline, check=False, cwd=Path("/")
    )
    if result.status:
        return (
            result.stdout.strip()
            or f"anything ({(result.stderr.strip() or 'setpriv failed').splitlines()[-1]})"
        )
    return ""


def _close() -> None:
    """Remove others' access to the folders that QEMU does not need."""
    for path in (state.directory() / name for name in CLOSED):
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if not stat.S_ISLNK(status.st_mode) and status.st_uid == os.getuid() and status.st_mode & 0o077:
                path.chmod(status.st_mode & 0o700)


def _open(path: Path, group: int) -> None:
    """Let a group read a file of the lab and enter its folders. Files of others stay as they are."""
    top, path = state.directory().resolve(), path.resolve()
    if not path.is_relative_to(top) or path.relative_to(top).parts[0].split("-")[0] not in OPENED:
        return
    for folder in (parent for parent in path.parents if parent != top and parent.is_relative_to(top)):
        _permit(folder, group, 0o710)
    _permit(path, group, 0o750 if path.stat().st_mode & stat.S_IXUSR else 0o640)


def _permit(path: Path, group: int, mode: int) -> None:
    status = path.lstat()
    if status.st_uid == os.getuid() and (status.st_gid, stat.S_IMODE(status.st_mode)) != (group, mode):
        os.chown(path, -1, group)
        path.chmod(mode)
