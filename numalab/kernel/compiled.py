# SPDX-License-Identifier: GPL-2.0-only
"""How far make is with a kernel: the files that it has compiled, of about how many.

Not here: what runs make (build).
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from numalab.core.log import moving
from numalab.kernel import kconfig

MEASURED = {"5.10": (1804, 765), "6.1": (1880, 828)}
"""Series -> the files compiled for its lean kernel in a fresh build tree, and the options that this one has
(5.10.262 and 6.1.192, 2026-11-28). tests/vm/test_kernel.py compares them with kernels that are built."""


def files(log: bytes) -> int:
    """How many files make says in its log that it compiled."""
    return sum(line.startswith(b"  CC ") for line in log.splitlines())


def options(config: str) -> int:
    """How many options of a .config are y or m."""
    return sum(value in ("y", "m") for value in kconfig.options(config).values())


def expected(config: str, kept: Path) -> int:
    """About how many files are compiled for a .config in a fresh build tree; 0 when nobody knows.

    `kept` is the folder of built kernels. One of the same series tells how many files an option takes, if
    its tree was fresh: for a variant make compiles what a patch touches, which is less than a file for each
    option. MEASURED is for who has none. Kernels with and without modules are not compared.
    """
    like = _series(config), kconfig.has_modules(config)
    rate = 0.0
    for place in kept.iterdir():
        with contextlib.suppress(OSError):
            theirs = (place / "config").read_text(errors="replace")
            if (_series(theirs), kconfig.has_modules(theirs)) == like:
                log = (place / "build.log").read_bytes()
                rate = max(rate, files(log) / max(1, options(theirs)))
    if rate < 1:
        measured, of = MEASURED.get(like[0], (0, 1)) if not like[1] else (0, 1)
        rate = measured / of
    return round(rate * options(config))


def _series(config: str) -> str:
    """The series that a .config's head names: 6.1; '' when it has none."""
    head = re.search(r"^# Linux/\S+ (\d+\.\d+)\S* Kernel Configuration", config, re.MULTILINE)
    return head[1] if head else ""


class Compiled:
    """How many files make has compiled on this machine since `begin`, of about `total` (0: not known)."""

    def __init__(self, log: Path, begin: float, total: int) -> None:
        self._log, self._begin = log, begin
        self._read = self._count = 0
        # What an earlier make has compiled here, even one that was ended, is not compiled again.
        self._total = 0 if log.exists() else total

    def tell(self) -> None:
        """Tell the number, by what make has written since the last call."""
        with contextlib.suppress(OSError):
            if self._log.stat().st_mtime < self._begin:
                return
            with self._log.open("rb") as log:
                log.seek(self._read)
                fresh = log.read()
            fresh = fresh[: fresh.rfind(b"\n") + 1]
            self._read += len(fresh)
            self._count += files(fresh)
            # A total that proves too small is left out.
            of = f" of about {self._total:,}" if self._count <= self._total else ""
            if self._count:
                moving(f"{self._count:,}{of} files compiled")
