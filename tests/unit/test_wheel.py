# SPDX-License-Identifier: GPL-2.0-only
"""What a wheel has: all that a checkout has for its users, so that an installed numalab can do the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

from numalab.core import paths
from numalab.model import catalog

DELIVERED = ("images/", "inventory.ini", "kernels/", "playbooks/", "reference/", "testcases/", "topologies/")


def checked_in() -> list[str]:
    """The checkout's files, with those that are about to be added."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(words, cwd=paths.ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in names.split("\0") if name and (paths.ROOT / name).is_file()]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked wheel, built from a copy of the checkout by the back end itself, without a network."""
    place = tmp_path_factory.mktemp("wheel")
    for name in checked_in():
        if name.startswith(("numalab/", "pyproject.toml", "LICENSE", "lab.py", *DELIVERED)):
            (place / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(paths.ROOT / name, place / "copy" / name)
    script = "from setuptools import build_meta; build_meta.build_wheel('..')"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=place / "copy", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = place.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(place / "site-packages")
    return place / "site-packages"


def test_every_file_of_the_checkout_is_in_it(installed: Path) -> None:
    expected: Mapping[str, str] = {
        name: f"numalab/files/{name}" if name.startswith(DELIVERED) else name
        for name in checked_in()
        if name.startswith(("numalab/", *DELIVERED))
    }
    assert len(expected) > 200
    assert [name for name, inside in expected.items() if not (installed / inside).is_file()] == []
    differ = [
        name
        for name, inside in expected.items()
        if (installed / inside).read_bytes() != (paths.ROOT / name).read_bytes()
    ]
    assert differ == []


def test_nothing_else_is_in_it(installed: Path) -> None:
    names = [path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()]
    known = {f"numalab/files/{name}" for name in (*checked_in(), "lab.py")} | set(checked_in())
    assert [name for name in names if name not in known and ".dist-info/" not in name] == []


def python(installed: Path, script: str, config: Path) -> str:
    """What a script prints that imports the unpacked wheel."""
    env = {"PYTHONPATH": str(installed), "XDG_CONFIG_HOME": str(config), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd="/", env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_reads_its_own_files(installed: Path, tmp_path: Path) -> None:
    script = (
        "from numalab.core import paths; from numalab.model import catalog; from numalab.kernel import recipe\n"
        "print(paths.COMMAND, paths.ROOT); recipe.load('6.1-slowscan-before'); catalog.case('migratefail')\n"
        "print(*catalog.names('topologies'))"
    )
    first, second = python(installed, script, tmp_path).splitlines()
    assert first == f"numalab {installed}/numalab/files"
    assert second.split() == catalog.names("topologies")


def test_a_persons_own_files_go_first(installed: Path, tmp_path: Path) -> None:
    own = tmp_path / "numalab/topologies"
    own.mkdir(parents=True)
    text = (paths.ROOT / "topologies/uma-2g.yml").read_text()
    (own / "mine.yml").write_text(text)
    (own / "4socket.yml").write_text(text)
    script = (
        "from numalab.model import catalog; from numalab.core import paths\n"
        "print('mine' in catalog.names('topologies'), catalog.topology('4socket').memory >> 30,"
        " paths.label(paths.find('topologies/mine.yml')), paths.find('topologies/unequal.yml').exists())"
    )
    assert python(installed, script, tmp_path).split() == ["True", "2", "topologies/mine.yml", "True"]
