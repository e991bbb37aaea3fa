# SPDX-License-Identifier: GPL-2.0-only
"""Several builds of one kernel that differ only in where code and data lie: a patch of pads for each.

Where the linker puts things moves a time by some per cent (Mytkowicz and others, "Producing wrong data
without doing anything obviously wrong", ASPLOS 2009), and every boot of one build has the same layout. The
patch adds files only: pads of random sizes, and in each folder of FOLDERS a Kbuild that links one before each
object. kbuild prefers Kbuild to Makefile, so one patch fits all eras. The order of objects stays, as
initcalls depend on it; nothing but the pads is compiled again.

Not here: building (build), which boot has which build (experiment.plan).
"""

from __future__ import annotations

import random

from numalab.kernel.patch import Patch

FOLDERS = ("mm", "kernel", "kernel/sched", "arch/x86/mm", "fs")
"""Where the code that cases are about is. One that a tree lacks is never read."""
PADS = 64
"""The objects of a folder that get a pad, the first ones: mm of 7.2 has 90, and its hot ones come first."""
TEXT = range(0, 1024, 16)
"""Bytes of a pad between code: sixteen is what x86's functions are aligned to at least. Sums of several reach
every set of a first-level cache, whose ways have 4 KiB."""
DATA = range(0, 512, 64)
"""Bytes of a pad between data, in cache lines."""
_KBUILD = """\
include $(srctree)/{folder}/Makefile
obj-y := $(foreach n,{numbers},numalab-pad-$(n).o $(word $(n),$(obj-y))) $(wordlist {next},9999,$(obj-y))
"""
_PAD = """\
.text
.skip {text}, 0xcc
.data
.skip {data}
"""


def patch(kernel: str, number: int) -> Patch:
    """The patch of a kernel's build `number`, from 1. Its pads are drawn from the kernel's name and the
    number, so that the builds of two kernels are laid out independently of each other."""
    draw = random.Random(f"{kernel} {number}")
    files = {}
    for folder in FOLDERS:
        numbers = range(1, PADS + 1)
        files[f"{folder}/Kbuild"] = _KBUILD.format(
            folder=folder, numbers=" ".join(map(str, numbers)), next=PADS + 1
        )
        for pad in numbers:
            text = _PAD.format(text=draw.choice(TEXT), data=draw.choice(DATA))
            files[f"{folder}/numalab-pad-{pad}.S"] = text
    return Patch(label=f"layout {number}", text="".join(_added(path, text) for path, text in files.items()))


def _added(path: str, text: str) -> str:
    """A file that a patch adds."""
    lines = text.splitlines()
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)
