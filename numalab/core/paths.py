# SPDX-License-Identifier: GPL-2.0-only
"""Where the files are that the lab works with. Every other module reads the paths from here, so a module can
move.

A checkout has topologies/, kernels/, images/, playbooks/, testcases/ and reference/ beside the package, and a
person adds files there. An installed numalab has the same folders in the package (pyproject.toml), and a
person's own files are in ~/.config/numalab, in folders of the same names.

Write paths.ROOT, not `from numalab.core.paths import ROOT`: tests that need a checkout of their own replace
ROOT.
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
CHECKOUT = (PACKAGE.parent / "lab.py").is_file()
"""Whether the package stands in a checkout; otherwise it is installed."""
ROOT = PACKAGE.parent if CHECKOUT else PACKAGE / "files"
"""The folder with topologies/, kernels/, images/, playbooks/ and testcases/ as they are delivered."""
COMMAND = "lab.py" if CHECKOUT else "numalab"
"""What a person calls the lab by."""
WORKLOADS = "testcases/workloads"
"""Relative to ROOT."""
TEMPLATES = PACKAGE / "report/templates"
"""The HTML report's templates."""
AGENT = PACKAGE / "measure/agent.py"
"""The program that runs phases in the guest."""
RENEWED = PACKAGE / "guest/renewed.py"
"""The program that runs in a guest which a ready state restored."""
SLOW_DISKS = PACKAGE / "guest/slow_disks.sh"
"""The script that gives a guest's disks their speeds."""
INSTRUCTIONS = PACKAGE / "host/instructions.c"
"""The plugin with which QEMU counts a guest's instructions."""
WORKLOAD_MODULE = PACKAGE / "workload.py"
"""Helpers that several workloads share."""


def own() -> Path:
    """Where a person adds files: the checkout, or ~/.config/numalab (XDG_CONFIG_HOME) of an installed lab."""
    if CHECKOUT:
        return ROOT
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "numalab"


def roots() -> tuple[Path, ...]:
    """The folders in which a file is looked for, the person's own first."""
    return (ROOT,) if own() == ROOT else (own(), ROOT)


def find(name: str) -> Path:
    """A file or folder by its name relative to `roots`, such as kernels/6.1.yml; a person's own goes before
    the delivered one. Where there is none: where a person would add it."""
    return next((path for root in roots() if (path := root / name).exists()), own() / name)


def label(path: Path) -> str:
    """A path relative to whichever of `roots` it is in."""
    return str(next((path.relative_to(root) for root in roots() if path.is_relative_to(root)), path))
