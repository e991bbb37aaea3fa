# SPDX-License-Identifier: GPL-2.0-only
"""Runs that differ only in their kernel may be compared; other differences are listed."""

from __future__ import annotations

from itertools import permutations

import pytest

from numalab.guest.slow_disks import timed
from numalab.model import topology
from numalab.model.catalog import topology as shape
from numalab.model.guest import Boot, DiskFile
from numalab.model.run import PhaseResult, Run
from numalab.model.units import GIB
from numalab.model.values import Accel, Clock, Phase, SizeClass
from numalab.runs import compatibility
from tests.unit.makers import record_of, spec


def run(where: str = "4socket", accel: Accel = Accel.TCG, **changes: object) -> Run:
    made = Run(
        id="r",
        workload="xfsrepair",
        size=SizeClass.QUICK,
        params={"files": 1000, "loops": 5},
        started="",
        release="6.1",
        cmdline="",
        host={"machine": "vm", "cpu": "EPYC", "cpus": "2", "load at start": "1.9"},
        guest=record_of(spec(where, accel=accel)),
        settings={"kernel.numa_balancing": "1"},
    )
    return made.model_copy(update=changes)


def test_other_kernels_and_loads_are_the_same_machine() -> None:
    other = run(guest=record_of(spec("4socket", name="b", boot=Boot(name="6.1"))), release="6.2", id="s")
    assert (
        compatibility.differences(
            [
                run(),
                other,
                run(host={"machine": "vm", "cpu": "EPYC", "cpus": "2", "load at start": "0.1", "qemu": "9"}),
            ]
        )
        == ()
    )
    assert compatibility.differences([run()]) == compatibility.differences([]) == ()


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (run(workload="mkfs"), "workload: xfsrepair (2 runs), mkfs (1 run)"),
        (run(size=SizeClass.FULL), "size: quick (2 runs), full (1 run)"),
        (run(params={"files": 1000, "loops": 7}), "parameters: loops=5 (2 runs), loops=7 (1 run)"),
        (run(accel=Accel.KVM), "accelerator: tcg (2 runs), kvm (1 run)"),
        (
            run(guest=record_of(spec("4socket")).model_copy(update={"ready_state": "0" * 16})),
            "beginning: boot (2 runs), ready state (1 run)",
        ),
        (run(prepared=("mkfs", "fsmark")), "prepared disks: none (2 runs), mkfs fsmark (1 run)"),
        (run(settings={}), "settings: kernel.numa_balancing=1 (2 runs), kernel.numa_balancing=- (1 run)"),
        (
            run(host={"machine": "big", "cpu": "EPYC", "cpus": "2"}),
            "host: machine=vm (2 runs), machine=big (1 run)",
        ),
    ],
)
def test_what_differs_is_named(other: Run, line: str) -> None:
    assert compatibility.differences([run(), run(), other]) == (line,)


def test_a_slow_disk_by_another_clock_is_another_disk() -> None:
    """As an earlier lab had it on the virtual clock: held back by QEMU, by the host's."""
    slow = DiskFile(path="d.raw", format="raw", serial="data", direct=False, mibs_per_second=30)
    old, new = (
        run(guest=record_of(spec().model_copy(update={"disks": disks})))
        for disks in ((slow,), timed((slow,), Clock.VIRTUAL))
    )
    assert compatibility.differences([old, new, new]) == (
        "clock of slow disks: data=host (1 run), data=virtual (2 runs)",
    )


def test_another_shift_is_another_virtual_clock() -> None:
    """On the host's clock it means nothing."""

    def shifted(clock: Clock, shift: int) -> Run:
        return run(guest=record_of(spec().model_copy(update={"clock": clock, "icount_shift": shift})))

    virtual = [shifted(Clock.VIRTUAL, shift) for shift in (3, 5, 3)]
    assert compatibility.differences(virtual) == ("clock: shift=3 (2 runs), shift=5 (1 run)",)
    assert not compatibility.differences([shifted(Clock.HOST, shift) for shift in (3, 5)])
    assert compatibility.differences([shifted(Clock.HOST, 3), *virtual[:1]]) == (
        "clock: host shift=- (1 run), virtual shift=3 (1 run)",
    )


def test_a_topology_is_its_shape_not_its_name() -> None:
    small = spec(topology.scale(shape("4socket"), memory=4 * GIB, vcpus=None))
    assert small.topology_name == "mine"
    (line,) = compatibility.differences([run(), run(guest=record_of(small))])
    assert line.startswith("topology: 4socket memory=16GiB nodes=")
    assert "mine memory=4GiB" in line
    assert len(line) < 300


