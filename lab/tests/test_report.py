"""The report: files, and the page in a real Chromium."""

import base64
import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait
from shots import open_page, show, take

from weald_lab import record
from weald_lab.cli import main

FIRST = "ReiserFS_LVM_raid6_sda+sdb+sdc+sdd+sde+sdf"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, protocols: list[record.Row]) -> Path:
    """A directory with the report over 2015 in all forms; plots of one table only."""
    out = tmp_path_factory.mktemp("report")
    record.write(out / "2015.jsonl", protocols)
    warm = [r for r in protocols if r["type"] == "run" or
            (r["shape"], r["temperature"]) == ("small", "warm")]
    record.write(out / "warm.jsonl", warm)
    for source, words in (
            ("2015.jsonl", ["--html", "page.html", "--csv", "t.csv", "--markdown", "t.md"]),
            ("warm.jsonl", ["--plots", "plots", "--rounds", "10"])):
        paths = [word if word.startswith("--") or word.isdigit() else str(out / word)
                 for word in words]
        result = CliRunner().invoke(main, ["report", str(out / source), *paths])
        assert result.exit_code == 0, result.output
    return out


def wait(browser: webdriver.Chrome, script: str) -> None:
    WebDriverWait(browser, 120).until(lambda b: b.execute_script(script))


def test_csv_has_every_cell(made: Path) -> None:
    with (made / "t.csv").open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 198 + 72 + 105 + 49
    du = next(r for r in rows if r["stack"] == FIRST and r["step"] == "du -scm testX")
    assert (du["rounds"], du["rank"]) == ("100", "0")
    assert float(du["low_s"]) <= float(du["median_s"]) <= float(du["high_s"])


def test_markdown_has_every_table(made: Path) -> None:
    text = (made / "t.md").read_text("utf-8")
    assert text.count("\n## ") == 4
    assert f"| {FIRST} | 100 | 0 | 0–0 | 0 |" in text


def test_plots_are_images(made: Path) -> None:
    names = {p.name for p in (made / "plots").iterdir()}
    assert "small-life-warm-rating.svg" in names
    assert "small-life-warm-00-du-scm-testX-rounds.png" in names
    for path in (made / "plots").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    for path in (made / "plots").glob("*.svg"):
        assert "currentColor" not in path.read_text("utf-8")


