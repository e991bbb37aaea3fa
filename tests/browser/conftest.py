# SPDX-License-Identifier: GPL-2.0-only
"""A headless Chromium, and a report that has every kind of content."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from numalab.report import html
from tests.unit import reports

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
"""From Debian's packages chromium and chromium-driver."""


def started() -> webdriver.Chrome:
    """A headless Chromium that logs its console and its requests."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # Chromium's sandbox does not work for root, which CI is. Hidden windows must be drawn too.
    frames = ("--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding")
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", *frames):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(300)  # axe takes a minute beside other work
    return driver


class Browser:
    """A headless Chromium, started on first use."""

    @functools.cached_property
    def driver(self) -> webdriver.Chrome:
        return started()

    def quit(self) -> None:
        """End Chromium; the next use starts another."""
        if driver := vars(self).pop("driver", None):
            driver.quit()


class Page:
    """A report in the browser."""

    def __init__(self, browser: Browser, report: Path) -> None:
        self.browser, self.report = browser, report
        self._load = self.show

    @property
    def driver(self) -> webdriver.Chrome:
        return self.browser.driver

    def show(self, *, scheme: str = "light", width: int = 1280, phone: bool = False) -> None:
        """Load the page in a window of this size."""
        self._load = functools.partial(self.show, scheme=scheme, width=width, phone=phone)
        self.cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone
        )
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.driver.get((self.report / "index.html").as_uri())

    def draw(self, only: str = "") -> None:
        """Scroll through the whole page, as a reader would, until every plot has been drawn; or just to the
        element of the selector `only`: all take ten seconds.

        Rarely, headless Chromium draws no frame at all until its window is brought to the front again, and
        more rarely never again: then another Chromium loads the page.
        """
        for others in range(3):
            if others:
                self.browser.quit()
                self._load()
            for _ in range(2):
                if self._scroll(only):
                    return
                self.cdp("Page.bringToFront")
        pytest.fail("Chromium draws no frame, nor do two others")

    def _scroll(self, only: str) -> bool:
        """Whether a frame came after each step, on a page that may be slow to draw its plots."""
        script = """
            const [only, done] = arguments, step = innerHeight;
            const first = only ? document.querySelector(only).getBoundingClientRect().top : 0;
            const end = () => only ? first + 1 : document.documentElement.scrollHeight;
            const frame = () => new Promise((ready) => {
              requestAnimationFrame(() => setTimeout(() => ready(true)));
              setTimeout(() => ready(false), 20000);
            });
            (async () => {
              for (let y = first; y < end(); y += step) {
                scrollTo(0, y);
                if (!await frame() || !await frame()) { done(false); return; }
              }
              scrollTo(0, 0); done(true);
            })();"""
        whole: bool = self.driver.execute_async_script(script, only)
        return whole

    def js(self, script: str, *arguments: object) -> Any:
        """The return value of a function with this body."""
        return self.driver.execute_script(script, *arguments)

    def cdp(self, command: str, **parameters: object) -> Any:
        """Call a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, parameters)

    def requests(self) -> list[str]:
        """URLs requested since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Console messages since the last call: errors, warnings, output of scripts."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = Browser()
    yield found
    found.quit()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report")
    runs, verdicts = reports.everything(place / "state")
    html.write(runs, verdicts, place / "out")
    return place / "out"


@pytest.fixture
def page(browser: Browser, report: Path) -> Page:
    """A tab of the test's own: one that has printed may draw no frame of the page that it loads next."""
    driver = browser.driver
    used = driver.current_window_handle
    driver.switch_to.new_window("tab")
    fresh = driver.current_window_handle
    driver.switch_to.window(used)
    driver.close()
    driver.switch_to.window(fresh)
    found = Page(browser, report)
    found.requests()
    found.complaints()
    return found
