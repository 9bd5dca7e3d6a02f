"""The judgement as CSV, as Markdown and as files of plots."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from weald_lab import chartdata, charts
from weald_lab.judge import OTHERS, Judgement


def csv(judgements: list[Judgement], path: Path) -> None:
    """Writes one line a cell."""
    rows = []
    for judgement in judgements:
        for step in judgement.steps:
            for cell in chartdata.cells_at(judgement, step):
                rows.append({
                    "shape": judgement.shape, "family": judgement.family,
                    "temperature": judgement.temperature, "step": step, "stack": cell.stack,
                    "rounds": len(cell.walls), "rank_2015": cell.old_rank, "mean_s": cell.mean_s,
                    "rank": cell.rank, "median_s": cell.median_s, "low_s": cell.low_s,
                    "high_s": cell.high_s, "autocorrelation": cell.lag1,
                    **{name: cell.others.get(name) for name in OTHERS},
                    "failed": judgement.failed.get((cell.stack, step), 0)})
    pl.DataFrame(rows, infer_schema_length=None).write_csv(path, float_precision=6)


def number(value: float) -> str:
    """Returns a time with three significant digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def span(low: float | None, high: float | None) -> str:
    """Returns an interval, or a dash where there are too few repetitions."""
    return "–" if low is None or high is None else f"{number(low)}–{number(high)}"


def markdown(judgements: list[Judgement]) -> str:
    """Returns the ranking of each table and its medians."""
    out = ["# Judgement of weald-lab", ""]
    for judgement in judgements:
        out += [f"## {judgement.name}", "", *_ratings(judgement), "", *_medians(judgement), ""]
    return "\n".join(out)


def _ratings(judgement: Judgement) -> list[str]:
    out = ["| stack | rounds | rating as in 2015 | 95 % interval | shared rank "
           "| median of shared step ranks | × best |", "|---|--:|--:|--:|--:|--:|--:|"]
    for rating in judgement.ratings:
        out.append(
            f"| {rating.stack} | {rating.rounds} | {rating.old:g} | {rating.low:.3g}–"
            f"{rating.high:.3g} | {rating.overall} | {rating.rank_median:g} "
            f"| {rating.ratio_to_best:.2f} |")
    return out


def _medians(judgement: Judgement) -> list[str]:
    out = ["Median wall seconds, 95 % interval, shared rank in brackets:", "",
           "| step | " + " | ".join(judgement.stacks) + " |",
           "|---|" + "--:|" * len(judgement.stacks)]
    for step in judgement.steps:
        values = []
        for stack in judgement.stacks:
            cell = judgement.cells.get((stack, step))
            values.append("" if cell is None else
                          f"{number(cell.median_s)} ({span(cell.low_s, cell.high_s)}) "
                          f"[{cell.rank}]")
        out.append(f"| `{step}` | " + " | ".join(values) + " |")
    return out


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")


def plots(judgements: list[Judgement], directory: Path) -> int:
    """Writes each chart as SVG and as PNG; returns the number of charts."""
    directory.mkdir(parents=True, exist_ok=True)
    specs = charts.all_specs()
    drawn: list[tuple[str, str, charts.Data]] = []
    for judgement in judgements:
        drawn.append((f"{judgement.name}-rating", "rating", chartdata.rating_data(judgement)))
        other = chartdata.partner(judgements, judgement)
        for step in judgement.steps:
            name = f"{judgement.name}-{judgement.steps.index(step):02}-{_file_name(step)}"
            data = chartdata.step_data(judgement, step)
            drawn.append((f"{name}-distribution", "distribution", data))
            if data["lines"]:
                drawn.append((f"{name}-rounds", "rounds", data))
            if any(bar["cpu"] for bar in data["bars"]):
                drawn.append((f"{name}-cpu-wall", "cpuwall", data))
            if other and judgement.temperature == "cold":
                both = chartdata.coldwarm_data(judgement, other, step)
                if both["bars"]:
                    drawn.append((f"{name}-cold-warm", "coldwarm", both))
    for name, kind, data in drawn:
        svg, png = charts.draw(specs[kind], data, name)
        (directory / f"{name}.svg").write_text(svg, "utf-8")
        (directory / f"{name}.png").write_bytes(png)
    return len(drawn)
