"""NUMA01, NUMA01_THREADLOCAL, NUMA02 and NUMA02_SMT: threads that zero memory over and over.

Source: slowscan-lkml-2015.txt, Mel Gorman, March 7, 2015 ("the standard autonuma benchmark"). The program is ours; it
does what numa01.c and numa02.c of the AutoNUMA benchmark (Andrea Arcangeli, 2012) do. NUMA01 is two processes, half of
the CPUs' number of threads each; every thread zeroes the process's buffer of 3 GB 51 times, the first time bound to node 0
or 1, which lasts (its Makefile since July 4, 2012). THREADLOCAL: so once, and then a slice of it 1000 times. NUMA02 is one
process, whose main thread zeroes 1 GB, and with a thread for each CPU, which zeroes a slice of it 800 times; SMT has half
the threads. So THREADLOCAL and NUMA02 start with memory on the wrong nodes. On four nodes NUMA01 is adverse: no placement
is right, and its elapsed time says nothing.

Where LAB_AUTONUMA names a tarball of the original (numa01.c, numa02.c, preproc.awk), its programs are built in the guest
and run instead, with our sizes and passes in place of their constants; at the full size those are the same.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.model import Phase, SizeClass, Value
from numalab.workload import compile_c, user_tarball

SOURCE = Path(__file__).with_suffix(".c")
VARIABLE = "LAB_AUTONUMA"
TARBALL = "/root/autonuma.tar"
FOLDER = "/root/autonuma-original"
Count = Annotated[int, Field(ge=1)]


class Program(StrEnum):
    """A phase each."""

    NUMA01 = "numa01"
    NUMA01_THREADLOCAL = "numa01-threadlocal"
    NUMA02 = "numa02"
    NUMA02_SMT = "numa02-smt"


class Params(Value):
    """Buffers of NUMA01 and NUMA02 in MiB, passes over them by what a thread has, huge pages or not, a program's limit."""

    programs: Annotated[tuple[Program, ...], Field(min_length=1)] = tuple(Program)
    numa01_mib: Count
    numa02_mib: Count
    shared_passes: Count
    own_passes: Count
    slice_passes: Count
    huge: bool
    tarball: str = Field(default_factory=lambda: os.environ.get(VARIABLE, ""))
    seconds: Annotated[float, Field(gt=0)]


PARAMS = {
    # Some 10 s a program on two emulated cores. Base pages, since a small buffer has too few huge ones to count.
    SizeClass.QUICK: Params(numa01_mib=128, numa02_mib=128, shared_passes=60, own_passes=150, slice_passes=300, huge=False, seconds=300),
    # Sizes and passes of the originals, minutes a program on real CPUs. Huge pages as the kernel likes: the seed's tables
    # count them.
    SizeClass.FULL: Params(numa01_mib=3072, numa02_mib=1024, shared_passes=50, own_passes=1000, slice_passes=800, huge=True, seconds=2 * 3600),
}


def files(params: Params) -> dict[str, Path]:
    """The user's tarball, when one is named. Raises InputError when it is not there, is cut off or is another."""
    if not params.tarball:
        return {}
    lacking = "there is no numa01.c in it; autonuma-benchmark has one"
    return {TARBALL: user_tarball("autonuma", VARIABLE, params.tarball, r"(\./)?([^/]+/)?numa01\.c$", lacking)}


def phases(params: Params) -> tuple[Phase, ...]:
    """Compile, then each program. Raises as `files`."""
    files(params)  # before a guest is booted for it
    if params.tarball:
        steps = [Phase(name=name, command=f"cd {FOLDER} && ./{name}", limit_seconds=params.seconds) for name in params.programs]
        return _original(params), *steps
    whole, half, huge = "$(nproc)", "$(($(nproc) / 2))", int(params.huge)
    words = {
        Program.NUMA01: f"2 {half} shared {params.numa01_mib} {params.shared_passes}",
        Program.NUMA01_THREADLOCAL: f"2 {half} own {params.numa01_mib} {params.own_passes}",
        Program.NUMA02: f"1 {whole} slice {params.numa02_mib} {params.slice_passes}",
        Program.NUMA02_SMT: f"1 {half} slice {params.numa02_mib} {params.slice_passes}",
    }
    steps = [Phase(name=name, command=f"/root/autonuma {words[name]} {huge}", limit_seconds=params.seconds) for name in params.programs]
    return compile_c(SOURCE, "/root/autonuma", "-pthread"), *steps


def _original(params: Params) -> Phase:
    """Build the user's programs in FOLDER. Their sources are filled in by preproc.awk, whose ** only gawk knows."""
    edits = {
        "numa01": [
            ("#define SIZE .*", f"#define SIZE ({params.numa01_mib}UL << 20)"),
            ("int nr = 50;", f"int nr = {params.shared_passes};"),
            ("int nr = 1000;", f"int nr = {params.own_passes};"),
        ],
        "numa02": [
            ("#define SIZE .*", f"#define SIZE ({params.numa02_mib}UL << 20)"),
            ("#define TOTALSIZE .*", f"#define TOTALSIZE (SIZE * {params.slice_passes})"),
        ],
    }
    lines = ["set -e", f"mkdir -p {FOLDER}", f"cd {FOLDER}", f"tar -xf {TARBALL}"]
    lines += ["cd $(dirname $(find . -maxdepth 2 -name numa01.c | head -n 1))", "sed 's/\\*\\*/^/' preproc.awk > lab.awk"]
    for name, changes in edits.items():
        lines.append(f"numactl --hardware | awk -v MoF=0 -v file={name}.c -f lab.awk > {name}.prep.c")
        for old, new in changes:
            missing = f"autonuma: no line '{old}' in {name}.c of the tarball"
            lines.append(f'grep -q "{old}" {name}.prep.c || {{ echo "{missing}" >&2; exit 1; }}')
            lines.append(f"sed -i 's/{old}/{new}/' {name}.prep.c")
    same_node = "-DNO_BIND_FORCE_SAME_NODE"  # as in their Makefile
    for program, source, define in (
        (Program.NUMA01, "numa01", same_node),
        (Program.NUMA01_THREADLOCAL, "numa01", f"{same_node} -DTHREAD_ALLOC"),
        (Program.NUMA02, "numa02", ""),
        (Program.NUMA02_SMT, "numa02", "-DSMT"),
    ):
        lines.append(f"gcc -O2 -w -pthread {define} {source}.prep.c -o {FOLDER}/{program} -lnuma")
    if not params.huge:
        lines.append("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
    return Phase(name="build-original", command="\n".join(lines), limit_seconds=600, measured=False)
