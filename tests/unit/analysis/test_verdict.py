# SPDX-License-Identifier: GPL-2.0-only
"""Verdicts on synthetic experiments: changes and none, broken boots, runs that differ, and doubts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from numalab.analysis import calibration, expectation, metrics, verdict
from numalab.core import paths
from numalab.core.errors import InputError
from numalab.model.binding import Binding
from numalab.model.case import Arm, Case, CaseSize, Cost, Direction, Expectation, Machine, Place
from numalab.model.run import Memory, PhaseResult, Run
from numalab.model.topology import Topology
from numalab.model.values import Accel, Clock, Phase, SizeClass
from numalab.model.verdict import Answer, Grade, percent
from numalab.report import text
from tests.unit.makers import BOOT, on_virtual_clock, record_of, spec

pytestmark = pytest.mark.filterwarnings("error")

FALLING = Expectation(metric="numa_pte_updates", phase="work-*", direction=Direction.FALLS, by=2)
QUICK = CaseSize(source="here", machines=(Machine(topology="4socket"),), minutes=3)
MANY, FEW = (1557000, 1721000, 1590000), (98000, 98000, 98000)
INTERLEAVED = (0, 3, 4, 7, 8, 11, 12, 15), (1, 2, 5, 6, 9, 10, 13, 14)
"""Boot numbers of each arm: ABBA ABBA …"""


def case(*expect: Expectation, **more: Any) -> Case:
    about: dict[str, Any] = {
        "description": "d",
        "source": "s",
        "workload": "w",
        "before": "6.1-x-before",
        "after": "6.1",
        "sizes": {"quick": QUICK},
    }
    return Case.model_validate({**about, "expect": expect or (FALLING,), **more})


def boot(
    arm: Arm,
    index: int,
    vmstat: dict[str, int],
    *,
    of: Case | None = None,
    accel: Accel = Accel.TCG,
    topology: str | Topology = "4socket",
    system: float = 1,
    experiment: str = "e",
    kernel_hash: str = "",
    looks: int = 1,
    **changes: object,
) -> Run:
    """One boot of an experiment."""
    of = of or case()
    name = of.before if arm is Arm.BEFORE else of.after
    booted = spec(topology, accel=accel, boot=BOOT.model_copy(update={"name": name}))
    guest = record_of(booted, image_id="i", kernel_hash=kernel_hash or name)
    phases = [
        PhaseResult(
            phase=Phase(name=f"work-{part}", command="true", limit_seconds=60),
            status=0,
            elapsed=2,
            user=2,
            system=system,
            counters={"vmstat": {key: share(count, part) for key, count in vmstat.items()}},
            guest_load=0,
            host_load=0,
        )
        for part in range(2)
    ]
    made = Run(
        id=f"{experiment}-{index:02}-{arm}",
        workload="w",
        size=SizeClass.QUICK,
        params={"files": 10},
        started="",
        release=f"6.1.0-numalab-{name}",
        host={"machine": "vm", "cpu": "EPYC", "cpus": "2"},
        guest=guest,
        cmdline="",
        inputs={"w.py": "1"},
        phases=tuple(phases),
        place=Place(case_name="slow", case=of, experiment=experiment, arm=arm, boot=index, looks=looks),
    )
    return made.model_copy(update=changes)


def share(count: int, part: int) -> int:
    """A count split over two phases, which add up to it."""
    return count // 4 if part == 0 else count - count // 4


def experiment(before: Sequence[int], after: Sequence[int], **more: Any) -> list[Run]:
    """Boots in turn, with these numbers of PTE updates."""
    sides = [(Arm.BEFORE, before, INTERLEAVED[0]), (Arm.AFTER, after, INTERLEAVED[1])]
    return [
        boot(arm, index, {"numa_pte_updates": count}, **more)
        for arm, counts, order in sides
        for count, index in zip(counts, order, strict=False)
    ]


def told(runs: Sequence[Run], **more: Any) -> tuple[str, ...]:
    """The doubts, except that nothing was calibrated."""
    return tuple(doubt for doubt in verdict.verdict(runs, **more).doubts if "calibrated" not in doubt)


@pytest.mark.parametrize(
    ("before", "after", "answer"),
    [
        (MANY, FEW, Answer.HOLDS),
        (MANY, MANY[::-1], Answer.DOES_NOT_HOLD),
        (FEW, MANY, Answer.DOES_NOT_HOLD),
        ((483000, 31000, 80000), (31000, 112000, 85000), Answer.CANNOT_TELL),
        (MANY[:1], FEW, Answer.CANNOT_TELL),
        (MANY, FEW[:1], Answer.CANNOT_TELL),
        ((0, 0, 0), (0, 0, 0), Answer.CANNOT_TELL),
    ],
)
def test_answers(before: Sequence[int], after: Sequence[int], answer: Answer) -> None:
    runs = experiment(before, after)
    found = verdict.verdict(runs)
    assert found.answer is answer
    assert found == verdict.verdict(runs[::-1]) == verdict.verdict([*runs, *runs]), (
        "neither order nor a run given twice matters"
    )
    assert found.findings[0].before == tuple(before)
    assert found.findings[0].after == tuple(after)


def test_a_drift_is_taken_out_and_doubted() -> None:
    """A host that becomes faster by a fifth from boot to boot, and an effect of 2."""
    drifting = [
        [round(1.2**number * base) for number in order[:4]]
        for base, order in zip((1_000_000, 500_500), INTERLEAVED, strict=True)
    ]
    drifting[0][0] += 9_000  # boots scatter too
    runs = experiment(*drifting)
    found = verdict.verdict(runs)
    (finding,) = found.findings
    assert found.answer is Answer.HOLDS
    assert finding.drift == pytest.approx(1.2, rel=0.01)
    assert finding.ratio == pytest.approx(0.5, rel=0.01)
    assert "; a drift by a factor of 1.199 from boot to boot is taken out" in finding.reason
    assert told(runs) == (
        "numa_pte_updates (work-*): a factor of 1.199 from boot to boot, taken out of both kernels' values: the host, or"
        " what boots leave on it, changes as the experiment goes on",
    )
    apart = [
        run.model_copy(update={"place": run.place.model_copy(update={"experiment": f"e{run.place.boot}"})})
        for run in runs
        if run.place
    ]
    assert verdict.verdict(apart).findings[0].drift is None, "boots of several experiments have no order"


def test_what_a_verdict_says() -> None:
    runs = experiment(MANY, FEW)
    found = verdict.verdict(runs)
    assert (found.case_name, found.size, found.topology, found.accel) == ("slow", "quick", "4socket", "tcg")
    assert (found.before, found.after, found.boots) == ("6.1-x-before", "6.1", (3, 3))
    assert found.runs == tuple(
        f"e-{index:02}-{arm}"
        for index, arm in enumerate(("before", "after", "after", "before", "before", "after"))
    )
    assert found.doubts == (
        "not calibrated on this machine: how far A is from A is not known (lab.py calibrate)",
    )
    assert found.findings[0].ratio == pytest.approx(0.0605, abs=1e-4)


def test_a_run_that_broke_is_named_and_never_counted() -> None:
    """Its counters would contradict the expectation most; they must not count."""
    broken = boot(Arm.AFTER, 9, {"numa_pte_updates": 1700000}, error="phase work-1: exit status 1\nand more")
    found = verdict.verdict([*experiment(MANY, FEW), broken])
    assert found.answer is Answer.HOLDS
    assert found.boots == (3, 3)
    assert broken.id not in found.runs
    assert any(
        doubt.startswith(f"run {broken.id} broke and is not counted: phase work-1: exit status 1 and")
        for doubt in found.doubts
    )


def test_boots_that_were_begun_again_are_doubted() -> None:
    """A boot that hung under emulation was repeated; the verdict names it."""
    first, *others = experiment(MANY, FEW)
    runs = [first.model_copy(update={"guest": first.guest.model_copy(update={"hung": 2})}), *others]
    assert told(runs) == (
        (
            f"2 boots hung or broke QEMU under emulation and were begun again, before {first.id}: a kernel that hangs looks"
            " the same"
        ),
    )


def test_all_broke() -> None:
    found = verdict.verdict([run.model_copy(update={"error": "panic"}) for run in experiment(MANY, FEW)])
    assert (found.answer, found.boots, found.runs) == (Answer.CANNOT_TELL, (0, 0), ())
    assert (found.before, found.after) == ("6.1-x-before", "6.1")
    assert len(found.doubts) == 6 + 1


def test_one_side_alone() -> None:
    found = verdict.verdict(experiment(MANY, ()))
    assert (found.answer, found.after) == (Answer.CANNOT_TELL, "6.1")
    assert "absent from every boot after" in found.findings[0].reason


def busy(run: Run, *shares: float | None, clock: Clock = Clock.HOST) -> Run:
    """The run on a host of which others took these shares in its phases."""
    phases = tuple(
        phase.model_copy(update={"host_others": share})
        for phase, share in zip(run.phases, shares, strict=True)
    )
    known = run.guest.spec.model_copy(update={"clock": clock})
    guest = run.guest.model_copy(update={"spec": known})
    return run.model_copy(update={"phases": phases, "guest": guest})


def test_a_busy_host_is_a_doubt() -> None:
    runs = experiment((100, 104, 98), (25, 24, 26))
    assert told(runs) == (), "older runs do not know"
    assert told([busy(run, 0.02, 0.1) for run in runs]) == ()
    loaded = [busy(runs[0], 0.05, 0.43), busy(runs[1], 0.2, None), *(busy(run, 0, 0) for run in runs[2:])]
    assert told(loaded) == (
        f"the host was busy with something else in 2 of 6 boots, most in {runs[0].id}: other programs took 43%"
        " of its processor time, and the guest had less of it",
    )
    assert told([busy(run, 0.5, 0.5, clock=Clock.VIRTUAL) for run in runs]) == (), "its clock waits for it"


def kept(run: Run, *shares: float | None, others: float = 0.43) -> Run:
    """The run on a host that others kept busy, which kept these shares from the guest in its phases."""
    busy_run = busy(run, *(others for _ in shares))
    phases = (
        phase.model_copy(update={"host_kept": share})
        for phase, share in zip(busy_run.phases, shares, strict=True)
    )
    return busy_run.model_copy(update={"phases": tuple(phases)})


def test_time_kept_from_a_guest_is_a_doubt() -> None:
    """Where it is known it counts, and not what others took of the host: that may be a CPU of its own."""
    runs = experiment((100, 104, 98), (25, 24, 26))
    assert told([kept(run, 0.02, 0.1) for run in runs]) == ()
    first, second, *rest = runs
    loaded = [kept(first, 0.11, 0), kept(second, 0, 0.34, others=0), *(kept(run, 0, 0) for run in rest)]
    assert told(loaded) == (
        f"the host was busy with something else in 2 of 6 boots, most in {second.id}: other programs took 34%"
        " of the processor time that the guest asked for",
    )
    assert told([on_virtual_clock(run) for run in loaded]) == (), "its clock waits for it"
    with_setup = [
        run.model_copy(update={"phases": (unmeasured(run.phases[0]), run.phases[1])})
        for run in (kept(first, 0.9, 0), *(kept(run, 0, 0) for run in runs[1:]))
    ]
    assert told(with_setup) == (), "nothing is measured there"


@pytest.mark.parametrize(
    ("share", "phase", "virtual", "expected"),
    [
        (
            0.11,
            1,
            False,
            "phase work-1: other programs took 11% of the processor time that the guest asked for",
        ),
        (0.1, 1, False, ""),
        (None, 1, False, ""),
        (0.9, 1, True, ""),
        (0.9, 2, False, ""),
    ],
)
def test_when_a_boot_is_taken_again(share: float | None, phase: int, virtual: bool, expected: str) -> None:
    """On the host's clock, for a phase that decides."""
    run = experiment(MANY, FEW)[0]
    phases = [one.model_copy(update={"host_kept": 0.0}) for one in run.phases]
    other = phases[0].model_copy(update={"phase": Phase(name="fsmark", command="true", limit_seconds=9)})
    phases.append(other)
    phases[phase] = phases[phase].model_copy(update={"host_kept": share})
    run = run.model_copy(update={"phases": tuple(phases)})
    run = on_virtual_clock(run) if virtual else run
    assert verdict.busy(run, {""}) == expected
    old = case(FALLING.model_copy(update={"releases": "3.*"}))
    assert run.place
    elsewhere = run.model_copy(update={"place": run.place.model_copy(update={"case": old})})
    assert verdict.busy(elsewhere, {"6.1.0", "6.12.0"}) == "", "it decides nothing on the kernels after"
    assert verdict.busy(elsewhere, {"6.1.0", "3.19.0"}) == expected


