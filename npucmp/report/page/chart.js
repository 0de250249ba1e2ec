"use strict";
// Errors in the order of the network, on canvas: 20,000 operators are redrawn in a few milliseconds.

const LEFT = 64, RIGHT = 96, TOP = 12, BOTTOM = 24;

const chart = { run: 0, from: 0, to: 1, panels: [], ready: false }; // from and to: the share of the order that is shown

function startChart() {
  const best = best_run();
  chart.run = best;
  const section = document.getElementById("chart");
  const label = document.getElementById("chart-run");
  if (data.runs.length > 1) {
    const select = label.querySelector("select");
    data.runs.forEach((name, run) => select.append(element("option", { value: run }, name || `comparison ${run + 1}`)));
    select.value = best;
    select.addEventListener("change", () => showRun(Number(select.value)));
    label.hidden = false;
  }
  section.hidden = false;
  document.getElementById("zoom-in").addEventListener("click", () => zoom(0.5));
  document.getElementById("zoom-out").addEventListener("click", () => zoom(2));
  document.getElementById("zoom-all").addEventListener("click", () => zoomTo(0, 1));
  new ResizeObserver(() => { if (section.clientWidth !== chart.width) { chart.width = section.clientWidth; drawChart(); } }).observe(section);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawChart);
  showRun(best);
}

function best_run() {
  const places = operators.place ?? [];
  const first = places.indexOf(1);
  return first < 0 ? 0 : operators.run[first];
}

function showRun(run) {
  Object.assign(chart, { run, from: 0, to: 1 });
  const found = { forward: [], backward: [] };
  for (let one = 0; one < data.operators.length; one++) {
    if (operators.run[one] !== run || ofOperator("order", one) === null) continue;
    found[ofOperator("phase", one) === "backward" ? "backward" : "forward"].push(data.kind === "events" ? eventMark(one) : errorMark(one));
  }
  if (data.kind === "health") return showPanels(data.panels.map((one) => depthPanel(one, found.forward)).filter(Boolean));
  const names = Object.keys(found).filter((name) => found[name].length);
  const titled = names.length > 1 || names[0] === "backward";
  showPanels(names.flatMap((name) => panelsOf(titled ? name : "", found[name])));
}

function showPanels(panels) {
  chart.panels = panels;
  document.getElementById("panels").replaceChildren(...panels.map((one) => one.box));
  document.getElementById("chart").hidden = !panels.length;
  fillKey();
  drawChart();
}

// A figure of the network by depth; a limit is drawn as a band.
function depthPanel({ column, title, limit }, marks) {
  const known = marks.map((mark) => ({ ...mark, wrote: cell(column, firstRow[mark.operator]), limit: limit ?? null })).filter((mark) => mark.wrote !== null);
  return known.length ? panel(title, known) : null;
}

// Events are drawn in lanes; the panel above shows |x| of each operator as a share of the largest value of its type.
function panelsOf(title, marks) {
  if (data.kind !== "events") return [panel(title, marks)];
  const near = marks.some((mark) => [mark.read, mark.wrote].some(Number.isFinite)) ? marks.filter((mark) => mark.limit !== null) : [];
  const of = title ? ` · ${title}` : "";
  return [near.length ? panel(`largest |x| as a share of its type's largest value${of}`, near) : null, panel(`events${of}`, marks, true)].filter(Boolean);
}

function fillKey() {
  const any = (test) => chart.panels.some((one) => one.marks.some(test));
  const events = data.kind === "events", depth = data.kind === "health";
  const words = [
    depth ? "● a parameter or operator at its place in the network; ◆ with a number: a finding and its place." : events ? "◆ origin · ● propagated · × masked or discarded · ○ unknown origin or near the limit." : data.weights ? "rel_l2 of each parameter; ◆ with a number: a place to look at." : "rel_l2 of each operator: ● its outputs, ○ its inputs; ◆ with a number: a suspect and its place.",
    !events && any((mark) => mark.limit !== null) ? "Green, below the dashed line: within the limit." : "",
    any((mark) => mark.excused) ? "□ above the limit but no fault: explained, mostly by the errors of its inputs." : "",
    any((mark) => mark.alone) ? "Hatched: no partner in the other run." : "",
    "Drag or + and − to zoom, double click to show all. Click an operator to open it, or use ← → and Enter.",
  ];
  document.getElementById("chart-key").textContent = words.filter(Boolean).join(" ");
}

