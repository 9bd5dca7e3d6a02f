"""Small charts of every step at once, as SVG in the page: they need no script."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from math import log, log10

import numpy as np

from weald_lab import chartdata
from weald_lab.judge import Cell, Judgement
from weald_lab.outputs import number

WIDTH, HEIGHT = 320, 170
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 8, 22
ROW = 15
# Okabe and Ito's colours, which most people can tell apart, then again with dashes.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a6a00", "#56b4e9", "#8b5a2b", "#666666")
DASHES = ("", "5 3", "2 2")
LEAST_S = 1e-4


def _stroke(at: int) -> str:
    dash = DASHES[at // len(COLOURS) % len(DASHES)]
    words = f'stroke="{COLOURS[at % len(COLOURS)]}"'
    return words + (f' stroke-dasharray="{dash}"' if dash else "")


def legend(judgement: Judgement) -> str:
    """Returns the list of the stacks with their colours."""
    items = "".join(
        f'<li><svg width="26" height="10" aria-hidden="true"><line x1="0" y1="5" x2="26" y2="5" '
        f'stroke-width="3" {_stroke(at)}/></svg> {escape(stack)}</li>'
        for at, stack in enumerate(judgement.stacks))
    return f"<ul class='legend'>{items}</ul>"


def _ticks(low: float, high: float) -> list[float]:
    """Returns round numbers of a logarithmic axis, from two to about five."""
    found = [m * 10.0 ** e for e in range(-5, 6) for m in (1, 2, 5)
             if low <= m * 10.0 ** e <= high]
    if len(found) > 5:
        tens = [v for v in found if abs(log10(v) - round(log10(v))) < 1e-9]
        found = tens if len(tens) > 1 else found[:: len(found) // 4]
    return found if len(found) > 1 else [float(f"{v:.2g}") for v in (low, high)]


class Scale:
    """A logarithmic scale of seconds."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        self.low, self.high = min(values), max(values)
        if self.high / self.low < 1.05:
            self.low, self.high = self.low / 1.05, self.high * 1.05
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        """Returns the place of a value."""
        part = log(value / self.low) / log(self.high / self.low)
        return self.start + part * (self.end - self.start)


