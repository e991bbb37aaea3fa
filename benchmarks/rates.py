# SPDX-License-Identifier: GPL-2.0-only
"""How often verdicts are wrong on real boots whose truth is known: the tables in docs/statistics.md.

    .venv/bin/python benchmarks/rates.py           # of benchmarks/boots.json, without a guest
    .venv/bin/python benchmarks/rates.py --stored  # and of the experiments stored here
    .venv/bin/python benchmarks/rates.py --save    # adds those to benchmarks/boots.json
    .venv/bin/python benchmarks/rates.py --collect HOURS  # boots more, and adds each when it is whole
    .venv/bin/python benchmarks/rates.py --busy PERCENT --clock virtual  # only those from a host so busy
    .venv/bin/python benchmarks/rates.py --company  # do answers depend on what else the host did?

--collect goes on where an earlier one stopped: it boots the case with the fewest trials of equal kernels,
twice its default boots of each kernel, until the hours are over or the goal is shown. An experiment that is
under way then is finished; Ctrl-C loses that one alone.

Three sorts of trials, each of as many boots of each kernel as the case has by default, and judged by the
expectations that stood in the case when it was booted. Before against after: what does not hold is denied
falsely. Before passed off as after, and after against itself, from all splits of a kernel's boots: what holds
is claimed falsely. numalab/analysis/error_rates.py says how boots are split, when those of several
experiments are taken together, and what the intervals and bounds are. Only complete experiments count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from numalab.analysis import error_rates, verdict  # noqa: E402
from numalab.analysis.error_rates import Experiment, Judged, Trials, Truth  # noqa: E402
from numalab.core import state  # noqa: E402
from numalab.core.errors import Exit, InputError, LabError  # noqa: E402
from numalab.model import catalog  # noqa: E402
from numalab.model.run import Run  # noqa: E402
from numalab.model.values import Clock, SizeClass  # noqa: E402
from numalab.model.verdict import Answer  # noqa: E402
from numalab.report.text import aligned  # noqa: E402
from numalab.runs import record  # noqa: E402

BOOTS = ROOT / "benchmarks" / "boots.json"
BANDS = (20, 55)
"""Shares of the host's CPU time that others took, in percent. On two CPUs a guest that is alone is below the
first; two at a time take half from each other; with another load beside them they are above the second."""
FORMAT = 1
GOAL = 0.01
"""False verdicts should be fewer than this share."""
VERDICTS = (Exit.HOLDS, Exit.DOES_NOT_HOLD, Exit.CANNOT_TELL)
MOST_FAILED = 3
"""Experiments in a row without a verdict that end --collect: something is wrong with the host."""


def stored() -> Iterator[Run]:
    """Runs of experiments in the state directory.

    Left out: damaged ones, what is no run, those of kernels given by a path, which nobody else has, and those
    from ready states, which are no boots.
    """
    for folder in sorted(state.folder("runs").iterdir()):
        try:
            run = record.read(folder)
        except LabError:
            continue
        if not run.place or run.guest.ready_state:
            continue
        # --kernels does not change the case.
        if not any("/" in name for name in (run.kernel, run.place.case.before, run.place.case.after)):
            yield run


def text(experiments: Sequence[Experiment]) -> str:
    """Experiments as the file that is kept: a line for each case as it was booted, and for each kernel."""
    cases, entries = {}, {}
    for one in experiments:
        case = one.judged.model_dump(mode="json", exclude_defaults=True)
        key = error_rates.checksum(case)
        cases[key] = json.dumps(case)
        head = one.model_dump(mode="json", exclude={"name", "judged", "kernels"}, exclude_defaults=True)
        kernels = {
            kernel: json.dumps([[boot.number, *map(_short, boot.values)] for boot in boots])
            for kernel, boots in one.kernels.items()
        }
        entries[one.name] = f"[{json.dumps({'judged': key, **head})}, {_object(kernels)}]"
    return f'{{"format": {FORMAT}, "judged": {_object(cases)}, "experiments": {_object(entries)}}}\n'


def _short(value: float | None) -> float | None:
    """The value, as an integer where it is one."""
    return int(value) if value is not None and value.is_integer() else value


def _object(entries: Mapping[str, str]) -> str:
    """A JSON object with a line for each entry, whose values are JSON already."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {entries[key]}" for key in sorted(entries)) + "}"


