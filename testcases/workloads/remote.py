"""One buffer, threads on all CPUs: the smallest workload that automatic NUMA balancing has an opinion on.

Ours, not a seed's: it shows that balancing is on and that its counters count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.model import Phase, SizeClass, Value
from numalab.workload import compile_c

SOURCE = Path(__file__).with_suffix(".c")


class Params(Value):
    """The buffer's size and how long it is touched."""

    mib: Annotated[int, Field(ge=1)]
    seconds: Annotated[float, Field(gt=0)]


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
        Phase(name="touch", command=f"/root/remote {params.mib} {params.seconds:g}", limit_seconds=params.seconds * 6 + 60),
    )
