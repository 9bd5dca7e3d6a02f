"""The suite of `make bench-build`: what building costs, beside every rival."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

from weald_bench import machine, stats
from weald_bench.bench import Bench, say
from weald_bench.corpora import by_word, made
from weald_bench.corpora.base import human
from weald_bench.measure import CommandFailed, Usage, warm
from weald_bench.mounts import Samples
from weald_bench.result import Column, Row, Table
from weald_bench.runner import Step
from weald_bench.suites import append, threads
from weald_bench.suites.common import (
    DEFAULT,
    LEVEL_DEFAULT,
    against_baseline,
    content_len,
    each_corpus,
    image_of,
    ratio_columns,
    remove,
    run_part,
    sizes,
)

PARTS = ("sizes", "reading", "extraction", "speed", "threads", "torture", "append")

STRONGEST = "weald-9"
EXTRACT_ROUNDS = 5
TORTURE_MEMORY_MIB = 512
ORDERS = ("name", "revpath", "similarity", "nilsimsa")

#: Required values for the small forest, by level: MB, CPU seconds, MiB of memory.
FOREST_ASKED: dict[int, tuple[float, float, float | None]] = {
    5: (41, 15, None),
    7: (36, 60, 384),
    9: (31, 200, None),
}

#: Requirements for other trees: row, rival, its name, largest ratios of size and CPU.
RIVALS_ASKED = (
    (DEFAULT, "squashfs-zstd", "default against SquashFS zstd-22", 0.85, 0.50),
    (STRONGEST, "squashfs-xz", "strongest against SquashFS xz", 0.85, 1.00),
    (STRONGEST, "tar-xz", "strongest against tar and xz -9e", 1.00, 1.00),
    (DEFAULT, "tar-zstd-22", "default against tar and zstd --ultra -22 --long=31", 0.90, 0.25),
)


def run(bench: Bench) -> None:
    """Runs the suite."""
    if any(bench.has(part) for part in ("sizes", "reading", "extraction")):
        each_corpus(bench, lambda name, tree: one_corpus(bench, name, tree))
    run_part(bench, "speed", lambda: speed(bench, first_tree(bench)))
    run_part(bench, "threads", lambda: threads.run(bench, first_tree(bench)))
    run_part(bench, "torture", lambda: torture(bench))
    run_part(bench, "append", lambda: append.run(bench, first_tree(bench)))


def first_tree(bench: Bench) -> Path:
    """The tree of the parts that measure one tree: the first corpus, usually `forest`."""
    return by_word(bench.options.corpora[0]).tree(bench.options.out)


def one_corpus(bench: Bench, name: str, tree: Path) -> None:
    """The parts that are measured on every corpus."""
    run_part(bench, "sizes", lambda: sizes_part(bench, name, tree))
    run_part(bench, "reading", lambda: reading(bench, name, tree))
    run_part(bench, "extraction", lambda: extraction(bench, name, tree))


def sizes_part(bench: Bench, name: str, tree: Path) -> None:
    """Builds with every rival; multiples of Weald's default."""
    table = sizes(bench, name, tree, [(DEFAULT, "default")], rounds=1)

    def found(row: str, key: str) -> float | None:
        return stats.median(table.samples(row, key))

    if name == "forest":
        for level in bench.options.levels:
            if level in FOREST_ASKED:
                mb, cpu, memory = FOREST_ASKED[level]
                row, figure = f"weald-{level}", f"forest, level {level}"
                bench.at_most(f"{figure}: MB", found(row, "mb"), mb, 1)
                bench.at_most(f"{figure}: CPU s", found(row, "cpu_s"), cpu)
                if memory:
                    bench.at_most(f"{figure}: memory, MiB", found(row, "peak_mib"), memory, 0)
        return
    for row, rival, figure, size, cpu in RIVALS_ASKED:
        if bench.wants(rival) and table.row(row):
            for key, what, most in (("mb", "size", size), ("cpu_s", "CPU", cpu)):
                ratio = stats.median(table.ratios(row, key, rival))
                bench.at_most(f"{name}: {figure}, {what}", ratio, most)


def decoded_kib(bench: Bench, image: Path) -> dict[str, float]:
    """KiB that reads of an image have to decode on average: small_read, file and directory."""
    found = bench.weald.info(image, "--reading")["reading"]
    return {what: found[what]["mean"] / 1024 for what in ("small_read", "file", "directory")}


