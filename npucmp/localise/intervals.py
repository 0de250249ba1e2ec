"""The interval that contains the error of each tensor that an operator reads, and the source of that knowledge.

    measured            [e, e]              values, or checksums that differ or are equal
    statistics          [bound, likely]     recorded figures: the proven error, and the likely error of their shift
    written             as its producer     it was compared where it was written
    unknown producer    [0, quantile]       no recorded operator wrote it: 90 % of the errors seen are no larger
    saved               [0, round-offs]     a forward saved it, and it was not recorded
    overwritten         [0, latest]         it was overwritten before it was recorded: the latest error of its shape
    uninitialised       [0, ∞] no blame     memory that no operator wrote
    parameter           [0, update]         the error that earlier steps may have made in a parameter
    left of a sum       [0, largest left]   the rest of a sum that cancels, of unknown size
    behind a root       [0, limit or more]  a root exists upstream: inputs below their limit may reach the limit
    no data             [0, ∞]              unreadable, excluded, missing

Each source is one function below. An output whose error exceeds the upper ends is BORN or WORSENED; an input whose
error exceeds the upper end of its edge is a GAP.

The likely error of an input without a recorded producer is the larger of the 90 % quantile of the errors before it and
the largest error just before. For a sum, product or quotient of elements the latest two outputs of its shape decide;
for the input of a gradient, gradients of as many elements that no operator reads. A saved tensor has two round-offs, at
least the usual error. A number that is 0 in the golden and remains of a cancelling sum has 8 times the largest such
value before it.
"""

from __future__ import annotations

import math
from typing import Callable, NamedTuple, Optional, Sequence

from npucmp.flow.contents import content_of, is_vector
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import BOTH_SIDES
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import Scale, scale_of
from npucmp.localise.rule_context import QUANTILE, RuleContext, differs, error_of, error_size
from npucmp.localise.seen_errors import error_of_operands, error_of_shape, usual_error
from npucmp.localise.sources import read_with, source_of
from npucmp.localise.sweep import Sweep, TensorSource
from npucmp.model import Finding, Verdict
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_folded, is_output, is_parameter, running_statistics

OF_GRADIENT = 3  # tensors: definition: the gradient of a product reads a gradient and both operands


class Interval(NamedTuple):
    """The error of a tensor is at least `low` and at most `high`; `source` is the kind of knowledge."""

    low: float = 0.0
    high: float = 0.0
    source: str = "measured"

    @property
    def is_known(self) -> bool:
        """Whether a record gives the error."""
        return self.source != "no data"

    @property
    def is_measured(self) -> bool:
        """Whether a record gives the size of the error; statistics that agree allow other sizes too."""
        return self.source not in ("no data", "statistics")


WORDS = {  # the words for intervals without a measurement; {high} is their upper end
    "unknown producer": f"about {100 * QUANTILE:g} % of the preceding errors that no root cause explains are at most "
    "{high}",
    "saved": "rounding of saved tensors causes an error of at most {high}",
    "parameter": "earlier steps cause a parameter error of at most {high}",
    "left of a sum": "the remainder of sums that cancel has an error of at most {high}",
}
NO_DATA = Interval(0.0, math.inf, "no data")


class ReadTensor(NamedTuple):
    """A tensor that an operator reads, its interval, the share of its error that reaches the outputs, and the largest
    error that reaches them: 0.0 if its size is unknown."""

    finding: Finding
    interval: Interval
    share: float
    high: float


class OperatorReads(NamedTuple):
    """All tensors that an operator reads.

    inputs       its own inputs, without memory that no operator wrote
    saved        the tensors that its forward read and wrote, and the inputs of other ranks
    is_known     whether each of its inputs has a record
    is_measured  whether the records give the size of each error; statistics that agree do not
    error        the largest known incoming error; None if the compared tensors agree but more tensors are read
    """

    inputs: Sequence[ReadTensor]
    saved: Sequence[ReadTensor]
    is_known: bool
    is_measured: bool
    error: Optional[float]


