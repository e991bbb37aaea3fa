"""How often the lab is right about boots whose truth is known: every (before, before, after, after) experiment of the store.

    .venv/bin/python benchmarks/rates.py          # made by: .venv/bin/pytest testcases --rates

A line a trial: what was said of before against after (an effect), of before passed off as after (must not
hold), of after against itself (nothing may be claimed). Then the rates. Judged anew, without a guest.
"""

from __future__ import annotations

from collections import defaultdict

from numalab import experiment, record, state
from numalab.errors import LabError
from numalab.runs import Run


def main() -> None:
    """Print the table and the rates."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for folder in sorted(state.folder("runs").iterdir()):
        try:
            run = record.read(folder)
        except LabError:
            continue
        if run.place and not run.error:
            groups[run.place.experiment].append(run)
    counts: dict[str, list[bool]] = defaultdict(list)
    print(f"{'case':16} {'boots':>5}  {'before / after':14} {'passed off':14} {'unchanged':14}")
    for _, runs in sorted(groups.items()):
        place = runs[0].place
        assert place is not None
        if len({run.place.boot % 4 for run in runs if run.place}) < 4 or len({run.guest["spec"]["boot"]["name"] for run in runs}) != 2 or len(runs) % 4:
            continue
        sides = experiment.sides(runs, 4)
        if [len({run.guest["spec"]["boot"]["name"] for run in side}) for side in sides] != [1, 1, 1, 1]:
            continue
        found = experiment.trial(runs)
        counts["effect seen"].append(found.effect.answer.value == "holds")
        counts["planted regression seen"].append(found.red)
        counts["planted regression let pass"].append(found.planted.answer.value == "holds")
        counts["change claimed where there is none"].append(not found.green)
        unchanged = "green" if found.green else "CHANGED"
        print(f"{place.case_name:16} {len(runs) // 4:5}  {found.effect.answer.value:14} {found.planted.answer.value:14} {unchanged:14}")
    for what, outcomes in counts.items():
        print(f"{what}: {sum(outcomes)} of {len(outcomes)}")


if __name__ == "__main__":
    main()
