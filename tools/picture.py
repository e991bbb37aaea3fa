#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Write docs/report.png, the picture of a report in the README: `make picture`.

lab.py makes the report from recorded runs (tests/recorded/runs), without a guest. The picture shows the top
of the page, down to the end of its first interval plot.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "tests/recorded/runs/1dc3791.tar.xz"
EXPERIMENTS = ("holds", "cannot-tell")
"""A verdict with a doubt, and one that cannot tell. A third would make the file too large for a README."""
WIDTH = 1280
"""In pixels."""
MARGIN = 2
DRAWN = "return document.querySelector('.plot svg.main-svg') !== null"
END = """
const plot = document.querySelector(".plot").getBoundingClientRect();
return Math.ceil(plot.bottom + scrollY);
"""


def report(place: Path) -> Path:
    """The first page of a report, made in a folder."""
    with tarfile.open(RECORDED) as archive:
        archive.extractall(place)
    environment = {**os.environ, "LAB_STATE": str(place / "state"), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "numalab", "report", *EXPERIMENTS, "--html", str(place / "out")]
    subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)
    return place / "out/index.html"


def picture(page: Path) -> bytes:
    """A PNG of the top of a page."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        driver.set_script_timeout(60)
        # A window higher than the picture: plots are drawn when they come into view.
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": WIDTH, "height": 3000, "deviceScaleFactor": 1, "mobile": False},
        )
        driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
        )
        driver.get(page.as_uri())
        WebDriverWait(driver, 60).until(lambda browser: browser.execute_script(DRAWN))
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": driver.execute_script(END) + MARGIN, "scale": 1}
        return base64.b64decode(
            driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip})["data"]
        )
    finally:
        driver.quit()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        image = picture(report(Path(folder)))
    target = ROOT / "docs/report.png"
    target.write_bytes(image)
    subprocess.run(["optipng", "-quiet", "-o2", target], check=True, timeout=120)
