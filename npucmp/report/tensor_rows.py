"""All pairs of a comparison, operator by operator, with the producers of their inputs, the data that a page draws, and
the cells of tensors.csv, made column by column.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from itertools import accumulate, chain
from operator import gt
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.flow.contents import by_equal_rows
from npucmp.measure import metrics
from npucmp.model import (
    Comparison,
    Moments,
    Operator,
    Pair,
    Report,
    Root,
    Side,
    Statistics,
    Tolerance,
    Verdict,
    position,
)
from npucmp.model.arguments import by_name, differing_arguments
from npucmp.model.network import rows_to_search
from npucmp.model.roles import is_argument
from npucmp.model.stack import frames
from npucmp.model.table import (
    Flags,
    has_error,
    moments_of_rows,
    network_fact,
    recorded_figures,
)
from npucmp.report import tables
from npucmp.report.answer import Columns, Detail
from npucmp.report.csv_text import CodedColumn
from npucmp.report.network import NOTHING, NetworkColumns
from npucmp.report.phrases import where_words
from npucmp.report.producers import Linked
from npucmp.report.rank_map import rank_errors
from npucmp.report.tables import OF_OPERATORS as COLUMNS_OF_OPERATORS
from npucmp.report.tables import RELATIONS, SIDES, TENSOR_COLUMNS

OF_OPERATORS = ("step", "rank", "order", "op", "op_type", "phase", "target_op", "golden_op", "stack")
_OPERATOR = ("golden_op", "alone", "frames", "originals", "passes", "inserted", "path")
# further columns of an operator that is a root cause
_ROOT = ("cause", "place", "root_slot", "evidence", "input_error", "output_error", "root_rank")
_SHOWN = [name for name in OF_OPERATORS if name not in ("step", "rank", "target_op")]
NO_ROWS = (*OF_OPERATORS, *tables.PLACES)  # columns that a page has with its operators, or derives from others


def detail(
    parts: Sequence[PairedOperators],
    metrics: Sequence[str],
    figures: Sequence[str],
    rules: Sequence[Tolerance],
    ranks: Optional[Mapping[str, Any]] = None,
) -> Detail:
    """Return the rows of tensors.csv of these comparisons with the data of a page; `figures` are the columns shown
    first, `ranks` is the map of rank_map.py."""
    columns = [name for name in (*tables.TENSOR_COLUMNS, *metrics) if name not in NO_ROWS]
    more: dict[str, Any] = {"rules": [{"dtype": rule.dtype, "limit": rule.limit} for rule in rules], "readers": True}
    if ranks is not None:
        more["ranks"] = ranks
    offsets = [*accumulate((one.length for one in parts), initial=0)]
    rows = _concatenate([one.rows for one in parts], [len(one.rows["slot"]) for one in parts])
    if len(parts) > 1:
        rows["producer"] = [None if cell is None else cell + offset for one, offset in zip(parts, offsets)
                            for cell in one.rows["producer"]]  # fmt: skip
    runs = [number for number, one in enumerate(parts) for _ in range(one.length)]
    return Detail(
        kind="pairs",
        title="All tensor pairs",
        chart="The error along the network",
        runs=[one.run for one in parts],
        operators={"run": runs, **_concatenate([one.operators for one in parts], [one.length for one in parts])},
        rows=rows,
        columns=["run", "order", "op", "op_type", "phase", "cause", *columns, "stack"],
        shown=["run", "order", "op", "op_type", "slot", "verdict", "cause", *figures,
               "target_dtype", "golden_dtype", "target_shape"],
        facets=["run", "verdict", "cause", "rule", "op_type", "phase"],
        more=more,
    )  # fmt: skip


def _concatenate(parts: Sequence[Columns], lengths: Sequence[int]) -> Columns:
    """Concatenate the columns of parts; cells are None where a part lacks the column."""
    if len(parts) == 1:
        return {**parts[0]}
    names = dict.fromkeys(name for one in parts for name in one)
    return {name: [*chain.from_iterable(one.get(name) or [None] * length for one, length in zip(parts, lengths))]
            for name in names}  # fmt: skip


class PairedOperators(NamedTuple):
    """The operators of one comparison and their rows, for a page."""

    run: str
    operators: Columns
    rows: Columns

    @property
    def length(self) -> int:
        """The number of operators."""
        return len(self.operators["rows"])


def paired_rows(comparison: Comparison, cells: Columns, linked: Linked) -> PairedOperators:
    """Return the rows of one comparison, operator by operator. `cells` are the cells of tensors.csv."""
    table = comparison.columns
    network = network_fact(table, NetworkColumns)
    layout = network.cached("layout", lambda: _layout(network))
    rows = {name: column for name, column in cells.items() if name not in (*OF_OPERATORS, *tables.PLACES)}
    rows["error"] = optional(table.rows["error"], has_error(table))
    if len(table.moments):
        rows["error"] = [None if error == cell else error for error, cell in zip(rows["error"], cells["rel_l2"])]
    rows["limit"] = optional(table.rows["limit"], table.rows["limit"] != 0.0)
    rows["metric"] = _coded(table.rows["metric"], table.words)
    rows.update(output=[], argument=[])  # the order of the columns on the page
    nothing = network.columns[NOTHING]
    rows["histogram"] = [*map(_histogram, moments_of_rows(table))] if len(table.moments) else nothing
    if layout.sequence:
        rows = {name: [*map(column.__getitem__, layout.sequence)] if column else [] for name, column in rows.items()}
    rows.update(by_equal_rows(rows_to_search(comparison), paired_rows, lambda: network.fixed({
        "producer": [None if link is None else layout.numbers[link.order] for link in linked],
        "linked": [None if link is None else link.how for link in linked],
    })))  # fmt: skip
    roots = {root.pair.order: root for root in comparison.roots}
    of_roots = tables.columns_of_rows(_ROOT, [*map(_root, roots.values())]) if roots else {}
    for name, cells_of_roots in of_roots.items():
        cell_of = dict(zip(roots, cells_of_roots)).get
        of_roots[name] = [*map(cell_of, layout.numbers)]
    operators = {**layout.operators, **of_roots}
    return PairedOperators(" · ".join(where_words(comparison.target)), operators, {**rows, **layout.rows})


class _Layout(NamedTuple):
    """The data of a network for a page, independent of the values of its tensors.

    sequence   the rows in graph order; empty if the rows of the table are in this order
    numbers    the index of an operator by its order
    operators  columns of operators; `rows`: columns of the rows in graph order
    """

    sequence: Sequence[int]
    numbers: Mapping[int, int]
    operators: Columns
    rows: Columns


def _layout(network: NetworkColumns) -> _Layout:
    """Return the layout of a network."""
    orders = network.columns["order"]
    sequence = sorted(range(len(orders)), key=orders.__getitem__) if any(map(gt, orders, orders[1:])) else ()
    pairs = [*map(network.pairs.__getitem__, sequence)] if sequence else network.pairs
    counts = Counter(pair.order for pair in pairs)  # in graph order
    starts = [*accumulate(counts.values(), initial=0)][:-1]
    firsts = [*map(pairs.__getitem__, starts)]
    rows = sequence or range(len(pairs))
    tensors = [pair.target or pair.golden for pair in pairs]
    kinds = {one.slot: one.is_output for one in tensors if one is not None}
    paths = {pair.operator.name: pair.operator.path for pair in firsts}
    operators: Columns = {
        "rows": [*counts.values()],
        "within": [_within(pair.operator, paths) for pair in firsts],
        **{name: [network.columns[name][rows[at]] for at in starts] for name in _SHOWN},
        **tables.columns_of_rows(_OPERATOR, [*map(_operator, firsts)]),
        "arguments": [_arguments(pair.target_op, pair.golden_op) for pair in firsts],
    }
    of_rows: Columns = {
        "output": [one is not None and kinds[one.slot] for one in tensors],
        "argument": [is_argument(one) or None for one in pairs],
    }
    held = rank_errors(pairs)
    if held is not None:
        of_rows["rank_errors"] = held
    fixed, fixed_rows = map(network.fixed, (operators, of_rows))
    return _Layout(sequence, dict(zip(counts, range(len(counts)))), fixed, fixed_rows)


def _histogram(moments: Optional[Moments]) -> str:
    """ "first:count,count,…" from the first to the last bin that is not empty, counts rounded to three digits."""
    if moments is None or not moments.max_abs or not any(moments.histogram):
        return ""
    counts = moments.histogram
    text = ",".join(["" if not one else str(one if one < 1000 else int(float(f"{one:.3g}"))) for one in counts])
    return f"{len(text) - len(text.lstrip(','))}:{text.strip(',')}"


def _operator(pair: Pair) -> tuple[Any, ...]:
    """Return the cells of _OPERATOR."""
    operator = pair.operator
    return (
        pair.golden_op.name if pair.golden_op and pair.golden_op.name != operator.name else None,
        "" if pair.target_op and pair.golden_op else "target" if pair.target_op else "golden",
        frames(operator) or (frames(pair.golden_op) if pair.golden_op else ()),
        operator.originals if operator.originals != (operator.name,) else (),
        operator.passes,
        operator.inserted or None,
        operator.path,
    )


def _within(operator: Operator, paths: Mapping[str, str]) -> Optional[str]:
    """Return the path of the module that contains an operator without a path of its own; None if it is not known."""
    return None if operator.path else paths.get(operator.scope) or None


def _root(root: Root) -> tuple[Any, ...]:
    """Return the cells of _ROOT."""
    return (*tables.of_root(root).values(), root.input_error, root.output_error, root.rank)


def _arguments(target: Optional[Operator], golden: Optional[Operator]) -> tuple[str, ...]:
    if target is None or golden is None:
        return ()
    return tuple(f"{by_name(target, slot)}: {a!r:.60} in the target, {b!r:.60} in the golden"
                 for slot, a, b in differing_arguments(target, golden))  # fmt: skip


FIGURES = ("nan", "inf", "min", "max", "mean", "l2")
RECORDED = ("min", "max", "mean", "norm")  # fields of Statistics, in the order of FIGURES
OF_TENSORS = ("tensor", "dtype", "shape", "layout")


def tensor_columns(report: Report, extra: Sequence[str] = ()) -> Columns:
    """Return the cells of tensors.csv, a list per column, in graph order."""
    return _columns_concatenated([columns_of(one, extra) for one in report.comparisons], (*TENSOR_COLUMNS, *extra))


def _columns_concatenated(parts: Sequence[Columns], names: Sequence[str]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: _cells_concatenated([part[name] for part in parts]) for name in names}


def _cells_concatenated(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    coded = [part for part in parts if isinstance(part, CodedColumn)]
    if parts and len(coded) == len(parts):
        offsets = accumulate((len(part.different) for part in coded), initial=0)
        codes = np.concatenate([np.asarray(part.codes, np.int64) + offset for part, offset in zip(coded, offsets)])
        return CodedColumn([*chain.from_iterable(part.different for part in coded)], array("q", codes.tobytes()))
    if any(part is not parts[0] for part in parts):
        return [*chain.from_iterable(parts)]
    return CodedColumn(parts[0], array("q", range(len(parts[0]))) * len(parts)) if parts else []


def columns_of(comparison: Comparison, extra: Sequence[str] = ()) -> Columns:
    """Return the columns of one comparison. Making them column by column takes a tenth of the time of rows. A cell is
    None if it does not apply or is not known. Columns without any value share one list."""
    table = comparison.columns
    rows, fixed = table.rows, network_fact(table, NetworkColumns).columns
    nothing = fixed[NOTHING]
    columns: Columns = {"step": [comparison.step] * len(rows), "rank": [comparison.rank] * len(rows)}
    columns.update((name, fixed[name]) for name in (*COLUMNS_OF_OPERATORS, "order", "slot"))
    columns["verdict"] = _coded(rows["verdict"], [verdict.value for verdict in Verdict])
    columns["because"] = _coded(rows["because"], table.words)
    columns.update((name, fixed[name]) for name in ("matched_by", "match_confidence"))
    causes = {order: cause.value for order, cause in comparison.causes.items()}
    columns["cause"] = CodedColumn.of([*map(causes.get, fixed["order"])]) if causes else nothing
    columns["limit"] = optional(rows["limit"], rows["rule"] > 0)
    for name in ("rule", "explained_by"):
        words = [word or None for word in table.words]
        columns[name] = _coded(rows[name], words) if rows[name].any() else nothing
    columns["explained_limit"] = optional(rows["explained_limit"], rows["explained_by"] > 0)
    moments = moments_of_rows(table) if len(table.moments) else []
    measured = [(row, one) for row, one in enumerate(moments) if one is not None]
    columns["masked"] = [one and one.masked for one in moments] if measured else nothing
    columns["elements"] = fixed["elements"]
    for number, (side, tensors) in enumerate(zip(SIDES, (table.targets, table.goldens))):
        columns.update((name, fixed[name]) for name in (f"{side}_{what}" for what in OF_TENSORS))
        own: list[Any] = [nothing, nothing, *_recorded(*recorded_figures(table, number))]
        if measured:
            own = [[*column] for column in own]
        for row, one in measured:
            if tensors[row] is not None:
                for cells, figure in zip(own, _figures(getattr(one, side), one.elements)):
                    cells[row] = figure
        columns.update(zip((f"{side}_{name}" for name in FIGURES), own))
    sides = zip(moments, table.targets, table.goldens)
    both = [one if target is not None and golden is not None else None for one, target, golden in sides]
    has_both = bool(measured) and any(both)  # otherwise only statistics exist
    for metric in metrics.columns(extra):
        columns[metric.name] = [None if one is None else metric.function(one) for one in both] if has_both else nothing
    for name in ("max_abs_index", "max_rel_index"):
        place = f"{name[: -len('index')]}at"
        columns[name] = columns[place] = nothing
        if has_both:
            places = [-1 if one is None else getattr(one, name) for one in both]
            columns[name] = [place if place >= 0 else None for place in places]
            columns[place] = [
                position(place, golden.shape) if place >= 0 and golden is not None else None
                for place, golden in zip(places, table.goldens)
            ]
    columns.update((name, fixed[name]) for name in RELATIONS)
    return columns


def _coded(numbers: npt.NDArray[Any], words: Sequence[Any]) -> CodedColumn:
    """Return the words with these numbers."""
    column = CodedColumn.of(numbers.tolist())
    return CodedColumn([*map(words.__getitem__, column.different)], column.codes)


def _recorded(known: Flags, figures: npt.NDArray[np.float64]) -> list[CodedColumn]:
    """Return the columns of RECORDED. An operator reads the output of another, so many rows have equal figures."""
    count = len(Statistics._fields)
    rows = CodedColumn.of(np.hstack([figures, known]).view(f"V{2 * count * figures.itemsize}").ravel().tolist())
    found = np.frombuffer(b"".join(rows.different)).reshape(-1, 2 * count)
    names = map(Statistics._fields.index, RECORDED)
    return [CodedColumn(optional(found[:, name], found[:, count + name] > 0), rows.codes) for name in names]


def optional(numbers: npt.NDArray[np.float64], known: Flags) -> Sequence[Any]:
    """Return numbers, None where they are not known. A column of at most two values has codes."""
    cells: list[Any] = numbers.tolist()
    if not known.all():
        cells = [one if is_known else None for one, is_known in zip(cells, known.tolist())]
    bits = np.where(known, numbers, 0.0).view(np.int64)
    others = np.flatnonzero((bits != bits[:1]) | (known != known[:1]))
    rest = bits[others], known[others]
    if not cells or any((one != one[:1]).any() for one in rest):
        return cells
    codes = np.zeros(len(cells), np.int64)
    codes[others] = 1
    return CodedColumn([cells[at] for at in (0, *others[:1].tolist())], codes.tolist())


def _figures(side: Side, elements: int) -> tuple[Any, ...]:
    """Return the cells of FIGURES."""
    inf = side.inf
    finite = elements - side.nan - inf
    if not finite:
        return side.nan, inf, None, None, None, math.sqrt(side.squares)
    return side.nan, inf, side.minimum, side.maximum, side.total / finite, math.sqrt(side.squares)
