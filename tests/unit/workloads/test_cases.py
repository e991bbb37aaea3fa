# SPDX-License-Identifier: GPL-2.0-only
"""The matrix: every case of testcases/ refers to existing things, and names its source."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab import workload
from numalab.analysis import metrics
from numalab.core import paths
from numalab.experiment.plan import make_plan, scaled_topology, workload_phases
from numalab.kernel import recipe
from numalab.model import catalog, topology
from numalab.model.case import Case
from numalab.model.values import SizeClass
from numalab.runs.counters import parse
from tests.unit.makers import recorded

CASES = catalog.names("testcases")
MATRIX = {
    "xfsrepair",
    "autonuma",
    "migratefail",
    "nogroup",
    "savedwrite",
    "nas",
    "dirtymap",
    "threads",
    "writeback-usb",
    "writeback-fsmark",
    "fairzone",
    "writeback-node",
}
"""The matrix of the issue, and the recipe that shows today what writeback-usb and writeback-fsmark showed."""
COUNTERS = parse(recorded("vmstat-6.1.txt")).keys()
"""The counters of a 6.1 without the patches that add some (fairzone_*)."""
EACH = [(name, size) for name in CASES for size in SizeClass]


@pytest.fixture(autouse=True)
def nothing_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tarball from the user's environment."""
    monkeypatch.delenv("LAB_NPB", raising=False)
    monkeypatch.delenv("LAB_SPECJBB", raising=False)


def test_the_matrix_is_there() -> None:
    assert set(CASES) >= MATRIX


@pytest.mark.parametrize(("name", "size"), EACH)
def test_a_plan_can_be_made_on_every_machine(name: str, size: SizeClass) -> None:
    """experiment.plan checks kernels, workload, parameters, phases, metrics and the scaled topology."""
    case = catalog.case(name)
    for machine in case.sizes[size].machines:
        made = make_plan(name, size, topology_name=machine.topology)
        assert {disk.name for disk in case.disks} <= {disk.name for disk in scaled_topology(made).disks}


@pytest.mark.parametrize(("name", "size"), EACH)
def test_disks_that_the_workload_uses_are_there(name: str, size: SizeClass) -> None:
    for machine in catalog.case(name).sizes[size].machines:
        made = make_plan(name, size, topology_name=machine.topology)
        commands = " ".join(phase.command for phase in workload_phases(made))
        wanted = set(re.findall(r"/dev/disk/by-id/(?:virtio-|usb-\*_)(\w+)", commands))
        assert wanted <= {disk.name for disk in scaled_topology(made).disks}


@pytest.mark.parametrize("name", CASES)
def test_kernels_beside_the_compared_ones(name: str) -> None:
    case = catalog.case(name)
    for other in case.also:
        assert recipe.load(other)


@pytest.mark.parametrize(("name", "size"), EACH)
def test_settings_have_their_names(name: str, size: SizeClass) -> None:
    about = catalog.case(name).sizes[size]
    assert about.source
    assert about.most_boots >= about.boots
    if size is SizeClass.QUICK:
        for machine in about.machines:
            scaled = topology.scale(
                catalog.topology(machine.topology), memory=machine.memory, vcpus=machine.vcpus
            )
            assert scaled.memory <= 4 << 30, "quick is for small hosts"
            assert scaled.vcpus <= 8


def counters_of(case: Case) -> list[str]:
    """Metrics that are plain counters of /proc/vmstat."""
    return [
        wanted.metric
        for wanted in case.expect
        if wanted.metric not in metrics.DERIVED
        and wanted.metric not in metrics.TIMES
        and ":" not in wanted.metric
    ]


@pytest.mark.parametrize("name", CASES)
def test_metrics_are_some_that_there_are(name: str) -> None:
    """metrics.known accepts any counter's form; this checks for those of 6.1 and the fairzone patches."""
    case = catalog.case(name)
    for counter in counters_of(case):
        assert counter in COUNTERS or counter.startswith("fairzone_")
    traced = {
        wanted.metric.removeprefix("trace:") for wanted in case.expect if wanted.metric.startswith("trace:")
    }
    assert traced <= set(case.tracepoints)
    told = {
        wanted.metric.removeprefix("output:") for wanted in case.expect if wanted.metric.startswith("output:")
    }
    about = "".join(path.read_text() for path in (paths.ROOT / paths.WORKLOADS).glob(f"{case.workload}.*"))
    assert all(word in about for word in told)


@pytest.mark.parametrize("name", CASES)
def test_something_decides_today(name: str) -> None:
    """A count or a ratio, which is valid under emulation, on the kernel that the case compares."""
    case = catalog.case(name)
    deciding = [
        one
        for one in case.expect
        if one.decides and one.applies("6.1.0-numalab") and metrics.kind(one.metric) is not metrics.Kind.TIME
    ]
    assert deciding
    assert all(one.why for one in case.expect)


def test_a_time_of_numa01_never_decides() -> None:
    """It is adverse on four nodes: slowscan-lkml-2015.txt, Mel Gorman, March 7, 5:37 p.m."""
    judged = [one for one in catalog.case("autonuma").expect if one.decides and one.metric == "elapsed"]
    assert not [one for one in judged if one.phase in ("*", "numa*", "numa01")]


def test_a_file_system_is_made_anew_where_one_is_mounted(
    program: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """By an earlier run in the same guest; one that is in use stays, and is an error."""
    said = tmp_path / "said"
    for name in ("mountpoint", "umount", "mkfs.xfs", "mount"):
        program(name, f'echo "{name} $*" >>{said}; [ ! -e {tmp_path}/{name}-fails ]')
    command = ["sh", "-c", workload.mounted("xfs", "/dev/x", f"{tmp_path}/m", mount="mount -t xfs")]
    made = ["mkfs.xfs -f -q -K /dev/x", f"mount -t xfs /dev/x {tmp_path}/m"]
    for fails, status, words in (
        ("", 0, ["mountpoint", "umount"]),
        ("mountpoint", 0, ["mountpoint"]),
        ("umount", 1, ["mountpoint", "umount"]),
    ):
        said.unlink(missing_ok=True)
        for name in ("mountpoint", "umount"):
            (tmp_path / f"{name}-fails").unlink(missing_ok=True)
        if fails:
            (tmp_path / f"{fails}-fails").touch()
        assert subprocess.run(command, check=False).returncode == status
        lines = said.read_text().splitlines()
        assert [line.split()[0] for line in lines[: len(words)]] == words
        assert lines[len(words) :] == ([] if status else made)
