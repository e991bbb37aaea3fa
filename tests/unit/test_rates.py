# SPDX-License-Identifier: GPL-2.0-only
"""The lab's error rates: which stored experiments are trials, and how they are counted."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import rates
from numalab.analysis import error_rates
from numalab.experiment.plan import boot_order
from numalab.model.case import Arm
from numalab.model.run import Run
from tests.unit import synthetic

BEFORE, AFTER = "6.1-slowscan-before", "6.1"
VALUES = {BEFORE: (1_557_000, 1_721_000, 1_590_000, 1_602_000), AFTER: (98_000, 98_100, 98_500, 99_000)}


def boots(name: str, kernels: Sequence[str], rounds: int, *, honest: bool = True) -> list[Run]:
    """An experiment; `honest` false gives its second side one kernel's values under the other's name."""
    found = []
    for number, index in boot_order(kernels, rounds):
        of = kernels[index] if honest or index != 1 else AFTER
        phase = synthetic.phase(
            "repair-x", vmstat={"numa_pte_updates": VALUES[of][number // len(kernels)] + index}
        )
        found.append(
            synthetic.run(
                kernels[index],
                phase,
                boot=number,
                arm=Arm.AFTER if index else Arm.BEFORE,
                index=index,
                experiment=name,
                id=f"{name}-{number}",
            )
        )
    return found


def test_trials() -> None:
    """Only experiments over before, before, after, after; two kernels over even rounds look alike."""
    runs = boots("a", (BEFORE, BEFORE, AFTER, AFTER), 3)
    found = list(
        rates.trials(
            [
                *runs,
                *boots("b", (BEFORE, AFTER), 4),
                *boots("c", (BEFORE, AFTER), 2),
                *boots("d", (AFTER, AFTER), 4),
                *boots("e", (AFTER,) * 4, 3),
                *boots("f", (BEFORE, BEFORE, AFTER, AFTER), 3)[:-1],
                synthetic.run(AFTER),
            ]
        )
    )
    assert [(name, rounds) for name, rounds, _ in found] == [("xfsrepair", 3)]
    assert found[0][2] == error_rates.of(runs)


def test_rates() -> None:
    """One correct trial of two."""
    found = [
        one
        for *_, one in rates.trials(
            [
                *boots("a", (BEFORE, BEFORE, AFTER, AFTER), 3),
                *boots("b", (BEFORE, BEFORE, AFTER, AFTER), 3, honest=False),
            ]
        )
    ]
    assert rates.rates(found) == {
        "effect seen": (1, 2),
        "planted regression seen": (1, 2),
        "planted regression let pass": (1, 2),
        "change claimed where there is none": (0, 2),
    }
    assert rates.rates([]) == {}
