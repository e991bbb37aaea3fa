# SPDX-License-Identifier: GPL-2.0-only
"""The layers: imports go down only, the edges stay at the edge, and only the command line prints."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from numalab.core import errors, paths

PACKAGE = paths.PACKAGE
ROOT = paths.ROOT


class Layer(NamedTuple):
    """A row of the table."""

    name: str
    lower: str
    """The layers that it may import; its own modules may import each other."""
    members: set[str]
    """Modules (kernel), or folders with everything in them: kernel, kernel.build."""


LAYERS = (
    Layer("core", "", {"core"}),
    Layer("model", "core", {"model"}),
    Layer("workload", "core model", {"workload"}),
    # The wing that never needs a guest.
    Layer("runs", "core model", {"runs"}),
    Layer("analysis", "core model runs", {"analysis"}),
    # The wing that touches the world; the files of kernels/ are values, which a report shows.
    Layer("recipes", "core model", {"kernel.recipe", "kernel.era", "kernel.patch", "kernel.kconfig"}),
    Layer("host", "core model", {"host"}),
    Layer("kernel", "core model recipes host", {"kernel"}),
    Layer("report", "core model recipes runs analysis", {"report"}),
    Layer("guest", "core model recipes host kernel", {"guest"}),
    # Joined.
    Layer("measure", "core model recipes host kernel guest runs", {"measure"}),
    Layer("maintenance", "core model recipes host kernel guest", {"maintenance"}),
    Layer("experiment", "core model recipes host kernel guest runs analysis measure", {"experiment"}),
    Layer(
        "pool",
        "core model recipes host kernel guest runs analysis measure maintenance experiment",
        {"pool"},
    ),
    Layer(
        "front",
        "core model recipes host kernel guest runs analysis report measure maintenance experiment pool",
        {"__main__", "cli", "pytest_plugin"},
    ),
)
ALONE = {"measure.agent", "guest.renewed", "host.subreaper"}
"""Modules that run as files, without numalab: in the guest, or for long."""


@cache
def modules_of(package: Path) -> list[str]:
    """All modules below a package by dotted name (host, cli.guest); a folder stands for its __init__."""
    files = [path.relative_to(package).with_suffix("").parts for path in package.rglob("*.py")]
    return sorted(
        filter(None, (".".join(parts).removesuffix("__init__").removesuffix(".") for parts in files))
    )


MODULES = modules_of(PACKAGE)
COMMANDS = [
    name
    for name in MODULES
    if name.startswith("cli.") and name.split(".")[1] not in ("live", "progress", "terminal")
]


@cache
def nodes(package: Path, module: str) -> list[ast.AST]:
    """All nodes of a module's syntax tree."""
    path = package.joinpath(*module.split("."))
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    return list(ast.walk(ast.parse(text)))


def calls(module: str) -> set[str]:
    """What a module calls, as written."""
    return {ast.unparse(node.func) for node in nodes(PACKAGE, module) if isinstance(node, ast.Call)}


@cache
def imports(module: str, package: Path = PACKAGE) -> set[str]:
    """Everything that a module imports, by full name, also inside functions."""
    names: set[str] = set()
    for node in nodes(package, module):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: write numalab.X, not a relative import"
            names |= {f"{node.module}.{name.name}" for name in node.names}
    return names


def ours(module: str, package: Path = PACKAGE) -> set[str]:
    """The modules of the package that a module imports."""
    known = set(modules_of(package))
    imported = {
        name.removeprefix("numalab.") for name in imports(module, package) if name.startswith("numalab.")
    }
    return {nearest for name in imported if (nearest := _nearest(name, known))} - {module}


def _nearest(name: str, known: AbstractSet[str]) -> str:
    """The longest known prefix of a dotted name: guest.launch for guest.launch.up; '' for none."""
    parts = name.split(".")
    return next((start for end in range(len(parts), 0, -1) if (start := ".".join(parts[:end])) in known), "")


def layer_of(module: str, layers: Sequence[Layer] = LAYERS) -> Layer | None:
    """The layer of a module, by its own name or its folder's."""
    owners = {member: layer for layer in layers for member in layer.members}
    return owners.get(_nearest(module, owners.keys()))


def trespasses(module: str, layers: Sequence[Layer] = LAYERS, package: Path = PACKAGE) -> list[str]:
    """The modules that a module must not import, but does."""
    here = layer_of(module, layers)
    assert here, f"{module}: place it in LAYERS"
    there = {name: layer_of(name, layers) for name in ours(module, package)}
    return sorted(
        name
        for name, layer in there.items()
        if layer is None or layer.name not in {here.name, *here.lower.split()}
    )


def test_every_module_has_its_place() -> None:
    members = {member for layer in LAYERS for member in layer.members} | ALONE
    assert [module for module in MODULES if not _nearest(module, members)] == [], (
        "place new modules in LAYERS"
    )
    assert {
        member for member in members if not any(_nearest(module, {member}) for module in MODULES)
    } == set(), "take out what is gone"
    assert sum(len(layer.members) for layer in LAYERS) + len(ALONE) == len(members), (
        "a module is in one layer"
    )


