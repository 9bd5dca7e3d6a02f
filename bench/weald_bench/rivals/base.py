"""Description of a rival."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from weald_bench import machine


@dataclass
class Packing:
    """The command that packs a tree, its environment, and paths that must exist before."""

    command: list[str]
    env: dict[str, str] | None = None


class Rival:
    """A program that packs trees."""

    #: The word of `--rivals`.
    name = ""
    #: Name in tables.
    label = ""
    #: Commands that it needs.
    tools: tuple[str, ...] = ()
    #: The file system type of the kernel that mounts its images, if any does.
    kind: str | None = None
    #: Whether it packs trees. A file system that is only written to does not.
    packs = True

    def problem(self) -> str | None:
        """Why it cannot be run; None if it can. A rival that can install itself does so here."""
        for tool in self.tools:
            if shutil.which(tool) is None:
                return f"missing: {tool} is not on PATH"
        return None

    def use_directory(self, directory: Path) -> None:
        """Takes the programs in a directory instead of those on PATH."""
        raise ValueError(f"{self.name} is taken from PATH: it has no directory ({directory})")

    def version(self) -> str:
        """Name and version of its tool."""
        raise NotImplementedError

    def packing(self, tree: Path, target: Path, work: Path) -> Packing:
        """Returns the packing of a tree into a target, which may become a directory."""
        raise NotImplementedError


def shell(script: str, *words: str | os.PathLike[str]) -> list[str]:
    """A shell command; the words are $1 and so on. It fails if any command in it fails."""
    return ["bash", "-euo", "pipefail", "-c", script, "bash", *map(os.fspath, words)]


def package_version(package: str, fallback: str) -> str:
    """Name and version of a Debian package."""
    line = machine.first_line("dpkg-query", "-W", "-f", "${Package} ${Version}", package)
    return line if line and line.startswith(package) and " " in line else fallback


def file_len(path: Path) -> int:
    """Bytes of a file, or of all files of a directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(
        (Path(directory) / name).lstat().st_size
        for directory, _, names in os.walk(path)
        for name in names
    )
