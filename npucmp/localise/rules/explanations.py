"""The largest error that incoming errors may make, and properties by which a difference is no error.

Each function without an underscore is a rule of the table in __init__.py. An explanation returns a bound of rel_l2,
NOTHING if the rule does not apply; the smallest bound that contains the error explains it. A fact is true or false.
"""

from __future__ import annotations

import math
from itertools import accumulate

from npucmp.flow.contents import content_of, is_few, is_vector
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import scale_of
from npucmp.localise.rule_context import (
    CARRIED,
    FLIP_COUNT,
    FLIP_SHARE,
    NO_TENSOR,
    NOTHING,
    WHOLE_BIN,
    RuleContext,
    error_of,
)
from npucmp.localise.rules.limits import REDUCED_ROUND_OFF
from npucmp.model import Finding, Verdict
from npucmp.model.arguments import draws_numbers
from npucmp.model.roles import running_statistics

# growth of error: evidence: 2.4 was not seen in 5,497 outputs of clean pairs; smaller errors grow by rounding, up to 9
# times
GROWTH = 8.0
# condition numbers: evidence: of 641 ill-conditioned operators of clean pairs none exceeded 1; 3 is for values whose
# norms describe their elements less well
CONDITION_FACTOR = 3.0
# expected flips: chosen: 16 e is fifty times the share that values of a normal distribution flip, so
# that fewer flips have a probability below 1 in 800, not measured
LIKELY = 2.0**-4
FLIP_ROWS = 2.0  # rows: definition: a tie between two rows takes the gradient from one and gives it to the other
# expected flips: chosen: fewer have a probability below 1 in 50,000, also where two rows alone differ, not measured
POSSIBLE = 2.0**-10
FEW_SHARE = 2.0**-3  # share of elements: chosen: of a tensor of fewer rows, two rows are not few, not measured
# of choices that may flip, in √e: chosen: not measured; without the rule nine pairs of the sample with top-k routing
# are wrong
CHOICE_SHARE = 8.0
MANY = 64  # elements: chosen: two of them are a small share
TIES = 0.5  # share of the places: chosen: if more places differ, right values are in wrong places, not measured
STEP = 2.0 * REDUCED_ROUND_OFF  # relative: definition: the distance of two numbers of 11 bits, at most
PLACES = 2.0  # in s: definition: an element that is written elsewhere leaves one place and takes another
ROWS = 4.0  # in √s: definition: √2 for a share s of other rows, with room for rows of unequal size


def growth(case: RuleContext) -> float:
    """An operator may turn an error e into 8 e; into 3 e and its limit if all inputs agree or the run is quantised.

    Evidence: in silent clean pairs of the corpus (open seeds) 99.9 % of 5,497 outputs have less than 2.1 times the
    incoming error, none 2.4, if that error exceeds one round-off; sums that cancel and the operators of conditioning.py
    are excluded. Smaller errors grow by the operator's own rounding, by up to 9 times. Inputs that agree explain no
    more than that: in coarse types (bfloat16, 8 bits) 8 times the limit would hide any fault. Steps of 8 bits are
    rounded anew in each operator and do not grow.

    The growth of an error, not its size, shows where it is born. e is the largest error of the inputs and parameters;
    for a backward operator also of the tensors of its forward. If these were not compared, e is at least 2 u in
    float32, u in 16 bits, and the usual error so far. An operand of a sum counts by its share of the sum. The gradient
    of a product depends neither on its bias nor on the product; the gradient of an operand does not depend on that
    operand. In later steps e is at least the error that earlier steps may have made in parameters that were not
    recorded or whose statistics agree.
    """
    little = CARRIED * case.input_error + case.finding.limit if case.carries_little else math.inf
    return min(GROWTH * case.input_error, little)


def condition(case: RuleContext) -> float:
    """Ill-conditioned operators enlarge an error, depending on their operands: exp, log, quotients, normalisations,
    powers.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, §1.6; localise/conditioning.py has the numbers.
    Evidence: of 641 ill-conditioned operators in silent clean pairs of the corpus none exceeded e times its condition
    number; 3 allows for values whose norms describe their elements less well.
    """
    return CONDITION_FACTOR * case.input_error * case.amplification


