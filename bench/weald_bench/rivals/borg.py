"""BorgBackup: a repository without encryption, `zstd,19`."""

from __future__ import annotations

from pathlib import Path

from weald_bench.rivals.base import Packing, Rival, package_version, shell


class Borg(Rival):
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
        env = {
            "BORG_BASE_DIR": str(work / "borg-base"),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }
        return Packing(shell(script, tree, target), env)
