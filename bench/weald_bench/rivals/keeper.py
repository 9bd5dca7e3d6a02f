"""Programs that keep many versions of a tree in one store: the rivals of `weald store`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from weald_bench.measure import CommandFailed
from weald_bench.rivals.base import Packing, Rival, package_version, shell
from weald_bench.rivals.crates import CrateProgram

Script = list[list[str]]


class Keeper(Rival):
    """A program that puts trees into a store and removes them again. Each step is a list of
    commands; `home` is a directory of its own, with the store and whatever else it needs."""

    #: Why it cannot remove versions; None if it can.
    keeps_all: str | None = None

    def env(self, home: Path) -> dict[str, str]:
        """The environment of all its commands."""
        return {}

    def create(self, home: Path) -> Script:
        """Makes an empty store."""
        return [["mkdir", "-p", str(home / "store")]]

    def add(self, home: Path, name: str, tree: Path) -> Script:
        """Puts a tree into the store."""
        raise NotImplementedError

    def remove(self, home: Path, names: Sequence[str], kept: str) -> Script:
        """Removes versions, so that one stays, and returns their space."""
        raise NotImplementedError

    def packing(self, tree: Path, target: Path, work: Path) -> Packing:
        home = Path(target)
        home.mkdir(exist_ok=True)
        steps = self.create(home) + self.add(home, "tree", tree)
        return Packing(shell("; ".join(map(shlex.join, steps))), self.env(home))


class Ostree(Keeper):
    """OSTree: whole files, each compressed by zlib."""

    name = "ostree"
    label = "ostree, mode archive"
    tools = ("ostree",)

    def version(self) -> str:
        return package_version("ostree", "ostree")

    def create(self, home: Path) -> Script:
        return [["ostree", "init", f"--repo={home / 'store'}", "--mode=archive"]]

    def add(self, home: Path, name: str, tree: Path) -> Script:
        words = [f"--repo={home / 'store'}", "--branch", name, f"--tree=dir={tree}"]
        return [["ostree", "commit", *words]]

    def remove(self, home: Path, names: Sequence[str], kept: str) -> Script:
        repo = f"--repo={home / 'store'}"
        return [
            ["ostree", "refs", repo, "--delete", *names],
            ["ostree", "prune", repo, "--refs-only"],
        ]


class Casync(Keeper):
    """casync: chunks of a serialized tree, by content, each compressed alone."""

    name = "casync"
    label = "casync, zstd"
    tools = ("casync",)

    def version(self) -> str:
        return package_version("casync", "casync")

    def add(self, home: Path, name: str, tree: Path) -> Script:
        index = str(home / "store" / f"{name}.caidx")
        words = [f"--store={home / 'store' / 'chunks.castr'}", "--compression=zstd"]
        return [["casync", "make", *words, index, str(tree)]]

    def remove(self, home: Path, names: Sequence[str], kept: str) -> Script:
        store = home / "store"
        return [
            ["rm", *(str(store / f"{name}.caidx") for name in names)],
            ["casync", "gc", f"--store={store / 'chunks.castr'}", str(store / f"{kept}.caidx")],
        ]


class Desync(Keeper):
    """desync: the format of casync, written by several threads."""

    name = "desync"
    label = "desync"
    tools = ("desync",)

    def version(self) -> str:
        return "desync"

    def create(self, home: Path) -> Script:
        return [["mkdir", "-p", str(home / "store" / "chunks")]]

    def add(self, home: Path, name: str, tree: Path) -> Script:
        store = home / "store"
        index = str(store / f"{name}.caidx")
        return [["desync", "tar", "-i", "-s", str(store / "chunks"), index, str(tree)]]

    def remove(self, home: Path, names: Sequence[str], kept: str) -> Script:
        store = home / "store"
        return [
            ["rm", *(str(store / f"{name}.caidx") for name in names)],
            ["desync", "prune", "-y", "-s", str(store / "chunks"), str(store / f"{kept}.caidx")],
        ]


class CrateKeeper(Keeper):
    """A program of a crate, built by the harness where PATH has none."""

    program: CrateProgram

    def problem(self) -> str | None:
        return self.program.find()[1]

    def version(self) -> str:
        return self.program.shown()


class Composefs(CrateKeeper):
    """composefs: whole files by digest, not compressed, under an EROFS image of each tree. It has
    no command that collects: a script removes the files that the image does not name. The crate
    composefs-ctl is its authors' second implementation, with the commands of the first one."""

    name = "composefs"
    label = "composefs, not compressed"
    program = CrateProgram("cfsctl", "composefs-ctl", "0.9.4")

    def add(self, home: Path, name: str, tree: Path) -> Script:
        store = home / "store"
        words = [f"--digest-store={store / 'objects'}", str(tree), str(store / f"{name}.cfs")]
        return [[str(self.program.path), "mkcomposefs", *words]]

    def remove(self, home: Path, names: Sequence[str], kept: str) -> Script:
        store = home / "store"
        script = (
            'cd "$1/objects"; LC_ALL=C comm -23 <(find . -type f -printf "%P\\n" | LC_ALL=C sort) '
            '<("$3" composefs-info objects "$1/$2.cfs" | LC_ALL=C sort) | xargs -r rm --'
        )
        return [
            ["rm", *(str(store / f"{name}.cfs") for name in names)],
            shell(script, store, kept, self.program.path),
        ]