def constant_rows(case: RuleContext) -> float:
    """A layer norm writes rounding where the rows that it reads are constant up to rounding.

    measure/constant_rows.py reads such rows again and compares each with the rounding that it may contain. The error of
    the other rows still needs an explanation.
    """
    settled, bound = case.finding.measurement.settled, max(case.finding.limit, GROWTH * case.input_error)
    return math.inf if settled is not None and settled <= bound else 0.0


def non_smooth(case: RuleContext) -> float:
    """A gradient of a choice: where the forward was near its kink, an error e flips a share e of the mask's elements.

    A flipped element is completely wrong, so rel_l2 is √e. But flips are few and large, and the other elements are as
    good as the inputs: an error that is spread over more elements is not a flip, even if it is small. Two elements may
    flip in any tensor. A share of 16 e is assumed to flip at most, so rel_l2 is 4 √e. Evidence: 205 such gradients of
    silent clean pairs of the corpus, up to 2.6 √e.

    The operators inside a module and the order of its elements are unknown, unless its class is one of these operators
    (ReLU). For other modules the size of the error counts, and whether a flip is likely: 16 e of its elements, counted
    in its largest tensor, are 1/16 element or more. Where a flip is only possible, at 1/1024 element, the elements that
    are off must be few enough for two rows, in the gradient or, for gradients of parameters, in that of their module.
    An operator inside the module whose error a flip explains is proof of the flip, as is an earlier choice that
    flipped.

    The rule covers the gradients of relu, max, clamp, where and dropout, and modules with unknown operators inside. If
    the tensors that the forward read and wrote were compared, e is their error, because the incoming gradient flips
    nothing. In each decade of relative error, at most 16 e of the elements, 3, and twice the number of input elements
    that are as far off may be off. The error above 8 e must not exceed the largest difference in as many elements. If
    the mask or the indices were recorded and are equal, nothing flipped.
    """
    values, node = case.values, case.own
    # the operators inside a module are unknown; a module of the class ReLU is that operator alone
    is_opaque = bool(node.operator.path) and not (node.op.name and node.op.has("non-smooth"))
    # the incoming gradient flips nothing; a module rounds and may enlarge errors before it chooses: its output shows
    # how much
    saved = [error for error in map(error_of, node.extra_inputs) if error is not None]
    rounding = case.own_round_off if is_opaque else case.finding.limit
    is_saved = bool(saved) and len(saved) == len(node.extra_inputs)
    chosen_by = min(case.input_error, max(rounding, *saved)) if is_saved else case.input_error
    # single elements may be flips if a mask makes them zero on one side
    is_mask = not node.op.has("rectifies") or values.differing > FLIP_COUNT or values.max_rel >= 1.0
    judge = _may_have_flipped if is_opaque else _is_sparse
    flips = case.moments is None or (is_mask and (not values.compared or judge(case, chosen_by)))
    # the error of two elements that exist on one side only; small tensors cannot err by less
    largest = max(abs(values.golden.minimum), abs(values.golden.maximum)) if values.yy else 0.0
    bound = max(math.sqrt(FLIP_SHARE * chosen_by), math.sqrt(2.0) * largest / math.sqrt(values.yy or 1.0))
    return bound if flips else NOTHING


def _may_have_flipped(case: RuleContext, chosen_by: float) -> bool:
    """Whether a flip inside a module is likely, an operator inside it shows one, or so few elements are far off that a
    tie moved them. If it moved those of the gradient of a module, it also moved those of its parameters."""
    elements = [one.values.elements for one in map(RuleContext, (*case.read, *case.own.outputs, case.finding))]
    flips = FLIP_SHARE * chosen_by * max(elements)
    is_likely = case.flipped_inside or bool(case.changed_choice_share) or flips >= LIKELY
    return is_likely or (flips >= POSSIBLE and any(map(_touches_few_rows, (case, *map(RuleContext, case.own.beside)))))


