"""The part `meta` of the suite `mount`: names and attributes of 10^6 files."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

from weald_bench import paths, stats
from weald_bench.bench import Bench, say
from weald_bench.measure import CommandFailed
from weald_bench.mounts import (
    Samples,
    Source,
    kernel_source,
    mounted,
    on_mount,
    stub_source,
    weald_source,
)
from weald_bench.result import Column, Row, Table
from weald_bench.suites.common import against_baseline, fill, ratio_columns, remove, steps_of

META_ROUNDS = 5
LOOK_UPS = 20_000
#: The time that the stub tells of its files; `ls` prints it.
MTIME = "1700000000"
SERVER_TIMEOUT_S = 30


def run(bench: Bench) -> None:
    """Runs the part."""
    dirs, files = bench.sized(1000, 20), bench.sized(1000, 50)
    say(f"== metadata of {dirs * files} entries")
    sources, names = images(bench, dirs, files)
    for source in sources[1:]:
        if source.problem:
            continue
        same_tree(bench, sources[0], source, dirs, files)
    samples = {source.id: Samples() for source in sources}
    cold(bench, sources, names, samples, dirs * files)
    warm(bench, sources[0], names)
    for path in bench.work.glob("meta.*"):
        remove(path)


def images(bench: Bench, dirs: int, files: int) -> tuple[list[Source], list[bytes]]:
    """Images of the names that the stub has, and paths to ask for."""
    names = [b"d%07d/f%07d" % (dir, file) for dir in range(dirs) for file in range(files)]
    listing, image = bench.work / "meta.listing", bench.work / "meta.weald"
    listing.write_bytes(b"\0".join(names) + b"\0")
    words = ["--from", "listing", "--mtime", MTIME]
    bench.quiet(bench.weald.build(*words, listing, image))
    listing.unlink()
    sources = [weald_source(bench.weald, image)]
    if bench.against:
        sources.append(weald_source(bench.against, image))
    sources.append(stub_source(bench, dirs, files))
    memory = bench.work / "memory"
    memory.mkdir()
    bench.quiet(["mount", "-t", "tmpfs", "-o", "size=8g,nr_inodes=0", "weald-bench", memory])
    try:
        tree = memory / "tree"
        bench.quiet(bench.weald.command("extract", "--quiet", image, tree))
        quiet = ["-no-progress", "-quiet"]
        for kind, name, label, command in (
            ("squashfs", "squashfs-zstd", "SquashFS", ["mksquashfs", tree, "", "-comp", "zstd"]),
            ("erofs", "erofs", "EROFS", ["mkfs.erofs", "--quiet", "", tree]),
        ):
            if not bench.wants(name):
                continue
            target = bench.work / f"meta.{kind}"
            source = kernel_source(kind, target, kind, label)
            source.problem = bench.problem_of(name)
            sources.append(source)
            if not source.problem:
                command[2] = target
                bench.quiet([*command, *(quiet if kind == "squashfs" else [])])
    finally:
        bench.quiet(["umount", memory])
    random.Random(1).shuffle(names)
    return sources, names[: min(LOOK_UPS, len(names))]


def same_tree(bench: Bench, one: Source, other: Source, dirs: int, files: int) -> None:
    """Fails unless two sources show the same first and last file. It compares times, modes and
    lengths. It does not compare owners, because the kernel's file systems hold extracted files."""
    shown = []
    for source in (one, other):
        with mounted(bench, source):
            found = []
            for name in ("d0000000/f0000000", f"d{dirs - 1:07}/f{files - 1:07}"):
                status = os.lstat(bench.mnt / name)
                found.append((name, status.st_mode, status.st_size, int(status.st_mtime)))
            shown.append(found)
    if shown[0] != shown[1]:
        raise CommandFailed(f"{other.label} has another tree: {shown[1]}, expected {shown[0]}")


def workloads(bench: Bench) -> dict[str, Callable[[], None]]:
    """A walk with sizes, and a list with all attributes."""
    return {
        "walk": lambda: bench.meter.pipe(["find", bench.mnt, "-printf", "%s\n"]),
        "list": lambda: bench.meter.pipe(["ls", "-lR", bench.mnt]),
    }


