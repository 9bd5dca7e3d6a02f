"""The pure parts of suites: missing and failed rivals, trees that are made, drawn paths."""

import os
import tempfile
import unittest
from collections import Counter
from pathlib import Path

from weald_bench import machine, mounts, paths
from weald_bench.bench import Bench, Options
from weald_bench.corpora import generated, made
from weald_bench.corpora.base import human
from weald_bench.measure import CommandFailed
from weald_bench.mounts import Samples, Source
from weald_bench.result import Column, Table
from weald_bench.rivals.base import Rival
from weald_bench.runner import Step
from weald_bench.suites import append, common, counts, mount


class Absent(Rival):
    """A rival whose tool no machine has."""

    name = "absent"
    label = "Absent"
    tools = ("a-tool-that-no-machine-has",)


def bench_of(*rivals: Rival, scale: str = "full") -> Bench:
    """A run that has not begun."""
    return Bench(Options("main", scale=scale, weald=Path("weald"), rounds=1), rivals)


class NothingLeftOut(unittest.TestCase):
    def test_a_missing_rival_is_named_in_the_result_and_in_its_row(self) -> None:
        bench = bench_of(Absent())
        self.assertTrue(bench.wants("absent"))
        problem = bench.problem_of("absent")
        message = "a-tool-that-no-machine-has is not on PATH"
        self.assertEqual(problem, f"missing: {message}")
        self.assertEqual(bench.result.missing, {"absent": message})
        self.assertFalse(bench.wants("other"))
        self.assertIsNone(bench.problem_of("other"))
        rows = common.builders(bench, Path("tree"), [7])
        self.assertEqual([(row.id, row.problem) for row in rows][1], ("absent", problem))

    def test_rows_of_missing_and_failed_sources_have_no_figures(self) -> None:
        sources = [Source(id, id, "ext4", Path()) for id in ("good", "bad", "gone")]
        sources[2].problem = "missing: its tool"
        samples = {source.id: Samples({"s": [1.0]}) for source in sources}
        steps = common.steps_of(sources, lambda source: None)
        self.assertEqual([step.id for step in steps], ["good", "bad"])
        steps[1].problem = "failed: exit status 1"
        table = Table("t", "t", [Column("what", ""), Column("s", "s")])
        common.fill(table, sources, samples, steps)
        self.assertEqual([table.samples(row.id, "s") for row in table.rows], [[1.0], [], []])
        problems = [row.problem for row in table.rows]
        self.assertEqual(problems, [None, "failed: exit status 1", "missing: its tool"])

    def test_a_part_that_fails_is_a_failure_and_its_figures_are_not_as_asked(self) -> None:
        bench = bench_of()
        bench.options.parts = ["sizes"]

        def fail() -> None:
            raise CommandFailed("weald build: exit status 2")

        common.run_part(bench, "sizes", fail)
        common.run_part(bench, "other", fail)
        self.assertEqual(bench.result.failures, ["part sizes: weald build: exit status 2"])
        self.assertEqual([check.verdict for check in bench.result.checks], ["NO"])

    def test_a_step_that_fails_is_in_the_result(self) -> None:
        bench = bench_of()

        def fail() -> None:
            raise CommandFailed("exit status 1")

        bench.by_turns([Step("good", lambda: None), Step("bad", fail)], 3)
        self.assertEqual(bench.result.failures, ["bad: failed: exit status 1"])

    def test_ratios_to_the_other_weald_are_asked_for_only_if_there_is_one(self) -> None:
        self.assertEqual(common.against_baseline(bench_of()), [])

    def test_results_have_no_paths_of_the_machine(self) -> None:
        bench = bench_of()
        bench.called(Path("/my/trees/forest"), "forest/")
        bench.called(Path("/my"), "elsewhere")
        bench.called(Path("/usr/include"), "include/")
        text = f"build /my/trees/forest /usr/include {machine.ROOT}/bench /my/image"
        expected = "build forest/ /usr/include ./bench elsewhere/image"
        self.assertEqual(bench.without_paths(text), expected)


