# SPDX-License-Identifier: GPL-2.0-only
"""The agent, which runs in the guest, executed on this host."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from numalab.core import paths
from numalab.measure import agent as runner
from numalab.measure.agent import KEEP, snapshot
from numalab.runs import counters
from tests.unit.makers import recorded, running, until

SCRIPT = paths.AGENT


def ran(
    about: dict[str, Any], *before: str, script: Path = SCRIPT, check: bool = True
) -> subprocess.CompletedProcess[str]:
    # -I -S: nothing but the standard library, as in the guest
    asked = json.dumps({"files": [], "limit": 60, **about})
    return subprocess.run(
        [*before, sys.executable, "-I", "-S", script],
        input=asked,
        capture_output=True,
        text=True,
        timeout=120,
        check=check,
    )


def inside(command: str, *, files: list[str] | None = None, limit: float = 60, **more: Any) -> dict[str, Any]:
    done = ran({"command": command, "files": files or [], "limit": limit, **more})
    assert done.stderr == ""
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize(
    ("command", "status"), [("true", 0), ("exit 3", 3), ("kill -9 $$", -9), ("no-such-command", 127)]
)
def test_status(command: str, status: int) -> None:
    told = inside(command)
    assert (told["status"], told["timed_out"]) == (status, False)


def test_streams() -> None:
    told = inside("echo out; echo err >&2; cat; printf '\\377'")
    assert (told["stdout"], told["stderr"]) == (
        "out\n\ufffd",
        "err\n",
    ), "and the command's standard input is empty"


def test_the_end_of_long_streams_is_kept() -> None:
    told = inside(f"head -c {KEEP + 5} /dev/zero | tr '\\0' x; echo end")
    said, _, kept = told["stdout"].partition("\n")
    assert said == "[9 bytes before this are not kept]"
    assert len(kept) == KEEP
    assert kept.endswith("xend\n")


def test_the_most_frequent_stacks_of_too_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = collections.Counter({"b;x": 3, "c;y": 1, "a;z": 2, "d;w": 1})
    assert runner.shortened(counts) == "a;z 2\nb;x 3\nc;y 1\nd;w 1\n"
    monkeypatch.setattr(runner, "KEEP_STACKS", 13)
    assert runner.shortened(counts) == "a;z 2\nb;x 3\n[not-kept] 2\n"


def test_snapshots_at_both_edges(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "gone.txt"):
        (tmp_path / name).write_text("numa_hit 1\n")
    told = inside(
        f"cd {tmp_path}; echo 'numa_hit 7' > a.txt; rm gone.txt; echo > new.txt",
        files=[f"{tmp_path}/*.txt", "/no/such/*"],
    )
    for edge in ("before", "after"):
        told[edge].pop(counters.KSWAPD, None)
    assert {Path(path).name: text for path, text in told["before"].items()} == {
        "a.txt": "numa_hit 1\n",
        "b.txt": "numa_hit 1\n",
        "gone.txt": "numa_hit 1\n",
    }
    assert {Path(path).name: text for path, text in told["after"].items()} == {
        "a.txt": "numa_hit 7\n",
        "b.txt": "numa_hit 1\n",
        "new.txt": "\n",
    }


def test_snapshot_passes_over_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("text")
    assert snapshot([f"{tmp_path}/*"]) == {f"{tmp_path}/file": "text"}


def test_this_hosts_own_counters() -> None:
    told = inside("true", files=["/proc/vmstat"])
    assert "nr_free_pages " in told["before"]["/proc/vmstat"]
    assert "nr_free_pages " in told["after"]["/proc/vmstat"]


def test_time_of_kswapd(tmp_path: Path) -> None:
    """utime and stime, in whichever state, by the thread's name; a thread that is gone is left out."""
    ticks = os.sysconf("SC_CLK_TCK")
    for name, state, utime, stime in (("kswapd1", "R", 0, 3), ("kswapd0", "S", ticks, 2 * ticks)):
        zeros = " 0" * 9
        (tmp_path / name).write_text(f"39 ({name}) {state} 2{zeros} {utime} {stime} 0 0 20 0 1 0 294 0\n")
    stats = [str(tmp_path / name) for name in ("kswapd1", "gone", "kswapd0")]
    assert runner.cpu_time(stats) == f"kswapd0 3000\nkswapd1 {3000 // ticks}\n"


