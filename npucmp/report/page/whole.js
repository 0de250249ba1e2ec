"use strict";
// The whole network as a graph, folded by module. It is open where an error begins; a click opens or closes a module.

const BEYOND = 500; // pixels above and below the visible part that are drawn too
const FAR_BELOW = 2 * NEST.down + NEST.high; // pixels from which on a line leads around the boxes between
const FEW = 12; // boxes of the first view if nothing was found

const whole = { root: null, edges: null, states: [], colour: "cause", drawn: null, current: null, found: [], at: -1, source: null };

function startWhole() {
  whole.source = data.graph ? recordedSource() : data.kind === "pairs" && data.readers ? pairSource() : null;
  const section = document.getElementById("whole");
  if (!section || !whole.source?.count) return;
  section.hidden = false;
  const runs = section.querySelector("#whole-run select");
  data.runs.forEach((name, run) => runs.append(element("option", { value: run }, name || String(run + 1))));
  runs.value = whole.source.run;
  document.getElementById("whole-run").hidden = data.runs.length < 2 || whole.source.alone;
  runs.addEventListener("change", () => showWhole(Number(runs.value)));
  for (const one of section.querySelectorAll("#whole-colour input")) one.addEventListener("change", () => { whole.colour = one.value; drawWhole(); });
  const search = document.getElementById("whole-search");
  search.addEventListener("input", () => findWhole(search.value, 0));
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    findWhole(search.value, event.shiftKey ? -1 : 1);
  });
  document.getElementById("whole-close").addEventListener("click", () => { closeAll(whole.root); drawWhole(); });
  document.getElementById("whole-first").addEventListener("click", () => { openFirst(); drawWhole(); focusBox(whole.current); });
  const box = document.getElementById("whole-graph");
  box.addEventListener("keydown", onWholeKey);
  box.addEventListener("scroll", onWholeScroll, { passive: true });
  box.addEventListener("click", (event) => { const node = boxAt(event.target); if (node) chooseBox(node); });
  new ResizeObserver(() => { if (box.clientWidth !== whole.width) drawWhole(); }).observe(box);
  showWhole(whole.source.run);
}

// Operators of compared pairs: their states are those of the neighbourhood, their lines are the producers of rows.
function pairSource() {
  const count = data.operators.length, from = [], to = [], off = [];
  for (let row = 0; rows.producer && row < data.rows.length; row++) {
    const producer = rows.producer[row];
    if (producer === null || producer === ofRow[row]) continue;
    from.push(producer); to.push(ofRow[row]); off.push(DIFFERS.has(cell("verdict", row)) ? 1 : 0);
  }
  return {
    count, names: Array.from({ length: count }, (_, one) => ofOperator("op", one)), phases: operators.phase ?? [], orders: operators.order, edges: { from, to, off }, run: best_run(), open: openOperator,
    paths: Array.from({ length: count }, (_, one) => ofOperator("path", one) || ofOperator("within", one) || null),
    runs: operators.run, kind: "cause", stateOf: pairState, operators: [],
  };
}

// Operators of one run, as `npucmp check` found them.
function recordedSource() {
  const { op, path, phase, order, cause, place, from, to } = data.graph, count = op.length;
  return {
    count, names: op, paths: path ?? [], phases: phase ?? [], orders: order, edges: { from: from ?? [], to: to ?? [], off: new Uint8Array((from ?? []).length) },
    run: 0, runs: new Uint8Array(count), alone: true, kind: "finding", open: openRecorded, operators: [],
    stateOf: (one) => ({ off: cause?.[one] ? 1 : 0, compared: 1, open: 0, excused: 0, cause: cause?.[one] ?? null, place: place?.[one] ?? null, ratio: null, error: null }),
  };
}

// Show the finding of an operator, else its curves.
function openRecorded(one) {
  const name = data.graph.op[one], shown = operatorOf(`#${new URLSearchParams({ op: name })}`);
  if (shown >= 0) openOperator(shown);
  else if (typeof series !== "undefined" && series && showCurvesOf(name)) document.getElementById("curves").scrollIntoView({ block: "nearest" });
  else showHint(name, innerWidth / 2, innerHeight / 2);
}

