"""tensors.csv and roots.csv: the tables that tickets and scripts rely on. Columns are only ever appended.

A cell is empty where nothing applies or nothing is known; floats carry their full precision.
"""

from __future__ import annotations

import csv
import io
import math
from typing import Any, Iterator, Optional, Sequence

from npucmp import metrics
from npucmp.model import Comparison, Finding, Operator, Report, Root, Side, Statistics, TensorRef
from npucmp.report.sanitise import inert
from npucmp.stack import source_line

NAME = "csv"

TENSOR_COLUMNS = tuple(
    (
        "step rank order op op_type phase slot verdict because matched_by match_confidence target_op golden_op "
        "target_tensor golden_tensor target_dtype golden_dtype target_shape golden_shape target_layout golden_layout "
        "elements cosine rel_l2 max_abs_err max_abs_index max_rel_err max_rel_index mean_abs_err mean_rel_err rmse "
        "err_1e3_ratio err_5e3_ratio allclose mismatch_ratio max_ulp exact_ratio nonfinite_mismatch "
        "target_nan target_inf golden_nan golden_inf target_min target_max target_mean target_l2 "
        "golden_min golden_max golden_mean golden_l2 stack"
    ).split(" ")
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
        "tensors.csv": csv_text([*TENSOR_COLUMNS, *extra], tensor_rows(report, extra)),
        "roots.csv": csv_text(ROOT_COLUMNS, root_rows(report)),
    }


def tensors_frame(report: Report) -> Any:
    """tensor_rows as a pandas DataFrame."""
    import pandas

    return pandas.DataFrame(list(tensor_rows(report)), columns=list(TENSOR_COLUMNS))


def tensor_rows(report: Report, extra: Sequence[str] = ()) -> "Iterator[dict[str, Any]]":
    """One row per tensor pair, in graph order."""
    for comparison in report.comparisons:
        for finding in comparison.findings:
            yield _tensor_row(comparison, finding, extra)


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


def _operator(finding_or_root: Any) -> "dict[str, Any]":
    pair = finding_or_root.pair
    operator: Operator = pair.operator
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


def _tensor_row(comparison: Comparison, finding: Finding, extra: Sequence[str]) -> "dict[str, Any]":
    pair, moments = finding.pair, finding.measurement.moments
    row = {
        **_where(comparison),
        **_operator(finding),
        "verdict": finding.verdict.value,
        "because": finding.because,
        "matched_by": pair.via,
        "match_confidence": pair.confidence if pair.via else None,
        **_tensor("target", pair.target),
        **_tensor("golden", pair.golden),
        "elements": _elements(pair.target or pair.golden),
    }
    for side, statistics in zip(("target", "golden"), finding.measurement.statistics):
        row.update(_statistics(side, statistics))
    if moments is None:
        return row
    if pair.target is not None:
        row.update(_side("target", moments.target, moments.count))
    if pair.golden is not None:
        row.update(_side("golden", moments.golden, moments.count))
    if pair.target is not None and pair.golden is not None:
        for metric in metrics.METRICS:
            if metric.always or metric.name in extra:
                row[metric.name] = metric.function(moments)
        row["max_abs_index"] = moments.max_abs_index if moments.max_abs_index >= 0 else None
        row["max_rel_index"] = moments.max_rel_index if moments.max_rel_index >= 0 else None
    return row


def _elements(tensor: Optional[TensorRef]) -> Optional[int]:
    return math.prod(tensor.shape) if tensor is not None and tensor.slot else None


def _tensor(side: str, tensor: Optional[TensorRef]) -> "dict[str, Any]":
    if tensor is None:
        return {}
    return {
        f"{side}_tensor": tensor.label,
        f"{side}_dtype": tensor.dtype,
        f"{side}_shape": str(list(tensor.shape)) if tensor.slot else None,
        f"{side}_layout": tensor.layout,
    }


def _side(side: str, values: Side, count: int) -> "dict[str, Any]":
    finite = count - values.nan - values.inf
    return {
        f"{side}_nan": values.nan,
        f"{side}_inf": values.inf,
        f"{side}_min": values.minimum if finite else None,
        f"{side}_max": values.maximum if finite else None,
        f"{side}_mean": values.total / finite if finite else None,
        f"{side}_l2": math.sqrt(values.squares),
    }


def _statistics(side: str, recorded: Optional[Statistics]) -> "dict[str, Any]":
    if recorded is None:
        return {}
    names = ("max", "min", "mean", "l2")
    return {f"{side}_{name}": value for name, value in zip(names, recorded)}


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
        "evidence": root.evidence,
    }


def csv_text(columns: Sequence[str], rows: "Iterator[dict[str, Any]]") -> str:
    """Rows as CSV with a header; cells that a spreadsheet would run are made inert."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    return stream.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(float(value))
    return inert(value) if isinstance(value, str) else str(value)
