"""The errors that a search has seen so far, of tensors that descend from no root.

They replace an error that was not recorded: a quantile of them, or the largest of the operators just before.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Callable, Iterator, Optional, Sequence, Union

from npucmp.flow.contents import is_few, is_vector
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import scale_of
from npucmp.localise.rule_context import RuleContext, error_of, error_size
from npucmp.measure.recorded_stats import has_equal_xor
from npucmp.model import Finding, Verdict
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_output

if TYPE_CHECKING:
    from npucmp.localise.stat_columns import StatColumns

QUANTILE = 0.9  # share of the errors seen: chosen: larger errors are outliers, not measured
RECENT_OPERATORS = 8  # operators: chosen: code that was not dumped most likely reads their outputs, not measured
OPERANDS = 2  # outputs: definition: a sum, a product and a quotient of elements have two operands


class SeenErrors:
    """The errors of the operators before the operator that is visited.

    left_over             rows of tensors that are the rest of a sum that cancels
    largest_left          the largest error of these; 0.0 without any
    left_of_zero          the largest value of those that are zero in the golden, and have no relative error
    changed_choice_share  the largest share of a choice that flipped, as near ties do
    """

    def __init__(
        self,
        is_read: Callable[[Finding], bool] = lambda finding: True,
        nodes: Sequence[OperatorFindings] = (),
        columns: Optional[StatColumns] = None,
    ) -> None:
        self._is_read, self._nodes, self._columns = is_read, nodes, columns
        self._unread: dict[int, float] = {}  # largest errors of gradients that no operator reads, by their elements
        self.residues: set[int] = set()
        self.largest_left = 0.0
        self.left_of_zero = 0.0
        self.changed_choice_share = 0.0
        self._last_agreeing: Optional[Finding] = None
        self._passed: list[Union[int, tuple[OperatorFindings, Sequence[Finding]]]] = []  # not added yet
        self._recent: deque[float] = deque(
            maxlen=RECENT_OPERATORS
        )  # largest errors of the outputs of the latest operators
        self._sizes: deque[float] = deque(maxlen=RECENT_OPERATORS)  # rms of the outputs of the latest operators
        self._sums: deque[float] = deque(maxlen=RECENT_OPERATORS)  # rms times elements of the same outputs
        self._elements: deque[set[int]] = deque(maxlen=RECENT_OPERATORS)  # numbers of elements of the same outputs
        self._gradients: deque[float] = deque(maxlen=RECENT_OPERATORS)  # norms of the latest gradients
        self._largest_gradient = 0.0  # rms
        self._errors: list[float] = []  # sorted
        # shape → rows and errors of the latest outputs, in order
        self._shapes: dict[tuple[int, ...], list[tuple[int, float]]] = {}

    def usual(self, finding: Finding) -> float:
        """The assumed size of an unknown error: a quantile of the errors seen so far; for a scalar, which may be the
        rest of a sum that cancels, the largest. A loss does not count as such a scalar, because it depends on the whole
        output of a network. 0.0 if no error was seen."""
        self._catch_up()
        if not (self._errors or self.largest_left or self.left_of_zero):
            return 0.0
        if is_few(finding) and not op_type_of(finding.pair.operator).has("loss"):
            is_left = 0.0 < _zero_in_golden(finding) <= FACTOR * self.left_of_zero
            return math.inf if is_left else max([*self._errors[-1:], self.largest_left])
        usual = self._errors[int(QUANTILE * (len(self._errors) - 1))] if self._errors else 0.0
        return max(usual, *self._recent, self.below_rounding(finding), self._of_terms(finding))

    def _of_terms(self, finding: Finding) -> float:
        """The largest error of gradients of as many elements that no operator reads: autograd adds up the gradients of
        a tensor that several operators read, and dumps do not record the sum."""
        if is_output(finding.pair) or not is_gradient(finding.pair.operator):
            return 0.0
        return self._unread.get(scale_of(finding).elements, 0.0)

    def below_rounding(self, finding: Finding) -> float:
        """The error of a gradient that is smaller than the rounding of its terms, if the terms are as large as the
        latest outputs, or, behind a backward pass, as the largest gradient. Such a gradient belongs to a bias (one
        axis) that does not affect the network, as that of the keys of an attention, and is zero in exact arithmetic."""
        operator = finding.pair.operator
        if not is_vector(finding) or is_output(finding.pair):
            return 0.0
        self._catch_up()
        is_latest = is_gradient(operator) or op_type_of(operator).has("collective")
        size, unit = scale_of(finding).rms, max(finding.working, finding.limit / FACTOR)
        rounding = unit * (max(self._sizes, default=0.0) if is_latest else self._largest_gradient)
        return rounding / size if 0.0 < size <= FACTOR * rounding else 0.0

    def may_cancel(self, finding: Finding) -> bool:
        """Whether an input of few elements may be the rest of a sum whose terms cancel. A gradient that exceeds the
        latest gradients is not: the backward pass begins with a scalar that only constants multiplied."""
        if not is_gradient(finding.pair.operator):
            return is_few(finding)
        self._catch_up()
        return is_few(finding) and scale_of(finding).largest < max(self._gradients, default=0.0)

    def rounding_of_sums(self, error: float) -> float:
        """The error of a sum of all elements of one of the latest outputs, if each has this relative error."""
        self._catch_up()
        return FACTOR * error * max(self._sums, default=0.0)

    def has_recent(self, finding: Finding) -> bool:
        """Whether the latest operators wrote a tensor with as many elements, from which code that was not dumped may
        have made this tensor."""
        self._catch_up()
        return any(scale_of(finding).elements in counts for counts in self._elements)

    def of_shape(self, shape: tuple[int, ...]) -> Optional[float]:
        """The error of the latest output of a shape; None if there was none."""
        self._catch_up()
        found = self._shapes.get(shape)
        return None if found is None else found[-1][1]

    def of_operands(self, shape: tuple[int, ...]) -> float:
        """The largest error of the latest outputs of a shape, as many as a sum or a product has operands; 0.0 if there
        are none."""
        self._catch_up()
        return max((error for _, error in self._shapes.get(shape, ()) if math.isfinite(error)), default=0.0)

    @property
    def last_agreeing(self) -> Optional[Finding]:
        """The latest tensor that agrees."""
        self._catch_up()
        return self._last_agreeing

    def mark_residue(self, finding: Finding) -> None:
        """Mark a tensor as the rest of a sum that cancels."""
        self.residues.add(finding.row)

    def pass_by(self, node: OperatorFindings, read: Sequence[Finding]) -> None:
        """Queue an operator without differing tensors, to be added on the next query; `read` holds its inputs that
        count."""
        self._passed.append((node, read))

    def pass_number(self, at: int) -> None:
        """Queue an operator in columns by its number."""
        self._passed.append(at)

    def learn(self, node: OperatorFindings, read: Sequence[Finding]) -> None:
        """Add an operator that no error of a root reaches."""
        self._catch_up()
        for error in self._of(node, read):
            insort(self._errors, error)
        self._learn_sizes(node)
        self._learn_terms(node)
        if node.is_gradient:
            self._gradients.append(_largest_norm(node))
            self._learn_gradients([node])
        self._last_agreeing = next(filter(agrees, _latest_first(node)), self._last_agreeing)

    def learn_shapes(self, node: OperatorFindings) -> None:
        """Add the errors of the outputs of any operator by their shapes."""
        for finding in node.outputs:
            if finding.pair.golden is not None and error_of(finding) is not None:
                shape, latest = finding.pair.golden.shape, (finding.row, error_size(finding))
                self._shapes[shape] = sorted({*self._shapes.get(shape, ()), latest})[-OPERANDS:]

    def learn_left(self, finding: Finding) -> None:
        """Add the error of the rest of a sum that cancels."""
        self.residues.add(finding.row)
        if math.isfinite(error_size(finding)):
            self.largest_left = max(self.largest_left, error_size(finding))
        self.left_of_zero = max(self.left_of_zero, _zero_in_golden(finding))

    def _catch_up(self) -> None:
        if not self._passed:
            return
        passed, self._passed = self._passed, []
        columns, errors, largest = self._columns, [*self._errors], self._largest_gradient
        for one in passed:
            if not isinstance(one, int):
                errors += self._of(*one)
            elif columns is not None:
                errors += columns.errors[one]
                largest = max(largest, columns.written_rms[one] if columns.network.gradient[one] else 0.0)
        self._errors, self._largest_gradient = sorted(errors), largest
        asked = [one for one in passed if not isinstance(one, int) or columns is None or columns.has_errors[one]]
        for node in map(self._node, asked):
            self.learn_shapes(node)
            self._learn_terms(node)
        for node in map(self._node, passed[-RECENT_OPERATORS:]):
            self._learn_sizes(node)
        gradients = [one for one in passed if self._is_gradient(one)]
        self._gradients += map(_largest_norm, map(self._node, gradients[-RECENT_OPERATORS:]))
        self._learn_gradients([self._node(one) for one in gradients if not isinstance(one, int)])
        agreeing = (one for node in map(self._node, reversed(passed)) for one in _latest_first(node) if agrees(one))
        self._last_agreeing = next(agreeing, self._last_agreeing)

    def _node(self, passed: Union[int, tuple[OperatorFindings, Sequence[Finding]]]) -> OperatorFindings:
        return self._nodes[passed] if isinstance(passed, int) else passed[0]

    def _is_gradient(self, passed: Union[int, tuple[OperatorFindings, Sequence[Finding]]]) -> bool:
        if isinstance(passed, int) and self._columns is not None:
            return self._columns.network.gradient[passed]
        return self._node(passed).is_gradient

    def _of(self, node: OperatorFindings, read: Sequence[Finding]) -> Iterator[float]:
        """The known errors of the floats that an operator reads and writes, without rests of sums."""
        for finding in filter(_is_float, (*read, *node.outputs)):
            error = error_of(finding) if finding.error is not None else finding.measurement.bound
            if error is not None and math.isfinite(error) and finding.row not in self.residues:
                yield error

    def _learn_terms(self, node: OperatorFindings) -> None:
        """Add the gradients that no operator reads. Gradients of biases have one axis and are not terms of other
        gradients."""
        for finding in node.outputs if node.is_gradient else ():
            error = error_size(finding)
            if not error or not math.isfinite(error) or is_vector(finding) or finding.row in self.residues:
                continue
            if not self._is_read(finding):
                elements = scale_of(finding).elements
                self._unread[elements] = max(error, self._unread.get(elements, 0.0))

    def _learn_gradients(self, nodes: Sequence[OperatorFindings]) -> None:
        scales = (scale_of(one).rms for node in nodes for one in node.outputs)
        self._largest_gradient = max([self._largest_gradient, *filter(math.isfinite, scales)])

    def _learn_sizes(self, node: OperatorFindings) -> None:
        scales = [scale_of(one) for one in node.outputs]
        self._sizes.append(max((one.rms for one in scales), default=0.0))
        self._sums.append(max((one.rms * one.elements for one in scales), default=0.0))
        self._elements.append({one.elements for one in scales if one.elements > 1})
        own = [error_size(one) for one in filter(_is_float, node.outputs) if one.row not in self.residues]
        self._recent.append(max(filter(math.isfinite, own), default=0.0))


def _is_float(finding: Finding) -> bool:
    """Whether the relative error of a tensor is an error of values; indices and masks are equal or not."""
    return not RuleContext(finding).is_choice


def _zero_in_golden(finding: Finding) -> float:
    """The largest value of a target tensor that the golden has as zeros; 0.0 for other tensors."""
    moments = finding.measurement.moments
    return moments.max_abs if moments is not None and not moments.yy and math.isfinite(moments.max_abs) else 0.0


def _latest_first(node: OperatorFindings) -> Iterator[Finding]:
    return iter((*node.outputs, *node.inputs[::-1]))


def _largest_norm(node: OperatorFindings) -> float:
    scales = map(scale_of, (*node.inputs, *node.outputs))
    return max((one.rms * math.sqrt(one.elements) for one in scales), default=0.0)


def agrees(finding: Finding) -> bool:
    """Whether a comparison found no difference, even if statistics or an XOR prove nothing."""
    if finding.verdict is not Verdict.UNKNOWN:
        return finding.verdict is Verdict.MATCH
    return is_alike(finding)


def is_alike(finding: Finding) -> bool:
    """Whether statistics or an XOR of a tensor were compared and prove no error."""
    return finding.error is None and (finding.measurement.bound is not None or has_equal_xor(finding.pair))


def is_still(finding: Finding) -> bool:
    """Whether the two sides hold the same bits, or statistics that prove no difference."""
    if finding.verdict is not Verdict.MATCH and finding.verdict is not Verdict.UNKNOWN:
        return False
    if finding.error is None:
        return True
    moments = finding.measurement.moments
    return finding.error == 0.0 and (moments is None or moments.equal == moments.elements)
