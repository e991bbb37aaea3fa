"""The pytest plugin: fixtures that boot guests, options that choose them, and honest outcomes.

Fixtures: `lab` (make guests), `guest` (a fresh verified guest, gone after the test), `run` (a workload in
it, measured and recorded), `deadline` (the test's own). Marks: `topology(NAME, memory=, vcpus=)`,
`minutes(N)`, `kernel(NAME)`. The lab's edges are imported when a guest is first asked for, so that tests
without guests need no libvirt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from numalab.errors import HostError, LabError
from numalab.model import GIB, SizeClass, Topology, parse_size
from numalab.proc import Deadline
from numalab.runs import Run

if TYPE_CHECKING:
    from numalab.guest import Guest
    from numalab.host import Host

DEFAULT_MINUTES = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that choose machine, size and accelerator."""
    group = parser.getgroup("numalab")
    group.addoption("--topology", action="append", metavar="T", help="run on these topologies instead of each test's own")
    group.addoption("--size", choices=[size.value for size in SizeClass], default=SizeClass.QUICK.value, help="quick: two emulated cores; full: the seeds' own")
    group.addoption("--accel", choices=["kvm", "tcg", "auto"], default="auto", help="accelerator of all guests")
    group.addoption("--kernel", metavar="K", default="debian", help="kernel of all guests that do not name one")
    group.addoption("--connect", metavar="URI", default=None, help="libvirt connection")
    group.addoption("--at-most", type=float, metavar="MINUTES", default=None, help="leave out tests that are marked as longer")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks; show the lab's steps with -o log_cli=true."""
    for line in (
        "topology(name, memory=SIZE, vcpus=N): the guest's machine; scaled where given",
        "minutes(n): what the test may take, boot and all; its deadline",
        "kernel(name): the guest's kernel",
    ):
        config.addinivalue_line("markers", line)
    logging.getLogger("numalab").setLevel(logging.INFO)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """--at-most: deselect what is marked as longer."""
    most = config.getoption("--at-most")
    if most is None:
        return
    long = [item for item in items if _minutes(item) > most]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that uses `guest` runs once for each --topology; without that option, for each of its marks."""
    if "guest" not in metafunc.fixturenames:
        return
    own = list(metafunc.definition.iter_markers("topology"))
    chosen = metafunc.config.getoption("--topology")
    marks = [pytest.mark.topology(name).mark for name in chosen] if chosen else own or [pytest.mark.topology("4socket").mark]
    if len(marks) > 1 or chosen:
        metafunc.parametrize("guest", marks, ids=[mark.args[0] for mark in marks], indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A lab error or an oops brings its evidence (the console's tail, both sides of a mismatch) into the report."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, LabError):
        report.sections.append(("numalab", f"{type(error).__name__}: {error}\n{error.evidence}"))
    return report


@dataclass
class Lab:
    """Makes guests for tests, with the session's options."""

    host: Host
    config: pytest.Config

    @contextmanager
    def up(self, topology: Topology, name: str, deadline: Deadline, *, kernel: str | None = None, append: str = "") -> Iterator[Guest]:
        """A fresh, verified guest; gone at the end of the block."""
        from numalab import guest as guests
        from numalab import settle

        request = guests.Request(
            name=guests.fresh_name("test-" + Path(name).name.removesuffix(".yml")), topology_name=name, shape=topology,
            kernel_name=kernel or self.config.getoption("--kernel"), wish=self.config.getoption("--accel"), append=append,
        )
        guest = settle.up(request, self.host, deadline.within(guests.UP_SECONDS))
        try:
            yield guest
        finally:
            guest.down(Deadline.after(60))

    @property
    def size(self) -> SizeClass:
        """--size."""
        return SizeClass(self.config.getoption("--size"))


@pytest.fixture(scope="session")
def lab(pytestconfig: pytest.Config) -> Lab:
    """The lab: a connection to the hypervisor."""
    from numalab.host import connect

    return Lab(connect(pytestconfig.getoption("--connect"), Deadline.after(60)), pytestconfig)


def _minutes(item: pytest.Item) -> float:
    mark = item.get_closest_marker("minutes")
    return float(mark.args[0]) if mark else DEFAULT_MINUTES


@pytest.fixture
def deadline(request: pytest.FixtureRequest) -> Deadline:
    """What the test may take, from its `minutes` mark."""
    return Deadline.after(60 * _minutes(request.node))


@pytest.fixture
def guest(request: pytest.FixtureRequest, lab: Lab, deadline: Deadline) -> Iterator[Guest]:
    """A fresh guest of the test's topology. One that the host cannot hold is skipped, saying so."""
    from numalab import catalog, topology
    from numalab.guest import admit

    mark = getattr(request, "param", None) or next(request.node.iter_markers("topology"), pytest.mark.topology("4socket").mark)
    memory = mark.kwargs.get("memory")
    shape = topology.scale(catalog.topology(mark.args[0]), memory=parse_size(memory) if memory else None, vcpus=mark.kwargs.get("vcpus"))
    try:
        admit(shape, lab.host)
    except HostError as error:
        pytest.skip(f"{mark.args[0]} ({shape.memory / GIB:.1f} GiB) does not fit this host: {error}")
    kernel = request.node.get_closest_marker("kernel")
    with lab.up(shape, mark.args[0], deadline, kernel=kernel.args[0] if kernel else None) as fresh:
        yield fresh


@pytest.fixture
def run(request: pytest.FixtureRequest, guest: Guest, lab: Lab, deadline: Deadline, record_property: Callable[[str, object], None]) -> Callable[[str], Run]:
    """run(WORKLOAD) -> Run, in the test's guest at the session's size; every counter goes into the JUnit XML."""
    from numalab import measure

    def measured(workload: str) -> Run:
        result, folder = measure.run(guest, workload, lab.size, deadline)
        record_property("run", str(folder))
        for phase in result.phases:
            if phase.phase.measured:
                record_property(f"{phase.phase.name}.elapsed", phase.elapsed)
                record_property(f"{phase.phase.name}.system", phase.system)
                for name, value in phase.counters.get("vmstat", {}).items():
                    if name.startswith(("numa_", "pgmigrate_", "pgfault")):
                        record_property(f"{phase.phase.name}.{name}", value)
        return result

    return measured