def test_threads_of_this_hosts_kernel() -> None:
    """A program that calls itself kswapd0 is none: kthreadd started the kernel's."""
    found = {Path(path).parent.name for path in runner.kswapd()}
    assert found == {
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/stat")
        if (text := path.read_text()).split(" ")[1].startswith("(kswapd") and text.split(" ")[3] == "2"
    }
    told = inside("true")
    assert ("kswapd" in told["before"]) is ("kswapd" in told["after"]) is bool(found)


def test_time_limit(tmp_path: Path) -> None:
    """The command and its children end; their output so far is returned."""
    told = inside(f"echo said; sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' & wait", limit=0.5)
    assert (told["timed_out"], told["status"], told["stdout"]) == (True, -9, "said\n")
    pid = (tmp_path / "pid").read_text().strip()
    until(lambda: not running(int(pid)))


def test_times_are_the_commands() -> None:
    told = inside("i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")
    assert told["user"] > 0
    assert 0 < told["elapsed"] < 120
    assert told["system"] >= 0
    assert told["load"] >= 0


def test_samples() -> None:
    """Samples of machine and nodes go to standard error as they are taken, and not into the result."""
    done = ran({"command": "sleep 1; echo said >&2", "sample": 0.2})
    samples = [json.loads(line) for line in done.stderr.splitlines()]
    times = [sample["t"] for sample in samples]
    assert len(samples) >= 2
    assert all(later - earlier > 0.19 for earlier, later in pairwise([0, *times])), "none sooner than set"
    assert set(samples[0]) == {
        "t",
        "vmstat",
        *(f"{node.name}.vmstat" for node in Path("/sys/devices/system/node").glob("node[0-9]*")),
        *runner.zones(Path("/proc/zoneinfo").read_text()),
    }
    assert samples[0]["vmstat"]["nr_free_pages"] > 0
    assert "pgfault" in samples[0]["vmstat"]
    assert "kswapd_low_wmark_hit_quickly" not in samples[0]["vmstat"], (
        "what no case watches is left out: a phase has many samples"
    )
    assert json.loads(done.stdout)["stderr"] == "said\n"


def test_zones_of_today() -> None:
    """A zone's own pages; those of its node, printed in its first zone, are in the node's vmstat."""
    found = runner.zones(recorded("zoneinfo-6.1.txt"))
    assert list(found) == ["node0.DMA", "node0.DMA32", "node1.DMA32"], "zones without memory are left out"
    assert found["node0.DMA"] == {
        "present": 3998,
        "nr_free_pages": 3840,
        "nr_zone_inactive_file": 0,
        "nr_zone_active_file": 0,
        "nr_zone_write_pending": 0,
    }
    assert found["node0.DMA32"]["nr_zone_inactive_file"] > 0
    assert "nr_dirty" not in found["node0.DMA32"], "the node's"


def test_zones_before_4_8() -> None:
    found = runner.zones(recorded("zoneinfo-3.19.txt"))
    assert list(found) == ["node0.DMA", "node0.Normal"]
    assert found["node0.Normal"] == {
        "present": 262144,
        "nr_free_pages": 11203,
        "nr_alloc_batch": 604,
        "nr_inactive_file": 112313,
        "nr_active_file": 9942,
        "nr_dirty": 59709,
        "nr_writeback": 739,
    }


def test_a_short_phase_has_no_sample() -> None:
    assert ran({"command": "true", "sample": 30}).stderr == ""


def test_the_sampler_is_not_waited_for(tmp_path: Path) -> None:
    start = time.monotonic()
    ran({"command": "true", "sample": 60})
    assert time.monotonic() - start < 30


