"""SquashFS: `mksquashfs` with blocks of 1 MiB and its strongest options."""

from __future__ import annotations

import os
from pathlib import Path

from weald_bench import machine
from weald_bench.rivals.base import Packing, Rival


class Zstd(Rival):
    """SquashFS with Zstandard at its highest level."""

    name = "squashfs-zstd"
    label = "SquashFS zstd-22, 1 MiB"
    tools = ("mksquashfs",)
    kind = "squashfs"
    options = ["-comp", "zstd", "-b", "1M", "-Xcompression-level", "22"]

    def version(self) -> str:
        version = machine.first_line("mksquashfs", "-version") or "mksquashfs"
        return version.split(" (")[0]

    def packing(self, tree: Path, target: Path, work: Path) -> Packing:
        quiet = ["-no-progress", "-quiet"]
        return Packing(["mksquashfs", str(tree), str(target), *self.options, *quiet])


class Xz(Zstd):
    """SquashFS with xz, a dictionary of the block's length and, on x86, its filter."""

    name = "squashfs-xz"
    label = "SquashFS xz, 1 MiB"
    options = ["-comp", "xz", "-b", "1M", "-Xdict-size", "100%"] + (
        ["-Xbcj", "x86"] if os.uname().machine == "x86_64" else []
    )
