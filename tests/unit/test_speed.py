# SPDX-License-Identifier: GPL-2.0-only
"""benchmarks/speed.py without a guest: stages from times, the kernel's time stamp, ratios, tables."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from benchmarks import speed
from numalab.model import catalog, topology
from numalab.model.units import GIB
from numalab.model.values import Accel

CONSOLE = b"""\
[    0.000000] Linux version 6.1.192-numalab-6.1
[    0.000000] Command line: root=/dev/vda init=/usr/local/sbin/lab-init
[    3.721628] Run /usr/local/sbin/lab-init as init process
[    9.000000] Run /sbin/init as init process
"""


def test_the_stamp_of_init() -> None:
    assert speed.init_stamp(CONSOLE) == 3.721628, "the first one"
    assert speed.init_stamp(CONSOLE.partition(b"Run")[0]) is None
    assert speed.init_stamp(CONSOLE.partition(b" as init")[0]) is None, "half a line"
    assert speed.init_stamp(b"") is None


def test_stages() -> None:
    ends = {stage: 100.0 + 2**number for number, stage in enumerate(speed.STAGES)}
    lengths = speed.stages(100.0, ends)
    assert list(lengths) == list(speed.STAGES)
    assert list(lengths.values()) == [1, 1, 2, 4, 8, 16, 32, 64]


def test_a_stage_whose_end_was_not_seen_is_part_of_the_next() -> None:
    assert speed.stages(0.0, {"lab.py": 1.0, "kernel": 5.0}) == {"lab.py": 1.0, "kernel": 4.0}


def test_a_line_that_was_read_late() -> None:
    """No stage takes less than nothing, and the sum stays."""
    lengths = speed.stages(0.0, {"lab.py": 1.0, "libvirt's create": 3.0, "firmware": 2.5, "kernel": 4.0})
    assert lengths == {"lab.py": 1.0, "libvirt's create": 2.0, "firmware": 0.0, "kernel": 1.0}


ROUNDS = [{"6.1": 10.0, speed.VNG: 5.0}, {"6.1": 30.0, speed.VNG: 10.0}, {"6.1": 40.0, speed.VNG: 40.0}]


def test_a_ratio_is_of_one_round() -> None:
    assert speed.ratios(ROUNDS, "6.1") == [2.0, 3.0, 1.0]
    assert speed.ratios(ROUNDS, speed.VNG) == [1.0, 1.0, 1.0]
    assert speed.times(ROUNDS)[1] == ("6.1", "30.00", "10.00", "40.00", "2.00", "1.00", "3.00")


def test_another_is_first_in_each_round() -> None:
    assert [speed.turned("abc", number) for number in range(4)] == [[*"abc"], [*"bca"], [*"cab"], [*"abc"]]


def test_without_virtme() -> None:
    alone = [{"6.1": one["6.1"]} for one in ROUNDS]
    assert speed.times(alone)[1:] == [("6.1", "30.00", "10.00", "40.00", "-", "-", "-")]


def test_waterfall() -> None:
    first = {"lab.py": 1.0, "kernel": 4.0, speed.GUEST_CLOCK: 3.5}
    second = {"lab.py": 3.0, "kernel": 6.0, speed.GUEST_CLOCK: 4.5}
    head, *rows = speed.waterfall({"6.1": [first, second], "debian": [first]})
    assert head == ("STAGE", "6.1", "debian")
    assert rows[0] == ("lab.py", "2.00", "1.00")
    assert ("firmware", "-", "-") in rows
    assert rows[-2:] == [("sum", "7.00", "5.00"), (speed.GUEST_CLOCK, "4.00", "3.50")]


def test_markdown() -> None:
    assert speed.markdown([("STAGE", "6.1"), ("kernel", "4.00")]) == (
        "| STAGE | 6.1 |\n| --- | ---: |\n| kernel | 4.00 |\n"
    )


@pytest.mark.parametrize(("accel", "emulates"), [(Accel.TCG, True), (Accel.KVM, False)])
def test_virtme_has_the_same_nodes(accel: Accel, emulates: bool) -> None:
    shape = topology.scale(catalog.topology(speed.TOPOLOGY), memory=4 * GIB, vcpus=8)
    words = speed.vng_words("vng", "bzImage", shape, accel)
    assert words[:7] == ["vng", "--run", "bzImage", "--cpus", "8", "--memory", "4096M"]
    assert ("--disable-kvm" in words) is emulates
    nodes = [words[i + 1] for i, word in enumerate(words) if word == "--numa"]
    assert nodes == [f"1024M,cpus={cpus}" for cpus in ("0-1", "2-3", "4-5", "6-7")]
    distances = [words[i + 1] for i, word in enumerate(words) if word == "--numa-distance"]
    assert distances == ["0,1=21", "0,2=31", "0,3=21", "1,2=21", "1,3=31", "2,3=21"]


def fake(folder: Path, *lines: str) -> list[str]:
    program = folder / "vng"
    program.write_text("\n".join(["#!/bin/sh", *lines]))
    program.chmod(0o755)
    return [str(program), "--run", "bzImage"]


def test_virtme_has_run_the_command(tmp_path: Path) -> None:
    """Its own status says nothing on a host without udevd."""
    words = fake(tmp_path, '[ "$3" = --rwdir ] && [ -d "$4" ] && sh -c "$6"', "exit 255")
    assert 0 < speed.virtme(words) < speed.LIMIT_SECONDS


def test_virtme_has_not_run_the_command(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="the command did not run\nno bzImage"):
        speed.virtme(fake(tmp_path, "echo no bzImage >&2", "exit 0"))


def test_virtme_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it started, which holds its output open."""
    monkeypatch.setattr(speed, "HUNG_SECONDS", 0.5)
    with pytest.raises(subprocess.TimeoutExpired):
        speed.virtme(fake(tmp_path, "sleep 1000 &", "wait"))


def test_virtme_that_hangs_once_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its seconds are those of the round trip that ended."""
    monkeypatch.setattr(speed, "HUNG_SECONDS", 4.0)
    once = tmp_path / "once"
    words = fake(tmp_path, f"[ -e {once} ] || {{ touch {once}; sleep 1000; }}", 'sh -c "$6"')
    start = time.monotonic()
    seconds = speed.virtme(words)
    assert 0 < seconds < time.monotonic() - start - 4.0
    assert capsys.readouterr().err.count("hung for 4 s") == 1


LAB = """\
#!/bin/sh
[ "$1" = down ] && exec sleep 1
[ "$1" = exec ] && exit 0
while [ "$1" != --name ]; do shift; done
mkdir -p "$LAB_STATE/guests/$2"
cp {console} "$LAB_STATE/guests/$2/console.log"
"""


def test_a_guest_has_a_row_for_its_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "console").write_bytes(CONSOLE)
    (tmp_path / "lab.py").write_text(LAB.format(console=tmp_path / "console"))
    (tmp_path / "lab.py").chmod(0o755)
    monkeypatch.setattr(speed, "ROOT", tmp_path)
    seconds, _ = speed.guest("6.1", "speed-1")
    first, down, trip = (seconds[f"6.1: {row}"] for row in (speed.FIRST, speed.DOWN, speed.WHOLE))
    assert list(seconds) == ["6.1: to the first command", "6.1: down", "6.1: round trip"]
    assert down >= 1
    assert first + down <= trip < first + down + 0.5