@pytest.mark.parametrize(("kernel", "name"), [("6.1", "6.1-x-before"), ("6.12", "a kernel without a run")])
def test_an_experiment_that_ended_before_its_first_boot_before(kernel: str, name: str) -> None:
    """The case's kernel goes with the case's; with another one after, nobody knows which was to come."""
    run = experiment((), FEW[:1])[0]
    named = run.guest.spec.boot.model_copy(update={"name": kernel})
    spec = run.guest.spec.model_copy(update={"boot": named})
    judged = verdict.verdict([run.model_copy(update={"guest": run.guest.model_copy(update={"spec": spec})})])
    assert (judged.before, judged.after) == (name, kernel)


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (0.05, "95 %"),
        (0.05 / 3, "98.3 %"),
        (0.001125 / 6, "99.981 %"),
        (0.00703 / 44, "99.984 %"),
        (1e-7, "99.99999 %"),
    ],
)
def test_no_interval_is_certain(error: float, level: str) -> None:
    assert percent(1 - error) == level


def test_a_host_that_spoils_times_is_a_doubt_about_times() -> None:
    """Under KVM, where a time is judged; emulated times and counters do not depend on it."""
    host = {"machine": "vm", "cpu": "EPYC", "cpus": "2", "nodes": "1", "cores": "2", "swap": "on"}
    timed = case(FALLING.model_copy(update={"metric": "system"}))

    def about_host(**more: Any) -> list[str]:
        return [doubt for doubt in told(experiment((9, 8, 9), (4, 5, 4), **more)) if "in order" in doubt]

    (doubt,) = about_host(of=timed, accel=Accel.KVM, host=host)
    assert doubt.startswith("the host was not in order for times: 4 nodes on 1 of the host: ")
    assert doubt.endswith(
        "vCPUs on 2 cores of the host; the guest is bound to none of its nodes and CPUs: --pin; swap is on:"
        " a guest's memory may be on a disk: swapoff -a"
    )
    assert about_host(of=timed, accel=Accel.TCG, host=host) == []
    assert about_host(of=case(), accel=Accel.KVM, host=host) == []
    assert about_host(of=timed, accel=Accel.KVM) == [], "older runs do not know"


