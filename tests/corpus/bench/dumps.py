"""Writes the public set: dumps in msprobe's layout, and the manifest of truths.

{OUT}/manifest.json
{OUT}/{pair}/target/step{N}/{proc1000 | rank{M}}/dump.json, …
{OUT}/{pair}/golden/…
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any, Sequence

from tests.corpus.bench.pairs import TASKS, Case, case
from tests.corpus.bench.truth import of_runs
from tests.corpus.tape import Session
from tests.corpus.trace import Record
from tests.corpus.writers.msprobe import Style, names, write

VERSION = 2


def make(seed: int, out: Path, count: int, jobs: int = 1) -> list[dict[str, Any]]:
    """Write pairs 0 to `count` - 1 of a seed, and their manifest. `out` must not hold another set."""
    if jobs == 1:
        entries = [_written(seed, number, out) for number in range(count)]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            entries = list(pool.map(_written, repeat(seed), range(count), repeat(out), chunksize=4))
    manifest = {"version": VERSION, "seed": seed, "pairs": entries}
    out.joinpath("manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return entries


def _written(seed: int, number: int, out: Path) -> dict[str, Any]:
    one = case(seed, number)
    return write_case(one, out / one.name)


def write_case(one: Case, place: Path) -> dict[str, Any]:
    """Write a pair; returns its entry of the manifest."""
    golden = Style(TASKS[one.facts["data"]], complete=True)
    target = golden._replace(mint=one.is_mint)
    write(place / "target", of_runs(one.target), target)
    write(place / "golden", of_runs(one.golden), golden)
    entry: dict[str, Any] = {"pair": one.name, **one.facts, "operators": [], "step": None, "ranks": []}
    if one.truth is not None:
        named = [*_named(one.golden, one.truth.golden, golden), *_named(one.target, one.truth.target, target)]
        entry.update(operators=list(dict.fromkeys(named)), step=one.truth.step, ranks=list(one.truth.ranks))
    return entry


def _named(sessions: Sequence[Session], records: Sequence[Record], style: Style) -> list[str]:
    wanted = set(records)
    return [name for run in of_runs(sessions) for record, name in names(run, style).items() if record in wanted]
