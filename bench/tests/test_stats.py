"""Medians, ranges and ratios."""

import unittest

from weald_bench import stats


class Stats(unittest.TestCase):
    def test_the_ratio_of_each_round_is_of_samples_of_that_round(self) -> None:
        self.assertEqual(stats.ratios([2, 6], [1, 2]), [2, 3])

    def test_a_figure_with_one_sample_goes_with_every_round(self) -> None:
        self.assertEqual(stats.ratios([2, 6], [2]), [1, 3])
        self.assertEqual(stats.ratios([6], [2, 3]), [3, 2])

    def test_no_ratio_to_nothing(self) -> None:
        self.assertEqual(stats.ratios([2], [0]), [])
        for a, b in ((1, 0), (1, -2), (None, 1), (1, None), (float("nan"), 1)):
            self.assertIsNone(stats.ratio(a, b), (a, b))

    def test_a_median_is_shown_with_its_range(self) -> None:
        self.assertEqual(stats.show([33.14, 34, 33.5], 1), "33.5 (33.1–34.0)")
        self.assertEqual(stats.show([2, 2], 1), "2.0")
        self.assertEqual(stats.show([1.001, 1.002], 1), "1.0")
        self.assertEqual(stats.show([], 1), "-")

    def test_time_below_the_resolution_gives_no_endless_rate(self) -> None:
        self.assertEqual(stats.per(1, 0), 100)
        self.assertEqual(stats.per(1, 2), 0.5)

    def test_what_is_no_figure(self) -> None:
        for value in (None, "1", float("nan"), float("inf"), True):
            self.assertFalse(stats.is_figure(value), value)


if __name__ == "__main__":
    unittest.main()
