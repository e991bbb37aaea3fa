# SPDX-License-Identifier: GPL-2.0-only
"""Profiles as folded stacks: text -> stacks -> each function's share, its callers, and the boxes of a flame
graph.

A line is `frame;frame;frame COUNT`, outermost frame first: the folded format of stackcollapse-perf and `perf
script report flamegraph`. Not here: taking a profile (measure.agent), drawing one (report.charts).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from numalab.core.errors import InputError
from numalab.model.values import Value

Stacks = Mapping[tuple[str, ...], int]
"""Frames, outermost first -> number of samples with exactly this stack."""


IDLE = "swapper"
"""The idle task's name, which is a stack's first frame."""
INTERRUPT = re.compile(r"sysvec_|_interrupt$|^do_IRQ$|^(__)?irq_(enter|exit)|softirq")
"""Functions of an interrupt, which is work though it interrupted nothing (arch/x86/kernel: entries since 5.8,
and before)."""


FLUSH_TLB = re.compile(r"^(native_)?flush_tlb")
"""Functions that flush TLBs, on this CPU and on others: flush_tlb_page, native_flush_tlb_multi."""


class Share(Value):
    """A function's part of a profile, from 0 to 1."""

    function: str
    own: float
    """Samples with it as the innermost frame."""
    total: float
    """Samples with it in any frame, counted once each, also when it recurses."""


class Frame(Value):
    """One box of a flame graph."""

    parent: int | None
    """Index of its caller in the list of frames; None is the root."""
    function: str
    depth: int
    count: int
    """Samples in it and in everything that it called."""


def parse(text: str) -> Stacks:
    """Folded stacks from text; counts of equal stacks are added. InputError names the line."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        frames, space, count = line.rpartition(" ")
        if not line.strip():
            continue
        if not space or not frames or not count.isdecimal():
            raise InputError(f"line {number}: {line[:80]!r} is not `frame;frame;frame COUNT`")
        stacks[tuple(frames.split(";"))] += int(count)
    return dict(stacks)


def busy(stacks: Stacks) -> Stacks:
    """The stacks without those of idle CPUs. A clock samples a CPU that sleeps too; a cycle counter, which
    published profiles are by, stands still then."""
    return {
        frames: count
        for frames, count in stacks.items()
        if frames[0] != IDLE or any(INTERRUPT.search(frame) for frame in frames)
    }


def merged(profiles: Iterable[Stacks]) -> Stacks:
    """Several boots' profiles as one. Samples are added, so a boot with more samples weighs more."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for profile in profiles:
        stacks.update(profile)
    return dict(stacks)


def samples(stacks: Stacks) -> int:
    """The number of samples."""
    return sum(stacks.values())


def shares(stacks: Stacks) -> list[Share]:
    """Every function's share, sorted by total and then own, largest first; empty without samples."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for frames, count in stacks.items():
        own[frames[-1]] += count
        total.update(dict.fromkeys(frames, count))
    every = samples(stacks)
    unsorted = [
        Share(function=function, own=own[function] / every, total=count / every)
        for function, count in total.items()
        if every
    ]
    return sorted(unsorted, key=lambda share: (-share.total, -share.own, share.function))


def share_of(stacks: Stacks, functions: re.Pattern[str]) -> float:
    """The share, from 0 to 1, of samples with one of these functions in any frame; 0 without samples."""
    matching = sum(count for frames, count in stacks.items() if any(map(functions.search, frames)))
    return matching / (samples(stacks) or 1)


def callers(stacks: Stacks, *, functions: int, least: float = 0.005) -> str:
    """The functions that most was counted in itself, each with its callers, in the form of perf's `report -g
    caller`, which kernel mails quote; "" without samples.

    A function's line has its share with what it calls and by itself. A caller has its part of the line above;
    one without a number is the only one. `least` (0 to 1): callers with a smaller part are left out.
    """
    counted = [share for share in shares(stacks) if share.own]
    ranked = sorted(counted, key=lambda share: (-share.own, share.function))[:functions]
    lines = []
    for share in ranked:
        paths: Counter[tuple[str, ...]] = Counter()
        for stack, count in stacks.items():
            if share.function in stack:
                paths[stack[: stack.index(share.function)][::-1]] += count
        lines.append(f"- {share.total:7.2%} {share.own:7.2%}  {share.function}")
        lines += _above(paths, least, "    ")
    return "".join(f"{line}\n" for line in lines)


def _above(paths: Mapping[tuple[str, ...], int], least: float, indent: str) -> list[str]:
    """The lines of callers; paths are innermost first, and an empty one has no caller."""
    whole = sum(paths.values())
    above: dict[str, Counter[tuple[str, ...]]] = {}
    for path, count in paths.items():
        if path:
            above.setdefault(path[0], Counter())[path[1:]] += count
    lines = []
    for function, rest in sorted(above.items(), key=lambda item: (-item[1].total(), item[0])):
        part = rest.total() / whole
        if rest.total() == whole:
            lines += [f"{indent}{function}", *_above(rest, least, indent)]
        elif part >= least:
            lines += [f"{indent}- {part:.2%} {function}", *_above(rest, least, indent + "    ")]
    return lines


def frames(stacks: Stacks, *, least: float) -> list[Frame]:
    """The boxes of a flame graph, callers before callees, siblings by name.

    Boxes with less than `least` (0 to 1) of all samples are left out, with everything that they called.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    for stack, count in stacks.items():
        for depth in range(1, len(stack) + 1):
            counts[stack[:depth]] += count
    floor = least * samples(stacks)
    boxes: list[Frame] = []
    index: dict[tuple[str, ...], int] = {}
    for stack in sorted(path for path, count in counts.items() if count and count >= floor):
        index[stack] = len(boxes)
        boxes.append(
            Frame(parent=index.get(stack[:-1]), function=stack[-1], depth=len(stack), count=counts[stack])
        )
    return boxes
