# SPDX-License-Identifier: GPL-2.0-only
"""The role's restore.sh: a source is as it was before a patch, also where the patch removed or added folders."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from numalab.kernel import era


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source in which a patch has changed Makefile, removed drivers/only/a.c with its folders, and added
    new/b.c; its journal is as variant.sh writes it."""
    tree, journal = tmp_path / "linux", tmp_path / "linux.applied"
    for folder in (tree / "new", journal / "files/drivers/only"):
        folder.mkdir(parents=True)
    (tree / "Makefile").write_text("patched\n")
    (tree / "new/b.c").touch()
    (journal / "files/Makefile").write_text("original\n")
    (journal / "files/drivers/only/a.c").write_text("int a;\n")
    (journal / "touched").write_text("Makefile\ndrivers/only/a.c\nnew/b.c\n")
    return tree


def restore(source: Path) -> None:
    subprocess.run(["bash", era.SCRIPTS / "restore.sh", source], check=True)


def test_all_that_a_patch_changed_is_put_back(source: Path) -> None:
    restore(source)
    files = {str(path.relative_to(source)): path.read_text() for path in source.rglob("*") if path.is_file()}
    assert files == {"Makefile": "original\n", "drivers/only/a.c": "int a;\n"}
    assert not (source / "new").exists()
    assert list(source.parent.glob("linux*")) == [source], "the journal is left"


def test_without_a_journal_nothing_changes(source: Path) -> None:
    restore(source)
    restore(source)
    assert (source / "drivers/only/a.c").read_text() == "int a;\n"
