"""How large report.html is and how soon it can be used: makes reports of many operators and opens them in Chromium.

python tests/benchmarks/html.py [OPERATORS …]      not run by pytest; default 10000 and 20000, of two rows each

Prints the seconds to make the page, its size, and what the browser tells (milliseconds from the start of loading):
until the first rows stand in the document, until they are painted, and of one redraw of the chart, one filter and one
sort. Playwright and a chromium are needed for the latter.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from npucmp.report import answer_of, html
from tests.browser import CHROMIUM, opened, skip_reason
from tests.reports import large

TIMED = """() => {
  const timed = (work) => { const start = performance.now(); work(); return Math.round(performance.now() - start); };
  const text = document.getElementById("text-filter");
  return {
    "rows in the document after": Number(document.documentElement.dataset.rows),
    "all ready after": Number(document.documentElement.dataset.ready),
    "painted after": Math.round(performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? -1),
    "chart drawn in": timed(drawChart),
    "100 × pointer": timed(() => { for (let i = 0; i < 100; i++) nearest(chart.panels[0], 100 + 10 * i, 90); }),
    "filtered in": timed(() => { text.value = "linear output:0"; filterRows(); }),
    "sorted in": timed(() => { showOnly({}); sortBy("rel_l2"); }),
  };
}"""


def main() -> None:
    for operators in map(int, sys.argv[1:] or ("10000", "20000")):
        report = large(operators)
        start = time.perf_counter()
        page = html.render(answer_of(report))["report.html"]
        made = time.perf_counter() - start
        print(
            f"{operators} operators, {len(report.findings)} rows: {len(page) / 1e6:.2f} MB in {made:.1f} s", flush=True
        )
        if skip_reason():
            print(f"  {skip_reason()}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "report.html")
            file.write_bytes(page)
            for _ in range(3):
                with opened(file) as page:
                    print("  ms", page.evaluate(TIMED), flush=True)
    print(CHROMIUM or "no chromium")


if __name__ == "__main__":
    main()
