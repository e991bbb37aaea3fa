# SPDX-License-Identifier: GPL-2.0-only
"""lab.py cases, run, verdict, calibrate, repro, watch: output and exit statuses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numalab.analysis import calibration
from numalab.cli import case as case_commands
from numalab.cli import live, terminal
from numalab.core import paths, state
from numalab.core.errors import Cancelled, Exit, GuestError, HostError, InputError, KernelOops
from numalab.core.process import Deadline
from numalab.experiment import judging
from numalab.experiment import plan as experiment_plan
from numalab.experiment import run as experiment
from numalab.experiment.plan import Plan, boot_order, make_plan
from numalab.experiment.run import Outcome
from numalab.experiment.several import Turn
from numalab.kernel import recipe
from numalab.measure import programs
from numalab.model import catalog
from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.model.units import GIB
from numalab.model.values import SizeClass
from numalab.runs import index as run_index
from numalab.runs import record
from tests.unit import synthetic
from tests.unit.cli.conftest import LabPy
from tests.unit.makers import FORWARDS, FakeShell, kernel_names, record_of, spec

BEFORE = (1_557_000, 1_721_000, 1_590_000)
AFTERS = {
    "holds": (98_000, 98_100, 98_500),
    "holds, size open": (560_000, 800_000, 640_000),
    "does not hold: no change": (1_500_000, 1_690_000, 1_580_000),
    "cannot tell": (900_000, 200_000, 1_800_000),
}
"""numa_pte_updates of three boots of each kernel -> the answer."""
CASE = """
description: what failed migrations do to the scanner
source: slowscan-lkml-2015.txt
workload: remote
before: 6.1-slowscan-before
after: "6.1"
tracepoints: ["migrate:mm_migrate_pages"]
sizes:
  quick:
    source: ours
    machines: [{topology: 4socket, memory: 4GiB, vcpus: 8}]
    minutes: 4
expect:
  - {metric: numa_pte_updates, phase: touch, direction: falls, by: 2}
