# SPDX-License-Identifier: GPL-2.0-only
"""The lab's version: the package's, and the commit where it runs from a checkout."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from numalab.core import paths
from numalab.core.errors import DeadlinePassed, HostError
from numalab.core.process import Deadline, run

GIT_SECONDS = 10.0
"""git describe takes milliseconds; a file system that hangs costs no more than this."""


def version() -> str:
    """`0.1`, or `0.1 (commit 1dc3791bc0de)` in a checkout; `-dirty` follows a commit that is not all of
    it."""
    package = metadata.version("numalab")
    commit = _commit(paths.ROOT)
    return f"{package} (commit {commit})" if commit else package


def _commit(checkout: Path) -> str:
    """The commit (or tag) that is checked out there; '' where git does not know, or there is no git."""
    if not (checkout / ".git").exists():  # git would look in the folders above
        return ""
    argv = ("git", "-C", checkout, "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=12")
    try:
        result = run(argv, deadline=Deadline.after(GIT_SECONDS), check=False)
    except (HostError, DeadlinePassed):
        return ""
    return result.stdout.strip() if result.status == 0 else ""
