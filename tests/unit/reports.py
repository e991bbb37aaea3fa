# SPDX-License-Identifier: GPL-2.0-only
"""Runs for the report's tests, with values from issue 4's table of what emulation shows.

`everything` is a report with every kind of content; `put` writes a boot to disk as runner does.
Deterministic.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from numalab.model.case import Arm, Case, Place
from numalab.model.guest import Boot
from numalab.model.run import PhaseResult, Run
from numalab.model.topology import Topology
from numalab.model.values import Accel, Phase, SizeClass
from numalab.model.verdict import Answer, Finding, Grade, Verdict
from numalab.runs import record
from numalab.runs.samples import Sample
from tests.unit.makers import record_of, spec

HOSTILE = "<script>alert(1)</script><img src=http://example.invalid/x onerror=alert(2)>"
"""Possible contents of a kernel's name, a console line or a workload's output."""
HOST = {
    "machine": "vm",
    "kernel": "6.18.44",
    "cpu": "AMD EPYC",
    "cpus": "2",
    "qemu": "7.2.22",
    "libvirt": "9.0.0",
    "uri": "qemu:///session",
    "load at start": "1.42",
}
PAGES = 262144
"""The pages of a node of 1 GiB."""

Values = Mapping[str, Sequence[float]]
"""Counter of /proc/vmstat -> a value for each boot."""


def case(
    metric: str = "numa_pte_updates",
    *,
    phase: str = "touch",
    before: str = "6.1-slowscan-before",
    more: Sequence[Mapping[str, object]] = (),
    published: Sequence[str] = (),
) -> Case:
    """A case that expects one metric to fall by 2."""
    return Case.model_validate(
        {
            "description": "two threads share memory whose migration must fail",
            "source": "slowscan-lkml-2015.txt, Mel Gorman, March 7, 2015",
            "published": list(published),
            "workload": "migratefail",
            "before": before,
            "after": "6.1",
            "sizes": {"quick": {"source": "issue 4", "machines": [{"topology": "4socket"}], "minutes": 3}},
            "expect": [{"metric": metric, "phase": phase, "direction": "falls", "by": 2}, *more],
            "notes": "Local percent does not rise on 6.1: the few faults that are left are remote.",
        }
    )


def run(
    kernel: str,
    phases: Mapping[str, Mapping[str, float]],
    *,
    boot: int = 0,
    arm: Arm | None = Arm.BEFORE,
    of: Case | None = None,
    name: str = "migratefail",
    topology: str | Topology = "4socket",
    accel: Accel = Accel.TCG,
    error: str = "",
    warnings: tuple[str, ...] = (),
) -> Run:
    """A run whose phases have these vmstat counters, `output:NAME`, `trace:S:E`; arm None: no experiment."""
    results = [
        PhaseResult(
            phase=Phase(name="prepare", command="true", limit_seconds=60, measured=False),
            status=0,
            elapsed=2,
            user=1,
            system=1,
            counters={},
            guest_load=0,
            host_load=1,
        )
    ]
    for phase, values in phases.items():
        counted = {key: int(value) for key, value in values.items() if ":" not in key}
        traced = {
            key.removeprefix("trace:"): int(value)
            for key, value in values.items()
            if key.startswith("trace:")
        }
        results.append(
            PhaseResult(
                phase=Phase(name=phase, command=f"./{name}", limit_seconds=60),
                status=0,
                elapsed=12.1 + boot / 10,
                user=80.5 - boot,
                system=9.25 + boot,
                counters={"vmstat": counted, "trace": traced} if traced else {"vmstat": counted},
                output={
                    key.removeprefix("output:"): value
                    for key, value in values.items()
                    if key.startswith("output:")
                },
                guest_load=1,
                host_load=1,
            )
        )
    machine = spec(topology, accel=accel, boot=Boot(name=kernel, release=f"6.1.192-numalab-{kernel}"))
    reason = "no kernel boots under KVM here" if accel is Accel.TCG else ""
    guest = record_of(
        machine, image_id="f2dfea8bd1761e9d", kernel_hash="7f598247a4264b2f", accel_reason=reason
    )
    ident = f"20261121T15{boot:02}00-{name}-{machine.topology_name}-{'x' if '<' in kernel else kernel}-{arm or 'none'}-1"
    place = Place(case_name=name, case=of or case(), experiment="e1", arm=arm, boot=boot) if arm else None
    return Run(
        id=ident,
        workload=name,
        size=SizeClass.QUICK,
        params={"seconds": 12, "megabytes": 64},
        started=f"20261121T15{boot:02}00",
        host=HOST,
        guest=guest,
        release=machine.boot.release,
        cmdline="root=/dev/vda2 rw",
        settings={"vm.watermark_scale_factor": "1000", "scan_delay_ms": "100"},
        place=place,
        phases=tuple(results),
        error=error,
        console_warnings=warnings,
    )


def arms(
    of: Case,
    name: str,
    phase: str,
    before: Values,
    after: Values,
    *,
    topology: str = "4socket",
    accel: Accel = Accel.TCG,
) -> list[Run]:
    """An experiment: as many boots of each kernel as there are values, ABBA."""
    boots = len(next(iter(before.values())))
    order = [
        arm
        for pair in range(boots)
        for arm in ((Arm.BEFORE, Arm.AFTER) if pair % 2 == 0 else (Arm.AFTER, Arm.BEFORE))
    ]
    seen = {Arm.BEFORE: 0, Arm.AFTER: 0}
    found = []
    for boot, arm in enumerate(order):
        side = before if arm is Arm.BEFORE else after
        values = {key: column[seen[arm]] for key, column in side.items()}
        seen[arm] += 1
        found.append(
            run(
                of.before if arm is Arm.BEFORE else of.after,
                {phase: values},
                boot=boot,
                arm=arm,
                of=of,
                name=name,
                topology=topology,
                accel=accel,
            )
        )
    return found


def finding(
    of: Case,
    index: int,
    before: Sequence[float],
    after: Sequence[float],
    answer: Answer,
    ratio: tuple[float, float, float] | None,
    grade: Grade | None = None,
) -> Finding:
    """A judged expectation; `ratio` is (ratio, low, high)."""
    middle, low, high = ratio or (None, None, None)
    return Finding(
        expectation=of.expect[index],
        before=tuple(before),
        after=tuple(after),
        ratio=middle,
        low=low,
        high=high,
        p=0.0004 if ratio else None,
        q=0.0008 if ratio else None,
        detectable=1.31,
        boots_needed=9 if answer is Answer.CANNOT_TELL else None,
        boots_range=(5, 21) if answer is Answer.CANNOT_TELL else None,
        answer=answer,
        grade=grade,
        decides=of.expect[index].decides,
        reason={
            Answer.HOLDS: "the interval lies beyond what was asked for",
            Answer.CANNOT_TELL: "the interval spans both answers: more boots are needed",
            Answer.DOES_NOT_HOLD: "the interval excludes what was asked for",
        }[answer],
    )


def verdict(runs: Sequence[Run], findings: Sequence[Finding], answer: Answer, *doubts: str) -> Verdict:
    """A verdict for an experiment's runs."""
    place, guest = runs[0].place, runs[0].guest.spec
    assert place
    whole = [item.place.arm for item in runs if item.place and not item.error]
    return Verdict(
        case_name=place.case_name,
        size=runs[0].size,
        topology=guest.topology_name,
        accel=guest.accel.value,
        before=place.case.before,
        after=place.case.after,
        boots=(whole.count(Arm.BEFORE), whole.count(Arm.AFTER)),
        answer=answer,
        findings=tuple(findings),
        runs=tuple(item.id for item in runs),
        doubts=doubts,
    )