def test_boots_on_other_parts_of_the_host_are_a_doubt_about_times() -> None:
    host = {"machine": "vm", "cpu": "EPYC", "cpus": "64", "nodes": "4", "cores": "64"}
    timed = case(FALLING.model_copy(update={"metric": "system"}))
    runs = experiment((9, 8, 9), (4, 5, 4), of=timed, accel=Accel.KVM, host=host)

    def bound(*nodes: tuple[int, ...]) -> list[str]:
        """The doubts when the boots are bound to these nodes."""
        each = [
            on_virtual_clock(run, clock=Clock.HOST, binding=Binding(nodes=some, vcpus=(0,), emulator=(1,)))
            for run, some in zip(runs, nodes, strict=True)
        ]
        return [doubt for doubt in told(each) if "in order" in doubt]

    assert bound(*[(0, 1)] * 3, *[(2, 3)] * 3) == []
    (doubt,) = bound(*[(0, 1)] * 5, (0, 0))
    assert doubt.endswith(": some boots were bound to its nodes otherwise than others")


def test_boots_that_were_taken_again_are_told() -> None:
    """Not as broken too, and they do not count."""
    runs = experiment(MANY, FEW)
    assert runs[0].place
    first = runs[0].model_copy(update={"id": "first", "error": "phase touch: other programs took 43%"})
    place = runs[0].place.model_copy(update={"instead_of": "first"})
    again = runs[0].model_copy(update={"place": place})
    line = (
        "boots taken again: 1 before, 0 after: other programs took more than 10% of the processor time that"
        " the guest asked for in first"
    )
    found = verdict.verdict([first, again, *runs[1:]])
    assert told([first, again, *runs[1:]]) == (line,)
    warned = first.model_copy(update={"console_warnings": ("[ 2.0] WARNING: mm/a.c",)})
    assert told([warned, again, *runs[1:]])[1].startswith("run first: 1 warnings on its console"), (
        "the kernel's warnings do not go with the boot"
    )
    assert (found.boots, found.answer) == ((3, 3), Answer.HOLDS)
    assert found.findings == verdict.verdict(runs).findings


def unmeasured(phase: PhaseResult) -> PhaseResult:
    """The phase, as one that prepares."""
    return phase.model_copy(update={"phase": phase.phase.model_copy(update={"measured": False})})


def running(run: Run, **facts: str) -> Run:
    """The run, on a kernel with these facts."""
    return run.model_copy(update={"kernel_facts": facts})


def on(before: dict[str, str], after: dict[str, str]) -> list[Run]:
    """An experiment whose arms have these facts."""
    return [
        running(run, **(before if run.place and run.place.arm is Arm.BEFORE else after))
        for run in experiment(MANY, FEW)
    ]


def test_kernels_that_differ_in_what_is_not_compared_are_a_doubt() -> None:
    same = {"compiler": "gcc 12.2.0", "THP": "madvise"}
    assert told(on(same, same)) == ()
    assert told(on({**same, "compiler": "gcc 12.2.0"}, {**same, "compiler": "gcc 13.1.0"})) == (
        "compiler: gcc 12.2.0 before, gcc 13.1.0 after",
    )
    assert told(on(same, {"compiler": "gcc 12.2.0"})) == ("THP: madvise before, not recorded after",)
    assert told(on(same, {})) == (), "older runs do not know"
    assert verdict.verdict(on(same, {"THP": "always"})).answer is Answer.HOLDS


def made_of(
    before: Sequence[float], after: Sequence[float], *, mib: int = 64, phase: int = 1
) -> tuple[str, ...]:
    """The doubts when so much of the anonymous memory of a phase was in huge pages, boot by boot."""
    runs, pages = list[Run](), mib * 256
    shares = {Arm.BEFORE: list(before), Arm.AFTER: list(after)}
    for run in experiment(MANY[: len(before)], FEW[: len(after)]):
        assert run.place
        memory = Memory(anonymous=pages, huge=round(pages * shares[run.place.arm].pop(0)))
        phases = list(run.phases)
        phases[phase] = phases[phase].model_copy(update={"memory": memory})
        runs.append(run.model_copy(update={"phases": tuple(phases)}))
    return told(runs)


def test_memory_in_huge_pages_under_one_kernel_alone_is_a_doubt() -> None:
    assert made_of((0.45, 0.45, 0.47), (0, 0.02, 0.01)) == (
        "huge pages in anonymous memory (work-1): 45% to 47% before, 0% to 2% after",
    )
    assert made_of((0, 0, 0), (1, 1, 1), phase=0) == (
        "huge pages in anonymous memory (work-0): 0% before, 100% after",
    )


def test_memory_that_is_alike_is_no_doubt() -> None:
    assert made_of((0.10, 0.12, 0.11), (0.19, 0.2, 0.2)) == (), "by less than 10 points"
    assert made_of((0.14, 0.3, 0.42), (0.33, 0.5, 0.6)) == (), "boots of both kernels overlap"
    assert made_of((0.3, 0.3, 0.3), (0, 0, 0), mib=20) == (), "a guest without work"


def test_boots_of_one_kernel_that_differ_are_a_doubt() -> None:
    first, *others = on({"THP": "always"}, {"THP": "always"})
    assert told([running(first, THP="never"), *others]) == (
        "THP: never in 1 of 3 boots and always in 2 of 3 boots before, always after",
    )


