"""The score on real dumps: `python -m tests.corpus.parallel.gloo SEED… [--layouts A,B] [--style …] [--keep FOLDER]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.corpus.parallel.cases import LAYOUTS, OPEN, draw_cases
from tests.corpus.parallel.gloo.record import patch_operators


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--layouts", default=",".join(OPEN))
    parser.add_argument("--style", default="values")
    parser.add_argument("--level", default="L1")
    parser.add_argument("--base", default="float32")
    parser.add_argument("--clean", type=int, default=1)
    parser.add_argument("--most", type=int, default=99)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    patch_operators()
    from tests.corpus.parallel.gloo.cases import make
    from tests.corpus.parallel.score import graded, printed, table

    layouts = [*LAYOUTS] if options.layouts == "all" else options.layouts.split(",")
    found = []
    for seed in options.seeds:
        for layout in layouts:
            if LAYOUTS[layout].ranks > 4:
                continue
            for case in draw_cases(
                seed, layout, options.clean, options.style, options.level, options.base, options.most
            ):
                if options.only not in case.name:
                    continue
                one = graded(case, options.keep and options.keep / case.name, make)
                found.append(one)
                printed(one)
    print(table(found))


main()
