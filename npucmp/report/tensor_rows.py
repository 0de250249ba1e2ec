"""All pairs of a comparison, operator by operator, with the producers of their inputs, the data that a page draws, and
the cells of tensors.csv, made column by column.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate, chain
from operator import attrgetter, gt
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from npucmp.flow.edges import Link, links
from npucmp.measure import metrics
from npucmp.model import (
    Comparison,
    Finding,
    Measurement,
    Moments,
    Operator,
    Pair,
    Report,
    Root,
    Side,
    Statistics,
    Tolerance,
    position,
)
from npucmp.model.arguments import by_name, differing_arguments
from npucmp.model.roles import is_argument
from npucmp.model.stack import frames
from npucmp.report import tables
from npucmp.report.answer import Columns, Detail, Row
from npucmp.report.network import FixedColumn, Network, network_of
from npucmp.report.phrases import where_words
from npucmp.report.rank_map import rank_errors
from npucmp.report.tables import OF_OPERATORS as COLUMNS_OF_OPERATORS
from npucmp.report.tables import RELATIONS, SIDES, TENSOR_COLUMNS, columns_of_rows

OF_OPERATORS = ("step", "rank", "order", "op", "op_type", "phase", "target_op", "golden_op", "stack")
_OPERATOR = ("golden_op", "alone", "frames", "originals", "passes", "inserted", "path")
_SHOWN = [name for name in OF_OPERATORS if name not in ("step", "rank", "target_op")]
NO_ROWS = (*OF_OPERATORS, *tables.PLACES)  # columns that a page has with its operators, or derives from others


Linked = Sequence[Optional[Link]]


def producers_read(one: Comparison) -> Linked:
    """Return the producers of the tensors that the findings of a comparison read, in graph order."""
    orders = [finding.measurement.pair.order for finding in one.findings]
    in_order = (
        one.findings if orders == sorted(orders) else sorted(one.findings, key=lambda finding: finding.pair.order)
    )
    return [*links(in_order)]


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
    if rows:
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
    findings: Sequence[Finding] = comparison.findings
    rows = {name: column for name, column in cells.items() if name not in OF_OPERATORS}
    orders, operators = cells["order"], {name: cells[name] for name in _SHOWN}
    if any(map(gt, orders, orders[1:])):
        sequence = sorted(range(len(orders)), key=orders.__getitem__)
        findings = [findings[row] for row in sequence]
        rows, operators = (
            {name: [column[row] for row in sequence] for name, column in columns.items()}
            for columns in (rows, operators)
        )
        orders = operators["order"]
    pairs = [one.measurement.pair for one in findings]
    network = orders.network if isinstance(orders, FixedColumn) else Network(None)
    layout = network.cached("layout", lambda: _layout(network, pairs, operators))
    firsts = [pairs[at] for at in layout.starts]
    roots = {root.pair.order: root for root in comparison.roots}
    of_operators: Columns = {
        **layout.operators,
        "arguments": [_arguments(pair.target_op, pair.golden_op) for pair in firsts],
        **(tables.by_column([_root(roots.get(order)) for order in layout.numbers]) if roots else {}),
    }
    alike, numbers = rows["rel_l2"], layout.numbers
    more: Columns = {
        "error": [None if one.error == cell else one.error for one, cell in zip(findings, alike)],
        "limit": [one.limit or None for one in findings],
        "metric": [one.metric for one in findings],
        "output": layout.output,
        "argument": [is_argument(one) or None for one in pairs]
        if any(map(_has_arguments, firsts))
        else [None] * len(pairs),
        "histogram": [_histogram(one.measurement.moments) for one in findings],
        "producer": [None if link is None else numbers[link.order] for link in linked],
        "linked": [None if link is None else link.how for link in linked],
    }
    held = rank_errors(pairs)
    if held is not None:
        more["rank_errors"] = held
    rows = {name: column for name, column in rows.items() if name not in tables.PLACES}
    return PairedOperators(" · ".join(where_words(comparison.target)), of_operators, {**rows, **more})


class _Layout(NamedTuple):
    """The data of a network for a page, independent of the values of its tensors.

    starts     the first row of each operator; `numbers`: the index of an operator by its order
    operators  columns of operators; `output`: whether each row is an output
    """

    starts: Sequence[int]
    numbers: Mapping[int, int]
    operators: Columns
    output: list[Any]


def _layout(network: Network, pairs: Sequence[Pair], operators: Columns) -> _Layout:
    """Return the layout of pairs in graph order; `operators` are columns with the values of each row's operator."""
    counts = Counter(pair.order for pair in pairs)  # in graph order
    starts = [*accumulate(counts.values(), initial=0)][:-1]
    tensors = [pair.target or pair.golden for pair in pairs]
    kinds = {one.slot: one.is_output for one in tensors if one is not None}
    paths = {pairs[at].operator.name: pairs[at].operator.path for at in starts}
    columns: Columns = {
        "rows": [*counts.values()],
        "within": [_within(pairs[at].operator, paths) for at in starts],
        **{name: [column[at] for at in starts] for name, column in operators.items()},
        **tables.columns_of_rows(_OPERATOR, [_operator(pairs[at]) for at in starts]),
    }
    fixed: Columns = {name: network.column(cells) for name, cells in columns.items()}
    output = network.column([one is not None and kinds[one.slot] for one in tensors])
    return _Layout(starts, dict(zip(counts, range(len(counts)))), fixed, output)


