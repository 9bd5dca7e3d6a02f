"""The record: JSON Lines, a run header first, then one line a repetition."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

Row = dict[str, Any]
FILE_NAME = "record.jsonl"


class LabError(Exception):
    """Bad input; the message names the file and, where there is one, the line."""


def _validators() -> dict[str, Draft202012Validator]:
    text = resources.files("weald_lab").joinpath("record.schema.json").read_text("utf-8")
    kinds = json.loads(text)["$defs"]
    return {kind: Draft202012Validator(kinds[kind]) for kind in ("run", "repetition")}


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def parse_json(text: str) -> Any:
    """Parses JSON of a stranger.

    Raises `ValueError` for what is no JSON, for NaN and infinity, and for nesting that is too deep.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def file_of(source: Path) -> Path:
    """Returns the record that a directory of `run` holds; a file is the record itself."""
    return source / FILE_NAME if source.is_dir() else source


def read(path: Path) -> list[Row]:
    """Returns the checked rows of a record, header first."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LabError(f"{path}: cannot read: {error.strerror}") from error
    if not data.strip():
        raise LabError(f"{path}: the file is empty; expected a run header in line 1")
    validators = _validators()
    rows: list[Row] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line and number > 1 and number == data.count(b"\n") + 1:
            continue
        rows.append(_row(f"{path}:{number}", line, "repetition" if rows else "run", validators))
    return rows


def read_torn(path: Path) -> list[Row]:
    """Reads a record that a killed run may have ended within a line; that line is left out."""
    data = path.read_bytes()
    whole = data[:data.rfind(b"\n") + 1]
    try:
        return [parse_json(line.decode("utf-8")) for line in whole.splitlines() if line]
    except ValueError as error:
        raise LabError(f"{path}: not a record: {error}") from error


def _row(where: str, line: bytes, kind: str, validators: dict[str, Draft202012Validator]) -> Row:
    try:
        row = parse_json(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise LabError(f"{where}: byte {error.start} is not UTF-8") from error
    except ValueError as error:
        raise LabError(f"{where}: not a complete JSON value: {error}") from error
    if not isinstance(row, dict) or row.get("type") != kind:
        raise LabError(f'{where}: expected an object with "type": "{kind}"')
    for fault in validators[kind].iter_errors(row):
        raise LabError(f"{where}: {fault.json_path}: {fault.message}")
    return row


def write(path: Path, rows: list[Row]) -> None:
    """Writes the rows, one JSON object a line."""
    text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    path.write_text(text, "utf-8")
