# SPDX-License-Identifier: GPL-2.0-only
"""Symbols for QEMU's plugin, and what it wrote."""

from __future__ import annotations

import pytest

from numalab.core.errors import InputError
from numalab.measure import call_paths
from numalab.runs import profile

KALLSYMS = """\
6.1.192-numalab
ffffffff81000000 T _text
ffffffff81000000 T startup_64
ffffffff81000040 t __pi_memcpy
ffffffff81000040 T memcpy
ffffffff81000100 T asm_sysvec_reschedule_ipi
ffffffffc0000010 t xfs_buf_find\t[xfs]
ffffffff81000080 T do_idle
0000000000000000 A fixed_percpu_data
"""


def test_symbols() -> None:
    text, names = call_paths.symbols(KALLSYMS)
    assert names == ["_text", "memcpy", "do_idle", "asm_sysvec_reschedule_ipi", "xfs_buf_find"]
    assert text.splitlines()[0] == "ffffffff81000000 0"
    assert [line.split()[1] for line in text.splitlines()] == ["0", "0", "0", "1", "0"]


def test_a_kernel_that_shows_no_addresses() -> None:
    with pytest.raises(InputError, match="shows no addresses"):
        call_paths.symbols("6.1\n0000000000000000 T _text\n")


@pytest.mark.parametrize(
    ("name", "enters"),
    [
        ("asm_sysvec_apic_timer_interrupt", True),
        ("asm_common_interrupt", True),
        ("apic_timer_interrupt", True),  # before 5.8
        ("asm_exc_page_fault", False),
        ("smp_apic_timer_interrupt", False),
        ("hrtimer_interrupt", False),
    ],
)
def test_where_an_interrupt_enters(name: str, enters: bool) -> None:
    text, _ = call_paths.symbols(f"6.1\nffffffff81000000 T {name}\n")
    assert text.split()[1] == str(int(enters))


def test_a_c_function_is_no_entry_where_its_stub_is_there() -> None:
    text, names = call_paths.symbols(
        "6.1\nffffffff81000000 T common_interrupt\nffffffff81000040 T asm_common_interrupt\n"
    )
    assert [line.split()[1] for line in text.splitlines()] == ["0", "1"], names


def test_an_edge_of_a_section_is_no_function() -> None:
    text = "6.1\nffffffff81000000 T __irqentry_text_end\nffffffff81000000 T error_entry_of_a_long_name\n"
    assert call_paths.symbols(text)[1] == ["error_entry_of_a_long_name"]


def test_a_kernel_with_small_stacks() -> None:
    with pytest.raises(InputError, match=r"kernel 3\.2\.102: its stacks are smaller"):
        call_paths.symbols("3.2.102\nffffffff81000000 T _text\n")


def test_folded() -> None:
    _, names = call_paths.symbols(KALLSYMS)
    text = call_paths.folded("-1 50\n1;2 30\n1;3 7\n4;0 10\n1;3;2 3\ntotal 100\n", names)
    assert text == (
        "kernel;_text;memcpy 30\nkernel;asm_sysvec_reschedule_ipi;[unknown] 10\n"
        "swapper;_text;do_idle 7\nswapper;_text;do_idle;memcpy 3\nuser 50\n"
    )
    busy = profile.busy(profile.parse(text))
    assert profile.samples(busy) == 90


def test_rare_paths_are_one_line() -> None:
    text = call_paths.folded("1 3000000\n1;2 2\n1;2;1 1\ntotal 3000003\n", ["a", "b"])
    assert text == "kernel;a 3000000\n[not-kept] 3\n"


@pytest.mark.parametrize("text", ["", "1 5\n", "1 5\ntotal 6\n", "9 5\ntotal 5\n", "x 5\ntotal 5\n"])
def test_a_count_that_is_not_whole(text: str) -> None:
    with pytest.raises(InputError, match="not whole"):
        call_paths.folded(text, ["_text"])