def cold(
    bench: Bench,
    sources: list[Source],
    names: list[bytes],
    samples: dict[str, Samples],
    count: int,
) -> None:
    """Runs all workloads on new mounts: Weald and the stub in every round, file systems of the
    kernel in the first round only, because SquashFS takes a minute for each."""

    def measure(source: Source) -> None:
        if source.kind not in ("weald", "stub") and samples[source.id].cells:
            return
        for what, action in workloads(bench).items():
            used, server = on_mount(bench, source, action)
            found = {f"{what}_s": used.wall_s, f"{what}_cpu_s": used.cpu_s}
            samples[source.id].add(**found)
            if source.command:
                samples[source.id].add(**{f"{what}_server_s": server})
        each = []
        on_mount(bench, source, lambda: each.append(paths.look_up(bench.mnt, names)))
        samples[source.id].add(look_up_us=each[0])

    steps = steps_of(sources, measure)
    bench.by_turns(steps, META_ROUNDS)
    baselines = [("stub", "stub"), ("squashfs", "SquashFS")]
    baselines += against_baseline(bench)
    table = Table(
        "metadata",
        f"Metadata of {count} entries, cold",
        [
            Column("file system", ""),
            Column("find -printf %s, s", "walk_s"),
            *ratio_columns("walk_s", baselines),
            Column("CPU s", "walk_cpu_s"),
            Column("of it the server", "walk_server_s"),
            Column("ls -lR, s", "list_s"),
            *ratio_columns("list_s", baselines),
            Column("CPU s", "list_cpu_s"),
            Column("of it the server", "list_server_s"),
            Column("stat of a random path, us", "look_up_us", 1),
            *ratio_columns("look_up_us", baselines),
        ],
        plot={"kind": "bars", "key": "walk_s", "unit": "find with sizes, cold, seconds"},
    )
    fill(table, sources, samples, steps)
    bench.show(table)
    for what in ("walk", "list"):
        rate = stats.median(table.ratios("stub", f"{what}_s", "weald"))
        bench.at_least(f"{what}, cold: rate against the stub", rate, 0.95)
        if bench.wants("squashfs-zstd"):
            time = stats.median(table.ratios("weald", f"{what}_s", "squashfs"))
            bench.at_most(f"{what}, cold: time against SquashFS", time, 1.00)
    time = stats.median(table.ratios("weald", "look_up_us", "stub"))
    bench.at_most("stat of random paths, cold: time against the stub", time, 1.2)


def requests(bench: Bench) -> int:
    """Returns the number of requests that the mount's server has answered. It waits for the server,
    because the kernel shows a mount a moment before the server lists it."""
    end = time.monotonic() + SERVER_TIMEOUT_S
    while time.monotonic() < end:
        for mount in bench.weald.mounts("mount"):
            if mount["dir"] == str(bench.mnt):
                return int(mount["request_count"])
        time.sleep(0.05)
    raise CommandFailed("weald mounts --json does not show the mount of the benchmark")


def warm(bench: Bench, source: Source, names: list[bytes]) -> None:
    """Requests that reach the server the first and the second time."""
    actions: dict[str, Callable[[], object]] = {
        "look_up": lambda: paths.look_up(bench.mnt, names),
        "walk": workloads(bench)["walk"],
    }
    columns = [
        Column("workload", ""),
        Column("first time", "first", 0),
        Column("second time", "second", 0),
    ]
    table = Table("requests", "Requests that reach the server", columns)
    with mounted(bench, source):
        for what, action in actions.items():
            counts = [requests(bench)]
            for _ in range(2):
                action()
                counts.append(requests(bench))
            first, second = counts[1] - counts[0], counts[2] - counts[1]
            table.rows.append(Row(what, what, {"first": [first], "second": [second]}))
            if what == "look_up":
                bench.at_most(f"{what}, warm: requests", second, 0, 0)
    bench.show(table)
