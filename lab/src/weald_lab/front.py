"""The head of a table: one sentence, and every stack with its interval on a common scale."""

from __future__ import annotations

from html import escape
from math import log

from weald_lab import whole
from weald_lab.judge import Judgement

HEAD = ("stack", "group", "chart", "× fastest", "95 % interval", "last round ÷ first")
COLOUR_COUNT = 6


def where(judgement: Judgement) -> str:
    """Names the table in plain words."""
    kind = {"life": "the life of a data set", "read": "reading"}.get(
        judgement.family, judgement.family)
    return f"For {kind}, shape {judgement.shape}, {judgement.temperature}, on this machine"


def _span(one: whole.Standing) -> str:
    return ("needs 6 rounds" if one.low is None or one.high is None
            else f"{one.low:.2f}–{one.high:.2f}")


def section(judgement: Judgement, found: whole.Standings | None) -> str:
    """Returns the sentence and the chart; it needs no script."""
    if found is None:
        return "<p class='lead'>No two stacks have a step in common: nothing to compare.</p>"
    least = min(one.low or one.ratio for one in found.stacks)
    most = max(one.high or one.ratio for one in found.stacks)
    width = max(log(most / least), 1e-9)

    def place(ratio: float) -> float:
        return 100 * log(ratio / least) / width

    rows = []
    for one in found.stacks:
        left = place(one.low or one.ratio)
        right = place(one.high or one.ratio)
        bar = (f'<div class="track g{one.group % COLOUR_COUNT}" aria-hidden="true">'
               f'<i style="left:{left:.1f}%;width:{max(right - left, 0.5):.1f}%"></i>'
               f'<b style="left:{place(one.ratio):.1f}%"></b></div>')
        cells = [escape(one.stack), str(one.group + 1), bar, f"{one.ratio:.2f}", _span(one),
                 "–" if one.ageing is None else f"{one.ageing:.2f}"]
        rows.append("<tr>" + "".join(
            f'<td data-head="{head}">{cell}</td>' for head, cell in zip(HEAD, cells, strict=True))
            + "</tr>")
    top = "".join(f'<th scope="col">{head}</th>' for head in HEAD)
    notes = [f"Whole rounds: geometric mean of {len(found.steps)} steps. Stacks of one group have "
             "one colour and cannot be told apart."]
    if found.left_out:
        notes.append(f"Without these steps, and left out: {whole.join(found.left_out)}.")
    if found.least_ratio > 1:
        notes.append(f"One stack measured twice lies ×{found.least_ratio:.2f} apart: smaller "
                     "differences do not count.")
    return (f"<p class='lead'>{escape(whole.sentence(found, where(judgement)))}</p>"
            f'<div class="scroll"><table class="standing cards"><thead><tr>{top}</tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div>"
            f"<p class='faint'>{escape(' '.join(notes))}</p>")
