# SPDX-License-Identifier: GPL-2.0-only
"""Verdicts on boots whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from numalab.analysis import error_rates
from numalab.core.errors import InputError
from numalab.experiment.plan import boot_order
from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.model.verdict import Answer
from tests.unit import synthetic

BEFORE, AFTER = "6.1-slowscan-before", "6.1"


@pytest.mark.parametrize("kernels", [("a", "b"), ("a", "b", "c"), ("a", "a", "b", "b")])
@pytest.mark.parametrize("recorded", [True, False])
def test_sides_are_the_order_backwards(kernels: tuple[str, ...], recorded: bool) -> None:
    """Earlier labs did not record which kernel a boot had, and had a fixed order."""
    count = len(kernels)
    fixed = [(boot, (boot % count, count - 1 - boot % count)[boot // count % 2]) for boot in range(3 * count)]
    runs = [
        synthetic.run(
            kernels[index],
            boot=boot,
            arm=Arm.BEFORE if index == 0 else Arm.AFTER,
            params={"index": index},
            index=index if recorded else None,
        )
        for boot, index in (boot_order(kernels, 3, seed=3) if recorded else fixed)
    ]
    sides = error_rates.sides(runs, len(kernels))
    assert [[run.params["index"] for run in side] for side in sides] == [
        [index] * 3 for index in range(len(kernels))
    ]


def test_sides_of_a_run_by_itself() -> None:
    with pytest.raises(InputError, match="belongs to no experiment"):
        error_rates.sides([synthetic.run("a")], 2)


def test_against() -> None:
    """Only the arms of the runs change."""
    one, other = synthetic.run("a", boot=0, arm=Arm.BEFORE), synthetic.run("a", boot=1, arm=Arm.BEFORE)
    found = error_rates.against([one], [other])
    assert [run.place.arm for run in found if run.place] == [Arm.BEFORE, Arm.AFTER]
    assert found[0] == one
    assert found[1].place
    assert found[1].model_copy(update={"place": other.place}) == other


def four(values: Sequence[Sequence[int]], rounds: int = 3) -> list[Run]:
    """An experiment over (before, before, after, after)."""
    kernels = (BEFORE, BEFORE, AFTER, AFTER)
    return [
        synthetic.run(
            kernels[index],
            synthetic.phase("repair-defaults", vmstat={"numa_pte_updates": values[index][boot // 4]}),
            boot=boot,
            arm=Arm.AFTER if index else Arm.BEFORE,
            index=index,
        )
        for boot, index in boot_order(kernels, rounds)
    ]


def test_trial() -> None:
    """Correct verdicts: an effect; before is not accepted as after; after equals after."""
    found = error_rates.of(four([(1500, 1600, 1550), (1580, 1490, 1610), (100, 105, 98), (99, 101, 104)]))
    assert (found.effect.answer, found.effect.boots, found.effect.before, found.effect.after) == (
        Answer.HOLDS,
        (6, 6),
        BEFORE,
        AFTER,
    )
    assert (found.planted.answer, found.planted.before, found.planted.after) == (
        Answer.DOES_NOT_HOLD,
        BEFORE,
        BEFORE,
    )
    assert (found.unchanged.before, found.unchanged.after) == (AFTER, AFTER)
    assert found.red
    assert found.green


def test_trial_of_a_lab_that_errs() -> None:
    """Boots that by chance contradict the truth: neither red nor green."""
    found = error_rates.of(four([(1500, 1600, 1550), (100, 105, 98), (1580, 1490, 1610), (99, 101, 104)]))
    assert not found.red
    assert not found.green
