"""The score: `python -m tests.corpus.composed [OUT] [--only GLOB] [--seeds open|kept|0,3] [--faults|--clean]`.

`OUT` keeps the dumps and a manifest.json with the truth of each pair; `--write` asks npucmp nothing. Names of cases are
combination/network/kind/seed. Answers to kept seeds are counted and not shown.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Iterator, Optional

from tests.corpus.composed.cases import KEPT, OPEN, Case, cases
from tests.corpus.composed.score import Graded, as_json, graded, manifest, table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--only", default="*", help="a glob of names")
    parser.add_argument("--seeds", default="open")
    parser.add_argument("--faults", action="store_true", help="pairs with a fault alone")
    parser.add_argument("--clean", action="store_true", help="clean pairs alone")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all outcomes")
    parser.add_argument("--write", action="store_true", help="write the pairs, compare nothing")
    parser.add_argument("-v", "--verbose", action="store_true", help="show right answers too")
    options = parser.parse_args()
    named = {"open": OPEN, "kept": KEPT, "all": (*OPEN, *KEPT)}
    seeds = named.get(options.seeds) or tuple(int(seed) for seed in options.seeds.split(","))
    some = [
        case for case in cases(seeds, not options.faults, not options.clean) if fnmatch.fnmatch(case.name, options.only)
    ]
    if options.write:
        if options.out is None:
            parser.error("--write needs OUT")
        _write(some, options.out)
        return
    outcomes = []
    for outcome in _outcomes(some, options.out, options.jobs):
        outcomes.append(outcome)
        if outcome.case.seed not in KEPT and (options.verbose or outcome.grade not in ("silent", "right")):
            print(f"{outcome.grade:>9}  {outcome.case.name} ({outcome.title}): {outcome.said}", flush=True)
    print(table(outcomes))
    print(f"{sum(outcome.seconds for outcome in outcomes):.0f} s of CPU time for {len(outcomes)} comparisons")
    if options.json is not None:
        options.json.write_text(as_json(outcomes))


def _outcomes(some: list[Case], folder: Optional[Path], jobs: int) -> Iterator[Graded]:
    if jobs == 1:
        yield from (graded(case, folder) for case in some)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(partial(graded, folder=folder), some, chunksize=4)


def _write(some: list[Case], folder: Path) -> None:
    facts = {}
    for case in some:
        own = folder / case.name.replace("/", "-")
        own.mkdir(parents=True)
        facts[case.name] = manifest(case, case.make(str(own)))
    folder.joinpath("manifest.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
