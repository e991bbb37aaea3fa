# SPDX-License-Identifier: GPL-2.0-only
"""The report in a real browser: complete, without errors or requests out of its folder, on all media."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from axe_core_python.selenium import Axe

from numalab.report import section_charts
from tests.browser.conftest import Page

WINDOWS = (("light", 1280, False), ("dark", 390, True), ("light", 320, True))
"""Colour scheme, width in CSS pixels, whether it is a telephone."""
INK = "return getComputedStyle(document.body).color"
PAPER = "return getComputedStyle(document.body).backgroundColor"
NARROW = """
return [...document.querySelectorAll("body *")].filter((element) => {
  const {right, width} = element.getBoundingClientRect();
  return width && right > innerWidth + 1 && !element.closest(".scroll, .plot, .unseen, svg");
}).map((element) => element.outerHTML.slice(0, 100));"""
"""Elements wider than the window, except those that scroll by themselves."""
PLOTS = """
return [...document.querySelectorAll(".plot")].map((plot) => {
  const box = plot.getBoundingClientRect(), svg = plot.querySelector(".main-svg");
  const marks = plot.querySelectorAll(".point, .js-line, .hm image, .slice").length;
  const outside = [...plot.querySelectorAll("text")].filter((text) => {
    const {left, right, width} = text.getBoundingClientRect();
    return width && (left < box.left - 2 || right > box.right + 2);
  }).map((text) => text.textContent);
  const inner = svg ? svg.getBoundingClientRect() : {width: 0, height: 0};
  return {id: plot.id, width: inner.width, height: inner.height, room: box.width, marks, outside};
});"""


def dark(colour: str) -> bool:
    """Whether rgb(r, g, b) is dark."""
    return sum(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")) < 3 * 128


def printed(page: Page, target: Path) -> Path:
    """The page as PDF, as a browser prints it, without backgrounds."""
    target.write_bytes(base64.b64decode(page.cdp("Page.printToPDF", printBackground=False)["data"]))
    return target


@pytest.mark.parametrize(("scheme", "width", "phone"), WINDOWS)
def test_nothing_is_missing_or_sticks_out(page: Page, scheme: str, width: int, phone: bool) -> None:
    page.show(scheme=scheme, width=width, phone=phone)
    page.draw()
    plots = page.js(PLOTS)
    assert len(plots) > 80
    assert not [plot for plot in plots if not plot["marks"] or plot["width"] < 200 or plot["height"] < 40], (
        "each is drawn"
    )
    assert not [plot for plot in plots if plot["width"] > plot["room"] + 1], "as wide as its place"
    assert not [plot for plot in plots if plot["outside"]], "no label is cut off"
    assert page.js("return document.documentElement.scrollWidth") <= width
    assert not page.js(NARROW)
    assert not page.complaints()


def test_sections_are_there(page: Page) -> None:
    page.show()
    titles = page.js(
        "return [...document.querySelectorAll('h2')].map((title) => title.firstChild.textContent.trim())"
    )
    assert titles == ["migratefail", "xfsrepair", "writeback-usb", "nas", "remote"]
    first = page.js(
        "return [...document.querySelectorAll('#s1 h3')].map((title) => title.textContent.trim())"
    )
    assert first[1:] == ["Tables", "Metrics", "Over time", "Profile", "What was run on what", "Runs"]
    assert page.js(
        "return [...document.querySelectorAll('h1, h2, h3, h4, caption, figcaption, summary')].every((one) =>"
        " one.textContent.trim())"
    )
    assert page.js("return document.querySelectorAll('.machine svg rect').length") == 4 + 4 + 1 + 4 + 2


def test_no_request_leaves_the_folder(page: Page, report: Path) -> None:
    page.show()
    page.draw()
    page.js("dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('afterprint'))")
    asked = [urlsplit(url) for url in page.requests() if not url.startswith("data:")]
    assert {url.scheme for url in asked} == {"file"}
    files = {Path(unquote(url.path)).relative_to(report).as_posix() for url in asked}
    assert files == {"index.html", "report.css", "report.js", "plotly.min.js"}


def test_links_to_raw_data_open_as_text(page: Page) -> None:
    """A workload's output that is HTML is not rendered as a page."""
    page.show()
    links = page.js(
        "return [...document.querySelectorAll('.runs a')].map((link) => link.href).filter((link) =>"
        " !link.endsWith('.gz'))"
    )
    kinds = {link.rpartition("/")[2].partition("-")[2] or link.rpartition("/")[2]: link for link in links}
    assert {"run.json", "console.txt", "touch.stdout.txt"} <= set(kinds)
    for link in (kinds["console.txt"], kinds["touch.stdout.txt"]):
        page.driver.get(link)
        assert page.js("return document.contentType") == "text/plain"
        assert "<script>alert(1)</script>" in page.js("return document.body.innerText")


def test_colours_follow_the_readers_scheme_without_a_reload(page: Page) -> None:
    page.show(scheme="light")
    page.draw()
    text = "return getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    assert not dark(page.js(PAPER))
    assert page.js(text) == page.js(INK)
    page.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert dark(page.js(PAPER))
    assert page.js(text) == page.js(INK)
    assert not dark(page.js(text))


