"use strict";
// The tree of modules: operators by the parts of their module paths or names, with the worst state of each module.

const CROWD = 40; // children of a box; more are put into stretches
const STRETCH = 25;
const DEEPEST = 40; // parts of a path that are told apart
const SCATTERED = 1.2; // stretches of a name from which on it is that of a function, not a place in the network
const WORST_FIRST = ["error", "BORN", "GAP", "GUILTY", "WORSENED", "warning", "SUSPECT", "UNKNOWN", "hint", "AMPLIFIER", "PROPAGATED"];

// A source has names, paths (null if unknown), phases, and `operators`: the numbers of its operators in order.
function moduleTree(source) {
  const phases = ["forward", "backward"].map((phase) => [phase, source.operators.filter((one) => (source.phases[one] === "backward") === (phase === "backward"))]);
  const root = { label: WORDS.all, parent: null, depth: 0, open: true, operators: source.operators, operator: -1 };
  const both = phases.filter(([, found]) => found.length);
  root.children = both.length > 1 ? both.map(([phase, found]) => moduleNode(root, source, WORDS[phase], found, 0, "")) : null;
  if (!root.children) splitModule(root, source, 0, "");
  else for (const one of root.children) one.open = root.children.length < 2;
  return root;
}

function moduleNode(parent, source, label, found, depth, prefix) {
  if (found.length === 1) return { label: leafLabel(source.names[found[0]], prefix), parent, depth: parent.depth + 1, open: false, operators: found, operator: found[0], children: null };
  const made = { label, parent, depth: parent.depth + 1, open: false, operators: found, operator: -1, children: null };
  splitModule(made, source, depth, prefix);
  return made;
}

// Children by the next part of the paths. Parts that occur all over the order (names of functions) are no modules.
function splitModule(node, source, depth, prefix) {
  const groups = new Map();
  let stretches = 0, last;
  for (const one of node.operators) {
    const parts = partsOf(source, one), key = depth < parts.length ? parts[depth] : `\n${one}`;
    if (key !== last) stretches++;
    last = key;
    if (groups.has(key)) groups.get(key).push(one);
    else groups.set(key, [one]);
  }
  const named = [...groups.keys()].filter((key) => key[0] !== "\n").length;
  const alone = groups.size - named;
  if (groups.size === 1 && named) return void splitInto(node, source, depth + 1, prefix, [...groups.keys()][0]);
  const paths = node.operators.filter((one) => source.paths[one]).length;
  if (named && 2 * paths < node.operators.length && stretches - alone > SCATTERED * named) return void stretchesOf(node, source, node.operators.map((one) => [`\n${one}`, [one]]), depth, prefix);
  stretchesOf(node, source, [...groups], depth, prefix);
}

// A module with a single part: its children are those of the part.
function splitInto(node, source, depth, before, part) {
  if (before) node.label = joined(node.label, part);
  splitModule(node, source, depth, joined(before, part));
}

const joined = (prefix, part) => (prefix ? `${prefix}.${part}` : part);

function stretchesOf(node, source, groups, depth, prefix) {
  const labelOf = ([key, found]) => (key[0] === "\n" ? leafLabel(source.names[found[0]], prefix) : /^\d+$/.test(key) ? joined(prefix.split(".").pop(), key) : key);
  const child = (one, parent) => moduleNode(parent, source, labelOf(one), one[1], depth + 1, one[0][0] === "\n" ? prefix : joined(prefix, one[0]));
  if (groups.length <= CROWD) {
    node.children = groups.map((one) => child(one, node));
    return;
  }
  const size = Math.max(STRETCH, Math.ceil(groups.length / CROWD)), parts = [];
  for (let at = 0; at < groups.length; at += size) parts.push(groups.slice(at, at + size));
  node.children = parts.map((part) => {
    const found = part.flatMap(([, own]) => own), alone = part.every(([key]) => key[0] === "\n");
    const label = alone ? WORDS.stretch(source.orders[found[0]], source.orders[found[found.length - 1]]) : WORDS.layers(labelOf(part[0]), labelOf(part[part.length - 1]));
    const made = { label, parent: node, depth: node.depth + 1, open: false, operators: found, operator: -1, children: null };
    stretchesOf(made, source, part, depth, prefix);
    return made;
  });
}

// The parts of an operator's module: of its path, else of its name without the last part.
function partsOf(source, one) {
  const path = source.paths[one], known = (source.parts ??= []);
  if (known[one]) return known[one];
  const name = source.names[one] ?? "";
  const cut = name.includes("/") ? name.split("/") : name.split(".");
  return (known[one] = (path ? path.replace(/^(Module|Cell)\./, "").split(".") : cut.slice(0, -1).filter(Boolean)).slice(0, DEEPEST));
}

function leafLabel(name, prefix) {
  const short = (name ?? "no name").replace(/^(Module|Cell)\./, "");
  const kept = prefix.split(".").pop();
  return prefix && (short.startsWith(`${prefix}.`) || short.startsWith(`${prefix.replaceAll(".", "/")}/`)) ? kept + short.slice(prefix.length) : short;
}

// The state of each box from its operators: worst cause and first place, worst error by limit, number that differ.
function stateOfModules(node, states) {
  const state = { count: node.operators.length, off: 0, cause: null, place: null, ratio: null, error: null, compared: 0, open: 0, excused: 0 };
  for (const one of node.operators) {
    const own = states[one];
    state.off += own.off;
    state.compared += own.compared;
    state.open += own.open;
    state.excused += own.excused;
    if (own.cause && (!state.cause || WORST_FIRST.indexOf(own.cause) < WORST_FIRST.indexOf(state.cause))) state.cause = own.cause;
    if (own.place !== null && (state.place === null || own.place < state.place)) state.place = own.place;
    if (own.ratio !== null && !(own.ratio <= state.ratio && state.ratio !== null) && !Number.isNaN(state.ratio)) [state.ratio, state.error] = [own.ratio, own.error];
  }
  node.state = state;
  for (const child of node.children ?? []) stateOfModules(child, states);
}

// Open the boxes around an operator; return its leaf.
function revealModule(root, operator) {
  let node = root;
  while (node.children) {
    node.open = true;
    node = node.children.find((child) => child.operators.includes(operator));
    if (!node) return null;
  }
  return node;
}
