"""Read the types of a run from its values, which may be coarser than those of its files.

A file of float32 may hold a run of float16 or bfloat16: engines with float32 outputs widen their values, and numpy has
no bfloat16. A file of float64 may hold a run of these types or of float32, because arrays of Python are float64. The
moments of a tensor show whether every value is a number of a narrower type (judge/precision.py). One tensor proves
nothing about the run, because a single operator that rounds to 16 bits is a fault. So the computed outputs vote:

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
from itertools import chain
from typing import Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.judge.precision import HALF_TYPES, NARROWER, coarser_round_off, holds, is_quantised, is_rounded
from npucmp.localise.effective_precision import is_computed
from npucmp.measure.metrics import rel_l2
from npucmp.model import Finding, Measurement, Run, Side, TensorRef
from npucmp.model.dtypes import DTYPES
from npucmp.model.moments import SHORT_BITS
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_output, is_parameter
from npucmp.model.table import Columns

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
    figures = (moments.target, moments.xx), (moments.golden, moments.yy)
    return (tensor, *figures[side])


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
