"""zpaq: `zpaq -m3`."""

from __future__ import annotations

from pathlib import Path

from weald_bench.rivals.base import Packing, Rival, package_version, shell


class Zpaq(Rival):
    """zpaq, which insists on its suffix."""

    name = "zpaq"
    label = "zpaq -m3"
    tools = ("zpaq",)

    def version(self) -> str:
        return package_version("zpaq", "zpaq")

    def packing(self, tree: Path, target: Path, work: Path) -> Packing:
        script = 'zpaq add "$2.zpaq" "$1" -m3; mv "$2.zpaq" "$2"'
        return Packing(shell(script, tree, target))
