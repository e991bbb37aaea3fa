# SPDX-License-Identifier: GPL-2.0-only
"""benchmarks/whole.py without a guest: a case's boots from what lab.py prints, and make in a clone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import speed, whole
from numalab.core.paths import ROOT

SAID = """\
    0.5 ✓      6.3 s  migratefail-compile: boot
   10.0               migratefail: boot 1 of 2: before, 6.1-slowscan-before
   10.4 ✓      0.4 s  migratefail-0: start
   70.0 …         60 s  migratefail-0: boot
   80.0 ✓     69.6 s  migratefail-0: boot
   80.3 ✓      0.3 s  migratefail-0: topology verified from inside
   88.0 ✓      5.0 s  migratefail-0: migratefail: fill
  110.0 ✓     20.0 s  migratefail-0: migratefail: touch
  130.0 ✓     10.0 s  migratefail-0: migratefail: again
  130.1               migratefail-0: touch: numa_pte_updates 431k
  133.0               migratefail: boot 2 of 2: after, 6.1; about 2 min left
  133.4 ✓      0.4 s  migratefail-1: start
  150.0 ✓     10.0 s  migratefail-1: boot
  160.0 ✓     15.0 s  migratefail-1: migratefail: touch
  170.0 ✓     10.0 s  migratefail-1: migratefail: again
  190.0               migratefail: so far (1 and 1 boots), no verdict yet: no ratio
"""


def said(text: str) -> list[tuple[float, str]]:
    return [(float(line[:7]), line[8:]) for line in text.splitlines()]


MEASURED = ("migratefail: touch", "migratefail: again")


def test_what_is_neither_boot_nor_measured() -> None:
    """Each boot ends when its own guest's folder is gone."""
    seen = {"migratefail-0": 132.0, "migratefail-1": 183.0}
    _, *rows = whole.boots(said(SAID), seen, MEASURED)
    assert rows == [
        ("boot 1 of 2: before, 6.1-slowscan-before", "0.4", "69.6", "30.0", "22.0", "122.0", "18.0%"),
        ("boot 2 of 2: after, 6.1", "0.4", "10.0", "25.0", "14.6", "50.0", "29.2%"),
    ]


def test_a_boot_that_hung_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    line = "  135.0 !             migratefail-1: hung in its boot under emulation; begun again (x)\n  150.0 ✓"
    _, *rows = whole.boots(said(SAID.replace("  150.0 ✓", line)), {"migratefail-0": 132.0}, MEASURED)
    assert [row[0] for row in rows] == ["boot 1 of 2: before, 6.1-slowscan-before"]
    assert capsys.readouterr().err == "boot 2 of 2: after, 6.1: hung and was begun again: not counted\n"


LAB = f"""\
#!{sys.executable}
import os, sys, time
from pathlib import Path
from types import SimpleNamespace as Any
sys.path.insert(0, {str(ROOT)!r})
from numalab.cli.live import View
from numalab.cli.progress import Progress
from numalab.core import log

assert sys.argv[1:] == ["run", "migratefail", "--boots", "1", "--side-by-side", "1"], sys.argv
view = View(Any(case_name="migratefail", kernels=("6.1-slowscan-before", "6.1")), 1)
with Progress():
    for boot, kernel in enumerate(view.plan.kernels):
        guest = f"migratefail-{{boot}}"
        place = Path(os.environ["LAB_STATE"], "guests", guest)
        view.began(Any(place=Any(boot=boot, side_by_side=1, arm="arm"), kernel=Any(name=kernel), name=guest))
        place.mkdir(parents=True)
        for step in "start", "boot", "migratefail: fill", "migratefail: touch":
            with log.step(step, who=guest):
                time.sleep(1 if "fill" in step else 0.2)
        time.sleep(0.6)
        place.rmdir()
        time.sleep(3 * boot)  # the verdict, which is no part of a boot
sys.exit(3)
"""


def lab(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "lab.py").write_text(text)
    (folder / "lab.py").chmod(0o755)
    monkeypatch.setattr(whole, "ROOT", folder)