class Trees(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)

    def test_many_files_are_a_third_with_content(self) -> None:
        made.many_files(self.place, 3000)
        files = [path for path in self.place.rglob("*") if path.is_file()]
        self.assertEqual(len(files), 3000)
        full = [path for path in files if path.stat().st_size]
        self.assertEqual(len(full), 1000)
        self.assertEqual(len({path.read_bytes() for path in full}), 1000)

    def test_a_periodic_file_has_its_length_and_its_period(self) -> None:
        for period in (255, 65537):
            path = self.place / str(period)
            made.periodic(path, period, 3 << 20)
            data = path.read_bytes()
            self.assertEqual(len(data), 3 << 20)
            self.assertEqual(data[period:], data[:-period])

    def test_contents_of_linked_files_count_once(self) -> None:
        (self.place / "a").write_bytes(b"12345")
        os.link(self.place / "a", self.place / "b")
        os.symlink("a", self.place / "c")
        self.assertEqual(common.content_len(self.place), 5)

    def test_the_nearest_directory_by_its_number_of_files(self) -> None:
        for name, count in (("few", 2), ("some/below", 7), ("many", 20)):
            (self.place / name).mkdir(parents=True)
            for index in range(count):
                (self.place / name / str(index)).touch()
        self.assertEqual(mount.nearest_dir(self.place, 8), ("some", 7))
        self.assertEqual(mount.nearest_dir(self.place, 100), ("many", 20))
        with self.assertRaises(CommandFailed):
            mount.nearest_dir(self.place / "few", 8)

    def test_drawn_paths_are_those_of_files_and_always_the_same(self) -> None:
        made.many_files(self.place, 2000)
        drawn = paths.draw(self.place, 500)
        self.assertEqual(drawn, paths.draw(self.place, 500))
        self.assertTrue(all((self.place / os.fsdecode(path)).is_file() for path in drawn))
        # Each directory is as likely as the others.
        self.assertGreater(len(Counter(path.split(b"/")[0] for path in drawn)), 300)
        self.assertGreater(paths.look_up(self.place, drawn), 0)
        self.assertGreater(paths.look_up(self.place, drawn, absent=True), 0)
        (self.place / os.fsdecode(drawn[0] + b"~")).touch()
        with self.assertRaisesRegex(CommandFailed, "should be absent"):
            paths.look_up(self.place, drawn, absent=True)

    def test_random_reads_need_whole_pages(self) -> None:
        path = self.place / "file"
        path.write_bytes(bytes(3 * paths.PAGE))
        paths.random_reads(path, 50)

    def test_versions_to_grow_by_are_those_of_the_forest(self) -> None:
        for version in append.NEWEST:
            (self.place / version).mkdir(parents=True)
        self.assertEqual(append.versions(bench_of(), self.place), list(append.NEWEST))
        (self.place / append.NEWEST[0]).rmdir()
        with self.assertRaisesRegex(CommandFailed, append.NEWEST[0]):
            append.versions(bench_of(), self.place)
        tiny = append.versions(bench_of(scale="tiny"), self.place)
        self.assertEqual(tiny, ["crate", "npm"])


class Words(unittest.TestCase):
    def test_fan_outs(self) -> None:
        self.assertEqual(generated.file_count("1000x1000x1000"), 10**9)
        self.assertEqual(counts.shape_words("regular", "10x1000"), ("10x1000", []))
        fanout, words = counts.shape_words("versions", "100x10x1000")
        self.assertEqual(
            (fanout, words[:4]), ("100x10x100", ["--names", "words", "--versions", "10"])
        )

    def test_bytes_for_people(self) -> None:
        self.assertEqual([human(0), human(999), human(1_340_000)], ["0.0 B", "999.0 B", "1.3 MB"])

    def test_a_new_build_that_shrinks_gives_no_ratio(self) -> None:
        used = append.Usage(1.0, 2.0)
        self.assertEqual(append.cells(100, -5, used, used)["size_ratio"], "-")
        self.assertEqual(append.cells(100, 50, used, used)["size_ratio"], [2.0])

    def test_facts_of_the_machine(self) -> None:
        facts = machine.facts(Path("/tmp"), Path("/nothing/there"), {}, "not told to a host")
        self.assertEqual(facts["weald_version"], "unknown")
        self.assertGreater(facts["memory_gib"], 0)
        for fact in ("commit", "kernel", "processor", "processors", "load", "pressure_cpu"):
            self.assertIn(fact, facts)

    def test_a_file_system_of_the_kernel_is_mounted_through_a_loop_device(self) -> None:
        command = mounts.kernel_mount(mounts.kernel_source("erofs", Path("image")))
        self.assertEqual(command, ["mount", "-t", "erofs", "-o", "loop,ro", "image"])


if __name__ == "__main__":
    unittest.main()
