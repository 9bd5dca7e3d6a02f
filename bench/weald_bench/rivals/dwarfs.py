"""DwarFS: the C++ tools where they are on PATH, in the directory of `--rival dwarfs=DIR`, or where
scripts/build-dwarfs.sh built them; else the Rust crates.

Debian 12 has no package of DwarFS, and the registries of Python, npm and Rust have none of its
C++ tools; where their sources cannot be fetched, there are none. crates.io has `dwarfs-enc`, which writes its format, and `dwarfs`, which reads it: the
program in bench/dwarfs-rs packs and reads with them. It does not order files by similarity, and it
cannot mount. Tables say which of the two was measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from weald_bench import machine
from weald_bench.rivals.base import Packing, Rival

PROJECT = machine.ROOT / "bench" / "dwarfs-rs"
PROGRAM = "weald-bench-dwarfs"
#: Where scripts/build-dwarfs.sh puts what it builds.
BUILT = machine.ROOT / "bench-out" / "dwarfs"

#: Replaces mounts of DwarFS in tables if its C++ tools are not installed.
NO_MOUNT = "missing: dwarfs (the C++ tool that mounts) is not on PATH; the Rust crates do not mount"


class Dwarfs(Rival):
    """DwarFS, by whatever can be had of it."""

    name = "dwarfs"
    label = "DwarFS"

    def __init__(self) -> None:
        self.crate: Path | None = None
        self.why: str | None = None
        self.directory: Path | None = None

    def use_directory(self, directory: Path) -> None:
        self.directory = directory.resolve()

    def tool(self, name: str) -> str | None:
        """The path of one of the C++ tools; None if it is not there."""
        found = shutil.which(name) if self.directory is None else None
        path = (self.directory or BUILT) / name
        return found or (str(path) if path.is_file() and os.access(path, os.X_OK) else None)

    @property
    def is_original(self) -> bool:
        """Whether the C++ tools are there."""
        return self.tool("mkdwarfs") is not None

    @property
    def packer(self) -> str:
        """The word that runs mkdwarfs."""
        is_on_path = self.directory is None and shutil.which("mkdwarfs") is not None
        return "mkdwarfs" if is_on_path else self.tool("mkdwarfs") or "mkdwarfs"

    def problem(self) -> str | None:
        if self.directory is not None and not self.is_original:
            return f"missing: {self.directory} has no mkdwarfs"
        if self.is_original:
            self.label = "DwarFS (mkdwarfs, defaults)"
            return None
        self.label = "DwarFS by crate dwarfs-enc (no mkdwarfs)"
        if self.crate is None and self.why is None:
            self.crate, self.why = build_crate()
        return self.why

    def version(self) -> str:
        if self.is_original:
            # It has no option for its version alone.
            script = '"$0" --help 2>&1 | grep -m 1 "^mkdwarfs ("'
            return machine.first_line("sh", "-c", script, self.packer) or "mkdwarfs"
        return f"DwarFS: {machine.first_line(str(self.crate), 'version')}, no mkdwarfs"

    def packing(self, tree: Path, target: Path, work: Path) -> Packing:
        if self.is_original:
            words = ["-i", str(tree), "-o", str(target), "--no-progress", "--log-level=error"]
            return Packing([self.packer, *words])
        return Packing([str(self.crate), "pack", str(tree), str(target)])

    def mount_commands(self, image: Path) -> tuple[list[str] | None, list[str] | None]:
        """The commands that mount in the foreground and in the background, the mount point being
        appended; None where nothing can."""
        tool = self.tool("dwarfs")
        if tool is None:
            return None, None
        # It takes options after the mount point.
        served = ["sh", "-c", 'exec "$0" "$1" "$2" -f', tool, str(image)]
        return served, [tool, str(image)]

    def read_command(self, image: Path) -> list[str] | None:
        """A command that decodes all contents and writes them nowhere."""
        if self.crate is not None:
            return ["sh", "-c", 'exec "$0" read "$1" >/dev/null', str(self.crate), str(image)]
        if (tool := self.tool("dwarfsextract")) is not None:
            script = 'exec "$0" -i "$1" -f ustar >/dev/null'
            return ["sh", "-c", script, tool, str(image)]
        return None


def build_crate() -> tuple[Path | None, str | None]:
    """Builds the program on the crates: its path, or why there is none."""
    if shutil.which("cargo") is None:
        return None, "missing: neither mkdwarfs nor cargo is on PATH"
    target = machine.ROOT / "bench-out" / "dwarfs-rs"
    ended = subprocess.run(
        ["cargo", "build", "--release", "--locked", "--quiet"],
        cwd=PROJECT,
        env={**os.environ, "CARGO_TARGET_DIR": str(target)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        return None, f"missing: mkdwarfs is not on PATH, and bench/dwarfs-rs does not build: {last}"
    return target / "release" / PROGRAM, None
