# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel tells about itself: of several releases, with much and with nothing."""

from __future__ import annotations

import subprocess

import pytest

from numalab.kernel import kconfig
from numalab.measure import kernel_facts
from numalab.measure.kernel_facts import MARK

THP = "/sys/kernel/mm/transparent_hugepage"
CONFIG = (
    'CONFIG_LOCALVERSION="-a"\nCONFIG_NUMA=y\n# CONFIG_PREEMPT_NONE is not set\nCONFIG_PREEMPT_VOLUNTARY=y\n'
)


def output(version: str, *more: str, config: str = "") -> str:
    """COMMAND's output, from a kernel with this /proc/version."""
    lines = ["6.1.0", "root=x quiet", f"/proc/version:{version}", *more, MARK]
    return "\n".join(lines) + "\n" + config


def test_what_a_kernel_tells() -> None:
    told = kernel_facts.parse(
        output(
            "Linux version 6.1.192-numalab-6.1 (b9e2@numalab) (gcc (Debian 12.2.0-14+deb12u1) 12.2.0,"
            " GNU ld (GNU Binutils for Debian) 2.40) #1 SMP Thu Jan  1 00:00:00 UTC 1970",
            f"{THP}/enabled:always [madvise] never",
            f"{THP}/defrag:always defer defer+madvise [madvise] never",
            "/sys/module/page_alloc/parameters/shuffle:Y",
            "/proc/sys/kernel/numa_balancing:1",
            "/proc/kallsyms:ffffffff9a000000 T _text",
            config=CONFIG,
        )
    )
    assert (told.release, told.cmdline, told.config) == ("6.1.0", "root=x quiet", CONFIG)
    assert told.address == "ffffffff9a000000"
    assert told.facts == {
        "compiler": "gcc (Debian 12.2.0-14+deb12u1) 12.2.0",
        "linker": "GNU ld (GNU Binutils for Debian) 2.40",
        "preemption": "voluntary",
        "THP": "madvise",
        "THP defrag": "madvise",
        "free pages shuffled": "Y",
        "numa_balancing": "1",
        "configuration": kconfig.digest({"CONFIG_NUMA": "y", "CONFIG_PREEMPT_VOLUNTARY": "y"}),
    }


def test_a_reader_without_privileges_learns_no_address() -> None:
    assert kernel_facts.parse(output("x", "/proc/kallsyms:0000000000000000 T _text")).address == ""


@pytest.mark.parametrize(
    ("build", "switch", "model"),
    [
        ("SMP PREEMPT_DYNAMIC Debian 6.1.164-1 (2026-03-09)", "", "PREEMPT_DYNAMIC"),
        ("SMP PREEMPT_DYNAMIC Mon Nov 23", "none (voluntary) full", "PREEMPT_DYNAMIC (voluntary)"),
        ("SMP PREEMPT RT Debian 3.16", "", "PREEMPT RT"),
        ("SMP PREEMPT_RT Debian 6.1", "", "PREEMPT_RT"),
        ("SMP PREEMPT Mon Nov 23", "", "PREEMPT"),
        ("SMP Debian 4.19.37-5", "", "none or voluntary"),
    ],
)
def test_preemption(build: str, switch: str, model: str) -> None:
    version = f"Linux version 6.1.0 (a@b) (gcc version 8.3.0 (Debian 8.3.0-7)) #1 {build}"
    more = [f"/sys/kernel/debug/sched/preempt:{switch}"] if switch else []
    facts = kernel_facts.parse(output(version, *more)).facts
    assert facts == {"compiler": "gcc version 8.3.0 (Debian 8.3.0-7)", "preemption": model}


@pytest.mark.parametrize(
    "text", ["6.1.0\nroot=x quiet\n", output("another system", "chatter"), "6.1.0\nroot=x quiet"]
)
def test_what_is_not_told_is_left_out(text: str) -> None:
    told = kernel_facts.parse(text)
    assert (told.release, told.cmdline, told.facts, told.config) == ("6.1.0", "root=x quiet", {}, "")


def test_the_command_is_one_that_a_shell_takes() -> None:
    """On this machine's kernel, whatever it is."""
    done = subprocess.run(["sh", "-c", kernel_facts.COMMAND], capture_output=True, text=True, check=True)
    told = kernel_facts.parse(done.stdout)
    assert told.release
    assert "compiler" in told.facts
    assert not done.stderr
