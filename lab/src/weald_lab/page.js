"use strict";
// Draws the charts of the chosen table and step, and the matrix of ratios. DATA and SPECS are set
// by the page. Text goes in through textContent only: names come from records.
const $ = (id) => document.getElementById(id);
const table = () => DATA[$("table").value];
const narrow = window.matchMedia("(max-width: 40rem)");
let sort = { column: -1, down: false };

function fill(select, names) {
  const before = select.value;
  select.replaceChildren(...names.map((name) => new Option(name, name)));
  if (names.includes(before)) select.value = before;
}

function embed(id, kind, data) {
  const spec = structuredClone(SPECS[kind]);
  spec.datasets = data;
  if (narrow.matches) {
    Object.assign(spec.config.axis, { labelLimit: 150, labelFontSize: 10, titleFontSize: 10 });
    Object.assign(spec.config.legend, { columns: 1, labelLimit: 280 });
  }
  const some = Object.values(data).some((rows) => rows.length);
  $(id).hidden = !some;
  $(id + "-none").hidden = some;
  if (!some) return Promise.resolve();
  const options = { renderer: "svg", mode: "vega-lite", tooltip: true,
    actions: { export: true, source: false, compiled: false, editor: false } };
  return vegaEmbed("#" + id, spec, options).then(() =>
    $(id).querySelector("summary")?.setAttribute("aria-label", "Save this chart"));
}

// Rows and lines lie by stack and column: {stack: [rounds, values]}.
function unfold(columns, value) {
  return Object.entries(columns).flatMap(([stack, [rounds, values]]) =>
    rounds.map((round, i) => ({ stack, round, [value]: values[i] })));
}

async function draw() {
  const now = table();
  const step = $("step").value;
  const at = now.steps[step];
  const rows = unfold(at.rows, "wall");
  const lines = unfold(at.lines, "smooth");
  const bars = at.bars.filter((bar) => bar.cpu !== null);
  await Promise.all([
    embed("rating", "rating", now.rating),
    embed("distribution", "distribution", { rows, bars: at.bars }),
    embed("rounds", "rounds", { rows, lines }),
    embed("coldwarm", "coldwarm", { bars: at.coldwarm }),
    embed("cpuwall", "cpuwall", { bars }),
  ]);
  document.body.dataset.drawn = $("table").value + "|" + step;
}

function ratio(step, stack, base) {
  const bars = table().steps[step].bars;
  const mine = bars.find((bar) => bar.stack === stack);
  const other = bars.find((bar) => bar.stack === base);
  if (!mine || !other) return null;
  const kind = $("value").value;
  if (kind !== "wall") {
    const value = mine.others[kind] / other.others[kind];
    return isFinite(value) ? { value, apart: true } : null;
  }
  const pair = table().apart[step] || [];
  const apart = pair.includes(stack + "\n" + base) || pair.includes(base + "\n" + stack);
  return { value: mine.median / other.median, apart };
}

function cell(found) {
  const td = document.createElement("td");
  if (!found) return td;
  td.textContent = found.value.toFixed(2);
  if (!found.apart) {
    td.className = "unsure";
    td.title = "cannot be told apart from the baseline";
  } else {
    td.className = found.value < 1 ? "faster" : "slower";
  }
  return td;
}

function heading(text, column) {
  const th = document.createElement("th");
  const button = document.createElement("button");
  button.textContent = text;
  button.onclick = () => {
    sort = { column, down: sort.column === column && !sort.down };
    matrix();
  };
  th.scope = "col";
  if (sort.column === column) th.ariaSort = sort.down ? "descending" : "ascending";
  th.append(button);
  return th;
}

function matrix() {
  const base = $("base").value;
  const has = (text, id) => text.toLowerCase().includes($(id).value.toLowerCase());
  const steps = Object.keys(table().steps).filter((step) => has(step, "find-step"));
  const stacks = table().stacks.filter((stack) => has(stack, "find-stack"));
  const rows = stacks.map((stack) => ({
    stack, cells: steps.map((step) => ratio(step, stack, base)),
  }));
  const key = (row) => (sort.column === 0 ? row.stack : row.cells[sort.column - 1]?.value);
  if (sort.column >= 0 && sort.column <= steps.length) {
    rows.sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      return (x < y ? -1 : x > y ? 1 : 0) * (sort.down ? -1 : 1);
    });
  }
  const head = document.createElement("tr");
  head.append(heading("stack", 0), ...steps.map((step, i) => heading(step, i + 1)));
  const body = rows.map((row) => {
    const tr = document.createElement("tr");
    const name = document.createElement("td");
    name.textContent = row.stack;
    tr.append(name, ...row.cells.map(cell));
    return tr;
  });
  $("matrix-head").replaceChildren(head);
  $("matrix-body").replaceChildren(...body);
}

function sortable(fixed) {
  for (const th of fixed.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.textContent = th.textContent;
    th.replaceChildren(button);
    button.onclick = () => {
      const down = th.ariaSort === "ascending";
      for (const other of th.parentNode.cells) other.ariaSort = null;
      th.ariaSort = down ? "descending" : "ascending";
      const text = (row) => row.cells[th.cellIndex].textContent;
      const compare = (a, b) => {
        const x = parseFloat(text(a)), y = parseFloat(text(b));
        return th.cellIndex === 0 || isNaN(x) || isNaN(y)
          ? text(a).localeCompare(text(b)) : x - y;
      };
      const rows = [...fixed.tBodies[0].rows].sort((a, b) => compare(a, b) * (down ? -1 : 1));
      fixed.tBodies[0].replaceChildren(...rows);
    };
  }
}

function choose() {
  fill($("step"), Object.keys(table().steps));
  fill($("base"), table().stacks);
  matrix();
  return draw();
}

fill($("table"), Object.keys(DATA));
$("table").onchange = choose;
$("step").onchange = draw;
$("base").onchange = matrix;
$("value").onchange = matrix;
$("find-stack").oninput = matrix;
$("find-step").oninput = matrix;
narrow.onchange = draw;
window.onbeforeprint = () => document.querySelectorAll("details.cells").forEach((d) => {
  d.open = true;
});
document.querySelectorAll("table.sortable").forEach(sortable);
choose();
