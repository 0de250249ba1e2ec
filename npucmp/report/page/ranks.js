"use strict";
// The map of ranks × operators of a run that was put together, on canvas: a line per rank, a column per operator. A
// column or line of several operators or ranks shows the worst of them.

const MAP = { left: 84, right: 96, top: 26, bottom: 8, least: 3, most: 16, lines: 96, high: 420, stage: 18 };

// The states of a cell, the best first: [name, colour, from and to as shares of the height, words].
const CELLS = [
  ["absent", "", 0, 0, "the rank does not hold it"],
  ["whole", "in", 0.4, 0.65, "no error of its own: the tensor of all ranks agrees"],
  ["agrees", "good", 0.65, 1, "its part agrees"],
  ["open", "open", 0, 0.35, "not compared"],
  ["above", "out", 0.35, 1, "its part exceeds the limit, which the whole keeps or its inputs explain"],
  ["together", "passed", 0, 1, "no error of its own: the tensor of all ranks differs"],
  ["differs", "bad", 0, 1, "its part differs"],
];
const STATE = Object.fromEntries(CELLS.map(([name], place) => [name, place]));

// state, excess (error / limit) and row: one value per operator and rank, that of the worst output.
const rankMap = { lines: [], bins: [], cursor: null };

function startRanks() {
  if (!data.ranks) return;
  const { ranks, stages } = data.ranks, count = data.operators.length;
  Object.assign(rankMap, { state: new Uint8Array(count * ranks.length), excess: new Float32Array(count * ranks.length), row: new Int32Array(count * ranks.length).fill(-1), lines: linesOfRanks(ranks, stages) });
  for (let operator = 0; operator < count; operator++) fillCells(operator, ranks.length);
  rankMap.before = new Map(); // operator → [name, ranks] of each collective before it
  for (const [at, name, lines] of data.ranks.collectives ?? []) rankMap.before.set(at, [...(rankMap.before.get(at) ?? []), [name, lines]]);
  const section = document.getElementById("ranks"), over = section.querySelector(".over");
  section.hidden = false;
  over.setAttribute("aria-label", `map of ranks and operators: ${rankMap.lines.map((line) => `${line.label} ${countWords(line)}`).join(", ")}; arrow keys select a cell, Enter opens it`);
  fillRankKey();
  over.addEventListener("pointermove", (event) => pointAt(cellAt(event.offsetX, event.offsetY), event.clientX, event.clientY));
  over.addEventListener("pointerleave", () => pointAt(null));
  over.addEventListener("blur", () => pointAt(null));
  over.addEventListener("click", (event) => openCell(cellAt(event.offsetX, event.offsetY)));
  over.addEventListener("keydown", onRankKey);
  new ResizeObserver(() => { if (section.clientWidth !== rankMap.across) { rankMap.across = section.clientWidth; drawRanks(); } }).observe(section);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawRanks);
}

// Lines of ranks in the order of stages; a line has several neighbouring ranks of a stage if there are too many.
function linesOfRanks(ranks, stages) {
  const folded = Math.ceil(ranks.length / MAP.lines), found = [];
  for (const stage of [...new Set(stages)].sort((a, b) => a - b)) {
    const own = [...ranks.keys()].filter((at) => stages[at] === stage);
    for (let at = 0; at < own.length; at += folded) {
      const some = own.slice(at, at + folded), names = some.map((one) => ranks[one]);
      found.push({ stage, ranks: some, first: at === 0, label: names.length > 1 ? `ranks ${names[0]}–${names[names.length - 1]}` : `rank ${names[0]}` });
    }
  }
  return found;
}

function fillCells(operator, count) {
  const all = rowsOf(operator), outputs = all.filter((row) => rows.output[row]);
  const held = all.map((row) => rows.rank_errors?.[row]).filter(Boolean);
  for (let rank = 0; rank < count; rank++) {
    const at = operator * count + rank;
    for (const row of outputs.length ? outputs : all) {
      const own = rows.rank_errors?.[row];
      if (own ? own[rank] === null : held.length && held.every((some) => some[rank] === null)) continue;
      const [state, excess] = stateOfPart(row, own ? own[rank] : null);
      if (state < rankMap.state[at] || (state === rankMap.state[at] && rankMap.row[at] >= 0 && !(excess > rankMap.excess[at]))) continue;
      [rankMap.state[at], rankMap.excess[at], rankMap.row[at]] = [state, excess, row];
    }
  }
}

