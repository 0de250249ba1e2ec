"use strict";
// Errors along the order of the network, on canvas: 20,000 operators are drawn anew in a few milliseconds.

const LEFT = 64, RIGHT = 96, TOP = 12, BOTTOM = 24;
const LANES = ["nan", "inf", "saturated", "device", "close to the edge"];

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
  const names = Object.keys(found).filter((name) => found[name].length);
  const titled = names.length > 1 || names[0] === "backward";
  chart.panels = names.map((name) => panel(titled ? name : "", found[name]));
  document.getElementById("panels").replaceChildren(...chart.panels.map((one) => one.box));
  document.getElementById("chart").hidden = !names.length;
  fillKey();
  drawChart();
}

function fillKey() {
  const words = data.kind === "events"
    ? "◆ born · ● passed on · × masked or thrown away · ○ of unknown origin."
    : "rel_l2 of each operator: ● its outputs, ○ its inputs. ◆ with a number: a suspect and its place. Green: within the limit. Hatched: no partner on the other side.";
  document.getElementById("chart-key").textContent = `${words} Drag or + and − to zoom, double click for all; click an operator to open it; with the keyboard ← → and Enter.`;
}

// The largest error of what an operator read and of what it wrote, and the limit that applied.
function errorMark(operator) {
  const mark = { operator, at: operators.order[operator], read: null, wrote: null, limit: null, dtype: "", alone: Boolean(ofOperator("alone", operator)) };
  for (let row = firstRow[operator]; row < firstRow[operator + 1]; row++) {
    const error = rows.error?.[row] ?? rows.rel_l2?.[row] ?? null;
    const output = rows.output?.[row];
    if (error !== null && output) mark.wrote = larger(mark.wrote, error);
    if (error !== null && !output) mark.read = larger(mark.read, error);
    const limit = rows.limit?.[row] ?? null;
    if (limit !== null && (output || mark.limit === null)) [mark.limit, mark.dtype] = [limit, rows.target_dtype?.[row] ?? ""];
  }
  return mark;
}

const larger = (a, b) => (a === null ? b : Number.isNaN(a) || Number.isNaN(b) ? NaN : Math.max(a, b));

function eventMark(operator) {
  const events = rowsOf(operator).map((row) => [cell("event", row) ?? LANES[4], cell("origin", row) ?? ""]);
  return { operator, at: operators.order[operator], events };
}

function panel(title, marks) {
  marks.sort((a, b) => a.at - b.at);
  const lanes = data.kind === "events";
  const [under, over] = [element("canvas", { "aria-hidden": "true" }), element("canvas", { class: "over", tabindex: 0, role: "img" })];
  over.setAttribute("aria-label", `${title || "network"}: ${marks.length} operators; arrow keys go along them, Enter opens one`);
  const box = element("div", { class: lanes ? "panel lanes" : "panel" }, title ? element("p", {}, title) : null, under, over);
  const made = { title, marks, box, under, over, cursor: -1, drag: null };
  const length = lanes ? data.lengths[chart.run] : 0;
  made.first = lanes ? 0 : marks[0].at;
  made.last = Math.max(lanes ? length - 1 : marks[marks.length - 1].at, made.first + 1);
  made.lanes = LANES.filter((lane) => marks.some((mark) => mark.events?.some(([kind]) => kind === lane)));
  over.addEventListener("pointermove", (event) => hover(made, event));
  over.addEventListener("pointerleave", () => { made.cursor = -1; made.drag = null; hideHint(); drawOver(made); });
  over.addEventListener("pointerdown", (event) => { made.drag = [event.offsetX, event.offsetX]; });
  over.addEventListener("pointerup", (event) => release(made, event));
  over.addEventListener("dblclick", () => zoomTo(0, 1));
  over.addEventListener("keydown", (event) => onChartKey(made, event));
  over.addEventListener("blur", () => { made.cursor = -1; hideHint(); drawOver(made); });
  return made;
}

// Where an order stands in a panel, in pixels, and the way back.
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
    (data.kind === "events" ? drawLanes : drawErrors)(one);
    drawOver(one);
  }
}

