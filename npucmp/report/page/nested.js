"use strict";
// The layout of the folded network: open modules contain their children, producers above consumers. Only visible boxes
// have a place.

const NEST = { wide: 214, high: 44, across: 14, down: 20, pad: 9, head: 27 };

// The visible boxes, and the box that shows each operator.
function visibleBoxes(root, count) {
  const boxes = [], boxOfOperator = new Int32Array(count).fill(-1);
  const walk = (node) => {
    if (node.open && node.children) return node.children.forEach(walk);
    for (const one of node.operators) boxOfOperator[one] = boxes.length;
    boxes.push(node);
  };
  walk(root);
  return { boxes, boxOfOperator };
}

// Lines between visible boxes: {from, to, count, off}, as numbers of boxes.
function visibleEdges(edges, boxOfOperator, size) {
  const found = new Map();
  for (let at = 0; at < edges.from.length; at++) {
    const from = boxOfOperator[edges.from[at]], to = boxOfOperator[edges.to[at]];
    if (from === to || from < 0 || to < 0) continue;
    const key = from * size + to;
    let one = found.get(key);
    if (!one) found.set(key, (one = { from, to, count: 0, off: 0 }));
    one.count++;
    one.off += edges.off[at];
  }
  return [...found.values()];
}

// For each line, note at the common module that one of its children reads another. A box with a known producer is fed.
function noteReads(boxes, lines) {
  for (const { from, to } of lines) {
    let a = boxes[from], b = boxes[to];
    while (a.depth > b.depth) a = a.parent;
    for (b.fed = true; b.depth > a.depth; b.fed = true) b = b.parent;
    while (a.parent !== b.parent) {
      [a, b] = [a.parent, b.parent];
      b.fed = true;
    }
    if (a !== b) (b.reads ??= new Set()).add(a);
  }
}

function forgetReads(node) {
  node.reads = null;
  node.fed = false;
  if (node.open) node.children?.forEach(forgetReads);
}

// Children in layers: below their producers, at the top if these are outside; those without a known producer are below
// the child before them.
function layersOf(node) {
  const layerOf = new Map(), layers = [];
  let before = -1;
  for (const child of node.children) {
    const above = [...(child.reads ?? [])].map((one) => layerOf.get(one)).filter((one) => one !== undefined);
    const layer = above.length ? Math.max(...above) + 1 : child.fed ? 0 : before + 1;
    layerOf.set(child, layer);
    (layers[layer] ??= []).push(child);
    before = layer;
  }
  return layers.filter(Boolean);
}

// Set the size of a box, and the places of its children in it; `room` is the width that it should not exceed.
function sizeBox(node, room) {
  if (!node.open || !node.children) {
    [node.w, node.h] = [Math.min(NEST.wide, Math.max(120, room)), NEST.high];
    return;
  }
  const inner = room - 2 * NEST.pad, lines = [];
  for (const layer of layersOf(node)) {
    let line = null;
    for (const child of layer) {
      sizeBox(child, inner);
      if (!line || line.w + NEST.across + child.w > inner) lines.push((line = { w: -NEST.across, h: 0, children: [] }));
      line.children.push(child);
      line.w += NEST.across + child.w;
      line.h = Math.max(line.h, child.h);
    }
  }
  const head = node.parent ? NEST.head : 0;
  node.w = Math.max(NEST.wide, ...lines.map((line) => line.w + 2 * NEST.pad));
  let y = head + (node.parent ? NEST.pad : 2);
  for (const line of lines) {
    let x = (node.w - line.w) / 2;
    for (const child of line.children) {
      [child.dx, child.dy] = [x, y];
      x += child.w + NEST.across;
    }
    y += line.h + NEST.down;
  }
  node.h = y - NEST.down + NEST.pad;
}

function placeBox(node, x, y) {
  [node.x, node.y] = [x, y];
  if (node.open) node.children?.forEach((child) => placeBox(child, x + child.dx, y + child.dy));
}

// Lay out all visible boxes in a width; returns what is to be drawn.
function laidOut(root, edges, count, room) {
  forgetReads(root);
  const { boxes, boxOfOperator } = visibleBoxes(root, count);
  const lines = visibleEdges(edges, boxOfOperator, boxes.length);
  noteReads(boxes, lines);
  sizeBox(root, room);
  placeBox(root, 0, 0);
  return { boxes, lines, width: root.w, height: root.h };
}
