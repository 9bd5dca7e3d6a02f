"""The suite of `make bench-mount`: mounts beside those of the kernel and beside a stub that has no
image."""

from __future__ import annotations

from pathlib import Path

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.corpora import by_word, made
from weald_bench.measure import CommandFailed, warm
from weald_bench.mounts import (
    STUB_BIG_LEN,
    Samples,
    Source,
    kernel_source,
    on_mount,
    stub_source,
    weald_source,
)
from weald_bench.paths import random_reads
from weald_bench.result import Column, Row, Table
from weald_bench.rivals import dwarfs as dwarfs_tools
from weald_bench.rivals import squashfs
from weald_bench.runner import Step
from weald_bench.suites import many, meta, start, through
from weald_bench.suites.common import (
    against_baseline,
    fill,
    ratio_columns,
    remove,
    run_part,
    steps_of,
)

PARTS = ("meta", "read", "dir", "start", "many", "through")

IN_ORDER_ROUNDS = 9
DIR_ROUNDS = 3
RANDOM_READS = 400
#: Files that the directory of the part `dir` should have.
DIR_FILES = 8000


def run(bench: Bench) -> None:
    """Runs the suite."""
    run_part(bench, "meta", lambda: meta.run(bench))
    run_part(bench, "read", lambda: read(bench))
    run_part(bench, "dir", lambda: directory(bench))
    run_part(bench, "start", lambda: start.run(bench))
    run_part(bench, "many", lambda: many.run(bench))
    run_part(bench, "through", lambda: through.run(bench))


def read(bench: Bench) -> None:
    """Large files in order, and small pieces at random places."""
    say("== reading")
    length = bench.sized(1 << 30, 8 << 20)
    raw, text = bench.work / "raw", bench.work / "text"
    raw.mkdir()
    text.mkdir()
    made.random_bytes(bench, raw / "big", length, "02")
    made.tar_of_usr(bench, text / "big", length)
    length = (text / "big").stat().st_size
    images = {name: bench.work / f"{name}.weald" for name in ("raw", "text", "quick")}
    bench.quiet(bench.weald.build(raw, images["raw"]))
    bench.quiet(bench.weald.build(text, images["text"]))
    bench.quiet(bench.weald.build("--profile", "interactive", text, images["quick"]))
    squash = bench.work / "text.squashfs"
    quiet = ["-no-progress", "-quiet"]
    if bench.wants("squashfs-zstd") and not bench.problem_of("squashfs-zstd"):
        bench.quiet(["mksquashfs", text, squash, "-comp", "zstd", "-b", "1M", *quiet])
    remove(raw)
    remove(text)
    in_order(bench, images, squash, length)
    at_random(bench, images)
    for path in (*images.values(), squash):
        remove(path)


def in_order(bench: Bench, images: dict[str, Path], squash: Path, length: int) -> None:
    """One large file in order, the image in the page cache."""
    labels = {"raw": "stored raw", "text": "zstd, default", "quick": "zstd, --profile interactive"}
    sources = [stub_source(bench, 1, 1)] + [
        weald_source(weald, images[name], f"{weald.name}-{name}", f"{weald.label}, {labels[name]}")
        for weald in bench.wealds()
        for name in labels
    ]
    if bench.wants("squashfs-zstd"):
        label = "SquashFS zstd, 1 MiB"
        sources.append(kernel_source("squashfs", squash, "squashfs", label))
        sources[-1].problem = bench.problem_of("squashfs-zstd")
    samples = {source.id: Samples() for source in sources}
    samples["check"] = Samples()

    def add(id: str, wall: float, cpu: float, server: float) -> None:
        read = STUB_BIG_LEN if id == "stub" else length
        samples[id].add(wall_s=wall, rate=read / 1e9 / wall, cpu_s=cpu, server_s=server)

    def read_big(source: Source) -> None:
        command = ["dd", f"if={bench.mnt / 'big'}", "of=/dev/null", "bs=1M", "status=none"]
        used, server = on_mount(bench, source, lambda: bench.quiet(command), "pages")
        add(source.id, used.wall_s, used.cpu_s, server)

    def check() -> None:
        warm(images["text"])
        used = bench.measure(bench.weald.command("check", "--quiet", images["text"]))
        add("check", used.wall_s, used.cpu_s, 0)

    steps = steps_of(sources, read_big)
    steps.append(Step("check", check))
    bench.by_turns(steps, IN_ORDER_ROUNDS)
    table = Table(
        "in-order",
        f"{length / 1e9:.2f} GB in order, the image in the page cache",
        [
            Column("what", ""),
            Column("s", "wall_s", 3),
            Column("GB/s", "rate"),
            *ratio_columns("rate", [("squashfs", "SquashFS")]),
            *ratio_columns("rate", against_baseline(bench)),
            Column("CPU s", "cpu_s"),
            Column("of it the server", "server_s"),
        ],
        plot={"kind": "bars", "key": "rate", "unit": "GB/s"},
    )
    fill(table, sources, samples, steps)
    label = "Weald: check of the default's image, all processors"
    table.rows.append(Row("check", label, dict(samples["check"].cells), steps[-1].problem))
    bench.show(table)
    in_order_checks(bench, table)


def in_order_checks(bench: Bench, table: Table) -> None:
    """Raw data as fast as memory or as the stub; compressed data as fast as the decoder."""
    raw = stats.median(table.samples("weald-raw", "rate"))
    if raw is not None and raw >= 2.5:
        bench.at_least("stored raw, in order, GB/s", raw, 2.5)
    else:
        of_stub = stats.median(table.ratios("weald-raw", "rate", "stub"))
        bench.at_least("stored raw, in order: rate against the stub", of_stub, 0.90)
    of_check = stats.median(table.ratios("weald-text", "rate", "check"))
    figure = "zstd, in order: rate against weald check on all processors"
    bench.at_least(figure, of_check, 0.90)


