"""Forests that `weald forest` draws, and their shapes."""

from __future__ import annotations

import math
from pathlib import Path

from weald_bench.bench import Bench
from weald_bench.measure import Usage

#: The span of random times, in seconds with whole nanoseconds.
TIME_SPAN_S = 100_000_000


def file_count(fanout: str) -> int:
    """Number of files of a fan-out such as 100x100x1000."""
    return math.prod(int(word) for word in fanout.split("x"))


def draw(bench: Bench, image: Path, fanout: str, *words: str) -> Usage:
    """Draws a forest straight into an image, measured."""
    image.unlink(missing_ok=True)
    command = ["forest", "--quiet", "--fanout", fanout, *words, "--image", image]
    return bench.measure(bench.weald.command(*command))
