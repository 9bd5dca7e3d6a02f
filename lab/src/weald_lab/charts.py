"""Charts as Vega-Lite specifications, for the page and for files alike.

Each chart names its data (`rows`, and `bars` or `lines`); the page's script or `draw` puts them in.
Colours of text and lines are `currentColor`, so that the page's style decides about dark and light.
"""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import vl_convert

Spec = dict[str, Any]
Data = dict[str, list[dict[str, Any]]]

INK = "currentColor"
ACCENT = "#3b82c4"
SECOND = "#d97706"
ROW_PX = 22
LOG = alt.Scale(type="log", nice=False)


def _config() -> Spec:
    text = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": None, "font": "system-ui, sans-serif", "view": {"stroke": None},
        "axis": {**text, "gridColor": INK, "gridOpacity": 0.12, "domainColor": INK,
                 "tickColor": INK, "labelLimit": 290},
        "legend": {**text, "labelLimit": 260, "columns": 2,
                   "symbolOpacity": 1, "symbolStrokeWidth": 3},
        "range": {"category": {"scheme": "tableau20"}},
    }


def _finish(chart: alt.LayerChart, height: int | None = None) -> Spec:
    size: dict[str, Any] = {"height": height} if height else {"height": alt.Step(ROW_PX)}
    spec: Spec = chart.properties(width="container", **size).to_dict(validate=False)
    spec["config"] = _config()
    spec.pop("$schema", None)
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def _stack_axis() -> alt.Y:
    return alt.Y("stack:N", sort=None, title=None)


def rating() -> Spec:
    """Old rating of each stack with its interval. `bars`: stack, rating, low, high."""
    base = alt.Chart(alt.NamedData("bars"))
    rule = base.mark_rule(color=ACCENT, strokeWidth=4, opacity=0.5).encode(
        y=_stack_axis(), x=alt.X("low:Q", title="rating (0 is best), 95 % interval",
                                 axis=alt.Axis(tickMinStep=1)),
        x2="high:Q")
    point = base.mark_point(color=ACCENT, filled=True, size=70, opacity=1).encode(
        y=_stack_axis(), x="rating:Q",
        tooltip=["stack:N", "rating:Q", "low:Q", "high:Q"])
    return _finish(rule + point)


def distribution() -> Spec:
    """All repetitions of a step. `rows`: stack, wall, round; `bars`: stack, median, low, high."""
    x = alt.X("wall:Q", title="wall time in seconds (log)", scale=LOG)
    points = alt.Chart(alt.NamedData("rows")).mark_tick(
        color=ACCENT, opacity=0.35, thickness=1.5, size=12).encode(
        y=_stack_axis(), x=x, tooltip=["stack:N", "round:Q", "wall:Q"])
    bars = alt.Chart(alt.NamedData("bars"))
    rule = bars.mark_rule(color=SECOND, strokeWidth=5, opacity=0.8).encode(
        y=_stack_axis(), x=alt.X("low:Q"), x2="high:Q")
    middle = bars.mark_point(color=SECOND, filled=True, size=60, opacity=1).encode(
        y=_stack_axis(), x="median:Q",
        tooltip=["stack:N", "median:Q", "low:Q", "high:Q", "rank:Q", "n:Q"])
    return _finish(points + rule + middle)


def rounds() -> Spec:
    """Time against round. `rows`: stack, round, wall; `lines`: stack, round, smooth."""
    pick = alt.selection_point(fields=["stack"], bind="legend")
    colour = alt.Color("stack:N", title="choose in the legend",
                       legend=alt.Legend(orient="bottom"))
    points = alt.Chart(alt.NamedData("rows")).mark_circle(size=22).encode(
        x=alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1)),
        y=alt.Y("wall:Q", title="seconds (log)", scale=LOG), color=colour,
        opacity=alt.condition(pick, alt.value(0.45), alt.value(0.0)),
        tooltip=["stack:N", "round:Q", "wall:Q"])
    lines = alt.Chart(alt.NamedData("lines")).mark_line(strokeWidth=2.5).encode(
        x="round:Q", y="smooth:Q", color=colour,
        opacity=alt.condition(pick, alt.value(1.0), alt.value(0.04))).add_params(pick)
    return _finish(points + lines, 380)


def two_values(first: str, second: str, title: str) -> Spec:
    """Two medians of each stack, joined. `bars`: stack, and the two fields."""
    base = alt.Chart(alt.NamedData("bars"))
    rule = base.mark_rule(color=INK, opacity=0.4, strokeWidth=2).encode(
        y=_stack_axis(),
        x=alt.X(f"{first}:Q", title=title, scale=LOG), x2=f"{second}:Q")
    rows = alt.Chart(alt.NamedData("bars")).transform_fold(
        [first, second], as_=["kind", "seconds"]).mark_point(
        filled=True, size=70, opacity=1).encode(
        y=_stack_axis(), x="seconds:Q",
        color=alt.Color("kind:N", title=None, legend=alt.Legend(orient="top"),
                        scale=alt.Scale(domain=[first, second], range=[ACCENT, SECOND])),
        tooltip=["stack:N", "kind:N", "seconds:Q"])
    return _finish(rule + rows)


def all_specs() -> dict[str, Spec]:
    """Returns the charts of the page by name."""
    return {
        "rating": rating(), "distribution": distribution(), "rounds": rounds(),
        "coldwarm": two_values("cold", "warm", "median wall time in seconds (log)"),
        "cpuwall": two_values("cpu", "wall", "median seconds (log)"),
    }


def draw(spec: Spec, data: Data, title: str) -> tuple[str, bytes]:
    """Returns the chart as SVG text and as a PNG image, dark on white."""
    text = json.dumps({**spec, "width": 620, "datasets": data, "title": title})
    full = json.loads(text.replace(f'"{INK}"', '"#222222"'))
    full["background"] = "white"
    full["$schema"] = alt.SCHEMA_URL
    svg = vl_convert.vegalite_to_svg(full)
    return svg, vl_convert.svg_to_png(svg, scale=1.5)


def script() -> str:
    """Returns the script of Vega, Vega-Lite and Vega-Embed, to put into the page."""
    return vl_convert.javascript_bundle()  # type: ignore[call-arg]