"""


def boots(plan: Plan, after: Sequence[int], seed: int = FORWARDS) -> list[Run]:
    """Runs of an experiment over the plan's kernels."""
    runs = []
    for number, index in boot_order(plan.kernels, 3, seed=seed):
        values = after if index or len(set(plan.kernels)) == 1 else BEFORE
        phase = synthetic.phase("touch", vmstat={"numa_pte_updates": values[number // len(plan.kernels)]})
        runs.append(
            synthetic.run(
                plan.kernels[index].name,
                phase,
                boot=number,
                arm=Arm.AFTER if index else Arm.BEFORE,
                case=plan.case,
                case_name=plan.case_name,
            )
        )
    return runs


@pytest.fixture
def conducted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of experiment.run.conduct; "after" and "error" set its result."""
    seen: dict[str, Any] = {"after": AFTERS["holds"], "error": None}

    def conduct(
        plan: Plan,
        host: object,
        rounds: int | None,
        *,
        limit: Callable[[float], Deadline],
        view: live.View,
        turn: Turn,
    ) -> Outcome:
        seen.update(plan=plan, rounds=rounds, view=view)
        if seen["error"]:
            raise seen["error"]
        runs = boots(plan, seen["after"])
        return Outcome(
            "20261121T1200-mine-7", tuple((run, Path("/runs")) for run in runs), judging.verdicts(runs)
        )

    monkeypatch.setattr(experiment, "conduct", conduct)
    return seen


@pytest.mark.parametrize(
    ("answer", "status"),
    [("holds", 0), ("holds, size open", 0), ("does not hold: no change", 1), ("cannot tell", 3)],
)
def test_run(lab_py: LabPy, case: str, conducted: dict[str, Any], answer: str, status: int) -> None:
    conducted["after"] = AFTERS[answer]
    code, out, _ = lab_py("run", case)
    assert code == status
    assert out.startswith(
        f"mine (quick) on 4socket, tcg: 6.1-slowscan-before against 6.1, 3 and 3 boots: {answer.upper()}\n"
    )
    assert "./lab.py compare 20261121T1200-mine-7" in out
    assert conducted["rounds"] == 3


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (GuestError("phase touch: exit status 1"), 2),
        (InputError("2 boots: 3 or more decide"), 2),
        (KernelOops("guest g: its kernel says: BUG"), 4),
        (Cancelled("boot: cancelled"), 130),
        (OSError("disk full"), 2),
    ],
)
def test_run_breaks(
    lab_py: LabPy, case: str, conducted: dict[str, Any], error: Exception, status: int
) -> None:
    """No verdict. An oops is the kernel's; everything else is the lab's."""
    conducted["error"] = error
    code, out, err = lab_py("run", case)
    assert (code, out) == (status, "")
    assert str(error) in err or "cancelled" in err


def test_an_error_ends_its_case_only(
    lab_py: LabPy, case: str, conducted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gravest status is that of the whole: a crash, a lab error, then what the verdicts say."""
    errors: Iterator[Exception | None] = iter(
        [None, GuestError("phase touch: exit status 1"), KernelOops("its kernel says: BUG"), None]
    )
    fake = experiment.conduct

    def conduct(*words: Any, **options: Any) -> Outcome:
        conducted["error"] = next(errors)
        return fake(*words, **options)

    monkeypatch.setattr(experiment, "conduct", conduct)
    code, out, err = lab_py("run", case, case, case, case)
    assert (code, out.count("HOLDS")) == (4, 2)
    assert "case mine, size quick, 4socket:\nlab.py: error: phase touch: exit status 1\n" in err
    assert "its kernel says: BUG" in err
    errors = iter([GuestError("phase touch: exit status 1"), None])
    assert lab_py("run", case, case)[0] == 2
    full = OSError(28, "No space left on device", "guest.json")
    errors = iter([KernelOops("its kernel says: BUG"), full, None])
    code, out, err = lab_py("run", case, case, case)
    assert (code, out.count("HOLDS"), "No space left on device" in err) == (4, 1, True)
    errors = iter([Cancelled("boot: cancelled"), None])
    assert lab_py("run", case, case)[:2] == (130, "")


def test_experiments_run_side_by_side(
    lab_py: LabPy, case: str, conducted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are under way at once, and the second, which ends first, is shown second."""
    fake, both, ended = experiment.conduct, threading.Barrier(2), threading.Event()

    def conduct(plan: Plan, *words: Any, turn: Turn, **options: Any) -> Outcome:
        turn.room()
        both.wait(10)
        if plan.machine.topology == "4socket":
            assert ended.wait(10)
        outcome = replace(fake(plan, *words, turn=turn, **options), experiment=f"{plan.machine.topology}-e")
        ended.set()
        return outcome

    monkeypatch.setattr(experiment, "conduct", conduct)
    code, out, _ = lab_py("matrix", case, "-t", "4socket", "-t", "cpus2of4")
    assert code == 0
    assert 0 < out.index("compare 4socket-e") < out.index("compare cpus2of4-e")


def test_a_case_that_has_ended_is_shown_after_ctrl_c(
    lab_py: LabPy, case: str, conducted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before it goes on, and is cancelled."""
    fake, ended = experiment.conduct, threading.Event()

    def conduct(plan: Plan, *words: Any, turn: Turn, **options: Any) -> Outcome:
        turn.room()
        if plan.machine.topology == "4socket":
            assert ended.wait(10)
            raise Cancelled("boot: cancelled")
        outcome = fake(plan, *words, turn=turn, **options)
        threading.Timer(0.5, ended.set).start()
        return outcome

    monkeypatch.setattr(experiment, "conduct", conduct)
    code, out, _ = lab_py("matrix", case, "-t", "4socket", "-t", "cpus2of4")
    assert (code, out.count("HOLDS")) == (130, 1)


POOL_REFUSES = "is a path: give the name of a file in testcases/, kernels/ or topologies/"


def test_a_pool_takes_no_paths(lab_py: LabPy, tmp_path: Path) -> None:
    """A host would measure its own file of that name."""
    threads, kernel, shape = (
        tmp_path / "threads.yml",
        tmp_path / "6.1.yml",
        tmp_path / "4socket.yml",
    )
    for path, folder in ((threads, "testcases"), (kernel, "kernels"), (shape, "topologies")):
        path.write_text((paths.ROOT / folder / path.name).read_text())
    for words in (
        ("run", str(threads), "--pool"),
        ("matrix", str(threads), "--pool"),
        ("run", "threads", "--pool", "--kernels", f"6.1,{kernel}"),
        ("run", "threads", "--pool", "--topology", str(shape)),
    ):
        code, _, err = lab_py(*words)
        assert (code, POOL_REFUSES in err) == (2, True), err


@pytest.mark.parametrize(
    "words",
    [
        ("threads",),
        ("--size", "full"),
        ("--accel", "tcg"),
        ("--clock", "host"),
        ("--pool",),
        ("--boots", "3"),
        ("--seed", "0"),
        ("--side-by-side", "2"),
    ],
)
def test_a_night_that_goes_on_takes_no_other_options(lab_py: LabPy, words: tuple[str, ...]) -> None:
    code, _, err = lab_py("matrix", "--resume", "n", *words)
    assert (code, "give no others" in err) == (2, True), err


@pytest.mark.parametrize("words", [("run", "threads", "--pool"), ("pool", "up"), ("pool", "worker")])
def test_a_pool_without_dask(lab_py: LabPy, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert lab_py(*words) == (
        2,
        "",
        "lab.py: error: Dask is not installed: .venv/bin/pip install -e '.[pool]'\n",
    )


def test_an_address_to_listen_on_needs_a_launcher(lab_py: LabPy) -> None:
    code, _, err = lab_py("pool", "up", "--listen", "10.0.0.1")
    assert (code, "give it with --launch only" in err) == (2, True), err


def test_the_worst_of_several_verdicts_counts(
    lab_py: LabPy, case: str, conducted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def several(*answers: str) -> int:
        plan = make_plan(case, SizeClass.QUICK)
        verdicts = tuple(judging.verdicts(boots(plan, AFTERS[answer]))[0] for answer in answers)
        runs = tuple((run, Path("/runs")) for run in boots(plan, AFTERS[answers[0]]))
        monkeypatch.setattr(experiment, "conduct", lambda *_, **__: Outcome("e", runs, verdicts))
        return lab_py("run", case)[0]

    assert several("holds", "cannot tell") == 3
    assert several("cannot tell", "does not hold: no change", "holds") == 1
    assert several("holds", "holds, size open") == 0


def test_run_as_chosen(lab_py: LabPy, case: str, conducted: dict[str, Any]) -> None:
    words = (
        "--kernels",
        "6.12,6.1",
        "--boots",
        "auto",
        "-t",
        "cpus2of4",
        "--memory",
        "2G",
        "--vcpus",
        "2",
        "--profile",
        "49",
        "--accel",
        "tcg",
    )
    lab_py("run", case, *words)
    plan = conducted["plan"]
    assert (kernel_names(plan), plan.machine.topology, plan.machine.memory, plan.machine.vcpus) == (
        ("6.12", "6.1"),
        "cpus2of4",
        2 * GIB,
        2,
    )
    assert (plan.profile_hz, plan.accel, conducted["rounds"]) == (49, "tcg", None)


def test_run_from_ready_states_or_on_prepared_disks(
    lab_py: LabPy, case: str, conducted: dict[str, Any]
) -> None:
    lab_py("run", case)
    assert (conducted["plan"].ready, conducted["plan"].prepared_disks) == (False, False)
    lab_py("run", case, "--ready")
    assert (conducted["plan"].ready, conducted["plan"].prepared_disks) == (True, False)
    lab_py("run", "xfsrepair", "--prepared-disks")
    assert (conducted["plan"].ready, conducted["plan"].prepared_disks) == (False, True)


@pytest.mark.parametrize("command", ["run", "matrix", "calibrate"])
def test_the_seed_and_how_many_at_a_time(
    lab_py: LabPy, case: str, conducted: dict[str, Any], command: str
) -> None:
    lab_py(command, case, "--seed", "7", "--side-by-side", "3")
    assert (conducted["plan"].seed, conducted["plan"].side_by_side) == (7, 3)


def test_a_matrix_on_prepared_disks(lab_py: LabPy, conducted: dict[str, Any]) -> None:
    """Where a case has phases for it."""
    seen = []
    for name in ("xfsrepair", "migratefail"):
        lab_py("matrix", name, "--prepared-disks")
        seen.append(conducted["plan"].prepared_disks)
    assert seen == [True, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prepared-disks",), "--prepared-disks: no phase of "),
        (
            ("--ready", "--clock", "virtual"),
            "case mine: from ready states: not with the virtual clock: ready states have the host's clock (--clock)",
        ),
        (("--boots", "0"), "--boots: '0' is neither a number from 1 nor auto"),
        (("--boots", "many"), "--boots: 'many' is neither"),
        (("--boots", "-3"), "--boots: '-3' is neither"),
        (("--size", "huge"), "--size: 'huge' is none of quick, full"),
        (("--size", "full"), "has no size full"),
        (("--kernels", "6.1"), "error: --kernels 6.1: one kernel compares with nothing"),
        (("--kernels", "6.1,"), "'' is not a name"),
        (("--kernels", ""), "error: --kernels : one kernel compares with nothing"),
        (("--memory", "64M"), "error: --memory: this topology needs"),
        (("--vcpus", "2"), "error: --vcpus 2: 4 nodes"),
        (("--accel", "xen"), "--accel: 'xen'"),
        (("--memory", "lots"), "--memory: 'lots' is not a size"),
        (("--topology", "7socket"), "no topologies file"),
        (("--vcpus", "x"), "--vcpus"),
    ],
)
def test_bad_choices(
    lab_py: LabPy, case: str, conducted: dict[str, Any], words: tuple[str, str], message: str
) -> None:
    code, out, err = lab_py("run", case, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert "plan" not in conducted


def test_no_such_case(lab_py: LabPy) -> None:
    code, _, err = lab_py("run", "nothing")
    assert code == 2
    assert "no testcases file" in err
    assert "xfsrepair" in err, "and which there are"


def test_cases(lab_py: LabPy) -> None:
    code, out, _ = lab_py("cases")
    assert code == 0
    for name in catalog.names("testcases"):
        case = catalog.case(name)
        assert f"{name:16} {case.description}\n" in out
        assert out.count(f"; {case.before} against {case.after}; ") >= len(case.sizes)


@pytest.fixture
def stored(case: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[Run]], None]:
    def keep(runs: Sequence[Run]) -> None:
        by_id = {run.id: run for run in runs}
        monkeypatch.setattr(run_index, "choose", lambda words, **_: [Path(name) for name in by_id])
        monkeypatch.setattr(record, "read", lambda folder: by_id[folder.name])

    return keep


@pytest.mark.parametrize(
    ("answer", "status"),
    [("holds", 0), ("holds, size open", 0), ("does not hold: no change", 1), ("cannot tell", 3)],
)
def test_verdict(
    lab_py: LabPy, case: str, stored: Callable[[Sequence[Run]], None], answer: str, status: int
) -> None:
    stored(boots(make_plan(case, SizeClass.QUICK), AFTERS[answer]))
    code, out, _ = lab_py("verdict", "mine")
    assert code == status
    assert f": {answer.upper()}\n" in out


def keep(
    plan: Plan,
    answer: str,
    name: str,
    *,
    count: int = 6,
    planned: int | None = 6,
    seed: int = FORWARDS,
    **changes: Any,
) -> list[Run]:
    """Store the first boots of an experiment."""
    runs = []
    for run in boots(plan, AFTERS[answer], seed)[:count]:
        assert run.place
        place = run.place.model_copy(update={"experiment": name, "planned": planned})
        runs.append(
            run.model_copy(
                update={
                    "id": f"{name}-{run.place.boot}",
                    "started": f"{name}{run.place.boot:02}",
                    "place": place,
                    **changes,
                }
            )
        )
        folder = state.folder("runs") / runs[-1].id
        (touch := record.phase_folder(folder, 0, "touch")).mkdir(parents=True)
        for edge, value in (("before", 0), ("after", run.phases[0].counters["vmstat"]["numa_pte_updates"])):
            (touch / edge).mkdir()
            (touch / edge / "vmstat").write_text(f"numa_pte_updates {value}\n")
        (touch / "stdout").write_text("")
        record.write(runs[-1], folder)
    return runs


def doubts(out: str) -> list[str]:
    return [
        line.removeprefix("  doubt: ")
        for line in out.splitlines()
        if line.startswith("  doubt: ") and "calibrated" not in line
    ]


def test_kernels_that_differ_are_doubted_wherever_a_verdict_stands(
    lab_py: LabPy, case: str, tmp_path: Path
) -> None:
    """On the terminal, in the mail, in the report."""
    for run in keep(make_plan(case, SizeClass.QUICK), "holds", "20261122T12"):
        assert run.place
        thp = "always" if run.place.arm is Arm.BEFORE else "madvise"
        record.write(run.model_copy(update={"kernel_facts": {"THP": thp}}), state.folder("runs") / run.id)
    said = "THP: always before, madvise after"
    assert doubts(lab_py("verdict", "mine")[1]) == [said]
    assert f"  doubt: {said}\n" in lab_py("compare", "mine", "--format", "mail")[1]
    assert lab_py("report", "mine", "--html", str(tmp_path / "report"))[0] == 0
    assert f'<p class="doubt">{said}</p>' in (tmp_path / "report" / "index.html").read_text()


def test_verdict_of_an_experiment_that_was_repeated(lab_py: LabPy, case: str) -> None:
    """Repeated until it fitted, or once more; another machine, kernel or size is no repetition."""
    plan = make_plan(case, SizeClass.QUICK)
    keep(plan, "holds", "20261122T12")
    assert doubts(lab_py("verdict", "mine")[1]) == []
    keep(plan, "holds", "20261122T11", host={"machine": "other", "cpu": "EPYC", "cpus": "2"})
    keep(make_plan(case, SizeClass.QUICK, kernels=("6.12-slowscan-before", "6.12")), "holds", "20261122T10")
    code, out, _ = lab_py("verdict", "mine")
    assert (code, doubts(out)) == (0, [])
    assert out.splitlines()[-1] == "judged: experiment 20261122T12, begun 20261122T1200 on vm", (
        "the newest by what its runs say"
    )
    keep(plan, "does not hold: no change", "20261122T09")
    assert doubts(lab_py("verdict", "mine")[1]) == [
        (
            "repeated: 1 other experiment of this case, size, topology, machine and kernels is here, 1"
            " earlier; does not hold: 1"
        ),
    ]
    keep(plan, "cannot tell", "20261122T08")
    (after,) = keep(plan, "holds", "20261122T07", count=1, seed=0)
    assert after.place
    assert after.place.arm is Arm.AFTER, "one that was given up after its first boot counts too"
    last = "repeated: 3 other experiments of this case, size, topology, machine and kernels are here"
    assert doubts(lab_py("verdict", "mine")[1]) == [f"{last}, 3 earlier; cannot tell: 2, does not hold: 1"]
    denied = lab_py("verdict", "20261122T09")[1]
    assert doubts(denied) == [judging.UNCONFIRMED, f"{last}, 2 earlier; cannot tell: 2, holds: 1"]
    guest = after.guest.model_copy(update={"ready_state": "a1"})
    restored = keep(plan, "does not hold: no change", "20261122T05")
    for run in restored:
        saved = guest.model_copy(update={"spec": run.guest.spec})
        record.write(run.model_copy(update={"guest": saved}), state.folder("runs") / run.id)
    again = lab_py("verdict", "20261122T09")[1]
    assert judging.UNCONFIRMED in doubts(again), "those from one saved state share its boot"
    keep(plan, "does not hold: no change", "20261122T06")
    again = lab_py("verdict", "20261122T09")[1]
    assert judging.UNCONFIRMED not in doubts(again), "a second experiment says so too"


def test_verdict_of_an_unfinished_experiment(lab_py: LabPy, case: str) -> None:
    plan = make_plan(case, SizeClass.QUICK)
    keep(plan, "holds", "20261122T12", count=5)
    assert doubts(lab_py("verdict", "mine")[1]) == [
        (
            "experiment 20261122T12 is unfinished: 5 of 6 planned boots count; it was cut short, still goes"
            " on, or some were left out"
        ),
    ]
    keep(plan, "holds", "20261122T13", count=5, planned=None)
    assert not any("unfinished" in line for line in doubts(lab_py("verdict", "mine")[1])), (
        "nobody knows, of a run of before this was kept"
    )


def test_run_says_that_it_was_repeated(lab_py: LabPy, case: str, conducted: dict[str, Any]) -> None:
    keep(make_plan(case, SizeClass.QUICK), "does not hold: no change", "20251122T09")
    code, out, _ = lab_py("run", case)
    assert (code, len(doubts(out))) == (0, 1)
    assert doubts(out)[0].startswith("repeated: 1 other experiment ")


def test_a_store_that_cannot_be_read_changes_no_verdict(
    lab_py: LabPy, case: str, conducted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> None:
        raise HostError("runs.sqlite3: locked")

    monkeypatch.setattr(run_index, "find", broken)
    code, out, _ = lab_py("run", case)
    assert (code, doubts(out)) == (0, ["whether it was repeated is not known: runs.sqlite3: locked"])


def test_one_machine_is_nothing_to_spread_over(lab_py: LabPy, case: str, conducted: dict[str, Any]) -> None:
    code, _, err = lab_py("run", case, "--spread", "2", "--boots", "4")
    assert code == 2
    assert "--spread 2: this machine is one host: with --pool" in err
    assert "plan" not in conducted


def test_verdict_of_half_an_experiment(
    lab_py: LabPy, case: str, stored: Callable[[Sequence[Run]], None]
) -> None:
    stored(
        [
            run
            for run in boots(make_plan(case, SizeClass.QUICK), AFTERS["holds"])
            if run.place and run.place.arm is Arm.BEFORE
        ]
    )
    code, _, err = lab_py("verdict", "mine")
    assert code == 2
    assert "a verdict needs both sides" in err


def test_verdict_of_unlike_runs(lab_py: LabPy, case: str, stored: Callable[[Sequence[Run]], None]) -> None:
    first, *others = boots(make_plan(case, SizeClass.QUICK), AFTERS["holds"])
    stored([first.model_copy(update={"settings": {"vm.swappiness": "1"}}), *others])
    code, _, err = lab_py("verdict", "mine")
    assert code == 2
    assert "not comparable: settings" in err
    code, out, _ = lab_py("verdict", "mine", "--force")
    assert code == 0
    assert "doubt: forced, though not comparable: settings" in out


def test_calibrate(lab_py: LabPy, case: str, conducted: dict[str, Any]) -> None:
    code, out, _ = lab_py("calibrate", case)
    assert code == 0
    assert kernel_names(conducted["plan"]) == ("6.1", "6.1"), "the case's after, against itself"
    assert "numa_pte_updates" in out
    kept = Path(out.splitlines()[-1].removeprefix("kept: "))
    assert calibration.Calibration.model_validate_json(kept.read_text()).kernel == "6.1"
    lab_py("calibrate", case, "--kernel", "6.12")
    assert kernel_names(conducted["plan"]) == ("6.12", "6.12")
    lab_py("calibrate", case, "--ready")
    assert (conducted["plan"].ready, conducted["plan"].prepared_disks) == (True, False)
    lab_py("calibrate", "xfsrepair", "--prepared-disks")
    assert (conducted["plan"].ready, conducted["plan"].prepared_disks) == (False, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kernel", "6.1,6.12"), "error: --kernel 6.1,6.12: one kernel is needed here"),
        (("--prepared-disks",), "error: --prepared-disks: no phase of "),
    ],
)
def test_what_no_calibration_can_be_of(
    lab_py: LabPy, case: str, conducted: dict[str, Any], words: Sequence[str], said: str
) -> None:
    code, _, err = lab_py("calibrate", case, *words)
    assert (code, "plan" in conducted) == (2, False)
    assert said in err


def test_a_calibration_has_an_end(lab_py: LabPy, case: str, conducted: dict[str, Any]) -> None:
    code, _, err = lab_py("calibrate", case, "--boots", "auto")
    assert code == 2
    assert "Invalid value for '--boots'" in err
    assert "plan" not in conducted


class Prepared(FakeShell):
    """A guest prepared by repro."""

    def __init__(self, says: Callable[[str, bytes | None], tuple[int, str, str]]) -> None:
        super().__init__(self.answer)
        self.reply = says
        self.name, self.ended, self.kept = "", 0, b""
        self.record = record_of(spec(), image_id="e" * 16)
        self.ssh: object = SimpleNamespace(copy=lambda *, source, target, deadline: Path(target).touch())

    def answer(self, command: str, input: bytes | None) -> tuple[int, str, str]:
        """Answers as requested; keeps the script."""
        if command.startswith("cat > "):
            self.kept = input or b""
        return self.reply(command, input)

    def down(self, deadline: Deadline) -> None:
        """End it."""
        self.ended += 1


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Prepared:
    made = Prepared(lambda *_: (0, "", ""))

    def up(
        plan: Plan,
        host: object,
        kernel: recipe.Kernel,
        name: str,
        deadline: Deadline,
        *,
        kept: bool,
        seed: int,
    ) -> tuple[Prepared, dict[str, str]]:
        made.name, made.kernel = name, kernel.name  # type: ignore[attr-defined]
        made.record = record_of(spec().model_copy(update={"seed": seed}), image_id="e" * 16)
        return made, {}

    monkeypatch.setattr(experiment_plan, "build_kernels", lambda *_: None)
    monkeypatch.setattr(experiment, "up", up)
    return made


def test_repro(lab_py: LabPy, case: str, prepared: Prepared) -> None:
    """Everything before the interesting phase is done; that phase is a script in the guest, which stays."""
    code, out, _ = lab_py("repro", case, "--no-shell")
    assert code == 0
    assert [command.split()[0] for command in prepared.commands] == ["mkdir", "cat"]
    assert prepared.kept == b"/root/remote 32 10 0\n"
    assert prepared.commands[-1] == "cat > /root/numalab-next.sh"
    assert out.startswith("repro-mine: kernel 6.1-slowscan-before, all done up to phase touch of remote: ")
    for words in (
        "sh /root/numalab-next.sh",
        "numa_pte_updates",
        "./lab.py down repro-mine",
        "perf stat -a -r 6 -e migrate:mm_migrate_pages sleep 10",
    ):
        assert words in out
    assert prepared.ended == 0


def test_repro_of_a_boot(lab_py: LabPy, case: str, prepared: Prepared) -> None:
    """As every boot that is measured it has a seed, which is said, and may be that of a run."""
    assert "repro-mine: seed 7\n" in lab_py("repro", case, "--no-shell", "--seed", "7")[2]
    assert prepared.record.spec.seed == 7
    drawn = set()
    for _ in range(2):
        lab_py("repro", case, "--no-shell")
        drawn.add(prepared.record.spec.seed)
    assert len(drawn - {None}) == 2


@pytest.mark.parametrize(
    ("kernel", "booted"), [("after", "6.1"), ("before", "6.1-slowscan-before"), ("6.12", "6.12")]
)
def test_repro_of_a_kernel(lab_py: LabPy, case: str, prepared: Prepared, kernel: str, booted: str) -> None:
    assert lab_py("repro", case, "--kernel", kernel, "--name", "mine", "--no-shell")[0] == 0
    assert (prepared.name, prepared.kernel) == ("mine", booted)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--name", "Dave"), "error: 'Dave' is not a name"),
        (("--name", ""), "error: '' is not a name"),
        (("--name", "there"), "error: a guest called there is there"),
        (("--kernel", "6.1,6.12"), "error: --kernel 6.1,6.12: one kernel is needed here"),
    ],
)
def test_repro_refuses_before_it_builds(
    lab_py: LabPy,
    case: str,
    prepared: Prepared,
    monkeypatch: pytest.MonkeyPatch,
    words: Sequence[str],
    said: str,
) -> None:
    monkeypatch.setattr(experiment_plan, "build_kernels", lambda *_: pytest.fail("it builds"))
    state.folder("guests", "there")
    code, _, err = lab_py("repro", case, "--no-shell", *words)
    assert code == 2
    assert said in err
    assert words[0] in err


def test_repro_on_prepared_disks_where_no_phase_prepares(
    lab_py: LabPy, case: str, prepared: Prepared
) -> None:
    """As run: a person who asked for them is not given empty ones without a word."""
    code, _, err = lab_py("repro", case, "--no-shell", "--prepared-disks")
    assert (code, prepared.commands) == (2, [])
    assert f"--prepared-disks: no phase of {case} prepares disks" in err


def test_repro_ends_in_a_shell(
    lab_py: LabPy, case: str, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ssh:
        host = "127.0.0.1"

        def argv(self, *words: str) -> list[str]:
            return ["ssh", *words]

    entered: list[list[str]] = []
    prepared.ssh = Ssh()
    monkeypatch.setattr(programs, "give", lambda *_: None)
    monkeypatch.setattr("os.execvp", lambda _, words: entered.append(words))
    lab_py("repro", case)
    assert entered == [["ssh", "-t", "127.0.0.1"]]


def test_repro_that_cannot_be_prepared_leaves_nothing(lab_py: LabPy, case: str, prepared: Prepared) -> None:
    prepared.reply = lambda command, _: (1, "", "no space") if "gcc" in command else (0, "", "")
    code, out, err = lab_py("repro", case, "--no-shell")
    assert (code, out, prepared.ended) == (2, "", 1)
    assert "no space" in err


class Watched(FakeShell):
    """A guest whose counters move with the clock."""

    def __init__(self) -> None:
        super().__init__(self.counters)
        self.now = 1000.0
        self.looks = 0

    def counters(self, command: str, _: bytes | None) -> tuple[int, str, str]:
        """100 PTE updates a second; reading them takes half a second."""
        assert command == "cat /proc/vmstat"
        self.looks += 1
        self.now += 0.5
        return 0, f"numa_pte_updates {(self.now - 1000) * 100:.0f}\nnr_dirty 5\npgfault 7\n", ""


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched()
    monkeypatch.setattr(case_commands, "reach", lambda _: made)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)

    def pause(self: Deadline, seconds: float) -> None:
        made.now += seconds

    monkeypatch.setattr(Deadline, "pause", pause)
    return made


def test_watch(lab_py: LabPy, watched: Watched) -> None:
    """By the clock: changes since the watch began, and per second."""
    code, out, _ = lab_py("watch", "g", "--count", "2", "--every", "1.5")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert [row for row in rows if row[0] == "numa_pte_updates"] == [
        ["numa_pte_updates", "200", "100"],
        ["numa_pte_updates", "400", "100"],
    ]
    assert [row for row in rows if row[0] == "pgfault"] == [["pgfault", "0", "0"]] * 2
    assert "nr_dirty" not in out
    assert watched.looks == 3


@pytest.mark.parametrize("words", [("--every", "0"), ("--every", "-1"), ("--count", "-1")])
def test_bad_watch(lab_py: LabPy, watched: Watched, words: tuple[str, str]) -> None:
    assert lab_py("watch", "g", *words)[0] == 2
    assert not watched.looks


def test_watch_ends_with_ctrl_c(lab_py: LabPy, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def pause(self: Deadline, seconds: float) -> None:
        terminal.cancel.set()

    monkeypatch.setattr(Deadline, "pause", pause)
    try:
        assert lab_py("watch", "g")[0] == 0
    finally:
        terminal.cancel.clear()
    assert watched.looks == 1


def test_what_nobody_expected_is_a_lab_error(lab_py: LabPy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own exit status would be 1, which means "does not hold"."""

    def broken(_: object) -> None:
        raise KeyError("spec")

    monkeypatch.setattr(catalog, "names", broken)
    status, _, err = lab_py("cases")
    assert status == Exit.LAB_ERROR
    assert "KeyError: 'spec'" in err
