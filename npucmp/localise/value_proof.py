"""Golden tensors that a tensor of the target alone proves: it stands in the same place, and holds the same values."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from typing import Callable, Optional, Sequence

from npucmp.localise.dead_ends import elements_of
from npucmp.localise.golden_rows import GoldenRow
from npucmp.localise.nodes import is_output
from npucmp.model import Finding, Pair, Verdict
from npucmp.model.dtypes import lookup

Distance = Callable[[Pair], Optional[float]]  # rel_l2 of the values of a pair, None where they cannot be compared
GROWTH = 8.0  # by which an operator may increase the error of what it reads, as rules/growth.py has it
FACTOR = 8.0  # limit of two tensors in units of round-off, as judge/verdicts.py has it
CANDIDATES = 8  # tensors of the target in one place that a golden tensor is measured against


class ValueProof:
    """Measures tensors that the golden alone has against those of the target alone in the same place, each once."""

    def __init__(self, findings: "Sequence[Finding]", matched: "Sequence[int]", distance: Distance) -> None:
        self._matched, self._distance = matched, distance
        self._tried: "set[int]" = set()  # by id of a finding
        self._alone: "dict[tuple[int, int, bool], list[Finding]]" = defaultdict(list)  # by gap, elements and role
        self._errors: "dict[int, float]" = {}  # the largest of each matched operator, by its place
        for one in findings:
            pair = one.pair
            if pair.golden_op is None and one.measurement.moments is not None and one.has_elements:
                self._alone[bisect_right(matched, pair.order), elements_of(one), is_output(pair)].append(one)
            elif one.verdict is Verdict.MATCH and one.error:
                self._errors[pair.order] = max(one.error, self._errors.get(pair.order, 0.0))

    def proves(self, row: GoldenRow) -> bool:
        """Whether the target holds the same values within rounding; False for a row that was asked for before."""
        if not row.is_alone or id(row.finding) in self._tried:
            return False
        self._tried.add(id(row.finding))
        gap = bisect_right(self._matched, row.finding.pair.order)
        for other in self._alone.get((gap, row.elements or 0, is_output(row.finding.pair)), [])[:CANDIDATES]:
            limit = self._limit(gap, row, other)
            if not _may_be_near(row.finding, other, limit):
                continue
            pair = row.finding.pair._replace(target_op=other.pair.target_op, target=other.pair.target)
            error = self._distance(pair)
            if error is not None and error <= limit:
                return True
        return False

    def _limit(self, gap: int, row: GoldenRow, other: Finding) -> float:
        """What rounding makes of a tensor in this place: that of its type, or growth of the largest error around it."""
        around = max((self._errors.get(place, 0.0) for place in self._matched[max(0, gap - 1) : gap + 1]), default=0.0)
        dtypes = [lookup(one.dtype) for one in (row.finding.pair.golden, other.pair.target) if one is not None]
        return max(GROWTH * around, *(FACTOR * (dtype.round_off if dtype else 0.0) for dtype in dtypes))


def _may_be_near(golden: Finding, target: Finding, limit: float) -> bool:
    """Whether the norms of two tensors allow them to be as near as that."""
    moments, own = golden.measurement.moments, target.measurement.moments
    if moments is None or own is None:
        return False
    norm = math.sqrt(moments.golden.squares)
    return abs(norm - math.sqrt(own.target.squares)) <= limit * norm