def _touches_few_rows(case: RuleContext) -> bool:
    """Whether the elements off by a tenth of the error or more would fit into two rows of a tensor of many."""
    values, shape, is_large = case.values, case.golden.shape or (0,), case.finding.limit < case.error < math.inf
    decade = max(0, min(WHOLE_BIN, math.ceil(math.log10(case.error)) + WHOLE_BIN - 1)) if is_large else 0
    far = _shares_beyond(case.finding)[decade] * values.compared if values.compared else math.inf
    return is_large and bool(case.golden.shape) and far <= min(FLIP_ROWS * shape[-1], FEW_SHARE * values.compared)


def _is_sparse(case: RuleContext, chosen_by: float) -> bool:
    """Whether as many elements as may flip can make up the error that growth does not explain, each off by the largest
    difference, and whether no more elements are far off, decade by decade of relative error, than flipped or were read
    as far off."""
    values, before, own = case.values, case.input_error, _shares_beyond(case.finding)
    flipped, grown = FLIP_SHARE * chosen_by * values.compared + FLIP_COUNT, GROWTH * before
    is_few = not (math.isfinite(values.sum_dd) and math.isfinite(before)) or (
        values.sum_dd <= flipped * values.max_abs**2 + grown * grown * values.yy
    )
    read = [shares for shares in map(_shares_beyond, case.own.inputs or case.own.assumed_inputs) if shares]
    share = FLIP_SHARE * chosen_by + FLIP_COUNT / values.compared
    least = math.ceil(math.log10(before)) + WHOLE_BIN + 1 if math.isfinite(before) else math.inf  # ten times as large
    decades = [decade for decade in range(2, WHOLE_BIN + 1) if decade >= least and read]
    return is_few and all(own[at] <= 2.0 * max(shares[at - 1] for shares in read) + share for at in decades)


def _shares_beyond(finding: Finding) -> list[float]:
    """Return the share of elements that reach each decade of relative error; empty where values were not compared."""
    values = RuleContext(finding).values
    above = [*accumulate(reversed(values.histogram))]
    return [count / values.compared for count in reversed(above)] if values.compared else []


def choice(case: RuleContext) -> float:
    """A tensor that is itself a choice, a mask or an index: an error e of the values that it compares changes a share
    √e.

    Near ties flip. If the error exceeds rounding to 11 bits, as errors of 16-bit types do, any choice may flip. If the
    operator also wrote the chosen values, as top-k does, and these agree, then all changed places were ties, up to half
    of the places. Two changed elements are not counted, but for a short tensor that no recorded operator wrote, as
    labels are. Evidence: without the rule, nine pairs of the corpus sample with top-k routing are wrong.

    The mask of a dropout depends on no input. Random numbers flip with their probabilities, by a share 8 √e at most.

    A share of 8 √e of the elements may differ, and any share if e exceeds 2^-11.
    """
    values, node = case.values, case.own
    spared = 0 if case.no_producer and values.elements < MANY else 2  # labels: one of seven is no near tie
    is_known = values.elements > 0 and not values.mismatched
    share = max(0, values.differing - spared) / values.elements if is_known else math.inf
    # changed places were ties if the chosen values agree
    agree = any(one.error is not None and one.limit > 0 and one.error <= one.limit for one in node.outputs)
    is_near = case.input_error > REDUCED_ROUND_OFF or (share <= TIES and agree)
    flips = is_near and is_known and not draws_numbers(node.operator)
    return math.inf if flips or share <= CHOICE_SHARE * math.sqrt(case.input_error) else 0.0


def cancellation(case: RuleContext) -> float:
    """A sum of large terms that nearly cancel holds rounding of the terms, even if the sum is small.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, §4.2. Evidence: gradients of key biases, which are
    zero in exact arithmetic because of softmax: rel_l2 1.2 in float32, 2.8e4 in bfloat16, both clean. In silent clean
    pairs of the corpus, errors that no other rule explains reach 0.71 of the bound.

    The rule covers sums of K terms of size (rms) t: add, mean, products, the gradients of both, and the gradients of
    softmax and norms (localise/conditioning.py). The absolute error may be 8 max(e, u) √K t + 4 walks. A walk is the
    rounding of the sum of one side in the worst order of addition: 0.42 u √(K/3 · r² + K/2 · Q), with the sum r and
    the sum Q = K t² of the squared terms.
    """
    return case.rounding_of_terms


