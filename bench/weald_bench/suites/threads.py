"""The part `threads` of the suite `build`: what more processors give, beside DwarFS."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.measure import warm
from weald_bench.mounts import Samples
from weald_bench.result import Column, Row, Table
from weald_bench.rivals.dwarfs import Dwarfs
from weald_bench.runner import Step
from weald_bench.suites.common import DEFAULT, content_len, remove

ROUNDS = 3


def thread_counts() -> list[int]:
    """1, 2, 4 and so on, up to the processors of this machine."""
    most = len(os.sched_getaffinity(0))
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if most == 1 else [*counts, most]


def on(count: int) -> list[str]:
    """The words that let a command see so many processors."""
    allowed = sorted(os.sched_getaffinity(0))[:count]
    return ["taskset", "-c", ",".join(map(str, allowed))]


def run(bench: Bench, tree: Path) -> None:
    """Builds, extracts and checks with 1, 2, 4 … processors, everything in the cache."""
    say("== threads")
    image, packed = bench.work / f"threads.{DEFAULT}", bench.work / "threads.dwarfs"
    as_tar = 'exec "$0" tar "$1" >/dev/null'
    commands = {
        "build": bench.weald.build("--force", tree, image),
        "check": bench.weald.command("check", "--quiet", image),
        "extract": ["sh", "-c", as_tar, str(bench.weald.binary), str(image)],
    }
    labels = {"build": "Weald: build", "check": "Weald: check", "extract": "Weald: all as tar"}
    rivals = (rival for rival in bench.rivals if isinstance(rival, Dwarfs))
    rival = next(rivals, None)
    if rival is not None and not rival.problem():
        commands["dwarfs-build"] = rival.packing(tree, packed, bench.work).command
        labels["dwarfs-build"] = f"{rival.label}: build"
        read = rival.read_command(packed)
        if read is not None:
            commands["dwarfs-extract"] = read
            labels["dwarfs-extract"] = f"{rival.label}: all as tar"
    counts = thread_counts()
    samples = {(id, count): Samples() for id in commands for count in counts}

    def once(id: str, count: int) -> None:
        if id == "dwarfs-build" and packed.exists():
            packed.unlink()
        used = bench.measure([*on(count), *commands[id]])
        samples[id, count].add(wall_s=used.wall_s, cpu_s=used.cpu_s)

    # Each image is built before it is read.
    for id in commands:
        steps = [Step(f"{id}-{count}", partial(once, id, count)) for count in counts]
        if image.exists():
            warm(image)
        bench.by_turns(steps, ROUNDS)
    show(bench, content_len(tree), labels, samples, counts)
    for path in (image, packed):
        remove(path)


def show(
    bench: Bench,
    length: int,
    labels: dict[str, str],
    samples: dict[tuple[str, int], Samples],
    counts: list[int],
) -> None:
    """Adds the table: a row for each command, columns for each number of processors."""
    columns = [Column("command", "")]
    for count in counts:
        columns.append(Column(f"{count}: wall s", f"wall_{count}"))
    columns += [Column("CPU s, all", "cpu_s"), Column(f"1 against {counts[-1]}", "gain")]
    columns.append(Column("against DwarFS, all", "ratio"))
    title = f"The first corpus ({length / 1e6:.0f} MB) by processors, in memory"
    table = Table("threads", title, columns)
    for id, label in labels.items():
        cells: dict[str, list[float]] = {}
        walls = {count: samples[id, count].cells.get("wall_s", []) for count in counts}
        for count, wall in walls.items():
            cells[f"wall_{count}"] = wall
        cells["cpu_s"] = samples[id, counts[-1]].cells.get("cpu_s", [])
        alone, all_of = stats.median(walls[1]), stats.median(walls[counts[-1]])
        gain = stats.ratio(alone, all_of)
        cells["gain"] = [gain] if gain is not None else []
        other = samples.get((f"dwarfs-{id}", counts[-1]))
        ratio = stats.ratio(all_of, stats.median(other.cells.get("wall_s", [])) if other else None)
        cells["ratio"] = [ratio] if ratio is not None else []
        table.rows.append(Row(id, label, cells))
    bench.show(table)
