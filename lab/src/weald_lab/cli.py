"""The command weald-lab."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click
from rich.console import Console

from weald_lab import compare as comparison
from weald_lab import devices, judge, outputs, page, protocols2015, record, trust, whole
from weald_lab import readme as documents
from weald_lab import spent as spending
from weald_lab.plan import Plan, parse_specs, problems
from weald_lab.runner import STATE, Interrupted, Runner, State

DIFFERENT, CANNOT, INTERRUPTED = 1, 2, 130
CONSOLE = Console(stderr=True, highlight=False)


@click.group()
def main() -> None:
    """Times the life of a data set on file systems, and judges the records."""


def _fail(error: Exception) -> NoReturn:
    click.echo(f"weald-lab: {error}", err=True)
    raise SystemExit(CANNOT)


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def validate(files: tuple[Path, ...]) -> None:
    """Checks records against the schema."""
    try:
        for file in files:
            click.echo(f"{file}: {len(record.read(file)) - 1} repetitions")
    except record.LabError as error:
        _fail(error)


@main.command("import")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Record to write.")
def import_(source: Path, out: Path) -> None:
    """Reads the protocols of 2015 from a directory or a tar archive."""
    try:
        rows = protocols2015.load(source)
        record.write(out, rows)
        click.echo(f"{out}: {len(rows) - 1} repetitions")
    except (record.LabError, OSError) as error:
        _fail(error)


@main.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="Page to write, self-contained.")
@click.option("--csv", type=click.Path(path_type=Path), help="File for one line a cell.")
@click.option("--markdown", type=click.Path(path_type=Path), help="File for the tables.")
@click.option("--plots", type=click.Path(path_type=Path), help="Directory for SVG and PNG plots.")
@click.option("--rounds", type=click.IntRange(1), default=10**9, show_default="all",
              help="Judge the first rounds of each series only.")
@click.option("--title", default="Results of the lab", show_default=True)
def report(sources: tuple[Path, ...], html: Path | None, csv: Path | None,
           markdown: Path | None, plots: Path | None, rounds: int, title: str) -> None:
    """Judges records: files, or directories that `run` wrote."""
    if not (html or csv or markdown or plots):
        raise click.UsageError("nothing to write: give --html, --csv, --markdown or --plots")
    try:
        rows = [row for source in sources for row in record.read(record.file_of(source))]
        judgements = [judge.judge(rows, key, rounds) for key in judge.tables_of(rows)]
        if not judgements:
            raise record.LabError("the records have no successful repetition: nothing to judge")
        if html:
            headers = [row for row in rows if row["type"] == "run"]
            repeats = judge.repeats(rows)
            standings = [whole.rank(table, rows, repeats, rounds) for table in judgements]
            text = page.render(headers, judgements, repeats, judge.conditions(rows), title,
                               standings)
            html.write_text(text, "utf-8")
        if csv:
            outputs.csv(judgements, csv)
        if markdown:
            markdown.write_text(outputs.markdown(judgements), "utf-8")
        if plots:
            outputs.plots(judgements, plots)
    except (record.LabError, OSError) as error:
        _fail(error)


@main.command()
@click.argument("document", type=click.Path(path_type=Path))
@click.option("--record", "records", multiple=True, required=True, metavar="NAME=FILE",
              help="A record, and the name that blocks call it by; repeatable.")
def readme(document: Path, records: tuple[str, ...]) -> None:
    """Makes the figures of a document anew: each block from `<!-- lab: KIND NAME … -->` on."""
    try:
        sources = {}
        for word in records:
            name, sign, file = word.partition("=")
            if not sign:
                raise click.UsageError(f"{word}: expected NAME=FILE")
            sources[name] = documents.Source(record.read(record.file_of(Path(file))))
        old = document.read_text("utf-8")
        new = documents.renew(old, sources)
        if new != old:
            document.write_text(new, "utf-8")
    except (record.LabError, OSError, ValueError) as error:
        _fail(error)


@main.command()
@click.argument("one", type=click.Path(path_type=Path))
@click.argument("two", type=click.Path(path_type=Path))
@click.option("--threshold", type=click.FloatRange(0), default=5.0, show_default=True,
              help="Least change in percent that matters.")
@click.option("--value", type=click.Choice(["wall_s", "cpu_s", "peak_memory_bytes",
              "written_bytes"]), default="wall_s", show_default=True)
@click.option("--all", "show_all", is_flag=True, help="Show what did not change, too.")
def compare(one: Path, two: Path, threshold: float, value: str, show_all: bool) -> None:
    """Says which steps became slower or faster from run ONE to run TWO.

    Exit status: 0 if nothing became slower, 1 if something did, 2 if it could not be compared.
    """
    try:
        rows = [record.read(record.file_of(source)) for source in (one, two)]
        changes = comparison.compare(rows[0], rows[1], value)
    except (record.LabError, OSError) as error:
        _fail(error)
    for line in comparison.lines(changes, threshold / 100, show_all):
        click.echo(line)
    if any(c.verdict(threshold / 100) == "slower" for c in changes):
        raise SystemExit(DIFFERENT)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        return float(number) * units[unit]
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected a time such as 90s, 15m or 2h") from None


@main.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--time", "time_", default="12m", show_default=True,
              help="Time for which the rounds that fit are counted.")
def spent(sources: tuple[Path, ...], time_: str) -> None:
    """Says where the time of runs went, and how many rounds fit into a time.

    Rounds under load take longer: the figures are those of the run's machine at its hour.
    """
    try:
        rows = [row for source in sources for row in record.read(record.file_of(source))]
        for line in spending.lines(rows, _seconds(time_) or 0.0):
            click.echo(line)
    except (record.LabError, OSError) as error:
        _fail(error)


@main.command()
@click.option("--on", default="", help="Stacks: NAME or NAME=KIND, separated by commas.")
@click.option("--stack-file", type=click.Path(path_type=Path),
              help="TOML file with command lines of your own stacks.")
@click.option("--set", "sets", multiple=True, help="NAME.KEY=VALUE: mkfs, mount, create, pack, "
              "path; repeatable.")
@click.option("--shape", default="small", show_default=True,
              help="small (20x100), big (100x1000) or DIRSxFILES. A round of small, 2,000 files, "
              "takes a quarter of an hour for each writable stack.")
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True)
@click.option("--time", "time_", help="Begin no round that would end after this time, 15m.")
@click.option("--until", type=float, help="Stop when every interval of a median is within "
              "this many percent.")
@click.option("--out", required=True, type=click.Path(path_type=Path),
              help="New directory for the record.")
@click.option("--work", type=click.Path(path_type=Path),
              help="New directory for disks and mounts (default: OUT/work).")
@click.option("--device", help="Block device for one kernel file system. It is overwritten.")
@click.option("--confirm-device", help="The same device again: yes, overwrite it.")
@click.option("--seed", type=int, default=1, show_default=True,
              help="Order of the stacks and contents of the files.")
@click.option("--size", type=int, help="Size of each file system in MiB (default: by shape).")
@click.option("--weald", default="weald", show_default=True, help="The program weald.")
@click.option("--step-timeout", default="1h", show_default=True)
@click.option("--annex-test", is_flag=True, help="Run git annex test in each round, too.")
def run(on: str, stack_file: Path | None, sets: tuple[str, ...], shape: str, rounds: int,
        time_: str | None, until: float | None, out: Path, work: Path | None,
        device: str | None, confirm_device: str | None, seed: int, size: int | None, weald: str,
        step_timeout: str, annex_test: bool) -> None:
    """Times the life of a data set on stacks of file systems."""
    try:
        if device and device != confirm_device:
            raise record.LabError(f"{device} will be overwritten: to confirm, say "
                                  f"--confirm-device {device}")
        os.umask(os.umask(0o077) | 0o022)
        specs = parse_specs(on, sets, stack_file)
        weald = os.path.abspath(weald) if "/" in weald else weald
        plan = Plan([vars(s) for s in specs], shape, rounds, seed,
                    str((work or out / "work").absolute()), weald, device, _seconds(time_),
                    until, _seconds(step_timeout) or 3600.0, annex_test, size)
        found = problems(plan, out)
        if found:
            raise record.LabError("nothing was made:\n  " + "\n  ".join(found))
        if device:
            plan.device_uuid = str(uuid.uuid4())
            plan.device_identity = devices.identity(device).dump()
        runner = Runner(plan, out, _tell)
        _finish(runner, runner.start)
    except (record.LabError, OSError) as error:
        _fail(error)


@main.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--confirm-device", help="The device of the run: yes, overwrite it. Needed if the "
              "run has no file system there yet.")
def resume(out: Path, confirm_device: str | None) -> None:
    """Goes on with a run that was interrupted.

    It runs the commands that the run's state names, and says which. The directory must be yours,
    and nobody else may be able to write to it.
    """
    try:
        if not os.path.lexists(out / STATE):
            raise record.LabError(f"{out}: no run of weald-lab to go on with: {STATE} is missing")
        for file in (out / STATE, out / record.FILE_NAME):
            told = trust.file_fault(file)
            if told:
                raise record.LabError(f"{told}; its commands are not run")
        os.umask(os.umask(0o077) | 0o022)
        state = State(out / STATE)
        plan = _plan_of(state, out)
        for line in plan.own_commands():
            _tell(line)
        runner = Runner(plan, out, _tell)
        _finish(runner, lambda: runner.resume(confirm_device))
    except (record.LabError, OSError) as error:
        _fail(error)


def _plan_of(state: State, out: Path) -> Plan:
    try:
        plan = Plan(**state.plan)
        plan.stacks()
    except (TypeError, KeyError, AttributeError) as error:
        raise record.LabError(f"{out / STATE}: not the state of a run: {error!r}") from error
    return plan


def _tell(text: str) -> None:
    CONSOLE.print(text, markup=False, soft_wrap=True)


def _finish(runner: Runner, work: Callable[[], None]) -> None:
    try:
        work()
    except Interrupted:
        _tell(f"interrupted: everything is unmounted; weald-lab resume {runner.out} goes on")
        raise SystemExit(INTERRUPTED) from None
    _tell(f"{runner.out / record.FILE_NAME}: {len(runner.state.done)} rounds of stacks, "
          f"{runner.failed_count} failed steps")
    if runner.failed_count:
        raise SystemExit(DIFFERENT)
