"""Results: checks, tables, JSON and back, and the document made of them."""

import json
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

from weald_bench import chart, markdown, report
from weald_bench.result import SAME_ROW_OF_AGAINST, Check, Column, Result, Row, Table


def sizes() -> Table:
    """A table with two builders, a missing one and a failed one."""
    columns = [
        Column("builder", ""),
        Column("MB", "mb", 1),
        Column("× SquashFS", "mb", 2, to="squashfs"),
        Column("× --against", "mb", 2, to=SAME_ROW_OF_AGAINST),
    ]
    rows = [
        Row("weald-7", "Weald level 7", {"mb": [33.0, 34.0, 33.5]}),
        Row("against-7", "Weald --against level 7", {"mb": [66.0, 68.0, 67.0]}),
        Row("squashfs", "SquashFS", {"mb": [66.0, 34.0, 67.0]}),
        Row("dwarfs", "DwarFS", {}, "missing: mkdwarfs is not on PATH"),
        Row("erofs", "EROFS", {"mb": [1.0]}, "failed: mkfs.erofs: exit status 1"),
    ]
    plot = {"kind": "bars", "key": "mb", "unit": "MB & more"}
    return Table("forest-sizes", "forest: sizes", columns, rows, plot=plot)


def result() -> Result:
    """A run with everything in it."""
    machine = {"commit": "1a2b3c4", "processors": 2, "tools": {"squashfs": "mksquashfs 4.5"}}
    return Result(
        "main",
        machine,
        {"rounds": 3},
        [sizes()],
        [Check("size", 0.5, "≤", 0.75), Check("CPU", None, "≤", 0.6)],
        {"dwarfs": "mkdwarfs is not on PATH"},
        ["erofs: failed: mkfs.erofs: exit status 1"],
        [{"command": "weald build", "wall_s": 1.5}],
    )


class Checks(unittest.TestCase):
    def test_a_missing_figure_is_not_as_asked(self) -> None:
        for found in (None, float("nan"), float("inf"), "-", "0.5"):
            for relation in ("≤", "≥"):
                self.assertEqual(Check("figure", found, relation, 1).verdict, "NO", found)
        self.assertEqual(Check("part sizes", None, "=", "measured").verdict, "NO")

    def test_thresholds_are_included(self) -> None:
        self.assertTrue(Check("figure", 0.75, "≤", 0.75).passed)
        self.assertFalse(Check("figure", 0.76, "≤", 0.75).passed)
        self.assertTrue(Check("figure", 1.8, "≥", 1.8).passed)
        self.assertFalse(Check("figure", 1.79, "≥", 1.8).passed)
        self.assertTrue(Check("figure", 7, "=", 7).passed)
        self.assertFalse(Check("figure", 8, "=", 7).passed)

    def test_a_line_says_what_was_compared(self) -> None:
        # 0.754 is printed as 0.75, and is as asked.
        checks = [Check("size", 0.754, "≤", 0.75), Check("CPU", None, "≤", 1)]
        lines = markdown.check_lines(checks)
        self.assertEqual(
            lines[2:4], ["| size | 0.75 | ≤ 0.75 | yes |", "| CPU | missing | ≤ 1 | NO |"]
        )


