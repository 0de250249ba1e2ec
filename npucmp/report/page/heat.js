"use strict";
// The heat map of operators × steps: a line per operator or folded module, a column per step. Lines out of sight are not
// in the document.

const HEAT = { line: 24, columns: 64, beyond: 12 };
const LEVELS = [["absent", ""], ["good", ""], ["good", "·"], ["excused", "□"], ["open", "?"], ["e-low", "△"], ["e-high", "▲"], ["e-most", "✗"]];

let series; // unpacked from step_series.py
const heat = { root: null, rank: -1, lines: [], source: null, columns: [], names: null };

async function startSteps() {
  const packed = document.getElementById("series");
  if (!packed) return;
  const found = JSON.parse(packed.textContent);
  series = found.deflate ? JSON.parse(await inflated(found.deflate)) : found;
  for (const part of ["operators", "tensors", "figures"]) series[part] = Object.assign(unpacked(series[part]), { length: series[part].length });
  document.getElementById("steps").hidden = false;
  startHeat();
  startCurves();
}

function startHeat() {
  const { op, path, phase, order } = series.operators, count = series.operators.length;
  heat.source = { names: op ?? [], paths: path ?? [], phases: phase ?? [], orders: order ?? [], operators: [...Array(count).keys()], count };
  if (!count) return;
  const size = Math.ceil(series.steps.length / HEAT.columns);
  for (let at = 0; at < series.steps.length; at += size) heat.columns.push([at, Math.min(at + size, series.steps.length) - 1]);
  heat.marks = []; // by rank and step: operator → [cause, place]
  for (const [place, operator, rank, step, cause] of series.marks) (heat.marks[rank * series.steps.length + step] ??= new Map()).set(operator, [cause, place]);
  heat.root = moduleTree(heat.source);
  const first = series.marks[0]?.[1];
  if (first !== undefined) revealModule(heat.root, first);
  const ranks = document.getElementById("steps-rank");
  if (series.ranks.length > 1) {
    const select = ranks.querySelector("select");
    select.append(element("option", { value: -1 }, WORDS.steps.allRanks), ...series.ranks.map((rank, at) => element("option", { value: at }, WORDS.steps.rank(rank))));
    select.addEventListener("change", () => { heat.rank = Number(select.value); drawHeat(); if (heat.rank >= 0) showRankCurves(heat.rank); });
    ranks.hidden = false;
  }
  document.getElementById("steps-key").textContent = series.kind === "finding" ? WORDS.steps.findingKey : WORDS.steps.key(series.ranks.length > 1);
  const box = document.getElementById("heat");
  box.addEventListener("scroll", drawHeat, { passive: true });
  box.addEventListener("keydown", onHeatKey);
  box.addEventListener("click", (event) => chooseCell(event.target.closest("[data-line]"), event.target.closest("[data-column]")));
  new ResizeObserver(drawHeat).observe(box);
  drawHeat();
  const at = heat.lines.findIndex((node) => node.operator === first);
  if (at >= 0 && (at + 3) * HEAT.line > box.clientHeight) { box.scrollTop = (at - 3) * HEAT.line; drawHeat(); }
}

// The worst level of a line in a column, and its first cause: [level, cause, operator].
function heatCell(node, [from, to]) {
  let level = 0, cause = "", place = Infinity, worst = node.operators[0];
  for (let rank = 0; rank < series.ranks.length; rank++) {
    if (heat.rank >= 0 && rank !== heat.rank) continue;
    for (let step = from; step <= to; step++) {
      const codes = series.levels[rank][step], marks = heat.marks[rank * series.steps.length + step];
      for (const one of node.operators) {
        const own = codes.charCodeAt(one) - 48;
        if (own > level) [level, worst] = [own, one];
        const mark = marks?.get(one);
        if (mark && (!cause || rankOf(mark[0]) < rankOf(cause) || (mark[0] === cause && mark[1] < place))) [cause, place, worst] = [...mark, one];
      }
    }
  }
  return [level, cause, worst];
}

// All cells of a line for the chosen rank; made once.
function cellsOf(node) {
  if (node.cellsFor !== heat.rank) [node.cellsFor, node.cells] = [heat.rank, heat.columns.map((column) => heatCell(node, column))];
  return node.cells;
}

const rankOf = (cause) => WORST_FIRST.indexOf(cause);

