"""Recorded statistics of one rank in columns: what its operators add to the noise before later ones, and which of them
cannot exceed it.

The noise test (stat_test.py) asks an operator only if a bound of its shift exceeds the least noise that the test may
find there, or if its noise is not a matter of shifts: other arguments, hidden figures, whole numbers that differ.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Iterable, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.flow.operators import GRADIENTS, OperatorRows, rows_of_operators
from npucmp.judge.precision import SINGLE, round_off_of
from npucmp.localise.effective_precision import float_types
from npucmp.localise.evidence import argument_reasons
from npucmp.localise.golden_rows import MASKS
from npucmp.localise.rule_context import AVERAGED_ELEMENTS
from npucmp.localise.stat_shift import MASKED_TIMES, StatShift, is_split, shifts_of
from npucmp.model import Pair, Verdict
from npucmp.model.arguments import moves_other_axes
from npucmp.model.dtypes import MOST, lookup
from npucmp.model.finding import DIFFERS, OTHER_NODE
from npucmp.model.network import SearchRows
from npucmp.model.optypes import OpType, is_gradient, op_type_of
from npucmp.model.roles import containers, is_meaningless, is_parameter
from npucmp.model.table import (
    VERDICT_NUMBERS,
    has_bound,
    has_error,
    has_figures,
    has_record,
    recorded_figures,
    rows_of_rule,
)

Array = npt.NDArray[Any]


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
        kinds = [*map(_round_offs, pairs)]
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
        self.containing = frozenset(name for operator in self.operators for name in containers(operator, scopes))

    def is_container(self, containing: frozenset[str]) -> Array:
        """Return whether each operator is a module with operators inside."""
        operators = self.operators
        found = [one.name in containing or f"{one.phase} {one.path}" in containing for one in operators]
        return np.array(found, dtype=bool)


def network_columns(findings: SearchRows) -> PairColumns:
    """Return the columns of a network, made once."""
    assert findings.network is not None
    made = findings.network.columns
    if PairColumns not in made:
        made[PairColumns] = PairColumns(findings.network.pairs, rows_of_operators(findings))
    found: PairColumns = made[PairColumns]
    return found


def _round_offs(pair: Pair) -> set[float]:
    rows = (lookup(one.dtype) for one in (pair.target, pair.golden) if one is not None)
    return {row.round_off for row in rows if row is not None and row.round_off}


def _is_choice(pair: Pair) -> bool:
    golden = lookup(pair.golden.dtype) if pair.golden is not None else None
    return golden is not None and golden.kind in "biu"


class StatColumns:
    """The shifts of all rows of a rank, and what follows for its operators.

    extremes, sums  the levels of rows (stat_shift.level); `unit`: 0 where no figure of floats is on both sides
    size            the largest shift of any figure, in roundings
    """

    def __init__(self, findings: SearchRows) -> None:
        self.network = network = network_columns(findings)
        columns = findings.columns
        self._findings, self._rows = findings, columns.rows
        rows = columns.rows
        (in_x, x), (in_y, y) = (recorded_figures(columns, side) for side in range(2))
        both = has_record(columns, 0) & has_record(columns, 1)
        is_one = both & ~rows["shapes_differ"] & (rows["moments"] < 0)
        is_one[[*rows_of_rule(findings, OTHER_NODE)]] = False
        own = np.where(is_one, network.round_off, 0.0)
        self._shifts = shifts = shifts_of(x, y, in_x, in_y, own, network.elements, network.rounding, network.is_split)
        self.extremes, self.sums, self.unit, self.size = shifts.extremes, shifts.sums, shifts.unit, shifts.size
        self.largest, self.is_known, self.has_norm = np.maximum(self.extremes, self.sums), self.unit > 0.0, in_y[:, 3]
        is_equal = (x.view(np.int64) == y.view(np.int64)) | (np.isnan(x) & np.isnan(y))
        self.differs = both & ((in_x != in_y) | (in_x & ~is_equal)).any(axis=1) | rows["shapes_differ"]
        with np.errstate(invalid="ignore"):
            self.is_hidden = in_y[:, :2].all(axis=1) & np.isfinite(y[:, 0]) & (y[:, 1] <= MASKS)
            self.is_hidden &= (np.abs(y[:, 0]) * MASKED_TIMES <= -y[:, 1]) & (rows["moments"] < 0)
        self._asked: dict[int, Optional[StatShift]] = {}

    @property
    def likely(self) -> Array:
        """The error that the figures of each row make likely, 0 if it is unknown (stat_shift.likely_error)."""
        return self._shifts.likely

    @cached_property
    def likely_errors(self) -> list[Optional[float]]:
        """The same; None if it is unknown."""
        found: list[Optional[float]] = np.where(self.is_known, self.likely, None).tolist()  # type: ignore[call-overload]
        return found

    def __getitem__(self, row: int) -> Optional[StatShift]:
        """The shift of a row."""
        if row not in self._asked:
            self._asked[row] = self._shifts.at(row)
        return self._asked[row]

    def reuse(self, at: int, row: int) -> float:
        """√ of the number of elements of an output that share one element of the smallest operand."""
        node, elements = self.network.nodes[at], np.where(self.has_norm, self.network.elements, 0.0)
        many = elements[[*node.inputs, *node.extra_inputs]].tolist()
        sizes = [one for one in many if one >= AVERAGED_ELEMENTS]
        return math.sqrt(max(1.0, float(elements[row]) / max(min(sizes, default=1), 1)))

    # The noise that operators add

    @cached_property
    def _wrote(self) -> Array:
        found: Array = self.is_known & ~self.network.is_meaningless
        return found

    @cached_property
    def highest(self) -> tuple[list[float], list[float]]:
        """The largest levels of what each operator wrote, else of what it read, of extremes and of sums."""
        network, finite = self.network, np.isfinite(self.size)
        has_written, read = network.outputs.any(self._wrote), self.is_known & ~network.is_parameter & finite
        columns = []
        for values in (self.extremes, self.sums):
            wrote = network.outputs.most(values, self._wrote & finite)
            columns.append(np.where(has_written, wrote, network.inputs.most(values, read)).tolist())
        return columns[0], columns[1]

    @cached_property
    def has_levels(self) -> list[bool]:
        """Whether an operator adds to the noise: a finite shift of what it wrote, or read, is known."""
        network, finite = self.network, np.isfinite(self.size)
        wrote = network.outputs.any(self._wrote)
        read = network.inputs.any(self.is_known & ~network.is_parameter & finite)
        found: list[bool] = np.where(wrote, network.outputs.any(self._wrote & finite), read).tolist()
        return found

    @cached_property
    def still(self) -> list[bool]:
        """Whether all figures that an operator reads and writes agree to the last digit."""
        has_moved = self.size > 0.0
        network = self.network
        moved = network.outputs.any(self._wrote & has_moved) | network.inputs.any(self.is_known & has_moved)
        found: list[bool] = (~moved).tolist()
        return found

    @cached_property
    def incoming(self) -> list[float]:
        """The largest level of what an operator reads."""
        found: list[float] = self.network.reads.most(self.largest, self.is_known).tolist()
        return found

    @cached_property
    def parameter_shift(self) -> list[float]:
        """The largest finite level of the parameters that each operator reads."""
        network = self.network
        is_one = self.is_known & network.is_parameter & np.isfinite(self.largest)
        found: list[float] = network.inputs.most(self.largest, is_one).tolist()
        return found

    # Which operators cannot exceed the noise

    @cached_property
    def is_special(self) -> Array:
        """Whether the noise of an operator is not a matter of shifts: other arguments, hidden figures, an exponential,
        other shapes, whole numbers that differ."""
        network = self.network
        found: Array = network.is_argued | network.is_exp | network.is_collective | network.outputs.any(self.is_hidden)
        found |= network.all.any(self._rows["shapes_differ"])
        found |= network.reads.any(self.differs & ~self.is_known)
        return found

    @cached_property
    def is_unshown(self) -> list[bool]:
        """Whether the figures of a tensor that an operator writes may not show most of its values, or the order of its
        elements (stat_suspects.py)."""
        network, known = self.network, has_figures(self._rows, 1)
        norm = self._rows["figures"][:, 1, 3]
        found = network.moves_axes | network.outputs.any(~known | ~np.isfinite(norm))
        shown: list[bool] = found.tolist()
        return shown

    # Which operators need no decision

    @cached_property
    def quiet(self) -> list[bool]:
        """Whether no tensor of an operator differs or can be accused, if no error reaches it."""
        network, rows = self.network, self._rows
        agrees = np.isin(rows["verdict"], [VERDICT_NUMBERS[Verdict.MATCH], VERDICT_NUMBERS[Verdict.UNKNOWN]])
        is_still = agrees & (~has_error(self._findings.columns) | (rows["error"] == 0.0))
        found: list[bool] = (network.may_be_quiet & ~network.all.any(~is_still)).tolist()
        return found

    @cached_property
    def differs_by_verdict(self) -> list[bool]:
        found: list[bool] = np.isin(self._rows["verdict"], [VERDICT_NUMBERS[one] for one in DIFFERS]).tolist()
        return found

    @cached_property
    def has_errors(self) -> list[bool]:
        """Whether the error of a tensor that an operator writes is known."""
        found: list[bool] = self.network.outputs.any(has_error(self._findings.columns)).tolist()
        return found

    @cached_property
    def errors(self) -> list[list[float]]:
        """The known errors of the floats that each operator reads and writes, or their lower bounds."""
        columns, rows = self._findings.columns, self.network.all
        error = np.where(has_error(columns), self._rows["error"], self._rows["bound"])
        known = np.isfinite(error) & ~self.network.is_choice & (has_error(columns) | has_bound(columns))
        found: list[list[float]] = [[] for _ in self.network.nodes]
        for at, one in zip(rows.at[known[rows.rows]].tolist(), error[rows.rows][known[rows.rows]].tolist()):
            found[at].append(one)
        return found

    @cached_property
    def written_rms(self) -> list[float]:
        """The largest finite root mean square of the golden tensors that each operator writes."""
        norm, many = self._rows["figures"][:, 1, 3], np.maximum(self.network.elements, 1.0)
        is_one = self.has_norm & (self.network.elements > 0.0) & np.isfinite(norm)
        found: list[float] = self.network.outputs.most(np.where(is_one, norm, 0.0) / np.sqrt(many)).tolist()
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
        return ShiftBars(found[:3], found[3:], most.tolist(), self.is_special.tolist(), open_inputs.tolist())


class ShiftBars:
    """The bounds by which an operator is tested for noise.

    repeated, usual  ratios of shifts to the least noise, in runs that repeat each other and in others: of tensors that
                     a recorded operator wrote, of other inputs, and of parameters
    largest          the largest shift of the first, relative to the tensor
    """

    def __init__(
        self,
        repeated: Sequence[Sequence[float]],
        usual: Sequence[Sequence[float]],
        largest: Sequence[float],
        special: Sequence[bool],
        open_inputs: Sequence[bool],
    ) -> None:
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
