"""The suite of `make bench`: Weald beside SquashFS, EROFS and DwarFS, in at most 20 minutes."""

from __future__ import annotations

import subprocess
import time
from functools import partial
from pathlib import Path

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.corpora import made
from weald_bench.measure import Usage, busy_seconds, drop_caches, measure_machine
from weald_bench.mounts import (
    Samples,
    Source,
    kernel_mount,
    kernel_source,
    mounted,
    unmount,
    weald_source,
)
from weald_bench.result import Column, Row, Table
from weald_bench.rivals import dwarfs as dwarfs_tools
from weald_bench.rivals.base import Packing
from weald_bench.runner import Step
from weald_bench.suites.common import (
    DEFAULT,
    LEVEL_DEFAULT,
    against_baseline,
    each_corpus,
    fill,
    ratio_columns,
    remove,
    run_part,
    sizes,
    steps_of,
)

PARTS = ("sizes", "mounts", "memory")

BUILD_ROUNDS = 3
BUILD_LIMIT_S = 360
MOUNT_ROUNDS = 5
READ_ROUNDS = 3
READ_LIMIT_S = 120
MANY_FILES = 1_000_000
MEMORY_LIMITS_MIB = (512, 1024)

BASELINES = [("squashfs-zstd", "SquashFS"), ("dwarfs", "DwarFS")]


def baselines_of(bench: Bench) -> list[tuple[str, str]]:
    """Baselines of ratios: the selected rivals, installed or not."""
    return [(name, title) for name, title in BASELINES if bench.wants(name)]


def run(bench: Bench) -> None:
    """Runs the suite."""
    if bench.has("sizes") or bench.has("mounts"):
        each_corpus(bench, lambda name, tree: one_corpus(bench, name, tree))
    run_part(bench, "memory", lambda: memory(bench))


def one_corpus(bench: Bench, name: str, tree: Path) -> None:
    """Builds, mounts and reads one tree."""
    table = sizes(bench, name, tree, baselines_of(bench), BUILD_ROUNDS, BUILD_LIMIT_S)
    if name == "forest" and bench.wants("squashfs-zstd"):
        for key, what, most in (("mb", "size", 0.75), ("cpu_s", "CPU", 0.60)):
            found = stats.median(table.ratios(DEFAULT, key, "squashfs-zstd"))
            bench.at_most(f"{name}: {what} against SquashFS", found, most)
    metadata(bench, name, table)
    if bench.has("mounts"):
        mounts(bench, name, tree, table)


def metadata(bench: Bench, name: str, table: Table) -> None:
    """Adds the bytes of the tree (names, attributes, lengths, index) and of the extents, which name
    the data of each file."""
    image = bench.work / f"{name}.{DEFAULT}"
    each = None
    if image.exists():
        info = bench.weald.info(image)
        count, tree, extents = info["name_count"], info["tree_len"], info["extents_len"]
        each = stats.ratio(tree, count)
        table.notes.append(
            f"Tree: {tree} bytes for {count} names, {tree / count:.2f} bytes a name. "
            f"Extents (repeats found in contents): {extents} bytes, {extents / count:.2f} a name."
        )
        print(table.notes[-1], flush=True)
    if name in ("forest", "usr"):
        most = 1.5 if name == "forest" else 7
        bench.at_most(f"{name}: tree metadata, bytes a name", each, most)


def sources(bench: Bench, name: str, table: Table) -> list[Source]:
    """The images of a tree that can be mounted."""
    found = []
    for rival in bench.rivals:
        image = bench.work / f"{name}.{rival.name}"
        row = table.row(rival.name)
        problem = row.problem if row else None
        if rival.kind:
            found.append(kernel_source(rival.kind, image, rival.name, rival.label))
            found[-1].problem = problem
        elif isinstance(rival, dwarfs_tools.Dwarfs):
            served, given = rival.mount_commands(image)
            problem = problem or (None if served else dwarfs_tools.NO_MOUNT)
            found.append(Source(rival.name, "DwarFS", "fuse", image, served, given, problem))
    for weald in bench.wealds():
        image = bench.work / f"{name}.{weald.name}-{LEVEL_DEFAULT}"
        found.append(weald_source(weald, image))
        if not image.exists():
            found[-1].problem = "failed: there is no image"
    return found


