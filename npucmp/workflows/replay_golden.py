"""Compare two replays to find the wrong run, and compute the vendor's double benchmark of their errors.

The operators of each run were compared with float64 of their own inputs, so the errors are those of the kernels only.
"""

from __future__ import annotations

import glob
import math
from collections import defaultdict
from dataclasses import replace
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.align import align, pairs
from npucmp.align.cross_framework.msprobe_mapping import Names
from npucmp.dump.context import ReadContext
from npucmp.model import Judged, Pair, Replay, Replayed, Run, first_of
from npucmp.recompute.error_budget import vendor_level

RATIOS = {"golden_mare_ratio": "mare", "golden_mere_ratio": "mere", "golden_rmse_ratio": "rmse"}


class GoldenOutputs(NamedTuple):
    """Outputs of the golden run by outputs of the target: (order, slot) → (order, slot, whether types are equal)."""

    golden: Run
    outputs: Mapping[tuple[int, str], tuple[int, str, bool]]

    def names(self, orders: set[int]) -> list[str]:
        """Return globs of the golden partners of these operators of the target."""
        wanted = {there for (order, _), (there, _, _) in self.outputs.items() if order in orders}
        return [glob.escape(one.name) for one in self.golden.operators if one.order in wanted]


def partners(target: Run, golden: Run, names: Names, context: ReadContext) -> GoldenOutputs:
    """Align two runs and return the golden outputs by outputs of the target; merged operators are left out."""
    own = {one.order: one.name for one in golden.operators}
    some: Sequence[Pair] = [*pairs(target, golden, align(target, golden, names, context))]
    found = {}
    for pair in some:
        ops, tensors = (pair.target_op, pair.golden_op), (pair.target, pair.golden)
        if None in ops or None in tensors:
            continue
        (a, b), (x, y) = ops, tensors
        assert a is not None and b is not None and x is not None and y is not None
        if x.slot.startswith("output:") and own.get(b.order) == b.name:
            found[a.order, x.slot] = b.order, y.slot, x.dtype == y.dtype
    return GoldenOutputs(golden, found)


def with_golden_rows(one: Replay, golden: Replay, known: GoldenOutputs) -> Replay:
    """Return the replay of the target with the results of the golden's rows."""
    there = {(row.order, row.slot): row for row in golden.rows}
    rows, wrong = [], defaultdict(list)
    operators = one.operators
    for row in one.rows:
        place = known.outputs.get((row.order, row.slot))
        other = there.get(place[:2]) if place is not None else None
        if place is not None and other is not None:
            row = _with(row, other, same_type=place[2])
            if other.verdict is Judged.GUILTY:
                wrong[row.verdict is Judged.GUILTY].append(operators[row.order].name)
        rows.append(row)
    return replace(one, rows=tuple(rows), golden=tuple(_words(wrong)), golden_run=known.golden)


def _with(row: Replayed, other: Replayed, same_type: bool) -> Replayed:
    if same_type:
        ratios = {name: _ratio(getattr(row, figure), getattr(other, figure)) for name, figure in RATIOS.items()}
        row = row._replace(**ratios)  # type: ignore[arg-type]
        level = vendor_level(row.golden_mare_ratio, row.golden_mere_ratio, row.golden_rmse_ratio)
        row = row._replace(vendor_level=level)
    words = ""
    if row.verdict is Judged.GUILTY and other.verdict is Judged.CLEAN:
        words = "the golden is clean here: the target is wrong"
    elif row.verdict is Judged.GUILTY and other.verdict is Judged.GUILTY:
        words = "the golden is guilty here too"
    elif row.verdict is Judged.CLEAN and other.verdict is Judged.GUILTY:
        words = "the golden is guilty here: the golden is wrong, not the target"
    return row._replace(explanation="; ".join(filter(None, (row.explanation, words))))


def _ratio(mine: Optional[float], golden: Optional[float]) -> Optional[float]:
    """Return the ratio of two errors; 1 if both are 0, None if one is unknown."""
    if mine is None or golden is None:
        return None
    return mine / golden if golden else (math.inf if mine else 1.0)


def _words(wrong: Mapping[bool, Sequence[str]]) -> Iterator[str]:
    """Yield notes on GUILTY golden operators, by whether the target's operator is GUILTY too."""
    for both, words in ((False, "guilty in the golden, not in the target"), (True, "guilty in both")):
        names = [*dict.fromkeys(wrong.get(both, ()))]
        if names:
            yield f"{len(names):,} {words}: {first_of(names)}"