// [state, error / limit] of the part of a rank: a number, "sum" or "open".
function stateOfPart(row, part) {
  const verdict = cell("verdict", row), known = part !== null && part !== "sum" && part !== "open";
  if (verdict !== "match" && !differs(row)) return [STATE.open, 0];
  if (!known) return [differs(row) ? STATE.together : STATE.whole, 0];
  const limit = cell("limit", row) ?? 0, error = Number(part);
  const excess = error === 0 ? 0 : Number.isNaN(error) || !limit ? Infinity : error / limit;
  if (excess <= 1) return [STATE.agrees, excess];
  return [differs(row) ? STATE.differs : limit ? STATE.above : STATE.agrees, excess];
}

function countWords(line) {
  let count = 0;
  for (let operator = 0; operator < data.operators.length; operator++) count += worstOf([operator], line).state === STATE.differs;
  return count ? `${count.toLocaleString("en-US")} differ` : "none differs";
}

// The worst cell of these operators and of the ranks of a line.
function worstOf(some, line) {
  const count = data.ranks.ranks.length;
  let worst = null;
  for (const operator of some) for (const rank of line.ranks) {
    const at = operator * count + rank, state = rankMap.state[at], excess = rankMap.excess[at];
    if (!worst || state > worst.state || (state === worst.state && excess > worst.excess)) worst = { operator, rank, state, excess, row: rankMap.row[at] };
  }
  return worst;
}

function fillRankKey() {
  const present = new Set(rankMap.state), signs = { differs: "█", together: "█", above: "▆", open: "▔", agrees: "▂", whole: "─", absent: "blank:" };
  const tones = { differs: "bad", together: "passed", above: "out", open: "open", agrees: "good", whole: "in" };
  const words = CELLS.map(([name, , , , text]) => [name, text]).reverse().filter(([name]) => present.has(STATE[name]));
  document.getElementById("ranks-key").replaceChildren(
    ...words.map(([name, text]) => element("span", { class: "nobreak" }, element("span", { class: `w-${tones[name] ?? ""}` }, signs[name]), ` ${text}${name === "differs" ? ", the stronger the farther from its limit" : ""}`)),
    element("span", { class: "nobreak" }, element("span", { class: "w-link" }, "|"), " a collective of the rank"),
    element("span", { class: "nobreak" }, "◆ with a number: a suspect and its place"),
    " Click a cell to open its tensor, or use the arrow keys and Enter.");
}

function drawRanks() {
  if (!data.ranks) return;
  const section = document.getElementById("ranks"), [under, over] = section.querySelectorAll("canvas");
  const gaps = rankMap.lines.filter((line) => line.first).length, staged = gaps > 1;
  const high = Math.max(4, Math.min(22, Math.floor(MAP.high / rankMap.lines.length)));
  let y = MAP.top;
  for (const line of rankMap.lines) {
    if (staged && line.first) y += MAP.stage;
    Object.assign(line, { y, high });
    y += high + (high > 8 ? 3 : 1);
  }
  const width = under.clientWidth, sharp = devicePixelRatio || 1;
  Object.assign(rankMap, { width, height: y + MAP.bottom });
  for (const canvas of [under, over]) {
    canvas.style.height = `${rankMap.height}px`;
    [canvas.width, canvas.height] = [width * sharp, rankMap.height * sharp];
    canvas.getContext("2d").setTransform(sharp, 0, 0, sharp, 0, 0);
  }
  if (width < 200) return;
  rankMap.paint = colours();
  binOperators(width - MAP.left - MAP.right);
  const pen = under.getContext("2d");
  for (const line of rankMap.lines) drawLine(pen, line, staged);
  drawCollectives(pen);
  drawRoots(pen);
  drawRankCursor();
}

