"""The command weald-lab."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import click

from weald_lab import judge, outputs, page, protocols2015, record

CANNOT = 2


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
@click.option("--title", default="What the lab measured", show_default=True)
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
            text = page.render(headers, judgements, judge.repeats(rows), title)
            html.write_text(text, "utf-8")
        if csv:
            outputs.csv(judgements, csv)
        if markdown:
            markdown.write_text(outputs.markdown(judgements), "utf-8")
        if plots:
            outputs.plots(judgements, plots)
    except (record.LabError, OSError) as error:
        _fail(error)
