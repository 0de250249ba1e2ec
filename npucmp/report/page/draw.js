"use strict";
// Draw a panel of the chart: errors as marks on a logarithmic scale, or events in lanes.

const LANES = ["nan", "inf", "saturated", "device", "near the limit"];

// One scale for all panels: decades from the smallest to the largest error or limit; no error is below, infinite above.
function heightScale() {
  let low = Infinity, high = -Infinity, infinite = false;
  for (const one of chart.panels) if (!one.lanes) for (const mark of one.marks) for (const value of [mark.read, mark.wrote, mark.limit]) {
    if (value === null || value === undefined || value === 0) continue;
    if (!Number.isFinite(value)) infinite = true;
    else { low = Math.min(low, value); high = Math.max(high, value); }
  }
  if (low > high) [low, high] = [1e-8, 1];
  const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
  if (data.kind === "events") return { bottom: Math.min(-2, from), top: 0, infinite };
  const bottom = Math.max(-16, from);
  return { bottom, top: Math.max(bottom + 2, Math.min(6, to)), infinite };
}

function heightOf(one, value) {
  const { bottom, top, infinite } = one.scale;
  const upper = TOP + (infinite ? 18 : 4), lower = one.height - BOTTOM - (data.kind === "events" ? 6 : 26);
  if (!Number.isFinite(value)) return TOP + 4;
  if (value === 0) return one.height - BOTTOM - 6;
  return lower - ((Math.min(top, Math.max(bottom, Math.log10(value))) - bottom) / (top - bottom)) * (lower - upper);
}

function drawErrors(one) {
  const pen = one.under.getContext("2d");
  const ink = one.inks;
  const right = one.width - RIGHT;
  pen.clearRect(0, 0, one.width, one.height);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, right - LEFT, one.height - BOTTOM + 4);
  pen.clip();
  const step = Math.max(1, across(one, one.first + 1) - across(one, one.first));
  const seen = one.marks.filter((mark) => { const x = across(one, mark.at); return x > LEFT - 20 && x < right + 20; });
  drawBand(one, pen, seen, step);
  drawGaps(one, pen, seen, step);
  pen.restore();
  drawAxes(one, pen, right);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT - 6, 0, right - LEFT + 12, one.height - BOTTOM + 6);
  pen.clip();
  const size = step > 14 ? 4 : step > 6 ? 3.2 : step > 3 ? 2.4 : 1.4;
  drawStems(one, pen, seen, step);
  drawInputs(one, pen, seen, size);
  drawOutputs(one, pen, seen, size);
  drawSuspects(one, pen, seen);
  pen.restore();
}

function drawBand(one, pen, seen, step) {
  pen.fillStyle = one.inks.band;
  pen.strokeStyle = one.inks.limit;
  const floor = one.height - BOTTOM;
  const lines = new Path2D();
  limitsOf(seen).forEach(([from, to, limit], i, all) => {
    const left = across(one, from) - step / 2, y = heightOf(one, limit);
    const right = (i + 1 < all.length ? across(one, all[i + 1][0]) - step / 2 : across(one, to) + step / 2);
    pen.fillRect(left, y, right - left, floor - y);
    lines[i ? "lineTo" : "moveTo"](left, y);
    lines.lineTo(right, y);
  });
  pen.lineWidth = 1;
  pen.setLineDash([4, 3]);
  pen.stroke(lines);
  pen.setLineDash([]);
}

// [first order, last order, limit] of each stretch of operators that have the same limit.
function limitsOf(seen) {
  const found = [];
  for (const { at, limit } of seen) {
    if (limit === null) continue;
    const last = found[found.length - 1];
    if (last?.[2] === limit) last[1] = at;
    else found.push([at, at, limit]);
  }
  return found;
}

function drawGaps(one, pen, seen, step) {
  const floor = one.height - BOTTOM;
  for (const mark of seen) {
    if (!mark.alone) continue;
    const x = across(one, mark.at), width = Math.max(1, step);
    pen.fillStyle = one.inks.gap;
    pen.fillRect(x - width / 2, TOP, width, floor - TOP);
    if (width < 5) continue;
    pen.strokeStyle = one.inks.in;
    pen.beginPath();
    for (let y = TOP; y < floor - width; y += 8) { pen.moveTo(x - width / 2, y + width); pen.lineTo(x + width / 2, y); }
    pen.stroke();
  }
}

