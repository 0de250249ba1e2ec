"""The working precision of every tensor: the types that rounded its values, followed along their producers.

A bfloat16 cast on another branch, or before a master weight, does not affect a float32 product. If the errors of all
operands are known, the limit of a result depends on the types of its operator alone; otherwise on the coarsest type
that the values went through. An operand that cannot be read widens no limit: the search knows that its error may be
any. If their producers are unknown, time and the run decide: the coarsest type seen up to the
tensor, and the coarsest type that a good part of the run has.

"A good part" is a tenth of the float tensors. The same two types count if a backward operator reads a saved tensor that
was not dumped. Parameters and tensors of equal bits use their own type. A module with recorded inner operators uses all
types so far.

The types of a run are read from its values, which may be coarser than those of its files. A file of float32 may hold a
run of float16 or bfloat16: engines with float32 outputs widen their values, and numpy has no bfloat16. A file of
float64 may hold a run of these types or of float32, because arrays of Python are float64. The moments of a tensor show
whether every value is a number of a narrower type (judge/precision.py). One tensor proves nothing about the run,
because a single operator that rounds to 16 bits is a fault. So the computed outputs vote:

    the run  more than half of the outputs hold rounded values. Then every tensor has the type that holds it
    a kind   all operators of a type (two at least) write such values, as in a mixed run. Then these operators have the
             type, and so have the tensors that others read from them

Outputs that only move, choose or clip values do not vote, nor do constants, whole numbers and values that any type
holds. If no output votes, inputs that differ vote, but not the parameters.

Steps of 8 bits are shown by no moment. If most computed outputs of a run in float32 are as far from the golden as 8
bits are, a sample of their values is read again (measure/equal_steps.py); the same vote decides.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import AbstractSet, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from npucmp.dump.limits import ReadContext
from npucmp.flow.edges import Edges
from npucmp.flow.operators import OperatorFindings, nodes_of
from npucmp.judge.precision import (
    HALF_TYPES,
    NARROWER,
    SINGLE,
    Precision,
    coarser_round_off,
    holds,
    is_quantised,
    is_rounded,
    round_off_of,
    stored_round_off,
)
from npucmp.measure.metrics import rel_l2
from npucmp.model import Finding, Measurement, Pair, Run, Side, TensorRef, Verdict
from npucmp.model.dtypes import DTYPES, lookup
from npucmp.model.moments import SHORT_BITS
from npucmp.model.network import by_network
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_output, is_parameter
from npucmp.model.table import Columns

MOVES = ("copies", "hands on", "views", "picks", "looks up", "rectifies", "bounds", "masks", "constant")
# share of the float tensors of a run: chosen: a type that as many have is not that of a side branch, not measured
COMMON_SHARE = 0.1


class EffectivePrecision(NamedTuple):
    """limiting: the precision that sets the limit of a tensor; coarsest: the coarsest precision that its values went
    through."""

    limiting: Precision
    coarsest: Precision


def working_precisions(
    measurements: Sequence[Measurement],
    reduced: bool = False,
    quantised: AbstractSet[int] = frozenset(),
    sources: Optional[Sequence[int]] = None,
) -> list[EffectivePrecision]:
    """The precisions of each measurement, in graph order. reduced: float32 products were computed with HF32 or TF32;
    quantised: rows whose floats are steps of 8 bits; sources: the edges, if they are known (`Edges.sources`)."""
    bare = [one for one in measurements if one.moments is None]
    kinds = {_of_types(coarser_round_off(*filter(None, types))) for types in _types(bare)}
    stored = _stored_16_bits(measurements) if len(bare) < len(measurements) else {}
    if len(bare) < len(measurements):
        kinds |= {own_precision(one, stored.get(row, 0.0), row in quantised) for row, one in enumerate(measurements)}
    kinds.discard(Precision())
    if len(kinds) <= 1 and not reduced:  # most runs have one precision
        only = kinds.pop() if kinds else Precision()
        return [EffectivePrecision(only, only)] * len(measurements)
    findings = [Finding(one, Verdict.UNKNOWN, "", row=row) for row, one in enumerate(measurements)]
    edges = Edges(findings).sources if sources is None else sources
    flow = _PrecisionFlow(findings, edges, reduced, usual_precision(findings), stored, quantised)
    for node in nodes_of(findings):
        flow.visit(node)
    return [flow.of.get(finding.row) or flow.one_sided(finding) for finding in findings]


def _stored_16_bits(measurements: Sequence[Measurement]) -> dict[int, float]:
    """The round-off of differing 16-bit values that are stored as float32, by row.

    Computed values show the type to which an operator rounds. All other values (weights, inputs of the network, values
    that were moved) were rounded at another time: they count only in a run that computes in 16 bits.
    """
    found = {row: round_off for row, one in enumerate(measurements) if (round_off := stored_round_off(one))}
    if not found:
        return {}
    groups: tuple[list[int], ...] = ([], [], [])  # computed, other data, parameters
    for row, one in enumerate(measurements):
        if one.moments is not None and one.moments.target.bits:
            groups[0 if is_computed(one.pair) else 1 + is_parameter(one.pair)].append(row)
    shown = next(filter(None, groups))
    usual = sum(row in found for row in shown) >= COMMON_SHARE * len(shown)
    credited = range(len(measurements)) if usual else groups[0]
    return {row: found[row] for row in credited if row in found and not _is_same(measurements[row])}


def is_computed(pair: Pair) -> bool:
    """Whether an operator computed the values of a tensor, instead of only moving or choosing them."""
    return is_output(pair) and not op_type_of(pair.operator).has(*MOVES)


def _is_same(one: Measurement) -> bool:
    """Whether the two sides hold the same bits."""
    return one.moments is not None and one.moments.equal == one.moments.elements


@by_network
def usual_precision(pairs: Sequence[Pair]) -> Precision:
    """The coarsest type that a good part of the tensors have: the assumed precision of operators that were not
    dumped."""
    counts = Counter(round_off for pair in pairs if (round_off := round_off_of(pair)))
    least = COMMON_SHARE * sum(counts.values())
    return Precision(max((round_off for round_off, count in counts.items() if count >= least), default=0.0))


def work_in_other_types(measurements: Sequence[Measurement]) -> bool:
    """Whether a good part of the float tensors have another type on the other side."""
    apart, floats = count_types(measurements)
    return apart > COMMON_SHARE * floats


def count_types(measurements: Sequence[Measurement]) -> tuple[int, int]:
    """Return how many float tensors have another type on the other side, and how many float tensors there are."""
    counts = [(len(_float_types(*types)), many) for types, many in _types(measurements).items()]
    return sum(many for kinds, many in counts if kinds > 1), sum(many for kinds, many in counts if kinds)


_Types = Tuple[Optional[str], Optional[str]]  # of target and golden; None if a side has no tensor


def have_one_precision(pairs: Sequence[Pair]) -> bool:
    """Whether all tensors without values have one precision, so that the edges of the run do not matter."""
    return len({round_off for pair in pairs if (round_off := round_off_of(pair))}) <= 1


def _types(measurements: Sequence[Measurement]) -> Counter[_Types]:
    """The types of all pairs, and how many pairs have them."""
    sides = [(one.pair.target, one.pair.golden) for one in measurements]
    return Counter([(target and target.dtype, golden and golden.dtype) for target, golden in sides])


def float_types(pair: Pair) -> frozenset[str]:
    """The float types of a pair; empty if a side has none."""
    target, golden = pair.target, pair.golden
    return _float_types(target and target.dtype, golden and golden.dtype)


@lru_cache(maxsize=1024)
def _float_types(target: Optional[str], golden: Optional[str]) -> frozenset[str]:
    if target is None or golden is None:
        return frozenset()
    rows = lookup(target), lookup(golden)
    return frozenset((target, golden)) if all(row and row.round_off for row in rows) else frozenset()


class _PrecisionFlow:
    """Follow precisions through the operators, in order."""

    def __init__(
        self,
        findings: Sequence[Finding],
        sources: Sequence[int],
        reduced: bool,
        usual: Precision,
        stored: Mapping[int, float],
        quantised: AbstractSet[int],
    ) -> None:
        self._findings, self._kept, self._quantised = findings, stored, quantised
        self._sources = sources
        self.of: dict[int, EffectivePrecision] = {}  # by row
        self._reduced = reduced
        self._usual = usual
        self._clock = Precision()

    def one_sided(self, finding: Finding) -> EffectivePrecision:
        """The precisions of a tensor of an operator that exists on one side."""
        own = self._of_values(finding)
        return EffectivePrecision(own, own)

    def _of_values(self, finding: Finding) -> Precision:
        """The precision of the types of one tensor, and of values that need fewer bits than these types."""
        row = finding.row
        return own_precision(finding.measurement, self._kept.get(row, 0.0), row in self._quantised)

    def visit(self, node: OperatorFindings) -> None:
        own = self._own(node)
        for finding in node.inputs:
            if finding.row not in self.of:  # gradients of parameters read tensors that another operator has read
                came = self._incoming(finding)
                self.of[finding.row] = EffectivePrecision(came, came)
        self._clock = coarsest([self._clock, own])
        saved = (finding for finding in node.extra_inputs if finding.row in self.of)  # a dump may list a backward first
        read = [self.of[finding.row].coarsest for finding in (*node.inputs, *saved)]
        unsaved = node.reads_saved and not node.extra_inputs  # the forward was not dumped
        known = self._is_known(node) and not unsaved
        if unsaved or not node.reads_recorded:
            read.append(self._clock)
        through = coarsest([own, *read, self._usual] if unsaved else [own, *read])
        for finding in node.outputs:
            limiting = self._of_output(node, finding, own) if known else through
            self.of[finding.row] = EffectivePrecision(limiting, through)

    def _of_output(self, node: OperatorFindings, finding: Finding, own: Precision) -> Precision:
        """The precision of an output whose inputs were compared: that of its own type, because an operator that rounds
        to a finer type than it reads computes in that type. A product may round the finer operand; a module and a
        gradient may compute in other types."""
        if node.operator.path or node.is_gradient or node.op.has("contracts") or own.quantised:
            return own
        if not round_off_of(finding.pair):
            return own
        return own._replace(round_off=self._of_values(finding).round_off)

    def _own(self, node: OperatorFindings) -> Precision:
        """The precision of the types that an operator reads and writes; for a module, whose inner types may be coarser,
        also of all operators so far."""
        found = [self._of_values(finding) for finding in (*node.inputs, *node.outputs, *node.extra_inputs)]
        if node.operator.path:
            found.append(self._clock)
        if node.op.has("collective", "point to point") and not node.inputs:  # inputs of another rank
            found += [self._clock, self._usual]
        if self._reduced and node.op.has("contracts") and coarsest(found).round_off <= SINGLE:
            found.append(Precision(reduced=True))
        return coarsest(found)

    def _incoming(self, finding: Finding) -> Precision:
        source = self._sources[finding.row]
        if source in self.of:
            return coarsest([self._of_values(finding), self.of[source].coarsest])
        own = self._of_values(finding)
        is_rounded = own != Precision()  # whole numbers are not rounded
        if not is_rounded or _is_same(finding.measurement) or is_parameter(finding.pair):
            return own
        return coarsest([own, self._clock, self._usual])

    def _is_known(self, node: OperatorFindings) -> bool:
        """Whether the errors of all readable inputs were measured, here or where they were written."""
        read = *node.inputs, *node.extra_inputs
        return node.reads_recorded and bool(node.inputs) and all(map(self._is_measured, read))

    def _is_measured(self, finding: Finding) -> bool:
        if finding.measurement.moments is not None or finding.measurement.problem:
            return True
        source = self._sources[finding.row]
        return source >= 0 and self._findings[source].measurement.moments is not None


def own_precision(measurement: Measurement, stored: float = 0.0, quantised: bool = False) -> Precision:
    """The precision of one tensor on both sides; `stored` is the round-off of 16-bit values that are stored as float32,
    `quantised`: its floats are steps of 8 bits."""
    if measurement.moments is None:
        return _of_types(round_off_of(measurement.pair))
    return Precision(max(round_off_of(measurement.pair), stored), quantised=quantised or is_quantised(measurement))


_of_types = lru_cache(maxsize=256)(Precision)  # precisions: work


def coarsest(precisions: Iterable[Precision]) -> Precision:
    """The coarsest precision of several, field by field."""
    rows = list(precisions)
    return Precision(
        max((one.round_off for one in rows), default=0.0),
        any(one.reduced for one in rows),
        any(one.quantised for one in rows),
    )


MOST = 0.5  # share of the outputs that vote: definition: the majority
KIND = 2  # operators: chosen: one rounded operator is a fault, and all of several are a setting, not measured
SIDES = "target", "golden"
WIDE = ""  # the vote of values that need more bits than narrower types have
# rel_l2: definition: half a step of 8 bits is 2^-9 of the largest value at least, and a float32 run is closer
LEAST_STEP_ERROR = 2.0**-10


class ValueTypes(NamedTuple):
    """The measurements whose tensors have the types of their values, rows that hold steps of 8 bits, and the notes."""

    measurements: Sequence[Measurement]
    quantised: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


def with_value_types(measurements: Sequence[Measurement], context: ReadContext) -> ValueTypes:
    """Return the measurements of one step and rank, in graph order, judged by what their values show."""
    if all(row.moments is None for row in measurements):
        return ValueTypes(measurements)
    types = [short_types(measurements, side) for side in range(2)]
    is_short = any(dtype in HALF_TYPES for found in types for dtype in found.values())
    steps = [{}, {}] if is_short else [steps_of_8_bits(measurements, side, context) for side in range(2)]
    result = [*measurements]
    for side, found in enumerate(types):
        for at, dtype in found.items():
            result[at] = _retyped(result[at], side, dtype)
    notes = [note for side in range(2) for note in _notes(measurements, side, steps[side] or types[side])]
    return ValueTypes(result, frozenset(chain(*steps)), tuple(notes))


def short_types(measurements: Sequence[Measurement], side: int) -> dict[int, str]:
    """The narrower type of the float32 and float64 tensors of one side that the run computed in it, by row."""
    votes = {at: vote for at, row in enumerate(measurements) if (vote := _vote(row, side)) is not None}
    if not any(votes.values()):
        return {}
    elected = _elected(measurements, votes)
    if elected is None:
        return {}
    (usual, _), *_ = Counter(filter(None, votes.values())).most_common()
    found = {}
    for at, row in enumerate(measurements):
        if elected and row.pair.operator.order not in elected and (is_output(row.pair) or is_parameter(row.pair)):
            continue
        dtype = votes.get(at) or ("" if elected else _held(row, side, usual))
        if dtype:
            found[at] = dtype
    return found


def _elected(measurements: Sequence[Measurement], votes: Mapping[int, str]) -> Optional[frozenset[int]]:
    """The orders of the operators whose votes count: none (all operators) if the run has the type, None if no operator
    has it."""
    groups: tuple[list[int], list[int]] = [], []
    for at in votes:
        pair = measurements[at].pair
        if not is_parameter(pair):
            groups[0 if is_computed(pair) else 1].append(at)
    voters = groups[0] or [at for at in groups[1] if not is_output(measurements[at].pair)]
    if sum(bool(votes[at]) for at in voters) > MOST * len(voters):
        return frozenset()
    kinds = defaultdict[str, list[int]](list)
    for at in groups[0]:
        operator = measurements[at].pair.operator
        kinds[op_type_of(operator).name or operator.op_type].append(at)
    rounded = [own for kind, own in kinds.items() if kind and len(own) >= KIND and all(votes[at] for at in own)]
    return frozenset(measurements[at].pair.operator.order for at in chain(*rounded)) or None


def _side_of(measurement: Measurement, side: int) -> Optional[tuple[TensorRef, Side, float]]:
    """A float32 or float64 tensor of one side with its figures and the sum of its squares; None if no value was
    compared."""
    moments, tensor = measurement.moments, (measurement.pair.target, measurement.pair.golden)[side]
    if moments is None or tensor is None or tensor.dtype not in NARROWER:
        return None
    return (tensor, *((moments.target, moments.xx), (moments.golden, moments.yy))[side])


def _vote(measurement: Measurement, side: int) -> Optional[str]:
    """The narrower type to which the values of one side were rounded, WIDE if they need more bits; None if they show
    neither, or if the other side holds numbers of the type that nothing rounded: rounding does not change these."""
    found = _side_of(measurement, side)
    if found is None or not found[1].bits:
        return None
    tensor, figures, squares = found
    rows = [DTYPES[name] for name in NARROWER[tensor.dtype]]
    if figures.bits > max(-math.log2(row.round_off) for row in rows):
        return WIDE
    row = next((row for row in rows if holds(row, figures, squares) and is_rounded(row, figures, squares)), None)
    other = _side_of(measurement, 1 - side)
    if row is None or (other is not None and holds(row, *other[1:]) and not is_rounded(row, *other[1:])):
        return None
    return row.name


def _held(measurement: Measurement, side: int, name: str) -> str:
    """The name of a type that holds every value of a tensor which differs from the other run; else ""."""
    found, moments = _side_of(measurement, side), measurement.moments
    if found is None or moments is None or moments.equal == moments.elements:
        return ""
    return name if holds(DTYPES[name], *found[1:]) else ""


def _retyped(measurement: Measurement, side: int, dtype: str) -> Measurement:
    pair, tensor = measurement.pair, _tensor(measurement, side)._replace(dtype=dtype)
    return measurement._replace(pair=pair._replace(golden=tensor) if side else pair._replace(target=tensor))


def steps_of_8_bits(measurements: Sequence[Measurement], side: int, context: ReadContext) -> dict[int, str]:
    """The rows of one side that hold steps of 8 bits in floats, if most of its computed outputs do, or most parameters
    that differ."""
    rows = {at: row for at, row in enumerate(measurements) if _may_hold_steps(row, side)}
    outputs = [at for at, row in rows.items() if is_computed(row.pair)]
    weights = [at for at, row in rows.items() if is_parameter(row.pair)]
    computed = [row for row in measurements if _side_of(row, side) is not None and is_computed(row.pair)]
    if len(outputs) <= MOST * len(computed):
        return {}
    from npucmp.measure.equal_steps import are_equal_steps  # few runs get here

    found = {at: "int8" for at, row in rows.items() if are_equal_steps(_tensor(row, side), context)}
    for voters in (outputs, weights):
        if voters and sum(at in found for at in voters) > MOST * len(voters):
            return found
    return {}


def _tensor(measurement: Measurement, side: int) -> TensorRef:
    tensor = (measurement.pair.target, measurement.pair.golden)[side]
    assert tensor is not None
    return tensor


def _may_hold_steps(measurement: Measurement, side: int) -> bool:
    found, moments = _side_of(measurement, side), measurement.moments
    if found is None or moments is None or moments.mismatched or found[1].bits <= max(SHORT_BITS):
        return False
    return rel_l2(moments) >= LEAST_STEP_ERROR


def _notes(measurements: Sequence[Measurement], side: int, types: Mapping[int, str]) -> list[str]:
    """The note on a run whose files say float32 or float64; none if no value shows another type."""
    if not types:
        return []
    (stored, _), *_ = Counter(_tensor(measurements[at], side).dtype for at in types).most_common()
    (dtype, _), *others = Counter(types.values()).most_common()
    held = " or ".join([dtype, *(other for other, _ in others)])
    what = "is a multiple of a step of 8 bits" if dtype == "int8" else f"is a {held} number"
    judged = "quantised to 8 bits" if dtype == "int8" else held
    name = SIDES[side]
    wide = sum(_vote(row, side) == WIDE for at, row in enumerate(measurements) if at not in types)
    if not wide or dtype == "int8":
        return [f"every value of the {name} {what} although its files say {stored}: judged as {judged}"]
    return [
        f"every value in {len(types)} tensors of the {name} {what} although their files say {stored}: judged as "
        f"{judged}, and {wide} other tensors as {stored}"
    ]


def with_types_of(columns: Columns, runs: tuple[Run, Run]) -> tuple[Run, Run]:
    """Return target and golden with the types that the rows of a comparison give their tensors."""
    found: tuple[dict[tuple[int, str], str], ...] = ({}, {})
    for at, *tensors in zip(columns.rows["operator"].tolist(), columns.targets, columns.goldens):
        operators = columns.operators[at].target, columns.operators[at].golden
        for types, operator, tensor in zip(found, operators, tensors):
            if operator is not None and tensor is not None and tensor.dtype in NARROWER["float64"]:
                types[operator.order, tensor.own_slot or tensor.slot] = tensor.dtype
    return _with_types(runs[0], found[0]), _with_types(runs[1], found[1])


def _with_types(run: Run, types: Mapping[tuple[int, str], str]) -> Run:
    """The run with these types. An operator that rounded its inputs after they were recorded is left out: it is no
    function of what was recorded."""
    if all(types.get((one.order, row.slot), row.dtype) == row.dtype for one in run.operators for row in one.tensors):
        return run
    operators = []
    for operator in run.operators:
        tensors = [row._replace(dtype=types.get((operator.order, row.slot), row.dtype)) for row in operator.tensors]
        wrote = [row.dtype for row, old in zip(tensors, operator.tensors) if row.is_output and row.dtype != old.dtype]
        read = [row.dtype for row in tensors if not row.is_output]
        if not any(0.0 < coarser_round_off(dtype) < coarser_round_off(*wrote) for dtype in read):
            operators.append(operator._replace(tensors=tuple(tensors)))
    return replace(run, operators=tuple(operators))


def holds_steps(findings: Iterable[Finding]) -> bool:
    """Whether a run holds steps of 8 bits in floats, of which no operator is a function of its recorded inputs in
    float64."""
    rows = [row for row in findings if row.rule == "quantised"]
    return any(map(_is_float, rows)) and not any(is_quantised(row.measurement) for row in findings)


def _is_float(finding: Finding) -> bool:
    return all(row is not None and row.dtype in NARROWER for row in (finding.pair.target, finding.pair.golden))
