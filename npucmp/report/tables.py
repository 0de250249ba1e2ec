"""tensors.csv and roots.csv: the tables that tickets and scripts rely on. Columns are only ever appended.

A cell is empty where nothing applies or nothing is known; floats carry their full precision.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

from npucmp.measure import metrics
from npucmp.model import Comparison, Pair, Report, Root, Side, Statistics, TensorRef, sentences
from npucmp.model.stack import source_line
from npucmp.report.sanitise import inert

NAME = "csv"
Columns = dict[str, list[Any]]
_NONE = type(None)

_FIRST_COLUMNS = tuple(
    (
        "step rank order op op_type phase slot verdict because matched_by match_confidence target_op golden_op "
        "target_tensor golden_tensor target_dtype golden_dtype target_shape golden_shape target_layout golden_layout "
        "elements cosine rel_l2 max_abs_err max_abs_index max_rel_err max_rel_index mean_abs_err mean_rel_err rmse "
        "err_1e3_ratio err_5e3_ratio allclose mismatch_ratio max_ulp exact_ratio nonfinite_mismatch "
        "target_nan target_inf golden_nan golden_inf target_min target_max target_mean target_l2 "
        "golden_min golden_max golden_mean golden_l2 stack"
    ).split(" ")
)
TENSOR_COLUMNS = (
    *_FIRST_COLUMNS,
    *(metric.name for metric in metrics.METRICS if metric.always and metric.name not in _FIRST_COLUMNS),
)
ROOT_COLUMNS = tuple(
    (
        "place step rank order op op_type phase cause slot metric value limit input_error output_error growth "
        "evidence stack target_op golden_op"
    ).split(" ")
)


def render(report: Report, extra: Sequence[str] = ()) -> "dict[str, str]":
    """Both files. `extra` are names of metrics to append as columns of tensors.csv."""
    return {
        "tensors.csv": csv_of([*TENSOR_COLUMNS, *extra], tensor_columns(report, extra)),
        "roots.csv": csv_text(ROOT_COLUMNS, root_rows(report)),
    }


def tensors_frame(report: Report) -> Any:
    """The rows of tensors.csv as a pandas DataFrame."""
    import pandas

    return pandas.DataFrame(tensor_columns(report), columns=list(TENSOR_COLUMNS))


def root_rows(report: Report) -> "Iterator[dict[str, Any]]":
    """One row per operator that diverged, the one to look at first on top."""
    rows = [(root, comparison) for comparison in report.comparisons for root in comparison.roots]
    for root, comparison in sorted(rows, key=lambda row: row[0].place):
        yield {"place": root.place, **_where(comparison), **root_row(root)}


def _where(comparison: Comparison) -> "dict[str, Any]":
    target, golden = comparison.target, comparison.golden
    return {
        "step": golden.step if target.step is None else target.step,
        "rank": golden.rank if target.rank is None else target.rank,
    }


def _operator(root: Root) -> "dict[str, Any]":
    pair, operator = root.pair, root.pair.operator
    return {
        "order": pair.order,
        "op": operator.name,
        "op_type": operator.op_type,
        "phase": operator.phase,
        "slot": pair.slot,
        "target_op": pair.target_op.name if pair.target_op else None,
        "golden_op": pair.golden_op.name if pair.golden_op else None,
        "stack": source_line(operator) or (source_line(pair.golden_op) if pair.golden_op else ""),
    }


def tensor_columns(report: Report, extra: Sequence[str] = ()) -> Columns:
    """The cells of tensors.csv, a list per column, in graph order."""
    parts = [columns_of(one, extra) for one in report.comparisons]
    if len(parts) == 1:
        return parts[0]
    return {name: [cell for part in parts for cell in part[name]] for name in (*TENSOR_COLUMNS, *extra)}


def columns_of(comparison: Comparison, extra: Sequence[str] = ()) -> Columns:
    """Those of one comparison, made column by column, which takes a third of the time of rows. None where nothing
    applies or nothing is known."""
    findings = comparison.findings
    measured = [finding.measurement for finding in findings]
    pairs = [one.pair for one in measured]
    columns: Columns = {name: [cell] * len(pairs) for name, cell in _where(comparison).items()}
    columns.update(_of_operators(pairs))
    columns["order"] = [pair.order for pair in pairs]
    columns["slot"] = [pair.slot for pair in pairs]
    columns["verdict"] = [finding.verdict.value for finding in findings]
    columns["because"] = [finding.because for finding in findings]
    columns["matched_by"] = [pair.via for pair in pairs]
    columns["match_confidence"] = [pair.confidence if pair.via else None for pair in pairs]
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
    for metric in metrics.METRICS:
        if metric.always or metric.name in extra:
            columns[metric.name] = [None if one is None else metric.function(one) for one in both]
    for name in ("max_abs_index", "max_rel_index"):
        places = [-1 if one is None else getattr(one, name) for one in both]
        columns[name] = [place if place >= 0 else None for place in places]
    return columns


def _named(names: "Sequence[str]", rows: "Sequence[tuple[Any, ...]]") -> Columns:
    """Rows of as many cells as names, by column."""
    return dict(zip(names, map(list, zip(*rows)) if rows else ([] for _ in names)))


def _of_operators(pairs: "Sequence[Pair]") -> Columns:
    """What is the same for all pairs of an operator, made once for each."""
    known: dict[tuple[int, int], tuple[Any, ...]] = {}
    rows = []
    for pair in pairs:
        key = id(pair.target_op), id(pair.golden_op)
        row = known.get(key)
        if row is None:
            target, golden, operator = pair.target_op, pair.golden_op, pair.operator
            stack = source_line(operator) or (source_line(golden) if golden else "")
            names = target.name if target else None, golden.name if golden else None
            row = known[key] = operator.name, operator.op_type, operator.phase, *names, stack
        rows.append(row)
    return _named(("op", "op_type", "phase", "target_op", "golden_op", "stack"), rows)


def _elements(tensor: Optional[TensorRef]) -> Optional[int]:
    return math.prod(tensor.shape) if tensor is not None and tensor.slot else None


def _of_tensors(side: str, tensors: "Sequence[Optional[TensorRef]]") -> Columns:
    rows = [
        (None, None, None, None)
        if one is None
        else (one.label, one.dtype, str(list(one.shape)) if one.slot else None, one.layout)
        for one in tensors
    ]
    return _named([f"{side}_{name}" for name in ("tensor", "dtype", "shape", "layout")], rows)


FIGURES = ("nan", "inf", "min", "max", "mean", "l2")


def _figures(side: Side, elements: int) -> "tuple[Any, ...]":
    inf = side.inf
    finite = elements - side.nan - inf
    if not finite:
        return side.nan, inf, None, None, None, math.sqrt(side.squares)
    return side.nan, inf, side.minimum, side.maximum, side.total / finite, math.sqrt(side.squares)


def _recorded(one: Optional[Statistics]) -> "tuple[Any, ...]":
    return (None,) * len(FIGURES) if one is None else (None, None, one.min, one.max, one.mean, one.norm)


def root_row(root: Root) -> "dict[str, Any]":
    """A root without its place, step and rank."""
    return {
        **_operator(root),
        "cause": root.cause.value,
        "slot": root.slot,
        "metric": root.metric,
        "value": root.value,
        "limit": root.limit,
        "input_error": root.input_error,
        "output_error": root.output_error,
        "growth": root.growth,
        "evidence": sentences(root.evidence),
    }


def csv_text(names: Sequence[str], rows: "Iterable[Mapping[str, Any]]") -> str:
    """Rows as CSV with a header."""
    found = [*rows]
    return csv_of(names, {name: [row.get(name) for row in found] for name in names})


def csv_of(names: Sequence[str], columns: "Mapping[str, Sequence[Any]]") -> str:
    """Columns as CSV with a header; cells that a spreadsheet would run are made inert."""
    cells = zip(*(_cells(columns[name]) for name in names))
    return "\n".join(map(",".join, chain([names], cells))) + "\n"


def _cells(column: "Sequence[Any]") -> "Iterable[str]":
    """The cells of a column in words; those of text, which repeat, once for each."""
    kinds = {*map(type, column)}
    if kinds <= {float, _NONE}:
        return map(repr, column) if _NONE not in kinds else ["" if cell is None else repr(cell) for cell in column]
    if kinds <= {str, _NONE}:
        words = {text: _cell(text) for text in dict.fromkeys(column)}
        return map(words.__getitem__, column)
    return map(str, column) if kinds <= {int, bool} else map(_cell, column)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(float(value))
    return _quoted(inert(value)) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """By RFC 4180; inert text has no line breaks."""
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text
