"use strict";
// One operator: its inputs and outputs with all figures, its producers and consumers, and its text for a ticket.

const FIGURES = ["rel_l2", "limit", "cosine", "max_abs_err", "max_abs_at", "max_rel_err", "max_rel_at", "mean_abs_err", "mean_rel_err", "rmse", "max_ulp", "exact_ratio", "mismatch_ratio", "err_1e3_ratio", "err_5e3_ratio", "nonfinite_mismatch", "elements"];
const EVENT_FIGURES = ["count", "ratio", "first_at", "min", "max", "headroom_bits", "device_status", "device_bits", "golden_event"];
const FINITE = { min: "smallest finite", max: "largest finite" }; // of a tensor that may contain infinities
const COUNTED = ["target_nan", "target_inf", "golden_nan", "golden_inf"];
const MOST_LINKS = 12;

let opened = -1;
let consumers; // operator → operators that read its outputs

function readers(operator) {
  if (!consumers) {
    consumers = new Map();
    const add = (from, to) => consumers.set(from, (consumers.get(from) ?? new Set()).add(to));
    for (let row = 0; rows.producer && row < data.rows.length; row++) {
      if (rows.producer[row] !== null && rows.producer[row] !== ofRow[row]) add(rows.producer[row], ofRow[row]);
    }
    for (let one = 0; operators.parents && one < data.operators.length; one++) for (const from of parentsOf(one)) add(from, one);
  }
  return [...(consumers.get(operator) ?? [])];
}

const parentsOf = (operator) => ofOperator("parents", operator) ?? [];

function writers(operator) {
  const found = rowsOf(operator).map((row) => cell("producer", row)).filter((one) => one !== null && one !== operator);
  return [...new Set([...found, ...parentsOf(operator)])];
}

// All suspects, by place.
function suspectsByPlace() {
  const found = [];
  for (let one = 0; one < data.operators.length; one++) if (SUSPECTS.has(ofOperator("cause", one))) found.push(one);
  return found.sort((a, b) => ofOperator("place", a) - ofOperator("place", b));
}

function openOperator(operator, row = null) {
  opened = operator;
  const panel = document.getElementById("operator");
  panel.replaceChildren(...operatorParts(operator));
  panel.hidden = false;
  panel.scrollTop = 0;
  panel.focus({ preventScroll: true });
  const fragment = fragmentOf(operator);
  if (location.hash !== fragment) setAddress(fragment);
  markOperator(operator);
  if (operator !== around.operator) showAround(operator);
  const card = row === null ? null : panel.querySelector(`[data-row="${row}"]`);
  card?.scrollIntoView({ block: "nearest" });
}

function closeOperator() {
  document.getElementById("operator").hidden = true;
  opened = -1;
  setAddress(location.pathname + location.search);
  markOperator(-1);
  document.getElementById("rows").focus({ preventScroll: true });
}

// A page in the frame of a notebook has no address of its own.
function setAddress(address) {
  if (location.protocol !== "about:") history.replaceState(null, "", address);
}

function fragmentOf(operator) {
  const words = { op: ofOperator("op", operator) ?? "", order: ofOperator("order", operator) ?? "" };
  if (data.runs.length > 1) words.run = operators.run[operator];
  return `#${new URLSearchParams(words)}`;
}

