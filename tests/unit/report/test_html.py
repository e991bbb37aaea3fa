# SPDX-License-Identifier: GPL-2.0-only
"""The report on disk: one folder, complete or not at all; all of a run escaped; paths only from its id."""

from __future__ import annotations

import json
import tarfile
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

import pytest
from lxml import html as parser

from numalab.cli import html as html_commands
from numalab.core import paths
from numalab.core.errors import InputError
from numalab.kernel import recipe as kernel_recipe
from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.model.verdict import Verdict
from numalab.report import attachments, html
from numalab.runs import record
from tests.unit import reports
from tests.unit.reports import HOSTILE, put, run

TOUCH = {"touch": {"numa_pte_updates": 1000.0}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every kind of content."""
    place = tmp_path_factory.mktemp("report")
    runs, verdicts = reports.everything(place / "state")
    html.write(runs, verdicts, place / "out")
    return place / "out"


def single(tmp_path: Path, item: Run, verdicts: Sequence[Verdict] = ()) -> Path:
    """A report of one run."""
    html.write([(item, put(item, tmp_path / "state"))], verdicts, tmp_path / "out")
    return tmp_path / "out"


def text(report: Path) -> str:
    return (report / "index.html").read_text()


def tree(report: Path) -> parser.HtmlElement:
    return parser.fromstring(text(report))


def test_every_link_leads_somewhere_inside(whole: Path) -> None:
    found = tree(whole)
    ids = [element.get("id") for element in found.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    links = [link for _, _, link, _ in found.iterlinks() if not link.startswith("data:")]
    assert len(links) > 100
    for link in links:
        assert link[1:] in ids if link.startswith("#") else (whole / link).is_file(), link


def test_nothing_of_a_run_becomes_html(whole: Path) -> None:
    """A kernel's name, an error and a console line contain <script>: they are shown as text."""
    found = tree(whole)
    assert not found.xpath("//img")
    assert {script.get("src") or script.get("type") for script in found.iter("script")} == {
        "plotly.min.js",
        "report.js",
        "application/json",
    }
    assert not [name for element in found.iter() for name in element.attrib if name.startswith("on")]
    assert text(whole).count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 5, (
        "a kernel, an error, a console warning"
    )


def test_no_script_but_its_own_may_run(whole: Path) -> None:
    (policy,) = tree(whole).xpath("//meta[@http-equiv='Content-Security-Policy']/@content")
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


def test_every_plot_has_its_numbers_and_words(whole: Path) -> None:
    figures = [figure for figure in tree(whole).iter("figure") if figure.find_class("plot")]
    assert len(figures) > 80
    for figure in figures:
        (plot,) = figure.find_class("plot")
        assert plot.get("aria-label")
        assert json.loads(figure.xpath("script")[0].text)["data"]
        assert figure.xpath("details//table/caption/text()")
        assert figure.xpath("details//th[@scope='row']")
        assert figure.xpath("details//th[@scope='col']")


def test_headings_go_down_one_by_one(whole: Path) -> None:
    levels = [int(element.tag[1]) for element in tree(whole).iter("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_what_was_varied_is_said(tmp_path: Path) -> None:
    """So that a reader of the page can do it again."""
    runs, verdicts = reports.everything(tmp_path / "state")
    varied = "varied from boot to boot: where the kernel lies (KASLR) (seed 7)"
    html.write(runs, [verdicts[0].model_copy(update={"varied": varied}), *verdicts[1:]], tmp_path / "out")
    assert f'<p class="quiet">V{varied[1:]}.</p>' in text(tmp_path / "out")


def test_verdicts_stand_on_top_in_words(whole: Path) -> None:
    items = [
        " ".join(item.text_content().split()) for item in tree(whole).find_class("verdicts")[0].findall("li")
    ]
    heads = [
        "holds migratefail",
        "cannot tell xfsrepair",
        "holds writeback-usb",
        "no verdict nas",
        "no verdict remote",
    ]
    assert [item.split(" quick")[0] for item in items] == heads
    assert "does not hold: smaller than asked" in items[1]
    for words in (
        "3 + 3 boots",
        "×0.0605 [0.0526, 0.0695]",
        "falls, by 2 or more",
        "Emulated: times are no evidence, and counters depend on the host's load.",
    ):
        assert words in items[0]
    assert "Emulated" not in items[2], "that was under KVM"
    assert "hint_local_percent" not in items[0], "it decides nothing"


def test_what_was_run_on_what(whole: Path) -> None:
    words = " ".join(tree(whole).text_content().split())
    for fact in (
        "AMD EPYC",
        "no kernel boots under KVM here",
        "debian12 f2dfea8bd1761e9d",
        "sched/numa: do not slow down for failed migrations",
        "074c238177a7",
        "numa_pte_updates up",
        "cut from one by numa=fake",
        "This checkout cannot tell what",
    ):
        assert fact in words


def test_raw_data_is_there_as_text_and_whole(whole: Path, tmp_path: Path) -> None:
    place = sorted((whole / "runs").iterdir())[0]
    assert HOSTILE in (place / "console.txt").read_text()
    assert {path.suffix for path in place.iterdir()} == {
        ".txt",
        ".json",
        ".gz",
    }, "nothing that a browser would take for HTML"
    with tarfile.open(place / f"{place.name}.tar.gz") as tar:
        assert {(member.uid, member.uname) for member in tar.getmembers()} == {(0, "")}
        tar.extractall(tmp_path)  # one that we made
    again = record.read(tmp_path / place.name)
    assert again.id == place.name
    assert record.samples(tmp_path / place.name, 1, "touch")


def test_links_in_a_run_are_not_followed(tmp_path: Path) -> None:
    item = run("6.1", TOUCH)
    folder = put(item, tmp_path / "state")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("private")
    (folder / "console.log").unlink()
    (folder / "console.log").symlink_to(secret / "key")
    (folder / "more").symlink_to(secret)
    html.write([(item, folder)], [], tmp_path / "out")
    assert not (tmp_path / "out" / "runs" / item.id / "console.txt").exists()
    with tarfile.open(tmp_path / "out" / "runs" / item.id / f"{item.id}.tar.gz") as tar:
        assert not [name for name in tar.getnames() if "console" in name or "key" in name]


def test_large_files_stay_and_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "LARGEST", 1000)
    item = run("6.1", TOUCH)
    folder = put(item, tmp_path / "state", console="x" * 1024)
    html.write([(item, folder)], [], tmp_path / "out")
    assert f"{folder}/console.log (1KiB)" in text(tmp_path / "out")
    assert not (tmp_path / "out" / "runs" / item.id / "console.txt").exists()


@pytest.mark.parametrize("name", ["../../etc", "a/b", ".hidden", "", "a b", "x" * 300])
def test_an_id_that_is_no_name(tmp_path: Path, name: str) -> None:
    item = run("6.1", TOUCH)
    folder = put(item, tmp_path / "state")
    with pytest.raises(InputError, match="id"):
        html.write([(item.model_copy(update={"id": name}), folder)], [], tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]


def test_two_runs_of_one_id(tmp_path: Path) -> None:
    item = run("6.1", TOUCH)
    folder = put(item, tmp_path / "state")
    with pytest.raises(InputError, match="twice"):
        html.write([(item, folder), (item, folder)], [], tmp_path / "out")


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "thesis.tex").write_text("years")
    with pytest.raises(InputError, match="no report"):
        single(tmp_path, run("6.1", TOUCH))
    (target / "report.json").write_text('["somebody else has such a file too"]')
    with pytest.raises(InputError, match="no report"):
        html.write([], [], target)
    assert (target / "thesis.tex").read_text() == "years"


def test_a_report_is_replaced_and_an_empty_folder_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    one, two = run("6.1", TOUCH), run("6.12", TOUCH, boot=1)
    single(tmp_path, one)
    single(tmp_path, two)
    assert [path.name for path in (tmp_path / "out" / "runs").iterdir()] == [two.id]
    assert (tmp_path / "out").stat().st_mode & 0o055 == 0o055, "others may read it"


def test_what_breaks_leaves_the_old_report(tmp_path: Path) -> None:
    item = run("6.1", TOUCH)
    report = single(tmp_path, item)
    before = text(report)
    other = run("6.12", TOUCH, boot=1)
    folder = put(other, tmp_path / "state")
    (record.phase_folder(folder, 1, "touch") / record.PROFILE).write_text("no stacks")
    with pytest.raises(InputError, match=r"profile.folded: line 1"):
        html.write([(other, folder)], [], report)
    assert text(report) == before
    assert not list(tmp_path.glob(".making-*"))


def test_counts_begin_with_the_phase(tmp_path: Path) -> None:
    """The first sample is seconds later, so the snapshots at the edges are samples too."""
    item = run("6.1", {"touch": {"pgfault": 500.0}})
    folder = put(item, tmp_path / "state", sampled={"touch": [{"t": 2.0, "vmstat": {"pgfault": 1100}}]})
    html.write([(item, folder)], [], tmp_path / "out")
    tables = {
        table.findtext("caption"): table
        for table in tree(tmp_path / "out").iter("table")
        if table.findtext(".//th") == "s"
    }
    cells = [[cell.text for cell in row] for row in tables["pgfault"].find("tbody")]
    assert cells[0] == ["0.0", "0"]
    assert cells[2] == ["2.4", "100"]
    assert cells[-1] == ["12.1", "500"]


@pytest.mark.parametrize(
    ("before", "after", "odds", "means"),
    [
        ((3.0, 2.0, 20000.0), (900.0, 1100.0), False, (49.32, 994.99)),
        ((50.0, 90.0), (50.0,), True, (75.0, 50.0)),
        ((3.0, 2.0, 20000.0), (0.0, 4.0), False, (6668.33, 2.0)),
        ((100.0, 50.0), (50.0, 90.0), True, (75.0, 70.0)),
        ((), (4.0,), False, (None, 4.0)),
    ],
)
def test_means_beside_a_ratio(
    before: Sequence[float], after: Sequence[float], odds: bool, means: tuple[float | None, ...]
) -> None:
    """Their ratio is the finding's, as far as there are geometric ones; both sides have the same kind."""
    expected = tuple(mean if mean is None else pytest.approx(mean, rel=1e-4) for mean in means)
    assert html.means(before, after, odds) == expected


def test_an_empty_report(tmp_path: Path) -> None:
    assert "0 runs" in html.write([], [], tmp_path / "out").read_text()


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("6.1", "6.1.176"),
        ("6.1-slowscan-before", "6.1.176-slowscan"),
        ("debian", "6.1.0-50-amd64"),
        ("4.0-slowscan-before", "4.0.0-numalab"),  # its recipe names a tag, and no series
        ("3.16-rc2", "3.16.0-rc2-numalab"),
    ],
)
def test_kernels_of_this_checkout(name: str, release: str) -> None:
    found = html.kernel(name, release)
    assert found.description
    assert found.source
    assert not found.unknown
    recipe = kernel_recipe.load(name).recipe
    assert bool(found.patches) is bool(recipe.apply or recipe.revert)


def test_the_package_has_its_templates() -> None:
    """An installed numalab can write reports too."""
    patterns = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]["numalab.report"]
    files = [path.relative_to(paths.TEMPLATES.parent).as_posix() for path in paths.TEMPLATES.iterdir()]
    assert set(html.STATIC) < {Path(name).name for name in files}
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in files)


def test_command(tmp_path: Path, lab_state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By id and by folder, with the experiment's verdict."""
    runs = [
        run(kernel, TOUCH, boot=index, arm=arm)
        for index, (arm, kernel) in enumerate([(Arm.BEFORE, "6.1-slowscan-before"), (Arm.AFTER, "6.1")])
    ]
    folders = [put(item, lab_state / "runs") for item in runs]
    html_commands.report([runs[0].id, str(folders[1])], tmp_path / "out")
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "index.html")
    about = json.loads((tmp_path / "out" / "report.json").read_text())
    assert about["runs"] == [item.id for item in runs]
    assert [(verdict["answer"], verdict["boots"]) for verdict in about["verdicts"]] == [
        ("cannot tell", [1, 1])
    ]
    with pytest.raises(InputError, match="nothing-like-it"):
        html_commands.report(["nothing-like-it"], tmp_path / "out")
