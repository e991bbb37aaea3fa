# SPDX-License-Identifier: GPL-2.0-only
"""Sections of a report: 1, 2 and 4 kernels, one boot, broken runs, no samples, different machines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.model.values import Accel
from numalab.model.verdict import Answer, Verdict
from numalab.report import reference, section_charts, sections
from numalab.report.section_charts import MeasuredBoot
from numalab.report.sections import Known, Section
from numalab.runs.profile import Stacks
from numalab.runs.samples import Sample
from tests.unit.reports import case, finding, run, samples, verdict

TOUCH = {
    "touch": {
        "numa_pte_updates": 1000.0,
        "numa_hint_faults": 500.0,
        "numa_hint_faults_local": 0.0,
        "numa_pages_migrated": 0.0,
    }
}


def boot(item: Run, *, sampled: Sequence[Sample] = (), stacks: Stacks | None = None) -> MeasuredBoot:
    return MeasuredBoot(
        run=item,
        samples={"touch": sampled} if sampled else {},
        stacks={"touch": stacks} if stacks else {},
        number=item.place.boot + 1 if item.place else 1,
    )


def build(*boots: MeasuredBoot, verdicts: Sequence[Verdict] = ()) -> list[Section]:
    return sections.build(boots, verdicts, Known())


def pair(boots: int = 3) -> list[Run]:
    return [
        run(arm_kernel, TOUCH, boot=index * 2 + (arm is Arm.AFTER), arm=arm)
        for index in range(boots)
        for arm, arm_kernel in ((Arm.AFTER, "6.1"), (Arm.BEFORE, "6.1-slowscan-before"))
    ]


def titles(section: Section) -> list[str]:
    return [plot.title for group in section.metrics.groups for plot in group.plots]


def test_before_is_the_first_kernel() -> None:
    (section,) = build(*map(boot, pair()))
    assert [(key.name, key.boots) for key in section.keys] == [("6.1-slowscan-before", 3), ("6.1", 3)]
    assert len({(key.colour, key.sign, key.dashes) for key in section.keys}) == 2


def test_a_baseline_that_is_asked_for_comes_first() -> None:
    (section,) = sections.build([boot(item) for item in pair()], [], Known(baseline="6.1"))
    assert section.keys[0].name == section.tables[0].columns[0] == "6.1"


def test_what_cannot_stand_together_does_not() -> None:
    found = build(
        boot(run("6.1", TOUCH)),
        boot(run("6.1", TOUCH, boot=1, accel=Accel.KVM)),
        boot(run("6.1", TOUCH, boot=2, topology="uma-4g")),
        boot(run("6.1", TOUCH, boot=3, name="other")),
        boot(run("6.1", TOUCH, boot=4, arm=None)),
        boot(run("6.12", TOUCH, boot=5)),
    )
    assert [len(section.boots) for section in found] == [2, 1, 1, 1, 1]
    assert [bool(section.caveat) for section in found] == [True, False, True, True, True]


@pytest.mark.parametrize("kernels", [1, 4, 9])
def test_any_number_of_kernels(kernels: int) -> None:
    """With more kernels than colours, the colours repeat."""
    (section,) = build(*(boot(run(f"6.{index}", TOUCH, arm=None, boot=index)) for index in range(kernels)))
    assert [key.name for key in section.keys] == [f"6.{index}" for index in range(kernels)]
    assert len(section.metrics.groups[0].plots[0].table.rows) == kernels
    assert section.case is None
    assert not section.verdicts


def test_a_against_a_has_two_sides() -> None:
    (section,) = build(
        boot(run("6.1", TOUCH, arm=Arm.BEFORE)), boot(run("6.1", TOUCH, arm=Arm.AFTER, boot=1))
    )
    assert len(section.keys) == 2


def test_broken_runs_are_evidence_and_no_data() -> None:
    good, bad = (
        run("6.1", TOUCH),
        run(
            "6.1",
            {"touch": {"numa_pte_updates": 10**9}},
            boot=1,
            error="hung",
            warnings=("BUG: soft lockup",),
        ),
    )
    (section,) = build(boot(good), boot(bad, sampled=samples({"pgfault": 5}), stacks={("a",): 1}))
    assert len(section.boots) == 2
    assert {
        row[5]
        for group in section.metrics.groups
        for plot in group.plots
        for row in plot.table.rows
        if plot.title == "NUMA base PTE updates"
    } == {"1000"}
    assert not section.over_time
    assert not section.profiles
    (only,) = build(boot(bad))
    assert not only.metrics.groups
    assert not only.tables
    assert [(key.name, key.boots) for key in only.keys] == [("6.1", 0)]


def test_judged_metrics_come_first_and_once() -> None:
    (section,) = build(*map(boot, pair()))
    assert section.metrics.groups[0].title == section_charts.JUDGED
    assert titles(section)[0] == "NUMA base PTE updates"
    assert titles(section).count("NUMA base PTE updates") == 1


def test_a_pattern_over_several_phases_is_another_plot() -> None:
    of = case(phase="repair-*")
    phases = {name: {"numa_pte_updates": 10.0} for name in ("repair-a", "repair-b")}
    (section,) = build(boot(run("6.1", phases, of=of)))
    rows = [
        plot.table.rows
        for group in section.metrics.groups
        for plot in group.plots
        if plot.title == "NUMA base PTE updates"
    ]
    assert [[(row[0], row[3]) for row in table] for table in rows] == [
        [("repair-*", "20")],
        [("repair-a", "10"), ("repair-b", "10")],
    ]


def test_absent_is_told_apart_from_zero() -> None:
    (section,) = build(boot(run("6.1", TOUCH)))
    assert "numa_pages_migrated" in section.metrics.zero
    assert "numa_pages_migrated" not in section.metrics.absent
    assert "nr_vmscan_write" in section.metrics.absent
    assert "nr_vmscan_write" not in section.metrics.zero
    assert not {"NUMA pages migrated", "nr_vmscan_write"} & set(titles(section))


def test_a_judged_one_that_is_drawn_for_another_phase() -> None:
    """It is not "not measured": its own phase did not run."""
    (section,) = build(boot(run("6.1", TOUCH, of=case("numa_pte_updates", phase="dd"))))
    assert "NUMA base PTE updates" in titles(section)
    assert "numa_pte_updates (dd)" in section.metrics.absent
    assert "numa_pte_updates" not in section.metrics.absent


def test_zero_is_drawn_where_it_is_judged() -> None:
    (section,) = build(boot(run("6.1", TOUCH, of=case("numa_pages_migrated"))))
    assert titles(section)[0] == "NUMA pages migrated"


def test_times_under_emulation_are_said_to_be_none() -> None:
    for accel, said in ((Accel.TCG, True), (Accel.KVM, False)):
        (section,) = build(boot(run("6.1", TOUCH, accel=accel)))
        about = {plot.title: plot.about for group in section.metrics.groups for plot in group.plots}
        assert ("emulated" in about["elapsed"]) is said
        assert ("emulated" in about["system_percent"]) is said
        assert "emulated" not in about["NUMA hint faults"]


def test_tracepoints_and_the_workloads_own_numbers() -> None:
    (section,) = build(
        boot(run("6.1", {"touch": {"trace:migrate:mm_migrate_pages": 7, "output:touches": 9}}))
    )
    assert {"trace:migrate:mm_migrate_pages", "output:touches"} <= set(titles(section))


def test_samples_become_lines_and_maps_of_the_same_scale() -> None:
    boots = [
        boot(item, sampled=samples({"numa_pte_updates": 10.0 ** (index + 2)}, seed=index))
        for index, item in enumerate(pair(1))
    ]
    (section,) = build(*boots)
    lines, zones, maps = section.over_time
    assert [plot.title for plot in lines.plots] == ["NUMA base PTE updates", "nr_dirty"]
    assert [plot.title for plot in zones.plots] == [
        *(
            f"node {node}, Normal: {what}"
            for node in (1, 2, 3)
            for what in ("inactive file", "dirty or under writeback")
        ),
        *(f"node {node}: dirty" for node in (1, 2, 3)),
    ], "node 0's file pages and the free pages do not change"
    assert [len(plot.figure["data"]) for plot in zones.plots] == [2] * 9, "a line for each boot"
    assert [plot.title for plot in maps.plots] == ["6.1-slowscan-before, boot 1", "6.1, boot 2"]
    assert len({plot.figure["data"][0]["zmax"] for plot in maps.plots}) == 1


def test_no_samples_no_section() -> None:
    assert not build(*map(boot, pair()))[0].over_time


def test_what_the_host_took_is_drawn_over_time() -> None:
    found = [{**sample, "host": {"kept": sample["t"] / 2}} for sample in samples({"pgfault": 50})]
    (group, *_) = build(boot(run("6.1", TOUCH), sampled=found))[0].over_time
    assert (group.plots[-1].title, group.plots[-1].unit) == (
        "taken from the vCPUs by others on the host",
        "s",
    )


def test_samples_without_nodes() -> None:
    """A kernel without nodeN/vmstat has lines over time, but no memory by node."""
    found = [
        {key: value for key, value in sample.items() if not key.startswith("node")}
        for sample in samples({"pgfault": 50})
    ]
    assert [group.title for group in build(boot(run("6.1", TOUCH), sampled=found))[0].over_time] == [
        "Phase touch"
    ]


def test_profiles_of_a_kernel_are_added_up() -> None:
    boots = [boot(item, stacks={("a", "b"): 3}) for item in pair(2)]
    (group,) = build(*boots)[0].profiles
    assert [(plot.title, plot.unit) for plot in group.plots] == [
        ("6.1-slowscan-before, 2 boots", "6 samples by cpu-clock"),
        ("6.1, 2 boots", "6 samples by cpu-clock"),
    ]


def test_a_verdict_goes_where_its_runs_are() -> None:
    mine, other = pair(), [run("6.1", TOUCH, name="other", boot=index) for index in range(2)]
    judged = verdict(
        mine, [finding(case(), 0, [9], [1], Answer.HOLDS, (0.1, 0.05, 0.2))], Answer.HOLDS, "a doubt"
    )
    first, second = build(*map(boot, [*mine, *other]), verdicts=[judged])
    assert first.verdicts == [judged]
    assert first.doubts == ["a doubt"]
    assert len(first.effects) == 1
    assert not second.verdicts


def test_a_verdict_without_a_whole_boot_is_not_lost() -> None:
    broken = [item.model_copy(update={"error": "hung"}) for item in pair(1)]
    judged = verdict(broken, [], Answer.CANNOT_TELL, "2 boots broke").model_copy(update={"runs": ()})
    other = run("6.1", TOUCH, name="other", boot=5)
    first, second = build(*map(boot, [*broken, other]), verdicts=[judged])
    assert first.verdicts == [judged]
    assert not second.verdicts


def test_runs_that_differ_are_doubted() -> None:
    one, two = (
        run("6.1", TOUCH),
        run("6.12", TOUCH, boot=1).model_copy(update={"settings": {"scan_delay_ms": "1000"}}),
    )
    (section,) = build(boot(one), boot(two))
    assert len(section.doubts) == 1
    assert section.doubts[0].startswith("these runs differ in settings")


def test_published_effects_stand_beside_ours() -> None:
    of = case(published=["slowscan-xfsrepair", "long-gone"])
    runs = [
        run(kernel, {"mmtests-repair": {"numa_hit": count}}, boot=index, arm=arm, of=of)
        for index, (kernel, arm, count) in enumerate(
            (("6.1", Arm.AFTER, 90), ("6.1-slowscan-before", Arm.BEFORE, 100)) * 2
        )
    ]
    (section,) = sections.build(
        [*map(boot, runs)], [], Known(references={"slowscan-xfsrepair": reference.load("slowscan-xfsrepair")})
    )
    (table,) = section.published
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["Amean syst-xfsrepair"][0] == "-45.83%"
    assert rows["Amean syst-xfsrepair"][-1] == "emulated", "a time is no evidence here"
    assert rows["NUMA alloc hit"][:2] == ("-16.57%", "-10.00%")
    assert "Mel Gorman" in table.caption
    assert "6.1-slowscan-before to 6.1" in table.caption
    assert section.doubts == ["not set beside reference/long-gone.yml: this checkout has no such table"]


def test_facts_are_told_once() -> None:
    one = run("6.1", TOUCH)
    two = run("6.1", TOUCH, boot=1).model_copy(update={"host": one.host | {"machine": "other"}})
    facts = dict(sections.facts([one, one, two]))
    assert facts["Host"] == [
        "machine vm, cpu AMD EPYC, cpus 2, kernel 6.18.44",
        "machine other, cpu AMD EPYC, cpus 2, kernel 6.18.44",
    ]
    assert facts["Image"] == ["debian12 f2dfea8bd1761e9d"]
    assert facts["Accelerator"] == ["tcg: no kernel boots under KVM here"]
    assert facts["Disks"] == ["500TB 500TiB, virtio"]
    assert facts["Settings"] == ["scan_delay_ms 100, vm.watermark_scale_factor 1000"]
    assert not {"Seed", "At a time"} & facts.keys()
    seeded = [
        item.model_copy(update={"place": item.place.model_copy(update={"seed": 7, "side_by_side": 2})})
        for item in pair()
        if item.place
    ]
    facts = dict(sections.facts(seeded))
    assert (facts["Seed"], facts["At a time"]) == (["7"], ["2 at most"])


def test_asked_in_words() -> None:
    of = case(
        more=[
            {"metric": "a", "phase": "p", "direction": "rises"},
            {"metric": "b", "phase": "p", "direction": "falls", "by": 3, "to": 0},
        ]
    )
    assert [sections.expected_change(one) for one in of.expect] == [
        "falls, by 2 or more",
        "rises",
        "falls, by 3 or more, to 0 or less",
    ]
    local = of.expect[0].model_copy(update={"metric": "hint_local_percent"})
    assert sections.expected_change(local) == "falls, by 2 or more in odds"


def test_what_does_not_hold_stands_first() -> None:
    of = case(
        more=[{"metric": metric, "phase": "p", "direction": "falls"} for metric in ("a", "b")]
        + [{"metric": "c", "phase": "p", "direction": "falls", "decides": False}]
    )
    answers = (Answer.HOLDS, Answer.CANNOT_TELL, Answer.DOES_NOT_HOLD, Answer.HOLDS)
    judged = verdict(
        pair(),
        [finding(of, index, [1], [1], answer, None) for index, answer in enumerate(answers)],
        Answer.DOES_NOT_HOLD,
    )
    assert [one.expectation.metric for one in sections.deciding(judged)] == ["b", "a", "numa_pte_updates"]
