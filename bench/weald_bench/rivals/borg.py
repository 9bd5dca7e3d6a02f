"""BorgBackup: a repository without encryption, `zstd,19`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weald_bench.rivals.base import Packing, package_version, shell
from weald_bench.rivals.keeper import Keeper, Script


class Borg(Keeper):
    """BorgBackup; all files of the repository count."""

    name = "borg"
    label = "borg zstd,19"
    tools = ("borg",)

    def version(self) -> str:
        return package_version("borgbackup", "borg")

    def packing(self, tree: Path, target: Path, work: Path) -> Packing:
        script = (
            'borg init --encryption none "$2"; borg create --compression zstd,19 "$2::tree" "$1"'
        )
        return Packing(shell(script, tree, target), self.env(work))

    def env(self, home: Path) -> dict[str, str]:
        return {
            "BORG_BASE_DIR": str(home / "borg-base"),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }

    def create(self, home: Path) -> Script:
        return [["borg", "init", "--encryption", "none", str(home / "store")]]

    def add(self, home: Path, name: str, tree: Path) -> Script:
        words = ["--compression", "zstd,19", f"{home / 'store'}::{name}", str(tree)]
        return [["borg", "create", *words]]

    def remove(self, home: Path, names: Sequence[str], kept: str) -> Script:
        return [
            ["borg", "delete", str(home / "store"), *names],
            ["borg", "compact", "--threshold", "0", str(home / "store")],
        ]
