"""npucmp's compare with its defaults: the suspects in order, without those that only propagate an error."""

from __future__ import annotations

from pathlib import Path

import npucmp
from tests.corpus.bench.adapters import Accusation

DATA = ("values", "statistics", "md5")


def accuse(target: Path, golden: Path) -> list[Accusation]:
    report = npucmp.compare(target, golden, jobs=1)
    placed = [(root, one) for one in report.comparisons for root in one.roots if root.cause.value != "PROPAGATED"]
    found = []
    for root, one in sorted(placed, key=lambda both: both[0].place):
        operator = root.pair.golden_op or root.pair.operator
        found.append(Accusation(operator.name, one.target.step))
    return found
