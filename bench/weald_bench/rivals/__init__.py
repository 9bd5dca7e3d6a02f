"""The programs that Weald is compared with, one module each."""

from pathlib import Path

from weald_bench.rivals import (
    borg,
    dwarfs,
    erofs,
    ext4,
    keeper,
    lrzip,
    passthrough,
    restic,
    squashfs,
    tar,
    zpaq,
)
from weald_bench.rivals.base import Rival

#: All rivals, in the order of tables.
ALL: list[Rival] = [
    squashfs.Zstd(),
    squashfs.Xz(),
    erofs.Erofs(),
    dwarfs.Dwarfs(),
    tar.Tar("tar-zstd-19", "tar, zstd -19 --long=31", "zstd -q -19 -T0 --long=31", "zstd"),
    tar.Tar(
        "tar-zstd-22",
        "tar, zstd --ultra -22 --long=31",
        "zstd -q --ultra -22 -T0 --long=31",
        "zstd",
    ),
    tar.Tar("tar-xz", "tar, xz -9e", "xz -9e", "xz"),
    zpaq.Zpaq(),
    lrzip.Lrzip(),
    borg.Borg(),
    restic.Restic(),
    keeper.Ostree(),
    keeper.Casync(),
    keeper.Desync(),
    keeper.Composefs(),
    keeper.Puzzlefs(),
    keeper.Nydus(),
    ext4.Ext4(),
    passthrough.Btrfs(),
    passthrough.Passthrough(),
]


def by_name(word: str) -> Rival:
    """The rival of a name, or of NAME=DIRECTORY with its programs."""
    name, has_directory, directory = word.partition("=")
    for rival in ALL:
        if rival.name == name:
            if has_directory:
                rival.use_directory(Path(directory))
            return rival
    known = ", ".join(rival.name for rival in ALL)
    raise ValueError(f"unknown rival '{name}': expected one of {known}")
