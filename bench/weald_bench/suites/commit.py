"""The part `commit` of `make bench-volume`: work in a writable layer over an image, and the next
image of it, beside ext4, a volume and podman."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.corpora import by_word
from weald_bench.corpora.base import human
from weald_bench.measure import output
from weald_bench.mounts import Samples, unmount
from weald_bench.result import Column, Row, Table
from weald_bench.runner import Step
from weald_bench.suites.beds import Bed, Kind, bed
from weald_bench.suites.common import (
    content_len,
    in_memory,
    make_repository,
    ratio_columns,
    timed,
)

ROUNDS = 3
#: Levels of the commits of a layer: the fastest that compresses, and the default.
LEVELS = {"commit_1": "1", "commit_7": "7"}


class Place:
    """A directory to work in, and what makes a new version of it."""

    def __init__(self, top: Path, commits: dict[str, Callable[[], object]]) -> None:
        self.top, self.commits = top, commits


@contextmanager
def on_ext4(_bench: Bench, ready: Bed, _base: Path) -> Iterator[Place]:
    """A directory of the disk."""
    yield Place(ready.point, {})


@contextmanager
def in_volume(bench: Bench, ready: Bed, _base: Path) -> Iterator[Place]:
    """A volume; a version is a sealed image."""
    weald = str(bench.weald.binary)
    seal = [weald, "volume", "seal", "-q", f"{ready.store}:v", "--name", "v2"]
    yield Place(ready.point, {"commit_7": partial(bench.quiet, seal)})


@contextmanager
def in_layer(bench: Bench, ready: Bed, base: Path) -> Iterator[Place]:
    """A mount by the kernel with a writable layer over an image of a store."""
    weald, store, point = str(bench.weald.binary), ready.disk / "store", ready.disk / "mnt"
    point.mkdir()
    bench.quiet([weald, "store", "create", store])
    bench.quiet([weald, "store", "add", "-q", "-l", "1", store, base, "--name", "v1"])
    layer = ["--upper", ready.disk / "up", "--view-cache", ready.disk / "views"]
    bench.quiet([weald, "mount", "--kernel", *layer, f"{store}:v1", point])
    try:
        commits = {
            key: partial(bench.quiet, [weald, "commit", "-q", "-l", level, point, f"{store}:{key}"])
            for key, level in LEVELS.items()
        }
        yield Place(point, commits)
    finally:
        unmount(point)


@contextmanager
def in_container(bench: Bench, ready: Bed, base: Path) -> Iterator[Place]:
    """A container of podman over an image with the base; a version is a committed image."""
    podman = ["podman", "--root", str(ready.disk / "podman"), "--runroot", str(ready.disk / "run")]
    podman += ["--storage-driver", "overlay"]
    tar = ready.disk / "base.tar"
    bench.quiet(["tar", "-C", base, "-cf", tar, "."])
    bench.quiet([*podman, "import", "--quiet", tar, "base:1"])
    tar.unlink()
    container = output([*podman, "create", "base:1", "true"]).strip()
    try:
        top = Path(output([*podman, "mount", container]).strip())
        commit = [*podman, "commit", "--quiet", container, "base:2"]
        yield Place(top, {"commit_1": partial(bench.quiet, commit)})
    finally:
        bench.quiet([*podman, "unmount", container])
        # The mount of the graph driver itself.
        overlay = ready.disk / "podman" / "overlay"
        if os.path.ismount(overlay):
            unmount(overlay)


ROWS = {
    "ext4": ("ext4", on_ext4),
    "layer": ("Weald, layer over an image", in_layer),
    "weald": ("Weald, volume", in_volume),
    "podman": ("podman, container", in_container),
}


def commit(bench: Bench) -> None:
    """Untar and git clone, and the next version of the result."""
    say("== commit")
    source = Path("/usr/include/linux")
    if not bench.is_tiny:
        source = by_word(bench.options.corpora[0]).tree(bench.options.out)
    bench.called(source, "tree/")
    length = content_len(source)
    samples = {row: Samples() for row in ROWS}
    with in_memory() as memory:
        tar, repository = memory / "tree.tar", memory / "repository"
        bench.quiet(["tar", "-C", source, "-cf", tar, "."])
        make_repository(bench, source, repository)

        def step(row: str) -> None:
            label, work = ROWS[row]
            with bed(bench, Kind(row, label)) as ready, work(bench, ready, source) as place:
                first, clone = place.top / "bench-untar", place.top / "bench-clone"
                first.mkdir()
                untar = ["tar", "-C", first, "-xf", tar]
                cells = {"untar": timed(lambda: bench.quiet(untar))}
                words = ["git", "clone", "-q", repository, clone]
                cells["clone"] = timed(lambda: bench.quiet(words))
                ready.make_durable()
                written = sum(apparent_len(new) for new in (first, clone))
                for key, action in place.commits.items():
                    cells[key] = timed(action)
                    cells[f"{key}_rate"] = written / cells[key] / 1e6
                samples[row].add(**cells)

        steps = [Step(row, partial(step, row)) for row in ROWS]
        bench.by_turns(steps, ROUNDS)
    columns = [Column("", "")]
    for key, title in (("untar", "untar, s"), ("clone", "git clone, s")):
        columns += [Column(title, key, 2), *ratio_columns(key, [("ext4", "ext4")])]
    for key, title in (("commit_1", "commit, fast"), ("commit_7", "commit, level 7")):
        columns.append(Column(f"{title}, s", key, 2))
        columns.append(Column("MB/s of what was written", f"{key}_rate", 0))
    title = f"A layer over an image: a tree of {human(length)} in files, untarred and cloned"
    table = Table("volume-commit", title, columns)
    problems = {step.id: step.problem for step in steps}
    for row, (label, _) in ROWS.items():
        cells = {} if problems[row] else dict(samples[row].cells)
        table.rows.append(Row(row, label, cells, problems[row]))
    bench.show(table)
    for key, what in (("untar", "untar"), ("clone", "git clone")):
        found = stats.median(table.ratios("layer", key, "ext4"))
        bench.at_most(f"{what} in a layer against ext4", found, 1.1)
    rate = stats.median(table.samples("layer", "commit_1_rate"))
    bench.at_least("commit of a layer, MB/s", rate, 200, 0)


def apparent_len(tree: Path) -> int:
    """Bytes in the files of a tree."""
    return int(output(["du", "-s", "--apparent-size", "--block-size=1", tree]).split()[0])
