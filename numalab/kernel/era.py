# SPDX-License-Identifier: GPL-2.0-only
"""Eras: what old trees need to be built and booted today (kernels/eras/NAME.yml), and the containers with
their tool chains (kernels/containers/NAME.yml).

Pure: files -> values. Making a container and building in it is the builder's work (playbooks/roles/kernel).
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
    """kernels/containers/NAME.yml: an old Debian release, installed by mmdebstrap."""

    description: str
    suite: Annotated[str, Field(pattern="^[a-z]+$")]
    packages: tuple[Annotated[str, Field(pattern="^[a-z0-9][a-z0-9.+-]+$")], ...]

    def id(self, name: str) -> str:
        """Identifies the content: equal ids are equal containers, except for updates of the suite itself."""
        content = json.dumps([code("container.sh"), self.suite, *self.packages])
        return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


class Era(Value):
    """kernels/eras/NAME.yml. An absent field means what today's kernels need."""

    description: str
    container: Name | None = None
    """Where the kernel is built; None is the builder itself."""
    compiler: Annotated[str, Field(pattern=r"^gcc(-\d+)?$")] = "gcc"
    flags: tuple[Word, ...] = ()
    """Flags for every call of the compiler, also as assembler."""
    header: Annotated[str, Field(pattern=r"^compiler-gcc\d\.h$")] | None = None
    """The header in include/linux for a compiler that is newer than every compiler-gccN.h of the tree."""
    lacks: tuple[Word, ...] = ()
    """Options (patterns as in fnmatch) that a tree may lack though requested; others fail the build."""
    append: Words = ""
    """Words added to the kernel command line."""
    random_seed: bool = False
    """Whether the command line has entropy: an old kernel has none at boot, and sshd waits for it."""
    machine: Annotated[str, Field(pattern="^(q35|pc)$")] | None = None
    """Replaces the topology's. On pc virtio devices are transitional, which kernels before 4.0 need."""
    deals_cpus: bool = False
    """Whether numa=fake deals the CPUs out, one node after the other, at distance 20 (3.16 to 4.18). In 3.2
    and since 4.19 each fake node shows all CPUs of the node that it was cut from."""
    mkfs_xfs: Words = ""
    """Options of mkfs.xfs for a file system that the kernel can mount; they replace a workload's own."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of every command in the guest."""
        return {MKFS_XFS: self.mkfs_xfs} if self.mkfs_xfs else {}


def code(script: str) -> str:
    """The lines of a script of the kernel role without comments, which do not affect the kernel."""
    lines = (line.strip() for line in (SCRIPTS / script).read_text().splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def era(name: str) -> Era:
    """Read and check kernels/eras/NAME.yml."""
    return load(Era, find("kernels/eras", name))


def container(name: str) -> Container:
    """Read and check kernels/containers/NAME.yml."""
    return load(Container, find("kernels/containers", name))


def make_words(kernel_era: Era) -> tuple[str, ...]:
    """make's arguments for an era's compiler. Flags go into CC: parts of an old tree ignore KCFLAGS and
    KAFLAGS.

    The tree's own tools need them too: gcc 10 refuses a variable that two files define (relocs, before 3.19).
    """
    if not kernel_era.flags and kernel_era.compiler == "gcc":
        return ()
    return ("CC=" + " ".join((kernel_era.compiler, *kernel_era.flags)), f"HOSTCC={kernel_era.compiler}")


def shim(kernel_era: Era, compiler: str) -> Patch | None:
    """A patch that adds the header which include/linux/compiler.h of a tree before 4.2 includes for this
    compiler. `compiler` is the first line of gcc --version."""
    major = re.search(r" (\d+)\.[\d.]+(?: \d{8})?$", compiler)  # some have a date
    if kernel_era.header is None or major is None or kernel_era.header == f"compiler-gcc{major[1]}.h":
        return None
    path = f"include/linux/compiler-gcc{major[1]}.h"
    text = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+#include <linux/{kernel_era.header}>\n"
    return Patch(label=f"era's {path}", text=text)


def forgiven(kernel_era: Era | None, lost: list[str]) -> tuple[list[str], list[str]]:
    """Split missing options (kconfig.lost) into those that the era may lack and those that it may not."""
    patterns = kernel_era.lacks if kernel_era else ()
    lacking = [line for line in lost if any(fnmatch(line.split()[0], pattern) for pattern in patterns)]
    return lacking, [line for line in lost if line not in lacking]


def as_data(kernel_era: Era) -> dict[str, object]:
    """An era as data, for `kernel show`."""
    return {key: value for key, value in jsonable(kernel_era).items() if value}