// One scale for all panels: decades from the least to the largest error or limit; no error below, infinite above.
function heightScale() {
  let low = Infinity, high = -Infinity, infinite = false;
  for (const one of chart.panels) for (const mark of one.marks) for (const value of [mark.read, mark.wrote, mark.limit]) {
    if (value === null || value === undefined || value === 0) continue;
    if (!Number.isFinite(value)) infinite = true;
    else { low = Math.min(low, value); high = Math.max(high, value); }
  }
  if (low > high) [low, high] = [1e-8, 1];
  const bottom = Math.max(-16, Math.floor(Math.log10(low))), top = Math.max(bottom + 2, Math.min(6, Math.ceil(Math.log10(high))));
  return { bottom, top, infinite };
}

function heightOf(one, value) {
  const { bottom, top, infinite } = one.scale;
  const upper = TOP + (infinite ? 18 : 0), lower = one.height - BOTTOM - 20;
  if (!Number.isFinite(value)) return TOP + 4;
  if (value === 0) return one.height - BOTTOM - 6;
  return lower - ((Math.min(top, Math.max(bottom, Math.log10(value))) - bottom) / (top - bottom)) * (lower - upper);
}

function drawErrors(one) {
  const pen = one.under.getContext("2d");
  const ink = one.inks;
  const right = one.width - RIGHT;
  pen.clearRect(0, 0, one.width, one.height);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, right - LEFT, one.height - BOTTOM + 4);
  pen.clip();
  const step = Math.max(1, across(one, one.first + 1) - across(one, one.first));
  const seen = one.marks.filter((mark) => { const x = across(one, mark.at); return x > LEFT - 20 && x < right + 20; });
  drawBand(one, pen, seen, step);
  drawGaps(one, pen, seen, step);
  pen.restore();
  drawAxes(one, pen, right);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT - 6, 0, right - LEFT + 12, one.height - BOTTOM + 6);
  pen.clip();
  const size = step > 14 ? 4 : step > 6 ? 3.2 : step > 3 ? 2.4 : 1.4;
  drawStems(one, pen, seen, step);
  drawInputs(one, pen, seen, size);
  drawOutputs(one, pen, seen, size);
  drawSuspects(one, pen, seen);
  pen.restore();
}

function drawBand(one, pen, seen, step) {
  pen.fillStyle = one.inks.band;
  pen.strokeStyle = one.inks.limit;
  const floor = one.height - BOTTOM;
  let last = null;
  const lines = new Path2D();
  for (const [from, to, limit] of limitsOf(seen)) {
    const left = across(one, from) - step / 2, right = across(one, to) + step / 2, y = heightOf(one, limit);
    pen.fillRect(left, y, right - left, floor - y);
    if (last === null) lines.moveTo(left, y);
    else lines.lineTo(left, y);
    lines.lineTo(right, y);
    last = y;
  }
  pen.lineWidth = 1;
  pen.setLineDash([4, 3]);
  pen.stroke(lines);
  pen.setLineDash([]);
}

// [first order, last order, limit] of each stretch of operators that have the same limit.
function limitsOf(seen) {
  const found = [];
  for (const { at, limit } of seen) {
    if (limit === null) continue;
    const last = found[found.length - 1];
    if (last?.[2] === limit) last[1] = at;
    else found.push([at, at, limit]);
  }
  return found;
}

function drawGaps(one, pen, seen, step) {
  const floor = one.height - BOTTOM;
  for (const mark of seen) {
    if (!mark.alone) continue;
    const x = across(one, mark.at), width = Math.max(1, step);
    pen.fillStyle = one.inks.gap;
    pen.fillRect(x - width / 2, TOP, width, floor - TOP);
    if (width < 5) continue;
    pen.strokeStyle = one.inks.in;
    pen.beginPath();
    for (let y = TOP; y < floor - width; y += 8) { pen.moveTo(x - width / 2, y + width); pen.lineTo(x + width / 2, y); }
    pen.stroke();
  }
}

function drawAxes(one, pen, right) {
  const { bottom, top, infinite } = one.scale;
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = one.inks.soft;
  pen.strokeStyle = one.inks.edge;
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  const label = (words, y) => {
    pen.fillText(words, LEFT - 10, y);
    pen.beginPath();
    pen.moveTo(LEFT, Math.round(y) + 0.5);
    pen.lineTo(right, Math.round(y) + 0.5);
    pen.stroke();
  };
  const every = Math.ceil((top - bottom) / 7);
  for (let decade = bottom; decade <= top; decade += every) label(`1e${decade}`, heightOf(one, 10 ** decade));
  label("no error", heightOf(one, 0));
  if (infinite) label("inf or ?", heightOf(one, Infinity));
  drawOrders(one, pen, right);
  drawLimits(one, pen, right);
}