def _has_arguments(pair: Pair) -> bool:
    return pair.target_op is not None and bool(pair.target_op.arguments)


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


def _root(root: Optional[Root]) -> Row:
    """Return the further cells of an operator that is a root cause."""
    if root is None:
        return {}
    more = {"input_error": root.input_error, "output_error": root.output_error, "root_rank": root.rank}
    return {**tables.of_root(root), **more}


def _arguments(target: Optional[Operator], golden: Optional[Operator]) -> tuple[str, ...]:
    if target is None or golden is None:
        return ()
    return tuple(f"{by_name(target, slot)}: {a!r:.60} in the target, {b!r:.60} in the golden"
                 for slot, a, b in differing_arguments(target, golden))  # fmt: skip


FIGURES = ("nan", "inf", "min", "max", "mean", "l2")
OF_TENSORS = ("tensor", "dtype", "shape", "layout")
_FINDING, _MEASUREMENT, _PAIR = Finding._fields, Measurement._fields, Pair._fields
_NO_STATISTICS = Statistics()


def tensor_columns(report: Report, extra: Sequence[str] = ()) -> Columns:
    """Return the cells of tensors.csv, a list per column, in graph order."""
    return _columns_concatenated([columns_of(one, extra) for one in report.comparisons], (*TENSOR_COLUMNS, *extra))


def _columns_concatenated(parts: Sequence[Columns], names: Sequence[str]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: [*chain.from_iterable(part[name] for part in parts)] for name in names}