def samples(
    end: Mapping[str, float], *, nodes: int = 4, seconds: float = 12.0, seed: int = 0
) -> list[Sample]:
    """Samples of a phase: counters rise to `end`, pages move from the last node to node 0."""
    dice = random.Random(seed)
    found: list[Sample] = []
    bend = 0.6 + 0.4 * dice.random()
    for step in range(int(seconds * 4) + 1):
        part = step / (seconds * 4)
        bent = part**bend
        sample: dict[str, object] = {
            "t": round(step / 4 + dice.random() / 50, 3),
            "vmstat": {
                **{key: 1000 + int(value * bent) for key, value in end.items()},
                "nr_dirty": int(900 * abs(0.5 - part) + 50 * dice.random()),
                "nr_zone_idle": 7,
            },
        }
        for node in range(nodes):
            share = (
                0.08
                + 0.05 * dice.random()
                + (0.6 * part if node == 0 else 0.6 * (1 - part) if node == nodes - 1 else 0)
            )
            sample[f"node{node}.vmstat"] = {
                "nr_anon_pages": int(PAGES * share),
                "nr_file_pages": int(PAGES * (0.1 + 0.1 * part * node)),
                "nr_dirty": int(PAGES * 0.1 * part * node),
                "nr_writeback": 0,
            }
            sample[f"node{node}.Normal"] = {
                "present": PAGES,
                "nr_free_pages": int(PAGES * 0.1),
                "nr_zone_inactive_file": int(PAGES * 0.1 * part * node),
                "nr_zone_active_file": 100,
                "nr_zone_write_pending": int(PAGES * 0.1 * part * node),
            }
        found.append(sample)
    return found


