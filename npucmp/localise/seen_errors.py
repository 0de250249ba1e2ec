"""The errors that a search has seen so far, of tensors that descend from no root.

They replace an error that was not recorded: a quantile of them, or the largest of the operators just before.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Iterator, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.flow.contents import is_few, is_vector
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import scale_of
from npucmp.localise.rule_context import QUANTILE, RECENT_OPERATORS, RuleContext, error_of, error_size
from npucmp.localise.sweep import Passed, Sweep, WrittenSizes
from npucmp.measure.recorded_stats import has_equal_xor
from npucmp.model import Finding, Verdict
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_output
from npucmp.model.table import Columns, bare_pairs, has_bound, has_error, network_fact, with_field

OPERANDS = 2  # outputs: definition: a sum, a product and a quotient of elements have two operands


def usual_error(sweep: Sweep, finding: Finding) -> float:
    """The assumed size of an unknown error: a quantile of the errors seen so far; for a scalar, which may be the
    rest of a sum that cancels, the largest. A loss does not count as such a scalar, because it depends on the whole
    output of a network. 0.0 if no error was seen."""
    _catch_up(sweep)
    if not (sweep.errors or sweep.largest_left or sweep.left_of_zero):
        return 0.0
    if is_few(finding) and not op_type_of(finding.pair.operator).has("loss"):
        is_left = 0.0 < _zero_in_golden(finding) <= FACTOR * sweep.left_of_zero
        return math.inf if is_left else max([*sweep.errors[-1:], sweep.largest_left])
    usual = sweep.errors[int(QUANTILE * (len(sweep.errors) - 1))] if sweep.errors else 0.0
    return max(
        usual, *(sizes.error for sizes in sweep.latest), below_rounding(sweep, finding), _of_terms(sweep, finding)
    )


def _of_terms(sweep: Sweep, finding: Finding) -> float:
    """The largest error of gradients of as many elements that no operator reads: autograd adds up the gradients of
    a tensor that several operators read, and dumps do not record the sum."""
    if is_output(finding.pair) or not is_gradient(finding.pair.operator):
        return 0.0
    return sweep.unread.get(scale_of(finding).elements, 0.0)


def below_rounding(sweep: Sweep, finding: Finding) -> float:
    """The error of a gradient that is smaller than the rounding of its terms, if the terms are as large as the
    latest outputs, or, behind a backward pass, as the largest gradient. Such a gradient belongs to a bias (one
    axis) that does not affect the network, as that of the keys of an attention, and is zero in exact arithmetic."""
    operator = finding.pair.operator
    if not is_vector(finding) or is_output(finding.pair):
        return 0.0
    _catch_up(sweep)
    is_latest = is_gradient(operator) or op_type_of(operator).has("collective")
    size, unit = scale_of(finding).rms, max(finding.working, finding.limit / FACTOR)
    rounding = unit * (max((sizes.rms for sizes in sweep.latest), default=0.0) if is_latest else sweep.largest_gradient)
    return rounding / size if 0.0 < size <= FACTOR * rounding else 0.0


def may_cancel(sweep: Sweep, finding: Finding) -> bool:
    """Whether an input of few elements may be the rest of a sum whose terms cancel. A gradient that exceeds the
    latest gradients is not: the backward pass begins with a scalar that only constants multiplied."""
    if not is_gradient(finding.pair.operator):
        return is_few(finding)
    _catch_up(sweep)
    return is_few(finding) and scale_of(finding).largest < max(sweep.gradients, default=0.0)


def rounding_of_sums(sweep: Sweep, error: float) -> float:
    """The error of a sum of all elements of one of the latest outputs, if each has this relative error."""
    _catch_up(sweep)
    return FACTOR * error * max((sizes.sum for sizes in sweep.latest), default=0.0)


def has_recent(sweep: Sweep, finding: Finding) -> bool:
    """Whether the latest operators wrote a tensor with as many elements, from which code that was not dumped may
    have made this tensor."""
    _catch_up(sweep)
    return any(scale_of(finding).elements in sizes.elements for sizes in sweep.latest)


def error_of_shape(sweep: Sweep, shape: tuple[int, ...]) -> Optional[float]:
    """The error of the latest output of a shape; None if there was none."""
    _catch_up(sweep)
    found = sweep.shapes.get(shape)
    return None if found is None else found[-1][1]


def error_of_operands(sweep: Sweep, shape: tuple[int, ...]) -> float:
    """The largest error of the latest outputs of a shape, as many as a sum or a product has operands; 0.0 if there
    are none."""
    _catch_up(sweep)
    return max((error for _, error in sweep.shapes.get(shape, ()) if math.isfinite(error)), default=0.0)


def last_agreeing(sweep: Sweep) -> Optional[Finding]:
    """The latest tensor that agrees."""
    _catch_up(sweep)
    return sweep.agreeing


def learn_shapes(sweep: Sweep, node: OperatorFindings) -> None:
    """Add the errors of the outputs of any operator by their shapes."""
    for finding in node.outputs:
        if finding.pair.golden is not None and error_of(finding) is not None:
            learn_shape(sweep, finding.pair.golden_shape, finding.row, error_size(finding))


def learn_shape(sweep: Sweep, shape: tuple[int, ...], row: int, error: float) -> None:
    """Add the error of one output by its shape."""
    latest = row, error
    before = sweep.shapes.get(shape, [])
    is_last = not before or before[-1] < latest
    sweep.shapes[shape] = ([*before, latest] if is_last else sorted({*before, latest}))[-OPERANDS:]


def learn_left(sweep: Sweep, finding: Finding) -> None:
    """Add the error of the rest of a sum that cancels."""
    sweep.residues.add(finding.row)
    if math.isfinite(error_size(finding)):
        sweep.largest_left = max(sweep.largest_left, error_size(finding))
    sweep.left_of_zero = max(sweep.left_of_zero, _zero_in_golden(finding))


def _catch_up(sweep: Sweep) -> None:
    """Add the operators that no error of a root reaches and that were passed since the last query."""
    if not sweep.passed:
        return
    passed, sweep.passed = sweep.passed, []
    columns, numbers = sweep.columns, [entry for entry in passed if isinstance(entry, int)]
    if columns is not None:
        for at in numbers:
            sweep.errors += columns.errors[at]
            if columns.network.gradient[at]:
                sweep.largest_gradient = max(sweep.largest_gradient, columns.written_rms[at])
    for node, read in (entry for entry in passed if not isinstance(entry, int)):
        sweep.errors += _errors_of(sweep, node, read)
        if node.is_gradient:
            rms = [scale_of(finding).rms for finding in node.outputs]
            sweep.largest_gradient = max([sweep.largest_gradient, *filter(math.isfinite, rms)])
    sweep.errors.sort()
    for entry in passed:
        if not isinstance(entry, int) or columns is None or columns.has_errors[entry]:
            learn_shapes(sweep, _node(sweep, entry))
            _learn_terms(sweep, _node(sweep, entry))
    sizes = [_sizes_of(sweep, _node(sweep, entry)) for entry in passed[-RECENT_OPERATORS:]]
    sweep.latest = [*sweep.latest, *sizes][-RECENT_OPERATORS:]
    gradients = [*islice((entry for entry in reversed(passed) if _is_gradient(sweep, entry)), RECENT_OPERATORS)]
    norms = [_largest_norm(_node(sweep, entry)) for entry in reversed(gradients)]
    sweep.gradients = [*sweep.gradients, *norms][-RECENT_OPERATORS:]
    nodes = (_node(sweep, entry) for entry in reversed(passed))
    latest_first = (finding for node in nodes for finding in (*node.outputs, *node.inputs[::-1]))
    sweep.agreeing = next(filter(agrees, latest_first), sweep.agreeing)


def _node(sweep: Sweep, passed: Passed) -> OperatorFindings:
    return sweep.nodes[passed] if isinstance(passed, int) else passed[0]


def _is_gradient(sweep: Sweep, passed: Passed) -> bool:
    if isinstance(passed, int) and sweep.columns is not None:
        return sweep.columns.network.gradient[passed]
    return _node(sweep, passed).is_gradient


def _errors_of(sweep: Sweep, node: OperatorFindings, read: Sequence[Finding]) -> Iterator[float]:
    """The known errors of the floats that an operator reads and writes, without rests of sums."""
    for finding in filter(_is_float, (*read, *node.outputs)):
        error = error_of(finding) if finding.error is not None else finding.measurement.bound
        if error is not None and math.isfinite(error) and finding.row not in sweep.residues:
            yield error


def _learn_terms(sweep: Sweep, node: OperatorFindings) -> None:
    """Add the gradients that no operator reads. Gradients of biases have one axis and are not terms of other
    gradients."""
    for finding in node.outputs if node.is_gradient else ():
        error = error_size(finding)
        if not error or not math.isfinite(error) or is_vector(finding) or finding.row in sweep.residues:
            continue
        if finding.row - sweep.first_row not in sweep.is_read:
            elements = scale_of(finding).elements
            sweep.unread[elements] = max(error, sweep.unread.get(elements, 0.0))


def _sizes_of(sweep: Sweep, node: OperatorFindings) -> WrittenSizes:
    scales = [scale_of(output) for output in node.outputs]
    own = [error_size(output) for output in filter(_is_float, node.outputs) if output.row not in sweep.residues]
    return WrittenSizes(
        max(filter(math.isfinite, own), default=0.0),
        max((scale.rms for scale in scales), default=0.0),
        max((scale.rms * scale.elements for scale in scales), default=0.0),
        {scale.elements for scale in scales if scale.elements > 1},
    )


def _is_float(finding: Finding) -> bool:
    """Whether the relative error of a tensor is an error of values; indices and masks are equal or not."""
    return not RuleContext(finding).is_choice


def _zero_in_golden(finding: Finding) -> float:
    """The largest value of a target tensor that the golden has as zeros; 0.0 for other tensors."""
    moments = finding.measurement.moments
    return moments.max_abs if moments is not None and not moments.yy and math.isfinite(moments.max_abs) else 0.0


def _largest_norm(node: OperatorFindings) -> float:
    scales = map(scale_of, (*node.inputs, *node.outputs))
    return max((one.rms * math.sqrt(one.elements) for one in scales), default=0.0)


def agrees(finding: Finding) -> bool:
    """Whether a comparison found no difference, even if statistics or an XOR prove nothing."""
    if finding.verdict is not Verdict.UNKNOWN:
        return finding.verdict is Verdict.MATCH
    return is_alike(finding)


def unlike_rows(columns: Columns, rows: npt.NDArray[np.int64]) -> list[int]:
    """The rows, of those given, that are not alike (`is_alike`)."""
    is_open, is_bounded = ~has_error(columns), has_bound(columns)
    left: list[int] = rows[~(is_open & is_bounded)[rows]].tolist()
    whole = with_field(columns, "checksum") if left else columns
    pairs = network_fact(columns, bare_pairs)
    recorded = ((row, pairs[row]._replace(target=whole.targets[row], golden=whole.goldens[row])) for row in left)
    return [row for row, pair in recorded if not (is_open[row] and has_equal_xor(pair))]


def is_alike(finding: Finding) -> bool:
    """Whether statistics or an XOR of a tensor were compared and prove no error."""
    return finding.error is None and (finding.measurement.bound is not None or has_equal_xor(finding.pair))
