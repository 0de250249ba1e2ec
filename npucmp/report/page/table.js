"use strict";
// The table of all rows. Only visible rows are in the document, so that 20,000 rows cost no more than 50.

const HEIGHT = 27; // of a row, as report.css has it: 26 and a border
const MARGIN = 12; // rows above and below the visible ones
const PRINTED = 200;
const WIDTHS = { op: 300, op_type: 120, because: 420, stack: 360, slot: 90, verdict: 110, cause: 130, target_tensor: 260, golden_tensor: 260, target_op: 260, golden_op: 260, order: 70, event: 100, origin: 120, device_bits: 260, run: 110 };
const LEAST = { target_shape: 130, golden_shape: 130, shape: 130 };

const table = {
  shown: [], // names of columns
  visible: null, // rows that pass the filters, in the order of the screen
  chosen: -1, // place in `visible`
  sorted: { name: "", down: false },
  selects: {},
  opening: true, // if any row differs, only differing rows are shown, until the user changes the filter
  texts: [], // text of each row for the text filter
};

function startTable() {
  table.shown = data.shown.filter(hasColumn);
  const body = document.getElementById("rows");
  document.getElementById("table").hidden = !data.rows.length;
  const text = document.getElementById("text-filter");
  text.addEventListener("input", filterRows);
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("reset").addEventListener("click", () => showOnly({}));
  body.addEventListener("scroll", drawRows, { passive: true });
  body.addEventListener("keydown", onTableKey);
  new ResizeObserver(drawRows).observe(body);
  drawHead();
  table.opening = Boolean(rows.verdict?.some((verdict) => DIFFERS.has(verdict)));
  filterRows();
}

const DIFFERS = new Set(["diverged", "nonfinite", "shape", "DIFFERS"]);
const hasColumn = (name) => name === "run" ? data.runs.length > 1 : name in rows || name in operators;

function isNumber(name) {
  const column = data.rows.columns[name] ?? data.operators.columns[name];
  return name !== "run" && Boolean(column?.number);
}

function addFacet(name) {
  const counts = new Map();
  for (let row = 0; row < data.rows.length; row++) {
    const value = cell(name, row);
    if (value !== null) counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  if (!counts.size || (counts.size === 1 && name !== "verdict") || (name === "run" && data.runs.length < 2)) return;
  const select = element("select", { "aria-label": `filter by ${name}` }, element("option", { value: "" }, `${name}: all`));
  if (name === "verdict") select.append(element("option", { value: "differs" }, "all that differ"));
  const order = [...counts].sort((a, b) => b[1] - a[1]);
  for (const [value, count] of order) select.append(element("option", { value }, `${value} (${count.toLocaleString("en-US")})`));
  if (name === "verdict" && table.opening) select.value = "differs";
  select.addEventListener("change", filterRows);
  table.selects[name] = select;
  document.getElementById("facets").append(select);
}

function fillChooser() {
  for (const name of data.columns.filter(hasColumn)) {
    const box = element("input", { type: "checkbox", checked: table.shown.includes(name) });
    box.addEventListener("change", () => {
      table.shown = data.columns.filter((other) => (other === name ? box.checked : table.shown.includes(other)));
      drawHead();
      drawRows();
    });
    document.getElementById("columns").append(element("label", {}, box, ` ${name}`));
  }
}

function textOf(row) {
  const words = ["op", "golden_op", "op_type", "phase", "slot", "verdict", "cause", "rule", "explained_by", "event", "origin", "because", "target_dtype", "target_shape", "dtype", "stack"];
  return (table.texts[row] ??= words.map((name) => cell(name, row) ?? "").join(" ").toLowerCase());
}

// Set the filters: {text, verdict, cause, …}; other filters are removed.
function showOnly(wanted) {
  document.getElementById("text-filter").value = wanted.text ?? "";
  for (const [name, select] of Object.entries(table.selects)) select.value = wanted[name] ?? "";
  filterRows();
}

function filterRows() {
  const words = document.getElementById("text-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const tests = Object.entries(table.selects).filter(([, select]) => select.value).map(([name, select]) => {
    if (select.value === "differs") return differs;
    return (row) => cell(name, row) === select.value;
  });
  if (table.opening && !table.selects.verdict) tests.push(differs);
  const found = [];
  for (let row = 0; row < data.rows.length; row++) {
    if (tests.every((test) => test(row)) && (!words.length || words.every((word) => textOf(row).includes(word)))) found.push(row);
  }
  table.visible = found;
  if (table.sorted.name) sortRows();
  table.chosen = -1;
  document.getElementById("rows").scrollTop = 0;
  const all = data.rows.length.toLocaleString("en-US");
  document.getElementById("shown-count").textContent =
    found.length === data.rows.length ? `${all} rows` : `${found.length.toLocaleString("en-US")} of ${all} rows`;
  for (const chip of document.querySelectorAll("[data-filter]")) {
    const pressed = Object.values(table.selects).some((select) => select.value === chip.dataset.filter);
    chip.setAttribute("aria-pressed", String(pressed));
  }
  drawRows();
}

const differs = (row) => DIFFERS.has(cell("verdict", row));

