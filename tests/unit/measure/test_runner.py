# SPDX-License-Identifier: GPL-2.0-only
"""Workloads measured on a fake guest: the whole record when they end well, evidence when they do not."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from numalab.analysis import verdict
from numalab.core import paths, state
from numalab.core.errors import DeadlinePassed, GuestError, GuestLost, HostError, InputError, KernelOops
from numalab.core.process import Deadline, Result
from numalab.guest.guest import Guest, alone_in
from numalab.host import accelerator, console, domain, machine
from numalab.kernel import kconfig
from numalab.measure import call_paths, kernel_facts, runner
from numalab.model import verification
from numalab.model.case import Arm, Place
from numalab.model.run import Memory, PhaseResult, Run
from numalab.model.values import Phase, SizeClass, jsonable
from numalab.runs import record
from tests.unit import makers, synthetic
from tests.unit.makers import FakeHost, FakeShell

NODE0 = "/sys/devices/system/node/node0"
TOLD = {
    "before": {"/proc/vmstat": "numa_hit 5\n", f"{NODE0}/vmstat": "nr_free_pages 9\n"},
    "after": {"/proc/vmstat": "numa_hit 8\n", f"{NODE0}/vmstat": "nr_free_pages 4\n"},
    "status": 0,
    "elapsed": 1.5,
    "user": 0.5,
    "system": 0.25,
    "stdout": "out\n",
    "stderr": "",
    "timed_out": False,
    "load": 1.0,
}
CONSOLE = "[ 1.0] fine\n[ 2.0] watchdog: BUG: soft lockup - CPU#0 stuck\n"
Says = Callable[[dict[str, Any]], str]


class Seen:
    """A Watcher that records its calls, or raises."""

    def __init__(self, breaks: BaseException | None = None) -> None:
        self.results: list[PhaseResult] = []
        self.moments: list[tuple[str, Mapping[str, Any]]] = []
        self.breaks = breaks

    def moving(self, phase: str, sample: Mapping[str, Any]) -> None:
        """See runner.Watcher."""
        self.moments.append((phase, sample))

    def ended(self, result: PhaseResult) -> None:
        """See runner.Watcher."""
        if self.breaks:
            raise self.breaks
        self.results.append(result)


class FakeGuest(FakeShell):
    """A guest that is up; `says` returns the agent's output for a phase's request."""

    def __init__(self, says: Says) -> None:
        super().__init__(self.answer)
        self.runner = says
        self.sent: list[dict[str, Any]] = []
        self.patience: list[float] = []
        self.stderr: list[str] = []
        self.copied: list[tuple[str, str]] = []
        self.kallsyms = "6.1\nffffffff81000000 T work\n"
        self.kernel = "6.1.0-56-amd64\nroot=x quiet\n"
        self.ssh = self
        self.record = makers.record("g")
        self.mark = domain.mark(self.record.spec)
        self.name, self.host, self.directory = "g", FakeHost(), Path(self.record.spec.directory)
        self.directory.mkdir()
        (self.directory / "domain.xml").write_text("<domain/>\n")
        self.console_log = self.directory / "console.log"
        self.console_log.write_text(CONSOLE)

    def execute(
        self,
        command: str,
        *,
        deadline: Deadline,
        input: bytes | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> Result:
        """See FakeShell; records the time limit, and passes on `stderr` of each phase."""
        self.patience.append(deadline.remaining())
        for line in self.stderr if tell else []:
            assert tell
            tell(line)
        return super().execute(command, deadline=deadline, input=input)

    def answer(self, command: str, input: bytes | None) -> tuple[int, str, str]:
        """The output of each command that runner uses."""
        if command.startswith("cat > "):
            assert input == paths.AGENT.read_bytes()
            return 0, "", ""
        if command == call_paths.KALLSYMS:
            return 0, self.kallsyms, ""
        if command.startswith("uname"):
            return 0, self.kernel, ""
        assert command == f"python3 {runner.INSIDE}"
        self.sent.append(json.loads(input or b""))
        return 0, self.runner(self.sent[-1]), ""

    def copy(self, *, source: str, target: str, deadline: Deadline) -> None:
        """See ssh.Ssh."""
        self.copied.append((source, target))

    def watch(self, *, last: bool = False) -> None:
        """See Guest."""
        console.Watch(self.console_log, self.name)(last=last)

    def verify(self, deadline: Deadline) -> list[verification.LayoutRow]:
        """Always as expected."""
        return [verification.LayoutRow("nodes", "0-3", "0-3", True)]

    def console_size(self) -> int:
        """The size of the log so far."""
        return self.console_log.stat().st_size

    def console_pieces(self, offset: int = 0) -> Iterator[str]:
        """The log so far, in one piece."""
        yield self.console_log.read_bytes()[offset:].decode()

    def real(self) -> Guest:
        """This, typed as a Guest."""
        return cast(Guest, self)


@pytest.fixture(autouse=True)
def qemu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "qemu_version", lambda *_: "7.2.22")
    facts = {"machine": "big", "kernel": "6.12", "cpu": "EPYC", "cpus": "96", "load at start": "7.25"}
    monkeypatch.setattr(machine, "read_facts", lambda *_: facts)
    monkeypatch.setattr(machine, "load", lambda *_: 42.5)
    times = itertools.count(step=100)
    monkeypatch.setattr(machine, "cpu_time", lambda *_: machine.CpuTime((now := next(times)) * 0.3, now))


def test_a_seed_puts_measured_phases_off() -> None:
    """By less than a second, each phase by its own part of it; preparation begins at once."""
    assert runner.agent_command(None, 1) == ["python3", runner.INSIDE]
    assert runner.agent_command(7, None) == ["python3", runner.INSIDE]
    commands = [runner.agent_command(seed, index)[2] for seed in (7, 8) for index in (1, 2)]
    delays = [float(command.split()[1].rstrip(";")) for command in commands]
    assert all(0 <= delay <= runner.START_SPREAD for delay in delays)
    assert len(set(delays)) == 4
    assert runner.agent_command(7, 1)[2] == commands[0]


def only_run() -> Path:
    """The folder of the only run."""
    folders = list(state.folder("runs").iterdir())
    assert len(folders) == 1
    return folders[0]


def test_there_are_workloads() -> None:
    assert {"xfsrepair", "remote"} <= set(runner.workloads())


@pytest.mark.parametrize("name", runner.workloads())
def test_workloads_load(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # test_specjbb tests SPECjbb without a copy; here it has one, so that its phases are checked too.
    (tmp_path / "specjbb.tar").touch()
    monkeypatch.setenv("LAB_SPECJBB", str(tmp_path / "specjbb.tar"))
    module = runner.load(name)
    assert module.__doc__
    assert set(module.PARAMS) == set(SizeClass)
    for size in SizeClass:
        phases = module.phases(module.PARAMS[size])
        assert all(isinstance(phase, Phase) for phase in phases)
        assert any(phase.measured for phase in phases)
        assert len({phase.name for phase in phases}) == len(phases)
        assert jsonable(module.PARAMS[size])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing", "there is no workload nothing: there are .*xfsrepair"),
        ("../plugin", "is not a name"),
        ("a b", "is not a name"),
    ],
)
def test_no_workload(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        runner.load(name)


def commands(size: SizeClass) -> dict[str, Phase]:
    module = runner.load("xfsrepair")
    return {phase.name: phase for phase in module.phases(module.PARAMS[size])}


@pytest.mark.parametrize(
    ("size", "words", "inodes"),
    [
        (SizeClass.FULL, "fs_mark -D 10000 -S0 -n 100000 -s 1 -L 32", 25_600_000),
        (SizeClass.QUICK, "fs_mark -D 100 -S0 -n 1000 -s 1 -L 5", 40_000),
    ],
)
def test_fs_mark(size: SizeClass, words: str, inodes: int) -> None:
    """slowscan-lkml-2015.txt, March 9: ./fs_mark -D 10000 -S0 -n 100000 -s 1 -L 32 -d /mnt/scratch/0 … -d
    /mnt/scratch/7."""
    targets = " ".join(f"-d /mnt/scratch/{i}" for i in range(8))
    assert commands(size)["fsmark"].command == f"{words} {targets}"
    assert runner.load("xfsrepair").PARAMS[size].inodes == inodes


@pytest.mark.parametrize("size", SizeClass)
def test_xfs_repair(size: SizeClass) -> None:
    found = commands(size)
    disk = "/dev/disk/by-id/virtio-500TB"
    assert [name for name in found if found[name].measured] == [
        "fsmark",
        "repair-defaults",
        "repair-agstride",
        "repair-bhash",
        "repair-agstride-bhash",
        "mmtests-fsmark",
        "mmtests-repair",
    ]
    # -vv: the statistics of its cache, as in the seed, which are read from the log afterwards.
    # bhash: the seed's at the full size, and one at the quick size whose cache recycles.
    bhash = {SizeClass.QUICK: 256, SizeClass.FULL: 101073}[size]
    assert [
        re.findall(r"xfs_repair (-vv .*?) >", found[f"repair-{name}"].command.replace("  ", " "))
        for name in ("defaults", "agstride", "bhash", "agstride-bhash")
    ] == [
        [f"-vv {disk}"],
        [f"-vv -o ag_stride=-1 {disk}"],
        [f"-vv -o bhash={bhash} {disk}"],
        [f"-vv -o ag_stride=-1,bhash={bhash} {disk}"],
    ]
    module = runner.load("xfsrepair")
    smaller = module.phases(runner.parameters(module, size, {"bhash": 256}))
    assert [phase.name for phase in smaller if "bhash=256 " in phase.command] == [
        "repair-bhash",
        "repair-agstride-bhash",
    ]
    # The seed's options, unless the kernel's era has others.
    assert found["mkfs"].command.startswith(f"mkfs.xfs -f ${{LAB_MKFS_XFS:--m crc=1,finobt=1}} -K {disk} ")
    assert "umount /mnt/scratch" in found["umount"].command
    order = list(found)
    for name in ("defaults", "agstride", "bhash", "agstride-bhash"):
        before = order[order.index(f"repair-{name}") - 1]
        assert "3 > /proc/sys/vm/drop_caches" in found[before].command, "each repair begins with cold caches"
    for name in ("check", "mmtests-check"):
        assert "xfs_repair -n " in found[name].command
    assert order[-1] == "mmtests-check"
    assert order[order.index("check") - 1] == "repair-agstride-bhash"


def test_phases_that_another_guest_has_done_are_left_out(deadline: Deadline) -> None:
    """Only where the disks are as they were prepared: a second run in a person's guest does them all."""
    guest = FakeGuest(lambda _: json.dumps(TOLD))
    guest.record = guest.record.model_copy(update={"prepared": synthetic.disks_of("a1")})
    whole, _ = runner.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline)
    options = runner.Options(prepared=True)
    run, _ = runner.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline, options)
    every = list(commands(SizeClass.QUICK))
    assert ([result.phase.name for result in whole.phases], whole.prepared) == (every, ())
    assert [result.phase.name for result in run.phases] == every[3:]
    assert run.prepared == ("mkfs", "fsmark", "umount") == tuple(every[:3])


