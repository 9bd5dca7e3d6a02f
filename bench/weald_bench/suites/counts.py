"""The parts `counts` and `host` of the suite `forest`: what files cost by their number, in images
and in file systems of the kernel."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.corpora.generated import draw, file_count
from weald_bench.measure import drop_caches, measure_machine
from weald_bench.mounts import Samples, unmount
from weald_bench.result import Column, Row, Table
from weald_bench.runner import Step
from weald_bench.suites.common import remove
from weald_bench.suites.served import served

FILE_SYSTEMS = ("ext4", "xfs", "btrfs")
HOST_COUNTS = ("1x10x1000", "1x100x1000", "1x1000x1000")
#: Interleaved rounds: rates of file systems differ by a tenth from run to run.
HOST_ROUNDS = 25
SHAPES = ("regular", "names", "versions")
#: Size of an ext4 inode in bytes; mkfs allocates all inodes.
EXT4_INODE_LEN = 256


@contextmanager
def new_file_system(bench: Bench, kind: str) -> Iterator[Path]:
    """A new file system in a file of 16 GiB, or in memory."""
    point, file = bench.work / "host", bench.work / "host.file"
    point.mkdir(exist_ok=True)
    if kind == "tmpfs":
        options = "size=4g,nr_inodes=0"
        bench.quiet(["mount", "-t", "tmpfs", "-o", options, "weald-bench", point])
    else:
        with open(file, "wb") as made:
            made.truncate(16 << 30)
        words = ["-q", "-F", "-N", "2500000"] if kind == "ext4" else ["-q"]
        bench.quiet([f"mkfs.{kind}", *words, file])
        bench.quiet(["mount", "-o", "loop,noatime", file, point])
    try:
        yield point
    finally:
        unmount(point)
        remove(file)


def used_bytes(path: Path) -> int:
    """Bytes in use in a file system."""
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def processors() -> str:
    """Number of threads of the loop."""
    return str(len(os.sched_getaffinity(0)))


def missing(kind: str) -> str | None:
    """Why a file system cannot be measured."""
    tool = f"mkfs.{kind}"
    if kind == "tmpfs" or shutil.which(tool):
        return None
    return f"missing: {tool} is not on PATH"


def run(bench: Bench, fanouts: tuple[str, ...]) -> None:
    """Runs the part `counts`."""
    say("== cost against count")
    on_hosts(bench)
    in_images(bench, fanouts)


def on_hosts(bench: Bench) -> None:
    """Files that a loop makes in file systems of the kernel."""
    loop = bench.compiled("loop.c")
    columns = [
        Column("file system, by the loop", ""),
        Column("files", "files", 0),
        Column("made a second", "rate", 0),
        Column("bytes a file", "each", 1),
        Column("find, cold, s", "find_s", 3),
        Column("du, cold, s", "du_s", 3),
        Column("rm -r, cold, s", "rm_s", 3),
    ]
    table = Table("host-counts", "Files in file systems of the kernel", columns)
    table.plot = {
        "kind": "lines",
        "x": "files",
        "y": "find_s",
        "x_title": "files",
        "unit": "find, cold, seconds",
    }
    for kind in FILE_SYSTEMS:
        problem = missing(kind)
        if problem:
            bench.result.missing[kind] = problem.removeprefix("missing: ")
            table.rows.append(Row(kind, kind, {}, problem))
            continue
        for fanout in HOST_COUNTS[: bench.sized(len(HOST_COUNTS), 1)]:
            say(f"   {kind} {file_count(fanout)}")
            with new_file_system(bench, kind) as point:
                cells = host_cells(bench, loop, kind, point, fanout)
            table.rows.append(Row(f"{kind}-{fanout}", kind, cells))
    bench.show(table)


def host_cells(
    bench: Bench, loop: Path, kind: str, point: Path, fanout: str
) -> dict[str, list | str]:
    """Makes files by the loop, finds and counts them, and removes them."""
    count, before = file_count(fanout), used_bytes(point)
    command = [loop, point, *fanout.split("x"), processors()]
    made = measure_machine(lambda: bench.quiet(command)).wall_s
    os.sync()
    each = (used_bytes(point) - before) / count
    times = []
    for action in (
        ["find", point, "-size", "+1000000c"],
        ["du", "-s", point],
        # The loop creates its files below directory 0.
        ["rm", "-r", point / "0"],
    ):
        drop_caches()
        times.append(measure_machine(lambda action=action: bench.quiet(action)).wall_s)
    return {
        "files": [count],
        "rate": [stats.per(count, made)],
        "each": [each + (EXT4_INODE_LEN if kind == "ext4" else 0)],
        "find_s": [times[0]],
        "du_s": [times[1]],
        "rm_s": [times[2]],
    }


def shape_words(shape: str, fanout: str) -> tuple[str, list[str]]:
    """The fan-out and the options of one shape with as many files as the fan-out has."""
    if shape == "names":
        return fanout, ["--names", "hex"]
    if shape == "versions":
        # Ten versions of a tree of a tenth of the files.
        head, last = fanout.rsplit("x", 1)
        words = ["--names", "words", "--versions", "10", "--name-changes", "0.02"]
        return f"{head}x{int(last) // 10}", words
    return fanout, []


def in_images(bench: Bench, fanouts: tuple[str, ...]) -> None:
    """Images by the number of their files: building, mounting, looking up."""
    columns = [
        Column("shape", ""),
        Column("files", "files", 0),
        Column("build, wall s", "wall_s"),
        Column("CPU s", "cpu_s"),
        Column("memory MiB", "peak_mib", 1),
        Column("image bytes", "bytes", 0),
        Column("bytes a file", "each", 4),
        Column("mount ms", "ms", 1),
        Column("look-up us", "there_us", 1),
        Column("server MiB", "server_mib", 1),
    ]
    table = Table("image-counts", "Images by the number of files", columns)
    table.plot = {
        "kind": "lines",
        "x": "files",
        "y": "bytes",
        "x_title": "files",
        "unit": "bytes of the image",
    }
    image = bench.work / "counted.weald"
    # 10^9 of those that hardly have two directories alike take most of an hour.
    for shape in SHAPES:
        for fanout in fanouts:
            count = file_count(fanout)
            say(f"   {shape} {count}")
            drawn, words = shape_words(shape, fanout)
            used = draw(bench, image, drawn, *words)
            length = image.stat().st_size
            found = served(bench, image.name)
            cells = {
                "files": [count],
                "wall_s": [used.wall_s],
                "cpu_s": [used.cpu_s],
                "peak_mib": [used.peak_mib],
                "bytes": [length],
                "each": [length / count],
                **found,
            }
            table.rows.append(Row(f"{shape}-{count}", shape, cells))
            remove(image)
            if count >= 1_000_000_000:
                ms, mib = stats.median(found["ms"]), found["server_mib"][0]
                bench.at_most(f"{count}, {shape}: mount and first ls, ms", ms, 50, 0)
                bench.at_most(f"{count}, {shape}: memory of the server, MiB", mib, 256, 1)
    bench.show(table)


def host(bench: Bench) -> None:
    """Runs the part `host`: the generator and the loop by turns, each in a new file system."""
    say("== files on a host")
    loop = bench.compiled("loop.c")
    columns = [
        Column("file system", ""),
        Column("files", "files"),
        Column("weald forest, files a second", "own", 0),
        Column("the loop", "loop", 0),
    ]
    title = "Empty files in a file system, by the generator and by a loop in C"
    table = Table("host", title, columns)
    for kind in (*FILE_SYSTEMS, "tmpfs"):
        problem = missing(kind)
        if problem:
            table.rows.append(Row(kind, kind, {}, problem))
            bench.result.missing[kind] = problem.removeprefix("missing: ")
        else:
            table.rows.append(host_row(bench, kind, loop))
        own, loops = (stats.median(table.samples(kind, key)) for key in ("own", "loop"))
        rate = stats.ratio(own, loops)
        bench.at_least(f"{kind}: files a second against the loop", rate, 1.00)
    bench.show(table)


def host_row(bench: Bench, kind: str, loop: Path) -> Row:
    """Measures one file system. tmpfs gets more files, because the start of a program would take a
    hundredth of the time of 200,000 files in memory."""
    leaves = bench.sized(100 if kind == "tmpfs" else 20, 1)
    count = 10 * leaves * 1000
    samples = Samples()
    # The loop sets no times. Both begin at the root of the file system: ext4 keeps apart what lies
    # right below it.
    words = ["forest", "--quiet", "--times", "now", "--fanout", f"10x{leaves}x1000"]
    own: Callable[[Path], list] = lambda point: bench.weald.command(*words, point)  # noqa: E731
    loops: Callable[[Path], list] = lambda point: [  # noqa: E731
        *(loop, point, "10", str(leaves), "1000", processors())
    ]

    def make(key: str, command: Callable[[Path], list]) -> None:
        with new_file_system(bench, kind) as point:
            used = measure_machine(lambda: bench.quiet(command(point)))
        samples.add(**{key: count / used.wall_s})

    steps = [
        Step(f"{kind} generator", lambda: make("own", own)),
        Step(f"{kind} loop", lambda: make("loop", loops)),
    ]
    bench.by_turns(steps, HOST_ROUNDS)
    problem = steps[0].problem or steps[1].problem
    return Row(kind, kind, {"files": str(count), **samples.cells}, problem)
