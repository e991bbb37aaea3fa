# SPDX-License-Identifier: GPL-2.0-only
"""The pytest plugin as a user's tests and cases see it: in a pytest of its own, without a real guest."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import scipy.special  # noqa: F401  Here, or a pytest within this process forgets numpy at its end, which loads only once.

from numalab import pytest_plugin
from numalab.core import paths
from numalab.core.errors import HostError, InputError, KernelOops
from numalab.core.process import Deadline
from numalab.experiment import judging
from numalab.experiment import run as experiment
from numalab.experiment.plan import Plan, boot_order
from numalab.experiment.run import Outcome
from numalab.guest import guest as guests
from numalab.guest import launch, ready
from numalab.host import hypervisor
from numalab.model import catalog
from numalab.model.case import Arm
from numalab.model.values import Clock
from tests.unit import synthetic
from tests.unit.makers import FakeHost, kernel_names, pytest_argv

pytest_plugins = "pytester"

CASES = """
import pytest
from numalab.core.errors import GuestLost, KernelOops

@pytest.mark.minutes(30)
def test_long(guest): pass

@pytest.mark.topology("2socket", memory="2G")
@pytest.mark.topology("uma-2g")
@pytest.mark.minutes(5)
def test_two(guest): pass

def test_default(guest): pass

def test_bare(): pass

def test_lost(): raise GuestLost("guest g: SSH is lost", evidence="[ 1.0] its last words")

def test_libvirt_is_not_asked_for():
    import sys
    assert "libvirt" not in sys.modules
"""


def run(place: Path, *words: str) -> str:
    argv = pytest_argv(place, CASES, *words)
    return subprocess.run(argv, cwd=place, capture_output=True, text=True, timeout=120, check=False).stdout


@pytest.mark.parametrize(
    ("kind", "words"), [(signal.SIGINT, []), (signal.SIGTERM, []), (signal.SIGTERM, ["-n", "1"])]
)
def test_a_signal_ends_the_guests_too(kind: signal.Signals, words: list[str], tmp_path: Path) -> None:
    """Ctrl-C and kill(1): what a test made is removed before pytest exits."""
    (tmp_path / "test_mine.py").write_text("""
import contextlib, pathlib, time

@contextlib.contextmanager
def guest():
    pathlib.Path("guest").touch()
    try:
        yield
    finally:
        pathlib.Path("guest").unlink()

def test_waits():
    with guest():
        time.sleep(60)
""")
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        *words,
        "test_mine.py",
    ]
    # A shell's background job ignores SIGINT, and its children inherit that.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, text=True, preexec_fn=heed) as child:
        assert child.stdout
        end = time.monotonic() + 60
        while not (tmp_path / "guest").exists():
            assert time.monotonic() < end, "the test never began"
            time.sleep(0.05)
        child.send_signal(kind)
        assert "KeyboardInterrupt" in child.stdout.read()
    assert child.returncode == pytest.ExitCode.INTERRUPTED
    assert not (tmp_path / "guest").exists()


@pytest.mark.parametrize(
    ("words", "tests"),
    [
        (
            [],
            [
                "test_long",
                "test_two[uma-2g]",
                "test_two[2socket]",
                "test_default",
                "test_bare",
                "test_lost",
                "test_libvirt_is_not_asked_for",
            ],
        ),
        (
            ["--at-most", "10", "-k", "long or two or default"],
            ["test_two[uma-2g]", "test_two[2socket]", "test_default"],
        ),
        (
            ["--topology", "tiers", "--topology", "cpuless", "-k", "two or default or bare"],
            [
                "test_two[tiers]",
                "test_two[cpuless]",
                "test_default[tiers]",
                "test_default[cpuless]",
                "test_bare",
            ],
        ),
    ],
)
def test_which_tests(words: list[str], tests: list[str], tmp_path: Path) -> None:
    listed = run(tmp_path, "--collect-only", *words)
    assert sorted(line.partition("::")[2] for line in listed.splitlines() if "::" in line) == sorted(tests)


@pytest.mark.parametrize(
    ("configure", "order"),
    [
        ("pass", "test_short test_default test_long "),
        ("config.workerinput = {}", "test_long test_default test_short "),
    ],
)
def test_side_by_side_the_longest_begin_first(configure: str, order: str, tmp_path: Path) -> None:
    # What makes a worker of xdist, without a pytest in a pytest that starts a third: on a busy machine that one hung.
    (tmp_path / "conftest.py").write_text(f"def pytest_configure(config): {configure}\n")
    tests = """
