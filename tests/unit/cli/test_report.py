# SPDX-License-Identifier: GPL-2.0-only
"""lab.py compare and runs: output, and one clear line for each error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from numalab.cli import main
from numalab.core import state
from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.model.values import Accel
from numalab.report import reference
from numalab.runs import record
from tests.unit.runs.test_index import keep
from tests.unit.synthetic import phase, run

BEFORE, AFTER = "6.1-slowscan-before", "6.1"


def boot(
    kernel: str, arm: Arm, number: int, updates: int, accel: Accel = Accel.TCG, **changes: object
) -> Run:
    counted = [
        phase(name, system=updates / 100, vmstat={"numa_pte_updates": updates, "numa_huge_pte_updates": 1})
        for name in ("repair-bhash", "mmtests-repair")
    ]
    return run(kernel, *counted, boot=number, arm=arm, accel=accel, experiment="e1").model_copy(
        update=changes
    )


@pytest.fixture
def six() -> list[Run]:
    """An experiment of three boots each, in the store."""
    sides = (
        (BEFORE, Arm.BEFORE, 3000),
        (AFTER, Arm.AFTER, 1000),
        (AFTER, Arm.AFTER, 1100),
        (BEFORE, Arm.BEFORE, 3300),
        (BEFORE, Arm.BEFORE, 2900),
        (AFTER, Arm.AFTER, 950),
    )
    runs = [boot(kernel, arm, number, updates) for number, (kernel, arm, updates) in enumerate(sides)]
    for one in runs:
        keep(one)
    return runs


def lab(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """(status, stdout, stderr) of lab.py WORDS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["lab.py", *words])
        patch.setattr("signal.signal", lambda *_: None)
        with pytest.raises(SystemExit) as left:
            main.main()
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def good(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    status, out, err = lab(capsys, *words)
    assert (status, err) == (0, "")
    return out


def bad(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of an error."""
    status, out, err = lab(capsys, *words)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("lab.py: error: ")
    return err.removeprefix("lab.py: error: ").rstrip("\n")


@pytest.mark.parametrize(
    "words", [["xfsrepair"], ["e1"], ["xfsrepair", "--size", "quick", "--topology", "4socket"]]
)
def test_compare(words: list[str], six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    text = good(capsys, "compare", *words)
    lines = text.splitlines()
    assert (
        lines[0]
        == "xfsrepair (quick) on 4socket: 16 vCPUs, 16GiB, tcg; boots: 3 of 6.1-slowscan-before, 3 of 6.1"
    )
    assert lines[1] == "emulated: times are no evidence, and counters depend on the host's load"
    assert "Amean    syst-repair-bhash         30.67 (  0.00%)       10.17 ( 66.85%)" in lines
    assert [
        line.split()[-2:] for line in lines if line.startswith(("NUMA base PTE", "NUMA pages migrated"))
    ] == [["6133", "2033"], ["-", "-"]], "both phases"
    assert lines[3] == "xfsrepair", "as the seed has it, over the first table"
    assert "published" not in text


def test_runs_by_id_and_by_folder(six: list[Run], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    away = tmp_path / "stick"
    shutil.copytree(state.folder("runs") / six[0].id, away)
    assert "boots: 1 of 6.1-slowscan-before, 1 of 6.1" in good(capsys, "compare", str(away), six[1].id)


def test_any_baseline(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert "Amean    syst-repair-bhash         10.17 (  0.00%)       30.67 (-201.64%)" in good(
        capsys, "compare", "xfsrepair", "--baseline", AFTER
    )


@pytest.mark.parametrize("baseline", [BEFORE, AFTER])
def test_published_whatever_the_baseline(
    baseline: str, six: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    """From before to after, as published, whichever column is first.

    The cube root of 1000 × 1100 × 950 / (3000 × 3300 × 2900) is 0.3314.
    """
    text = good(capsys, "compare", "xfsrepair", "--published", "--baseline", baseline)
    assert "here:      6.1-slowscan-before -> 6.1" in text
    (line,) = (line for line in text.splitlines() if line.startswith("NUMA base PTE updates") and "%" in line)
    assert line.split()[4:6] == ["-51.60%", "-66.86%"]
    assert line.endswith("same way")


def test_published_about_other_patch_sets(
    six: list[Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line says why there is no such table."""
    load = reference.load
    monkeypatch.setattr(reference, "load", lambda name: load(name).model_copy(update={"patches": "stagger"}))
    status, out, err = lab(capsys, "compare", "xfsrepair", "--published")
    assert (status, "published" in out) == (0, False)
    assert "no row of the published tables is about 6.1-slowscan-before and 6.1" in err
    assert lab(capsys, "compare", six[0].id, "--published")[2] == "", (
        "one kernel has nothing to be compared with"
    )


def test_mail(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    text = good(capsys, "compare", "xfsrepair", "--format", "mail", "--published")
    assert max(map(len, text.splitlines())) <= 76
    assert "numa_pte_updates, repair-*: falls by a factor of 1.5: holds" in text


def test_json_and_csv(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(good(capsys, "compare", "xfsrepair", "--format", "json", "--published"))
    assert [column["kernel"] for column in data["columns"]] == [BEFORE, AFTER]
    assert data["verdicts"][0]["answer"] == "holds"
    assert data["published"]
    lines = good(capsys, "compare", "xfsrepair", "--format", "csv").splitlines()
    assert lines[0].startswith("run,started,case,")
    assert len({line.split(",")[0] for line in lines[1:]}) == 6
    assert "properties" in json.loads(good(capsys, "compare", "--format", "schema"))


def test_a_broken_run_is_told_and_not_counted(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    keep(boot(AFTER, Arm.AFTER, 7, 9, error="guest lost"))
    text = good(capsys, "compare", "xfsrepair")
    assert "3 of 6.1\n" in text
    assert "guest lost" in text


def test_mixed_accelerators_are_refused_or_forced(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    keep(boot(AFTER, Arm.AFTER, 8, 1000, Accel.KVM))
    message = bad(capsys, "compare", "xfsrepair")
    assert (
        message
        == "these runs are not comparable: accelerator: tcg (6 runs), kvm (1 run): leave some out, or use"
        " --force"
    )
    for form in ("text", "mail"):
        text = good(capsys, "compare", "xfsrepair", "--force", "--format", form)
        assert "NOT COMPARABLE, forced: accelerator: tcg (6 runs), kvm (1 run)" in " ".join(text.split())
    assert json.loads(good(capsys, "compare", "xfsrepair", "--force", "--format", "json"))["forced"] == [
        "accelerator: tcg (6 runs), kvm (1 run)"
    ]


@pytest.mark.parametrize("command", [("verdict",), ("report", "--html", "pages")])
def test_verdict_and_report_choose_an_experiment_as_compare_does(
    command: tuple[str, ...], six: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = "there is no run of case xfsrepair, size full, topology fake4"
    message = bad(capsys, *command, "xfsrepair", "--size", "full", "-t", "fake4")
    assert message.startswith(f"{wanted}: lab.py run xfsrepair")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "compare: which runs? Give runs, an experiment or a case; lab.py runs shows what there is"),
        (["nothing"], "nothing: is no run, no experiment and no case: lab.py runs shows what there is"),
        (["threads"], "there is no run of case threads: lab.py run threads"),
        (
            ["xfsrepair", "--size", "full"],
            "there is no run of case xfsrepair, size full: lab.py run xfsrepair --size full",
        ),
        (
            ["xfsrepair", "--baseline", "5.10"],
            "--baseline 5.10: there is no run of it; there are 6.1-slowscan-before, 6.1",
        ),
    ],
)
def test_what_is_not_there(
    words: list[str], message: str, six: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bad(capsys, "compare", *words) == message


def test_only_broken_runs(capsys: pytest.CaptureFixture[str]) -> None:
    folder = keep(boot(AFTER, Arm.AFTER, 0, 1, error="oops"))
    assert bad(capsys, "compare", str(folder)) == "nothing to compare: all 1 runs broke"


def test_a_damaged_run(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    folder = state.folder("runs") / six[0].id
    (folder / "run.json").write_text('{"id": "x"}')
    assert bad(capsys, "compare", str(folder)) == f"{folder}: not a run: run.json: workload: Field required"


def test_a_case_that_mirrors_nothing(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    keep(run("debian", phase("p"), boot=9))
    message = bad(capsys, "compare", run("debian", boot=9).id, "--published")
    assert message == (
        "--published: these runs' cases name no published tables (published: in testcases/CASE.yml);"
        " threads, nas and xfsrepair name some"
    )


def test_show_takes_an_id_or_a_folder(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    shown = good(capsys, "show", six[0].id)
    assert six[0].kernel in shown
    assert good(capsys, "show", str(state.folder("runs") / six[0].id)) == shown
    assert "nosuch: not a run" in bad(capsys, "show", "nosuch")


# runs


def test_runs(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    keep(run("debian", phase("p"), boot=9, error="phase p:\nexit status 1"))
    (state.folder("runs") / six[0].id / "run.json").write_text("{")
    lines = good(capsys, "runs").splitlines()
    assert len(lines) == 1 + 5 + 1 + 1
    assert lines[0].split() == [
        "STARTED",
        "CASE",
        "KERNEL",
        "TOPOLOGY",
        "SIZE",
        "ACCEL",
        "CLOCK",
        "EXPERIMENT",
        "RUN",
    ]
    words = "20261121T120001", "xfsrepair", AFTER, "4socket", "quick", "tcg", "host", "e1", six[1].id
    assert tuple(lines[1].split()) == words
    assert lines[6].split()[1:3] == ["(xfsrepair)", "debian"]
    assert lines[6].endswith("BROKE: phase p: exit status 1")
    assert lines[7].startswith(f"DAMAGED  {six[0].id}: run.json cannot be read")


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--case", "xfsrepair"], 6),
        (["--kernel", AFTER], 3),
        (["--since", "2026-11-21"], 6),
        (["--since", "20261121T120004"], 2),
        (["--experiment", "e1", "--kernel", BEFORE], 3),
    ],
)
def test_runs_are_chosen(
    words: list[str], count: int, six: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(good(capsys, "runs", *words).splitlines()) == 1 + count


def test_runs_of_which_there_are_none(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = lab(capsys, "runs", "--case", "nothing", "--kernel", AFTER)
    assert (status, len(out.splitlines())) == (0, 1)
    assert f"runs: no stored run matches --case nothing --kernel {AFTER}" in err


def test_runs_from_another_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    there = keep(boot(AFTER, Arm.AFTER, 1, 5), tmp_path)
    assert good(capsys, "runs", "--add", str(there)) == f"{there.name} is here\n"
    assert len(good(capsys, "runs").splitlines()) == 2
    assert bad(capsys, "runs", "--add", str(tmp_path)).startswith(f"{tmp_path}: not a run: ")


def test_a_since_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert bad(capsys, "runs", "--since", "yesterday").startswith("--since yesterday: write a day")


def on_two_hosts(six: list[Run]) -> None:
    """The same boots again, on another machine, where the kernel "after" is no better."""
    host = {"machine": "big", "cpu": "Xeon", "cpus": "64", "machine id": "0123456789abcdef", "qemu": "10.0.2"}
    for number, one in enumerate(six):
        place = one.place
        assert place
        keep(
            boot(one.kernel, place.arm, 10 + number, 3000 + 7 * number, host=host).model_copy(
                update={"place": place.model_copy(update={"experiment": "e2"})}
            )
        )


BIG = "hypervisor big, machine id 01234567, Xeon, QEMU 10.0.2, tcg"


def test_each_hypervisor_is_compared_by_itself(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    on_two_hosts(six)
    text = good(capsys, "compare", "e1", "e2")
    assert text.count("boots: 3 of 6.1-slowscan-before, 3 of 6.1") == 2
    assert text.index("hypervisor vm, EPYC, tcg") < text.index(BIG)
    assert text.startswith(good(capsys, "compare", "e1").splitlines()[0])
    mail = good(capsys, "compare", "e1", "e2", "--format", "mail")
    assert mail.count(": HOLDS") == 1
    assert mail.count(": DOES NOT HOLD") == 1
    data = json.loads(good(capsys, "compare", "e1", "e2", "--format", "json"))
    assert [one["hypervisor"] for one in data] == ["vm, EPYC, tcg", BIG.removeprefix("hypervisor ")]
    assert [one["verdicts"][0]["answer"] for one in data] == ["holds", "does not hold"]
    lines = good(capsys, "compare", "e1", "e2", "--format", "csv").splitlines()
    assert lines[0].endswith(",value,hypervisor")
    assert sum(line.endswith('"vm, EPYC, tcg"') for line in lines[1:]) == (len(lines) - 1) / 2


def test_hypervisors_that_are_forced_together(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    on_two_hosts(six)
    text = good(capsys, "compare", "e1", "e2", "--force")
    assert "boots: 6 of 6.1-slowscan-before, 6 of 6.1" in text
    assert "NOT COMPARABLE, forced: host: " in text


def test_a_verdict_on_each_hypervisor(
    six: list[Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status is the gravest; a host with one kernel only has none, and is named."""
    monkeypatch.setattr(record, "read", record.summary)  # these runs have no raw snapshots
    on_two_hosts(six)
    status, out, _ = lab(capsys, "verdict", "e1", "e2")
    assert status == 1
    first, second = out.split(f"{BIG}:\n")
    assert first.startswith("hypervisor vm, EPYC, tcg:\nxfsrepair (quick) on 4socket")
    assert ": HOLDS" in first
    assert ": DOES NOT HOLD" in second
    lone = six[0].model_copy(update={"id": "lone", "host": {"machine": "third"}})
    keep(lone)
    status, out, _ = lab(capsys, "verdict", *(one.id for one in six), "lone")
    assert status == 0
    assert "hypervisor third, tcg:\n  no verdict: not both sides have a boot that counts" in out
    assert "judged: experiment e1, begun 20261121T120000 on vm, third\n" in out
    status, _, err = lab(capsys, "verdict", "lone", six[1].id)
    assert (status, "a verdict needs boots of both that count" in err) == (2, True)


def test_a_report_has_a_section_for_each_hypervisor(
    six: list[Run], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    on_two_hosts(six)
    good(capsys, "report", "e1", "e2", "--html", str(tmp_path / "out"))
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count('<section class="case"') == 2
    assert BIG in page


def broken_elsewhere(six: list[Run]) -> None:
    """One broken run of each kernel on another machine."""
    for number, one in enumerate((six[0], six[1])):
        keep(
            one.model_copy(
                update={"id": f"broken-{number}", "host": {"machine": "other"}, "error": "guest lost"}
            )
        )


def test_broken_runs_of_another_hypervisor_judge_nothing(
    six: list[Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(record, "read", record.summary)  # these runs have no raw snapshots
    broken_elsewhere(six)
    status, out, _ = lab(capsys, "verdict", "e1")
    assert status == 0
    assert "hypervisor other, tcg:\n  no verdict: not both sides have a boot that counts" in out
    status, out, err = lab(capsys, "compare", "e1")
    assert status == 0
    assert "hypervisor vm, EPYC, tcg\n" in out
    assert "hypervisor other, tcg: not counted: broken-0: guest lost" in err
    monkeypatch.undo()


def test_all_runs_on_all_hypervisors_broke(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    broken_elsewhere(six)
    for one in six:
        shutil.rmtree(state.folder("runs") / one.id)
    keep(six[0].model_copy(update={"error": "guest lost"}))
    status, out, err = lab(capsys, "compare", "e1")
    assert (status, out) == (2, "")
    assert "nothing to compare: all 3 runs broke" in err


def test_a_csv_has_no_published_values(six: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    message = bad(capsys, "compare", "e1", "--published", "--format", "csv")
    assert message.startswith("--published: not with --format csv")


def test_a_baseline_that_some_sections_have(
    six: list[Run], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each of several cases has its own kernel "before"."""
    other = boot("6.1-nodirty-before", Arm.BEFORE, 7, 4000)
    assert other.place
    place = other.place.model_copy(update={"experiment": "e3", "case_name": "another"})
    keep(other.model_copy(update={"place": place}))
    out = tmp_path / "out"
    good(capsys, "report", "e1", "e3", "--html", str(out), "--baseline", BEFORE)
    assert (out / "index.html").exists()
    message = bad(capsys, "report", "e1", "e3", "--html", str(out), "--baseline", "5.10")
    assert message == f"--baseline 5.10: there is no run of it; there are {BEFORE}, 6.1, 6.1-nodirty-before"
