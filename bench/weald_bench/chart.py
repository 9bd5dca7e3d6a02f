"""Plots as SVG: bars of one column, or lines on logarithmic axes. Equal data give equal files."""

from __future__ import annotations

import math
from html import escape

from weald_bench import stats
from weald_bench.result import Table

COLOURS = ["#1b6ca8", "#c0392b", "#1e8449", "#8e44ad", "#b9770e", "#515a5a"]
WEALD, RIVAL = "#1b6ca8", "#a0a7ad"
WIDTH = 640

Point = tuple[float, float]


def svg(height: float, body: list[str], title: str) -> str:
    """A document of the usual width."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>',
            f'<text x="10" y="18" font-size="14">{escape(title)}</text>',
            *body,
            "</svg>\n",
        ]
    )


def short(value: float) -> str:
    """A number with three digits that mean something."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def cut(label: str, longest: int = 44) -> str:
    """A label that has room beside its bar."""
    return label if len(label) <= longest else label[: longest - 1] + "…"


def bars(title: str, unit: str, rows: list[tuple[str, list[float]]]) -> str:
    """Horizontal bars of medians, each with the range of its samples as a line."""
    left, right, step, top = 300, 80, 22, 46
    most = max((max(samples) for _, samples in rows), default=1) or 1
    wide = WIDTH - left - right
    body = [f'<text x="{left}" y="36" fill="#515a5a">{escape(unit)}</text>']
    for index, (label, samples) in enumerate(rows):
        y = top + index * step
        middle = stats.median(samples) or 0
        long = middle / most * wide
        colour = WEALD if label.startswith("Weald") else RIVAL
        body.append(
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(cut(label))}</text>'
            f'<rect x="{left}" y="{y + 2}" width="{long:.1f}" height="15" fill="{colour}"/>'
        )
        low, high = min(samples) / most * wide, max(samples) / most * wide
        if high - low >= 1:
            body.append(f'<path d="M{left + low:.1f} {y + 9.5}H{left + high:.1f}" stroke="black"/>')
        body.append(f'<text x="{left + high + 6:.1f}" y="{y + 13}">{short(middle)}</text>')
    return svg(top + len(rows) * step + 10, body, title)


def decades(values: list[float]) -> tuple[int, int]:
    """The powers of ten around all values."""
    low = math.floor(math.log10(min(values)))
    return low, max(math.ceil(math.log10(max(values))), low + 1)


def power(exponent: int) -> str:
    """10 to the exponent."""
    return f"1e{exponent}" if abs(exponent) > 3 else f"{10.0**exponent:g}"


def grid(x: tuple[int, int], y: tuple[int, int], box: tuple[int, int, int, int]) -> list[str]:
    """Lines and numbers of both axes; the box is left, top, width, height."""
    left, top, wide, high = box
    out = []
    for exponent in range(x[0], x[1] + 1):
        at = left + (exponent - x[0]) / (x[1] - x[0]) * wide
        out.append(
            f'<path d="M{at:.1f} {top}V{top + high}" stroke="#ddd"/>'
            f'<text x="{at:.1f}" y="{top + high + 16}" text-anchor="middle">'
            f"{power(exponent)}</text>"
        )
    for exponent in range(y[0], y[1] + 1):
        at = top + high - (exponent - y[0]) / (y[1] - y[0]) * high
        out.append(
            f'<path d="M{left} {at:.1f}h{wide}" stroke="#ddd"/>'
            f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{power(exponent)}</text>'
        )
    return out


def lines(title: str, x_title: str, y_title: str, series: dict[str, list[Point]]) -> str:
    """Lines on two logarithmic axes; points that are not positive are left out."""
    left, top, right, bottom, height = 70, 34, 150, 45, 380
    series = {
        name: sorted(point for point in points if min(point) > 0) for name, points in series.items()
    }
    points = [point for some in series.values() for point in some]
    wide, high = WIDTH - left - right, height - top - bottom
    x, y = decades([point[0] for point in points]), decades([point[1] for point in points])
    body = grid(x, y, (left, top, wide, high))
    body.append(
        f'<text x="{left + wide / 2:.0f}" y="{height - 8}" text-anchor="middle">'
        f"{escape(x_title)}</text>"
        f'<text transform="translate(14 {top + high / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_title)}</text>"
    )
    for index, (name, some) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        places = [
            (
                left + (math.log10(a) - x[0]) / (x[1] - x[0]) * wide,
                top + high - (math.log10(b) - y[0]) / (y[1] - y[0]) * high,
            )
            for a, b in some
        ]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in places]
        body.append(
            f'<text x="{left + wide + 12}" y="{top + 14 + index * 18}" fill="{colour}">'
            f"{escape(name)}</text>"
        )
    return svg(height, body, title)


def first_figures(table: Table) -> dict[str, str] | None:
    """Bars of the first column that has samples."""
    for column in table.columns:
        has_samples = any(table.samples(row.id, column.key) for row in table.rows)
        if column.to is None and has_samples:
            return {"kind": "bars", "key": column.key, "unit": column.title}
    return None


def of_table(table: Table) -> str | None:
    """The plot that a table asks for, usually bars of its first column of figures; None if it has
    no figures."""
    plot = table.plot or first_figures(table)
    if plot is None:
        return None
    if plot["kind"] == "bars":
        rows = [(row.label, table.samples(row.id, plot["key"])) for row in table.rows]
        rows = [(label, samples) for label, samples in rows if samples]
        return bars(table.title, plot["unit"], rows) if rows else None
    series: dict[str, list[Point]] = {}
    for row in table.rows:
        x = stats.median(table.samples(row.id, plot["x"]))
        y = stats.median(table.samples(row.id, plot["y"]))
        if x and y and x > 0 and y > 0:
            series.setdefault(row.label, []).append((x, y))
    return lines(table.title, plot["x_title"], plot["unit"], series) if series else None
