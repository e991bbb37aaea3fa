"""SPECjbb 2005, the user's own licensed copy: LAB_SPECJBB names a tar archive of the folder that has SPECjbb.props.

Source: stagger-1378447598.txt ("scan activity is reduced by a third on a 4-socket box"). The guest needs a Java
runtime beside it: bring one in the archive (a folder jre/, then used), or build an image with one. The number of
warehouses and their times are the copy's own, in its SPECjbb.props.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.core.errors import InputError
from numalab.model import Phase, SizeClass, Value

VARIABLE = "LAB_SPECJBB"
ARCHIVE = "/root/specjbb.tar"
FOLDER = "/root/specjbb"
LOG = "/root/specjbb.log"
SCORE = r"""awk '/throughput *= *[0-9]/ {sub(/.*throughput *= */, ""); if ($1 + 0 > most) most = $1 + 0}
END {if (!most) exit 1; print "numalab: most_bops_per_second " most}'"""
"""Each number of warehouses has its line, "throughput = N SPECjbb2005 bops"; told is the best."""


class Params(Value):
    """The archive on this host, the Java heap, and how long a run may take."""

    archive: str = Field(default_factory=lambda: os.environ.get(VARIABLE, ""))
    heap_mib: Annotated[int, Field(ge=1)]
    seconds: Annotated[float, Field(gt=0)]


PARAMS = {
    SizeClass.QUICK: Params(heap_mib=512, seconds=1800),
    SizeClass.FULL: Params(heap_mib=8192, seconds=4 * 3600),
}


def files(params: Params) -> dict[str, Path]:
    """The archive. Raises InputError when it is not named, or not there."""
    if not params.archive:
        raise InputError(f"specjbb: {VARIABLE} is not set: it names a tar archive of your own copy of SPECjbb 2005")
    archive = Path(params.archive)
    if not archive.is_file():
        raise InputError(f"specjbb: {VARIABLE}={archive}: there is no such file")
    return {ARCHIVE: archive}


def phases(params: Params) -> tuple[Phase, ...]:
    """Unpack, run, tell the score. Raises InputError as `files` does."""
    files(params)
    unpack = f"mkdir -p {FOLDER} && tar -xf {ARCHIVE} -C {FOLDER}"
    java = f"java -Xms{params.heap_mib}m -Xmx{params.heap_mib}m -cp jbb.jar:check.jar spec.jbb.JBBmain -propfile SPECjbb.props"
    run = (
        f"cd $(dirname $(find {FOLDER} -name SPECjbb.props | head -n 1)) && PATH=$PWD/jre/bin:{FOLDER}/jre/bin:$PATH && "
        f"{java} > {LOG} 2>&1 || {{ status=$?; tail {LOG} >&2; exit $status; }}; "
        f"{SCORE} {LOG} || {{ echo 'specjbb: no throughput in its output' >&2; exit 1; }}"
    )
    return Phase(name="unpack", command=unpack, limit_seconds=600, measured=False), Phase(name="specjbb", command=run, limit_seconds=params.seconds)
