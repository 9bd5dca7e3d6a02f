"""A tree with everything that an image can hold, and images of it."""

from __future__ import annotations

import os
import random
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

WEALD = os.environ["WEALD"]


def run_weald(*words: object) -> None:
    """Runs the program, whose output is part of the message of a failure."""
    done = subprocess.run([WEALD, *map(os.fspath, words)], capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)


def in_child(work: Callable[[], object]) -> None:
    """Calls ``work`` in a forked process, whose exceptions fail the test."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    deadline = time.monotonic() + 60
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the forked process hangs")
        time.sleep(0.002)
    assert status == 0


@dataclass(frozen=True)
class Forest:
    """A tree on disk, an image of it, and a store that has the same image as ``tree``."""

    tree: Path
    image: Path
    store: Path

    @property
    def stored(self) -> str:
        """The image in the store."""
        return f"{self.store}:tree"


@pytest.fixture(scope="session")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Forest:
    work = tmp_path_factory.mktemp("forest")
    tree, image, store = work / "tree", work / "forest.weald", work / "store"
    make_tree(tree)
    run_weald("build", tree, image)
    run_weald("store", "create", store)
    run_weald("store", "add", store, tree, "--name", "tree")
    return Forest(tree, image, store)


def make_tree(tree: Path) -> None:
    """Files of all types and sizes, with names of any bytes."""
    numbers = random.Random(1)
    (tree / "deep" / "er" / "est").mkdir(parents=True)
    (tree / "empty-dir").mkdir()
    for name, length in [("empty", 0), ("one", 1), ("page", 4096), ("long", 5 << 20)]:
        (tree / name).write_bytes(numbers.randbytes(length))
    words = "".join(f"{n}: {n * n} leaves\n" for n in range(40_000))
    (tree / "deep" / "words.txt").write_text(words)
    (tree / "deep" / "copy.txt").write_text(words)
    for n in range(300):
        (tree / "deep" / "er" / f"{n:03}").write_bytes(numbers.randbytes(n * 7))
    with open(tree / "sparse", "wb") as sparse:
        sparse.write(b"begin")
        sparse.seek(3 << 20)
        sparse.write(b"end")
    os.link(tree / "page", tree / "deep" / "hard-link")
    os.mkfifo(tree / "fifo")
    odd = os.fsencode(tree) + b"/odd-\xff\xfe"
    os.mkdir(odd)
    with open(odd + b"/\x80name", "wb") as file:
        file.write(b"no UTF-8")
    os.symlink(b"\xff\xfe", os.fsencode(tree) + b"/odd-link")
    for target, name in [
        ("deep/words.txt", "to-file"),
        ("deep", "to-dir"),
        ("/deep/er", "to-root"),
        ("..", "deep/up"),
        ("gone", "to-nothing"),
        ("loop", "loop"),
    ]:
        os.symlink(target, tree / name)
    os.setxattr(tree / "one", "user.colour", b"green\x00")
    os.chmod(tree / "one", 0o640)
    os.utime(tree / "one", ns=(1, 1_234_567_890_123_456_789))
    make_tables(tree / "tables")


def make_tables(tables: Path) -> None:
    """One table as CSV, as Parquet, and as a data set in partitions."""
    tables.mkdir()
    frame = table()
    frame.to_csv(tables / "table.csv", index=False)
    frame.to_csv(tables / "table.csv.gz", index=False)
    frame.to_parquet(tables / "table.parquet")
    pyarrow.dataset.write_dataset(
        pyarrow.Table.from_pandas(frame),
        tables / "parts",
        format="parquet",
        partitioning=["kind"],
        partitioning_flavor="hive",
    )


def table() -> pandas.DataFrame:
    """The table of all files below ``tables``."""
    numbers = random.Random(2)
    rows = range(20_000)
    return pandas.DataFrame(
        {
            "number": list(rows),
            "height": [numbers.random() for _ in rows],
            "kind": [["oak", "beech", "fir"][n % 3] for n in rows],
        }
    )
