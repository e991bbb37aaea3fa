# SPDX-License-Identifier: GPL-2.0-only
"""The house: imports go only downwards, the edges stay at the edge, and only the front door speaks."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import numalab

PACKAGE = Path(numalab.__file__).parent
ROOT = PACKAGE.parent
LAYERS = (
    ("tools", {"checksum", "errors", "log", "proc", "state"}),
    ("values", {"case", "model", "runs"}),
    ("pure", {
        "blocks", "calibration", "catalog", "comparable", "counters", "domain", "drawing", "effect", "eras", "export", "figures", "finding", "folded",
        "gallery", "judge", "kconfig", "mail", "metrics", "mirror", "moments", "page", "patches", "plot", "published", "recipes", "record", "report",
        "sections", "tables", "topology", "trial", "workload",
    }),
    ("edges", {
        "accel", "console", "doctor", "evidence", "guest", "host", "html", "image", "kernel", "kernelbuild", "launch", "leftovers", "machine",
        "provision", "prune", "qemu_user", "settle", "shell", "source", "storage", "store", "toolchain", "version", "where",
    }),
    ("measuring", {"experiment", "measure"}),
    ("front", {"__main__", "cli", "cli_case", "cli_common", "cli_guest", "cli_html", "cli_kernel", "cli_report",
               "interrupt", "live", "plugin", "progress", "terminal"}),
)
ALONE = {"inside"}
"""Runs in the guest, where numalab is not."""
HEIGHT = {module: height for height, (_, modules) in enumerate(LAYERS) for module in modules}
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")


def tree(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module}.py").read_text())


def imports(module: str) -> set[str]:
    """Everything that a module imports, by its full name; inside functions too."""
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: write numalab.X, not a relative import"
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


def ours(module: str) -> set[str]:
    """The modules of the package that a module imports."""
    return {name.split(".")[1] for name in imports(module) if name.startswith("numalab.")}


def test_every_module_has_its_place() -> None:
    assert set(MODULES) == set(HEIGHT) | ALONE, "place new modules in LAYERS, and take out those that are gone"


@pytest.mark.parametrize("module", sorted(HEIGHT))
def test_imports_go_downwards(module: str) -> None:
    above = {name for name in ours(module) if HEIGHT[name] > HEIGHT[module]}
    assert not above, f"{module} imports {above} from a higher layer"


def test_no_cycles() -> None:
    TopologicalSorter({module: ours(module) for module in MODULES}).prepare()  # raises CycleError


@pytest.mark.parametrize("module", sorted(ALONE))
def test_alone(module: str) -> None:
    assert not ours(module)


def test_libvirt_is_imported_in_host_alone() -> None:
    assert [module for module in MODULES if any(name.split(".")[0] == "libvirt" for name in imports(module))] == ["host"]


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"__main__", "plugin", "terminal", *ALONE} - {name for name in MODULES if name.startswith("cli")}))
def test_nobody_else_prints_or_exits(module: str) -> None:
    calls = {ast.unparse(node.func) for node in ast.walk(tree(module)) if isinstance(node, ast.Call)}
    raised = {ast.unparse(node.exc) for node in ast.walk(tree(module)) if isinstance(node, ast.Raise) and node.exc}
    assert not calls & {"print", "exit", "quit", "sys.exit", "os._exit", "typer.echo", "sys.stdout.write", "sys.stderr.write"}
    assert not {text for text in raised if text.startswith("SystemExit")}


PROVIDERS = {"ruamel": "ruamel.yaml", "libvirt": "libvirt-python", "_pytest": "pytest", "axe_core_python": "axe-core-python"}
"""Modules whose package has another name."""


def imported(*places: str) -> set[str]:
    """The packages that the Python files of these places import, ours and Python's own left out."""
    files = [file for place in places for file in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))]
    names: set[str] = set()
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module).split(".")[0])
    ours = {"numalab", "tests", "benchmarks", "tools", *(file.stem for file in files)}
    names -= ours | sys.stdlib_module_names | {"_typeshed"}  # the last is mypy's alone
    return {PROVIDERS.get(name, name) for name in names}


def test_every_import_is_declared() -> None:
    """What another package happens to bring may go with its next release: click did with typer's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed, extra = ({re.split("[<>=]", line)[0] for line in lines} for lines in (project["dependencies"], project["optional-dependencies"]["dev"]))
    assert imported("numalab", "lab.py", "testcases") - needed == set()
    assert imported("tests", "benchmarks", "tools") - needed - extra == set()


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("cli")])
def test_the_command_line_prints_by_echo_alone(module: str) -> None:
    """terminal.echo makes control characters visible, which may be a guest's."""
    calls = {ast.unparse(node.func) for node in ast.walk(tree(module)) if isinstance(node, ast.Call)}
    assert not calls & {"print", "typer.echo", "typer.secho", "click.echo", "click.secho", "traceback.print_exc"}