def reads_of(sweep: Sweep, node: OperatorFindings) -> OperatorReads:
    """The tensors that an operator reads, each with its interval."""
    inputs = [
        _read(sweep, node, finding, _of_input(sweep, node, finding, source))
        for finding, source in ((one, source_of(sweep, one)) for one in node.inputs)
        if source is None or not source.meaningless
    ]
    context = [] if node.op.has("saves nothing") else node.extra_inputs
    saved = [_read(sweep, node, one, _interval_of_values(sweep, one) or NO_DATA) for one in context]
    is_measured = _are_known(node, inputs, lambda one: one.is_measured)
    is_known = is_measured or (sweep.by_round_off and _are_known(node, inputs, lambda one: one.is_known))
    is_open = not is_measured and not any(_is_reached(sweep, finding) for finding in node.inputs)
    is_open = is_open and not any(may_have_moved(sweep, finding) for finding in (*node.inputs, *context))
    error = None if is_open else max([0.0, *(read.high for read in inputs), *(read.high for read in saved)])
    return OperatorReads(inputs, saved, is_known, is_measured, error)


def _read(sweep: Sweep, node: OperatorFindings, finding: Finding, interval: Interval) -> ReadTensor:
    share = share_of(sweep, node, finding) if interval.high and interval.is_measured else 1.0
    high = interval.high * share if share and interval.is_measured else 0.0
    return ReadTensor(finding, interval, share, high)


def share_of(sweep: Sweep, node: OperatorFindings, finding: Finding) -> float:
    """The share of the error of an input that can reach the outputs."""
    return 0.0 if node.reads_operands and _is_product(sweep, node, finding) else _share_of(node, finding)


def _is_product(sweep: Sweep, node: OperatorFindings, finding: Finding) -> bool:
    """Whether a gradient of a product in a graph reads, beside the operands, the product of its forward."""
    source = source_of(sweep, finding)
    wrote = source.finding.pair if source is not None else None
    if wrote is None or not is_output(wrote) or is_gradient(wrote.operator):
        return False
    if source is None or not op_type_of(wrote.operator).has("contracts"):
        return False
    operands = [one for one in read_with(sweep, source.finding) if not is_vector(one)]
    read = {content_of(one) for one in node.inputs if one is not finding} - {0}
    return bool(operands) and read.issuperset(map(content_of, operands))


def _of_input(sweep: Sweep, node: OperatorFindings, finding: Finding, source: Optional[TensorSource]) -> Interval:
    if is_overwritten(sweep, node, finding):
        return _overwritten_interval(sweep, node, finding)
    known = _interval_of_values(sweep, finding)
    if known is None:
        return NO_DATA if source is None else _of_producer(sweep, source.finding)
    descends = source is not None and source.tainted and not known.is_measured
    return NO_DATA if descends else known  # statistics give no upper bound of an error that descends from a root


def _interval_of_values(sweep: Sweep, finding: Finding) -> Optional[Interval]:
    """The interval from values or checksums; if the user's own rules decide, tensors that agree by them have no
    error."""
    error = error_of(finding)
    if error is None:
        return _of_statistics(finding)
    error = error if sweep.by_round_off or differs(finding) else 0.0
    return Interval(error, error)


def _of_producer(sweep: Sweep, finding: Finding) -> Interval:
    """The interval that the producer has."""
    if finding.row in sweep.behind:
        error = sweep.behind[finding.row]
        return NO_DATA if error is None else Interval(error, error, "written")
    known = _interval_of_values(sweep, finding)
    return NO_DATA if known is None else known._replace(source="written")


def _overwritten_interval(sweep: Sweep, node: OperatorFindings, finding: Finding) -> Interval:
    """The latest error of that shape; zero for running statistics, on which a gradient does not depend."""
    if node.is_gradient:
        return Interval(source="overwritten")
    error = error_of_shape(sweep, finding.pair.golden_shape)
    error = unknown_producer(sweep, finding).high if error is None else error
    return Interval(0.0, max(error, RuleContext(finding).round_off), "overwritten")