def reading(bench: Bench, name: str, tree: Path) -> None:
    """Data that reads decode, for every order and for the interactive profile."""
    say(f"== {name}: reading")
    image = image_of(bench, name, tree)
    columns = [
        Column("Weald", ""),
        Column("MB", "mb", 1),
        Column("× default", "mb", 3, to="default"),
        Column("KiB decoded: 4 KiB anywhere", "small_read", 0),
        Column("a file", "file", 0),
        Column("the files of a directory", "directory", 0),
    ]
    table = Table(f"{name}-reading", f"{name}: what reads decode", columns)

    def add(id: str, label: str, path: Path) -> None:
        cells = {"mb": path.stat().st_size / 1e6, **decoded_kib(bench, path)}
        table.rows.append(Row(id, label, {key: [value] for key, value in cells.items()}))

    add("default", "default", image)
    other = bench.work / "other.weald"
    for order in ORDERS:
        bench.quiet(bench.weald.build("--order", order, "--force", tree, other))
        add(order, f"--order {order}", other)
    bench.quiet(bench.weald.build("--profile", "interactive", "--force", tree, other))
    add("interactive", "--profile interactive", other)
    other.unlink()
    bench.show(table)

    def small_read(row: str) -> float | None:
        return stats.median(table.samples(row, "small_read"))

    bench.at_most(f"{name}: decoded for 4 KiB, default, KiB", small_read("default"), 4096, 0)
    bench.at_most(f"{name}: decoded for 4 KiB, interactive, KiB", small_read("interactive"), 256, 0)
    size = stats.median(table.ratios("interactive", "mb", "default"))
    bench.at_most(f"{name}: size of interactive against the default", size, 1.12, 3)


def memory_place(bench: Bench, length: int) -> Path:
    """A new directory in memory, where there is room for that much twice; else one on storage."""
    shared = Path("/dev/shm")
    if shared.is_dir() and machine.file_system(shared) == "tmpfs":
        free = os.statvfs(shared)
        if free.f_bavail * free.f_frsize > length * 2:
            return Path(tempfile.mkdtemp(prefix="weald-bench-", dir=shared))
    return Path(tempfile.mkdtemp(prefix="place-", dir=bench.work))


def extraction(bench: Bench, name: str, tree: Path) -> None:
    """Extracts the whole tree into memory, by turns with `tar -x` of a plain tar file, which
    decodes nothing. Then it extracts once onto storage."""
    say(f"== {name}: extraction")
    image, plain = image_of(bench, name, tree), bench.work / "plain.tar"
    length = content_len(tree)
    bench.quiet(["tar", "-C", tree, "-cf", plain, "."])
    warm(image)
    place = memory_place(bench, length)
    commands = {
        weald.name: (f"{weald.label} extract", weald.command("extract", "--quiet", image))
        for weald in bench.wealds()
    }
    commands["tar"] = ("tar -x, nothing compressed", ["tar", "-xf", str(plain), "-C"])
    samples = {id: Samples() for id in commands}
    onto = machine.file_system(place)
    try:

        def extract(id: str) -> None:
            target = place / "tree"
            target.mkdir()
            add_rate(samples[id], length, bench.measure([*commands[id][1], target]))
            shutil.rmtree(target)

        steps = [Step(id, partial(extract, id)) for id in commands]
        bench.by_turns(steps, EXTRACT_ROUNDS)
    finally:
        shutil.rmtree(place)
    table = Table(
        f"{name}-extraction",
        f"{name}: extraction, {human(length)}",
        [
            Column("command", ""),
            Column("onto", "onto"),
            Column("MB a CPU s", "rate", 0),
            Column("× tar", "rate", 2, to="tar"),
            *ratio_columns("rate", against_baseline(bench)),
            Column("CPU s", "cpu_s"),
            Column("wall s", "wall_s"),
        ],
        plot={"kind": "bars", "key": "rate", "unit": "MB extracted in a CPU second"},
    )
    for step in steps:
        cells = {"onto": onto, **samples[step.id].cells}
        table.rows.append(Row(step.id, commands[step.id][0], cells, step.problem))
    extract_once(bench, table, image, plain, length)
    plain.unlink()
    bench.show(table)
    rate = stats.median(table.samples("weald", "rate"))
    bench.at_least(f"{name}: extraction onto {onto}, MB a CPU second", rate, 400, 0)


def add_rate(samples: Samples, length: int, used: Usage) -> None:
    """Adds what went through in a CPU second."""
    rate = stats.per(length / 1e6, used.cpu_s)
    samples.add(rate=rate, cpu_s=used.cpu_s, wall_s=used.wall_s)


def extract_once(bench: Bench, table: Table, image: Path, plain: Path, length: int) -> None:
    """Extracts to /dev/null and onto storage. It deletes nothing before the end: ext4 skips each
    inode that was freed in the last minutes, which makes the creation of files many times
    slower."""
    nowhere = ["sh", "-c", 'exec "$0" tar "$1" >/dev/null', str(bench.weald.binary), str(image)]
    onto = machine.file_system(bench.work)
    first, second = bench.work / "extracted", bench.work / "untarred"
    first.mkdir()
    second.mkdir()
    extract = bench.weald.command("extract", "--quiet", image, first)
    untar = ["tar", "-C", str(second), "-xf", str(plain)]
    for id, label, place, command in (
        ("nowhere", "weald tar", "nowhere", nowhere),
        ("storage", "weald extract", onto, extract),
        ("tar-storage", "tar -x, nothing compressed", onto, untar),
    ):
        samples = Samples()
        add_rate(samples, length, bench.measure(command))
        table.rows.append(Row(id, label, {"onto": place, **samples.cells}))
    remove(first)
    remove(second)