def profile(flush: int) -> str:
    """Folded stacks after the seed's profile: `flush` of 1000 samples send IPIs."""
    fault = (
        "xfs_repair;async_page_fault;do_async_page_fault;trace_do_page_fault;__do_page_fault;handle_mm_fault"
    )
    migrate = f"{fault};migrate_misplaced_page;migrate_pages;try_to_unmap;rmap_walk;try_to_unmap_one;ptep_clear_flush;flush_tlb_page"
    ipi = f"{migrate};native_flush_tlb_others;smp_call_function_many;native_send_call_func_ipi;physflat_send_IPI_mask;default_send_IPI_mask_sequence_phys"
    rest = 1000 - flush
    return (
        "\n".join(
            [
                f"{ipi} {flush}",
                f"{fault};do_numa_page {rest // 5}",
                f"{fault};do_anonymous_page;clear_page_erms {rest // 5}",
                f"xfs_repair;main;phase3;process_ags;scan_ag {rest // 4}",
                f"xfs_repair;main;phase4;std::vector<int, A&>::push_back {rest // 5}",
                f"kswapd0;ret_from_fork;kthread;kswapd;shrink_node {rest // 20}",
                (
                    "swapper;secondary_startup;cpu_idle;native_safe_halt"
                    f" {rest - 3 * (rest // 5) - rest // 4 - rest // 20}"
                ),
            ]
        )
        + "\n"
    )


def put(
    item: Run,
    root: Path,
    *,
    sampled: Mapping[str, Sequence[Sample]] | None = None,
    folded: Mapping[str, str] | None = None,
    console: str = "",
) -> Path:
    """Write a run's folder under `root`, as runner does."""
    folder = root / item.id
    folder.mkdir(parents=True)
    for index, result in enumerate(item.phases):
        name = result.phase.name
        source = {"vmstat": result.counters.get("vmstat", {})}
        edges = {edge: {"/proc/vmstat": _lines(source["vmstat"], edge)} for edge in ("before", "after")}
        said = "".join(f"numalab: {key} {value}\n" for key, value in result.output.items()) + HOSTILE
        record.write_phase(folder, index, name, edges, {"stdout": f"{said}\n", "stderr": ""})
        place = record.phase_folder(folder, index, name)
        if found := (sampled or {}).get(name):
            (place / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in found))
        if text := (folded or {}).get(name):
            (place / "profile.folded").write_text(text)
    (folder / "console.log").write_text(console or "[    0.000000] Linux version 6.1.192\n")
    (folder / "topology.txt").write_text("requested observed\n")
    record.write(item, folder)
    return folder