def unknown_producer(sweep: Sweep, finding: Finding) -> Interval:
    """The interval of a tensor that no recorded operator wrote."""
    usual = usual_error(sweep, finding) if sweep.rules.uses("background") else 0.0
    return Interval(0.0, usual, "unknown producer")


def is_overwritten(sweep: Sweep, node: OperatorFindings, finding: Finding) -> bool:
    """Whether a recorded input shows nothing about the tensor that the operator read."""
    may_overwrite = node.op.has("in place", "averages")  # other operators only overwrite checksums
    if not may_overwrite and finding.metric != "checksum":
        return False
    nowhere = may_overwrite and source_of(sweep, finding) is None
    return sweep.rules.holds("overwritten", RuleContext(finding, node, no_producer=nowhere))


def _is_reached(sweep: Sweep, finding: Finding) -> bool:
    source = source_of(sweep, finding)
    return differs(finding) or (finding.error is None and source is not None and source.tainted)


def may_have_moved(sweep: Sweep, finding: Finding) -> bool:
    """Whether a tensor is known by statistics alone and descends from a root: they give no upper bound of its
    error. Without a recorded producer it may do so if its figures differ."""
    x, y = finding.measurement.statistics
    if not sweep.any_tainted or x is None or y is None or not (finding.error is None or math.isnan(finding.error)):
        return False
    source = source_of(sweep, finding)
    if source is None:
        return not is_parameter(finding.pair) and repr(x) != repr(y)
    return source.tainted


# Incoming errors, for one output


def incoming_error(sweep: Sweep, node: OperatorFindings, finding: Finding, reads: OperatorReads) -> Interval:
    """The widest interval of all incoming errors of an operator, for one of its outputs."""
    if reads.error is None:
        is_left = is_cancellation_residue(sweep, node)
        before = _left_of_a_sum(sweep, node) if is_left else unknown_producer(sweep, finding)
        unproven = Interval(0.0, sweep.updates.unproven if finding.measurement.bound is not None else 0.0, "parameter")
        # operands that are added, multiplied or divided element by element have the shape of the result
        is_open = not node.inputs and node.op.has("shifts")
        shifted = error_of_operands(sweep, finding.pair.golden_shape) if is_open else 0.0
        operands = Interval(0.0, shifted, "unknown producer")
        found = [before, operands, unproven, _unrecorded_parameters(sweep, node)]
        return max(found, key=lambda interval: interval.high)
    own, read = _own_operand(node, finding, reads), (*reads.inputs, *reads.saved)
    known = reads.error if own is None else max((one.high for one in read if one.finding is not own), default=0.0)
    found = [Interval(known, known)]
    if math.isinf(known):
        return found[0]
    if sweep.by_round_off and not is_saved_known(sweep, node):
        # each side rounded an unrecorded tensor that a forward saved for its backward
        saved = Interval(0.0, BOTH_SIDES * RuleContext(finding).round_off, "saved")
        found += [unknown_producer(sweep, finding), saved]
    elif not node.is_gradient:
        found.append(_unrecorded_parameters(sweep, node))
    return max(found, key=lambda interval: interval.high)


def behind_a_root(sweep: Sweep, finding: Finding) -> float:
    """If a root exists upstream, inputs below their limit may have an error as large as the limit."""
    is_behind = sweep.any_tainted and sweep.rules.uses("behind_root")
    return max(finding.limit, FACTOR * finding.working) if is_behind else 0.0


def _left_of_a_sum(sweep: Sweep, node: OperatorFindings) -> Interval:
    """The largest error of earlier rests of sums, infinite if the golden's sum is zero, and of the operators just
    before."""
    presumed = [] if node.inputs else map(error_size, node.assumed_inputs)
    return Interval(0.0, max(sweep.largest_left, *presumed, 0.0), "left of a sum")