// The largest error of the inputs of an operator, and its output that exceeds its limit most, with this limit.
// An output is excused if it exceeds its limit but is no fault: its inputs explain it, or another rule excuses it.
function errorMark(operator) {
  const mark = { operator, at: operators.order[operator], read: null, wrote: null, limit: null, dtype: "", excused: "", alone: Boolean(ofOperator("alone", operator)) };
  let furthest = null;
  for (let row = firstRow[operator]; row < firstRow[operator + 1]; row++) {
    if (rows.argument?.[row] || cell("rule", row) === "another autograd node") continue;  // no error of this call
    const error = rows.error?.[row] ?? rows.rel_l2?.[row] ?? null;
    const output = rows.output?.[row];
    const limit = rows.limit?.[row] ?? null;
    if (error !== null && !output) mark.read = larger(mark.read, error);
    if (limit !== null && mark.limit === null) [mark.limit, mark.dtype] = [limit, rows.target_dtype?.[row] ?? ""];
    if (error === null || !output) continue;
    const beyond = error === 0 ? 0 : error / (limit ?? Infinity);
    if (furthest !== null && !(beyond > furthest || (beyond === furthest && error > mark.wrote) || Number.isNaN(beyond))) continue;
    [furthest, mark.wrote] = [beyond, error];
    if (limit === null) continue;
    [mark.limit, mark.dtype] = [limit, rows.target_dtype?.[row] ?? ""];
    mark.excused = error > limit && rows.verdict?.[row] === "match" ? rows.explained_by?.[row] ?? rows.rule?.[row] ?? "another rule" : "";
  }
  return mark;
}

const larger = (a, b) => (a === null ? b : Number.isNaN(a) || Number.isNaN(b) ? NaN : Math.max(a, b));

// The events of an operator, and the largest |x| of inputs and outputs as a share of the type's limit; infinite for NaN and Inf.
function eventMark(operator) {
  const mark = { operator, at: operators.order[operator], read: null, wrote: null, limit: null, alone: false, events: [] };
  for (const row of rowsOf(operator)) {
    const event = cell("event", row), room = cell("headroom_bits", row);
    mark.events.push([event ?? LANES[4], cell("origin", row) ?? ""]);
    if (room !== null) mark.limit = 1;
    const share = event === "nan" || event === "inf" ? Infinity : room === null ? null : 2 ** -room;
    const side = cell("output", row) ? "wrote" : "read";
    if (share !== null) mark[side] = larger(mark[side], share);
  }
  return mark;
}

function panel(title, marks, lanes = false) {
  marks.sort((a, b) => a.at - b.at);
  const [under, over] = [element("canvas", { "aria-hidden": "true" }), element("canvas", { class: "over", tabindex: 0, role: "img" })];
  over.setAttribute("aria-label", `${title || "network"}: ${marks.length} operators; arrow keys select an operator, Enter opens it`);
  const box = element("div", { class: lanes ? "panel lanes" : "panel" }, title ? element("p", {}, title) : null, under, over);
  const made = { title, marks, box, under, over, cursor: -1, drag: null };
  const length = data.lengths?.[chart.run]; // events have the order of the whole run
  made.first = length ? 0 : marks[0].at;
  made.last = Math.max(length ? length - 1 : marks[marks.length - 1].at, made.first + 1);
  made.lanes = lanes ? LANES.filter((lane) => marks.some((mark) => mark.events.some(([kind]) => kind === lane))) : null;
  over.addEventListener("pointermove", (event) => hover(made, event));
  over.addEventListener("pointerleave", () => { made.cursor = -1; made.drag = null; hideHint(); drawOver(made); });
  over.addEventListener("pointerdown", (event) => { made.drag = [event.offsetX, event.offsetX]; });
  over.addEventListener("pointerup", (event) => release(made, event));
  over.addEventListener("dblclick", () => zoomTo(0, 1));
  over.addEventListener("keydown", (event) => onChartKey(made, event));
  over.addEventListener("blur", () => { made.cursor = -1; hideHint(); drawOver(made); });
  return made;
}

