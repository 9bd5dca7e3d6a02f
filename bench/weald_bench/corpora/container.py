"""A container root: Debian with compilers, interpreters and their libraries, unpacked by mmdebstrap."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from weald_bench.corpora.base import Corpus
from weald_bench.measure import CommandFailed

SUITE = "bookworm"

#: Packages that make a root of about 2.6 GB, the size in the composefs thread of January 2023.
PACKAGES = (
    "build-essential clang golang-go openjdk-17-jdk-headless nodejs npm rustc cargo git emacs-nox "
    "python3-pandas python3-scipy python3-sklearn texlive-latex-recommended libboost-dev"
)


class Container(Corpus):
    """The root. It stays in the output directory, so that it is made once."""

    def tree(self, kept: Path) -> Path:
        root = kept / self.name
        if root.is_dir():
            return root.resolve()
        if shutil.which("mmdebstrap") is None:
            raise CommandFailed("mmdebstrap is not on PATH: 'scripts/setup.sh views' installs it")
        print(f"== {self.name}: mmdebstrap {SUITE}, kept in {root}", file=sys.stderr)
        kept.mkdir(parents=True, exist_ok=True)
        unfinished = kept / f"{self.name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        # "extract" runs no scripts of packages, which would change nothing that is measured.
        words = ["--variant=extract", f"--include={','.join(PACKAGES.split())}"]
        ended = subprocess.run(
            ["mmdebstrap", *words, SUITE, str(unfinished)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            check=False,
        )
        if ended.returncode != 0:
            raise CommandFailed(f"mmdebstrap: exit status {ended.returncode}")
        unfinished.rename(root)
        return root.resolve()