def columns_of(comparison: Comparison, extra: Sequence[str] = ()) -> Columns:
    """Return the columns of one comparison. Making them column by column takes a tenth of the time of rows. A cell is
    None if it does not apply or is not known. Columns without any value share one list."""
    findings = comparison.findings
    count = len(findings)
    judged = _by_field(findings, _FINDING)
    measured = _by_field(judged["measurement"], _MEASUREMENT)
    nothing: list[Any] = [None] * count
    fixed = network_of(measured["pair"]).columns
    columns: Columns = {"step": [comparison.step] * count, "rank": [comparison.rank] * count}
    columns.update((name, fixed[name]) for name in (*COLUMNS_OF_OPERATORS, "order", "slot"))
    columns["verdict"] = [*map(attrgetter("_value_"), judged["verdict"])]
    columns["because"] = [*judged["because"]]
    columns.update((name, fixed[name]) for name in ("matched_by", "match_confidence"))
    causes = {root.pair.order: root.cause.value for root in comparison.roots}
    columns["cause"] = [*map(causes.get, fixed["order"])] if causes else nothing
    columns["limit"] = _where(judged["rule"], judged["limit"], nothing)
    columns["rule"] = _where(judged["rule"], judged["rule"], nothing)
    columns["explained_by"] = _where(judged["explained_by"], judged["explained_by"], nothing)
    columns["explained_limit"] = _where(judged["explained_by"], judged["explained_limit"], nothing)
    moments = measured["moments"]
    has_values = any(moments)
    columns["masked"] = [None if one is None else one.masked for one in moments] if has_values else nothing
    columns["elements"] = fixed["elements"]
    pair = _by_field(measured["pair"], _PAIR) if has_values else {}
    for number, side in enumerate(SIDES):
        columns.update((name, fixed[name]) for name in (f"{side}_{what}" for what in OF_TENSORS))
        recorded = [one[number] for one in measured["statistics"]]
        if has_values:
            own = [
                _figures(getattr(one, side), one.elements)
                if one is not None and tensor is not None
                else _record_of(found)
                for one, tensor, found in zip(moments, pair[side], recorded)
            ]
            columns.update(columns_of_rows([f"{side}_{name}" for name in FIGURES], own))
        else:
            columns.update(_of_statistics(side, recorded, nothing))
    both: Sequence[Any] = [
        one if target is not None and golden is not None else None
        for one, target, golden in zip(moments, pair["target"], pair["golden"])
    ] if has_values else nothing  # fmt: skip
    has_both = any(both)  # otherwise only statistics exist
    for metric in metrics.columns(extra):
        columns[metric.name] = [None if one is None else metric.function(one) for one in both] if has_both else nothing
    for name in ("max_abs_index", "max_rel_index"):
        place = f"{name[: -len('index')]}at"
        columns[name] = columns[place] = nothing
        if has_both:
            places = [-1 if one is None else getattr(one, name) for one in both]
            columns[name] = [place if place >= 0 else None for place in places]
            columns[place] = [
                position(place, one.shape) if place >= 0 and one is not None else None
                for place, one in zip(places, pair["golden"])
            ]
    columns["golden_slot"] = fixed["golden_slot"]
    relations = [
        None if one.target is None or one.target.relation is None else one.target.relation.words or None
        for one in measured["pair"]
    ]
    columns["relation"] = relations if any(relations) else nothing
    reasons = [one.note or None if one.via else None for one in measured["pair"]]
    columns["match_reason"] = reasons if any(reasons) else nothing
    columns.update({name: nothing for name in RELATIONS if name not in columns})
    return columns


def _by_field(records: Sequence[Any], names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Return the fields of records, a sequence for each name."""
    return dict(zip(names, zip(*records))) if records else dict.fromkeys(names, ())


def _where(conditions: Sequence[Any], values: Sequence[Any], nothing: list[Any]) -> list[Any]:
    """Return the values where a condition is true, None elsewhere."""
    if not any(conditions):
        return nothing
    return [value if condition else None for condition, value in zip(conditions, values)]


def _of_statistics(side: str, recorded: Sequence[Optional[Statistics]], nothing: list[Any]) -> Columns:
    """Return the figures of tensors that were measured by their recorded statistics only."""
    known = _by_field([_NO_STATISTICS if one is None else one for one in recorded], Statistics._fields)
    columns: Columns = {f"{side}_nan": nothing, f"{side}_inf": nothing}
    names = {"min": "min", "max": "max", "mean": "mean", "l2": "norm"}
    return {**columns, **{f"{side}_{name}": [*known[field]] for name, field in names.items()}}


def _figures(side: Side, elements: int) -> tuple[Any, ...]:
    inf = side.inf
    finite = elements - side.nan - inf
    if not finite:
        return side.nan, inf, None, None, None, math.sqrt(side.squares)
    return side.nan, inf, side.minimum, side.maximum, side.total / finite, math.sqrt(side.squares)


def _record_of(one: Optional[Statistics]) -> tuple[Any, ...]:
    return (None,) * len(FIGURES) if one is None else (None, None, one.min, one.max, one.mean, one.norm)
