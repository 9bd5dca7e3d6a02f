"""All stacks are measured under the same conditions, and the page says what was measured."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from selenium import webdriver
from selenium.webdriver.common.by import By
from shots import open_page, show
from test_run import lab, nothing_left, weald

from weald_lab import record, trust
from weald_lab.cli import main
from weald_lab.images import ImageStack
from weald_lab.plan import Plan
from weald_lab.stacks import Place, Stack

# A stack on the lab's device, and one that makes its own loop device as the old example did.
OWN = """[[stack]]
name = "on-device"
create = "mkfs.ext4 -q -F $DEV"
mount = "echo $(cat /sys/block/$(basename $DEV)/loop/dio) >> SEEN; mount $DEV $MNT"
unmount = "umount $MNT"

[[stack]]
name = "own-loop"
create = "truncate -s $SIZE disk; mkfs.ext4 -q disk"
mount = "mount -t ext4 -o loop disk $MNT"
unmount = "cat /sys/block/$(basename $(findmnt -no SOURCE $MNT))/loop/dio >> SEEN; umount $MNT"
"""


def run_own(tmp_path: Path) -> list[record.Row]:
    stacks = tmp_path / "own.toml"
    stacks.write_text(OWN.replace("SEEN", str(tmp_path / "seen")), "utf-8")
    out = tmp_path / "out"
    result = lab("run", "--on", "ext4", "--stack-file", stacks, "--shape", "2x10", "--rounds", "1",
                 "--out", out)
    assert result.exit_code == 0, result.output
    assert nothing_left(out)
    return record.read(out / record.FILE_NAME)


def test_own_stacks_have_direct_io_and_read_from_the_device_when_cold(tmp_path: Path) -> None:
    rows = run_own(tmp_path)
    assert set((tmp_path / "seen").read_text("utf-8").split()) == {"1"}
    for stack in ("ext4", "on-device", "own-loop"):
        mine = [r for r in rows[1:] if (r["stack"], r["step"]) == (stack, "read all")]
        read = {r["temperature"]: r["read_bytes"] for r in mine}
        assert read["cold"] > 50_000 > read["warm"], (stack, read)
    settings = rows[0]["settings"]
    assert "direct I/O" in settings["cold"]["on-device"]
    assert "direct I/O" in settings["cold"]["own-loop"]
    assert settings["commands"]["own-loop"][1] == "mount -t ext4 -o loop disk $MNT"
    assert settings["commands"]["on-device"][:2] == [
        "losetup --find --show --direct-io=on $DIR/device.img", "mkfs.ext4 -q -F $DEV"]


def test_pages_of_a_file_in_the_stacks_directory_are_dropped(tmp_path: Path) -> None:
    stacks = tmp_path / "own.toml"
    seen = tmp_path / "seen"
    stacks.write_text(f"""[[stack]]
