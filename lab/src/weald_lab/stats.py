"""Statistics of repetitions: intervals of medians, pairwise tests, effect sizes.

All functions take arrays of seconds. Randomness comes from the caller's generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Values = NDArray[np.float64]

RESAMPLE_COUNT = 2000
ALPHA = 0.05
# The share of runs in which a planned number of rounds shows a difference that is there.
POWER = 0.8
# With 5 values the whole range covers the median with probability 0.94, so that no interval of
# 95 % exists below 6.
INTERVAL_COUNT_MIN = 6
# Exact p values up to this product of sample sizes. The normal approximation has a floor of 2e-4
# for 10 against 10 values, which a correction for hundreds of comparisons never passes.
EXACT_PRODUCT_MAX = 2500


def resample(values: Values, rng: np.random.Generator, count: int = RESAMPLE_COUNT) -> Values:
    """Returns `count` resamples, one a row, by the circular block bootstrap.

    Rounds age a file system, so that neighbouring rounds resemble each other. Blocks of
    n^(1/3) neighbours keep that dependence; single values would make intervals too narrow.
    """
    size = len(values)
    block_len = max(1, round(size ** (1 / 3)))
    block_count = -(-size // block_len)
    starts = rng.integers(0, size, (count, block_count))
    index = (starts[:, :, None] + np.arange(block_len)) % size
    return values[index.reshape(count, -1)[:, :size]]


def interval(samples: Values) -> tuple[float, float]:
    """Returns the percentile interval of 95 % of a statistic's resamples."""
    low, high = np.quantile(samples, [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def holm(p_values: list[float]) -> list[float]:
    """Returns p values adjusted for their number (Holm 1979), in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for place, index in enumerate(order):
        running = max(running, min(1.0, (len(order) - place) * p_values[index]))
        adjusted[index] = running
    return adjusted


@dataclass(frozen=True)
class Contrast:
    """Two samples compared: p of Mann and Whitney, Cliff's delta (1: all of `b` are slower)."""

    p: float
    delta: float


def contrast(a: Values, b: Values) -> Contrast:
    """Compares two independent samples without assuming a distribution."""
    if len(set(a.tolist()) | set(b.tolist())) == 1:
        return Contrast(1.0, 0.0)
    tied = len(np.unique(np.concatenate([a, b]))) < len(a) + len(b)
    exact = not tied and len(a) * len(b) <= EXACT_PRODUCT_MAX
    found = stats.mannwhitneyu(
        b, a, alternative="two-sided", method="exact" if exact else "asymptotic")
    delta = 2 * float(found.statistic) / (len(a) * len(b)) - 1
    return Contrast(float(found.pvalue), delta)


def critical_difference(stack_count: int, step_count: int) -> float:
    """Returns the difference of mean ranks that Nemenyi's test asks for at 5 %.

    # Source
    Demsar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7 (2006), 3.2.2.
    """
    if stack_count < 2 or step_count < 1:
        return float("inf")
    q = float(stats.studentized_range.isf(ALPHA, stack_count, np.inf)) / float(np.sqrt(2))
    return q * float(np.sqrt(stack_count * (stack_count + 1) / (6 * step_count)))


def mean_ranks(medians: Values) -> Values:
    """Returns the mean rank of each column (stack) over the rows (steps); 0 is best."""
    return np.asarray(stats.rankdata(medians, axis=1).mean(axis=0) - 1, dtype=np.float64)


def rounds_needed(comparison_count: int) -> int:
    """Returns the fewest rounds with which one of so many comparisons can become significant."""
    size = 2
    while 2 / comb(2 * size, size) * max(1, comparison_count) >= ALPHA:
        size += 1
    return size


def rounds_to_tell(delta: float, comparison_count: int) -> int:
    """Returns the rounds of each that would tell two samples apart four times of five.

    It takes Cliff's delta as the true one, and divides 5 % by the number of comparisons.

    # Source
    Noether, Sample Size Determination for Some Common Nonparametric Tests, JASA 82 (1987).
    """
    count = max(1, comparison_count)
    least = max(rounds_needed(count), INTERVAL_COUNT_MIN)
    if abs(delta) < 1e-6:
        return 10**9
    z = float(stats.norm.isf(ALPHA / 2 / count)) + float(stats.norm.isf(1 - POWER))
    return max(least, int(np.ceil(z**2 / (6 * (delta / 2) ** 2))))


def lag1(values: Values) -> float:
    """Returns the autocorrelation of successive rounds; 0 if there is too little to tell."""
    if len(values) < 4 or float(np.var(values)) == 0.0:
        return 0.0
    centred = values - values.mean()
    return float((centred[1:] * centred[:-1]).sum() / (centred**2).sum())


def smooth(rounds: Values, values: Values, span: float = 0.4) -> Values:
    """Returns a local linear fit with tricube weights (LOWESS without robustness) at `rounds`."""
    size = len(rounds)
    near_count = min(size, max(4, int(np.ceil(span * size))))
    fitted = np.empty(size)
    for index, place in enumerate(rounds):
        distance = np.abs(rounds - place)
        reach = float(np.partition(distance, near_count - 1)[near_count - 1]) or 1.0
        weight = np.clip(1 - (distance / (reach * 1.0001)) ** 3, 0, None) ** 3
        total = float(weight.sum())
        x = float((weight * rounds).sum()) / total
        y = float((weight * values).sum()) / total
        spread = float((weight * (rounds - x) ** 2).sum())
        slope = float((weight * (rounds - x) * (values - y)).sum()) / spread if spread else 0.0
        fitted[index] = y + slope * (place - x)
    return fitted
