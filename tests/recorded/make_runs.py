# SPDX-License-Identifier: GPL-2.0-only
"""Make a small state directory of recorded runs with the present code: python -m tests.recorded.make_runs
NAME.

It goes to tests/recorded/runs/NAME.tar.xz. runner.run, Guest.save and so on write the files; only the guest
is a fake. See runs/README.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from numalab.analysis import calibration
from numalab.core import checksum, paths, state
from numalab.core.errors import GuestError
from numalab.core.process import Deadline
from numalab.experiment import judging
from numalab.guest import guest
from numalab.host import accelerator, image, machine
from numalab.kernel import build
from numalab.measure import runner
from numalab.model import catalog
from numalab.model.case import Arm, Case, CaseSize, Direction, Expectation, Machine, Place
from numalab.model.guest import Boot
from numalab.model.run import Run
from numalab.model.values import Accel, SizeClass, jsonable
from numalab.runs import index as run_index
from tests.unit import makers
from tests.unit.measure.test_runner import CONSOLE, NODE0, FakeGuest

TOPOLOGY = "uma-4g"
KERNELS = {Arm.BEFORE: "6.1-slowscan-before", Arm.AFTER: "6.1"}
WORKLOAD = '''"""A workload of recorded runs: one phase that prepares, one that is measured."""

from numalab.model import Phase, SizeClass, Value


class Params(Value):
    """How much."""

    rounds: int = 3


PARAMS = {size: Params() for size in SizeClass}


def phases(params):
    """What to run."""
    return [
        Phase(name="prepare", command="true", limit_seconds=60, measured=False),
        Phase(name="work", command=f"work {params.rounds}", limit_seconds=60),
    ]
'''
CASES: Mapping[str, Mapping[Arm, Sequence[int]]] = {
    "holds": {Arm.BEFORE: (9000, 9100, 8950), Arm.AFTER: (1000, 1010, 990)},
    "does-not-hold": {Arm.BEFORE: (9000, 9100, 8950), Arm.AFTER: (9050, 8990, 9020)},
    "cannot-tell": {Arm.BEFORE: (9000, 4000, 14000), Arm.AFTER: (5000, 12000, 2000)},
    "auto": {Arm.BEFORE: (9000, 5000, 14000, 9500, 8800), Arm.AFTER: (3000, 5500, 1500, 2100, 1900)},
    "broken": {Arm.BEFORE: (9000, 9100, 8950), Arm.AFTER: (1000, 1010, 990)},
    "hung": {Arm.BEFORE: (9000, 9100, 8950), Arm.AFTER: (1000, 1010, 990)},
}
"""An experiment's name -> the differences of numa_pte_updates, in boot order."""
FACTS = {
    "machine": "big",
    "machine id": "0123456789abcdef0123456789abcdef",
    "kernel": "6.12",
    "cpu": "EPYC",
    "cpus": "96",
    "load at start": "7.25",
}


def case(name: str) -> Case:
    """A case of one counter, one time and one number that the workload prints."""
    falls = Direction.FALLS
    return Case(
        description=f"recorded: {name}",
        source="made by tests/recorded/make_runs.py",
        workload="work",
        before=KERNELS[Arm.BEFORE],
        after=KERNELS[Arm.AFTER],
        expect=(
            Expectation(metric="numa_pte_updates", phase="work", direction=falls, by=1.5),
            Expectation(metric="elapsed", phase="work", direction=falls, decides=False),
            Expectation(metric="output:rate", phase="w*", direction=Direction.RISES, decides=False),
        ),
        sizes={
            SizeClass.QUICK: CaseSize(
                source="ours", machines=(Machine(topology=TOPOLOGY),), minutes=3, boots=3, most_boots=8
            )
        },
    )


def answer(updates: int, *, status: int = 0) -> dict[str, Any]:
    """The output of the agent for a phase."""
    return {
        "before": {
            "/proc/vmstat": "numa_pte_updates 500\npgfault 100\n",
            f"{NODE0}/vmstat": "nr_free_pages 900\n",
        },
        "after": {
            "/proc/vmstat": f"numa_pte_updates {500 + updates}\npgfault 2100\n",
            f"{NODE0}/vmstat": "nr_free_pages 400\n",
        },
        "status": status,
        "elapsed": updates / 1000,
        "user": 0.5,
        "system": updates / 4000,
        "stdout": f"numalab: rate {1e6 / max(updates, 1):.3f}\n",
        "stderr": "no space left\n" if status else "",
        "timed_out": False,
        "load": 1.0,
    }


