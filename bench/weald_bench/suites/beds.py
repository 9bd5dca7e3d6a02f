"""File systems that can be written, each on a loop device of its own on the same disk: a volume of
Weald, ext4, btrfs, and a passthrough through FUSE."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from weald_bench.bench import Bench
from weald_bench.measure import CommandFailed, drop_caches, output, process_peak_mib
from weald_bench.mounts import MOUNT_TIMEOUT_S, unmount
from weald_bench.rivals.passthrough import PROGRAM

#: Length of the sparse file below each loop device.
DISK_LEN = 24 << 30

BINDFS = "bindfs on ext4"
BINDFS_WORDS = (
    "bindfs",
    "-f",
    "--multithreaded",
    "-o",
    "entry_timeout=86400,attr_timeout=86400,negative_timeout=0",
)


@dataclass(frozen=True)
class Kind:
    """A file system to measure on; `words` are the options of a mount of Weald, or the command of
    another passthrough."""

    id: str
    label: str
    words: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def is_weald(self) -> bool:
        """Whether it is a volume."""
        return self.id.startswith(("weald", "against"))


def kinds(bench: Bench, inodes: int = 0) -> list[Kind]:
    """The volume, that of the other Weald, and the rivals of the run, for a part that makes so many
    inodes. passthrough_hp keeps a descriptor of each; where it may not, bindfs takes its place."""
    found = [Kind(weald.name, weald.label) for weald in bench.wealds()]
    for rival in bench.rivals:
        problem = bench.problem_of(rival.name)
        kind = Kind(rival.name, rival.label, problem=problem)
        if rival.name == "passthrough" and inodes > resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
            kind = Kind(rival.name, BINDFS, BINDFS_WORDS, problem)
        found.append(kind)
    return found


class Bed:
    """One of them, empty and mounted on `point`."""

    def __init__(self, bench: Bench, kind: Kind, disk: Path, point: Path) -> None:
        self.bench, self.kind, self.disk, self.point = bench, kind, disk, point
        self.server: subprocess.Popen[bytes] | None = None

    @property
    def weald(self) -> str:
        """The binary that serves a volume."""
        wealds = {weald.name: weald for weald in self.bench.wealds()}
        named = [weald for name, weald in wealds.items() if self.kind.id.startswith(name)]
        return str(named[0].binary)

    @property
    def store(self) -> Path:
        """The store of a volume."""
        return self.disk / "store"

    def command(self) -> list[str]:
        """The server of the mount; none of a file system of the kernel."""
        if self.kind.is_weald:
            words = ["-o", ",".join(self.kind.words)] if self.kind.words else []
            return [self.weald, "mount", "--foreground", *words, f"{self.store}:v", str(self.point)]
        if self.kind.id == "passthrough":
            words = [str(self.disk / "data"), str(self.point)]
            if self.kind.words:
                return [*self.kind.words, *words]
            return [str(PROGRAM), *words, "--foreground"]
        return []

    def create(self) -> None:
        """Makes it on the empty disk."""
        if self.kind.is_weald:
            self.bench.quiet([self.weald, "store", "create", self.store])
            self.bench.quiet([self.weald, "volume", "create", f"{self.store}:v"])
        elif self.kind.id == "passthrough":
            (self.disk / "data").mkdir()
        self.point.mkdir(exist_ok=True)

    def mount(self) -> None:
        """Mounts it; returns when it can be used."""
        command = self.command()
        if not command:
            self.bench.quiet(["mount", "--bind", self.disk, self.point])
            return
        log = self.bench.meter.log
        self.server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        end = time.monotonic() + MOUNT_TIMEOUT_S
        while not os.path.ismount(self.point):
            if self.server.poll() is not None or time.monotonic() > end:
                self.server.kill()
                self.server.wait()
                self.server = None
                raise CommandFailed(f"{self.kind.label}: the mount failed: see the log")
            time.sleep(0.001)

    def unmount(self) -> None:
        """Unmounts it and waits for its server."""
        unmount(self.point)
        if self.server:
            self.server.wait(timeout=MOUNT_TIMEOUT_S)
            self.server = None

    def kill(self) -> None:
        """Kills its server."""
        assert self.server
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()
        self.server = None
        subprocess.run(["umount", "--lazy", self.point], check=False)

    def make_durable(self) -> None:
        """Makes everything durable. The kernel passes no syncfs(2) to FUSE, whose fsync(2) of the
        root directory makes all of a volume durable."""
        if self.server:
            directory = os.open(self.point, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        self.bench.quiet(["sync", "--file-system", self.disk])

    def cold(self) -> None:
        """Makes everything durable and empties all caches; a volume's own by a new mount."""
        self.make_durable()
        if self.kind.is_weald:
            self.unmount()
            self.mount()
        drop_caches()

    def used(self) -> int:
        """Bytes that are taken on the disk."""
        self.make_durable()
        if self.kind.is_weald:
            return int(output(["du", "-s", "--block-size=1", self.store]).split()[0])
        found = os.statvfs(self.disk)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def tables_len(self) -> int:
        """Bytes that the tables of a volume take on the disk."""
        self.make_durable()
        return (self.store / "meta").stat().st_blocks * 512

    def peak_mib(self) -> float | None:
        """Largest memory of the server so far."""
        return process_peak_mib(self.server.pid) if self.server else None


@contextmanager
def bed(bench: Bench, kind: Kind) -> Iterator[Bed]:
    """A new one; the end removes it."""
    file = bench.work / f"bed-{kind.id}.disk"
    disk, point = bench.work / f"bed-{kind.id}", bench.work / f"bed-{kind.id}.mnt"
    with open(file, "wb") as made:
        made.truncate(DISK_LEN)
    device = output(["losetup", "--find", "--show", "--direct-io=on", file]).strip()
    is_btrfs = kind.id == "btrfs"
    make = ["mkfs.btrfs", "-q"] if is_btrfs else ["mkfs.ext4", "-q", "-m", "0"]
    options = "compress=zstd" if is_btrfs else "noinit_itable"
    made_bed = Bed(bench, kind, disk, point)
    try:
        bench.quiet([*make, device])
        disk.mkdir(exist_ok=True)
        bench.quiet(["mount", "-o", options, device, disk])
        try:
            made_bed.create()
            made_bed.mount()
            yield made_bed
        finally:
            if os.path.ismount(point):
                made_bed.unmount()
            elif made_bed.server:
                made_bed.kill()
            unmount(disk)
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)
        file.unlink()


def fio_words(bed: Bed, name: str, words: Sequence[str]) -> list[str]:
    """A command of fio on a file of a bed."""
    place = [f"--directory={bed.point}", "--filename_format=$jobnum.fio"]
    fixed = ["--ioengine=psync", "--output-format=json", "--randrepeat=1", "--group_reporting"]
    return ["fio", f"--name={name}", *place, *fixed, *words]
