"use strict";
// Words of the views of the whole network and of the steps, in one table.

const WORDS = {
  all: "all operators",
  forward: "forward",
  backward: "backward",
  operators: (count) => `${count.toLocaleString("en-US")} operator${count === 1 ? "" : "s"}`,
  stretch: (from, to) => `operators ${from.toLocaleString("en-US")}–${to.toLocaleString("en-US")}`,
  layers: (from, to) => `${from} … ${to}`,
  differing: (count, of) => (of === 1 ? "differs" : `${count.toLocaleString("en-US")} of ${of.toLocaleString("en-US")} differ`),
  found: (count, of) => (of === 1 ? "" : `${count.toLocaleString("en-US")} of ${of.toLocaleString("en-US")} with a finding`),
  agree: "agrees",
  explained: "explained",
  noError: "no error",
  notCompared: "not compared",
  noFinding: "no finding",
  place: (place) => `place ${place}`,
  times: (ratio) => `${ratio >= 1e4 ? ratio.toExponential(0) : Number(ratio.toPrecision(2)).toLocaleString("en-US")}× its limit`,
  beyond: "no finite error",
  differsAlong: (count, off) => `${count.toLocaleString("en-US")} tensor${count === 1 ? "" : "s"}${off ? `, ${off.toLocaleString("en-US")} differ` : ""}`,
  matches: (at, count) => (count ? `${at} of ${count.toLocaleString("en-US")}` : "no match"),
  wholeLabel: "the network, folded by module",
  wholeKey: {
    cause: "Colours by cause: ◆ the error begins here, ▲ grows here, ● passes, ✓ within the limit, ? not compared.",
    finding: "Colours by finding: ✗ error, ▲ warning, △ hint, ✓ no finding.",
    error: "Colours by the worst error: ✓ within the limit, △ up to 10 times, ▲ up to 1,000 times, ✗ beyond; □ above it but explained.",
    edges: "A line leads from a producer to a consumer, a heavy one carries a differing tensor.",
    keys: "Click a box to open or close it; arrow keys move, Enter opens, ← closes. A click on an operator shows its figures.",
  },
};
