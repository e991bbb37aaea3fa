"""What several workloads share: values only; a workload never talks to a guest itself."""

from __future__ import annotations

import shlex
from pathlib import Path

from numalab.eras import MKFS_XFS
from numalab.model import Phase

COMPILE_SECONDS = 180.0


def compile_c(source: Path, target: str, *flags: str) -> Phase:
    """A phase that compiles a C file in the guest: the text goes along in the command, so no copy step is needed."""
    words = shlex.join(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", *flags, "-x", "c", "-", "-o", target])
    command = f"{words} <<'NUMALAB_EOF'\n{source.read_text()}\nNUMALAB_EOF"
    return Phase(name=f"compile-{Path(target).name}", command=command, limit_seconds=COMPILE_SECONDS, measured=False)


def mkfs_xfs(options: str) -> str:
    """mkfs.xfs with these options, or with those of the kernel's era, which may not mount what they make."""
    return f"mkfs.xfs -f ${{{MKFS_XFS}:-{options}}}"
