# SPDX-License-Identifier: GPL-2.0-only
"""Folded stacks: shares and frames of a profile, and texts that are none."""

from __future__ import annotations

import pytest

from numalab.core.errors import InputError
from numalab.runs import profile

TEXT = "a;b;c 6\na;b 2\n\na;d 1\na;b;c 1\n"


def test_parse_adds_up() -> None:
    assert profile.parse(TEXT) == {("a", "b", "c"): 7, ("a", "b"): 2, ("a", "d"): 1}
    assert profile.parse("") == {}


def test_frames_may_have_spaces() -> None:
    assert profile.parse("main;std::vector<int, A>::push_back 3\n") == {
        ("main", "std::vector<int, A>::push_back"): 3
    }


@pytest.mark.parametrize("line", ["a;b", "a;b x", " 3", "a -1", "a 1.5"])
def test_what_is_not_one_is_named(line: str) -> None:
    with pytest.raises(InputError, match="line 2: "):
        profile.parse(f"a 1\n{line}\n")


def test_idle_is_left_out() -> None:
    """An idle CPU is no work; what interrupts it is."""
    idle, clock, work = (
        ("swapper", "secondary_startup", "do_idle", "default_idle"),
        ("swapper", "do_idle", "default_idle", "asm_sysvec_apic_timer_interrupt", "irq_exit_rcu"),
        ("repair", "do_idle"),
    )
    old = ("swapper", "cpu_startup_entry", "default_idle", "call_function_interrupt", "flush_tlb_func")
    waking = ("swapper", "do_idle", "schedule_idle", "_raw_spin_unlock_irqrestore")
    assert profile.busy({idle: 90, clock: 3, work: 7, old: 2, waking: 5}) == {clock: 3, work: 7, old: 2}


def test_boots_are_added_up() -> None:
    one = profile.parse(TEXT)
    both = profile.merged([one, one, {("z",): 1}])
    assert profile.samples(both) == 21
    assert both["a", "d"] == 2


def test_shares_by_hand() -> None:
    found = {share.function: (share.total, share.own) for share in profile.shares(profile.parse(TEXT))}
    assert found == {"a": (1.0, 0.0), "b": (0.9, 0.2), "c": (0.7, 0.7), "d": (0.1, 0.1)}
    assert [share.function for share in profile.shares(profile.parse(TEXT))] == ["a", "b", "c", "d"]
    assert profile.shares({}) == []


def test_recursion_counts_once() -> None:
    assert profile.shares({("a", "b", "a"): 4})[0].total == 1.0


def test_frames_carry_what_they_call() -> None:
    boxes = profile.frames(profile.parse(TEXT), least=0)
    assert [(box.function, box.depth, box.count, box.parent) for box in boxes] == [
        ("a", 1, 10, None),
        ("b", 2, 9, 0),
        ("c", 3, 7, 1),
        ("d", 2, 1, 0),
    ]


def test_thin_frames_go_with_all_above_them() -> None:
    stacks = {("a", "b"): 990, ("a", "x", "y"): 1}
    assert [box.function for box in profile.frames(stacks, least=0.002)] == ["a", "b"]
    assert [box.function for box in profile.frames(stacks, least=0.001)] == ["a", "b", "x", "y"]


def test_callers_are_printed_as_perf_does() -> None:
    """Each part is of the line above; an only caller has no number."""
    stacks = {
        ("fault", "migrate", "flush_page", "flush", "ipi"): 80,
        ("reap", "flush_range", "flush", "ipi"): 20,
        ("fault", "migrate", "flush_page", "flush"): 5,
        ("user",): 95,
    }
    assert profile.callers(stacks, functions=2).splitlines() == [
        "-  50.00%  50.00%  ipi",
        "    flush",
        "    - 80.00% flush_page",
        "        migrate",
        "        fault",
        "    - 20.00% flush_range",
        "        reap",
        "-  47.50%  47.50%  user",
    ]


def test_thin_callers_are_left_out() -> None:
    stacks: profile.Stacks = {("often", "it"): 999, ("rare", "it"): 1}
    assert profile.callers(stacks, functions=1).splitlines() == [
        "- 100.00% 100.00%  it",
        "    - 99.90% often",
    ]


def test_a_function_that_recurses_has_its_outermost_callers() -> None:
    assert profile.callers({("a", "f", "b", "f"): 3}, functions=1).splitlines() == [
        "- 100.00% 100.00%  f",
        "    a",
    ]


def test_a_function_that_only_calls_is_none_of_them() -> None:
    assert profile.callers({("a", "it"): 3}, functions=8).splitlines() == ["- 100.00% 100.00%  it", "    a"]


def test_without_samples_there_are_no_callers() -> None:
    assert profile.callers({}, functions=3) == ""