def test_a_doubt_names_the_options_that_differ() -> None:
    runs = on({"configuration": "1"}, {"configuration": "2"})
    assert told(runs) == (
        "configuration: not the same options: see kernel.config of e-00-before, e-01-after",
    )
    options = {"1": {"CONFIG_A": "y", "CONFIG_HZ": "250"}, "2": {"CONFIG_A": "y", "CONFIG_HZ": "1000"}}
    assert told(runs, configurations=options) == ("configuration: CONFIG_HZ: 250 before, 1000 after",)
    options["2"] |= {f"CONFIG_X{number}": "m" for number in range(3)}
    assert told(runs, configurations=options) == (
        "configuration: CONFIG_HZ: 250 before, 1000 after; CONFIG_X0: not set before, m after;"
        " CONFIG_X1: not set before, m after; 1 more option",
    )
    assert told(on({"configuration": "1", "THP": "never"}, {"THP": "never"})) == (
        "configuration: recorded before, not recorded after",
    )


def test_a_configuration_that_some_boots_lack() -> None:
    """The options of the others are compared all the same."""
    first, *others = on({"configuration": "1", "THP": "never"}, {"configuration": "2", "THP": "never"})
    options = {"1": {"CONFIG_A": "y"}, "2": {}}
    assert told([running(first, THP="never"), *others], configurations=options) == (
        "configuration: CONFIG_A: y before, not set after",
    )


@pytest.mark.parametrize(
    ("grades", "grade"),
    [
        ([(Answer.HOLDS, None), (Answer.HOLDS, None)], None),
        ([(Answer.HOLDS, None), (Answer.HOLDS, Grade.SIZE_OPEN)], Grade.SIZE_OPEN),
        ([(Answer.HOLDS, Grade.SIZE_OPEN), (Answer.CANNOT_TELL, None)], None),
        ([(Answer.HOLDS, Grade.SIZE_OPEN), (Answer.DOES_NOT_HOLD, Grade.SMALLER)], Grade.SMALLER),
        ([(Answer.DOES_NOT_HOLD, Grade.NO_CHANGE), (Answer.DOES_NOT_HOLD, Grade.SMALLER)], None),
        ([(Answer.DOES_NOT_HOLD, Grade.OTHER_WAY)] * 2, Grade.OTHER_WAY),
    ],
)
def test_the_grade_of_a_case(grades: Sequence[tuple[Answer, Grade | None]], grade: Grade | None) -> None:
    """One deciding finding with an open size is enough; failures have to agree."""
    (one,) = verdict.verdict(experiment(MANY, FEW)).findings
    findings = [one.model_copy(update={"answer": answer, "grade": known}) for answer, known in grades]
    aside = one.model_copy(
        update={"decides": False, "answer": Answer.DOES_NOT_HOLD, "grade": Grade.NO_CHANGE}
    )
    answer = verdict.overall(findings)
    assert verdict._grade(answer, [*findings, aside]) is grade


def test_a_verdict_has_a_grade() -> None:
    assert verdict.verdict(experiment(MANY, FEW)).words == "holds"
    assert verdict.verdict(experiment(MANY, MANY[::-1])).words == "does not hold: no change"
    assert verdict.verdict(experiment(FEW, MANY)).words == "does not hold: the other way"


def test_no_more_boots_for_a_ratio_that_is_0_in_some() -> None:
    """They would not make it clear."""
    of = case(FALLING.model_copy(update={"metric": "migrated_per_hint_fault"}))
    runs = [
        boot(arm, index, {"numa_hint_faults": 1000, "numa_pages_migrated": pages}, of=of)
        for arm, counts, order in (
            (Arm.BEFORE, (500, 600, 700), INTERLEAVED[0]),
            (Arm.AFTER, (0, 0, 4), INTERLEAVED[1]),
        )
        for pages, index in zip(counts, order, strict=False)
    ]
    found = verdict.verdict(runs)
    assert found.answer is Answer.CANNOT_TELL
    assert "is 0 in some boots after" in found.findings[0].reason
    assert verdict.enough(found)


def test_a_console_that_warns_is_a_doubt() -> None:
    runs = experiment(MANY, FEW)
    runs[4] = runs[4].model_copy(
        update={"console_warnings": ("watchdog: BUG: soft lockup", "WARNING: CPU: 0")}
    )
    found = verdict.verdict(runs)
    assert found.answer is Answer.HOLDS
    assert (
        f"run {runs[4].id}: 2 warnings on its console, the first: watchdog: BUG: soft lockup" in found.doubts
    )


def test_absent_in_some_boots() -> None:
    runs = [*experiment(MANY, FEW), boot(Arm.AFTER, 9, {"pgfault": 1})]
    found = verdict.verdict(runs)
    assert (found.answer, found.boots, len(found.findings[0].after)) == (Answer.HOLDS, (3, 4), 3)
    assert told(runs) == ("numa_pte_updates (work-*) is absent from 1 of 4 boots after",)


@pytest.mark.parametrize(
    "wish",
    [
        FALLING.model_copy(update={"metric": "numa_hint_faults"}),
        FALLING.model_copy(update={"phase": "repair"}),
    ],
)
def test_absent_altogether(wish: Expectation) -> None:
    found = verdict.verdict(experiment(MANY, FEW, of=case(FALLING, wish)))
    assert [one.answer for one in found.findings] == [Answer.HOLDS, Answer.CANNOT_TELL]
    assert found.answer is Answer.CANNOT_TELL, "all that decides has to hold"
    assert "is absent from every boot before and after" in found.findings[1].reason


def test_a_metric_that_can_be_none() -> None:
    with pytest.raises(InputError, match="metric 'numa-pte'"):
        verdict.verdict(experiment(MANY, FEW, of=case(FALLING.model_copy(update={"metric": "numa-pte"}))))


def test_times_are_no_evidence_under_emulation() -> None:
    """System time that falls to a tenth in every boot is shown under emulation; under KVM it decides."""
    timed = case(FALLING.model_copy(update={"metric": "system"}))
    for accel, answer in ((Accel.TCG, Answer.CANNOT_TELL), (Accel.KVM, Answer.HOLDS)):
        runs = [
            run
            for counts in zip(MANY, FEW, strict=True)
            for run in experiment(counts[:1], counts[1:], of=timed, accel=accel)
        ]
        runs = [run.model_copy(update={"id": f"{run.id}{i}"}) for i, run in enumerate(runs)]
        slow = [
            (
                run.model_copy(
                    update={
                        "phases": tuple(
                            result.model_copy(update={"system": 10 + i / 10}) for result in run.phases
                        )
                    }
                )
                if run.place and run.place.arm is Arm.BEFORE
                else run
            )
            for i, run in enumerate(runs)
        ]
        found = verdict.verdict(slow)
        one = found.findings[0]
        assert (found.answer, one.answer, one.decides) == (answer, answer, accel is Accel.KVM)
        assert one.ratio == pytest.approx(0.098, abs=0.001)
        assert ("emulated" in one.reason) == (accel is Accel.TCG)
        doubts = [line for line in found.doubts if line.startswith("one build of each kernel: ")]
        assert len(doubts) == (accel is Accel.KVM), "a time that decides may be the layout's"
        assert all(line.endswith("(system)") for line in doubts)


