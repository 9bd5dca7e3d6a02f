"""The heat map, the small charts and the renewed documents say what the repetitions say."""

import re

import pytest
from test_judge import KEY, rows_of

from weald_lab import heat, judge, panels, readme
from weald_lab.record import LabError, Row


def judged(rows: list[Row]) -> judge.Judgement:
    return judge.judge(rows, KEY, 99)


def test_ratios_turn_round_with_the_baseline() -> None:
    table = judged(rows_of({"a": 1.0, "b": 2.0}, 12, 0.05))
    step = table.steps[0]
    there = heat.planned(table, "a")["b", step]
    back = heat.planned(table, "b")["a", step]
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low and there.high and back.low and back.high
    assert back.low == pytest.approx(1 / there.high) and back.low < back.ratio < back.high
    assert there.differs and back.differs
    assert heat.shade(there.ratio)[0] == "s" and heat.shade(back.ratio)[0] == "f"


def test_planned_comparisons_are_corrected_for_their_own_number() -> None:
    stacks = {name: 1.0 + 0.2 * at for at, name in enumerate("abcdefgh")}
    table = judged(rows_of(stacks, 7, 0.01))
    planned = heat.planned(table, "a")
    assert len(planned) == 7 * len(table.steps)
    assert sum(one.differs for one in planned.values()) >= sum(
        pair.differs for pair in table.pairs if "a" in (pair.a, pair.b))


def test_equal_stacks_are_marked_as_such() -> None:
    table = judged(rows_of({"a": 1.0, "b": 1.0}, 12, 0.2))
    text = heat.section(table)
    assert "≈" in text and "cannot be told apart" in text


def test_names_cannot_become_markup_and_every_baseline_has_a_table() -> None:
    table = judged(rows_of({"<i>a</i>": 1.0, 'b" onclick="x': 2.0, "c": 3.0}, 6, 0.05))
    text = heat.section(table) + panels.section(table, None) + panels.legend(table)
    assert "<i>" not in text and 'b" on' not in text
    assert text.count('type="radio"') == 3 and text.count("<table") == 3
    assert text.count(" checked") == 1


def test_charts_show_every_repetition() -> None:
    table = judged(rows_of({"a": 1.0, "b": 2.0}, 12, 0.05))
    text = panels.rounds(table, table.steps[0])
    lines = re.findall(r'points="([^"]*)"', text)
    assert [len(line.split()) for line in lines] == [12, 12]
    assert "first to last: a" in text


def test_blocks_of_a_document_are_made_anew_and_others_stay() -> None:
    rows = rows_of({"a": 1.0, "b": 2.0}, 12, 0.05)
    sources = {"run": readme.Source([{"type": "run", "version": 1, "source": "x"}, *rows])}
    text = "before\n<!-- lab: rounds run -->\nold 17\n<!-- lab end -->\nafter 18\n"
    new = readme.renew(text, sources)
    assert new.startswith("before\n<!-- lab: rounds run -->\n- ") and new.endswith("after 18\n")
    assert "old 17" not in new and "12 rounds of 2 stacks" in new
    assert readme.renew(new, sources) == new
    with pytest.raises(LabError, match="no such block"):
        readme.renew(text.replace("rounds run", "rounds gone"), sources)
