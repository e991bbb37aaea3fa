# SPDX-License-Identifier: GPL-2.0-only
"""The lab's version: the package's, and in a checkout the commit."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from numalab.core import paths
from numalab.core.errors import DeadlinePassed, HostError
from numalab.core.process import Deadline, run

GIT_SECONDS = 10.0
"""Time limit of git describe, which takes milliseconds: for a file system that hangs."""


def version() -> str:
    """`0.1`; in a checkout `0.1 (commit 1dc3791bc0de)`, with -dirty when files differ from it."""
    package = metadata.version("numalab")
    commit = _commit(paths.ROOT)
    return f"{package} (commit {commit})" if commit else package


def _commit(checkout: Path) -> str:
    """The commit or tag that is checked out; '' without git or when git fails."""
    if not (checkout / ".git").exists():  # git would search the parent folders
        return ""
    argv = ("git", "-C", checkout, "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=12")
    try:
        result = run(argv, deadline=Deadline.after(GIT_SECONDS), check=False)
    except (HostError, DeadlinePassed):
        return ""
    return result.stdout.strip() if result.status == 0 else ""