def test_counts_do_not_doubt_one_build() -> None:
    judged = verdict.verdict(experiment(MANY, FEW, accel=Accel.KVM))
    assert not [line for line in judged.doubts if "one build" in line]


def built(runs: list[Run], builds: int) -> list[Run]:
    """An experiment whose rounds take so many builds of each kernel in turn, each with a hash of its own."""
    made = []
    for run in runs:
        assert run.place
        number = 1 + run.place.boot // 2 % builds
        guest = run.guest.model_copy(update={"kernel_hash": f"{run.kernel}-{number}"})
        place = run.place.model_copy(update={"build": number})
        made.append(run.model_copy(update={"guest": guest, "place": place}))
    return made


def test_of_several_builds_each_is_one_sample_and_said() -> None:
    """Six boots of three builds are three samples: the mean of each build's boots."""
    judged = verdict.verdict(built(experiment((90, 100, 110) * 2, (9, 10, 11) * 2), 3))
    assert judged.answer is Answer.HOLDS
    assert (judged.findings[0].before, judged.findings[0].after) == ((90, 100, 110), (9, 10, 11))
    assert judged.boots == (6, 6)
    assert judged.varied.startswith("3 and 3 builds of the kernels, which differ in layout only: each is one")
    assert f"  {judged.varied}" in text.verdict(judged).splitlines()


def test_boots_of_two_builds_are_two_samples_and_cannot_tell() -> None:
    judged = verdict.verdict(built(experiment(MANY * 2, FEW * 2), 2))
    assert judged.answer is Answer.CANNOT_TELL
    assert "2 and 2 boots have it: 3 of each kernel are the least" in judged.findings[0].reason


def test_several_builds_take_the_doubt_of_one_away() -> None:
    timed = case(FALLING.model_copy(update={"metric": "elapsed", "by": 1}))
    one = experiment(MANY, FEW, of=timed, accel=Accel.KVM)
    assert [line for line in verdict.verdict(one).doubts if line.startswith("one build")]
    assert not [line for line in verdict.verdict(built(one, 3)).doubts if line.startswith("one build")]


def test_counts_of_builds_keep_the_scatter_that_counts_have() -> None:
    """A mean of counts is no whole number, and is still of counts: 0 in some boots can be judged."""
    runs = built(experiment((0, 3, 9, 6, 5, 8), (1, 0, 0, 2, 1, 0)), 3)
    assert "no count" not in verdict.verdict(runs).findings[0].reason
    runs = built(experiment((0, 3, 9, 0, 5, 8), (1, 0, 0, 2, 1, 0)), 3)
    assert "no count" not in verdict.verdict(runs).findings[0].reason


def test_a_build_that_changed_and_one_beside_several_are_refused() -> None:
    runs = built(experiment(MANY, FEW), 3)
    for run in [runs[0]]:
        assert run.place
        place = run.place.model_copy(update={"build": 2})
        with pytest.raises(InputError, match="kernel before, build: "):
            verdict.verdict([run.model_copy(update={"place": place}), *runs[1:]])
        place = run.place.model_copy(update={"build": 0})
        with pytest.raises(InputError, match="builds of each kernel: "):
            verdict.verdict([run.model_copy(update={"place": place}), *runs[1:]])


@pytest.mark.parametrize(
    ("cost", "answer", "reason"),
    [
        (Cost.WORK, Answer.HOLDS, "instruction time: after/before is 0."),
        (Cost.LOCALITY, Answer.CANNOT_TELL, "instruction time does not tell locality (decides nothing"),
        (Cost.WAITING, Answer.CANNOT_TELL, "instruction time does not tell waiting (decides nothing"),
        (None, Answer.CANNOT_TELL, "instruction time tells work alone"),
    ],
)
def test_on_a_virtual_clock_times_of_work_decide(cost: Cost | None, answer: Answer, reason: str) -> None:
    """System time counts the kernel's instructions there; where memory lies costs nothing."""
    timed = case(FALLING.model_copy(update={"metric": "system", "by": 1.5, "cost": cost}))
    runs = [
        on_virtual_clock(run).model_copy(
            update={
                "phases": tuple(
                    result.model_copy(
                        update={"system": (19 if run.place and run.place.arm is Arm.BEFORE else 10) + i / 9}
                    )
                    for result in run.phases
                )
            }
        )
        for i, run in enumerate(experiment(MANY, FEW, of=timed, accel=Accel.TCG))
    ]
    finding = verdict.verdict(runs).findings[0]
    assert (finding.answer, finding.decides) == (answer, cost is Cost.WORK)
    assert finding.reason.startswith(reason)


def seeded(run: Run, seed: int) -> Run:
    assert run.place
    return on_virtual_clock(run, seed=seed).model_copy(
        update={"place": run.place.model_copy(update={"seed": 7})}
    )


def test_what_was_varied_is_said() -> None:
    runs = experiment(MANY, FEW)
    assert verdict.verdict(runs).varied == ""
    judged = verdict.verdict([seeded(run, i) for i, run in enumerate(runs)])
    assert judged.varied == (
        "varied from boot to boot: what RDRAND gives, and the start of each measured phase (seed 7)"
    )
    assert not [doubt for doubt in judged.doubts if "seed" in doubt]
    placed = [
        seeded(run, i).model_copy(
            update={
                "kernel_address": f"ffffffff{0x80 + i:x}000000",
                "kernel_facts": {"free pages shuffled": "Y"},
            }
        )
        for i, run in enumerate(runs)
    ]
    assert verdict.verdict(placed).varied == (
        "varied from boot to boot: what RDRAND gives, where the kernel lies (KASLR), the order of free pages,"
        " and the start of each measured phase (seed 7)"
    )
    older = [run.model_copy(update={"kernel_address": ""}) for run in placed[1:]]
    assert "KASLR" not in verdict.verdict([placed[0], *older]).varied, "what is not known does not differ"


