# SPDX-License-Identifier: GPL-2.0-only
"""Profiles as folded stacks: text -> stacks -> where the time went.

A line is `frame;frame;frame COUNT`, the outermost frame first: what stackcollapse-perf and `perf script
report flamegraph` call folded. Taking a profile is `measure`'s; drawing one is `figures`'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from numalab.core.errors import InputError
from numalab.model.values import Value

Stacks = Mapping[tuple[str, ...], int]
"""Frames, the outermost first -> samples that were taken exactly there."""


class Share(Value):
    """A function's part of a profile, from 0 to 1."""

    function: str
    own: float
    """Samples with it innermost."""
    total: float
    """Samples with it anywhere; once each, however deep it recurses."""


class Frame(Value):
    """One box of a flame graph."""

    parent: int | None
    """Index in the list of frames; None is the root."""
    function: str
    depth: int
    count: int
    """Samples in it and in all that it called."""


def parse(text: str) -> Stacks:
    """Folded stacks; the same stack on two lines is added up. Raises InputError with the line's number."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        frames, space, count = line.rpartition(" ")
        if not line.strip():
            continue
        if not space or not frames or not count.isdecimal():
            raise InputError(f"line {number}: {line[:80]!r} is not `frame;frame;frame COUNT`")
        stacks[tuple(frames.split(";"))] += int(count)
    return dict(stacks)


def merged(profiles: Iterable[Stacks]) -> Stacks:
    """Several boots' profiles as one: samples added up, so a boot with more samples weighs more."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for profile in profiles:
        stacks.update(profile)
    return dict(stacks)


def samples(stacks: Stacks) -> int:
    """How many samples there are."""
    return sum(stacks.values())


def shares(stacks: Stacks) -> list[Share]:
    """Every function's part, by total and then by own, the largest first; empty without samples."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for frames, count in stacks.items():
        own[frames[-1]] += count
        total.update(dict.fromkeys(frames, count))
    every = samples(stacks)
    found = [
        Share(function=function, own=own[function] / every, total=count / every)
        for function, count in total.items()
        if every
    ]
    return sorted(found, key=lambda share: (-share.total, -share.own, share.function))


def frames(stacks: Stacks, *, least: float) -> list[Frame]:
    """The boxes of a flame graph, callers before callees, siblings by name.

    Boxes of less than `least` (0 to 1) of all samples are left out, and what they called with them.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    for stack, count in stacks.items():
        for depth in range(1, len(stack) + 1):
            counts[stack[:depth]] += count
    floor = least * samples(stacks)
    found: list[Frame] = []
    index: dict[tuple[str, ...], int] = {}
    for stack in sorted(path for path, count in counts.items() if count and count >= floor):
        index[stack] = len(found)
        found.append(
            Frame(parent=index.get(stack[:-1]), function=stack[-1], depth=len(stack), count=counts[stack])
        )
    return found