function binOperators(room) {
  const count = data.operators.length, columns = Math.max(1, Math.min(count, Math.floor(room / MAP.least)));
  rankMap.step = Math.min(MAP.most, room / columns);
  rankMap.bins = Array.from({ length: columns }, (_, at) => {
    const from = Math.floor((at * count) / columns), to = Math.floor(((at + 1) * count) / columns);
    return Array.from({ length: to - from }, (_, number) => from + number);
  });
  for (const line of rankMap.lines) line.cells = rankMap.bins.map((some) => worstOf(some, line));
}

const columnX = (bin) => MAP.left + bin * rankMap.step;
const binOf = (operator) => Math.min(rankMap.bins.length - 1, Math.floor(((operator + 0.5) * rankMap.bins.length) / Math.max(1, data.operators.length)));

function drawLine(pen, line, staged) {
  const paint = rankMap.paint;
  [pen.font, pen.textBaseline, pen.textAlign, pen.fillStyle] = ["11px system-ui, sans-serif", "middle", "right", paint.soft];
  if (staged && line.first) pen.fillText(`stage ${line.stage}`, MAP.left - 8, line.y - MAP.stage / 2);
  if (line.high >= 9) {
    pen.fillText(line.label, MAP.left - 8, line.y + line.high / 2);
    const words = countWords(line);
    pen.textAlign = "left";
    pen.fillStyle = words.startsWith("none") ? paint.soft : paint.bad;
    pen.fillText(words, columnX(rankMap.bins.length) + 10, line.y + line.high / 2);
  }
  pen.fillStyle = paint.edge;
  pen.fillRect(MAP.left, line.y + line.high, rankMap.step * rankMap.bins.length, 1);
  const gap = rankMap.step > 5 ? 1 : 0;
  line.cells.forEach(({ state, excess }, bin) => {
    const [name, colour, from, to] = CELLS[state];
    if (!colour) return;
    pen.fillStyle = paint[colour];
    pen.globalAlpha = name === "differs" ? 0.35 + 0.65 * Math.min(1, Math.log10(Math.max(1, excess)) / 4) : 1;
    pen.fillRect(columnX(bin), line.y + from * line.high, rankMap.step - gap, (to - from) * line.high);
  });
  pen.globalAlpha = 1;
}

// The operator before which a collective runs has its tick at the left.
function drawCollectives(pen) {
  pen.fillStyle = rankMap.paint.link;
  const lineOf = new Map(rankMap.lines.flatMap((line) => line.ranks.map((rank) => [rank, line])));
  for (const [operator, some] of rankMap.before) for (const [, ranks] of some) for (const rank of ranks) {
    const line = lineOf.get(rank), bin = operator >= data.operators.length ? rankMap.bins.length : binOf(operator);
    pen.fillRect(Math.round(columnX(bin)) - 1, line.y + line.high * 0.4, rankMap.step > 5 ? 2 : 1, line.high * 0.6 + 2);
  }
}

function drawRoots(pen) {
  const paint = rankMap.paint;
  [pen.textAlign, pen.textBaseline, pen.font] = ["center", "alphabetic", "bold 11px system-ui, sans-serif"];
  for (const operator of suspectsByPlace().reverse()) {
    const x = columnX(binOf(operator)) + rankMap.step / 2, place = ofOperator("place", operator);
    pen.fillStyle = pen.strokeStyle = TONES[ofOperator("cause", operator)] === "bad" ? paint.bad : paint.warn;
    diamond(pen, x, MAP.top - 8, 5);
    if (place <= 9) pen.fillText(place, x, MAP.top - 15);
    const line = rankMap.lines.find((one) => one.ranks.some((rank) => data.ranks.ranks[rank] === ofOperator("root_rank", operator)));
    if (line) pen.strokeRect(columnX(binOf(operator)) - 1.5, line.y - 1.5, rankMap.step + 2, line.high + 3);
  }
}

