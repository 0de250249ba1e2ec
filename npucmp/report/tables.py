"""The tables that tickets and scripts rely on: tensors.csv and roots.csv. Columns are only ever appended."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, Callable, Iterable, Optional, Sequence

from npucmp.measure import metrics
from npucmp.model import Comparison, Pair, Report, Root, Side, Statistics, TensorRef, position
from npucmp.report.answer import Columns, Row, Table
from npucmp.report.words import line_of

SUMMARISED = 50  # roots that summary.json holds
Rooted = tuple[Sequence[Root], Optional[int], Optional[int]]  # roots, and the step and rank that they are of

_FIRST = tuple(
    (
        "step rank order op op_type phase slot verdict because matched_by match_confidence target_op golden_op "
        "target_tensor golden_tensor target_dtype golden_dtype target_shape golden_shape target_layout golden_layout "
        "elements cosine rel_l2 max_abs_err max_abs_index max_rel_err max_rel_index mean_abs_err mean_rel_err rmse "
        "err_1e3_ratio err_5e3_ratio allclose mismatch_ratio max_ulp exact_ratio nonfinite_mismatch "
        "target_nan target_inf golden_nan golden_inf target_min target_max target_mean target_l2 "
        "golden_min golden_max golden_mean golden_l2 stack cause limit rule explained_by explained_limit masked"
    ).split(" ")
)
PLACES = ("max_abs_at", "max_rel_at")  # of the flat indices, which a page reads
RELATIONS = ("golden_slot", "relation", "match_reason", "estimator")  # the last three are not known yet
TENSOR_COLUMNS = (
    *_FIRST,
    *(one.name for one in metrics.METRICS if one.always and one.name not in _FIRST),
    *PLACES,
    *RELATIONS,
)
ROOT_COLUMNS = tuple(
    (
        "place step rank order op op_type phase cause slot metric value limit input_error output_error growth "
        "evidence stack target_op golden_op rule"
    ).split(" ")
)


def tensors(cells: Callable[[], Sequence[Columns]], metrics: Sequence[str] = ()) -> Table:
    """A row per finding, in graph order, of what columns_of says of each comparison; `metrics` are names of columns to
    append."""
    names = (*TENSOR_COLUMNS, *metrics)
    return Table("tensors.csv", names, lambda: _joined(cells(), names))


def roots(found: Iterable[Rooted]) -> Table:
    """A row per operator that diverged, the one to look at first on top."""
    return table("roots.csv", ROOT_COLUMNS, lambda: root_rows(found))


def root_rows(found: Iterable[Rooted], most: Optional[int] = None) -> list[Row]:
    """The rows of roots.csv, by place; the first of them, if not all are wanted."""
    rooted = sorted(((root, step, rank) for roots, step, rank in found for root in roots), key=lambda one: one[0].place)
    return [_root_row(*one) for one in rooted[:most]]


def table(file: str, names: tuple[str, ...], rows: Callable[[], Iterable[Row]]) -> Table:
    """One that is made row by row."""
    return Table(file, names, lambda: by_column([*rows()], names))


def by_column(rows: Sequence[Row], names: Sequence[str] = ()) -> Columns:
    """Rows as columns: those named, else all that any row has."""
    wanted = names or dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in wanted}


def _root_row(root: Root, step: Optional[int], rank: Optional[int]) -> Row:
    return {
        "place": root.place,
        "step": step,
        "rank": rank,
        "order": root.pair.order,
        **{name: column[0] for name, column in _of_operators([root.pair]).items()},
        "cause": root.cause.value,
        "slot": root.slot,
        "metric": root.metric,
        "value": root.value,
        "limit": root.limit,
        "input_error": root.input_error,
        "output_error": root.output_error,
        "growth": root.growth,
        "evidence": root.because,
        "rule": root.rule,
    }


def of_root(root: Root) -> Row:
    """What a page shows of a root with its operator."""
    evidence = tuple(one.sentence() for one in root.evidence)
    return {"cause": root.cause.value, "place": root.place, "root_slot": root.slot, "evidence": evidence}


def tensor_columns(report: Report, extra: Sequence[str] = ()) -> Columns:
    """The cells of tensors.csv, a list per column, in graph order."""
    return _joined([columns_of(one, extra) for one in report.comparisons], (*TENSOR_COLUMNS, *extra))


def _joined(parts: Sequence[Columns], names: Sequence[str]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: [*chain.from_iterable(part[name] for part in parts)] for name in names}


def columns_of(comparison: Comparison, extra: Sequence[str] = ()) -> Columns:
    """Those of one comparison, made column by column, which takes a third of the time of rows. None where nothing
    applies or nothing is known."""
    findings = comparison.findings
    measured = [finding.measurement for finding in findings]
    pairs = [one.pair for one in measured]
    columns: Columns = {"step": [comparison.step] * len(pairs), "rank": [comparison.rank] * len(pairs)}
    columns.update(_of_operators(pairs))
    columns["order"] = [pair.order for pair in pairs]
    columns["slot"] = [pair.slot for pair in pairs]
    columns["verdict"] = [finding.verdict.value for finding in findings]
    columns["because"] = [finding.because for finding in findings]
    columns["matched_by"] = [pair.via for pair in pairs]
    columns["match_confidence"] = [pair.confidence if pair.via else None for pair in pairs]
    causes = {root.pair.order: root.cause.value for root in comparison.roots}
    columns["cause"] = [causes.get(pair.order) for pair in pairs]
    columns["limit"] = [finding.limit if finding.rule else None for finding in findings]
    columns["rule"] = [finding.rule or None for finding in findings]
    columns["explained_by"] = [finding.explained_by or None for finding in findings]
    columns["explained_limit"] = [finding.explained_limit if finding.explained_by else None for finding in findings]
    columns["masked"] = [None if one.moments is None else one.moments.masked for one in measured]
    columns["elements"] = [_elements(pair.target or pair.golden) for pair in pairs]
    for number, side in enumerate(("target", "golden")):
        tensors: list[Optional[TensorRef]] = [getattr(pair, side) for pair in pairs]
        columns.update(_of_tensors(side, tensors))
        own = [
            _figures(getattr(one.moments, side), one.moments.elements)
            if one.moments is not None and tensor is not None
            else _recorded(one.statistics[number])
            for one, tensor in zip(measured, tensors)
        ]
        columns.update(_named([f"{side}_{name}" for name in FIGURES], own))
    both = [one.moments if one.pair.target is not None and one.pair.golden is not None else None for one in measured]
    nothing = [None] * len(both) if not any(both) else None  # statistics are all there is
    for metric in metrics.METRICS:
        if metric.always or metric.name in extra:
            columns[metric.name] = nothing or [None if one is None else metric.function(one) for one in both]
    for name in ("max_abs_index", "max_rel_index"):
        places = [-1 if one is None else getattr(one, name) for one in both]
        columns[name] = [place if place >= 0 else None for place in places]
        columns[f"{name[: -len('index')]}at"] = [
            position(place, one.golden.shape) if place >= 0 and one.golden is not None else None
            for place, one in zip(places, pairs)
        ]
    columns["golden_slot"] = [_golden_slot(pair) for pair in pairs]
    columns.update({name: [None] * len(pairs) for name in RELATIONS if name not in columns})
    return columns


def _golden_slot(pair: Pair) -> Optional[str]:
    """The slot of the golden's tensor in its own dump, where the row has another."""
    own = (pair.golden.own_slot or pair.golden.slot) if pair.golden is not None else ""
    return own if own != pair.slot else None


