"""The suite of `make bench-store`: one store for many versions of a tree, beside other stores."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.corpora.base import human
from weald_bench.measure import CommandFailed, Usage, output, warm
from weald_bench.mounts import Samples
from weald_bench.result import Column, Row, Table
from weald_bench.rivals.base import file_len
from weald_bench.rivals.keeper import Keeper, Script, data_len
from weald_bench.rivals.weald import Weald
from weald_bench.runner import Step
from weald_bench.suites.common import content_len, each_corpus, remove, run_part

PARTS = ("versions", "copy")

#: One version more and removal are short, for most programs.
NEXT_ROUNDS = 3
NEXT_LIMIT_S = 45
COPY_ROUNDS = 2
#: Two of these lie in a segment; every second one is removed.
IMAGE_LEN = 32 << 20
IMAGE_COUNT = 40
COPY_LEN_LEAST = 500_000_000


class WealdStore(Keeper):
    """`weald store` at one level."""

    def __init__(self, weald: Weald, level: int) -> None:
        self.weald = weald
        self.level = level
        self.name = f"{weald.name}-{level}"
        self.label = f"{weald.label} level {level}"

    def problem(self) -> str | None:
        return None

    def create(self, home: Path) -> Script:
        return [self.weald.command("store", "create", home / "store")]

    def add(self, home: Path, name: str, tree: Path) -> Script:
        words = ("--progress", "none", "--level", str(self.level), "--name", name)
        return [self.weald.command("store", "add", *words, home / "store", tree)]

    def remove(self, home: Path, names: Sequence[str], kept: str) -> Script:
        store = home / "store"
        return [
            self.weald.command("store", "rm", *(f"{store}:{name}" for name in names)),
            self.weald.command("store", "gc", store),
        ]


@dataclass
class Way:
    """A program with its directory and what was found of it."""

    keeper: Keeper
    home: Path
    problem: str | None = None
    #: Bytes of the store with the first versions, and with one version left.
    full_len: int = 0
    samples: Samples = field(default_factory=Samples)

    @property
    def store(self) -> Path:
        """The store itself."""
        return self.home / "store"


def run(bench: Bench) -> None:
    """Runs the suite."""
    if bench.has("versions"):
        each_corpus(bench, partial(versions_part, bench))
    run_part(bench, "copy", lambda: copy_part(bench))


# ---- versions ------------------------------------------------------------------------------------


def version_key(name: str) -> list[tuple[int, int | str]]:
    """Orders names by the numbers in them: 5.2.9 before 5.2.10."""
    words = re.findall(r"\d+|\D+", name)
    return [(0, int(word)) if word.isdigit() else (1, word) for word in words]


def version_trees(tree: Path) -> list[Path]:
    """The versions: the directories of the first level that has several, the oldest first."""
    while True:
        found = [path for path in tree.iterdir() if path.is_dir() and path.name[0] not in "._"]
        if len(found) != 1:
            break
        tree = found[0]
    if len(found) < 3:
        raise CommandFailed(f"{tree.name} has {len(found)} versions; the suite store needs three")
    return sorted(found, key=lambda path: version_key(path.name))


def digests(tree: Path) -> dict[bytes, int]:
    """Bytes of the contents of files by their digest, those of equal files together."""
    found: dict[bytes, int] = {}
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            digest = hashlib.blake2b(data, digest_size=32).digest()
            found[digest] = found.get(digest, 0) + len(data)
    return found


def same_share(before: dict[bytes, int], after: dict[bytes, int]) -> float:
    """The share of the bytes of a version that lie in files that the version before has too."""
    total = sum(after.values())
    same = sum(length for digest, length in after.items() if digest in before)
    return same / total if total else 0.0


def same_shares(trees: Sequence[Path]) -> list[float]:
    """The shares of all versions after the first one."""
    found = [digests(tree) for tree in trees]
    return [same_share(before, after) for before, after in zip(found, found[1:])]


def run_script(bench: Bench, script: Script, env: dict[str, str]) -> Usage:
    """Measures some commands as one."""
    used = [bench.measure(command, env=env) for command in script]
    return Usage(
        sum(one.wall_s for one in used),
        sum(one.cpu_s for one in used),
        max(one.peak_mib for one in used),
    )


def fill(bench: Bench, way: Way, trees: Sequence[Path]) -> None:
    """Makes a store of all versions but the last."""
    remove(way.home)
    way.home.mkdir(parents=True)
    env = way.keeper.env(way.home)
    script = way.keeper.create(way.home)
    for tree in trees[:-1]:
        script += way.keeper.add(way.home, tree.name, tree)
    used = run_script(bench, script, env)
    way.full_len = data_len(way.store)
    way.samples.add(
        mb=way.full_len / 1e6, fill_cpu_s=used.cpu_s, fill_s=used.wall_s, fill_mib=used.peak_mib
    )


def saved(way: Way) -> Path:
    """The place of the copy of a full store."""
    return way.home.with_name(f"{way.home.name}.full")


def next_version(bench: Bench, way: Way, tree: Path) -> None:
    """Adds one version more to a copy of the full store. The copy has the path of the first one,
    which some programs remember."""
    if not saved(way).exists():
        way.home.rename(saved(way))
    remove(way.home)
    # Times of files stay: caches of some programs compare them.
    bench.quiet(["cp", "-a", saved(way), way.home])
    bench.quiet(["sync", "-f", way.home])
    used = run_script(bench, way.keeper.add(way.home, tree.name, tree), way.keeper.env(way.home))
    way.samples.add(
        next_s=used.wall_s,
        next_cpu_s=used.cpu_s,
        next_mb_s=stats.per(content_len(tree) / 1e6, used.cpu_s),
        next_mb=(data_len(way.store) - way.full_len) / 1e6,
    )


def remove_all_but_one(bench: Bench, way: Way, trees: Sequence[Path]) -> None:
    """Removes the first versions but the newest of them, and returns their space."""
    if way.keeper.keeps_all:
        return
    remove(way.home)
    saved(way).rename(way.home)
    names, kept = [tree.name for tree in trees[:-2]], trees[-2].name
    weald = way.keeper.weald if isinstance(way.keeper, WealdStore) else None
    before = listed(weald, way.store).get(kept) if weald else None
    used = run_script(bench, way.keeper.remove(way.home, names, kept), way.keeper.env(way.home))
    way.samples.add(
        left_mb=data_len(way.store) / 1e6,
        remove_s=used.wall_s,
        remove_cpu_s=used.cpu_s,
    )
    if weald:
        after = listed(weald, way.store)
        is_same = before is not None and after == {kept: before}
        bench.true(f"{way.keeper.label}: the same tree digest after gc", is_same)
        checked = output(weald.command("store", "check", "--data", "--json", way.store))
        bench.true(f"{way.keeper.label}: check --data finds nothing after gc", is_clean(checked))


def listed(weald: Weald, store: Path) -> dict[str, str]:
    """Tree digests of the images of a store."""
    return parse_listing(output(weald.command("store", "ls", "--json", store)))


def parse_listing(text: str) -> dict[str, str]:
    """Names and tree digests out of `weald store ls --json`."""
    lines = (json.loads(line) for line in text.splitlines())
    return {line["name"]: line["tree_digest"] for line in lines}


def is_clean(text: str) -> bool:
    """Whether `weald store check --json` found nothing and says so."""
    lines = [json.loads(line) for line in text.splitlines()]
    return bool(lines) and lines[-1].get("clean") is True and lines[-1]["finding_count"] == 0


def images(bench: Bench, way: Way, trees: Sequence[Path]) -> tuple[int, int]:
    """Bytes of an image of all versions but the last, and of one of the version that stays."""
    assert isinstance(way.keeper, WealdStore)
    build = partial(way.keeper.weald.build, "--force", "--level", str(way.keeper.level))
    image = bench.work / "whole.weald"
    # The parent may hold more than the versions.
    names = {tree.name for tree in trees[:-1]}
    others = [path.name for path in trees[0].parent.iterdir() if path.name not in names]
    rules = [word for name in others for word in ("--exclude", f"/{name}")]
    bench.quiet(build(*rules, trees[0].parent, image))
    whole = file_len(image)
    bench.quiet(build(trees[-2], image))
    one = file_len(image)
    remove(image)
    return whole, one


def ways_of(bench: Bench) -> list[Way]:
    """Weald at each level, then the rivals, there or missing."""
    place = bench.work / "stores"
    keepers: list[Keeper] = [
        WealdStore(weald, level)
        for level in sorted(bench.options.levels, reverse=True)
        for weald in bench.wealds()
    ]
    ways = [Way(keeper, place / keeper.name) for keeper in keepers]
    for rival in bench.rivals:
        if not isinstance(rival, Keeper):
            raise CommandFailed(f"the suite store cannot run the rival {rival.name}")
        ways.append(Way(rival, place / rival.name, bench.problem_of(rival.name)))
    return ways


def steps_for(bench: Bench, ways: Sequence[Way], rounds: int, limit_s: float, action: Any) -> None:
    """Runs an action on each way by turns; one that fails is not run again."""
    steps = [Step(way.keeper.name, partial(action, way)) for way in ways if not way.problem]
    bench.by_turns(steps, rounds, limit_s)
    problems = {step.id: step.problem for step in steps}
    for way in ways:
        way.problem = way.problem or problems.get(way.keeper.name)


def versions_part(bench: Bench, name: str, tree: Path) -> None:
    """Fills all stores, adds one version more, removes all versions but one."""
    trees = version_trees(tree)
    say(f"== {name}: {len(trees)} versions")
    for one in trees:
        warm(one)
    same = same_shares(trees)
    ways = ways_of(bench)
    say("   filling")
    # A store is filled once, and emptied once: both are long.
    rounds, bench.options.rounds = bench.options.rounds, 1
    steps_for(bench, ways, 1, 1e9, lambda way: fill(bench, way, trees))
    bench.options.rounds = rounds
    say("   one version more")
    action = partial(next_version, bench, tree=trees[-1])
    steps_for(bench, ways, NEXT_ROUNDS, NEXT_LIMIT_S, action)
    say("   removing all versions but one")
    bench.options.rounds = 1
    steps_for(bench, ways, 1, 1e9, lambda way: remove_all_but_one(bench, way, trees))
    bench.options.rounds = rounds
    tables(bench, name, trees, same, ways)
    remove(bench.work / "stores")


def tables(
    bench: Bench, name: str, trees: Sequence[Path], same: Sequence[float], ways: Sequence[Way]
) -> None:
    """Three tables, and what was asked."""
    count = len(trees) - 1
    lens = [content_len(tree) for tree in trees]
    facts = (
        f"Versions {trees[0].name} to {trees[-2].name}, {human(sum(lens[:-1]))} in files; then "
        f"{trees[-1].name}, {human(lens[-1])}. Bytes in files that the version before has too, by "
        f"digest: {same[-1] * 100:.1f}% of the last version, {min(same) * 100:.1f}% to "
        f"{max(same) * 100:.1f}% of all. The trees are in the page cache."
    )
    for way in ways:
        if isinstance(way.keeper, WealdStore) and not way.problem:
            whole, one = images(bench, way, trees)
            way.samples.add(to_whole=way.full_len / whole, whole_mb=whole / 1e6, one_mb=one / 1e6)
            left = stats.median(way.samples.cells["left_mb"])
            way.samples.add(to_one=stats.per(left or 0.0, one / 1e6, 1e-9))
    first = f"weald-{max(bench.options.levels)}"
    show(
        bench,
        ways,
        Table(
            f"{name}-full",
            f"{name}: {count} versions in one store",
            [
                Column("store", ""),
                Column("MB", "mb", 2),
                Column("× Weald", "mb", 2, to=first),
                Column("one image of all, MB", "whole_mb", 2),
                Column("× that image", "to_whole"),
                Column("CPU s", "fill_cpu_s"),
                Column("wall s", "fill_s"),
                Column("memory MiB", "fill_mib", 0),
            ],
            intro=f"{facts} One round.",
            plot={"kind": "bars", "key": "mb", "unit": f"{count} versions in one store, MB"},
        ),
    )
    show(
        bench,
        ways,
        Table(
            f"{name}-next",
            f"{name}: one version more",
            [
                Column("store", ""),
                Column("wall s", "next_s"),
                Column("× Weald", "next_s", 2, to=first),
                Column("CPU s", "next_cpu_s"),
                Column("MB of source a CPU second", "next_mb_s", 0),
                Column("MB more", "next_mb", 3),
            ],
            intro="Into a copy of the full store, syncing included where the program does so.",
        ),
    )
    show(
        bench,
        ways,
        Table(
            f"{name}-left",
            f"{name}: {count - 1} of {count} versions removed, their space returned",
            [
                Column("store", ""),
                Column("MB left", "left_mb", 2),
                Column("× Weald", "left_mb", 2, to=first),
                Column("image of that version, MB", "one_mb", 2),
                Column("× that image", "to_one"),
                Column("CPU s", "remove_cpu_s"),
                Column("wall s", "remove_s"),
            ],
            intro="Bytes are those of all files of a store, holes aside. One round.",
            notes=[f"{way.keeper.keeps_all}." for way in ways if way.keeper.keeps_all],
        ),
    )
    asked(bench, name, ways)


def show(bench: Bench, ways: Sequence[Way], table: Table) -> None:
    """Fills the rows of a table and prints it."""
    for way in ways:
        keeper = way.keeper
        cells = {} if way.problem else dict(way.samples.cells)
        table.rows.append(Row(keeper.name, keeper.label, cells, way.problem))
    bench.show(table)


def asked(bench: Bench, name: str, ways: Sequence[Way]) -> None:
    """Requirements on Weald; a missing figure is a failure."""
    for way in ways:
        if not isinstance(way.keeper, WealdStore) or way.keeper.weald is not bench.weald:
            continue
        cells = {} if way.problem else way.samples.cells
        label = f"{name}, {way.keeper.label}"
        keys = ("to_whole", "next_mb_s", "to_one")
        found = {key: stats.median(cells.get(key, [])) for key in keys}
        bench.at_most(f"{label}: store against one image of all", found["to_whole"], 1.10)
        what = f"{label}: one version more, MB of source a CPU second"
        bench.at_least(what, found["next_mb_s"], 400, 0)
        bench.at_most(f"{label}: after gc, against an image of what is left", found["to_one"], 1.25)


# ---- copy ----------------------------------------------------------------------------------------


def random_images(bench: Bench, place: Path, store: Path, count: int, length: int) -> None:
    """Makes a store of images of random bytes, which no codec compresses, two in each segment. It
    removes every second image, so that half of each segment is used."""
    weald = bench.weald
    bench.quiet(weald.command("store", "create", store))
    names = [f"image-{index:03}" for index in range(count)]
    for name in names:
        tree = place / "tree"
        tree.mkdir()
        (tree / name).write_bytes(os.urandom(length))
        words = ("--progress", "none", "--codec", "none", "--categorize", "none", "--name", name)
        bench.quiet(weald.command("store", "add", *words, store, tree))
        shutil.rmtree(tree)
    bench.quiet(weald.command("store", "rm", *(f"{store}:{name}" for name in names[::2])))


def copied_rate(report: str, wall_s: float) -> tuple[int, float]:
    """Bytes that `weald store gc --json` says it has copied, and MB of them a second."""
    copied = json.loads(report)["copied_len"]
    if not isinstance(copied, int):
        raise CommandFailed(f"weald store gc --json: copied_len is {copied!r}, not a count")
    return copied, stats.per(copied / 1e6, wall_s)


def copy_part(bench: Bench) -> None:
    """The speed and the memory of the collector where nothing is encoded again."""
    length, count = bench.sized(IMAGE_LEN, 1 << 20), bench.sized(IMAGE_COUNT, 8)
    say(f"== gc that copies: {count} images of {human(length)}, every second one removed")
    places = [("storage", "on storage", bench.work / "copy")]
    problem = None
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 * length * count:
        places.append(("memory", "in memory", memory / bench.work.name))
        bench.called(memory / bench.work.name, "SHM")
    else:
        problem = "missing: /dev/shm has too little room"
    columns = [
        Column("store", ""),
        Column("MB copied", "mb", 0),
        Column("wall s", "wall_s"),
        Column("MB/s", "mb_s", 0),
        Column("CPU s", "cpu_s"),
        Column("memory MiB", "peak_mib", 0),
    ]
    table = Table(
        "copy",
        "Collecting half-used segments",
        columns,
        intro="Images of random bytes, every second one removed: weald store gc --reencode-below 0 "
        "copies what is left and syncs it. The store is read from the page cache. On storage the "
        "rate has the writing in it: beside it a file of the same length, written and synced by "
        "dd.",
    )
    samples = {id: Samples() for id in ("storage", "memory", "dd")}
    try:
        steps = [
            Step(id, partial(collect, bench, place, count, length, samples, id))
            for id, _, place in places
        ]
        bench.by_turns(steps, COPY_ROUNDS)
    finally:
        for _, _, place in places:
            remove(place)
    problems: dict[str, str | None] = {step.id: step.problem for step in steps}
    problems.setdefault("memory", problem)
    for id, label in (
        ("memory", "Weald, in memory (/dev/shm)"),
        ("storage", "Weald, on storage"),
        ("dd", "dd conv=fsync, on storage"),
    ):
        table.rows.append(Row(id, label, dict(samples[id].cells), problems.get(id)))
    bench.show(table)
    least = bench.sized(COPY_LEN_LEAST, 1) / 1e6
    bench.at_least("gc: MB copied", stats.median(table.samples("memory", "mb")), least, 0)
    rate = stats.median(table.samples("memory", "mb_s"))
    bench.at_least("gc: MB/s copied, in memory", rate, 500, 0)
    peaks = table.samples("memory", "peak_mib") + table.samples("storage", "peak_mib")
    bench.at_most("gc: memory, MiB", max(peaks, default=None), 128, 0)


def collect(
    bench: Bench, place: Path, count: int, length: int, samples: dict[str, Samples], id: str
) -> None:
    """One round in one place."""
    remove(place)
    place.mkdir()
    store = place / "store"
    random_images(bench, place, store, count, length)
    os.sync()
    warm(store)
    report = bench.work / "gc.json"
    used = bench.measure(
        bench.weald.command("store", "gc", "--reencode-below", "0", "--json", store), stdout=report
    )
    copied, rate = copied_rate(report.read_text(), used.wall_s)
    samples[id].add(
        mb=copied / 1e6,
        wall_s=used.wall_s,
        mb_s=rate,
        cpu_s=used.cpu_s,
        peak_mib=used.peak_mib,
    )
    bench.quiet(bench.weald.command("store", "check", "--data", "--quiet", store))
    if id == "storage":
        count_dd = max(copied >> 20, 1)
        words = ["if=/dev/zero", f"of={place / 'dd'}", "bs=1M", f"count={count_dd}", "conv=fsync"]
        dd = bench.measure(["dd", *words])
        mb = (count_dd << 20) / 1e6
        rate = stats.per(mb, dd.wall_s)
        samples["dd"].add(mb=mb, wall_s=dd.wall_s, mb_s=rate, cpu_s=dd.cpu_s)
    remove(place)
