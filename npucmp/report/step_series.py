"""The data of a page over the steps: a level of error for each operator and step, and figures of tensors at each step.

One step and rank is a StepSlice, made by the process that has the comparison. A page has at most FIGURES figures of
tensors, those of suspects first; tensors.csv has all.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.model import DIFFERS, Comparison, Moments, Operator, Pair, TensorDetail, Verdict
from npucmp.model.optypes import is_gradient
from npucmp.model.roles import is_argument, is_output, is_parameter
from npucmp.model.table import Columns as TableColumns
from npucmp.model.table import bare_pairs, has_error, moments_of_rows, network_fact, with_verdict
from npucmp.report.answer import Columns
from npucmp.report.page_json import in_digits, json_value, pack_columns

FIGURES = 1_000_000  # of all tensors, steps and ranks on a page
OPERATORS = 600_000  # operators of all steps and ranks on a page
ROOTS = 4_000  # causes that are marked in the heat map
DIGITS = 6  # digits of a figure: chosen: so that a curve shows small changes, not measured
NAMES = ("l2", "mean", "min", "max")
COLUMNS = tuple(f"{side}_{name}" for side in ("target", "golden") for name in NAMES)
ABSENT, EQUAL, WITHIN, EXPLAINED, OPEN, ABOVE, FAR, BEYOND = range(8)  # levels of an operator, the worst last
NEAR, DISTANT = 10.0, 1000.0  # error by limit up to which a level is ABOVE, and FAR


class SteppedOperator(NamedTuple):
    """An operator in one step and rank, with its level and the cause and place of a root ("" and 0 without one)."""

    name: str
    path: str
    phase: str
    order: int
    level: int
    cause: str = ""
    place: int = 0


class SteppedTensor(NamedTuple):
    """A tensor in one step and rank; `figures` are in the order of COLUMNS, None if unknown. `errors` counts elements
    by the decade of their relative error, () if they were not measured."""

    name: str
    slot: str
    kind: str
    figures: tuple[Optional[float], ...]
    errors: tuple[int, ...] = ()


class StepSlice(NamedTuple):
    """One step and rank of the data over the steps; `left` is the number of tensors without figures."""

    step: Optional[int]
    rank: Optional[int]
    operators: Sequence[SteppedOperator]
    tensors: Sequence[SteppedTensor]
    left: int = 0


def slice_of(one: Comparison, cells: Columns, number: int) -> StepSlice:
    """Return the slice of a comparison that is one of `number`; `cells` are those of tensors.csv."""
    table = one.columns
    curves = network_fact(table, _Curves.of)
    roots = {root.pair.order: root for root in one.roots}
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    for order, is_written, level in zip(cells["order"], curves.outputs, _levels(table).tolist()):
        levels = written if is_written else read
        levels[order] = max(levels.get(order, ABSENT), level)
    levels = {**read, **written}  # errors of inputs are those of their producers
    operators = []
    for order, operator in curves.operators.items():
        root = roots.get(order)
        marks = (root.cause.value, root.place) if root is not None else ("", 0)
        operators.append(SteppedOperator(operator.name, operator.path, operator.phase, order, levels[order], *marks))
    kept = max(1, OPERATORS // number)
    if len(operators) > kept:
        operators = sorted(operators, key=lambda found: (not found.cause, found.order))[:kept]
    rows, most = [*curves.tensors], max(1, FIGURES // (len(COLUMNS) * number))
    if len(rows) > most:
        places = {order: root.place for order, root in roots.items()}
        rows = sorted(rows, key=lambda row: (places.get(cells["order"][row], math.inf), row))
    chosen, moments = sorted(rows[:most]), moments_of_rows(table)
    figures = zip(*(map([*cells[name]].__getitem__, chosen) for name in COLUMNS))
    tensors = [
        curves.tensors[row]._replace(figures=own, errors=_decades(moments[row])) for row, own in zip(chosen, figures)
    ]
    return StepSlice(one.step, one.rank, operators, tensors, len(rows) - len(tensors))


def _levels(table: TableColumns) -> npt.NDArray[np.int64]:
    """Return the level of each row."""
    errors, limits, known = table.rows["error"], table.rows["limit"], has_error(table)
    is_above = known & (limits != 0) & (errors > limits)
    agrees = np.where(known & (errors == 0), EQUAL, np.where(is_above, EXPLAINED, WITHIN))
    with np.errstate(all="ignore"):
        ratios = np.divide(errors, limits, out=np.full(len(errors), math.inf), where=known & (limits != 0))
    beyond = np.where(ratios <= NEAR, ABOVE, np.where(ratios <= DISTANT, FAR, BEYOND))
    others = np.where(with_verdict(table, DIFFERS), beyond, OPEN)
    return np.where(with_verdict(table, (Verdict.MATCH,)), agrees, others)


class _Curves(NamedTuple):
    """The operators of a network by order, whether each row is an output, and the tensors that have a curve, by row,
    without their figures."""

    operators: Mapping[int, Operator]
    outputs: Sequence[bool]
    tensors: Mapping[int, SteppedTensor]

    @classmethod
    def of(cls, table: TableColumns) -> _Curves:
        pairs = network_fact(table, bare_pairs)
        operators: dict[int, Operator] = {}
        for pair in pairs:
            operators.setdefault(pair.order, pair.operator)
        tensors = {
            row: SteppedTensor(pair.operator.name, pair.slot, _kind(pair), ())
            for row, pair in enumerate(pairs)
            if pair.slot and not is_argument(pair) and (is_output(pair) or is_parameter(pair))
        }
        return cls(operators, [*map(is_output, pairs)], tensors)


def _kind(pair: Pair) -> str:
    return "parameter" if is_parameter(pair) else "gradient" if is_gradient(pair.operator) else "activation"


def _decades(moments: Optional[Moments]) -> tuple[int, ...]:
    return moments.histogram if moments is not None and moments.max_abs and any(moments.histogram) else ()


def series_data(
    slices: Sequence[StepSlice], looks: Sequence[TensorDetail] = (), sides: Sequence[str] = ("target", "golden")
) -> dict[str, Any]:
    """Return the data that the page reads. Operators and tensors of all slices are joined by their names."""
    steps, ranks = (sorted({number or 0 for number in numbers}) for numbers in
                    ([one.step for one in slices], [one.rank for one in slices]))  # fmt: skip
    operators = _joined_operators(slices)
    tensors: dict[tuple[str, str], SteppedTensor] = {}
    for one in slices:
        for tensor in one.tensors:
            tensors.setdefault((tensor.name, tensor.slot), tensor)
    at = {key: number for number, key in enumerate(tensors)}
    numbers = {name: number for number, name in enumerate(operators)}
    cells = {(rank, step): ABSENT for rank in range(len(ranks)) for step in range(len(steps))}
    levels = {cell: bytearray(b"0" * len(operators)) for cell in cells}
    marks, errors = [], []
    count = len(tensors)
    names = [f"{side}_{name}" for side in sides for name in NAMES]
    columns: dict[str, list[Any]] = {name: [None] * (count * len(cells)) for name in names}
    for one in slices:
        cell = ranks.index(one.rank or 0), steps.index(one.step or 0)
        for found in one.operators:
            number = numbers[found.name]
            levels[cell][number] = max(levels[cell][number], ord("0") + found.level)
            if found.cause:
                marks.append((found.place, number, *cell, found.cause))
        first = (cell[0] * len(steps) + cell[1]) * count
        for tensor in one.tensors:
            number = at[tensor.name, tensor.slot]
            for name, figure in zip(columns, tensor.figures):
                columns[name][first + number] = None if figure is None else float(figure)
            if tensor.errors:
                errors.append([number, *cell, [*tensor.errors]])
    return {
        "steps": steps,
        "ranks": ranks if any(one.rank is not None for one in slices) else [None],
        "sides": [*sides],
        "operators": pack_columns(_operator_columns(operators.values())),
        "levels": [[levels[rank, step].decode() for step in range(len(steps))] for rank in range(len(ranks))],
        "marks": [*map(list, sorted(marks)[:ROOTS])],
        "tensors": pack_columns({
            "name": [one.name for one in tensors.values()], "slot": [one.slot for one in tensors.values()],
            "kind": [one.kind for one in tensors.values()],
        }),
        "figures": {"length": 0, "columns": {name: _numbers(cells) for name, cells in columns.items()}},
        "errors": errors,
        "values": [*_values(looks, at, steps, ranks)],
        "left": max((one.left for one in slices), default=0),
    }  # fmt: skip


def _numbers(cells: Sequence[Optional[float]]) -> dict[str, Any]:
    """Return a column of figures. They have more digits than a table shows."""
    known = np.array(cells, dtype=np.float64)  # None becomes NaN
    finite = np.isfinite(known)
    short, is_sure = in_digits(known[finite], DIGITS)
    rounded = short.tolist()
    for at in np.flatnonzero(~is_sure).tolist():
        rounded[at] = float(f"{known[finite][at]:.{DIGITS}g}")
    found = iter(rounded)
    values = [next(found) if is_finite else json_value(cell) for is_finite, cell in zip(finite.tolist(), cells)]
    return {"values": values, "number": True}


def _joined_operators(slices: Sequence[StepSlice]) -> dict[str, SteppedOperator]:
    """Return the operators of all slices in the order of execution; of equal names the first."""
    found: dict[str, SteppedOperator] = {}
    for one in slices:
        for operator in one.operators:
            found.setdefault(operator.name, operator)
    return dict(sorted(found.items(), key=lambda item: item[1].order))


def _operator_columns(operators: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"op": [], "path": [], "phase": [], "order": []}
    for one in operators:
        found["op"].append(one.name)
        found["path"].append(one.path or None)
        found["phase"].append(one.phase or None)
        found["order"].append(one.order)
    return found


def _values(
    looks: Sequence[TensorDetail], at: dict[tuple[str, str], int], steps: Sequence[int], ranks: Sequence[int]
) -> Iterator[list[Any]]:
    """Yield the distribution of the values of tensors that were read a second time."""
    for look in looks:
        number = at.get((look.pair.operator.name, look.pair.slot))
        step, rank = look.step or 0, look.rank or 0
        if number is None or step not in steps or rank not in ranks or not look.values[1].counts:
            continue
        target, golden = look.values
        bounds = json_value(golden.low), json_value(golden.high)
        yield [number, ranks.index(rank), steps.index(step), *bounds, [*target.counts], [*golden.counts]]
