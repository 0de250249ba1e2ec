"""A gradient of a choice: where the forward was near its kink, an error e flips a share e of the mask's elements.

A flipped element is completely wrong, so rel_l2 is √e. But flips are few and large, and the other elements are as good
as the inputs: an error that is spread over more elements is not a flip, even if it is small. Two elements may flip in
any tensor. A share of 16 e is assumed to flip at most, so rel_l2 is 4 √e. Evidence: 205 such gradients of silent clean
pairs of the corpus, up to 2.6 √e.

The operators inside a module and the order of its elements are unknown, unless its class is one of these operators
(ReLU). For other modules the size of the error counts, and whether a flip is likely: 16 e of its elements, counted in
its largest tensor, are 1/16 element or more. Where a flip is only possible, at 1/1024 element, the elements that are
off must be few enough for two rows, in the gradient or, for gradients of parameters, in that of their module. An
operator inside the module whose error a flip explains is proof of the flip, as is an earlier choice that flipped.

The rule covers the gradients of relu, max, clamp, where and dropout, and modules with unknown operators inside. If the
tensors that the forward read and wrote were compared, e is their error, because the incoming gradient flips nothing. In
each decade of relative error, at most 16 e of the elements, 3, and twice the number of input elements that are as far
off may be off. The error above 8 e must not exceed the largest difference in as many elements. If the mask or the
indices were recorded and are equal, nothing flipped.
"""

from __future__ import annotations

import math

from npucmp.flow.operators import OperatorFindings
from npucmp.localise.rule_context import (
    FLIP_COUNT,
    FLIP_SHARE,
    WHOLE_BIN,
    ErrorRule,
    RuleContext,
    error_of,
    shares_beyond,
)
from npucmp.localise.rules.growth import GROWTH

# expected flips: chosen: 16 e is fifty times the share that values of a normal distribution flip, so
# that fewer flips have a probability below 1 in 800, not measured
LIKELY = 2.0**-4
FLIP_ROWS = 2.0  # rows: definition: a tie between two rows takes the gradient from one and gives it to the other
# expected flips: chosen: fewer have a probability below 1 in 50,000, also where two rows alone differ, not measured
POSSIBLE = 2.0**-10
FEW_SHARE = 2.0**-3  # share of elements: chosen: of a tensor of fewer rows, two rows are not few, not measured


def _is_opaque(node: OperatorFindings) -> bool:
    """Whether the operators inside a module are unknown. A module of the class ReLU is that operator alone."""
    return bool(node.operator.path) and not (node.op.name and node.op.has("non-smooth"))


def _chosen_by(case: RuleContext) -> float:
    """The error of the values that decided the choice: the tensors that the forward read and wrote, if they were
    compared. The incoming gradient flips nothing. A module rounds and may enlarge errors before it chooses; its output
    shows how much."""
    node = case.node
    saved = [error_of(tensor) for tensor in node.extra_inputs] if node is not None else []
    known = [error for error in saved if error is not None]
    if node is None or not known or len(known) < len(saved):
        return case.input_error
    least = case.own_round_off if _is_opaque(node) else case.finding.limit
    return min(case.input_error, max(least, *known))


def _may_have_flipped(case: RuleContext) -> bool:
    """Whether a flip inside a module is likely, an operator inside it shows one, or so few elements are far off that a
    tie moved them. If it moved those of the gradient of a module, it also moved those of its parameters."""
    node = case.node
    if node is None or case.moments is None or case.flipped_inside or case.changed_choice_share:
        return True
    tensors = [*node.inputs, *node.outputs, *node.extra_inputs, case.finding]
    elements = max(moments.elements for tensor in tensors if (moments := tensor.measurement.moments) is not None)
    flips = FLIP_SHARE * _chosen_by(case) * elements
    if flips >= LIKELY or flips < POSSIBLE:
        return flips >= LIKELY
    return any(map(_touches_few_rows, (case, *map(RuleContext, node.beside))))


def _touches_few_rows(case: RuleContext) -> bool:
    """Whether the elements off by a tenth of the error or more would fit into two rows of a tensor of many."""
    shape = case.pair.golden.shape if case.pair.golden is not None else ()
    if not shape or case.moments is None or not case.finding.limit < case.error < math.inf:
        return False
    decade = max(0, min(WHOLE_BIN, math.ceil(math.log10(case.error)) + WHOLE_BIN - 1))
    far = shares_beyond(case.finding)[decade] * case.moments.compared
    return far <= min(FLIP_ROWS * shape[-1], FEW_SHARE * case.moments.compared)


def _one_flip(case: RuleContext) -> float:
    """The error of two elements that exist on one side only; small tensors cannot err by less."""
    moments = case.moments
    if moments is None or not moments.yy:
        return 0.0
    largest = max(abs(moments.golden.minimum), abs(moments.golden.maximum))
    return math.sqrt(2.0) * largest / math.sqrt(moments.yy)


def _may_be_flipped(case: RuleContext) -> bool:
    """Whether single elements of a rectifier's gradient may be flips: a mask makes an element zero on one side."""
    moments, node = case.moments, case.node
    if moments is None or node is None or not node.op.has("rectifies") or moments.differing > FLIP_COUNT:
        return True
    return moments.max_rel >= 1.0


def _are_few(case: RuleContext) -> bool:
    """Whether as many elements as may flip can make up the error that growth does not explain: each element is off by
    the largest difference at most."""
    moments, before = case.moments, case.input_error
    if moments is None or not math.isfinite(moments.sum_dd) or not math.isfinite(before):
        return True
    flipped, grown = FLIP_SHARE * _chosen_by(case) * moments.compared + FLIP_COUNT, GROWTH * before
    return moments.sum_dd <= flipped * moments.max_abs**2 + grown * grown * moments.yy


def _is_sparse(case: RuleContext) -> bool:
    """Whether the number of elements that are far off does not exceed those that flipped or were read as far off,
    compared decade by decade of relative error."""
    node, own = case.node, shares_beyond(case.finding)
    if node is None or not own:
        return True
    if _is_opaque(node):
        return _may_have_flipped(case)
    if not _are_few(case):
        return False
    read = [shares for shares in map(shares_beyond, node.inputs or node.assumed_inputs) if shares]
    if not read or not math.isfinite(case.input_error):
        return True
    assert case.moments is not None
    flipped = FLIP_SHARE * _chosen_by(case) + FLIP_COUNT / case.moments.compared
    least = math.ceil(math.log10(case.input_error)) + WHOLE_BIN + 1  # ten times the incoming error
    return all(
        own[decade] <= 2.0 * max(shares[decade - 1] for shares in read) + flipped
        for decade in range(max(least, 2), WHOLE_BIN + 1)
    )


RULE = ErrorRule(
    "explanation",
    "non_smooth",
    "gradients of relu, max, clamp, where: an input error e moves elements across the threshold; these elements are "
    f"completely wrong, rel_l2 up to {math.sqrt(FLIP_SHARE):g} √e",
    applies=lambda case: (
        case.input_error > 0
        and not case.is_choice
        and case.is_non_smooth
        and _may_be_flipped(case)
        and _is_sparse(case)
    ),
    bound=lambda case: max(math.sqrt(FLIP_SHARE * _chosen_by(case)), _one_flip(case)),
)