class Tables(unittest.TestCase):
    def test_rows_have_ratios_with_their_range(self) -> None:
        lines = markdown.table_lines(sizes())
        expected = "| Weald level 7 | 33.5 (33.0–34.0) | 0.50 (0.50–1.00) | 0.50 |"
        self.assertIn(expected, lines)
        self.assertIn("| SquashFS | 66.0 (34.0–67.0) | 1 | - |", lines)

    def test_a_missing_rival_and_a_failed_command_are_named_without_figures(self) -> None:
        lines = markdown.table_lines(sizes())
        self.assertIn("| DwarFS | missing: mkdwarfs is not on PATH |  |  |", lines)
        self.assertIn("| EROFS | failed: mkfs.erofs: exit status 1 |  |  |", lines)
        self.assertEqual(sizes().samples("erofs", "mb"), [])

    def test_no_ratio_to_a_row_without_figures(self) -> None:
        self.assertEqual(sizes().ratios("weald-7", "mb", "dwarfs"), [])
        self.assertEqual(sizes().ratios("weald-7", "mb", "nothing"), [])

    def test_a_plot_has_a_bar_for_each_row_with_figures(self) -> None:
        picture = chart.of_table(sizes())
        assert picture is not None
        root = xml.etree.ElementTree.fromstring(picture)
        bars = root.findall(".//{http://www.w3.org/2000/svg}rect")
        self.assertEqual(len(bars), 1 + 3)
        self.assertEqual(picture, chart.of_table(sizes()))

    def test_a_table_without_a_wish_has_bars_of_its_first_figures(self) -> None:
        table = sizes()
        table.plot = None
        self.assertIn(">MB</text>", chart.of_table(table) or "")
        table.rows = [row for row in table.rows if row.problem]
        self.assertIsNone(chart.of_table(table))

    def test_lines_have_logarithmic_axes_and_only_positive_points(self) -> None:
        rows = [Row(str(n), "weald", {"n": [10**n], "s": [2.0**n]}) for n in range(3)]
        rows.append(Row("none", "weald", {"n": [10], "s": [0.0]}))
        plot = {"kind": "lines", "x": "n", "y": "s", "x_title": "files", "unit": "seconds"}
        picture = chart.of_table(Table("counts", "Counts", [Column("shape", "")], rows, plot=plot))
        assert picture is not None
        self.assertEqual(picture.count("<circle"), 3)


class Json(unittest.TestCase):
    def test_a_result_comes_back_as_it_was(self) -> None:
        text = result().to_json()
        self.assertEqual(Result.from_json(text), result())
        checks = json.loads(text)["checks"]
        self.assertEqual([check["passed"] for check in checks], [True, False])

    def test_what_is_no_result_is_refused(self) -> None:
        for text in ("[]", "{}", '{"format": 99}', '{"format": 1}', "nonsense"):
            with self.assertRaises(ValueError, msg=text):
                Result.from_json(text)


class Report(unittest.TestCase):
    def document(self, results: dict[str, str]) -> tuple[str, list[str]]:
        """The document of these files, and the names of its plots."""
        with tempfile.TemporaryDirectory() as place:
            results_dir, plots = Path(place) / "results", Path(place) / "plots"
            results_dir.mkdir()
            for name, text in results.items():
                (results_dir / name).write_text(text)
            document = report.document([results_dir], plots)
            return document, sorted(path.name for path in plots.glob("*"))

    def test_the_document_has_tables_plots_and_what_is_missing(self) -> None:
        document, plots = self.document({"main.json": result().to_json()})
        for line in (
            "| Weald level 7 | 33.5 (33.0–34.0) | 0.50 (0.50–1.00) | 0.50 |",
            "- missing: dwarfs: mkdwarfs is not on PATH",
            "- FAILED: erofs: failed: mkfs.erofs: exit status 1",
            "![forest: sizes](plots/main-forest-sizes.svg)",
        ):
            self.assertIn(line, document.splitlines(), line)
        self.assertEqual(plots, ["main-forest-sizes.svg"])
        # What was asked is printed by a run, and is not in the document.
        asked = "| CPU | missing | ≤ 0.6 | NO |"
        self.assertIn(asked, markdown.check_lines(result().checks))
        self.assertNotIn(asked, document)

    def test_prose_ends_at_column_120(self) -> None:
        document, _ = self.document({"main.json": result().to_json()})
        long = [line for line in document.splitlines() if len(line) > 120 and line[0] != "|"]
        self.assertEqual(long, [])

    def test_without_results_the_document_says_so(self) -> None:
        document, plots = self.document({})
        self.assertIn(report.NOTHING.strip(), document)
        self.assertEqual(plots, [])

    def test_a_broken_result_is_named(self) -> None:
        with self.assertRaisesRegex(ValueError, "broken.json"):
            self.document({"broken.json": "{"})

    def test_the_committed_document_is_that_of_the_committed_results(self) -> None:
        root = Path(__file__).resolve().parents[2]
        with tempfile.TemporaryDirectory() as place:
            plots = Path(place) / "plots"
            document = report.document([root / "bench" / "results"], plots)
            committed = (root / "docs" / "benchmarks.md").read_text(encoding="utf-8")
            self.assertEqual(document, committed, "run 'make bench-report'")
            for plot in plots.glob("*"):
                kept = root / "docs" / "plots" / plot.name
                self.assertEqual(plot.read_text(), kept.read_text(), plot.name)


if __name__ == "__main__":
    unittest.main()
