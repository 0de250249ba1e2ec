"""Searches for verdicts that break a law, over generated pairs.

python -m tests.corpus.pair_search --seed 7                             2,000 pairs of each group of formats
python -m tests.corpus.pair_search --seed 7 --format npy --pairs 500    one group
python -m tests.corpus.pair_search --seed 7 --case npy/12/bits/0 --keep /tmp/case     one case on disk
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Optional

import click

from tests.corpus.pair_search.groups import GROUPS
from tests.corpus.pair_search.laws import LAWS
from tests.corpus.pair_search.search import Tried, keep, search
from tests.corpus.subject import examined


@click.command(help=__doc__)
@click.option("--seed", default=1, show_default=True, help="Golden runs and changes follow from it.")
@click.option("--pairs", default=2000, show_default=True, help="Distinct pairs of each group.")
@click.option("--format", "groups", multiple=True, type=click.Choice(sorted(GROUPS)), help="Group; default: all.")
@click.option("--law", "laws", multiple=True, type=click.Choice(sorted(LAWS)), help="Law; default: all.")
@click.option("--jobs", default=1, show_default=True)
@click.option("--minutes", type=float, help="End the search of a group after this time.")
@click.option("--json", "data", type=click.Path(path_type=Path), help="Write the counts here too.")
@click.option("--case", default="", help="One case by its name.")
@click.option("--keep", "folder", type=click.Path(path_type=Path), help="Folder for the dumps of --case.")
def main(
    seed: int,
    pairs: int,
    groups: tuple[str, ...],
    laws: tuple[str, ...],
    jobs: int,
    minutes: Optional[float],
    data: Optional[Path],
    case: str,
    folder: Optional[Path],
) -> None:
    if case:
        if folder is None:
            raise click.UsageError("--case needs --keep FOLDER")
        sys.exit(_one(seed, case, folder))
    rows = []
    for group in groups or GROUPS:
        until = None if minutes is None else time.monotonic() + 60 * minutes
        found = search(seed, group, pairs, jobs, laws, until)
        _print(seed, group, found)
        rows.append(_row(seed, group, found))
        if data:
            data.write_text(json.dumps(rows, indent=1) + "\n")
    broken = sum(len(row["violations"]) for row in rows)
    print(
        f"{sum(row['distinct'] for row in rows)} distinct pairs of {len(rows)} groups, {broken} violations, seed {seed}"
    )
    sys.exit(1 if broken else 0)


def _print(seed: int, group: str, found: Tried) -> None:
    print(f"{group}: {sum(found.pairs.values())} pairs, {len(found.distinct)} distinct, {found.seconds:.0f} s;"
          f" exit statuses {dict(sorted(found.statuses.items()))}")  # fmt: skip
    broken = {law: sum(one.law == law for one in found.violations) for law in found.pairs}
    for law, count in sorted(found.pairs.items()):
        print(f"  {law:9} {count:5} pairs {found.cases[law]:5} cases {broken[law]:4} violations"
              f"{f', {found.left_out[law]} left out' if found.left_out[law] else ''}")  # fmt: skip
    for one in found.violations:
        print(f"  {one.law}  seed {seed}  {one.case}  ({one.layout})")
        print(f"    expected {one.expected}")
        print(f"    came     {one.came}")
        print(f"    python -m tests.corpus.pair_search --seed {seed} --case {one.case} --keep /tmp/case")
    sys.stdout.flush()


def _row(seed: int, group: str, found: Tried) -> dict[str, object]:
    return {
        "group": group,
        "seed": seed,
        "pairs": sum(found.pairs.values()),
        "distinct": len(found.distinct),
        "laws": dict(found.pairs),
        "cases": dict(found.cases),
        "left_out": dict(found.left_out),
        "layouts": dict(found.layouts),
        "statuses": dict(found.statuses),
        "seconds": round(found.seconds, 1),
        "violations": [one._asdict() for one in found.violations],
    }


def _one(seed: int, name: str, folder: Path) -> int:
    case, places = keep(seed, name, folder)
    answers = [examined(*pair) for pair in places]
    print(f"{case.name}\nexpected {case.expected}")
    for (target, golden), one in zip(places, answers):
        print(
            f"npucmp compare {target} {golden}\n  exit status {one.status} {one.answer.operator} {one.answer.because}"
        )
    came = case.judge(answers)
    print(f"came     {came or 'as expected'}")
    return 1 if came else 0


if __name__ == "__main__":
    main()
