"""The suite of `make bench-replica`: what a replica costs the writer, what is sent, and how fast it
comes back, beside rsync, restic and btrfs send."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.corpora.base import human
from weald_bench.measure import CommandFailed, output
from weald_bench.mounts import Samples, unmount
from weald_bench.result import Column, Row, Table
from weald_bench.runner import Step
from weald_bench.suites.beds import DISK_LEN, Bed, Kind, bed, fio_words
from weald_bench.suites.common import ratio_columns, remove, run_part

PARTS = ("foreground", "new", "standby")

ROUNDS = 3
#: Files of the tree that is sent: those of before, and those that are new.
FILE_LEN = 1 << 20
BASE_COUNT = 256
NEW_COUNT = 1024
#: Files of the volume of a standby, in directories of a thousand, and seconds between two looks of
#: a follower.
FOREST_DIRS = 1000
EVERY_S = 2


def run(bench: Bench) -> None:
    """Runs the suite."""
    run_part(bench, "foreground", lambda: foreground(bench))
    run_part(bench, "new", lambda: new_data(bench))
    run_part(bench, "standby", lambda: standby(bench))


# ---- foreground ----------------------------------------------------------------------------------


def place_of(bench: Bench) -> Path:
    """The place of the replica."""
    return bench.work / "place"


def add(bench: Bench, store: Path, *words: str) -> None:
    """Makes the replica."""
    bench.quiet(bench.weald.command("replica", "add", "-q", store, place_of(bench), *words))


def rate(bench: Bench, ready: Bed, name: str, *words: str) -> float:
    """Operations a second of one run of fio."""
    report = bench.work / "fio.json"
    bench.quiet([*fio_words(ready, name, words), f"--output={report}"])
    job = json.loads(report.read_text())["jobs"][0]
    return float(job["write"]["iops"])


def foreground(bench: Bench) -> None:
    """What a replica in another directory costs a volume that is written to."""
    say("== foreground")
    found = [Kind("weald", "no replica"), Kind("weald-replica", "a replica, every second")]
    samples = {kind.id: Samples() for kind in found}
    size = f"--size={bench.sized(128, 4)}m"
    seconds = ("--time_based", f"--runtime={bench.sized(6, 1)}")
    count = bench.sized(20_000, 200)
    text = os.urandom(4096)

    def create(ready: Bed) -> float:
        start = time.perf_counter()
        top = ready.point / "files"
        top.mkdir()
        for number in range(count):
            (top / f"{number:06}").write_bytes(text[number % 100 :])
        ready.make_durable()
        return count / (time.perf_counter() - start)

    def step(kind: Kind) -> None:
        remove(place_of(bench))
        with bed(bench, kind) as ready:
            if kind.id != "weald":
                add(bench, ready.store, "--every", "1s")
            fill = ("--rw=write", "--bs=1m", size, "--end_fsync=1", "--numjobs=8")
            rate(bench, ready, "fill", *fill)
            write = ("--rw=randwrite", "--bs=4k", size, *seconds)
            buffered = rate(bench, ready, "buffered", *write)
            ready.make_durable()
            one = rate(bench, ready, "one", *write, "--fdatasync=1")
            eight = rate(bench, ready, "eight", *write, "--fdatasync=1", "--numjobs=8")
            samples[kind.id].add(buffered=buffered, one=one, eight=eight, files=create(ready))
            if kind.id != "weald":
                report = output(bench.weald.command("replica", "verify", "--json", place_of(bench)))
                samples[kind.id].add(states=json.loads(report)["state_count"])

    steps = [Step(kind.id, partial(step, kind)) for kind in found]
    bench.by_turns(steps, ROUNDS)
    titles = {
        "buffered": "4 KiB overwrites, buffered",
        "one": "each synced",
        "eight": "8 writers, each synced",
        "files": "files of 4 KiB made, synced at the end",
    }
    columns = [Column("volume", "")]
    for key, title in titles.items():
        columns.append(Column(title, key, 0))
        columns += ratio_columns(key, [("weald", "no replica")])
    columns.append(Column("states sent", "states", 0))
    table = Table(
        "replica-foreground",
        "A volume with a replica in another directory, operations a second",
        columns,
    )
    problems = {step.id: step.problem for step in steps}
    for kind in found:
        cells = dict(samples[kind.id].cells)
        table.rows.append(Row(kind.id, kind.label, cells, problems[kind.id]))
    bench.show(table)
    for key, title in titles.items():
        found_ratio = stats.median(table.ratios("weald-replica", key, "weald"))
        bench.at_least(f"with a replica, {title}: rate against without", found_ratio, 0.9)


# ---- new data ------------------------------------------------------------------------------------


def write_files(tree: Path, first: int, count: int, repeats: bool) -> None:
    """Files of random bytes; with repeats, every second one is another one again."""
    maker = random.Random(first)
    for number in range(first, first + count):
        if repeats and number % 2:
            data = (tree / f"{maker.randrange(first, number) & ~1:06}").read_bytes()
        else:
            data = random.Random(number).randbytes(FILE_LEN)
        (tree / f"{number:06}").write_bytes(data)


def tree_len(path: Path) -> int:
    """Bytes that a directory takes on the disk."""
    return int(output(["du", "-s", "--block-size=1", path]).split()[0])


@contextmanager
def btrfs(bench: Bench, name: str) -> Iterator[Path]:
    """A new btrfs on a loop device."""
    file, disk = bench.work / f"{name}.disk", bench.work / name
    with open(file, "wb") as made:
        made.truncate(DISK_LEN)
    device = output(["losetup", "--find", "--show", "--direct-io=on", file]).strip()
    try:
        bench.quiet(["mkfs.btrfs", "-q", device])
        disk.mkdir(exist_ok=True)
        bench.quiet(["mount", device, disk])
        try:
            yield disk
        finally:
            unmount(disk)
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)
        file.unlink()


def new_data(bench: Bench) -> None:
    """New data of which half repeats: time and bytes until another place has it, synced."""
    base, count = bench.sized(BASE_COUNT, 4), bench.sized(NEW_COUNT, 8)
    say(f"== new data: {human(count * FILE_LEN)}, every second file a repeat")
    ways = {
        "weald": "weald replica send",
        "rsync": "rsync -a of the tree",
        "restic": "restic backup",
        "btrfs": "btrfs send -p, receive",
    }
    samples = {id: Samples() for id in ways}

    def weald() -> None:
        remove(place_of(bench))
        with bed(bench, Kind("weald", "Weald")) as ready:
            write_files(ready.point, 0, base, False)
            ready.make_durable()
            add(bench, ready.store)
            send = bench.weald.command("replica", "send", "--json", ready.store)
            ready.unmount()
            bench.quiet(send)
            ready.mount()
            segments = ready.store / "segments"
            before = tree_len(segments)
            write_files(ready.point, base, count, True)
            ready.make_durable()
            ready.unmount()
            report = bench.work / "send.json"
            used = bench.measure(send, stdout=report)
            sent = json.loads(report.read_text())["sent_len"]
            stored = tree_len(segments) - before
            bench.quiet(bench.weald.command("replica", "verify", place_of(bench)))
            target = bench.work / "restored"
            remove(target)
            os.sync()
            restore = bench.weald.command("replica", "restore", "-q", place_of(bench), target)
            restored = bench.measure(restore)
            length = tree_len(target / "segments")
            remove(target)
            samples["weald"].add(
                wall_s=used.wall_s,
                cpu_s=used.cpu_s,
                mb=sent / 1e6,
                to_stored=stats.per(sent, stored),
                restore_mb_s=stats.per(length / 1e6, restored.wall_s),
            )
            ready.mount()

    def rsync() -> None:
        tree, target = bench.work / "tree", bench.work / "copy"
        with fresh(tree, target):
            write_files(tree, 0, base, False)
            command = ["rsync", "-a", "--stats", f"{tree}/", target]
            bench.quiet(command)
            write_files(tree, base, count, True)
            os.sync()
            report = bench.work / "rsync.txt"
            used = bench.measure(["sh", "-c", '"$@" && sync -f .', "sh", *command], stdout=report)
            lines = [line for line in report.read_text().splitlines() if "bytes sent" in line]
            sent = int(lines[0].split(":")[1].replace(",", ""))
            samples["rsync"].add(wall_s=used.wall_s, cpu_s=used.cpu_s, mb=sent / 1e6)

    def restic() -> None:
        if not shutil.which("restic"):
            raise CommandFailed("restic is missing")
        tree, home = bench.work / "tree", bench.work / "restic"
        with fresh(tree, home):
            env = {"RESTIC_PASSWORD": "weald", "RESTIC_CACHE_DIR": str(home / "cache")}
            words = ["restic", "-q", "-r", str(home / "store")]
            bench.quiet([*words, "init"], env=env)
            write_files(tree, 0, base, False)
            bench.quiet([*words, "backup", tree], env=env)
            write_files(tree, base, count, True)
            before = tree_len(home / "store")
            os.sync()
            used = bench.measure([*words, "backup", tree], env=env)
            sent = tree_len(home / "store") - before
            samples["restic"].add(wall_s=used.wall_s, cpu_s=used.cpu_s, mb=sent / 1e6)

    def btrfs_send() -> None:
        with btrfs(bench, "btrfs-source") as source, btrfs(bench, "btrfs-target") as target:
            tree = source / "tree"
            bench.quiet(["btrfs", "-q", "subvolume", "create", tree])
            write_files(tree, 0, base, False)
            snapshot = ["btrfs", "-q", "subvolume", "snapshot", "-r", tree]
            bench.quiet([*snapshot, source / "one"])
            script = (
                'btrfs -q send ${3:+-p "$3"} "$1" | tee >(wc -c > "$4") | btrfs -q receive "$2"; '
                'sync -f "$2"'
            )
            count_of = bench.work / "bytes"

            def send(*words: Path | str) -> list[str]:
                return ["bash", "-c", script, "bash", *map(str, words)]

            bench.quiet(send(source / "one", target, "", count_of))
            write_files(tree, base, count, True)
            bench.quiet([*snapshot, source / "two"])
            os.sync()
            used = bench.measure(send(source / "two", target, source / "one", count_of))
            sent = int(count_of.read_text())
            samples["btrfs"].add(wall_s=used.wall_s, cpu_s=used.cpu_s, mb=sent / 1e6)

    actions = {"weald": weald, "rsync": rsync, "restic": restic, "btrfs": btrfs_send}
    steps = [Step(id, actions[id]) for id in ways]
    bench.by_turns(steps, ROUNDS)
    table = Table(
        "replica-new",
        f"{human(count * FILE_LEN)} of new data, half of it repeats, sent to another directory",
        [
            Column("way", ""),
            Column("wall s", "wall_s", 2),
            Column("× Weald", "wall_s", 2, to="weald"),
            Column("CPU s", "cpu_s", 2),
            Column("MB sent", "mb", 1),
            Column("× Weald", "mb", 2, to="weald"),
            Column("restore, MB/s", "restore_mb_s", 0),
        ],
        intro="The data was in the store, the tree or the snapshot before; the time is that of "
        "sending it, until it is synced. rsync finds no repeats; btrfs sends what the file system "
        "has twice.",
    )
    for step in steps:
        cells = dict(samples[step.id].cells)
        table.rows.append(Row(step.id, ways[step.id], cells, step.problem))
    bench.show(table)
    sent = stats.median(table.samples("weald", "to_stored"))
    bench.at_most("bytes sent against new stored bytes", sent, 1.05)
    restored = stats.median(table.samples("weald", "restore_mb_s"))
    bench.at_least("restore, MB/s", restored, bench.sized(300, 1), 0)


# ---- standby -------------------------------------------------------------------------------------


def follow(bench: Bench, *words: Path | str) -> list[str]:
    """The command that follows."""
    return bench.weald.command("replica", "follow", "--json", *words, place_of(bench))


def change(point: Path, names: list[Path], seed: int) -> None:
    """Writes new bytes to files."""
    for number, name in enumerate(names):
        data = random.Random(seed + number).randbytes(4096)
        (point / name).write_bytes(data)


def follow_under_load(bench: Bench, store: Path, target: Path, point: Path) -> float:
    """Seconds that a follower was behind a store that is written to, at most."""
    every = f"{EVERY_S}s"
    bench.quiet(bench.weald.command("replica", "remove", store))
    place, status = bench.work / "place-2", bench.weald.command("replica", "status", "--json")
    remove(place)
    bench.quiet(bench.weald.command("replica", "add", "-q", store, place, "--every", every))
    bench.quiet(bench.weald.command("replica", "send", "-q", store))
    words = ["replica", "follow", "-q", "--every", every, place, target]
    command = bench.weald.command(*words)
    follower = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    behind, worst = 0.0, 0.0
    try:
        end = time.perf_counter() + bench.sized(40, 8)
        number = 0
        while time.perf_counter() < end:
            data = random.Random(number).randbytes(FILE_LEN)
            (point / f"load-{number % 64}").write_bytes(data)
            number += 1
            if number % 4:
                continue
            sent = json.loads(output([*status, store])).get("commit")
            lines = output([*status, target]) if (target / "store").exists() else "{}"
            got = json.loads(lines).get("commit")
            now = time.perf_counter()
            behind = 0.0 if got == sent else behind or now
            worst = max(worst, now - behind if behind else 0.0)
    finally:
        follower.kill()
        follower.wait()
    return worst


def standby(bench: Bench) -> None:
    """A standby of a volume of a million files: made, promoted, and the way back."""
    dirs = bench.sized(FOREST_DIRS, 10)
    say(f"== standby: a volume of {dirs * 1000} files")
    names: list[Path] = []
    samples = Samples()

    def weald() -> None:
        for path in (place_of(bench), bench.work / "standby"):
            remove(path)
        target = bench.work / "standby"
        image = bench.work / "forest.weald"
        fanout = f"{dirs}x1000"
        forest = bench.weald.command("forest", "--quiet", "--fanout", fanout, "--image", image)
        bench.quiet(forest)
        with bed(bench, Kind("weald", "Weald")) as ready:
            ready.unmount()
            volume = f"{ready.store}:forest"
            bench.quiet(bench.weald.command("volume", "create", "-q", volume, "--from", image))
            image.unlink()
            add(bench, ready.store)
            send = bench.weald.command("replica", "send", "-q", ready.store)
            bench.quiet(send)
            made = bench.measure([*follow(bench), target])
            point = bench.work / "forest"
            point.mkdir(exist_ok=True)

            def changed(store: Path, seed: int) -> None:
                bench.quiet(bench.weald.command("mount", f"{store}:forest", point))
                try:
                    if not names:
                        found = [path for path in sorted(point.rglob("*")) if path.is_file()]
                        names[:] = [path.relative_to(point) for path in found[::100]]
                    change(point, names, seed)
                finally:
                    unmount(point)

            changed(ready.store, 1)
            bench.quiet(send)
            promoted = bench.measure(bench.weald.command("replica", "promote", "-q", target))
            changed(target, 2)
            # Random bytes, which nothing makes shorter; those of before are freed.
            stored = len(names) * 4096
            bench.quiet(bench.weald.command("replica", "send", "-q", target))
            report = bench.work / "follow.json"
            back = bench.measure([*follow(bench, "--discard"), ready.store], stdout=report)
            read_len = json.loads(report.read_text())["read_len"]
            bench.quiet(bench.weald.command("store", "check", target))
            bench.quiet(bench.weald.command("store", "check", ready.store))
            bench.quiet(bench.weald.command("mount", f"{target}:forest", point))
            try:
                behind = follow_under_load(bench, target, bench.work / "standby-2", point)
            finally:
                unmount(point)
                # Nobody sends to the place any more.
                for path in ("standby-2", "place-2"):
                    remove(bench.work / path)
            samples.add(
                made_s=made.wall_s,
                promoted_s=promoted.wall_s,
                back_s=back.wall_s,
                back_mb=read_len / 1e6,
                to_stored=stats.per(read_len, stored),
                behind_s=behind,
            )
        remove(target)

    steps = [Step("weald", weald)]
    bench.by_turns(steps, ROUNDS)
    table = Table(
        "replica-standby",
        f"A standby of a volume of {dirs * 1000} files",
        [
            Column("system", ""),
            Column("made, s", "made_s", 2),
            Column("promoted, s", "promoted_s", 2),
            Column("way back, s", "back_s", 2),
            Column("way back, MB", "back_mb", 1),
            Column("× changed bytes", "to_stored", 2),
            Column("longest behind under load, s", "behind_s", 1),
        ],
        intro="Before the promotion, 1% of the files got new contents, which the standby takes "
        "then; before the way back, the same files again, in the new store. The last column is "
        f"with --every {EVERY_S}s at the sender and at the follower.",
    )
    table.rows.append(Row("weald", "Weald", dict(samples.cells), steps[0].problem))
    bench.show(table)
    for key, what, most in (
        ("promoted_s", "promotion, s", 5),
        ("to_stored", "way back: bytes read against changed stored bytes", 1.1),
        ("behind_s", "longest time behind, s", 2 * EVERY_S),
    ):
        bench.at_most(what, stats.median(table.samples("weald", key)), most)


@contextmanager
def fresh(*paths: Path) -> Iterator[None]:
    """Empty directories, which are removed at the end."""
    for path in paths:
        remove(path)
        path.mkdir()
    try:
        yield
    finally:
        for path in paths:
            remove(path)