import pathlib
import pytest

@pytest.fixture(autouse=True)
def noted(request):
    with pathlib.Path("order").open("a") as file:
        file.write(f"{request.node.name} ")

@pytest.mark.minutes(5)
def test_short(): pass

def test_default(): pass

@pytest.mark.minutes(30)
def test_long(): pass
"""
    argv = pytest_argv(tmp_path, tests)
    subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=120, check=True)
    assert (tmp_path / "order").read_text() == order


PREFIXED = ("builds", "clock", "huge-pages", "pin", "pool", "prepared-disks", "ready", "seed")
"""Options that came after 0.1: with the prefix only."""


def test_options_have_a_prefix(tmp_path: Path) -> None:
    """Each option works with the prefix and, until 0.2, without; both set the same value."""
    words = {
        "topology": "tiers",
        "size": "full",
        "accel": "tcg",
        "kernel": "6.1",
        "kernels": "6.1,6.12",
        "series": "6.12",
        "boots": "3",
        "connect": "test:///default",
        "at-most": "10",
        "rates": None,
    }
    (tmp_path / "conftest.py").write_text(f"""
def pytest_terminal_summary(terminalreporter, config):
    for name in {list(words)}:
        print(name, config.getoption("--lab-" + name), config.getoption("--" + name))
""")
    outputs = {
        prefix: run(
            tmp_path,
            "--collect-only",
            *(
                f"{prefix}{name}" if value is None else f"{prefix}{name}={value}"
                for name, value in words.items()
            ),
        )
        for prefix in ("--lab-", "--")
    }
    for name, value in words.items():
        seen = {"topology": "['tiers']", "at-most": "10.0", "rates": "True"}.get(name, value)
        for prefix, out in outputs.items():
            assert f"{name} {seen} {seen}\n" in out, f"{prefix}{name}"
    shown = run(tmp_path, "--help")
    assert {*words, *PREFIXED} == set(re.findall(r"^  --lab-([a-z-]+)", shown, re.MULTILINE))


def test_a_guest_from_a_ready_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host's clock, whatever --lab-clock says; what is refused is not blamed on --lab-ready."""
    options = {"--kernel": "6.1", "--accel": "tcg", "--lab-clock": "virtual"}
    config = SimpleNamespace(getoption=options.__getitem__)
    made: list[launch.GuestRequest] = []
    monkeypatch.setattr(ready, "up", lambda request, *_: made.append(request))
    monkeypatch.setattr(guests, "ending", lambda _: nullcontext())
    lab = pytest_plugin.Lab(FakeHost(), config)  # type: ignore[arg-type]
    shape = catalog.topology("uma-2g")
    with lab.up(shape, "uma-2g", Deadline.after(60), ready=True, measured=True):
        assert made[0].clock is Clock.HOST

    def refuse(*_: object) -> None:
        raise InputError("ready: not with kernel 4.9", field="ready")

    monkeypatch.setattr(ready, "up", refuse)
    with (
        pytest.raises(InputError, match=r"^mark ready: not with kernel 4\.9$") as refused,
        lab.up(shape, "uma-2g", Deadline.after(60), ready=True),
    ):
        pass
    assert not refused.value.field


def test_evidence_is_in_the_report(tmp_path: Path) -> None:
    output = run(tmp_path, "-k", "lost or bare or libvirt", "--strict-markers")
    assert "1 failed, 2 passed" in output
    assert "- numalab -" in output
    assert "GuestLost: guest g: SSH is lost\n[ 1.0] its last words" in output


