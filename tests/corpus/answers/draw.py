"""Draw pairs for the golden answers.

python -m tests.corpus.answers.draw measure NAMES ARCS
python -m tests.corpus.answers.draw choose ARCS COUNT SECONDS

`measure` asks each pair that the file NAMES lists, and writes its seconds and the branches of the judging rooms that it
runs into ARCS, a line a pair. `choose` prints the pairs that together run most branches in little time: in each round
the pair with the most branches that fewer than TWICE chosen pairs run, for its seconds.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Iterator

from tests.corpus.answers.command_lines import HERE
from tests.corpus.answers.sheets import asked

ROOMS = {
    "align",
    "relations",
    "flow",
    "judge",
    "localise",
    "recompute",
    "report",
    "health",
    "comparability",
    "workflows",
}
TWICE = 2
PACKAGE = Path(__file__).parents[3] / "npucmp"


def measured(name: str) -> dict[str, Any]:
    """Return the seconds of a pair and the branches that it runs, in the process of the caller."""
    import coverage

    tracer = coverage.Coverage(branch=True, data_file=None, include=[str(PACKAGE / "*")], config_file=False)
    os.environ[HERE] = "1"
    began = time.perf_counter()
    tracer.start()
    try:
        asked(name)
    except (IndexError, AttributeError, KeyError):  # no such pair
        return {"name": name, "seconds": 1e9, "arcs": []}
    finally:
        tracer.stop()
    seconds = time.perf_counter() - began
    data = tracer.get_data()
    arcs = [
        f"{Path(file).relative_to(PACKAGE)}:{first}>{last}"
        for file in sorted(data.measured_files())
        for first, last in sorted(data.arcs(file) or ())
    ]
    return {"name": name, "seconds": seconds, "arcs": arcs}


def chosen(rows: list[dict[str, Any]], count: int, seconds: float) -> Iterator[str]:
    """Yield the names of pairs in the order of their choice."""
    arcs = {row["name"]: [arc for arc in row["arcs"] if arc.split("/")[0] in ROOMS] for row in rows}
    times = {row["name"]: row["seconds"] for row in rows}
    seen: Counter[str] = Counter()
    spent = 0.0
    queue = [(-math.inf, name) for name in sorted(arcs)]
    while queue and count:
        _, name = heapq.heappop(queue)
        worth = sum(seen[arc] < TWICE for arc in arcs[name]) / (0.1 + times[name])
        if queue and -worth > queue[0][0]:  # another pair runs more branches that are open, since others were chosen
            heapq.heappush(queue, (-worth, name))
        elif spent + times[name] <= seconds:
            spent, count = spent + times[name], count - 1
            seen.update(arcs[name])
            yield name


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.answers.draw")
    parser.add_argument("what", choices=("measure", "choose"))
    parser.add_argument("given")
    parser.add_argument("more", nargs="+")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.what == "measure":
        names = Path(options.given).read_text("utf-8").splitlines()
        with (
            ProcessPoolExecutor(options.jobs, mp_context=get_context("forkserver")) as pool,
            open(options.more[0], "a") as out,
        ):
            for row in pool.map(measured, names, chunksize=4):
                print(json.dumps(row), file=out, flush=True)
        return
    rows = [json.loads(line) for line in Path(options.given).read_text("utf-8").splitlines()]
    print(*chosen(rows, int(options.more[0]), float(options.more[1])), sep="\n")


if __name__ == "__main__":
    main()
