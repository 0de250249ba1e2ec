"""Pack the data of report.html: columns of operators and of rows, small even for 20,000 rows.

A column is one of
    {"all": value}                 the value of every row
    {"words": […], "codes": […]}   few different values, and for each row the index of its value
    {"values": […]}                the value of each row; null is "does not apply"
with "number": true if values are numbers; NaN and infinities are then strings. A column without values is omitted.
Floats have four digits; a float just below 1 has three digits of its difference from 1. The page shows no more digits,
the CSV files have all. Several texts in one cell are a list. Rows are grouped by operator; the column `rows` of the
operators is the number of rows of each.
"""

from __future__ import annotations

import math
from itertools import count
from typing import Any, Mapping, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.report.answer import Detail
from npucmp.report.csv_text import CodedColumn
from npucmp.report.network import FixedColumn
from npucmp.report.sanitise import visible

EXACT = 1 << 53  # integers up to here are exact in a browser
_NONE = type(None)
_EXACT_POWER = 22  # the largest power of ten that a float represents exactly
_POWERS = np.array([float(10**power) for power in range(_EXACT_POWER + 1)])
DIGITS = 4  # digits of a float: definition: the page shows no more
SMALL = 1e6  # whole floats below this are written as integers
CODED_SHARE = 0.5  # share of different values up to which a column is written with codes


def page_data(detail: Detail) -> dict[str, Any]:
    """Return all data that the scripts of the page read."""
    return {
        "kind": detail.kind,
        "runs": [visible(run) for run in detail.runs],
        **json_value(detail.more),
        "operators": pack_columns(detail.operators),
        "rows": pack_columns(detail.rows),
        "columns": [*detail.columns],
        "shown": [*detail.shown],
        "facets": [*detail.facets],
    }


def pack_columns(columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the columns, each in its smallest form, and the number of rows; columns without values are omitted."""
    found = {name: _column(cells) for name, cells in columns.items()}
    length = max(map(len, columns.values()), default=0)
    return {"length": length, "columns": {name: column for name, column in found.items() if column is not None}}


class FixedJson(dict[str, Any]):
    """A packed column of a network; its JSON is made once."""

    json = ""


def _column(cells: Sequence[Any]) -> Optional[dict[str, Any]]:
    """Return a column in its smallest form; None if no row has a value."""
    return cells.cached(_fixed_width) if isinstance(cells, FixedColumn) else _pack_column(cells)


def _fixed_width(cells: Sequence[Any]) -> Optional[FixedJson]:
    found = _pack_column(cells)
    return None if found is None else FixedJson(found)


def _pack_column(cells: Sequence[Any]) -> Optional[dict[str, Any]]:
    kinds = {*map(type, cells.different if isinstance(cells, CodedColumn) else cells)}
    if kinds <= {_NONE}:
        return None
    number = {"number": True} if kinds & {int, float} else {}
    is_mixed = float in kinds and not kinds <= {float, _NONE}
    if is_mixed:  # equal values may be written differently
        cells = CodedColumn(cells, range(len(cells)))
    column = cells if isinstance(cells, CodedColumn) else CodedColumn.of(cells)
    plains = _plain_floats(column.different) if float in kinds and not is_mixed else _plains(column.different, kinds)
    words = dict(zip(dict.fromkeys(plains), count()))
    if len(words) <= 1:
        return {"all": plains[0], **number} if plains[0] is not None else None
    if len(words) <= CODED_SHARE * len(cells):
        if len(words) == len(plains) and isinstance(column.codes, list):
            return {"words": plains, "codes": column.codes, **number}
        numbers = [*map(words.__getitem__, plains)]
        return {"words": [*words], "codes": [*map(numbers.__getitem__, column.codes)], **number}
    return {"values": [*map(plains.__getitem__, column.codes)], **number}


def _plain_floats(cells: Sequence[Optional[float]]) -> list[Any]:
    """Convert floats to values that JSON can represent, all at once."""
    values = np.array(cells, dtype=np.float64)  # None becomes NaN
    finite = np.isfinite(values)
    if finite.all():
        return _figures(values)
    figures = iter(_figures(values[finite]))
    return [next(figures) if is_finite else json_value(cell) for cell, is_finite in zip(cells, finite.tolist())]


def _plains(cells: Sequence[Any], kinds: set[type]) -> list[Any]:
    """Convert cells other than floats to values that JSON can represent; a column of safe text is returned at once."""
    known = [cell for cell in cells if cell is not None]
    if (kinds <= {str, _NONE} and _is_harmless(known)) or (kinds <= {int, _NONE} and max(map(abs, known)) < EXACT):
        return [*cells]
    return [*map(json_value, cells)]


def _is_harmless(texts: Sequence[str]) -> bool:
    """Return whether every text is printable ASCII and not empty."""
    together = "".join(texts)
    return "" not in texts and together.isascii() and together.isprintable()


def _figures(values: npt.NDArray[np.float64]) -> list[Any]:
    """Round finite numbers to four digits; small whole numbers become integers."""
    short, is_sure = in_digits(values, DIGITS)
    found: list[Any] = short.tolist()
    for at in np.flatnonzero((np.abs(short) < SMALL) & (short == np.floor(short))).tolist():
        found[at] = int(found[at])
    for at in np.flatnonzero(~is_sure | ((values > 0.99) & (values < 1.0))).tolist():
        found[at] = _figure(float(values[at]))
    return found


def _figure(cell: float) -> Any:
    """Round a finite number to four digits. A number just below 1, such as a cosine, keeps three digits of its
    difference from 1."""
    if 0.99 < cell < 1.0:
        return round(cell, 2 - math.floor(math.log10(1.0 - cell)))
    short = float(f"{cell:.4g}")
    if math.isinf(short):  # the largest floats overflow when rounded
        return cell
    return int(short) if abs(short) < SMALL and short.is_integer() else short


def in_digits(values: npt.NDArray[np.float64], count: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Round numbers to so many decimal digits, and return where the result is certain: not at a tie, and not where the
    power of ten is not an exact float."""
    sizes = np.abs(values)
    is_zero = sizes == 0
    powers = np.floor(np.log10(np.where(is_zero, 1.0, sizes))) - (count - 1)
    is_sure = (powers >= -_EXACT_POWER) & (powers <= _EXACT_POWER - count)
    ups, downs = (_POWERS[np.clip(exponents, 0, _EXACT_POWER).astype(np.intp)] for exponents in (powers, -powers))
    scaled = sizes * downs / ups
    digits = np.rint(scaled)
    is_sure &= (np.abs(scaled - np.floor(scaled) - 0.5) > 1e-6) & (digits >= 10 ** (count - 1)) & (digits <= 10**count)
    return np.copysign(digits * ups / downs, values), is_sure | is_zero


def json_value(value: Any) -> Any:
    """Convert a value for JSON: text with invisible characters escaped, floats with four digits, empty values as
    None."""
    if value is None:
        return None
    if isinstance(value, str):
        return visible(value) or None
    if isinstance(value, (tuple, list)):
        return tuple(map(json_value, value)) or None
    if isinstance(value, dict):
        return {name: json_value(cell) for name, cell in value.items()}
    if isinstance(value, int):  # bool included
        return value if abs(value) < EXACT else float(value)
    if math.isfinite(value):
        return _figure(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
