"""Whole rounds: which stack is faster over all steps, in groups that cannot be told apart.

The time of a whole round is the geometric mean of its steps, so that a step of milliseconds counts
as much as one of seconds. Each round gives one such value, and the test compares these values. So
it says what holds of these steps on this machine. It does not say that other commands would give
the same order: that is the question of Nemenyi's test (`judge._overall`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from weald_lab import stats
from weald_lab.judge import Judgement, Repeat, judged, table_of
from weald_lab.record import Row
from weald_lab.stats import Values

SEED = 20150102
# Shorter times were recorded as 0, which has no logarithm.
LEAST_S = 1e-4


@dataclass(frozen=True)
class Standing:
    """A stack over whole rounds. `ratio`: its median round divided by that of the first stack.

    `low` and `high` are the interval of the stack's own median on the same scale, so that the
    first stack has one, too. `ageing`: last round divided by first, by a straight line through the
    logarithms; None below 6 rounds.
    """

    stack: str
    rounds: int
    ratio: float
    low: float | None
    high: float | None
    ageing: float | None
    group: int


@dataclass(frozen=True)
class Standings:
    """All stacks of a table that have steps in common, fastest first.

    `groups`: of two stacks in one group, neither is faster for certain. `left_out`: stacks without
    the steps of the others. `least_ratio`: how far one stack measured twice lies apart; smaller
    differences do not count. `more_rounds`: rounds that the test would need to tell
    some two of the others apart if their difference is real; None if all are apart already.
    """

    stacks: list[Standing]
    groups: list[list[str]]
    steps: list[str]
    left_out: list[str]
    least_ratio: float
    more_rounds: int | None


def rank(judgement: Judgement, rows: Sequence[Row], repeats: Sequence[Repeat],
         round_count: int = 10**9) -> Standings | None:
    """Compares whole rounds; None if no two stacks have a step in common."""
    steps, stacks = _shared(judgement)
    if len(stacks) < 2:
        return None
    key = judgement.shape, judgement.family, judgement.temperature
    logs = _whole_rounds([r for r in rows if judged(r) and r["round"] < round_count
                          and table_of(r) == key and r["status"] == "ok"], steps)
    stacks = [stack for stack in stacks if len(logs.get(stack, ())) > 0]
    if len(stacks) < 2:
        return None
    order = sorted(stacks, key=lambda stack: (float(np.median(logs[stack])), stack))
    least = max([r.ratio_median for r in repeats
                 if (r.shape, r.family, r.temperature) == key], default=1.0)
    apart, contrasts = _apart(order, logs, least)
    groups = _groups(order, apart)
    zero = float(np.median(logs[order[0]]))
    rng = np.random.default_rng(SEED)
    standings = []
    for stack in order:
        own, low, high = logs[stack], None, None
        if len(own) >= stats.INTERVAL_COUNT_MIN:
            low, high = np.exp(np.array(stats.interval(
                np.median(stats.resample(own, rng), axis=1))) - zero).tolist()
        at = next(i for i, group in enumerate(groups) if stack in group)
        standings.append(Standing(stack, len(own), float(np.exp(np.median(own) - zero)),
                                  low, high, _ageing(own), at))
    return Standings(standings, groups, steps,
                     [s for s in judgement.stacks if s not in order], least,
                     _more_rounds(order, apart, contrasts))


def _shared(judgement: Judgement) -> tuple[list[str], list[str]]:
    """Returns the steps that stacks have in common. Stacks with fewest steps are left out first."""
    stacks = list(judgement.stacks)
    while stacks:
        steps = [step for step in judgement.steps
                 if all((stack, step) in judgement.cells for stack in stacks)]
        if steps:
            return steps, stacks
        stacks.remove(min(stacks, key=lambda stack: sum(
            (stack, step) in judgement.cells for step in judgement.steps)))
    return [], []


def _whole_rounds(rows: Sequence[Row], steps: Sequence[str]) -> dict[str, Values]:
    """Returns for each stack the mean logarithm of each round that has all steps."""
    found: dict[str, dict[tuple[str, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["step"] in steps:
            found[row["stack"]][row["series"], row["round"]].append(
                float(np.log(max(row["wall_s"], LEAST_S))))
    return {stack: np.array([np.mean(values) for _, values in sorted(rounds.items())
                             if len(values) == len(steps)])
            for stack, rounds in found.items()}


def _apart(order: list[str], logs: dict[str, Values],
           least: float) -> tuple[set[tuple[str, str]], dict[tuple[str, str], stats.Contrast]]:
    pairs = list(combinations(order, 2))
    found = {(a, b): stats.contrast(logs[a], logs[b]) for a, b in pairs}
    adjusted = stats.holm([found[pair].p for pair in pairs])
    return {pair for pair, p in zip(pairs, adjusted, strict=True) if p < stats.ALPHA
            and np.exp(np.median(logs[pair[1]]) - np.median(logs[pair[0]])) > least}, found


def _groups(order: list[str], apart: set[tuple[str, str]]) -> list[list[str]]:
    """Cuts the order where a stack is apart from one that is in the group already."""
    groups: list[list[str]] = []
    for stack in order:
        if groups and not any((other, stack) in apart for other in groups[-1]):
            groups[-1].append(stack)
        else:
            groups.append([stack])
    return groups


def _ageing(logs: Values) -> float | None:
    if len(logs) < stats.INTERVAL_COUNT_MIN:
        return None
    slope = float(np.polyfit(np.arange(len(logs)), logs, 1)[0])
    return float(np.exp(slope * (len(logs) - 1)))


def _more_rounds(order: list[str], apart: set[tuple[str, str]],
                 contrasts: dict[tuple[str, str], stats.Contrast]) -> int | None:
    """Returns the fewest rounds that would tell some pair apart which is not yet, or None."""
    open_ = [found for pair, found in contrasts.items() if pair not in apart]
    if not open_:
        return None
    return min(stats.rounds_to_tell(found.delta, len(contrasts)) for found in open_)


# Beyond this, the answer is that more rounds do not help.
ROUNDS_MAX = 1000


def join(names: Sequence[str]) -> str:
    """Returns `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def times(ratio: float) -> str:
    """Returns a ratio with two significant digits."""
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2f}" if ratio < 1.1 else f"{ratio:.1f}"


def sentence(found: Standings, where: str) -> str:
    """Says in one sentence which stacks lead, and how much longer each later one takes."""
    first, later = found.groups[0], found.groups[1:]
    by_name = {one.stack: one for one in found.stacks}
    if not later:
        needed = found.more_rounds
        more = ("their rounds mix so evenly that more rounds would not help"
                if needed is None or needed > ROUNDS_MAX else
                f"if their differences are real, about {needed} rounds of each would begin to "
                "tell them apart")
        return (f"{where}: {join(first)} cannot be told apart by "
                f"{min(s.rounds for s in found.stacks)} rounds; {more}.")
    lead = (f"{first[0]} is the fastest" if len(first) == 1 else
            f"{join(first)} lead and cannot be told apart")
    said: list[str] = []
    for group in later:
        low, high = (times(by_name[s].ratio) for s in (group[0], group[-1]))
        took = low if low == high else f"{low} to {high}"
        verb = "takes" if len(group) == 1 else "take"
        said.append(f"{join(group)} {verb} {took} times as long" if not said
                    else f"{join(group)} {took}")
    return f"{where}: {lead}; {', '.join(said)}{_as_whom(first)}."


def _as_whom(first: list[str]) -> str:
    return "" if len(first) == 1 else f" (as {first[0]})"
