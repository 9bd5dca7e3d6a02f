"""restic: a repository of version 2, compression `max`."""

from __future__ import annotations

from pathlib import Path

from weald_bench.rivals.base import Packing, Rival, package_version, shell


class Restic(Rival):
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
        env = {"RESTIC_PASSWORD": "weald", "RESTIC_CACHE_DIR": str(work / "restic-cache")}
        return Packing(shell(script, tree, target), env)
