"""Results of a run: tables, checks, missing tools and failures, with JSON encoding and parsing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weald_bench import stats

FORMAT = 1

#: `Column.to` of ratios to the same row of the other Weald (`--against`).
SAME_ROW_OF_AGAINST = "@against"

#: A cell: samples of repetitions, or a word.
Cell = list[float] | str


@dataclass
class Column:
    """A column: of samples by `key`, or of ratios of the samples of `key` to those of row `to`."""

    title: str
    key: str
    digits: int = 2
    to: str | None = None


@dataclass
class Row:
    """A row; one without figures has `problem`, which says why."""

    id: str
    label: str
    cells: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass
class Table:
    """A table of rows, with a sentence before it, notes after it, and what its plot shows."""

    id: str
    title: str
    columns: list[Column]
    rows: list[Row] = field(default_factory=list)
    intro: str = ""
    notes: list[str] = field(default_factory=list)
    #: {"kind": "bars", "key", "unit"} or {"kind": "lines", "x", "y", "x_title", "unit"}.
    plot: dict[str, str] | None = None

    def row(self, id: str) -> Row | None:
        """The row of an id."""
        return next((row for row in self.rows if row.id == id), None)

    def samples(self, id: str, key: str) -> list[float]:
        """The samples of a cell; none if the row or the cell is missing."""
        row = self.row(id)
        cell = row.cells.get(key) if row and not row.problem else None
        return [value for value in cell if stats.is_figure(value)] if isinstance(cell, list) else []

    def ratios(self, id: str, key: str, to: str) -> list[float]:
        """The ratios of a row's samples to those of another row."""
        if to == SAME_ROW_OF_AGAINST:
            if not id.startswith("weald"):
                return []
            to = "against" + id.removeprefix("weald")
        return stats.ratios(self.samples(id, key), self.samples(to, key))


@dataclass
class Check:
    """A figure with its required value. A missing figure is a failure."""

    figure: str
    found: float | str | None
    relation: str
    asked: float | str
    digits: int = 2

    @property
    def passed(self) -> bool:
        """Whether the figure meets the requirement."""
        if self.relation == "=":
            return self.found is not None and self.found == self.asked
        if isinstance(self.found, str) or isinstance(self.asked, str) or self.found is None:
            return False
        if not stats.is_figure(self.found) or not stats.is_figure(self.asked):
            return False
        # Compared as it is printed, so that no line contradicts itself.
        found = round(self.found, self.digits)
        return found <= self.asked if self.relation == "≤" else found >= self.asked

    @property
    def verdict(self) -> str:
        """The word of the column "as asked"."""
        return "yes" if self.passed else "NO"


@dataclass
class Result:
    """One run of one suite."""

    suite: str
    machine: dict[str, Any]
    options: dict[str, Any]
    tables: list[Table] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    #: Rivals that could not run: name and reason.
    missing: dict[str, str] = field(default_factory=dict)
    #: Commands and parts that failed.
    failures: list[str] = field(default_factory=list)
    #: Every measured command with the resources that it used.
    commands: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> str:
        """As JSON text."""
        data = {"format": FORMAT, **asdict(self)}
        for check, shown in zip(self.checks, data["checks"]):
            shown["passed"] = check.passed
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Result:
        """Reads what `to_json` wrote; raises ValueError for anything else."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"not a result of format {FORMAT}")
        del data["format"]
        try:
            tables = [
                Table(
                    **{
                        **table,
                        "columns": [Column(**column) for column in table["columns"]],
                        "rows": [Row(**row) for row in table["rows"]],
                    }
                )
                for table in data.pop("tables")
            ]
            checks = [
                Check(**{name: value for name, value in check.items() if name != "passed"})
                for check in data.pop("checks")
            ]
            return Result(**data, tables=tables, checks=checks)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a result: {error}") from error

    @staticmethod
    def load(path: Path) -> Result:
        """Reads a file."""
        try:
            return Result.from_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