function heatLines(node, found = []) {
  for (const child of node.children ?? []) {
    found.push(child);
    if (child.open) heatLines(child, found);
  }
  return found;
}

function drawHeat() {
  const box = document.getElementById("heat");
  heat.lines = heatLines(heat.root);
  const from = Math.max(0, Math.floor(box.scrollTop / HEAT.line) - HEAT.beyond);
  const to = Math.min(heat.lines.length, Math.ceil((box.scrollTop + box.clientHeight) / HEAT.line) + HEAT.beyond);
  const held = document.activeElement?.closest?.("#heat [data-line]")?.dataset.line;
  const body = [heatSpacer(from), ...heat.lines.slice(from, to).map((node, at) => heatLine(node, from + at)), heatSpacer(heat.lines.length - to)];
  const head = element("tr", {}, element("th", { scope: "col" }, WORDS.curves.step), heat.columns.map(([a, b]) => element("th", { scope: "col", title: WORDS.steps.step(series.steps[a], series.steps[b]) }, String(series.steps[a]))));
  box.replaceChildren(element("table", { class: `grid heat${heat.columns.length > 24 ? " dense" : ""}`, role: "treegrid", "aria-label": WORDS.steps.table, "aria-rowcount": heat.lines.length + 1 }, element("thead", {}, head), element("tbody", {}, body)));
  if (held) box.querySelector(`[data-line="${held}"] button`)?.focus({ preventScroll: true });
}

function heatSpacer(count) {
  const made = element("tr", { "aria-hidden": "true" }, element("td", { class: "spacer" }));
  made.firstChild.style.height = `${count * HEAT.line}px`;
  return made;
}

function heatLine(node, at) {
  const folded = Boolean(node.children), mark = folded ? (node.open ? "▾ " : "▸ ") : "";
  const button = element("button", { type: "button", title: node.operator >= 0 ? heat.source.names[node.operator] : node.label, tabindex: at ? -1 : 0 }, fitted(`${mark}${node.label}`, 34));
  button.style.paddingLeft = `${4 + 10 * (node.depth - 1)}px`;
  const cells = cellsOf(node).map(([level, cause], place) => {
    const column = heat.columns[place], [tone, sign] = LEVELS[level];
    const name = cause ? TONES[cause] : tone;
    const words = WORDS.steps.cell(node.label, WORDS.steps.step(series.steps[column[0]], series.steps[column[1]]), (series.kind === "finding" ? WORDS.steps.findings : WORDS.steps.levels)[level], cause);
    return element("td", { class: `n-${name}${level === 2 ? " faint" : ""}`, title: words, "aria-label": words, "data-column": place }, cause ? SHAPES[cause] : sign);
  });
  return element("tr", { "data-line": at, "aria-level": node.depth, "aria-expanded": folded ? String(node.open) : null, "aria-rowindex": at + 2 }, element("th", { scope: "row" }, button), cells);
}

// A click on a name opens or closes a module; a click on a cell, or on an operator, shows curves.
function chooseCell(line, cell) {
  if (!line) return;
  const node = heat.lines[Number(line.dataset.line)];
  if (!cell && node.children) {
    node.open = !node.open;
    drawHeat();
    document.querySelector(`#heat [data-line="${line.dataset.line}"] button`)?.focus({ preventScroll: true });
    return;
  }
  const operator = cell ? cellsOf(node)[Number(cell.dataset.column)][2] : node.operator;
  showCurvesOf(heat.source.names[operator]);
}

function onHeatKey(event) {
  const line = event.target.closest("[data-line]"), box = document.getElementById("heat");
  if (!line) return;
  const at = Number(line.dataset.line), node = heat.lines[at];
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: heat.lines.length - 1 }[event.key];
  if (to !== undefined) {
    const wanted = Math.max(0, Math.min(heat.lines.length - 1, to)), top = wanted * HEAT.line;
    if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - 3 * HEAT.line) box.scrollTop = Math.max(0, top - box.clientHeight / 2);
    drawHeat();
    box.querySelector(`[data-line="${wanted}"] button`)?.focus({ preventScroll: true });
  } else if ((event.key === "ArrowRight" && node.children && !node.open) || (event.key === "ArrowLeft" && node.children && node.open)) chooseCell(line, null);
  else return;
  event.preventDefault();
  event.stopPropagation();
}
