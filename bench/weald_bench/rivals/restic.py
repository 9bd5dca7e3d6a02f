"""restic: a repository of version 2, compression `max`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weald_bench.rivals.base import Packing, package_version, shell
from weald_bench.rivals.keeper import Keeper, Script


class Restic(Keeper):
    """restic, which always encrypts; all files of the repository count."""

    name = "restic"
    label = "restic --compression max"
    tools = ("restic",)

    def version(self) -> str:
        return package_version("restic", "restic")

    def packing(self, tree: Path, target: Path, work: Path) -> Packing:
        script = (
            'restic -q init -r "$2" --repository-version 2; '
            'restic -q backup -r "$2" --compression max "$1"'
        )
        return Packing(shell(script, tree, target), self.env(work))

    def env(self, home: Path) -> dict[str, str]:
        return {"RESTIC_PASSWORD": "weald", "RESTIC_CACHE_DIR": str(home / "restic-cache")}

    def create(self, home: Path) -> Script:
        return [["restic", "-q", "init", "-r", str(home / "store"), "--repository-version", "2"]]

    def add(self, home: Path, name: str, tree: Path) -> Script:
        words = ["-r", str(home / "store"), "--compression", "max", "--tag", name, str(tree)]
        return [["restic", "-q", "backup", *words]]

    def remove(self, home: Path, names: Sequence[str], kept: str) -> Script:
        words = ["--group-by", "", "--keep-tag", kept, "--prune", "--max-unused", "0"]
        return [["restic", "-q", "forget", "-r", str(home / "store"), *words]]
