"""Warehouses of threads over one Java heap, more of them round after round, and their transactions a second.

Source: stagger-1378447598.txt ("specjbb 2005 shows almost no difference in performance but scan activity is reduced by a
third on a 4-socket box"). SPECjbb 2005 is licensed; this is a program of ours in its likeness (warehouses.java), and its
transactions are no SPECjbb bops. Java is Debian's, and comes from the host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.core.process import Deadline
from numalab.host import java
from numalab.model import Phase, SizeClass, Value

SOURCE = Path(__file__).with_suffix(".java")
FOLDER = "/root/warehouses"
TIME_LIMIT = 1800.0


class Params(Value):
    """Warehouses, the data of each, how long a round of them takes, how many rounds, the heap, whether it has huge pages."""

    warehouses: Annotated[int, Field(ge=1)]
    mib: Annotated[int, Field(ge=1)]
    seconds: Annotated[int, Field(ge=1)]
    rounds: Annotated[int, Field(ge=1)]
    heap_mib: Annotated[int, Field(ge=16)]
    huge: bool


PARAMS = {
    # More threads than CPUs, as at the upper end of SPECjbb's measurement. Base pages, since there are too few huge ones to count.
    SizeClass.QUICK: Params(warehouses=8, mib=4, seconds=4, rounds=8, heap_mib=256, huge=False),
    # SPECjbb's: points of up to twice as many warehouses as CPUs, 4 minutes each; here 30 s, as a new thread scans at first.
    SizeClass.FULL: Params(warehouses=96, mib=25, seconds=30, rounds=24, heap_mib=16384, huge=True),
}


def files(params: Params) -> dict[str, Path]:
    """Java and the program's classes; the first time, Java is downloaded. Raises HostError, CommandFailed."""
    deadline = Deadline.after(TIME_LIMIT)
    return {f"{FOLDER}.tar": java.runtime(deadline), f"{FOLDER}.jar": java.compiled(SOURCE, deadline)}


def phases(params: Params) -> tuple[Phase, ...]:
    """Unpack Java, then all rounds."""
    heap = f"-Xms{params.heap_mib}m -Xmx{params.heap_mib}m -XX:+UseParallelGC -XX:{'+' if params.huge else '-'}UseTransparentHugePages"
    words = f"{params.warehouses} {params.mib} {params.seconds} {params.rounds}"
    pages = "" if params.huge else "echo never > /sys/kernel/mm/transparent_hugepage/enabled && "
    unpack = f"{pages}mkdir -p {FOLDER} && tar -xf {FOLDER}.tar -C {FOLDER} && {FOLDER}/java/bin/java -version"
    run = f"{FOLDER}/java/bin/java {heap} -cp {FOLDER}.jar Warehouses {words}"
    limit = params.seconds * params.rounds * 6 + 300
    return Phase(name="unpack", command=unpack, limit_seconds=300, measured=False), Phase(name="trade", command=run, limit_seconds=limit)
