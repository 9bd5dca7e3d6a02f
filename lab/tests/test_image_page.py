"""The page of weald info --html in a real Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from shots import show

BAD = ["</script><img src=x onerror=document.body.dataset.hacked=1>",
       "\"><svg onload=document.body.dataset.hacked=1>", "'<!--",
       "new\nline", "rtl\u202egpj", "<style>body{display:none}<"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an image with hostile names."""
    weald = shutil.which(os.environ.get("WEALD", "weald"))
    assert weald, "set WEALD to the program weald"
    made = tmp_path_factory.mktemp("page")
    for name in BAD:
        (made / "tree" / name.replace("/", "%")).mkdir(parents=True)
        (made / "tree" / name.replace("/", "%") / name.replace("/", "%")).write_bytes(
            os.urandom(100_000))
    for words in (["build", "-q", "--label", BAD[0], "tree", "image"],
                  ["info", "--html", "page.html", "image"]):
        subprocess.run([weald, *words], cwd=made, check=True)
    return made / "page.html"


def colour(browser: webdriver.Chrome, words: str) -> list[int]:
    found = browser.execute_script(f"return getComputedStyle(document.body).{words}")
    return [int(part) for part in found[found.index("(") + 1:-1].split(",")[:3]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_drawn_and_loads_nothing(
        page: Path, browser: webdriver.Chrome, scheme: str) -> None:
    show(browser, 1200, scheme)
    browser.get(page.as_uri())
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    log = browser.get_log("browser")  # type: ignore[no-untyped-call]
    assert not [entry for entry in log if entry["level"] == "SEVERE"]
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.map rect')].map(r => r.getBoundingClientRect())"
        ".filter(r => r.width > 1 && r.height > 1).length")
    assert drawn >= 2 * len(BAD)
    text, behind = colour(browser, "color"), colour(browser, "backgroundColor")
    assert (sum(text) > sum(behind)) == (scheme == "dark")
    assert abs(sum(text) - sum(behind)) > 450


def test_names_cannot_become_markup(page: Path, browser: webdriver.Chrome) -> None:
    show(browser, 1200, "light")
    browser.get(page.as_uri())
    bad = "script,img,svg svg,body style,[onload],[onerror]"
    count = "return document.querySelectorAll(arguments[0]).length"
    assert browser.execute_script(count, bad) == 0
    assert browser.execute_script("return document.body.dataset.hacked || null") is None
    text = browser.find_element(By.ID, "directories").text
    for name in BAD[:3]:
        assert name.replace("/", "%") in text
    assert "new\\x0aline" in text and "rtl\\xe2\\x80\\xaegpj" in text and "\u202e" not in text
    assert browser.find_element(By.ID, "generations").is_displayed()


def test_the_sum_of_the_rows_is_the_image(page: Path, browser: webdriver.Chrome) -> None:
    browser.get(page.as_uri())
    stored = browser.execute_script(
        "return [...document.querySelectorAll('#directories .d0, #directories .area')]"
        ".reduce((sum, row) => sum + Number(row.dataset.stored), 0)")
    assert stored == (page.parent / "image").stat().st_size


def test_a_narrow_page_is_not_cut(page: Path, browser: webdriver.Chrome) -> None:
    show(browser, 400, "light")
    browser.get(page.as_uri())
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(wide) <= 1