def test_boots_with_one_seed_are_one_sample() -> None:
    runs = experiment(MANY, FEW)
    judged = verdict.verdict([seeded(run, 1) for run in runs])
    assert f"{len(runs) - 2} of {len(runs)} boots are left out: another one of the kernel has their seed" in (
        judged.doubts
    )
    assert judged.boots == (1, 1)
    assert judged.answer is Answer.CANNOT_TELL
    apart = [seeded(run, i) for i, run in enumerate(runs)]
    again = verdict.verdict([*apart, apart[-1].model_copy(update={"id": "later"})])
    assert again.boots == (3, 3)
    assert "later" not in again.runs
    assert "1 of 7 boots are left out: another one of the kernel has their seed" in again.doubts
    other = apart[-1].model_copy(
        update={"id": "other", "guest": apart[-1].guest.model_copy(update={"image_id": "f" * 16})}
    )
    with pytest.raises(InputError, match="not comparable"):
        verdict.verdict([*apart, other])  # not left out without a word


def test_a_guest_from_a_ready_state_is_a_doubt() -> None:
    runs = experiment(MANY, FEW)
    assert not [doubt for doubt in verdict.verdict(runs).doubts if "ready state" in doubt]
    restored = [
        run.model_copy(update={"guest": run.guest.model_copy(update={"ready_state": "0" * 16})})
        for run in runs
    ]
    (doubt,) = [doubt for doubt in verdict.verdict(restored).doubts if "ready state" in doubt]
    assert doubt.startswith(
        f"{len(runs)} of {len(runs)} boots are none: their guests began from one saved state (ready state"
        f" {'0' * 16})"
    )


def test_prepared_disks_are_a_doubt_and_not_judged_with_others() -> None:
    runs = experiment(MANY, FEW)
    begun = [run.model_copy(update={"prepared": ("mkfs", "fsmark")}) for run in runs]
    (doubt,) = [doubt for doubt in verdict.verdict(begun).doubts if "prepared disks" in doubt]
    assert doubt.startswith(f"{len(runs)} of {len(runs)} boots began on prepared disks")
    assert doubt.endswith("what came out on these disks is one sample")
    with pytest.raises(InputError, match="prepared disks: mkfs fsmark"):
        verdict.verdict([begun[0], *runs[1:]])


def test_an_effect_of_other_releases_decides_nothing() -> None:
    of_its_day = FALLING.model_copy(update={"metric": "nr_vmscan_write", "releases": "3.*|4.*"})
    runs = [
        run.model_copy(
            update={
                "phases": tuple(
                    result.model_copy(
                        update={"counters": {"vmstat": {**result.counters["vmstat"], "nr_vmscan_write": 40}}}
                    )
                    for result in run.phases
                )
            }
        )
        for run in experiment(MANY, FEW, of=case(FALLING, of_its_day))
    ]
    found = verdict.verdict(runs)
    assert [(one.answer, one.decides) for one in found.findings] == [
        (Answer.HOLDS, True),
        (Answer.DOES_NOT_HOLD, False),
    ]
    assert found.answer is Answer.HOLDS
    assert "expected of releases 3.*|4.*, this is 6.1.0-numalab-6.1" in found.findings[1].reason
    old = verdict.verdict([run.model_copy(update={"release": "4.17.0"}) for run in runs])
    assert old.answer is Answer.DOES_NOT_HOLD


def test_nothing_decides() -> None:
    found = verdict.verdict(experiment(MANY, FEW, of=case(FALLING.model_copy(update={"decides": False}))))
    assert (found.answer, found.findings[0].answer, found.findings[0].q) == (
        Answer.CANNOT_TELL,
        Answer.HOLDS,
        None,
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accel": Accel.KVM}, "accelerator: "),
        ({"topology": "fakenuma"}, "topology: "),
        ({"size": SizeClass.FULL}, "size: "),
        ({"params": {"files": 11}}, "parameters: files=10 (5 runs), files=11 (1 run)"),
        ({"settings": {"kernel.numa_balancing": "0"}}, "settings: "),
        (
            {"host": {"machine": "big", "cpu": "EPYC", "cpus": "2"}},
            "host: machine=vm (5 runs), machine=big (1 run)",
        ),
        ({"inputs": {"w.py": "2"}}, "inputs: w.py=1 (5 runs), w.py=2 (1 run)"),
        ({"kernel_hash": "rebuilt"}, "kernel after, build: 6.1 (2 runs), rebuilt (1 run)"),
        ({"release": "6.1.1"}, "kernel after, release: 6.1.0-numalab-6.1 (2 runs), 6.1.1 (1 run)"),
        ({"of": case(FALLING.model_copy(update={"by": 3.0}))}, "case: "),
    ],
)
def test_unlike_runs_are_refused(changes: dict[str, Any], words: str) -> None:
    """Unless forced; then it is a doubt."""
    runs = [
        boot(Arm.AFTER, 1, {"numa_pte_updates": 98000}, experiment="other", **changes),
        *experiment(MANY, FEW[1:]),
    ]
    with pytest.raises(InputError, match="not comparable") as refused:
        verdict.verdict(runs)
    assert words in str(refused.value)
    assert str(refused.value).endswith("or force it")
    assert refused.value.field == "force"
    assert any(words in doubt for doubt in told(runs, force=True))


def test_runs_of_before_the_shared_header_was_recorded() -> None:
    """They may be judged with later ones, unless those differ in it."""
    runs = experiment(MANY, FEW)
    own = dict(runs[0].inputs)
    runs[1] = runs[1].model_copy(update={"inputs": {**own, "lab.h": "1"}})
    assert verdict.verdict(runs).answer is Answer.HOLDS
    runs[2] = runs[2].model_copy(update={"inputs": {**own, "lab.h": "2"}})
    with pytest.raises(InputError, match=r"inputs: lab\.h=1"):
        verdict.verdict(runs)


def test_another_image_is_refused() -> None:
    runs = experiment(MANY, FEW)
    runs[0] = runs[0].model_copy(update={"guest": runs[0].guest.model_copy(update={"image_id": "j"})})
    with pytest.raises(InputError, match="image: j"):
        verdict.verdict(runs)


def test_inputs_whose_imports_alone_changed_are_one() -> None:
    """A run from before the package had rooms may be judged with one from after."""
    both = next(iter(verdict.MOVED.items()))
    runs = [
        run.model_copy(update={"inputs": {"workload.py": both[number % 2]}})
        for number, run in enumerate(experiment(MANY, FEW))
    ]
    assert verdict.verdict(runs).answer is Answer.HOLDS


