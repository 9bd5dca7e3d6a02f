"""Figures of a document, made anew out of records, so that no prose and no test has to hold them.

A block of Markdown begins with a line `<!-- lab: KIND WORDS -->` and ends with `<!-- lab end -->`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from weald_lab import front, heat, judge, spent, stats, whole
from weald_lab.judge import Judgement
from weald_lab.record import LabError, Row

BLOCK = re.compile(r"(<!-- lab: ([^>]*?) -->\n).*?(<!-- lab end -->)", re.DOTALL)

WIDTH = 120


@dataclass
class Source:
    """A record, judged once."""

    rows: list[Row]

    @cached_property
    def judgements(self) -> list[Judgement]:
        """All tables."""
        return [judge.judge(self.rows, key, 10**9) for key in judge.tables_of(self.rows)]

    @cached_property
    def repeats(self) -> list[judge.Repeat]:
        """What was measured twice."""
        return judge.repeats(self.rows)

    def table(self, family: str, temperature: str) -> Judgement:
        """The first table of this kind."""
        for found in self.judgements:
            if (found.family, found.temperature) == (family, temperature):
                return found
        raise LabError(f"the record has no table {family} {temperature}")


def _wrapped(text: str, first: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first),
                         break_long_words=False, break_on_hyphens=False)


def _sentences(source: Source, words: list[str]) -> list[str]:
    """`sentences`: of every table, as a list; `sentences FAMILY TEMPERATURE`: of one."""
    tables = [source.table(*words)] if words else source.judgements
    out = []
    for table in tables:
        found = whole.rank(table, source.rows, source.repeats)
        if found:
            said = whole.sentence(found, front.where(table, "the machine of the run"))
            out += _wrapped(said, "" if words else "- ")
    return out


def _ratios(source: Source, words: list[str]) -> list[str]:
    """`ratios STACK BASE`: medians of STACK divided by those of BASE."""
    stack, base = words
    out = ["| step | wall, cold | 95 % interval | CPU, cold | wall, warm | CPU, warm |",
           "|---|--:|--:|--:|--:|--:|"]
    cold, warm = source.table("life", "cold"), source.table("life", "warm")
    planned = heat.planned(cold, base)
    for step in cold.steps:
        cells = []
        one = planned.get((stack, step))
        for table in (cold, warm):
            mine, other = table.cells.get((stack, step)), table.cells.get((base, step))
            wall = cpu = ""
            if mine and other:
                wall = f"{mine.median_s / max(other.median_s, 1e-9):.2f}"
                if "cpu_s" in mine.others and other.others.get("cpu_s"):
                    cpu = f"{mine.others['cpu_s'] / other.others['cpu_s']:.2f}"
            cells.append((wall, cpu))
        span = "" if one is None or one.low is None else f"{one.low:.2f}–{one.high:.2f}"
        mark = "" if one is None or one.differs or not cells[0][0] else "≈ "
        out.append(f"| `{step}` | {mark}{cells[0][0]} | {span} | {cells[0][1]} | {cells[1][0]} "
                   f"| {cells[1][1]} |")
    return out


def _spent(source: Source, words: list[str]) -> list[str]:
    """`spent SECONDS`: where the time went."""
    return ["```", *spent.lines(source.rows, float(words[0])), "```"]


def _rounds(source: Source, _words: list[str]) -> list[str]:
    out = []
    for table in source.judgements:
        stacks = len(table.stacks)
        out += _wrapped(
            f"{table.name}: {table.verdict.rounds_min} rounds of {stacks} stacks. To tell two "
            f"apart at a step, all pairs need {table.verdict.rounds_needed}, planned comparisons "
            f"{stats.rounds_needed((stacks - 1) * len(table.steps))}. {heat.sentence(table)}", "- ")
    return out


def _published(source: Source, _words: list[str]) -> list[str]:
    rows = [front.PUBLISHED_HEAD, *front.published_rows(source.judgements)]
    out = [f"| {' | '.join(row)} |" for row in rows]
    out.insert(1, "|---|---|--:|--:|--:|")
    out.append("")
    for one in source.repeats:
        out += _wrapped(front.twice(one), "- ")
    return out


KINDS: dict[str, Callable[[Source, list[str]], list[str]]] = {
    "sentences": _sentences, "ratios": _ratios, "spent": _spent, "rounds": _rounds,
    "published": _published,
}


def renew(text: str, sources: dict[str, Source]) -> str:
    """Returns the document with every block made anew: `KIND SOURCE WORDS`."""
    def block(match: re.Match[str]) -> str:
        kind, name, *words = match[2].split()
        if kind not in KINDS or name not in sources:
            raise LabError(f"<!-- lab: {match[2]} -->: no such block: expected one of "
                           f"{', '.join(KINDS)}, and one of {', '.join(sources)}")
        return match[1] + "\n".join(KINDS[kind](sources[name], words)) + "\n" + match[3]
    return BLOCK.sub(block, text)
