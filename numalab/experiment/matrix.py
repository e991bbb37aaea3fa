# SPDX-License-Identifier: GPL-2.0-only
"""A matrix: cases x sizes x topologies x kernels, as plans. Not here: options (cli, the pytest plugin)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from numalab.core.errors import InputError
from numalab.kernel import recipe
from numalab.model import catalog
from numalab.model.case import Case
from numalab.model.values import SizeClass


class Cell(NamedTuple):
    """One experiment of a matrix."""

    case: str
    size: SizeClass
    topology: str
    kernels: tuple[str, ...]
    """() for the case's own."""


def cells(
    cases: Sequence[str],
    *,
    sizes: Sequence[SizeClass],
    topologies: Sequence[str] = (),
    kernels: Sequence[str] = (),
    series: Sequence[str] = (),
) -> Iterator[Cell]:
    """All experiments of a matrix. `topologies`: () for each case's first; `kernels`: "BEFORE,AFTER" each.

    A case without a size, or whose kernels a series lacks, is left out there. Raises InputError.
    """
    if kernels and series:
        raise InputError(f"kernels {kernels[0]} and series {series[0]}: give one of the two", field="kernels")
    for name in cases:
        case = catalog.case(name)
        for size in sizes:
            if size not in case.sizes:
                continue
            for topology in topologies or [case.sizes[size].machines[0].topology]:
                for pair in _kernels(case, kernels, series):
                    yield Cell(name, size, topology, pair)


def _kernels(case: Case, kernels: Sequence[str], series: Sequence[str]) -> Iterator[tuple[str, ...]]:
    if not kernels and not series:
        yield ()
    for one in kernels:
        yield tuple(one.split(","))
    for one in series:
        if pair := in_series(case, one):
            yield pair


def in_series(case: Case, series: str) -> tuple[str, str] | None:
    """The case's kernels in another series; None when it lacks one of them."""
    before, after = (recipe.in_series(name, series) for name in (case.before, case.after))
    return (before, after) if before and after else None
