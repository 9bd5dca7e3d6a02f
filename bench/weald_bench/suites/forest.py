"""The suites of `make bench-forest` and `make soak-forest`: forests of up to 10^9 files."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
from dataclasses import dataclass

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.corpora.generated import TIME_SPAN_S, draw, file_count
from weald_bench.measure import Usage, output
from weald_bench.mounts import (
    Samples,
    Source,
    mounted,
    on_mount,
    stub_source,
    weald_source,
)
from weald_bench.result import Column, Row, Table
from weald_bench.suites import counts, streams
from weald_bench.suites.common import fill, remove, run_part, steps_of
from weald_bench.suites.served import served

PARTS = ("build", "search", "mount", "listing", "counts", "host")

WALK_ROUNDS = 3
#: Files that the generator should make in a second of wall time: 10^9 in ten minutes.
FILES_A_SECOND = 1_666_667


@dataclass(frozen=True)
class Shapes:
    """Fan-outs of one scale: for equal files, for random names, for names that a walk searches, for
    the walk over a mount, and for the series of the part `counts`."""

    regular: str
    names: str
    walked: str
    served: str
    counts: tuple[str, ...]


SERIES = ("10x1000", "10x10x1000", "100x10x1000", "100x100x1000")
BENCH = Shapes("100x100x1000", "100x100x1000", "100x100x1000", "100x10x1000", SERIES)
SOAK = Shapes(
    "1000x1000x1000",
    "1000x100x1000",
    "1000x100x1000",
    "100x100x1000",
    (*SERIES, "1000x100x1000", "1000x1000x1000"),
)
TINY = Shapes("10x10x100", "10x10x100", "10x10x100", "10x10x100", ("10x100", "10x10x100"))


def shapes_of(bench: Bench) -> Shapes:
    """The shapes of a run."""
    if bench.is_tiny:
        return TINY
    return SOAK if bench.options.suite == "forest-soak" else BENCH


def run(bench: Bench) -> None:
    """Runs the suite."""
    shapes = shapes_of(bench)
    run_part(bench, "build", lambda: build(bench, shapes))
    run_part(bench, "search", lambda: search(bench, shapes))
    run_part(bench, "mount", lambda: mount(bench, shapes))
    run_part(bench, "listing", lambda: streams.run(bench))
    run_part(bench, "counts", lambda: counts.run(bench, shapes.counts))
    run_part(bench, "host", lambda: counts.host(bench))
    remove(bench.work / "regular.weald")


def regular_image(bench: Bench, shapes: Shapes) -> None:
    """WORK/regular.weald, drawn unless it is there."""
    if not (bench.work / "regular.weald").exists():
        draw(bench, bench.work / "regular.weald", shapes.regular)


def build_row(bench: Bench, table: Table, id: str, label: str, fanout: str, *words: str) -> Row:
    """Draws WORK/ID.weald, and adds its row."""
    say(f"   {label}")
    image = bench.work / f"{id}.weald"
    used = draw(bench, image, fanout, *words)
    count, length = file_count(fanout), image.stat().st_size
    row = Row(
        id,
        label,
        {
            "fanout": fanout,
            "cpu_s": [used.cpu_s],
            "wall_s": [used.wall_s],
            "rate": [stats.per(count, used.cpu_s)],
            "peak_mib": [used.peak_mib],
            "bytes": [length],
            "each": [length / count],
        },
    )
    table.rows.append(row)
    return row


def figure(row: Row, key: str) -> float:
    """The one sample of a cell."""
    cell = row.cells[key]
    assert isinstance(cell, list)
    return float(cell[0])


def build(bench: Bench, shapes: Shapes) -> None:
    """Forests straight into images."""
    say("== building")
    columns = [
        Column("shape", ""),
        Column("fan-out", "fanout"),
        Column("CPU s", "cpu_s"),
        Column("wall s", "wall_s"),
        Column("files a CPU s", "rate", 0),
        Column("memory MiB", "peak_mib", 1),
        Column("image bytes", "bytes", 0),
        Column("bytes a file", "each", 3),
    ]
    table = Table("forest-build", "Forests straight into images", columns)
    fanout = shapes.regular
    limit = file_count(fanout) / FILES_A_SECOND
    equal = build_row(bench, table, "regular", "equal times", fanout)
    steps_words = ("--times", "affine:1000000000:1000000000")
    steps = build_row(bench, table, "steps", "times in steps of 1 s", fanout, *steps_words)
    random_words = ("--times", f"random:1600000000:{TIME_SPAN_S}")
    random = build_row(bench, table, "random", "random times", fanout, *random_words)
    for row, what in ((equal, "equal times"), (steps, "times in steps"), (random, "random times")):
        bench.at_most(f"{fanout}, {what}: wall s", figure(row, "wall_s"), limit)
        bench.at_most(f"{fanout}, {what}: memory, MiB", figure(row, "peak_mib"), 256, 1)
    bench.at_most(f"{fanout}, equal times: image bytes", figure(equal, "bytes"), 65536, 0)
    entropy = file_count(fanout) * math.log2(TIME_SPAN_S * 1e9) / 8
    found = figure(random, "bytes") / entropy
    bench.at_most(f"{fanout}, random times against their entropy", found, 1.15, 3)
    label = "names of 32 hexadecimal digits"
    names = build_row(bench, table, "hex", label, shapes.names, "--names", "hex")
    each = figure(names, "each")
    bench.at_most(f"{shapes.names}, 32-digit names: bytes a name", each, 15.5, 3)
    for name in ("steps", "random", "hex"):
        remove(bench.work / f"{name}.weald")
    bench.show(table)


def search_columns() -> list[Column]:
    """The columns of tables of searches."""
    return [
        Column("search", ""),
        Column("threads", "threads"),
        Column("CPU s", "cpu_s"),
        Column("wall s", "wall_s"),
        Column("entries a second", "rate", 0),
        Column("memory MiB", "peak_mib", 1),
        Column("same bytes", "same"),
    ]


def digest_of(path: os.PathLike[str]) -> str:
    """The digest of a file of any length."""
    digest = hashlib.blake2b()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def find(bench: Bench, table: Table, image: str, label: str, count: int, *words: str) -> float:
    """Searches `count` entries with one thread and with all threads, and fails unless both print
    the same bytes. The output stays in WORK/found. Returns the entries a second of all threads."""
    path, found = bench.work / f"{image}.weald", bench.work / "found"
    first = None
    rate = 0.0
    for threads in ("1", "0"):
        command = bench.weald.command("find", path, *words, "--threads", threads)
        used = bench.measure(command, stdout=found)
        digest = digest_of(found)
        first = first or digest
        rate = stats.per(count, used.wall_s, 1e-4)
        cells: dict[str, list | str] = {
            "threads": "all" if threads == "0" else threads,
            "cpu_s": [used.cpu_s],
            "wall_s": [used.wall_s],
            "rate": [rate],
            "peak_mib": [used.peak_mib],
            "same": "yes" if digest == first else "NO",
        }
        table.rows.append(Row(f"{label}-{threads}", f"{image}: {label}", cells))
    bench.true(f"{image}, {label}: same bytes with one thread and all", digest == first)
    return rate


def search(bench: Bench, shapes: Shapes) -> None:
    """Searching images without mounting them."""
    say("== searching")
    regular_image(bench, shapes)
    draw(bench, bench.work / "names.weald", shapes.walked, "--names", "hex")
    table = Table("search", "Searching without a mount", search_columns())
    count = file_count(shapes.regular)
    find(bench, table, "regular", "--name '*42', counted", count, "--name", "*42", "--count")
    words = ("--type", "f", "--name", "*42", "--print0")
    rate = find(bench, table, "regular", "--type f --name '*42'", count, *words)
    figure = f"{shapes.regular}: find --name, entries a second"
    bench.at_least(figure, rate, 20_000_000, 0)
    # Every path, from the generator itself.
    listing = ["forest", "--quiet", "--fanout", shapes.regular, "--stream", "listing", "-"]
    expected = bench.work / "expected"
    script = 'set +o pipefail; out=$1; shift; "$@" | grep -z "42$" >"$out"'
    bench.quiet(["bash", "-c", script, "bash", expected, *bench.weald.command(*listing)])
    same = digest_of(expected) == digest_of(bench.work / "found")
    bench.true(f"{shapes.regular}: paths found are those of the generator", same)
    remove(expected)
    words = ("--path", "*/*/*42", "--count")
    find(bench, table, "regular", "--path '*/*/*42', walked", count, *words)
    count = file_count(shapes.walked)
    label = "no two directories alike: --name '*42'"
    find(bench, table, "names", label, count, "--name", "*42", "--print0")
    find(bench, table, "names", "no two directories alike: all paths", count, "--print0")
    remove(bench.work / "found")
    bench.show(table)
    one_command(bench, shapes)
    remove(bench.work / "names.weald")


def one_command(bench: Bench, shapes: Shapes) -> None:
    """Cost of other commands on the same images."""
    columns = [
        Column("one command", ""),
        Column("CPU s", "cpu_s"),
        Column("wall s", "wall_s"),
        Column("memory MiB", "peak_mib", 1),
    ]
    table = Table("commands", "Commands that read an image", columns)

    def row(label: str, *words: os.PathLike[str] | str) -> Usage:
        used = bench.measure(bench.weald.command(*words))
        cells = {"cpu_s": [used.cpu_s], "wall_s": [used.wall_s], "peak_mib": [used.peak_mib]}
        table.rows.append(Row(label, label, cells))
        return used

    for name in ("regular", "names"):
        image, same = bench.work / f"{name}.weald", bench.work / "same.weald"
        row(f"{name}: info", "info", image)
        used = row(f"{name}: check", "check", image)
        if name == "regular":
            bench.at_most(f"{shapes.regular}: check, wall s", used.wall_s, 1)
        row(f"{name}: ls of the root", "ls", image)
        bench.quiet(["cp", image, same])
        row(f"{name}: diff with an equal one", "diff", image, same)
        remove(same)
        target = bench.work / "extracted"
        target.mkdir()
        one = f"{name}: extract one file"
        row(one, "extract", "--quiet", image, target, path_in(bench, image))
        remove(target)
    bench.show(table)


def path_in(bench: Bench, image: os.PathLike[str], number: int = 4242) -> str:
    """The path of one file of an image."""
    command = bench.weald.command("find", image, "--type", "f", "--print0")
    finding = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=bench.meter.log)
    assert finding.stdout
    rest, found = number, b""
    buffer = b""
    while piece := finding.stdout.read(1 << 16):
        *names, buffer = (buffer + piece).split(b"\0")
        if names:
            found = names[min(rest, len(names)) - 1]
            rest -= len(names)
        if rest <= 0:
            break
    finding.stdout.close()
    finding.wait()
    return os.fsdecode(found)


def numbers(bench: Bench, source: Source) -> str:
    """Returns a digest of the inode numbers of the top directories and of one leaf far from the
    first one."""
    with mounted(bench, source):
        top = sorted(os.scandir(bench.mnt), key=lambda entry: entry.name)
        leaf = [entry for entry in top if entry.name.endswith("7")][0].path
        below = sorted(name for name in os.listdir(leaf) if name.endswith("7"))[0]
        entries = [(entry.name, entry.inode()) for entry in top]
        for name in sorted(os.listdir(os.path.join(leaf, below))):
            entries.append((name, os.lstat(os.path.join(leaf, below, name)).st_ino))
        return hashlib.blake2b(repr(entries).encode()).hexdigest()


def mount(bench: Bench, shapes: Shapes) -> None:
    """Forests mounted."""
    say("== mounting")
    regular_image(bench, shapes)
    found = served(bench, "regular.weald")
    columns = [
        Column("image", ""),
        Column("mount and first ls, ms", "ms", 1),
        Column("stat of a random path, us", "there_us", 1),
        Column("of an absent name, us", "absent_us", 1),
        Column("server MiB", "server_mib", 1),
    ]
    table = Table("forest-mount", "Forests mounted, cold", columns)
    table.rows.append(Row("regular", shapes.regular, dict(found)))
    bench.show(table)
    name = shapes.regular
    bench.at_most(f"{name}: mount and first ls, ms", stats.median(found["ms"]), 50, 0)
    bench.at_most(f"{name}: memory of the server, MiB", found["server_mib"][0], 256, 1)
    source = weald_source(bench.weald, bench.work / "regular.weald")
    same = numbers(bench, source) == numbers(bench, source)
    bench.true(f"{name}: inode numbers after mounting again are the same", same)
    walked(bench, shapes.served)


def walked(bench: Bench, fanout: str) -> None:
    """`find` with sizes over a mount, beside the stub."""
    image = bench.work / "served.weald"
    draw(bench, image, fanout)
    leaf = int(fanout.rsplit("x", 1)[1])
    sources = [
        weald_source(bench.weald, image),
        stub_source(bench, file_count(fanout) // leaf, leaf),
    ]
    samples = {source.id: Samples() for source in sources}
    command = ["find", bench.mnt, "-mindepth", "1", "-size", "+1000000c", "-print"]

    def walk(source: Source) -> None:
        used, _ = on_mount(bench, source, lambda: bench.meter.pipe(command))
        samples[source.id].add(wall_s=used.wall_s)

    steps = steps_of(sources, walk)
    bench.by_turns(steps, WALK_ROUNDS)
    expected = int(output(bench.weald.command("find", image, "--count")))
    with mounted(bench, sources[0]):
        script = "find \"$1\" -printf '%i\\n' | sort -n -u | wc -l"
        distinct = int(output(["sh", "-c", script, "sh", bench.mnt]))
    bench.equal(f"{fanout}: different inode numbers", distinct, expected)
    columns = [
        Column("find -size over a mount", ""),
        Column("entries", "entries"),
        Column("wall s", "wall_s", 3),
        Column("× stub", "wall_s", 2, to="stub"),
    ]
    table = Table("walk", f"find -size over a mount of {fanout}", columns)
    fill(table, sources, samples, steps, lambda _: {"entries": str(expected)})
    bench.show(table)
    # The least of the rounds: what disturbs a run only adds.
    own = min(table.samples("weald", "wall_s"), default=None)
    stubs = min(table.samples("stub", "wall_s"), default=None)
    rate = stats.ratio(stubs, own)
    bench.at_least(f"{fanout}: find over the mount, rate against the stub", rate, 0.90)
    remove(image)
