"""A heat map: each step of each stack, divided by a baseline that the reader chooses.

There is one table for each baseline; style sheets alone show the one whose button is pressed, so
that it needs no script. Its tests are planned comparisons: each stack with the baseline at each
step, corrected for the number of these (Holm).
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import log2

from weald_lab import stats
from weald_lab.judge import Judgement, Pair

USUAL = "ext4"
# Least |log2 ratio| of each shade: 5 %, 25 %, 50 % and 100 %.
SHADES = (0.07, 0.32, 0.58, 1.0)


@dataclass(frozen=True)
class Ratio:
    """A stack divided by the baseline at a step. `differs`: after Holm's correction."""

    ratio: float
    low: float | None
    high: float | None
    differs: bool


def baseline(judgement: Judgement) -> str:
    """Returns the stack that the others are compared with at first: ext4, or the best rated."""
    return USUAL if USUAL in judgement.stacks else judgement.stacks[0]


def planned(judgement: Judgement, base: str) -> dict[tuple[str, str], Ratio]:
    """Compares each stack with `base` at each step; returns the ratios by stack and step."""
    pairs = [p for p in judgement.pairs if base in (p.a, p.b)]
    adjusted = stats.holm([p.p for p in pairs])
    return {(_other(p, base), p.step): _ratio(p, base, p_holm < stats.ALPHA)
            for p, p_holm in zip(pairs, adjusted, strict=True)}


def _other(pair: Pair, base: str) -> str:
    return pair.b if pair.a == base else pair.a


def _ratio(pair: Pair, base: str, differs: bool) -> Ratio:
    if pair.a == base:
        return Ratio(pair.ratio, pair.low, pair.high, differs)
    low = None if pair.high is None else 1 / max(pair.high, 1e-9)
    high = None if pair.low is None else 1 / max(pair.low, 1e-9)
    return Ratio(1 / max(pair.ratio, 1e-9), low, high, differs)


def sentence(judgement: Judgement) -> str:
    """Says how many planned comparisons with the usual baseline show a difference."""
    base = baseline(judgement)
    found = planned(judgement, base)
    apart = sum(one.differs for one in found.values())
    return (f"Planned comparisons: of {len(found)} (each stack with {base} at each step, corrected "
            f"for their own number), {apart} show a difference.")


def shade(ratio: float) -> str:
    """Returns the class of a cell: `s1` to `s4` for slower, `f1` to `f4` for faster."""
    level = sum(abs(log2(max(ratio, 1e-9))) >= least for least in SHADES)
    return f"{'s' if ratio > 1 else 'f'}{level}" if level else "s0"


def _cell(one: Ratio | None, stack: str, step: str, base: str) -> str:
    if stack == base:
        return '<td class="base">1</td>'
    if one is None:
        return "<td>–</td>"
    span = "" if one.low is None or one.high is None else f"{one.low:.2f}–{one.high:.2f}"
    mark = "" if one.differs else "≈ "
    told = f"{stack}, {step}: ×{one.ratio:.2f}"
    told += f", 95 % interval {span}" if span else ", needs 6 rounds for an interval"
    told += "" if one.differs else "; cannot be told apart"
    small = f"<small>{span}</small>" if span else ""
    return (f'<td class="{shade(one.ratio)}" title="{escape(told)}">{mark}{one.ratio:.2f}'
            f"{small}</td>")


def _table(judgement: Judgement, base: str) -> str:
    found = planned(judgement, base)
    top = "".join(f'<th scope="col">{escape(stack)}</th>' for stack in judgement.stacks)
    rows = "\n".join(
        f'<tr><th scope="row"><code>{escape(step)}</code></th>' + "".join(
            _cell(found.get((stack, step)), stack, step, base) for stack in judgement.stacks)
        + "</tr>" for step in judgement.steps)
    return (f'<div class="scroll" tabindex="0" role="region" '
            f'aria-label="{escape(judgement.name)}: steps divided by {escape(base)}">'
            '<table class="heat-map">'
            f"<caption>Median wall time divided by that of {escape(base)}</caption>"
            f'<thead><tr><th scope="col">step</th>{top}</tr></thead>\n<tbody>{rows}</tbody>'
            "</table></div>")


def section(judgement: Judgement) -> str:
    """Returns the heat map of a table with its buttons; nothing for a stack alone."""
    if len(judgement.stacks) < 2:
        return ""
    first, buttons, tables = baseline(judgement), [], []
    for at, stack in enumerate(judgement.stacks):
        name, id_ = f"heat-{judgement.name}", f"heat-{judgement.name}-{at}"
        checked = " checked" if stack == first else ""
        buttons.append(f'<input type="radio" name="{escape(name)}" id="{escape(id_)}"{checked}>'
                       f'<label for="{escape(id_)}">{escape(stack)}</label>')
        tables.append(_table(judgement, stack))
    return (f"<h3>Each step</h3><fieldset class='heat'><legend>Divided by</legend>"
            f"{''.join(buttons)}{''.join(tables)}</fieldset>"
            "<p class='faint'>Above 1, and orange: longer than the baseline. Below 1, and blue: "
            "shorter. ≈: the two cannot be told apart at this step by the test of planned "
            "comparisons. The interval of 95 % of a ratio is shown when the pointer rests on it, "
            f"and in print. {escape(sentence(judgement))}</p>")


def style(judgements: list[Judgement]) -> str:
    """Returns the rules that show the table of the pressed button."""
    count = max((len(judgement.stacks) for judgement in judgements), default=0)
    return "\n".join(f".heat > input:nth-of-type({at}):checked ~ div:nth-of-type({at})"
                     " { display: block; }" for at in range(1, count + 1))
