# SPDX-License-Identifier: GPL-2.0-only
"""The facts of the machine that runs a guest: this one, or another over a fake ssh."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.core.errors import HostError
from numalab.core.process import Deadline
from numalab.host import machine
from numalab.host.remote import HERE, Where
from numalab.model.binding import HostNode
from numalab.model.units import KIB, MIB, parse_cpus

THERE = Where("me@there")


def test_this_machine(deadline: Deadline) -> None:
    """As earlier labs recorded them, so that older runs stay comparable."""
    facts = machine.read_facts(HERE, deadline)
    models = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    assert (facts["machine"], facts["kernel"], facts["cpus"]) == (
        platform.node(),
        platform.release(),
        str(os.cpu_count()),
    )
    assert facts["cpu"] == (models[0] if models else "")
    assert float(facts["load at start"]) >= 0
    assert machine.load(HERE, deadline) >= 0


def test_a_machine_elsewhere(program: Callable[[str, str], Path], tmp_path: Path, deadline: Deadline) -> None:
    """The machine's own facts, in one round trip, from programs on that machine."""
    there = tmp_path / "there"
    there.mkdir()
    for name, script in {
        "uname": 'case "$1" in -n) echo big;; -r) echo 6.12.1;; esac',
        "getconf": "echo 96",
    }.items():
        (there / name).write_text(f"#!/bin/sh\n{script}\n")
        (there / name).chmod(0o755)
    (tmp_path / "loadavg").write_text("7.25 1.00 1.00 1/2 3\n")
    program(
        "ssh",
        f"for word; do last=$word; done; echo x >> {tmp_path}/asked; PATH={there}:$PATH; export PATH; "
        f'exec sh -c "$(printf %s "$last" | sed "s#/proc/loadavg#{tmp_path}/loadavg#g")"',
    )
    facts = machine.read_facts(THERE, deadline)
    assert {key: facts[key] for key in ("machine", "kernel", "cpus", "load at start")} == {
        "machine": "big",
        "kernel": "6.12.1",
        "cpus": "96",
        "load at start": "7.25",
    }
    assert (tmp_path / "asked").read_text() == "x\n"
    assert machine.load(THERE, deadline) == 7.25


def test_the_machine_id_is_handed_on_as_a_hash(
    program: Callable[[str, str], Path], tmp_path: Path, deadline: Deadline
) -> None:
    own = tmp_path / "machine-id"
    own.write_text("0123456789abcdef0123456789abcdef\n")
    program(
        "ssh",
        f'for word; do last=$word; done; exec sh -c "$(printf %s "$last" | sed "s#/etc/machine-id#{own}#g")"',
    )
    first = machine.read_facts(THERE, deadline)["machine id"]
    assert len(first) == 16
    assert first not in own.read_text()
    own.write_text("f" * 32)
    assert machine.read_facts(THERE, deadline)["machine id"] != first
    own.write_text("")
    assert "machine id" not in machine.read_facts(THERE, deadline)


@pytest.mark.parametrize("answer", ["", "echo Welcome; exit", "echo machine=big; exit"])
def test_a_machine_that_does_not_tell(
    program: Callable[[str, str], Path], deadline: Deadline, answer: str
) -> None:
    program("ssh", answer or "exit 0")
    with pytest.raises(HostError, match=r"me@there: does not tell its .*kernel"):
        machine.read_facts(THERE, deadline)
    with pytest.raises(HostError, match="me@there: /proc/loadavg"):
        machine.load(THERE, deadline)


STAT = "cpu  100 20 30 1000 50 4 6 40 10 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n"


def test_cpu_time(program: Callable[[str, str], Path], tmp_path: Path, deadline: Deadline) -> None:
    """Steal is busy; guest is in user already; idle and iowait are not busy."""
    (tmp_path / "stat").write_text(STAT)
    program(
        "ssh",
        f'for word; do last=$word; done; exec sh -c "$(printf %s "$last" | sed "s#/proc/stat#{tmp_path}/stat#g")"',
    )
    assert machine.cpu_time(THERE, deadline) == machine.CpuTime(busy=2.0, total=12.5)
    here = machine.cpu_time(HERE, deadline)
    assert 0 < here.busy < here.total
    (tmp_path / "stat").write_text("cpu\n")
    with pytest.raises(HostError, match="me@there: /proc/stat has no CPU times"):
        machine.cpu_time(THERE, deadline)


