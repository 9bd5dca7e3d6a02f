"""The part `many` of the suite `mount`: a hundred images in one server."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from weald_bench.bench import Bench, say
from weald_bench.corpora import made
from weald_bench.measure import CommandFailed, measure_machine
from weald_bench.result import Column, Row, Table
from weald_bench.suites.common import remove

MANY = 100
ROUNDS = 4
CACHE_MIB = 64
READERS = 8
SERVER_TIMEOUT_S = 60

Digests = dict[str, dict[str, str]]


def run(bench: Bench) -> None:
    """Runs the part: mounts all images, reads them in full and unmounts them, several times."""
    count, rounds = bench.sized(MANY, 5), bench.sized(ROUNDS, 2)
    say("== many images")
    directory = bench.work / "many"
    directory.mkdir()
    digests = images(bench, directory, count)
    table = Table(
        "many-images",
        f"{count} images in one server, --cache {CACHE_MIB}M",
        [
            Column("round", ""),
            Column("mounting, s", "mount_s"),
            Column("reading all, s", "read_s"),
            Column("memory MiB", "mib", 1),
            Column("descriptors", "open", 0),
            Column("descriptors without mounts", "left", 0),
        ],
    )
    server = serve(bench)
    try:
        for round in range(rounds):
            row = one_round(bench, directory, digests)
            table.rows.append(Row(str(round + 1), str(round + 1), row))
    finally:
        stop(server)
    bench.show(table)
    highest = max(table.samples(row.id, "mib")[0] for row in table.rows)
    bench.at_most(f"{count} images: memory, MiB", highest, CACHE_MIB + 512, 1)
    left = [table.samples(row.id, "left")[0] for row in table.rows]
    figure = f"{count} images: descriptors left, more than after the first round"
    bench.at_most(figure, left[-1] - left[0], 0, 0)
    remove(directory)
    for point in bench.mnt.iterdir():
        point.rmdir()


def images(bench: Bench, directory: Path, count: int) -> Digests:
    """Makes different images of a few files, 100 KB to 1 MB; returns the digests of files."""
    digests: Digests = {}
    source = bench.work / "source"
    for index in range(1, count + 1):
        source.mkdir()
        for file in range(1, 6):
            # Half of it compresses; every byte depends on both numbers.
            noise = source / str(file)
            made.random_bytes(bench, noise, 20000 * file + 1000 * index, f"{index:04x}{file:02x}")
            text = "".join(f"{index}.{file}.{line}\n" for line in range(1, 5001))
            (source / f"{file}.text").write_text(text)
        digests[str(index)] = {path.name: digest(path) for path in source.iterdir()}
        bench.quiet(bench.weald.build(source, directory / f"{index}.weald"))
        remove(source)
    return digests


def digest(path: Path) -> str:
    """The digest of a file."""
    return hashlib.blake2b(path.read_bytes()).hexdigest()


def serve(bench: Bench) -> subprocess.Popen[bytes]:
    """Starts a server for all mounts."""
    server = subprocess.Popen(
        bench.weald.command("serve", "--cache", f"{CACHE_MIB}M"),
        stdin=subprocess.DEVNULL,
        stdout=bench.meter.log,
        stderr=bench.meter.log,
    )
    end = time.monotonic() + SERVER_TIMEOUT_S
    while not bench.weald.mounts("server"):
        if server.poll() is not None or time.monotonic() > end:
            server.kill()
            server.wait()
            raise CommandFailed(f"weald serve did not start: see {bench.meter.log_name}")
        time.sleep(0.01)
    return server


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ends the server, which must end well."""
    server.send_signal(signal.SIGTERM)
    if server.wait(timeout=SERVER_TIMEOUT_S) != 0:
        raise CommandFailed(f"weald serve: exit status {server.returncode}")


def state(bench: Bench) -> dict[str, Any]:
    """Report of the server."""
    return bench.weald.mounts("server")[0]


def one_round(bench: Bench, directory: Path, digests: Digests) -> dict[str, list]:
    """Mounts, reads and unmounts all images; the cells of its row."""

    def mount_all() -> None:
        for name in digests:
            point = bench.mnt / name
            point.mkdir(exist_ok=True)
            bench.quiet(bench.weald.command("mount", directory / f"{name}.weald", point))

    def read_one(name: str) -> None:
        for file, expected in digests[name].items():
            if digest(bench.mnt / name / file) != expected:
                raise CommandFailed(f"image {name}: {file} was read wrongly")

    def read_all() -> None:
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(read_one, digests))

    mounting, reading = measure_machine(mount_all), measure_machine(read_all)
    full = state(bench)
    for name in digests:
        bench.quiet(bench.weald.command("umount", bench.mnt / name))
    return {
        "mount_s": [mounting.wall_s],
        "read_s": [reading.wall_s],
        "mib": [full["resident_len"] / (1 << 20)],
        "open": [full["descriptor_count"]],
        "left": [state(bench)["descriptor_count"]],
    }
