"""The errors of each operator of a step and rank: of its inputs and outputs against the truth, and its own."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.model import DIFFERS, Comparison, Pair, Report, TensorRef, Verdict, map_comparisons
from npucmp.report.phrases import line_of
from npucmp.three_runs.alignment import TensorKey, TruthRuns, truth_tensors
from npucmp.three_runs.measure import measured, triples_of
from npucmp.three_runs.own_errors import OwnErrors
from npucmp.three_runs.sums import GG, ErrorSums

# elements: work: operators are recomputed until they have so many together, or a quarter of those of a run; measured:
# recomputing an element takes twice as long as measuring one
LEAST, PART = 1 << 24, 4


class OperatorErrors:
    """An operator of one rank, over all steps so far.

    inputs, outputs   sums by slot; own: of its own errors, by slot of outputs
    reads             whether its inputs were recorded
    dtypes            element types in the target, by slot
    differing         slots in which the target differs from the golden
    """

    def __init__(self, rank: Optional[int], pair: Pair) -> None:
        self.rank, self.order = rank, pair.order
        self.name, self.op_type, self.phase = pair.operator.name, pair.operator.op_type, pair.operator.phase
        self.golden = pair.golden_op.name if pair.golden_op is not None else ""
        self.stack = line_of(pair)
        self.reads = False
        self.inputs: dict[str, ErrorSums] = {}
        self.outputs: dict[str, ErrorSums] = {}
        self.own: dict[str, ErrorSums] = {}
        self.dtypes: dict[str, str] = {}
        self.differing: set[str] = set()

    def merge(self, other: OperatorErrors) -> None:
        """Add the errors of the same operator in another step."""
        self.reads |= other.reads
        for known, added in zip((self.inputs, self.outputs, self.own), (other.inputs, other.outputs, other.own)):
            for slot, sums in added.items():
                known[slot] = known[slot].merged(sums) if slot in known else sums
        self.dtypes.update(other.dtypes)
        self.differing |= other.differing


class RankErrors(NamedTuple):
    """The operators of a step and rank in order of execution, the number of tensors without errors by reason, and that
    of tensors that differ from the golden in operators without errors."""

    operators: list[OperatorErrors]
    problems: dict[str, int]
    unmeasured: int = 0


class ErrorRequest(NamedTuple):
    """The inputs of a task. `truth` is None if operators are recomputed instead; `recompute`: whether operators are
    recomputed."""

    truth: Optional[TruthRuns]
    context: ReadContext
    recompute: bool
    jobs: int = 1


def errors_of_steps(request: ErrorRequest, report: Report) -> RankErrors:
    """Return the errors of all operators, steps added up, ranks apart."""
    every: dict[tuple[Optional[int], str], OperatorErrors] = {}
    problems: dict[str, int] = {}
    unmeasured = 0
    for found in map_comparisons(report.comparisons, partial(_errors, request)):
        for operator in found.operators:
            key = operator.rank, operator.golden
            if key in every:
                every[key].merge(operator)
            else:
                every[key] = operator
        for reason, count in found.problems.items():
            problems[reason] = problems.get(reason, 0) + count
        unmeasured += found.unmeasured
    return RankErrors([*every.values()], problems, unmeasured)


def _errors(request: ErrorRequest, number: int, one: Comparison) -> RankErrors:
    # what is UNKNOWN to the comparison is no pair: gradients of other autograd nodes, another draw
    pairs = [finding.measurement.pair for finding in one.findings if finding.verdict is not Verdict.UNKNOWN]
    problems: dict[str, int] = {}
    truth = request.truth
    if truth is None:
        operators = [OperatorErrors(one.rank, pair) for pair, *_ in _by_operator(pairs)]
    elif truth.runs[number] is None:
        return RankErrors([], {"the truth has no such step and rank": len(pairs)}, one.tally.differs)
    else:
        run = truth.runs[number]
        assert run is not None
        tensors = truth_tensors(run, one.golden, truth.options, request.context)
        operators = [*_measured_operators(one, pairs, tensors, request, problems)]
    if request.recompute:
        _add_own(operators, pairs, OwnErrors(one.target, one.golden, request.context), truth is None)
    known, unmeasured = {operator.order: operator for operator in operators}, 0
    for finding in one.findings:
        if finding.verdict in DIFFERS:
            pair = finding.measurement.pair
            if pair.order in known:
                known[pair.order].differing.add(pair.slot)
            else:
                unmeasured += 1
    return RankErrors(operators, problems, unmeasured)


def _by_operator(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    for _, own in groupby(sorted(pairs, key=lambda pair: pair.order), key=lambda pair: pair.order):
        yield [*own]


def _measured_operators(
    one: Comparison,
    pairs: Sequence[Pair],
    tensors: Mapping[TensorKey, TensorRef],
    request: ErrorRequest,
    problems: dict[str, int],
) -> Iterator[OperatorErrors]:
    """Yield the operators of a step and rank with their errors; `problems` counts the tensors that have none."""
    triples = [*triples_of(sorted(pairs, key=lambda pair: pair.order), tensors)]
    current: Optional[OperatorErrors] = None
    for triple, sums in measured(triples, request.context, request.jobs):
        pair = triple.pair
        if current is None or current.order != pair.order:
            if current is not None:
                yield current
            current = OperatorErrors(one.rank, pair)
        if pair.golden is None or pair.target is None:
            continue
        if not pair.golden.is_output:
            current.reads = True
        if sums is None:
            problems[triple.problem] = problems.get(triple.problem, 0) + 1
        else:
            (current.outputs if pair.golden.is_output else current.inputs)[pair.slot] = sums
            current.dtypes[pair.slot] = pair.target.dtype
    if current is not None:
        yield current


def _add_own(operators: Sequence[OperatorErrors], pairs: Sequence[Pair], own: OwnErrors, every: bool) -> None:
    """Recompute operators: those whose errors grow the most over the errors of their inputs come first. `every`: as
    far as they can be recomputed."""
    partners = {
        pair.order: (pair.target_op, pair.golden_op)
        for pair in pairs
        if pair.target_op is not None and pair.golden_op is not None
    }
    slots = {(pair.order, pair.slot) for pair in pairs}
    left = max(LEAST, sum(pair.elements for pair in pairs) // PART)
    for operator in sorted(operators, key=lambda operator: -growth_of(operator)):
        if operator.order not in partners:
            continue
        target, golden = partners[operator.order]
        assert target is not None and golden is not None
        size = own.size(target, golden)
        if size is None or (left < size and not every):
            continue
        left -= size
        sums = own.sums(target, golden)
        operator.own = {slot: one for slot, one in sums.items() if (operator.order, slot) in slots}
        tensors = {tensor.slot: tensor.dtype for tensor in target.tensors}
        operator.dtypes.update({slot: tensors[slot] for slot in operator.own})


def growth_of(operator: OperatorErrors) -> float:
    """Return the logarithm of the largest ratio of errors of an output, less that of its inputs."""
    ratios = [sums.log_ratio().value for sums in operator.outputs.values() if sums.total[GG]]
    inputs = [sums.log_ratio().value for sums in operator.inputs.values() if sums.total[GG]]
    return max(ratios, default=0.0) - max(0.0, max(inputs, default=0.0))