def test_one_lab_at_a_time_measures_a_guest(deadline: Deadline) -> None:
    """Two would read each other's events from the guest's counters."""
    one = FakeGuest(lambda _: json.dumps(TOLD)).real()
    with (
        ThreadPoolExecutor(1) as other,
        alone_in(one),
        pytest.raises(GuestError, match=r"another lab\.py measures it"),
    ):
        other.submit(runner.run, one, "migratefail", SizeClass.QUICK, deadline).result()
    assert not any(state.folder("runs").iterdir())


def test_run(deadline: Deadline) -> None:
    guest, seen = FakeGuest(lambda _: json.dumps(TOLD)), Seen()
    run, folder = runner.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline, watcher=seen)
    phases = list(commands(SizeClass.QUICK).values())
    assert folder == only_run() == state.folder("runs") / run.id
    assert [result.phase for result in run.phases] == phases == [result.phase for result in seen.results]
    assert [(about["command"], about["limit"]) for about in guest.sent] == [
        (phase.command, phase.limit_seconds) for phase in phases
    ]
    assert guest.sent[0]["files"] == [
        "/proc/vmstat",
        "/sys/devices/system/node/node*/vmstat",
        "/sys/devices/system/node/node*/numastat",
        "/proc/meminfo",
    ]
    assert run.phases[1].counters == {"vmstat": {"numa_hit": 3}, "node0.vmstat": {"nr_free_pages": -5}}
    assert (run.phases[1].elapsed, run.phases[1].user, run.phases[1].system, run.phases[1].status) == (
        1.5,
        0.5,
        0.25,
        0,
    )
    assert (run.workload, run.size, run.release, run.cmdline, run.error) == (
        "xfsrepair",
        SizeClass.QUICK,
        "6.1.0-56-amd64",
        "root=x quiet",
        "",
    )
    assert run.params["files"] == 1000
    assert run.inputs == {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in (
            ("xfsrepair.py", paths.ROOT / paths.WORKLOADS / "xfsrepair.py"),
            ("inside.py", paths.AGENT),
            ("workload.py", paths.WORKLOAD_MODULE),
        )
    }, "stored runs have these names"
    assert run.console_warnings == ("[ 2.0] watchdog: BUG: soft lockup - CPU#0 stuck",)
    assert (run.host["qemu"], run.host["libvirt"], run.host["uri"]) == ("7.2.22", "9.0.0", FakeHost.uri)
    assert (run.host["machine"], run.host["load at start"], run.phases[0].host_load) == (
        "big",
        "7.25",
        42.5,
    ), "of the hypervisor, not of this machine"
    assert (run.phases[0].host_others, run.phases[0].host_kept) == (0.3, None), "its QEMU is not found"
    assert run.guest == guest.record
    assert json.loads((folder / "run.json").read_text())["guest"] == jsonable(guest.record)
    assert record.read(folder) == run
    assert {path.name for path in folder.iterdir()} == {
        "run.json",
        "domain.xml",
        "console.log",
        "topology.txt",
        "phases",
    }
    assert (folder / "console.log").read_text() == CONSOLE
    assert "nodes" in (folder / "topology.txt").read_text()
    assert len(list((folder / "phases").iterdir())) == len(phases)
    assert (folder / "phases" / "01-fsmark" / "after" / "node0.vmstat").read_text() == "nr_free_pages 4\n"


