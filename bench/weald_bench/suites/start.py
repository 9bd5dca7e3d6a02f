"""The part `start` of the suite `mount`: starting programs from a mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.corpora import forests
from weald_bench.measure import CommandFailed, drop_caches, measure_machine, output, process_cpu
from weald_bench.mounts import Samples, Source, kernel_source, mounted, on_mount, weald_source
from weald_bench.result import Column, Table
from weald_bench.rivals import ext4
from weald_bench.runner import Step
from weald_bench.suites.common import against_baseline, fill, ratio_columns, remove, steps_of

START_ROUNDS = 9
WARM_STARTS = 3
SLOW_ROUNDS = 3
STARTS_AT_ONCE = 20
#: Rate of slow storage per second.
SLOW_MIB = 200
SQUASHFS = ("squashfs-128K", "squashfs-1M")


def run(bench: Bench) -> None:
    """Runs the part."""
    say("== starting programs")
    programs = bench.work / "programs"
    programs.mkdir()
    copy_programs(bench, programs)
    count = len(list(programs.iterdir()))
    sources = images(bench, programs)
    samples = {source.id: Samples() for source in sources}

    def start(source: Source) -> None:
        drop_caches()
        with mounted(bench, source) as mount:
            before = process_cpu(mount.pid)
            used = measure_machine(lambda: start_all(bench))
            server = process_cpu(mount.pid) - before
            samples[source.id].add(cold_s=used.wall_s, cpu_s=used.cpu_s, server_s=server)
            for _ in range(WARM_STARTS):
                used = measure_machine(lambda: start_all(bench))
                samples[source.id].add(warm_s=used.wall_s, warm_cpu_s=used.cpu_s)

    steps = steps_of(sources, start)
    bench.by_turns(steps, START_ROUNDS)
    from_slow_storage(bench, sources, steps, samples)
    table = table_of(bench, count)
    fill(table, sources, samples, steps, lambda one: {"mb": [used_mb(one.image)]})
    bench.show(table)
    checks(bench, table)
    remove(programs)
    for path in bench.work.glob("start.*"):
        remove(path)


def copy_programs(bench: Bench, target: Path) -> None:
    """One file for each version of each program. A trial takes programs of the machine."""
    if bench.is_tiny:
        found = [Path("/bin/cat"), Path("/bin/ls"), Path("/usr/bin/tar")]
    else:
        found = forests.programs(bench.options.out)
    for path in found:
        name = "-".join(path.parts[1:])
        bench.quiet(["install", "-m", "755", path, target / name])


def images(bench: Bench, programs: Path) -> list[Source]:
    """Both profiles of Weald, SquashFS with two sizes of blocks, ext4."""
    sources = []
    for weald in bench.wealds():
        for profile, words in (("default", []), ("interactive", ["--profile", "interactive"])):
            image = bench.work / f"start.{weald.name}-{profile}"
            bench.quiet(weald.build(*words, programs, image))
            label = f"{weald.label}, {profile}"
            sources.append(weald_source(weald, image, f"{weald.name}-{profile}", label))
    if bench.wants("squashfs-zstd"):
        quiet = ["-no-progress", "-quiet"]
        for block in ("128K", "1M"):
            image = bench.work / f"start.squashfs-{block}"
            label = f"SquashFS zstd, {block}iB"
            sources.append(kernel_source("squashfs", image, f"squashfs-{block}", label))
            sources[-1].problem = bench.problem_of("squashfs-zstd")
            if not sources[-1].problem:
                bench.quiet(["mksquashfs", programs, image, "-comp", "zstd", "-b", block, *quiet])
    if bench.wants("ext4"):
        image = bench.work / "start.ext4"
        sources.append(kernel_source("ext4", image, "ext4", "ext4"))
        sources[-1].problem = bench.problem_of("ext4")
        if not sources[-1].problem:
            bench.quiet(ext4.Ext4().packing(programs, image, bench.work).command)
    return sources


def start_all(bench: Bench) -> None:
    """Starts every program once, several at a time."""
    names = sorted(os.fspath(path) for path in bench.mnt.iterdir())
    running: list[subprocess.Popen[bytes]] = []
    for name in (one for one in names if os.path.isfile(one)):
        if len(running) >= STARTS_AT_ONCE:
            ended(running.pop(0))
        running.append(subprocess.Popen([name, "--version"], stdout=subprocess.DEVNULL))
    for program in running:
        ended(program)


def ended(program: subprocess.Popen[bytes]) -> None:
    """Waits for a program, which must succeed."""
    if program.wait() != 0:
        raise CommandFailed(f"{program.args}: exit status {program.returncode}")


def device_of(path: Path) -> str:
    """Major and minor number of the disk that a directory lies on."""
    device = output(["findmnt", "-nro", "MAJ:MIN", "-T", path]).strip()
    block = Path(f"/sys/dev/block/{device}")
    if (block / "partition").exists():
        device = (block / ".." / "dev").resolve().read_text().strip()
    return device


@contextmanager
def slow_storage(path: Path) -> Iterator[None]:
    """Limits the bytes a second that this process and its children read from the disk of a
    directory, while the context is entered. A virtual machine needs the limit: data that are "cold"
    in it may lie in the memory of its host, and then storage seems to cost nothing."""
    device, limit = device_of(path), SLOW_MIB << 20
    name = f"weald-bench-{os.getpid()}"
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        own = Path("/proc/self/cgroup").read_text().split("0::", 1)[1].split("\n")[0]
        home, group = root / own.lstrip("/"), root / name
        (root / "cgroup.subtree_control").write_text("+io")
        setting, value = "io.max", f"{device} rbps={limit}"
    else:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line.split(":", 2)[2] for line in lines if ":blkio:" in line)
        home, group = root / "blkio" / own.lstrip("/"), root / "blkio" / name
        setting, value = "blkio.throttle.read_bps_device", f"{device} {limit}"
    group.mkdir()
    try:
        (group / setting).write_text(value)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def from_slow_storage(
    bench: Bench, sources: list[Source], steps: list[Step], samples: dict[str, Samples]
) -> None:
    """The same, cold, from slow storage. Without control groups its figures are missing."""

    def start_slowly(source: Source) -> None:
        used, _ = on_mount(bench, source, lambda: start_all(bench))
        samples[source.id].add(slow_s=used.wall_s)

    try:
        with slow_storage(bench.work):
            failed = [step.id for step in steps if step.problem]
            slow = steps_of([one for one in sources if one.id not in failed], start_slowly)
            bench.by_turns(slow, SLOW_ROUNDS)
    except (OSError, StopIteration, IndexError) as error:
        bench.result.failures.append(f"start: storage could not be slowed down: {error}")


def used_mb(image: Path) -> float:
    """Space of an image on storage; for ext4, only the blocks in use."""
    return image.stat().st_blocks * 512 / 1e6


def table_of(bench: Bench, count: int) -> Table:
    """The table without its rows."""
    baselines = [("squashfs-1M", "SquashFS 1 MiB"), *against_baseline(bench)]
    return Table(
        "start",
        f"Starting {count} programs, {STARTS_AT_ONCE} at a time",
        [
            Column("image", ""),
            Column("MB", "mb", 1),
            Column("cold, s", "cold_s", 3),
            *ratio_columns("cold_s", baselines),
            Column("CPU s", "cpu_s"),
            Column("of it the server", "server_s"),
            Column("warm, s", "warm_s", 3),
            Column("CPU s", "warm_cpu_s"),
            Column(f"cold at {SLOW_MIB} MiB/s, s", "slow_s", 3),
        ],
        plot={"kind": "bars", "key": "cold_s", "unit": "all programs started, cold, seconds"},
    )


def checks(bench: Bench, table: Table) -> None:
    """Both profiles against the better of SquashFS, and warm against ext4."""

    def middle(row: str, key: str) -> float | None:
        return stats.median(table.samples(row, key))

    def slow(row: str) -> float | None:
        return min(table.samples(row, "slow_s"), default=None)

    def best(found: list[float | None]) -> float | None:
        return min((value for value in found if value is not None), default=None)

    for profile in ("default", "interactive"):
        row = f"weald-{profile}"
        if bench.wants("squashfs-zstd"):
            for figure, key in (("cold", "cold_s"), ("CPU", "cpu_s")):
                rival = best([middle(name, key) for name in SQUASHFS])
                found = stats.ratio(middle(row, key), rival)
                bench.at_most(f"start, {profile}: {figure} against SquashFS", found, 1.00)
            found = stats.ratio(slow(row), best([slow(name) for name in SQUASHFS]))
            bench.at_most(f"start, {profile}: from slow storage against SquashFS", found, 1.00)
        if bench.wants("ext4"):
            found = stats.ratio(middle(row, "warm_s"), middle("ext4", "warm_s"))
            bench.at_most(f"start, {profile}: warm against ext4", found, 1.05)
