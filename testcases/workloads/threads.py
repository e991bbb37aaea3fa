"""Many short-lived threads started at once, each in its own slice of a buffer, several times over.

Source: stagger-1378447598.txt ("threads will avoid scanning at the same time"); issue 4's recipe, tried by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.model import Phase, SizeClass, Value
from numalab.workload import compile_c

SOURCE = Path(__file__).with_suffix(".c")


class Params(Value):
    """How many threads, each one's slice, how long they live, how often new ones come."""

    threads: Annotated[int, Field(ge=1)]
    mib: Annotated[int, Field(ge=1)]
    seconds: Annotated[int, Field(ge=1)]
    rounds: Annotated[int, Field(ge=1)]


PARAMS = {
    SizeClass.QUICK: Params(threads=8, mib=64, seconds=4, rounds=3),
    # More threads than CPUs of a node, as the seed has it; rounds long enough for each to be scanned.
    SizeClass.FULL: Params(threads=32, mib=256, seconds=20, rounds=6),
}


def phases(params: Params) -> tuple[Phase, ...]:
    """Compile, then all rounds."""
    command = f"/root/threads {params.threads} {params.mib} {params.seconds} {params.rounds}"
    return (
        compile_c(SOURCE, "/root/threads", "-pthread"),
        Phase(name="touch", command=command, limit_seconds=params.seconds * params.rounds * 6 + 120),
    )