def test_moved_inputs_are_those_of_today() -> None:
    """An entry whose file has changed since is useless."""
    files = [paths.WORKLOAD_MODULE, *(paths.ROOT / paths.WORKLOADS).glob("*.py")]
    assert set(verdict.MOVED.values()) <= {hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_words_about_a_case_may_change() -> None:
    runs = [
        *experiment(MANY[:2], FEW[:2]),
        *experiment(MANY[2:], FEW[2:], of=case(notes="more"), experiment="f"),
    ]
    assert verdict.verdict(runs).answer is Answer.HOLDS
    assert told(runs) == ("the boots are of 2 experiments, not interleaved with each other",)


def test_what_broke_need_not_be_alike() -> None:
    stray = boot(Arm.AFTER, 9, {}, host={"machine": "big"}, error="panic")
    assert verdict.verdict([*experiment(MANY, FEW), stray]).answer is Answer.HOLDS


def test_forced_times_of_one_emulated_boot_are_no_evidence() -> None:
    timed = case(FALLING.model_copy(update={"metric": "system"}))
    runs = [
        *experiment(MANY, FEW, of=timed, accel=Accel.KVM),
        boot(Arm.AFTER, 9, {}, of=timed, accel=Accel.TCG),
    ]
    assert not verdict.verdict(runs, force=True).findings[0].decides


def test_runs_of_no_case() -> None:
    with pytest.raises(InputError, match="there is no run"):
        verdict.verdict([])
    with pytest.raises(InputError, match="belongs to no case"):
        verdict.verdict([run.model_copy(update={"place": None}) for run in experiment(MANY, FEW)])


def test_first_all_of_one_then_all_of_the_other_is_a_doubt() -> None:
    runs = [
        boot(arm, index, {"numa_pte_updates": count})
        for index, (arm, count) in enumerate([(Arm.BEFORE, n) for n in MANY] + [(Arm.AFTER, n) for n in FEW])
    ]
    (doubt,) = told(runs)
    assert "not interleaved" in doubt


def test_thresholds_inside_the_spread_are_a_doubt() -> None:
    same = case(before="6.1", after="6.1")
    wild = calibration.of(experiment((483000, 31000, 80000), (31000, 112000, 85000), of=same))
    calm = calibration.of(experiment(FEW, (99000, 97000, 98000), of=same))
    (doubt,) = verdict.verdict(experiment(MANY, FEW), calibration=wild).doubts
    assert "numa_pte_updates (work-*): 3 boots of one kernel differ by up to" in doubt
    assert verdict.verdict(experiment(MANY, FEW), calibration=calm).doubts == ()


@pytest.mark.parametrize(
    ("boots", "most", "plan"),
    [
        (3, 8, (3, 5, 8)),
        (2, 8, (3, 5, 8)),
        (4, 6, (4, 6)),
        (5, 5, (5,)),
        (8, 3, (8,)),
        (3, 20, (3, 5, 8, 12, 18, 20)),
    ],
)
def test_looks(boots: int, most: int, plan: tuple[int, ...]) -> None:
    assert verdict.looks(QUICK.model_copy(update={"boots": boots, "most_boots": most})) == plan


@pytest.mark.parametrize(("boots", "most"), [(3, 8), (5, 12), (3, 3), (4, 9)])
def test_later_looks_have_more_of_the_error(boots: int, most: int) -> None:
    """All of it together: a change is claimed in 2.5 % where there is none, however the looks share."""
    plan = verdict.looks(QUICK.model_copy(update={"boots": boots, "most_boots": most}))
    parts = verdict.errors(plan)
    assert sum(parts) == pytest.approx(expectation.ALPHA)
    assert parts == sorted(parts)
    assert parts[0] == pytest.approx(expectation.ALPHA * (plan[0] / plan[-1]) ** 2)


@pytest.mark.parametrize(
    ("boots", "looks", "part"),
    [
        (2, 3, 9 / 64),
        (3, 3, 9 / 64),
        (4, 3, 9 / 64),
        (5, 3, 16 / 64),
        (8, 3, 39 / 64),
        (3, 1, 1),
        (3, 2, 1 / 2),
    ],
)
def test_the_error_of_a_look(boots: int, looks: int, part: float) -> None:
    """That of the last planned look that its boots reach; other numbers of looks share it equally."""
    runs = experiment([*MANY, *MANY, *MANY][:boots], [*FEW, *FEW, *FEW], looks=looks)
    assert verdict.error(runs) == pytest.approx(expectation.ALPHA * part)
    broken = [
        run.model_copy(update={"error": "panic"}) if run.id.endswith("00-before") else run for run in runs
    ]
    fewer = verdict.error(experiment([*MANY, *MANY, *MANY][: boots - 1], [*FEW, *FEW, *FEW], looks=looks))
    assert verdict.error(broken) == pytest.approx(fewer), "a broken boot is none"


def test_the_looks_of_an_experiment_share_its_error() -> None:
    """p is 0.028: significant for one look, not for one of three."""
    weak = (100, 137, 82), (50, 66, 40)
    for looks, answer in ((1, Answer.HOLDS), (3, Answer.CANNOT_TELL)):
        found = verdict.verdict(
            experiment(*weak, of=case(FALLING.model_copy(update={"by": 1.5})), looks=looks)
        )
        assert found.answer is answer
        assert found.findings[0].p is not None
        assert expectation.ALPHA / 3 < found.findings[0].p < expectation.ALPHA


def test_going_on() -> None:
    plan = verdict.looks(QUICK)
    clear, unclear = (
        verdict.verdict(experiment(MANY, FEW)),
        verdict.verdict(experiment((483000, 31000, 80000), (31000, 112000, 85000))),
    )
    assert (verdict.enough(clear), verdict.next_look(clear, plan)) == (True, None)
    assert (verdict.enough(unclear), verdict.next_look(unclear, plan)) == (False, 5)
    begun = verdict.verdict(experiment(MANY[:2], FEW[:2]))
    assert (verdict.enough(begun), verdict.next_look(begun, plan)) == (False, 3)
    last = verdict.verdict(experiment((483000, 31000, 80000, 50000) * 2, (31000, 112000, 85000, 300000) * 2))
    assert (verdict.enough(last), verdict.next_look(last, plan)) == (False, None)


@pytest.mark.parametrize("known", [1, 2])
def test_a_ratio_that_few_boots_have_goes_on(known: int) -> None:
    """It has a value where something was divided by; more boots will have more of them."""
    of = case(FALLING.model_copy(update={"metric": "migrated_per_hint_fault"}))
    runs = [
        boot(arm, index, {"numa_hint_faults": faults, "numa_pages_migrated": pages}, of=of)
        for arm, all_faults, order in (
            (Arm.BEFORE, [1000] * 3, INTERLEAVED[0]),
            (Arm.AFTER, [1000] * known + [0] * (3 - known), INTERLEAVED[1]),
        )
        for faults, pages, index in zip(all_faults, (500, 600, 700), order, strict=False)
    ]
    found = verdict.verdict(runs)
    assert found.answer is Answer.CANNOT_TELL
    assert len(found.findings[0].after) == known
    assert (verdict.enough(found), verdict.next_look(found, verdict.looks(QUICK))) == (False, 5)


@pytest.mark.parametrize(
    "wish",
    [
        FALLING.model_copy(update={"metric": "numa_hint_faults"}),
        FALLING.model_copy(update={"metric": "system"}),
        FALLING.model_copy(update={"decides": False}),
    ],
)
def test_what_more_boots_cannot_clear(wish: Expectation) -> None:
    found = verdict.verdict(experiment(MANY, FEW, of=case(wish)))
    assert found.answer is Answer.CANNOT_TELL
    assert verdict.enough(found)


def over_hosts(hosts: dict[str, tuple[list[int], list[int]]], **facts: dict[str, str]) -> list[Run]:
    """Rounds of an experiment that was spread: by host the numbers of PTE updates, before and after."""
    runs: list[Run] = []
    for name, (before, after) in hosts.items():
        host = {"machine": name, "cpu": "EPYC", "cpus": "2", "qemu": "10.0.2"} | facts.get(name, {})
        for arm, count in [
            pair for two in zip(before, after, strict=False) for pair in zip(Arm, two, strict=True)
        ]:
            one = boot(arm, len(runs), {"numa_pte_updates": count}, host=host)
            assert one.place
            runs.append(one.model_copy(update={"place": one.place.model_copy(update={"block": name})}))
    return runs


SLOW_AND_FAST = {"slow": ([1000, 1100, 1050], [400, 430, 425]), "fast": ([4200, 4000], [1610, 1700])}


def test_hosts_of_a_spread_experiment_are_blocks() -> None:
    """Their levels differ by more than the kernels do: within hosts the effect is seen, and the verdict says so."""
    judged = verdict.verdict(over_hosts(SLOW_AND_FAST))
    assert judged.answer is Answer.HOLDS
    assert judged.boots == (5, 5)
    assert judged.varied == (
        "spread over 2 hosts, each a block: boots on fast 2 and 2, slow 3 and 3; the effect is that within hosts"
    )
    (finding,) = judged.findings
    assert "after/before within 2 hosts is 0.401 (" in finding.reason
    assert finding.drift is None
    told = text.verdict(judged)
    assert f"  {judged.varied}" in told.splitlines()
    pooled = [
        one.model_copy(
            update={"host": {"machine": "vm"}, "place": one.place.model_copy(update={"block": ""})}
        )
        for one in over_hosts(SLOW_AND_FAST)
        if one.place
    ]
    (one,) = verdict.verdict(pooled).findings
    assert one.drift, "as boots of one host, the step from one to the next looks like a drift"


def test_whole_numbers_are_told_from_others_on_several_hosts_too() -> None:
    runs = [
        run.model_copy(
            update={
                "phases": tuple(
                    one.model_copy(update={"output": {"share": 0.3 + number}}) for one in run.phases
                )
            }
        )
        for number, run in enumerate(over_hosts(SLOW_AND_FAST))
    ]
    before, after = ([run for run in runs if run.place and run.place.arm is arm] for arm in Arm)
    parts = metrics.placed(before, after, "output:share", "*")
    assert parts.hosts
    assert not parts.whole
    assert metrics.placed(before, after, "numa_pte_updates", "*").whole


def test_what_decides_for_these_runs() -> None:
    """Not a time under emulation, nor an effect that this release does not have."""
    other = FALLING.model_copy(update={"releases": "3.*"})
    time = FALLING.model_copy(update={"metric": "system"})
    shown = FALLING.model_copy(update={"decides": False})
    (run, *_) = experiment((100, 110), (105, 95), of=case(FALLING, other, time, shown))
    assert run.place
    assert run.emulated
    assert expectation.deciding(run.place.case, {run.release}, [run]) == (FALLING,)


def test_a_host_with_one_boot_is_no_block() -> None:
    runs = over_hosts({**SLOW_AND_FAST, "third": ([3000], [1500])})
    with pytest.raises(InputError, match="host third has 1 and 1 boots, and 2 of each kernel are the least"):
        verdict.verdict(runs)
    forced = verdict.verdict(runs, force=True)
    assert forced.answer is Answer.CANNOT_TELL
    assert (
        "third has 1 and 1 boots: a host of an experiment that is spread needs 2" in forced.findings[0].reason
    )


def test_too_few_boots_beyond_one_a_host_decide_nothing() -> None:
    """With two boots on each of two hosts, one host's two modes would claim effects in 6 % of the cases."""
    two = {name: (before[:2], after[:2]) for name, (before, after) in SLOW_AND_FAST.items()}
    with pytest.raises(InputError, match="2 hosts have 4 and 4 boots, and 5 of each kernel are the least"):
        verdict.verdict(over_hosts(two))
    forced = verdict.verdict(over_hosts(two), force=True)
    assert forced.answer is Answer.CANNOT_TELL
    assert "spread over hosts, 5 of each kernel that have it decide" in forced.findings[0].reason


def test_blocks_may_differ_in_cpu_but_not_in_the_kind_of_qemu_or_accelerator() -> None:
    other = {"fast": {"cpu": "Xeon", "qemu": "10.1.0"}}
    assert verdict.verdict(over_hosts(SLOW_AND_FAST, **other)).answer is Answer.HOLDS
    with pytest.raises(InputError, match=r"not comparable: QEMU: 10 \(6 runs\), 7 \(4 runs\)"):
        verdict.verdict(over_hosts(SLOW_AND_FAST, fast={"qemu": "7.2.0"}))
    runs = over_hosts(SLOW_AND_FAST)
    spec = runs[-1].guest.spec.model_copy(update={"accel": Accel.KVM})
    runs[-1] = runs[-1].model_copy(update={"guest": runs[-1].guest.model_copy(update={"spec": spec})})
    with pytest.raises(InputError, match="not comparable: accelerator"):
        verdict.verdict(runs)


def test_a_spread_experiment_is_not_judged_with_another() -> None:
    others = experiment([1000, 1100, 900], [500, 550, 450])
    with pytest.raises(InputError, match="not comparable: host"):
        verdict.verdict([*over_hosts(SLOW_AND_FAST), *others])


def test_a_metric_that_a_host_lacks() -> None:
    """One boot of a host without the counter leaves it one: the finding says which host."""
    for index, says in ((-1, "fast has 2 and 1 boots"), (0, "4 and 5 boots: spread over hosts, 5 of each")):
        runs = over_hosts(SLOW_AND_FAST)
        bare = tuple(phase.model_copy(update={"counters": {"vmstat": {}}}) for phase in runs[index].phases)
        runs[index] = runs[index].model_copy(update={"phases": bare})
        judged = verdict.verdict(runs)
        assert judged.answer is Answer.CANNOT_TELL
        assert says in judged.findings[0].reason
