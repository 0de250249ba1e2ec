"use strict";
// The graph around an operator: its producers, two steps upstream, and its consumers, two steps downstream. Each column
// is a step; a click selects a new centre.

const HOPS = 2;
const BOX = { high: 44, gap: 10, least: 168, most: 250, between: 34, letter: 6.7 };
const BESIDE = 7; // boxes in a column
const AROUND = 40; // suspects to choose from

const around = { operator: -1, suspects: [] };

// Reports on single tensors and replays contain no consumers.
const knowsReaders = () => Boolean(data.readers);

function startGraph() {
  if (!knowsReaders()) return;
  around.suspects = suspectsByPlace().slice(0, AROUND);
  const section = document.getElementById("around"), select = section.querySelector("select");
  around.suspects.forEach((one) => select.append(element("option", { value: one }, [ofOperator("place", one), ofOperator("cause", one), ofOperator("op", one)].filter(Boolean).join(" "))));
  select.addEventListener("change", () => showAround(Number(select.value)));
  document.getElementById("around-open").addEventListener("click", () => openOperator(around.operator));
  document.getElementById("around-key").textContent = "Left: producers of its inputs, right: consumers of its outputs, two steps each. ◆ ▲ △ ? suspect, ● propagates the error, ✓ within its limit, □ above its limit but explained, dashed: not compared. A heavy line carries a differing tensor. Click an operator to centre it; click the centre to open it.";
  new ResizeObserver(() => { if (section.clientWidth !== around.width) drawAround(); }).observe(section);
  if (around.suspects.length) showAround(around.suspects[0]);
}

function showAround(operator) {
  if (!knowsReaders() || operator < 0) return;
  around.operator = operator;
  document.getElementById("around").hidden = false;
  const select = document.querySelector("#around select");
  select.querySelector("[data-other]")?.remove();
  if (!around.suspects.includes(operator)) select.prepend(element("option", { value: operator, "data-other": true }, ofOperator("op", operator) ?? "no name"));
  select.value = operator;
  drawAround();
}

// Operator → its column, from -2 to 2, by the longest path, so that lines lead to the right.
function columnsAround(middle) {
  const found = new Map([[middle, 0]]);
  for (const [next, sign] of [[writers, -1], [readers, 1]]) {
    let edge = [middle];
    for (let hop = 1; hop <= HOPS; hop++) {
      edge = [...new Set(edge.flatMap(next))].filter((one) => one !== middle && !(sign * found.get(one) < 0));
      for (const one of edge) found.set(one, sign * hop);
    }
  }
  return found;
}

// If there is no room for all, the operators with the largest errors are shown, in the order of their inner neighbours.
function placedAround(middle) {
  const columnOf = columnsAround(middle), placed = new Map([[middle, { column: 0, line: 0 }]]), more = {};
  for (const column of [-1, 1, -2, 2]) {
    const some = [...columnOf].filter(([, at]) => at === column).map(([one]) => one);
    const kept = some.sort((a, b) => loudness(b) - loudness(a) || a - b).slice(0, BESIDE);
    more[column] = some.length - kept.length;
    const next = column < 0 ? readers : writers;
    const height = new Map(kept.map((one) => {
      const inner = next(one).map((other) => placed.get(other)).filter((other) => other && Math.abs(other.column) < Math.abs(column));
      return [one, inner.length ? inner.reduce((sum, other) => sum + other.line, 0) / inner.length : 0];
    }));
    kept.sort((a, b) => height.get(a) - height.get(b) || a - b);
    kept.forEach((one, i) => placed.set(one, { column, line: i - (kept.length - 1) / 2 }));
  }
  return { placed, more };
}

function loudness(operator) {
  const { wrote, limit } = errorMark(operator);
  return (SUSPECTS.has(ofOperator("cause", operator)) ? 1e9 : 0) + (Number.isNaN(wrote) ? 1e6 : Math.min(1e6, (wrote ?? 0) / (limit ?? 1)));
}

// The state of a box: [tone, shape, words].
function stateOf(operator) {
  const cause = ofOperator("cause", operator), alone = ofOperator("alone", operator), mark = errorMark(operator);
  const figure = mark.wrote === null ? "" : mark.wrote === 0 ? "no error" : `${written(mark.wrote)}`;
  if (cause) return [TONES[cause], SHAPES[cause], [cause, figure].filter(Boolean).join(" ")];
  if (alone) return ["lone", "∅", `only in the ${alone}`];
  if (mark.wrote === null) return ["lone", "?", "not compared"];
  return mark.excused ? ["excused", "□", `${figure} explained`] : mark.limit !== null && !(mark.wrote <= mark.limit) ? ["passed", "✗", figure] : ["good", "✓", figure];
}