def read(path: Path) -> list[Experiment]:
    """The experiments in a file that `text` made. InputError when it is damaged."""
    try:
        data = json.loads(path.read_text())
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, this reads {FORMAT}")
        for key, case in data["judged"].items():
            if error_rates.checksum(case) != key:
                raise ValueError(f"case {key} was edited: its checksum is {error_rates.checksum(case)}")
        cases = {key: Judged.model_validate(case) for key, case in data["judged"].items()}
        return [
            Experiment.model_validate(
                {
                    **head,
                    "name": name,
                    "judged": cases[head["judged"]],
                    "kernels": {
                        kernel: [{"number": number, "values": values} for number, *values in boots]
                        for kernel, boots in kernels.items()
                    },
                }
            )
            for name, (head, kernels) in data["experiments"].items()
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: {error}") from error


def merged(kept: Sequence[Experiment], here: Sequence[Experiment]) -> list[Experiment]:
    """Both; of an experiment that is in both, the one stored here."""
    return list({one.name: one for one in (*kept, *here)}.values())


def busier(one: Experiment, percent: float) -> bool:
    """Whether other programs took so much of the host's CPU time, or more, in its boots (median)."""
    return one.others is not None and one.others >= percent / 100


def band(one: Experiment) -> int:
    """Which of BANDS the share is in that others took of the host's CPU time; it must have been recorded."""
    return sum(busier(one, percent) for percent in BANDS)


def company(experiments: Iterable[Experiment]) -> dict[str, tuple[Counter[Answer], ...]]:
    """The answers of each case's whole experiments on the virtual clock by `band`. Only cases that have
    experiments in two of them or more."""
    answers: dict[str, tuple[Counter[Answer], ...]] = {}
    for one in error_rates.unlike_seeds(experiments):
        sides = [one.kernels.get(kernel, ()) for kernel in (one.judged.before, one.judged.after)]
        whole = min(map(len, sides)) >= one.judged.boots
        if whole and one.clock is Clock.VIRTUAL and one.others is not None:
            row = answers.setdefault(one.judged.case_name, tuple(Counter() for _ in (0, *BANDS)))
            row[band(one)][verdict.overall(error_rates.findings(one.judged, *sides))] += 1
    return {case: row for case, row in sorted(answers.items()) if sum(map(bool, row)) > 1}


def _company(experiments: Iterable[Experiment]) -> list[str]:
    """A row for each case."""
    order = (Answer.HOLDS, Answer.DOES_NOT_HOLD, Answer.CANNOT_TELL)
    heads = [
        f"< {BANDS[0]} %",
        *(f"{low} TO {high} %" for low, high in pairwise(BANDS)),
        f"{BANDS[-1]} % OR MORE",
    ]
    rows = [["CASE", *heads]]
    for case, row in company(experiments).items():
        rows.append([case, *("  ".join(f"{answers[one]:2}" for one in order) for answers in row)])
    return aligned(rows, left=1)


def by_case(trials: Sequence[Trials]) -> list[str]:
    """A row for each case, clock and number of boots."""
    rows = [["CASE", "CLOCK", "BOOTS", *(str(cell) for truth in Truth for cell in (truth.name, "TRIALS"))]]
    for case, clock, boots in sorted({_case(one) for one in trials}):
        row = [case, clock, str(boots)]
        for truth in Truth:
            part = [one for one in trials if one.truth is truth and _case(one) == (case, clock, boots)]
            row += [_answers(part), _number(part)] if part else ["-", "-"]
        rows.append(row)
    return aligned(rows, left=2)


def _case(one: Trials) -> tuple[str, str, int]:
    return one.judged.case_name, one.clock.value, one.judged.boots


def _answers(part: Sequence[Trials]) -> str:
    """In %: holds, does not hold, cannot tell."""
    order = (Answer.HOLDS, Answer.DOES_NOT_HOLD, Answer.CANNOT_TELL)
    return " ".join(f"{100 * error_rates.mean(_shares(part, answer)):3.0f}" for answer in order)


def _number(part: Sequence[Trials]) -> str:
    return f"{sum(one.disjoint for one in part)} / {sum(one.number for one in part)}"


def _shares(trials: Sequence[Trials], answer: Answer | None) -> list[tuple[float, int]]:
    """The share with this answer (None: with a difference) in each group of experiments, and its weight."""
    return [
        ((one.differing if answer is None else one.answers[answer]) / one.number, one.disjoint)
        for one in trials
    ]


def rates(trials: Sequence[Trials]) -> list[str]:
    """A row for each truth and each answer that is wrong or says nothing."""
    rows = [["TRUTH", "BOOTS OF", "ANSWER", "GROUPS", "TRIALS", "RATE", "95 %", "AT MOST"]]
    for pooled in (False, True):
        apart = [one for one in trials if one.pooled is pooled]
        parts: list[tuple[str, list[Trials], dict[str, Answer | None]]] = [
            (
                truth,
                [one for one in apart if one.truth is truth],
                {f"{truth.false}: false": truth.false, Answer.CANNOT_TELL: Answer.CANNOT_TELL},
            )
            for truth in Truth
        ]
        same = [one for one in apart if one.truth is not Truth.EFFECT]
        wrong: dict[str, Answer | None] = {"holds: false": Answer.HOLDS, "some metric differs": None}
        for name, part, answers in [*parts, ("the last two", same, wrong)]:
            for word, answer in answers.items() if part else ():
                rate = error_rates.rate(_shares(part, answer))
                rows.append(
                    [
                        name,
                        "several experiments" if pooled else "one experiment",
                        word,
                        str(len(part)),
                        _number(part),
                        f"{100 * rate.share:.1f} %",
                        f"{100 * rate.low:.1f} to {100 * rate.high:.1f}",
                        f"{100 * rate.most:.1f} %",
                    ]
                )
    return aligned(rows, left=3)


def _ways_to_be_wrong(trials: Sequence[Trials]) -> Iterator[tuple[str, Answer, list[Trials]]]:
    """What is wrong in words, the answer that is, and the trials in which it is."""
    yield "denied", Answer.DOES_NOT_HOLD, [one for one in trials if one.truth is Truth.EFFECT]
    yield "claimed of equal kernels", Answer.HOLDS, [one for one in trials if one.truth is not Truth.EFFECT]


def conclusion(trials: Sequence[Trials]) -> list[str]:
    """Whether the goal is shown, for each of the two ways to be wrong."""
    lines = []
    for name, answer, part in _ways_to_be_wrong(trials):
        if part:
            shares = _shares(part, answer)
            most = error_rates.at_most_whenever(shares)
            disjoint = sum(one.disjoint for one in part)
            lines.append(
                f"An effect {name}: at most {100 * most:.2f} % at 95 %, whenever one stops, by {disjoint}"
                " trials that share no boot."
            )
            if most < GOAL:
                lines.append(f"  Less than {100 * GOAL:g} % is shown.")
            else:
                more = error_rates.trials_for(GOAL, shares)
                lines.append(
                    f"  Less than {100 * GOAL:g} % is not shown: that takes {more} more, none of them wrong."
                )
    return lines


def tables(experiments: Sequence[Experiment]) -> list[str]:
    """All that is printed."""
    boots = sum(len(side) for one in experiments for side in one.kernels.values())
    clocks = Counter(one.clock.value for one in experiments)
    on = ", ".join(f"{number} on the {clock} clock" for clock, number in sorted(clocks.items()))
    lines = [f"{len(experiments)} experiments ({on}), {boots} boots" if experiments else "no experiment"]
    judged = list(error_rates.trials(experiments))
    if not judged:
        return lines
    return [
        *lines,
        "",
        "In %: holds, does not hold, cannot tell. Trials: those that share no boot / all that were judged.",
        *(f"{truth.name}: {truth}." for truth in Truth),
        "",
        *by_case(judged),
        "",
        *rates(judged),
        "",
        *conclusion(judged),
    ]


def claims(judged: Sequence[Trials]) -> Counter[str]:
    """Count each case's trials of equal kernels that share no boot."""
    counts: Counter[str] = Counter()
    for one in judged:
        if one.truth is not Truth.EFFECT:
            counts[one.judged.case_name] += one.disjoint
    return counts


def next_case(trials: Mapping[str, int], cases: Mapping[str, float]) -> str:
    """The case with the fewest trials; of several the cheapest, by the limit of its boots in minutes."""
    return min(cases, key=lambda name: (trials.get(name, 0), cases[name], name))


def shown(judged: Sequence[Trials]) -> bool:
    """Whether the goal is shown, for both ways to be wrong."""
    return all(
        part and error_rates.at_most_whenever(_shares(part, answer)) < GOAL
        for _, answer, part in _ways_to_be_wrong(judged)
    )


def collect(
    seconds: float,
    *,
    now: Callable[[], float] = time.monotonic,
    boot: Callable[[str, int], int] | None = None,
    gather: Callable[[], list[Experiment]] | None = None,
) -> list[Experiment]:
    """Boot experiments for so long, cases in turn, and keep each; returns all. Raises LabError when several
    in a row come to no verdict."""
    boot, gather = boot or _boot, gather or _gathered
    sizes = {name: catalog.case(name).sizes.get(SizeClass.QUICK) for name in catalog.names("testcases")}
    rounds = {name: 2 * size.boots for name, size in sizes.items() if size}
    costs = {name: size.minutes * size.boots for name, size in sizes.items() if size}
    end, failed, experiments, tried = now() + seconds, 0, gather(), Counter[str]()
    while now() < end and not shown(judged := list(error_rates.trials(experiments))):
        name = next_case(claims(judged) + tried, costs)
        status = boot(name, rounds[name])
        failed = 0 if status in VERDICTS else failed + 1
        if failed == MOST_FAILED:
            raise InputError(f"{failed} experiments in a row came to no verdict, the last one of {name}")
        before = len(experiments)
        experiments = gather()
        # One that breaks, or that no rate counts, does not keep the others waiting.
        tried[name] += status not in VERDICTS or len(experiments) == before
    return experiments


def _boot(name: str, rounds: int) -> int:
    """An experiment of this checkout's lab.py; returns its exit status."""
    return subprocess.run(
        [sys.executable, ROOT / "lab.py", "run", name, "--boots", str(rounds)], check=False
    ).returncode


def _gathered() -> list[Experiment]:
    """What is kept and what is stored here, which is kept too."""
    experiments = merged(read(BOOTS) if BOOTS.exists() else [], list(error_rates.experiments(stored())))
    state.write(BOOTS, text(experiments))
    BOOTS.chmod(0o644)
    return experiments


def main() -> int:
    """Collect, save, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stored", action="store_true", help="and of the experiments stored here")
    parser.add_argument("--save", action="store_true", help=f"add those to benchmarks/{BOOTS.name}")
    parser.add_argument("--collect", type=float, metavar="HOURS", help="boot more of them for so long")
    parser.add_argument(
        "--busy",
        type=float,
        metavar="PERCENT",
        help="only experiments in whose boots other programs took so much of the host's CPU time (median)",
    )
    parser.add_argument("--clock", choices=[clock.value for clock in Clock], help="only those on this clock")
    parser.add_argument(
        "--company",
        action="store_true",
        help="only how experiments on the virtual clock answer by that share: hold, do not hold, cannot tell",
    )
    options = parser.parse_args()
    if options.company and (options.busy is not None or options.clock):
        parser.error("--company: shows every share, on the virtual clock: without --busy and --clock")
    try:
        if options.collect:
            experiments = collect(3600 * options.collect)
        elif options.save:
            experiments = _gathered()
        else:
            experiments = read(BOOTS) if BOOTS.exists() else []
            if options.stored:
                experiments = merged(experiments, list(error_rates.experiments(stored())))
        if options.company:
            print("\n".join(_company(experiments)))
            return 0
        apart = [
            one
            for one in experiments
            if (options.busy is None or busier(one, options.busy))
            and options.clock in (None, one.clock.value)
        ]
        print("\n".join(tables(apart)))
    except LabError as error:
        sys.exit(f"error: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