HOSTS = """
from types import SimpleNamespace
import pytest
from numalab.core.errors import HostError
from tests.unit.makers import FakeHost

class Silent(FakeHost):
    def free_memory(self, deadline):
        raise HostError("libvirt does not answer")

@pytest.fixture
def lab(request):
    return SimpleNamespace(host=getattr(request, "param", None))

@pytest.mark.parametrize("lab", [FakeHost(free=0)], indirect=True)
def test_small(lab, guest): pass

@pytest.mark.parametrize("lab", [Silent()], indirect=True)
def test_silent(lab, guest): pass
"""


def test_a_guest_that_does_not_fit_is_skipped_and_a_silent_libvirt_is_an_error(
    pytester: pytest.Pytester,
) -> None:
    """A skip would let a run pass in which nothing was tested."""
    for folder in ("topologies", "kernels"):
        (pytester.path / folder).symlink_to(paths.ROOT / folder)
    pytester.makepyfile(HOSTS)
    result = pytester.runpytest_inprocess(
        "-rs", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"
    )
    result.assert_outcomes(skipped=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*HostError: libvirt does not answer*", "*4socket (* GiB) does not fit this host: *"]
    )


CASE = """
description: what failed migrations do to the scanner
source: slowscan-lkml-2015.txt
workload: remote
before: 6.1-slowscan-before
after: "6.1"
sizes:
  quick:
    source: ours
    machines: [{topology: 4socket, memory: 4GiB, vcpus: 8}, {topology: cpus2of4}]
    boots: 3
    most_boots: 8
    minutes: 4
expect:
  - {metric: numa_pte_updates, phase: touch, direction: falls, by: 2}
  - {metric: numa_hint_faults, phase: touch, direction: falls, decides: false}
"""
BEFORE, CLEAR, SAME, NOISE = (
    (1_557_000, 1_721_000, 1_590_000),
    (98_000, 98_100, 98_500),
    (1_500_000, 1_690_000, 1_580_000),
    (900_000, 200_000, 1_800_000),
)


class Cases:
    """A checkout with cases of the test's own, and experiments that only record their arguments."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.conducted: list[tuple[Plan, int | None]] = []
        self.after: Sequence[int] = CLEAR
        self.breaks: BaseException | None = None
        self.nights: list[Night] = []
        self.afters: dict[str, Sequence[int]] = {}
        self.errors: dict[str, BaseException] = {}
        for folder in ("topologies", "kernels"):
            (pytester.path / folder).symlink_to(paths.ROOT / folder)
        (pytester.path / "testcases").mkdir()
        (pytester.path / "testcases" / "workloads").symlink_to(paths.ROOT / "testcases" / "workloads")
        self.write("mine", CASE)

    def write(self, name: str, text: str) -> None:
        """Write a case's file."""
        (self.pytester.path / "testcases" / f"{name}.yml").write_text(text)

    def conduct(self, plan: Plan, host: object, boots: int | None, **_: object) -> Outcome:
        """See experiment.run.conduct."""
        self.conducted.append((plan, boots))
        if self.breaks:
            raise self.breaks
        runs = []
        for number, index in boot_order(plan.kernels, 3):
            value = (BEFORE, self.after)[min(index, 1)][number // len(plan.kernels)]
            phase = synthetic.phase("touch", vmstat={"numa_pte_updates": value})
            runs.append(
                synthetic.run(
                    plan.kernels[index].name,
                    phase,
                    boot=number,
                    arm=Arm.AFTER if index else Arm.BEFORE,
                    case=plan.case,
                    case_name="mine",
                    size=plan.size,
                )
            )
        return Outcome("e", tuple((run, Path("/runs") / run.id) for run in runs), judging.verdicts(runs))

    def run(self, *words: str) -> pytest.RunResult:
        """Run a pytest over testcases/."""
        # numalab is already imported in this process; pytest's warning about that is no outcome of a case.
        return self.pytester.runpytest_inprocess(
            "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", *words, "testcases"
        )

    def properties(self) -> dict[str, str]:
        """The properties of the only test in the JUnit XML."""
        assert self.run("--junitxml=j.xml", "-o", "junit_family=xunit1")
        tests = ElementTree.parse(self.pytester.path / "j.xml").findall(".//testcase")
        assert len(tests) == 1
        return {one.attrib["name"]: one.attrib["value"] for one in tests[0].findall("./properties/property")}


@pytest.fixture
def cases(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Cases:
    made = Cases(pytester)
    monkeypatch.setattr(paths, "ROOT", pytester.path)
    monkeypatch.setattr(experiment, "conduct", made.conduct)
    monkeypatch.setattr(hypervisor, "connect", lambda *_: FakeHost())
    return made


def test_a_case_that_holds_passes(cases: Cases) -> None:
    result = cases.run("-v")
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["testcases/mine.yml::mine[[]4socket[]] PASSED*"])
    [(plan, boots)] = cases.conducted
    assert (plan.case_name, plan.machine.topology, kernel_names(plan), boots, plan.accel) == (
        "mine",
        "4socket",
        ("6.1-slowscan-before", "6.1"),
        3,
        "auto",
    )


def test_a_case_that_does_not_hold_fails_with_its_verdict(cases: Cases) -> None:
    cases.after = SAME
    result = cases.run()
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "mine (quick) on 4socket, tcg: *3 and 3 boots: DOES NOT HOLD: *",
            "*numa_pte_updates, touch: falls by a factor of 2: does not hold*",
            f"*doubt: {judging.UNCONFIRMED[:40]}*",
        ]
    )
    assert "plugin.py" not in result.stdout.str(), "a verdict is no stack of calls"


