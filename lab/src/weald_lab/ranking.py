"""The ranking as the benchmark of 2015 computed it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, median

from weald_lab.record import Row


@dataclass(frozen=True)
class Cell:
    """Place (0 is best) and mean of a stack for a step."""

    rank: int
    mean_s: float


@dataclass(frozen=True)
class Table:
    """Cells by (stack, step), ratings by stack."""

    cells: dict[tuple[str, str], Cell]
    ratings: dict[str, float]


def rank(rows: list[Row], shape: str, temperature: str, round_count: int) -> Table:
    """Ranks means per step over the first `round_count` rounds of each series, without `r2_`."""
    walls: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["type"] != "repetition" or row["status"] != "ok" or "-r2_" in row["series"]:
            continue
        table = row["shape"], row["temperature"]
        if table == (shape, temperature) and row["round"] < round_count:
            walls[row["step"]][row["stack"]].append(row["wall_s"])
    cells: dict[tuple[str, str], Cell] = {}
    ranks: dict[str, list[int]] = defaultdict(list)
    for step, stacks in walls.items():
        means = {stack: fmean(values) for stack, values in stacks.items()}
        for place, stack in enumerate(sorted(means, key=lambda s: (means[s], s))):
            cells[stack, step] = Cell(place, means[stack])
            ranks[stack].append(place)
    return Table(cells, {stack: float(median(places)) for stack, places in ranks.items()})
