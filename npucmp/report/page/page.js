"use strict";
// Start the page; the propagation of overflows; keys, fragments and printing.

const STEPS = 200; // drawn steps of a chain
const STEP = 30; // pixels between two steps
const LANE = 18;

// The operators that an overflow reached from its origin, in order.
function descendants(birth) {
  const seen = new Set([birth]);
  const waiting = [birth];
  while (waiting.length) for (const next of readers(waiting.pop())) if (!seen.has(next)) { seen.add(next); waiting.push(next); }
  return [...seen].sort((a, b) => a - b);
}

function startChains() {
  const births = suspectsByPlace();
  if (!births.length) return;
  document.getElementById("chain").hidden = false;
  const place = document.getElementById("chains");
  for (const birth of births.slice(0, 10)) place.append(drawnChain(descendants(birth)));
  if (births.length > 10) place.append(element("p", { class: "muted" }, `… and ${births.length - 10} more origins in the table`));
}

// Draw each operator on its own line, a consumer below its producer in the first free lane.
function drawnChain(whole) {
  const steps = whole.slice(0, STEPS);
  const lineOf = new Map(steps.map((one, i) => [one, i]));
  const taken = []; // lane → [from, to] of the lines that run in it
  const laneOf = new Map();
  const drawing = svg("svg", { "aria-hidden": "true" });
  for (const [i, one] of steps.entries()) {
    const from = parentsOf(one).filter((parent) => lineOf.has(parent) && lineOf.get(parent) < i);
    const main = from.length ? lineOf.get(from[from.length - 1]) : i;
    const wish = from.length ? laneOf.get(from[from.length - 1]) : 0;
    const lane = freeLane(taken, main, i, wish);
    laneOf.set(one, lane);
    for (const parent of from) {
      const line = lineOf.get(parent);
      if (line === main) drawing.append(edge(laneOf.get(parent), line, lane, i));
      else drawing.append(detour(laneOf.get(parent), line, lane, i, freeLane(taken, line, i)));
    }
  }
  const lanes = taken.length;
  for (const [i, one] of steps.entries()) drawing.append(knot(originOf(one), laneX(laneOf.get(one)), i * STEP + STEP / 2));
  drawing.setAttribute("width", lanes * LANE + 10);
  drawing.setAttribute("height", steps.length * STEP);
  const lines = steps.map((one) => stepLine(one, lanes * LANE + 8));
  const more = whole.length > steps.length ? element("p", { class: "muted" }, `… and ${whole.length - steps.length} more operators downstream`) : null;
  return element("div", { class: "chain" }, drawing, lines, more);
}

// Return a lane for a line between two steps, `wish` if it is free there, and reserve it.
function freeLane(taken, from, to, wish = 0) {
  const free = (lane) => !(taken[lane] ?? []).some(([a, b]) => a < to && b > from);
  let lane = free(wish) ? wish : 0;
  while (!free(lane)) lane++;
  (taken[lane] ??= []).push([from, to]);
  return lane;
}

// A line to a second producer, in a lane of its own.
function detour(fromLane, fromLine, toLane, toLine, lane) {
  const [x, y, u, v, by] = [laneX(fromLane), fromLine * STEP + STEP / 2, laneX(toLane), toLine * STEP + STEP / 2, laneX(lane)];
  return svg("path", { class: "edge", d: `M${x} ${y}Q${by} ${y} ${by} ${y + STEP / 2}V${v - STEP / 2}Q${by} ${v} ${u} ${v}` });
}

const laneX = (lane) => 12 + lane * LANE;

function edge(fromLane, fromLine, toLane, toLine) {
  const [x, y, u, v] = [laneX(fromLane), fromLine * STEP + STEP / 2, laneX(toLane), toLine * STEP + STEP / 2];
  return svg("path", { class: "edge", d: x === u ? `M${x} ${y}V${v}` : `M${x} ${y}C${x} ${y + STEP} ${u} ${y} ${u} ${y + STEP}V${v}` });
}

