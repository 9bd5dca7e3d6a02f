"""The suites, one module each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from weald_bench.bench import Bench
from weald_bench.suites import build, forest, main, mount, replica, store, views, volume


@dataclass(frozen=True)
class Suite:
    """A suite: its parts in order, the corpora and rivals of a usual run, whether it
    needs root, and after how many minutes no table begins another round."""

    name: str
    title: str
    parts: tuple[str, ...]
    corpora: tuple[str, ...]
    rivals: tuple[str, ...]
    levels: tuple[int, ...]
    run: Callable[[Bench], None]
    needs_root: bool = True
    minutes: float = math.inf


EVERY_RIVAL = (
    "squashfs-zstd squashfs-xz erofs dwarfs tar-zstd-19 tar-zstd-22 tar-xz zpaq lrzip borg restic"
)

STORE_RIVALS = "restic borg ostree casync desync composefs puzzlefs nydus"

ALL = {
    suite.name: suite
    for suite in (
        Suite(
            "main",
            "Weald beside SquashFS, EROFS and DwarFS",
            main.PARTS,
            ("forest", "include"),
            ("squashfs-zstd", "erofs", "dwarfs"),
            (5, 7),
            main.run,
            minutes=9,
        ),
        Suite(
            "build",
            "Building",
            build.PARTS,
            ("forest", "judge", "toolchain"),
            tuple(EVERY_RIVAL.split()),
            (5, 7, 9),
            build.run,
            needs_root=False,
        ),
        Suite(
            "mount",
            "Mounts",
            mount.PARTS,
            ("forest",),
            ("squashfs-zstd", "erofs", "ext4", "dwarfs"),
            (),
            mount.run,
        ),
        Suite(
            "store",
            "One store for many versions",
            store.PARTS,
            ("versions", "libraries"),
            tuple(STORE_RIVALS.split()),
            (5, 7),
            store.run,
            needs_root=False,
            minutes=8,
        ),
        Suite(
            "views",
            "Views that the kernel mounts",
            views.PARTS,
            ("container",),
            (),
            (),
            views.run,
        ),
        Suite(
            "volume",
            "Volumes",
            volume.PARTS,
            ("versions",),
            ("ext4", "btrfs", "passthrough"),
            (),
            volume.run,
        ),
        Suite("replica", "Replicas", replica.PARTS, (), (), (), replica.run),
        Suite("forest", "Forests", forest.PARTS, (), (), (), forest.run),
        Suite("forest-soak", "Forests of up to 10^9 files", forest.PARTS, (), (), (), forest.run),
    )
}