def moments(
    busy: float, total: float, own: float, *, ran: float | None = None, waited: float = 0
) -> tuple[machine.Moment, machine.Moment]:
    """Two moments between which a machine and a guest used so much; without `ran`, vCPUs are not known."""

    def moment(part: float) -> machine.Moment:
        return machine.Moment(
            machine.CpuTime(1000 + part * busy, 5000 + part * total),
            70 + part * own,
            None if ran is None else machine.VcpuTime(60 + part * ran, 30 + part * waited),
        )

    return moment(0), moment(1)


@pytest.mark.parametrize(
    ("busy", "total", "own", "share"),
    [
        (80, 100, 60, 0.2),
        (60, 100, 60, 0),
        (59, 100, 60, 0),  # the two are not read at once
        (100, 100, 0, 1),
        (0, 0, 0, 0),
    ],
)
def test_share_of_others(busy: float, total: float, own: float, share: float) -> None:
    assert machine.share_of_others(*moments(busy, total, own)) == pytest.approx(share)


@pytest.mark.parametrize(
    ("busy", "own", "ran", "waited", "share"),
    [
        (100, 50, 50, 50, 0.5),  # two vCPUs and two other programs on two CPUs
        (100, 50, 50, 0, 0),  # one vCPU with a CPU of its own: the others keep the other CPU busy
        (100, 100, 95, 300, 0),  # eight vCPUs on two CPUs wait for each other alone
        (100, 90, 90, 300, 0.1),  # and for others, a little
        (99, 100, 95, 3, 0),  # the two are not read at once
        (0, 0, 0, 0, 0),
    ],
)
def test_share_kept(busy: float, own: float, ran: float, waited: float, share: float) -> None:
    begin, end = moments(busy, 100, own, ran=ran, waited=waited)
    assert machine.share_kept(begin, end) == pytest.approx(share)


def test_what_is_kept_is_not_always_known() -> None:
    unknown, known = moments(100, 100, 50), moments(100, 100, 50, ran=50, waited=50)
    assert machine.share_kept(*unknown) is None
    assert machine.share_kept(known[0], unknown[1]) is None, "QEMU ended"


def qemu(proc: Path, threads: dict[str, str]) -> Path:
    """QEMU 42 under `proc`, with threads of these names and their schedstat."""
    for number, (name, times) in enumerate(threads.items()):
        thread = proc / "42" / "task" / str(42 + number)
        thread.mkdir(parents=True)
        (thread / "comm").write_text(f"{name}\n")
        (thread / "schedstat").write_text(f"{times}\n")
    return proc


@pytest.mark.parametrize("names", [("CPU 0/TCG", "CPU 11/TCG"), ("CPU 0/KVM", "CPU 1/KVM")])
def test_vcpu_time(tmp_path: Path, names: tuple[str, str]) -> None:
    """Only the vCPUs' threads count, not those for I/O."""
    others = {"qemu-system-x86": "7000000000 9000000000 5", "IO mon_iothread": "1 1 1", "worker": "2 2 2"}
    proc = qemu(tmp_path, {**others, names[0]: "1500000000 250000000 9", names[1]: "2000000000 500000000 9"})
    assert machine.vcpu_time(42, proc) == machine.VcpuTime(ran=3.5, waited=0.75)


def test_vcpus_in_one_thread(tmp_path: Path) -> None:
    proc = qemu(tmp_path, {"qemu-system-x86": "7 9 5", "ALL CPUs/TCG": "1500000000 250000000 9"})
    assert machine.vcpu_time(42, proc) == machine.VcpuTime(ran=1.5, waited=0.25)


@pytest.mark.parametrize(
    "threads",
    [
        {},
        {"qemu-system-x86": "1500000000 250000000 9"},  # without debug-threads
        {"CPU 0/TCG": "0 0 0"},  # a kernel without CONFIG_SCHED_INFO
        {"CPU 0/TCG": ""},
    ],
)
def test_vcpus_that_are_not_known(tmp_path: Path, threads: dict[str, str]) -> None:
    assert machine.vcpu_time(42, qemu(tmp_path, threads)) is None


def test_this_machine_tells_schedstat(tmp_path: Path) -> None:
    """The form of the file, from this very process."""
    proc = qemu(tmp_path, {"CPU 0/TCG": Path("/proc/self/schedstat").read_text().strip()})
    found = machine.vcpu_time(42, proc)
    assert found is not None
    assert found.ran > 0


