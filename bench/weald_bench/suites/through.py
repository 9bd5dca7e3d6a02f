"""The part `through` of the suite `mount`: what FUSE passthrough would gain (docs/design/0016).

Nothing is asked of it: Weald does not use passthrough. It needs Linux 6.9 or later.
"""

from __future__ import annotations

import mmap
import os
import time
from functools import partial
from pathlib import Path

from weald_bench.bench import Bench, say
from weald_bench.measure import output
from weald_bench.mounts import Samples, Source, mounted
from weald_bench.result import Column, Row, Table
from weald_bench.runner import Step

ROUNDS = 3
PIECE = 1 << 20
#: Workloads: number of files, their length in bytes, and whether they are mapped instead of read.
WORKLOADS = ((1, 1 << 30, False), (20_000, 4096, False), (60, 20 << 20, True))
#: The readahead of a mount of Weald, in KiB.
READAHEAD_KIB = "1024"
LABELS = {
    "plain": "plain: the kernel opens, the server answers reads",
    "opened": "opened: the server is asked for each open too",
    "through": "through: the kernel reads the file that the server ties to it",
}


def read_all(root: Path, count: int, length: int) -> float:
    """Seconds of reading all files in full."""
    buffer = bytearray(min(PIECE, length))
    start = time.perf_counter()
    for number in range(count):
        file = os.open(root / str(number), os.O_RDONLY)
        while os.readv(file, [buffer]) > 0:
            pass
        os.close(file)
    return time.perf_counter() - start


def map_all(root: Path, count: int, length: int) -> float:
    """Returns the seconds that it takes to map all files and to read a byte of every page, as the
    start of a program does."""
    start = time.perf_counter()
    for number in range(count):
        file = os.open(root / str(number), os.O_RDONLY)
        with mmap.mmap(file, length, prot=mmap.PROT_READ) as mapped:
            sum(mapped[:: mmap.PAGESIZE])
        os.close(file)
    return time.perf_counter() - start


def run(bench: Bench) -> None:
    """Runs the part."""
    say("== passthrough")
    program = bench.compiled("passthrough.c")
    samples = {how: Samples() for how in LABELS}
    shrink = bench.sized(1, 100)

    def measure(how: str) -> None:
        for index, (count, length, is_mapped) in enumerate(WORKLOADS):
            count = max(1, count // shrink)
            length = max(4096, length // shrink // 4096 * 4096)
            script = f'exec "$0" "$1" {how} {count} {length} 3'
            command = ["sh", "-c", script, str(program)]
            with mounted(bench, Source(how, how, "stub", Path(), command)):
                device = output(["stat", "-c", "%Hd:%Ld", bench.mnt]).strip()
                Path(f"/sys/class/bdi/{device}/read_ahead_kb").write_text(READAHEAD_KIB)
                if is_mapped:
                    samples[how].add(**{f"first{index}": map_all(bench.mnt, count, length)})
                    continue
                for time in ("first", "again"):
                    samples[how].add(**{f"{time}{index}": read_all(bench.mnt, count, length)})

    steps = [Step(how, partial(measure, how)) for how in LABELS]
    bench.by_turns(steps, ROUNDS)
    table = Table(
        "passthrough",
        "Files that the kernel reads by itself (FUSE passthrough), all in memory before, seconds",
        [
            Column("opens and reads", ""),
            Column("a GiB", "first0", 4),
            Column("again", "again0", 4),
            Column("20,000 files of 4 KiB", "first1", 4),
            Column("again", "again1", 4),
            Column("60 files of 20 MiB mapped", "first2", 4),
        ],
    )
    for step in steps:
        cells = dict(samples[step.id].cells)
        table.rows.append(Row(step.id, LABELS[step.id], cells, step.problem))
    bench.show(table)
