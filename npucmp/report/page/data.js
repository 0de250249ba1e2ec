"use strict";
// The data of the page: columns of operators and of rows, and the format of their values.

const SHAPES = {
  match: "✓", diverged: "✗", nonfinite: "∞", shape: "▦", dtype: "≠", missing: "∅", unreadable: "!", unknown: "?",
  nan: "✗", inf: "∞", saturated: "▲", device: "!",
  BORN: "◆", GAP: "◆", WORSENED: "▲", SUSPECT: "△", UNKNOWN: "?", PROPAGATED: "●",
  born: "◆", propagated: "●", killed: "×",
  error: "✗", warning: "▲", hint: "△",
  GUILTY: "◆", AMPLIFIER: "△",
};
const TONES = {
  match: "good", diverged: "bad", nonfinite: "bad", shape: "bad", dtype: "warn", missing: "warn", unreadable: "warn", unknown: "open",
  nan: "bad", inf: "bad", saturated: "warn", device: "open",
  BORN: "bad", GAP: "bad", WORSENED: "warn", SUSPECT: "warn", UNKNOWN: "warn", PROPAGATED: "passed",
  born: "bad", propagated: "passed", killed: "good",
  error: "bad", warning: "warn", hint: "open",
  CLEAN: "good", GUILTY: "bad", AMPLIFIER: "open",
  same: "good", close: "good", DIFFERS: "bad",
};
const SUSPECTS = new Set(["BORN", "GAP", "WORSENED", "SUSPECT", "UNKNOWN", "GUILTY", "error", "warning"]);

let data; // unpacked from page_json.py
let operators; // column name → values, one per operator
let rows; // column name → values, one per row
let ofRow; // row → operator
let firstRow; // operator → its first row; one more at the end

async function loadData() {
  const found = JSON.parse(document.getElementById("data").textContent);
  data = found.deflate ? JSON.parse(await inflated(found.deflate)) : found;
  operators = unpacked(data.operators);
  rows = unpacked(data.rows);
  ofRow = new Int32Array(data.rows.length);
  firstRow = new Int32Array(data.operators.length + 1);
  for (let operator = 0, row = 0; operator < data.operators.length; operator++) {
    firstRow[operator] = row;
    for (let left = operators.rows[operator]; left > 0; left--) ofRow[row++] = operator;
    firstRow[operator + 1] = row;
  }
}

// Columns that the first rows do not need are at the end of the page.
async function loadOthers() {
  if (document.readyState === "loading") await new Promise((read) => addEventListener("DOMContentLoaded", read));
  const packed = document.getElementById("others");
  if (!packed) return;
  const others = JSON.parse(await inflated(JSON.parse(packed.textContent)));
  for (const part of ["operators", "rows"]) Object.assign(data[part].columns, others[part]);
  operators = unpacked(data.operators);
  rows = unpacked(data.rows);
}

function inflated(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

// Columns by name, unpacked on first use: most are needed only for the view of one operator.
function unpacked({ length, columns }) {
  const found = {};
  for (const [name, column] of Object.entries(columns)) {
    Object.defineProperty(found, name, {
      configurable: true,
      get() {
        const values = valuesOf(column, length);
        Object.defineProperty(found, name, { value: values });
        return values;
      },
    });
  }
  return found;
}

function valuesOf(column, length) {
  const read = column.number ? (value) => (typeof value === "string" ? Number(value) : value) : (value) => value;
  if (column.codes) {
    const words = column.words.map(read);
    return column.codes.map((code) => words[code]);
  }
  if (!column.values) return new Array(length).fill(read(column.all));
  return column.number ? column.values.map(read) : column.values;
}

// A cell of an operator or of a row; null if unknown.
const ofOperator = (name, operator) => operators[name]?.[operator] ?? null;

function cell(name, row) {
  if (rows[name]) return rows[name][row] ?? null;
  if (name === "run") return data.runs[operators.run[ofRow[row]]];
  return ofOperator(name, ofRow[row]);
}

function rowsOf(operator) {
  const found = [];
  for (let row = firstRow[operator]; row < firstRow[operator + 1]; row++) found.push(row);
  return found;
}

function written(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

// A figure of a column; a cosine near 1 is written as 1 − x, because only x carries information.
function shown(name, value) {
  return name === "cosine" && value > 0.99 && value < 1 ? `1 − ${(1 - value).toExponential(2)}` : written(value);
}

// The position of a flat index in a shape: [1, 0, 7].
function position(index, shape) {
  const sizes = (shape?.match(/\d+/g) ?? []).map(Number);
  if (index === null || !sizes.length) return "";
  const found = [];
  for (const size of sizes.reverse()) {
    found.unshift(index % size);
    index = Math.floor(index / size);
  }
  return `[${found.join(", ")}]`;
}

// Only these two functions create elements; they insert text, never markup.
function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") made.addEventListener("click", value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== ""));
  return made;
}

// A word with its shape, so that it is readable without colour.
function sign(word) {
  return element("span", { class: `w-${TONES[word] ?? ""}` }, `${SHAPES[word] ? `${SHAPES[word]} ` : ""}${word}`);
}
