# SPDX-License-Identifier: GPL-2.0-only
"""Builds that differ in layout only: the pads, and what kbuild makes of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from numalab.kernel import layout
from numalab.kernel.patch import touched


def test_builds_of_a_kernel_differ_and_one_is_the_same_each_time() -> None:
    texts = {layout.patch(kernel, number).text for kernel in ("6.1", "6.1-before") for number in (1, 2, 3)}
    assert len(texts) == 6
    assert layout.patch("6.1", 1) == layout.patch("6.1", 1)
    files = [touched(text) for text in texts]
    assert all(one == files[0] for one in files), "only sizes differ"


def test_the_patch_applies_to_a_tree_and_links_each_object_once_in_its_order(tmp_path: Path) -> None:
    """By make itself, with a Makefile as mm has it: more objects than pads, in whichever way."""
    (tmp_path / "patch").write_text(layout.patch("6.1", 1).text)
    subprocess.run(["git", "apply", "patch"], cwd=tmp_path, check=True, env={"GIT_CEILING_DIRECTORIES": "/"})
    names = [f"o{number}.o" for number in range(layout.PADS + 9)]
    (tmp_path / "mm/Makefile").write_text(f"obj-y := {' '.join(names[:5])}\nobj-y += {' '.join(names[5:])}\n")
    (tmp_path / "Makefile").write_text("srctree := .\ninclude mm/Kbuild\nall:\n\t@echo $(obj-y)\n")
    linked = subprocess.run(["make", "-s"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    pads = re.findall(r"numalab-pad-\d+\.o", linked)
    assert [name for name in linked.split() if name not in pads] == names
    assert len(set(pads)) == len(pads) == layout.PADS
    assert linked.split()[0] == pads[0]
    assert all((tmp_path / "mm" / pad.replace(".o", ".S")).is_file() for pad in pads)


def test_pads_move_what_is_linked_after_them(tmp_path: Path) -> None:
    """Two objects with a pad of either build before each: their functions lie elsewhere, and apart otherwise."""
    (tmp_path / "code.S").write_text(".text\n.balign 16\n.globl f\nf: ret\n")
    (tmp_path / "more.S").write_text(".text\n.balign 16\n.globl g\ng: ret\n")
    places = set()
    for number in (1, 2):
        text = layout.patch("6.1", number).text
        pads = re.findall(r"pad-[12]\.S\n@@ -0,0 \+1,4 @@\n((?:\+.*\n)+)", text)[:2]
        for name, pad in zip(("a", "b"), pads, strict=True):
            (tmp_path / f"{name}.S").write_text(pad.replace("+", ""))
        objects = [f"{name}.S" for name in ("a", "code", "b", "more")]
        subprocess.run(
            ["gcc", "-nostdlib", "-static", "-Wl,-e,f", "-o", "out", *objects], cwd=tmp_path, check=True
        )
        symbols = subprocess.run(
            ["nm", "out"], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout
        at = {line.split()[2]: int(line.split()[0], 16) for line in symbols.splitlines()}
        places.add((at["f"], at["g"] - at["f"]))
    assert len({place for place, _ in places}) == len({apart for _, apart in places}) == 2
