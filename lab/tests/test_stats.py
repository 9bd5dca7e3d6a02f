"""The statistics against values from tables and against themselves."""

import numpy as np
import pytest

from weald_lab import stats


def test_holm_matches_the_example_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_contrast_knows_direction_and_size() -> None:
    fast, slow = np.arange(10.0), np.arange(10.0) + 100.5
    found = stats.contrast(fast, slow)
    assert found.delta == 1.0
    assert found.p == pytest.approx(2 / 184756)  # 2 / C(20, 10): exact, not the normal limit
    assert stats.contrast(slow, fast).delta == -1.0


def test_equal_samples_do_not_differ() -> None:
    same = np.full(8, 0.25)
    assert stats.contrast(same, same) == stats.Contrast(1.0, 0.0)


def test_critical_difference_matches_demsar() -> None:
    # Demsar (2006), table 5: q = 2.569 for four classifiers; his example has 14 data sets.
    assert stats.critical_difference(4, 14) == pytest.approx(2.569 * (4 * 5 / (6 * 14)) ** 0.5,
                                                            rel=1e-3)


def test_rounds_needed_is_the_first_that_passes() -> None:
    # 2 / C(2n, n) < 0.05: n = 4 gives 0.0286, n = 3 gives 0.1.
    assert stats.rounds_needed(1) == 4
    assert stats.rounds_needed(36) == 7


def test_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        sample = rng.lognormal(0.0, 0.5, 30)
        low, high = stats.interval(np.median(stats.resample(sample, rng, 400), axis=1))
        hits += low <= 1.0 <= high
    assert hits >= 170  # 95 % of 200 is 190; a block bootstrap of 30 values falls a little short


def test_resample_keeps_blocks_of_neighbours() -> None:
    values = np.arange(64.0)
    drawn = stats.resample(values, np.random.default_rng(2), 50)
    assert drawn.shape == (50, 64)
    neighbours = (np.diff(drawn, axis=1) % 64 == 1).mean()
    assert neighbours > 0.7  # blocks of 4: three of four steps stay inside a block


def test_smoother_keeps_a_line_and_quiets_noise() -> None:
    rounds = np.arange(50.0)
    assert stats.smooth(rounds, 2 + 0.5 * rounds) == pytest.approx(2 + 0.5 * rounds)
    noise = np.random.default_rng(3).normal(0, 1, 50)
    assert np.var(stats.smooth(rounds, noise)) < 0.4 * np.var(noise)
