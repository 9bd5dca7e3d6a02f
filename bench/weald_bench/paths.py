"""Paths of a mount: drawing them and asking for them; reads of a file at random places."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from weald_bench.measure import CommandFailed

PAGE = 4096


def draw(root: Path, count: int) -> list[bytes]:
    """Draws paths of files relative to a directory, always the same paths for the same tree. Each
    draw goes down from the root and takes every name of a directory with equal probability."""
    top = os.fsencode(root)
    pick = random.Random(1)
    kept: dict[bytes, list[tuple[bytes, bool]]] = {}

    def listed(path: bytes) -> list[tuple[bytes, bool]]:
        if path in kept:
            return kept[path]
        with os.scandir(os.path.join(top, path)) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        # Leaves are many, and hardly ever drawn twice.
        if any(is_dir for _, is_dir in found):
            kept[path] = found
        return found

    paths = []
    for _ in range(count):
        path, is_dir = b"", True
        while is_dir:
            name, is_dir = pick.choice(listed(path))
            path = os.path.join(path, name)
        paths.append(path)
    return paths


def look_up(root: Path, paths: list[bytes], absent: bool = False) -> float:
    """Returns the microseconds of one `stat`; the loop itself costs about 1. With `absent` it asks
    for similar names that do not exist."""
    top = os.fsencode(root)
    end = b"~" if absent else b""
    full = [top + b"/" + path + end for path in paths]
    start = time.perf_counter()
    if absent:
        found = sum(os.path.lexists(path) for path in full)
    else:
        found = 0
        for path in full:
            os.lstat(path)
    passed = time.perf_counter() - start
    if found:
        raise CommandFailed(f"{found} names are there that should be absent")
    return passed / len(full) * 1e6


def random_reads(path: Path, count: int) -> None:
    """Reads 4 KiB at random places, the same in every run; the kernel does not read ahead."""
    file = os.open(path, os.O_RDONLY)
    try:
        pages = os.fstat(file).st_size // PAGE
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        state = 1
        for _ in range(count):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            place = (state >> 16) % pages * PAGE
            if len(os.pread(file, PAGE, place)) != PAGE:
                raise CommandFailed(f"{path.name}: a short read at {place}")
    finally:
        os.close(file)
