"""How fluent the graph of the whole network is: makes a report of many operators and clicks in Chromium.

python tests/benchmarks/graph.py [OPERATORS]      not run by pytest; default 10000

Prints the size of the page and milliseconds: the median and the worst of many clicks that open and close modules,
each with the layout that follows; the worst click with a thousand visible boxes; a search; a change of the colours.
Playwright and a chromium are needed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from npucmp.report import answer_of, html
from tests.browser import opened
from tests.reports import layered

CLICKS = """() => {
  const box = document.getElementById("whole-graph");
  const timed = (work) => {
    const start = performance.now();
    work();
    box.getBoundingClientRect();
    return box.scrollHeight && performance.now() - start;
  };
  const found = [];
  for (let turn = 0; turn < 60; turn++) {
    const shown = [...box.querySelectorAll('[aria-expanded]')];
    const one = shown[(turn * 7) % shown.length];
    found.push(timed(() => one.dispatchEvent(new MouseEvent("click", { bubbles: true }))));
  }
  for (const one of whole.root.children) one.open = true;
  drawWhole();
  const crowded = [0, 1, 2, 3, 4, 5, 6, 7].map((at) => timed(() => chooseBox(whole.root.children[at * 4].children[0])));
  const search = timed(() => findWhole("layers.7 q_proj", 0));
  const colour = timed(() => { whole.colour = "error"; drawWhole(); });
  const boxes = whole.drawn.boxes.length, lines = whole.drawn.lines.length;
  found.sort((a, b) => a - b);
  const figures = {
    "median click": found[30], "worst click": found[59], "worst, crowded": Math.max(...crowded),
    search, colour, boxes, lines,
  };
  return Object.fromEntries(Object.entries(figures).map(([name, value]) => [name, Math.round(value)]));
}"""


def measured(file: Path) -> dict[str, int]:
    """The figures of one page."""
    with opened(file) as page:
        found: dict[str, int] = page.evaluate(CLICKS)
        return found


def main() -> None:
    operators = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    report = layered(operators)
    page = html.render(answer_of(report))["report.html"]
    print(f"{operators} operators, {len(report.findings)} rows: {len(page) / 1e6:.2f} MB", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report.html")
        file.write_bytes(page)
        for _ in range(3):
            print("  ms", measured(file), flush=True)


if __name__ == "__main__":
    main()
