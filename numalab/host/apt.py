# SPDX-License-Identifier: GPL-2.0-only
"""Debian packages by apt with lists of the lab's own. The host's lists are neither used nor changed."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from numalab.core.errors import CommandFailed
from numalab.core.log import moving
from numalab.core.process import Deadline, need, run
from numalab.model.units import show_part

MIRROR = "http://deb.debian.org"
"""Serves the suites that the host's sources.list does not have. Its package lists are signed."""
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""MIRROR's. Debian's apt trusts them anyway; Ubuntu has them in the package debian-archive-keyring."""
UNSECURED = ("sid", "unstable", "experimental")
"""Suites without one for security beside them, as have backports."""


def lists(suite: str, scratch: Path, deadline: Deadline) -> list[str]:
    """apt-get's options for fresh package lists of a Debian suite, in folders of `scratch`. Raises
    CommandFailed, HostError."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    signed = f" [signed-by={KEYS}]" if KEYS.exists() else ""
    lines = [f"deb{signed} {MIRROR}/debian {suite} main\n"]
    if suite not in UNSECURED and "-" not in suite:
        lines.append(f"deb{signed} {MIRROR}/debian-security {suite}-security main\n")
    (scratch / "sources.list").write_text("".join(lines))
    pairs = {
        "Dir::Etc::SourceList": "sources.list",
        "Dir::Etc::SourceParts": "none",
        "Dir::State": "state",
        "Dir::Cache": "cache",
    }
    options = [word for key, value in pairs.items() for word in ("-o", f"{key}={scratch / value}")]
    run(
        [need("apt-get", "apt"), *options, "-q", "-o", "APT::Update::Error-Mode=any", "update"],
        deadline=deadline,
    )
    return options


def unpack(package: str, options: list[str], scratch: Path, deadline: Deadline) -> Path:
    """Download a package and unpack it, without installing it; returns the folder. Raises CommandFailed,
    HostError."""
    # apt drops privileges to a user who cannot write here; as root it warns and goes on. Where there is no
    # such package, it would take the name for a pattern: linux-source-6.1 is in linux-source-6.12.
    exact = ["-o", "APT::Cmd::Pattern-Only=true"]
    said = io.BytesIO()

    def arrived() -> None:
        # The file has its name from the first byte on. The size is one of "Get:1 http://... [139 MB]".
        size = re.search(rb"^Get:.* \[([\d.]+) MB\]$", said.getvalue(), re.MULTILINE)
        with contextlib.suppress(FileNotFoundError):
            if size and (files := list(scratch.glob("*.deb"))):
                moving(show_part(files[0].stat().st_size, int(float(size[1]) * 1e6)))

    run(
        [need("apt-get", "apt"), *options, *exact, "download", "-q", package],
        deadline=deadline,
        cwd=scratch,
        env={"LC_ALL": "C"},
        watch=arrived,
        out=said,
    )
    moving("")
    deb = next(scratch.glob("*.deb"), None)
    if deb is None:
        raise CommandFailed(f"apt-get download {package}: left no .deb")
    run([need("dpkg-deb", "dpkg"), "-x", deb, scratch / "tree"], deadline=deadline)
    return scratch / "tree"
