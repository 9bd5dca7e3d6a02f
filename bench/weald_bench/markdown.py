"""Results as Markdown."""

from __future__ import annotations

import textwrap

from weald_bench import stats
from weald_bench.result import Check, Column, Result, Row, Table

#: Prose ends at this column, so that lines with a few letters beyond ASCII have at most 120 bytes.
WIDTH = 116


def wrap(text: str, indent: str = "") -> str:
    """Prose within the width; paragraphs stay apart."""
    return "\n\n".join(
        textwrap.fill(
            part, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        for part in text.split("\n\n")
    )


def line(cells: list[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def head(titles: list[str]) -> list[str]:
    """The head of a table."""
    return [line(titles), "|" + "---|" * len(titles)]


def cell(table: Table, row: Row, column: Column) -> str:
    """Text of one cell."""
    if column.to is not None:
        if row.id == column.to:
            return "1"
        return stats.show(table.ratios(row.id, column.key, column.to), column.digits)
    value = row.cells.get(column.key, "-")
    if isinstance(value, str):
        return value
    return stats.show(table.samples(row.id, column.key), column.digits)


def table_lines(table: Table, level: str = "###", picture: str | None = None) -> list[str]:
    """A table with its title, its text and the link to its plot."""
    lines = [f"{level} {table.title}", ""]
    if table.intro:
        lines += [wrap(table.intro), ""]
    # The column that names the rows has the title of the first one without key.
    lines += head([table.columns[0].title] + [column.title for column in table.columns[1:]])
    for row in table.rows:
        if row.problem:
            rest = [row.problem] + [""] * (len(table.columns) - 2)
        else:
            rest = [cell(table, row, column) for column in table.columns[1:]]
        lines.append(line([row.label] + rest))
    for note in table.notes:
        lines += ["", wrap(note)]
    if picture:
        lines += ["", f"![{table.title}]({picture})"]
    return lines + [""]


def number(value: float | str | None, digits: int) -> str:
    """A figure of a check."""
    if value is None:
        return "missing"
    if isinstance(value, str):
        return value
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"


def check_lines(checks: list[Check]) -> list[str]:
    """The table of checks."""
    lines = head(["figure", "found", "asked", "as asked"])
    for check in checks:
        found = (
            f"{check.found:.{check.digits}f}"
            if stats.is_figure(check.found)
            else number(check.found, 0)
        )
        asked = f"{check.relation} {number(check.asked, 4)}"
        lines.append(line([check.figure, found, asked, check.verdict]))
    return lines + [""]


def machine_lines(result: Result) -> list[str]:
    """Describes the run: programs and machine."""
    machine = result.machine
    facts = [
        f"Weald {machine.get('weald_version')}, "
        + ("some binary (--weald), harness at " if machine.get("is_other_binary") else "")
        + f"commit {machine.get('commit')}",
        f"{machine.get('processors')} × {machine.get('processor')}, "
        f"{machine.get('memory_gib')} GiB of memory, Linux {machine.get('kernel')}",
        f"load at the start: {machine.get('load')}; share of time that processes waited in the "
        f"10 seconds before: processor {machine.get('pressure_cpu')}%, "
        f"storage {machine.get('pressure_io')}%, memory {machine.get('pressure_memory')}%",
        f"images on {machine.get('file_system')}; free pages: {machine.get('free_pages')}",
        "rivals: " + ("; ".join(dict.fromkeys(machine.get("tools", {}).values())) or "none"),
        f"command: `{machine.get('command')}`",
    ]
    facts += [f"missing: {name}: {why}" for name, why in result.missing.items()]
    facts += [f"FAILED: {failure}" for failure in result.failures]
    return [wrap(f"- {fact}", "  ") for fact in facts] + [""]


def result_lines(result: Result, title: str, pictures: dict[str, str]) -> list[str]:
    """A whole run; `pictures` has the plot of each table that has one. What was asked of the figures
    is not in it: that stands in the JSON, and in what the run prints."""
    lines = [f"## {title}", ""] + machine_lines(result)
    for table in result.tables:
        lines += table_lines(table, picture=pictures.get(table.id))
    return lines
