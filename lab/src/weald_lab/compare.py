"""Compares two runs: which steps became slower or faster, for certain."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from weald_lab import judge, stats
from weald_lab.outputs import number, span
from weald_lab.record import LabError, Row

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Change:
    """One stack at one step. `ratio` is the median of the second run divided by the first's."""

    shape: str
    stack: str
    step: str
    temperature: str
    counts: tuple[int, int]
    medians_s: tuple[float, float]
    ratio: float
    low: float | None
    high: float | None
    p_holm: float

    def verdict(self, threshold: float) -> str:
        """Says `slower` or `faster` if both the test and the whole interval say so.

        `threshold` is the least change that matters, such as 0.05 for 5 %.
        """
        if self.p_holm >= stats.ALPHA or self.low is None or self.high is None:
            return "same"
        if self.low > 1 + threshold:
            return "slower"
        return "faster" if self.high < 1 / (1 + threshold) else "same"


def compare(one: list[Row], two: list[Row], value: str = "wall_s") -> list[Change]:
    """Compares the cells that both runs have, in the order of the first."""
    first, second = _values(one, value), _values(two, value)
    keys = [key for key in first if key in second]
    if not keys:
        raise LabError("the two runs have no stack and step in common: nothing to compare")
    rng = np.random.default_rng(judge.SEED)
    adjusted = stats.holm([stats.contrast(first[key], second[key]).p for key in keys])
    changes = []
    for key, p_holm in zip(keys, adjusted, strict=True):
        a, b = first[key], second[key]
        medians = float(np.median(a)), float(np.median(b))
        low = high = None
        if min(len(a), len(b)) >= stats.INTERVAL_COUNT_MIN:
            ratios = (np.median(stats.resample(b, rng), axis=1)
                      / np.maximum(np.median(stats.resample(a, rng), axis=1), 1e-9))
            low, high = stats.interval(ratios)
        changes.append(Change(*key, (len(a), len(b)), medians,
                              medians[1] / max(medians[0], 1e-9), low, high, p_holm))
    return changes


def _values(rows: list[Row], value: str) -> dict[Key, stats.Values]:
    groups: dict[Key, list[float]] = defaultdict(list)
    for row in rows:
        if row["type"] == "repetition" and row["status"] == "ok" and value in row:
            groups[row["shape"], row["stack"], row["step"], row["temperature"]].append(row[value])
    return {key: np.array(values, dtype=np.float64) for key, values in groups.items()}


def lines(changes: list[Change], threshold: float, show_all: bool) -> list[str]:
    """Returns one line a change, slower ones first, and a summary."""
    order = {"slower": 0, "faster": 1, "same": 2}
    said = sorted(changes, key=lambda c: (order[c.verdict(threshold)], -c.ratio))
    out = []
    for change in said:
        verdict = change.verdict(threshold)
        if verdict == "same" and not show_all:
            continue
        out.append(
            f"{verdict:6} ×{change.ratio:.2f} ({span(change.low, change.high)})  {change.stack}  "
            f"{change.step}  {change.temperature}  {number(change.medians_s[0])} s -> "
            f"{number(change.medians_s[1])} s  p {change.p_holm:.2g}")
    count = {name: sum(c.verdict(threshold) == name for c in changes) for name in order}
    out.append(f"{len(changes)} compared: {count['slower']} slower, {count['faster']} faster, "
               f"{count['same']} cannot be told apart by more than {100 * threshold:g} %")
    fewest = min(min(c.counts) for c in changes)
    needed = max(stats.rounds_needed(len(changes)), stats.INTERVAL_COUNT_MIN)
    if fewest < needed:
        out.append(f"some cells have {fewest} repetitions; with fewer than {needed} in each run "
                   "no change can be certain among so many")
    return out
