"""One buffer, all threads everywhere in it: the smallest workload that automatic NUMA balancing has an opinion on.

Source: issue 4's recipes for the grouping of tasks and for the write permission (TNF_NO_GROUP and savedwrite of
slowscan-lkml-2015.txt), tried by hand. With its own parameters it shows that balancing is on and its counters count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.model import Phase, SizeClass, Value
from numalab.workload import compile_c

SOURCE = Path(__file__).with_suffix(".c")


class Params(Value):
    """The buffer's size, how long it is written to, and by how many threads (0: one for each CPU)."""

    mib: Annotated[int, Field(ge=1)]
    seconds: Annotated[int, Field(ge=1)]
    threads: Annotated[int, Field(ge=0)] = 0


PARAMS = {
    # The scanner first looks at a task after a second of its run time (scan_delay_ms), and here a second
    # of run time takes several of the clock.
    SizeClass.QUICK: Params(mib=32, seconds=10),
    SizeClass.FULL: Params(mib=1024, seconds=60),
}


def phases(params: Params) -> tuple[Phase, ...]:
    """Compile, then touch."""
    return (
        compile_c(SOURCE, "/root/remote", "-pthread"),
        Phase(name="touch", command=f"/root/remote {params.mib} {params.seconds} {params.threads}", limit_seconds=params.seconds * 6 + 60),
    )