function drawAxes(one, pen, right) {
  const { bottom, top, infinite } = one.scale;
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = one.inks.soft;
  pen.strokeStyle = one.inks.edge;
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  const label = (words, y) => {
    pen.fillText(words, LEFT - 10, y);
    pen.beginPath();
    pen.moveTo(LEFT, Math.round(y) + 0.5);
    pen.lineTo(right, Math.round(y) + 0.5);
    pen.stroke();
  };
  const every = Math.ceil((top - bottom) / 7);
  for (let decade = bottom; decade <= top; decade += every) label(data.kind === "events" ? percent(10 ** decade) : `1e${decade}`, heightOf(one, 10 ** decade));
  if (data.kind !== "events") label(data.kind === "health" ? "zero" : "no error", heightOf(one, 0));
  if (infinite) label(data.kind === "events" ? "inf, nan" : "inf or ?", heightOf(one, Infinity));
  drawOrders(one, pen, right);
  drawLimits(one, pen, right);
}

function drawOrders(one, pen, right) {
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  const span = (one.last - one.first) * (chart.to - chart.from);
  const rough = span / Math.max(2, (right - LEFT) / 110), power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].find((times) => times * power >= rough) * power);
  const start = one.first + chart.from * (one.last - one.first);
  for (let at = Math.ceil(start / step) * step; at <= start + span + 1e-9; at += step) pen.fillText(at.toLocaleString("en-US"), across(one, at), one.height - 6);
  pen.textAlign = "left";
  pen.fillText("order", right + 10, one.height - 6);
}

