"""The sentence at the head of a page claims no more than whole rounds support."""

from test_judge import KEY, rows_of

from weald_lab import front, judge, stats, whole
from weald_lab.record import Row


def standings(rows: list[Row]) -> whole.Standings:
    found = whole.rank(judge.judge(rows, KEY, 99), rows, judge.repeats(rows))
    assert found
    return found


def test_groups_share_what_cannot_be_told_apart() -> None:
    found = standings(rows_of({"a": 1.0, "b": 1.0, "c": 3.0}, 12, 0.1))
    assert [sorted(group) for group in found.groups] == [["a", "b"], ["c"]]
    said = whole.sentence(found, "Here")
    assert "lead and cannot be told apart; c takes 3." in said or "c takes 2.9" in said


def test_too_few_rounds_are_said_with_the_number_needed() -> None:
    found = standings(rows_of({"a": 1.0, "b": 9.0}, 2, 0.01))
    assert found.groups == [["a", "b"]]
    assert "cannot be told apart by 2 rounds" in whole.sentence(found, "Here")
    assert found.more_rounds and found.more_rounds >= stats.rounds_needed(1)
    assert found.stacks[0].low is None


def test_the_day_of_2015_counts_more_than_its_rounds(protocols: list[Row]) -> None:
    found = whole.rank(judge.judge(protocols, KEY, 10**9), protocols, judge.repeats(protocols))
    assert found and found.least_ratio > 1.2
    assert all("ReiserFS" in stack for stack in found.groups[0])
    assert len(found.groups[0]) == 3


def test_the_chart_names_its_groups_in_text() -> None:
    rows = rows_of({"<a>": 1.0, "c": 3.0}, 12, 0.1)
    text = front.section(judge.judge(rows, KEY, 99), standings(rows))
    assert "&lt;a&gt; is the fastest" in text and "<a>" not in text
    assert '<td data-head="group">2</td>' in text
