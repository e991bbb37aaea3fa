# SPDX-License-Identifier: GPL-2.0-only
"""What the role of the guests installs, with a dpkg and an apt that only say what they are asked."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.core import paths

INSTALL = paths.ROOT / "playbooks/roles/guest/files/install.sh"
UPDATE = "--quiet update"
ASKED = "-o DPkg::Lock::Timeout=900 --quiet --yes --no-install-recommends install"


@pytest.mark.parametrize(
    ("words", "said", "tries", "calls", "status"),
    [
        (["yes", "there"], "", 0, [], 0),
        (["no", "there", "new", "newer"], "", 0, [f"{ASKED} new newer"], 0),
        (["yes", "new"], "", 0, [UPDATE, f"{ASKED} new"], 0),
        (["yes", "new"], "E: Could not get lock /var/lib/apt/lists/lock", 2, [UPDATE] * 3 + [f"{ASKED} new"], 0),
        (["yes", "new"], "E: no such host", 1, [UPDATE], 1),
        (["yes", "new"], "E: Could not get lock /var/lib/apt/lists/lock", 99, [UPDATE] * 91, 1),
        (["no", "gone"], "", 0, [f"{ASKED} gone"], 100),
    ],
)  # fmt: skip
def test_packages_of_an_image(
    words: list[str],
    said: str,
    tries: int,
    calls: list[str],
    status: int,
    tmp_path: Path,
    program: Callable[[str, str], Path],
) -> None:
    """The lists' lock, which another apt holds, is waited for; other errors are not."""
    log = tmp_path / "log"
    log.touch()
    program("dpkg-query", "case $* in *there) printf installed ;; *) exit 1 ;; esac")
    program("sleep", ":")
    program(
        "apt-get",
        f"echo \"$*\" >>{log}; case $* in *update) [ $(wc -l <{log}) -gt {tries} ] || {{ echo '{said}'; exit 100; }} ;;"
        " *gone) exit 100 ;; esac",
    )
    done = subprocess.run([INSTALL, *words], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, log.read_text().splitlines()) == (status, calls)
    assert ("installed: new" in done.stdout) == (status == 0 and calls != [])
    if said and status:
        assert said in done.stderr