def mounts(bench: Bench, name: str, tree: Path, built: Table) -> None:
    """Mounting, and reading through the mount."""
    say(f"== {name}: mounting and reading")
    images = sources(bench, name, built)
    mount_table(bench, name, images)
    read_table(bench, name, [Source("dir", "the directory itself", "dir", tree), *images])
    decode_table(bench, name)


def mount_and_list(bench: Bench, source: Source) -> Usage:
    """Mounts as a user does, and lists the root. The caches are empty, so that the programs too are
    loaded from storage."""
    drop_caches()
    command = [*(source.user_command or kernel_mount(source)), bench.mnt]
    busy, start = busy_seconds(), time.perf_counter()
    bench.quiet(command)
    try:
        subprocess.run(["ls", "-l", bench.mnt], stdout=subprocess.DEVNULL, check=True)
        return Usage(time.perf_counter() - start, busy_seconds() - busy)
    finally:
        unmount(bench.mnt)


def mount_table(bench: Bench, name: str, images: list[Source]) -> None:
    """Mounting and the first `ls -l` of the root."""
    samples = {source.id: Samples() for source in images}

    def mount(source: Source) -> None:
        samples[source.id].add(ms=mount_and_list(bench, source).wall_s * 1000)

    steps = steps_of(images, mount)
    bench.by_turns(steps, MOUNT_ROUNDS)
    baselines = baselines_of(bench) + against_baseline(bench)
    columns = [
        Column("file system", ""),
        Column("ms", "ms", 1),
        *ratio_columns("ms", baselines),
    ]
    table = Table(f"{name}-mount", f"{name}: mount and first ls, cold", columns)
    fill(table, images, samples, steps)
    bench.show(table)
    found = stats.median(table.samples("weald", "ms"))
    bench.at_most(f"{name}: mount and first ls, ms", found, 50, 1)


def read_table(bench: Bench, name: str, images: list[Source]) -> None:
    """Reading everything through the mount, cold and warm, and all names with sizes, cold."""
    samples = {source.id: Samples() for source in images}

    def read_tree() -> None:
        bench.meter.pipe(["tar", "-C", bench.mnt, "-c", "."], ["cat"])

    def find_sizes() -> None:
        bench.meter.pipe(["find", bench.mnt, "-printf", "%s\n"])

    def read(source: Source) -> None:
        with mounted(bench, source):
            drop_caches()
            cold, warm = measure_machine(read_tree), measure_machine(read_tree)
        with mounted(bench, source):
            drop_caches()
            find = measure_machine(find_sizes)
        samples[source.id].add(
            cold_s=cold.wall_s,
            cold_cpu_s=cold.cpu_s,
            warm_s=warm.wall_s,
            warm_cpu_s=warm.cpu_s,
            find_s=find.wall_s,
            find_cpu_s=find.cpu_s,
        )

    steps = steps_of(images, read)
    bench.by_turns(steps, READ_ROUNDS, READ_LIMIT_S)
    baselines = baselines_of(bench) + against_baseline(bench)
    table = Table(
        f"{name}-read",
        f"{name}: reading through the mount, seconds",
        [
            Column("file system", ""),
            Column("tar, cold", "cold_s", 3),
            *ratio_columns("cold_s", baselines),
            Column("CPU", "cold_cpu_s"),
            Column("tar, warm", "warm_s", 3),
            *ratio_columns("warm_s", baselines),
            Column("CPU", "warm_cpu_s"),
            Column("find -printf %s, cold", "find_s", 3),
            Column("CPU", "find_cpu_s"),
        ],
        plot={"kind": "bars", "key": "cold_s", "unit": "reading all by tar, cold, seconds"},
    )
    fill(table, images, samples, steps)
    bench.show(table)
    if bench.wants("squashfs-zstd"):
        found = stats.median(table.ratios("weald", "cold_s", "squashfs-zstd"))
        bench.at_most(f"{name}: reading all, cold, against SquashFS", found, 1.00)


