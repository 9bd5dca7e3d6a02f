"""The state of one run: options, places, programs, and what was found so far."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weald_bench import machine, markdown
from weald_bench.measure import CommandFailed, Meter, Usage, Words, shown
from weald_bench.result import Check, Result, Table
from weald_bench.rivals.base import Rival
from weald_bench.rivals.weald import Weald
from weald_bench.runner import Step, interleave

ROOT = machine.ROOT
BENCH = ROOT / "bench"


def say(text: str) -> None:
    """Prints a line of progress for the user."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Options:
    """Options of the command line."""

    suite: str
    scale: str = "full"
    parts: list[str] = field(default_factory=list)
    corpora: list[str] = field(default_factory=list)
    rivals: list[str] | None = None
    levels: list[int] = field(default_factory=list)
    rounds: int | None = None
    limit_s: float = 0.0
    minutes: float = math.inf
    weald: Path = Path()
    against: Path | None = None
    stub: Path | None = None
    out: Path = Path("bench-out")
    image_dir: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """The options for a result, without paths of this machine."""
        return {
            "scale": self.scale,
            "parts": self.parts,
            "corpora": [word.split("=", 1)[0] for word in self.corpora],
            "rivals": self.rivals,
            "levels": self.levels,
            "rounds": self.rounds,
            "against": self.against is not None,
        }