def test_page_loads_nothing_and_draws_all(made: Path, browser: webdriver.Chrome) -> None:
    show(browser, 1200, "light")
    open_page(browser, made / "page.html")
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    severe = [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
    assert not severe
    # Four of five: 2015 recorded no CPU times.
    assert len(browser.find_elements(By.CSS_SELECTOR, ".chart svg.marks")) == 4
    assert browser.find_element(By.ID, "cpuwall-none").is_displayed()
    ticks = browser.execute_script(
        "return document.querySelectorAll('#distribution .mark-rect path').length")
    assert ticks >= 1600


def test_step_can_be_chosen(made: Path, browser: webdriver.Chrome) -> None:
    open_page(browser, made / "page.html")
    Select(browser.find_element(By.ID, "table")).select_by_value("big-life-cold")
    Select(browser.find_element(By.ID, "step")).select_by_value("rm -rf testX")
    wait(browser, "return document.body.dataset.drawn === 'big-life-cold|rm -rf testX'")
    assert "BTRFSv4" in browser.find_element(By.ID, "distribution").text


def test_matrix_sorts_and_filters(made: Path, browser: webdriver.Chrome) -> None:
    open_page(browser, made / "page.html")
    Select(browser.find_element(By.ID, "base")).select_by_value("EXT4_MD_raid6")
    browser.find_element(By.ID, "find-stack").send_keys("raid6_-")
    browser.find_element(By.ID, "find-step").send_keys("clone")
    heads = browser.find_elements(By.CSS_SELECTOR, "#matrix-head button")
    assert [h.text for h in heads] == [
        "stack", "git clone testX testX.clone", "du -scm testX.clone", "rm -rf testX.clone"]
    browser.execute_script("arguments[0].click()", heads[1])

    def column() -> list[float]:
        return [float(cell.text) for cell in browser.find_elements(
            By.CSS_SELECTOR, "#matrix-body td:nth-child(2)")]
    up = column()
    assert len(up) == 4
    assert up == sorted(up)
    browser.execute_script(
        "document.querySelectorAll('#matrix-head button')[1].click()")
    assert column() == up[::-1]


def test_matrix_of_cpu_time(tmp_path: Path, browser: webdriver.Chrome) -> None:
    rows: list[record.Row] = [{"type": "run", "version": 1, "source": "test"}]
    rows += [{"type": "repetition", "stack": stack, "shape": "small", "series": "s", "round": at,
              "step": "du", "temperature": "cold", "wall_s": wall, "cpu_s": cpu, "load": 3.5,
              "pressure": {"cpu": 40.0}, "status": "ok"}
             for at in range(3) for stack, wall, cpu in (("a", 1.0, 1.0), ("b", 2.0, 0.5))]
    record.write(tmp_path / "r.jsonl", rows)
    words = ["report", str(tmp_path / "r.jsonl"), "--html", str(tmp_path / "p.html")]
    assert CliRunner().invoke(main, words).exit_code == 0
    show(browser, 1100, "light")
    open_page(browser, tmp_path / "p.html")
    assert "load 3.5 at the median" in browser.page_source
    assert browser.find_element(By.CSS_SELECTOR, "#cpuwall svg.marks").is_displayed()
    assert browser.find_element(By.CSS_SELECTOR, "#matrix-body").text == "a 1.00\nb 2.00"
    Select(browser.find_element(By.ID, "value")).select_by_value("cpu_s")
    assert browser.find_element(By.CSS_SELECTOR, "#matrix-body").text == "a 1.00\nb 0.50"


def test_dark_narrow_and_print(made: Path, browser: webdriver.Chrome) -> None:
    show(browser, 1200, "dark")
    open_page(browser, made / "page.html")
    paper = "return getComputedStyle(document.body).backgroundColor"
    assert browser.execute_script(paper) == "rgb(21, 24, 28)"
    ink = browser.execute_script(
        "return getComputedStyle(document.querySelector('#rating .mark-text text')).fill")
    assert ink == "rgb(228, 232, 236)"
    show(browser, 390, "light")
    open_page(browser, made / "page.html")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    printed = browser.execute_cdp_cmd("Page.printToPDF", {})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert browser.execute_script("return document.querySelector('details.cells').open")


def test_names_of_a_record_cannot_become_markup(tmp_path: Path, browser: webdriver.Chrome) -> None:
    bad = "</script><img src=x onerror=document.body.dataset.hacked=1>"
    rows: list[record.Row] = [{"type": "run", "version": 1, "source": bad}]
    rows += [{"type": "repetition", "stack": bad + str(s), "shape": "small", "series": "s",
              "round": r, "step": bad, "temperature": "cold", "wall_s": 1.0 + s, "status": "ok"}
             for r in range(3) for s in range(2)]
    record.write(tmp_path / "r.jsonl", rows)
    result = CliRunner().invoke(
        main, ["report", str(tmp_path / "r.jsonl"), "--html", str(tmp_path / "p.html"),
               "--title", bad])
    assert result.exit_code == 0, result.output
    open_page(browser, tmp_path / "p.html")
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert browser.execute_script("return document.body.dataset.hacked || null") is None
    assert bad in browser.find_element(By.TAG_NAME, "h1").text


def test_screenshots_show_both_schemes(made: Path, browser: webdriver.Chrome) -> None:
    sizes = []
    for scheme in ("light", "dark"):
        show(browser, 1100, scheme)
        open_page(browser, made / "page.html")
        take(browser, made / f"{scheme}.png", 1100, "#charts")
        sizes.append((made / f"{scheme}.png").read_bytes())
    assert all(shot.startswith(b"\x89PNG") and len(shot) > 50_000 for shot in sizes)
    assert sizes[0] != sizes[1]


def test_nothing_to_judge_is_said(tmp_path: Path) -> None:
    head = json.dumps({"type": "run", "version": 1, "source": "x"})
    (tmp_path / "r.jsonl").write_text(head + "\n", "utf-8")
    result = CliRunner().invoke(
        main, ["report", str(tmp_path / "r.jsonl"), "--csv", str(tmp_path / "c")])
    assert result.exit_code == 2
    assert "no successful repetition" in result.output
