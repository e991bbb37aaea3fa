# SPDX-License-Identifier: GPL-2.0-only
"""How many files are compiled, of about how many: by kernels that were built, or what was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.core import state
from numalab.core.process import Deadline
from numalab.kernel import build, compiled, source, toolchain
from numalab.kernel.toolchain import Builder, Tools


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What moved."""
    lines: list[str] = []
    monkeypatch.setattr(compiled, "moving", lines.append)
    return lines


def config(version: str, options: int, modules: int = 0) -> str:
    """A .config with so many options that are y, and m."""
    values = ["y"] * options + ["m"] * modules
    lines = "".join(f"CONFIG_{index}={value}\n" for index, value in enumerate(values))
    return (
        f'#\n# Linux/x86 {version} Kernel Configuration\n#\n{lines}CONFIG_TEXT="x"\n# CONFIG_N is not set\n'
    )


def keep(kept: Path, name: str, config: str, files: int) -> None:
    """A kernel that was built here."""
    place = kept / name
    place.mkdir()
    (place / "config").write_text(config)
    (place / "build.log").write_text("  LD      x\n" + "  CC      x.o\n" * files)


def test_files_compiled_are_told(tmp_path: Path, said: list[str]) -> None:
    log = tmp_path / "build.log"
    make = compiled.Compiled(log, 0, 2)
    make.tell()
    log.write_text("make[1]: Entering\n  CC      a.o\n  LD      b\n  CC [M]  c.o\n  CC  ha")
    make.tell()
    log.write_text(log.read_text() + "lf.o\n")
    make.tell()
    compiled.Compiled(log, log.stat().st_mtime + 1, 2).tell()
    assert said == ["2 of about 2 files compiled", "3 files compiled"], (
        "nothing of a line's half or an earlier make, and never more than all"
    )


@pytest.mark.parametrize(("total", "there"), [(0, False), (2000, True)], ids=["unknown", "not a fresh tree"])
def test_a_total_that_would_be_wrong_is_not_told(
    total: int, there: bool, tmp_path: Path, said: list[str]
) -> None:
    log = tmp_path / "build.log"
    if there:
        log.write_text("  CC      of an earlier make\n")
    make = compiled.Compiled(log, 0, total)
    log.write_text("  CC      x.o\n" * 1234)
    make.tell()
    assert said == ["1,234 files compiled"]


def test_a_kernel_of_the_series_tells_how_many(tmp_path: Path) -> None:
    """Three for each option, whatever a variant's make, another series and one with modules took."""
    assert compiled.expected(config("7.2.0-rc3", 100), tmp_path) == 0
    keep(tmp_path, "7.2-a", config("7.2.1", 10), 30)
    keep(tmp_path, "7.2-b", config("7.2.1", 10), 5)
    keep(tmp_path, "7.1-a", config("7.1.1", 10), 90)
    keep(tmp_path, "7.2-m", config("7.2.1", 10, modules=2), 60)
    (tmp_path / ".making-1-7.2").mkdir()
    assert compiled.expected(config("7.2.0-rc3", 100), tmp_path) == 300
    assert compiled.expected(config("7.2.1", 100, modules=20), tmp_path) == 600
    assert compiled.expected("no head", tmp_path) == 0


def test_where_none_was_built_what_was_measured(tmp_path: Path) -> None:
    """A variant's few files are no measure; nor is a lean kernel of one with modules."""
    keep(tmp_path, "6.1-variant", config("6.1.192", 828), 13)
    assert compiled.expected(config("6.1.200", 828), tmp_path) == 1880
    assert compiled.expected(config("5.10.262", 765), tmp_path) == 1804
    assert compiled.expected(config("6.1.200", 828, modules=1), tmp_path) == 0
    assert compiled.expected(config("6.12.1", 828), tmp_path) == 0


@pytest.mark.parametrize("local", [True, False])
def test_a_build_on_this_machine_tells_it(
    local: bool, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = build.BuildPlan(
        name="k",
        tree=source.Tree(id="tar-1", tarball="/t", series="7.2"),
        config="",
        distribution="",
        patches=(),
        tools=Tools(compiler="gcc", binutils=("as", "ld")),
        builder=Builder("somewhere", local),
    )
    keep(state.folder("kernels"), "7.2-a", config("7.2.1", 10), 20)

    def play(*_: object, watch: Callable[[], None] | None, **__: object) -> None:
        assert (watch is not None) == local
        log = state.folder("builds", plan.build) / "build.log"
        log.write_text("  CC      x.o\n")
        if watch:
            watch()

    monkeypatch.setattr(toolchain, "play", play)
    build._play(plan, "build", tmp_path / "out", Deadline.after(60), config=config("7.2.2", 30))
    assert said == (["1 of about 60 files compiled"] if local else [])
