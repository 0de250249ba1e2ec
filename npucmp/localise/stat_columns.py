"""The shift of a tensor's recorded statistics, in units of the shift that rounding of its elements explains.

Roundings of n elements are independent of each other: in a norm they average out to u · rms, in a mean to u · rms / √n,
while a maximum or a minimum shifts with its single element. So a factor of 1.002 on a million elements of bfloat16,
within rounding element by element, shifts their norm by 500 of these units.

The units are u · rms for the norm, u · rms / √n for the mean, and u times their own size for extremes; for the norm and
mean of a tensor of zeros and one other value (a mask), u times themselves. The resolution of a figure is that of its
record: 2^-23 of itself in float32, u if it was rounded to 16 bits, 2^-25 of the rms for a mean that was summed in
float32.

Recorded statistics of one rank in columns: what its operators add to the noise before later ones, and which of them
cannot exceed it.

The noise test (stat_test.py) asks an operator only if a bound of its shift exceeds the least noise that the test may
find there, or if its noise is not a matter of shifts: other arguments, hidden figures, whole numbers that differ.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Iterable, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.flow.operators import GRADIENTS, OperatorRows, of_row, rows_of_operators
from npucmp.judge.precision import SINGLE, round_off_of
from npucmp.localise.effective_precision import float_types
from npucmp.localise.evidence import argument_reasons
from npucmp.localise.golden_rows import MASKS
from npucmp.localise.rule_context import AVERAGED_ELEMENTS, QUANTISED
from npucmp.model import Finding, Pair, Verdict
from npucmp.model.arguments import draws_numbers, moves_other_axes
from npucmp.model.dtypes import MOST, lookup
from npucmp.model.finding import DIFFERS, OTHER_NODE
from npucmp.model.network import SearchRows
from npucmp.model.optypes import OpType, is_gradient, op_type_of
from npucmp.model.roles import containers, is_meaningless, is_parameter
from npucmp.model.table import (
    has_bound,
    has_error,
    has_figures,
    has_record,
    recorded_figures,
    rows_of_rule,
    rows_with_word,
    with_verdict,
)

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

FIGURES = "max", "min", "mean", "norm"
# of the mean square: chosen: mean times extreme may lack as much if a tensor holds zeros and one value alone, not
# measured
ONE_VALUE = 0.01
NORM = FIGURES.index("norm")
SUMS = slice(2, None)  # slice of the figures
# times sqrt(n) round-offs of a norm: evidence: 1.5 in norms of broadcast gradients, which sum equal squares; parts of
# another shape are summed in another order
PARTS_ROUNDING = 2.0
MASKED_TIMES = 100.0  # times the largest value: chosen: a number so far below is a mask, not measured


class Level(NamedTuple):
    """The shift of extremes and sums (norm, mean), relative to the tensor's size as if elements shifted
    independently."""

    extremes: float = 0.0
    sums: float = 0.0

    def most(self, other: Level) -> Level:
        return Level(max(self.extremes, other.extremes), max(self.sums, other.sums))

    def times(self, factor: float) -> Level:
        return Level(self.extremes * factor, self.sums * factor)


class StatShift(NamedTuple):
    """The shift of one tensor. `size` is the largest of `each` figure's shift, in roundings of its elements; inf if
    only one side is NaN or Inf. `resolution` is that of the figures, in roundings. `elements` is the tensor's
    number of elements, `unit` the round-off of the coarser of its two types, at least that of float32, in which figures
    are written. `level` is the shift that the tensor passes to its consumers: one element that is off affects sums
    little."""

    size: float
    each: tuple[float, ...]
    resolution: tuple[float, ...]
    elements: int
    unit: float
    level: Level

    @property
    def is_still(self) -> bool:
        """Whether all figures agree to the last digit."""
        return not any(self.each)


class StatShifts(NamedTuple):
    """The shifts of many tensors, as columns; `unit` is 0 without a figure of floats that both sides have."""

    each: Floats
    resolution: Floats
    elements: Floats
    unit: Floats
    extremes: Floats
    sums: Floats

    @property
    def size(self) -> Floats:
        found: Floats = self.each.max(axis=1, initial=0.0)
        return found

    @property
    def likely(self) -> Floats:
        """The error that the figures of each tensor make likely, 0 if it is unknown (`likely_error`)."""
        found: Floats = np.minimum(1.0, self.each[:, SUMS].max(axis=1, initial=0.0) * self.unit)
        return found

    def at(self, row: int) -> Optional[StatShift]:
        """The shift of one tensor; None if it is unknown."""
        if not self.unit[row]:
            return None
        each, level = tuple(self.each[row].tolist()), Level(float(self.extremes[row]), float(self.sums[row]))
        resolution = tuple(self.resolution[row].tolist())
        return StatShift(max(each), each, resolution, int(self.elements[row]), float(self.unit[row]), level)


def shifts_of(
    x: Floats, y: Floats, in_x: Flags, in_y: Flags, own: Floats, elements: Floats, rounding: Floats, is_split: Flags
) -> StatShifts:
    """The shifts of tensors, from figures of target and golden (tensors, 4), of which in_x, in_y are recorded. own:
    round-offs of their types; rounding: of the figures in the dumps; is_split: the target's are those of parts on
    several ranks.

    A mean has at most the resolution of float32. Masks of minus infinity leave neither mean nor norm; if a tensor holds
    only zeros and copies of one value, as a mask does, all roundings are equal. Figures of 16-bit tensors may have been
    rounded to that type itself, and then have only the digits of the type. Figures are summed and written in float32 at
    best, whose numbers are two round-offs apart.
    """
    both = in_x & in_y
    is_known = (own > 0.0) & (elements > 0.0) & in_y[:, NORM] & both.any(axis=1)
    unit, root, norm = np.where(is_known, np.maximum(SINGLE, own), 0.0), np.sqrt(elements), y[:, NORM]
    with np.errstate(all="ignore"):
        most, least, mean = (np.where(in_y[:, at], y[:, at], 0.0) for at in range(NORM))
        rms = np.where(np.isfinite(norm), norm / root, 0.0)
        high, low = (np.where(np.isfinite(one), np.maximum(np.abs(one), rms), rms) for one in (most, least))
        alone = np.abs((mean / rms)[:, None] * (np.stack((most, least), axis=1) / rms[:, None]) - 1.0) < ONE_VALUE
        alone = alone.any(axis=1) & (rms > 0.0)
        of_mean = np.where(alone, unit * np.abs(mean), np.maximum(unit / root, SINGLE) * rms)
        units = np.stack((unit * high, unit * low, of_mean, unit * np.where(alone, norm, rms)), axis=1)
        lost = np.repeat(rounding[:, None], len(FIGURES), axis=1)
        lost[:, NORM] += np.where(is_split, PARTS_ROUNDING * SINGLE * root * norm, 0.0)
        apart = np.maximum(0.0, np.abs(x - y) - lost)
        each = np.where(units > 0.0, apart / units, np.where(apart > 0.0, math.inf, 0.0))
        each[~(np.isfinite(x) & np.isfinite(y))] = math.inf
        each[~both | (x == y) | (np.isnan(x) & np.isnan(y)) | ~is_known[:, None]] = 0.0
        digits = np.stack([*map(_digits, (x, y), (in_x, in_y), (own, own))]).max(axis=0)
        digits = np.maximum(digits, rounding[:, None])
        digits[:, :2] = 0.0
        resolution = np.where(units > 0.0, digits / units, 0.0)
        rms = norm / root
        largest = np.fmax(np.fmax(np.abs(most), np.abs(least)), rms)
        share = np.fmin(1.0, np.where(rms > 0.0, largest / rms, math.inf) ** 2 / root)
        extremes = each[:, :2].max(axis=1, initial=0.0)
        extremes = np.where(np.isfinite(extremes), extremes, 0.0)
        sums = np.where(np.isfinite(each[:, SUMS]), each[:, SUMS], 0.0).max(axis=1, initial=0.0)
        sums = np.where(is_known, np.maximum(sums, share * extremes), 0.0) * unit
    return StatShifts(each, resolution, elements, unit, extremes * unit, sums)


def _digits(figures: Floats, are_recorded: Flags, own: Floats) -> Floats:
    """The resolutions of figures."""
    is_short = np.frexp(figures)[0] / (own / 2.0)[:, None] % 1.0 == 0.0
    found = np.where(is_short, own[:, None], 2.0 * SINGLE) * np.abs(figures)
    return np.where(are_recorded & np.isfinite(figures), found, 0.0)


def movement(finding: Finding) -> Optional[StatShift]:
    """The shift of a tensor; None without a figure of floats that both sides have, or if they belong to two tensors.

    If values went through coarser types upstream, the shifts of the inputs show it, not this one.
    """
    return None if finding.rule == OTHER_NODE else movement_of_row(finding)


@of_row
def movement_of_row(finding: Finding) -> Optional[StatShift]:
    measurement, pair = finding.measurement, finding.pair
    x, y = measurement.statistics
    if measurement.moments is not None or x is None or y is None or pair.target is None or pair.golden is None:
        return None
    if measurement.shapes_differ:
        return None
    a, b = (np.array([[math.nan if one is None else one for one in side]], dtype=np.float64) for side in (x, y))
    in_a, in_b = (np.array([[one is not None for one in side]]) for side in (x, y))
    count = float(pair.elements) if pair.elements < MOST else 0.0
    own, many, lost = np.array([[round_off_of(pair)], [count], [pair.target.rounding + pair.golden.rounding]])
    return shifts_of(a, b, in_a, in_b, own, many, lost, np.array([is_split(pair)])).at(0)


@of_row
def likely_error(finding: Finding) -> Optional[float]:
    """The rel_l2 that the figures of a tensor make likely if its elements' errors are independent; at most 1. None
    without records."""
    moved = movement(finding)
    return None if moved is None else min(1.0, max(moved.each[SUMS]) * moved.unit)


def level(finding: Finding) -> Level:
    """The shift that a tensor passes to its consumers; none without records."""
    moved = movement(finding)
    return Level() if moved is None else moved.level


def is_split(pair: Pair) -> bool:
    """Whether the figures of the target are those of parts on several ranks."""
    relation = pair.target.relation if pair.target is not None else None
    return relation is not None and relation.is_split


def is_hidden(finding: Finding) -> bool:
    """Whether a mask hides the values of the golden tensor from its figures: minus infinity, or a number so far below
    the largest value that its exponential is 0 and that it dominates the norm."""
    recorded = finding.measurement.recorded(1) if finding.measurement.moments is None else None
    if recorded is None or recorded.max is None or recorded.min is None or not math.isfinite(recorded.max):
        return False
    return recorded.min <= MASKS and abs(recorded.max) * MASKED_TIMES <= -recorded.min


class RowsOfOperators:
    """Rows by operator, as flat columns."""

    def __init__(self, rows: Iterable[Sequence[int]], count: int) -> None:
        flat = [(row, at) for at, own in enumerate(rows) for row in own]
        self.rows, self.at = np.array(flat, dtype=np.int64).reshape(-1, 2).T
        self._count = count

    def most(self, values: Array, which: Optional[Array] = None) -> Array:
        """Return the largest value of each operator's rows, 0 without one; of the rows for which `which` holds."""
        return self.most_of(values[self.rows], None if which is None else which[self.rows])

    def most_of(self, values: Array, which: Optional[Array] = None) -> Array:
        """Return the same for values of each entry of these columns."""
        found = np.zeros(self._count)
        np.maximum.at(found, self.at if which is None else self.at[which], values if which is None else values[which])
        return found

    def any(self, which: Array) -> Array:
        """Return whether `which` holds for a row of each operator."""
        found: Array = np.zeros(self._count, dtype=bool)
        found[self.at[which[self.rows]]] = True
        return found


