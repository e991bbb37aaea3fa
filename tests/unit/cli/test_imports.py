# SPDX-License-Identifier: GPL-2.0-only
"""A command loads what it needs: half a second of imports before a help text is a wait for nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

REPORT = """
import sys
from numalab.cli.main import main
sys.argv = {argv!r}
try:
    main()
finally:
    print("\\0", *sys.modules)
"""
ROOMS = {f"numalab.{room}" for room in ("model", "runs", "host", "kernel", "analysis", "report", "measure")}
SLOW = {"dask", "distributed", "jinja2", "numpy", "plotly", "scipy"}
WORLD = {"libvirt", "lxml", "numalab.host", "numalab.guest.guest", "numalab.pool"}
BUILDING = {"ruamel", "http.server", "numalab.host.image", "numalab.host.packer", "numalab.model.catalog"}
NOTHING = {"pydantic", "rich", "ruamel", *SLOW, *WORLD, *ROOMS, "numalab.experiment", "numalab.maintenance"}


@pytest.mark.parametrize(
    ("words", "status", "absent"),
    [
        (["--help"], 0, NOTHING),
        (["--version"], 0, NOTHING),
        # typer itself imports pydantic for a command's arguments.
        (["kernel", "--help"], 0, NOTHING - {"pydantic"}),
        (["up", "--help"], 0, NOTHING - {"pydantic"}),
        (["run", "x", "--boot"], 2, NOTHING - {"pydantic"}),
        (["topologies"], 0, SLOW | WORLD | {"rich", "numalab.report"}),
        (["cases"], 0, SLOW | WORLD | {"rich", "numalab.report"}),
        (["runs"], 0, SLOW | WORLD | {"rich"}),
        (["show", "none"], 2, SLOW | WORLD | {"rich"}),
        (["compare", "none"], 2, SLOW | {"libvirt", "lxml", "rich"}),
        (["list"], 0, SLOW | {"rich", "numalab.experiment", "numalab.pool"}),
        (["exec", "none", "true"], 125, SLOW | {"rich", "numalab.experiment", "numalab.pool"}),
        (["down", "--all"], 0, SLOW | BUILDING | {"rich", "numalab.experiment", "numalab.pool"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_a_command_loads_what_it_needs(words: list[str], status: int, absent: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REPORT.format(argv=["lab.py", *words])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    loaded = set(done.stdout.rpartition("\0")[2].split())
    assert "numalab.cli.main" in loaded
    assert absent & loaded == set()


def test_completion_loads_what_a_help_text_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_NUMALAB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "numalab kernel ")
    monkeypatch.setenv("COMP_CWORD", "2")
    done = subprocess.run(
        [sys.executable, "-c", REPORT.format(argv=["numalab"])], capture_output=True, text=True, check=False
    )
    said, _, loaded = done.stdout.rpartition("\0")
    assert "prune" in said.split(), done.stderr
    assert (NOTHING - {"pydantic"}) & set(loaded.split()) == set()