function drawOrders(one, pen, right) {
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  const span = (one.last - one.first) * (chart.to - chart.from);
  const rough = span / Math.max(2, (right - LEFT) / 110), power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].find((times) => times * power >= rough) * power);
  const start = one.first + chart.from * (one.last - one.first);
  for (let at = Math.ceil(start / step) * step; at <= start + span + 1e-9; at += step) pen.fillText(at.toLocaleString("en-US"), across(one, at), one.height - 6);
  pen.textAlign = "left";
  pen.fillText("order", right + 10, one.height - 6);
}

// The limits by dtype, at the right-hand end.
function drawLimits(one, pen, right) {
  const counts = new Map();
  for (const { limit, dtype } of one.marks) if (limit !== null) {
    const key = `${limit}|${dtype}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  pen.fillStyle = one.inks.limit;
  pen.textBaseline = "middle";
  const used = [];
  for (const [key] of [...counts].sort((a, b) => b[1] - a[1]).slice(0, 4)) {
    const [limit, dtype] = key.split("|");
    const y = heightOf(one, Number(limit));
    if (used.some((other) => Math.abs(other - y) < 24)) continue;
    used.push(y);
    pen.fillText(dtypeOf(Number(limit)) || dtype || "limit", right + 10, y - 6);
    pen.fillText(`≤ ${Number(limit).toExponential(1)}`, right + 10, y + 6);
  }
}

// Of a rule, as far as one has this limit; an operator of several dtypes has the limit of the coarsest.
function dtypeOf(limit) {
  const rule = (data.rules ?? []).find((one) => one.dtype && Math.abs(one.limit / limit - 1) < 1e-3);
  return rule?.dtype ?? "";
}

function drawStems(one, pen, seen, step) {
  if (step < 3) return;
  pen.strokeStyle = one.inks.in;
  pen.globalAlpha = 0.45;
  pen.beginPath();
  for (const mark of seen) {
    if (mark.read === null || mark.wrote === null) continue;
    const x = across(one, mark.at);
    pen.moveTo(x, heightOf(one, mark.read));
    pen.lineTo(x, heightOf(one, mark.wrote));
  }
  pen.stroke();
  pen.globalAlpha = 1;
}

function drawInputs(one, pen, seen, size) {
  pen.strokeStyle = one.inks.in;
  pen.fillStyle = size < 2 ? one.inks.in : one.inks.paper;
  pen.lineWidth = 1.2;
  const dots = new Set();
  for (const mark of seen) {
    if (mark.read === null) continue;
    const x = across(one, mark.at), y = heightOf(one, mark.read);
    if (size < 2) { dot(pen, dots, x, y, 1); continue; }
    pen.beginPath();
    pen.arc(x, y, size, 0, 7);
    pen.fill();
    pen.stroke();
  }
}

// A mark among very many; of those that fall on the same place one is drawn.
function dot(pen, drawn, x, y, size) {
  const place = Math.round(x) * 8192 + Math.round(y);
  if (drawn.has(place)) return;
  drawn.add(place);
  pen.fillRect(Math.round(x) - size / 2, Math.round(y) - size / 2, size, size);
}

function drawOutputs(one, pen, seen, size) {
  const tone = (mark) => { const cause = ofOperator("cause", mark.operator); return cause === "PROPAGATED" ? "passed" : cause ? "bad" : "out"; };
  for (const wanted of ["out", "passed", "bad"]) drawDiscs(one, pen, seen.filter((mark) => mark.wrote !== null && tone(mark) === wanted), size, wanted);
}

function drawDiscs(one, pen, seen, size, tone) {
  pen.fillStyle = one.inks[tone];
  const dots = new Set();
  for (const mark of seen) {
    const x = across(one, mark.at), y = heightOf(one, mark.wrote);
    if (size < 2) { dot(pen, dots, x, y, 2); continue; }
    pen.beginPath();
    pen.arc(x, y, size, 0, 7);
    pen.fill();
  }
}

function drawSuspects(one, pen, seen) {
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  pen.font = "bold 11px system-ui, sans-serif";
  const suspects = seen.filter((mark) => SUSPECTS.has(ofOperator("cause", mark.operator)));
  for (const mark of suspects.sort((a, b) => ofOperator("place", b.operator) - ofOperator("place", a.operator))) {
    const value = mark.wrote ?? mark.read;
    if (value === null) continue;
    const x = across(one, mark.at), y = heightOf(one, value), place = ofOperator("place", mark.operator);
    pen.fillStyle = TONES[ofOperator("cause", mark.operator)] === "bad" ? one.inks.bad : one.inks.warn;
    diamond(pen, x, y, 6);
    if (place <= 9) pen.fillText(place, x, y > TOP + 22 ? y - 9 : y + 18);
  }
}

function diamond(pen, x, y, size) {
  pen.beginPath();
  pen.moveTo(x, y - size); pen.lineTo(x + size, y); pen.lineTo(x, y + size); pen.lineTo(x - size, y);
  pen.closePath();
  pen.fill();
}

const laneHeight = (one, lane) => TOP + 14 + one.lanes.indexOf(lane) * ((one.height - TOP - BOTTOM - 20) / Math.max(1, one.lanes.length - 1 || 1));

function drawLanes(one) {
  const pen = one.under.getContext("2d"), right = one.width - RIGHT;
  pen.clearRect(0, 0, one.width, one.height);
  pen.font = "11px system-ui, sans-serif";
  pen.strokeStyle = one.inks.edge;
  pen.textBaseline = "middle";
  for (const lane of one.lanes) {
    const y = Math.round(laneHeight(one, lane)) + 0.5;
    pen.fillStyle = one.inks.soft;
    pen.textAlign = "left";
    pen.fillText(lane === LANES[4] ? "near" : lane, 2, y);
    pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(right, y); pen.stroke();
  }
  drawOrders(one, pen, right);
  for (const origin of ["", "propagated", "unknown", "killed", "born"]) for (const mark of one.marks) for (const [kind, how] of mark.events) {
    if (how !== origin || !one.lanes.includes(kind)) continue;
    const x = across(one, mark.at), y = laneHeight(one, kind);
    if (x < LEFT || x > right) continue;
    const colour = { born: one.inks.bad, propagated: one.inks.passed, killed: one.inks.good, unknown: one.inks.warn, "": one.inks.in }[how];
    [pen.fillStyle, pen.strokeStyle, pen.lineWidth] = [colour, colour, 2];
    if (how === "born") { diamond(pen, x, y, 7); continue; }
    pen.beginPath();
    if (how === "killed") { pen.moveTo(x - 4, y - 4); pen.lineTo(x + 4, y + 4); pen.moveTo(x + 4, y - 4); pen.lineTo(x - 4, y + 4); pen.stroke(); }
    else { pen.arc(x, y, 4, 0, 7); if (how === "propagated") pen.fill(); else pen.stroke(); }
  }
}

// What lies over the drawing: the operator under the pointer or opened, and the part that is being chosen.
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
}

// The mark that is nearest to a point; by the order alone it is found at once, the height decides among neighbours.
function nearest(one, x, y) {
  const at = one.first + shareAt(one, x) * (one.last - one.first);
  let low = 0, high = one.marks.length - 1;
  while (low < high) { const middle = (low + high) >> 1; if (one.marks[middle].at < at) low = middle + 1; else high = middle; }
  let best = -1, least = Infinity;
  for (const direction of [-1, 1]) for (let i = direction < 0 ? low - 1 : low; i >= 0 && i < one.marks.length; i += direction) {
    const away = Math.abs(across(one, one.marks[i].at) - x);
    if (away > 6 && best >= 0) break;
    const heights = one.marks[i].events ? one.marks[i].events.map(([kind]) => laneHeight(one, kind)) : [one.marks[i].wrote, one.marks[i].read].filter((value) => value !== null).map((value) => heightOf(one, value));
    const distance = away + 0.2 * Math.min(...heights.map((height) => Math.abs(height - y)), 300) + (away > 6 ? 1000 + away : 0);
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
  const { operator, read, wrote, limit, events } = one.marks[one.cursor];
  const get = (name) => ofOperator(name, operator);
  const lines = [[get("op_type"), `order ${get("order")}`].filter(Boolean).join(" · ")];
  if (get("cause")) lines.push(`${SHAPES[get("cause")]} ${get("cause")}${get("place") ? `, place ${get("place")}` : ""}`);
  if (events) lines.push(...events.slice(0, 6).map((words) => words.filter(Boolean).join(" ")));
  else if (get("alone")) lines.push(`only the ${get("alone")} has it`);
  else lines.push(`inputs ${read === null ? "not known" : written(read)}, outputs ${wrote === null ? "not known" : written(wrote)}${limit === null ? "" : `, limit ${written(limit)}`}`);
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
