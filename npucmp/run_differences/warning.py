"""The one-line warning of `npucmp compare` about runs that are set up differently; "" if they are alike.

It uses names, arguments, and the findings of network inputs and weights at the first step, all measured already. Only
values of differing inputs are read again, bounded and for at most INPUTS inputs, to describe the difference.
"""

from __future__ import annotations

import math
from typing import Container, Iterator, NamedTuple, Optional, Sequence

from npucmp.align import Alignment
from npucmp.dump.limits import ReadContext
from npucmp.localise.rule_context import error_of
from npucmp.model import DIFFERS, Comparison, Finding, Match, Operator, Pair, first_of
from npucmp.model.precheck_result import Status
from npucmp.model.roles import inputs_of, weights_of
from npucmp.run_differences import arguments, operators
from npucmp.run_differences.answers import RANDOM_SHARE, AlignedStep
from npucmp.run_differences.consequences import own_difference

INPUTS = 4
LARGE = 0.1  # rel_l2 of a weight that noise of earlier steps does not reach
NAME_CHECKS = {
    "operators": operators.operators,
    "shapes": operators.shapes,
    "losses": arguments.reduction,
}  # need names only


def comparability_warning(comparisons: Sequence[Comparison], context: ReadContext) -> str:
    """Return "the runs are set up differently: inputs differ: normalised …; see npucmp precheck", or "" for equal
    setups."""
    words = [*_reasons(comparisons, context)]
    return f"the runs are set up differently: {first_of(words, 2)}; see npucmp precheck" if words else ""


def _reasons(comparisons: Sequence[Comparison], context: ReadContext) -> Iterator[str]:
    if not comparisons:
        return
    first = comparisons[0]
    odd = {id(one.pair): one for one in first.findings if one.verdict in DIFFERS}
    differing = frozenset(id(one.pair) for one in odd.values() if _is_beyond(one, operators.agreement(one.pair)))
    step = _together(first)
    both = _FirstComparison((step,), differing, odd)
    if odd:
        yield from _inputs(first, odd, own_difference(both, step), context)
        yield from _weights(first, odd)
    for what, hold in NAME_CHECKS.items():
        found = hold(both)
        if found.status is Status.DIFFERS and found.severity not in ("warning", "note"):
            yield f"{what} differ: {found.because}"
    if arguments.of_a_kind(both):
        yield f"arguments differ: {arguments.arguments(both).because}"


class _FirstComparison(NamedTuple):
    """The first step and rank, and the identities of differing pairs, also of those that round-off may explain."""

    aligned_steps: tuple[AlignedStep, ...]
    differing: frozenset[int]
    odd: Container[int]

    def agree(self, pair: Pair) -> bool:
        """Whether the comparison found no difference."""
        return id(pair) not in self.differing

    def are_equal(self, pair: Pair) -> bool:
        """Whether the comparison found no difference beyond the limit of the tensor."""
        return id(pair) not in self.odd


def _together(one: Comparison) -> AlignedStep:
    """Rebuild the alignment of operators from the pairs of a comparison."""
    pairs = [finding.pair for finding in one.findings]
    matches: dict[tuple[int, int], Match] = {}
    alone: tuple[dict[int, Operator], dict[int, Operator]] = ({}, {})
    for pair in (*pairs, *one.left_out):
        if pair.target_op is not None and pair.golden_op is not None:
            key = id(pair.target_op), id(pair.golden_op)
            if key not in matches or not matches[key].via:
                matches[key] = Match(pair.target_op, pair.golden_op, pair.via, pair.confidence)
        elif pair.target_op is not None:
            alone[0][id(pair.target_op)] = pair.target_op
        elif pair.golden_op is not None:
            alone[1][id(pair.golden_op)] = pair.golden_op
    inside = {name for match in matches.values() if match.via == "fused" for name in match.target.originals}
    golden = tuple(operator for operator in alone[1].values() if operator.name not in inside)
    return AlignedStep(
        one.target, one.golden, Alignment((*matches.values(),), (*alone[0].values(),), golden), (*pairs,)
    )


def _inputs(one: Comparison, odd: dict[int, Finding], last: float, context: ReadContext) -> Iterator[str]:
    """Yield how the network inputs of both runs differ; what is read behind the place `last` may follow from that, and
    the network may make masks, positions and buffers itself."""
    here, there = ({id(tensor) for _, tensor in inputs_of(run, weights_of(run))} for run in (one.target, one.golden))
    entering = [
        finding
        for finding in odd.values()
        if id(finding.pair.target) in here and id(finding.pair.golden) in there and finding.pair.order <= last
    ]
    whole = [finding for finding in odd.values() if finding.pair.operator.path and finding.pair.order <= last]
    if not entering and not whole:
        return
    from npucmp.run_differences.given_inputs import GivenInputs

    given = GivenInputs(one.golden, context)
    entering = [finding for finding in whole if given.is_of_network(finding.pair)] + [
        finding for finding in entering if given.has(finding.pair)
    ]
    from npucmp.run_differences.tensors import input_difference

    for finding in entering[:INPUTS]:
        pair = finding.pair
        assert pair.target is not None and pair.golden is not None and pair.target_op is not None
        if words := input_difference(pair.target, pair.golden, context):
            yield f"inputs differ: {pair.target_op.name} {pair.slot}: {words}"
            return


def _weights(one: Comparison, odd: dict[int, Finding]) -> Iterator[str]:
    """Yield the number of weights that differ by more than LARGE in the first step."""
    mine = {id(weight.weight[1]): name for name, weight in weights_of(one.target).items()}
    known = [finding for finding in one.findings if id(finding.pair.target) in mine and finding.pair.golden is not None]
    names = [mine[id(finding.pair.target)] for finding in known if id(finding.pair) in odd and _is_large(finding)]
    if names:
        random = [finding for finding in known if not _is_constant(finding)]
        share = len(names) / max(1, len(random))
        what = "another seed or checkpoint" if share >= RANDOM_SHARE and len(names) > 1 else first_of(names, 2)
        yield f"{len(names)} of {len(known)} weights differ: {what}"


def _is_large(finding: Finding) -> bool:
    size = _size(finding)
    return size is not None and size > LARGE


def _is_beyond(finding: Finding, limit: float) -> bool:
    """Whether an error exceeds a limit, or is unknown."""
    size = _size(finding)
    return size is None or size > limit


def _size(finding: Finding) -> Optional[float]:
    """The error, or its lower bound."""
    error = error_of(finding)
    return error if error is not None and not math.isnan(error) else finding.measurement.bound


def _is_constant(finding: Finding) -> bool:
    moments, statistics = finding.measurement.moments, finding.pair.golden.statistics if finding.pair.golden else None
    if moments is not None:
        return moments.golden.minimum == moments.golden.maximum
    return statistics is not None and statistics.max == statistics.min