function pairState(one) {
  const mark = errorMark(one);
  let off = ofOperator("cause", one) ? 1 : 0; // inputs that differ are not its error
  let unknown = 0;
  for (let row = firstRow[one]; row < firstRow[one + 1]; row++) {
    const verdict = cell("verdict", row);
    if (!rows.output?.[row]) continue;
    if (DIFFERS.has(verdict)) off = 1;
    else if (verdict !== "match") unknown = 1;
  }
  const ratio = mark.wrote === null ? null : mark.wrote === 0 ? 0 : mark.excused ? Math.min(1, mark.wrote / mark.limit) : mark.limit === null ? 1 : mark.wrote / mark.limit;
  const compared = mark.wrote !== null || off ? 1 : 0;
  return { off, compared, only: ofOperator("alone", one), open: unknown || !compared ? 1 : 0, excused: mark.excused ? 1 : 0, cause: ofOperator("cause", one), place: ofOperator("place", one), ratio, error: mark.wrote };
}

function showWhole(run) {
  const { source } = whole;
  source.operators = [];
  for (let one = 0; one < source.count; one++) if (source.runs[one] === run && source.orders[one] !== null) source.operators.push(one);
  source.operators.sort((a, b) => source.orders[a] - source.orders[b]);
  whole.states = [];
  for (const one of source.operators) whole.states[one] = source.stateOf(one);
  whole.root = moduleTree(source);
  stateOfModules(whole.root, whole.states);
  openFirst();
  drawWhole();
  scrollToBox(whole.current);
}

// Open the modules around the operator at the first place.
function openFirst() {
  const placed = whole.source.operators.filter((one) => whole.states[one].place !== null);
  const first = placed.sort((a, b) => whole.states[a].place - whole.states[b].place)[0];
  if (first === undefined) openSmall(whole.root.children);
  whole.current = first === undefined ? whole.root.children[0] : revealModule(whole.root, first);
}

// Without a place to open, open the first levels as long as few boxes are visible.
function openSmall(level) {
  const inner = level.flatMap((node) => node.children ?? [node]);
  if (inner.length > FEW || inner.length === level.length) return;
  for (const node of level) node.open = Boolean(node.children);
  openSmall(inner);
}

function closeAll(node) {
  for (const child of node.children ?? []) { child.open = false; closeAll(child); }
  whole.current = whole.root.children[0];
}

// Lay out the visible boxes, and draw those in sight.
function drawWhole() {
  const box = document.getElementById("whole-graph");
  if (!whole.root || document.getElementById("whole").hidden) return;
  whole.width = box.clientWidth;
  whole.drawn = laidOut(whole.root, whole.source.edges, whole.source.count, Math.max(300, whole.width - 4));
  document.getElementById("whole-key").textContent = [WORDS.wholeKey[whole.colour === "cause" ? whole.source.kind : "error"], WORDS.wholeKey.edges, WORDS.wholeKey.keys].join(" ");
  const { width, height } = whole.drawn;
  whole.drawing = svg("svg", { width: width + 2, height: height + 2, viewBox: `-1 -1 ${width + 2} ${height + 2}`, role: "tree", "aria-label": WORDS.wholeLabel });
  box.replaceChildren(whole.drawing);
  paintWhole();
}

// Draw the part of the layout that is in sight; a box that has the focus keeps it.
function paintWhole() {
  const box = document.getElementById("whole-graph"), { boxes, lines } = whole.drawn;
  const from = box.scrollTop - BEYOND, to = box.scrollTop + box.clientHeight + BEYOND;
  const seen = ({ y, h }) => y < to && y + h > from;
  const held = boxAt(document.activeElement);
  whole.painted = [from, to];
  for (const one of whole.drawing.querySelectorAll("[role=treeitem]")) one.node.made = null;
  whole.drawing.replaceChildren(...modulesOf(whole.root).filter(seen).map(drawnModule),
    linesOf(boxes, lines.filter(({ from: a, to: b }) => Math.min(boxes[a].y, boxes[b].y) < to && Math.max(boxes[a].y, boxes[b].y) > from)),
    ...boxes.filter(seen).map(drawnBox));
  if (!whole.current?.made) whole.drawing.querySelector("[role=treeitem]")?.setAttribute("tabindex", 0);
  if (held?.made) held.made.focus({ preventScroll: true });
}

function onWholeScroll() {
  const box = document.getElementById("whole-graph"), [from, to] = whole.painted;
  if ((box.scrollTop < from + BEYOND / 4 && from > 0) || box.scrollTop + box.clientHeight > to - BEYOND / 4) paintWhole();
}

// The frames of open modules, the outer ones first.
function modulesOf(node) {
  if (!node.open || !node.children) return [];
  const inner = node.children.flatMap(modulesOf);
  return node.parent ? [node, ...inner] : inner;
}

