"""Images over threads, forks and pickles."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import random
import threading
from pathlib import Path

import pytest
import weald
from conftest import Forest, in_child, run_weald

FILES = ["long", "deep/words.txt", "sparse", "page", *(f"deep/er/{n:03}" for n in range(300))]


def read_at_random(image: weald.Image, forest: Forest, seed: int, count: int) -> int:
    """Compares reads of random ranges with the tree; returns how many."""
    numbers = random.Random(seed)
    for _ in range(count):
        name = numbers.choice(FILES)
        with open(forest.tree / name, "rb") as file:
            offset = numbers.randrange(os.fstat(file.fileno()).st_size + 1)
            length = numbers.choice([1, 100, 10_000, 1 << 21])
            wanted = os.pread(file.fileno(), length, offset)
        assert image.read(name, offset, length) == wanted, (seed, name, offset, length)
    return count


# Would catch: threads of Python that give each other wrong bytes, or wait for each other for ever.
@pytest.mark.parametrize("cache", [None, 0, 1 << 20])
def test_eight_threads_read_at_random(forest: Forest, cache: int | None) -> None:
    image = weald.open(forest.image, cache=cache)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        counts = threads.map(lambda seed: read_at_random(image, forest, seed, 100), range(8))
        assert sum(counts) == 800


def test_threads_share_a_file(forest: Forest) -> None:
    file = weald.open(forest.image).open("long")
    wanted = (forest.tree / "long").read_bytes()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        offsets = [n * 65_537 for n in range(70)]
        parts = threads.map(lambda offset: file.pread(1000, offset), offsets)
        assert list(parts) == [wanted[offset : offset + 1000] for offset in offsets]


# Would catch: a forked process that waits for a lock that a thread of its parent held, or for a
# block that such a thread was decoding, or reads through the position of a file that it shares with
# its parent. Without a cache, threads decode a block nearly all the time.
@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_processes_are_forked_while_threads_read(forest: Forest, cache: int) -> None:
    image = weald.open(forest.image, cache=cache)
    file = image.open("deep/words.txt")
    file.seek(1000)
    is_over = threading.Event()

    def read(seed: int) -> None:
        while not is_over.is_set():
            image.read("deep/words.txt")
            read_at_random(image, forest, seed, 3)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()

    def work() -> None:
        assert file.tell() == 1000
        words = (forest.tree / "deep" / "words.txt").read_bytes()
        assert file.read(500) == words[1000:1500]
        read_at_random(image, forest, os.getpid(), 10)

    try:
        for _ in range(20):
            in_child(work)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert file.tell() == 1000


def test_a_fork_sees_the_same_generation(forest: Forest, tmp_path: Path) -> None:
    tree, path = tmp_path / "tree", tmp_path / "a.weald"
    tree.mkdir()
    (tree / "b").write_text("first")
    run_weald("build", tree, path)
    image = weald.open(path)
    file = image.open("b")
    pickled = pickle.dumps(image)
    (tree / "b").write_text("second")
    (tree / "a").write_text("before it")
    run_weald("build", "--append", tree, path)
    assert weald.open(path).read("b") == b"second"

    def work() -> None:
        assert file.read() == b"first"
        assert image.list() == ["b"] and image.generation == 1

    in_child(work)
    assert pickle.loads(pickled).read("b") == b"first"
    # A file that took the place of the image is refused.
    os.replace(build_other(tmp_path), path)
    with pytest.raises(ValueError, match="image digest"):
        pickle.loads(pickled)


def build_other(work: Path) -> Path:
    (work / "other").mkdir()
    run_weald("build", work / "other", work / "other.weald")
    return work / "other.weald"


def test_images_and_files_are_pickled(
    forest: Forest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(forest.image.parent)
    image = weald.open(forest.image.name, cache=1 << 20)
    file = image.open("deep/words.txt")
    file.seek(77)
    monkeypatch.chdir(tmp_path)
    again, file_again = pickle.loads(pickle.dumps((image, file)))
    assert again.digest == image.digest and again.list() == image.list()
    assert file_again.tell() == 77 and file_again.read() == file.read()


def read_one(arguments: tuple[weald.Image, str]) -> bytes:
    image, name = arguments
    return image.read(name)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes(forest: Forest, method: str) -> None:
    image = weald.open(forest.stored)
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        found = pool.map(read_one, [(image, name) for name in FILES[:8]])
    assert found == [(forest.tree / name).read_bytes() for name in FILES[:8]]
