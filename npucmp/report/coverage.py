"""How much was really compared."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Sequence

from npucmp.localise.nodes import is_meaningless
from npucmp.model import DECIDED, Comparison, Pair


def matched(comparisons: "Sequence[Comparison]") -> "Counter[str]":
    """Operators by matcher."""
    by_matcher: Counter[str] = Counter()
    for comparison in comparisons:
        by_matcher.update(comparison.matched)
    return by_matcher


def aligned(comparisons: "Sequence[Comparison]") -> "dict[str, Any]":
    """Operators by matcher, those without partner, and the shares of operators and elements really compared."""
    by_matcher = matched(comparisons)
    operators = sum(by_matcher.values())
    only_target, only_golden = (sum(one.alone[side] for one in comparisons) for side in (0, 1))
    decided: set[int] = set()
    everything = compared = 0
    for finding in (finding for one in comparisons for finding in one.findings):
        pair = finding.measurement.pair
        elements = _elements(pair)
        if finding.verdict in DECIDED:
            decided.add(id(pair.operator))
            compared += elements
        if not _is_inserted_alone(pair):
            everything += elements
    everything += sum(_elements(pair) for one in comparisons for pair in one.left_out if not _is_inserted_alone(pair))
    return {
        **by_matcher,
        "operators": operators,
        "only_target": only_target,
        "only_golden": only_golden,
        "operators_compared": len(decided) / max(1, only_target + only_golden + operators),
        "elements_compared": compared / everything if everything else 0.0,
    }


def _elements(pair: Pair) -> int:
    tensor = pair.target or pair.golden
    return math.prod(tensor.shape) if tensor is not None else 0


def _is_inserted_alone(pair: Pair) -> bool:
    """A tensor that one compiler has put in and the other has not: nothing is missing where it is."""
    return (pair.target is None or pair.golden is None) and pair.is_inside


def upstream_unseen(comparison: Comparison, order: int) -> int:
    """Tensors before a place in the graph that were not compared; "first" is only said when there is none."""
    unseen = [finding.pair for finding in comparison.findings if finding.verdict not in DECIDED]
    return sum(
        pair.order < order and not (is_meaningless(pair) or _is_inserted_alone(pair))
        for pair in (*unseen, *comparison.left_out)
    )