function drawnModule(node) {
  const [tone, shape, words] = boxState(node);
  const letters = Math.floor((node.w - 40) / BOX.letter), label = `▾ ${node.label} ${shape}`;
  const title = label.length + words.length + 3 <= letters ? `${label} ${words}` : fitted(label, letters);
  return named(node, svg("g", { ...treeItem(node, words), class: `module w-${tone}` },
    svg("title", {}, `${node.label}\n${words}`),
    svg("rect", { x: node.x, y: node.y, width: node.w, height: node.h, rx: 8 }),
    svg("rect", { class: "head", x: node.x, y: node.y, width: node.w, height: NEST.head, rx: 8 }),
    svg("text", { x: node.x + 9, y: node.y + 18 }, title)));
}

const named = (node, made) => { node.made = made; made.node = node; return made; };

function treeItem(node, words) {
  return {
    role: "treeitem", "aria-level": node.depth, "aria-expanded": node.children ? String(node.open) : null,
    "aria-label": `${node.label}: ${words}`, tabindex: node === whole.current ? 0 : -1,
  };
}

function drawnBox(node) {
  const [tone, shape, words] = boxState(node), folded = Boolean(node.children), { x, y, w, h } = node;
  const letters = Math.floor((w - 16) / BOX.letter);
  const title = `${folded ? "▸ " : ""}${node.label}`;
  return named(node, svg("g", { ...treeItem(node, words), class: `node fold n-${tone}${whole.found.includes(node.operator) && node.operator >= 0 ? " hit" : ""}` },
    svg("title", {}, `${node.operator >= 0 ? whole.source.names[node.operator] : node.label}\n${words}`),
    folded ? svg("rect", { class: "behind", x: x + 3, y: y + 3, width: w, height: h, rx: 6 }) : null,
    svg("rect", { x, y, width: w, height: h, rx: folded ? 6 : 14 }),
    svg("text", { class: "title", x: x + 9, y: y + 18 }, fitted(title, letters)),
    svg("text", { class: "state", x: x + 9, y: y + 35 }, fitted(`${shape} ${words}`, letters + 3))));
}

// The state of a box: [tone, shape, words].
function boxState({ state, operator }) {
  const place = state.place !== null && (SUSPECTS.has(state.cause) || whole.source.kind === "finding") ? WORDS.place(state.place) : "";
  const many = operator < 0 ? WORDS.operators(state.count) : "", left = state.open ? WORDS.left(state.open, state.count) : "";
  const said = (...words) => words.filter(Boolean).join(" · ");
  if (whole.colour === "cause") {
    const off = operator < 0 && state.off ? (whole.source.kind === "finding" ? WORDS.found : WORDS.differing)(state.off, state.count) : many;
    if (state.cause) return [TONES[state.cause], SHAPES[state.cause], said(state.cause, place, off)];
    if (whole.source.kind === "finding") return ["good", "✓", said(WORDS.noFinding, many)];
    if (!state.compared) return ["lone", ...undecided(operator, many)];
    if (state.off) return ["passed", "✗", said(WORDS.differing(state.off, state.count))];
    return state.open ? ["part", "?", said(operator < 0 ? WORDS.agreeing(state.count - state.open, state.count) : "", left)] : ["good", "✓", said(WORDS.agree, many)];
  }
  if (state.ratio === null) return ["lone", ...undecided(operator, many)];
  if (state.ratio === 0) return [...(state.open ? ["part", "?"] : ["good", "✓"]), said(WORDS.noError, left || many)];
  if (Number.isNaN(state.ratio) || state.ratio === Infinity) return ["e-most", "∞", said(WORDS.beyond, many)];
  if (state.ratio <= 1) return state.excused ? ["excused", "□", said(WORDS.explained, written(state.error), left || many)] : [...(state.open ? ["part", "?"] : ["good", "✓"]), said(written(state.error), left || many)];
  const tone = state.ratio <= 10 ? ["e-low", "△"] : state.ratio <= 1000 ? ["e-high", "▲"] : ["e-most", "✗"];
  return [...tone, said(written(state.error), WORDS.times(state.ratio), many)];
}

// [shape, words] of a box of which nothing is decided.
function undecided(operator, many) {
  const only = operator >= 0 ? whole.states[operator].only : null;
  return only ? ["∅", WORDS.only(only)] : ["?", [WORDS.notCompared, many].filter(Boolean).join(" · ")];
}