// Draw the limits by dtype at the right-hand end.
function drawLimits(one, pen, right) {
  const counts = new Map();
  for (const { limit, dtype } of one.marks) if (limit !== null) {
    const key = `${limit}|${dtype}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  pen.fillStyle = one.inks.limit;
  pen.textBaseline = "middle";
  const used = [];
  for (const [key] of [...counts].sort((a, b) => b[1] - a[1]).slice(0, 4)) {
    const [limit, dtype] = key.split("|");
    const y = heightOf(one, Number(limit));
    if (used.some((other) => Math.abs(other - y) < 24)) continue;
    used.push(y);
    const words = data.kind === "health" ? ["limit", `≤ ${limit}`] : data.kind === "events" ? ["largest of", "its type"] : [dtypeOf(Number(limit)) || dtype || "limit", `≤ ${Number(limit).toExponential(1)}`];
    words.forEach((word, i) => pen.fillText(word, right + 10, y - 6 + 12 * i));
  }
}

// The dtype of a rule with this limit; an operator of several dtypes has the limit of the coarsest.
function dtypeOf(limit) {
  const rule = (data.rules ?? []).find((one) => one.dtype && Math.abs(one.limit / limit - 1) < 1e-3);
  return rule?.dtype ?? "";
}

function drawStems(one, pen, seen, step) {
  if (step < 3) return;
  pen.strokeStyle = one.inks.in;
  pen.globalAlpha = 0.45;
  pen.beginPath();
  for (const mark of seen) {
    if (mark.read === null || mark.wrote === null) continue;
    const x = across(one, mark.at);
    pen.moveTo(x, heightOf(one, mark.read));
    pen.lineTo(x, heightOf(one, mark.wrote));
  }
  pen.stroke();
  pen.globalAlpha = 1;
}

function drawInputs(one, pen, seen, size) {
  pen.strokeStyle = one.inks.in;
  pen.fillStyle = size < 2 ? one.inks.in : one.inks.paper;
  pen.lineWidth = 1.2;
  const dots = new Set();
  for (const mark of seen) {
    if (mark.read === null) continue;
    const x = across(one, mark.at), y = heightOf(one, mark.read);
    if (size < 2) { dot(pen, dots, x, y, 1); continue; }
    pen.beginPath();
    pen.arc(x, y, size, 0, 7);
    pen.fill();
    pen.stroke();
  }
}

// Draw a mark among very many; marks on the same place are drawn once.
function dot(pen, drawn, x, y, size) {
  const place = Math.round(x) * 8192 + Math.round(y);
  if (drawn.has(place)) return;
  drawn.add(place);
  pen.fillRect(Math.round(x) - size / 2, Math.round(y) - size / 2, size, size);
}

function drawOutputs(one, pen, seen, size) {
  const tone = ({ operator, events, excused }) => {
    const cause = ofOperator("cause", operator);
    if (excused && !cause) return "excused";
    if (cause === "PROPAGATED" || events?.some(([, origin]) => origin === "propagated")) return "passed";
    return cause ? "bad" : "out";
  };
  drawSquares(one, pen, seen.filter((mark) => mark.wrote !== null && tone(mark) === "excused"), size);
  for (const wanted of ["out", "passed", "bad"]) drawDiscs(one, pen, seen.filter((mark) => mark.wrote !== null && tone(mark) === wanted), size, wanted);
}

// Draw outputs above their limit that are excused.
function drawSquares(one, pen, seen, size) {
  [pen.strokeStyle, pen.fillStyle, pen.lineWidth] = [one.inks.out, one.inks.paper, 1.4];
  const side = Math.max(2, 1.8 * size);
  for (const mark of seen) {
    const [x, y] = [across(one, mark.at) - side / 2, heightOf(one, mark.wrote) - side / 2];
    pen.fillRect(x, y, side, side);
    pen.strokeRect(x, y, side, side);
  }
}

function drawDiscs(one, pen, seen, size, tone) {
  pen.fillStyle = one.inks[tone];
  const dots = new Set();
  for (const mark of seen) {
    const x = across(one, mark.at), y = heightOf(one, mark.wrote);
    if (size < 2) { dot(pen, dots, x, y, 2); continue; }
    pen.beginPath();
    pen.arc(x, y, size, 0, 7);
    pen.fill();
  }
}

function drawSuspects(one, pen, seen) {
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  pen.font = "bold 11px system-ui, sans-serif";
  const suspects = seen.filter((mark) => SUSPECTS.has(ofOperator("cause", mark.operator)));
  for (const mark of suspects.sort((a, b) => ofOperator("place", b.operator) - ofOperator("place", a.operator))) {
    const value = mark.wrote ?? mark.read;
    if (value === null) continue;
    const x = across(one, mark.at), y = heightOf(one, value), place = ofOperator("place", mark.operator);
    pen.fillStyle = TONES[ofOperator("cause", mark.operator)] === "bad" ? one.inks.bad : one.inks.warn;
    diamond(pen, x, y, 6);
    if (place <= 9) pen.fillText(place, x, y > TOP + 22 ? y - 9 : y + 18);
  }
}

function diamond(pen, x, y, size) {
  pen.beginPath();
  pen.moveTo(x, y - size); pen.lineTo(x + size, y); pen.lineTo(x, y + size); pen.lineTo(x - size, y);
  pen.closePath();
  pen.fill();
}

const laneHeight = (one, lane) => TOP + 14 + one.lanes.indexOf(lane) * ((one.height - TOP - BOTTOM - 20) / Math.max(1, one.lanes.length - 1 || 1));

function drawLanes(one) {
  const pen = one.under.getContext("2d"), right = one.width - RIGHT;
  pen.clearRect(0, 0, one.width, one.height);
  pen.font = "11px system-ui, sans-serif";
  pen.strokeStyle = one.inks.edge;
  pen.textBaseline = "middle";
  for (const lane of one.lanes) {
    const y = Math.round(laneHeight(one, lane)) + 0.5;
    pen.fillStyle = one.inks.soft;
    pen.textAlign = "left";
    pen.fillText(lane === LANES[4] ? "near" : lane, 2, y);
    pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(right, y); pen.stroke();
  }
  drawOrders(one, pen, right);
  for (const origin of ["", "propagated", "unknown", "killed", "born"]) for (const mark of one.marks) for (const [kind, how] of mark.events) {
    if (how !== origin || !one.lanes.includes(kind)) continue;
    const x = across(one, mark.at), y = laneHeight(one, kind);
    if (x < LEFT || x > right) continue;
    const colour = { born: one.inks.bad, propagated: one.inks.passed, killed: one.inks.good, unknown: one.inks.warn, "": one.inks.in }[how];
    [pen.fillStyle, pen.strokeStyle, pen.lineWidth] = [colour, colour, 2];
    if (how === "born") { diamond(pen, x, y, 7); continue; }
    pen.beginPath();
    if (how === "killed") { pen.moveTo(x - 4, y - 4); pen.lineTo(x + 4, y + 4); pen.moveTo(x + 4, y - 4); pen.lineTo(x - 4, y + 4); pen.stroke(); }
    else { pen.arc(x, y, 4, 0, 7); if (how === "propagated") pen.fill(); else pen.stroke(); }
  }
}

// The positions of the marks of an operator.
function heightsOf(one, mark) {
  if (one.lanes) return mark.events.map(([kind]) => laneHeight(one, kind));
  return [mark.wrote, mark.read].filter((value) => value !== null).map((value) => heightOf(one, value));
}

function percent(share) {
  if (!Number.isFinite(share)) return "beyond it";
  return share < 1e-4 ? share.toExponential(0) : `${Number((100 * share).toPrecision(2))} %`;
}