def _lines(values: Mapping[str, int], edge: str) -> str:
    return "".join(f"{key} {1000 + (value if edge == 'after' else 0)}\n" for key, value in values.items())


def everything(root: Path) -> tuple[list[tuple[Run, Path]], list[Verdict]]:
    """Runs on disk and their verdicts: each answer, machines, broken and single boots, hostile text."""
    found: list[tuple[Run, Path]] = []
    verdicts = []
    for runs, judged in (_migratefail(), _xfsrepair(), _writeback(), _kernels(), _alone()):
        verdicts += [judged] if judged else []
        for index, item in enumerate(runs):
            measured = [
                result
                for result in item.phases
                if result.phase.name in ("touch", "repair-bhash") and item.place
            ]
            sampled = {
                result.phase.name: samples(result.counters["vmstat"], seed=index) for result in measured
            }
            fold = {
                result.phase.name: profile(560 - 20 * index if "before" in item.id else 40 + index)
                for result in measured
            }
            found.append(
                (item, put(item, root, sampled=sampled, folded=fold, console=f"[    1.0] {HOSTILE}\n" * 3))
            )
    return found, verdicts


def _migratefail() -> tuple[list[Run], Verdict]:
    of = case(
        more=[
            {"metric": "numa_hint_faults", "phase": "touch", "direction": "falls", "by": 2},
            {
                "metric": "hint_local_percent",
                "phase": "touch",
                "direction": "rises",
                "decides": False,
                "why": "rose in 2013; not on 6.1",
            },
        ]
    )
    before: dict[str, list[float]] = {
        "numa_pte_updates": [1557e3, 1721e3, 1590e3],
        "numa_hint_faults": [1430e3, 1602e3, 1467e3],
        "numa_hint_faults_local": [31e3, 40e3, 28e3],
        "numa_huge_pte_updates": [0, 0, 0],
        "numa_pages_migrated": [0, 12, 3],
        "pgfault": [1460e3, 1633e3, 1499e3],
        "pgmigrate_fail": [14e5, 16e5, 14.6e5],
        "numa_hit": [33e3, 31e3, 35e3],
        "pgmajfault": [12, 9, 14],
        "trace:migrate:mm_migrate_pages": [140e4, 160e4, 146e4],
        "output:touches": [9.1e6, 8.8e6, 9.4e6],
    }
    after = {
        key: [value * factor for value, factor in zip(column, (0.0631, 0.0569, 0.0616), strict=True)]
        for key, column in before.items()
    }
    runs = arms(of, "migratefail", "touch", before, after)
    findings = [
        finding(
            of,
            0,
            before["numa_pte_updates"],
            after["numa_pte_updates"],
            Answer.HOLDS,
            (0.0605, 0.0526, 0.0695),
        ),
        finding(
            of,
            1,
            before["numa_hint_faults"],
            after["numa_hint_faults"],
            Answer.HOLDS,
            (0.0605, 0.0511, 0.0716),
        ),
        finding(of, 2, [2.1, 2.5, 1.9], [2.0, 2.4, 2.1], Answer.DOES_NOT_HOLD, (1.01, 0.79, 1.29)),
    ]
    return runs, verdict(runs, findings, Answer.HOLDS)


