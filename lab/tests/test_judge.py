"""Stacks that cannot be told apart share a rank; stacks that can do not."""

from pathlib import Path

import numpy as np
import pytest

from weald_lab import judge, readme, record
from weald_lab.record import Row

KEY = ("small", "life", "cold")


def rows_of(walls: dict[str, float], rounds: int, noise: float, seed: int = 7) -> list[Row]:
    """Returns rounds of two steps with log-normal noise."""
    rng = np.random.default_rng(seed)
    return [{"type": "repetition", "stack": stack, "shape": "small", "series": "s", "round": at,
             "step": step, "temperature": "cold", "status": "ok",
             "wall_s": float(wall * rng.lognormal(0, noise))}
            for at in range(rounds) for stack, wall in walls.items() for step in ("du", "tar")]


def test_equal_stacks_share_rank_and_the_slow_one_does_not() -> None:
    found = judge.judge(rows_of({"a": 1.0, "b": 1.0, "c": 3.0}, 12, 0.1), KEY, 99)
    assert {k[0]: c.rank for k, c in found.cells.items()} == {"a": 0, "b": 0, "c": 2}
    old = [found.cells[stack, "du"].old_rank for stack in "abc"]
    assert sorted(old) == [0, 1, 2]  # the ranking of 2015 orders them all the same
    assert found.cells["a", "du"].faster_than == ["c"]


def test_two_rounds_tell_nothing_apart() -> None:
    found = judge.judge(rows_of({"a": 1.0, "b": 9.0}, 2, 0.01), KEY, 99)
    assert {c.rank for c in found.cells.values()} == {0}
    assert found.verdict.rounds_needed > 2
    assert all(c.low_s is None for c in found.cells.values())


def test_noise_alone_gives_no_differences() -> None:
    wrong = sum(judge.judge(rows_of(dict.fromkeys("abcdef", 1.0), 10, 0.3, seed), KEY, 99)
                .verdict.different > 0 for seed in range(40))
    assert wrong <= 6  # 5 % of 40 tables is 2


def test_failed_repetitions_are_counted_and_left_out() -> None:
    rows = rows_of({"a": 1.0, "b": 1.0}, 8, 0.1)
    rows.append({**rows[0], "status": "failed", "error": "no space", "round": 8})
    found = judge.judge(rows, KEY, 99)
    assert found.failed == {("a", "du"): 1}
    assert len(found.cells["a", "du"].walls) == 8


def test_the_same_stack_twice_shows_the_noise_of_2015(protocols: list[Row]) -> None:
    cold = [r for r in judge.repeats(protocols) if r.temperature == "cold"]
    assert [(r.stack, r.different, r.steps) for r in cold] == [("EXT4_MD_raid6", 10, 11)]
    assert cold[0].ratio_median == pytest.approx(1.23, abs=0.005)


def test_documents_have_the_figures_of_their_records(protocols: list[Row]) -> None:
    """Fails if somebody wrote a figure by hand, or has not run `weald-lab readme` again."""
    root = Path(__file__).parents[2]
    head: Row = {"type": "run", "version": 1, "source": "DataLad test_fs_protocols, 2015"}
    sources = {"run": readme.Source(record.read(root / "docs/lab/run.jsonl")),
               "y2015": readme.Source([head, *[r for r in protocols if r["type"] != "run"]])}
    for document in (root / "README.md", root / "docs/lab/README.md"):
        text = document.read_text("utf-8")
        assert "<!-- lab: " in text
        assert readme.renew(text, sources) == text, document


def test_the_verdict_on_2015(protocols: list[Row]) -> None:
    found = judge.judge(protocols, KEY, 10**9)
    assert [r.stack for r in found.ratings if r.old_place < 2] == [
        "ReiserFS_LVM_raid6_sda+sdb+sdc+sdd+sde+sdf", "ReiserFS_MD_raid6"]
    assert sum(r.overall == 0 for r in found.ratings) == 8
    assert found.verdict.neighbours_apart < found.verdict.neighbours * 0.6
