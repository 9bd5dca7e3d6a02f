"""Measurements that several suites share."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from weald_bench.bench import Bench, say
from weald_bench.corpora import by_word
from weald_bench.corpora.base import human
from weald_bench.measure import CommandFailed, warm
from weald_bench.mounts import Samples, Source
from weald_bench.result import SAME_ROW_OF_AGAINST, Column, Row, Table
from weald_bench.rivals.base import Packing, file_len
from weald_bench.runner import Step

LEVEL_DEFAULT = 7

#: The row of the default level.
DEFAULT = f"weald-{LEVEL_DEFAULT}"


@dataclass
class Builder:
    """A row of a table of sizes: how it packs the tree into a target."""

    id: str
    label: str
    packing: Callable[[Path], Packing]
    problem: str | None = None


def builders(bench: Bench, tree: Path, levels: list[int]) -> list[Builder]:
    """Weald at each level, the one that it is compared with likewise, then the rivals."""
    rows = []
    for level in levels:
        for weald in bench.wealds():
            words = ("--level", str(level), tree)
            rows.append(
                Builder(
                    f"{weald.name}-{level}",
                    f"{weald.label} level {level}",
                    lambda target, weald=weald, words=words: Packing(weald.build(*words, target)),
                )
            )
    for rival in bench.rivals:
        problem = bench.problem_of(rival.name)
        rows.append(
            Builder(
                rival.name,
                rival.label,
                lambda target, rival=rival: rival.packing(tree, target, bench.work / "scratch"),
                problem,
            )
        )
    return rows


def remove(path: Path) -> None:
    """Removes a file or a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def ratio_columns(key: str, baselines: list[tuple[str, str]], digits: int = 2) -> list[Column]:
    """A column of ratios to each baseline."""
    return [Column(f"× {title}", key, digits, to=row) for row, title in baselines]


def against_baseline(bench: Bench) -> list[tuple[str, str]]:
    """The same row of the other Weald as a baseline, if there is one."""
    return [(SAME_ROW_OF_AGAINST, "--against")] if bench.against else []


def sizes(
    bench: Bench,
    name: str,
    tree: Path,
    baselines: list[tuple[str, str]],
    rounds: int,
    limit_s: float = 1e9,
) -> Table:
    """Builds the tree by turns with Weald and all rivals. Images stay as WORK/NAME.ROW."""
    rows = builders(bench, tree, bench.options.levels)
    baselines = baselines + against_baseline(bench)
    table = Table(
        f"{name}-sizes",
        f"{name}: size and cost of building, {human(content_len(tree))} in files",
        [
            Column("builder", ""),
            Column("MB", "mb", 1),
            *ratio_columns("mb", baselines, 3),
            Column("CPU s", "cpu_s"),
            *ratio_columns("cpu_s", baselines),
            Column("wall s", "wall_s"),
            Column("memory MiB", "peak_mib", 0),
        ],
        plot={"kind": "bars", "key": "mb", "unit": "size of the image, MB"},
    )
    say(f"== {name}: building")
    warm(tree)
    samples = {row.id: Samples() for row in rows}

    def pack(row: Builder) -> None:
        target, scratch = bench.work / f"{name}.{row.id}", bench.work / "scratch"
        remove(target)
        remove(scratch)
        scratch.mkdir()
        packing = row.packing(target)
        used = bench.measure(packing.command, env=packing.env)
        samples[row.id].add(
            mb=file_len(target) / 1e6,
            cpu_s=used.cpu_s,
            wall_s=used.wall_s,
            peak_mib=used.peak_mib,
        )
        remove(scratch)

    steps = [Step(row.id, partial(pack, row)) for row in rows if not row.problem]
    bench.by_turns(steps, rounds, limit_s)
    problems = {step.id: step.problem for step in steps}
    for row in rows:
        problem = row.problem or problems.get(row.id)
        table.rows.append(Row(row.id, row.label, dict(samples[row.id].cells), problem))
    bench.show(table)
    return table


def fill(
    table: Table,
    sources: Sequence[Source],
    samples: Mapping[str, Samples],
    steps: Sequence[Step],
    more: Callable[[Source], dict[str, Any]] = lambda _: {},
) -> None:
    """A row for each source: its samples, or why it has none; `more` gives further cells."""
    problems = {step.id: step.problem for step in steps}
    for source in sources:
        problem = source.problem or problems.get(source.id)
        cells = {} if problem else {**more(source), **samples[source.id].cells}
        table.rows.append(Row(source.id, source.label, cells, problem))


def steps_of(sources: Sequence[Source], action: Callable[[Source], None]) -> list[Step]:
    """A step for each source that can be measured."""
    return [Step(one.id, partial(action, one)) for one in sources if not one.problem]


def image_of(bench: Bench, name: str, tree: Path) -> Path:
    """The image at the default level, built if the part `sizes` has not."""
    image = bench.work / f"{name}.{DEFAULT}"
    if not image.exists():
        bench.quiet(bench.weald.build(tree, image))
    return image


def each_corpus(bench: Bench, action: Callable[[str, Path], None]) -> None:
    """Calls an action with the name and the directory of every corpus. If a corpus fails, the
    result says so and the next corpus is measured."""
    for word in bench.options.corpora:
        corpus = by_word(word)
        try:
            tree = corpus.tree(bench.options.out)
            bench.called(tree, f"{corpus.name}/")
            action(corpus.name, tree)
        except CommandFailed as error:
            bench.part_failed(corpus.name, error)
        for path in bench.work.glob(f"{corpus.name}.*"):
            remove(path)


def run_part(bench: Bench, part: str, action: Callable[[], None]) -> None:
    """Runs a part if it is wanted; one that fails is noted and the next one is run."""
    if not bench.has(part):
        return
    try:
        action()
    except CommandFailed as error:
        bench.part_failed(part, error)


def content_len(tree: Path) -> int:
    """Total length of the contents of its files; hard links count once."""
    seen: dict[tuple[int, int], int] = {}
    for directory, _, names in os.walk(tree):
        for name in names:
            found = os.lstat(os.path.join(directory, name))
            if (found.st_mode & 0o170000) == 0o100000:
                seen[(found.st_dev, found.st_ino)] = found.st_size
    return sum(seen.values())


@contextmanager
def in_memory() -> Iterator[Path]:
    """A directory in memory for what is written, so that no read of the disk counts."""
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    place = Path(tempfile.mkdtemp(prefix="weald-bench-", dir=shared))
    try:
        yield place
    finally:
        shutil.rmtree(place)


def timed(action: Callable[[], object]) -> float:
    """Seconds that an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def make_repository(bench: Bench, source: Path, repository: Path) -> None:
    """A bare repository with the tree as its only commit."""
    git = ["git", "-c", "core.compression=1", "-c", "user.name=b", "-c", "user.email=b@b"]
    git += ["--git-dir", str(repository)]
    bench.quiet(["git", "init", "-q", "--bare", "-b", "main", repository])
    # Directories of the tree may be repositories or have rules of their own.
    work = [*git, "--work-tree", str(source)]
    bench.quiet([*work, "-c", "core.bare=false", "add", "--force", "--all"], cwd=source)
    bench.quiet([*work, "-c", "core.bare=false", "commit", "-q", "-m", "tree"], cwd=source)
    bench.quiet([*git, "repack", "-q", "-a", "-d", "--window=0"])