def _xfsrepair() -> tuple[list[Run], Verdict]:
    phases = ("fsmark", "repair-defaults", "repair-agstride", "repair-bhash", "repair-agstride-bhash")
    second = {"metric": "migrated_per_hint_fault", "phase": "repair-*", "direction": "falls", "by": 1.2}
    of = case(
        "pgfault", phase="repair-*", before="6.1-all-before", more=[second], published=["slowscan-xfsrepair"]
    )
    found = []
    for boot, (arm, faults, part) in enumerate(
        zip(
            (Arm.BEFORE, Arm.AFTER, Arm.AFTER, Arm.BEFORE, Arm.BEFORE, Arm.AFTER),
            (96e3, 70e3, 76e3, 106e3, 99e3, 76e3),
            (0.90, 0.28, 0.42, 0.77, 0.91, 0.70),
            strict=True,
        )
    ):
        values = {
            phase: {
                "pgfault": faults / (6 - index),
                "pgmajfault": 9,
                "numa_hint_faults": faults / (9 - index),
                "numa_hint_faults_local": faults / (30 + index),
                "numa_pages_migrated": part * faults / (9 - index),
                "numa_pte_updates": faults / (5 - index / 2),
                "numa_huge_pte_updates": 0,
                "output:inodes_per_second": 2100 + 50 * boot,
            }
            for index, phase in enumerate(phases)
        }
        found.append(
            run(
                of.before if arm is Arm.BEFORE else of.after,
                values,
                boot=boot,
                arm=arm,
                of=of,
                name="xfsrepair",
            )
        )
    findings = [
        finding(
            of,
            0,
            (96e3, 106e3, 99e3),
            (70e3, 76e3, 76e3),
            Answer.DOES_NOT_HOLD,
            (0.737, 0.654, 0.831),
            Grade.SMALLER,
        ),
        finding(of, 1, (0.90, 0.77, 0.91), (0.28, 0.42, 0.70), Answer.CANNOT_TELL, (0.508, 0.201, 1.28)),
    ]
    return found, verdict(
        found,
        findings,
        Answer.CANNOT_TELL,
        "no calibration of xfsrepair on this machine: lab.py calibrate xfsrepair",
    )


def _writeback() -> tuple[list[Run], Verdict]:
    of = case("nr_vmscan_immediate_reclaim", phase="dd", before="6.1-dirtyspread-before")
    same: dict[str, list[float]] = {"pgsteal_kswapd": [1e6, 1e6, 1e6], "nr_vmscan_write": [0, 0, 0]}
    before = same | {
        "nr_vmscan_immediate_reclaim": [11413, 12957, 947],
        "pgscan_kswapd": [1.65e6, 1.43e6, 1.3e6],
    }
    after = same | {"nr_vmscan_immediate_reclaim": [0, 0, 0], "pgscan_kswapd": [1.001e6, 1.001e6, 1.001e6]}
    runs = arms(of, "writeback-usb", "dd", before, after, topology="uma-4g", accel=Accel.KVM)
    runs.append(
        run(
            "6.1",
            {"dd": {}},
            boot=6,
            arm=Arm.AFTER,
            of=of,
            name="writeback-usb",
            topology="uma-4g",
            accel=Accel.KVM,
            error=f"phase dd: exit status 1: {HOSTILE}",
            warnings=("watchdog: BUG: soft lockup - CPU#0 stuck for 26s!", HOSTILE),
        )
    )
    findings = [
        finding(
            of,
            0,
            before["nr_vmscan_immediate_reclaim"],
            after["nr_vmscan_immediate_reclaim"],
            Answer.HOLDS,
            (0.0, 0.0, 0.4),
        )
    ]
    return runs, verdict(runs, findings, Answer.HOLDS, "1 boot broke and was left out")


def _kernels() -> tuple[list[Run], None]:
    """Four kernels of a workload that belongs to no case, on fake nodes."""
    dice = random.Random(4)
    runs = [
        run(
            kernel,
            {
                "cg": {
                    "numa_pte_updates": level * (0.9 + 0.2 * dice.random()),
                    "numa_hint_faults": level / 2,
                    "numa_hint_faults_local": level / 5,
                }
            },
            boot=boot + 10 * index,
            arm=None,
            name="nas",
            topology="fakenuma",
        )
        for boot in range(3)
        for index, (kernel, level) in enumerate(
            (("6.1", 66e3), ("6.1-stagger-before", 126e3), ("6.12", 60e3), (HOSTILE, 61e3))
        )
    ]
    return runs, None


def _alone() -> tuple[list[Run], None]:
    """A single boot of a single kernel on two tiers."""
    return [
        run("debian", {"touch": {"numa_pte_updates": 4242}}, arm=None, name="remote", topology="tiers")
    ], None