def test_cannot_tell_is_an_outcome_of_its_own(cases: Cases) -> None:
    """Neither passed nor failed nor skipped; the reason is printed."""
    cases.after = NOISE
    result = cases.run("-v", "-ra")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "testcases/mine.yml::mine[[]4socket[]] CANNOT TELL*",
            "=* CANNOT TELL =*",
            "*3 and 3 boots: CANNOT TELL",
            "*numa_pte_updates, touch: falls by a factor of 2: cannot tell*",
            "=* 1 cannot tell in * =*",
        ]
    )
    cases.run().stdout.fnmatch_lines(["testcases/mine.yml [?] *"])


def test_a_test_of_ones_own_may_not_tell_either(cases: Cases) -> None:
    """Such as a test of the lab's own error rates; a skipped test beside it stays skipped."""
    (cases.pytester.path / "testcases" / "mine.yml").unlink()
    cases.pytester.makepyfile(
        **{
            "testcases/test_it": (
                """
        import pytest
        from numalab.pytest_plugin import CannotTell
        def test_one(): raise CannotTell("too few boots")
        def test_two(): pytest.skip("no room")
    """
            )
        }
    )
    expected = ["_* test_one _*", "too few boots", "=* 1 skipped,*1 cannot tell in * =*"]
    cases.run().stdout.fnmatch_lines(expected)
    cases.run("-n", "1").stdout.fnmatch_lines(expected)


@pytest.mark.parametrize(
    "error",
    [
        InputError("case mine: 2 boots: 3 or more decide"),
        KernelOops("guest g: its kernel says: BUG", evidence="[ 1.0] RIP: 0"),
    ],
)
def test_what_breaks_is_an_error_not_a_failure(cases: Cases, error: Exception) -> None:
    cases.breaks = error
    result = cases.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{error}"])
    if isinstance(error, KernelOops):
        result.stdout.fnmatch_lines(["*RIP: 0"])
    assert "plugin.py" not in result.stdout.str()


def test_what_nobody_expects_brings_its_traceback(cases: Cases) -> None:
    cases.breaks = ZeroDivisionError("in the judge")
    result = cases.run()
    result.assert_outcomes(errors=1)
    assert "test_plugin.py" in result.stdout.str()