function originOf(operator) {
  const found = new Set(rowsOf(operator).map((row) => cell("origin", row)));
  return ["born", "killed", "unknown", "propagated"].find((origin) => found.has(origin)) ?? "unknown";
}

function knot(origin, x, y) {
  if (origin === "born") return svg("path", { class: origin, d: `M${x} ${y - 8}L${x + 8} ${y}L${x} ${y + 8}L${x - 8} ${y}Z` });
  if (origin === "killed") return svg("path", { class: origin, d: `M${x - 5} ${y - 5}L${x + 5} ${y + 5}M${x + 5} ${y - 5}L${x - 5} ${y + 5}` });
  return svg("circle", { class: origin, cx: x, cy: y, r: 5 });
}

function stepLine(operator, indent) {
  const told = rowsOf(operator).filter((row) => cell("event", row) || cell("origin", row));
  const kinds = [...new Set(told.map((row) => cell("event", row)).filter(Boolean))].join(", ");
  const origin = originOf(operator);
  const because = cell("what", told[0] ?? firstRow[operator]) ?? "";
  const made = element("button", { class: "step", type: "button", onclick: () => openOperator(operator) },
    sign(origin), element("span", { class: "name" }, ofOperator("op", operator)), element("b", {}, kinds), " ", element("span", { class: "muted" }, because));
  made.style.paddingLeft = `${indent}px`;
  return made;
}

function goToFragment() {
  const operator = operatorOf(location.hash);
  if (operator < 0) return;
  revealRow(firstRow[operator]);
  openOperator(operator);
}

// Open the next suspect by place, or the previous one.
function stepSuspect(by) {
  const suspects = suspectsByPlace();
  if (!suspects.length) return;
  const here = suspects.indexOf(opened);
  const next = suspects[here < 0 ? 0 : (here + by + suspects.length) % suspects.length];
  revealRow(firstRow[next]);
  openOperator(next);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape" && ["text-filter", "whole-search"].includes(event.target.id)) event.target.blur();
    return;
  }
  if (event.key === "/") document.getElementById("text-filter").focus();
  else if (event.key === "Escape" && opened >= 0) closeOperator();
  else if (event.key === "n" || event.key === "p") stepSuspect(event.key === "n" ? 1 : -1);
  else if (event.key === "c" && table.chosen >= 0 && opened < 0) copy(ticket(ofRow[table.visible[table.chosen]], table.visible[table.chosen]));
  else if (event.key === "c" && opened >= 0) copy(ticket(opened));
  else return;
  event.preventDefault();
}

function forPrint(on) {
  table.printing = on;
  drawRows();
  drawChart();
  drawRanks();
  if (on && around.suspects.length) showAround(around.suspects[0]);
  else drawAround();
}

async function startPage() {
  if (document.getElementById("data")) await startRows();
  if (document.readyState === "loading") await new Promise((read) => addEventListener("DOMContentLoaded", read));
  await startSteps();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

// The parts of the page that show the rows of tensors.
async function startRows() {
  await loadData();
  startTable();
  document.documentElement.dataset.rows = String(Math.round(performance.now()));
  await new Promise((painted) => setTimeout(painted)); // paint the first rows before the rest is unpacked
  data.facets.forEach(addFacet);
  await loadOthers();
  table.texts = [];
  fillChooser();
  startChart();
  startRanks();
  startWhole();
  startGraph();
  if (data.kind === "events") startChains();
  for (const chip of document.querySelectorAll("[data-filter]")) {
    chip.addEventListener("click", () => {
      const facet = { events: "event", health: "severity" }[data.kind] ?? "verdict";
      showOnly(chip.getAttribute("aria-pressed") === "true" ? {} : { [facet]: chip.dataset.filter });
      document.getElementById("table").scrollIntoView({ block: "start" });
    });
  }
  addEventListener("hashchange", goToFragment);
  addEventListener("keydown", onKey);
  addEventListener("beforeprint", () => forPrint(true));
  addEventListener("afterprint", () => forPrint(false));
  goToFragment();
}

startPage();