def _unrecorded_parameters(sweep: Sweep, node: OperatorFindings) -> Interval:
    """The error that earlier updates may have made in parameters that were not recorded."""
    recorded = [one for one in node.inputs if is_parameter(one.pair)]
    drifts = any(one.error is None for one in recorded) or (node.op.parameters and not recorded)
    is_first = not (node.inputs or node.assumed_inputs)  # the first operator reads data and parameters
    return Interval(0.0, sweep.updates.unproven if drifts or is_first else 0.0, "parameter")


def is_half_known(sweep: Sweep, node: OperatorFindings) -> bool:
    """Whether an existing error may have come in through unrecorded inputs."""
    return sweep.any_tainted and not node.reads_recorded


def is_saved_known(sweep: Sweep, node: OperatorFindings) -> bool:
    """Whether the tensors that a forward saved for its backward were compared, if it saves any."""
    return not node.reads_saved or (bool(node.extra_inputs) and not uncompared_saved_tensors(sweep, node))


def inputs_agree(sweep: Sweep, node: OperatorFindings, reads: OperatorReads) -> bool:
    """Whether all that an operator reads was compared and agrees: inputs, parameters and saved tensors."""
    has_parameters = not node.op.parameters or any(is_parameter(one.pair) for one in node.inputs)
    is_complete = reads.is_measured and is_saved_known(sweep, node) and not node.remote_inputs_missing
    within = (read.interval.high <= read.finding.limit for read in (*reads.inputs, *reads.saved))
    return is_complete and has_parameters and bool(node.inputs) and all(within)


def uncompared_saved_tensors(sweep: Sweep, node: OperatorFindings) -> list[Finding]:
    """The tensors that its forward read or wrote and that could not be compared."""
    if not (sweep.any_unreadable or node.has_remote_inputs):
        return []
    found = [one for one in node.extra_inputs if producer_finding(sweep, one).verdict is Verdict.UNREADABLE]
    return [one for one in found if not is_parameter(one.pair)]


def producer_finding(sweep: Sweep, finding: Finding) -> Finding:
    """The finding of an input; that of its producer's output if only the output was compared."""
    source = source_of(sweep, finding) if finding.error is None else None
    return source.finding if source else finding


def is_cancellation_residue(sweep: Sweep, node: OperatorFindings) -> bool:
    """Whether the largest error that an operator reads is that of the rest of a sum that cancels."""
    if not node.inputs:
        return bool(node.assumed_inputs) and all(one.row in sweep.residues for one in node.assumed_inputs)
    worst = max(node.inputs, key=error_size)
    return bool(error_size(worst)) and is_residue(sweep, worst)


def is_residue(sweep: Sweep, finding: Finding) -> bool:
    """Whether a tensor is the rest of a sum that cancels, here or where it was seen before."""
    source = source_of(sweep, finding)
    return finding.row in sweep.residues or (source is not None and source.is_residue)


# Errors along an edge


def edge_interval(sweep: Sweep, node: OperatorFindings, finding: Finding, source: Optional[TensorSource]) -> Interval:
    """The interval of an input that differs, from the facts about the tensor before its operator reads it."""
    if is_overwritten(sweep, node, finding):
        return Interval(0.0, math.inf, "overwritten")
    if source is not None and source.meaningless:
        return Interval(0.0, math.inf, "uninitialised")
    if source is not None and source.finding.verdict is Verdict.MISSING and not source.tainted:
        return unknown_producer(sweep, finding)  # one side lacks the output, or each rank has a share of its own
    if source is not None:
        high = math.inf if source.tainted else error_size(source.finding)
        return Interval(0.0, high, "behind a root" if source.tainted else "written")
    if is_parameter(finding.pair):
        is_average = finding.pair.slot in running_statistics(node.operator)
        if (sweep.updates.faulty and sweep.by_round_off) or (is_average and sweep.any_tainted):
            return Interval(0.0, math.inf, "behind a root")  # a call before it averaged what descends from a root
        return Interval(0.0, sweep.updates.bound(finding), "parameter")
    is_state = node.op.has("in place") and finding.pair.slot == "input:0"  # of the step before: a counter, a moment
    if sweep.any_tainted or (is_state and sweep.updates.faulty and sweep.by_round_off):
        return Interval(0.0, math.inf, "behind a root")
    return unknown_producer(sweep, finding)