def test_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines come from lab.py's own code, and its measured phases from the workload."""
    lab(tmp_path, LAB, monkeypatch)
    head, *rows = whole.case("migratefail")
    assert [row[0] for row in rows] == ["boot 1 of 2: arm, 6.1-slowscan-before", "boot 2 of 2: arm, 6.1"]
    for row in rows:
        start, boot, measured, rest, all_of_it = map(float, row[1:6])
        assert min(start, boot, measured) >= 0.2
        assert rest >= 1.2, "`fill` is not measured; 0.4 s for a line that is read late on a busy host"
        assert rest < 1.6 + 3, "it ends with its guest"
        assert all_of_it == pytest.approx(start + boot + measured + rest, abs=0.3), "each is rounded"
    assert len(head) == len(rows[0])


def test_a_case_without_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab(tmp_path, "#!/bin/sh\nexit 2\n", monkeypatch)
    with pytest.raises(SystemExit, match=r"lab\.py run migratefail .*: exit status 2"):
        whole.case("migratefail")


MAKEFILE = """\
setup unit:
	@test ! -e $(LAB_STATE)/used && mkdir -p $(LAB_STATE) && touch $(LAB_STATE)/used
	@echo "$@ $(QEMU) $(AT_ONCE) $(PYTHONPATH) $(CURDIR) $(LAB_STATE)" >>LOG
work:
	@python3 -c 'while __import__("time").process_time() < 0.3: pass'
broken:
	@seq 1 30
	@exit 7
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the fake Makefile of a fake project writes to."""
    project, file = tmp_path / "project", tmp_path / "log"
    project.mkdir()
    (project / "Makefile").write_text(MAKEFILE.replace("LOG", str(file)))
    git = ["git", "-C", str(project), "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], ["add", "Makefile"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    (project / "Makefile").write_text("setup:\n\texit 1\n")  # not committed
    monkeypatch.setattr(whole, "ROOT", project)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    return file


def test_make_in_a_clone(log: Path, lab_state: Path) -> None:
    """Each target has an empty state directory; nothing is left."""
    head, *rows = whole.make(["unit"], keep_state=False)[0]
    assert [(row[0], row[-1]) for row in rows] == [("setup", "0"), ("unit", "0")]
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [line[:3] for line in lines] == [["setup", "backports", "2"], ["unit", "backports", "2"]]
    clones, states = ({Path(line[at]) for line in lines} for at in (3, 4))  # no PYTHONPATH between
    assert (len(clones), len(states)) == (1, 2)
    assert not any(path.exists() for path in clones | states)
    assert lab_state not in states
    assert len(head) == len(rows[0])


def test_make_with_the_state_that_there_is(log: Path, lab_state: Path) -> None:
    """The second target finds what the first one left there."""
    rows, succeeded = whole.make(["unit"], keep_state=True)
    assert ([row[-1] for row in rows[1:]], succeeded) == (["0", "2"], False)
    assert log.read_text().split()[-1] == str(lab_state)
    assert (lab_state / "used").exists(), "it is not removed"


def test_the_processor_time_of_what_make_starts(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    status, seconds, used = whole.make_one("work", tmp_path, "")
    assert status == 0
    assert 0.3 <= used < seconds + 0.1


def test_a_target_that_fails(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are measured, the table is written, and the exit status is 1."""
    table = tmp_path / "table.md"
    monkeypatch.setattr(sys, "argv", ["speed.py", "--make", "broken", "unit", "--table", str(table)])
    with pytest.raises(SystemExit) as ended:
        speed.main()
    assert ended.value.code == 1
    rows = [line.strip("| ").split(" | ") for line in table.read_text().splitlines() if "|" in line]
    assert [(row[0], row[-1]) for row in rows[2:]] == [("setup", "0"), ("broken", "2"), ("unit", "0")]
    output = capsys.readouterr()
    assert "make broken: exit status 2\n" in output.err
    assert "\n30\n" in output.err
    assert "\n1\n" not in output.err, "the last lines only"
    assert "CPU MINUTES" in output.out


def test_the_variables_are_those_of_ci() -> None:
    assert f"make test {' '.join(whole.VARIABLES)}\n" in (ROOT / ".ci/run").read_text()


def test_rounds_beside_a_case_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, rounds in (
        ([], 3),
        (["--case", "c"], 0),
        (["--make", "m"], 0),
        (["--case", "c", "--rounds", "2"], 2),
    ):
        monkeypatch.setattr(sys, "argv", ["speed.py", *words])
        assert speed.arguments().rounds == rounds