def speed(bench: Bench, tree: Path) -> None:
    """Cost of building without compression, and gain by a second core."""
    say("== speed")
    length = bench.sized(1 << 30, 4 << 20)
    unique, copies = bench.work / "unique", bench.work / "copies"
    base, image = bench.work / "base.weald", bench.work / "speed.weald"
    unique.mkdir()
    made.random_bytes(bench, unique / "file", length, "00")
    # What a base has is read, hashed and found, and nothing else: no repeats are looked for and
    # nothing is written.
    bench.quiet(bench.weald.build("--level", "0", "--force", unique, base))
    copies.mkdir()
    for number in range(4):
        shutil.copyfile(unique / "file", copies / str(number + 1))
    stored = ["--codec", "none", "--categorize", "none", "--force"]
    rows = []
    for weald in bench.wealds():
        rows += [
            (
                f"{weald.name}-unique",
                f"{weald.label}: unique data, repeats looked for",
                length,
                weald.build(*stored, unique, image),
                150,
            ),
            (
                f"{weald.name}-copies",
                f"{weald.label}: copies of what a base has: read, hashed, found",
                length * 4,
                weald.build("--level", "0", "--force", "--base", base, copies, image),
                1000,
            ),
        ]
    samples = {row[0]: Samples() for row in rows}
    steps = [
        Step(row[0], lambda row=row: add_rate(samples[row[0]], row[2], bench.measure(row[3])))
        for row in rows
    ]
    bench.by_turns(steps, 3 if bench.against else 1)
    columns = [
        Column("what is built", ""),
        Column("MB a CPU s", "rate", 0),
        Column("CPU s", "cpu_s"),
        Column("wall s", "wall_s"),
    ]
    table = Table("speed", "Speed", columns)
    for row, step in zip(rows, steps):
        table.rows.append(Row(row[0], row[1], dict(samples[row[0]].cells), step.problem))
        if row[0].startswith("weald"):
            figure = row[1].split(": ", 1)[1]
            rate = stats.median(table.samples(row[0], "rate"))
            bench.at_least(f"{figure}, MB a CPU second", rate, row[4], 0)
    for path in (unique, copies, base, image):
        remove(path)
    two_cores(bench, tree, table)
    bench.show(table)


def two_cores(bench: Bench, tree: Path, table: Table) -> None:
    """Compares two cores with one core. One thread would be the wrong base, because a build with
    one compressor still reads and segments beside it."""
    image = bench.work / "speed.weald"
    one = bench.measure(
        ["taskset", "-c", "0", *bench.weald.build("--threads", "1", "--force", tree, image)]
    )
    two = bench.measure(bench.weald.build("--threads", "2", "--force", tree, image))
    image.unlink()
    table.notes.append(
        f"The first corpus at level {LEVEL_DEFAULT}: {one.wall_s:.2f} s on one core, "
        f"{two.wall_s:.2f} s on two."
    )
    if len(os.sched_getaffinity(0)) >= 2:
        bench.at_least("two cores against one", stats.ratio(one.wall_s, two.wall_s), 1.8)


def torture(bench: Bench) -> None:
    """Files that are hard to pack, within a limit of memory."""
    say("== torture")
    limit = TORTURE_MEMORY_MIB
    columns = [
        Column("file", ""),
        Column("MB a second", "rate", 0),
        Column("wall s", "wall_s"),
        Column("memory MiB", "peak_mib", 0),
        Column("image bytes", "bytes", 0),
    ]
    title = "Torture: sparse, constant and periodic files, colliding samples"
    table = Table("torture", f"{title}, --memory {limit}M", columns)
    one, image = bench.work / "one", bench.work / "one.weald"
    for file in made.torture(bench, bench.work / "torture"):
        say(f"   {file.name}")
        length = file.stat().st_size
        one.mkdir()
        file.rename(one / file.name)
        row = Row(file.name, file.name)
        # Colliding data is not a repeat: with a codec, only the codec would be measured.
        codec = ["--codec", "none"] if file.name == "colliding" else []
        try:
            used = bench.measure(bench.weald.build("--memory", f"{limit}M", *codec, one, image))
            row.cells = {
                "rate": [stats.per(length / 1e6, used.wall_s)],
                "wall_s": [used.wall_s],
                "peak_mib": [used.peak_mib],
                "bytes": [image.stat().st_size],
            }
        except CommandFailed as error:
            row.problem = f"failed: {error}"
            bench.result.failures.append(f"torture, {file.name}: {error}")
        table.rows.append(row)
        rate = stats.median(table.samples(row.id, "rate"))
        bench.at_least(f"{file.name}: MB a second", rate, 100, 0)
        peak = stats.median(table.samples(row.id, "peak_mib"))
        bench.at_most(f"{file.name}: memory, MiB", peak, limit, 0)
        remove(one)
        remove(image)
    remove(bench.work / "torture")
    bench.show(table)
