"""The suite `store`: versions, equal files, outputs of commands, bytes of stores, steps of rivals."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from weald_bench import rivals
from weald_bench.bench import Bench, Options
from weald_bench.measure import CommandFailed
from weald_bench.rivals.crates import CrateProgram
from weald_bench.rivals.keeper import Keeper, data_len
from weald_bench.suites import ALL, store


class Versions(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)

    def test_versions_are_ordered_by_their_numbers_below_directories_of_one(self) -> None:
        for name in ("5.2.10", "5.2", "5.2.9"):
            (self.place / "pypyc" / "django" / name).mkdir(parents=True)
        (self.place / "pypyc" / ".scratch").mkdir()
        found = [path.name for path in store.version_trees(self.place)]
        self.assertEqual(found, ["5.2", "5.2.9", "5.2.10"])

    def test_too_few_versions_are_an_error(self) -> None:
        (self.place / "a").mkdir()
        (self.place / "b").mkdir()
        with self.assertRaisesRegex(CommandFailed, "has 2 versions"):
            store.version_trees(self.place)

    def test_same_shares_count_bytes_of_files_by_content_wherever_they_lie(self) -> None:
        old, new = self.place / "old", self.place / "new"
        for tree, name, text in (
            (old, "kept", "a" * 60),
            (old, "gone", "b" * 60),
            (new, "moved", "a" * 60),
            (new, "again", "a" * 60),
            (new, "fresh", "c" * 40),
        ):
            tree.mkdir(exist_ok=True)
            (tree / name).write_text(text)
        os.symlink("moved", new / "link")
        self.assertEqual(store.same_shares([old, new]), [120 / 160])
        self.assertEqual(store.same_share({}, {}), 0.0)

    def test_bytes_of_a_store_have_no_holes_and_count_linked_files_once(self) -> None:
        (self.place / "a").write_bytes(b"x" * 5000)
        os.link(self.place / "a", self.place / "b")
        with open(self.place / "sparse", "wb") as file:
            file.truncate(64 << 20)
            file.seek(32 << 20)
            file.write(b"y" * 4096)
        found = data_len(self.place)
        self.assertGreaterEqual(found, 5000 + 4096)
        self.assertLess(found, 1 << 20)


class Parsers(unittest.TestCase):
    def test_names_and_tree_digests_of_a_listing(self) -> None:
        lines = [{"name": "v1", "tree_digest": "aa", "len": 1}, {"name": "v2", "tree_digest": "bb"}]
        text = "\n".join(map(json.dumps, lines))
        self.assertEqual(store.parse_listing(text), {"v1": "aa", "v2": "bb"})

    def test_a_check_is_clean_only_if_it_says_so(self) -> None:
        self.assertTrue(store.is_clean('{"clean":true,"finding_count":0}\n'))
        self.assertFalse(store.is_clean('{"clean":false,"finding_count":1}\n'))
        self.assertFalse(store.is_clean(""))

    def test_the_rate_of_copying(self) -> None:
        self.assertEqual(store.copied_rate('{"copied_len": 600000000}', 2.0), (600000000, 300.0))
        with self.assertRaises(CommandFailed):
            store.copied_rate('{"copied_len": null}', 2.0)


class Stores(unittest.TestCase):
    def test_every_rival_of_the_suite_keeps_stores_and_is_named_if_missing(self) -> None:
        names = ALL["store"].rivals
        bench = Bench(Options("store", levels=[5, 7]), [rivals.by_name(name) for name in names])
        ways = store.ways_of(bench)
        self.assertEqual([way.keeper.name for way in ways], ["weald-7", "weald-5", *names])
        named = [way.keeper.name for way in ways if way.problem]
        self.assertEqual(named, list(bench.result.missing))

    def test_a_crate_that_was_not_built_is_missing_and_says_so(self) -> None:
        program = CrateProgram("a-tool-that-no-machine-has", "a-crate", "1.2.3")
        self.assertEqual(
            program.find(),
            (
                None,
                "missing: a-tool-that-no-machine-has is not on PATH, and WEALD_BENCH_NO_BUILD "
                "is set",
            ),
        )
        self.assertEqual(program.shown(), "a-crate 1.2.3")

    def test_missing_figures_are_not_as_asked(self) -> None:
        bench = Bench(Options("store", levels=[7]), [])
        ways = store.ways_of(bench)
        ways[0].problem = "failed: exit status 2"
        store.asked(bench, "tree", ways)
        self.assertEqual([check.verdict for check in bench.result.checks], ["NO"] * 3)

    def test_every_rival_that_is_there_adds_and_removes_versions(self) -> None:
        for rival in rivals.ALL:
            if not isinstance(rival, Keeper) or rival.problem():
                continue
            with self.subTest(rival.name), tempfile.TemporaryDirectory() as place:
                home, tree = Path(place) / "home", Path(place) / "tree"
                home.mkdir()
                tree.mkdir()
                env = {**os.environ, **rival.env(home)}
                script = rival.create(home)
                names = ["v1", "v2", "v3"]
                for name in names:
                    script += rival.add(home, name, tree / name)
                    (tree / name).mkdir()
                    (tree / name / "file").write_bytes(os.urandom(200_000))
                for command in script:
                    self.runs(command, env)
                self.assertGreater(data_len(home / "store"), 600_000)
                if rival.keeps_all:
                    continue
                for command in rival.remove(home, names[:2], "v3"):
                    self.runs(command, env)
                left = data_len(home / "store")
                self.assertGreater(left, 200_000)
                self.assertLess(left, 400_000)

    def runs(self, command: list[str], env: dict[str, str]) -> None:
        ended = subprocess.run(command, env=env, capture_output=True, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr.decode())


if __name__ == "__main__":
    unittest.main()
