"""ext4: a plain file system in a file, for mounts without compression."""

from __future__ import annotations

from pathlib import Path

from weald_bench import machine
from weald_bench.rivals.base import Packing, Rival, file_len, shell


class Ext4(Rival):
    """ext4 with room for twice the contents; its size is that of the blocks in use."""

    name = "ext4"
    label = "ext4"
    tools = ("mkfs.ext4", "truncate")
    kind = "ext4"

    def version(self) -> str:
        return (machine.first_line("mkfs.ext4", "-V") or "mke2fs").split(" (")[0]

    def packing(self, tree: Path, target: Path, work: Path) -> Packing:
        mib = max(64, file_len(tree) * 2 >> 20)
        script = 'truncate -s "$3M" "$2"; mkfs.ext4 -q -F -d "$1" "$2"'
        return Packing(shell(script, tree, target, str(mib)))
