# SPDX-License-Identifier: GPL-2.0-only
"""What every file of the project has: a licence line; and what a checkout has beside the package."""

from __future__ import annotations

import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import typer.main
from ruamel.yaml import YAML

from numalab.cli.main import app
from numalab.core.paths import ROOT
from tests.unit.makers import pytest_argv

SPDX = "# SPDX-License-Identifier: GPL-2.0-only"
LATER = "# SPDX-License-Identifier: GPL-2.0-or-later"
"""The license of what Ansible loads into its own process."""
SOURCES = (
    "lab.py",
    "Makefile",
    "pyproject.toml",
    ".ci/run",
    "numalab/**/*.py",
    "tests/**/*.py",
    "benchmarks/**/*.py",
    "tools/**/*.py",
    "testcases/test_*.py",
    "playbooks/**/*.yml",
    "playbooks/**/*.sh",
    "playbooks/*_plugins/*.py",
)
HASHED = (
    "playbooks/guest.yml",
    "playbooks/roles/guest/",
    "playbooks/roles/kernel/files/",
    "numalab/measure/agent.py",
    "numalab/workload.py",
)
"""The hash of these files identifies images, kernels or stored runs: one more line would change them."""


def sources() -> list[str]:
    names = {str(path.relative_to(ROOT)) for pattern in SOURCES for path in ROOT.glob(pattern)}
    return sorted(name for name in names if not name.startswith(HASHED))


def first_comment(path: Path) -> str:
    lines = path.read_text().splitlines()
    return next((line for line in lines if not line.startswith("#!")), "")


@pytest.mark.parametrize("name", sources())
def test_a_source_file_begins_with_its_licence(name: str) -> None:
    line = LATER if fnmatch(name, "playbooks/*_plugins/*") else SPDX
    assert first_comment(ROOT / name) == line, f"{name}: the first line (after #!) is to be: {line}"


def test_the_sources_are_seen() -> None:
    assert {
        "lab.py",
        "numalab/cli/main.py",
        "tests/conftest.py",
        "playbooks/roles/tuning/files/tune.sh",
        "playbooks/callback_plugins/numalab_events.py",
    } <= set(sources())
    for name in HASHED:
        assert (ROOT / name).exists(), f"{name} is gone: take it out of HASHED"


def test_the_licence_is_there_in_full() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "GNU GENERAL PUBLIC LICENSE\n                       Version 2, June 1991" in text
    assert "END OF TERMS AND CONDITIONS" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("GPL-2.0-only", ["LICENSE"])


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_contributing_names_targets_and_commands_that_there_are() -> None:
    assert (
        {"setup", "lint", "unit", "browser", "vm", "test"}
        <= set(re.findall(r"\bmake ([a-z]+)`", CONTRIBUTING)) | {"setup"}
        <= TARGETS
    )
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(re.findall(r"\./lab\.py ([a-z]+)", CONTRIBUTING)) <= set(commands)


def test_contributing_names_files_that_there_are() -> None:
    names = re.findall(r"`([\w./-]+/[\w./-]*|[A-Z]+(?:\.md)?)`", CONTRIBUTING)
    real = [name for name in names if not re.search(r"NAME|SET|LAB_|^CASE$|^~", name)]
    assert {"LICENSE", "CHANGELOG.md", "images/", "playbooks/guest.yml"} <= set(real)
    assert [name for name in real if not (ROOT / name).exists()] == []


def test_contributing_lists_the_files_without_a_licence_line() -> None:
    listed = CONTRIBUTING.partition("have no such line")[2]
    assert [name for name in HASHED if f"`{name}`" not in listed] == []


def test_every_option_of_the_plugin_is_in_the_changelog(pytestconfig: pytest.Config) -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    for name in (
        "topology",
        "size",
        "accel",
        "kernel",
        "kernels",
        "series",
        "boots",
        "connect",
        "rates",
        "at-most",
    ):
        pytestconfig.getoption(f"--lab-{name}")  # ValueError when there is none
        assert f"`--lab-{name}`" in changes


def test_the_commit_hook_is_local_and_runs_a_target() -> None:
    hooks = YAML(typ="safe").load(ROOT / ".pre-commit-config.yaml")
    assert [repo["repo"] for repo in hooks["repos"]] == ["local"]
    (hook,) = hooks["repos"][0]["hooks"]
    assert hook["language"] == "system"
    assert hook["entry"].split()[0] == "make"
    assert hook["entry"].split()[-1] in TARGETS


def test_a_report_of_a_bug_has_doctor_and_a_run() -> None:
    template = (ROOT / ".github/ISSUE_TEMPLATE/bug.md").read_text()
    assert "./lab.py --version\n" in template
    assert "./lab.py doctor\n" in template
    assert "tar -C ~/.local/state/numalab/runs -czf" in template


def test_a_group_of_tests_has_one_worker(tmp_path: Path) -> None:
    """`make vm` relies on it: else a worker waits for what the other one builds."""
    tests = f"""
import os, pathlib, pytest
pytestmark = pytest.mark.xdist_group("together")

@pytest.mark.parametrize("name", ["one", "two"])
def test_mine(name):
    pathlib.Path({str(tmp_path)!r}, name).write_text(os.environ["PYTEST_XDIST_WORKER"])
"""
    argv = pytest_argv(tmp_path, tests, "-n", "2", "--dist", "loadgroup")
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()
