"""The rows that charts and the page's script draw, out of judgements."""

from __future__ import annotations

from typing import Any

import numpy as np

from weald_lab import charts, stats
from weald_lab.judge import Cell, Judgement

Row = dict[str, Any]

# Enough for a smooth line over 40 % of the rounds.
LINE_POINT_COUNT = 30


def short(value: float | None) -> float | None:
    """Returns the value with five significant digits, so that the page stays small."""
    return None if value is None else float(f"{value:.5g}")


def cells_at(judgement: Judgement, step: str) -> list[Cell]:
    """Returns the cells of a step, fastest median first."""
    found = [c for (_, at), c in judgement.cells.items() if at == step]
    return sorted(found, key=lambda c: (c.median_s, c.stack))


def _drawable(wall_s: float) -> float:
    """A logarithmic axis has no zero: the shortest times were recorded as such."""
    return max(wall_s, 1e-4)


def step_data(judgement: Judgement, step: str) -> charts.Data:
    """Returns rows, bars and lines of a step, for the distribution and the rounds."""
    rows: list[Row] = []
    bars: list[Row] = []
    lines: list[Row] = []
    for cell in cells_at(judgement, step):
        rows += [{"stack": cell.stack, "round": int(r), "wall": short(_drawable(float(w)))}
                 for r, w in zip(cell.rounds, cell.walls, strict=True)]
        bars.append({
            "stack": cell.stack, "median": short(_drawable(cell.median_s)),
            "low": short(cell.low_s), "high": short(cell.high_s), "rank": cell.rank,
            "n": len(cell.walls), "wall": short(_drawable(cell.median_s)), "cpu": _cpu(cell),
            "others": {name: short(value) for name, value in cell.others.items()}})
        lines += _line(cell)
    return {"rows": rows, "bars": bars, "lines": lines}


def _cpu(cell: Cell) -> float | None:
    known = cell.cpus[~np.isnan(cell.cpus)]
    return short(_drawable(float(np.median(known)))) if len(known) else None


def _line(cell: Cell) -> list[Row]:
    """Returns the smoother over the rounds; several series of a round count as their median."""
    rounds = np.unique(cell.rounds)
    if len(rounds) < 4:
        return []
    logs = np.array([np.log(_drawable(float(np.median(cell.walls[cell.rounds == r]))))
                     for r in rounds])
    smooth = stats.smooth(rounds, logs)
    shown = np.unique(np.linspace(0, len(rounds) - 1, LINE_POINT_COUNT).astype(int))
    return [{"stack": cell.stack, "round": int(rounds[i]),
             "smooth": short(float(np.exp(smooth[i])))} for i in shown]


def rating_data(judgement: Judgement) -> charts.Data:
    """Returns the bars of the rating chart."""
    return {"bars": [{"stack": r.stack, "rating": r.old, "low": short(r.low),
                      "high": short(r.high)} for r in judgement.ratings]}


def coldwarm_data(cold: Judgement, warm: Judgement, step: str) -> charts.Data:
    """Returns the medians of a step, cold and warm, of the stacks that have both."""
    both = [(c, warm.cells[c.stack, step]) for c in cells_at(cold, step)
            if (c.stack, step) in warm.cells]
    return {"bars": [{"stack": c.stack, "cold": short(_drawable(c.median_s)),
                      "warm": short(_drawable(w.median_s))} for c, w in both]}


def partner(judgements: list[Judgement], judgement: Judgement) -> Judgement | None:
    """Returns the table of the same steps at the other temperature."""
    for other in judgements:
        if (other.shape, other.family) == (judgement.shape, judgement.family) \
                and other.temperature != judgement.temperature:
            return other
    return None
