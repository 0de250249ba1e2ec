"""The score on real dumps: `python -m tests.corpus.parallel.gloo SEED… [--layouts A,B] [--style …] [--keep FOLDER]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.corpus.parallel.cases import OPEN
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
    from tests.corpus.parallel.gloo.cases import KNOWN, draw_cases, make
    from tests.corpus.parallel.score import graded, printed, table

    layouts = [*KNOWN] if options.layouts == "all" else options.layouts.split(",")
    found = []
    for seed in options.seeds:
        for layout in layouts:
            drawn = draw_cases(seed, layout, options.clean, options.style, options.level, options.base, options.most)
            for one in drawn:
                if options.only not in one.case.name:
                    continue
                folder = options.keep and options.keep / one.case.name
                found.append(graded(one.case, folder, lambda case, at, one=one: make(one, at)))
                printed(found[-1])
    print(table(found))


main()
