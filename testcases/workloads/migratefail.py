"""Threads that share memory which balancing wants to migrate and cannot: what slowing the scanner is about.

Source: slowscan-lkml-2015.txt, Mel Gorman, March 7, 2015 ("if migrations fail for any reason then the PTE scanner
may scan faster if the faults continue to be remote"); issue 4's recipe, tried by hand. The case sets
vm.watermark_scale_factor=1000: without it, node 1 is not full enough for migrations there to fail.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.model import Phase, SizeClass, Value
from numalab.workload import compile_c

SOURCE = Path(__file__).with_suffix(".c")


class Params(Value):
    """The shared memory's size, how long it is written to, and what is left free on node 1."""

    mib: Annotated[int, Field(ge=1)] = 64
    seconds: Annotated[int, Field(ge=1)]
    left_mib: Annotated[int, Field(ge=1)]


PARAMS = {
    # 110 MiB are a tenth of a node of 1 GiB, which the watermarks are then far above.
    SizeClass.QUICK: Params(seconds=20, left_mib=110),
    SizeClass.FULL: Params(mib=1024, seconds=60, left_mib=440),
}


def phases(params: Params) -> tuple[Phase, ...]:
    """Compile; fill node 1 and touch what lies on node 2."""
    command = f"/root/migratefail {params.mib} {params.seconds} {params.left_mib}"
    return compile_c(SOURCE, "/root/migratefail", "-pthread"), Phase(name="touch", command=command, limit_seconds=params.seconds * 6 + 120)
