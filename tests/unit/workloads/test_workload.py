# SPDX-License-Identifier: GPL-2.0-only
"""Shared helpers of workloads: a C file is part of the command that compiles it in the guest."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from numalab.workload import compile_c


def test_compile_c(program: Callable[[str, str], Path], tmp_path: Path) -> None:
    program("gcc", f'echo "$*" > {tmp_path}/words; cat')
    source = tmp_path / "work.c"
    source.write_text("int main(void) { return '$HOME' + \"`x`\"[0]; }\n")
    phase = compile_c(source, "/run/work", "-pthread")
    done = subprocess.run(["sh", "-c", phase.command], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == source.read_text() + "\n", "as it is: no variable or command of the shell is put in"
    assert (tmp_path / "words").read_text() == "-O2 -Wall -Wextra -Werror -x c - -o /run/work -pthread\n"
    assert (phase.name, phase.measured) == ("compile-work", False)


def test_headers_beside_the_source_go_along(tmp_path: Path) -> None:
    (tmp_path / "inner.h").write_text("inner\\1\n")
    (tmp_path / "outer.h").write_text('#include "inner.h"\nouter\n')
    source = tmp_path / "work.c"
    source.write_text('#include <stdio.h>\n#include "outer.h"\nbody\n')
    assert (
        "<<'NUMALAB_EOF'\n#include <stdio.h>\ninner\\1\nouter\nbody\n\nNUMALAB_EOF"
        in compile_c(source, "/root/work").command
    )
