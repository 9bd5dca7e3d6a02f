"""The suite of `make bench-volume`: a volume beside ext4, btrfs and a passthrough through FUSE."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.corpora import by_word, made
from weald_bench.corpora.base import human
from weald_bench.measure import drop_caches, output
from weald_bench.mounts import Samples
from weald_bench.result import Column, Row, Table
from weald_bench.runner import Step
from weald_bench.suites.beds import Bed, Kind, bed, fio_words, kinds
from weald_bench.suites.commit import commit
from weald_bench.suites.common import (
    against_baseline,
    content_len,
    in_memory,
    make_repository,
    ratio_columns,
    run_part,
    timed,
)

PARTS = ("stream", "random", "files", "tree", "profiles", "modes", "metadata", "open", "commit")

ROUNDS = 3
CHUNK_LEN = 128 << 10
#: The profiles of iometer that the TIER page of lessfs shows.
PROFILES = {
    "100% read, sequential, 32 KiB": ("--rw=read", "--bs=32k"),
    "60% random, 65% read, 8 KiB": (
        "--rw=randrw",
        "--bs=8k",
        "--rwmixread=65",
        "--percentage_random=60",
    ),
    "50% read, sequential, 32 KiB": ("--rw=rw", "--bs=32k", "--rwmixread=50"),
    "70% read, random, 8 KiB": ("--rw=randrw", "--bs=8k", "--rwmixread=70"),
}
BASELINES = [("passthrough", "passthrough"), ("ext4", "ext4"), ("btrfs", "btrfs")]


def run(bench: Bench) -> None:
    """Runs the suite."""
    run_part(bench, "stream", lambda: stream(bench))
    run_part(bench, "random", lambda: random_writes(bench))
    run_part(bench, "files", lambda: files(bench))
    run_part(bench, "tree", lambda: tree(bench))
    run_part(bench, "profiles", lambda: profiles(bench))
    run_part(bench, "modes", lambda: modes(bench))
    run_part(bench, "metadata", lambda: metadata(bench))
    run_part(bench, "open", lambda: opening(bench))
    run_part(bench, "commit", lambda: commit(bench))


def measured(
    bench: Bench,
    table: Table,
    found: list[Kind],
    action: Callable[[Bed, Samples], None],
    rounds: int = ROUNDS,
) -> Table:
    """Runs an action by turns on new beds of all kinds, and fills the table."""
    samples = {kind.id: Samples() for kind in found}

    def step(kind: Kind) -> None:
        with bed(bench, kind) as ready:
            action(ready, samples[kind.id])
            peak = ready.peak_mib()
            if peak:
                samples[kind.id].add(peak_mib=peak)

    steps = [Step(kind.id, partial(step, kind)) for kind in found if not kind.problem]
    bench.by_turns(steps, rounds)
    problems = {step.id: step.problem for step in steps}
    for kind in found:
        problem = kind.problem or problems.get(kind.id)
        cells = {} if problem else dict(samples[kind.id].cells)
        table.rows.append(Row(kind.id, kind.label, cells, problem))
    bench.show(table)
    return table


def rated(bench: Bench, titles: dict[str, tuple[str, int]], last: str = "ext4") -> list[Column]:
    """A column of each figure, with its ratios to the passthrough and to a file system."""
    columns = [Column("file system", "")]
    baselines = [one for one in BASELINES if one[0] in ("passthrough", last)]
    for key, (title, digits) in titles.items():
        columns.append(Column(title, key, digits))
        columns += ratio_columns(key, baselines + against_baseline(bench))
    columns.append(Column("memory of the server, MiB", "peak_mib", 0))
    return columns


def median(table: Table, key: str, row: str = "weald") -> float | None:
    """The middle sample."""
    return stats.median(table.samples(row, key))


def write_file(source: Path, target: Path) -> None:
    """Writes a file in pieces of 1 MiB and syncs it."""
    output(["dd", f"if={source}", f"of={target}", "bs=1M", "conv=fsync", "status=none"])


def read_file(source: Path) -> None:
    """Reads a file in pieces of 1 MiB."""
    output(["dd", f"if={source}", "of=/dev/null", "bs=1M", "status=none"])


def stream_of(data: Path, bed: Bed, samples: Samples) -> None:
    """The test of lessfs: unique data, the same again, then read."""
    length = data.stat().st_size / 1e6
    start = bed.used()
    unique = timed(lambda: write_file(data, bed.point / "unique"))
    before = bed.used()
    again = timed(lambda: write_file(data, bed.point / "again"))
    more = bed.used() - before
    bed.cold()
    read = timed(lambda: read_file(bed.point / "unique"))
    samples.add(
        unique=length / unique,
        again=length / again,
        read=length / read,
        first=(before - start) / 1e6,
        more=more / 1e6,
    )


STREAM = {
    "unique": ("unique, MB/s", 0),
    "again": ("the same again, MB/s", 0),
    "read": ("read cold, MB/s", 0),
}


def stream(bench: Bench) -> None:
    """Sequential writes of incompressible data and of compressible data."""
    say("== sequential")
    length = bench.sized(1 << 30, 16 << 20)
    with in_memory() as place:
        data = place / "data"
        made.random_bytes(bench, data, length, "31")
        columns = rated(bench, STREAM) + [
            Column("the first takes, MB", "first", 0),
            Column("the second, MB", "more", 1),
        ]
        title = f"{human(length)} of incompressible data, written, written again, read"
        intro = "Writes in pieces of 1 MiB, fsync included."
        table = Table("volume-stream", title, columns, intro=intro)
        measured(bench, table, kinds(bench), partial(stream_of, data))
        bench.at_least("sequential write of unique data, MB/s", median(table, "unique"), 400, 0)
        bench.at_least("sequential write of duplicates, MB/s", median(table, "again"), 1000, 0)
        bench.at_least("sequential read cold, MB/s", median(table, "read"), 800, 0)
        data.unlink()
        made.tar_of_usr(bench, data, length)
        title = f"{human(data.stat().st_size)} of a tar of /usr, written, written again, read"
        table = Table("volume-text", title, columns, intro=intro)
        measured(bench, table, kinds(bench), partial(stream_of, data))
        bench.at_least("a tar of /usr: write, MB/s", median(table, "unique"), 400, 0)


def fio(bed: Bed, name: str, *words: str) -> dict[str, float]:
    """Operations a second of a run of fio: reads, writes, both."""
    text = output(fio_words(bed, name, words))
    return rates_of(text)


def rates_of(text: str) -> dict[str, float]:
    """The rates in the JSON that fio printed, behind its warnings."""
    job = json.loads(text[text.index("{") :])["jobs"][0]
    read, write = job["read"]["iops"], job["write"]["iops"]
    return {"read": read, "write": write, "both": read + write}


def random_writes(bench: Bench) -> None:
    """4 KiB at random places of a file that is there."""
    say("== random writes")
    size = f"--size={bench.sized(128, 4)}m"
    seconds = ("--time_based", f"--runtime={bench.sized(6, 1)}")

    def action(bed: Bed, samples: Samples) -> None:
        fio(bed, "fill", "--rw=write", "--bs=1m", size, "--end_fsync=1", "--numjobs=8")
        write = ("--rw=randwrite", "--bs=4k", size, *seconds)
        buffered = fio(bed, "buffered", *write)["write"]
        bed.make_durable()
        one = fio(bed, "one", *write, "--fdatasync=1")["write"]
        eight = fio(bed, "eight", *write, "--fdatasync=1", "--numjobs=8")["write"]
        samples.add(buffered=buffered, one=one, eight=eight)

    titles = {
        "buffered": ("buffered, a second", 0),
        "one": ("each synced", 0),
        "eight": ("8 writers, each synced", 0),
    }
    table = Table("volume-random", "Random overwrites of 4 KiB", rated(bench, titles))
    measured(bench, table, kinds(bench), action)
    bench.at_least("random overwrites of 4 KiB a second", median(table, "buffered"), 15000, 0)
    against = stats.median(table.ratios("weald", "eight", "ext4"))
    bench.at_least("8 writers, each synced: rate against ext4", against, 1.0)


def files(bench: Bench) -> None:
    """Files by the ten thousand."""
    say("== files")
    count = bench.sized(30_000, 500)
    text = os.urandom(4096)

    def each(action: Callable[[str], None], top: Path) -> float:
        names = [f"{top}/{number:06}" for number in range(count)]
        return count / timed(lambda: [action(name) for name in names])

    def create(name: str) -> None:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))

    def write(name: str) -> None:
        file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(file, text)
        os.close(file)

    def action(bed: Bed, samples: Samples) -> None:
        empty, full = bed.point / "empty", bed.point / "full"
        empty.mkdir()
        full.mkdir()
        created = each(create, empty)
        written = each(write, full)
        each(os.lstat, empty)
        cached = each(os.lstat, empty)
        bed.make_durable()
        removed = each(os.unlink, full)
        samples.add(created=created, written=written, cached=cached, removed=removed)

    titles = {
        "created": ("created a second", 0),
        "written": ("with 4 KiB", 0),
        "cached": ("stat cached", 0),
        "removed": ("removed", 0),
    }
    table = Table("volume-files", f"{count} files of a directory", rated(bench, titles))
    measured(bench, table, kinds(bench, inodes=3 * count), action)
    bench.at_least("files created a second", median(table, "created"), 15000, 0)
    bench.at_least("stat of cached files a second", median(table, "cached"), 100_000, 0)


def tree(bench: Bench) -> None:
    """A tree of many files: from a tar, copied, cloned by git."""
    say("== a tree")
    source = Path("/usr/include/linux")
    if not bench.is_tiny:
        source = by_word(bench.options.corpora[0]).tree(bench.options.out)
    bench.called(source, "tree/")
    count = int(output(["bash", "-c", 'find "$0" | wc -l', str(source)]))
    length = content_len(source)
    with in_memory() as place:
        tar, repository = place / "tree.tar", place / "repository"
        bench.quiet(["tar", "-C", source, "-cf", tar, "."])
        make_repository(bench, source, repository)

        def action(bed: Bed, samples: Samples) -> None:
            first = bed.point / "first"
            first.mkdir()
            untar = ["tar", "-C", first, "-xf", tar]
            unpacked = timed(lambda: bench.quiet(untar))
            synced = timed(bed.make_durable)
            before = bed.used()
            copy = ["cp", "-a", first, bed.point / "second"]
            copied = timed(lambda: bench.quiet(copy))
            more = (bed.used() - before) / length * 100
            clone = ["git", "clone", "-q", repository, bed.point / "clone"]
            cloned = timed(lambda: bench.quiet(clone))
            samples.add(
                untar=unpacked,
                synced=unpacked + synced,
                copy=copied,
                more=more,
                clone=cloned,
            )

        titles = {
            "untar": ("untar, s", 2),
            "synced": ("and synced, s", 2),
            "copy": ("cp -a, s", 2),
            "clone": ("git clone, s", 2),
        }
        columns = [*rated(bench, titles), Column("the copy takes, % of the tree", "more", 2)]
        title = f"A tree of {count} names, {human(length)} in files"
        table = Table("volume-tree", title, columns)
        measured(bench, table, kinds(bench, inodes=3 * count), action)
    for key, what in (("untar", "untar"), ("clone", "git clone")):
        found = stats.median(table.ratios("weald", key, "ext4"))
        bench.at_most(f"{what} against ext4", found, 2.0)
    bench.at_most("a second copy of a tree, % of the tree", median(table, "more"), 1.0)


def profiles(bench: Bench) -> None:
    """The four profiles of iometer."""
    say("== profiles")
    size = f"--size={bench.sized(1024, 16)}m"
    seconds = ("--time_based", f"--runtime={bench.sized(6, 1)}")

    def action(bed: Bed, samples: Samples) -> None:
        fio(bed, "fill", "--rw=write", "--bs=1m", size, "--end_fsync=1")
        for number, words in enumerate(PROFILES.values()):
            bed.make_durable()
            drop_caches()
            found = fio(bed, "profile", *words, size, *seconds, "--direct=1")
            samples.add(**{f"p{number}": found["both"]})

    titles = {f"p{number}": (title, 0) for number, title in enumerate(PROFILES)}
    intro = "Operations a second of one process, O_DIRECT, with incompressible data."
    table = Table("volume-profiles", "Profiles of iometer", rated(bench, titles), intro=intro)
    found = [
        replace(kind, problem=kind.problem or "fails: its buffers are not aligned for O_DIRECT")
        if kind.id == "passthrough"
        else kind
        for kind in kinds(bench)
    ]
    measured(bench, table, found, action)


def modes(bench: Bench) -> None:
    """A RAM cache and a commit interval of 3 s, with barriers and without: the settings of EPRD."""
    say("== modes")
    length = bench.sized(1 << 30, 16 << 20)
    found = kinds(bench)
    eprd = ("commit-interval=3", "cache=2G")
    found[1:1] = [
        Kind("weald-eprd", "Weald, commit-interval=3, cache=2G", eprd),
        Kind("weald-ram", "Weald, the same and fsync=ignore", (*eprd, "fsync=ignore")),
    ]
    seconds = ("--time_based", f"--runtime={bench.sized(6, 1)}")
    with in_memory() as place:
        data = place / "data"
        made.random_bytes(bench, data, length, "33")

        def action(bed: Bed, samples: Samples) -> None:
            stream_of(data, bed, samples)
            write = ("--rw=randwrite", "--bs=4k", "--size=128m", *seconds)
            samples.add(
                synced=fio(bed, "synced", *write, "--fdatasync=1")["write"],
                buffered=fio(bed, "buffered", *write)["write"],
            )

        titles = {
            **STREAM,
            "synced": ("4 KiB at random, synced", 0),
            "buffered": ("buffered", 0),
        }
        table = Table("volume-modes", "RAM modes", rated(bench, titles))
        measured(bench, table, found, action)


def metadata(bench: Bench) -> None:
    """Bytes of the tables for a chunk, and for a file."""
    say("== metadata")
    chunks = bench.sized(16_384, 128)
    count = bench.sized(100_000, 1000)
    with in_memory() as place:
        data = place / "data"
        made.random_bytes(bench, data, chunks * CHUNK_LEN, "35")

        def action(bed: Bed, samples: Samples) -> None:
            start = bed.tables_len()
            write_file(data, bed.point / "chunks")
            with_chunks = bed.tables_len()
            make_files(bed.point / "files", count)
            samples.add(
                chunk=(with_chunks - start) / chunks + 64,
                file=(bed.tables_len() - with_chunks) / count,
            )

        columns = [
            Column("Weald", ""),
            Column("bytes for a chunk, its header of 64 included", "chunk", 0),
            Column("bytes for an empty file", "file", 0),
        ]
        title = f"Metadata of {chunks} chunks and {count} files"
        table = Table("volume-metadata", title, columns)
        measured(bench, table, [kind for kind in kinds(bench) if kind.is_weald], action, 1)
    bench.at_most("metadata for a chunk, bytes", median(table, "chunk"), 120, 0)
    bench.at_most("metadata for a file, bytes", median(table, "file"), 300, 0)


def make_files(top: Path, count: int) -> None:
    """Empty files, a thousand in each directory."""
    top.mkdir()
    for number in range(count):
        if number % 1000 == 0:
            os.mkdir(f"{top}/{number // 1000}")
        name = f"{top}/{number // 1000}/{number % 1000}"
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def opening(bench: Bench) -> None:
    """The time until a volume is mounted again after its server was killed."""
    say("== open after a kill")
    count = bench.sized(1_000_000, 2000)
    place = random.Random(1)

    def again(bed: Bed, file: Path) -> float:
        bed.kill()
        drop_caches()

        def reopen() -> None:
            bed.mount()
            os.lstat(file)

        return timed(reopen)

    def action(bed: Bed, samples: Samples) -> None:
        created = timed(lambda: make_files(bed.point / "files", count))
        bed.make_durable()
        last = bed.point / "files" / str((count - 1) // 1000) / "0"
        samples.add(rate=count / created, files=again(bed, last))
        sparse = bed.point / "sparse"
        with open(sparse, "wb") as file:
            file.truncate(1 << 40)
            for _ in range(1000):
                os.pwrite(file.fileno(), os.urandom(4096), place.randrange(1 << 28) << 12)
            os.fsync(file.fileno())
            os.pwrite(file.fileno(), b"lost, or not", 0)
        samples.add(sparse=again(bed, sparse))

    columns = [
        Column("Weald", ""),
        Column("files created a second", "rate", 0),
        Column(f"open with {count} files, s", "files", 3),
        Column("and a sparse file of 1 TiB, s", "sparse", 3),
        Column("memory of the server, MiB", "peak_mib", 0),
    ]
    table = Table("volume-open", "Open after kill -9", columns)
    measured(bench, table, [kind for kind in kinds(bench) if kind.is_weald], action, 1)
    bench.at_most("open after kill -9 with 10^6 files, s", median(table, "files"), 2.0)
    bench.at_most("open after kill -9 with a sparse 1 TiB, s", median(table, "sparse"), 2.0)