def reduced_alike(case: RuleContext) -> float:
    """Float32 matrix products of two runs that both round operands to 11 bits, HF32 on Ascend and TF32 on GPUs: equal
    operands are rounded alike.

    An operand that differs by d crosses a step δ of the 11 bits with the probability d / δ and then differs by δ: the
    mean square of the factor's error is d δ instead of d². An error e of float32 becomes √(2^-10 e), 8e-6 if e is one
    round-off. If few elements cross, each counts for itself. The limits stay those of float32, because other operators
    do not enlarge the error. Evidence: in clean pairs of the second corpus (open2) with HF32 on both sides, products
    that read 5e-8 write 6e-6 or 2e-5, and those that read 1e-5 write 4e-5. The values of each side show the precision
    (measure/own_products.py).

    The bound is 8 √(2^-10 e), or three elements that cross a step, at most the limit of `reduced`, and times √K t / rms
    if terms of size t cancel. If a product wrote more than its limit, up to 8 products of each step and rank are read
    again and compared with the exact product of the operands that the same side recorded. If both sides are as far from
    it as 11 bits are, both runs round so, and a note reports it.
    """
    # one crossing moves the share of an operand's largest element
    peaks = [one.largest / (one.rms * math.sqrt(one.elements)) for one in map(scale_of, case.read) if one.rms]
    crossed = max(FACTOR * math.sqrt(STEP * case.input_error), FLIP_COUNT * STEP * max(peaks, default=0.0))
    enlarged = max(1.0, case.terms.spread / case.scale.rms) if case.scale.rms else 1.0
    return enlarged * min(crossed, FACTOR * REDUCED_ROUND_OFF)


def inherited(case: RuleContext) -> float:
    """A parameter of a later step contains the result of earlier updates: the noise of its gradient, propagated.

    Evidence: parameters of later steps of silent clean pairs of the corpus (open seeds); the formulas are in
    localise/parameter_drift.py. A parameter whose gradient is pure noise (a key's bias, a bias before a normalisation)
    drifts by as much as the golden's own step.

    The bound is 2 times the error of the step before, plus 0.5 √e_g for the error e_g of the gradient in the step
    before, the largest of its shape that the backward wrote, in any call that reads the parameter. An update makes at
    least one round-off. If e_g reaches 1, 8 steps of the optimizer replace 0.5 √e_g. A step is that of the golden's
    parameter, by its minimum, maximum, norm and sum in both steps, and at least the median step of all parameters. If
    statistics give only a lower bound, e_g is at least the 90 % quantile of that step. The gradient of a bias that was
    not recorded may be noise: e_g is 1. Any other gradient that was not recorded has at least one round-off of the
    coarsest type that a tenth of the float tensors have, unless nothing differed at all. One element of a parameter may
    move by two steps if 16 e_g K is 0.1 or more, for K elements. A parameter that is scaled as a whole has the bound of
    the 90 % quantile.
    """
    return case.inherited


def routed(case: RuleContext) -> float:
    """Rows that a choice selected: if a near tie flipped, the tensor holds other rows, and another number of them.

    Examples are tokens routed to another expert and boxes that pass a threshold. If the shape differs along one axis,
    no rows can be compared until they are scattered back to their origin; such tensors are unknown, not wrong. If a
    share s of the choices flipped and the number of rows is equal, that share of the rows differs: rel_l2 is √(2 s).

    An operator that reads rows at given indices, or chooses by a mask, returns other values where these differ, as
    large as the table has them; a fill by a mask has any size. If no more elements of its output differ than the share
    s of indices allows, it read the given rows.

    The bound is 4 √s, and none if at most a share 2 s of the elements differs. Inputs of unknown origin have it too.
    """
    flipped, op, rows = case.changed_choice_share, case.own.op, share_of_rows(case.finding)
    if case.finding.verdict is Verdict.SHAPE:
        is_near = case.input_error > REDUCED_ROUND_OFF and rows <= CHOICE_SHARE * math.sqrt(case.input_error)
        return math.inf if rows > 0 and (flipped > 0 or is_near) else NOTHING
    follows = flipped > 0 and (case.node is None or (op.has("picks") and not case.chose_alike))
    is_fill = case.told_share > 0 and op.has("masks") and not op.has("picks")
    is_open = is_fill or 0 < case.share_changed <= PLACES * case.told_share
    bound = math.inf if is_open else ROWS * math.sqrt(max(flipped, case.told_share))
    return bound if follows or case.told_share > 0 else NOTHING


