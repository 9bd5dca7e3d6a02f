"""Rivals: what their tools say, and tools that are missing."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from weald_bench import cli, corpora, rivals, suites
from weald_bench.rivals import by_name, crates, dwarfs, erofs, squashfs
from weald_bench.rivals.base import file_len, shell


class Missing(unittest.TestCase):
    def test_a_tool_that_is_missing_is_named(self) -> None:
        with (
            tempfile.TemporaryDirectory() as empty,
            mock.patch.dict(os.environ, PATH=empty),
            mock.patch.object(crates, "TOOLS", Path(empty)),
            mock.patch.object(dwarfs, "BUILT", Path(empty)),
        ):
            for rival in rivals.ALL:
                problem = rival.problem()
                assert problem is not None, rival.name
                self.assertTrue(problem.startswith("missing: "), problem)
                if rival.tools:
                    self.assertIn(rival.tools[0], problem)

    def test_dwarfs_says_which_of_its_two_implementations_is_measured(self) -> None:
        nothing = mock.patch.object(dwarfs, "BUILT", Path("/nowhere"))
        with tempfile.TemporaryDirectory() as tools, nothing:
            with mock.patch.dict(os.environ, PATH=tools):
                rival = dwarfs.Dwarfs()
                self.assertIn("neither mkdwarfs nor cargo", rival.problem() or "")
                self.assertIn("crate", rival.label)
                self.assertEqual(rival.mount_commands(Path("image")), (None, None))
            for tool in ("mkdwarfs", "dwarfs"):
                program = Path(tools) / tool
                program.write_text("#!/bin/sh\n")
                program.chmod(0o755)
            with mock.patch.dict(os.environ, PATH=tools):
                rival = dwarfs.Dwarfs()
                self.assertIsNone(rival.problem())
                self.assertIn("mkdwarfs", rival.label)
                packing = rival.packing(Path("tree"), Path("image"), Path("work"))
                self.assertEqual(packing.command[:5], ["mkdwarfs", "-i", "tree", "-o", "image"])
                served, given = rival.mount_commands(Path("image"))
                self.assertIn(f"{tools}/dwarfs", served or [])
                self.assertEqual(given, [f"{tools}/dwarfs", "image"])
            # What scripts/build-dwarfs.sh built.
            built = mock.patch.object(dwarfs, "BUILT", Path(tools))
            with mock.patch.dict(os.environ, PATH="/nowhere"), built:
                rival = dwarfs.Dwarfs()
                self.assertIsNone(rival.problem())
                packing = rival.packing(Path("tree"), Path("image"), Path("work"))
                self.assertEqual(packing.command[0], f"{tools}/mkdwarfs")
            with mock.patch.dict(os.environ, PATH="/nowhere"):
                rival = dwarfs.Dwarfs()
                rival.use_directory(Path(tools))
                self.assertIsNone(rival.problem())
                packing = rival.packing(Path("tree"), Path("image"), Path("work"))
                self.assertEqual(packing.command[0], f"{Path(tools).resolve()}/mkdwarfs")
                (Path(tools) / "mkdwarfs").unlink()
                self.assertIn("has no mkdwarfs", rival.problem() or "")
        with self.assertRaisesRegex(ValueError, "no directory"):
            by_name("erofs=/usr/bin")


class Tools(unittest.TestCase):
    def test_erofs_uses_the_strongest_codec_that_its_tool_has(self) -> None:
        weak = "Available compressors are: lz4hc, lz4\n"
        strong = "Available compressors are: lz4hc, lz4, lzma, deflate\n"
        self.assertEqual(erofs.options(weak), ["-zlz4hc,12", "-C1048576"])
        self.assertEqual(erofs.options(strong), ["-zlzma,9", "-C1048576"])
        # Only the line of compressors counts.
        self.assertEqual(erofs.options("-zX,Y  lz4, lzma\n" + weak), ["-zlz4hc,12", "-C1048576"])

    def test_squashfs_has_its_strongest_options(self) -> None:
        command = squashfs.Zstd().packing(Path("t"), Path("i"), Path("w")).command
        self.assertEqual(command[:3], ["mksquashfs", "t", "i"])
        self.assertIn("-Xcompression-level", command)

    def test_every_rival_that_is_there_packs_a_tree(self) -> None:
        for rival in rivals.ALL:
            # The crates of DwarFS are built by `make bench`, not by a test.
            if rival.name == "dwarfs" or not rival.packs or rival.problem():
                continue
            with self.subTest(rival.name), tempfile.TemporaryDirectory() as place:
                tree, target, work = (Path(place) / name for name in ("tree", "target", "work"))
                tree.mkdir()
                work.mkdir()
                (tree / "file").write_bytes(b"some text " * 1000)
                packing = rival.packing(tree, target, work)
                env = {**os.environ, **(packing.env or {})}
                ended = subprocess.run(packing.command, env=env, capture_output=True, check=False)
                self.assertEqual(ended.returncode, 0, ended.stderr.decode())
                self.assertGreater(file_len(target), 0)

    def test_a_shell_command_fails_if_any_part_of_a_pipeline_does(self) -> None:
        for script, status in (("true | cat", 0), ("false | cat", 1), ("false; true", 1)):
            ended = subprocess.run(shell(script), check=False)
            self.assertEqual(ended.returncode, status, script)


class Words(unittest.TestCase):
    def test_unknown_names_are_refused_with_the_known_ones(self) -> None:
        with self.assertRaisesRegex(ValueError, "unknown rival 'nothing'.*squashfs-zstd"):
            rivals.by_name("nothing")
        with self.assertRaisesRegex(ValueError, "unknown corpus 'nothing'.*forest"):
            corpora.by_word("nothing")
        with self.assertRaisesRegex(ValueError, "unknown part 'nothing'.*sizes"):
            cli.wanted(["nothing"], ("sizes", "reading"), "part")

    def test_a_corpus_can_be_any_directory(self) -> None:
        with tempfile.TemporaryDirectory() as tree:
            corpus = corpora.by_word(f"mine={tree}")
            self.assertEqual((corpus.name, corpus.tree(Path())), ("mine", Path(tree).resolve()))

    def test_suites_name_corpora_and_rivals_that_exist(self) -> None:
        for suite in suites.ALL.values():
            for word in suite.corpora:
                corpora.by_word(word)
            for name in suite.rivals:
                rivals.by_name(name)

    def test_a_result_tells_no_paths_of_the_machine(self) -> None:
        words = [
            "run",
            "--corpus",
            "mine=/secret/tree",
            "--against",
            "/secret/weald",
            "--rounds",
            "2",
        ]
        shown = cli.command_words(cli.parser().parse_args(words))
        expected = "run --suite main --corpus mine=DIR --rounds 2 --against FILE"
        self.assertEqual(" ".join(shown), expected)

    def test_a_binary_that_is_not_there_is_an_error_before_anything_is_measured(self) -> None:
        if shutil.which("openssl") is None:
            self.fail("openssl is missing: run 'bash scripts/setup.sh build test'")
        args = ["run", "--suite", "build", "--weald", "/nothing/there"]
        self.assertEqual(cli.main(args), 2)


if __name__ == "__main__":
    unittest.main()