// Convert an order to pixels in a panel, and back.
function across(one, at) {
  const share = ((at - one.first) / (one.last - one.first) - chart.from) / (chart.to - chart.from);
  return LEFT + 6 + share * (one.width - LEFT - RIGHT - 12);
}

function shareAt(one, x) {
  return chart.from + ((x - LEFT - 6) / (one.width - LEFT - RIGHT - 12)) * (chart.to - chart.from);
}

function zoomTo(from, to) {
  const least = 4 / Math.max(8, ...chart.panels.map((one) => one.last - one.first));
  if (to - from < least) [from, to] = [(from + to - least) / 2, (from + to + least) / 2];
  const width = Math.min(1, to - from);
  chart.from = Math.max(0, Math.min(1 - width, from));
  chart.to = chart.from + width;
  drawChart();
}

function zoom(factor) {
  const one = chart.panels.find((some) => some.cursor >= 0);
  const middle = one ? (one.marks[one.cursor].at - one.first) / (one.last - one.first) : (chart.from + chart.to) / 2;
  const half = ((chart.to - chart.from) * factor) / 2;
  zoomTo(middle - half, middle + half);
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  return new Proxy({}, { get: (_, name) => style.getPropertyValue(`--${name}`).trim() });
}

function drawChart() {
  chart.width = document.getElementById("chart").clientWidth;
  const scale = heightScale();
  const paint = colours();
  const inks = Object.fromEntries(["ink", "soft", "edge", "paper", "bad", "warn", "good", "open", "out", "in", "passed", "band", "limit", "gap", "link"].map((name) => [name, paint[name]]));
  for (const one of chart.panels) {
    for (const canvas of [one.under, one.over]) {
      [one.width, one.height] = [one.under.clientWidth, one.under.clientHeight];
      const sharp = devicePixelRatio || 1;
      [canvas.width, canvas.height] = [one.width * sharp, one.height * sharp];
      canvas.getContext("2d").setTransform(sharp, 0, 0, sharp, 0, 0);
    }
    if (one.width < 200) continue;
    one.inks = inks;
    one.scale = scale;
    (one.lanes ? drawLanes : drawErrors)(one);
    drawOver(one);
  }
}

// Draw the overlay: the operator under the pointer, the opened operator, and the selected range.
function drawOver(one) {
  if (!one.inks) return;
  const pen = one.over.getContext("2d");
  pen.clearRect(0, 0, one.width, one.height);
  const line = (place, colour) => {
    const x = Math.round(across(one, one.marks[place].at)) + 0.5;
    if (x < LEFT || x > one.width - RIGHT) return;
    pen.strokeStyle = colour;
    pen.beginPath(); pen.moveTo(x, TOP); pen.lineTo(x, one.height - BOTTOM); pen.stroke();
  };
  const open = one.marks.findIndex((mark) => mark.operator === opened);
  if (open >= 0) line(open, one.inks.link);
  if (one.cursor >= 0) line(one.cursor, one.inks.ink);
  if (one.drag && Math.abs(one.drag[1] - one.drag[0]) > 4) {
    pen.fillStyle = one.inks.link;
    pen.globalAlpha = 0.15;
    pen.fillRect(Math.min(...one.drag), TOP, Math.abs(one.drag[1] - one.drag[0]), one.height - TOP - BOTTOM);
    pen.globalAlpha = 1;
  }
}

function markOperator() {
  for (const one of chart.panels) drawOver(one);
  drawRankCursor();
}

