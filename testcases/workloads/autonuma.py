"""NUMA01, NUMA01_THREADLOCAL, NUMA02 and NUMA02_SMT: threads that zero memory over and over.

Source: slowscan-lkml-2015.txt, Mel Gorman, March 7, 2015 ("the standard autonuma benchmark"). The program is ours; it
does what numa01.c and numa02.c of the AutoNUMA benchmark (Andrea Arcangeli, 2012) do. NUMA01 is two processes, half of
the CPUs' number of threads each; every thread zeroes the process's buffer of 3 GB 51 times. THREADLOCAL: once, and then a
slice of it 1000 times. NUMA02 is one process, whose main thread zeroes 1 GB, and with a thread for each CPU, which zeroes
a slice of it 800 times; SMT has half the threads. So THREADLOCAL and NUMA02 start with memory on the wrong nodes. On four
nodes NUMA01 is adverse: no placement is right, and its elapsed time says nothing.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.model import Phase, SizeClass, Value
from numalab.workload import compile_c

SOURCE = Path(__file__).with_suffix(".c")
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
    seconds: Annotated[float, Field(gt=0)]


PARAMS = {
    # Some 10 s a program on two emulated cores. Base pages, since a small buffer has too few huge ones to count.
    SizeClass.QUICK: Params(numa01_mib=128, numa02_mib=128, shared_passes=60, own_passes=150, slice_passes=300, huge=False, seconds=300),
    # Sizes and passes of the originals, minutes a program on real CPUs. Huge pages as the kernel likes: the seed's tables
    # count them.
    SizeClass.FULL: Params(numa01_mib=3072, numa02_mib=1024, shared_passes=50, own_passes=1000, slice_passes=800, huge=True, seconds=2 * 3600),
}


def phases(params: Params) -> tuple[Phase, ...]:
    """Compile, then each program."""
    whole, half, huge = "$(nproc)", "$(($(nproc) / 2))", int(params.huge)
    words = {
        Program.NUMA01: f"2 {half} shared {params.numa01_mib} {params.shared_passes}",
        Program.NUMA01_THREADLOCAL: f"2 {half} own {params.numa01_mib} {params.own_passes}",
        Program.NUMA02: f"1 {whole} slice {params.numa02_mib} {params.slice_passes}",
        Program.NUMA02_SMT: f"1 {half} slice {params.numa02_mib} {params.slice_passes}",
    }
    steps = [Phase(name=name, command=f"/root/autonuma {words[name]} {huge}", limit_seconds=params.seconds) for name in params.programs]
    return compile_c(SOURCE, "/root/autonuma", "-pthread"), *steps
