# SPDX-License-Identifier: GPL-2.0-only
"""The pytest plugin: collects cases as tests, provides fixtures that boot guests, and options that choose
them.

Each testcases/NAME.yml is a test on its first machine, or on each --lab-topology. It boots in its set-up
(what breaks there is an error) and is judged in its call: passed, failed, or `cannot tell`, which is neither.
Fixtures: `lab` (makes guests), `guest` (a fresh verified guest, ended with the test), `run` (a workload in
it, measured and recorded), `deadline` (the test's own). With --lab-pool all cases are one night on the pool,
and each test waits for its own experiment. Marks: `topology(NAME, memory=, vcpus=)`, `minutes(N)`,
`kernel(NAME)`, `ready` (the guest begins from a saved state). host, guest and measure are imported when a
guest is first used, so that tests without guests need no libvirt.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from numalab.cli.terminal import error_line, handle_signals, on_signals, visible
from numalab.core.errors import InputError, LabError, NoRoom
from numalab.core.process import Deadline
from numalab.model.binding import parse_pin
from numalab.model.case import Case
from numalab.model.run import Run
from numalab.model.topology import Topology
from numalab.model.units import GIB, parse_nonzero_size, parse_size
from numalab.model.values import Clock, SizeClass
from numalab.model.verdict import Answer
from numalab.report import text as report_text

if TYPE_CHECKING:
    from numalab.experiment.run import Outcome
    from numalab.guest.guest import Guest
    from numalab.host.hypervisor import Host
    from numalab.pool.background import Background

DEFAULT_MINUTES = 10.0
NIGHT = pytest.StashKey["Background | LabError"]()
"""The pool's night that runs the session's cases, or why there is none."""
STDERR = pytest.StashKey[int]()
"""The session's standard error, as it is before pytest captures a test's."""
TOLD = pytest.StashKey[threading.Event]()
"""Ends what tells once a minute which steps run."""
OPTIONS = {
    "accelerator": "--lab-accel",
    "clock": "--lab-clock",
    "pin": "--lab-pin",
    "boots": "--lab-boots",
    "builds": "--lab-builds",
    "kernels": "--lab-kernels",
    "ready": "--lab-ready",
    "prepared_disks": "--lab-prepared-disks",
    "series": "--lab-series",
    "uri": "--lab-connect",
}
"""The fields of errors -> the options that set them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that choose machine, size and accelerator."""
    group = parser.getgroup("numalab", "numalab (the spellings without lab- go with 0.2)")

    def add(name: str, **how: Any) -> None:
        # Until 0.2 also without the prefix, as in the README of 0.1. getoption() takes either spelling.
        group.addoption(f"--lab-{name}", f"--{name}", **how)

    group.addoption(
        "--lab-clock",
        choices=[*(clock.value for clock in Clock), "auto"],
        default="auto",
        help="virtual: the guests' clocks count instructions: the host's load changes only the speed of"
        " disks without mibs_per_second (TCG); auto: the case's own, else virtual where QEMU can do it and"
        " something is measured",
    )
    group.addoption(
        "--lab-pin",
        type=_usage(parse_pin),
        metavar="auto|off|MAP",
        default="auto",
        help="the host's nodes and cores for guests of cases, as of lab.py run",
    )
    group.addoption(
        "--lab-huge-pages",
        type=_usage(parse_nonzero_size),
        metavar="SIZE",
        help="memory of guests of cases from huge pages of the host: 2M, 1G",
    )
    group.addoption(
        "--lab-seed",
        type=_usage(_seed),
        metavar="N",
        help="of what differs from boot to boot in cases, as of lab.py run; default: random",
    )
    group.addoption(
        "--lab-builds",
        type=_usage(_builds),
        metavar="N",
        default=1,
        help="builds of each kernel that differ in layout only, as of lab.py run",
    )
    group.addoption(
        "--lab-ready",
        action="store_true",
        help="guests of cases begin from saved states instead of boots, as of lab.py run",
    )
    group.addoption(
        "--lab-prepared-disks",
        action="store_true",
        help="cases whose first phases only prepare disks begin after them, as of lab.py run",
    )
    add("topology", action="append", metavar="T", help="run on these topologies instead of each test's own")
    add(
        "size",
        choices=[size.value for size in SizeClass],
        default=SizeClass.QUICK.value,
        help="quick: two emulated cores; full: the seeds' own",
    )
    add("accel", choices=["kvm", "tcg", "auto"], default="auto", help="accelerator of all guests")
    add("kernel", metavar="K", default="debian", help="kernel of all guests that do not name one")
    add(
        "kernels",
        metavar="K,K",
        default=None,
        help="before and after of all cases, instead of each one's own",
    )
    add(
        "series",
        metavar="S",
        default=None,
        help="before and after of all cases from this series (6.12); those without are left out",
    )
    add(
        "boots",
        metavar="N|auto",
        type=_boots,
        default=None,
        help="fresh boots of each kernel; auto: until the answer is clear",
    )
    add("connect", metavar="URI", default=None, help="libvirt connection")
    group.addoption(
        "--lab-pool",
        action="store_true",
        help="run the cases on the pool's hosts (lab.py pool up), side by side; other tests run here",
    )
    add("rates", action="store_true", help="run the tests of the lab's own error rates, and nothing else")
    add(
        "at-most",
        type=float,
        metavar="MINUTES",
        default=None,
        help="leave out tests that are marked as longer",
    )


def _usage(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse` for argparse, which makes a usage error with the line of this exception."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def _seed(text: str) -> int:
    if not (text.isdecimal() and int(text) < 2**32):
        raise ValueError(f"{text!r} is no seed: 0 to {2**32 - 1}")
    return int(text)


def _builds(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise ValueError(f"{text!r} is no number of builds: 1 or more")
    return int(text)


def _boots(text: str) -> int | str:
    """Parse --boots; argparse makes a usage error of anything else."""
    if text != "auto" and not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number from 1 nor auto")
    return text if text == "auto" else int(text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks, log steps with -o log_cli=true, and end on kill(1) or a hang-up as on Ctrl-C."""
    with suppress(OSError):  # closed: 2>&-
        config.stash[STDERR] = error = os.dup(2)
        config.add_cleanup(lambda: os.close(error))
    for line in (
        "topology(name, memory=SIZE, vcpus=N): the guest's machine; scaled where given",
        "minutes(n): what the test may take, boot and all; its deadline",
        "kernel(name): the guest's kernel",
        "ready: the test needs no fresh boot: its guest begins from a saved state, on the host's clock",
        "rates: of the lab itself; runs with --rates only",
    ):
        config.addinivalue_line("markers", line)
    logging.getLogger("numalab").setLevel(logging.INFO)
    if config.getoption("--lab-pool"):
        _check_pool(config)
    if threading.current_thread() is threading.main_thread():  # no other may
        # By default Python ends at once on SIGTERM and SIGHUP, and the guest would stay.
        config.add_cleanup(handle_signals(_interrupt))