class PairColumns:
    """The facts of the noise test that pairs alone decide."""

    def __init__(self, pairs: Sequence[Pair], nodes: Sequence[OperatorRows]) -> None:
        self.nodes, count = nodes, len(nodes)
        self.elements = np.array([float(pair.elements) if pair.elements < MOST else 0.0 for pair in pairs])
        self.round_off = np.array([round_off_of(pair) for pair in pairs])
        self.rounding = np.array([sum(one.rounding for one in (pair.target, pair.golden) if one) for pair in pairs])
        kinds = [*map(round_offs_of, pairs)]
        self.most_round_off = np.array([max(one, default=0.0) for one in kinds])
        self.least_round_off = np.array([min(one, default=0.0) for one in kinds])
        self.is_split = np.array([*map(is_split, pairs)], dtype=bool)
        self.is_parameter = np.array([*map(is_parameter, pairs)], dtype=bool)
        self.is_meaningless = np.array([*map(is_meaningless, pairs)], dtype=bool)
        self.is_choice = np.array([*map(_is_choice, pairs)], dtype=bool)
        self.operators = [node.operator for node in nodes]
        self.names = [operator.name for operator in self.operators]
        self.orders = [node.pair.order for node in nodes]
        self.ops: list[OpType] = [*map(op_type_of, self.operators)]
        self.gradient = [*map(is_gradient, self.operators)]
        self.kinds = [(op.name or operator.op_type, gradient)
                      for op, operator, gradient in zip(self.ops, self.operators, self.gradient)]  # fmt: skip
        self.sums = [op.has("contracts", "sums", "norm") for op in self.ops]
        self.products = [at for at, op in enumerate(self.ops) if op.has("contracts") and not self.gradient[at]]
        self.adds = np.array([op.has("sums") and not gradient and op.name != "addcdiv"
                              for op, gradient in zip(self.ops, self.gradient)], dtype=bool)  # fmt: skip
        self.casts = np.array([op.has("hands on") and not op.has("copies") for op in self.ops], dtype=bool)
        self.reads_recorded = [bool(node.inputs) if GRADIENTS in node.operator.name else
                               any(op is not None and op.reads_recorded
                                   for op in (node.pair.target_op, node.pair.golden_op))
                               for node in nodes]  # fmt: skip
        hidden = [pair.golden is None and pair.is_inside for pair in pairs]  # tensors inside a fused operator
        self.may_be_quiet = np.array([bool(node.outputs) and not any(hidden[row] for row in node.outputs)
                                      and not op.has("collective", "in place", "averages")
                                      for node, op in zip(nodes, self.ops)], dtype=bool)  # fmt: skip
        self.is_collective = np.array([op.has("collective") for op in self.ops], dtype=bool)
        self.is_argued = np.array([bool(node.inputs and argument_reasons(node.pair)) for node in nodes], dtype=bool)
        self.moves_axes = np.array([op.has("moves axes") and moves_other_axes(node.pair)
                                    for op, node in zip(self.ops, nodes)], dtype=bool)  # fmt: skip
        self.is_exp = np.array([op.name == "exp" and not gradient for op, gradient in zip(self.ops, self.gradient)],
                               dtype=bool)  # fmt: skip
        sides = [pairs[row] for node in nodes for row in (*node.inputs, *node.outputs)]
        types = [len(float_types(pair)) for pair in sides]
        self.mixed_types = sum(one > 1 for one in types), sum(one > 0 for one in types)
        self.inputs = RowsOfOperators([node.inputs for node in nodes], count)
        self.outputs = RowsOfOperators([node.outputs for node in nodes], count)
        self.reads = RowsOfOperators([(*node.inputs, *node.extra_inputs) for node in nodes], count)
        self.all = RowsOfOperators([(*node.inputs, *node.outputs) for node in nodes], count)
        scopes = {operator.name: operator.scope for operator in self.operators if operator.scope}
        self.containers = [tuple(containers(operator, scopes)) for operator in self.operators]
        self.containing = frozenset(name for around in self.containers for name in around)
        self.may_propagate = self.may_be_quiet & np.array([_may_propagate(pairs, node) for node in nodes], dtype=bool)

    def is_container(self, containing: frozenset[str]) -> Array:
        """Return whether each operator is a module with operators inside."""
        operators = self.operators
        found = [one.name in containing or f"{one.phase} {one.path}" in containing for one in operators]
        return np.array(found, dtype=bool)


