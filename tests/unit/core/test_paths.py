# SPDX-License-Identifier: GPL-2.0-only
"""The package's own files, whose places only `paths` computes."""

from __future__ import annotations

import ast
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from numalab.core import paths

FILES = sorted(
    path for path in paths.PACKAGE.rglob("*.py") if path.name != "paths.py" and path != paths.AGENT
)


def test_they_are_there() -> None:
    assert [path for path in (paths.AGENT, paths.WORKLOAD_MODULE) if not path.is_file()] == []
    assert [path for path in (paths.TEMPLATES, paths.ROOT / paths.WORKLOADS) if not path.is_dir()] == []
    assert (paths.ROOT / "lab.py").is_file()


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(paths.PACKAGE)))
def test_no_other_module_looks_for_files_beside_itself(file: Path) -> None:
    names = {node.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)}
    assert not names & {"__file__", "PackageLoader"}, "give the file a name in numalab/core/paths.py"


def test_pytest_loads_the_plugin_that_is_here() -> None:
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    module = import_module(project["entry-points"]["pytest11"]["numalab"])
    assert hasattr(module, "pytest_collect_file")
