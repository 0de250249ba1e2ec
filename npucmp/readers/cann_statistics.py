"""Statistics that a device keeps instead of values: one CSV per operator, one row per tensor.

    Input/Output, Index, Data Size, Data Type, Format, Shape, Max Value, Min Value, Avg Value, Count, Nan Count,
    Negative Inf Count, Positive Inf Count, l2norm     columns by name; which of them stand there varies
Shapes are "2x3", "-" for none; "NA" where a type has no such figure. NaN and Inf are left out of max, min and average
and counted; here they are put back, because the maximum of a tensor with a NaN is NaN.
Source: public sources of CANN's runtime.
"""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Mapping, Optional

from npucmp.errors import DumpError
from npucmp.model import Statistics, TensorRef
from npucmp.readers.cann_words import from_name
from npucmp.readers.text import read_text

LARGEST = 16 * 2**20  # bytes; a file has a row per tensor of one operator
_ROLES = {"input": "input", "output": "output"}
_DIM = re.compile(r"\d{1,18}", re.ASCII)


def read(path: str) -> "tuple[TensorRef, ...]":
    """The tensors of one file; DumpError if it is no such table."""
    try:
        rows = list(csv.DictReader(read_text(Path(path), LARGEST).splitlines()))
    except csv.Error as error:
        raise DumpError(path, f"not CSV: {error}") from None
    found = tuple(filter(None, (_tensor(_stripped(row), Path(path).name) for row in rows)))
    if not found:
        raise DumpError(path, "no row with Input/Output and Index: cut short, or no statistics")
    return found


def _stripped(row: "Mapping[Optional[str], object]") -> "dict[str, str]":
    return {key.strip().lower(): value.strip() for key, value in row.items() if key and isinstance(value, str)}


def _tensor(row: "Mapping[str, str]", file: str) -> Optional[TensorRef]:
    role, index = _ROLES.get(row.get("input/output", "").lower()), row.get("index", "")
    if role is None or not _DIM.fullmatch(index):
        return None
    dims = [dim for dim in row.get("shape", "").split("x") if dim not in ("", "-")]
    shape = tuple(int(dim) for dim in dims if _DIM.fullmatch(dim))
    return TensorRef(
        f"{role}:{int(index)}",
        from_name(row.get("data type", "")),
        shape,
        statistics=statistics(row),
        layout=row.get("format", ""),
        problem="" if len(shape) == len(dims) else f"a shape of {row.get('shape', '')!r:.40}",
        label=f"{file}:{role}.{int(index)}",
    )


def statistics(row: "Mapping[str, str]") -> Statistics:
    """Figures of a row with lower-case names; what stands in none of them is None."""

    def figure(*names: str) -> Optional[float]:
        for name in names:
            try:
                return float(row[name])
            except (KeyError, ValueError):  # "NA", "null"
                continue
        return None

    low, high = figure("min value"), figure("max value")
    mean, norm = figure("avg value", "mean value"), figure("l2norm", "l2norm value", "l2 value")
    if figure("nan count"):
        return Statistics(math.nan, math.nan, math.nan, math.nan)
    below, above = figure("negative inf count"), figure("positive inf count")
    if below or above:
        high, low = (math.inf if above else high), (-math.inf if below else low)
        return Statistics(high, low, math.nan if below and above else (math.inf if above else -math.inf), math.inf)
    return Statistics(high, low, mean, norm)
