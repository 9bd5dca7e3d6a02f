"""Makes a git-annex repository: `python makerepo.py REPO DIRS FILES SEED`.

Per directory: write the files, `git annex add`, commit, as the benchmark of 2015 did. The same
seed gives the same files. It imports little, because its start is part of the measurement.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys

WORDS = ("data", "set", "annex", "clone", "sample", "subject", "session", "scan", "field", "value")
LEN_MIN, LEN_MAX = 512, 16384


def content(dice: random.Random) -> bytes:
    """Returns a file: half of them lines of text, half incompressible, 512 bytes to 16 KiB."""
    length = int(LEN_MIN * (LEN_MAX / LEN_MIN) ** dice.random())
    if dice.random() < 0.5:
        return dice.randbytes(length)
    line = b""
    lines = []
    while length > 0:
        line = f"{' '.join(dice.choices(WORDS, k=6))} {dice.random():.6f}\n".encode()
        lines.append(line)
        length -= len(line)
    return b"".join(lines)


def main(repo: str, dir_count: int, file_count: int, seed: str) -> None:
    """Makes the repository in a directory that does not exist."""
    os.mkdir(repo)

    def run(*words: str) -> None:
        subprocess.run(words, cwd=repo, check=True, stdout=subprocess.DEVNULL)

    run("git", "init", "--quiet")
    run("git", "annex", "init", "--quiet", "lab")
    dice = random.Random(seed)
    for dir_index in range(dir_count):
        folder = f"dir{dir_index}"
        os.mkdir(f"{repo}/{folder}")
        for file_index in range(file_count):
            with open(f"{repo}/{folder}/file{file_index}.dat", "wb") as handle:
                handle.write(content(dice))
        run("git", "annex", "add", "--quiet", folder)
        run("git", "commit", "--quiet", "--message", f"add {folder}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
