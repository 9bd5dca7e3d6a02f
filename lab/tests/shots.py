"""Takes screenshots of pages, light, dark and narrow: `python shots.py DIR PAGE...`."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from conftest import start_browser
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

HEIGHT_MAX = 1700


def show(browser: webdriver.Chrome, width: int, scheme: str) -> None:
    """Sets the width of the window and the scheme of colours."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "features": [{"name": "prefers-color-scheme", "value": scheme}]})
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600})


def open_page(browser: webdriver.Chrome, page: Path) -> None:
    """Opens a page and waits until its charts are drawn."""
    browser.get(page.resolve().as_uri())
    WebDriverWait(browser, 120).until(
        lambda b: b.execute_script("return document.body.dataset.drawn"))


def take(browser: webdriver.Chrome, target: Path, width: int, anchor: str) -> None:
    """Writes the page from an element on, as far as HEIGHT_MAX."""
    top, height = browser.execute_script(
        "const top = document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY;"
        "return [top, document.documentElement.scrollHeight - top];", anchor)
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {
        "format": "png", "captureBeyondViewport": True,
        "clip": {"x": 0, "y": top, "width": width, "height": min(height, HEIGHT_MAX),
                 "scale": 1}})
    target.write_bytes(base64.b64decode(shot["data"]))


def main(directory: Path, pages: list[Path]) -> None:
    """Takes three screenshots of each page."""
    browser = start_browser()
    try:
        for page in pages:
            for name, width, scheme, anchor in (
                    ("light", 1100, "light", "h1"), ("dark", 1100, "dark", "h1"),
                    ("narrow", 390, "light", "h1")):
                show(browser, width, scheme)
                open_page(browser, page)
                take(browser, directory / f"{page.stem}-{name}.png", width, anchor)
    finally:
        browser.quit()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