class Bench:
    """One run. As a context it has a work directory; the end removes it and all mounts in it."""

    def __init__(self, options: Options, rivals: Sequence[Rival]) -> None:
        self.options = options
        self.weald = Weald(options.weald)
        self.against = (
            Weald(options.against, "against", "Weald --against") if options.against else None
        )
        self.rivals = list(rivals)
        self.result = Result(options.suite, {}, options.to_dict())
        self.work = Path()
        self.mnt = Path()
        self.names: dict[str, str] = {}
        self.called(ROOT, ".")
        self.called(Path.home(), "~")
        self.called(options.weald, "weald")
        self.called(options.out, "bench-out")
        if options.against:
            self.called(options.against, "other/weald")
        self.meter: Meter = None  # type: ignore[assignment]
        # After this time no table starts another round.
        self.deadline = time.monotonic() + options.minutes * 60

    def __enter__(self) -> Bench:
        self.options.out.mkdir(parents=True, exist_ok=True)
        self.work = Path(tempfile.mkdtemp(prefix="weald-bench-", dir=self.options.image_dir))
        self.work.chmod(0o755)
        self.called(self.work, "WORK")
        self.mnt = self.work / "mnt"
        self.mnt.mkdir()
        # Mount servers of the run have their own runtime directory, apart from those of the user.
        run = self.work / "run"
        run.mkdir(0o700)
        os.environ["WEALD_RUNTIME_DIR"] = str(run)
        os.environ["LC_ALL"] = "C"
        log = open(self.options.out / f"{self.options.suite}.log", "wb")
        program = self.compiled("measure.c")
        self.meter = Meter(program, log)
        return self

    def __exit__(self, *_: object) -> None:
        for point in reversed(mounts_below(self.work)):
            subprocess.run(["umount", "--lazy", point], check=False)
        if mounts_below(self.work):
            # A corpus directory may be among them.
            say(f"weald_bench: {self.work} stays, for something below it is still mounted")
        else:
            subprocess.run(["rm", "-rf", "--one-file-system", self.work], check=False)
        self.meter.log.close()

    def compiled(self, source: str) -> Path:
        """A program that is compiled from a C file of bench/."""
        program = self.work / Path(source).stem
        command = ["cc", "-O2", "-pthread", "-o", str(program), str(BENCH / source)]
        subprocess.run(command, check=True)
        return program

    # ---- what is run -------------------------------------------------------------------------

    @property
    def is_tiny(self) -> bool:
        """Whether this is a trial of the harness with small sizes, whose figures mean nothing."""
        return self.options.scale == "tiny"

    def sized(self, full: int, tiny: int) -> int:
        """Chooses a size by scale."""
        return tiny if self.is_tiny else full

    def has(self, part: str) -> bool:
        """Whether the user selected a part."""
        return part in self.options.parts

    def wealds(self) -> list[Weald]:
        """The Weald under test, and the one that it is compared with."""
        return [self.weald] + ([self.against] if self.against else [])

    def wants(self, name: str) -> bool:
        """Whether the user selected a rival, installed or not."""
        return any(rival.name == name for rival in self.rivals)

    def problem_of(self, name: str) -> str | None:
        """Why a rival that was asked for cannot be run; None if it can. It is noted as missing."""
        for rival in self.rivals:
            if rival.name == name:
                problem = rival.problem()
                if problem:
                    self.result.missing[name] = problem.removeprefix("missing: ")
                return problem
        return None

    def rounds(self, usual: int) -> int:
        """Largest number of repetitions."""
        return self.options.rounds or usual

    def measure(self, command: Words, **more: Any) -> Usage:
        """Measures a command, and notes it in the result."""
        used = self.meter.run(command, **more)
        self.result.commands.append(
            {
                "command": shown(command),
                "wall_s": round(used.wall_s, 3),
                "cpu_s": round(used.cpu_s, 3),
                "peak_mib": round(used.peak_mib, 1),
                "read_bytes": used.read_bytes,
                "written_bytes": used.written_bytes,
            }
        )
        return used

    def quiet(self, command: Words, **more: Any) -> None:
        """Runs a command that is not measured."""
        self.meter.quiet(command, **more)

    def by_turns(self, steps: Sequence[Step], rounds: int, limit_s: float = 1e9) -> int:
        """Runs steps in interleaved rounds; failures go into the result."""
        limit_s = min(limit_s, self.options.limit_s or limit_s, self.deadline - time.monotonic())
        done = interleave(steps, self.rounds(rounds), limit_s, say)
        self.result.failures += [f"{step.id}: {step.problem}" for step in steps if step.problem]
        return done

    def called(self, path: Path, name: str) -> None:
        """Replaces a path of this machine in results by a name. Paths that every machine has keep
        their names."""
        if len(path.parts) > 1 and path.parts[1] != "usr":
            self.names[str(path)] = name

    def without_paths(self, text: str) -> str:
        """A text without places of this machine, longer ones first."""
        for path in sorted(self.names, key=len, reverse=True):
            text = text.replace(path, self.names[path])
        return text

    # ---- what is found -----------------------------------------------------------------------

    def show(self, table: Table) -> None:
        """Adds a table to the result and prints it."""
        self.result.tables.append(table)
        print("\n".join(markdown.table_lines(table, "##")), flush=True)

    def at_most(self, figure: str, found: float | None, most: float, digits: int = 2) -> None:
        """Checks that a figure is at most the required value."""
        self.result.checks.append(Check(figure, found, "≤", most, digits))

    def at_least(self, figure: str, found: float | None, least: float, digits: int = 2) -> None:
        """Checks that a figure is at least the required value."""
        self.result.checks.append(Check(figure, found, "≥", least, digits))

    def equal(self, figure: str, found: float | str | None, asked: float | str) -> None:
        """Checks that a figure equals the required value."""
        self.result.checks.append(Check(figure, found, "=", asked, 0))

    def true(self, figure: str, found: bool) -> None:
        """Checks that something holds."""
        self.equal(figure, "yes" if found else "no", "yes")

    def part_failed(self, part: str, error: CommandFailed) -> None:
        """Notes a part that could not be run to its end: its missing figures are not as asked."""
        say(f"{part}: {error}")
        self.result.failures.append(f"part {part}: {error}")
        self.result.checks.append(Check(f"part {part}: all figures", None, "=", "measured"))


def mounts_below(directory: Path) -> list[str]:
    """Mount points below a directory, in the order of mounting."""
    # The kernel writes blanks and the like as \\040. Names, also those of others, are bytes.
    points = (re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), line.split()[1])
              for line in Path("/proc/self/mounts").read_bytes().splitlines())
    points = map(os.fsdecode, points)
    return [point for point in points if point.startswith(f"{directory}/")]