def _check_pool(config: pytest.Config) -> None:
    """A usage error for options that --lab-pool does not go with."""
    if config.getoption("numprocesses", None) or config.getoption("dist", "no") != "no":
        raise pytest.UsageError(
            "--lab-pool: the pool runs cases side by side by itself: leave out xdist's -n"
        )
    if config.getoption("--connect"):
        raise pytest.UsageError(
            "--lab-pool --lab-connect: each host of a pool uses its own libvirt: give one of the two"
        )


def _interrupt() -> None:
    raise KeyboardInterrupt


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """--at-most deselects what may take longer; --rates selects tests of the lab instead of kernels. Where
    xdist runs tests side by side, the longest begin first, so that none is left alone at the end."""
    most, rates = config.getoption("--at-most"), config.getoption("--rates")
    out = {
        item
        for item in items
        if bool(item.get_closest_marker("rates")) != rates or (most is not None and _minutes(item) > most)
    }
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]
    if hasattr(config, "workerinput"):  # of an xdist worker; each must have the same order
        items.sort(key=_minutes, reverse=True)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect testcases/*.yml as cases."""
    from numalab.core import paths

    if file_path.suffix == ".yml" and file_path.parent in [root / "testcases" for root in paths.roots()]:
        return CaseFile.from_parent(parent, path=file_path)
    return None


class CaseFile(pytest.File):
    """A case on its first machine, or on each --topology."""

    def collect(self) -> Iterator[CaseItem]:
        """Its tests. A case without the requested size has none."""
        from numalab.model import catalog

        case = catalog.case(self.path.stem)
        size, kernels = SizeClass(self.config.getoption("--size")), self._kernels(case)
        if size in case.sizes and kernels is not None:
            for name in self.config.getoption("--topology") or [case.sizes[size].machines[0].topology]:
                yield CaseItem.from_parent(
                    self, name=f"{self.path.stem}[{name}]", topology_name=name, kernels=kernels
                )

    def _kernels(self, case: Case) -> Sequence[str] | None:
        """The kernels of --kernels; () for the case's; with --series theirs there, None if one is missing."""
        from numalab.experiment import matrix

        kernels, series = self.config.getoption("--kernels"), self.config.getoption("--series")
        if kernels is not None and series is not None:
            raise InputError(f"--lab-kernels {kernels} --lab-series {series}: give one of the two")
        if series is None:
            return () if kernels is None else kernels.split(",")
        return matrix.in_series(case, series)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str | Any:
        """One line about what is wrong with the case or its options."""
        return _plain(excinfo.value) or super().repr_failure(excinfo)


class CaseItem(pytest.Item):
    """A case on one machine."""

    def __init__(self, *, topology_name: str, kernels: Sequence[str], **rest: Any) -> None:
        super().__init__(**rest)
        from numalab.experiment.plan import make_plan

        self.plan = make_plan(
            self.path.stem,
            SizeClass(self.config.getoption("--size")),
            topology_name=topology_name,
            kernels=kernels,
            accel=self.config.getoption("--accel"),
            clock=_clock(self.config, measured=True),
            pin=self.config.getoption("--lab-pin"),
            huge_page=self.config.getoption("--lab-huge-pages"),
            seed=self.config.getoption("--lab-seed"),
            builds=self.config.getoption("--lab-builds"),
            ready=self.config.getoption("--lab-ready"),
            prepared_disks=self.config.getoption("--lab-prepared-disks"),
        )
        boots = self.config.getoption("--boots") or self.plan.case_size.boots
        self.boots: int | None = None if boots == "auto" else boots
        rounds = self.boots or self.plan.case_size.most_boots
        self.add_marker(pytest.mark.minutes(self.plan.case_size.minutes * rounds * len(self.plan.kernels)))
        self.outcome: Outcome | None = None

    def setup(self) -> None:
        """Boot everything. What breaks here is an error, not a failure: it says nothing about the kernels."""
        from numalab.experiment import judging

        outcome = self._of_pool() if self.config.getoption("--lab-pool") else self._conducted()
        runs = [run for run, _ in outcome.runs]
        verdicts = tuple(judging.among_others(verdict, runs) for verdict in outcome.verdicts)
        self.outcome = replace(outcome, verdicts=verdicts)
        for verdict in self.outcome.verdicts:
            for finding in verdict.findings:
                name = f"{verdict.after}.{finding.expectation.phase}.{finding.expectation.metric}"
                facts = finding.model_dump(
                    mode="json",
                    include={"before", "after", "ratio", "low", "high", "q", "answer", "grade"},
                    exclude_none=True,
                )
                self.user_properties += [
                    (f"{name}.{key}", value if isinstance(value, str) else json.dumps(value))
                    for key, value in facts.items()
                ]
        self.user_properties += [("run", str(folder)) for _, folder in self.outcome.runs]

    def _conducted(self) -> Outcome:
        from numalab.cli import live
        from numalab.experiment import run as experiment
        from numalab.host.hypervisor import connect

        _tell_what_runs(self.config)
        host = connect(self.config.getoption("--connect"), Deadline.after(60))
        return experiment.conduct(
            self.plan, host, self.boots, limit=Deadline.after, view=live.View(self.plan, self.boots)
        )

    def _of_pool(self) -> Outcome:
        """The outcome on the pool; the first case of the session begins the night of all."""
        items = [item for item in self.session.items if isinstance(item, CaseItem)]
        if NIGHT not in self.config.stash:
            self.config.stash[NIGHT] = _begin_night(self.config, items)
        night = self.config.stash[NIGHT]
        if isinstance(night, LabError):
            raise night
        return night.outcome(items.index(self))

    def runtest(self) -> None:
        """Judge the case."""
        assert self.outcome is not None
        answers = {verdict.answer for verdict in self.outcome.verdicts}
        text = visible("\n".join(report_text.verdict(verdict) for verdict in self.outcome.verdicts))
        self.add_report_section("call", "verdict", text)
        if Answer.DOES_NOT_HOLD in answers:
            raise DoesNotHold(text)
        if Answer.CANNOT_TELL in answers:
            raise CannotTell(text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str | Any:
        """The verdict as text, without a traceback."""
        return _plain(excinfo.value) or super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """The case's file and name."""
        return self.path, 0, self.name


def _begin_night(config: pytest.Config, items: Sequence[CaseItem]) -> Background | LabError:
    """A night of all cases, or why there is none: then all of them have that error."""
    from numalab.cli.case import refuse_paths
    from numalab.pool import cluster

    try:
        refuse_paths([], [item.plan for item in items], option="--lab-pool")
        cluster.need_dask()
        from numalab.pool.background import Background  # imports Dask, which takes a second

        night = Background([(item.plan, item.boots) for item in items])
    except LabError as error:
        return error
    _say(config, f"night {night.night}: {len(items)} experiments; dashboard: {night.dashboard}")
    return night


def _say(config: pytest.Config, line: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter:
        reporter.ensure_newline()
        reporter.write_line(visible(line))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the pool's night with the session, as lab.py does after a Ctrl-C: running rounds come to their end,
    unless another Ctrl-C ends them."""
    night = session.config.stash.get(NIGHT, None)
    if night is None or isinstance(night, LabError):
        return
    if not night.over and not night.whole:
        _say(session.config, "no round begins any more; those that run come to their end; Ctrl-C ends them")
    restore = (
        on_signals(night.end, night.end)
        if threading.current_thread() is threading.main_thread()
        else lambda: None
    )
    try:
        night.close()
    finally:
        restore()
    if not night.whole:
        _say(session.config, f"go on with it: ./lab.py matrix --resume {night.night}")


def _plain(error: BaseException) -> str:
    """The text of an error that explains itself; '' for others, which need their traceback."""
    return visible(error_line(error, OPTIONS)) if isinstance(error, (DoesNotHold, LabError)) else ""


class DoesNotHold(AssertionError):
    """The case does not hold."""


class CannotTell(pytest.skip.Exception):  # type: ignore[name-defined,misc]  # mypy takes this public name for a variable
    """The verdict is `cannot tell`; pytest counts it separately (see pytest_report_teststatus)."""


def pytest_report_teststatus(
    report: pytest.TestReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Report `cannot tell` as an outcome of its own, neither passed nor failed nor skipped."""
    if getattr(report, "cannot_tell", False):
        return "cannot tell", "?", ("CANNOT TELL", {"yellow": True})
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the reasons for `cannot tell`, as pytest does for failures."""
    reports = terminalreporter.getreports("cannot tell")
    if reports:
        terminalreporter.write_sep("=", "CANNOT TELL")
    for one in reports:
        terminalreporter.write_sep("_", one.head_line or one.nodeid)
        terminalreporter.write_line(visible(one.longrepr[2]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with `guest` once for each --topology; without that option, for each of its marks."""
    if "guest" not in metafunc.fixturenames:
        return
    own = list(metafunc.definition.iter_markers("topology"))
    chosen = metafunc.config.getoption("--topology")
    marks = (
        [pytest.mark.topology(name).mark for name in chosen]
        if chosen
        else own or [pytest.mark.topology("4socket").mark]
    )
    if len(marks) > 1 or chosen:
        metafunc.parametrize("guest", marks, ids=[mark.args[0] for mark in marks], indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a lab error's or oops's evidence (the console's tail, both sides of a mismatch) to the report."""
    made = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, CannotTell):
        made.cannot_tell = True  # type: ignore[attr-defined]
        if isinstance(made.longrepr, tuple):
            made.longrepr = (*made.longrepr[:2], str(error))  # without the exception's name
    if isinstance(error, LabError):
        made.sections.append(
            ("numalab", visible(f"{type(error).__name__}: {error_line(error, OPTIONS)}\n{error.evidence}"))
        )
        if isinstance(item, CaseItem):
            made.longrepr = _plain(error)  # pytest does not call repr_failure for errors in a set-up
    return made


@dataclass
class Lab:
    """Makes guests for tests, with the session's options."""

    host: Host
    config: pytest.Config

    @contextmanager
    def up(
        self,
        topology: Topology,
        name: str,
        deadline: Deadline,
        *,
        kernel: str | None = None,
        append: str = "",
        measured: bool = False,
        ready: bool = False,
    ) -> Iterator[Guest]:
        """A verified guest, ended with the block. It boots, or begins from its `ready` state, on the host's
        clock. `measured`: a workload's counters will be judged."""
        from numalab.guest import guest as guests
        from numalab.guest import launch
        from numalab.guest import ready as ready_states
        from numalab.guest.settings import UP_SECONDS
        from numalab.kernel import recipe

        request = launch.GuestRequest(
            name=guests.fresh_name("test-" + Path(name).name.removesuffix(".yml")),
            topology_name=name,
            shape=topology,
            kernel=recipe.load(kernel or self.config.getoption("--kernel")),
            accel=self.config.getoption("--accel"),
            clock=Clock.HOST if ready else _clock(self.config, measured=measured),
            append=append,
        )
        soon = deadline.within(UP_SECONDS)
        try:
            guest = (ready_states if ready else launch).up(request, self.host, soon)
        except InputError as error:
            if ready and error.field == "ready":  # else the error would name the option --lab-ready
                raise InputError(f"mark {error}") from error
            raise
        with guests.ending(guest):
            yield guest

    @property
    def size(self) -> SizeClass:
        """The size of --size."""
        return SizeClass(self.config.getoption("--size"))


@pytest.fixture(scope="session")
def lab(pytestconfig: pytest.Config) -> Lab:
    """The lab: a connection to the hypervisor."""
    from numalab.host.hypervisor import connect

    _tell_what_runs(pytestconfig)
    return Lab(connect(pytestconfig.getoption("--connect"), Deadline.after(60)), pytestconfig)


def _tell_what_runs(config: pytest.Config) -> None:
    """From now on, to the end of the session, tell once a minute which steps have run for a minute; also with
    -n, since xdist's workers have the session's standard error."""
    from numalab.cli import progress

    if STDERR not in config.stash or TOLD in config.stash:
        return
    config.stash[TOLD] = ended = threading.Event()
    show = partial(_write, config.stash[STDERR])
    thread = threading.Thread(target=progress.tell_what_runs, args=(ended, show), daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    config.add_cleanup(end)


def _write(file: int, line: str) -> None:
    with suppress(OSError):  # nobody reads it
        os.write(file, f"{line}\n".encode())


def _clock(config: pytest.Config, *, measured: bool) -> Clock | None:
    """The clock of --lab-clock. auto (None) is for guests that are measured; others boot faster without."""
    chosen = config.getoption("--lab-clock")
    return Clock(chosen) if chosen != "auto" else None if measured else Clock.HOST


def _minutes(item: pytest.Item) -> float:
    mark = item.get_closest_marker("minutes")
    return float(mark.args[0]) if mark else DEFAULT_MINUTES


@pytest.fixture
def deadline(request: pytest.FixtureRequest) -> Deadline:
    """The test's deadline, from its `minutes` mark."""
    return Deadline.after(60 * _minutes(request.node))


@pytest.fixture
def guest(request: pytest.FixtureRequest, lab: Lab, deadline: Deadline) -> Iterator[Guest]:
    """A guest of the test's topology, freshly booted unless the test is marked `ready`. Skips the test, with
    the reason, when the host cannot hold it."""
    from numalab.guest.start import admit
    from numalab.model import catalog, topology

    mark = getattr(request, "param", None) or next(
        request.node.iter_markers("topology"), pytest.mark.topology("4socket").mark
    )
    memory = mark.kwargs.get("memory")
    shape = topology.scale(
        catalog.topology(mark.args[0]),
        memory=parse_size(memory) if memory else None,
        vcpus=mark.kwargs.get("vcpus"),
    )
    try:
        admit(shape, lab.host, deadline)
    except NoRoom as error:
        pytest.skip(f"{mark.args[0]} ({shape.memory / GIB:.1f} GiB) does not fit this host: {error}")
    kernel = request.node.get_closest_marker("kernel")
    with lab.up(
        shape,
        mark.args[0],
        deadline,
        kernel=kernel.args[0] if kernel else None,
        measured="run" in request.fixturenames,
        ready=request.node.get_closest_marker("ready") is not None,
    ) as up:
        yield up


@pytest.fixture
def run(
    request: pytest.FixtureRequest,
    guest: Guest,
    lab: Lab,
    deadline: Deadline,
    record_property: Callable[[str, object], None],
) -> Callable[..., Run]:
    """run(WORKLOAD, **PARAMETERS) -> Run, in the test's guest and the session's size, of which PARAMETERS
    replace some. NUMA counters go into JUnit XML."""
    from numalab.measure import runner

    def measured(workload: str, **parameters: Any) -> Run:
        result, folder = runner.run(guest, workload, lab.size, deadline, runner.Options(params=parameters))
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
