"""The one-line warning of `npucmp compare` about runs that are set up differently; "" if they are alike.

It uses names, arguments, and the findings of network inputs and weights at the first step, all measured already. Only
values of differing inputs are read again, bounded and for at most INPUTS inputs, to describe the difference.
"""

from __future__ import annotations

import math
from typing import Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from npucmp.align import Alignment
from npucmp.comparability import arguments, operators
from npucmp.comparability.answers import RANDOM_SHARE, AlignedStep
from npucmp.comparability.operators import own_difference
from npucmp.dump.limits import ReadContext
from npucmp.localise.rule_context import error_of
from npucmp.model import DIFFERS, Comparison, Finding, Match, Pair, first_of
from npucmp.model.item_result import Status
from npucmp.model.roles import Weight, inputs_of, weights_of
from npucmp.model.table import finding_at, pairs_of, with_verdict

INPUTS = 4
LARGE = 0.1  # rel_l2 of a weight that noise of earlier steps does not reach
NAME_CHECKS = {
    "operators": operators.operators,
    "shapes": operators.shapes,
    "losses": arguments.reduction,
}  # need names only


def comparability_warning(first: Comparison, context: ReadContext) -> str:
    """Return "the runs are set up differently: inputs differ: normalised …; see npucmp precheck" by the first step and
    rank, or "" for equal setups."""
    words = [*_reasons(first, context)]
    return f"the runs are set up differently: {first_of(words, 2)}; see npucmp precheck" if words else ""


def _reasons(first: Comparison, context: ReadContext) -> Iterator[str]:
    pairs = pairs_of(first.columns)
    rows = np.flatnonzero(with_verdict(first.columns, DIFFERS)).tolist()
    odd = {id(pairs[row]): finding_at(first.columns, row, pairs[row], row) for row in rows}
    step = _together(first, pairs)
    both = _FirstComparison((step,), odd)
    if odd:
        weights = weights_of(first.target), weights_of(first.golden)
        last = own_difference(both, step)  # what is read behind this place may follow from it
        yield from _inputs(first, [one for one in odd.values() if one.pair.order <= last], weights, context)
        yield from _weights(first.findings, pairs, odd, weights[0])
    for what, hold in NAME_CHECKS.items():
        found = hold(both)
        if found.status is Status.DIFFERS and found.severity not in ("warning", "note"):
            yield f"{what} differ: {found.because}"
    if arguments.of_a_kind(both):
        yield f"arguments differ: {arguments.arguments(both).because}"


class _FirstComparison(NamedTuple):
    """The first step and rank, and the findings of differing pairs by their identity."""

    aligned_steps: tuple[AlignedStep, ...]
    odd: Mapping[int, Finding]

    def agree(self, pair: Pair) -> bool:
        """Whether the comparison found no difference, or one that round-off may explain."""
        finding = self.odd.get(id(pair))
        return finding is None or _size(finding, math.inf) <= operators.agreement(pair)

    def are_equal(self, pair: Pair) -> bool:
        """Whether the comparison found no difference beyond the limit of the tensor."""
        return id(pair) not in self.odd


def _together(one: Comparison, pairs: Sequence[Pair]) -> AlignedStep:
    """Rebuild the alignment of operators from the pairs of a comparison."""
    known: dict[tuple[int, int], Pair] = {}  # a pair of tensors of each pair of operators
    for pair in (*pairs, *one.left_out):
        key = id(pair.target_op), id(pair.golden_op)
        if key not in known or not known[key].via:
            known[key] = pair
    sides = [(pair.target_op, pair.golden_op, pair) for pair in known.values()]
    matches = tuple(Match(x, y, pair.via, pair.confidence) for x, y, pair in sides if x is not None and y is not None)
    inside = {name for match in matches if match.via == "fused" for name in match.target.originals}
    target = tuple(x for x, y, _ in sides if x is not None and y is None)
    golden = tuple(y for x, y, _ in sides if y is not None and x is None and y.name not in inside)
    return AlignedStep(one.target, one.golden, Alignment(matches, target, golden), tuple(pairs))


def _inputs(
    one: Comparison, odd: Sequence[Finding], weights: Sequence[Mapping[str, Weight]], context: ReadContext
) -> Iterator[str]:
    """Yield how the network inputs of both runs differ; the network may make masks, positions and buffers itself."""
    here, there = (
        {id(tensor) for _, tensor in inputs_of(run, known)} for run, known in zip((one.target, one.golden), weights)
    )
    entering = [finding for finding in odd if id(finding.pair.target) in here and id(finding.pair.golden) in there]
    whole = [finding for finding in odd if finding.pair.operator.path]
    if not entering and not whole:
        return
    from npucmp.comparability.given_inputs import GivenInputs
    from npucmp.comparability.tensors import input_difference

    given = GivenInputs(one.golden, weights[1], context)
    found = [finding.pair for finding in whole if given.is_of_network(finding.pair)]
    for pair in [*found, *(finding.pair for finding in entering if given.has(finding.pair))][:INPUTS]:
        assert pair.target is not None and pair.golden is not None and pair.target_op is not None
        if words := input_difference(pair.target, pair.golden, context):
            yield f"inputs differ: {pair.target_op.name} {pair.slot}: {words}"
            return


def _weights(
    findings: Sequence[Finding], pairs: Sequence[Pair], odd: Mapping[int, Finding], weights: Mapping[str, Weight]
) -> Iterator[str]:
    """Yield the number of weights that differ by more than LARGE in the first step."""
    mine = {id(weight.weight[1]): name for name, weight in weights.items()}
    known = [row for row, pair in enumerate(pairs) if id(pair.target) in mine and pair.golden is not None]
    large = {key for key, finding in odd.items() if _size(finding, 0.0) > LARGE}
    names = [mine[id(pairs[row].target)] for row in known if id(pairs[row]) in large]
    if names:
        share = len(names) / max(1, sum(not _is_constant(findings[row]) for row in known))
        what = "another seed or checkpoint" if share >= RANDOM_SHARE and len(names) > 1 else first_of(names, 2)
        yield f"{len(names)} of {len(known)} weights differ: {what}"


def _size(finding: Finding, unknown: float) -> float:
    """The error, or its lower bound."""
    error = error_of(finding)
    size = finding.measurement.bound if error is None or math.isnan(error) else error
    return unknown if size is None else size


def _is_constant(finding: Finding) -> bool:
    moments, statistics = finding.measurement.moments, finding.pair.golden.statistics if finding.pair.golden else None
    if moments is not None:
        return moments.golden.minimum == moments.golden.maximum
    return statistics is not None and statistics.max == statistics.min
