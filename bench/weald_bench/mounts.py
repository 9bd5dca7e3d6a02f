"""Mounts to measure on: of Weald, of the stub, of the kernel's file systems, of DwarFS."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weald_bench.bench import Bench
from weald_bench.measure import (
    CommandFailed,
    Usage,
    drop_caches,
    measure_machine,
    process_cpu,
    warm,
)
from weald_bench.rivals.weald import Weald

#: Length of the file `big` of the stub.
STUB_BIG_LEN = 1 << 30

#: Longest time until a server has mounted.
MOUNT_TIMEOUT_S = 120


@dataclass
class Source:
    """Something that can be mounted: the kind of file system and the image. A source that a server
    serves also has the command of the server in the foreground and the command that a user types;
    the runner appends the mount point to both."""

    id: str
    label: str
    kind: str
    image: Path
    command: list[str] | None = None
    user_command: list[str] | None = None
    problem: str | None = None


def weald_source(
    weald: Weald, image: Path, id: str = "", label: str = "", words: Sequence[str] = ()
) -> Source:
    """An image of Weald."""
    command = weald.command("mount", "--foreground", *words, image)
    # Servers of two versions need not speak the same protocol: each binary has its own.
    run_dir = image.parent / f"run-{weald.name}"
    run_dir.mkdir(mode=0o700, exist_ok=True)
    user_command = ["env", f"WEALD_RUNTIME_DIR={run_dir}", *weald.command("mount", *words, image)]
    return Source(id or weald.name, label or weald.label, "weald", image, command, user_command)


def kernel_source(kind: str, image: Path, id: str = "", label: str = "") -> Source:
    """An image of a file system of the kernel, through a loop device."""
    return Source(id or kind, label or kind, kind, image)


def kernel_mount(source: Source) -> list[str]:
    """The command that mounts an image of a file system of the kernel; the mount point follows."""
    return ["mount", "-t", source.kind, "-o", "loop,ro", str(source.image)]


def stub_source(bench: Bench, dirs: int, files: int) -> Source:
    """The stub (crates/fuse/examples/stub.rs): empty files that it computes, without an image."""
    stub = bench.options.stub
    if stub is None or not stub.is_file():
        raise CommandFailed("the stub is missing: 'make bench-mount' builds it, --stub names it")
    # The mount point comes before the counts.
    script = f'exec "$0" "$1" {dirs} {files} 0'
    return Source("stub", "stub without an image", "stub", Path(), ["sh", "-c", script, str(stub)])


@dataclass
class Mounted:
    """A mount, with the process that serves it, where there is one."""

    point: Path
    pid: int | None


@contextmanager
def mounted(bench: Bench, source: Source) -> Iterator[Mounted]:
    """Mounts a source on the mount point of the run."""
    server = None
    if source.command is not None:
        server = subprocess.Popen(
            [*source.command, str(bench.mnt)],
            stdin=subprocess.DEVNULL,
            stdout=bench.meter.log,
            stderr=bench.meter.log,
        )
        wait_for_mount(bench, server, source)
    elif source.kind == "dir":
        bench.quiet(["mount", "--bind", "-o", "ro", source.image, bench.mnt])
    else:
        bench.quiet([*kernel_mount(source), bench.mnt])
    try:
        yield Mounted(bench.mnt, server.pid if server else None)
    finally:
        unmount(bench.mnt)
        if server:
            server.wait(timeout=MOUNT_TIMEOUT_S)


def wait_for_mount(bench: Bench, server: subprocess.Popen[bytes], source: Source) -> None:
    """Waits until a server has mounted."""
    end = time.monotonic() + MOUNT_TIMEOUT_S
    while not os.path.ismount(bench.mnt):
        if server.poll() is not None or time.monotonic() > end:
            server.kill()
            server.wait()
            raise CommandFailed(f"{source.label}: the mount failed: see {bench.meter.log_name}")
        time.sleep(0.002)


def unmount(point: Path) -> None:
    """Unmounts; a mount that is busy for a moment is tried again."""
    for _ in range(50):
        if subprocess.run(["umount", str(point)], check=False, capture_output=True).returncode == 0:
            return
        time.sleep(0.1)
    raise CommandFailed(f"{point}: could not be unmounted")


@dataclass
class Samples:
    """Samples of one row by column."""

    cells: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **values: float) -> None:
        """Adds one sample to each of these columns."""
        for key, value in values.items():
            self.cells.setdefault(key, []).append(value)


def on_mount(
    bench: Bench, source: Source, action: Callable[[], Any], mode: str = "cold"
) -> tuple[Usage, float]:
    """Returns the time of an action on a new mount, and the CPU seconds of its server. Mode "cold"
    empties all caches; mode "pages" keeps the image file in the page cache, but no decoded data."""
    drop_caches()
    with mounted(bench, source) as mount:
        if mode == "pages" and source.image.is_file():
            warm(source.image)
        before = process_cpu(mount.pid)
        used = measure_machine(action)
        return used, process_cpu(mount.pid) - before


def mount_time(bench: Bench, source: Source) -> float:
    """Returns the milliseconds that a new server takes to mount and to answer the first `ls`. The
    caller has emptied the caches."""
    start = time.perf_counter()
    with mounted(bench, source) as mount:
        subprocess.run(["ls", mount.point], stdout=subprocess.DEVNULL, check=True)
        return (time.perf_counter() - start) * 1000