def share_of_rows(finding: Finding) -> float:
    """The share of additional rows on one side, along the one axis in which shapes differ; 0 if shapes do not differ
    so."""
    target, golden = finding.pair.target or NO_TENSOR, finding.pair.golden or NO_TENSOR
    axes = [sides for sides in zip(target.shape, golden.shape) if sides[0] != sides[1]]
    is_one = len(axes) == 1 and len(target.shape) == len(golden.shape)
    return abs(axes[0][0] - axes[0][1]) / max(axes[0]) if is_one else 0.0


def collective(case: RuleContext) -> float:
    """A collective or a receive propagates any error that descends from a root on another rank.

    Evidence: an all-reduce whose own inputs agree adds the inputs of other ranks, which may be much larger than its
    own; a receive reads no tensor of its own rank. localise/root_order.py gives the operator the tensors that arrive.
    """
    return math.inf


def overwritten(case: RuleContext) -> bool:
    """An in-place operator whose recorded input is its output shows nothing about the tensor that it read.

    The same holds for the buffer that an operator writes to if no dumped operator wrote it: memory that was not cleared
    holds any values. A later consumer reads the values at that time. The source of a copy is not overwritten.

    Checksums are taken of live tensors while the run goes on (seen with mindstudio-probe 26.2): checksums of a tensor
    that an operator overwrites differ between two identical runs.

    Such an input has the error of the latest output of its shape. Checksums of overwritten tensors (running statistics,
    operands of `add_`) are `unknown`.
    """
    node, finding, in_place = case.own, case.finding, case.own.op.has("in place")
    if node.is_gradient:  # running statistics: the forward has updated them, and no gradient depends on them
        return node.op.has("averages") and case.no_producer and is_vector(finding) and not is_few(finding)
    if finding.metric == "checksum":
        return (in_place and finding.pair.slot == "input:0") or finding.pair.slot in running_statistics(node.operator)
    is_source = node.op.has("overwrites", "copies") and not node.writes_to(finding)  # the values that are copied
    content = content_of(finding) if in_place and not is_source else 0
    holds_output = content != 0 and content in map(content_of, node.outputs)
    return holds_output or (case.no_producer and node.writes_to(finding))


def broadcast(case: RuleContext) -> bool:
    """An operand that one side repeats along the axes in which the shapes differ, of an operator whose output agrees.

    An attention mask is [s, s] in one implementation and [b, 1, s, s] in another; cosines of positions are [s, d] and
    [b, s, d]. Their elements have no partners, so the operand is unknown, not wrong. The output was compared; if it
    does not agree, the operand is not excused.

    Operands of the same shapes that operators of this type read in other layers are `unknown` too. The golden tensor
    stays open in the coverage.
    """
    outputs = [RuleContext(one) for one in case.own.outputs]
    agree = all(one.finding.verdict is Verdict.MATCH and one.moments is not None for one in outputs)
    return bool(outputs) and agree and all(_repeats(case, output) for output in outputs)


def _repeats(operand: RuleContext, output: RuleContext) -> bool:
    """Whether both sides of an operand broadcast to the output, whose shape is the same on both sides."""
    to, shapes = output.golden.shape, (operand.target.shape, operand.golden.shape)
    return output.target.shape == to and all(
        len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape[::-1], to[::-1])) for shape in shapes
    )
