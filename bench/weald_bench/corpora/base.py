"""Description of a corpus."""

from __future__ import annotations

from pathlib import Path

from weald_bench.measure import CommandFailed


class Corpus:
    """A tree with a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def tree(self, kept: Path) -> Path:
        """The directory; what has to be fetched for it is kept below `kept`."""
        raise NotImplementedError


class Given(Corpus):
    """A directory that is there already."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name)
        self.directory = directory

    def tree(self, kept: Path) -> Path:
        if not self.directory.is_dir():
            raise CommandFailed(f"corpus {self.name}: {self.directory} is not a directory")
        return self.directory.resolve()


def human(length: int) -> str:
    """Bytes as 12.3 MB."""
    value, unit = float(length), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}"
