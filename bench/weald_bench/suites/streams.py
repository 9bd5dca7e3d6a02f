"""The part `listing` of the suite `forest`: names that come as a stream, and a tar stream."""

from __future__ import annotations

import subprocess
from functools import partial

from weald_bench import stats
from weald_bench.bench import Bench, say
from weald_bench.corpora import made
from weald_bench.measure import CommandFailed, output
from weald_bench.mounts import Samples
from weald_bench.result import Column, Row, Table
from weald_bench.runner import Step
from weald_bench.suites.common import remove

LISTED = 10_000_000
ROUNDS = 2
WORDS = ("--level 0 --threads 1", "--level 0", "--level 7")


def run(bench: Bench) -> None:
    """Runs the part."""
    listing(bench)
    tar(bench)


def listing(bench: Bench) -> None:
    """Ten million paths, shuffled, as a listing into an image."""
    say("== listing")
    source, image = bench.work / "listing", bench.work / "listing.weald"
    copies, count = made.listing(bench, source, bench.sized(LISTED, 1000))
    samples = {words: Samples() for words in WORDS}

    def build(words: str) -> None:
        fixed = ["build", "--quiet", "--force", "--memory", "256M", "--from", "listing"]
        used = bench.measure(bench.weald.command(*fixed, *words.split(), source, image))
        entries = int(output(bench.weald.command("find", image, "--count")))
        length = image.stat().st_size
        samples[words].add(
            entries=entries,
            cpu_s=used.cpu_s,
            wall_s=used.wall_s,
            rate=stats.per(entries, used.cpu_s),
            peak_mib=used.peak_mib,
            bytes=length,
            each=length / entries,
        )

    steps = [Step(words, partial(build, words)) for words in WORDS]
    bench.by_turns(steps, ROUNDS)
    table = Table(
        "listing",
        f"A listing of {count} paths: those of /usr {copies} times, shuffled; --memory 256M",
        [
            Column("options", ""),
            Column("entries", "entries", 0),
            Column("CPU s", "cpu_s"),
            Column("wall s", "wall_s"),
            Column("entries a CPU s", "rate", 0),
            Column("memory MiB", "peak_mib", 1),
            Column("image bytes", "bytes", 0),
            Column("bytes an entry", "each", 3),
        ],
    )
    for step in steps:
        table.rows.append(Row(step.id, step.id, dict(samples[step.id].cells), step.problem))
    bench.show(table)
    # The best of the rounds: what disturbs a run only adds CPU time.
    rate = max(table.samples(WORDS[0], "rate"), default=None)
    bench.at_least(f"listing of {count} paths: entries a CPU second", rate, 1_000_000, 0)
    peaks = [table.samples(words, "peak_mib") for words in WORDS]
    most = max(map(max, peaks)) if all(peaks) else None
    bench.at_most(f"listing of {count} paths: memory, MiB", most, 256, 1)
    remove(source)
    remove(image)


def tar(bench: Bench) -> None:
    """A tar stream gives the tree that the directory gives."""
    fanout, count = ("20x20x100", "40,000") if not bench.is_tiny else ("5x5x10", "250")
    tree, direct, streamed = (bench.work / name for name in ("tree", "dir.weald", "tar.weald"))
    words = ["--names", "words", "--sizes", "log-normal:1K:1"]
    words += ["--symlinks", "0.1", "--hard-links", "0.05"]
    bench.quiet(bench.weald.command("forest", "--quiet", "--fanout", fanout, *words, tree))
    bench.quiet(bench.weald.build(tree, direct))
    command = ["tar", "-C", str(tree), "--sort=name", "--format=pax", "-c", "."]
    packing = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        bench.quiet(bench.weald.command("build", "--quiet", "-", streamed), stdin=packing.stdout)
    finally:
        assert packing.stdout
        packing.stdout.close()
        if packing.wait() != 0:
            raise CommandFailed(f"{command}: exit status {packing.returncode}")
    digests = [bench.weald.info(image)["tree_digest"] for image in (direct, streamed)]
    figure = f"a tar stream of {count} files: tree digest as of the directory"
    bench.true(figure, digests[0] == digests[1])
    for path in (tree, direct, streamed):
        remove(path)