function drawAround() {
  const section = document.getElementById("around"), middle = around.operator;
  if (section.hidden || middle < 0) return;
  around.width = section.clientWidth;
  const { placed, more } = placedAround(middle);
  const used = [...placed.values()];
  const first = Math.min(...used.map((one) => one.column)), last = Math.max(...used.map((one) => one.column));
  const lines = Math.max(...used.map((one) => one.line)) * 2 + 1;
  const wide = Math.max(BOX.least, Math.min(BOX.most, (around.width - 34 - (last - first) * BOX.between) / (last - first + 1)));
  const width = (last - first + 1) * (wide + BOX.between) - BOX.between + 2, height = lines * (BOX.high + BOX.gap) + 16;
  const at = ({ column, line }) => [1 + (column - first) * (wide + BOX.between), (height - 16) / 2 + line * (BOX.high + BOX.gap) - BOX.high / 2];
  const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `operators around ${ofOperator("op", middle)}` });
  for (const one of placed.keys()) for (const writer of writers(one)) if (placed.has(writer)) drawing.append(line_between(writer, one, at(placed.get(writer)), at(placed.get(one)), wide));
  for (const [one, spot] of placed) drawing.append(boxOf(one, one === middle, at(spot), wide));
  for (const [column, count] of Object.entries(more)) if (count) drawing.append(svg("text", { x: at({ column, line: 0 })[0] + wide / 2, y: height - 3, "text-anchor": "middle" }, `and ${count.toLocaleString("en-US")} more`));
  const box = document.getElementById("around-graph");
  const held = box.contains(document.activeElement);
  box.replaceChildren(drawing);
  box.scrollLeft = at(placed.get(middle))[0] + wide / 2 - box.clientWidth / 2;
  if (placed.size === 1) box.append(element("p", { class: "muted" }, "No producer and no consumer of this operator is known."));
  if (held) drawing.querySelector(".middle").focus({ preventScroll: true });
}

// A line from producer to consumer; heavy if the tensor differs.
function line_between(writer, reader, [x, y], [u, v], wide) {
  const read = rowsOf(reader).filter((row) => cell("producer", row) === writer);
  const off = read.some((row) => DIFFERS.has(cell("verdict", row)));
  const [from, to, height, end] = [x + wide, u - 5, y + BOX.high / 2, v + BOX.high / 2];
  const bend = Math.max(14, Math.abs(to - from) / 2);
  const names = read.map((row) => `${cell("slot", row)} ${cell("verdict", row) ?? ""}`.trim()).join(", ");
  return svg("g", { class: off ? "edge off" : "edge" },
    svg("path", { d: `M${from} ${height}C${from + bend} ${height} ${to - bend} ${end} ${to} ${end}` }),
    svg("path", { class: "tip", d: `M${to} ${end - 4}l6 4l-6 4z` }),
    svg("title", {}, `${ofOperator("op", writer)} → ${ofOperator("op", reader)} ${names}`));
}

function boxOf(operator, middle, [x, y], wide) {
  const [tone, shape, words] = stateOf(operator), name = ofOperator("op", operator) ?? "no name", place = ofOperator("place", operator);
  const chosen = () => (middle ? openOperator(operator) : showAround(operator));
  const made = svg("g", { class: `node n-${tone}${middle ? " middle" : ""}`, tabindex: 0, role: "button", "aria-label": `${name}: ${words}`, "data-operator": operator, onclick: chosen },
    svg("title", {}, `${name}\n${[ofOperator("op_type", operator), words].filter(Boolean).join(" · ")}`),
    svg("rect", { x, y, width: wide, height: BOX.high, rx: 6 }),
    svg("text", { class: "title", x: x + 9, y: y + 18 }, fitted(name, Math.floor((wide - 16) / BOX.letter))),
    svg("text", { class: "state", x: x + 9, y: y + 35 }, `${shape} ${words}${place && SUSPECTS.has(ofOperator("cause", operator)) ? ` · place ${place}` : ""}`));
  made.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    chosen();
  });
  return made;
}

// Shorten a name to a number of letters; both ends are kept.
function fitted(name, most) {
  const letters = [...name];
  return letters.length <= most ? name : `${letters.slice(0, Math.floor(most / 3)).join("")}…${letters.slice(letters.length - most + 1 + Math.floor(most / 3)).join("")}`;
}
