"""Rivals that Debian does not package and whose programs crates.io has."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from weald_bench import machine

#: Where `cargo install` puts programs: the output directory of the harness in the repository.
TOOLS = machine.ROOT / "bench-out" / "tools"

#: Variable of the environment that forbids the builds of crates, which take minutes each.
NO_BUILD = "WEALD_BENCH_NO_BUILD"


@dataclass
class CrateProgram:
    """A program of a crate, of one version. A program of the same name on PATH is preferred."""

    program: str
    crate: str
    version: str
    #: Variables of the build.
    env: tuple[tuple[str, str], ...] = ()
    #: Why the crate could not be built.
    _failure: str | None = field(default=None, repr=False)

    def find(self) -> tuple[Path | None, str | None]:
        """Returns the path of the program, or None and the reason. The first call builds the crate
        if it is not there yet, which takes minutes; a failure is not tried again."""
        on_path = shutil.which(self.program)
        if on_path:
            return Path(on_path), None
        path = TOOLS / "bin" / self.program
        if path.is_file():
            return path, None
        self._failure = self._failure or self._build()
        return (None, self._failure) if self._failure else (path, None)

    @property
    def path(self) -> Path:
        """The path of the program, after `find` has found it."""
        return self.find()[0] or Path(self.program)

    def _build(self) -> str | None:
        """Builds the crate. Returns why it could not; None if the program is there."""
        if os.environ.get(NO_BUILD):
            return f"missing: {self.program} is not on PATH, and {NO_BUILD} is set"
        if shutil.which("cargo") is None:
            return f"missing: neither {self.program} nor cargo is on PATH"
        words = ["--locked", "--quiet", "--version", self.version, "--root", str(TOOLS)]
        ended = subprocess.run(
            ["cargo", "install", *words, self.crate],
            env={**os.environ, **dict(self.env), "CARGO_TARGET_DIR": str(TOOLS / "target")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        # Object files are larger than the program by far, and are not used again.
        shutil.rmtree(TOOLS / "target", ignore_errors=True)
        if ended.returncode == 0 and (TOOLS / "bin" / self.program).is_file():
            return None
        errors = [line for line in ended.stderr.splitlines() if line.startswith("error")]
        last = (errors or ended.stderr.strip().splitlines() or ["no message"])[0]
        return f"missing: {self.program} is not on PATH, and its crate does not build: {last}"

    def shown(self) -> str:
        """Name and version, for a result."""
        path, _ = self.find()
        if path is None:
            return f"{self.crate} {self.version}"
        is_crate = path.parent.parent == TOOLS
        line = machine.first_line(str(path), "--version") or self.program
        return f"crate {self.crate} {self.version}" if is_crate else line