@pytest.mark.parametrize("module", sorted(set(MODULES) - ALONE))
def test_imports_go_downwards(module: str) -> None:
    assert trespasses(module) == []


def test_layers_may_be_folders(tmp_path: Path) -> None:
    """Two independent rooms in one layer; a folder places its members."""
    files = {
        "__init__": "",
        "core/__init__": "",
        "core/errors": "from numalab.runs import record\n",
        "runs/__init__": "",
        "host/__init__": "",
        "runs/record": (
            "from numalab.core.errors import LabError\nfrom numalab.runs import index\ndef f():\n    import"
            " numalab.host.ssh\n"
        ),
        "runs/index": "import numalab.core.errors\n",
        "host/ssh": "from numalab import core\n",
        "host/disks": "from numalab.host import ssh\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    layers = (Layer("core", "", {"core"}), Layer("runs", "core", {"runs"}), Layer("host", "core", {"host"}))
    assert {
        module: wrong for module in modules_of(tmp_path) if (wrong := trespasses(module, layers, tmp_path))
    } == {
        "core.errors": ["runs.record"],
        "runs.record": ["host.ssh"],
    }
    assert modules_of(tmp_path) == [
        "core",
        "core.errors",
        "host",
        "host.disks",
        "host.ssh",
        "runs",
        "runs.index",
        "runs.record",
    ]


def test_no_cycles() -> None:
    TopologicalSorter({module: ours(module) for module in MODULES}).prepare()  # raises CycleError


@pytest.mark.parametrize("module", sorted(ALONE))
def test_alone(module: str) -> None:
    assert not ours(module)


def test_libvirt_is_imported_in_host_alone() -> None:
    assert [
        module
        for module in MODULES
        if any(name.split(".")[0] in ("libvirt", "libvirt_qemu") for name in imports(module))
    ] == ["host.hypervisor"]


def test_dask_is_imported_where_a_pool_is_used() -> None:
    assert [
        module
        for module in MODULES
        if {"dask", "distributed"} & {name.split(".")[0] for name in imports(module)}
    ] == ["pool.cluster", "pool.driver", "pool.host", "pool.server"]


@pytest.mark.parametrize(
    "module", sorted(set(MODULES) - {"__main__", "pytest_plugin", "cli.terminal", *COMMANDS, *ALONE})
)
def test_nobody_else_prints_or_exits(module: str) -> None:
    raised = {
        ast.unparse(node.exc) for node in nodes(PACKAGE, module) if isinstance(node, ast.Raise) and node.exc
    }
    assert not calls(module) & {
        "print",
        "exit",
        "quit",
        "sys.exit",
        "os._exit",
        "typer.echo",
        "sys.stdout.write",
        "sys.stderr.write",
    }
    assert not {text for text in raised if text.startswith("SystemExit")}


OURS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.LabError)
}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def flags_in_errors(every: Sequence[ast.AST]) -> list[str]:
    """Texts with a command-line flag in what is raised, and in arguments of the lab's exceptions, among a
    syntax tree's nodes."""
    made = [node.exc for node in every if isinstance(node, ast.Raise) and node.exc]
    made += [
        node
        for node in every
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in OURS
    ]
    texts = {
        part.value
        for node in made
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    return sorted(text for text in texts if FLAG.search(text))


@pytest.mark.parametrize(
    "module", [module for module in MODULES if module.split(".")[0] not in ("cli", "pytest_plugin")]
)
def test_errors_below_the_command_line_name_no_flags(module: str) -> None:
    """They name the field (LabError.field): the command line and the plugin have different options for it."""
    assert flags_in_errors(nodes(PACKAGE, module)) == []


def test_flags_in_errors_are_found() -> None:
    lines = (
        'raise InputError(f"--memory {size}: too small")',
        'x = run(["qemu", "--version"])',
        'taken = errors.NameTaken("choose another --name")',
        'raise HostError("a-b --- c")',
    )
    assert flags_in_errors(list(ast.walk(ast.parse("\n".join(lines))))) == [
        "--memory ",
        "choose another --name",
    ]


PROVIDERS = {
    "ruamel": "ruamel.yaml",
    "libvirt": "libvirt-python",
    "libvirt_qemu": "libvirt-python",
    "axe_core_python": "axe-core-python",
}
"""Modules -> packages of another name."""


def imported(*places: str) -> set[str]:
    """The packages that the Python files of these places import, without ours and the standard library's."""
    files = [
        file
        for place in places
        for file in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
    ]
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
    """A package that another one happens to bring may go with its next release: click did with typer's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed, extra, pool = (
        {re.split("[<>=]", line)[0] for line in lines}
        for lines in (project["dependencies"], *map(project["optional-dependencies"].get, ("dev", "pool")))
    )
    assert imported("numalab", "lab.py", "testcases") - needed == pool
    assert imported("tests", "benchmarks", "tools") - needed - extra == set()


@pytest.mark.parametrize("module", COMMANDS)
def test_the_command_line_prints_by_echo_alone(module: str) -> None:
    """terminal.echo makes control characters, which may come from a guest, visible."""
    assert not calls(module) & {
        "print",
        "typer.echo",
        "typer.secho",
        "click.echo",
        "click.secho",
        "traceback.print_exc",
    }
