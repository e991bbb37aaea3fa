# SPDX-License-Identifier: GPL-2.0-only
"""Error rates of the lab on recorded boots whose truth is known: all (before, before, after, after)
experiments here.

    .venv/bin/python benchmarks/rates.py          # made by: .venv/bin/pytest testcases --rates

Prints a line for each trial: the verdicts on before against after (an effect; from both halves, so that each
kernel has twice the boots that the line says), on before passed off as after
(must not hold), and on after against itself (nothing may be claimed). Then the rates. Judged from the runs,
without a guest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from numalab.analysis import error_rates
from numalab.analysis.error_rates import Trial
from numalab.core import state
from numalab.core.errors import LabError
from numalab.model.run import Run
from numalab.model.verdict import Answer
from numalab.runs import record


def stored() -> Iterator[Run]:
    """Unbroken runs of experiments in the state directory; damaged ones are skipped."""
    for folder in sorted(state.folder("runs").iterdir()):
        try:
            run = record.read(folder)
        except LabError:
            continue
        if run.place and not run.error:
            yield run


def trials(runs: Iterable[Run]) -> Iterator[tuple[str, int, Trial]]:
    """(case, rounds, verdicts) of every complete experiment over (before, before, after, after)."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.place:
            groups[run.place.experiment].append(run)
    for _, group in sorted(groups.items()):
        sides = error_rates.sides(group, 4)
        names = [{run.kernel for run in side} for side in sides]
        # Two kernels over an even number of rounds have four sides too: before, after, after, before.
        if (
            len({len(side) for side in sides}) == 1
            and [len(one) for one in names] == [1] * 4
            and names[0] == names[1] != names[2] == names[3]
        ):
            assert group[0].place is not None
            yield group[0].place.case_name, len(sides[0]), error_rates.of(group)


def rates(found: Iterable[Trial]) -> dict[str, tuple[int, int]]:
    """Outcome -> (how often, number of trials)."""
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for one in found:
        outcomes["effect seen"].append(one.effect.answer is Answer.HOLDS)
        outcomes["planted regression seen"].append(one.red)
        outcomes["planted regression let pass"].append(one.planted.answer is Answer.HOLDS)
        outcomes["change claimed where there is none"].append(not one.green)
    return {what: (sum(several), len(several)) for what, several in outcomes.items()}


def main() -> None:
    """Print the table and the rates."""
    found = list(trials(stored()))
    print(f"{'case':16} {'boots':>5}  {'before / after':14} {'passed off':14} {'unchanged':14}")
    for name, boots, one in found:
        print(
            f"{name:16} {boots:5}  {one.effect.answer:14} {one.planted.answer:14}"
            f" {'green' if one.green else 'CHANGED':14}".rstrip()
        )
    for what, (hits, of) in rates(one for *_, one in found).items():
        print(f"{what}: {hits} of {of}")


if __name__ == "__main__":
    main()