def test_metrics_are_in_the_junit_xml(cases: Cases) -> None:
    """Each by kernel, phase and name; absent values are left out."""
    properties = cases.properties()
    name = "6.1.touch.numa_pte_updates"
    assert json.loads(properties[f"{name}.before"]) == list(BEFORE)
    assert float(properties[f"{name}.ratio"]) == pytest.approx(0.0606, rel=0.01)
    assert (
        float(properties[f"{name}.low"])
        < float(properties[f"{name}.ratio"])
        < float(properties[f"{name}.high"])
    )
    assert 0 < float(properties[f"{name}.q"]) < 0.05
    assert properties[f"{name}.answer"] == "holds"
    absent = "6.1.touch.numa_hint_faults"
    assert properties[f"{absent}.answer"] == "cannot tell"
    assert properties[f"{absent}.before"] == "[]"
    assert not {f"{absent}.ratio", f"{absent}.q"} & set(properties)
    assert properties["run"].startswith("/runs/")


def test_each_after_has_its_own_metrics(cases: Cases) -> None:
    cases.run("--kernels", "6.1-slowscan-before,6.1,6.12", "--junitxml=j.xml", "-o", "junit_family=xunit1")
    text = (cases.pytester.path / "j.xml").read_text()
    assert "6.1.touch.numa_pte_updates.ratio" in text
    assert "6.12.touch.numa_pte_updates.ratio" in text


@pytest.mark.parametrize(
    ("words", "boots"),
    [
        (["--boots", "5"], 5),
        (["--boots", "auto"], None),
        ([], 3),
    ],
)
def test_boots(cases: Cases, words: list[str], boots: int | None) -> None:
    cases.run(*words)
    assert [plan for _, plan in cases.conducted] == [boots]


@pytest.mark.parametrize("text", ["0", "-1", "many", "2.5", ""])
def test_bad_boots(cases: Cases, text: str) -> None:
    result = cases.run(f"--boots={text}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"*argument --lab-boots/--boots: '{text}' is neither a number from 1 nor auto"]
    )
    assert not cases.conducted


def test_options_choose(cases: Cases) -> None:
    cases.run(
        "--topology",
        "fakenuma",
        "--topology",
        "cpus2of4",
        "--kernels",
        "6.1-nogroup-always-before,6.1",
        "--accel",
        "tcg",
    )
    assert [(plan.machine.topology, kernel_names(plan), plan.accel) for plan, _ in cases.conducted] == [
        (name, ("6.1-nogroup-always-before", "6.1"), "tcg") for name in ("fakenuma", "cpus2of4")
    ]


def test_series(cases: Cases) -> None:
    """The case's own kernels in that series; a case that lacks one of them is left out."""
    cases.write(
        "policy",
        CASE.replace("6.1-slowscan-before", "6.1-fairzone-before").replace('"6.1"', "6.1-fairzone-after"),
    )
    assert cases.run("--series", "6.12").parseoutcomes() == {"passed": 1}
    assert [(plan.case_name, kernel_names(plan)) for plan, _ in cases.conducted] == [
        ("mine", ("6.12-slowscan-before", "6.12"))
    ]
    assert cases.run("--series", "6.1").parseoutcomes() == {"passed": 2}


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--at-most", "24"], True),
        (["--at-most", "23"], False),
        # Up to 8 boots of each kernel, of 4 minutes.
        (["--boots", "auto", "--at-most", "63"], False),
        (["--boots", "auto", "--at-most", "64"], True),
        (["--kernels", "6.1,6.1,6.1", "--at-most", "24"], False),
        (["-k", "mine"], True),
        (["-k", "4socket"], True),
        (["-k", "other"], False),
        (["--rates"], False),
        (["-m", "rates"], False),
    ],
)
def test_deselected(cases: Cases, words: list[str], left: bool) -> None:
    """By the time limits of all its boots, and by name."""
    assert cases.run(*words).parseoutcomes() == ({"passed": 1} if left else {"deselected": 1})


