# SPDX-License-Identifier: GPL-2.0-only
"""Eras: kernels/eras/NAME.yml says what trees of a time need to be built and booted today,
kernels/containers/NAME.yml which tool chain of their time.

Pure: files -> values. Making a container and building in it is the builder's (playbooks/roles/kernel).
"""

from __future__ import annotations

import hashlib
import json
import re
from fnmatch import fnmatch
from typing import Annotated

from pydantic import Field

from numalab.core import paths
from numalab.kernel.patch import Patch
from numalab.model.catalog import find, load
from numalab.model.guest import MKFS_XFS
from numalab.model.values import Name, Value, jsonable

SCRIPTS = paths.ROOT / "playbooks/roles/kernel/files"

Word = Annotated[str, Field(pattern=r"^[^\s'\"\\$]+$")]
Words = Annotated[str, Field(pattern=r"^[^\n'\"\\$]*$")]


class Container(Value):
    """kernels/containers/NAME.yml: a Debian of another time, made by mmdebstrap."""

    description: str
    suite: Annotated[str, Field(pattern="^[a-z]+$")]
    packages: tuple[Annotated[str, Field(pattern="^[a-z0-9][a-z0-9.+-]+$")], ...]

    def id(self, name: str) -> str:
        """Names the content: equal ids are equal containers, but for the suite's own updates."""
        about = json.dumps([code("container.sh"), self.suite, *self.packages])
        return f"{name}-{hashlib.sha256(about.encode()).hexdigest()[:16]}"


class Era(Value):
    """kernels/eras/NAME.yml. What is absent is as for a kernel of today."""

    description: str
    container: Name | None = None
    """Where it is built; None is the builder itself."""
    compiler: Annotated[str, Field(pattern=r"^gcc(-\d+)?$")] = "gcc"
    flags: tuple[Word, ...] = ()
    """For every run of the compiler, of the assembler too."""
    header: Annotated[str, Field(pattern=r"^compiler-gcc\d\.h$")] | None = None
    """The file of include/linux that a compiler gets that is too young to have a compiler-gccN.h in the
    tree."""
    lacks: tuple[Word, ...] = ()
    """Options (patterns, as in fnmatch) that may be asked for and get lost; all others fail the build."""
    append: Words = ""
    """Words for the kernel command line."""
    random_seed: bool = False
    """Whether the guest gets its first entropy on the command line: an old kernel has none at boot, and sshd
    waits for it."""
    machine: Annotated[str, Field(pattern="^(q35|pc)$")] | None = None
    """In place of the topology's. On pc virtio devices are transitional, as kernels before 4.0 need them."""
    deals_cpus: bool = False
    """Whether numa=fake deals the CPUs out, one node after the other, at distance 20 (3.16 to 4.18); in 3.2
    and since 4.19 each fake node shows all CPUs of the node that it was cut from."""
    mkfs_xfs: Words = ""
    """Options for mkfs.xfs that give a file system which the kernel can mount; they replace a workload's
    own."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables for every command in the guest."""
        return {MKFS_XFS: self.mkfs_xfs} if self.mkfs_xfs else {}


def code(script: str) -> str:
    """What a script of the kernel role does: its lines without comments, which decide nothing."""
    lines = (line.strip() for line in (SCRIPTS / script).read_text().splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def era(name: str) -> Era:
    """kernels/eras/NAME.yml, checked."""
    return load(Era, find("kernels/eras", name))


def container(name: str) -> Container:
    """kernels/containers/NAME.yml, checked."""
    return load(Container, find("kernels/containers", name))


def make_words(what: Era) -> tuple[str, ...]:
    """make's arguments for an era's compiler. In CC, since not every part of an old tree minds KCFLAGS and
    KAFLAGS.

    The tree's own tools want it too: gcc 10 no longer takes a variable that two files define (relocs, before
    3.19).
    """
    if not what.flags and what.compiler == "gcc":
        return ()
    return ("CC=" + " ".join((what.compiler, *what.flags)), f"HOSTCC={what.compiler}")


def shim(what: Era, compiler: str) -> Patch | None:
    """The header that include/linux/compiler.h of a tree before 4.2 wants for this compiler: gcc's first line
    -> a patch."""
    major = re.search(r" (\d+)\.[\d.]+$", compiler)
    if what.header is None or major is None or what.header == f"compiler-gcc{major[1]}.h":
        return None
    path = f"include/linux/compiler-gcc{major[1]}.h"
    text = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+#include <linux/{what.header}>\n"
    return Patch(label=f"era's {path}", text=text)


def forgiven(what: Era | None, lost: list[str]) -> tuple[list[str], list[str]]:
    """Lost options (kconfig.lost), sorted into those that the era lacks and those that must not get lost."""
    patterns = what.lacks if what else ()
    lacking = [line for line in lost if any(fnmatch(line.split()[0], pattern) for pattern in patterns)]
    return lacking, [line for line in lost if line not in lacking]


def about(what: Era) -> dict[str, object]:
    """An era as data, for `kernel show`."""
    return {key: value for key, value in jsonable(what).items() if value}