function sortRows() {
  const { name, down } = table.sorted;
  if (!name) return table.visible.sort((a, b) => a - b);
  const keys = new Map(table.visible.map((row) => [row, cell(name, row)]));
  const sign = down ? -1 : 1;
  table.visible.sort((a, b) => {
    const x = keys.get(a), y = keys.get(b);
    if (x === null || y === null) return (x === null) - (y === null) || a - b; // unknown values come last in both directions
    if (typeof x === "string") return sign * (x < y ? -1 : x > y ? 1 : 0) || a - b;
    if (Number.isNaN(x) || Number.isNaN(y)) return sign * (Number.isNaN(x) - Number.isNaN(y)) || a - b;
    return sign * (x < y ? -1 : x > y ? 1 : 0) || a - b;
  });
}

function drawHead() {
  const [columns, head] = ["colgroup", "thead"].map((name) => document.querySelector(`#rows ${name}`));
  columns.replaceChildren();
  const cells = table.shown.map((name) => {
    const column = element("col");
    column.style.width = `${WIDTHS[name] ?? LEAST[name] ?? Math.max(95, 9 * name.length + 16)}px`;
    columns.append(column);
    const { name: by, down } = table.sorted;
    const sort = by === name ? (down ? "descending" : "ascending") : "none";
    const button = element("button", { type: "button", title: `sort by ${name}` }, `${name}${by === name ? (down ? " ▼" : " ▲") : ""}`);
    button.addEventListener("click", () => sortBy(name));
    return element("th", { scope: "col", "aria-sort": sort, class: isNumber(name) ? "number" : null }, button);
  });
  head.replaceChildren(element("tr", {}, cells));
}

function sortBy(name) {
  const { name: by, down } = table.sorted;
  const first = isNumber(name) && name !== "order"; // figures are sorted in descending order first
  table.sorted = by !== name ? { name, down: first } : down === first ? { name, down: !first } : { name: "", down: false };
  drawHead();
  sortRows();
  drawRows();
}

function drawRows() {
  if (!table.visible) return;
  const body = document.getElementById("rows");
  const whole = table.printing ? Math.min(PRINTED, table.visible.length) : table.visible.length;
  const sight = table.printing ? whole : Math.ceil(body.clientHeight / HEIGHT);
  const from = table.printing ? 0 : Math.max(0, Math.min(whole, Math.floor(body.scrollTop / HEIGHT)) - MARGIN);
  const to = Math.min(whole, from + sight + 2 * MARGIN);
  const lines = [spacer(from)];
  for (let place = from; place < to; place++) lines.push(line(place));
  lines.push(spacer(whole - to));
  if (!whole) lines.push(element("tr", {}, element("td", { class: "muted", colspan: table.shown.length }, "no row matches these filters; “reset” shows all rows")));
  body.querySelector("tbody").replaceChildren(...lines);
  body.style.height = table.printing ? "auto" : `${Math.min(520, whole * HEIGHT + 46)}px`;
  body.querySelector("table").setAttribute("aria-rowcount", String(table.visible.length));
}

function spacer(count) {
  const made = element("tr", { "aria-hidden": "true" }, element("td", { class: "spacer", colspan: table.shown.length }));
  made.firstChild.style.height = `${count * HEIGHT}px`;
  return made;
}

function line(place) {
  const row = table.visible[place];
  const cells = table.shown.map((name) => {
    const value = cell(name, row);
    const words = shown(name, value);
    const signed = ["verdict", "cause", "event", "origin"].includes(name) && value;
    const text = ["op", "golden_op", "target_op"].includes(name) ? "mono text" : ["op_type", "because", "stack"].includes(name) ? "text" : null;
    return element("td", { class: isNumber(name) ? "number" : text, title: words.length > 12 ? words : null }, signed ? sign(value) : words);
  });
  const made = element("tr", { "aria-rowindex": place + 1, class: place === table.chosen ? "chosen" : null }, cells);
  made.addEventListener("click", () => {
    chooseRow(place);
    openOperator(ofRow[row], row);
  });
  return made;
}

function chooseRow(place) {
  table.chosen = Math.max(0, Math.min(table.visible.length - 1, place));
  const body = document.getElementById("rows");
  const top = table.chosen * HEIGHT;
  const room = body.clientHeight - 2 * HEIGHT; // the head covers one row
  if (top < body.scrollTop) body.scrollTop = top;
  else if (top > body.scrollTop + room) body.scrollTop = top - room;
  drawRows();
}

function onTableKey(event) {
  const page = Math.floor(document.getElementById("rows").clientHeight / HEIGHT) - 1;
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  if (event.key in moves) {
    const to = table.chosen + moves[event.key];
    chooseRow(to === Infinity ? table.visible.length - 1 : to === -Infinity ? 0 : to);
    event.preventDefault();
  } else if (event.key === "Enter" && table.chosen >= 0 && event.target === event.currentTarget) {
    const row = table.visible[table.chosen];
    openOperator(ofRow[row], row);
  }
}

// Scroll to a row; remove the filters if they hide it.
function revealRow(row) {
  let place = table.visible.indexOf(row);
  if (place < 0) {
    showOnly({});
    place = table.visible.indexOf(row);
  }
  chooseRow(place);
}