def test_of_many_facts_three_are_named() -> None:
    (line,) = compatibility.differences(
        [
            run(params={"a": [1], "b": 1, "c": 1, "d": 1}),
            run(params={"a": [2], "b": 2, "c": 2, "d": 1, "e": 5}),
        ]
    )
    assert line == "parameters: b=1 c=1 e=- … (1 run), b=2 c=2 e=5 … (1 run)"


def test_another_name_or_description_is_no_other_topology() -> None:
    renamed = spec(shape("4socket").model_copy(update={"description": "other words"}))
    assert renamed.topology_name != run().guest.spec.topology_name
    assert compatibility.differences([run(), run(guest=record_of(renamed))]) == ()


def test_all_that_differs_is_told() -> None:
    found = compatibility.differences([run(), run("fakenuma", Accel.KVM)])
    assert [line.partition(":")[0] for line in found] == ["accelerator", "topology"]


def on(ident: str | None, name: str = "vm") -> Run:
    """A run on a machine; None: from a lab that did not record the machine's id."""
    return run(
        host={"machine": name, "cpu": "EPYC", "cpus": "2", **({} if ident is None else {"machine id": ident})}
    )


@pytest.mark.parametrize(
    "runs", [[on(None), on(None)], [on("a"), on("a")], [on(None), on("a"), on("a"), on(None)]]
)
def test_older_runs_have_no_machine_id(runs: list[Run]) -> None:
    assert compatibility.differences(runs) == ()


@pytest.mark.parametrize(
    ("runs", "line"),
    [
        ([on("a"), on("b")], "host: machine id=a (1 run), machine id=b (1 run)"),
        ([on(None), on("a"), on("b")], "host: machine id=a (2 runs), machine id=b (1 run)"),
        (
            [on("a"), on(None, "big")],
            "host: machine=vm machine id=a (1 run), machine=big machine id=- (1 run)",
        ),
    ],
)
def test_two_machines_of_one_name(runs: list[Run], line: str) -> None:
    (told,) = compatibility.differences(runs)
    assert sorted(told.removeprefix("host: ").split(", ")) == sorted(line.removeprefix("host: ").split(", "))


def test_by_hypervisor() -> None:
    """Hosts in the order of their first runs; a run from before machine ids goes with one that has its own."""
    old, other = run(id="old"), run(id="other", host={"machine": "big", "cpu": "Xeon", "cpus": "64"})
    new = run(id="new", host={"machine": "vm", "cpu": "EPYC", "cpus": "2", "machine id": "0123456789abcdef"})
    groups = compatibility.by_hypervisor([old, other, new])
    assert [[one.id for one in group] for group in groups] == [["old", "new"], ["other"]]
    assert compatibility.by_hypervisor([]) == []


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_runs_of_three_ages_are_of_one_host(order: tuple[int, ...]) -> None:
    """microcode was recorded first, the machine id later."""
    facts = {"machine": "vm", "cpu": "EPYC", "cpus": "2"}
    old, middle, new = facts, {**facts, "microcode": "0x1"}, {**facts, "microcode": "0x1", "machine id": "a"}
    runs = [run(id=str(number), host=(old, middle, new)[number]) for number in order]
    assert len(compatibility.by_hypervisor(runs)) == 1
    assert compatibility.differences(runs) == ()


def test_a_hypervisor_in_words() -> None:
    facts = {"machine": "vm", "cpu": "EPYC", "cpus": "2", "machine id": "0123456789abcdef"}
    whole = run(host={**facts, "microcode": "0x1", "qemu": "10.0.2", "libvirt": "9.0.0"})
    assert compatibility.hypervisor([whole]) == (
        "vm, machine id 01234567, EPYC, microcode 0x1, QEMU 10.0.2, libvirt 9.0.0, tcg"
    )
    later = whole.model_copy(update={"host": {**whole.host, "qemu": "10.0.3"}})
    assert "QEMU 10.0.2 and 10.0.3" in compatibility.hypervisor([whole, later])
    assert compatibility.hypervisor([run(host={})]) == "a machine without a name, tcg"


def profiled(by: str) -> Run:
    """A run of a phase whose profile counts that."""
    phase = PhaseResult(
        phase=Phase(name="touch", command="true", limit_seconds=1),
        status=0,
        elapsed=1,
        user=1,
        system=1,
        counters={},
        guest_load=0,
        host_load=0,
        profiled=by,
    )
    return run(phases=(phase,))


def test_profiles_that_count_something_else_are_told_apart() -> None:
    """One counts instructions, one samples; a run without a profile goes with either."""
    runs = [run(), profiled("instructions"), profiled("cpu-clock")]
    assert compatibility.differences(runs[:2]) == compatibility.differences([runs[0], runs[2]]) == ()
    assert compatibility.differences(runs) == (
        "profile: counts=instructions (2 runs), counts=cpu-clock (1 run)",
    )
