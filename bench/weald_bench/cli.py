"""The command line."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from weald_bench import machine, markdown, report, suites
from weald_bench.bench import ROOT, Bench, Options, say
from weald_bench.measure import CommandFailed, FreePages, shown
from weald_bench.rivals import by_name
from weald_bench.suites.common import LEVEL_DEFAULT

USAGE_EXAMPLES = """\
examples:
  python3 -m weald_bench run --suite main
  python3 -m weald_bench run --suite build --part sizes --corpus tree=/usr/lib --rival squashfs-zstd
  python3 -m weald_bench run --suite main --part sizes --against old/weald --rounds 5
  python3 -m weald_bench report bench/results > docs/benchmarks.md

exit status: 0 if everything was measured, 1 if a command failed or a part could not be measured,
2 if the run could not begin. Figures that are not as asked do not change it.
"""


def parser() -> argparse.ArgumentParser:
    """All commands and options."""
    top = argparse.ArgumentParser(
        prog="python3 -m weald_bench",
        description="Measures Weald beside its rivals.",
        epilog=USAGE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure a suite and write its result as JSON")
    run.add_argument("--suite", choices=sorted(suites.ALL), default="main")
    many: dict[str, Any] = {"nargs": "+", "action": "extend", "metavar": "NAME"}
    run.add_argument("--part", help="parts of the suite (default: all)", **many)
    run.add_argument("--corpus", help="trees to pack: names, or NAME=DIR", **many)
    run.add_argument("--rival", help="rivals to measure (none: no rival)", **many)
    run.add_argument("--level", help="levels of weald build", type=int, nargs="+", action="extend")
    run.add_argument("--rounds", type=int, help="repetitions of each measurement at most")
    run.add_argument(
        "--limit",
        type=float,
        metavar="SECONDS",
        help="begin no further round of a table if it would end later than this",
    )
    run.add_argument("--weald", type=Path, help="the binary to measure")
    run.add_argument(
        "--against", type=Path, help="a second binary: both are measured by turns, with ratios"
    )
    run.add_argument("--stub", type=Path, help="the example stub of weald-fuse (for mounts)")
    run.add_argument(
        "--scale",
        choices=["full", "tiny"],
        default="full",
        help=("tiny: sizes that only try the harness; the figures mean nothing"),
    )
    run.add_argument("--out", type=Path, default=ROOT / "bench-out", help="logs, trees, results")
    run.add_argument("--image-dir", type=Path, help="where images are made (default: TMPDIR)")
    run.add_argument(
        "--result",
        type=Path,
        metavar="FILE",
        help=("also write the result here, unless something failed"),
    )
    show = commands.add_parser("report", help="write docs/benchmarks.md from results")
    show.add_argument("results", type=Path, nargs="+", metavar="DIR", help="directories of results")
    show.add_argument("--plots", type=Path, default=ROOT / "docs" / "plots")
    show.add_argument("--output", type=Path, help="replace this file (default: standard output)")
    return top


def wanted(words: list[str] | None, known: tuple[str, ...], what: str) -> list[str]:
    """The chosen words, all of which must be known."""
    for word in words or []:
        if word not in known:
            raise ValueError(f"unknown {what} '{word}': expected one of {', '.join(known)}")
    return [word for word in known if not words or word in words]


def options_of(args: argparse.Namespace, suite: suites.Suite) -> Options:
    """The options of a run."""
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    if args.weald and not args.weald.is_file():
        raise ValueError(f"--weald {args.weald}: there is no such file")
    if args.against and not args.against.is_file():
        raise ValueError(f"--against {args.against}: there is no such file")
    weald = (args.weald or built / "weald").resolve()
    if not weald.is_file():
        raise ValueError("there is no release build of Weald: run 'make', or name one by --weald")
    levels = args.level or list(suite.levels)
    if suite.levels and LEVEL_DEFAULT not in levels:
        levels.append(LEVEL_DEFAULT)
    return Options(
        suite=suite.name,
        scale=args.scale,
        parts=wanted(args.part, suite.parts, "part"),
        corpora=args.corpus or list(suite.corpora),
        rivals=args.rival,
        levels=levels,
        rounds=args.rounds or (1 if args.scale == "tiny" else None),
        limit_s=args.limit or 0.0,
        minutes=suite.minutes if not args.rounds else math.inf,
        weald=weald,
        against=args.against.resolve() if args.against else None,
        stub=(args.stub or built / "examples" / "stub").resolve(),
        out=args.out.resolve(),
        image_dir=args.image_dir.resolve() if args.image_dir else None,
    )


def check_machine(suite: suites.Suite) -> None:
    """Checks the requirements of a suite: programs, root and /dev/fuse."""
    for tool in ("cc", "tar", "bash", "openssl"):
        if shutil.which(tool) is None:
            raise ValueError(f"{tool} is missing: run 'bash scripts/setup.sh build bench'")
    if suite.needs_root and os.geteuid() != 0:
        raise ValueError(f"the suite {suite.name} mounts and empties caches: run it as root")
    if suite.needs_root and not Path("/dev/fuse").exists():
        raise ValueError("/dev/fuse is missing: load the kernel module (modprobe fuse)")


def result_path(out: Path, suite: str, commit: str) -> Path:
    """A unique name for a result."""
    directory = out / "results"
    directory.mkdir(parents=True, exist_ok=True)
    number = 1
    while (path := directory / f"{suite}-{commit}-{number}.json").exists():
        number += 1
    return path


def run(args: argparse.Namespace) -> int:
    """Measures a suite."""
    suite = suites.ALL[args.suite]
    check_machine(suite)
    options = options_of(args, suite)
    names = [name for name in args.rival or suite.rivals if name != "none"]
    rivals = [by_name(name) for name in names]
    with FreePages() as pages, Bench(options, rivals) as bench:
        for rival in rivals:
            bench.problem_of(rival.name)
        tools = {rival.name: rival.version() for rival in rivals if not rival.problem()}
        bench.result.machine = machine.facts(bench.work, options.weald, tools, pages.state)
        bench.result.machine["is_other_binary"] = args.weald is not None
        bench.result.machine["command"] = shown(["python3 -m weald_bench", *command_words(args)])
        print("\n".join([f"# {suite.title}", "", *markdown.machine_lines(bench.result)]))
        suite.run(bench)
        result = bench.result
    path = result_path(options.out, suite.name, result.machine["commit"])
    text = bench.without_paths(result.to_json())
    path.write_text(text, encoding="utf-8")
    if args.result and not result.failures:
        args.result.parent.mkdir(parents=True, exist_ok=True)
        args.result.write_text(text, encoding="utf-8")
    print("\n".join(["## Requirements", "", *markdown.check_lines(result.checks)]))
    for failure in result.failures:
        say(f"weald_bench: failed: {failure}")
    say(f"weald_bench: the result is in {path}")
    return 1 if result.failures else 0


def command_words(args: argparse.Namespace) -> list[str]:
    """The options that a reader needs to repeat a run; no paths of this machine."""
    words = ["run", "--suite", args.suite]
    for name in ("part", "corpus", "rival", "level"):
        if getattr(args, name):
            values = (str(value).split("=", 1) for value in getattr(args, name))
            words += [f"--{name}", *(v[0] if len(v) == 1 else f"{v[0]}=DIR" for v in values)]
    if args.weald:
        words += ["--weald", "FILE"]
    for name in ("rounds", "limit"):
        if getattr(args, name):
            words += [f"--{name}", f"{getattr(args, name):g}"]
    if args.against:
        words += ["--against", "FILE"]
    if args.scale != "full":
        words += ["--scale", args.scale]
    return words


def write_report(args: argparse.Namespace) -> int:
    """Writes the document."""
    text = report.document(args.results, args.plots)
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def ended(*_: object) -> None:
    """Ends the run on a signal, so that mounts and temporary files are removed."""
    sys.exit(143)


def main(argv: list[str] | None = None) -> int:
    """Runs a command; its exit status."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, ended)
    # Debian has mkfs here, which is not on the PATH of every user.
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    try:
        return write_report(args) if args.command == "report" else run(args)
    except (ValueError, CommandFailed, OSError) as error:
        say(f"weald_bench: {error}")
        return 2
