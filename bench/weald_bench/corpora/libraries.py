"""Versions of a tree of large files: shared libraries of the machine. A few files change."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

from weald_bench.corpora.base import Corpus
from weald_bench.measure import CommandFailed

LIBRARIES = Path("/usr/lib")
#: Bytes of one version; a version of the machine may be smaller.
LEN_MOST = 160_000_000
#: Shorter files are not taken.
FILE_LEN_LEAST = 100_000
VERSIONS = ("1.0", "1.1", "1.2")
#: The next version changes one file of so many.
CHANGED_ONE_OF = 20


class Libraries(Corpus):
    """Three versions of the same libraries. From one to the next, every twentieth file changes: 100
    bytes are inserted in its middle and 4,096 bytes behind them are replaced, all of them random.
    The tree stays in the output directory, so that it is made once."""

    def tree(self, kept: Path) -> Path:
        root = kept / self.name
        if root.is_dir():
            return root.resolve()
        print(f"== {self.name}: from {LIBRARIES}, kept in {root}", file=sys.stderr)
        unfinished = kept / f"{self.name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        found = chosen(LIBRARIES)
        if not found:
            raise CommandFailed(f"{LIBRARIES} has no shared libraries")
        pick = random.Random(1)
        for number, version in enumerate(VERSIONS):
            before = unfinished / VERSIONS[number - 1] if number else None
            for index, path in enumerate(found):
                target = unfinished / version / path.relative_to(LIBRARIES)
                target.parent.mkdir(parents=True, exist_ok=True)
                source = before / path.relative_to(LIBRARIES) if before else path
                data = source.read_bytes()
                if before and index % CHANGED_ONE_OF == number:
                    data = changed(data, pick)
                target.write_bytes(data)
        unfinished.rename(root)
        return root.resolve()


def chosen(directory: Path) -> list[Path]:
    """Shared libraries below a directory in the order of their paths, each file once."""
    found, total = [], 0
    for place, directories, names in os.walk(directory):
        directories.sort()
        for name in sorted(names):
            path = Path(place) / name
            if ".so" not in name or path.is_symlink() or not path.is_file():
                continue
            length = path.stat().st_size
            if length < FILE_LEN_LEAST or total + length > LEN_MOST:
                continue
            found.append(path)
            total += length
    return found


def changed(data: bytes, pick: random.Random) -> bytes:
    """The same bytes with 100 more in the middle, and 4,096 others behind these."""
    middle = len(data) // 2
    return data[:middle] + pick.randbytes(100 + 4096) + data[middle + 4096 :]