def test_what_the_host_kept_from_the_guest_is_recorded(
    deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 s of others are less than what the vCPUs waited for."""
    guest = FakeGuest(lambda _: json.dumps(TOLD))
    guest.host.forgotten[guest.mark.uuid] = 42
    asked, times = list[int](), itertools.count(step=120)

    def vcpu_time(process: int) -> machine.VcpuTime:
        asked.append(process)
        return machine.VcpuTime(now := next(times), now)

    monkeypatch.setattr(machine, "vcpu_time", vcpu_time)
    run, folder = runner.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline)
    assert {result.host_kept for result in run.phases} == {0.2}
    assert asked == [42] * 2 * len(run.phases), "at both edges"
    assert record.read(folder) == run


def busy_guest(monkeypatch: pytest.MonkeyPatch) -> FakeGuest:
    """A guest from which others take 0.2 of its processor time in every phase."""
    guest = FakeGuest(lambda _: json.dumps(TOLD))
    guest.host.forgotten[guest.mark.uuid] = 42
    times = itertools.count(step=120)
    monkeypatch.setattr(machine, "vcpu_time", lambda _: machine.VcpuTime(now := next(times), now))
    return guest


def test_what_memory_was_made_of_is_recorded(deadline: Deadline) -> None:
    """At the sample with the most; the program is gone at the end."""
    edge = {"/proc/vmstat": "nr_anon_pages 900\nnr_anon_transparent_hugepages 0\n"}
    guest = FakeGuest(lambda _: json.dumps({**TOLD, "before": edge, "after": edge}))
    guest.stderr = [
        json.dumps({"t": t, "vmstat": {"nr_anon_pages": anon, "nr_anon_transparent_hugepages": huge}})
        for t, anon, huge in ((2, 30000, 10), (4, 40000, 20), (6, 1000, 1))
    ]
    run, folder = runner.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline)
    assert {result.memory for result in run.phases} == {Memory(anonymous=40000, huge=20 * 512)}
    assert record.read(folder) == run


def test_the_kernel_of_a_run_is_recorded(deadline: Deadline) -> None:
    """A kernel that tells nothing leaves neither facts nor a file (test_run)."""
    guest = FakeGuest(lambda _: json.dumps(TOLD))
    guest.kernel += f"/proc/sys/kernel/numa_balancing:1\n{kernel_facts.MARK}\nCONFIG_NUMA=y\n"
    run, folder = runner.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline)
    assert (run.release, run.cmdline) == ("6.1.0-56-amd64", "root=x quiet")
    assert run.kernel_facts == {
        "numa_balancing": "1",
        "configuration": kconfig.digest({"CONFIG_NUMA": "y"}),
    }
    assert (folder / "kernel.config").read_text() == "CONFIG_NUMA=y\n"
    assert record.read(folder) == run


def test_what_c_programs_share_is_an_input() -> None:
    """nas through its own header."""
    for workload in ("threads", "nas"):
        assert "lab.h" in runner.input_hashes(workload)
    assert "lab.h" not in runner.input_hashes("xfsrepair")


def test_a_file_that_moves_keeps_its_name_in_the_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a run from before the move could not be judged with one from after it."""
    stored = runner.input_hashes("xfsrepair")
    assert {"inside.py", "workload.py", "xfsrepair.py"} == set(stored), (
        "these names are in the runs that people have"
    )
    for name, target in (("AGENT", "measure/agent.py"), ("WORKLOAD_MODULE", "measure/for_workloads.py")):
        (tmp_path / target).parent.mkdir(exist_ok=True)
        monkeypatch.setattr(paths, name, Path(shutil.copy(getattr(paths, name), tmp_path / target)))
    moved = runner.input_hashes("xfsrepair")
    assert moved == stored
    sides = ((Arm.BEFORE, stored), (Arm.AFTER, moved))
    runs = [
        synthetic.run(f"6.1-{arm}", synthetic.phase("repair-defaults"), boot=index, arm=arm, inputs=inputs)
        for index, (arm, inputs) in enumerate(3 * sides)
    ]
    assert verdict.verdict(runs).boots == (3, 3)
    (tmp_path / "measure" / "agent.py").write_text("# other content\n")
    changed = synthetic.run(
        f"6.1-{Arm.AFTER}",
        synthetic.phase("repair-defaults"),
        boot=9,
        arm=Arm.AFTER,
        inputs=runner.input_hashes("xfsrepair"),
    )
    with pytest.raises(InputError, match=r"inputs: inside\.py="):
        verdict.verdict([*runs, changed])


def lost(_: dict[str, Any]) -> str:
    raise GuestLost("guest g: SSH is lost")


def hangs(_: dict[str, Any]) -> str:
    raise DeadlinePassed("guest g: exec python3 -: the time limit passed")


def breaks_at(name: str, says: Says) -> Says:
    """Correct until the phase `name`."""
    command = commands(SizeClass.QUICK)[name].command
    return lambda about: says(about) if about["command"] == command else json.dumps(TOLD)


@pytest.mark.parametrize(
    ("says", "kind", "reason"),
    [
        (
            lambda _: json.dumps(TOLD | {"status": 3, "stderr": "first\nno space\n"}),
            GuestError,
            "phase fsmark: exit status 3: no space",
        ),
        (
            lambda _: json.dumps(TOLD | {"status": -9, "timed_out": True}),
            GuestError,
            "phase fsmark: took more than its limit of 300 s",
        ),
        (
            hangs,
            DeadlinePassed,
            "^guest [a-z0-9-]+: phase fsmark: went on for 60 s after its limit of 300 s: the guest or QEMU hangs",
        ),
        (lost, GuestLost, "SSH is lost"),
        (lambda _: json.dumps(TOLD)[:-5], Exception, "."),
        (lambda _: "Traceback: no space left in /tmp", Exception, "."),
        (lambda _: json.dumps({"status": 0}), Exception, "."),
    ],
    ids=["status", "limit", "hangs", "lost", "cut", "garbage", "incomplete"],
)
def test_a_run_that_breaks_is_evidence(
    says: Says, kind: type[Exception], reason: str, deadline: Deadline
) -> None:
    """Whatever ends the run early is in run.json: nothing unexpected may look like a result."""
    guest = FakeGuest(breaks_at("fsmark", says))
    with pytest.raises(kind, match=reason) as caught:
        runner.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline)
    assert len(guest.sent) == 2, "no phase after the broken one"
    found = record.read(only_run())
    assert found.error
    assert found.error == str(caught.value) or kind is Exception
    assert [result.phase.name for result in found.phases] == ["mkfs"]
    assert (only_run() / "console.log").read_text() == CONSOLE
    assert (only_run() / "domain.xml").exists()