def at_random(bench: Bench, images: dict[str, Path]) -> None:
    """4 KiB at random places with a small cache: CPU time of the server for each."""
    sources = [
        weald_source(
            weald,
            images[name],
            f"{weald.name}-{name}",
            f"{weald.label}, {label}",
            ["-o", "cachesize=16M"],
        )
        for weald in bench.wealds()
        for name, label in (("text", "default"), ("quick", "--profile interactive"))
    ]
    samples = {source.id: Samples() for source in sources}

    def read_pieces(source: Source) -> None:
        action = lambda: random_reads(bench.mnt / "big", RANDOM_READS)  # noqa: E731
        used, server = on_mount(bench, source, action)
        each = 1000 / RANDOM_READS
        samples[source.id].add(server_ms=server * each, wall_ms=used.wall_s * each)

    steps = steps_of(sources, read_pieces)
    bench.by_turns(steps, DIR_ROUNDS)
    table = Table(
        "at-random",
        f"4 KiB at {RANDOM_READS} random places of the same file, cachesize=16M",
        [
            Column("image", ""),
            Column("CPU of the server, ms each", "server_ms"),
            *ratio_columns("server_ms", against_baseline(bench)),
            Column("wall, ms each", "wall_ms"),
        ],
    )
    fill(table, sources, samples, steps)
    bench.show(table)
    for name, most in (("text", 5), ("quick", 0.6)):
        # The least of the rounds: what disturbs a run only adds.
        found = min(table.samples(f"weald-{name}", "server_ms"), default=None)
        bench.at_most(f"random 4 KiB, {name}: CPU ms", found, most)


def nearest_dir(tree: Path, wanted: int) -> tuple[str, int]:
    """The directory, at most five levels down, that has most nearly so many files below it."""
    counts: dict[str, int] = {}
    for file in tree.rglob("*"):
        if file.is_file() and not file.is_symlink():
            parts = file.relative_to(tree).parts[:-1][:5]
            for depth in range(1, len(parts) + 1):
                name = "/".join(parts[:depth])
                counts[name] = counts.get(name, 0) + 1
    if not counts:
        raise CommandFailed(f"{tree}: there is no directory with files")
    return min(counts.items(), key=lambda one: (abs(one[1] - wanted), one[0]))


def directory(bench: Bench) -> None:
    """Reads one directory of a forest with cold caches: from the default image, from an image in
    path order, and from the rivals' images."""
    say("== a directory of a forest")
    tree = by_word(bench.options.corpora[0]).tree(bench.options.out)
    name, count = nearest_dir(tree, DIR_FILES)
    default, by_path = bench.work / "forest.weald", bench.work / "forest-path.weald"
    bench.quiet(bench.weald.build(tree, default))
    bench.quiet(bench.weald.build("--order", "path", tree, by_path))
    sources = []
    for weald in bench.wealds():
        sources.append(weald_source(weald, default, weald.name, f"{weald.label}, default"))
        label = f"{weald.label}, in order of path"
        sources.append(weald_source(weald, by_path, f"{weald.name}-path", label))
    for rival in bench.rivals:
        image = bench.work / f"forest.{rival.name}"
        if isinstance(rival, squashfs.Zstd):
            sources.append(kernel_source("squashfs", image, rival.name, rival.label))
            sources[-1].problem = bench.problem_of(rival.name)
            if not sources[-1].problem:
                bench.quiet(rival.packing(tree, image, bench.work).command)
        elif isinstance(rival, dwarfs_tools.Dwarfs):
            served, given = rival.mount_commands(image)
            source = Source("dwarfs", rival.label, "fuse", image, served, given)
            source.problem = rival.problem() or (None if served else dwarfs_tools.NO_MOUNT)
            if not source.problem:
                bench.quiet(rival.packing(tree, image, bench.work).command)
            sources.append(source)
    samples = {source.id: Samples() for source in sources}

    def read_dir(source: Source) -> None:
        command = ["tar", "-C", bench.mnt / name, "-c", "."]
        used, server = on_mount(bench, source, lambda: bench.meter.pipe(command, ["cat"]))
        samples[source.id].add(wall_s=used.wall_s, cpu_s=used.cpu_s, server_s=server)

    steps = steps_of(sources, read_dir)
    bench.by_turns(steps, DIR_ROUNDS)
    table = Table(
        "directory",
        f"{name} of the forest, {count} files, cold",
        [
            Column("image", ""),
            Column("s", "wall_s", 3),
            *ratio_columns("wall_s", [("squashfs-zstd", "SquashFS"), ("dwarfs", "DwarFS")]),
            *ratio_columns("wall_s", against_baseline(bench)),
            Column("CPU s", "cpu_s"),
            Column("of it the server", "server_s"),
        ],
    )
    fill(table, sources, samples, steps)
    bench.show(table)
    of_path = stats.median(table.ratios("weald", "wall_s", "weald-path"))
    bench.at_most("a directory of the forest: time against path order", of_path, 2.0)
    if bench.wants("squashfs-zstd"):
        of_squashfs = stats.median(table.ratios("weald", "wall_s", "squashfs-zstd"))
        bench.at_most("a directory of the forest: time against SquashFS", of_squashfs, 1.00)
    for path in bench.work.glob("forest*"):
        remove(path)