// The operator that a fragment names: the best match with the same name; -1 if there is none.
function operatorOf(fragment) {
  const words = new URLSearchParams(fragment.replace(/^#/, ""));
  const name = words.get("op");
  let best = -1, score = 0;
  for (let one = 0; name && one < data.operators.length; one++) {
    if (operators.op[one] !== name && ofOperator("golden_op", one) !== name) continue;
    const suits = 1 + 2 * (String(ofOperator("order", one)) === words.get("order")) + 2 * (String(operators.run[one]) === words.get("run")) + (ofOperator("place", one) !== null);
    if (suits > score) [best, score] = [one, suits];
  }
  return best;
}

function operatorParts(operator) {
  const get = (name) => ofOperator(name, operator);
  const tools = element("span", { class: "tools" },
    element("button", { type: "button", onclick: () => copy(ticket(operator)) }, "copy as ticket text"),
    element("button", { type: "button", onclick: () => revealRow(firstRow[operator]) }, "show in table"),
    element("button", { type: "button", onclick: closeOperator, "aria-label": "close", id: "close" }, "✕"));
  const facts = [get("op_type"), get("phase"), get("order") === null ? null : `order ${get("order")}`, data.runs.length > 1 ? data.runs[get("run")] : null];
  const parts = [tools, element("h2", {}, get("op") ?? "no name")];
  parts.push(element("p", { class: "muted" }, facts.filter(Boolean).join(" · ")));
  if (get("golden_op")) parts.push(element("p", {}, "golden: ", element("code", {}, get("golden_op"))));
  if (get("alone")) parts.push(element("p", { class: "w-warn" }, `∅ only in the ${get("alone")}`));
  if (get("cause")) parts.push(element("p", {}, sign(get("cause")), get("place") ? ` · place ${get("place")}` : ""));
  if (get("evidence")) parts.push(element("ul", {}, get("evidence").map((words) => element("li", {}, words))));
  if (get("path")) parts.push(element("p", { class: "muted" }, "module ", element("code", {}, get("path"))));
  if (get("originals")) parts.push(chainOf("fused from", get("originals"), get("golden_op")));
  if (get("passes")) parts.push(element("p", {}, "created by ", element("code", {}, get("passes").join(", "))));
  if (get("arguments")) parts.push(element("p", {}, "arguments that differ:"), element("pre", {}, get("arguments").join("\n")));
  parts.push(...linkLine("reads from", writers(operator)), ...linkLine("read by", readers(operator)));
  parts.push(element("div", { class: "sides" }, half("Inputs", operator, false), half("Outputs", operator, true)));
  if (get("frames") ?? get("stack")) parts.push(element("h3", {}, "Call stack, innermost first"), element("pre", {}, get("frames")?.join("\n") ?? get("stack")));
  return parts;
}

function chainOf(title, names, compared) {
  const boxes = names.flatMap((name, i) => [i ? element("span", { class: "arrow" }, "→") : null, element("span", { class: name === compared ? "box compared-here" : "box" }, name)]);
  return element("p", { class: "originals" }, `${title} `, boxes);
}

function linkLine(title, found) {
  if (!found.length) return [];
  const buttons = found.slice(0, MOST_LINKS).map((one) =>
    element("button", { type: "button", onclick: () => openOperator(one) }, sign(ofOperator("cause", one) ?? ""), ` ${ofOperator("op", one)}`));
  const more = found.length > MOST_LINKS ? ` and ${found.length - MOST_LINKS} more` : "";
  return [element("p", { class: "links" }, element("span", { class: "muted" }, `${title} `), buttons, more)];
}

function half(title, operator, output) {
  const some = rowsOf(operator).filter((row) => Boolean(cell("output", row)) === output);
  const words = data.kind === "events" ? "none with an event" : "none dumped";
  return element("div", {}, element("h3", {}, title), some.length ? some.map(card) : element("p", { class: "muted" }, words));
}

function card(row) {
  const word = cell("verdict", row) ?? cell("event", row);
  const head = element("p", {}, element("b", { class: "mono" }, cell("slot", row) ?? "device"), " ", word ? sign(word) : "near the limit", cell("origin", row) ? [" ", sign(cell("origin", row))] : "");
  const figures = (data.kind === "events" ? EVENT_FIGURES : FIGURES).map((name) => [FINITE[name] && data.kind === "events" ? FINITE[name] : name.replace(/_at$/, " at"), figure(name, row)]);
  const extra = data.columns.slice(data.columns.indexOf("golden_l2") + 1).filter((name) => !["stack", "cause", ...FIGURES].includes(name) && data.kind === "pairs" && name in rows);
  figures.push(...[...COUNTED.filter((name) => cell(name, row)), ...extra].map((name) => [name, shown(name, cell(name, row))]));
  const lines = figures.filter(([, words]) => words !== "").map(([name, words]) => element("tr", {}, element("th", {}, name), element("td", {}, words)));
  const linked = cell("producer", row) === null || cell("producer", row) === ofRow[row] ? "" : element("p", { class: "muted" }, `produced by ${ofOperator("op", cell("producer", row))} (${cell("linked", row)})`);
  const made = element("div", { class: `card ${TONES[word] ?? ""}`, "data-row": row }, head,
    element("p", { class: "muted mono" }, typesOf(row)),
    element("p", {}, cell("because", row) ?? ""), linked, element("table", {}, element("tbody", {}, lines)));
  for (const drawing of [lookAt(row), histogram(row), ranges(row), bothSides(row)]) if (drawing) made.append(drawing);
  return made;
}

function typesOf(row) {
  const both = (name) => [cell(`target_${name}`, row), cell(`golden_${name}`, row)];
  const joined = (name) => {
    const [x, y] = both(name);
    return x && y && x !== y ? `${x} (golden ${y})` : x ?? y ?? "";
  };
  return [joined("dtype"), joined("shape"), joined("layout"), cell("dtype", row), cell("shape", row)].filter(Boolean).join(" ");
}

function figure(name, row) {
  const place = { max_abs_at: "max_abs_index", max_rel_at: "max_rel_index", first_at: "first_index" }[name];
  if (!place) return name === "ratio" && cell(name, row) !== null ? `${written(100 * cell(name, row))} %` : shown(name, cell(name, row));
  const index = cell(place, row);
  return index === null || index < 0 ? "" : position(index, cell("golden_shape", row) ?? cell("target_shape", row) ?? cell("shape", row)) || String(index);
}

// The map of the error in a tensor: copied from the suspects, or from the hidden maps.
function lookAt(row) {
  const key = `${ofOperator("order", ofRow[row])}/${cell("slot", row)}`; // a page with rows has one step and rank
  return [...document.querySelectorAll("[data-look]")].find((one) => one.dataset.look === key)?.cloneNode(true);
}

// Elements by the decade of their relative error. Bin 0 counts elements without error, bin k errors from 10^(k-20) on.
function histogram(row) {
  const text = cell("histogram", row);
  if (!text) return null;
  const [first, counts] = [Number(text.split(":")[0]), text.split(":")[1].split(",").map(Number)];
  const bins = counts.map((count, i) => [first + i, count]).filter(([bin, count], i) => count || bin > 0 || !i);
  const inner = bins.filter(([bin]) => bin > 0);
  const low = Math.min(...inner.map(([bin, count]) => (count ? bin : 99)));
  const shown = [[0, bins[0][0] === 0 ? bins[0][1] : 0], ...inner.filter(([bin]) => bin >= low)];
  const most = Math.max(...shown.map(([, count]) => count));
  const width = 340 / Math.max(8, shown.length);
  const made = svg("svg", { viewBox: "0 0 340 92", role: "img", "aria-label": `elements by relative error: ${shown.map(([bin, count]) => `${count} ${bin ? `from 1e${bin - 20}` : "equal"}`).join(", ")}` });
  made.append(svg("text", { x: 0, y: 9 }, "elements by relative error: from the number below a bar to the next number"));
  shown.forEach(([bin, count], i) => {
    const height = count ? Math.max(2, 52 * Math.log1p(count) / Math.log1p(most)) : 0;
    made.append(svg("rect", { class: "count", x: i * width + 1, y: 78 - height, width: Math.max(3, width - 3), height }, svg("title", {}, `${count.toLocaleString("en-US")} elements ${bin ? `from 1e${bin - 20} to 1e${bin - 19}` : "without error"}`)));
    if (count) made.append(svg("text", { x: i * width + width / 2, y: 74 - height, "text-anchor": "middle" }, short(count)));
    made.append(svg("text", { x: i * width + width / 2, y: 90, "text-anchor": "middle" }, bin ? `1e${bin - 20}` : "0"));
  });
  return made;
}

const short = (count) => (count < 1000 ? String(count) : count < 1e6 ? `${Number((count / 1e3).toPrecision(3))}k` : `${Number((count / 1e6).toPrecision(3))}M`);

// Ranges from minimum to maximum of both sides on one scale, with a stroke at the mean.
function ranges(row) {
  const sides = ["target", "golden"].map((side) => [side, ...["min", "max", "mean"].map((name) => cell(`${side}_${name}`, row))]).filter(([, low, high]) => Number.isFinite(low) && Number.isFinite(high));
  if (!sides.length) return null;
  const least = Math.min(...sides.map((side) => side[1])), largest = Math.max(...sides.map((side) => side[2]));
  const at = (value) => 50 + (largest > least ? (value - least) / (largest - least) : 0.5) * 280;
  const made = svg("svg", { viewBox: "0 0 340 40", role: "img", "aria-label": sides.map(([side, low, high]) => `${side} from ${written(low)} to ${written(high)}`).join(", ") });
  sides.forEach(([side, low, high, mean], i) => {
    const y = 12 + 18 * i;
    made.append(svg("text", { x: 0, y: y + 4 }, side), svg("line", { class: `span ${side}`, x1: at(low), x2: Math.max(at(high), at(low) + 0.1), y1: y, y2: y }, svg("title", {}, `${side}: ${written(low)} to ${written(high)}, mean ${written(mean)}`)));
    if (Number.isFinite(mean)) made.append(svg("line", { class: "mean", x1: at(mean), x2: at(mean), y1: y - 6, y2: y + 6 }));
  });
  return made;
}

// Minimum, mean and maximum of each side.
function bothSides(row) {
  const names = ["min", "mean", "max"];
  const known = ["target", "golden"].filter((side) => names.some((name) => cell(`${side}_${name}`, row) !== null));
  if (!known.length) return null;
  const head = element("tr", {}, element("th", {}), names.map((name) => element("td", { class: "muted" }, name)));
  const lines = known.map((side) => element("tr", {}, element("th", {}, side), names.map((name) => element("td", {}, written(cell(`${side}_${name}`, row))))));
  return element("table", {}, element("tbody", {}, head, lines));
}

// The ticket text of an operator, or of one of its rows.
function ticket(operator, only = null) {
  const get = (name) => ofOperator(name, operator);
  const lines = [[get("cause"), get("op"), get("op_type") && `(${get("op_type")})`, data.runs.length > 1 ? data.runs[get("run")] : null].filter(Boolean).join("  ")];
  if (get("golden_op")) lines.push(`  golden: ${get("golden_op")}`);
  if (get("evidence")) lines.push(...get("evidence").map((words) => `  ${words}`));
  for (const row of only === null ? rowsOf(operator) : [only]) {
    const figures = ["rel_l2", "cosine", "max_abs_err", "max_ulp", "count", "headroom_bits"].filter((name) => cell(name, row) !== null).map((name) => `${name} ${shown(name, cell(name, row))}`);
    const at = figure("max_abs_at", row);
    lines.push(`  ${cell("slot", row) ?? "device"}: ${cell("verdict", row) ?? `${cell("event", row) ?? "near the limit"} ${cell("origin", row) ?? ""}`}; ${typesOf(row)}; ${figures.join(", ")}${at ? ` at ${at}` : ""}`);
    if (cell("because", row)) lines.push(`    ${cell("because", row)}`);
  }
  if (get("stack")) lines.push(`  ${get("stack")}`);
  lines.push(`  ${document.querySelector(".made p.muted").textContent.trim().replace(/\s+/g, " ")}`);
  return `${lines.join("\n")}\n`;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  showHint("copied", innerWidth - 120, innerHeight - 60);
  setTimeout(hideHint, 1200);
}
