"""The suite of `make bench-views`: views that the kernel mounts, beside composefs and overlayfs.

It repeats the comparison of the thread about composefs on the kernel's mailing lists of January
2023: `ls -lR` of a container root, cold and warm, when overlayfs takes the metadata from images of
several file systems and the data from one directory of objects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.corpora.base import human
from weald_bench.measure import CommandFailed, drop_caches, measure_machine, output
from weald_bench.mounts import Samples, unmount
from weald_bench.result import Column, Row, Table
from weald_bench.rivals.base import file_len
from weald_bench.rivals.crates import CrateProgram
from weald_bench.runner import Step
from weald_bench.suites.common import content_len, each_corpus, ratio_columns, remove, run_part

PARTS = ("listing", "making")
HOSTS = ("ext4", "xfs")
LIST_ROUNDS = 3
MAKE_ROUNDS = 3
#: Entries in the thread of 2023.
MAKE_COUNT = 240_000
FILES_IN_DIRECTORY = 100

CFSCTL = CrateProgram("cfsctl", "composefs-ctl", "0.9.4")

#: Options of overlayfs over metadata whose files name objects.
OVERLAY = "ro,metacopy=on,redirect_dir=on"


@dataclass
class View:
    """A way to show the tree: how it is mounted on the mount point, and how its image is made."""

    id: str
    label: str
    mount: Callable[[], None]
    image: Path
    problem: str | None = None
    #: Mount points besides the one of the run, the last one mounted first.
    below: list[Path] = field(default_factory=list)


@dataclass
class Place:
    """A host file system with the objects, the store and the images of metadata in it."""

    kind: str
    root: Path
    views: list[View] = field(default_factory=list)


def run(bench: Bench) -> None:
    """Runs the suite."""
    why = CFSCTL.find()[1]
    if why:
        bench.result.missing["composefs"] = why.removeprefix("missing: ")
        raise CommandFailed(f"composefs: {why}")
    if bench.has("listing"):
        each_corpus(bench, partial(listing, bench))
    run_part(bench, "making", lambda: making(bench))


@contextmanager
def host(bench: Bench, kind: str, mib: int) -> Iterator[Path]:
    """A new file system of the kernel on a loop device in the work directory."""
    file, root = bench.work / f"host.{kind}", bench.work / f"host-{kind}"
    root.mkdir()
    bench.quiet(["truncate", "-s", f"{mib}M", file])
    bench.quiet([f"mkfs.{kind}", "-q", file])
    bench.quiet(["mount", "-o", "loop", file, root])
    try:
        yield root
    finally:
        unmount(root)
        root.rmdir()
        remove(file)


# ---- listing -------------------------------------------------------------------------------------


def listing(bench: Bench, name: str, tree: Path) -> None:
    """Makes all images once, and lists the tree in every view on every host file system."""
    length = content_len(tree)
    say(f"== {name}: {human(length)} in files")
    made = bench.work / f"{name}.made"
    made.mkdir()
    images(bench, tree, made)
    sizes(bench, name, tree, made)
    for kind in HOSTS:
        say(f"   on {kind}")
        mib = max(512, (file_len(made) + length) * 5 // 4 >> 20)
        with host(bench, kind, mib) as root:
            bench.quiet(["cp", "-a", f"{made}/.", root])
            place = Place(kind, root)
            place.views = views(bench, root)
            list_all(bench, name, place)
    remove(made)


def images(bench: Bench, tree: Path, made: Path) -> None:
    """Makes the store of Weald, the composefs image with its objects, and images of the kernel's
    file systems that have the same metadata: files of the right length without data, whose extended
    attributes name the objects."""
    weald = bench.weald
    say("   making images")
    bench.quiet(weald.command("store", "create", made / "store"))
    words = ("--progress", "none", "--level", "5", "--name", "root")
    bench.quiet(weald.command("store", "add", *words, made / "store", tree))
    objects = f"--digest-store={made / 'objects'}"
    bench.quiet([CFSCTL.path, "mkcomposefs", "--hardlinks", objects, tree, made / "meta.cfs"])
    sparse, raw = bench.work / "sparse", bench.work / "raw"
    raw.mkdir()
    bench.quiet(["mount", "-t", "erofs", "-o", "loop,ro", made / "meta.cfs", raw])
    try:
        bench.quiet(["cp", "-a", "--sparse=always", raw, sparse])
    finally:
        unmount(raw)
        raw.rmdir()
    count = int(weald.info(made / "store:root")["name_count"])
    bench.quiet(["mksquashfs", sparse, made / "meta.squashfs", "-quiet", "-no-progress"])
    bench.quiet(["mkfs.erofs", "--quiet", made / "meta.erofs", sparse])
    mib = (count * 1024 >> 20) + 64
    bench.quiet(["truncate", "-s", f"{mib}M", made / "meta.ext4"])
    words = ["-q", "-F", "-N", str(count + 1024), "-d", str(sparse)]
    bench.quiet(["mkfs.ext4", *words, made / "meta.ext4"])
    # The tree has no directory of that name.
    bench.quiet(["debugfs", "-w", "-R", "rmdir lost+found", made / "meta.ext4"])
    remove(sparse)


def sizes(bench: Bench, name: str, tree: Path, made: Path) -> None:
    """The table of the sizes of metadata."""
    info = bench.weald.info(made / "store:root")
    count = int(info["name_count"])
    table = Table(
        f"{name}-metadata",
        f"{name}: bytes of the metadata of {count} entries",
        [Column("image", ""), Column("MB", "mb", 2), Column("bytes an entry", "each", 1)]
        + ratio_columns("mb", [("cfs", "composefs")], 3),
        intro="Files have their lengths and no data.",
        plot={"kind": "bars", "key": "mb", "unit": "metadata, MB"},
    )

    def add(id: str, label: str, length: int) -> None:
        cells = {"mb": [length / 1e6], "each": [length / count]}
        table.rows.append(Row(id, label, cells))

    add("weald", "Weald, tree in an image", int(info["tree_len"]))
    add("cfs", "composefs (EROFS)", file_len(made / "meta.cfs"))
    for kind in ("squashfs", "erofs", "ext4"):
        path = made / f"meta.{kind}"
        used = path.stat().st_blocks * 512 if kind == "ext4" else file_len(path)
        add(kind, f"{kind}, sparse files", used)
    bench.show(table)
    others = [row.cells["mb"][0] for row in table.rows[1:]]
    found = stats.ratio(table.rows[0].cells["mb"][0], min(others))
    bench.at_most(f"{name}: metadata against the smallest of the others", found, 0.50)


def views(bench: Bench, root: Path) -> list[View]:
    """All views of the images in a directory."""
    weald, store = bench.weald, f"{root / 'store'}:root"
    objects = root / "objects"
    own = ["mount.composefs", "-o", f"basedir={objects}", str(root / "meta.cfs")]
    found = [
        View(
            "kernel",
            "weald mount --kernel",
            lambda: bench.quiet(weald.command("mount", "--kernel", store, bench.mnt)),
            root / "store",
        ),
        View(
            "weald",
            "weald mount (FUSE)",
            lambda: bench.quiet(weald.command("mount", store, bench.mnt)),
            root / "store",
        ),
        View(
            "composefs",
            "composefs, its own mount",
            lambda: bench.quiet([CFSCTL.path, *own, bench.mnt]),
            root / "meta.cfs",
        ),
    ]
    for kind in ("squashfs", "erofs", "ext4"):
        image, point = root / f"meta.{kind}", bench.work / f"below-{kind}"
        point.mkdir(exist_ok=True)
        view = View(kind, f"overlayfs over {kind}", lambda: None, image, below=[point])
        view.mount = partial(mount_overlay, bench, kind, image, point, objects)
        found.append(view)
    return found


def mount_overlay(bench: Bench, kind: str, image: Path, point: Path, objects: Path) -> None:
    """Mounts an image of metadata, and overlayfs over it and the objects."""
    bench.quiet(["mount", "-t", kind, "-o", "loop,ro", image, point])
    lower = f"{OVERLAY},lowerdir={point}::{objects}"
    try:
        bench.quiet(["mount", "-t", "overlay", "-o", lower, "overlay", bench.mnt])
    except CommandFailed:
        unmount(point)
        raise


@contextmanager
def shown(bench: Bench, view: View) -> Iterator[None]:
    """Mounts a view on the mount point of the run."""
    view.mount()
    try:
        yield
    finally:
        if view.id in ("kernel", "weald"):
            bench.quiet(bench.weald.command("umount", bench.mnt))
        else:
            unmount(bench.mnt)
        for point in view.below:
            unmount(point)


def list_all(bench: Bench, name: str, place: Place) -> None:
    """Lists the tree with all attributes: on a mount whose caches were emptied, again, and as the
    first act of a new mount, whose time includes the mounting."""
    samples = {view.id: Samples() for view in place.views}

    def list_tree() -> None:
        bench.meter.pipe(["ls", "-lR", bench.mnt])

    def measure(view: View) -> None:
        with shown(bench, view):
            drop_caches()
            cold, warm = measure_machine(list_tree), measure_machine(list_tree)
        drop_caches()
        start = time.perf_counter()
        with shown(bench, view):
            list_tree()
            new = time.perf_counter() - start
        samples[view.id].add(
            cold_s=cold.wall_s,
            cold_cpu_s=cold.cpu_s,
            warm_s=warm.wall_s,
            warm_cpu_s=warm.cpu_s,
            new_s=new,
        )

    same_names(bench, place)
    steps = [Step(view.id, partial(measure, view)) for view in place.views if not view.problem]
    bench.by_turns(steps, LIST_ROUNDS)
    problems = {step.id: step.problem for step in steps}
    baselines = [("composefs", "composefs")]
    table = Table(
        f"{name}-{place.kind}",
        f"{name} on {place.kind}: ls -lR, seconds",
        [
            Column("view", ""),
            Column("mount and list, cold", "new_s", 3),
            *ratio_columns("new_s", baselines),
            Column("list, cold", "cold_s", 3),
            *ratio_columns("cold_s", baselines),
            Column("CPU", "cold_cpu_s"),
            Column("list, warm", "warm_s", 3),
            *ratio_columns("warm_s", baselines),
            Column("CPU", "warm_cpu_s"),
        ],
        plot={"kind": "bars", "key": "new_s", "unit": "mount and ls -lR, cold, seconds"},
    )
    for view in place.views:
        problem = view.problem or problems.get(view.id)
        cells = {} if problem else dict(samples[view.id].cells)
        table.rows.append(Row(view.id, view.label, cells, problem))
    bench.show(table)
    for id, key, what, most in (
        ("kernel", "new_s", "--kernel, mount and list, cold", 0.50),
        ("kernel", "warm_s", "--kernel, list, warm", 1.00),
        ("weald", "new_s", "FUSE, mount and list, cold", 1.00),
        ("weald", "cold_s", "FUSE, list, cold", 1.00),
    ):
        found = stats.median(table.ratios(id, key, "composefs"))
        bench.at_most(f"{name} on {place.kind}: {what}, against composefs", found, most)


def same_names(bench: Bench, place: Place) -> None:
    """Fails unless all views list the same names, modes, owners and lengths."""
    first: str | None = None
    for view in place.views:
        try:
            with shown(bench, view):
                form = "%P %m %U %G %y %s\\n"
                # The length of a directory is that of its file system.
                script = (
                    'find "$1" -mindepth 1 -type d -printf "%P %m %U %G d\\n" -o '
                    f'-mindepth 1 -printf "{form}" | LC_ALL=C sort | sha256sum'
                )
                found = output(["bash", "-c", script, "bash", bench.mnt]).strip()
        except CommandFailed as error:
            view.problem = f"failed: {error}"
            bench.result.failures.append(f"{view.id}: {error}")
            continue
        if first is None:
            first = found
        elif found != first:
            view.problem = "failed: it lists another tree than the first view"
            bench.result.failures.append(f"{view.id} on {place.kind}: it lists another tree")


# ---- making --------------------------------------------------------------------------------------


def making(bench: Bench) -> None:
    """Cost of a view: composefs images of empty files by their number, where nothing but
    metadata is written."""
    count = bench.sized(MAKE_COUNT, 2000)
    say(f"== composefs images of {count} entries")
    names, image = bench.work / "making.names", bench.work / "making.weald"
    dump, target = bench.work / "making.dump", bench.work / "making.cfs"
    in_each = FILES_IN_DIRECTORY
    with open(names, "wb") as file:
        for index in range(count - count // in_each):
            file.write(b"d%06d/f%07d\0" % (index // (in_each - 1), index))
    bench.quiet(bench.weald.build("--from", "listing", "--mtime", "1700000000", names, image))
    with open(dump, "wb") as file:
        bench.quiet(bench.weald.command("export", "dump", image), stdout=file)
    export = bench.weald.command("export", "composefs", image, "--image", target, "--force")
    own = [CFSCTL.path, "mkcomposefs", "--from-file", "--hardlinks", dump, target]
    rows = {
        "weald": ("weald export composefs, from an image", export),
        "composefs": ("mkcomposefs --from-file, from a dump", own),
    }
    samples = {id: Samples() for id in rows}
    written: dict[str, bytes] = {}

    def make(id: str) -> None:
        remove(target)
        used = bench.measure(rows[id][1])
        samples[id].add(cpu_s=used.cpu_s, wall_s=used.wall_s, peak_mib=used.peak_mib)
        written[id] = target.read_bytes()

    steps = [Step(id, partial(make, id)) for id in rows]
    bench.by_turns(steps, MAKE_ROUNDS)
    baselines = [("composefs", "composefs")]
    table = Table(
        "making",
        f"Making a composefs image of {count} entries",
        [
            Column("program", ""),
            Column("CPU s", "cpu_s"),
            *ratio_columns("cpu_s", baselines),
            Column("wall s", "wall_s"),
            Column("memory MiB", "peak_mib", 0),
            *ratio_columns("peak_mib", baselines),
        ],
    )
    problems = {step.id: step.problem for step in steps}
    for id, (label, _) in rows.items():
        table.rows.append(Row(id, label, dict(samples[id].cells), problems[id]))
    bench.show(table)
    if not any(problems.values()):
        bench.true("both make the same bytes", written["weald"] == written["composefs"])
    for key, what, most in (("cpu_s", "CPU time", 0.50), ("peak_mib", "memory", 0.10)):
        found = stats.median(table.ratios("weald", key, "composefs"))
        bench.at_most(f"composefs image of {count} entries: {what}, against it", found, most)
    for path in (names, image, dump, target):
        remove(path)
