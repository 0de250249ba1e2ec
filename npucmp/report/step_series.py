"""The data of a page over the steps: a level of error for each operator and step, and figures of tensors at each step.

One step and rank is a StepSlice, made by the process that has the comparison. A page has at most FIGURES figures of
tensors, those of suspects first; tensors.csv has all.
"""

from __future__ import annotations

import math
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, TypeVar

import numpy as np
import numpy.typing as npt

from npucmp.model import DIFFERS, Comparison, Moments, Operator, Pair, TensorDetail, Verdict
from npucmp.model.optypes import is_gradient
from npucmp.model.roles import is_argument, is_output, is_parameter
from npucmp.model.table import Columns as TableColumns
from npucmp.model.table import bare_pairs, has_error, moments_of_rows, network_fact, with_verdict
from npucmp.report.answer import Columns
from npucmp.report.csv_text import CodedColumn
from npucmp.report.page_json import in_digits, json_value, pack_columns

Cell = TypeVar("Cell")
Floats = npt.NDArray[np.float64]
FIGURES = 1_000_000  # of all tensors, steps and ranks on a page
OPERATORS = 600_000  # operators of all steps and ranks on a page
ROOTS = 4_000  # causes that are marked in the heat map
DIGITS = 6  # digits of a figure: chosen: so that a curve shows small changes, not measured
NAMES = ("l2", "mean", "min", "max")
COLUMNS = tuple(f"{side}_{name}" for side in ("target", "golden") for name in NAMES)
ABSENT, EQUAL, WITHIN, EXPLAINED, OPEN, ABOVE, FAR, BEYOND = range(8)  # levels of an operator, the worst last
NEAR, DISTANT = 10.0, 1000.0  # error by limit up to which a level is ABOVE, and FAR


class SteppedOperators(NamedTuple):
    """The operators of one step and rank by column; steps and ranks of one network share them."""

    names: tuple[str, ...]
    paths: tuple[str, ...]
    phases: tuple[str, ...]
    orders: tuple[int, ...]


class SteppedTensors(NamedTuple):
    """The tensors of one step and rank by column; steps and ranks of one network share them."""

    names: tuple[str, ...]
    slots: tuple[str, ...]
    kinds: tuple[str, ...]


class StepSlice(NamedTuple):
    """One step and rank of the data over the steps.

    levels   of the operators; `marks`: index, cause and place of those that are roots
    figures  of the tensors (tensors, columns), in the order of COLUMNS; `known`: whether each is
    errors   of a tensor, by index: counts of elements by the decade of their relative error, if they were measured
    left     the number of tensors without figures
    """

    step: Optional[int]
    rank: Optional[int]
    operators: SteppedOperators
    tensors: SteppedTensors
    levels: npt.NDArray[np.uint8]
    marks: Sequence[tuple[int, str, int]]
    figures: Floats
    known: npt.NDArray[np.bool_]
    errors: Mapping[int, tuple[int, ...]]
    left: int = 0

    def share_names(self, pool: dict[object, Any]) -> StepSlice:
        """Return the slice with its names shared through the pool."""
        operators, tensors = (pool.setdefault(names, names) for names in (self.operators, self.tensors))
        return self._replace(operators=operators, tensors=tensors)


