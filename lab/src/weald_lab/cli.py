"""The command weald-lab."""

from __future__ import annotations

from pathlib import Path

import click

from weald_lab import protocols2015, record

CANNOT = 2


@click.group()
def main() -> None:
    """Judges benchmark records of file systems."""


def _fail(error: Exception) -> None:
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
