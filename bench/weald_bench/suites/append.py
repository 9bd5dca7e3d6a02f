"""The part `append` of the suite `build`: what a forest grows by with one version more."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.measure import CommandFailed, Usage
from weald_bench.result import Column, Row, Table

#: The last versions of packages of several kinds: what a forest grows by.
NEWEST = (
    "pypi/django/5.2.9",
    "pypyc/setuptools/84.2.1",
    "npm/webpack/5.99.9",
    "npm/prettier/3.8.3",
    "npm/typescript/5.9.3",
    "crate/libc/0.2.174",
)

#: Level 7 without its choice by samples. New builds are made so to tell their growth: the default
#: packs some block the other way when a version shifts it, and the tens of kilobytes of that hide
#: what the version takes.
STEADY = ("--codec", "zstd:16", "--codec", "x86=zstd-code")


@dataclass
class Total:
    """Bytes and time of one method over all versions."""

    length: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def add(self, length: int, used: Usage) -> None:
        """Adds one version."""
        self.length += length
        self.cpu_s += used.cpu_s
        self.wall_s += used.wall_s


@dataclass
class Growth:
    """All of it."""

    #: Growth of new builds in bytes, over all versions.
    more: int = 0
    count: int = 0
    append: Total = field(default_factory=Total)
    base: Total = field(default_factory=Total)


def versions(bench: Bench, tree: Path) -> list[str]:
    """The versions to grow by; in a trial with another tree, its first two directories."""
    there = [version for version in NEWEST if (tree / version).is_dir()]
    if len(there) == len(NEWEST):
        return there
    if bench.is_tiny:
        return sorted(path.name for path in tree.iterdir() if path.is_dir())[:2]
    missing = ", ".join(version for version in NEWEST if version not in there)
    raise CommandFailed(f"part append needs the corpus forest: {tree} has no {missing}")


def cells(length: int, more: int, used: Usage, anew: Usage) -> dict[str, list | str]:
    """Figures of one row, with what they are of a new build."""
    size = stats.ratio(length, more)
    return {
        "bytes": [length],
        "size_ratio": [size] if size is not None else "-",
        "cpu_s": [used.cpu_s],
        "cpu_ratio": [used.cpu_s / anew.cpu_s],
        "wall_s": [used.wall_s],
        "wall_ratio": [used.wall_s / anew.wall_s],
    }


def run(bench: Bench, tree: Path) -> None:
    """Builds the forest without each version, then adds the version in three ways: as a generation,
    over a base image, and by a new build."""
    say("== append and base")
    image = bench.work / "whole.weald"
    anew = bench.measure(bench.weald.build(tree, image))
    anew_len = image.stat().st_size
    bench.quiet(bench.weald.build("--force", *STEADY, tree, image))
    whole = image.stat().st_size
    image.unlink()
    table = Table(
        "append",
        "One version more",
        [
            Column("version, how", ""),
            Column("bytes more", "bytes", 0),
            Column("× built anew", "size_ratio"),
            Column("CPU s", "cpu_s"),
            Column("× built anew", "cpu_ratio"),
            Column("wall s", "wall_s"),
            Column("× built anew", "wall_ratio"),
        ],
        intro=f"The whole tree, built anew: {anew_len} bytes, {anew.cpu_s:.2f} CPU s, "
        f"{anew.wall_s:.2f} wall s; with {' '.join(STEADY)}, which new builds of this table have, "
        f"{whole} bytes.",
    )
    growth = Growth()
    for version in versions(bench, tree):
        say(f"   {version}")
        one_version(bench, tree, version, whole, anew, growth, table)
    sums(bench, anew, growth, table)
    bench.show(table)


def one_version(
    bench: Bench,
    tree: Path,
    version: str,
    whole: int,
    anew: Usage,
    growth: Growth,
    table: Table,
) -> None:
    """Rows of one version. The forest is there for others too: nothing in it is moved."""
    base, appended, over = (bench.work / f"{name}.weald" for name in ("base", "append", "over"))
    bench.quiet(bench.weald.build(*STEADY, "--exclude", f"/{version}", tree, base))
    without = base.stat().st_size
    more = whole - without
    growth.more += more
    growth.count += 1
    table.rows.append(Row(version, f"{version}, built anew", {"bytes": [more]}))
    shutil.copyfile(base, appended)
    # An image that is there is on storage: syncing what is added must not write the copy.
    bench.quiet(["sync", appended])
    used = bench.measure(bench.weald.build("--append", tree, appended))
    length = appended.stat().st_size - without
    growth.append.add(length, used)
    row = Row(f"{version}-append", f"{version}, --append", cells(length, more, used, anew))
    table.rows.append(row)
    # What a base is for: a tree of its own that lies on what is there. The whole tree besides, for
    # its directories.
    used = bench.measure(bench.weald.build("--base", base, tree / version, over))
    growth.base.add(over.stat().st_size, used)
    found = cells(over.stat().st_size, more, used, anew)
    table.rows.append(Row(f"{version}-base", f"{version}, --base, the version alone", found))
    used = bench.measure(bench.weald.build("--base", base, "--force", tree, over))
    found = cells(over.stat().st_size, more, used, anew)
    table.rows.append(Row(f"{version}-whole", f"{version}, --base, the whole forest", found))
    for path in (base, appended, over):
        path.unlink()


def sums(bench: Bench, anew: Usage, growth: Growth, table: Table) -> None:
    """Adds the rows of all versions together, and the requirements. One version may make a new
    image hardly bigger, or even smaller, so that only the sum can be judged."""
    all_anew = Usage(anew.wall_s * growth.count, anew.cpu_s * growth.count)
    found = cells(growth.more, growth.more, all_anew, all_anew)
    table.rows.append(Row("all", "all, built anew", found))
    for name, label, total in (
        ("append", "all, --append", growth.append),
        ("base", "all, --base, the version alone", growth.base),
    ):
        used = Usage(total.wall_s, total.cpu_s)
        found = cells(total.length, growth.more, used, all_anew)
        table.rows.append(Row(f"all-{name}", label, found))
        size = stats.ratio(total.length, growth.more)
        bench.at_most(f"{name}: bytes against new builds", size, 1.20)
        cpu = stats.ratio(total.cpu_s, all_anew.cpu_s)
        bench.at_most(f"{name}: CPU time against new builds", cpu, 0.10)
        wall = stats.ratio(total.wall_s, all_anew.wall_s)
        bench.at_most(f"{name}: time against new builds", wall, 0.10)