def slice_of(one: Comparison, cells: Columns, number: int) -> StepSlice:
    """Return the slice of a comparison that is one of `number`; `cells` are those of tensors.csv."""
    table = one.columns
    curves = network_fact(table, _Curves.of)
    roots = {root.pair.order: root for root in one.roots}
    found = np.full((2, len(curves.operators.names)), ABSENT)
    np.maximum.at(found, (curves.outputs.astype(np.int64), curves.places), _levels(table))
    has_written = np.isin(np.arange(found.shape[1]), curves.places[curves.outputs])
    levels = np.where(has_written, found[1], found[0]).astype(np.uint8)  # errors of inputs are those of their producers
    operators, kept = curves.operators, max(1, OPERATORS // number)
    if len(operators.names) > kept:
        orders = operators.orders
        first = sorted(range(len(levels)), key=lambda at: (orders[at] not in roots, orders[at]))[:kept]
        names, paths, phases = (_some(column, first) for column in operators[:3])
        operators, levels = SteppedOperators(names, paths, phases, _some(orders, first)), levels[first]
    causes = [(at, roots.get(order)) for at, order in enumerate(operators.orders)] if roots else []
    rows, most = curves.rows, max(1, FIGURES // (len(COLUMNS) * number))
    tensors, chosen = curves.tensors, [*range(len(rows))]
    if len(rows) > most:
        places = {order: root.place for order, root in roots.items()}
        chosen.sort(key=lambda at: (places.get(cells["order"][rows[at]], math.inf), at))
        chosen = sorted(chosen[:most])
        tensors = SteppedTensors(*(_some(column, chosen) for column in tensors))
    at_rows, moments = [*map(rows.__getitem__, chosen)], moments_of_rows(table) if len(table.moments) else []
    figures = [_figures(cells[name], at_rows) for name in COLUMNS]
    decades = ((at, _decades(moments[row])) for at, row in enumerate(at_rows if moments else ()))
    return StepSlice(
        one.step, one.rank, operators, tensors, levels,
        [(at, root.cause.value, root.place) for at, root in causes if root is not None],
        np.stack([values for values, _ in figures], axis=1), np.stack([known for _, known in figures], axis=1),
        {at: counts for at, counts in decades if counts}, len(rows) - len(chosen),
    )  # fmt: skip


def _some(column: Sequence[Cell], at: Sequence[int]) -> tuple[Cell, ...]:
    return tuple(map(column.__getitem__, at))


def _figures(column: Sequence[Any], rows: Sequence[int]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the cells of rows as floats, and whether each is known."""
    cells = column.different if isinstance(column, CodedColumn) else [*map(column.__getitem__, rows)]
    values, known = np.array(cells, np.float64), np.array([cell is not None for cell in cells], bool)
    if not isinstance(column, CodedColumn):
        return values, known
    at = np.asarray(column.codes, np.int64)[rows]
    return values[at], known[at]


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
    """The operators of a network, the index of the operator of each row, whether the row is an output, and the tensors
    that have a curve, with their rows."""

    operators: SteppedOperators
    places: npt.NDArray[np.int64]
    outputs: npt.NDArray[np.bool_]
    tensors: SteppedTensors
    rows: Sequence[int]

    @classmethod
    def of(cls, table: TableColumns) -> _Curves:
        pairs = network_fact(table, bare_pairs)
        operators: dict[int, Operator] = {}
        for pair in pairs:
            operators.setdefault(pair.order, pair.operator)
        numbers = dict(zip(operators, range(len(operators))))
        places = np.array([numbers[pair.order] for pair in pairs], np.int64)
        rows = [row for row, pair in enumerate(pairs)
                if pair.slot and not is_argument(pair) and (is_output(pair) or is_parameter(pair))]  # fmt: skip
        curves = [pairs[row] for row in rows]
        return cls(
            operators_of(operators.values())._replace(orders=tuple(operators)),
            places, np.array([*map(is_output, pairs)], bool),
            SteppedTensors(
                tuple(pair.operator.name for pair in curves), tuple(pair.slot for pair in curves),
                tuple(map(_kind, curves)),
            ), rows,
        )  # fmt: skip


def operators_of(operators: Iterable[Operator]) -> SteppedOperators:
    """Return operators by column."""
    listed = [*operators]
    fields = (tuple(getattr(one, name) for one in listed) for name in ("name", "path", "phase", "order"))
    return SteppedOperators(*fields)


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
    tensors: dict[tuple[str, str], str] = {}
    for names, slots, kinds in {id(one.tensors): one.tensors for one in slices}.values():
        for name, slot, kind in zip(names, slots, kinds):
            tensors.setdefault((name, slot), kind)
    at = {key: number for number, key in enumerate(tensors)}
    numbers = {name: number for number, name in enumerate(operators)}
    rows = {id(one.operators): np.array([numbers[name] for name in one.operators.names], np.int64) for one in slices}
    places = {id(one.tensors): np.array([at[key] for key in zip(*one.tensors[:2])], np.int64) for one in slices}
    shape = len(ranks), len(steps)
    levels = np.full((*shape, len(operators)), ord("0") + ABSENT, np.uint8)
    columns = [f"{side}_{name}" for side in sides for name in NAMES]
    figures = np.full((*shape, len(tensors), len(columns)), math.nan)
    known = np.zeros(figures.shape, bool)
    marks, errors = [], []
    for one in slices:
        cell = ranks.index(one.rank or 0), steps.index(one.step or 0)
        own, place = rows[id(one.operators)], places[id(one.tensors)]
        np.maximum.at(levels[cell], own, one.levels + ord("0"))
        marks += [(order, int(own[number]), *cell, cause) for number, cause, order in one.marks]
        figures[cell][place], known[cell][place] = one.figures, one.known
        errors += [[int(place[number]), *cell, [*counts]] for number, counts in one.errors.items()]
    return {
        "steps": steps,
        "ranks": ranks if any(one.rank is not None for one in slices) else [None],
        "sides": [*sides],
        "operators": pack_columns(_operator_columns([*operators.values()])),
        "levels": [[row.tobytes().decode() for row in rank] for rank in levels],
        "marks": [*map(list, sorted(marks)[:ROOTS])],
        "tensors": pack_columns({
            "name": [name for name, _ in tensors], "slot": [slot for _, slot in tensors], "kind": [*tensors.values()],
        }),
        "figures": {"length": 0, "columns": {
            name: _numbers(figures[..., number].ravel(), known[..., number].ravel())
            for number, name in enumerate(columns)
        }},
        "errors": errors,
        "values": [*_values(looks, at, steps, ranks)],
        "left": max((one.left for one in slices), default=0),
    }  # fmt: skip


def _numbers(cells: Floats, known: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return a column of figures. They have more digits than a table shows."""
    finite = np.isfinite(cells)
    short, is_sure = in_digits(cells[finite], DIGITS)
    rounded = short.tolist()
    for at in np.flatnonzero(~is_sure).tolist():
        rounded[at] = float(f"{cells[finite][at]:.{DIGITS}g}")
    if finite.all():
        return {"values": rounded, "number": True}
    values: list[Any] = [None] * len(cells)
    for at, figure in zip(np.flatnonzero(finite).tolist(), rounded):
        values[at] = figure
    for at in np.flatnonzero(known & ~finite).tolist():
        values[at] = json_value(float(cells[at]))
    return {"values": values, "number": True}


def _joined_operators(slices: Sequence[StepSlice]) -> dict[str, tuple[Any, ...]]:
    """Return the operators of all slices in the order of execution; of equal names the first."""
    found: dict[str, tuple[Any, ...]] = {}
    for operators in {id(one.operators): one.operators for one in slices}.values():
        for one in zip(*operators):
            found.setdefault(one[0], one)
    return dict(sorted(found.items(), key=lambda item: item[1][-1]))


def _operator_columns(operators: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    columns = zip(("op", "path", "phase", "order"), zip(*operators))
    return {name: [cell if name in ("op", "order") else cell or None for cell in cells] for name, cells in columns}


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