def test_the_raw_side_of_a_failed_phase_is_kept(deadline: Deadline) -> None:
    guest = FakeGuest(breaks_at("fsmark", lambda _: json.dumps(TOLD | {"status": 3, "stderr": "no space\n"})))
    with pytest.raises(GuestError) as caught:
        runner.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline)
    assert "no space" in caught.value.evidence
    assert (only_run() / "phases" / "01-fsmark" / "stderr").read_text() == "no space\n"


def test_a_guest_whose_machine_is_gone_leaves_a_record_too(
    monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """The console log on another hypervisor is lost with it; the error must be recorded all the same."""
    guest = FakeGuest(breaks_at("fsmark", lost))

    def not_reached(*_: object) -> str:
        raise HostError("there: not reached by SSH")

    monkeypatch.setattr(guest, "console_size", not_reached)
    monkeypatch.setattr(guest, "console_pieces", not_reached)
    with pytest.raises(GuestLost, match="SSH is lost"):
        runner.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline)
    assert "SSH is lost" in record.read(only_run()).error


def no_room(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_run_that_cannot_be_kept_is_an_error(monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    monkeypatch.setattr(record, "write", no_room)
    with pytest.raises(HostError, match=r"the run cannot be kept: No space left on device: make room"):
        runner.run(FakeGuest(lambda _: json.dumps(TOLD)).real(), "xfsrepair", SizeClass.QUICK, deadline)


def test_why_a_run_broke_matters_more_than_that_it_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch,
    deadline: Deadline,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(record, "write", no_room)
    with pytest.raises(GuestLost, match="SSH is lost"):
        runner.run(FakeGuest(breaks_at("fsmark", lost)).real(), "xfsrepair", SizeClass.QUICK, deadline)
    assert "the run cannot be kept: No space left on device" in caplog.text


def test_a_guest_that_runs_another_kernel_is_refused(
    deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running guest (--on) may have been rebooted; its counts would be ascribed to the recorded kernel."""

    def verify(self: FakeGuest, deadline: Deadline) -> list[verification.LayoutRow]:
        raise GuestError("guest g: runs kernel 6.1, but debian is 6.12")

    monkeypatch.setattr(FakeGuest, "verify", verify)
    guest = FakeGuest(lambda _: json.dumps(TOLD))
    with pytest.raises(GuestError, match=r"runs kernel 6\.1, but debian is 6\.12"):
        runner.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline)
    assert not guest.sent, "no phase was run"


def test_an_interrupted_run_is_no_result(deadline: Deadline) -> None:
    with pytest.raises(KeyboardInterrupt):
        runner.run(
            FakeGuest(lambda _: json.dumps(TOLD)).real(),
            "xfsrepair",
            SizeClass.QUICK,
            deadline,
            watcher=Seen(KeyboardInterrupt()),
        )
    assert record.read(only_run()).error


def test_a_new_workload_is_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """A file in testcases/workloads, without an edit of the package."""
    guest = FakeGuest(lambda _: json.dumps(TOLD))
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (tmp_path / paths.WORKLOADS).mkdir(parents=True)
    (tmp_path / paths.WORKLOADS / "mine.py").write_text(
        '"""Mine."""\nfrom numalab.model import Phase, SizeClass, Value\nclass Params(Value):\n    n:'
        ' int\nPARAMS = {SizeClass.QUICK: Params(n=1)}\ndef phases(params):\n    return (Phase(name="only",'
        ' command=f"true {params.n}", limit_seconds=9),)\n'
    )
    assert runner.workloads() == ["mine"]
    run, _ = runner.run(guest.real(), "mine", SizeClass.QUICK, deadline)
    assert 9 < guest.patience[-1] < 300, "the phase's own limit and some grace for the way there"
    assert [result.phase.command for result in run.phases] == ["true 1"]


MINE = """\"\"\"Mine.\"\"\"
from pathlib import Path
from numalab.model import Phase, SizeClass, Value
class Params(Value):
    n: int = 1
    source: str = "/host/file"
PARAMS = {SizeClass.QUICK: Params()}
def files(params):
    return {"/root/file": Path(params.source)}
def phases(params):
    return (
        Phase(name="make", command="make", limit_seconds=9, measured=False), Phase(name="only", command=f"true {params.n}", limit_seconds=9),
    )
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGuest:
    """A guest, and a workload of two phases with a file of the host."""
    guest = FakeGuest(lambda _: json.dumps(TOLD))
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (tmp_path / paths.WORKLOADS).mkdir(parents=True)
    (tmp_path / paths.WORKLOADS / "mine.py").write_text(MINE)
    return guest


def ran(guest: FakeGuest, watcher: Seen | None = None, **options: Any) -> tuple[Run, Path]:
    return runner.run(
        guest.real(), "mine", SizeClass.QUICK, Deadline.after(60), runner.Options(**options), watcher=watcher
    )


def test_options_reach_the_runner_and_the_record(mine: FakeGuest) -> None:
    place = Place(case_name="mine", case=synthetic.CASE, experiment="e", arm=Arm.AFTER, boot=3)
    run, folder = ran(
        mine,
        params={"n": 7},
        tracepoints=("migrate:mm_migrate_pages",),
        sample_seconds=0.5,
        settings={"vm.swappiness": "1"},
        place=place,
    )
    assert [about["command"] for about in mine.sent] == ["make", "true 7"]
    assert [(about["trace"], about["sample"], about["profile"]) for about in mine.sent] == [
        (["migrate:mm_migrate_pages"], 0.5, 0)
    ] * 2
    assert (run.params, run.settings, run.place) == (
        {"n": 7, "source": "/host/file"},
        {"vm.swappiness": "1"},
        place,
    )
    assert record.read(folder) == run


def test_how_long_a_boot_took_is_recorded(mine: FakeGuest) -> None:
    """From before its guest was made, which was a minute ago; of a run that is no part of a boot, nothing."""
    run, _ = ran(mine, begun=time.monotonic() - 60)
    assert run.host_seconds is not None
    assert run.host_seconds >= 60
    run, _ = ran(mine)
    assert run.host_seconds is None


def test_a_profile_is_of_measured_phases(mine: FakeGuest) -> None:
    mine.runner = lambda about: json.dumps(
        TOLD | ({"event": "cycles", "profile": "main;flush_tlb_mm_range 3\n"} if about["profile"] else {})
    )
    _, folder = ran(mine, profile_hz=49)
    assert [about["profile"] for about in mine.sent] == [0, 49]
    assert (folder / "phases" / "01-only" / "profile.folded").read_text() == "main;flush_tlb_mm_range 3\n"
    assert not (folder / "phases" / "00-make" / "profile.folded").exists()
    assert [result.profiled for result in record.read(folder).phases] == ["", "cycles"]


@pytest.fixture
def counting(mine: FakeGuest) -> FakeGuest:
    """A guest whose QEMU has the plugin."""
    spec = mine.record.spec.model_copy(update={"instructions": "/lab/emulator/instructions.so"})
    mine.record = mine.record.model_copy(update={"spec": spec})
    return mine


def test_instructions_are_of_measured_phases(counting: FakeGuest) -> None:
    def says(about: dict[str, Any]) -> str:
        if about["marked"]:
            assert (counting.directory / "symbols").read_text() == "ffffffff81000000 0\n"
            (counting.directory / "profile").write_text("-1 3\n1 5\ntotal 8\n")
        return json.dumps(TOLD)

    counting.runner = says
    _, folder = ran(counting, profile_hz=49)
    assert [(about["marked"], about["profile"]) for about in counting.sent] == [(False, 0), (True, 0)]
    assert (folder / "phases/01-only/profile.folded").read_text() == "kernel;work 5\nuser 3\n"
    assert [result.profiled for result in record.read(folder).phases] == ["", "instructions"]


@pytest.mark.parametrize(
    ("kallsyms", "counted", "why"),
    [
        ("6.1\n0000000000000000 T work\n", "1 5\ntotal 5\n", "shows no addresses"),
        ("3.2\nffffffff81000000 T work\n", "1 5\ntotal 5\n", "its stacks are smaller"),
        ("6.1\nffffffff81000000 T work\n", "", "not whole"),
    ],
)
def test_a_phase_is_worth_more_than_its_profile(
    counting: FakeGuest, kallsyms: str, counted: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    counting.kallsyms = kallsyms

    def says(_: dict[str, Any]) -> str:
        (counting.directory / "profile").write_text(counted)
        return json.dumps(TOLD)

    counting.runner = says
    run, folder = ran(counting, profile_hz=49)
    assert (run.error, [result.profiled for result in run.phases]) == ("", ["", ""])
    assert not (folder / "phases/01-only/profile.folded").exists()
    assert "no profile: " in caplog.text
    assert why in caplog.text


def test_counts_of_tracepoints(mine: FakeGuest) -> None:
    """Counters of a source of their own; events that the guest's kernel cannot count are absent."""
    before, after = (
        {**TOLD[edge], "trace": f"migrate:mm_migrate_pages {count}\n"}  # type: ignore[dict-item]
        for edge, count in (("before", 5), ("after", 12))
    )
    mine.runner = lambda _: json.dumps(TOLD | {"before": before, "after": after})
    run, folder = ran(mine, tracepoints=("migrate:mm_migrate_pages", "migrate:none"))
    assert run.phases[1].counters["trace"] == {"migrate:mm_migrate_pages": 7}
    assert record.read(folder) == run


def test_what_the_workload_says_of_itself(mine: FakeGuest) -> None:
    mine.runner = lambda _: json.dumps(TOLD | {"stdout": "chatter\nnumalab: files_per_second 12.5\n"})
    run, folder = ran(mine)
    assert run.phases[1].output == {"files_per_second": 12.5}
    assert record.read(folder) == run


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"m": 1}, r"mine: quick parameter m: Extra inputs are not permitted"),
        ({"n": "many"}, "mine: quick parameter n: .*integer"),
    ],
)
def test_bad_parameters(mine: FakeGuest, params: dict[str, Any], said: str) -> None:
    """Refused before anything is written."""
    with pytest.raises(InputError, match=said):
        ran(mine, params=params)
    assert not list(state.folder("runs").iterdir())