function linesOf(boxes, lines) {
  return svg("g", { "aria-hidden": "true" }, lines.map((one) => {
    const a = boxes[one.from], b = boxes[one.to], slant = (b.x + b.w / 2 - a.x - a.w / 2) / 4;
    const x = a.x + a.w / 2 + Math.max(-a.w / 3, Math.min(a.w / 3, slant)), u = b.x + b.w / 2 - Math.max(-b.w / 3, Math.min(b.w / 3, slant));
    const y = a.y + a.h, v = b.y - 5, turn = Math.max(10, Math.min(60, Math.abs(v - y) / 2)), back = v < y;
    const path = back && b.y < a.y + a.h && a.y < b.y + b.h ? sidePath(a, b) : v - y > FAR_BELOW && Math.abs(u - x) < a.w / 3 ? aroundPath(x, y, u, v, a.w) : `M${x} ${y}C${x} ${y + turn} ${u} ${v - turn} ${u} ${v}`;
    return svg("g", { class: `edge${one.off ? " off" : ""}${back ? " back" : ""}` }, svg("path", { d: path }), svg("path", { class: "tip", d: `M${u - 4} ${v}h8l-4 5z` }), svg("title", {}, `${a.label} → ${b.label}: ${WORDS.differsAlong(one.count, one.off)}`));
  }));
}

// A line past the boxes between two of one column.
function aroundPath(x, y, u, v, wide) {
  const by = (wide / 2 + 12) / 0.75;
  return `M${x} ${y}C${x + by} ${y + 34} ${u + by} ${v - 34} ${u} ${v}`;
}

// A line between boxes beside each other.
const sidePath = (a, b) => `M${a.x + a.w / 2} ${a.y + a.h}C${a.x + a.w / 2} ${a.y + a.h + 26} ${b.x + b.w / 2} ${b.y - 26} ${b.x + b.w / 2} ${b.y - 5}`;

const boxAt = (target) => { for (let one = target; one && one.nodeName !== "svg"; one = one.parentNode) if (one.node) return one.node; return null; };

// Open or close a module, which stays where it is on the screen; show the figures of an operator.
function chooseBox(node) {
  whole.current = node;
  if (!node.children) {
    markCurrent();
    return whole.source.open(node.operator);
  }
  const box = document.getElementById("whole-graph"), before = node.y - box.scrollTop;
  node.open = !node.open;
  drawWhole();
  box.scrollTop = node.y - before;
  paintWhole();
  focusBox(node, false);
}

function markCurrent() {
  for (const one of document.querySelectorAll("#whole-graph [tabindex='0']")) one.setAttribute("tabindex", -1);
  whole.current?.made?.setAttribute("tabindex", 0);
}

function focusBox(node, scroll = true) {
  whole.current = node;
  if (scroll) scrollToBox(node);
  if (!node.made) return;
  markCurrent();
  node.made.focus({ preventScroll: true });
}

function scrollToBox(node) {
  const box = document.getElementById("whole-graph");
  box.scrollTo(Math.max(0, node.x + node.w / 2 - box.clientWidth / 2), Math.max(0, node.y + NEST.high - box.clientHeight / 2));
  paintWhole();
}

// The boxes in the order in which the arrow keys visit them.
function visitOrder(node, found = []) {
  if (node.parent) found.push(node);
  if (node.open) node.children?.forEach((child) => visitOrder(child, found));
  return found;
}

function onWholeKey(event) {
  const node = boxAt(event.target);
  if (!node) return;
  const order = visitOrder(whole.root), at = order.indexOf(node);
  const to = { ArrowDown: order[at + 1], ArrowUp: order[at - 1], Home: order[0], End: order[order.length - 1] };
  if (event.key in to) focusBox(to[event.key] ?? node);
  else if (event.key === "Enter" || event.key === " ") chooseBox(node);
  else if (event.key === "ArrowRight") node.children && !node.open ? chooseBox(node) : focusBox(node.open && node.children ? node.children[0] : node);
  else if (event.key === "ArrowLeft") node.children && node.open ? chooseBox(node) : focusBox(node.parent.parent ? node.parent : node);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

// Find operators by the words of their names; `by` moves to the next match.
function findWhole(text, by) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const { source } = whole, status = document.getElementById("whole-found");
  const known = (source.texts ??= source.names.map((name, one) => `${name ?? ""} ${source.paths[one] ?? ""}`.toLowerCase()));
  whole.found = words.length ? source.operators.filter((one) => words.every((word) => known[one].includes(word))) : [];
  if (!words.length) { status.textContent = ""; drawWhole(); return; }
  const count = whole.found.length;
  whole.at = by === 0 ? 0 : (whole.at + by + count) % Math.max(1, count);
  status.textContent = WORDS.matches(whole.at + 1, count);
  if (!count) return;
  const node = revealModule(whole.root, whole.found[whole.at]);
  drawWhole();
  whole.current = node;
  scrollToBox(node);
}