def test_which_files_are_cases(cases: Cases) -> None:
    """Files in testcases/ that have the requested size."""
    cases.pytester.mkdir("testcases/data")
    cases.write("data/no", "a: 1")
    cases.write("long", CASE.replace("quick", "full"))
    assert cases.run().parseoutcomes() == {"passed": 1}
    assert cases.run("--size", "full").parseoutcomes() == {"passed": 1}
    assert [plan.case_name for plan, _ in cases.conducted] == ["mine", "long"]


@pytest.mark.parametrize(
    ("break_it", "words", "line"),
    [
        (
            lambda cases: cases.write("mine", "description: 1"),
            [],
            "*testcases/mine.yml:1: description: Input should be a valid string",
        ),
        (lambda cases: None, ["--kernels", "6.1"], "--lab-kernels 6.1: one kernel compares with nothing*"),
        (lambda cases: None, ["--topology", "7socket"], "no topologies file *"),
        (
            lambda cases: None,
            ["--series", "6.7"],
            "--lab-series 6.7: there is no kernels/6.7.yml: there are * others, such as *6.12*",
        ),
        (
            lambda cases: None,
            ["--series", "6.12", "--kernels", "6.1,6.12"],
            "--lab-kernels 6.1,6.12 --lab-series 6.12: give one of the two",
        ),
    ],
)
def test_bad_cases_and_options(
    cases: Cases, break_it: Callable[[Cases], Any], words: list[str], line: str
) -> None:
    """An error of the collection, in one line."""
    break_it(cases)
    result = cases.run(*words)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([line])
    assert "plugin.py" not in result.stdout.str()
    assert not cases.conducted


@pytest.mark.parametrize(
    ("words", "names"), [([], catalog.names("topologies")), (["--topology", "fakenuma"], ["fakenuma"])]
)
def test_the_labs_own_testcases_are_collected(
    words: list[str], names: list[str], pytester: pytest.Pytester
) -> None:
    """All of them, on every topology or on the selected ones."""
    argv = [
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--rootdir={paths.ROOT}",
        *words,
        str(paths.ROOT / "testcases"),
    ]
    result = pytester.runpytest_inprocess(*argv)
    assert result.ret == 0
    listed = result.stdout.str()
    assert sorted(re.findall(r"test_topology_is_as_asked\[(.*)\]", listed)) == sorted(names)
    for name in catalog.names("testcases"):
        assert re.search(rf"/{name}\.yml::{name}\[{names[0] if words else '.*'}\]", listed)


class Night:
    """A night on the pool without one: what it is asked for, each experiment as `Cases.conduct` has it."""

    def __init__(self, cases: Cases, plans: Sequence[tuple[Plan, int | None]]) -> None:
        self.cases, self.plans = cases, plans
        self.night, self.dashboard, self.over = "20261123t1200-1", "http://127.0.0.1:8787", False
        self.done: set[int] = set()
        cases.nights.append(self)

    def outcome(self, number: int) -> Outcome:
        """See background.Background."""
        plan, boots = self.plans[number]
        self.cases.after = self.cases.afters.get(plan.case_name, CLEAR)
        if error := self.cases.errors.get(plan.case_name):
            raise error
        self.done.add(number)
        return self.cases.conduct(plan, None, boots)

    @property
    def whole(self) -> bool:
        """Whether every experiment has ended."""
        return len(self.done) == len(self.plans)

    def close(self) -> None:
        """See background.Background."""
        self.over = True

    def end(self) -> None:
        """See background.Background."""


@pytest.fixture(scope="session")
def background() -> ModuleType:
    """Imported before pytester is: Dask's importlib_metadata replaces the finder of entry points for good, and
    pytester would take its own away again."""
    from numalab.pool import background

    return background


@pytest.fixture
def pooled(background: ModuleType, cases: Cases, monkeypatch: pytest.MonkeyPatch) -> Cases:
    monkeypatch.setattr(background, "Background", partial(Night, cases))
    monkeypatch.setattr(hypervisor, "connect", lambda *_: pytest.fail("this machine's libvirt is not asked"))
    return cases