def test_a_size_that_the_workload_lacks(mine: FakeGuest) -> None:
    with pytest.raises(InputError, match="workload mine has no size full: it has quick"):
        runner.run(mine.real(), "mine", SizeClass.FULL, Deadline.after(60))


def test_files_of_the_host(mine: FakeGuest) -> None:
    """The files are in the guest before the first phase."""

    def says(_: dict[str, Any]) -> str:
        assert mine.copied == [("/host/mine", "guest:/root/file")]
        return json.dumps(TOLD)

    mine.runner = says
    ran(mine, params={"source": "/host/mine"})


def test_samples(mine: FakeGuest) -> None:
    """Stored as they came, and passed on at once; other output on standard error is neither."""
    lines = [
        '{"t": 2.0, "vmstat": {"numa_pte_updates": 5}}',
        "perf: warning",
        "7",
        "null",
        '{"t": 4.0, "vmstat": {"numa_pte_updates": 9}}',
    ]
    mine.stderr = lines
    seen = Seen()
    _, folder = ran(mine, seen)
    assert seen.moments == [
        (phase, json.loads(line)) for phase in ("make", "only") for line in (lines[0], lines[-1])
    ]
    assert record.samples(folder, 1, "only") == [json.loads(lines[0]), json.loads(lines[-1])]
    assert (folder / "phases" / "01-only" / "samples.jsonl").read_text() == f"{lines[0]}\n{lines[-1]}\n"


