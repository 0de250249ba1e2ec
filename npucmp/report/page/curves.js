"use strict";
// Curves of one tensor over the steps, both runs in one plot, and its distributions where they were measured.

const CURVE = { width: 420, height: 170, left: 70, right: 8, top: 14, foot: 20, steep: 50, listed: 300, dots: 60 };
const curves = { tensor: 0, rank: 0, texts: null };

function startCurves() {
  const section = document.getElementById("curves"), count = series.tensors.length;
  section.hidden = !count;
  if (!count) return;
  const { name, slot, kind } = series.tensors;
  curves.texts = Array.from({ length: count }, (_, at) => `${name[at] ?? ""} ${slot?.[at] ?? ""}`.trim());
  curves.common = commonLength(name ?? []);
  const kinds = section.querySelector("#curves-kind");
  for (const one of ["all", ...new Set(kind)]) kinds.append(element("option", { value: one }, WORDS.curves.kinds[one] ?? one));
  kinds.addEventListener("change", listTensors);
  document.getElementById("curves-search").addEventListener("input", listTensors);
  const list = document.getElementById("curves-list");
  list.addEventListener("change", () => { if (list.value !== "") showCurves(Number(list.value)); });
  const ranks = section.querySelector("#curves-rank");
  ranks.hidden = series.ranks.length < 2;
  series.ranks.forEach((rank, at) => ranks.querySelector("select").append(element("option", { value: at }, WORDS.steps.rank(rank))));
  ranks.querySelector("select").addEventListener("change", (event) => showRankCurves(Number(event.target.value)));
  document.getElementById("curves-left").textContent = WORDS.curves.left(series.left);
  const [, operator, rank] = series.marks[0] ?? [];
  curves.rank = rank ?? 0;
  listTensors();
  if (operator === undefined || !showCurvesOf(series.operators.op[operator])) showCurves(0);
}

// The length of the parts that all names begin with.
function commonLength(names) {
  let common = names[0] ?? "";
  for (const one of names) while (!one?.startsWith(common)) common = common.slice(0, -1);
  return common.lastIndexOf(".") + 1;
}

function showRankCurves(rank) {
  curves.rank = rank;
  showCurves(curves.tensor);
}

function listTensors() {
  const words = document.getElementById("curves-search").value.toLowerCase().split(/\s+/).filter(Boolean), kind = document.getElementById("curves-kind").value;
  const found = [];
  for (let at = 0; at < curves.texts.length; at++) {
    const text = curves.texts[at].toLowerCase();
    if ((kind === "all" || series.tensors.kind[at] === kind) && words.every((word) => text.includes(word))) found.push(at);
  }
  const list = document.getElementById("curves-list");
  const some = found.slice(0, CURVE.listed);
  if (found.length > some.length && found.includes(curves.tensor) && !some.includes(curves.tensor)) some.unshift(curves.tensor);
  list.replaceChildren(...some.map((at) => element("option", { value: at, selected: at === curves.tensor, title: curves.texts[at] }, curves.texts[at].slice(curves.common))));
  if (found.length > CURVE.listed) list.append(element("option", { value: "", disabled: true }, WORDS.curves.more(found.length - CURVE.listed)));
  if (!found.length) list.append(element("option", { value: "", disabled: true }, WORDS.curves.none));
}

// Show the first output of an operator, else its first tensor; return whether it has one.
function showCurvesOf(operator) {
  const { name, slot } = series.tensors, first = name?.indexOf(operator) ?? -1;
  const output = name?.findIndex((one, at) => one === operator && slot?.[at]?.startsWith("output")) ?? -1;
  const at = output < 0 ? first : output;
  if (at >= 0) showCurves(at);
  return at >= 0;
}

function showCurves(tensor) {
  curves.tensor = tensor;
  document.querySelector("#curves-rank select").value = curves.rank;
  const list = document.getElementById("curves-list");
  if (![...list.options].some((one) => one.value === String(tensor))) listTensors();
  list.value = tensor;
  const title = curves.texts[tensor];
  document.getElementById("curves-title").textContent = title;
  const plots = [["l2", ["l2"]], ["mean", ["mean"]], ["range", ["min", "max"]]].map(([what, names]) => {
    const lines = series.sides.flatMap((side, number) => names.map((name) => ({ side, name, number, values: curveOf(tensor, `${side}_${name}`) }))).filter((one) => one.values.some((value) => value !== null));
    return lines.length ? plotted(WORDS.curves.figures[what], title, lines) : null;
  });
  document.getElementById("curves-plots").replaceChildren(...plots.filter(Boolean), ...[errorMap(tensor)].filter(Boolean), ...valuePlots(tensor));
  document.getElementById("curves-figures").replaceChildren(figureTable(tensor));
}

