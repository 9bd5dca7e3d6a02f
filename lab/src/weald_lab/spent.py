"""Says where the time of a run went, and how many rounds of its shape fit into a given time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean

from weald_lab import life, stats
from weald_lab.outputs import number
from weald_lab.record import LabError, Row

LONGEST_COUNT = 3


@dataclass
class Spent:
    """Seconds of one stack and shape: for each round the whole of it, and for each step its sum."""

    round_s: list[float] = field(default_factory=list)
    step_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def mean_s(self) -> float:
        """Mean seconds of a round."""
        return fmean(self.round_s)

    @property
    def steps_s(self) -> float:
        """Mean seconds of a round in which a step ran."""
        return sum(self.step_s.values()) / len(self.round_s)


def spent(rows: list[Row]) -> dict[str, dict[str, Spent]]:
    """Returns the time by shape and stack. Rows without a start, such as those of 2015, have none.
    """
    found: dict[str, dict[str, Spent]] = defaultdict(lambda: defaultdict(Spent))
    spans: dict[tuple[str, str, str, int], list[float]] = {}
    for row in rows:
        if row["type"] != "repetition" or "started_at" not in row:
            continue
        end = row["started_at"] + row["wall_s"]
        key = row["series"], row["shape"], row["stack"], row["round"]
        span = spans.setdefault(key, [row["started_at"], end])
        span[1] = max(span[1], end)
        found[row["shape"]][row["stack"]].step_s[row["step"]] += row["wall_s"]
    for (_, shape, stack, _), (start, end) in spans.items():
        found[shape][stack].round_s.append(end - start)
    if not found:
        raise LabError("the records do not say when their steps began")
    return found


def lines(rows: list[Row], time_s: float) -> list[str]:
    """Returns a line a stack, the slowest first, and what fits into `time_s`."""
    out = []
    for shape, stacks in spent(rows).items():
        files = life.parse_shape(shape).total
        out.append(f"{shape}: {files} files")
        for name, one in sorted(stacks.items(), key=lambda item: -item[1].mean_s):
            longest = sorted(one.step_s.items(), key=lambda item: -item[1])[:LONGEST_COUNT]
            total = sum(one.step_s.values())
            said = ", ".join(f"{step} {100 * s / total:.0f} %" for step, s in longest)
            out.append(f"  {name}: {number(one.mean_s)} s a round, {number(one.steps_s)} s in "
                       f"steps: {said}")
        round_s = sum(one.mean_s for one in stacks.values())
        fitting = int(time_s / round_s)
        least = stats.INTERVAL_COUNT_MIN
        out.append(f"  all: {number(round_s)} s a round, {number(1000 * round_s / files)} ms a "
                   f"file; {number(time_s)} s have room for {fitting} rounds, and for "
                   f"{least} rounds of {int(time_s / least * files / round_s)} files")
    return out