def _may_propagate(pairs: Sequence[Pair], node: OperatorRows) -> bool:
    """Whether an error of the first input reaches the outputs in full or as its share of a sum, and nothing but the
    inputs explains errors of the outputs."""
    if not node.inputs or draws_numbers(node.operator):
        return False
    op, outputs, first = op_type_of(node.operator), [pairs[row] for row in node.outputs], pairs[node.inputs[0]]
    if op.has("receives") or any(is_meaningless(one) or _is_choice(one) for one in outputs):
        return False
    if any(one is not None and one.source for row in node.inputs for one in (pairs[row].target, pairs[row].golden)):
        return False  # a graph names their producers
    if any(len(float_types(one)) > 1 or (one.target and one.target.relation is not None) for one in outputs):
        return False
    if not is_gradient(node.operator):
        return not op.has("contracts") or not _is_bias(first)
    if op.has("contracts", "multilinear") and (first.slot.startswith("output") or not node.extra_inputs):
        return False
    return not op.has("contracts") or not _is_bias(first)


def _is_bias(pair: Pair) -> bool:
    return is_parameter(pair) and len(pair.golden_shape) <= 1


def network_columns(findings: SearchRows) -> PairColumns:
    """Return the columns of a network, made once."""
    made = findings.network.columns
    if PairColumns not in made:
        made[PairColumns] = PairColumns(findings.network.pairs, rows_of_operators(findings))
    found: PairColumns = made[PairColumns]
    return found


