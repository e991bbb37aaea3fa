# SPDX-License-Identifier: GPL-2.0-only
"""Packages by their names: the role's files, and what a person is told to install."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from numalab.core import packages, paths
from numalab.core.errors import HostError
from numalab.core.process import Deadline, need, run
from numalab.maintenance import doctor
from tests.kvm import outer

ROLE = paths.ROOT / "playbooks/roles/hypervisor"
FAMILIES = sorted(path.stem for path in (ROLE / "vars").iterdir())


def variables(family: str) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = YAML(typ="safe").load((ROLE / "vars" / f"{family}.yml").read_text())
    return loaded


def test_every_family_that_a_person_is_told_of_has_a_file() -> None:
    assert sorted(packages.COMMANDS) == FAMILIES == sorted(set(packages.FAMILIES.values()))


@pytest.mark.parametrize("family", FAMILIES)
def test_families_name_every_group_and_package(family: str) -> None:
    debian, here = variables("Debian"), variables(family)
    assert {group: list(names) for group, names in here["hypervisor_packages"].items()} == {
        group: list(names) for group, names in debian["hypervisor_packages"].items()
    }
    assert here["hypervisor_services"]
    assert "hypervisor_user_groups" not in here, "an inventory could not replace it"
    names = [name for group in here["hypervisor_packages"].values() for name in group.values()]
    assert all(isinstance(name, str) for name in names)


def test_the_machine_of_make_kvm_has_what_runs_the_lab() -> None:
    names = set(outer.packages())
    assert {"python3-venv", "libvirt-dev", "qemu-system-x86", "libvirt-daemon-system"} <= names
    assert not {"packer", "shellcheck", "xfsprogs"} & names
    assert any(one.startswith("libvirt-python") for one in outer.dependencies())


def test_the_groups_of_the_makefile_and_of_the_role() -> None:
    """Those that the role installs by default are those of make setup."""
    makefile = (paths.ROOT / "Makefile").read_text()
    line = next(line for line in makefile.splitlines() if line.startswith("PACKAGE_GROUPS := "))
    groups = YAML(typ="safe").load((ROLE / "defaults/main.yml").read_text())["hypervisor_groups"]
    assert line.split(" := ")[1].split() == groups
    assert set(variables("Debian")["hypervisor_packages"]) == {*groups, "browser", "picture", "pool"}


def test_whatever_the_lab_asks_for_is_a_package_of_the_role() -> None:
    """Every need(program, package) in numalab, and every program of doctor."""
    known = {name for group in variables("Debian")["hypervisor_packages"].values() for name in group}
    asked = {package for _, _, _, package, _ in doctor.PROGRAMS}
    for path in paths.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "need":
                asked |= {str(word.value) for word in node.args[1:] if isinstance(word, ast.Constant)}
    assert asked - {"apt", "dpkg"} <= known  # of Debian's and Ubuntu's own


RELEASES = {
    "ID=debian\n": "apt-get install qemu-utils",
    "ID=ubuntu\nID_LIKE=debian\n": "apt-get install qemu-utils",
    'ID="rocky"\nID_LIKE="rhel centos fedora"\n': "dnf install qemu-img",
    'ID="opensuse-leap"\nID_LIKE="suse opensuse"\n': "zypper install qemu-tools",
    "ID=arch\n": "pacman -S qemu-img",
    "ID=gentoo\n": "install what Debian calls qemu-utils",
}


@pytest.mark.parametrize("text", RELEASES)
def test_the_hosts_own_package_manager(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    release = tmp_path / "os-release"
    release.write_text(f'NAME="a b"\n{text}')
    family = packages.family(release)
    monkeypatch.setattr(packages, "family", lambda: family)
    assert packages.mend("qemu-utils") == RELEASES[text]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match=f"no-such is not installed: {RELEASES[text]}"):
        need("no-such", "qemu-utils")
    facts = {fact.name: fact for fact in doctor._programs(deadline)}
    assert facts["qemu-img"].mend == RELEASES[text]
    assert facts["qemu-img"].needed


def test_a_package_that_the_family_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "family", lambda: "Archlinux")
    assert packages.mend("mmdebstrap") == "Archlinux has no package for what Debian calls mmdebstrap"


def test_without_os_release(tmp_path: Path) -> None:
    assert packages.family(tmp_path / "none") is None


def test_missing_packages(program: Callable[[str, str], Path], deadline: Deadline) -> None:
    """By dpkg's database here; a package that was removed and left its configuration is missing,
    and one that is there for two architectures is not."""
    program(
        "dpkg-query",
        "case $4 in there) echo installed;; twice) echo installed; echo installed;; removed) echo config-files;; *) exit 1;; esac",
    )
    script = ROLE / "files/missing.sh"
    result = run(["sh", script], input=b"there\nremoved\ntwice\nnever\n", deadline=deadline)
    assert result.stdout.split() == ["removed", "never"]
