"""Records and a browser for the tests."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from weald_lab import protocols2015, record

DATA = Path(__file__).parent / "data"

# A shell starts jobs in the background with SIGINT ignored, and every process below inherits that.
# The tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def protocols() -> list[record.Row]:
    """The protocols of 2015."""
    return protocols2015.load(DATA / "test_fs_protocols.tar.xz")


def start_browser() -> webdriver.Chrome:
    """Starts a headless Chromium, the one of Debian."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program and driver, "install the packages chromium and chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage",
                 "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """One browser for all tests."""
    found = start_browser()
    try:
        yield found
    finally:
        found.quit()
