"""How much was really compared, and what a reader should know besides the roots."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Iterable, Optional

from npucmp.judge.precision import reduced_products, round_off_of
from npucmp.localise.nodes import differing_arguments, is_meaningless
from npucmp.localise.rules.reduced import REDUCED
from npucmp.measure import metrics
from npucmp.model import Comparison, Finding, Pair, Report, Run, Verdict
from npucmp.model.dtypes import lookup, size_of
from npucmp.report.status import DECIDED


def aligned(report: Report) -> "dict[str, Any]":
    """Operators by matcher, those without partner, and the shares of operators and elements really compared."""
    by_matcher: Counter[str] = Counter()
    for comparison in report.comparisons:
        by_matcher.update(comparison.matched)
    matched = sum(by_matcher.values())
    only_target, only_golden = (sum(one.alone[side] for one in report.comparisons) for side in (0, 1))
    decided: set[int] = set()
    everything = compared = 0
    for finding in report.findings:
        pair = finding.measurement.pair
        tensor = pair.target or pair.golden
        elements = max(1, math.prod(tensor.shape)) if tensor is not None else 0
        if finding.verdict in DECIDED:
            decided.add(id(pair.operator))
            compared += elements
        if not _is_inserted_alone(pair):
            everything += elements
    return {
        **by_matcher,
        "operators": matched,
        "only_target": only_target,
        "only_golden": only_golden,
        "operators_compared": len(decided) / max(1, only_target + only_golden + matched),
        "elements_compared": compared / everything if everything else 0.0,
    }


def _is_inserted_alone(pair: Pair) -> bool:
    """A tensor that one compiler has put in and the other has not: nothing is missing where it is."""
    return (pair.target is None or pair.golden is None) and pair.is_inside


def bytes_of(runs: "Iterable[Run]") -> int:
    """Bytes of values that dumps hold, by their own records."""
    return sum(size_of(t.dtype, t.shape) for run in runs for op in run.operators for t in op.tensors if t.file)


def upstream_unseen(comparison: Comparison, order: int) -> int:
    """Tensors before a place in the graph that were not compared; "first" is only said when there is none."""
    return sum(
        f.pair.order < order and f.verdict not in DECIDED and not (is_meaningless(f.pair) or _is_inserted_alone(f.pair))
        for f in comparison.findings
    )


def notes(report: Report) -> "list[str]":
    """Sentences for the reader: differing dtypes and how far the error stays within them, arguments, broken files."""
    words = [note for one in report.comparisons for run in (one.target, one.golden) for note in run.notes]
    for comparison in report.comparisons:
        words += filter(None, (_dtype_note(comparison), _reduced_note(comparison), *_argument_notes(comparison)))
    return [*dict.fromkeys([*words, *report.notes])]


def _dtype_note(comparison: Comparison) -> Optional[str]:
    measured = [f for f in comparison.findings if f.measurement.moments is not None]
    apart = [f for f in measured if _differ_in_dtype(f.pair) and _are_floats(f.pair)]
    if not apart:
        return None
    floats = [f for f in measured if _are_floats(f.pair)]
    kinds = Counter(
        f"{f.pair.target.dtype} against {f.pair.golden.dtype}" for f in apart if f.pair.target and f.pair.golden
    )
    words = f"dtypes differ in {len(apart)} of {len(floats)} float tensors ({kinds.most_common(1)[0][0]})"
    if comparison.roots:
        return words
    round_off = max(round_off_of(finding.pair) for finding in floats)
    worst = max(floats, key=lambda f: metrics.rel_l2(f.measurement.moments) if f.measurement.moments else 0.0)
    error = worst.error or 0.0
    return (
        f"{words}; the error stays within them: largest rel_l2 {error:.1e} = {error / round_off:.1f} unit round-offs, "
        f"at {worst.pair.operator.name} {worst.pair.slot}"
    )


def _reduced_note(comparison: Comparison) -> Optional[str]:
    if reduced_products([finding.measurement for finding in comparison.findings]) is None:
        return None
    return (
        "the float32 matrix products of these runs differ as HF32 or TF32 units make them (10-bit mantissas): limits "
        f"follow that precision ({REDUCED:.1e}); switch it off on both sides to see smaller faults"
    )


def _differ_in_dtype(pair: Pair) -> bool:
    return pair.target is not None and pair.golden is not None and pair.target.dtype != pair.golden.dtype


def _are_floats(pair: Pair) -> bool:
    rows = [lookup(tensor.dtype) for tensor in (pair.target, pair.golden) if tensor]
    return len(rows) == 2 and all(row is not None and row.kind == "f" for row in rows)


def _argument_notes(comparison: Comparison) -> "list[str]":
    """Differing arguments of operators whose outputs agree all the same: worth a look, no root."""
    blamed = {root.pair.order for root in comparison.roots}
    seen = {f.pair.order: f.pair for f in comparison.findings if f.pair.target_op and f.pair.golden_op}
    return [
        f"{pair.operator.name}: argument {slot} is {a!r:.40} in the target, {b!r:.40} in the golden"
        for order, pair in seen.items()
        if order not in blamed and pair.target_op and pair.golden_op
        for slot, a, b in differing_arguments(pair.target_op, pair.golden_op)
    ]


def count(findings: "Iterable[Finding]", verdict: Verdict) -> int:
    """How many findings have that verdict."""
    return sum(finding.verdict is verdict for finding in findings)
