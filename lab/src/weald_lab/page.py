"""The report: one page with its data, style and script inside, and no link to anything outside."""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from typing import Any

from weald_lab import chartdata, charts, front, heat, panels, whole
from weald_lab.judge import Judgement, Repeat
from weald_lab.outputs import number, span
from weald_lab.record import Row

# The browser refuses whatever the page would load from outside. Vega compiles its expressions.
POLICY = ("default-src 'none'; style-src 'unsafe-inline'; "
          "script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:")

METHOD = """
<li><b>Rating as in 2015</b>: a stack's rank at a step is its place by mean, 0 is best; its rating
is the median of its ranks. The interval is what the rating becomes if the rounds are drawn again
(bootstrap, 95 %).</li>
<li><b>Interval of a median</b>: circular block bootstrap over the rounds, 2000 resamples, blocks of
n<sup>1/3</sup> rounds, because neighbouring rounds of an ageing file system resemble each other.
Below 6 repetitions there is no interval of 95 %.</li>
<li><b>Shared rank at a step</b>: the number of stacks that are faster for certain. Every pair of
stacks is compared at every step (Mann and Whitney, two-sided), and all comparisons of a table are
corrected together (Holm, 5 %). Stacks that cannot be told apart from the best share rank 0.</li>
<li><b>Shared rank over all steps</b>: the number of stacks whose mean rank is better by the
critical difference of Nemenyi's test at 5 %, over the steps that all stacks have.</li>
<li><b>Effect size</b>: ratio of medians with its interval, and Cliff's delta: 1 if every repetition
of the slower stack took longer than every repetition of the faster one, 0 if they mix evenly.</li>
<li><b>× best</b>: geometric mean over the steps of a stack's median divided by the
fastest median.</li>
<li><b>Autocorrelation</b> of successive rounds: near 1, rounds repeat each other, and the test
trusts them too much.</li>
"""


def _tag(name: str, text: str, **attributes: str) -> str:
    words = "".join(f' {key.rstrip("_")}="{escape(value)}"' for key, value in attributes.items())
    return f"<{name}{words}>{text}</{name}>"


def _table(head: list[str], rows: list[list[str]], class_: str = "sortable") -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "\n".join(
        "<tr>" + "".join(f'<td data-head="{escape(name)}">{escape(cell)}</td>'
                         for name, cell in zip(head, row, strict=True)) + "</tr>" for row in rows)
    return (f'<div class="scroll"><table class="{class_}"><thead><tr>{top}</tr></thead>\n'
            f"<tbody>{body}</tbody></table></div>")


def _columns(data: charts.Data) -> dict[str, Any]:
    """Stores rows and lines by stack and column, a sixth of the size; page.js unfolds them."""
    out: dict[str, Any] = {"bars": data["bars"]}
    for name, value in (("rows", "wall"), ("lines", "smooth")):
        stacks: dict[str, list[list[Any]]] = {}
        for row in data[name]:
            columns = stacks.setdefault(row["stack"], [[], []])
            columns[0].append(row["round"])
            columns[1].append(row[value])
        out[name] = stacks
    return out


def _data(judgements: list[Judgement]) -> dict[str, Any]:
    data = {}
    for judgement in judgements:
        other = chartdata.partner(judgements, judgement)
        cold, warm = ((judgement, other) if judgement.temperature == "cold"
                      else (other, judgement))
        steps: dict[str, Any] = {}
        apart: dict[str, list[str]] = {}
        for step in judgement.steps:
            steps[step] = _columns(chartdata.step_data(judgement, step))
            steps[step]["coldwarm"] = (
                chartdata.coldwarm_data(cold, warm, step)["bars"] if cold and warm else [])
        for pair in judgement.pairs:
            if pair.differs:
                apart.setdefault(pair.step, []).append(f"{pair.a}\n{pair.b}")
        data[judgement.name] = {"stacks": judgement.stacks, "steps": steps, "apart": apart,
                                "rating": chartdata.rating_data(judgement)}
    return data