def _of_statistics(finding: Finding) -> Optional[Interval]:
    """The interval from statistics that prove no difference. Statistics of whole numbers and masks that agree give no
    error."""
    from npucmp.localise.stat_columns import likely_error

    bound, likely = finding.measurement.bound, likely_error(finding)
    x, y = finding.measurement.statistics
    if likely is not None:
        return Interval(bound or 0.0, max(bound or 0.0, likely), "statistics")
    return Interval(0.0, 0.0, "statistics") if bound is not None and repr(x) == repr(y) else None


def _are_known(node: OperatorFindings, reads: Sequence[ReadTensor], is_known: Callable[[Interval], bool]) -> bool:
    """Whether every input has a record, here or where it was written. Folded weights have no golden partner: an error
    in them counts as this operator's."""
    reads = [read for read in reads if not is_folded(read.finding.pair)]
    unknown = [read.finding for read in reads if not is_known(read.interval)]
    if not node.reads_recorded or any(one.verdict is not Verdict.MISSING or _is_unseen(node, one) for one in unknown):
        return False
    data = [read.interval for read in reads if not is_parameter(read.finding.pair)] if unknown else []
    return not data or any(map(is_known, data))


def _is_unseen(node: OperatorFindings, finding: Finding) -> bool:
    """Whether one of the runs did not record the inputs of the operators, this input among them."""
    operators = node.pair.target_op, node.pair.golden_op
    unseen = any(operator is not None and not operator.reads_recorded for operator in operators)
    return unseen and not is_parameter(finding.pair)


def _share_of(node: OperatorFindings, finding: Finding) -> float:
    """The share of the error without regard to the tensor's producer. In a sum it is the operand's part of the result;
    so the bias of a product reaches no gradient, and a gradient does not read the output of its forward."""
    if node.op.has("sums") and node.op.has("saves nothing") and not node.is_gradient:
        return _part(node, finding)
    if node.is_gradient and node.op.has("contracts", "multilinear") and finding.pair.slot.startswith("output"):
        return 0.0
    if not node.op.has("contracts"):
        return 1.0
    if not is_vector(finding) or not (is_parameter(finding.pair) or _reads_operands_beside(node, finding)):
        return 1.0
    return 0.0 if node.is_gradient else _part(node, finding)


def _reads_operands_beside(node: OperatorFindings, finding: Finding) -> bool:
    """Whether the gradient of a product reads a gradient and two operands beside a vector, which was then added to the
    product. Graphs do not mark parameters."""
    others = [one for one in node.inputs if one is not finding and not is_vector(one) and scale_of(one).elements > 1]
    return node.reads_operands and len(others) >= OF_GRADIENT


def _own_operand(node: OperatorFindings, finding: Finding, reads: OperatorReads) -> Optional[Finding]:
    """The operand whose gradient the output is, on which that gradient does not depend; None if the shape is
    ambiguous."""
    if not (node.is_gradient and node.op.has("multilinear") and finding.pair.golden is not None):
        return None
    operands = [one.finding for one in reads.saved if one.finding.pair.slot.startswith("input")]
    shape = finding.pair.golden.shape
    found = [one for one in operands if one.pair.golden is not None and one.pair.golden.shape == shape]
    return found[0] if len(found) == 1 else None


def _part(node: OperatorFindings, finding: Finding) -> float:
    """The size of an operand relative to the result, at most 1; 1 for a reduction of one operand."""
    read, wrote = scale_of(finding), max(map(scale_of, node.outputs), default=Scale())
    return min(1.0, read.rms / wrote.rms) if wrote.rms and 0 < read.elements <= wrote.elements else 1.0