class Puzzlefs(CrateKeeper):
    """puzzlefs: chunks by content over the files of a tree, in an OCI layout. It has no command
    that removes an image."""

    name = "puzzlefs"
    label = "puzzlefs, zstd"
    # The crate uses features that the stable compiler has, but accepts only when it is told to.
    program = CrateProgram("puzzlefs", "puzzlefs", "0.2.0", (("RUSTC_BOOTSTRAP", "1"),))
    keeps_all = "puzzlefs has no command that removes an image"

    def add(self, home: Path, name: str, tree: Path) -> Script:
        target = f"{home / 'store'}:{name}"
        return [[str(self.program.path), "build", "--compression", str(tree), target]]

    def remove(self, home: Path, names: Sequence[str], kept: str) -> Script:
        raise CommandFailed(self.keeps_all or self.name)


class Nydus(CrateKeeper):
    """Nydus: chunks of a fixed length, each compressed alone. Each version names the one before as
    its dictionary of chunks. Blobs that no version names are removed by a script."""

    name = "nydus"
    label = "nydus, zstd"
    program = CrateProgram("nydus-image", "nydus-rs", "2.2.0")

    def create(self, home: Path) -> Script:
        return [["mkdir", "-p", str(home / "store" / "blobs")]]

    def add(self, home: Path, name: str, tree: Path) -> Script:
        script = (
            "dictionary=(); "
            'if [ -e "$1/newest" ]; then dictionary=(--chunk-dict "bootstrap=$1/newest"); fi; '
            '"$2" create --log-level error --fs-version 6 --compressor zstd '
            '--blob-dir "$1/blobs" --bootstrap "$1/$4.boot" "${dictionary[@]}" "$3"; '
            'ln -f "$1/$4.boot" "$1/newest"'
        )
        return [shell(script, home / "store", self.program.path, tree, name)]

    def remove(self, home: Path, names: Sequence[str], kept: str) -> Script:
        store = home / "store"
        script = (
            '"$2" check --log-level error --bootstrap "$1/$3.boot" --output-json "$1/kept.json"; '
            'cd "$1/blobs"; for blob in *; do '
            'grep -q "$blob" "$1/kept.json" || rm -- "$blob"; done; rm "$1/kept.json"'
        )
        return [
            ["rm", *(str(store / f"{name}.boot") for name in names)],
            shell(script, store, self.program.path, kept),
        ]


def data_len(path: Path) -> int:
    """Bytes of all files below a directory: of several names of a file one, and no holes."""
    seen: dict[tuple[int, int], int] = {}
    for directory, _, names in os.walk(path):
        for name in names:
            place = os.path.join(directory, name)
            found = os.lstat(place)
            length = found.st_size
            # Only then can it have holes.
            if (found.st_mode & 0o170000) == 0o100000 and found.st_blocks * 512 < length:
                length = length_without_holes(place, length)
            seen[(found.st_dev, found.st_ino)] = length
    return sum(seen.values())


def length_without_holes(place: str, length: int) -> int:
    """Bytes of the parts of a file that hold data."""
    total, offset = 0, 0
    file = os.open(place, os.O_RDONLY)
    try:
        while offset < length:
            try:
                start = os.lseek(file, offset, os.SEEK_DATA)
            except OSError:
                break  # The rest is a hole.
            offset = os.lseek(file, start, os.SEEK_HOLE)
            total += offset - start
    finally:
        os.close(file)
    return total
