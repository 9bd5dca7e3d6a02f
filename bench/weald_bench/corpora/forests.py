"""Forests: many versions of real packages side by side, fetched by pip, npm and cargo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from weald_bench import machine
from weald_bench.corpora.base import Corpus
from weald_bench.measure import CommandFailed

BENCH = machine.ROOT / "bench"


def make(list_name: str, directory: Path) -> Path:
    """Fetches what is missing of a list into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    script = BENCH / "make-forest.sh"
    ended = subprocess.run(
        ["bash", str(script), str(BENCH / list_name), str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        check=False,
    )
    if ended.returncode != 0:
        raise CommandFailed(f"bench/make-forest.sh {list_name}: could not fetch all packages")
    return directory.resolve()


class Forest(Corpus):
    """The forest of a list; it stays in the output directory, so that it is fetched once."""

    def __init__(self, name: str, list_name: str) -> None:
        super().__init__(name)
        self.list_name = list_name

    def tree(self, kept: Path) -> Path:
        print(
            f"== {self.name}: bench/{self.list_name}, kept in {kept / self.name}", file=sys.stderr
        )
        return make(self.list_name, kept / self.name)


def unseen() -> list[Corpus]:
    """Small forests by which no parameter was chosen at first: bench/unseen, KIND-NAME.list."""
    lists = sorted((BENCH / "unseen").glob("*.list"))
    return [Forest(path.stem, f"unseen/{path.name}") for path in lists]


def programs(kept: Path) -> list[Path]:
    """60 versions of two executables, for the part `start` of the suite `mount`."""
    tree = make("executables.list", kept / "executables")
    found = [
        path
        for path in sorted(tree.rglob("*"))
        if path.is_file() and path.match("bin/esbuild") or path.match("scripts/ruff")
    ]
    if not found:
        raise CommandFailed("bench/executables.list: no executables were found in the packages")
    return found