// Return the mark nearest to a point: a search by order, then by height among neighbours.
function nearest(one, x, y) {
  const at = one.first + shareAt(one, x) * (one.last - one.first);
  let low = 0, high = one.marks.length - 1;
  while (low < high) { const middle = (low + high) >> 1; if (one.marks[middle].at < at) low = middle + 1; else high = middle; }
  let best = -1, least = Infinity;
  for (const direction of [-1, 1]) for (let i = direction < 0 ? low - 1 : low; i >= 0 && i < one.marks.length; i += direction) {
    const away = Math.abs(across(one, one.marks[i].at) - x);
    if (away > 6 && best >= 0) break;
    const distance = away + 0.2 * Math.min(...heightsOf(one, one.marks[i]).map((height) => Math.abs(height - y)), 300) + (away > 6 ? 1000 + away : 0);
    if (distance < least) [best, least] = [i, distance];
    if (away > 6) break;
  }
  return best;
}

function hover(one, event) {
  if (one.drag && event.buttons) one.drag[1] = event.offsetX;
  one.cursor = nearest(one, event.offsetX, event.offsetY);
  drawOver(one);
  tell(one, event.clientX, event.clientY);
}

function tell(one, x, y) {
  if (one.cursor < 0) return hideHint();
  const { operator, read, wrote, limit, events, excused } = one.marks[one.cursor];
  const get = (name) => ofOperator(name, operator);
  const lines = [[get("op_type"), `order ${get("order")}`].filter(Boolean).join(" · ")];
  if (get("cause")) lines.push(`${SHAPES[get("cause")]} ${get("cause")}${get("place") ? `, place ${get("place")}` : ""}`);
  if (events) lines.push(...events.slice(0, 6).map((words) => words.filter(Boolean).join(" ")), ...(limit === null ? [] : [`largest |x|: ${[read, wrote].map((share, i) => (share === null ? "" : `${["inputs", "outputs"][i]} ${percent(share)}`)).filter(Boolean).join(", ")} of the type's largest`]));
  else if (data.kind === "health") lines.push(`${one.title}: ${written(wrote)}`);
  else if (get("alone")) lines.push(`only in the ${get("alone")}`);
  else if (data.weights) lines.push(`rel_l2 ${wrote === null ? "not known" : written(wrote)}`);
  else lines.push(`inputs ${read === null ? "not known" : written(read)}, outputs ${wrote === null ? "not known" : written(wrote)}${limit === null ? "" : `, limit ${written(limit)}`}${excused ? `; above the limit, explained by ${excused}` : ""}`);
  showHint(lines.join("\n"), x, y, get("op"));
}

function release(one, event) {
  const [from, to] = one.drag ?? [0, 0];
  one.drag = null;
  if (Math.abs(to - from) > 4) return zoomTo(shareAt(one, Math.min(from, to)), shareAt(one, Math.max(from, to)));
  const place = nearest(one, event.offsetX, event.offsetY);
  if (place < 0) return;
  hideHint();
  const { operator } = one.marks[place];
  revealRow(firstRow[operator]);
  openOperator(operator);
}

function onChartKey(one, event) {
  const move = { ArrowRight: 1, ArrowLeft: -1, PageDown: 50, PageUp: -50 }[event.key];
  if (move) {
    one.cursor = Math.max(0, Math.min(one.marks.length - 1, one.cursor + move));
    const share = (one.marks[one.cursor].at - one.first) / (one.last - one.first);
    if (share < chart.from || share > chart.to) zoomTo(share - (chart.to - chart.from) / 2, share + (chart.to - chart.from) / 2);
    drawOver(one);
    const box = one.over.getBoundingClientRect();
    tell(one, box.left + across(one, one.marks[one.cursor].at), box.top + 20);
    event.preventDefault();
  } else if (event.key === "Enter" && one.cursor >= 0) openOperator(one.marks[one.cursor].operator);
  else if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 0.5 : 2);
}

function showHint(words, x, y, title = "") {
  const hint = document.getElementById("hint");
  hint.replaceChildren(...(title ? [element("b", {}, title)] : []), words);
  hint.hidden = false;
  hint.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - hint.offsetWidth - 8))}px`;
  hint.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - hint.offsetHeight - 8))}px`;
}

function hideHint() {
  document.getElementById("hint").hidden = true;
}