def rounds(judgement: Judgement, step: str) -> str:
    """Draws the time of a step against the round, for all stacks and all rounds."""
    cells = {cell.stack: cell for cell in chartdata.cells_at(judgement, step)}
    values = [max(float(w), LEAST_S) for cell in cells.values() for w in cell.walls]
    last = max(float(cell.rounds.max()) for cell in cells.values())
    y = Scale(values, HEIGHT - BOTTOM, TOP)

    def x(round_: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (round_ / last if last else 0.5)

    parts = [_frame(y), f'<text x="{LEFT}" y="{HEIGHT - 6}">round 1</text>',
             f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{last + 1:.0f}</text>']
    told = []
    for at, stack in enumerate(judgement.stacks):
        cell = cells.get(stack)
        if cell is None:
            continue
        order = np.argsort(cell.rounds, kind="stable")
        walls = np.maximum(cell.walls, LEAST_S)
        places = " ".join(f"{x(float(cell.rounds[i])):.0f},{y.at(float(walls[i])):.0f}"
                          for i in order)
        parts.append(f'<polyline fill="none" stroke-width="1.4" {_stroke(at)} points="{places}">'
                     f"<title>{escape(stack)}</title></polyline>")
        told.append(f"{stack} {number(float(cell.walls[order[0]]))} s to "
                    f"{number(float(cell.walls[order[-1]]))} s")
    label = f"{step}: seconds by round, first to last: {'; '.join(told)}"
    return _figure(step, label, HEIGHT, parts)


def _frame(y: Scale) -> str:
    lines = []
    for tick in _ticks(y.low, y.high):
        place = y.at(tick)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" '
                     f'y2="{place:.1f}"/><text x="{LEFT - 4}" y="{place + 4:.1f}" '
                     f'text-anchor="end">{number(tick)} s</text>')
    return "".join(lines)


Value = Callable[[str], float | None]


def two(judgement: Judgement, step: str, names: tuple[str, str],
        values: tuple[Value, Value]) -> str:
    """Draws two values of each stack at a step, joined; nothing if no stack has both."""
    rows = [(stack, values[0](stack), values[1](stack)) for stack in judgement.stacks]
    known = [(stack, max(a, LEAST_S), max(b, LEAST_S)) for stack, a, b in rows
             if a is not None and b is not None]
    if not known:
        return ""
    height = TOP + ROW * len(known) + BOTTOM
    left = 118
    x = Scale([v for _, a, b in known for v in (a, b)], left, WIDTH - RIGHT - 6)
    parts = []
    for tick in _ticks(x.low, x.high):
        place = x.at(tick)
        parts.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" '
                     f'y2="{height - BOTTOM}"/><text x="{place:.1f}" y="{height - 6}" '
                     f'text-anchor="middle">{number(tick)} s</text>')
    told = []
    for at, (stack, a, b) in enumerate(known):
        y = TOP + ROW * at + ROW / 2
        name = stack if len(stack) <= 17 else stack[:8] + "…" + stack[-8:]
        parts.append(
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>'
            f'<line class="join" x1="{x.at(a):.1f}" x2="{x.at(b):.1f}" y1="{y}" y2="{y}"/>'
            f'<circle class="one" cx="{x.at(a):.1f}" cy="{y}" r="4"/>'
            f'<rect class="other" x="{x.at(b) - 3.5:.1f}" y="{y - 3.5}" width="7" height="7"/>')
        told.append(f"{stack} {number(a)} s and {number(b)} s")
    label = f"{step}: {names[0]} and {names[1]}: {'; '.join(told)}"
    return _figure(step, label, height, parts)


def _figure(step: str, label: str, height: float, parts: list[str]) -> str:
    return (f'<figure><figcaption><code>{escape(step)}</code></figcaption>'
            f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
            f"{''.join(parts)}</svg></figure>")


def _cpu(cell: Cell | None) -> float | None:
    known = None if cell is None else cell.cpus[~np.isnan(cell.cpus)]
    return None if known is None or len(known) == 0 else float(np.median(known))


def section(judgement: Judgement, other: Judgement | None) -> str:
    """Returns the charts of all steps: rounds, cold beside warm, CPU beside wall."""
    def median(table: Judgement, step: str) -> Value:
        def value(stack: str) -> float | None:
            cell = table.cells.get((stack, step))
            return None if cell is None else cell.median_s
        return value

    out = ["<h3>Time against round</h3><p class='faint'>Every repetition of every step. A line "
           "that climbs is a file system that ages. The scale is logarithmic, and each chart has "
           "its own.</p>", legend(judgement), "<div class='panels'>",
           *[rounds(judgement, step) for step in judgement.steps], "</div>"]
    if other is not None and judgement.temperature == "cold":
        both = [two(judgement, step, ("cold", "warm"), (median(judgement, step),
                                                        median(other, step)))
                for step in judgement.steps]
        out += _folded("Cold beside warm", "● cold, ■ warm: medians", both)
    cpu = [two(judgement, step, ("CPU", "wall"), (
        lambda stack, step=step: _cpu(judgement.cells.get((stack, step))),  # type: ignore[misc]
        median(judgement, step))) for step in judgement.steps]
    out += _folded("CPU beside wall", "● CPU of the command and the server, ■ wall: medians", cpu)
    return "\n".join(out)


def _folded(title: str, key: str, figures: list[str]) -> list[str]:
    figures = [figure for figure in figures if figure]
    if not figures:
        return []
    return [f"<details class='cells'><summary>{title}</summary><p class='faint'>{key}.</p>"
            f"<div class='panels'>{''.join(figures)}</div></details>"]