def test_what_spoils_times_is_read(tmp_path: Path, deadline: Deadline) -> None:
    """A host of two nodes, four cores with SMT, where everything is switched on."""
    files = {
        "sys/devices/system/cpu/smt/active": "1",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "0",
        "sys/kernel/mm/ksm/run": "1",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "proc/sys/kernel/numa_balancing": "1",
        "proc/swaps": "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2",
    }
    for cpu in range(8):
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu % 4},{cpu % 4 + 4}"
        files[f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"] = "powersave"
    for node in range(2):
        files[f"sys/devices/system/node/node{node}/cpulist"] = ""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")

    def order() -> dict[str, str]:
        facts = machine.read_facts(HERE, deadline, str(tmp_path))
        return {key: facts[key] for key in facts if key not in (*machine.NEEDED, "machine id", "microcode")}

    spoilt = {
        "nodes": "2",
        "cores": "4",
        "SMT": "on",
        "governor": "powersave",
        "turbo": "on",
        "KSM": "on",
        "THP": "madvise",
        "NUMA balancing": "on",
        "swap": "on",
    }
    assert order() == spoilt
    for name in ("smt/active", "intel_pstate/no_turbo"):
        (tmp_path / "sys/devices/system/cpu" / name).write_text("1\n" if "turbo" in name else "0\n")
    (tmp_path / "sys/kernel/mm/ksm/run").write_text("0\n")
    (tmp_path / "sys/kernel/mm/transparent_hugepage/enabled").write_text("always madvise [never]\n")
    (tmp_path / "proc/sys/kernel/numa_balancing").write_text("0\n")
    (tmp_path / "proc/swaps").write_text("Filename Type Size Used Priority\n")
    off = dict.fromkeys(("SMT", "turbo", "KSM", "NUMA balancing", "swap"), "off")
    assert order() == {**spoilt, **off, "THP": "never"}


def test_a_hosts_nodes(tmp_path: Path, deadline: Deadline) -> None:
    """Two nodes, the second without CPUs; what the page cache has counts as free, shared memory does not."""
    system = tmp_path / "sys/devices/system"
    for cpu in range(4):
        (siblings := system / f"cpu/cpu{cpu}/topology/thread_siblings_list").parent.mkdir(parents=True)
        siblings.write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    for node, cpus in enumerate(("0-3", "")):
        (pages := system / f"node/node{node}/hugepages/hugepages-2048kB/free_hugepages").parent.mkdir(
            parents=True
        )
        pages.write_text(f"{node + 5}\n")
        (system / f"node/node{node}/cpulist").write_text(f"{cpus}\n")
        (system / f"node/node{node}/meminfo").write_text(
            "".join(
                f"Node {node} {name}: {kib:10} kB\n"
                for name, kib in (
                    ("MemTotal", 999),
                    ("MemFree", 100),
                    ("FilePages", 50),
                    ("Shmem", 20),
                    ("SReclaimable", 3),
                )
            )
        )
    assert machine.host_nodes(HERE, deadline, str(tmp_path)) == [
        HostNode(number=0, memory=133 * KIB, cores=((0, 2), (1, 3)), huge_pages={2 * MIB: 5}),
        HostNode(number=1, memory=133 * KIB, cores=(), huge_pages={2 * MIB: 6}),
    ]
    assert machine.host_nodes(HERE, deadline, str(tmp_path / "sys")) == [], "a kernel without nodes"
    (system / "node/node0/cpulist").write_text("x\n")
    with pytest.raises(HostError, match="this machine: its nodes in /sys: 'x' is not a CPU list"):
        machine.host_nodes(HERE, deadline, str(tmp_path))


def test_the_nodes_of_this_machine(deadline: Deadline) -> None:
    """Its CPUs, each in one core of one node, where its kernel has nodes."""
    cpus = [cpu for node in machine.host_nodes(HERE, deadline) for core in node.cores for cpu in core]
    online = parse_cpus(Path("/sys/devices/system/cpu/online").read_text().strip())
    assert sorted(cpus) == (list(online) if Path("/sys/devices/system/node").exists() else [])


def test_a_machine_that_tells_nothing_of_what_spoils_times(tmp_path: Path, deadline: Deadline) -> None:
    facts = machine.read_facts(HERE, deadline, str(tmp_path))
    assert set(facts) - {"machine id", "microcode"} == set(machine.NEEDED)
