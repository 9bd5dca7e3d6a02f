"""Trees of the machine itself."""

from __future__ import annotations

from pathlib import Path

from weald_bench import machine
from weald_bench.corpora.base import Corpus, Given
from weald_bench.measure import output


class System(Given):
    """A directory of the system."""


class Toolchain(Corpus):
    """The Rust toolchain that builds Weald: an ordinary tree with few repeats."""

    def __init__(self) -> None:
        super().__init__("toolchain")

    def tree(self, kept: Path) -> Path:
        # The toolchain of this repository, whatever directory the harness runs in.
        script = 'cd "$1" && rustc --print sysroot'
        return Path(output(["sh", "-c", script, "sh", machine.ROOT]).strip())