name = "bound"
create = "mkdir data; head -c 1000000 /dev/urandom > data/large"
mount = "fincore -n -o PAGES data/large >> {seen}; mount --bind data $MNT; cat data/large > copy"
unmount = "umount $MNT"
""", "utf-8")
    result = lab("run", "--stack-file", stacks, "--shape", "1x1", "--rounds", "1", "--out",
                 tmp_path / "out")
    assert result.exit_code == 0, result.output
    pages = [int(word) for word in seen.read_text("utf-8").split()]
    assert len(pages) > 5 and set(pages[1:]) == {0}, pages


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "weald-volume", "passthrough",
                                  "squashfs"])
def test_the_commands_of_the_page_are_those_that_ran(tmp_path: Path, kind: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan([{"name": "s", "kind": kind, "settings": {}}], "1x2", 1, 1,
                str(tmp_path / "work"), weald=weald(), size_mib=320)
    Path(plan.work).mkdir(mode=0o700)
    (Path(plan.work) / ".weald-lab").write_text("", "utf-8")
    for name in ("home", "tmp", "source"):
        (Path(plan.work) / name).mkdir()
    ran: list[str] = []
    real = trust.run
    stack: Stack = plan.stacks()[0]

    def noted(words: list[str], environment: dict[str, str]) -> object:
        line = stack.shown(*words)
        for number in range(64):
            line = line.replace(f"/dev/loop{number}", "$DEV")
        ran.append(line)
        return real(words, environment)
    monkeypatch.setattr(trust, "run", noted)
    stack.create()
    stack.mount()
    if isinstance(stack, ImageStack):
        stack.run(*stack.pack_words(tmp_path / "work/source"))
        stack.run(*stack.mount_words())
    stack.unmount()
    stack.destroy()
    said = stack.commands()
    assert said
    assert [line for line in said if line not in ran] == [], ran
    assert str(tmp_path) not in json.dumps(said)
    assert isinstance(plan.place(), Place)


def test_the_page_says_how_stacks_were_mounted_and_fits_a_narrow_screen(
        tmp_path: Path, browser: webdriver.Chrome) -> None:
    head: record.Row = {
        "type": "run", "version": 1, "source": "test", "settings": {
            "on": [{"name": "mine", "kind": "command", "settings": {"mount": "x"}},
                   {"name": "ext4", "kind": "ext4", "settings": {}}],
            "commands": {"mine": ["mount <b>$DEV</b> $MNT"], "ext4": ["mkfs.ext4 -q -F $DEV"]},
            "cold": {"mine": "unmount and mount again, on $DEV", "ext4": "unmount"}}}
    rows = [head]
    rows += [{"type": "repetition", "stack": stack, "shape": "small", "series": "s", "round": at,
              "step": "du", "temperature": "cold", "wall_s": wall, "status": "ok"}
             for at in range(3) for stack, wall in (("mine", 1.0), ("ext4", 2.0))]
    record.write(tmp_path / "r.jsonl", rows)
    words = ["report", str(tmp_path / "r.jsonl"), "--html", str(tmp_path / "p.html")]
    assert CliRunner().invoke(main, words).exit_code == 0
    for width in (1100, 390):
        show(browser, width, "light")
        open_page(browser, tmp_path / "p.html")
        browser.execute_script(
            "for (const fold of document.querySelectorAll('details')) fold.open = true")
        text = browser.find_element(By.TAG_NAME, "body").text
        assert "mount <b>$DEV</b> $MNT" in text and "mkfs.ext4 -q -F $DEV" in text
        assert "own commands" in text and "unmount and mount again, on $DEV" in text
        assert "divided by" in text and "median through" not in text
    # At 390 pixels every cell of the main table is inside the page, with its heading.
    cells = browser.find_elements(By.CSS_SELECTOR, "table.sortable.cards td")
    assert len(cells) == 14
    ends = [cell.rect["x"] + cell.rect["width"] for cell in cells]
    assert max(ends) <= 390
    heads = browser.execute_script(
        "return getComputedStyle(document.querySelector('table.sortable.cards td:nth-child(5)'), "
        "'::before').content")
    assert "shared rank" in heads


def test_a_path_with_blanks_is_no_obstacle(tmp_path: Path) -> None:
    """Would catch: a step of an image whose shell splits the path of the mount."""
    out = tmp_path / "ein Täst's" / "out"
    result = lab("run", "--on", "squashfs,weald-image,ext4", "--shape", "1x2", "--rounds", "1",
                 "--weald", weald(), "--out", out)
    assert result.exit_code == 0, result.output
    rows = record.read(out / record.FILE_NAME)
    assert {r["status"] for r in rows[1:]} == {"ok"}
    entries = {r["entries"] for r in rows[1:] if r["step"] == "walk" and r["stack"] != "ext4"}
    assert min(entries) > 10
    assert nothing_left(out)


def test_the_documented_example_has_direct_io() -> None:
    text = (Path(__file__).parents[2] / "docs/lab/README.md").read_text("utf-8")
    example = text[text.index("[[stack]]"):].split("```")[0]
    assert "$DEV" in example and "-o loop" not in example
    assert os.geteuid() == 0 and subprocess.run(["losetup", "--version"], check=True)
