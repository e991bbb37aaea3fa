"""What several workloads share: values only; a workload never talks to a guest itself."""

from __future__ import annotations

import functools
import re
import shlex
import tarfile
import zlib
from lzma import LZMAError
from pathlib import Path

from numalab.core.errors import InputError
from numalab.model import MKFS_XFS, Phase

COMPILE_SECONDS = 180.0
ON_SMALLEST_NODE = (
    "taskset -c $(for node in /sys/devices/system/node/node[0-9]*; do cpus=$(cat $node/cpulist); "
    "[ -z \"$cpus\" ] || awk -v cpus=$cpus '/MemTotal/ {print $4, cpus}' $node/meminfo; done | sort -n | head -n 1 | cut -d ' ' -f 2) "
)
"""Before a command: it runs on the CPUs of the smallest node that has some."""


def compile_c(source: Path, target: str, *flags: str) -> Phase:
    """A phase that compiles a C file in a guest: the text goes along in the command, so no copy step is needed.

    Headers that stand beside the file (#include "NAME") are put in their place.
    """
    words = shlex.join(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-x", "c", "-", "-o", target, *flags])
    command = f"{words} <<'NUMALAB_EOF'\n{_whole(source)}\nNUMALAB_EOF"
    return Phase(name=f"compile-{Path(target).name}", command=command, limit_seconds=COMPILE_SECONDS, measured=False, makes=target)


def _whole(source: Path) -> str:
    return re.sub(r'^#include "([\w.-]+)"\n', lambda line: _whole(source.with_name(line[1])), source.read_text(), flags=re.MULTILINE)


def user_tarball(workload: str, variable: str, name: str, member: str, lacking: str) -> Path:
    """A tar archive that the user names in an environment variable. InputError when it is not there, is cut off, or has no
    member whose name begins with `member`, a regular expression; `lacking` says then what is not in it."""
    tarball = Path(name)
    about = f"{workload}: {variable}={tarball}"
    if not tarball.is_file():
        raise InputError(f"{about}: there is no such file")
    try:
        status = tarball.stat()
        members = _members(tarball, status.st_size, status.st_mtime_ns)
    except (OSError, EOFError, tarfile.TarError, zlib.error, LZMAError) as error:
        reason = str(error).partition("\n")[0].rstrip(":")  # tarfile tells of each compression that it tried
        raise InputError(f"{about}: it is no whole tar archive ({reason}): get it again") from error
    if not any(re.match(member, one) for one in members):
        raise InputError(f"{about}: {lacking}")
    return tarball


@functools.lru_cache(maxsize=2)
def _members(tarball: Path, _size: int, _mtime_ns: int) -> tuple[str, ...]:
    """The names in a tar archive, which is read to its end. Raises what reading a broken one raises."""
    with tarfile.open(tarball) as archive:
        names = archive.getnames()
        stream = archive.fileobj
        assert stream is not None  # of an open archive
        # tarfile takes the end of the file for that of the archive, which is a block of zeros; a compressed one has its
        # checksum after that.
        stream.seek(archive.offset)
        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise EOFError("its end is missing")
        while stream.read(1 << 20):
            pass
    return tuple(names)


def mkfs_xfs(options: str) -> str:
    """mkfs.xfs with these options, or with those of the kernel's era, which may not mount what they make."""
    return f"mkfs.xfs -f ${{{MKFS_XFS}:-{options}}}"


def mkfs(filesystem: str) -> str:
    """What makes btrfs, ntfs or xfs of the disk that follows; nothing is discarded on one that was never written."""
    return {"btrfs": "mkfs.btrfs -q -f -K", "ntfs": "mkfs.ntfs -q -Q -F", "xfs": f"{mkfs_xfs('')} -q -K"}[filesystem]


def mounted(filesystem: str, device: str, folder: str, *, mount: str = "mount") -> str:
    """What makes a fresh file system on a disk and mounts it, in a guest too where an earlier run left one mounted.
    `mount` is the command up to the disk."""
    return (
        f"{{ ! mountpoint -q {folder} || umount {folder}; }} && {mkfs(filesystem)} {device} && mkdir -p {folder} && "
        f"{mount} {device} {folder}"
    )
