"""Read tables of statistics as CSV, and the statistics that a device records instead of values.

Columns are found by name, in any case; an unreadable row adds a note and is skipped. A device writes one CSV per
operator, with one row per tensor:

    Input/Output, Index, Data Size, Data Type, Format, Shape, Max Value, Min Value, Avg Value, Count, Nan Count,
    Negative Inf Count, Positive Inf Count, l2norm     columns by name; the set of columns varies
Shapes are "2x3", "-" for none; "NA" if the type has no such figure. The device counts NaN and Inf and excludes them
from max, min and average. This module restores them, because the maximum of a tensor with a NaN is NaN.
Source: public sources of CANN's runtime.
"""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Callable, Mapping, Optional, TypeVar

from npucmp.dump.limits import ANYWHERE, ReadContext, is_countable
from npucmp.dump.readers.cann_enums import from_name
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.text import read_text
from npucmp.errors import DumpError, SystemFailure
from npucmp.model import Statistics, TensorRef

_ROLES = {"input": "input", "output": "output"}
_DIM = re.compile(r"\d{1,18}", re.ASCII)


def read_statistics(path: str, context: ReadContext = ANYWHERE) -> tuple[TensorRef, ...]:
    """Read the tensors of one file; DumpError if it is not such a table."""
    try:
        rows = list(csv.DictReader(read_text(Path(path), "statistics_bytes", context).splitlines()))
    except csv.Error as error:
        raise DumpError(path, f"not CSV: {error}") from None
    found = tuple(filter(None, (_tensor(_strip_cells(row), Path(path).name, None in row.values()) for row in rows)))
    if not found:
        raise DumpError(path, "no row with Input/Output and Index: cut short, or not statistics")
    return found


def _strip_cells(row: Mapping[Optional[str], object]) -> dict[str, str]:
    return {key.strip().lower(): value.strip() for key, value in row.items() if key and isinstance(value, str)}


def _tensor(row: Mapping[str, str], file: str, short: bool) -> Optional[TensorRef]:
    role, index = _ROLES.get(row.get("input/output", "").lower()), row.get("index", "")
    if role is None or not _DIM.fullmatch(index):
        return None
    dims = [dim for dim in row.get("shape", "").split("x") if dim not in ("", "-")]
    shape, problem = tuple(int(dim) for dim in dims if _DIM.fullmatch(dim)), ""
    if len(shape) < len(dims) or not is_countable(shape):
        shape, problem = (), f"a shape of {row.get('shape', '')!r:.40}"
    problem = "ended early: a row with fewer cells than the header" if short else problem
    return TensorRef(
        f"{role}:{int(index)}",
        from_name(row.get("data type", "")),
        shape,
        statistics=statistics(row),
        layout=row.get("format", ""),
        problem=problem,
        label=f"{file}:{role}.{int(index)}",
    )


def statistics(row: Mapping[str, str]) -> Optional[Statistics]:
    """Return the figures of a row with lower-case names, also of MindSpore. Unknown figures are None; None if all are.

    NaN and Inf determine the maximum and the minimum. Mean and norm of a tensor with an Inf are unknown: the recorded
    ones cover only the finite elements.
    """
    if _figure(row, "nan count"):
        return Statistics(math.nan, math.nan, math.nan, math.nan)
    if any(row.get(name, "").lower() == "null" for name in ("max value", "min value")):
        return Statistics(math.nan, math.nan, math.nan, math.nan)  # no finite element; a type without figures has "NA"
    high, low = _figure(row, "max value"), _figure(row, "min value")
    mean, norm = _figure(row, "avg value", "mean value"), _figure(row, "l2norm", "l2norm value", "l2 value")
    below, above = _figure(row, "negative inf count"), _figure(row, "positive inf count")
    if below or above:
        high, low, mean, norm = math.inf if above else high, -math.inf if below else low, None, None
    found = Statistics.recorded(high, low, mean, norm)
    return found if any(value is not None for value in found) else None


def _figure(row: Mapping[str, str], *names: str) -> Optional[float]:
    for name in names:
        text = row.get(name, "")
        try:
            return float({"true": "1", "false": "0"}.get(text.lower(), text))
        except ValueError:  # "NA", "null"
            continue
    return None


Row = TypeVar("Row")


def has_columns(file: Path, words: tuple[str, ...], context: ReadContext = ANYWHERE) -> bool:
    """Return whether the first line of a file contains these words. Raises SystemFailure."""
    try:
        with open_regular(str(file), context) as opened:
            head = opened.read(0, min(4096, opened.size)).decode("utf-8-sig", "replace").lower()
    except SystemFailure:
        raise
    except DumpError:
        return False
    return all(word in head.partition("\n")[0] for word in words)


def rows_of(
    file: Path,
    row: Callable[[Mapping[str, str]], Optional[Row]],
    notes: list[str],
    context: ReadContext = ANYWHERE,
) -> list[Row]:
    """Return the result of `row` for the cells of each line.

    An unreadable table adds a note. Lines for which `row` returns None name no tensor; they add a note too.
    """
    try:
        table = csv.reader(read_text(file, "statistics_bytes", context).splitlines())
        header = [word.strip().lower() for word in next(table, [])]
        found = [row(dict(zip(header, (cell.strip() for cell in cells)))) for cells in table if cells]
    except (DumpError, csv.Error) as error:
        notes.append(f"{file}: ignored, {getattr(error, 'because', error)}")
        return []
    lost = found.count(None)
    if lost or not found:
        notes.append(f"{file}: {lost} rows name no tensor and are skipped" if lost else f"{file}: has no rows")
    return [one for one in found if one is not None]