// The values of a figure in each step; null if unknown.
function curveOf(tensor, column) {
  const values = series.figures[column], { steps } = series, count = series.tensors.length;
  return steps.map((_, step) => values?.[(curves.rank * steps.length + step) * count + tensor] ?? null);
}

function plotted(what, name, lines) {
  const { width, height, left, right, top, foot } = CURVE, { steps } = series;
  const finite = lines.flatMap((one) => one.values).filter((value) => value !== null && Number.isFinite(value));
  let low = Math.min(...finite), high = Math.max(...finite);
  if (!finite.length) [low, high] = [0, 1];
  const steep = low > 0 && high > CURVE.steep * low, scaled = steep ? Math.log10 : (value) => value / 2;
  const x = (step) => left + (width - left - right) * (steps.length > 1 ? (steps[step] - steps[0]) / (steps[steps.length - 1] - steps[0]) : 0.5);
  const y = (value) => top + (height - top - foot) * (high > low ? 1 - (scaled(value) - scaled(low)) / (scaled(high) - scaled(low)) : 0.5);
  const made = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": WORDS.curves.label(what, name) });
  const ticks = [0, 1, 2, 3].slice(0, high > low ? 4 : 1).map((tick) => (steep ? low * (high / low) ** (tick / 3) : low + (high - low) * (tick / 3)));
  ticks.forEach((value, at) => made.append(svg("line", { class: "axis", x1: left, x2: width, y1: y(value), y2: y(value) }), svg("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, tickWords(ticks)[at])));
  const labels = [...new Set([0, Math.floor((steps.length - 1) / 2), steps.length - 1])];
  labels.forEach((at, i) => made.append(svg("text", { x: x(at), y: height - 4, "text-anchor": i === 0 ? "start" : i === labels.length - 1 ? "end" : "middle" }, steps[at].toLocaleString("en-US"))));
  for (const { side, name: figure, number, values } of lines) {
    let path = "", pen = "M";
    values.forEach((value, step) => {
      if (value === null || !Number.isFinite(value)) { pen = "M"; return; }
      path += `${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    });
    made.append(svg("path", { class: `curve side-${number}`, d: path }));
    values.forEach((value, step) => {
      if (value === null) return;
      const words = `${side} ${figure}, ${WORDS.steps.step(steps[step], steps[step])}: ${exact(value)}`;
      if (Number.isFinite(value)) made.append(svg("circle", { class: `dot side-${number}`, cx: x(step), cy: y(value), r: 2.5, opacity: values.length > CURVE.dots ? 0 : null }, svg("title", {}, words)));
      else made.append(svg("text", { class: "lost", x: x(step), y: 10, "text-anchor": "middle" }, "✗", svg("title", {}, words)));
    });
  }
  const lost = lines.some((one) => one.values.some((value) => value !== null && !Number.isFinite(value)));
  const sides = [...new Set(lines.map((one) => one.number))];
  const key = sides.map((number) => element("span", { class: `side-${number}` }, `${number ? "╌╌" : "──"} ${series.sides[number]} `));
  return element("figure", { class: "over-steps" }, element("figcaption", {}, element("b", {}, what), " ", key, element("span", { class: "muted" }, [steep ? WORDS.curves.logarithmic : "", lost ? WORDS.curves.lost : ""].filter(Boolean).join(" · "))), made);
}

// The values at an axis, with as many digits as make them different.
function tickWords(ticks) {
  for (let digits = 3; digits < 8; digits++) {
    const words = ticks.map((value) => { const size = Math.abs(value); return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits))); });
    if (new Set(words).size === ticks.length || digits === 7) return words;
  }
  return [];
}

// Elements by decade of their relative error, a column per step.
function errorMap(tensor) {
  const found = series.errors.filter(([one, rank]) => one === tensor && rank === curves.rank);
  if (!found.length) return null;
  const bins = found.flatMap(([, , , counts]) => counts.map((count, bin) => (count ? bin : -1))).filter((bin) => bin >= 0);
  const first = Math.min(...bins), last = Math.max(...bins), lines = last - first + 1;
  const { width, left, right } = CURVE, line = Math.min(14, 130 / lines), height = lines * line + 20;
  const across = (width - left - right) / series.steps.length;
  const made = svg("svg", { viewBox: `0 0 ${width} ${height + 4}`, role: "img", "aria-label": WORDS.curves.label(WORDS.curves.errors, curves.texts[tensor]) });
  for (const [, , step, counts] of found) {
    const most = Math.log1p(Math.max(...counts));
    counts.forEach((count, bin) => {
      if (!count) return;
      const words = `${WORDS.steps.step(series.steps[step], series.steps[step])}: ${count.toLocaleString("en-US")} ${bin ? `1e${bin - 20} – 1e${bin - 19}` : WORDS.curves.noError}`;
      made.append(svg("rect", { class: "count", x: left + step * across, y: (last - bin) * line, width: Math.max(1, across - 1), height: line - 1, opacity: (0.15 + (0.85 * Math.log1p(count)) / most).toFixed(2) }, svg("title", {}, words)));
    });
  }
  for (let bin = first; bin <= last; bin += Math.max(1, Math.ceil(lines / 5))) made.append(svg("text", { x: left - 5, y: (last - bin) * line + line - 2, "text-anchor": "end" }, bin ? `1e${bin - 20}` : WORDS.curves.noError));
  made.append(svg("text", { x: left, y: height }, series.steps[0].toLocaleString("en-US")), svg("text", { x: width - right, y: height, "text-anchor": "end" }, series.steps[series.steps.length - 1].toLocaleString("en-US")));
  return element("figure", { class: "over-steps" }, element("figcaption", {}, element("b", {}, WORDS.curves.errors)), made);
}

// Distributions of the values, of steps in which the tensor was read a second time.
function valuePlots(tensor) {
  return series.values.filter(([one, rank]) => one === tensor && rank === curves.rank).slice(0, 6).map(([, rank, step, low, high, target, golden]) => {
    const width = 320, most = Math.log1p(Math.max(...target, ...golden)), wide = width / golden.length, up = (count) => (count ? Math.max(2, (46 * Math.log1p(count)) / most) : 0);
    const words = WORDS.curves.values(series.steps[step], series.ranks[rank]);
    const outline = golden.map((count, at) => `V${(50 - up(count)).toFixed(1)}H${(wide * (at + 1)).toFixed(1)}`).join("");
    return element("figure", { class: "over-steps" }, element("figcaption", {}, words), svg("svg", { class: "histogram", viewBox: `0 0 ${width} 66`, role: "img", "aria-label": words },
      target.map((count, at) => (count ? svg("rect", { class: "count", x: wide * at + 0.5, y: 50 - up(count), width: Math.max(1, wide - 1), height: up(count) }) : null)),
      svg("path", { class: "outline", d: `M0 50${outline}V50` }), svg("line", { class: "axis", x1: 0, x2: width, y1: 50, y2: 50 }),
      svg("text", { x: 0, y: 63 }, written(Number(low))), svg("text", { x: width, y: 63, "text-anchor": "end" }, written(Number(high)))));
  });
}

function figureTable(tensor) {
  const names = ["l2", "mean", "min", "max"].filter((name) => series.sides.some((side) => curveOf(tensor, `${side}_${name}`).some((value) => value !== null)));
  const columns = names.flatMap((name) => series.sides.map((side) => [`${series.sides.length > 1 ? `${side} ` : ""}${name}`, curveOf(tensor, `${side}_${name}`)]));
  const head = element("tr", {}, element("th", { scope: "col" }, WORDS.curves.step), columns.map(([name]) => element("th", { scope: "col" }, name)));
  const lines = series.steps.map((step, at) => element("tr", {}, element("th", { scope: "row" }, step.toLocaleString("en-US")), columns.map(([, values]) => element("td", {}, exact(values[at])))));
  return element("table", { class: "figure-table" }, element("thead", {}, head), element("tbody", {}, lines));
}

// A figure with the digits that the page has of it.
const exact = (value) => (value === null ? "" : Number.isFinite(value) ? (Math.abs(value) < 1e-3 && value !== 0 ? value.toExponential() : value.toLocaleString("en-US", { maximumSignificantDigits: 6 })) : written(value));