def boot(
    name: str,
    arm: Arm | None,
    number: int,
    updates: int,
    *,
    place: Place | None,
    changes: Mapping[str, Any],
    status: int = 0,
    profile: bool = False,
) -> Run | None:
    """One run of a fake guest; None for one that breaks. The guest's folder stays."""
    shutil.rmtree(state.folder("guests") / "g", ignore_errors=True)

    def says(request: dict[str, Any]) -> str:
        told = answer(updates, status=status if request["command"].startswith("work") else 0)
        return json.dumps(
            told | ({"profile": "work;main;do_page_fault 90\nwork;main 10\n"} if profile else {})
        )

    fake = FakeGuest(says)
    fake.stderr = [
        json.dumps({"t": t, "vmstat": {"numa_pte_updates": 500 + updates * t // 2}}) for t in (0, 1, 2)
    ]
    if arm or profile:
        fake.console_log.write_text("[ 1.0] fine\n" if number else CONSOLE)
    kernel = Boot(name=KERNELS[arm] if arm else "debian")
    spec = fake.record.spec.model_copy(
        update={
            "topology": catalog.topology(TOPOLOGY),
            "topology_name": TOPOLOGY,
            "boot": kernel,
            "accel": Accel.TCG if name == "hung" else Accel.KVM,
        }
    )
    fake.record = fake.record.model_copy(update={"spec": spec, **changes})
    guest.Guest(fake.record, fake.host.real()).save()
    maker(fake.directory)
    options = runner.Options(place=place, profile_hz=99 if profile else 0)
    stamp = f"20261122T{12 + list(CASES).index(name) if name in CASES else 11}{number:02}00"
    with mock.patch.object(state, "stamp", return_value=stamp), contextlib.suppress(GuestError):
        return runner.run(fake.real(), "work", SizeClass.QUICK, Deadline.after(60), options)[0]
    return None


def maker(folder: Path) -> None:
    """The file that says which process made a guest."""
    made = guest.Maker(process="aaaaaa.bbbbbb.4242.77", node="big", uri="test:///fake")
    (folder / "maker").write_text(json.dumps(jsonable(made)))


def one_experiment(name: str) -> list[Run]:
    """All unbroken boots of an experiment, interleaved."""
    values = CASES[name]
    runs: list[Run | None] = []
    rounds = len(values[Arm.BEFORE])
    for number in range(2 * rounds):
        arm = list(Arm)[number % 2]
        facts: dict[str, Any] = {
            "case_name": name,
            "case": case(name),
            "experiment": f"20261122T110000-{name}",
            "arm": arm,
            "boot": number,
        }
        facts |= {"looks": 3} if name == "auto" else {}
        facts |= planned(6 if number < 6 else 2 * rounds)
        runs.append(
            boot(
                name,
                arm,
                number,
                values[arm][number // 2],
                place=Place.model_validate(facts),
                changes={"hung": int(name == "hung" and number == 3)},
                status=3 * (name == "broken" and number == 5),
            )
        )
    return [run for run in runs if run]


def planned(boots: int) -> dict[str, int]:
    """What the present code records in a run's place."""
    return {"planned": boots}


def manifests() -> None:
    """An image, a kernel, checksums and the accelerator's probe, as their modules write them, but tiny."""
    place = state.folder("images", "debian12", "0" * 16)
    built_image = image.Image(
        name="debian12",
        id="0" * 16,
        directory=str(place),
        root="/dev/vda2",
        disk_bytes=6,
        inputs={"base": "debian"},
    )
    (place / "manifest.json").write_text(json.dumps(jsonable(built_image), indent=1))
    place = state.folder("kernels", "6.1-" + "1" * 16)
    built = build.Built(
        name="6.1",
        key="1" * 16,
        directory=str(place),
        release="6.1.1-numalab",
        seconds=1.5,
        patches=("a.patch",),
        source="v6.1",
        compiler="gcc 12",
        bzimage_bytes=7,
        modules=False,
    )
    (place / "manifest.json").write_text(json.dumps(jsonable(built), indent=1))
    (place / "bzImage").write_text("bzImage")
    accelerator.choose("auto", place / "bzImage", Deadline.after(60))
    checksums(place / "bzImage")


def checksums(path: Path) -> None:
    """Cache a file's checksum."""
    checksum.sha256(path)


def make(folder: Path) -> None:
    """Write everything into a state directory."""
    checkout = folder / "checkout"
    (checkout / "testcases" / "workloads").mkdir(parents=True)
    (checkout / "testcases" / "workloads" / "work.py").write_text(WORKLOAD)
    (checkout / "topologies").symlink_to(paths.ROOT / "topologies")
    digits = random.Random(12)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"LAB_STATE": str(folder / "state")}))
        for module, name, value in patches(digits, checkout):
            stack.enter_context(mock.patch.object(module, name, value))
        runs = {name: one_experiment(name) for name in CASES}
        boot("plain", None, 50, 700, place=None, changes={}, profile=True)
        with mock.patch.object(state, "stamp", return_value="20261122T200000"):
            calibration.save(
                calibration.of([run for run in runs["holds"] if run.place and run.place.arm is Arm.BEFORE])
            )
        manifests()
        run_index.find()
        for name, boots in runs.items():
            for verdict in judging.verdicts(boots):
                print(f"{name}: {verdict.answer}, {verdict.boots}")


def patches(digits: random.Random, checkout: Path) -> list[tuple[Any, str, object]]:
    """Replacements for what differs between machines or times."""
    return [
        (paths, "ROOT", checkout),
        (accelerator, "qemu_version", lambda *_: "7.2.22"),
        (os, "getpid", lambda: 4242),
        (state, "started", lambda _: 77),
        (accelerator, "try_kvm", lambda *_: (Accel.TCG, "there is no /dev/kvm")),
        (secrets, "token_hex", lambda count: f"{digits.getrandbits(8 * count):0{2 * count}x}"),
        (machine, "read_facts", lambda *_: FACTS),
        (machine, "load", lambda *_: 0.5),
    ]


def pack(folder: Path, target: Path) -> None:
    """A state directory as a tar, without times and users."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
        return (
            None
            if "/locks" in member.name or member.issym() or not (member.isfile() or member.isdir())
            else member
        )

    with tarfile.open(target, "w:xz") as archive:
        archive.add(folder, "state", filter=plain)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch))
        (makers.RECORDED / "runs").mkdir(exist_ok=True)
        pack(Path(scratch) / "state", makers.RECORDED / "runs" / f"{sys.argv[1]}.tar.xz")