// Draw the overlay: the cell under the pointer, and the opened operator.
function drawRankCursor() {
  if (!rankMap.paint) return;
  const pen = document.querySelector("#ranks .over").getContext("2d");
  pen.clearRect(0, 0, rankMap.width, rankMap.height);
  const box = (bin, y, high, colour) => { pen.strokeStyle = colour; pen.strokeRect(columnX(bin) - 1.5, y - 1.5, rankMap.step + 2, high + 3); };
  if (opened >= 0) box(binOf(opened), MAP.top - 1, rankMap.height - MAP.top - MAP.bottom, rankMap.paint.link);
  if (rankMap.cursor) box(rankMap.cursor.bin, rankMap.lines[rankMap.cursor.line].y, rankMap.lines[rankMap.cursor.line].high, rankMap.paint.ink);
}

// {line, bin} at a point; null beside the map.
function cellAt(x, y) {
  const bin = Math.floor((x - MAP.left) / rankMap.step);
  const line = rankMap.lines.findIndex((one) => y >= one.y - 1 && y <= one.y + one.high + 2);
  return line < 0 || bin < 0 || bin >= rankMap.bins.length ? null : { line, bin };
}

function pointAt(place, x = null, y = null) {
  rankMap.cursor = place;
  drawRankCursor();
  if (!place) return hideHint();
  const line = rankMap.lines[place.line], found = line.cells[place.bin];
  const [title, words] = cellWords(line, found, rankMap.bins[place.bin]);
  const edges = document.querySelector("#ranks .over").getBoundingClientRect();
  showHint(words.join("\n"), x ?? edges.left + columnX(place.bin), y ?? edges.top + line.y + line.high, title);
}

// The operator of a cell, and what is known of it: slot, rank, placement, error, cause and collectives.
function cellWords(line, found, some) {
  const { operator, rank, state, row } = found, get = (name) => ofOperator(name, operator);
  const lines = [[`rank ${data.ranks.ranks[rank]}`, row < 0 ? null : cell("slot", row), row < 0 ? null : cell("relation", row)].filter(Boolean).join(" · ")];
  const part = row < 0 ? null : rows.rank_errors?.[row]?.[rank] ?? null, limit = row < 0 ? null : cell("limit", row);
  const figure = part === null || part === "open" ? "" : part === "sum" ? "a term of a sum; " : `rel_l2 ${written(Number(part))}${limit === null ? "" : `, limit ${written(limit)}`}; `;
  lines.push(`${figure}${CELLS[state][4]}`);
  if (get("cause")) lines.push(`${SHAPES[get("cause")]} ${get("cause")}${get("place") ? `, place ${get("place")}` : ""}`);
  const before = some.flatMap((one) => rankMap.before.get(one) ?? []).filter(([, ranks]) => line.ranks.some((one) => ranks.includes(one))).map(([name]) => name);
  if (before.length) lines.push(`collectives before ${some.length > 1 ? "these" : "it"}: ${before.slice(0, 4).join(", ")}${before.length > 4 ? ` and ${before.length - 4} more` : ""}`);
  if (some.length > 1 || line.ranks.length > 1) lines.push(`the worst of ${some.length} operator${some.length > 1 ? "s" : ""}${line.ranks.length > 1 ? ` on ${line.label}` : ""}`);
  return [get("op"), lines];
}

function openCell(place) {
  if (!place) return;
  const { operator, row } = rankMap.lines[place.line].cells[place.bin], first = row < 0 ? firstRow[operator] : row;
  hideHint();
  revealRow(first);
  openOperator(operator, first);
}

function onRankKey(event) {
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], PageDown: [0, 50], PageUp: [0, -50], Home: [0, -Infinity], End: [0, Infinity] };
  const within = (value, count) => Math.max(0, Math.min(count - 1, value));
  if (event.key in moves) {
    const [down, right] = moves[event.key], { line, bin } = rankMap.cursor ?? { line: down ? -down : 0, bin: right === Infinity ? 0 : -right };
    pointAt({ line: within(line + down, rankMap.lines.length), bin: within((Number.isFinite(bin) ? bin : 0) + right, rankMap.bins.length) });
  } else if (event.key === "Enter") openCell(rankMap.cursor);
  else return;
  event.preventDefault();
}