def test_samples_say_what_the_host_took(mine: FakeGuest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the phase began. The host's other work is 30 s for each time that it is asked (fixture qemu)."""
    waits = itertools.count(step=5)
    monkeypatch.setattr(FakeHost, "qemu", lambda *_: 4711, raising=False)
    monkeypatch.setattr(machine, "vcpu_time", lambda _: machine.VcpuTime(ran=50.0, waited=float(next(waits))))
    mine.stderr = [json.dumps({"t": t}) for t in (2.0, 4.0)] + [json.dumps({"other": 1})]
    _, folder = ran(mine)
    assert [sample.get("host") for sample in record.samples(folder, 1, "only")] == [
        {"kept": 5.0},
        {"kept": 10.0},
        None,
    ]


def test_samples_of_a_phase_that_breaks_are_kept(mine: FakeGuest) -> None:
    mine.stderr, mine.runner = ['{"t": 2.0}'], lost
    with pytest.raises(GuestLost):
        ran(mine)
    assert record.samples(only_run(), 0, "make") == [{"t": 2.0}]


@pytest.mark.parametrize(
    "line",
    [
        "[ 9.0] WARNING: CPU: 1 PID: 7 at mm/vmscan.c:12 shrink_node",
        "[ 9.0] INFO: task xfsaild/vdb:77 blocked for more than 120 seconds.",
        "[ 9.0] Out of memory: Killed process 99 (dd)",
    ],
)
def test_a_kernel_that_complains_makes_no_result(mine: FakeGuest, line: str) -> None:
    def says(about: dict[str, Any]) -> str:
        if about["command"] != "make":
            mine.console_log.write_text(f"{CONSOLE}{line}\n")
        return json.dumps(TOLD)

    mine.runner = says
    with pytest.raises(GuestError, match="guest g: its kernel says: ") as caught:
        ran(mine)
    assert line in caught.value.evidence
    found = record.read(only_run())
    assert line in found.error
    assert line in found.console_warnings
    assert len(found.phases) == 2, "the evidence is whole"


@pytest.mark.parametrize("status", [0, 137])
def test_an_oops_in_the_last_moment_is_a_crash(status: int, deadline: Deadline) -> None:
    """The program ends before the next look at the console; by the oops, where that was in its system call."""

    def oops(_: Any) -> str:
        with guest.console_log.open("a") as log:
            log.write("[ 9.0] Oops: 0000 [#1] SMP")
        return json.dumps(TOLD | {"status": status})

    guest = FakeGuest(oops)
    with pytest.raises(KernelOops, match=r"Oops: 0000"):
        runner.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline)
    assert "Oops: 0000" in record.read(only_run()).error


def test_a_kernel_given_as_a_path_gives_a_run_a_name_for_a_folder(mine: FakeGuest) -> None:
    spec = mine.record.spec
    boot = spec.boot.model_copy(update={"name": f"/srv/linux nächste/{'a' * 150}/a+b.yml"})
    mine.record = mine.record.model_copy(update={"spec": spec.model_copy(update={"boot": boot})})
    run, _ = ran(mine)
    assert f"-{spec.topology_name}-a_b-" in run.id


def test_what_the_kernel_said_before_is_not_of_this_run(mine: FakeGuest) -> None:
    mine.console_log.write_text("[ 1.0] WARNING: CPU: 0 PID: 1 at arch/x86/kernel/cpu/common.c:1 boot\n")
    run, _ = ran(mine)
    assert run.console_warnings, "but it is kept"
