# SPDX-License-Identifier: GPL-2.0-only
"""The kernel that a guest runs, as it describes itself: one command in the guest, and what its output says.

What a kernel does not tell is left out. Not here: what differs between kernels (analysis.kernel_state).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from numalab.kernel import kconfig
from numalab.model.run import CONFIGURATION, SHUFFLED
from numalab.model.values import Value

VERSION, PREEMPT = "/proc/version", "/sys/kernel/debug/sched/preempt"
THP = "/sys/kernel/mm/transparent_hugepage"
SYMBOLS, SHUFFLE = "/proc/kallsyms", "/sys/module/page_alloc/parameters/shuffle"
STATE = {
    f"{THP}/enabled": "THP",
    f"{THP}/defrag": "THP defrag",
    SHUFFLE: SHUFFLED,
    "/proc/sys/kernel/numa_balancing": "numa_balancing",
    "/proc/1/comm": "init",
}
"""File in the guest -> the fact that it has."""
MARK = "numalab: the configuration follows"
COMMAND = (
    f"uname -r; cat /proc/cmdline; grep -sH . {' '.join([VERSION, PREEMPT, *STATE])};"
    f" grep -sHm1 ' [Tt] _text$' {SYMBOLS}; echo '{MARK}';"
    " zcat /proc/config.gz 2>/dev/null || cat /boot/config-$(uname -r) 2>/dev/null || true"
)
"""One command: each costs an emulated guest a round trip."""
_VERSION = re.compile(r"Linux version \S+ \(.+?\) \((?P<tools>.+?)\) #(?P<build>.*)")
_CHOSEN = re.compile(r"[\[(](.+?)[\])]")
"""The value in force, among those that there are: always [madvise] never."""


class RunningKernel(Value):
    """What a kernel says about itself."""

    release: str
    cmdline: str
    facts: dict[str, str]
    """See Run.kernel_facts."""
    config: str
    """The text of its configuration; '' when the guest has none."""
    address: str
    """See Run.kernel_address."""


def parse(output: str) -> RunningKernel:
    """The output of COMMAND."""
    about, _, config = output.partition(f"{MARK}\n")
    release, _, rest = about.strip().partition("\n")
    cmdline, _, lines = rest.partition("\n")
    files = {
        path: text for path, colon, text in (line.partition(":") for line in lines.splitlines()) if colon
    }
    options = kconfig.in_force(config)
    facts = _of_version(files.get(VERSION, ""), files.get(PREEMPT, ""), options)
    facts |= {name: _chosen(files[path]) for path, name in STATE.items() if path in files}
    if options:
        facts[CONFIGURATION] = kconfig.digest(options)
    address = files.get(SYMBOLS, "").partition(" ")[0]
    if not address.strip("0"):  # what a reader without privileges gets
        address = ""
    return RunningKernel(release=release, cmdline=cmdline, facts=facts, config=config, address=address)


def _of_version(version: str, preempt: str, options: Mapping[str, str]) -> dict[str, str]:
    """Compiler, linker (older kernels name none) and preemption model."""
    match = _VERSION.match(version)
    if not match:
        return {}
    compiler, _, linker = match["tools"].partition(", ")
    words = re.findall(r"\bPREEMPT(?:_\w+| RT\b)?", match["build"]) or [_without_word(options)]
    model = " ".join([*words, *([f"({_chosen(preempt)})"] if preempt else [])])
    return {"compiler": compiler, **({"linker": linker} if linker else {}), "preemption": model}


def _without_word(options: Mapping[str, str]) -> str:
    """The preemption model of a kernel whose version has no such word."""
    for name in ("none", "voluntary"):
        if f"CONFIG_PREEMPT_{name.upper()}" in options:
            return name
    return "none or voluntary"


def _chosen(text: str) -> str:
    match = _CHOSEN.search(text)
    return match[1] if match else text.strip()
