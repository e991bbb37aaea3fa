# SPDX-License-Identifier: GPL-2.0-only
"""Exact profiles of guests on the virtual clock: QEMU counts the instructions of each call path of the
kernel.

instructions.c is the plugin of QEMU that counts; it is compiled here once for each version of QEMU's plugin
API and tried with the QEMU that would load it. Not here: the words that load it (domain), saying when to
count (measure.agent), what it reads and writes (measure.call_paths).
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from numalab.core import paths, state
from numalab.core.errors import CommandFailed, DeadlinePassed, HostError
from numalab.core.log import note
from numalab.core.process import Deadline, run
from numalab.host.domain import plugin_option
from numalab.host.hypervisor import Host

COMPILE = ("-O2", "-fPIC", "-fvisibility=hidden", "-shared")
APIS = (7, 3)
"""Versions of QEMU's plugin API for which instructions.c can be compiled, newest first. QEMU 10.0 takes 3,
and 11.1 takes 7 only."""
TRY_SECONDS = 20.0


def plugin(host: Host, deadline: Deadline) -> str:
    """The plugin's file, which the host's QEMU loads; '' where it is not to be had, which one line says."""
    try:
        return str(_plugin(host, deadline))
    except HostError as error:
        note(f"instructions are not counted, call graphs are sampled in the guest instead: {error}")
        return ""


def _plugin(host: Host, deadline: Deadline) -> Path:
    if host.where.ssh:
        raise HostError(f"{host.where.ssh} is another machine")
    can = host.capabilities(deadline)
    if can.confined_by:
        raise HostError(f"{' and '.join(can.confined_by)} does not let QEMU load programs")
    if not (compiler := shutil.which("cc") or shutil.which("gcc")):
        raise HostError("there is no C compiler here")
    refusals = []
    for api in APIS:
        try:
            return _loaded(can.emulator, compiler, api, deadline)
        except CommandFailed as error:
            refusals.append((error.evidence.strip() or str(error)).splitlines()[-1])
    raise HostError(f"{paths.label(paths.INSTRUCTIONS)}: {'; '.join(dict.fromkeys(refusals))}")


def _loaded(emulator: str, compiler: str, api: int, deadline: Deadline) -> Path:
    """The plugin for this version of the API, which that QEMU has loaded."""
    words = (*COMPILE, f"-DAPI={api}")
    key = hashlib.sha256(paths.INSTRUCTIONS.read_bytes() + " ".join(words).encode()).hexdigest()[:16]
    path = state.folder("emulator") / f"instructions-{api}-{key}.so"
    try:
        if not path.exists():
            part = state.scratch(path)
            run([compiler, *words, "-o", part, paths.INSTRUCTIONS], deadline=deadline)
            part.rename(path)
        bare = (emulator, "-machine", "none", "-accel", "tcg", "-display", "none", "-monitor", "stdio")
        run(
            [*bare, "-plugin", plugin_option(str(path), "/dev")],
            deadline=deadline.within(TRY_SECONDS),
            input=b"quit\n",
        )
    except DeadlinePassed as error:
        deadline.check("trying QEMU's plugin")
        raise HostError(f"{emulator} did not load it in {TRY_SECONDS:.0f} s") from error
    return path
