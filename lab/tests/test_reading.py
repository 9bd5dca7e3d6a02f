"""The page read by those who do not see it, have no script, hold a telephone, or print it.

axe-core is from npm: AXE names its file, which scripts/lab-test.sh fetches.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from shots import open_page, show
from test_judge import rows_of

from weald_lab import record
from weald_lab.cli import main

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with cold and warm times of five stacks, one measured twice."""
    from click.testing import CliRunner
    out = tmp_path_factory.mktemp("reading")
    stacks = {"tmpfs": 0.5, "xfs": 0.9, "ext4": 1.0, "weald-volume": 1.4, "passthrough": 2.5}
    rows: list[record.Row] = [{"type": "run", "version": 1, "source": "test"}]
    for row in rows_of(stacks, 12, 0.1):
        rows.append(row | {"cpu_s": row["wall_s"] * 0.7})
        rows.append(row | {"temperature": "warm", "wall_s": row["wall_s"] * 0.6})
        if row["stack"] == "xfs":
            rows.append(row | {"series": "again", "wall_s": row["wall_s"] * 1.1})
    record.write(out / "r.jsonl", rows)
    words = ["report", str(out / "r.jsonl"), "--html", str(out / "page.html")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return out / "page.html"


@pytest.mark.parametrize(("width", "scheme"), [(1100, "light"), (1100, "dark"), (390, "light")])
def test_nothing_hinders_a_screen_reader(page: Path, browser: webdriver.Chrome, width: int,
                                         scheme: str) -> None:
    axe = os.environ.get("AXE")
    assert axe, "set AXE to axe.min.js of the npm package axe-core"
    show(browser, width, scheme)
    open_page(browser, page)
    browser.execute_script(Path(axe).read_text("utf-8"))
    browser.set_script_timeout(60)
    found = browser.execute_async_script(
        "const [rules, done] = arguments;"
        "for (const fold of document.querySelectorAll('details')) fold.open = true;"
        "axe.run(document, {runOnly: rules}).then(found => done(found.violations.map(v =>"
        " [v.id, v.help, v.nodes.slice(0, 3).map(n => n.html.slice(0, 150))])))", RULES)
    assert found == []


def test_first_screen_and_baselines_need_no_script(page: Path, browser: webdriver.Chrome) -> None:
    show(browser, 1100, "light")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page.as_uri())
        shown = [t for t in browser.find_elements(By.CSS_SELECTOR, ".heat-map")
                 if t.is_displayed()]
        assert all("divided by that of ext4" in t.text for t in shown) and len(shown) == 2
        browser.find_element(By.XPATH, "//label[text()='tmpfs']").click()
        shown = [t for t in browser.find_elements(By.CSS_SELECTOR, ".heat-map")
                 if t.is_displayed()]
        assert "divided by that of tmpfs" in shown[0].text
        lines = browser.find_elements(By.CSS_SELECTOR, ".panels polyline")
        assert len(lines) >= 5 and all(line.is_displayed() for line in lines[:5])
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("width", [320, 390, 768, 1100])
def test_nothing_is_cut_at_the_edge(page: Path, browser: webdriver.Chrome, width: int) -> None:
    show(browser, width, "light")
    open_page(browser, page)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    cut = browser.execute_script(
        "return [...document.querySelectorAll('table, svg, figure')].filter(e =>"
        " e.offsetParent !== null && !e.closest('.scroll') &&"
        " e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))")
    assert cut == []


def test_print_shows_intervals(page: Path, browser: webdriver.Chrome) -> None:
    show(browser, 1100, "light")
    open_page(browser, page)
    style = ("return getComputedStyle(document.querySelector("
             "'.heat-map td small')).display")
    assert browser.execute_script(style) == "none"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.execute_script(style) == "block"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
