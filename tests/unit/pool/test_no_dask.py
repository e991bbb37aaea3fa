# SPDX-License-Identifier: GPL-2.0-only
"""Without --pool nothing of Dask is imported: it takes a second, and is not installed everywhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from numalab.core import paths

CODE = """
import sys
from numalab.cli.main import app
from numalab.core.errors import InputError
import typer.main
try:
    typer.main.get_command(app)(sys.argv[1:], standalone_mode=False)
except (SystemExit, InputError):
    pass
loaded = {name.split(".")[0] for name in sys.modules}
sys.exit(bool(loaded & {"dask", "distributed"}))
"""


@pytest.mark.parametrize("words", [["run", "--help"], ["run", "threads", "--boots", "none"]])
def test_dask_is_not_imported(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words], cwd=paths.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_pytest_does_not_import_it_either() -> None:
    code = """
import sys
import pytest
status = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest",
                      "--collect-only", "testcases"])
sys.exit(bool(status or {"dask", "distributed"} & {name.split(".")[0] for name in sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_would_be_noticed() -> None:
    code = CODE.replace("loaded =", "import distributed\nloaded =")
    assert subprocess.run([sys.executable, "-c", code, "run", "--help"], capture_output=True).returncode == 1