def round_offs_of(pair: Pair) -> set[float]:
    """The round-offs of the types of both sides."""
    rows = (lookup(tensor.dtype) for tensor in (pair.target, pair.golden) if tensor is not None)
    return {row.round_off for row in rows if row is not None and row.round_off}


def _is_choice(pair: Pair) -> bool:
    golden = lookup(pair.golden.dtype) if pair.golden is not None else None
    return golden is not None and golden.kind in "biu"


def shifts_of_rows(findings: SearchRows) -> StatShifts:
    """The shifts of all rows of a rank, unknown for those with values, other shapes or another autograd node."""
    columns, network = findings.columns, network_columns(findings)
    (in_x, x), (in_y, y) = (recorded_figures(columns, side) for side in range(2))
    is_known = has_record(columns, 0) & has_record(columns, 1)
    is_known &= ~columns.rows["shapes_differ"] & (columns.rows["moments"] < 0)
    is_known[[*rows_of_rule(findings, OTHER_NODE)]] = False
    own = np.where(is_known, network.round_off, 0.0)
    return shifts_of(x, y, in_x, in_y, own, network.elements, network.rounding, network.is_split)


class StatColumns:
    """The shifts of all rows of a rank, and what follows for its operators.

    By row:

    extremes, sums   the levels (`level`), `largest` the larger one; `unit`: 0 where no figure of floats is on both
                     sides; `is_known`: where one is
    size             the largest shift of any figure, in roundings
    differs          whether records differ, is_hidden: whether a mask hides the values (`is_hidden`)
    differs_by_verdict  whether the verdict is that of a difference; is_apart: by a proven error of unknown size

    By operator:

    highest          the largest levels of what it wrote, else of what it read, of extremes and of sums
    has_levels       whether it adds to the noise: a finite shift of what it wrote, or read, is known
    still            whether all figures that it reads and writes agree to the last digit
    incoming         the largest level of what it reads; parameter_shift: the largest finite one of its parameters
    is_special       whether its noise is not a matter of shifts: other arguments, hidden figures, an exponential, other
                     shapes, whole numbers that differ
    is_unshown       whether the figures of a tensor that it writes may not show most of its values, or the order of its
                     elements (stat_test.py)
    quiet            whether no tensor differs or can be accused, if no error reaches it
    has_errors       whether the error of a tensor that it writes is known
    reads_unlimited  whether its first input has an error of unknown size, which explains those of all its outputs if it
                     was written with it (unlimited_errors.py)
    """

    def __init__(self, findings: SearchRows) -> None:
        self.network = network = network_columns(findings)
        columns, rows, inputs, outputs = findings.columns, findings.columns.rows, network.inputs, network.outputs
        self._columns, self._rows = columns, rows
        self._shifts = shifts = shifts_of_rows(findings)
        self.extremes, self.sums, self.unit, self.size = shifts.extremes, shifts.sums, shifts.unit, shifts.size
        (in_x, x), (in_y, y) = (recorded_figures(columns, side) for side in range(2))
        self.largest, self.is_known, self.has_norm = np.maximum(self.extremes, self.sums), self.unit > 0.0, in_y[:, 3]
        is_equal = (x.view(np.int64) == y.view(np.int64)) | (np.isnan(x) & np.isnan(y))
        self.differs = has_record(columns, 0) & has_record(columns, 1)
        self.differs &= ((in_x != in_y) | (in_x & ~is_equal)).any(axis=1)
        self.differs |= rows["shapes_differ"]
        with np.errstate(invalid="ignore"):
            self.is_hidden = in_y[:, :2].all(axis=1) & np.isfinite(y[:, 0]) & (y[:, 1] <= MASKS)
            self.is_hidden &= (np.abs(y[:, 0]) * MASKED_TIMES <= -y[:, 1]) & (rows["moments"] < 0)
        self._asked: dict[int, Optional[StatShift]] = {}
        # The noise that operators add
        finite, has_moved = np.isfinite(self.size), self.size > 0.0
        self._wrote = self.is_known & ~network.is_meaningless
        wrote, read = outputs.any(self._wrote), self.is_known & ~network.is_parameter & finite
        self.highest = [
            np.where(wrote, outputs.most(values, self._wrote & finite), inputs.most(values, read)).tolist()
            for values in (self.extremes, self.sums)
        ]
        self.has_levels = np.where(wrote, outputs.any(self._wrote & finite), inputs.any(read)).tolist()
        self.still = (~(outputs.any(self._wrote & has_moved) | inputs.any(self.is_known & has_moved))).tolist()
        self.incoming = network.reads.most(self.largest, self.is_known).tolist()
        is_shifted = self.is_known & network.is_parameter & np.isfinite(self.largest)
        self.parameter_shift = inputs.most(self.largest, is_shifted).tolist()
        # Which operators cannot exceed the noise
        self.is_special = network.is_argued | network.is_exp | network.is_collective | outputs.any(self.is_hidden)
        self.is_special |= network.all.any(rows["shapes_differ"]) | network.reads.any(self.differs & ~self.is_known)
        norm = rows["figures"][:, 1, 3]
        self.is_unshown = (network.moves_axes | outputs.any(~has_figures(rows, 1) | ~np.isfinite(norm))).tolist()
        # Which operators need no decision
        is_still = with_verdict(columns, (Verdict.MATCH, Verdict.UNKNOWN))
        is_still &= ~has_error(columns) | (rows["error"] == 0.0)
        self.quiet = (network.may_be_quiet & ~network.all.any(~is_still)).tolist()
        self.differs_by_verdict = with_verdict(columns, DIFFERS).tolist()
        self.has_errors = outputs.any(has_error(columns)).tolist()
        self._find_unlimited(findings, norm)

    def _find_unlimited(self, findings: SearchRows, norm: Floats) -> None:
        network, columns, rows = self.network, self._columns, self._rows
        apart = with_verdict(columns, (Verdict.DIVERGED,)) & has_error(columns) & np.isnan(rows["error"])
        apart &= rows_with_word(columns, "metric", "rel_l2") & ~rows_with_word(columns, "rule", QUANTISED)
        is_open = with_verdict(columns, (Verdict.UNKNOWN,)) & ~has_error(columns)
        is_other = ~(apart | (is_open & ~rows_with_word(columns, "rule", OTHER_NODE)))
        first = np.array([node.inputs[0] if node.inputs else 0 for node in network.nodes], dtype=np.int64)
        reaches = apart[first] & np.isfinite(norm[first]) & (norm[first] > 0.0)
        found = network.may_propagate & reaches & network.outputs.any(apart)
        self.reads_unlimited = (found & ~network.reads.any(is_other) & ~network.outputs.any(is_other)).tolist()
        self.is_apart = apart.tolist()

    @cached_property
    def likely_errors(self) -> list[Optional[float]]:
        """The error that the figures of each row make likely (`likely_error`); None if it is unknown."""
        likely = self._shifts.likely.tolist()
        return [error if is_known else None for error, is_known in zip(likely, self.is_known.tolist())]

    def __getitem__(self, row: int) -> Optional[StatShift]:
        """The shift of a row."""
        if row not in self._asked:
            self._asked[row] = self._shifts.at(row)
        return self._asked[row]

    def reuse(self, at: int, row: int) -> float:
        """√ of the number of elements of an output that share one element of the smallest operand."""
        node, elements = self.network.nodes[at], self._elements
        many = map(elements.__getitem__, (*node.inputs, *node.extra_inputs))
        sizes = [size for size in many if size >= AVERAGED_ELEMENTS]
        return math.sqrt(max(1.0, elements[row] / max(min(sizes, default=1), 1)))

    @cached_property
    def _elements(self) -> list[float]:
        found: list[float] = np.where(self.has_norm, self.network.elements, 0.0).tolist()
        return found

    @cached_property
    def errors(self) -> list[list[float]]:
        """The known errors of the floats that each operator reads and writes, or their lower bounds."""
        columns, rows = self._columns, self.network.all
        error = np.where(has_error(columns), self._rows["error"], self._rows["bound"])
        known = np.isfinite(error) & ~self.network.is_choice & (has_error(columns) | has_bound(columns))
        found: list[list[float]] = [[] for _ in self.network.nodes]
        for at, value in zip(rows.at[known[rows.rows]].tolist(), error[rows.rows][known[rows.rows]].tolist()):
            found[at].append(value)
        return found

    @cached_property
    def written_rms(self) -> list[float]:
        """The largest finite root mean square of the golden tensors that each operator writes."""
        norm, many = self._rows["figures"][:, 1, 3], np.maximum(self.network.elements, 1.0)
        is_known = self.has_norm & (self.network.elements > 0.0) & np.isfinite(norm)
        found: list[float] = self.network.outputs.most(np.where(is_known, norm, 0.0) / np.sqrt(many)).tolist()
        return found

    def bars(self, apart: bool, coarse: float, reduced: float, sources: Array, is_container: Array) -> ShiftBars:
        """Return the largest ratio of a shift to the least noise of its tensor, by operator. The other arguments are
        those of the noise test."""
        network = self.network
        own: Array = network.most_round_off if apart else network.least_round_off
        base = np.maximum(np.minimum(self._rows["working"], coarse), max(SINGLE, reduced))
        of_operator = network.all.most(own)
        came = np.where(network.adds, 0.0, network.reads.most(self.sums, self.is_known))
        moved = np.where(self.is_known, self.size * self.unit, 0.0)

        def units(side: RowsOfOperators) -> Array:
            of_row = np.where(network.casts[side.at], network.most_round_off[side.rows], own[side.rows])
            found: Array = np.maximum.reduce([base[side.rows], of_row, of_operator[side.at]])
            return found

        read, wrote = network.inputs, network.outputs
        source = sources[read.rows]
        has_source, is_parameter = source >= 0, network.is_parameter[read.rows]
        is_tested = has_source & self.is_known[source]
        unit_read, unit_wrote, largest = units(read), units(wrote), moved[read.rows]
        is_written = self._wrote[wrote.rows] & ~is_container[wrote.at]
        found: list[list[float]] = []
        for factor in (1.0, 2.0):
            outputs = moved[wrote.rows] / np.maximum(factor * unit_wrote, came[wrote.at])
            inputs = largest / np.maximum(factor * np.maximum(unit_read, self.unit[source]), self.sums[source])
            alone = largest / (factor * unit_read)
            found.append(np.maximum(wrote.most_of(outputs, is_written), read.most_of(inputs, is_tested)).tolist())
            found += [read.most_of(alone, ~has_source & (is_parameter == of)).tolist() for of in (False, True)]
        most = np.maximum(wrote.most_of(moved[wrote.rows], is_written), read.most_of(largest, is_tested))
        open_inputs = np.zeros(len(most), dtype=bool)
        open_inputs[read.at[~has_source]] = True
        special, inside = self.is_special.tolist(), is_container.tolist()
        return ShiftBars(found[:3], found[3:], most.tolist(), special, open_inputs.tolist(), inside)


class ShiftBars:
    """The bounds by which an operator is tested for noise.

    repeated, usual  ratios of shifts to the least noise, in runs that repeat each other and in others: of tensors that
                     a recorded operator wrote, of other inputs, and of parameters
    largest          the largest shift of the first, relative to the tensor
    inside           whether each is a module with operators inside
    """

    def __init__(
        self,
        repeated: Sequence[Sequence[float]],
        usual: Sequence[Sequence[float]],
        largest: Sequence[float],
        special: Sequence[bool],
        open_inputs: Sequence[bool],
        inside: Sequence[bool],
    ) -> None:
        self.inside = inside
        self._ratios = {True: repeated, False: usual}
        self._largest, self._special, self._open_inputs = largest, special, open_inputs

    def may_exceed(self, at: int, times: float, repeats: bool, first: bool, seen: bool, noise: float) -> bool:
        """Return whether an operator may exceed the noise `times`. `first`: parameters are tested; `seen`: operators
        were tested before; `noise`: the noise that each written tensor has at least."""
        if self._special[at] or (not seen and self._open_inputs[at]):
            return True
        written, alone, parameters = (column[at] for column in self._ratios[repeats])
        if written > times and self._largest[at] > times * noise:
            return True
        return alone > times or (first and parameters > times)
