"""The steps: the life of a data set on a writable stack, and what images are for."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from weald_lab import makerepo
from weald_lab.images import ImageStack
from weald_lab.record import LabError

SHAPES = {"small": (20, 100), "big": (100, 1000)}


@dataclass(frozen=True)
class Shape:
    """Directories and files of the repository."""

    name: str
    dirs: int
    files: int

    @property
    def total(self) -> int:
        """Files in the repository."""
        return self.dirs * self.files


def parse_shape(text: str) -> Shape:
    """Reads `small`, `big` or `DIRSxFILES`."""
    if text in SHAPES:
        return Shape(text, *SHAPES[text])
    dirs, _, files = text.partition("x")
    if dirs.isdecimal() and files.isdecimal() and int(dirs) > 0 and int(files) > 0:
        return Shape(text, int(dirs), int(files))
    raise LabError(f"shape {text!r}: expected small, big or DIRSxFILES, such as 4x25")


@dataclass(frozen=True)
class Step:
    """One command of a round. `repeat`: the same command can run again at once, warm.

    `counted` is the tree whose entries are counted afterwards, outside of the measurement.
    """

    name: str
    words: tuple[str, ...]
    directory: Path
    repeat: bool = False
    family: str = "life"
    counted: Path | None = None


def _reading(path: str) -> list[tuple[str, str]]:
    tree = shlex.quote(path)
    return [
        ("walk", f"find {tree} -printf '%s %m %T@\\n' >/dev/null"),
        ("read all", f"find {tree} -type f -exec cat {{}} + >/dev/null"),
        # grep ends with 1 if it finds nothing, and then it has read everything.
        ("grep", f"grep -r 'no such line' {tree}; test $? = 1"),
    ]


def life_steps(mount_point: Path, shape: Shape, round_index: int, seed: int,
               annex_test: bool) -> list[Step]:
    """Returns the steps of the benchmark of 2015 in its order."""
    test = f"test{round_index}"
    repo, clone = mount_point / test, mount_point / f"{test}.clone"

    def top(name: str, *words: str, repeat: bool = False, counted: Path | None = None) -> Step:
        return Step(name, words, mount_point, repeat, counted=counted)

    du = ("du", "-scm", test)
    steps = [
        top("make_testX_repo", sys.executable, "-I", "-S", makerepo.__file__, test,
            str(shape.dirs), str(shape.files), f"{seed}:{round_index}", counted=repo),
        top("du -scm testX", *du, repeat=True),
    ]
    steps += [Step(name, ("sh", "-c", text), mount_point, True, "read", repo)
              for name, text in _reading(test)]
    steps += [
        top("tar -cf testX.tar testX", "tar", "-cf", f"{test}.tar", test, repeat=True),
        top("pigz testX.tar", "pigz", f"{test}.tar"),
        top("git clone testX testX.clone", "git", "clone", "--quiet", test, f"{test}.clone",
            counted=clone),
        Step("git annex get .", ("git", "annex", "get", "--quiet", "."), clone, counted=clone),
        Step("git annex drop .", ("git", "annex", "drop", "--quiet", "."), clone, counted=clone),
        top("du -scm testX.clone", "du", "-scm", f"{test}.clone", repeat=True),
        Step("git annex unlock .", ("git", "annex", "unlock", "--quiet", "."), repo,
             counted=repo),
        top("du -scm testX (unlocked)", *du, repeat=True),
        Step("git annex lock .", ("git", "annex", "lock", "--quiet", "."), repo, counted=repo),
        top("chmod +w -R testX/.git/annex/objects", "chmod", "+w", "-R",
            f"{test}/.git/annex/objects", repeat=True),
        top("rm -rf testX", "rm", "-rf", test),
        # Objects of annex and their directories are read-only, which stops rm unless it is root's.
        top("rm -rf testX.clone", "sh", "-c",
            f'[ "$(id -u)" = 0 ] || chmod -R u+w {test}.clone; rm -rf {test}.clone'),
        top("tar -xzf testX.tar.gz", "tar", "-xzf", f"{test}.tar.gz", counted=repo),
    ]
    if annex_test:
        steps.append(top("git annex test", "sh", "-ec",
                         "mkdir annex-test && cd annex-test && git annex test && "
                         "cd .. && chmod -R u+w annex-test && rm -rf annex-test"))
    return steps


def left_by_round(mount_point: Path, round_index: int) -> list[Path]:
    """Returns the trees that a round leaves and that go before the next; its archive stays."""
    names = (f"test{round_index}", f"test{round_index}.clone", "annex-test")
    return [mount_point / name for name in names]


def image_steps(stack: ImageStack, source: Path) -> list[Step]:
    """Returns what images are for: pack, mount, walk, read, extract, check.

    Formats that cannot be mounted here have the steps without a mount.
    """
    here, target = stack.home, stack.lower / "extracted"

    def step(name: str, words: tuple[str, ...], repeat: bool = False,
             counted: Path | None = None) -> Step:
        return Step(name, words, here, repeat, "read", counted)

    steps = [step("pack", stack.pack_words(source))]
    if stack.mounts:
        steps.append(step("mount", stack.mount_words()))
        steps += [step(name, ("sh", "-c", text), True, stack.mount_point)
                  for name, text in _reading(str(stack.mount_point))]
    steps.append(step("extract", stack.extract_words(target), counted=target))
    check = stack.check_words()
    if check:
        steps.append(step("check", check))
    return steps