def test_with_the_pool_all_cases_are_one_night(pooled: Cases) -> None:
    """Each test has its own experiment's verdict, as without the pool; an error is no failure."""
    for name in ("clear", "noise", "same", "oops", "lost"):
        pooled.write(name, CASE)
    (pooled.pytester.path / "testcases" / "mine.yml").unlink()
    pooled.afters = {"noise": NOISE, "same": SAME}
    pooled.errors = {
        "oops": KernelOops("the after kernel crashed: BUG"),
        "lost": HostError("h0: no room on the disk"),
    }
    result = pooled.run("--lab-pool", "--lab-boots", "4", "-v")
    result.assert_outcomes(passed=1, failed=1, errors=2)
    result.stdout.fnmatch_lines_random(
        [
            "night 20261123t1200-1: 5 experiments; dashboard: http://127.0.0.1:8787",
            "testcases/noise.yml::noise[[]4socket[]] CANNOT TELL*",
            "testcases/same.yml::same[[]4socket[]] FAILED*",
            "*the after kernel crashed: BUG",
            "*h0: no room on the disk",
        ]
    )
    (night,) = pooled.nights
    assert sorted(plan.case_name for plan, _ in night.plans) == ["clear", "lost", "noise", "oops", "same"]
    assert {boots for _, boots in night.plans} == {4}
    assert night.over


def test_ctrl_c_ends_the_night_and_says_how_to_go_on(pooled: Cases) -> None:
    pooled.write("late", CASE)
    pooled.errors = {"mine": KeyboardInterrupt()}
    result = pooled.pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--lab-pool", "testcases", no_reraise_ctrlc=True
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["no round begins any more; *", "go on with it: ./lab.py matrix --resume 20261123t1200-1"]
    )
    assert pooled.nights[0].over


def test_without_a_pool_every_case_is_an_error(cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    from numalab.pool import background

    asked: list[object] = []

    def refuse(plans: object) -> None:
        asked.append(plans)
        raise HostError("no pool is up: lab.py pool up")

    monkeypatch.setattr(background, "Background", refuse)
    cases.write("second", CASE)
    result = cases.run("--lab-pool")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*no pool is up: lab.py pool up"])
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-n", "2"], "--lab-pool: the pool runs cases side by side by itself: leave out xdist's -n"),
        (["--lab-connect", "qemu:///system"], "--lab-pool --lab-connect: each host of a pool uses its own*"),
    ],
)
def test_what_the_pool_does_not_go_with(pooled: Cases, words: Sequence[str], says: str) -> None:
    result = pooled.run("--lab-pool", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {says}"])
    assert pooled.nights == []


def test_a_path_is_refused_with_the_pool(pooled: Cases) -> None:
    own = pooled.pytester.path / "own.yml"
    own.write_text((paths.ROOT / "topologies" / "2socket.yml").read_text())
    result = pooled.run("--lab-pool", "--lab-topology", str(own))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"--lab-pool: {own}: is a path*"])
    assert pooled.nights == []


@pytest.mark.parametrize("words", [(), ("-n", "1")])
def test_a_long_step_is_told_once_a_minute(pytester: pytest.Pytester, words: tuple[str, ...]) -> None:
    """On the session's standard error, though the test's own is captured; of workers of xdist too."""
    pytester.makepyfile("""
        import time
        import numalab.pytest_plugin as plugin
        from numalab.cli import progress
        from numalab.core import log

        def test(pytestconfig):
            progress.STILL_SECONDS = 0.05
            plugin._tell_what_runs(pytestconfig)
            with log.step("built", who="kernel 6.1"):
                log.moving("812 files compiled")
                time.sleep(0.3)
    """)
    result = pytester.runpytest_subprocess(*words)
    result.assert_outcomes(passed=1)
    assert re.search(r"^… +\d+ s  kernel 6\.1: built: 812 files compiled$", result.stderr.str(), re.MULTILINE)
