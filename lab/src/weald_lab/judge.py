"""Judges a record: the ranking of 2015 and, beside it, what the repetitions support."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

import numpy as np

from weald_lab import ranking, stats
from weald_lab.record import Row
from weald_lab.stats import Values

SEED = 20150101
RATING_RESAMPLE_COUNT = 1000

OTHERS = ("cpu_s", "server_cpu_s", "peak_memory_bytes", "server_memory_bytes", "read_bytes",
          "written_bytes", "entries")

Key = tuple[str, str]
TableKey = tuple[str, str, str]


@dataclass
class Cell:
    """One stack at one step of one table."""

    stack: str
    step: str
    walls: Values
    rounds: Values
    cpus: Values
    mean_s: float
    median_s: float
    low_s: float | None
    high_s: float | None
    old_rank: int
    lag1: float
    others: dict[str, float]
    rank: int = 0
    faster_than: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Pair:
    """Two stacks at a step. `ratio` is the median of `b` divided by that of `a`."""

    step: str
    a: str
    b: str
    ratio: float
    low: float | None
    high: float | None
    delta: float
    p: float
    p_holm: float

    @property
    def differs(self) -> bool:
        """Tells whether the two can be told apart after the correction."""
        return self.p_holm < stats.ALPHA


@dataclass(frozen=True)
class Rating:
    """A stack over all steps of a table."""

    stack: str
    rounds: int
    old: float
    old_place: int
    low: float
    high: float
    first_share: float
    rank_median: float
    overall: int
    ratio_to_best: float


@dataclass(frozen=True)
class Verdict:
    """How much of the old ranking is left. Neighbours are stacks next to each other in it."""

    pairs: int
    different: int
    neighbours: int
    neighbours_apart: int
    rounds_needed: int
    rounds_min: int
    critical_difference: float
    shared_steps: int


@dataclass
class Judgement:
    """A table: one shape at one temperature."""

    shape: str
    family: str
    temperature: str
    stacks: list[str]
    steps: list[str]
    cells: dict[Key, Cell]
    pairs: list[Pair]
    ratings: list[Rating]
    verdict: Verdict
    failed: dict[Key, int]

    @property
    def name(self) -> str:
        """Short name, such as `small-life-cold`."""
        return f"{self.shape}-{self.family}-{self.temperature}"


@dataclass(frozen=True)
class Repeat:
    """One stack measured in two series: how far apart two runs of the same thing are."""

    stack: str
    shape: str
    family: str
    temperature: str
    series: tuple[str, str]
    steps: int
    different: int
    ratio_median: float
    ratio_max: float
    ratio_max_step: str


def judged(row: Row) -> bool:
    """Tells whether the benchmark of 2015 counted the row: `r2_` series came later."""
    return row["type"] == "repetition" and "-r2_" not in row["series"]


def table_of(row: Row) -> TableKey:
    """Returns the table that a repetition belongs to. Records of 2015 have one family, `life`."""
    return row["shape"], row.get("family", "life"), row["temperature"]


def tables_of(rows: Iterable[Row]) -> list[TableKey]:
    """Returns the tables that have a measurement: small before big, life first, cold first."""
    return sorted({table_of(r) for r in rows if judged(r) and r["status"] == "ok"},
                  key=lambda key: (key[0] != "small", *key))


def judge(rows: list[Row], key: TableKey, round_count: int) -> Judgement:
    """Judges the first `round_count` rounds of each series."""
    chosen = [r for r in rows if judged(r) and r["round"] < round_count and table_of(r) == key]
    old = ranking.rank(chosen, key[0], key[2], round_count)
    rng = np.random.default_rng(SEED)
    cells, samples = _cells(chosen, old, rng)
    steps = list(dict.fromkeys(step for _, step in cells))
    pairs = _pairs(cells, samples, steps)
    _rank_cells(cells, pairs)
    ratings, difference, shared = _ratings(cells, steps, old, rng)
    failed: dict[Key, int] = defaultdict(int)
    for row in chosen:
        if row["status"] != "ok":
            failed[row["stack"], row["step"]] += 1
    stacks = [rating.stack for rating in ratings]
    verdict = _verdict(cells, pairs, ratings, difference, shared)
    return Judgement(*key, stacks, steps, cells, pairs, ratings, verdict,
                     dict(failed))


def _cells(rows: list[Row], old: ranking.Table,
           rng: np.random.Generator) -> tuple[dict[Key, Cell], dict[Key, Values]]:
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        if row["status"] == "ok":
            groups[row["stack"], row["step"]].append(row)
    cells: dict[Key, Cell] = {}
    samples: dict[Key, Values] = {}
    for key, group in groups.items():
        walls = np.array([r["wall_s"] for r in group], dtype=np.float64)
        medians = np.median(stats.resample(walls, rng), axis=1)
        low, high = (stats.interval(medians) if len(walls) >= stats.INTERVAL_COUNT_MIN
                     else (None, None))
        cells[key] = Cell(
            key[0], key[1], walls, np.array([r["round"] for r in group], dtype=np.float64),
            np.array([r.get("cpu_s", np.nan) for r in group], dtype=np.float64),
            old.cells[key].mean_s, float(np.median(walls)), low, high, old.cells[key].rank,
            stats.lag1(walls), _other_medians(group))
        samples[key] = medians
    return cells, samples


def _other_medians(group: list[Row]) -> dict[str, float]:
    """Returns the medians of what was recorded beside the wall time."""
    found = {}
    for name in OTHERS:
        values = [row[name] for row in group if name in row]
        if values:
            found[name] = float(median(values))
    return found


def _pairs(cells: dict[Key, Cell], samples: dict[Key, Values], steps: list[str]) -> list[Pair]:
    raw: list[tuple[str, str, str, stats.Contrast]] = []
    for step in steps:
        stacks = sorted((s for s, at in cells if at == step),
                        key=lambda s: (cells[s, step].median_s, s))
        raw += [(step, a, b, stats.contrast(cells[a, step].walls, cells[b, step].walls))
                for a, b in combinations(stacks, 2)]
    adjusted = stats.holm([found.p for _, _, _, found in raw])
    pairs = []
    for (step, a, b, found), p_holm in zip(raw, adjusted, strict=True):
        left, right = cells[a, step], cells[b, step]
        low = high = None
        if left.low_s is not None and right.low_s is not None:
            low, high = stats.interval(samples[b, step] / np.maximum(samples[a, step], 1e-9))
        pairs.append(Pair(step, a, b, right.median_s / max(left.median_s, 1e-9), low, high,
                          found.delta, found.p, p_holm))
    return pairs


def _rank_cells(cells: dict[Key, Cell], pairs: list[Pair]) -> None:
    """Ranks by the number of stacks that are faster for certain: 0 is best, ties share."""
    for pair in pairs:
        if not pair.differs:
            continue
        fast, slow = (pair.a, pair.b) if pair.delta > 0 else (pair.b, pair.a)
        cells[slow, pair.step].rank += 1
        cells[fast, pair.step].faster_than.append(slow)


def _overall(cells: dict[Key, Cell], steps: list[str],
             stacks: list[str]) -> tuple[dict[str, int], float, int]:
    """Counts for each stack the stacks whose mean rank over the steps is better for certain.

    Returns the counts, the critical difference and the number of steps that all stacks have.
    """
    shared = [step for step in steps if all((stack, step) in cells for stack in stacks)]
    overall = dict.fromkeys(stacks, 0)
    difference = stats.critical_difference(len(stacks), len(shared))
    if shared:
        ranks = stats.mean_ranks(np.array(
            [[cells[stack, step].median_s for stack in stacks] for step in shared]))
        for at, stack in enumerate(stacks):
            overall[stack] = int((ranks[at] - ranks >= difference).sum())
    return overall, difference, len(shared)


def _ratings(cells: dict[Key, Cell], steps: list[str], old: ranking.Table,
             rng: np.random.Generator) -> tuple[list[Rating], float, int]:
    stacks = sorted(old.ratings, key=lambda s: (old.ratings[s], s))
    drawn = _resampled_ratings(cells, steps, stacks, rng)
    overall, difference, shared = _overall(cells, steps, stacks)
    best = {step: min(c.median_s for (_, at), c in cells.items() if at == step) for step in steps}
    found = []
    for place, stack in enumerate(stacks):
        mine = [cells[stack, step] for step in steps if (stack, step) in cells]
        low, high = stats.interval(drawn[place])
        logs = [np.log(max(c.median_s, 1e-9) / max(best[c.step], 1e-9)) for c in mine]
        found.append(Rating(
            stack, max(len(c.walls) for c in mine), old.ratings[stack], place, low, high,
            float((drawn[place] <= drawn.min(axis=0)).mean()),
            float(median(c.rank for c in mine)), overall[stack], float(np.exp(np.mean(logs)))))
    return found, difference, shared


def _resampled_ratings(cells: dict[Key, Cell], steps: list[str], stacks: list[str],
                       rng: np.random.Generator) -> Values:
    """Returns the old rating of each stack (rows) for resampled rounds (columns)."""
    ranks = np.full((len(steps), len(stacks), RATING_RESAMPLE_COUNT), np.nan)
    for at, step in enumerate(steps):
        there = [i for i, stack in enumerate(stacks) if (stack, step) in cells]
        means = np.stack([
            stats.resample(cells[stacks[i], step].walls, rng, RATING_RESAMPLE_COUNT).mean(axis=1)
            for i in there])
        ranks[at, there] = means.argsort(axis=0).argsort(axis=0)
    return np.asarray(np.nanmedian(ranks, axis=0), dtype=np.float64)


def _verdict(cells: dict[Key, Cell], pairs: list[Pair], ratings: list[Rating],
             difference: float, shared: int) -> Verdict:
    order = {rating.stack: place for place, rating in enumerate(ratings)}
    near = [p for p in pairs if abs(order[p.a] - order[p.b]) == 1]
    return Verdict(
        len(pairs), sum(p.differs for p in pairs), len(near), sum(p.differs for p in near),
        stats.rounds_needed(len(pairs)), min((len(c.walls) for c in cells.values()), default=0),
        difference, shared)


def conditions(rows: list[Row]) -> list[str]:
    """Says how busy the machine was during each series, where that was recorded."""
    found = []
    for series in dict.fromkeys(r["series"] for r in rows if r["type"] == "repetition"):
        mine = [r for r in rows if r.get("series") == series and "load" in r]
        if not mine:
            continue
        loads = [r["load"] for r in mine]
        said = f"{series}: load {median(loads):.1f} at the median, {max(loads):.1f} at most"
        for name in ("cpu", "io", "memory"):
            shares = [r["pressure"][name] for r in mine if name in r.get("pressure", {})]
            if shares:
                said += f"; {name} pressure {median(shares):.0f} %, {max(shares):.0f} % at most"
        found.append(said)
    return found


def repeats(rows: list[Row]) -> list[Repeat]:
    """Compares the series of each stack that has two or more: the same thing measured twice."""
    groups: dict[tuple[str, TableKey], dict[str, dict[str, list[float]]]] = {}
    for row in rows:
        if judged(row) and row["status"] == "ok":
            key = row["stack"], table_of(row)
            series = groups.setdefault(key, {}).setdefault(row["series"], {})
            series.setdefault(row["step"], []).append(row["wall_s"])
    found = []
    for (stack, table), runs in groups.items():
        for one, two in combinations(sorted(runs), 2):
            repeat = _repeat(stack, table, (one, two), runs[one], runs[two])
            if repeat:
                found.append(repeat)
    return found


def _repeat(stack: str, table: TableKey, names: tuple[str, str], one: dict[str, list[float]],
            two: dict[str, list[float]]) -> Repeat | None:
    steps = [step for step in one if step in two]
    if not steps:
        return None
    ratios, p_values = [], []
    for step in steps:
        a, b = np.array(one[step]), np.array(two[step])
        low, high = sorted((float(np.median(a)), float(np.median(b))))
        ratios.append(high / max(low, 1e-9))
        p_values.append(stats.contrast(a, b).p)
    different = sum(p < stats.ALPHA for p in stats.holm(p_values))
    largest = int(np.argmax(ratios))
    return Repeat(stack, *table, names, len(steps), different, float(np.median(ratios)),
                  ratios[largest], steps[largest])
