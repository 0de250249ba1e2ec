"""Commands of the public benchmark (docs/benchmark.md):

python -m tests.corpus.bench make SEED OUT [--pairs N] [--jobs 2]
python -m tests.corpus.bench run OUT --tool npucmp,allclose,cosine [--jobs 2] [--limit N]
python -m tests.corpus.bench table OUT [--by data|group|kind] [--common TOOL]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tests.corpus.bench import score


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.bench", description="The public benchmark.")
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("make", help="write the pairs of a seed")
    made.add_argument("seed", type=int)
    made.add_argument("out", type=Path)
    made.add_argument("--pairs", type=int, default=600)
    made.add_argument("--jobs", type=int, default=1)
    ran = commands.add_parser("run", help="compare the pairs that a tool has not compared yet")
    ran.add_argument("out", type=Path)
    ran.add_argument("--tool", required=True, help="names of modules in adapters/, with commas")
    ran.add_argument("--jobs", type=int, default=1)
    ran.add_argument("--limit", type=int, help="pairs of this call")
    shown = commands.add_parser("table", help="print the table of all results")
    shown.add_argument("out", type=Path)
    shown.add_argument("--by", default="", choices=("", "data", "group", "kind", "noise", "network", "layout"))
    shown.add_argument("--common", metavar="TOOL", help="count only the pairs that this tool has compared")
    given = parser.parse_args()
    if given.command == "make":
        from tests.corpus.bench.dumps import make

        given.out.mkdir(parents=True, exist_ok=True)
        print(f"{len(make(given.seed, given.out, given.pairs, given.jobs))} pairs in {given.out}")
    elif given.command == "run":
        from tests.corpus.bench.run import run

        for tool in given.tool.split(","):
            print(run(given.out, tool, given.jobs, given.limit), flush=True)
    else:
        manifest = json.loads(given.out.joinpath("manifest.json").read_text())
        results = {one.stem: score.read_rows(one) for one in sorted(given.out.joinpath("results").glob("*.csv"))}
        if given.common:
            compared = results[given.common]
            results = {tool: {k: v for k, v in rows.items() if k in compared} for tool, rows in results.items()}
        print(score.table(manifest, results, given.by))


if __name__ == "__main__":
    main()
