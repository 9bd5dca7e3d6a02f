"""tar and a compressor: one stream, of which no file can be read by itself."""

from __future__ import annotations

from pathlib import Path

from weald_bench import machine
from weald_bench.rivals.base import Packing, Rival, package_version, shell

PACKAGES = {"zstd": "zstd", "xz": "xz-utils"}


class Tar(Rival):
    """A tar stream, names in order, through one compressor."""

    def __init__(self, name: str, label: str, filter: str, tool: str) -> None:
        self.name = name
        self.label = label
        self.filter = filter
        self.tools = ("tar", tool)

    def version(self) -> str:
        tool = self.tools[1]
        return package_version(PACKAGES[tool], machine.first_line(tool, "--version") or tool)

    def packing(self, tree: Path, target: Path, work: Path) -> Packing:
        script = f'tar -C "$1" --sort=name -c . | {self.filter} >"$2"'
        return Packing(shell(script, tree, target))
