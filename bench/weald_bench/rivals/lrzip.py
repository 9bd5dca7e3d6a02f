"""lrzip: a tar file through `lrzip -L 9 -U`."""

from __future__ import annotations

from pathlib import Path

from weald_bench.rivals.base import Packing, Rival, package_version, shell


class Lrzip(Rival):
    """lrzip, which looks for repeats over the whole file and therefore needs one."""

    name = "lrzip"
    label = "tar, lrzip -L 9 -U"
    tools = ("tar", "lrzip")

    def version(self) -> str:
        return package_version("lrzip", "lrzip")

    def packing(self, tree: Path, target: Path, work: Path) -> Packing:
        script = 'tar -C "$1" --sort=name -c . >"$3"; lrzip -q -L 9 -U -o "$2" "$3"; rm "$3"'
        return Packing(shell(script, tree, target, work / "lrzip.tar"))