def test_long_phases_are_sampled_more_rarely(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []

    class Done(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            return len(waits) > 7

    monkeypatch.setattr(runner, "MOST", 3)
    monkeypatch.setattr(runner, "sample", lambda start, _trace: {"t": start})
    runner.sampling(2.0, 5.0, Done())
    assert waits == [2, 2, 2, 4, 4, 4, 8, 8]
    assert capsys.readouterr().err == '{"t": 5.0}\n' * 7


# tracefs is mounted in a mount namespace of its own, so that no mount is left here.
ALONE = ("unshare", "--mount", "--propagation", "private")
TRACEFS = "/sys/kernel/tracing"


def in_tracefs(command: str) -> str:
    """The output of a command with tracefs mounted; '' where mounting is not allowed."""
    words = [*ALONE, "sh", "-c", f"[ -e {TRACEFS}/events ] || mount -t tracefs none {TRACEFS}; {command}"]
    return (
        subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout
        if os.geteuid() == 0
        else ""
    )


traces = pytest.mark.skipif(
    not in_tracefs(f"ls -d {TRACEFS}/events/sched/sched_process_exec"),
    reason="tracing takes root and a kernel with tracefs",
)


@traces
def test_tracepoints() -> None:
    """Counted between the snapshots; an event that the kernel lacks is absent, never 0."""
    done = ran(
        {
            "command": f"for i in 1 2 3 4 5; do /bin/true; done; ls {TRACEFS}/instances",
            "trace": ["sched:sched_process_exec", "numalab:no_such_event", "no"],
        },
        *ALONE,
    )
    told = json.loads(done.stdout)
    found = counters.phase(told["before"], told["after"])["trace"]
    assert set(found) == {"sched:sched_process_exec"}
    assert found["sched:sched_process_exec"] >= 6, (
        "the shell and what it ran, and whoever else is on this machine"
    )
    assert told["stdout"] == in_tracefs(f"ls {TRACEFS}/instances"), "no instance of its own"


@traces
def test_samples_have_tracepoints() -> None:
    done = ran(
        {
            "command": "for i in 1 2 3 4 5; do /bin/true; done; sleep 1",
            "trace": ["sched:sched_process_exec"],
            "sample": 0.2,
        },
        *ALONE,
    )
    counts = [json.loads(line)["trace"]["sched:sched_process_exec"] for line in done.stderr.splitlines()]
    assert counts == sorted(counts)
    assert counts[-1] >= 6


@traces
@pytest.mark.parametrize(("limits", "counted"), [("24:4096", True), ("24:24", False)])
def test_counters_beyond_the_limit_of_open_files(limits: str, counted: bool) -> None:
    """The limit is raised as far as it may be; an event that could still not be counted is an error, never
    left out."""
    events = in_tracefs(f"cd {TRACEFS}/events && ls -d sched/sched_*").replace("/", ":").split()
    words = {"command": "ulimit -n", "trace": events}
    done = ran(words, "prlimit", f"--nofile={limits}", *ALONE, check=False)
    if counted:
        told = json.loads(done.stdout)
        assert set(counters.phase(told["before"], told["after"])["trace"]) == set(events)
        assert int(told["stdout"]) >= len(events) * (os.cpu_count() or 1)
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert "Too many open files" in done.stderr


@traces
def test_many_events() -> None:
    """None is lost, wherever it happens."""
    done = ran(
        {
            "command": "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i+1)); done",
            "trace": ["sched:sched_process_exec"],
        },
        *ALONE,
    )
    told = json.loads(done.stdout)
    assert counters.phase(told["before"], told["after"])["trace"]["sched:sched_process_exec"] >= 2000


@traces
def test_counting_ends_when_time_is_up() -> None:
    """timeout(1) sends SIGTERM to the agent, and the command ends with it."""
    start = time.monotonic()
    done = ran(
        {"trace": ["sched:sched_process_exec"], "command": "sleep 1000"},
        *ALONE,
        "timeout",
        "-k",
        "60",
        "2",
        check=False,
    )
    assert time.monotonic() - start < 50, "asked, not killed"
    assert done.returncode == 124
    told = json.loads(done.stdout)
    assert told["timed_out"]
    assert int(told["after"]["trace"].split()[1]) >= 1, "the command's own exec"


def test_where_nothing_can_be_traced_the_count_is_absent(tmp_path: Path) -> None:
    script = tmp_path / "inside.py"
    script.write_text(
        SCRIPT.read_text().replace(
            '("/sys/kernel/tracing", "/sys/kernel/debug/tracing")',
            f'("{tmp_path}/none", "{tmp_path}/neither")',
        )
    )
    assert script.read_text() != SCRIPT.read_text()
    told = json.loads(
        ran(
            {"command": "true", "trace": ["migrate:mm_migrate_pages"], "files": ["/proc/vmstat"]},
            script=script,
        ).stdout
    )
    assert {*told["before"], *told["after"]} - {counters.KSWAPD} == {"/proc/vmstat"}


def test_the_command_ends_with_the_runner(tmp_path: Path) -> None:
    """The command is in its own session, out of reach of a signal to the agent's group."""
    about = json.dumps({"command": f"echo $$ > {tmp_path}/pid; exec sleep 1000", "files": [], "limit": 600})
    with subprocess.Popen(
        [sys.executable, "-I", "-S", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin
        child.stdin.write(about)
        child.stdin.close()
        end = time.monotonic() + 60
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            assert time.monotonic() < end
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        assert child.stdout
        assert json.loads(child.stdout.read())["timed_out"]
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


PERF = """
case $1 in
record)
    while [ "$1" != -- ]; do [ "$1" = -o ] && printf recorded > "$2"; words="$words $1"; shift; done
    shift; echo "$words" > {place}/words; exec "$@";;
script)
    grep -q recorded "$3" || exit 9
    cat {place}/told;;
esac"""
FLUSH = (
    "xfs_repair \n\tffffffff81a native_flush_tlb_multi\n\tffffffff81b flush_tlb_mm_range\n\t    7f00"
    " main;cold\n\n"
)
TOLD = f"{FLUSH}{FLUSH}kworker/0:1 ev \n\tffffffff81c [unknown]\n\n"
"""As perf script -F comm,ip,sym prints it: innermost first, an empty line after each."""


@pytest.fixture
def perf(program: Callable[[str, str], Path], tmp_path: Path) -> Path:
    """An agent whose perf is a script, and the file of its profile."""
    program("perf", PERF.replace("{place}", str(tmp_path)))
    (tmp_path / "told").write_text(TOLD)
    script = tmp_path / "inside.py"
    text = SCRIPT.read_text().replace(runner.STACKS, f"{tmp_path}/stacks")
    script.write_text(text.replace(runner.CYCLES, f"{tmp_path}/cycles"))
    return script


def test_a_profile_is_folded(perf: Path, tmp_path: Path) -> None:
    """A line for each stack, outermost first, as flame graphs take them; ; occurs only between frames."""
    told = json.loads(ran({"command": "echo out; exit 4", "profile": 99}, script=perf).stdout)
    assert told["profile"].splitlines() == [
        "kworker/0:1 ev;[unknown] 1",
        "xfs_repair;main:cold;flush_tlb_mm_range;native_flush_tlb_multi 2",
    ]
    assert (told["status"], told["stdout"]) == (4, "out\n"), "they are the command's"
    assert {"-a", "-g", "cpu-clock", "99"} <= set((tmp_path / "words").read_text().split())
    assert not (tmp_path / "stacks").exists()


def test_cycles_where_the_guest_counts_them(perf: Path, tmp_path: Path) -> None:
    assert json.loads(ran({"command": "true", "profile": 99}, script=perf).stdout)["event"] == "cpu-clock"
    (tmp_path / "cycles").mkdir()
    assert json.loads(ran({"command": "true", "profile": 99}, script=perf).stdout)["event"] == "cycles"
    assert "cycles" in (tmp_path / "words").read_text().split()


def test_marks_are_those_of_the_plugin() -> None:
    """The bytes that instructions.c looks for, which do nothing here."""
    source = paths.INSTRUCTIONS.read_text()
    assert f"#define MARK {runner.MARK:#x}u" in source
    marks = runner.Marks()
    assert marks.page[:9] == b"\x0f\x1f\x84\x00" + (runner.MARK + 1).to_bytes(4, "little") + b"\xc3"
    marks.begin()
    marks.end()
    told = json.loads(ran({"command": "echo out", "marked": True}).stdout)
    assert (told["status"], told["stdout"]) == (0, "out\n")


def test_no_profile_unless_asked(perf: Path, tmp_path: Path) -> None:
    assert "profile" not in json.loads(ran({"command": "true", "profile": 0}, script=perf).stdout)
    assert not (tmp_path / "words").exists()


def test_a_guest_without_perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No result at all, and the last line has the reason."""
    monkeypatch.setenv("PATH", str(tmp_path))
    done = ran({"command": "true", "profile": 99}, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "No such file or directory: 'perf'" in done.stderr.splitlines()[-1]
