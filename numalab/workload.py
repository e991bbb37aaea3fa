"""What several workloads share: values only; a workload never talks to a guest itself."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

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


def mkfs_xfs(options: str) -> str:
    """mkfs.xfs with these options, or with those of the kernel's era, which may not mount what they make."""
    return f"mkfs.xfs -f ${{{MKFS_XFS}:-{options}}}"


def mkfs(filesystem: str) -> str:
    """What makes btrfs, ntfs or xfs of the disk that follows; nothing is discarded on one that was never written."""
    return {"btrfs": "mkfs.btrfs -q -f -K", "ntfs": "mkfs.ntfs -q -Q -F", "xfs": f"{mkfs_xfs('')} -q -K"}[filesystem]
