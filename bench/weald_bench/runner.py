"""Repetitions by turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weald_bench.measure import CommandFailed


@dataclass
class Step:
    """One thing that is measured in each round."""

    id: str
    run: Callable[[], None]
    problem: str | None = field(default=None)


def interleave(
    steps: Sequence[Step],
    rounds: int,
    limit_s: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Runs all steps round by round, so that a slow quarter of an hour of the machine hits all of
    them. The first step of one round is the last step of the next. The first round always runs in
    full. Another round begins only if a round as long as the longest so far would end within the
    limit. A step that fails is not run again, and `problem` says why. Returns the number of
    rounds."""
    order = list(steps)
    start = clock()
    longest = 0.0
    done = 0
    while done < rounds and (done == 0 or clock() - start + longest <= limit_s):
        began = clock()
        for step in order:
            if step.problem is not None:
                continue
            say(f"   round {done + 1}: {step.id}")
            try:
                step.run()
            except CommandFailed as error:
                step.problem = f"failed: {error}"
                say(f"   {step.problem}")
        longest = max(longest, clock() - began)
        order = order[1:] + order[:1]
        done += 1
    return done
