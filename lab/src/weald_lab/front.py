"""The head of a table: one sentence, and every stack with its interval on a common scale."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from math import log

from weald_lab import whole
from weald_lab.judge import Judgement, Repeat

HEAD = ("stack", "group", "chart", "× fastest", "95 % interval", "last round ÷ first")
COLOUR_COUNT = 6


def where(judgement: Judgement, machine: str = "this machine") -> str:
    """Names the table in plain words."""
    kind = {"life": "the life of a data set", "read": "reading"}.get(
        judgement.family, judgement.family)
    return f"For {kind}, shape {judgement.shape}, {judgement.temperature}, on {machine}"


def _span(one: whole.Standing) -> str:
    return ("needs 6 rounds" if one.low is None or one.high is None
            else f"{one.low:.2f}–{one.high:.2f}")


# Places at which the axis of the chart may have a number.
TICKS = (1, 1.1, 1.2, 1.3, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100, 200, 500, 1000)
# Least distance of two numbers, percent of the width.
TICK_GAP = 9.0


def _axis(place: Callable[[float], float]) -> str:
    """Returns the row with the numbers of the scale."""
    marks, last = [], -TICK_GAP
    for tick in (1 / t for t in reversed(TICKS[1:])):
        if place(tick) >= 0 and place(tick) - last >= TICK_GAP and place(1) - place(tick) \
                >= TICK_GAP:
            marks.append(tick)
            last = place(tick)
    for tick in TICKS:
        if place(tick) <= 100.01 and (tick == 1 or place(tick) - last >= TICK_GAP):
            marks.append(tick)
            last = place(tick)
    # The first number would stick out of the table.
    shift = {tick: ";transform:none" for tick in marks if place(tick) < 3}
    text = "".join(f'<span style="left:{place(tick):.1f}%{shift.get(tick, "")}">×{tick:.3g}</span>'
                   for tick in marks)
    return ('<tr class="axis" aria-hidden="true"><td></td><td></td>'
            f'<td data-head="chart"><div class="track">{text}</div></td>'
            "<td></td><td></td><td></td></tr>")


PUBLISHED_HEAD = ("table", "published, from first to last", "pairs that differ for certain",
                  "neighbours in the order told apart", "stacks that share the first rank")


def published_rows(judgements: list[Judgement]) -> list[tuple[str, ...]]:
    """Says of each table what was published, what holds, and what does not."""
    rows: list[tuple[str, ...]] = []
    for table in judgements:
        found = table.verdict
        order = [rating.stack for rating in table.ratings]
        shared = sum(rating.overall == 0 for rating in table.ratings)
        rows.append((f"{table.shape}, {table.temperature}", f"{order[0]} … {order[-1]}",
                     f"{found.different} of {found.pairs}",
                     f"{found.neighbours_apart} of {found.neighbours}",
                     f"{shared} of {len(order)}"))
    return rows


def published_table(judgements: list[Judgement]) -> str:
    """Returns the same as a table of the page."""
    rows = ["<tr>" + "".join(
        f'<td data-head="{head}">{escape(cell)}</td>'
        for head, cell in zip(PUBLISHED_HEAD, cells, strict=True)) + "</tr>"
        for cells in published_rows(judgements)]
    top = "".join(f'<th scope="col">{head}</th>' for head in PUBLISHED_HEAD)
    return (f'<div class="scroll"><table class="cards words"><thead><tr>{top}</tr></thead><tbody>'
            f"{''.join(rows)}</tbody></table></div>")


def twice(repeat: Repeat) -> str:
    """Says how far two series of one stack lie apart."""
    return (
        f"{repeat.stack} ({repeat.shape}, {repeat.temperature}) was measured in two series, "
        f"{repeat.series[0]} and {repeat.series[1]}. They differ at {repeat.different} of "
        f"{repeat.steps} steps: typically by ×{repeat.ratio_median:.2f}, at most by "
        f"×{repeat.ratio_max:.2f} ({repeat.ratio_max_step}). Differences of that size between two "
        "stacks may come from the day, not from the file system, whatever the rounds say.")


def section(judgement: Judgement, found: whole.Standings | None,
            machine: str = "this machine") -> str:
    """Returns the sentence and the chart; it needs no script."""
    if found is None:
        return "<p class='lead'>No two stacks have a step in common: nothing to compare.</p>"
    least = min(one.low or one.ratio for one in found.stacks)
    most = max(one.high or one.ratio for one in found.stacks)
    width = max(log(most / least), 1e-9)

    def place(ratio: float) -> float:
        return 100 * log(ratio / least) / width

    rows = [_axis(place)]
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
    return (f"<p class='lead'>{escape(whole.sentence(found, where(judgement, machine)))}</p>"
            f'<div class="scroll"><table class="standing cards"><thead><tr>{top}</tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div>"
            f"<p class='faint'>{escape(' '.join(notes))}</p>")