def _named(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Columns:
    """Rows of as many cells as names, by column."""
    return dict(zip(names, map(list, zip(*rows)) if rows else ([] for _ in names)))


def _of_operators(pairs: Sequence[Pair]) -> Columns:
    """What is the same for all pairs of an operator, made once for each."""
    known: dict[tuple[int, int], tuple[Any, ...]] = {}
    rows = []
    for pair in pairs:
        key = id(pair.target_op), id(pair.golden_op)
        row = known.get(key)
        if row is None:
            target, golden, operator = pair.target_op, pair.golden_op, pair.operator
            names = target.name if target else None, golden.name if golden else None
            row = known[key] = operator.name, operator.op_type, operator.phase, *names, line_of(pair)
        rows.append(row)
    return _named(("op", "op_type", "phase", "target_op", "golden_op", "stack"), rows)


def _elements(tensor: Optional[TensorRef]) -> Optional[int]:
    return math.prod(tensor.shape) if tensor is not None and tensor.slot else None


def _of_tensors(side: str, tensors: Sequence[Optional[TensorRef]]) -> Columns:
    rows = [
        (None, None, None, None)
        if one is None
        else (one.label, one.dtype, str(list(one.shape)) if one.slot else None, one.layout)
        for one in tensors
    ]
    return _named([f"{side}_{name}" for name in ("tensor", "dtype", "shape", "layout")], rows)


FIGURES = ("nan", "inf", "min", "max", "mean", "l2")


def _figures(side: Side, elements: int) -> tuple[Any, ...]:
    inf = side.inf
    finite = elements - side.nan - inf
    if not finite:
        return side.nan, inf, None, None, None, math.sqrt(side.squares)
    return side.nan, inf, side.minimum, side.maximum, side.total / finite, math.sqrt(side.squares)


def _recorded(one: Optional[Statistics]) -> tuple[Any, ...]:
    return (None,) * len(FIGURES) if one is None else (None, None, one.min, one.max, one.mean, one.norm)
