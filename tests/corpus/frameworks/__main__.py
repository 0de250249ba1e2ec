"""The score of the suite: see the package's docstring."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path

from tests.corpus.frameworks import HELD_NETWORKS, OPEN_NETWORKS
from tests.corpus.frameworks.families import PAIRS, make
from tests.corpus.frameworks.score import Result, cases, described, graded, table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.frameworks")
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--suite", choices=("open", "held"), default="open")
    parser.add_argument("--networks", default="")
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--faults", type=int, default=3, help="of each framework of a network, besides garbage")
    parser.add_argument("--only", default="", help="a part of the fault's name")
    parser.add_argument("--clean", action="store_true", help="clean pairs alone")
    parser.add_argument("--keep", type=Path, help="folder of the dumps, which a later run reads")
    parser.add_argument(
        "--records", type=Path, help="file for one JSON line per case, with wrong rows and missing tensors"
    )
    parser.add_argument("--align", help="given to npucmp.compare")
    parser.add_argument("--quiet", action="store_true", help="only the table")
    parser.add_argument("--make", action="store_true", help="only make the dumps")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    networks = (
        given.networks.split(",") if given.networks else [*(OPEN_NETWORKS if given.suite == "open" else HELD_NETWORKS)]
    )
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in given.seeds:
            for name in networks:
                started = time.monotonic()
                place = make(given.keep or Path(scratch), given.suite, name, seed, given.faults)
                if given.make:
                    print(f"{name} {time.monotonic() - started:.1f} s", flush=True)
                    continue
                for pair in given.pairs.split(","):
                    for fault, known in cases(place, pair, given.clean):
                        if given.only not in fault:
                            continue
                        one = graded(place, pair, fault, known, {"align": given.align} if given.align else {})
                        results.append(one)
                        if not given.quiet and (not one.right or one.wrong or one.status is None):
                            print(described(one), flush=True)
                        if given.records:
                            with given.records.open("a") as file:
                                file.write(json.dumps(one._asdict()) + "\n")
    if results:
        print(table(results))


main()
