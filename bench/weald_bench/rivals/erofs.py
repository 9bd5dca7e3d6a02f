"""EROFS: `mkfs.erofs` with the strongest codec that it offers, clusters of 1 MiB."""

from __future__ import annotations

import subprocess
from pathlib import Path

from weald_bench import machine
from weald_bench.rivals.base import Packing, Rival, package_version


def options(help_text: str) -> list[str]:
    """The strongest options that this help text of mkfs.erofs offers."""
    for line in help_text.splitlines():
        if "compressors are:" in line and "lzma" in line:
            return ["-zlzma,9", "-C1048576"]
    return ["-zlz4hc,12", "-C1048576"]


class Erofs(Rival):
    """EROFS."""

    name = "erofs"
    label = "EROFS"
    tools = ("mkfs.erofs",)
    kind = "erofs"

    def version(self) -> str:
        fallback = machine.first_line("mkfs.erofs", "-V") or "mkfs.erofs"
        return package_version("erofs-utils", fallback)

    def packing(self, tree: Path, target: Path, work: Path) -> Packing:
        ended = subprocess.run(["mkfs.erofs", "--help"], capture_output=True, text=True, check=False)
        words = options(ended.stdout + ended.stderr)
        return Packing(["mkfs.erofs", *words, "--quiet", str(target), str(tree)])
