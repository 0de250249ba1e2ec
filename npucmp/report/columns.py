"""The cells of tensors.csv, made column by column."""

from __future__ import annotations

import math
from itertools import chain
from operator import attrgetter
from typing import Any, Optional, Sequence

from npucmp.measure import metrics
from npucmp.model import Comparison, Finding, Measurement, Pair, Report, Side, Statistics, position
from npucmp.report.answer import Columns
from npucmp.report.network import network_of
from npucmp.report.tables import OF_OPERATORS, RELATIONS, SIDES, TENSOR_COLUMNS, columns_of_rows

FIGURES = ("nan", "inf", "min", "max", "mean", "l2")
OF_TENSORS = ("tensor", "dtype", "shape", "layout")
_FINDING, _MEASUREMENT, _PAIR = Finding._fields, Measurement._fields, Pair._fields
_NO_STATISTICS = Statistics()


def tensor_columns(report: Report, extra: Sequence[str] = ()) -> Columns:
    """Return the cells of tensors.csv, a list per column, in graph order."""
    return _concatenated([columns_of(one, extra) for one in report.comparisons], (*TENSOR_COLUMNS, *extra))


def _concatenated(parts: Sequence[Columns], names: Sequence[str]) -> Columns:
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
    columns.update((name, fixed[name]) for name in (*OF_OPERATORS, "order", "slot"))
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
                else _recorded(found)
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
    for metric in metrics.METRICS:
        if metric.always or metric.name in extra:
            columns[metric.name] = (
                [None if one is None else metric.function(one) for one in both] if has_both else nothing
            )
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
    relations = [None if one.target is None or one.target.relation is None else one.target.relation.words or None
                 for one in measured["pair"]]  # fmt: skip
    columns["relation"] = relations if any(relations) else nothing
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


def _recorded(one: Optional[Statistics]) -> tuple[Any, ...]:
    return (None,) * len(FIGURES) if one is None else (None, None, one.min, one.max, one.mean, one.norm)