def decode_table(bench: Bench, name: str) -> None:
    """Decoding all contents without a mount: the one way of reading that DwarFS's crates have."""
    commands: dict[str, tuple[str, list[str] | None]] = {}
    for rival in bench.rivals:
        if isinstance(rival, dwarfs_tools.Dwarfs) and not rival.problem():
            command = rival.read_command(bench.work / f"{name}.dwarfs")
            commands["dwarfs"] = (rival.label, command)
    for weald in bench.wealds():
        image = bench.work / f"{name}.{weald.name}-{LEVEL_DEFAULT}"
        script = ["sh", "-c", 'exec "$0" tar "$1" >/dev/null', str(weald.binary), str(image)]
        commands[weald.name] = (f"{weald.label} tar", script)
    samples = {id: Samples() for id in commands}

    def decode(id: str) -> None:
        used = bench.measure(commands[id][1] or [])
        samples[id].add(wall_s=used.wall_s, cpu_s=used.cpu_s, peak_mib=used.peak_mib)

    steps = [Step(id, partial(decode, id)) for id, (_, words) in commands.items() if words]
    bench.by_turns(steps, READ_ROUNDS, READ_LIMIT_S)
    baselines = [one for one in baselines_of(bench) if one[0] == "dwarfs"]
    baselines += against_baseline(bench)
    table = Table(
        f"{name}-decode",
        f"{name}: decoding all contents without a mount, the image in the page cache",
        [
            Column("reader", ""),
            Column("wall s", "wall_s", 3),
            *ratio_columns("wall_s", baselines),
            Column("CPU s", "cpu_s"),
            *ratio_columns("cpu_s", baselines),
            Column("memory MiB", "peak_mib", 0),
        ],
        intro="Weald compares a BLAKE3 digest of every block and makes DEFLATE streams again as "
        "zlib made them; the crate of DwarFS compares XXH3 checksums.",
    )
    problems = {step.id: step.problem for step in steps}
    for id, (label, words) in commands.items():
        problem = problems.get(id) or (None if words else "missing: dwarfsextract is not on PATH")
        table.rows.append(Row(id, label, dict(samples[id].cells), problem))
    bench.show(table)


def memory(bench: Bench) -> None:
    """Measures the builder's memory on many small files. SquashFS takes ten minutes for this and
    runs only if `--rivals` names it."""
    count = bench.sized(MANY_FILES, 2000)
    say(f"== memory of the builder on {count} files")
    tree, image = bench.work / "many", bench.work / "many.weald"
    tree.mkdir()
    made.many_files(tree, count)
    columns = [
        Column("builder", ""),
        Column("memory MiB", "peak_mib", 0),
        Column("limit MiB", "limit"),
        Column("CPU s", "cpu_s"),
        Column("wall s", "wall_s"),
    ]
    table = Table("memory", f"Memory of the builder on {count} small files", columns)
    rows: list[tuple[str, str, Packing, int | None]] = []
    if bench.options.rivals is not None:
        for rival in bench.rivals:
            target = bench.work / f"many.{rival.name}"
            problem = bench.problem_of(rival.name)
            if problem:
                table.rows.append(Row(rival.name, rival.label, {}, problem))
            else:
                packing = rival.packing(tree, target, bench.work)
                rows.append((rival.name, rival.label, packing, None))
    for limit in MEMORY_LIMITS_MIB:
        words = bench.weald.build("--memory", f"{limit}M", "--force", tree, image)
        rows.append((f"weald-{limit}", f"Weald --memory {limit}M", Packing(words), limit))
    samples = {row[0]: Samples() for row in rows}

    def build(id: str, packing: Packing) -> None:
        used = bench.measure(packing.command, env=packing.env)
        samples[id].add(peak_mib=used.peak_mib, cpu_s=used.cpu_s, wall_s=used.wall_s)

    steps = [Step(row[0], lambda row=row: build(row[0], row[2])) for row in rows]
    bench.by_turns(steps, 1)
    problems = {step.id: step.problem for step in steps}
    for id, label, _, limit in rows:
        cells = {"limit": str(limit or "-"), **samples[id].cells}
        table.rows.append(Row(id, label, cells, problems[id]))
        if limit:
            found = stats.median(table.samples(id, "peak_mib"))
            bench.at_most(f"{count} files, --memory {limit}M: memory, MiB", found, limit, 0)
    bench.show(table)
    remove(tree)
    for path in bench.work.glob("many.*"):
        remove(path)