def _embedded(value: Any) -> str:
    """Returns JSON that cannot end the script element that holds it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def verdict(judgement: Judgement) -> list[str]:
    """Says in sentences what the repetitions of a table support."""
    found = judgement.verdict
    if not found.pairs:
        return ["One stack alone: there is nothing to compare."]
    said = [
        f"Of {found.pairs} comparisons (every two stacks at every step), {found.different} "
        f"({100 * found.different / found.pairs:.0f} %) show a difference.",
        f"Stacks next to each other in the rating as in 2015 can be told apart in "
        f"{found.neighbours_apart} of {found.neighbours} comparisons.",
    ]
    firsts = sorted((r for r in judgement.ratings if r.first_share >= 0.05),
                    key=lambda r: -r.first_share)
    said.append("Drawing the rounds again, first by rating: " + ", ".join(
        f"{r.stack} ({100 * r.first_share:.0f} %)" for r in firsts) + ".")
    best = [r.stack for r in judgement.ratings if r.overall == 0]
    if found.shared_steps:
        said.append(
            f"Over all {found.shared_steps} steps that every stack has, {len(best)} of "
            f"{len(judgement.stacks)} stacks share the first rank: their mean ranks are less than "
            f"{found.critical_difference:.1f} behind the best.")
    if found.rounds_min < found.rounds_needed:
        said.append(
            f"Some stacks have {found.rounds_min} rounds at a step. With so many comparisons, two "
            f"stacks with fewer than {found.rounds_needed} rounds each can never be told apart "
            "at one step: run more rounds or compare fewer stacks.")
    return said


def _origin(headers: list[Row]) -> str:
    items = []
    for header in headers:
        words = [f"<b>{escape(str(header['source']))}</b>"]
        if "kernel" in header:
            words.append(f"kernel {escape(header['kernel'])}")
        words += [escape(header[key]) for key in ("git", "git_annex") if key in header]
        for key in ("machine", "settings"):
            words += [f"{escape(k)} {escape(str(v))}" for k, v in header.get(key, {}).items()
                      if isinstance(v, str | int | float) and k != "weald"]
        words += [f"{escape(k)}: {escape(v)}" for k, v in header.get("tools", {}).items()]
        items.append(f"<li>{' · '.join(words)}</li>")
    return f"<ul class='faint'>{''.join(items)}</ul>"


def _stacks(headers: list[Row]) -> str:
    """Says of each stack how it was made, mounted and made cold, so that readers can judge that."""
    rows: list[str] = []
    for header in headers:
        settings = header.get("settings", {})
        for spec in settings.get("on", []):
            name = spec["name"]
            lines = settings.get("commands", {}).get(name) or [
                f"{key}: {value}" for key, value in spec.get("settings", {}).items()]
            kind = "own commands" if spec["kind"] == "command" else spec["kind"]
            row = [escape(name), escape(kind),
                   "<br>".join(f"<code>{escape(line)}</code>" for line in lines),
                   escape(settings.get("cold", {}).get(name, ""))]
            text = "".join(
                f'<td data-head="{head}">{cell}</td>' for head, cell in zip(STACK_HEAD, row,
                                                                            strict=True))
            if f"<tr>{text}</tr>" not in rows:
                rows.append(f"<tr>{text}</tr>")
    if not rows:
        return ""
    top = "".join(f'<th scope="col">{head}</th>' for head in STACK_HEAD)
    return (f"<h2 id='stacks'>How each stack was made and mounted</h2><p class='faint'>{LEGEND}</p>"
            f'<div class="scroll"><table class="cards words"><thead><tr>{top}</tr></thead><tbody>'
            f"{''.join(rows)}</tbody></table></div>")


STACK_HEAD = ("stack", "kind", "commands", "cold means")
LEGEND = ("$MNT is where the steps run, $DIR the directory of the stack, $DEV a device, $SOURCE "
          "the tree that images pack.")


def _section(judgement: Judgement, standings: whole.Standings | None,
             other: Judgement | None, machine: str) -> str:
    rows = [[r.stack, str(r.rounds), f"{r.old:g}", f"{r.low:.3g}–{r.high:.3g}",
             str(r.overall), f"{r.rank_median:g}", f"{r.ratio_to_best:.2f}"]
            for r in judgement.ratings]
    text = "".join(f"<li>{escape(sentence)}</li>" for sentence in verdict(judgement))
    failed = "".join(
        f"<li>{escape(stack)}: <code>{escape(step)}</code> failed {count}×</li>"
        for (stack, step), count in sorted(judgement.failed.items()))
    return "\n".join([
        _tag("h2", escape(f"{judgement.name}: {len(judgement.stacks)} stacks, "
                          f"{len(judgement.steps)} steps"), id=f"table-{judgement.name}"),
        front.section(judgement, standings, machine),
        heat.section(judgement),
        panels.section(judgement, other),
        f"<details class='cells'><summary>What the repetitions support</summary>"
        f"<ul class='verdict'>{text}</ul>",
        _table(["stack", "rounds", "rating as in 2015", "95 % interval", "shared rank, all steps",
                "median of shared step ranks", "× best"], rows, "sortable cards"), "</details>",
        f"<p>Failed repetitions, left out above:</p><ul>{failed}</ul>" if failed else "",
        f"<details class='cells'><summary>All {len(judgement.cells)} cells</summary>",
        _cells(judgement), "</details>",
    ])


def _cells(judgement: Judgement) -> str:
    out = []
    deltas = {(p.step, p.a, p.b): p for p in judgement.pairs}
    for step in judgement.steps:
        cells = chartdata.cells_at(judgement, step)
        rows = []
        for cell in cells:
            pair = deltas.get((step, cells[0].stack, cell.stack))
            rows.append([
                cell.stack, str(len(cell.walls)), str(cell.old_rank), number(cell.mean_s),
                str(cell.rank), number(cell.median_s), span(cell.low_s, cell.high_s),
                f"{pair.ratio:.2f}" if pair else "1",
                span(pair.low, pair.high) if pair else "",
                f"{pair.delta:.2f}" if pair else "", f"{cell.lag1:.2f}"])
        out += [f"<h3><code>{escape(step)}</code></h3>", _table(
            ["stack", "n", "rank as in 2015", "mean s", "shared rank", "median s", "95 % interval",
             "× fastest", "95 % interval of ×", "Cliff's delta", "autocorrelation"], rows)]
    return "\n".join(out)


_INTERACTIVE = """
<h2 id="charts">One step at a time</h2>
<div class="controls">
<label><span>table</span><select id="table"></select></label>
<label><span>step</span><select id="step"></select></label>
</div>
<h3>Rating as in 2015 with its interval</h3>
<div id="rating" class="chart"></div><p id="rating-none" hidden>No rating.</p>
<h3>Distribution</h3>
<p class="faint">Each stroke is a repetition; the orange point is the median, the bar its interval
of 95 %. Times that the clock gave as 0 are drawn at 0.0001 s.</p>
<div id="distribution" class="chart"></div><p id="distribution-none" hidden>No repetitions.</p>
<h3>Time against round</h3>
<p class="faint">The line is a local linear smoother of the logarithm (tricube weights, 40 % of the
rounds). A line that climbs is a file system that ages.</p>
<div id="rounds" class="chart"></div><p id="rounds-none" hidden>No rounds.</p>
<h3>Cold against warm</h3>
<div id="coldwarm" class="chart"></div>
<p id="coldwarm-none" hidden>This step was not measured both cold and warm.</p>
<h3>CPU against wall</h3>
<div id="cpuwall" class="chart"></div>
<p id="cpuwall-none" hidden>This record has no CPU times.</p>
<h2 id="matrix">Matrix of ratios</h2>
<p class="faint">Median of a stack divided by the median of the baseline, for the table chosen here.
Below 1 is faster or less. Italics: the wall times cannot be told apart (other values are not
tested). A click on a heading sorts.</p>
<div class="controls">
<label><span>value</span><select id="value">
<option value="wall">wall time</option><option value="cpu_s">CPU time</option>
<option value="peak_memory_bytes">peak memory</option>
<option value="read_bytes">bytes read from the device</option>
<option value="written_bytes">bytes written to the device</option></select></label>
<label><span>baseline</span><select id="base"></select></label>
<label><span>stacks</span><input id="find-stack" type="search" placeholder="part of a name"></label>
<label><span>steps</span><input id="find-step" type="search" placeholder="part of a step"></label>
</div>
<div class="scroll"><table class="matrix"><thead id="matrix-head"></thead>
<tbody id="matrix-body"></tbody></table></div>
"""


PUBLISHED = """
<h2 id="published">What was published, what holds, and what does not</h2>
<p>Published was an order of the stacks: by the median of a stack's places at the steps. Large
differences hold: between most two stacks the rounds tell which is faster. The order of neighbours
mostly does not: of stacks next to each other in the order, few can be told apart, and several share
the first rank. And a stack that was measured twice lies apart from itself (below, "The same thing
measured twice"), which the rounds of one series cannot show.</p>
"""


def _is_published(headers: list[Row]) -> bool:
    """Tells whether the record is that of the benchmark of 2015, whose ranking was published."""
    return any(str(header["source"]).endswith(", 2015") for header in headers)


def _resource(name: str) -> str:
    return resources.files("weald_lab").joinpath(name).read_text("utf-8")


def render(headers: list[Row], judgements: list[Judgement], repeats: list[Repeat],
           conditions: list[str], title: str,
           standings: list[whole.Standings | None]) -> str:
    """Returns the page."""
    machine = "this machine"
    history = ""
    if _is_published(headers):
        machine = "the machine of 2015"
        history = PUBLISHED + front.published_table(judgements)
    noise = "".join(f"<li>{escape(front.twice(repeat))}</li>" for repeat in repeats)
    busy = "".join(f"<li>{escape(text)}</li>" for text in conditions)
    return "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<link rel="icon" href="data:,">',
        _tag("title", escape(title)),
        _tag("style", _resource("page.css") + heat.style(judgements)), "</head><body>",
        "<main>", _tag("h1", escape(title)),
        history,
        *[_section(table, found, chartdata.partner(judgements, table), machine)
          for table, found in zip(judgements, standings, strict=True)],
        f"<h2 id='noise'>The same thing measured twice</h2><ul>{noise}</ul>" if noise else "",
        _INTERACTIVE,
        f"<h2 id='method'>How it is judged</h2><ul>{METHOD}</ul>",
        "<details class='cells' id='machine'><summary>Machine, versions and commands</summary>",
        _origin(headers), _stacks(headers),
        f"<p>How busy the machine was:</p><ul>{busy}</ul>" if busy else "", "</details></main>",
        f"<script>{charts.script()}</script>",
        f"<script>const DATA={_embedded(_data(judgements))};"
        f"const SPECS={_embedded(charts.all_specs())};</script>",
        f"<script>(() => {{\n{_resource('page.js')}}})();</script>",
        "</body></html>", ""])
