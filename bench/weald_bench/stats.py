"""Medians, ranges and ratios of repeated measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def is_figure(value: object) -> bool:
    """Whether a value is a number that can be compared: not missing, not NaN, not infinite."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def median(samples: Sequence[float]) -> float | None:
    """The median, or None of no samples."""
    return statistics.median(samples) if samples else None


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b; None if either is missing or b is not positive, for then the ratio says nothing."""
    if a is None or b is None or not is_figure(a) or not is_figure(b) or b <= 0:
        return None
    return a / b


def ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Returns the ratio of each round. Repetitions are interleaved, so that the samples of one
    round were taken in the same minutes. A figure that never changes may have one sample only."""
    if len(b) == 1:
        pairs = [(x, b[0]) for x in a]
    elif len(a) == 1:
        pairs = [(a[0], y) for y in b]
    else:
        pairs = list(zip(a, b))
    return [x / y for x, y in pairs if y > 0]


def per(amount: float, seconds: float, least: float = 0.01) -> float:
    """A rate; time below the clock's resolution counts as `least`."""
    return amount / max(seconds, least)


def show(samples: Sequence[float], digits: int) -> str:
    """The median, and the range of several samples: "33.5 (33.1–34.0)"."""
    middle = median(samples)
    if middle is None:
        return "-"
    low, high = f"{min(samples):.{digits}f}", f"{max(samples):.{digits}f}"
    shown = f"{middle:.{digits}f}"
    return shown if low == high else f"{shown} ({low}–{high})"
