"""The suite `volume`: what fio prints, and which file systems stand in for others."""

import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from weald_bench.bench import Bench, Options
from weald_bench.rivals.passthrough import Btrfs, Passthrough
from weald_bench.suites import beds, volume


def bench_of(*rivals: object) -> Bench:
    """A run that has not begun."""
    return Bench(Options("volume", weald=Path("weald")), rivals)  # type: ignore[arg-type]


class Fio(unittest.TestCase):
    def test_rates_are_read_behind_warnings(self) -> None:
        job = {"read": {"iops": 70.0}, "write": {"iops": 30.0}}
        text = "note: both iodepth\n" + json.dumps({"jobs": [job]})
        self.assertEqual(volume.rates_of(text), {"read": 70.0, "write": 30.0, "both": 100.0})


class Beds(unittest.TestCase):
    def test_a_passthrough_that_may_not_open_enough_files_is_replaced(self) -> None:
        with (
            mock.patch.object(Passthrough, "problem", return_value=None),
            mock.patch.object(beds.resource, "getrlimit", return_value=(1000, 1000)),
        ):
            bench = bench_of(Passthrough())
            few, many = beds.kinds(bench, 999)[1], beds.kinds(bench, 1001)[1]
        self.assertEqual((few.id, many.id), ("passthrough", "passthrough"))
        self.assertEqual((few.words, many.label), ((), beds.BINDFS))
        bed = beds.Bed(bench, many, Path("/d"), Path("/m"))
        self.assertEqual(bed.command(), [*beds.BINDFS_WORDS, "/d/data", "/m"])

    def test_a_volume_is_mounted_with_the_options_of_its_mode(self) -> None:
        bench = bench_of(Btrfs())
        mode = beds.Kind("weald-eprd", "", ("cache=2G", "fsync=ignore"))
        bed = beds.Bed(bench, mode, Path("/d"), Path("/m"))
        words = ["weald", "mount", "--foreground", "-o", "cache=2G,fsync=ignore", "/d/store:v"]
        self.assertEqual(bed.command(), [*words, "/m"])
        self.assertEqual(beds.Bed(bench, beds.kinds(bench)[1], Path(), Path()).command(), [])

    def test_files_are_made_a_thousand_in_each_directory(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            top = Path(place) / "files"
            volume.make_files(top, 1001)
            found = sorted(str(path.relative_to(top)) for path in top.rglob("*"))
        self.assertEqual(len(found), 1003)
        self.assertIn("1/0", found)


if __name__ == "__main__":
    unittest.main()