def test_print_is_light_and_whole(page: Page, tmp_path: Path) -> None:
    """From a dark screen that was never scrolled: beforeprint draws the plots that were not in view."""
    page.show(scheme="dark")
    paper = printed(page, tmp_path / "report.pdf")
    text = subprocess.run(
        ["pdftotext", "-layout", paper, "-"], capture_output=True, text=True, check=True
    ).stdout
    for words in (
        "Verdicts",
        "cannot tell",
        "migratefail",
        "NUMA base PTE updates",
        "1.62M",
        "default_send_IPI_mask_sequence_phys",
        "node 3",
        "AMD EPYC",
    ):
        assert words in text, words
    subprocess.run(["pdftoppm", "-r", "20", "-gray", paper, tmp_path / "sheet"], check=True)
    sheets = sorted(tmp_path.glob("sheet-*.pgm"))
    assert len(sheets) > 10
    for sheet in sheets:
        pixels = sheet.read_bytes().split(b"\n", 3)[3]
        assert sum(pixel > 200 for pixel in pixels) > len(pixels) / 2, f"{sheet.name} is dark"
        edges = pixels[:5]
        assert min(edges) > 250, "white to its corner"
    assert not page.complaints()


def test_plots_fit_the_screen_again_after_printing(page: Page, tmp_path: Path) -> None:
    page.show()
    page.draw()
    widths = [plot["width"] for plot in page.js(PLOTS)]
    printed(page, tmp_path / "report.pdf")
    page.js("dispatchEvent(new Event('afterprint'))")
    assert [plot["width"] for plot in page.js(PLOTS)] == pytest.approx(widths, abs=1)


def test_hostile_text_runs_nothing(page: Page) -> None:
    """An alert would raise in the driver; the hostile text is shown as text."""
    page.show()
    page.draw()
    assert page.js("return document.images.length") == 0
    assert page.js(
        "return [...document.querySelectorAll('.legend li')].some((item) =>"
        " item.innerText.includes('<script>alert(1)</script>'))"
    )
    assert page.js("return document.querySelectorAll('.plot a').length") == 0


def test_the_policy_stops_a_script_that_slipped_in(page: Page) -> None:
    page.show()
    page.driver.execute_async_script(
        "const one = document.createElement('div'); one.innerHTML = '<img src=data:, onerror=\"window.slipped"
        " = 1\">'; one.firstChild.addEventListener('error', () => arguments[0]()); document.body.append(one)"
    )
    assert page.js("return window.slipped === undefined")
    assert any("Content Security Policy" in line for line in page.complaints())


def test_flame_graph_opens_a_box_and_comes_back(page: Page) -> None:
    page.show()
    page.draw(only="#s1-p1-1")
    wide = """const box = [...document.querySelectorAll('#s1-p1-1 .slice')].find((one) => one.textContent.includes(arguments[0]));
              return box ? box.getBoundingClientRect().width : 0"""
    click = """const boxes = [...document.querySelectorAll('#s1-p1-1 .slice')], done = arguments[1];
               document.getElementById('s1-p1-1').once('plotly_animated', () => done());
               boxes.find((one) => one.textContent.includes(arguments[0])).dispatchEvent(new MouseEvent('click', {bubbles: true}));"""
    before = page.js(wide, "migrate_misplaced_page")
    page.driver.execute_async_script(click, "migrate_misplaced_page")
    assert page.js(wide, "migrate_misplaced_page") > 1.5 * before
    assert not page.complaints()


def test_numbers_are_there_without_scripts(page: Page) -> None:
    page.cdp("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.show()
        assert page.js(
            "return document.querySelectorAll('figure details table').length =="
            " document.querySelectorAll('.plot').length"
        )
        assert "need JavaScript" in page.js("return document.body.innerText")
    finally:
        page.cdp("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize(("scheme", "width", "phone"), WINDOWS[:2])
def test_accessibility_rules(page: Page, scheme: str, width: int, phone: bool) -> None:
    """axe-core's rules, including contrast. Plots are excluded: they are pictures with a text alternative."""
    page.show(scheme=scheme, width=width, phone=phone)
    # These sections have nothing new for axe, which is slow.
    page.js("document.querySelectorAll('#s2, #s4, #s5').forEach((one) => one.remove())")
    page.js("document.querySelectorAll('#s1 details').forEach((one) => { one.open = true })")
    found: dict[str, Any] = Axe().run(page.driver, context={"exclude": [[".plot"]]})
    told = [
        f"{rule['id']}: {len(rule['nodes'])} × {rule['nodes'][0]['html'][:200]}"
        for rule in found["violations"]
    ]
    assert not told
    assert len(found["passes"]) > 20


def test_every_judged_case_says_so_in_words(page: Page) -> None:
    page.show()
    badges = page.js("return [...document.querySelectorAll('.verdicts .badge')].map((one) => one.innerText)")
    assert badges == ["holds", "cannot tell", "holds", "no verdict", "no verdict"]
    assert page.js("return document.querySelector('#s1-metrics ~ h4').innerText") == section_charts.JUDGED
