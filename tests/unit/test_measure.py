"""Workloads measured on a guest that is a function: the whole record when it ends well, the evidence when it does not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from numalab import accel, catalog, measure, record, state, topology
from numalab.errors import GuestError, GuestLost, HostError, InputError
from numalab.guest import Guest
from numalab.model import Phase, SizeClass, jsonable
from numalab.proc import Deadline, Result
from numalab.runs import PhaseResult
from tests.unit import makers
from tests.unit.makers import FakeHost, FakeShell

NODE0 = "/sys/devices/system/node/node0"
TOLD = {
    "before": {"/proc/vmstat": "numa_hit 5\n", f"{NODE0}/vmstat": "nr_free_pages 9\n"},
    "after": {"/proc/vmstat": "numa_hit 8\n", f"{NODE0}/vmstat": "nr_free_pages 4\n"},
    "status": 0, "elapsed": 1.5, "user": 0.5, "system": 0.25, "stdout": "out\n", "stderr": "", "timed_out": False, "load": 1.0,
}
CONSOLE = "[ 1.0] fine\n[ 2.0] watchdog: BUG: soft lockup - CPU#0 stuck\n"
Says = Callable[[dict[str, Any]], str]


class Seen:
    """A Watcher that remembers, or breaks."""

    def __init__(self, breaks: BaseException | None = None) -> None:
        self.results: list[PhaseResult] = []
        self.moments: list[tuple[str, Mapping[str, Any]]] = []
        self.breaks = breaks

    def moving(self, phase: str, sample: Mapping[str, Any]) -> None:
        """See measure.Watcher."""
        self.moments.append((phase, sample))

    def ended(self, result: PhaseResult) -> None:
        """See measure.Watcher."""
        if self.breaks:
            raise self.breaks
        self.results.append(result)


class FakeGuest(FakeShell):
    """A guest that is up; `says` gives the runner's output for a phase's request."""

    def __init__(self, says: Says) -> None:
        super().__init__(self.answer)
        self.runner = says
        self.sent: list[dict[str, Any]] = []
        self.patience: list[float] = []
        self.record = makers.record("g")
        self.name, self.host, self.directory = "g", FakeHost(), Path(self.record.spec.directory)
        self.directory.mkdir()
        (self.directory / "domain.xml").write_text("<domain/>\n")
        self.console_log = self.directory / "console.log"
        self.console_log.write_text(CONSOLE)

    def execute(self, command: str, *, deadline: Deadline, input: bytes | None = None, tell: Callable[[str], None] | None = None) -> Result:
        """See FakeShell; notes how long one would wait for it."""
        self.patience.append(deadline.remaining())
        return super().execute(command, deadline=deadline, input=input)

    def answer(self, command: str, input: bytes | None) -> tuple[int, str, str]:
        """What each command of measure prints."""
        if command.startswith("cat > "):
            assert input == Path(measure.__file__).with_name("inside.py").read_bytes()
            return 0, "", ""
        if command.startswith("uname"):
            return 0, "6.1.0-56-amd64\nroot=x quiet\n", ""
        assert command == f"python3 {measure.INSIDE}"
        self.sent.append(json.loads(input or b""))
        return 0, self.runner(self.sent[-1]), ""

    def verify(self, deadline: Deadline) -> list[topology.Row]:
        """As it should be."""
        return [topology.Row("nodes", "0-3", "0-3", True)]

    def console_text(self) -> str:
        """The log so far."""
        return self.console_log.read_text()

    def real(self) -> Guest:
        """For the type checker, a Guest."""
        return cast(Guest, self)


@pytest.fixture(autouse=True)
def qemu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel, "qemu_version", lambda *_: "7.2.22")


def only_run() -> Path:
    """The folder of the one run there is."""
    folders = list(state.folder("runs").iterdir())
    assert len(folders) == 1
    return folders[0]


def test_there_are_workloads() -> None:
    assert {"xfsrepair", "remote"} <= set(measure.workloads())


@pytest.mark.parametrize("name", measure.workloads())
def test_workloads_load(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "specjbb.tar"
    mine.write_bytes(b"")
    monkeypatch.setenv("LAB_SPECJBB", str(mine))  # there only when it is named
    module = measure.load(name)
    assert module.__doc__
    assert set(module.PARAMS) == set(SizeClass)
    for size in SizeClass:
        phases = module.phases(module.PARAMS[size])
        assert all(isinstance(phase, Phase) for phase in phases)
        assert any(phase.measured for phase in phases)
        assert len({phase.name for phase in phases}) == len(phases)
        assert jsonable(module.PARAMS[size])


@pytest.mark.parametrize(("name", "reason"), [
    ("nothing", "there is no workload nothing: there are .*xfsrepair"), ("../plugin", "is not a name"), ("a b", "is not a name"),
])
def test_no_workload(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        measure.load(name)


def commands(size: SizeClass) -> dict[str, Phase]:
    module = measure.load("xfsrepair")
    return {phase.name: phase for phase in module.phases(module.PARAMS[size])}


@pytest.mark.parametrize(("size", "words", "inodes"), [
    (SizeClass.FULL, "fs_mark -D 10000 -S0 -n 100000 -s 1 -L 32", 25_600_000), (SizeClass.QUICK, "fs_mark -D 100 -S0 -n 1000 -s 1 -L 5", 40_000),
])
def test_fs_mark(size: SizeClass, words: str, inodes: int) -> None:
    """slowscan-lkml-2015.txt, March 9: ./fs_mark -D 10000 -S0 -n 100000 -s 1 -L 32 -d /mnt/scratch/0 … -d /mnt/scratch/7."""
    targets = " ".join(f"-d /mnt/scratch/{i}" for i in range(8))
    assert commands(size)["fsmark"].command == f"{words} {targets}"
    assert measure.load("xfsrepair").PARAMS[size].inodes == inodes


@pytest.mark.parametrize("size", SizeClass)
def test_xfs_repair(size: SizeClass) -> None:
    found = commands(size)
    disk = "/dev/disk/by-id/virtio-500TB"
    assert [name for name in found if found[name].measured] == ["fsmark", "repair-defaults", "repair-agstride", "repair-bhash", "repair-agstride-bhash"]
    assert [found[f"repair-{name}"].command.partition(" >")[0].split() for name in ("defaults", "agstride", "bhash", "agstride-bhash")] == [
        ["xfs_repair", "-vv", disk], ["xfs_repair", "-vv", "-o", "ag_stride=-1", disk], ["xfs_repair", "-vv", "-o", "bhash=101073", disk],
        ["xfs_repair", "-vv", "-o", "ag_stride=-1,bhash=101073", disk],
    ]
    assert found["mkfs"].command.startswith("mkfs.xfs -f ")
    assert "-m crc=1,finobt=1" in found["mkfs"].command
    assert disk in found["mkfs"].command.split()
    assert "umount /mnt/scratch" in found["umount"].command
    order = list(found)
    for name in ("defaults", "agstride", "bhash", "agstride-bhash"):
        before = order[order.index(f"repair-{name}") - 1]
        assert "3 > /proc/sys/vm/drop_caches" in found[before].command, "each repair begins with cold caches"
    assert order[-1] == "check"
    assert "xfs_repair -n " in found["check"].command


def test_run(deadline: Deadline) -> None:
    guest, seen = FakeGuest(lambda _: json.dumps(TOLD)), Seen()
    run, folder = measure.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline, watcher=seen)
    phases = list(commands(SizeClass.QUICK).values())
    assert folder == only_run() == state.folder("runs") / run.id
    assert [result.phase for result in run.phases] == phases == [result.phase for result in seen.results]
    assert [(about["command"], about["limit"]) for about in guest.sent] == [(phase.command, phase.limit_seconds) for phase in phases]
    assert guest.sent[0]["files"] == ["/proc/vmstat", "/sys/devices/system/node/node*/vmstat", "/sys/devices/system/node/node*/numastat"]
    assert run.phases[1].counters == {"vmstat": {"numa_hit": 3}, "node0.vmstat": {"nr_free_pages": -5}}
    assert (run.phases[1].elapsed, run.phases[1].user, run.phases[1].system, run.phases[1].status) == (1.5, 0.5, 0.25, 0)
    assert (run.workload, run.size, run.release, run.cmdline, run.error) == ("xfsrepair", SizeClass.QUICK, "6.1.0-56-amd64", "root=x quiet", "")
    assert run.params["files"] == 1000
    assert run.inputs == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (catalog.ROOT / measure.WORKLOADS / "xfsrepair.py", *(Path(measure.__file__).with_name(name) for name in ("inside.py", "workload.py")))
    }
    assert run.console_warnings == ("[ 2.0] watchdog: BUG: soft lockup - CPU#0 stuck",)
    assert (run.host["qemu"], run.host["libvirt"], run.host["uri"]) == ("7.2.22", "9.0.0", FakeHost.uri)
    assert run.guest == jsonable(guest.record)
    assert record.read(folder) == run
    assert {path.name for path in folder.iterdir()} == {"run.json", "domain.xml", "console.log", "topology.txt", "phases"}
    assert (folder / "console.log").read_text() == CONSOLE
    assert "nodes" in (folder / "topology.txt").read_text()
    assert len(list((folder / "phases").iterdir())) == len(phases)
    assert (folder / "phases" / "01-fsmark" / "after" / "node0.vmstat").read_text() == "nr_free_pages 4\n"


def lost(_: dict[str, Any]) -> str:
    raise GuestLost("guest g: SSH is lost")


def breaks_at(name: str, says: Says) -> Says:
    """All well until the phase `name`."""
    command = commands(SizeClass.QUICK)[name].command
    return lambda about: says(about) if about["command"] == command else json.dumps(TOLD)


@pytest.mark.parametrize(("says", "kind", "reason"), [
    (lambda _: json.dumps(TOLD | {"status": 3, "stderr": "first\nno space\n"}), GuestError, "phase fsmark: exit status 3: no space"),
    (lambda _: json.dumps(TOLD | {"status": -9, "timed_out": True}), GuestError, "phase fsmark: took more than its limit of 300 s"),
    (lost, GuestLost, "SSH is lost"),
    (lambda _: json.dumps(TOLD)[:-5], Exception, "."),
    (lambda _: "Traceback: no space left in /tmp", Exception, "."),
    (lambda _: json.dumps({"status": 0}), Exception, "."),
], ids=["status", "limit", "lost", "cut", "garbage", "incomplete"])
def test_a_run_that_breaks_is_evidence(says: Says, kind: type[Exception], reason: str, deadline: Deadline) -> None:
    """Whatever ends it early, run.json says so: nothing unexpected may look like a result."""
    guest = FakeGuest(breaks_at("fsmark", says))
    with pytest.raises(kind, match=reason) as caught:
        measure.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline)
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
        measure.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline)
    assert "no space" in caught.value.evidence
    assert (only_run() / "phases" / "01-fsmark" / "stderr").read_text() == "no space\n"


def test_a_guest_whose_machine_is_gone_leaves_a_record_too(monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    """With a hypervisor elsewhere, its console log goes when it goes; why the run broke must be written all the same."""
    guest = FakeGuest(breaks_at("fsmark", lost))

    def not_reached() -> str:
        raise HostError("there: not reached by SSH")

    monkeypatch.setattr(guest, "console_text", not_reached)
    with pytest.raises(GuestLost, match="SSH is lost"):
        measure.run(guest.real(), "xfsrepair", SizeClass.QUICK, deadline)
    assert "SSH is lost" in record.read(only_run()).error


def test_an_interrupted_run_is_no_result(deadline: Deadline) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure.run(FakeGuest(lambda _: json.dumps(TOLD)).real(), "xfsrepair", SizeClass.QUICK, deadline, watcher=Seen(KeyboardInterrupt()))
    assert record.read(only_run()).error



def test_a_new_workload_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    """No edit of the package: a file in testcases/workloads is all."""
    guest = FakeGuest(lambda _: json.dumps(TOLD))
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    (tmp_path / measure.WORKLOADS).mkdir(parents=True)
    (tmp_path / measure.WORKLOADS / "mine.py").write_text(
        '"""Mine."""\nfrom numalab.model import Phase, SizeClass, Value\nclass Params(Value):\n    n: int\nPARAMS = {SizeClass.QUICK: Params(n=1)}\n'
        'def phases(params):\n    return (Phase(name="only", command=f"true {params.n}", limit_seconds=9),)\n'
    )
    assert measure.workloads() == ["mine"]
    run, _ = measure.run(guest.real(), "mine", SizeClass.QUICK, deadline)
    assert 9 < guest.patience[-1] < 300, "the phase's own limit and some grace for the way there"
    assert [result.phase.command for result in run.phases] == ["true 1"]
