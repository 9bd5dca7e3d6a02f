"""Weald itself: any binary of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from weald_bench.measure import output


class Weald:
    """A Weald binary."""

    def __init__(self, binary: Path, name: str = "weald", label: str = "Weald") -> None:
        self.binary = binary
        self.name = name
        self.label = label

    def command(self, *words: str | os.PathLike[str]) -> list[str]:
        """A command of it."""
        return [str(self.binary), *map(os.fspath, words)]

    def build(self, *words: str | os.PathLike[str]) -> list[str]:
        """A build without a progress bar."""
        return self.command("build", "--progress", "none", *words)

    def info(self, image: Path, *words: str) -> dict[str, Any]:
        """Output of `weald info --json` for an image."""
        return json.loads(output(self.command("info", "--json", *words, image)))

    def mounts(self, type: str) -> list[dict[str, Any]]:
        """The lines of `weald mounts --json` of a type."""
        lines = output(self.command("mounts", "--json")).splitlines()
        return [line for line in map(json.loads, lines) if line.get("type") == type]
